"""Tensor parallelism where one value alone does not feed a pair: encoder-decoders, joint attention, conditions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.partition.divided import divided
from triosim.operators import kind
from triosim.partition.step import Step
from triosim.schedule.program import COLLECTIVES
from triosim.trace.tables import Phase, Trace

BATCH, ITEM = 2, 2


def _exchanged(step: Step) -> Counter:
    phase = step.trace.operators.phase
    columns = (step.transfers.after.tolist(), step.transfers.what.tolist(), step.transfers.bytes.tolist())
    return Counter(
        (Phase(phase[after]).name.lower(), COLLECTIVES[what], size) for after, what, size in zip(*columns, strict=True)
    )


def _whole(trace: Trace, step: Step) -> set[str]:
    """Names of matrices of which every rank has all."""
    before, after = trace.values.elements(), step.trace.values.elements()
    return {
        trace.values.name[w]
        for w in trace.weights().tolist()
        if len(trace.values.shape[w]) > 1 and before[w] == after[w]
    }


def _t5(**configuration: object) -> Trace:
    depths = {"num_layers": 2, "num_decoder_layers": 3}
    return triosim.model("t5-base", batch_size=BATCH, sequence_length=64, configuration={**depths, **configuration})


@pytest.mark.parametrize("size", [2, 4])
def test_an_encoder_decoder_adds_up_twice_in_a_block_of_one_and_thrice_in_a_block_of_the_other(size: int) -> None:
    """f and g of self-attention, of attention to the encoder, and of the feed-forward part.

    The gradient of what the encoder has made is a sum over all blocks of the decoder, added up once.
    """
    trace = _t5()
    step = divided(trace, size)
    activation = BATCH * 64 * 768 * ITEM
    assert _exchanged(step) == {
        ("forward", "all_reduce", activation): 2 * 2 + 3 * 3,
        ("backward", "all_reduce", activation): 2 * 2 + 3 * 3 + 1,
    }
    assert _whole(trace, step) == {"shared.weight"}
    products = np.array([kind(n) in ("linear", "matmul") for n in trace.operators.name])
    products &= np.array(["lm_head" not in trace.modules.path[m] for m in trace.operators.module.tolist()])
    assert np.array_equal(step.trace.operators.flop[products] * size, trace.operators.flop[products])


def test_biases_of_heads_are_cut_with_the_heads_and_only_then() -> None:
    trace = _t5()
    names = {trace.values.name[w]: w for w in trace.weights().tolist()}
    biases = [w for name, w in names.items() if "relative_attention_bias" in name]
    assert [divided(trace, 4).trace.values.shape[w].tolist() for w in biases] == [[32, 3]] * 2
    trace = _t5(num_heads=6)  # which 4 does not divide: attention stays whole, and with it the biases
    names = {trace.values.name[w]: w for w in trace.weights().tolist()}
    shape = divided(trace, 4).trace.values.shape
    assert [shape[w].tolist() for name, w in names.items() if "relative_attention_bias" in name] == [[32, 6]] * 2


@pytest.mark.parametrize("size", [2, 8])
def test_two_streams_that_attend_to_each_other_are_cut_together(size: int) -> None:
    """The plan for FLUX.1 of frameworks: both streams' projections, and what conditions shift, scale and gate."""
    doubles, singles, width, text, image = 2, 3, 3072, 512, 64 * 64
    configuration = {"num_layers": doubles, "num_single_layers": singles}
    trace = triosim.model("flux.1-dev", batch_size=BATCH, configuration=configuration)
    step = divided(trace, size)
    vector = BATCH * width * ITEM
    found = _exchanged(step)
    assert {key: n for key, n in found.items() if key[0] == "forward"} == {
        ("forward", "all_reduce", vector): 1,  # time, guidance and text, added before that
        ("forward", "all_gather", 6 * vector): 2 * doubles,
        ("forward", "all_gather", 3 * vector): singles,
        ("forward", "all_gather", 2 * vector): 1,
        ("forward", "all_reduce", image * vector): 2 * doubles,
        ("forward", "all_reduce", text * vector): 2 * doubles,
        ("forward", "all_reduce", (image + text) * vector): singles,
    }
    head = 128 * ITEM
    assert {key: n for key, n in found.items() if key[0] == "backward"} == {
        ("backward", "all_reduce", vector): 2 * doubles + singles + 1,  # of each layer of conditions
        ("backward", "all_reduce", head): 4 * doubles + 2 * singles,  # weights of norms within heads
        ("backward", "all_reduce", image * vector): 2 * doubles,
        ("backward", "all_reduce", text * vector): 2 * doubles,
        ("backward", "all_reduce", (image + text) * vector): singles,
    }
    assert _whole(trace, step) == {"x_embedder.weight", "context_embedder.weight", "proj_out.weight"}


