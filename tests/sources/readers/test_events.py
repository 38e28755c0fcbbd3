"""A step that is read alone is the one that is found in the whole file."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.readers.profiles import AUTOGRAD, MAIN, Profile
from triosim.core.errors import InputError
from triosim.sources.readers import _events
from triosim.sources.readers.kineto import Kineto

native = pytest.importorskip("triosim.sources.readers._profile", reason="no compiler was there at installation")


def columns(value: Any, place: str = "") -> dict[str, Any]:
    """All that a trace holds, by where it stands in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            found |= columns(getattr(value, field.name), f"{place}.{field.name}")
        return found
    if isinstance(value, np.ndarray):
        return {place: (value.dtype.str, value.shape, value.tobytes())}
    return {place: repr(value)}


def told(path: Path, step: str) -> Any:
    try:
        return columns(Kineto().read(path, step=step))
    except InputError as error:
        return str(error)


def several_steps(draw: random.Random, steps: int = 4) -> Profile:
    """Steps of any length, kernels that run in a later one than launched them, numbers used again, two devices."""
    p = Profile(
        deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}, {"id": 1, "name": "NVIDIA A100-SXM4-80GB"}],
        distributedInfo={"pg_config": [{"pg_name": "0", "pg_size": 8}]},
    )
    now = 0.0
    for step in range(steps):
        begin = now
        for part in range(draw.randrange(2, 6)):
            name = draw.choice(["aten::linear", "aten::relu", "nccl:all_reduce", "Optimizer.step#SGD.step"])
            length = draw.choice([3.125, 10, 27.0005])
            thread = draw.choice([MAIN, MAIN, AUTOGRAD])
            dims = draw.choice([None, [[4, 8], [8, 8]], []])
            p.op(name, round(now, 4), length, tid=thread, dims=dims, seq=draw.choice([None, part]))
            p.add(f"nn.Module: Linear_{part}", "python_function", round(now, 4), length, tid=thread)
            p.add("train.py(7): forward", "python_function", round(now, 4), length, tid=thread)
            if draw.random() < 0.8:
                kernel = draw.choice(
                    ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoH (Device -> Host)"]
                )
                later = draw.choice([1, 5, 60])
                launch = draw.choice([None, round(now + 1, 4), round(now + 2, 4)])
                device, stream = draw.choice([0, 0, 0, 1]), draw.choice([7, "20"])
                p.kernel(kernel, round(now + later, 4), 4.5, launch=launch, tid=thread, device=device, stream=stream)
                p.correlation -= draw.random() < 0.2
            if draw.random() < 0.2:
                p.add("cudaDeviceSynchronize", "cuda_runtime", round(now + 2, 4), 1, correlation=p.correlation)
            now += length + draw.choice([0, 2])
        p.mark(f"ProfilerStep#{step + 3}", round(begin, 4), round(now - begin, 4))
    draw.shuffle(p.events)
    return p


@pytest.mark.parametrize("seed", range(40))
def test_a_step_is_the_same_however_it_is_read(seed, tmp_path, monkeypatch):
    draw = random.Random(seed)
    path = several_steps(draw).write(tmp_path / "profile.json")
    if seed % 4 == 1:
        path.write_bytes(gzip.compress(path.read_bytes()))
    if seed % 4 == 2:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    if seed % 4 == 3:
        path.write_text(json.dumps(json.loads(path.read_text())["traceEvents"], indent=1))
    assert _events.index(path, False) is not None
    steps = ("median", "3", "6", "all", "77")
    parts = [told(path, step) for step in steps]
    monkeypatch.setattr(_events, "ProfileEvents", None)
    assert parts == [told(path, step) for step in steps]


def test_events_of_other_steps_are_not_taken_apart(tmp_path, monkeypatch):
    path = several_steps(random.Random(1), steps=30).write(tmp_path / "profile.json")
    taken: list[int] = []
    events = _events.EventIndex.events
    marked = lambda rows: sum(int(kept.sum()) for _, kept in rows)  # noqa: E731
    monkeypatch.setattr(_events.EventIndex, "events", lambda self, *r: taken.append(marked(r)) or events(self, *r))
    Kineto().read(path)
    found = _events.index(path, False)
    assert found is not None
    assert sum(taken) < sum(len(getattr(found, table).start) for table in TABLES) / 5 + 30


def fed(text: bytes, sizes: list[int]) -> native.ProfileEvents:
    found, rest, at = native.ProfileEvents(True), b"", 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        rest += text[at : at + size]
        at += size
        rest = rest[found.feed(rest, False) :]
    found.feed(rest, True)
    return found


TABLES = ("calls", "launches", "works", "modules")
COLUMNS = (
    "offset", "length", "start", "name", "duration", "correlation", "device", "stream", "shaped", "function",
)  # fmt: skip


