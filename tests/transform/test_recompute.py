"""Recomputation as another step: what runs again, what is kept, what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from tests.traces import chain
from triosim import Plan
from triosim.core.errors import PlanError
from triosim.operators import canonical
from triosim.stacks import load
from triosim.trace.blocks import blocks
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, Trace, check
from triosim.transform.recompute import recomputed

LAYERS, WIDTH, LENGTH, BATCH = 3, 64, 32, 2
LLAMA = {
    "hidden_size": WIDTH, "intermediate_size": 160, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "vocab_size": 128,
}  # fmt: skip


def llama(**options) -> Trace:
    return triosim.model("llama", configuration=LLAMA, sequence_length=LENGTH, batch_size=BATCH, **options)


def flop(trace: Trace, phase: Phase) -> float:
    return float(np.nansum(trace.operators.flop[trace.operators.phase == phase]))


def kept(trace: Trace) -> int:
    """Bytes that the forward of the blocks makes for a later phase."""
    of = np.append(blocks(trace).of(trace), -1)
    values, operators = trace.values, trace.operators
    made = np.full(int(values.storage.max()) + 1, len(operators))
    np.minimum.at(made, values.storage[operators.outputs.values], operators.outputs.rows())
    phase = np.append(operators.phase, -1)
    here = np.unique(values.storage[values.category == Category.ACTIVATION])
    here = here[(of[made[here]] >= 0) & (phase[made[here]] == Phase.FORWARD)]
    return int(values.storage_bytes()[here].sum())


def test_full_runs_every_block_once_more() -> None:
    """FLOP of a block by hand: 2 m k n of its seven products, 4 s^2 w of attention (half of it, for it is causal)."""
    trace = recomputed(llama(), "full")
    check(trace)
    tokens = BATCH * LENGTH
    products = 2 * tokens * WIDTH * (4 * WIDTH + 3 * 160)
    attention = 4 * tokens * LENGTH * WIDTH / 2
    attention_counted = flop(recomputed(llama(), "selective"), Phase.RECOMPUTE) / LAYERS
    assert attention_counted == pytest.approx(attention, rel=2 / LENGTH)
    assert flop(trace, Phase.RECOMPUTE) == LAYERS * (products + attention_counted)
    inside = blocks(llama()).of(llama()) >= 0
    forward = np.array(llama().operators.name)[inside & (llama().operators.phase == Phase.FORWARD)]
    again = np.array(trace.operators.name)[trace.operators.phase == Phase.RECOMPUTE]
    assert Counter(again.tolist()) == Counter(forward.tolist())


def test_full_keeps_of_a_block_only_what_it_was_given() -> None:
    """Kept inside the blocks: one residual stream of tokens x width in 16 bits for each (and for the final norm)."""
    before, after = llama(), recomputed(llama(), "full")
    assert kept(after) == LAYERS * BATCH * LENGTH * WIDTH * 2
    assert kept(before) > 10 * kept(after)


def test_the_backward_reads_what_was_made_again() -> None:
    """Each operator of the backward has, for each input, a writer of the same name as before, in the right phase."""
    before, after = llama(), recomputed(llama(), "full")
    of = blocks(after).of(after)
    rows = np.flatnonzero(after.operators.phase != Phase.RECOMPUTE)
    was, now = before.writers(), after.writers()
    for row, new in enumerate(rows.tolist()):
        assert before.operators.name[row] == after.operators.name[new]
        for a, b in zip(was[row], now[new], strict=True):
            assert (a < 0) == (b < 0)
            if a >= 0:
                assert before.operators.name[a] == after.operators.name[b]
                if after.operators.phase[new] == Phase.BACKWARD and of[new] >= 0 and of[b] == of[new]:
                    assert after.operators.phase[b] != Phase.FORWARD


def test_time_and_memory_both_change() -> None:
    system = triosim.system(device="H100-SXM5-80GB", devices=1)
    trace = triosim.model("gpt2", precision="float32")
    plain, full = (triosim.simulate(trace, system, Plan(batch_size=8, recompute=r)) for r in ("none", "full"))
    assert full.memory.allocated_bytes < 0.65 * plain.memory.allocated_bytes
    assert 1.1 * plain.iteration_time_s < full.iteration_time_s < 1.4 * plain.iteration_time_s
    assert {row.phase for row in full.layers} == {"forward", "recompute", "backward", "optimizer"}


def test_tensor_parallel_blocks_reduce_their_outputs_again() -> None:
    """Megatron-LM: two all-reduces a layer forward, two backward; run again, the forward's come once more."""
    trace = triosim.model("gpt2", sequence_length=64)
    system = triosim.system("dgx-h100")

    def calls(recompute: str) -> int:
        result = triosim.simulate(trace, system, Plan(tp=2, recompute=recompute))
        return sum(row.count for row in result.collectives if (row.axis, row.kind) == ("tp", "all_reduce"))

    vocabulary = 5  # the padded table, the scores' gradient, and three sums of the loss over its rows
    assert (calls("none"), calls("full")) == (48 + vocabulary, 72 + vocabulary)