def test_conditions_are_gathered_whatever_the_batch_and_tokens_are_not() -> None:
    for batch in (1, 3):
        trace = triosim.model("dit-b-2", batch_size=batch, configuration={"depth": 2})
        found = _exchanged(divided(trace, 4))
        gathers = {key: n for key, n in found.items() if key[1] == "all_gather"}
        assert gathers == {
            ("forward", "all_gather", batch * 6 * 768 * ITEM): 2,
            ("forward", "all_gather", batch * 2 * 768 * ITEM): 1,
        }


def test_attention_to_a_text_is_cut_block_by_block() -> None:
    """All blocks read the same states of the text, whose gradient nobody wants."""
    configuration = {"layers_per_block": 1, "transformer_layers_per_block": (1, 1, 2), "attention_head_dim": (4, 4, 4)}
    trace = triosim.model("sdxl", batch_size=BATCH, configuration=configuration)
    step = divided(trace, 4)
    assert not [name for name in _whole(trace, step) if "transformer_blocks" in name or "time_emb" in name]
    inside = np.array(["transformer_blocks" in trace.modules.path[m] for m in trace.operators.module.tolist()])
    inside &= np.array([kind(n) in ("linear", "matmul", "attention") for n in trace.operators.name])
    assert np.array_equal(step.trace.operators.flop[inside] * 4, trace.operators.flop[inside])


def _unet(size: int) -> tuple[Trace, Step]:
    levels = {"transformer_layers_per_block": (1, 1, 1), "attention_head_dim": (5, 10, 20)}
    trace = triosim.model("sdxl", batch_size=BATCH, configuration={"layers_per_block": 1, **levels})
    return trace, divided(trace, size)


def test_a_residual_block_is_cut_by_the_groups_of_its_norm() -> None:
    """As DistriFusion's tensor parallelism has it (arXiv:2402.19481): the time joins the first convolution's output."""
    trace, step = _unet(2)
    residual = [name for name in _whole(trace, step) if "resnets" in name]
    assert residual
    assert all("conv_shortcut" in name for name in residual)
    assert not [key for key in _exchanged(step) if key[1] == "all_gather"]
    inside = {
        name.rpartition(".")[0]: w for w in trace.weights().tolist() if ".norm2" in (name := trace.values.name[w])
    }
    for name, w in inside.items():
        if "resnets" in name:
            assert step.trace.values.shape[w].tolist() == [int(trace.values.shape[w][0]) // 2]
    rows = [row for row, name in enumerate(trace.operators.name) if "group_norm" in name]
    channels = {int(step.trace.values.shape[int(step.trace.operators.inputs[row][0])][1]) for row in rows}
    assert 160 in channels  # of 320, of which the second norm of a block sees half
    statistics = [int(trace.operators.outputs[row][1]) for row in rows if "backward" not in trace.operators.name[row]]
    assert {tuple(step.trace.values.shape[v].tolist()) for v in statistics} == {(BATCH, 32), (BATCH, 16)}


def test_groups_that_do_not_divide_leave_convolutions_whole_and_conditions_are_gathered() -> None:
    trace, step = _unet(5)  # 32 groups
    assert {name for name in _whole(trace, step) if "conv1" in name} == {
        name for w in trace.weights().tolist() if "conv1.weight" in (name := trace.values.name[w])
    }
    gathers = Counter({key[2]: n for key, n in _exchanged(step).items() if key[1] == "all_gather"})
    times = [w for w in trace.weights().tolist() if "time_emb_proj.weight" in trace.values.name[w]]
    assert gathers == Counter(BATCH * int(trace.values.shape[w][0]) * ITEM for w in times)
