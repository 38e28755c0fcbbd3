"""Collectives slow down what computes beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity
from triosim.composition.interference import TOLERANCE, Tasks, interference, settle
from triosim.core.spans import covered, merged, union
from triosim.hardware.accelerator import UNNAMED
from triosim.hardware.catalog import accelerator
from triosim.schedule.program import Op

WEIGHT = 128 * 128 * 4
FREE = {"host": "none", "operator_times": "recorded"}

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([a for a, _ in pairs], np.int64)
    return start, start + np.array([length for _, length in pairs], np.int64)


# --- intervals ------------------------------------------------------------------------------------------------------


@given(spans, spans)
def test_covered_counts_the_ticks_that_both_have(mine: list, others: list) -> None:
    ticks = {t for a, length in others for t in range(a, a + length)}
    begin, finish = _columns(mine)
    start, end = merged(*_columns(others))
    expected = [len(ticks & set(range(a, b))) for a, b in zip(begin.tolist(), finish.tolist(), strict=True)]
    assert covered(begin, finish, start, end).tolist() == expected
    assert union(*_columns(others)) == len(ticks)


# --- devices --------------------------------------------------------------------------------------------------------


def test_what_collectives_hold_of_each_device() -> None:
    assert interference(accelerator("H100-SXM5-80GB")).slowdown == pytest.approx(132 / (132 - 24))
    assert interference(accelerator("A100-SXM4-80GB")).slowdown == pytest.approx(108 / (108 - 24))
    assert interference(accelerator("V100-SXM2-16GB")).slowdown == pytest.approx(80 / (80 - 12))
    assert 1 < interference(accelerator("T4")).slowdown < 1.1
    assert interference(accelerator("MI300X")).slowdown == pytest.approx(1.189)
    for name in ("TPU-v4", "Gaudi3"):
        assert interference(accelerator(name)).slowdown == 1
    assert interference(UNNAMED).slowdown == 1
    assert interference(UNNAMED, 1.5).slowdown == 1.5
    assert interference(accelerator("H100-SXM5-80GB"), 1.0).slowdown == 1


# --- jobs -----------------------------------------------------------------------------------------------------------


def _run(layers: int = 6, link: str = "1MB/s", devices: int = 2, **plan):
    buckets = {"bucket_bytes": WEIGHT, "first_bucket_bytes": WEIGHT}
    system = triosim.system(devices=devices, topology="ring", link=link)
    return triosim.simulate(chain(layers=layers), system, *asked(**(FREE | buckets | plan)))


def test_off_one_and_an_unnamed_device_are_bit_identical() -> None:
    plain = _run(interference="off")
    for same in ("auto", 1, 1.0):
        found = _run(interference=same)
        assert found.iteration_time_s == plain.iteration_time_s
        assert np.array_equal(found.timeline.slices.end, plain.timeline.slices.end)


@pytest.mark.parametrize(
    "plan", [{"overlap": False}, {"dp": 1, "idle_ok": True, "micro_batches": 2}, {"dp": 1, "tp": 2}]
)
def test_where_nothing_computes_beside_a_collective_nothing_changes(plan: dict) -> None:
    plan = {"operator_times": "proportional"} | plan
    assert _run(interference=3.0, **plan).iteration_time_s == _run(interference="off", **plan).iteration_time_s


def test_a_backward_that_is_covered_takes_so_many_times_as_long() -> None:
    """By hand: all-reduces (65.5 ms each) begin after the first backward operator and outlast the others."""
    for factor in (1.0, 1.25, 2.0):
        slices = _run(interference=factor).timeline.slices
        computes = (slices.rank == 0) & (slices.op == Op.COMPUTE)
        length = (slices.end - slices.start)[computes]
        assert length[:6] == pytest.approx([1e-3] * 6)
        assert length[6] == pytest.approx(2e-3)
        assert length[7:] == pytest.approx([2e-3 * factor] * 5)


def test_a_collective_that_ends_within_an_operator_slows_it_down_until_then() -> None:
    """By hand: each all-reduce takes 0.65536 ms of the operator after it, which meanwhile runs at half speed."""
    moves = WEIGHT / 1e8  # two ranks on a ring: 2 (n - 1) / n of the bytes
    slices = _run(link="100MB/s", interference=2.0).timeline.slices
    computes = (slices.rank == 0) & (slices.op == Op.COMPUTE)
    assert (slices.end - slices.start)[computes][7:] == pytest.approx([2e-3 + moves / 2] * 5, rel=1e-3)


@settings(max_examples=examples(20))
@given(st.integers(2, 8), st.sampled_from(["1MB/s", "30MB/s", "100MB/s", "1GB/s"]), st.floats(1, 3))
def test_stretches_agree_with_what_runs_beside(layers: int, link: str, factor: float) -> None:
    """Each operator is longer than alone by the part of the time beside collectives in which it stood still."""
    alone = _run(layers, link, interference="off").timeline.slices
    result = _run(layers, link, interference=factor)
    slices = result.timeline.slices
    computes, moves = slices.op == Op.COMPUTE, slices.op == Op.COLLECTIVE
    for rank in (0, 1):
        mine = computes & (slices.rank == rank)
        start, end = (np.rint(column * 1e12).astype(np.int64) for column in (slices.start, slices.end))
        moving = moves & (slices.rank == rank)
        beside = covered(start[mine], end[mine], *merged(start[moving], end[moving]))
        longer = (slices.end - slices.start)[mine] - (alone.end - alone.start)[mine]
        assert longer == pytest.approx(beside * 1e-12 * (1 - 1 / factor), abs=2 * TOLERANCE * float(slices.end.max()))
    assert result.iteration_time_s >= _run(layers, link, interference="off").iteration_time_s


@pytest.mark.parametrize("plan", [{}, {"zero": 3}, {"zero": 1}, {"pp": 2, "micro_batches": 4}])
def test_folded_and_unfolded_agree(plan: dict) -> None:
    runs = [
        _run(8, "50MB/s", 4, interference=1.4, fold=fold, **({"operator_times": "proportional"} | plan))
        for fold in (True, False)
    ]
    assert runs[0].iteration_time_s == runs[1].iteration_time_s


def test_more_interference_never_shortens_a_data_parallel_step() -> None:
    spent = [_run(interference=factor).iteration_time_s for factor in (1.0, 1.1, 1.3, 1.6, 2.5)]
    assert spent == sorted(spent)
    spent = [_run(link="100MB/s", interference=factor).iteration_time_s for factor in (1.0, 1.1, 1.3, 1.6, 2.5)]
    assert spent == sorted(spent)
    assert spent[-1] > spent[0]


def test_jobs_together_are_slowed_down_each_by_its_own() -> None:
    system = triosim.system(devices=4, topology="full", link="1MB/s")
    plan, usual = asked(**FREE, dp=2, bucket_bytes=WEIGHT, first_bucket_bytes=WEIGHT)
    slow = usual.replaced(interference=2.0)
    jobs = [(chain(layers=6), plan, usual), (chain(layers=6), plan, slow)]
    first, second = triosim.simulate_together(jobs, system)
    assert first.breakdown_s.compute == pytest.approx(6 * 3e-3)
    assert second.breakdown_s.compute == pytest.approx(6 * 3e-3 + 5 * 2e-3)


def test_the_result_says_what_was_assumed_and_where_it_is_from() -> None:
    trace = triosim.model("gpt2", sequence_length=128)
    system = triosim.system("dgx-h100")
    auto, off = (triosim.simulate(trace, system, fidelity=Fidelity(interference=how)) for how in ("auto", "off"))
    assert any(s.startswith("interference: ") and "24 of 132 multiprocessors" in s for s in auto.sources)
    assert not any(s.startswith("interference: ") for s in off.sources)
    assert auto.breakdown_s.compute > off.breakdown_s.compute


# --- settling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Times:
    start: np.ndarray
    finish: np.ndarray


def test_one_play_is_enough_where_nothing_interferes() -> None:
    """Tasks 0 and 1 compute one after the other; 2 is a collective of the same device from 0 to 15."""
    plays = []

    def play(amount: np.ndarray) -> _Times:
        plays.append(amount)
        start = np.array([0, amount[0], 0])
        return _Times(start, start + np.append(amount[:2], 15))

    tasks = Tasks(
        np.array([0, 3]), np.array([1.0]), [np.array([True, True, False])], [np.array([False, False, True])],
        np.array([10, 10, 0]), [np.zeros(3, np.int64)],
    )  # fmt: skip
    assert settle(tasks, play).finish.tolist() == [10, 20, 15]
    assert len(plays) == 1
    # At half speed the first ends at 20, after the collective: of its time 15 ticks count half.
    slowed = settle(replace(tasks, slowdown=np.array([2.0])), play)
    assert slowed.finish.tolist() == [18, 28, 15]
    assert len(plays) > 2
