"""How rows travel to experts and back: hops, bytes, and experts that the tensor axis leaves whole."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from tests.partition.test_experts import (
    BATCH,
    BF16,
    CHOSEN,
    EXPERTS,
    HIDDEN,
    INNER,
    LAYERS,
    LENGTH,
    ROWS,
    SIZES,
    WEIGHTS,
    _job,
    _sent,
)
from triosim import PlanError
from triosim.partition.dispatch import met
from triosim.trace.tables import Phase

TOKENS = BATCH * LENGTH
ROW = HIDDEN * BF16


@pytest.mark.parametrize(("places", "experts", "chosen"), [(4, 8, 2), (2, 8, 3), (8, 8, 2), (1, 6, 4)])
def test_places_of_a_token_are_counted_over_all_its_choices(places: int, experts: int, chosen: int) -> None:
    each = experts // places
    choices = list(combinations(range(experts), chosen))
    mean = np.mean([len({expert // each for expert in some}) for some in choices])
    assert met(places, experts, chosen) == pytest.approx(mean, rel=1e-12)


def _calls(ep: int, nodes: int, **options) -> Counter:
    """Axis, kind and bytes -> how often in a forward."""
    sent = _sent(_job(ep, nodes=nodes, options=options))
    return Counter({row[:2] + row[3:]: n for row, n in sent.items() if row[2] == Phase.FORWARD})


def test_two_hops_send_everything_twice() -> None:
    whole = ROWS * ROW
    assert _calls(8, 2) == {("ep", "all_to_all", whole): 2 * LAYERS}
    assert _calls(8, 2, dispatch="2dh") == {("ep", "all_to_all", whole): 2 * LAYERS}  # ep 8 is one server
    assert _calls(8, 2, dispatch="2dh", near=4) == {
        ("ep_within", "all_to_all", whole): 2 * LAYERS, ("ep_between", "all_to_all", whole): 2 * LAYERS,
    }  # fmt: skip


def test_a_token_crosses_to_a_server_once() -> None:
    """8 experts on 4 servers of 2 ranks; of 28 pairs of experts 4 are on one server, 24 on two."""
    servers, ranks = (4 * 1 + 24 * 2) / 28, 2.0
    assert _calls(8, 2, dispatch="deepep", near=2) == {
        ("ep_between", "all_to_all", int(np.ceil(TOKENS * servers * ROW))): 2 * LAYERS,
        ("ep_within", "all_to_all", int(TOKENS * ranks * ROW)): 2 * LAYERS,
    }
    limited = _calls(8, 2, dispatch="deepep", near=2, node_limit=1)
    assert limited["ep_between", "all_to_all", TOKENS * ROW] == 2 * LAYERS
    assert _calls(4, 2, dispatch="deepep") == {  # two experts on each of the 4 ranks of one server
        ("ep_within", "all_to_all", int(np.ceil(TOKENS * met(4, EXPERTS, CHOSEN) * ROW))): 2 * LAYERS
    }


def test_gathered_tokens_are_all_tokens_of_the_group() -> None:
    whole = 8 * TOKENS * ROW
    assert _calls(8, 2, dispatch="allgather", imbalance=1.5) == {
        ("ep", "all_gather", whole): LAYERS, ("ep", "reduce_scatter", whole): LAYERS,
    }  # fmt: skip


def test_both_hops_of_a_token_run_at_the_same_time() -> None:
    trace = triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=SIZES)
    system = triosim.system("dgx-h100", nodes=2)
    spent = {}
    for dispatch in ("2dh", "deepep"):
        options = {"ep": 8, "near": 4, "dispatch": dispatch}
        plan, fidelity = asked(host="none", parallelism=("experts",), parallelism_options=options, batch_size=BATCH)
        result = triosim.simulate(trace, system, plan, fidelity)
        seconds = {row.axis: 0.0 for row in result.collectives}
        for row in result.collectives:
            seconds[row.axis] += row.seconds
        spent[dispatch] = seconds["ep_within"], seconds["ep_between"], result.breakdown_s.exposed_communication
    (within, between, exposed), in_turn = spent["deepep"], spent["2dh"]
    waited = exposed - (in_turn[2] - sum(in_turn[:2]))  # gradients are exposed in both
    assert max(within, between) == pytest.approx(waited, rel=0.05)
    assert waited < 0.9 * (within + between)


@pytest.mark.parametrize(("ep", "tp", "zero"), [(8, 2, 0), (8, 4, 1), (4, 2, 3)])
def test_whole_experts_take_ranks_of_the_tensor_axis(ep: int, tp: int, zero: int) -> None:
    """16 ranks: each sorts its part of the sequence, nothing is gathered around the experts, theirs are reduced by
    16 / ep; the router is on every rank, and its gradient is a sum over the tensor axis."""
    plan = {"tp": tp, "parallelism": ("sequence", "experts"), "zero": zero}
    divided, whole = (_job(ep if etp else 16 // tp, options={"etp": etp}, **plan) for etp in (1, 0))
    assert divided.mesh.groups("ep")[0] == list(range(ep))
    assert divided.mesh.size("edp") == 16 // ep
    sent, other = _sent(divided), _sent(whole)
    one = ROWS // tp * ROW
    assert sent["ep", "all_to_all", Phase.FORWARD, one] == 2 * LAYERS == sent["ep", "all_to_all", Phase.BACKWARD, one]
    each = ("tp", "all_gather", Phase.FORWARD, TOKENS * ROW)
    assert other[each] - sent[each] == LAYERS  # before the experts
    assert sent["tp", "all_reduce", Phase.OPTIMIZER, EXPERTS * HIDDEN * BF16] == LAYERS
    values = divided.step.trace.values
    kept = sum(int(values.elements()[w]) for w in divided.step.trace.weights().tolist() if "experts" in values.name[w])
    assert kept == WEIGHTS // ep
    assert not divided.step.notes
    trace = triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=SIZES)
    asked_for = asked(host="none", batch_size=BATCH, tp=tp, zero=zero, parallelism=("sequence", "experts"),
                      parallelism_options={"ep": ep, "etp": 1})  # fmt: skip
    reduced = Counter[tuple[str, str]]()
    for row in triosim.simulate(trace, triosim.system("dgx-h100", nodes=2), *asked_for).collectives:
        reduced[row.axis, row.kind] += row.bytes * row.count
    assert reduced["edp", "reduce_scatter" if zero else "all_reduce"] == WEIGHTS // ep * BF16


def test_experts_work_on_as_many_rows_whoever_divides_them() -> None:
    """With etp 1 a rank has 1/tp of the tokens of whole experts, without all tokens of 1/tp of each."""
    flop = []
    for etp in (1, 0):
        job = _job(8, tp=2, parallelism=("sequence", "experts"), options={"etp": etp})
        operators = job.step.trace.operators
        rows = [row for row, name in enumerate(operators.name) if "grouped_mm" in name]
        flop.append(float(np.nansum(operators.flop[rows])))
    assert flop[0] == flop[1] == pytest.approx(3 * LAYERS * 3 * 2 * ROWS * HIDDEN * INNER / 2)


@pytest.mark.parametrize(
    ("options", "plan", "words"),
    [
        ({"dispatch": "deepep", "near": 3}, {}, "ep 8 ranks: 3 of them do not divide it: give near=N"),
        ({"dispatch": "2dh"}, {"placement": tuple(range(16))}, "which of them are on one server is not known"),
        ({"node_limit": 2}, {}, "which dispatch alltoall does for each expert: give dispatch=deepep"),
        ({"dispatch": "deepep", "near": 1, "node_limit": 1}, {}, "node-limit 1 leaves a token 1 experts"),
        ({"etp": 3}, {"tp": 2}, "etp 3 does not divide tp 2: sizes that do are 1, 2"),
        ({"etp": 1}, {"tp": 2}, "with etp 1 ranks of the tensor axis have tokens of their own"),
        ({"etp": 1}, {"tp": 16, "parallelism": ("sequence", "experts")}, "are to have different experts: give ep 16"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_a_sentence(options: dict, plan: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        _job(8, options=options, **plan)


@pytest.mark.parametrize(("nodes", "published"), [(2, 90e9), (4, 61e9)])
def test_deepep_on_400_gigabits_a_device(nodes: int, published: float) -> None:
    """DeepEP's README (commit dd758caf45): 8K tokens of 7,168 elements in 8 bits, 8 experts each, bandwidth of what is
    sent between servers, a rank's own part included; it says 16 and 32 devices with CX7, 12 and 6 multiprocessors."""
    sizes = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
    trace = triosim.model("deepseek-v3", sequence_length=8192, configuration=sizes)
    options = {"ep": 8 * nodes, "dispatch": "deepep"}
    plan, fidelity = asked(host="none", parallelism=("experts",), parallelism_options=options)
    found = triosim.simulate(trace, triosim.system("dgx-h100", nodes=nodes), plan, fidelity, fit=False)
    (row,) = [row for row in found.collectives if row.axis == "ep_between"]
    assert row.bytes * row.count / row.seconds == pytest.approx(published, rel=0.03)


def test_whole_experts_on_the_command_line() -> None:
    done = run(
        "train", "mixtral-8x7b", "--seq-len", "64", "--system", "dgx-h100", "--tp", "2", "--sequence-parallel",
        "--ep", "8", "--etp", "1", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"axis": "ep"' in done.stdout
