"""Perfetto's binary form: what is in it is what was given, read by a decoder of its own."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.example import make
from triosim.core.errors import InputError
from triosim.report import chrome, perfetto, pictures, protobuf
from triosim.report.messages import spans
from triosim.schedule.program import Op
from triosim.trace.tables import Phase

RESULT = make(iterations=2)
TIMELINE = RESULT.timeline


def fields(text: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message; a nested message is its bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = text[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(text):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
        elif wire == 1:
            yield field, text[at : at + 8]
            at += 8
        else:
            assert wire == 2
            length = varint()
            assert at + length <= len(text)
            yield field, text[at : at + length]
            at += length


def of(text: bytes) -> dict[int, list[Any]]:
    found = defaultdict(list)
    for field, value in fields(text):
        found[field].append(value)
    return found


class Decoded:
    """Tracks, slices, counters and arrows of a file, as Perfetto's documentation says they are to be read."""

    def __init__(self, path: Path) -> None:
        self.tracks: dict[int, tuple[str, int]] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: dict[int, list[tuple[int, float]]] = defaultdict(list)
        texts: dict[int, dict[int, str]] = defaultdict(dict)
        opened: dict[int, list[dict[str, Any]]] = defaultdict(list)
        track = now = 0
        for field, text in fields(path.read_bytes()):
            assert field == 1
            packet = of(text)
            assert packet[10] == [1]
            for interned in packet[12]:
                for kind, item in fields(interned):
                    entry = of(item)
                    texts[kind][entry[1][0]] = entry[2][0].decode()
            for defaults in packet[59]:
                track = of(of(defaults)[11][0])[11][0]
                assert of(defaults)[58] == [64]
            for snapshot in packet[6]:
                boot, own = (of(clock) for _, clock in fields(snapshot))
                assert (boot[1], boot[2], boot[3]) == ([6], [0], [])
                assert (own[1], own[2], own[3]) == ([64], [0], [1])
                now = 0
            for descriptor in packet[60]:
                entry = of(descriptor)
                self.tracks[entry[1][0]] = (entry[2][0].decode(), entry[5][0] if entry[5] else 0)
            for event in packet[11]:
                entry, now = of(event), now + packet[8][0]
                if entry[9] == [4]:
                    value = entry[30][0] if entry[30] else struct.unpack("<d", entry[44][0])[0]
                    self.counters[track].append((now, value))
                elif entry[9] == [2]:
                    opened[track].pop()["end"] = now
                else:
                    assert entry[9] == [1]
                    assert track in self.tracks
                    made = {"track": track, "start": now, "phase": [texts[1][i] for i in entry[3]]}
                    made["name"] = texts[2][entry[10][0]] if entry[10] else entry[23][0].decode()
                    made["flow"] = [int.from_bytes(f, "little") for f in entry[47]]
                    made["flow_end"] = [int.from_bytes(f, "little") for f in entry[48]]
                    for note in entry[4]:
                        told = of(note)
                        made[texts[3][told[1][0]]] = texts[29][told[17][0]] if told[17] else told[3][0]
                    opened[track].append(made)
                    self.slices.append(made)
        assert not any(opened.values())

    def rank(self, track: int) -> str:
        name, parent = self.tracks[track]
        return self.rank(parent) if parent else name


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    assert perfetto.write(TIMELINE, path) == [path]
    return Decoded(path)


def test_every_slice_is_there_with_what_is_known_of_it(decoded: Decoded) -> None:
    s = TIMELINE.slices
    start, _, end = (np.round(t * 1e9).astype(int).tolist() for t in spans(s))
    expected = []
    for row in range(len(s)):
        one: dict[str, Any] = {"name": TIMELINE.names[s.name[row]], "start": start[row], "end": end[row]}
        one["rank"] = f"rank {s.rank[row]} ({TIMELINE.rank_names[s.rank[row]]})"
        one["phase"] = [Phase(s.phase[row]).name.lower()] if s.phase[row] >= 0 else []
        one["module"] = TIMELINE.modules[s.module[row]] if s.module[row] >= 0 else None
        one |= {"micro_batch": max(int(s.micro_batch[row]), 0), "iteration": int(s.iteration[row])}
        moves = s.bytes[row] > 0 and s.op[row] not in (Op.COMPUTE, Op.ISSUE)
        one["bytes"] = int(s.bytes[row]) if moves else None
        one["ranks"] = len(TIMELINE.groups[s.group[row]]) if s.group[row] >= 0 else None
        expected.append(one)
    keys = expected[0].keys()
    shown = [{**e, "rank": decoded.rank(e["track"])} for e in decoded.slices if "iteration " not in e["name"]]
    found = [{key: e.get(key) for key in keys} for e in shown]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_slices_of_a_track_do_not_overlap(decoded: Decoded) -> None:
    by_track = defaultdict(list)
    for e in decoded.slices:
        by_track[e["track"]].append((e["start"], e["end"]))
    for found in by_track.values():
        assert found == sorted(found)
        assert all(a[1] <= b[0] for a, b in pairwise(found))


