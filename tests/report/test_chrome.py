"""The Chrome trace: valid, exact, in Kineto's words, and written whole or not at all."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.example import REDUCE_BYTES, make
from triosim.core.errors import InputError
from triosim.prediction.result import Result
from triosim.prediction.timeline import Timeline
from triosim.report import chrome
from triosim.schedule.program import COLLECTIVES, HOST, STREAMS, Op

RESULT = make(iterations=2)
HOST_THREAD = chrome.FIRST_STREAM + HOST


def load(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return json.loads(text, parse_float=Decimal)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("chrome") / "trace.json"
    assert chrome.write(RESULT.timeline, path) == [path]
    return load(path)


def slices(trace: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and (not categories or e["cat"] in categories)]


def test_metadata_comes_first_and_names_every_track(trace: dict[str, Any]) -> None:
    kinds = [e["ph"] for e in trace["traceEvents"]]
    metadata = kinds.count("M")
    assert set(kinds[:metadata]) == {"M"}
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices(trace)} <= named
    processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert processes == {r: f"rank {r} (gpu{r} (H100-SXM5-80GB))" for r in range(4)}
    assert trace["distributedInfo"]["world_size"] == 4
    assert [p["name"] for p in trace["deviceProperties"]] == ["H100-SXM5-80GB"] * 4
    assert (trace["schemaVersion"], trace["displayTimeUnit"]) == (1, "ms")


def test_durations_add_up_to_the_timeline_exactly(trace: dict[str, Any]) -> None:
    s = RESULT.timeline.slices
    want: dict[tuple[int, int], int] = defaultdict(int)
    picoseconds = np.rint(s.end * 1e12).astype(np.int64) - np.rint(s.start * 1e12).astype(np.int64)
    for rank, stream, length in zip(s.rank.tolist(), s.stream.tolist(), picoseconds.tolist(), strict=True):
        if stream >= 0:
            want[rank, chrome.FIRST_STREAM + stream] += length
    got: dict[tuple[int, int], int] = defaultdict(int)
    for e in slices(trace, "kernel", "gpu_memcpy", "cpu_op"):
        if e["tid"] != chrome.FIRST_STREAM + len(STREAMS):  # arrivals are on no stream
            got[e["pid"], e["tid"]] += int(e["dur"] * 10**6)
    assert got == dict(want)


def test_an_arrival_is_shown_while_its_send_is_under_way(trace: dict[str, Any]) -> None:
    s = RESULT.timeline.slices
    pairs = int((s.op == Op.SEND).sum())
    sends = [e for e in slices(trace, "kernel") if e["args"].get("Collective name") == "send"]
    receives = [e for e in slices(trace, "kernel") if e["args"].get("Collective name") == "recv"]
    assert len(sends) == len(receives) == pairs > 0
    moving = sorted((e["ts"] + Decimal(e["args"]["waited_us"]), e["ts"] + e["dur"]) for e in sends)
    assert moving == sorted((e["ts"], e["ts"] + e["dur"]) for e in receives)


def test_slices_of_a_device_thread_do_not_overlap_and_host_slices_nest(trace: dict[str, Any]) -> None:
    tracks: dict[tuple[int, int], list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for e in slices(trace):
        tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert len(tracks) >= 4 * 5
    for (_, thread), spans in tracks.items():
        open_until: list[Decimal] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or (thread == HOST_THREAD and end <= open_until[-1])
            open_until.append(end)


def test_every_arrow_starts_and_ends_on_a_slice(trace: dict[str, Any]) -> None:
    spans = defaultdict(list)
    for e in slices(trace):
        spans[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    ends: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for e in trace["traceEvents"]:
        if e["ph"] in "sf":
            assert e["ph"] not in ends[e["cat"], e["id"]]
            ends[e["cat"], e["id"]][e["ph"]] = e
            assert any(start <= e["ts"] <= end for start, end in spans[e["pid"], e["tid"]])
    assert all(set(pair) == {"s", "f"} and pair["s"]["ts"] <= pair["f"]["ts"] for pair in ends.values())
    assert all(pair["f"]["bp"] == "e" for pair in ends.values())
    assert len({number for _, number in ends}) == len(ends)
    s = RESULT.timeline.slices
    count = Counter(category for category, _ in ends)
    assert count == {
        "message": (s.op == Op.SEND).sum(), "collective": (s.op == Op.COLLECTIVE).sum() / 2,
        "ac2g": (s.op == Op.ISSUE).sum(),
    }  # fmt: skip


def test_a_collective_is_what_nccl_tools_expect(trace: dict[str, Any]) -> None:
    found = [e for e in slices(trace, "kernel") if e["name"].startswith("nccl") and e["args"]["Group size"] == 2
             and "Process Group Ranks" in e["args"]]  # fmt: skip
    assert found
    for e in found:
        assert e["name"] == "ncclDevKernel_AllReduce"
        assert e["args"]["Collective name"] == "allreduce"
        assert e["args"]["In msg nelems"] == e["args"]["Out msg nelems"] == REDUCE_BYTES
        assert e["args"]["dtype"] == "Byte"
        assert e["pid"] in json.loads(e["args"]["Process Group Ranks"])
        assert e["args"]["stream"] == e["tid"]
    assert max(Decimal(e["args"]["waited_us"]) for e in found) > 0


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_element_counts_are_those_of_one_rank(kind: str) -> None:
    sizes = chrome._sizes(kind, 1000, 4)
    shrinks, grows = kind in ("reduce_scatter", "scatter"), kind in ("all_gather", "gather")
    assert sizes["In msg nelems"] == (250 if grows else 1000)
    assert sizes["Out msg nelems"] == (250 if shrinks else 1000)


def test_kernels_are_launched_by_the_host(trace: dict[str, Any]) -> None:
    kernels = {e["args"]["correlation"]: e for e in slices(trace, "kernel")}
    assert len(kernels) == len(slices(trace, "kernel"))
    operators = {e["args"]["External id"]: e for e in slices(trace, "cpu_op")}
    launches = [e for e in slices(trace, "cuda_runtime") if e["dur"]]
    assert len(launches) == len(operators) > 0
    for launch in launches:
        kernel, operator = kernels[launch["args"]["correlation"]], operators[launch["args"]["External id"]]
        assert kernel["args"]["External id"] == launch["args"]["External id"]
        assert kernel["args"].get("operator") == operator["args"].get("operator")
        assert kernel["args"]["micro_batch"] == operator["args"]["micro_batch"]
        assert operator["ts"] <= launch["ts"]
        assert launch["ts"] + launch["dur"] == operator["ts"] + operator["dur"] <= kernel["ts"]
    free = {e["args"]["correlation"] for e in slices(trace, "cuda_runtime") if not e["dur"]}
    assert {kernels[number]["args"].get("Collective name") for number in free} == {"recv"}
    assert len(launches) + len(free) == len(kernels)


def test_steps_cover_every_host_slice(trace: dict[str, Any]) -> None:
    steps = {(e["pid"], e["name"]): e for e in slices(trace, "user_annotation")}
    assert set(steps) == {(rank, f"ProfilerStep#{n}") for rank in range(4) for n in range(2)}
    for e in slices(trace, "cpu_op"):
        step = steps[e["pid"], f"ProfilerStep#{e['args']['iteration']}"]
        assert step["ts"] <= e["ts"]
        assert e["ts"] + e["dur"] <= step["ts"] + step["dur"]


def test_counters_follow_the_memory(trace: dict[str, Any]) -> None:
    for track in RESULT.timeline.memory:
        counted = [e for e in trace["traceEvents"] if e["name"] == "memory (bytes)" and e["pid"] == track.rank]
        assert max(sum(e["args"].values()) for e in counted) == track.bytes.sum(axis=1).max()
        assert sum(counted[-1]["args"].values()) == track.bytes[-1].sum()


def test_a_counter_follows_the_power(trace: dict[str, Any]) -> None:
    for track in RESULT.timeline.power:
        counted = [e for e in trace["traceEvents"] if e["name"] == "power (W)" and e["pid"] == track.rank]
        assert [e["args"]["device"] for e in counted] == track.watts.tolist()


def test_one_file_per_rank(tmp_path: Path) -> None:
    files = chrome.write(RESULT.timeline, tmp_path / "trace-{rank}.json.gz", ranks=[1, 3])
    assert [f.name for f in files] == ["trace-1.json.gz", "trace-3.json.gz"]
    for rank, file in zip((1, 3), files, strict=True):
        trace = load(file)
        assert trace["distributedInfo"]["rank"] == rank
        assert {e["pid"] for e in trace["traceEvents"]} == {rank}
        assert not [e for e in trace["traceEvents"] if e.get("cat") in ("message", "collective")]


def test_above_the_limit_one_rank_of_each_class_stays(tmp_path: Path) -> None:
    chrome.write(RESULT.timeline, tmp_path / "few.json", limit=100)
    trace = load(tmp_path / "few.json")
    assert {e["pid"] for e in slices(trace)} == {0, 2}
    assert trace["triosim"]["ranks_written"] == [0, 2]


def test_equal_runs_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        chrome.write(RESULT.timeline, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def renamed(result: Result, name: str) -> Timeline:
    names, modules = ([old + name for old in many] for many in (result.timeline.names, result.timeline.modules))
    return dataclasses.replace(result.timeline, names=tuple(names), modules=tuple(modules))


def test_any_name_is_written_safely(tmp_path: Path) -> None:
    odd = ' "%d" \\ </script> \n é 100%'
    chrome.write(renamed(make(layers=1), odd), tmp_path / "odd.json")
    trace = load(tmp_path / "odd.json")
    assert any(e["name"] == "aten::linear" + odd for e in slices(trace, "kernel"))
    assert any(e["args"].get("module", "").endswith(odd) for e in slices(trace, "cpu_op"))


def test_without_a_host_launches_take_no_time_and_lie_in_their_step(tmp_path: Path) -> None:
    chrome.write(make(host=False, iterations=2).timeline, tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    assert {e["cat"] for e in slices(trace)} == {"kernel", "user_annotation", "cuda_runtime"}
    kernels = {e["args"]["correlation"]: e for e in slices(trace, "kernel")}
    steps = {(e["pid"], e["args"]["iteration"]): e for e in slices(trace, "user_annotation")}
    launches = slices(trace, "cuda_runtime")
    assert {e["args"]["correlation"] for e in launches} == set(kernels)
    for e in launches:
        kernel = kernels[e["args"]["correlation"]]
        step = steps[e["pid"], kernel["args"]["iteration"]]
        assert e["dur"] == 0
        assert step["ts"] <= e["ts"] < step["ts"] + step["dur"]
        assert e["ts"] <= kernel["ts"]


def test_an_unknown_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank 9 is not in the timeline: it holds 4 of 4 ranks"):
        chrome.write(RESULT.timeline, tmp_path / "t.json", ranks=[9])
    assert not list(tmp_path.iterdir())


def test_the_trace_reads_as_a_recorded_one(tmp_path: Path) -> None:
    """Our own Kineto reader sees the operators of a rank with the times that were simulated."""
    pytest.importorskip("triosim.sources.readers.kineto")
    from triosim.sources.readers.kineto import Kineto  # type: ignore[import-not-found,unused-ignore]

    result = make(stages=1, replicas=1, micro_batches=1, layers=2)
    chrome.write(result.timeline, tmp_path / "t.json")
    read = Kineto().read(tmp_path / "t.json")
    s = result.timeline.slices
    computed = s.op == Op.COMPUTE
    assert np.isclose(read.device_time(), (s.end - s.start)[computed].sum(), rtol=1e-6)
