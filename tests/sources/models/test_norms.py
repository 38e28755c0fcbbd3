"""RMS norms spelled out or from a float32 copy do the same sums in other kernels, and stacks choose them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import triosim
from triosim.core.errors import InputError
from triosim.sources.models._kernels import NORMS
from triosim.stacks import NORMS as OF_STACKS
from triosim.stacks import load
from triosim.trace.tables import Category, Phase, Trace, check

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 32,
}  # fmt: skip
WAYS = len(("first", "second")) * 2 + 1
"""Norms of two blocks and the last one."""


def _llama(**options: object) -> Trace:
    trace = triosim.model("llama", sequence_length=16, configuration=SMALL, precision="bfloat16", **options)
    check(trace)
    return trace


def _calls(trace: Trace, phase: Phase) -> Counter[str]:
    own = trace.operators.phase == phase
    return Counter(np.asarray(trace.operators.name, object)[own].tolist())


def test_composed_norms_are_elementwise_kernels_in_float32() -> None:
    one, composed = _llama(), _llama(norms="composed")
    assert _calls(one, Phase.FORWARD)["aten::_fused_rms_norm"] == WAYS
    more = _calls(composed, Phase.FORWARD) - _calls(one, Phase.FORWARD)
    assert not any("rms_norm" in name for name in _calls(composed, Phase.FORWARD))
    # a copy up, x^2, mean, + epsilon, 1/sqrt, x * that, a copy down, * weight
    assert more == Counter(
        {"aten::_to_copy": 2 * WAYS, "aten::pow": WAYS, "aten::mean": WAYS, "aten::add": WAYS, "aten::rsqrt": WAYS,
         "aten::mul": 2 * WAYS}
    )  # fmt: skip
    backward = _calls(composed, Phase.BACKWARD) - _calls(one, Phase.BACKWARD)
    assert backward["aten::pow"] == 2 * WAYS  # of the square and of the root
    assert backward["aten::div"] == WAYS


def test_wide_norms_read_a_float32_copy_and_write_16_bits() -> None:
    wide, one = _llama(norms="wide", fused=True), _llama(fused=True)
    more = _calls(wide, Phase.FORWARD) - _calls(one, Phase.FORWARD)
    assert more == Counter({"aten::_to_copy": WAYS})
    assert _calls(wide, Phase.BACKWARD) - _calls(one, Phase.BACKWARD) == Counter({"aten::_to_copy": WAYS})


@pytest.mark.parametrize("norms", NORMS)
def test_tensor_and_sequence_parallel_divide_every_kind(norms: str) -> None:
    plan = triosim.Plan(tp=2, parallelism=("sequence",))
    result = triosim.simulate(_llama(norms=norms), triosim.system(device="A100", devices=2), plan)
    assert result.iteration_time_s > 0


def test_norms_that_do_more_take_longer() -> None:
    system = triosim.system(device="A100", devices=1)
    seconds = {norms: triosim.simulate(_llama(norms=norms), system, triosim.Plan()).iteration_time_s for norms in NORMS}
    assert seconds["one"] < seconds["wide"] < seconds["composed"]


def test_the_loss_may_be_composed_where_the_rest_is_fused() -> None:
    fused, composed = _llama(fused=True), _llama(fused=True, loss="composed")
    assert _calls(fused, Phase.FORWARD)["transformer_engine::cross_entropy"] == 1
    assert _calls(composed, Phase.FORWARD)["aten::_log_softmax"] == 1


def test_a_loss_in_place_has_one_copy_of_the_scores_in_float32() -> None:
    """The softmax and its gradient overwrite it."""
    trace = _llama(fused=True, loss="in-place")
    operators, values = trace.operators, trace.values
    there, back = (row for row, name in enumerate(operators.name) if "cross_entropy" in name)
    inputs, outputs = list(operators.inputs.lists()), list(operators.outputs.lists())
    storages = {int(values.storage[value]) for value in (inputs[there][0], outputs[there][1], outputs[back][0])}
    assert [int(values.storage_bytes()[storage]) for storage in storages] == [4 * 16 * SMALL["vocab_size"]]


def test_swiglu_may_be_composed_where_the_rest_is_fused() -> None:
    fused, composed = (_calls(_llama(fused=True, fused_gate=gate), Phase.FORWARD) for gate in (None, False))
    assert fused["transformer_engine::swiglu"] == 2
    assert composed - fused == Counter({"aten::silu": 2, "aten::mul": 2})
    assert load("internevo").model_options["fused_gate"] is False


@pytest.mark.parametrize(("name", "experts"), [("llama", 0), ("mixtral", 2)])
def test_the_gates_input_may_be_kept_in_8_bits(name: str, experts: int) -> None:
    """Half of what SwiGLU keeps, gate and up, two bytes an element each; a cast of each there and one back."""
    sizes = {**SMALL, **({"num_local_experts": 4, "num_experts_per_tok": experts} if experts else {})}
    kept, casts = [], []
    for stored in ("", "float8_e4m3fn"):
        trace = triosim.model(name, sequence_length=16, configuration=sizes, fused=True, stored_gate=stored)
        check(trace)
        values = trace.values
        own = values.storage[values.category == Category.ACTIVATION]
        kept.append(int(values.storage_bytes()[np.unique(own)].sum()))
        casts.append(sum(_calls(trace, phase)["aten::_to_copy"] for phase in (Phase.FORWARD, Phase.BACKWARD)))
    assert casts[1] - casts[0] == 4 * 2
    assert kept[0] - kept[1] == 2 * 16 * max(experts, 1) * 2 * sizes["intermediate_size"]


def test_a_way_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="composed"):
        _llama(norms="compose")


def test_stacks_know_the_same_ways_and_hand_them_on(tmp_path: Path) -> None:
    assert OF_STACKS == NORMS
    assert load("torchtitan").model_options["norms"] == "composed"
    assert load("internevo").model_options["norms"] == "wide"
    file = tmp_path / "own.toml"
    file.write_text('fused = true\nloss = "composed"\n[sources]\nfused = "x"\nloss = "x"\n', encoding="utf-8")
    assert load(str(file)).model_options["loss"] == "composed"
    assert load("megatron-core").model_options["loss"] == "in-place"