def test_with_pipeline_and_data_parallel_it_saves_memory_on_every_stage() -> None:
    trace = triosim.model("gpt2", precision="float32")
    system = triosim.system("dgx-h100")
    plain, full = (
        triosim.simulate(trace, system, Plan(pp=4, dp=2, batch_size=32, micro_batches=8, recompute=r))
        for r in ("none", "full")
    )
    for a, b in zip(plain.devices[:-1], full.devices[:-1], strict=True):  # the last is full of scores
        assert b.allocated_bytes < a.allocated_bytes
    assert full.iteration_time_s > plain.iteration_time_s


def test_stages_do_not_cut_through_what_is_run_again() -> None:
    trace, system = triosim.model("gpt2"), triosim.system("dgx-h100")
    for stages in (2, 3, 5, 8):
        result = triosim.simulate(trace, system, Plan(pp=stages, dp=1, idle_ok=True, recompute="full"))
        found = result.plan.stages
        assert len(found) == stages
        assert all(path.endswith(".ln_1") or ".h." not in path for path in found[1:])


def test_selective_recomputes_the_attention_core_of_an_unfused_attention() -> None:
    """Scores, softmax and dropout go (Korthikanti et al., section 5); what runs again are the two products."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    from triosim.sources.record import fake, record

    heads, size = 4, 16

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = torch.nn.LayerNorm(64), torch.nn.Linear(64, 192)
            self.out = torch.nn.Linear(64, 64)

        def forward(self, x):
            q, k, v = (p.view(*x.shape[:2], heads, size).transpose(1, 2) for p in self.qkv(self.norm(x)).split(64, 2))
            scores = F.softmax(q @ k.transpose(2, 3) / 4, -1)
            return x + self.out((scores @ v).transpose(1, 2).reshape(x.shape))

    with fake():
        model = torch.nn.Sequential(*(Block() for _ in range(6)))
        x = torch.randn(BATCH, 128, 64)
    trace = record(lambda x: model(x).sum().backward(), x, device="fake")
    again = recomputed(trace, "selective")
    check(again)
    products = 2 * (2 * BATCH * heads * 128 * 128 * size)
    assert flop(again, Phase.RECOMPUTE) == 6 * products
    names = {n for n, p in zip(again.operators.name, again.operators.phase.tolist(), strict=True) if p == 3}
    assert "aten::bmm" in names
    assert not names & {"aten::addmm", "aten::native_layer_norm"}
    scores = BATCH * heads * 128 * 128 * 4
    # of each layer the softmax's output goes and the copy of the values, and their projection is kept instead
    values, projection = BATCH * 128 * 64 * 4, BATCH * 128 * 192 * 4
    assert kept(trace) - kept(again) == 6 * (scores + values - projection)


@pytest.mark.parametrize(("which", "expected"), [("none", 34 + 5 * 16 * 512 / 512), ("selective", 34), ("full", 2)])
def test_activations_of_a_layer_are_those_of_the_paper(which: str, expected: float) -> None:
    """Korthikanti et al., equations 1 and 6 and table 2 with one tensor-parallel rank: in units of s b h bytes
    34 + 5 a s / h, without the attention core 34, with nothing kept but the input 2; and the work that comes on top."""
    sequence, batch, width, heads, layers = 512, 2, 512, 16, 3
    sizes = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": sequence, "vocab_size": 256}
    drops = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "unfused_attention": True}
    trace = triosim.model(
        "gpt", configuration={**sizes, **drops}, batch_size=batch, sequence_length=sequence, precision="float16"
    )
    again = recomputed(trace, which)  # type: ignore[arg-type]
    unit = sequence * batch * width
    statistics = 2 * 2 * 4 / width  # mean and deviation of two norms in float32, which the paper leaves out
    assert kept(again) / layers / unit == pytest.approx(expected + (statistics if which != "full" else 0), rel=1e-6)
    core = 4 * batch * sequence**2 * width
    block = 24 * unit * width + core
    work = {"none": 0, "selective": core, "full": block}[which]
    assert flop(again, Phase.RECOMPUTE) == layers * work


def test_policies_by_operator_keep_less_and_run_less_again_than_whole_blocks() -> None:
    """MaxText's minimal runs no product again, torchtitan's policy every second one of q, k, v, o, gate, up, down."""
    trace = llama()
    found = {which: recomputed(trace, which) for which in ("none", "pointwise", "operators", "full")}
    memory = [kept(one) for one in found.values()]
    assert memory == sorted(memory, reverse=True)
    assert len(set(memory)) == 4
    again = {
        which: [canonical(n)[0] for n, p in zip(one.operators.name, one.operators.phase, strict=True)
                if p == Phase.RECOMPUTE]
        for which, one in found.items()
    }  # fmt: skip
    assert "mm" not in again["pointwise"]
    assert recomputed(trace, "minimal").operators.name == found["pointwise"].operators.name
    assert again["operators"].count("mm") == 3 * LAYERS
    assert again["full"].count("mm") == 7 * LAYERS
    assert not any("attention" in name for name in again["operators"])


def test_what_the_backward_needs_leaves_out_the_last_product_and_what_is_kept_the_projections() -> None:
    """Of q, k, v, o, gate, up and down the last is read by nobody again; with projections kept q, k and v are there."""
    trace = llama()
    whole, needed, kept_projections = (
        recomputed(trace, "full"), recomputed(trace, "full", "needed"), recomputed(trace, "projections")
    )  # fmt: skip
    products = {}
    for name, one in (("whole", whole), ("needed", needed), ("projections", kept_projections)):
        check(one)
        again = np.flatnonzero(one.operators.phase == Phase.RECOMPUTE)
        names = [canonical(one.operators.name[row])[0] for row in again.tolist()]
        products[name] = names.count("mm")
        assert sum("attention" in text for text in names) == LAYERS, name
    assert products == {"whole": 7 * LAYERS, "needed": 6 * LAYERS, "projections": 3 * LAYERS}
    down = 2 * BATCH * LENGTH * WIDTH * 160
    assert flop(whole, Phase.RECOMPUTE) - flop(needed, Phase.RECOMPUTE) == LAYERS * down
    assert kept(needed) == kept(whole) < kept(kept_projections) < kept(trace)
    assert recomputed(trace, "save_qkv_proj").operators.name == kept_projections.operators.name


@settings(max_examples=examples(20))
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))
def test_it_never_needs_more_activations_and_runs_no_operator_three_times(layers: int, heads: int, batch: int) -> None:
    configuration = {**LLAMA, "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": 16 * heads}
    trace = triosim.model("llama", configuration=configuration, sequence_length=16, batch_size=batch)
    for which in ("full", "selective", "pointwise", "operators", "projections", "needed"):
        again = recomputed(trace, "full", "needed") if which == "needed" else recomputed(trace, which)
        check(again)
        rows = again.operators.phase == Phase.RECOMPUTE
        assert len(np.unique(again.operators.forward[rows])) == rows.sum()
        assert np.all(again.operators.phase[again.operators.forward[rows]] == Phase.FORWARD)
        assert flop(again, Phase.BACKWARD) == flop(trace, Phase.BACKWARD)
        assert len(again) == len(trace) + rows.sum()


MIXTURE = {
    "hidden_size": WIDTH, "intermediate_size": 160, "moe_intermediate_size": 48, "num_hidden_layers": LAYERS,
    "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
    "q_lora_rank": 32, "kv_lora_rank": 24,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 128,
}  # fmt: skip


def mixture() -> Trace:
    """A small DeepSeek-V3 as Megatron-Core runs it: one layer is dense, two have experts."""
    return triosim.model("deepseek_v3", configuration=MIXTURE, sequence_length=LENGTH, batch_size=BATCH, fused=True)


def run_again(trace: Trace, which: str) -> Counter[str]:
    again = recomputed(trace, which)
    check(again)
    o = again.operators
    rows = np.flatnonzero((o.phase == Phase.RECOMPUTE) & ~o.view).tolist()
    return Counter(o.name[row].partition("::")[2] for row in rows)


def test_parts_of_a_block_are_those_of_megatron_core() -> None:
    trace = mixture()
    assert run_again(trace, "layernorm") == {"rms_norm": 2 * LAYERS}
    assert run_again(trace, "moe_act") == {"swiglu": LAYERS - 1}
    assert run_again(trace, "mlp") == {"mm": 3, "swiglu": 1}
    assert run_again(trace, "shared_experts") == {"mm": 3 * (LAYERS - 1), "swiglu": LAYERS - 1}
    up = {"mm": 2, "rms_norm": 2, "fused_rope": 2, "cat": 2}
    assert run_again(trace, "mla_up_proj") == {name: LAYERS * count for name, count in up.items()}
    assert recomputed(trace, "core_attn").operators.name == recomputed(trace, "selective").operators.name
    layer = run_again(trace, "moe")
    assert layer["_grouped_mm"] == 2 * (LAYERS - 1)
    assert layer["topk"] == 3 * (LAYERS - 1)  # of groups twice, of experts


def test_a_bias_that_is_added_in_place_belongs_to_its_product() -> None:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 8, "vocab_size": 128}  # fmt: skip
    trace = triosim.model("gpt_oss", configuration=sizes, sequence_length=LENGTH, batch_size=BATCH, fused=True)
    assert run_again(trace, "moe_act") == {"clamped_swiglu": 2}


def test_a_part_frees_what_only_it_makes() -> None:
    """Bytes by hand: two norms of each layer, the activation of routed tokens, 16 bits each."""
    trace = mixture()
    tokens = BATCH * LENGTH
    norms = LAYERS * 2 * tokens * WIDTH * 2
    statistics = LAYERS * 2 * tokens * 4  # one deviation of each norm in float32
    activated = (LAYERS - 1) * 2 * tokens * 48 * 2
    assert kept(trace) - kept(recomputed(trace, "layernorm")) == norms + statistics
    assert kept(trace) - kept(recomputed(trace, "moe_act")) == activated
    assert kept(trace) - kept(recomputed(trace, "moe_act + layernorm")) == norms + statistics + activated


def test_a_module_of_the_block_is_a_part_and_so_is_every_second_block() -> None:
    trace = llama()
    assert run_again(trace, "self_attn") == {
        name.partition("::")[2]: count for name, count in Counter(n for n, m, p, v in zip(
            trace.operators.name, trace.operators.module.tolist(), trace.operators.phase, trace.operators.view,
            strict=True,
        ) if p == Phase.FORWARD and not v and ".self_attn" in trace.modules.path[m]).items()
    }  # fmt: skip
    with pytest.raises(PlanError, match="no backward operator"):  # what it hands on is kept, and that is all it makes
        recomputed(trace, "self_attn.q_proj")
    assert run_again(trace, "mlp") == run_again(trace, "mlp.gate_proj+mlp.up_proj+mlp")
    once, second = run_again(trace, "full"), run_again(trace, "full/2")
    assert {name: LAYERS * count for name, count in second.items()} == once  # one of three blocks
    assert run_again(trace, "full/1") == once
    of = blocks(trace).of(trace)
    assert (
        recomputed(trace, "full/2")
        .operators.module[recomputed(trace, "full/2").operators.phase == Phase.RECOMPUTE]
        .tolist()
        == trace.operators.module[(of == 1) & (trace.operators.phase == Phase.FORWARD)].tolist()
    )


@settings(max_examples=examples(30))
@given(
    st.sets(st.sampled_from(("core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "shared_experts")), min_size=1)
)
def test_parts_together_run_what_each_runs_alone(parts: set[str]) -> None:
    trace = mixture()
    together = run_again(trace, "+".join(sorted(parts)))
    assert together == sum((run_again(trace, part) for part in sorted(parts)), Counter())
    again = recomputed(trace, "+".join(sorted(parts)))
    assert flop(again, Phase.BACKWARD) == flop(trace, Phase.BACKWARD)
    assert kept(again) <= kept(trace)


def test_a_part_that_no_block_has_is_named() -> None:
    with pytest.raises(PlanError, match=r"has a part 'moe_act': say none, full,.* or of its modules: input_layernorm,"):
        recomputed(llama(), "moe_act")
    with pytest.raises(PlanError, match="has a part 'fulll'"):
        recomputed(llama(), "layernorm+fulll")
    for wrong in ("full/0", "full/x", "selective/-1"):
        with pytest.raises(PlanError, match="every N-th block"):
            recomputed(llama(), wrong)


def test_what_cannot_be_run_again_is_refused() -> None:
    with pytest.raises(PlanError, match="no repeated blocks"):
        recomputed(chain(), "full")
    with pytest.raises(PlanError, match="no attention"):
        recomputed(triosim.model("resnet50"), "selective")
    with pytest.raises(PlanError, match="already runs operators again"):
        recomputed(recomputed(llama(), "full"), "selective")
    with pytest.raises(PlanError, match="without a backward"):
        triosim.simulate(llama(), triosim.system(device="B200", devices=1), Plan(training=False, recompute="full"))


def test_a_block_that_changes_what_it_was_given_is_refused() -> None:
    b = TraceBuilder()
    x = b.value((8, 8), "float32", Category.INPUT)
    rows = []
    for i in range(2):
        module = b.module(f"layers.{i}", "Block")
        y = b.next_version(x)
        b.operator("aten::relu_", [x], [y], roles=["self"], phase=Phase.FORWARD, module=module)
        for _ in range(2):
            x, z = y, b.value((8, 8), "float32", Category.ACTIVATION)
            rows.append((b.operator("aten::exp", [x], [z], roles=["self"], phase=Phase.FORWARD, module=module), z))
            y = z
        x = y
    g = b.value((8, 8), "float32", Category.TEMPORARY)
    for row, z in reversed(rows):
        after = b.value((8, 8), "float32", Category.TEMPORARY)
        b.operator("aten::mul", [g, z], [after], roles=["self", "other"], phase=Phase.BACKWARD, forward=row)
        g = after
    with pytest.raises(PlanError, match=r"relu_ in 'layers\.0' writes into what its block was given"):
        recomputed(b.build(Meta("test")), "full")


@pytest.mark.parametrize("policy", ["operators", "pointwise"])
@pytest.mark.parametrize("fused", [False, True])
def test_what_a_block_hands_on_is_not_made_again(policy: str, fused: bool) -> None:
    """The next block's norm reads it, and it is kept for that: of a block's two sums the first alone runs again."""
    trace = recomputed(llama(fused=fused), policy)
    operators, of = trace.operators, blocks(trace).of(trace)
    again = [row for row in range(len(trace)) if operators.phase[row] == Phase.RECOMPUTE]
    within = [
        row
        for row in again
        if operators.name[row] == "aten::add" and trace.modules.path[operators.module[row]].count(".") == 2
    ]
    assert max(Counter(of[row] for row in within).values(), default=0) <= 1


def test_what_a_policy_saves_stays_though_nothing_reads_it() -> None:
    """The last product of a block: PyTorch's selective checkpoint keeps it, a compiler does not."""
    trace = triosim.model("llama-3.2-1b", batch_size=2, sequence_length=4096, configuration={"num_hidden_layers": 2})
    needed, saved = (recomputed(trace, "operators", how) for how in ("needed", "needed-and-saved"))
    more = Counter(saved.operators.name) - Counter(needed.operators.name)
    assert more.total() == 2  # views of what the last product of each block made
    assert all(bool(saved.operators.view[row]) for row, name in enumerate(saved.operators.name) if name in more)
    plan = triosim.Plan(dp=1, batch_size=2, idle_ok=True, recompute="operators", stack=load("torchtitan"))
    without = replace(plan.stack, recomputed="needed")
    system = triosim.system("dgx-h100")
    held = [
        triosim.simulate(trace, system, plan.replaced(stack=stack), fit=False).memory.allocated_bytes
        for stack in (plan.stack, without)
    ]
    assert held[0] - held[1] == pytest.approx(2 * 2 * 4096 * 2048 * 2, rel=0.05)