def test_iterations_follow_each_other(decoded: Decoded) -> None:
    for rank in range(4):
        name = f"rank {rank} ({TIMELINE.rank_names[rank]})"
        mine = [e for e in decoded.slices if e["name"].startswith("iteration ") and decoded.rank(e["track"]) == name]
        assert [e["name"] for e in mine] == ["iteration 0", "iteration 1"]
        assert mine[0]["end"] == mine[1]["start"]


def test_a_message_has_an_arrow_to_its_arrival(decoded: Decoded) -> None:
    sent = {f: e for e in decoded.slices for f in e["flow"]}
    arrived = {f: e for e in decoded.slices for f in e["flow_end"]}
    assert len(sent) == np.sum(TIMELINE.slices.op == Op.SEND)
    assert sent.keys() == arrived.keys()
    assert all(sent[f]["bytes"] == arrived[f]["bytes"] and sent[f]["track"] != arrived[f]["track"] for f in sent)


def test_counters_tell_memory_and_power(decoded: Decoded) -> None:
    memory, power = TIMELINE.memory[0], TIMELINE.power[0]
    tracks = {(decoded.rank(t), decoded.tracks[t][0]): t for t in decoded.counters}
    rank = f"rank {memory.rank} ({TIMELINE.rank_names[memory.rank]})"
    held = decoded.counters[tracks[rank, "memory: weight"]]
    assert [v for _, v in held][-1] == memory.bytes[-1][0]
    drawn = decoded.counters[tracks[f"rank {power.rank} ({TIMELINE.rank_names[power.rank]})", "power"]]
    assert drawn[-1] == (round(power.time[-1] * 1e9), power.watts[-1])


def test_it_is_small(tmp_path: Path) -> None:
    (small,) = perfetto.write(TIMELINE, tmp_path / "a.pftrace")
    (large,) = chrome.write(TIMELINE, tmp_path / "a.json")
    assert small.stat().st_size < large.stat().st_size / 5


def test_some_ranks(tmp_path: Path) -> None:
    (path,) = perfetto.write(TIMELINE, tmp_path / "a.pftrace", ranks=[2])
    found = Decoded(path)
    assert {found.rank(t) for t in found.tracks} == {f"rank 2 ({TIMELINE.rank_names[2]})"}
    with pytest.raises(InputError, match="rank 99 is not in the timeline"):
        perfetto.write(TIMELINE, tmp_path / "b.pftrace", ranks=[99])


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 300), st.booleans()), min_size=1))
def test_messages_of_any_numbers(rows: list[tuple[int, int, bool]]) -> None:
    large, small, there = (np.array(column) for column in zip(*rows, strict=True))
    made = protobuf.nested(
        1, protobuf.numbers(2, large), protobuf.nested(3, protobuf.numbers(50, small), where=there),
        protobuf.fixed(4, small, ~there), protobuf.constant(5, 7, len(rows)),
    )  # fmt: skip
    found = [of(text) for _, text in fields(made.tobytes())]
    for entry, (a, b, has) in zip(found, rows, strict=True):
        inner = protobuf.message((50, b))
        eight = [] if has else [b.to_bytes(8, "little")]
        assert (entry[2], entry[3], entry[4], entry[5]) == ([a], [inner] if has else [], eight, [7])


class TestNames:
    def test_the_ending_says_what_is_written(self, tmp_path: Path) -> None:
        assert pictures.write(TIMELINE, f"{tmp_path}/a.pftrace") == [tmp_path / "a.pftrace"]
        assert Decoded(tmp_path / "a.pftrace").slices
        assert pictures.write(TIMELINE, f"{tmp_path}/a.json") == [tmp_path / "a.json"]
        assert (tmp_path / "a.json").read_text().startswith("{")

    def test_a_folder_holds_a_file_for_each_rank(self, tmp_path: Path) -> None:
        names = [tmp_path / "all" / f"rank-{rank}.pt.trace.json.gz" for rank in range(4)]
        assert pictures.write(TIMELINE, f"{tmp_path}/all/") == names
        first = [name.read_bytes() for name in names]
        assert pictures.write(TIMELINE, f"{tmp_path}/all") == names
        assert [name.read_bytes() for name in names] == first

    def test_a_folder_with_anything_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        with pytest.raises(InputError, match=r"'mine.txt', which is not of an earlier run"):
            pictures.write(TIMELINE, f"{tmp_path}/")
