"""ZeRO++: what is sent, along which axis and in how many bits, and what is kept for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.prediction.prepare import prepare

SIZES = {"n_layer": 2, "vocab_size": 1024}
NODES, NEAR = 4, 8
RANKS = NODES * NEAR


def _workload(**more: Any) -> triosim.Trace:
    return triosim.model("gpt2", batch_size=1, sequence_length=64, configuration=SIZES, **more)


def _plan(options: dict[str, Any] | None, **plan: Any) -> Any:
    rules = {} if options is None else {"parallelism": ("zeropp",), "parallelism_options": options}
    return asked(**{"host": "none", "interference": 1.0, "batch_size": 1, "zero": 3, **rules, **plan})


def _result(options: dict[str, Any] | None, nodes: int = NODES, precision: str = "bfloat16", **plan: Any) -> Any:
    system = triosim.system("dgx-a100", nodes=nodes)
    return triosim.simulate(_workload(precision=precision), system, *_plan(options, **plan))


def _sent(result: Any) -> dict[tuple[str, str], int]:
    sent = Counter[tuple[str, str]]()
    for row in result.collectives:
        sent[row.axis, row.kind] += row.bytes * row.count
    return dict(sent)


PLAIN = _sent(_result(None))
SCATTERED = PLAIN["dp", "reduce_scatter"]
"""Padded, as all that follows."""
BLOCKS = PLAIN["dp", "all_gather"] - SCATTERED
"""Of the blocks, which the backward gathers again; the rest of the model stays gathered."""
OFF = {"qwz": False, "hpz": False, "qgz": False}


def test_without_its_parts_it_is_zero_3() -> None:
    off, plain = _result(OFF), _result(None)
    assert _sent(off) == PLAIN
    assert off.iteration_time_s == plain.iteration_time_s
    assert off.memory == plain.memory


@pytest.mark.parametrize(("precision", "bits"), [("bfloat16", 16), ("float32", 32)])
def test_parameters_are_gathered_in_8_bits(precision: str, bits: int) -> None:
    sent, plain = _sent(_result({**OFF, "qwz": True}, precision=precision)), _sent(_result(None, precision=precision))
    assert sent["dp", "reduce_scatter"] == plain["dp", "reduce_scatter"]
    assert sent["dp", "all_gather"] == pytest.approx(plain["dp", "all_gather"] * 8 / bits, abs=8)


def test_the_backward_gathers_within_servers() -> None:
    result, plain = _result({**OFF, "hpz": True}), _result(None)
    assert _sent(result) == {
        ("dp", "all_gather"): SCATTERED, ("dp_within", "all_gather"): BLOCKS, ("dp", "reduce_scatter"): SCATTERED,
    }  # fmt: skip
    assert result.memory.allocated_bytes - plain.memory.allocated_bytes == pytest.approx(SCATTERED / NEAR, rel=1e-3)
    assert result.iteration_time_s < plain.iteration_time_s


@pytest.mark.parametrize(("precision", "bits"), [("bfloat16", 16), ("float32", 32)])
def test_gradients_travel_in_4_bits_within_servers_and_then_between(precision: str, bits: int) -> None:
    sent = _sent(_result({**OFF, "qgz": True}, precision=precision))
    whole = _sent(_result(None, precision=precision))["dp", "reduce_scatter"]
    assert sent["dp_within", "all_to_all"] == pytest.approx(whole * 4 / bits, abs=8)
    assert sent["dp_between", "all_to_all"] == pytest.approx(whole * 4 / bits / NEAR, abs=8)
    assert not any(kind == "reduce_scatter" for _, kind in sent)


def test_servers_send_a_quarter_to_each_other() -> None:
    """Table 1 of the paper: 3 M of ZeRO 3 become 0.75 M: 0.5 of the forward's gather, 0.25 of the gradients."""

    def crossing(sent: dict[tuple[str, str], int]) -> float:
        """Bytes that a server receives of others, over its peers' share of all."""
        share = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": float(NEAR)}
        return sum(share[kind] * size for (axis, kind), size in sent.items() if axis != "dp_within")

    blocks = BLOCKS / SCATTERED
    assert crossing(PLAIN) / SCATTERED == pytest.approx(2 + blocks)
    assert crossing(_sent(_result({}))) / SCATTERED == pytest.approx(0.75, rel=1e-5)


def test_on_one_server_there_is_nothing_to_gather_within() -> None:
    sent = _sent(_result({}, nodes=1))
    assert {axis for axis, _ in sent} == {"dp", "dp_within"}
    assert {kind for _, kind in sent} == {"all_gather", "all_to_all"}


@pytest.mark.parametrize("more", [{"tp": 2}, {"micro_batches": 2, "batch_size": 2}, {"pp": 2, "micro_batches": 2,
                                  "batch_size": 2}, {"overlap": False}])  # fmt: skip
def test_with_other_ways(more: dict) -> None:
    sent = _sent(_result({"near": 4}, **more))
    assert sent["dp_within", "all_to_all"] > sent["dp_between", "all_to_all"] > 0
    assert ("dp", "reduce_scatter") not in sent


@pytest.mark.parametrize(
    ("options", "plan", "words"),
    [
        ({}, {"zero": 2}, "it changes how ZeRO 3 sends: give --zero 3"),
        ({"near": 3}, {}, "dp 32 ranks: 3 of them do not divide it: give near=N that does"),
        ({}, {"placement": tuple(range(RANKS))}, "which of them are on one server is not known"),
    ],
)
def test_what_does_not_go_is_a_sentence(options: dict, plan: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        prepare(_workload(), triosim.system("dgx-a100", nodes=NODES), *_plan(options, **plan))


def test_on_the_command_line() -> None:
    done = run(
        "train", "gpt2", "--seq-len", "64", "--system", "dgx-a100", "--nodes", "2", "--zero", "3", "--parallelism",
        "zeropp", "--parallelism-option", "hpz=off", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"axis": "dp_between"' in done.stdout
