"""What a plan is said to take at least is never more than what its full simulation takes, however it is divided."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import triosim
from triosim import Plan
from triosim.core.errors import InputError
from triosim.fidelity import Fidelity
from triosim.search.bounds import PlanBounds
from triosim.search.grid import with_fields
from triosim.search.space import Candidate, PlanSpace
from triosim.stacks import load
from triosim.trace.blocks import blocks

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 2048, "n_layer": 8, "n_embd": 256, "n_head": 8},
    "llama-3.2-1b": {**SIZES, "num_hidden_layers": 8, "head_dim": 32, "vocab_size": 4096},
    "mixtral-8x7b": {**SIZES, "num_hidden_layers": 8, "vocab_size": 4096},
}
BATCH = 32
AMONG: dict[str, tuple[Any, ...]] = {
    "schedule": ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2"), "schedule.chunks": (2, 4),
    "cp": (1, 2), "zero": (0, 1, 2, 3), "recompute": ("none", "selective", "full"),
}  # fmt: skip


@cache
def _workload(name: str, sequence: int) -> triosim.Trace:
    return triosim.model(name, sequence_length=sequence, configuration=MODELS[name])


@cache
def _plans(name: str, sequence: int, servers: int) -> list[Candidate]:
    workload = _workload(name, sequence)
    space = PlanSpace(
        [8 * servers], BATCH, len(blocks(workload)), sequence, 8 * ("mixtral" in name), among=AMONG
    )  # fmt: skip
    return space.candidates()


@cache
def _bounds(name: str, sequence: int, servers: int, stack: str | None = None) -> PlanBounds:
    base = Plan(global_batch_size=BATCH, training=True, stack=stack and load(stack))
    return PlanBounds(_workload(name, sequence), triosim.system("dgx-a100", servers), base, Fidelity())


@settings(max_examples=12)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from((256, 2048)),
    st.sampled_from((1, 2)),
    st.floats(0, 1),
    st.sampled_from((None, "torchtitan")),
)
def test_no_plan_takes_less_than_is_said(
    name: str, sequence: int, servers: int, place: float, stack: str | None
) -> None:
    plans = _plans(name, sequence, servers)
    one, bounds = plans[min(int(place * len(plans)), len(plans) - 1)], _bounds(name, sequence, servers, stack)
    plan, fidelity = with_fields(bounds._base, Fidelity(), one.asked)
    try:
        result = triosim.simulate(bounds.workload, bounds.system, plan, fidelity)
    except InputError:
        assume(False)
    for told in (bounds.at_once, bounds.by_volume, bounds.without_recomputation, bounds.of, bounds.of_stages):
        bound = told(one)
        assert not isinstance(bound, str), bound
        assert bound.seconds <= result.iteration_time_s, (told.__name__, one.asked)
        assert bound.bytes <= result.memory.reserved_bytes, (told.__name__, one.asked)


def test_operators_are_known_without_their_shape() -> None:
    """Most of what a wide model computes is told by its steps of one sample and of two, elementwise operators too."""
    wide = {"num_hidden_layers": 8, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    workload = triosim.model("llama-3-8b", sequence_length=2048, configuration=wide)
    base = Plan(global_batch_size=BATCH, training=True)
    bounds = PlanBounds(workload, triosim.system("dgx-a100", 1), base, Fidelity())
    told = []
    for one in PlanSpace([8], BATCH, 8, 2048, among={"pp": (1,), "cp": (1,), "zero": (1,)}).candidates():
        if one.asked["tp"] < 8 and bounds._size(one.asked) > 1:
            shape = bounds.of(one)
            assert not isinstance(shape, str)
            told.append(bounds.by_volume(one).seconds / shape.seconds)
    assert len(told) > 10
    assert min(told) > 0.75
    assert max(told) <= 1


def test_a_host_that_issues_no_sums_of_gradients_issues_less() -> None:
    """Replicas that scatter gradients in each micro-batch add none up; small steps are bound by launches."""
    found = [
        one for one in _plans("llama-3.2-1b", 256, 1)
        if (one.asked["tp"], one.asked["pp"], one.asked["cp"], one.asked["zero"], one.asked["micro_batches"])
        == (1, 1, 1, 2, 2)
    ]  # fmt: skip
    assert found
    bounds = _bounds("llama-3.2-1b", 256, 1)
    for one in found:
        plan, fidelity = with_fields(bounds._base, Fidelity(), one.asked)
        result = triosim.simulate(bounds.workload, bounds.system, plan, fidelity)
        assert 0.9 * result.iteration_time_s < bounds.of(one).seconds <= result.iteration_time_s, one.asked


def test_one_stage_holds_gradients_beside_what_it_keeps() -> None:
    """From the second micro-batch on, and the loss beside that: most of what a replica on one stage is said to hold."""
    bounds, ratios = _bounds("llama-3.2-1b", 2048, 1), []
    for one in _plans("llama-3.2-1b", 2048, 1):
        if one.asked["pp"] == 1 and one.asked["tp"] == 1 and one.asked["cp"] == 1 and one.asked["zero"] < 2:
            plan, fidelity = with_fields(bounds._base, Fidelity(), one.asked)
            result = triosim.simulate(bounds.workload, bounds.system, plan, fidelity)
            ratios.append(bounds.of(one).bytes / result.memory.reserved_bytes)
    assert len(ratios) > 4
    assert max(ratios) <= 1
    assert sum(ratios) / len(ratios) > 0.85
