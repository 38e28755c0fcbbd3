"""The small parts that the reports share: lanes, meetings, ranks, files, wording."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.example import make
from triosim.core.errors import InputError
from triosim.plan import RunPlan
from triosim.prediction.result import LayerRow, Memory
from triosim.prediction.result.words import number, plan_words, verdict
from triosim.report.lanes import lanes
from triosim.report.messages import collective_kind, meetings, occurrence, spans
from triosim.report.ranks import representatives, shown
from triosim.report.text import fold, module_times, shorten
from triosim.schedule.program import Op

INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 12)), max_size=25)


@given(INTERVALS)
def test_slices_of_a_lane_never_overlap_and_no_lane_is_wasted(rows: list[tuple[int, int, int]]) -> None:
    track, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    lane = lanes(track, start, start + length)
    for t in set(track.tolist()):
        mine = track == t
        deepest = max(int(((start <= at) & (at < start + length))[mine].sum()) for at in range(45))
        assert lane[mine].max() == deepest - 1
        for one in set(lane[mine].tolist()):
            at = np.flatnonzero(mine & (lane == one))
            taken = sorted(zip(start[at].tolist(), (start + length)[at].tolist(), strict=True))
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))


def test_a_slice_without_length_has_a_lane_too() -> None:
    zero, one = np.zeros(3, np.int64), np.array([0, 2, 1], np.int64)
    assert lanes(zero, one, np.array([2, 2, 1], np.int64)).tolist() == [0, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20))
def test_occurrence_counts_earlier_equal_rows(rows: list[tuple[int, int]]) -> None:
    a, b = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    assert occurrence(a, b).tolist() == [rows[:i].count(row) for i, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all_reduce", "all_reduce"), ("AllReduce dp", "all_reduce"), ("reduce-scatter", "reduce_scatter"),
        ("all_gather", "all_gather"), ("gather", "gather"), ("reduce", "reduce"), ("aten::mm", ""),
    ],
)  # fmt: skip
def test_the_kind_of_a_collective_is_read_from_its_name(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


def test_members_of_a_collective_and_ends_of_a_message_meet() -> None:
    s = make(iterations=2).timeline.slices
    meeting = meetings(s)
    assert np.array_equal(meeting >= 0, np.isin(s.op, (Op.COLLECTIVE, Op.SEND, Op.RECEIVE)))
    for number_ in range(meeting.max() + 1):
        rows = np.flatnonzero(meeting == number_)
        assert len(rows) == 2
        if s.op[rows[0]] == Op.COLLECTIVE:
            assert [len(set(column[rows])) for column in (s.rank, s.end, s.group)] == [2, 1, 1]
        else:
            assert set(s.op[rows]) == {Op.SEND, Op.RECEIVE}
            assert len(set(s.pair[rows])) == 1


def test_a_receive_is_shown_while_its_send_moves() -> None:
    s = make().timeline.slices
    start, begin, end = spans(s)
    arrivals = np.flatnonzero(s.op == Op.RECEIVE)
    sends = {int(s.pair[row]): row for row in np.flatnonzero(s.op == Op.SEND)}
    for row in arrivals.tolist():
        send = sends[int(s.pair[row])]
        assert (start[row], begin[row], end[row]) == (s.begin[send], s.begin[send], s.end[send])
    others = s.op != Op.RECEIVE
    assert np.array_equal(start[others], s.start[others])
    assert np.array_equal(end[others], s.end[others])


def test_ranks_that_stand_for_their_class() -> None:
    timeline = make().timeline
    assert representatives(timeline) == [0, 2]
    assert shown(timeline, None, len(timeline.slices)) == [0, 1, 2, 3]
    assert shown(timeline, None, len(timeline.slices) - 1) == [0, 2]
    assert shown(timeline, [3, 1, 3], 1) == [1, 3]
    with pytest.raises(InputError, match="rank 7"):
        shown(timeline, [7], 10)


def test_only_numbers_of_repeated_layers_are_folded() -> None:
    paths = ["layers.0.mlp.up", "layers.1.mlp.up", "layers.1", "features.0", "features.3", "layer1.0.conv", "", "head"]
    assert fold(paths) == {
        "layers.0.mlp.up": "layers.*.mlp.up", "layers.1.mlp.up": "layers.*.mlp.up", "layers.1": "layers.*",
        "features.0": "features.0", "features.3": "features.3", "layer1.0.conv": "layer1.*.conv", "": "",
        "head": "head",
    }  # fmt: skip


def test_times_of_repeated_modules_add_up() -> None:
    phases = ("forward", "backward")
    rows = [LayerRow(f"layers.{i}.up", phase, 0.5, 0.5, 0.25, 0, 0, 0) for i in range(4) for phase in phases]
    rows.append(LayerRow("head", "forward", 9.0, 0.0, 0.0, 0, 0, 0))
    head, up = module_times(rows)
    assert (head.path, head.count, head.compute_s) == ("head", 1, 9.0)
    assert (up.path, up.count, up.exposed_s) == ("layers.*.up", 4, 2.0)
    assert up.seconds == {"forward": 2.0, "backward": 2.0}


def test_wording() -> None:
    def plan(**sizes: Any) -> RunPlan:
        ranks = sizes.pop("ranks", sizes.get("dp", 1) * sizes.get("pp", 1))
        given = {"dp": 1, "micro_batches": 1, "batch_size": 8, "global_batch_size": 16, "micro_batch_size": 1, **sizes}
        return RunPlan(ranks=ranks, **given)

    shown = plan_words(plan(dp=2, pp=4, micro_batches=8))
    assert shown == "training, global batch 16, dp 2, pp 4, 8 micro-batches, 1f1b"
    assert plan_words(plan(tp=2, parallelism=("sequence",))).endswith(", tp 2, sequence parallel")
    context = {"parallelism": ("context",), "parallelism_options": {"cp": "8", "cp-style": "ring"}}
    assert plan_words(plan(ranks=8, **context)) == "training, global batch 16, cp 8 (ring)"
    assert plan_words(plan()) == "training, global batch 16, one device"
    assert shorten("transformer.layers.3.mlp", 10) == "….3.mlp"
    assert shorten("transformer.layers.3.mlp", 19) == "….layers.3.mlp"
    assert shorten("features", 5) == "…ures"
    assert shorten("short", 10) == "short"
    assert (number(65.4321), number(267986.4), number(0)) == ("65.43", "267,986", "0")


def test_the_memory_verdict_counts_reserved_and_context() -> None:
    gib = 2**30
    memory = Memory(8 * gib, 9 * gib, 10 * gib, True, gib // 2, {})
    assert verdict(memory) == "9.5 GiB of 10 GiB: fits"
    over = Memory(8 * gib, 10 * gib, 10 * gib, False, gib // 2, {})
    assert verdict(over) == "10.5 GiB of 10 GiB: does not fit, 512 MiB too much"
    assert verdict(Memory(8 * gib, 9 * gib, None, None, 0, {})) == "9 GiB (capacity of the device not known)"
