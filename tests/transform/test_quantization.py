"""Products in 8 and 4 bits: which operands become narrow, what is cast how often, what stays as it was."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

import triosim
from triosim import Plan, simulate, system
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError, PlanError
from triosim.hardware import catalog
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price
from triosim.kernels.work.gemm import scaled_by_rows
from triosim.operators import canonical, kind
from triosim.trace.tables import ITEM_BYTES, Category, Phase, Trace
from triosim.transform.inference import forward_only
from triosim.transform.quantization import (
    DEQUANTIZE,
    GATHERED_FIRST,
    MAXIMUM,
    PADDING,
    QUANTIZE,
    RECIPES,
    RESCALE,
    UNPADDING,
    check,
    quantized,
    reads_either_way,
    shares,
    weights_in_8_bits,
)
from triosim.transform.recompute import recomputed

LAYERS = 4
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
MIXTURE = {
    "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1024, "num_experts": 16, "num_experts_per_tok": 2, "head_dim": 32,
}  # fmt: skip


def llama(**options: object) -> Trace:
    return triosim.model("llama", sequence_length=128, batch_size=2, configuration=SIZES, fused=True, **options)


def products(trace: Trace) -> list[tuple[int, Phase, tuple[str, ...]]]:
    """Row, phase and types of what is multiplied, of each product."""
    operators, dtype = trace.operators, trace.values.dtype
    found = []
    for row, name in enumerate(operators.name):
        if canonical(name)[0] in ("mm", "_grouped_mm") and not operators.view[row]:
            types = [DTYPES[dtype[v]] for v in operators.inputs[row].tolist() if len(trace.values.shape[v]) >= 2]
            found.append((row, Phase(operators.phase[row]), tuple(types[:2])))
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_products_of_the_blocks_multiply_narrow_operands_and_the_last_does_not(recipe: str) -> None:
    trace = llama()
    found = products(quantized(trace, recipe))
    narrow = [row for row, _, types in found if types == (RECIPES[recipe].dtype,) * 2]
    assert len(narrow) == 3 * 7 * LAYERS  # q, k, v, o, gate, up, down: forward, gradients of input and of weight
    assert {types for row, _, types in found if row not in narrow} == {("bfloat16", "bfloat16")}
    assert len(found) - len(narrow) == 3  # of the vocabulary


def test_every_tensor_is_cast_once_and_a_weight_once_in_each_direction() -> None:
    made = quantized(llama(), "mxfp8")
    casts = [row for row, name in enumerate(made.operators.name) if name == QUANTIZE]
    weights = set(made.values.storage[made.values.category == Category.WEIGHT].tolist())
    of_weights = [r for r in casts if int(made.values.storage[made.operators.inputs[r][0]]) in weights]
    assert len(of_weights) == 2 * 7 * LAYERS
    assert len(casts) - len(of_weights) == (4 + 7) * LAYERS  # q, k, v share what they read, gate and up too
    assert MAXIMUM not in made.operators.name
    assert quantized(llama(), "fp8-current").operators.name.count(MAXIMUM) == len(casts)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_scale_serves_both_directions_where_products_read_either_way(recipe: str) -> None:
    """Data-centre Blackwell needs no turned copy of a tensor with one scale; scales of blocks and rows fit one way."""

    def made(device: str) -> list[int]:
        """How many copies each cast of what is no weight makes."""
        trace = quantized(llama(), recipe, reads_either_way(catalog.accelerator(device)))
        weights = set(trace.values.storage[trace.values.category == Category.WEIGHT].tolist())
        names = (QUANTIZE, GATHERED_FIRST[0])
        return [
            len(trace.operators.outputs[row]) for row, name in enumerate(trace.operators.name)
            if name in names and int(trace.values.storage[trace.operators.inputs[row][0]]) not in weights
        ]  # fmt: skip

    hopper, blackwell, workstation = map(made, ("H100-SXM5-80GB", "B200-SXM-180GB", "RTX-PRO-6000-Server"))
    assert hopper == workstation
    assert len(blackwell) == len(hopper)
    assert sum(hopper) - sum(blackwell) == (len(hopper) if RECIPES[recipe].whole else 0)


def test_the_work_is_the_same_and_less_is_kept() -> None:
    trace = llama()
    made = quantized(trace, "fp8-delayed")
    before, after = (np.nansum(t.operators.flop[[r for r, *_ in products(t)]]) for t in (trace, made))
    assert after == before

    def kept(t: Trace) -> float:
        values = t.values
        _, first = np.unique(values.storage, return_index=True)
        first = first[values.category[first] == Category.ACTIVATION]
        sizes = np.array([np.prod(values.shape[v]) for v in first.tolist()])
        return float((sizes * np.where(values.dtype[first] == DTYPES.index("float8_e4m3fn"), 1, 2)).sum())

    assert kept(made) < kept(trace)


def test_weights_are_quantised_once_an_iteration_unless_they_are_sharded() -> None:
    made = quantized(llama(), "mxfp8")
    found = shares(made, 8, sharded=False)
    assert sorted(set(found.tolist())) == [1 / 8, 1.0]
    assert int((found < 1).sum()) == 2 * 7 * LAYERS
    assert (shares(made, 8, sharded=True) == 1).all()
    assert (shares(made, 1, sharded=False) == 1).all()


def test_what_is_run_again_reads_narrow_operands_too() -> None:
    made = recomputed(quantized(llama(), "mxfp8"), "full")
    again = [types for _, phase, types in products(made) if phase == Phase.RECOMPUTE]
    assert len(again) == 7 * LAYERS
    assert set(again) == {("float8_e4m3fn", "float8_e4m3fn")}


def test_experts_are_quantised_and_their_router_is_not() -> None:
    trace = triosim.model("qwen3_moe", sequence_length=128, batch_size=2, configuration=MIXTURE)
    made = quantized(trace, "mxfp8")
    kinds = [(canonical(made.operators.name[row])[0], types[0]) for row, _, types in products(made)]
    assert kinds.count(("_grouped_mm", "float8_e4m3fn")) == 3 * 2 * 2
    assert ("_grouped_mm", "bfloat16") not in kinds
    assert kinds.count(("mm", "bfloat16")) == 3 * 2 + 3  # routers and the vocabulary


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-current"])
def test_tensor_parallel_ranks_share_the_products_and_gather_narrow_inputs(recipe: str) -> None:
    def gathered(quantize: str) -> dict[int, int]:
        plan = Plan(tp=2, parallelism=["sequence"], quantize=quantize)
        found = simulate(llama(), system("hgx-b200"), plan.replaced(idle_ok=True))
        assert not [w for w in found.warnings if "left whole" in w]
        return {c.bytes: c.count for c in found.collectives if c.kind == "all_gather"}

    wide, narrow = gathered("none"), gathered(recipe)
    assert min(narrow) * 2 == min(wide)
    assert sum(narrow.values()) >= sum(wide.values())


def test_scales_of_whole_rows_need_a_kernel_for_each_copy_and_columns_one_that_looks() -> None:
    made = quantized(llama(), "fp8-row")
    quantize, maximum = GATHERED_FIRST
    casts = [row for row, name in enumerate(made.operators.name) if name == quantize]
    assert all(len(made.operators.outputs[row]) == 1 for row in casts)
    # rows: weights, inputs, and gradients for the inputs'; columns, all in the backward: the same for those of weights
    rows, columns = (7 + 4 + 7) * LAYERS, (7 + 4 + 7) * LAYERS
    assert len(casts) == rows + columns
    looked = [row for row, name in enumerate(made.operators.name) if name == maximum]
    assert len(looked) == columns
    assert set(made.operators.phase[looked].tolist()) == {int(Phase.BACKWARD)}
    weights = int((shares(made, 8, sharded=False) < 1).sum())
    assert weights == (7 + 2 * 7) * LAYERS


def test_products_of_the_backward_with_scales_of_rows_are_rescaled_by_a_kernel() -> None:
    made = quantized(llama(), "fp8-row")
    own = np.array([row for row, _, types in products(made) if types[0] == RECIPES["fp8-row"].dtype])
    backward = made.operators.phase[own] == Phase.BACKWARD
    assert (scaled_by_rows(made, own) == ~backward).all()
    rescaled = [row for row, name in enumerate(made.operators.name) if name == RESCALE]
    of = [int(made.operators.inputs[row][0]) for row in rescaled]
    assert sorted(of) == sorted(int(made.operators.outputs[row][0]) for row in own[backward])


def test_rescaled_summands_are_added_up_after_it() -> None:
    plan = Plan(tp=2, parallelism=["sequence"], quantize="fp8-row", idle_ok=True)
    sent = []
    for which in ("fp8-row", "none"):
        found = simulate(llama(), system("hgx-b200"), plan.replaced(quantize=which))
        sent.append({(c.kind, c.bytes): c.count for c in found.collectives})
    assert sent[0] == sent[1]


def test_what_is_cast_by_rows_is_gathered_in_16_bits_before() -> None:
    def gathered(quantize: str) -> dict[int, int]:
        plan = Plan(tp=2, parallelism=["sequence"], quantize=quantize)
        found = simulate(llama(), system("hgx-b200"), plan.replaced(idle_ok=True))
        assert not [w for w in found.warnings if "left whole" in w]
        return {c.bytes: c.count for c in found.collectives if c.kind == "all_gather"}

    assert gathered("fp8-row") == gathered("none")


def test_scales_of_whole_rows_cost_what_was_published() -> None:
    # github.com/pytorch/torchtitan/commit/7a04053: Llama 3 8B on 8 H100, compiled, 7,186 tokens per second and device
    # with scales of tensors, 6,412 with those of rows.  The former ran with enable_fsdp_float8_all_gather, so that each
    # of the 8 casts its part of the weights before they are gathered; here they are cast whole after it
    trace = triosim.model("llama-3-8b", sequence_length=8192, batch_size=1, fused=True)
    rows, tensors = (
        simulate(trace, system("hgx-h100"), Plan(dp=8, zero=3, recompute="operators", quantize=how)).iteration_time_s
        for how in ("fp8-row", "fp8-current")
    )
    cast = quantized(trace, "fp8-current")
    seconds = price(PricingJob(cast, catalog.accelerator("H100-SXM"), cast, None)).seconds
    of_weights = [
        row for row, (name, read) in enumerate(zip(cast.operators.name, cast.operators.inputs.lists(), strict=True))
        if name in (QUANTIZE, MAXIMUM) and cast.values.category[read[0]] == Category.WEIGHT
    ]  # fmt: skip
    assert len(of_weights) == 2 * 2 * 7 * 32
    saved = 7 / 8 * float(seconds[of_weights].sum())
    assert 0.01 * tensors < saved < 0.05 * tensors
    assert rows / (tensors - saved) == pytest.approx(7186 / 6412, abs=0.03)


def test_it_is_faster_where_products_take_the_time() -> None:
    trace = triosim.model("llama-3-8b", sequence_length=4096, batch_size=1, fused=True)
    wide, narrow = (
        simulate(trace, system("hgx-b200"), Plan(dp=8, quantize=how)).iteration_time_s for how in ("none", "mxfp8")
    )
    assert 0.4 * wide < narrow < 0.8 * wide


def test_what_cannot_be_quantised_is_a_sentence() -> None:
    with pytest.raises(PlanError, match="of training steps"):
        quantized(forward_only(llama()), "mxfp8")
    with pytest.raises(PlanError, match="16-bit weights"):
        quantized(llama(precision="float32"), "mxfp8")
    with pytest.raises(InputError, match="quantize"):
        Plan(quantize="fp9")
    with pytest.raises(PlanError, match="no scale for every few elements"):
        simulate(llama(), system("dgx-h100"), Plan(quantize="mxfp8"))
    with pytest.raises(InputError, match="has no units for float8"):
        simulate(llama(), system("dgx-a100"), Plan(quantize="fp8-current"))


def test_stored_weights_are_narrow_and_only_what_they_multiply_is_cast() -> None:
    forward = forward_only(llama())
    made = weights_in_8_bits(forward)
    narrow = [row for row, _, types in products(made) if types == ("float8_e4m3fn",) * 2]
    assert len(narrow) == 7 * LAYERS
    operators, values = made.operators, made.values
    casts = [row for row, name in enumerate(operators.name) if name == GATHERED_FIRST[0]]
    read = [values.category[v] for row in casts for v in operators.inputs[row].tolist()]
    assert read
    assert Category.WEIGHT not in read
    weights = values.category == Category.WEIGHT
    assert sum(DTYPES[code] == "float8_e4m3fn" for code in values.dtype[weights].tolist()) >= 7 * LAYERS
    float32 = triosim.model("llama", sequence_length=128, precision="float32", configuration=SIZES, training=False)
    with pytest.raises(PlanError, match="16-bit weights"):
        weights_in_8_bits(float32)


@pytest.mark.parametrize(
    ("device", "known"),
    [("H100-SXM5-80GB", False), ("B200-SXM-180GB", True), ("MI300X", False), ("MI355X", True), ("Gaudi3", False)],
)
def test_scales_of_a_few_elements_take_units_that_know_them(device: str, known: bool) -> None:
    with nullcontext() if known else pytest.raises(PlanError, match=f"matrix units of {device} take no scale"):
        check("mxfp8", catalog.accelerator(device))


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-current", "fp8-block"])
def test_rows_of_experts_are_copied_to_be_padded_and_back_in_both_passes(recipe: str) -> None:
    """Of each layer: towards the experts padding, back unpadding; casts and products read what was padded."""
    trace = triosim.model("qwen3_moe", sequence_length=128, configuration=MIXTURE, fused=True)
    plain, padded = quantized(trace, recipe), quantized(trace, recipe, padded=True)
    operators = padded.operators
    added = [row for row, name in enumerate(operators.name) if name in (PADDING, UNPADDING)]
    assert [(operators.name[row], Phase(operators.phase[row])) for row in added] == [
        (name, phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD) for _ in range(2) for name in (PADDING, UNPADDING)
    ]  # fmt: skip
    assert Counter(operators.name) - Counter(plain.operators.name) == Counter({PADDING: 4, UNPADDING: 4})
    width, rows = MIXTURE["hidden_size"], 128 * MIXTURE["num_experts_per_tok"]
    shapes, storage = padded.values.shape.lists(), padded.values.storage
    reads: dict[int, set[str]] = {}
    for row, name in enumerate(operators.name):
        for value in operators.inputs[row].tolist() if not operators.view[row] else ():
            reads.setdefault(int(storage[value]), set()).add(canonical(name)[0])
    for row in added:
        read, made = int(operators.inputs[row][0]), int(operators.outputs[row][0])
        assert shapes[read] == shapes[made] == [rows, width]
        assert reads[int(storage[read])] == {canonical(operators.name[row])[0]}
        assert operators.bytes[row] == 2 * 2 * rows * width
        after = {"quantize", "compute_amax"} if operators.name[row] == PADDING else {"moe_permute", "moe_unpermute"}
        assert reads[int(storage[made])] <= after


def test_padding_is_of_experts_with_quantised_products_alone() -> None:
    assert quantized(llama(), "mxfp8", padded=True).operators.name == quantized(llama(), "mxfp8").operators.name


@pytest.mark.parametrize("recipe", ["fp8-delayed", "fp8-current", "mxfp8", "nvfp4"])
def test_attention_in_8_bits_reads_and_writes_8_bits_and_keeps_them_alone(recipe: str) -> None:
    """Three casts before the output and one back; of gradients one cast and three back; nothing of 16 bits is kept."""
    plain, made = (quantized(llama(), recipe, attention=attention) for attention in (False, True))
    attended = [row for row, name in enumerate(made.operators.name) if kind(name) == "attention"]
    assert len(attended) == 2 * LAYERS
    for row in attended:
        types = {DTYPES[made.values.dtype[v]] for v in made.operators.inputs[row].tolist()}
        assert types <= {"float8_e4m3fn", "float32"}
    count = {name: [t.operators.name.count(name) for t in (plain, made)] for name in (QUANTIZE, DEQUANTIZE, MAXIMUM)}
    assert count[QUANTIZE][1] - count[QUANTIZE][0] == 4 * LAYERS
    assert count[DEQUANTIZE] == [0, 4 * LAYERS]
    searched = count[MAXIMUM][1] - count[MAXIMUM][0]
    assert searched == (4 * LAYERS if RECIPES[recipe].searches else 0)
    assert np.nansum(made.operators.flop[attended]) == np.nansum(
        plain.operators.flop[[row for row, name in enumerate(plain.operators.name) if kind(name) == "attention"]]
    )

    def kept(t: Trace) -> float:
        _, first = np.unique(t.values.storage, return_index=True)
        first = first[t.values.category[first] == Category.ACTIVATION]
        sizes = np.array([np.prod(t.values.shape[v]) for v in first.tolist()])
        return float((sizes * ITEM_BYTES[t.values.dtype[first]]).sum())

    tokens, queries, keys = 256, 256, 128  # widths of queries and of keys of all heads
    assert kept(plain) - kept(made) == LAYERS * tokens * (2 * queries + 2 * keys)  # a byte of each, the output too


def test_attention_in_8_bits_is_refused_where_nothing_runs_it() -> None:
    with pytest.raises(PlanError, match="comes with one of fp8-delayed"):
        quantized(llama(), "fp8-row", attention=True)
    with pytest.raises(PlanError, match="comes with one of fp8-delayed"):
        simulate(llama(), system("hgx-b200"), Plan(quantize_attention=True))
    with pytest.raises(PlanError, match=r"no block of .* has attention in one operator"):
        quantized(llama(attention="unfused"), "mxfp8", attention=True)


def test_attention_in_8_bits_is_faster_on_blackwell_and_under_context_parallelism_too() -> None:
    trace = triosim.model("llama-3-8b", sequence_length=8192, batch_size=1, attention="cudnn")
    for more in ({"dp": 1}, {"dp": 2, "cp": 2, "cp_style": "ring"}):
        times = [
            simulate(
                trace, system("hgx-b200"), Plan(quantize="mxfp8", quantize_attention=eight, idle_ok=True, **more)
            ).iteration_time_s
            for eight in (False, True)
        ]  # fmt: skip
        assert 0.85 * times[0] < times[1] < times[0]


@pytest.mark.parametrize(("recipe", "item"), [("fp8-delayed", 1.0), ("nvfp4", 0.5)])
def test_frozen_weights_that_lie_as_they_are_multiplied_are_never_cast(recipe: str, item: float) -> None:
    """``base=quantized``: the matrices of the blocks take what the recipe's type takes, and only the rest is cast."""
    same, whole = (quantized(llama(lora=f"4{base}"), recipe) for base in ("", ",base=quantized"))

    def of_weights(t: Trace) -> int:
        weights = set(t.values.storage[t.values.category == Category.WEIGHT].tolist())
        casts = [row for row, name in enumerate(t.operators.name) if name == QUANTIZE]
        return sum(int(t.values.storage[t.operators.inputs[row][0]]) in weights for row in casts)

    def frozen(t: Trace) -> float:
        values = t.values
        _, first = np.unique(values.storage, return_index=True)
        named = [v for v in first.tolist() if "layers" in values.name[v] and "proj.weight" in values.name[v]]
        return float(sum(np.prod(values.shape[v]) * ITEM_BYTES[values.dtype[v]] for v in named))

    assert of_weights(same) > 0
    assert of_weights(whole) == 0
    assert frozen(whole) == frozen(same) * item / 2
    narrow = [types for *_, types in products(whole) if types == (RECIPES[recipe].dtype,) * 2]
    assert len(narrow) == len([1 for *_, types in products(same) if types == (RECIPES[recipe].dtype,) * 2])


def test_frozen_weights_in_few_bits_need_a_recipe() -> None:
    with pytest.raises(PlanError, match="add quantize"):
        simulate(llama(lora="4,base=quantized"), system("hgx-b200"), Plan())
