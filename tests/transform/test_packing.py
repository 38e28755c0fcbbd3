"""Documents packed into sequences: how they are packed, and what attention over them costs."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from triosim import InputError
from triosim.hardware import machine
from triosim.plan import Plan
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.sources.modelling import model
from triosim.trace.calls import calls_of
from triosim.trace.tables import Trace
from triosim.transform.packing import document_lengths, pack, packed

LAYERS = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 4096
}  # fmt: skip
SEQUENCE = 1024


def _llama(sequence: int = SEQUENCE, batch: int = 1, **more: object) -> Trace:
    return model("llama", sequence_length=sequence, batch_size=batch, configuration=LAYERS, **more)  # type: ignore[arg-type]


def _attention_flop(trace: Trace) -> float:
    rows = [row for row, call in enumerate(calls_of(trace)) if call.kind == "attention"]
    assert rows
    return math.fsum(trace.operators.flop[rows].tolist())


def _one_by_one(lengths: list[int], sequence: int) -> list[int]:
    """Room left in each sequence when each document goes where it leaves least room."""
    rooms: list[int] = []
    for length in sorted((min(n, sequence) for n in lengths), reverse=True):
        at = bisect_left(rooms, length)
        room = rooms.pop(at) if at < len(rooms) else sequence
        insort(rooms, room - length)
    return rooms


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 50))
def test_packing_is_best_fit_decreasing(lengths: list[int], sequence: int) -> None:
    found, rooms = pack(lengths, sequence), _one_by_one(lengths, sequence)
    assert found.sequences == len(rooms)
    assert found.tokens == sequence * len(rooms) - sum(rooms)
    assert found.documents == len(lengths)
    assert found.cut == sum(n > sequence for n in lengths)
    cut = [min(n, sequence) for n in lengths]
    assert found.weighted == pytest.approx(sum(n * n for n in cut) / sum(cut))


@given(st.lists(st.integers(1, SEQUENCE), min_size=1, max_size=30))
def test_attention_works_on_pairs_within_documents(lengths: list[int]) -> None:
    """Of each document what a step of that length has, in the mean over sequences."""
    documents = pack(lengths, SEQUENCE)
    each = {length: _attention_flop(_short(length)) for length in set(lengths)}
    alone = sum(each[length] for length in lengths)
    assert _attention_flop(packed(_short(SEQUENCE), documents)) * documents.sequences == pytest.approx(alone)


_STEPS: dict[int, Trace] = {}


def _short(length: int) -> Trace:
    if length not in _STEPS:
        _STEPS[length] = _llama(length)
    return _STEPS[length]


def test_equal_documents_cost_what_a_batch_of_them_does() -> None:
    """Eight documents of 128 tokens in a sequence, or eight samples of 128 tokens."""
    whole = _attention_s(packed(_llama(), pack([128] * 8, SEQUENCE)), 1)
    assert whole == _attention_s(_llama(128, 8), 8)
    assert sum(whole) < 0.5 * sum(_attention_s(_llama(), 1))


def _attention_s(trace: Trace, batch: int) -> list[float]:
    """What each attention takes."""
    made = stage_job(price_job(trace, machine.system(None, device="H100-SXM5-80GB"), Plan(batch_size=batch)))
    calls = calls_of(made.step.trace)
    return [seconds for call, seconds in zip(calls, made.times.seconds, strict=True) if call.kind == "attention"]


@pytest.mark.parametrize("style", ["gather", "ring", "ulysses"])
def test_ranks_share_the_work_of_documents(style: str) -> None:
    """Attention takes a half of its FLOP on each of two ranks, whichever way it gets what the other has."""
    trace = packed(_llama(), pack([100, 300, 700, 20], SEQUENCE))
    plan = Plan(dp=2, parallelism=("context",), parallelism_options={"cp": "2", "cp-style": style}, batch_size=1)
    made = stage_job(price_job(trace, machine.system(None, device="H100-SXM5-80GB", devices=2), plan))
    assert _attention_flop(made.step.trace) == pytest.approx(_attention_flop(trace) / 2)


def test_everything_else_works_on_positions() -> None:
    before = _llama()
    after = packed(before, pack([100, 300], SEQUENCE))
    changed = np.flatnonzero(np.nan_to_num(before.operators.flop) != np.nan_to_num(after.operators.flop)).tolist()
    assert changed
    assert {calls_of(after)[row].kind for row in changed} == {"attention"}
    assert np.nansum(after.operators.flop) < np.nansum(before.operators.flop)


def test_the_command_says_how_documents_were_packed(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("600, 500\n400 2000\n")
    words = ("--device", "H100-SXM5-80GB", "--seq-len", "1024", "--host", "none", "--json", "-")
    own = tmp_path / "small.json"
    own.write_text(json.dumps({"family": "llama", **LAYERS}))
    result = json.loads(run("train", own, *words, "--packing", lengths).stdout)
    (note,) = (source for source in result["sources"] if source.startswith("packing"))
    assert "4 documents, 1 of them cut to 1,024 in 3 sequences of 1,024 positions, of which 82.2% hold tokens" in note
    whole = json.loads(run("train", own, *words).stdout)
    assert result["iteration_time_s"] < whole["iteration_time_s"]
    one = json.loads(run("infer", own, *words, "--packing", "256").stdout)
    assert any("packing: 4 documents in 1 sequence" in source for source in one["sources"])


@pytest.mark.parametrize(
    ("text", "sentence"), [("0", "no length"), ("5 -1", "no length"), ("", "no lengths"), ("1.5", "no length")]
)
def test_what_is_no_length_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        document_lengths(str(path), 1024)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("resnet-50", "--packing", "512"), "says none"),
        (("gpt2", "--packing", "512", "--attention", "unfused"), "choose --attention flash2"),
        (("gpt2", "--packing", "none.txt"), "none.txt"),
    ],
)
def test_what_cannot_be_packed_is_said(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in run("train", *words, "--device", "H100-SXM5-80GB", code=2).stderr
