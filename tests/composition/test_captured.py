"""Parts of blocks that are launched as graphs, and where the host reads how many rows experts get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan
from triosim.composition.captured import block_parts, captured, counts_of_experts
from triosim.composition.host import host
from triosim.operators import canonical, kind
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.stacks import GRAPHS, Stack, load
from triosim.trace.blocks import blocks
from triosim.trace.tables import Phase, Trace
from triosim.transform.recompute import recomputed

LAYERS = 3
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024, "num_experts": 16,
    "num_experts_per_tok": 2, "head_dim": 32,
}  # fmt: skip
ALL = GRAPHS[-1]


def _trace(fused: bool = True) -> Trace:
    return triosim.model("qwen3_moe", sequence_length=128, configuration=SIZES, fused=fused)


def _launched(trace: Trace, graphs: str) -> np.ndarray:
    """Operators that cost a launch, rows."""
    return np.flatnonzero(captured(trace, host(trace, "large-model"), graphs).issue_s)


def test_parts_are_attention_with_its_norm_and_the_choice_of_experts_with_its() -> None:
    trace = _trace()
    part, of = block_parts(trace), blocks(trace)
    rows = [r for r in np.flatnonzero(of.of(trace) == 1).tolist() if trace.operators.phase[r] == Phase.FORWARD]
    found: dict[str, set[str]] = {}
    for row in rows:
        path = trace.modules.path[trace.operators.module[row]].removeprefix(of.path[1])[1:]
        found.setdefault(part[row], set()).add(path.partition(".")[0] if part[row] == "attn" else path)
    assert found["attn"] == {"input_layernorm", "self_attn"}
    assert found["moe_router"] == {"post_attention_layernorm", "mlp", "mlp.gate"}
    assert found["moe_preprocess"] == found[""] == {"mlp.experts"}
    counts = {canonical(trace.operators.name[r])[0] for r in rows if part[r] == "moe_preprocess"}
    assert {"histc", "cumsum"} <= counts
    assert "moe_permute" not in counts


def test_a_graph_is_launched_once_forward_and_once_backward() -> None:
    """Of a block: attention to the choice of experts, the copies of rows, what counts them, and the experts eagerly."""
    trace = _trace()
    launched = _launched(trace, ALL)
    within, phases = blocks(trace).of(trace), trace.operators.phase
    names = [
        canonical(trace.operators.name[r])[0] for r in launched.tolist()
        if within[r] == 1 and phases[r] == Phase.FORWARD
    ]  # fmt: skip
    assert names == [
        "rms_norm", "moe_permute", "_to_copy", "_grouped_mm", "swiglu", "_grouped_mm", "moe_unpermute", "add"
    ]  # fmt: skip
    back = [r for r in launched.tolist() if within[r] == 1 and phases[r] == Phase.BACKWARD]
    parts = block_parts(trace)
    assert sum(parts[r] != "" for r in back) == 1
    outside = np.flatnonzero((within < 0) | (phases == Phase.OPTIMIZER))
    assert set(outside) & set(_launched(trace, "")) == set(outside) & set(launched)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_graphs_only_take_launches_away(graphs: str, fused: bool) -> None:
    """Law: no operator costs more than a launch of its own, and more parts cost no more."""
    trace = _trace(fused)
    usual = host(trace, "large-model")
    some, all_ = (captured(trace, usual, which).issue_s for which in (graphs, ALL))
    assert np.all(some <= usual.issue_s)
    assert all_.sum() <= some.sum()
    assert (some.sum() == usual.issue_s.sum()) == (graphs == "")


@pytest.mark.parametrize("mode", ["none", "graph"])
def test_what_is_launched_at_once_anyway_has_no_graphs_of_parts(mode: str) -> None:
    trace = _trace()
    cost = host(trace, mode)
    assert captured(trace, cost, ALL) is cost


@pytest.mark.parametrize(("recompute", "passes"), [("none", 1), ("full", 2), ("moe_act", 1), ("full/3", 4 / 3)])
def test_the_host_reads_counts_before_each_forward_pass_through_experts(recompute: str, passes: float) -> None:
    trace = recomputed(_trace(), recompute)
    rows = counts_of_experts(trace)
    assert len(rows) == round(LAYERS * passes)
    kinds = [kind(name) for name in trace.operators.name]
    for row in rows:
        following = next(r for r in range(row + 1, len(trace)) if not trace.operators.view[r])
        assert kinds[following] == "experts"
        assert trace.operators.phase[row] in (Phase.FORWARD, Phase.RECOMPUTE)


def test_a_model_without_experts_has_no_counts() -> None:
    assert counts_of_experts(triosim.model("llama-3.2-1b", sequence_length=64)) == ()


@pytest.mark.parametrize(
    ("options", "mode", "reads"),
    [({}, "eager", True), ({"capacity": 1.0}, "eager", False), ({}, "graph", False), ({}, "none", False)],
)
def test_nobody_waits_for_counts_of_padded_experts_or_in_a_graph(
    options: dict[str, float], mode: str, reads: bool
) -> None:
    stack = replace(Stack(), expert_counts="host", fused=True)
    plan = Plan(parallelism=("experts",), parallelism_options={"ep": 2, **options}, batch_size=1, stack=stack)
    job = stage_job(price_job(_trace(), triosim.system("dgx-h100"), plan, Fidelity(host=mode)))
    assert bool(job.launching.read) is reads
    assert bool(job.launching.waits(job.step.trace).any()) is reads


def test_waiting_for_counts_takes_longer_where_launching_takes_the_time() -> None:
    """The host loses what it was ahead; with all but the experts in graphs there is less to lose."""
    times = {}
    for counts in ("device", "host"):
        for graphs in ("", ALL):
            stack = replace(load("megatron-core"), expert_counts=counts, graphs=graphs)
            plan = Plan(batch_size=1, stack=stack)
            times[counts, graphs] = triosim.simulate(_trace(), triosim.system("dgx-h100"), plan).iteration_time_s
    assert times["host", ""] > times["device", ""]
    assert times["device", ALL] < times["device", ""]
    assert times["host", ALL] < times["host", ""]