@given(st.integers(0, 2**32), st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_it_does_not_matter_where_a_file_is_cut_into_pieces(seed, sizes):
    text = json.dumps(
        {**several_steps(random.Random(seed)).top, "traceEvents": several_steps(random.Random(seed)).events}
    )
    whole, parts = fed(text.encode(), [len(text)]), fed(text.encode(), sizes)
    assert not whole.odd
    assert not parts.odd
    assert whole.names == parts.names
    assert whole.parts == parts.parts
    assert whole.launch_of_works().tolist() == parts.launch_of_works().tolist()
    for table in TABLES:
        mine, cut = getattr(whole, table), getattr(parts, table)
        for name in COLUMNS:
            assert getattr(mine, name).tolist() == getattr(cut, name).tolist()
        starts = [
            json.loads(text.encode()[o : o + n], parse_float=Decimal)["ts"]
            for o, n in zip(mine.offset, mine.length, strict=True)
        ]
        assert [round(s * 1000) for s in starts] == mine.start.tolist()


@given(st.lists(st.integers(-(10**15) + 1, 10**15) | st.integers(0, 300), max_size=700), st.integers(1, 10**6))
def test_packed_columns_hold_any_numbers(numbers, step):
    """Times of any size beside correlations that ascend: every width of a frame."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": at, "dur": 1, "args": {"correlation": step * i, "stream": i}}
        for i, at in enumerate(numbers)
    ]
    found = fed(json.dumps(events).encode(), [1 << 20]).works
    assert found.start.tolist() == [1000 * at for at in numbers]
    assert found.correlation.tolist() == [step * i for i in range(len(numbers))]
    assert found.stream.tolist() == list(range(len(numbers)))


def test_the_earliest_launch_of_a_number_counts():
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1}
    work = {"ph": "X", "cat": "kernel", "name": "k", "ts": 9, "dur": 1}
    numbers = [(7, 5), (3, 4), (7, 2), (7, 2), (-1, 0)]
    events = [launch | {"ts": ts, "args": {"correlation": number}} for number, ts in numbers]
    events += [work | {"args": {"correlation": number}} for number in (7, 3, 8, -1)]
    assert fed(json.dumps(events).encode(), [1 << 20]).launch_of_works().tolist() == [2, 1, -1, -1]


@given(st.integers(0, 2**32), st.integers(0, 2**32), st.binary(min_size=1, max_size=3), st.sampled_from("irs"))
def test_what_is_no_json_is_odd(seed, place, bytes_, how):
    p = several_steps(random.Random(seed % 50), steps=1)
    text = bytearray(
        json.dumps({**p.top, "traceEvents": p.events, "more": [1e5, -0.5, True, None, "\\\u00e9\n"]}).encode()
    )
    place %= len(text)
    if how == "s":
        del text[place:]
    else:
        text[place : place + (len(bytes_) if how == "r" else 0)] = bytes_
    found = fed(bytes(text), [len(text) or 1])
    try:
        events = json.loads(text.decode("utf-8", errors="replace"), strict=False)["traceEvents"]
    except (ValueError, KeyError, TypeError):
        assert found.odd
        return
    if not found.odd:
        counted = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
        assert sum(len(getattr(found, table).start) for table in TABLES) <= len(counted)


@pytest.mark.parametrize(
    ("written", "ns"),
    [("0", 0), ("12", 12_000), ("1.5", 1_500), ("1712195495519689.0004", 1712195495519689000), ("0.0005", 0),
     ("0.0015", 2), ("0.0025", 2), ("0.00251", 3), ("-3.25", -3_250)],
)  # fmt: skip
def test_times_are_exact(written, ns):
    text = f'[{{"ph":"X","cat":"cpu_op","name":"a","ts":{written},"dur":1}}]'
    assert fed(text.encode(), [99]).calls.start.tolist() == [ns]


@pytest.mark.parametrize(
    "odd",
    ['"ts":"5"', '"ts":1e3', '"ts":NaN', '"ts":99999999999999999', '"ts":1,"dur":-1', '"ts":1,"cat":"kernel\\u0000"',
     '"ts":1,"args":{"correlation":true}', '"ts":1,"args":{"correlation":" 7"}', '"ts":1,"name":3',
     '"ts":1,"dur":null'],
)  # fmt: skip
def test_what_profilers_do_not_write_is_left_to_the_reader_of_whole_files(odd):
    assert fed(b'[{"ph":"X","cat":"kernel","name":"a","ts":1}]', [99]).works.start.tolist() == [1000]
    assert fed(f'[{{"ph":"X","cat":"kernel","name":"a",{odd}}}]'.encode(), [99]).odd
