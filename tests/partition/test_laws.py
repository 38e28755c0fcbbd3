"""What holds for every step however it is divided."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.partition.divided import mesh_of
from triosim import operators
from triosim.partition.partition import partition
from triosim.partition.resolve import suited
from triosim.partition.rules.gather import Gather
from triosim.partition.rules.megatron import Megatron
from triosim.partition.rules.sequence import Sequence
from triosim.partition.rules.vocabulary import Vocabulary
from triosim.partition.transfers import ALL_GATHER
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase, Trace, check

LANGUAGE = {"llama-3-8b": "num_hidden_layers", "gpt2": "n_layer", "bert-base": "num_hidden_layers"}
RULES = {
    "megatron": [Megatron()],
    "vocabulary": [Megatron(), Vocabulary()],
    "gather": [Gather()],
    "sequence": [Megatron(), Vocabulary(), Sequence()],
    "sequence-kept": [Megatron(), Sequence(regather=False)],
}
CASES = [(name, rules) for name in (*LANGUAGE, "resnet18") for rules in RULES if name in LANGUAGE or "seq" not in rules]
OTHERS = {
    "t5-base": {"num_layers": 2, "num_decoder_layers": 2},
    "dit-b-2": {"depth": 2},
    "flux.1-dev": {"num_layers": 1, "num_single_layers": 1},
    "sdxl": {"layers_per_block": 1, "transformer_layers_per_block": (1, 1, 1), "attention_head_dim": (4, 4, 4)},
}
CASES += [(name, rules) for name in OTHERS for rules in ("megatron", "vocabulary", "gather")]


def _trace(name: str) -> Trace:
    if name in OTHERS:
        return triosim.model(name, batch_size=2, configuration=OTHERS[name])
    if name not in LANGUAGE:
        return triosim.model(name, batch_size=2)
    return triosim.model(name, batch_size=2, sequence_length=64, configuration={LANGUAGE[name]: 2})


def _divided(name: str, rules: str, size: int):
    mesh = mesh_of(tp=size)
    whole = suited(RULES[rules], _trace(name), mesh)
    return whole, partition(whole, mesh, RULES[rules])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("name", "rules"), CASES)
def test_the_share_of_a_rank_is_a_step(name: str, rules: str, size: int) -> None:
    whole, step = _divided(name, rules, size)
    check(step.trace)
    check(step.homes)
    n, transfers = len(whole), step.transfers
    assert len(step.trace) == len(step.homes) == n
    assert (transfers.bytes > 0).all()
    assert ((transfers.before > transfers.after) & (transfers.before <= n) & (transfers.after < n)).all()
    phase = np.append(whole.operators.phase, Phase.OPTIMIZER)
    launched = transfers.after >= 0
    assert not (launched & (phase[transfers.after] == Phase.OPTIMIZER)).any()


@pytest.mark.parametrize(("name", "rules"), CASES)
def test_every_operator_makes_of_its_inputs_what_it_is_said_to_make(name: str, rules: str) -> None:
    """The shapes that an operator gives, from those of its local inputs, are those of its local outputs."""
    whole, step = _divided(name, rules, 4)
    before, wrong = calls_of(whole), []
    for call, row in zip(calls_of(step.trace).unique, calls_of(step.trace).first.tolist(), strict=True):
        found, told = operators.results(call), operators.results(before[row])
        if found is None or told is None or "embedding" in call.name:  # whose table's rows are an argument
            continue
        dim = call.args.get("dim", 0) if call.name == "slice" else 0
        if call.name == "slice" and call.inputs[0][dim] != before[row].inputs[0][dim]:  # whose bounds are arguments
            continue
        if tuple(r.shape for r in told) == before[row].outputs[: len(told)]:
            made = tuple(r.shape for r in found)
            wrong += [(call.full_name, call.inputs, call.outputs)] if made != call.outputs[: len(made)] else []
    assert not wrong


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("name", "rules"), CASES)
def test_ranks_together_do_all_the_work_and_hold_all_the_weights(name: str, rules: str, size: int) -> None:
    whole, step = _divided(name, rules, size)
    flop = [np.nan_to_num(trace.operators.flop) for trace in (whole, step.trace)]
    assert (flop[1] * size >= flop[0] * (1 - 1e-12)).all()
    assert (flop[1] <= flop[0] * (1 + 1e-12)).all()
    weights = whole.weights()
    elements = [trace.values.elements()[weights] for trace in (whole, step.trace)]
    assert np.isin(elements[0], [0]).sum() == 0
    assert ((elements[1] == elements[0]) | (elements[1] * size == elements[0])).all()


@pytest.mark.parametrize("rules", list(RULES))
def test_what_no_operator_makes_is_a_copy_that_a_transfer_makes(rules: str) -> None:
    """Storages beside those of the whole step are summands, which an operator makes, or copies of what was gathered."""
    _, step = _divided("gpt2", rules, 4)
    storage = step.trace.values.storage
    extra = set(range(int(step.homes.values.storage.max()) + 1, int(storage.max()) + 1))
    works = np.flatnonzero(~step.trace.operators.view).tolist()
    made = {int(storage[value]) for row in works for value in step.trace.operators.outputs[row].tolist()}
    gathers = int((step.transfers.what == ALL_GATHER).sum())
    assert len(extra - made) == gathers
    assert bool(gathers) == (rules in ("gather", "sequence", "sequence-kept"))
    assert bool(extra & made) == rules.startswith("sequence")
