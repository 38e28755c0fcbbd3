"""Chains of elementwise operators that become one kernel: what may be in one, what it moves, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim.composition.pointwise import LONGEST, FusedKernels, fused_kernels
from triosim.operators import canonical, kind
from triosim.stacks import load
from triosim.trace.tables import Trace

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
MODELS = {
    "llama, composed": ("llama-3-8b", {**TINY, "num_key_value_heads": 2}, {"norms": "composed"}),
    "llama, fused": ("llama-3-8b", {**TINY, "num_key_value_heads": 2}, {"fused": True}),
    "gpt": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, {}),
    "qwen": ("qwen3-8b", {**TINY, "num_key_value_heads": 2, "head_dim": 16}, {"fused": True}),
    "bert": ("bert-base", {**TINY, "max_position_embeddings": 64}, {}),
}


def _trace(name: str, training: bool = True) -> Trace:
    model, sizes, kernels = MODELS[name]
    return triosim.model(
        model, batch_size=2, sequence_length=32, configuration=sizes, training=training, **kernels
    )  # fmt: skip


def _chains(found: FusedKernels) -> list[list[int]]:
    """Operators of each kernel."""
    return [np.flatnonzero(found.last == last).tolist() for last in found.rows.tolist()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_reads_a_chain_before_it_has_ended(name: str, training: bool) -> None:
    trace = _trace(name, training)
    found = fused_kernels(trace)
    operators, storage = trace.operators, trace.values.storage
    assert found.rows.size
    chains = _chains(found)
    readers: dict[int, list[int]] = {}
    for row in np.flatnonzero(~operators.view).tolist():
        for value in operators.inputs[row]:
            readers.setdefault(int(storage[value]), []).append(row)
    for chain in chains:
        assert 2 <= len(chain) <= LONGEST
        assert len({int(operators.phase[row]) for row in chain}) == 1
        assert sum(kind(operators.name[row]) == "normalization" for row in chain) <= 1
        for row in chain:
            for value in operators.outputs[row]:
                outside = [reader for reader in readers.get(int(storage[value]), ()) if reader not in chain]
                assert all(reader > chain[-1] for reader in outside)


@pytest.mark.parametrize("name", MODELS)
def test_a_kernel_moves_what_its_chain_reads_from_outside_and_others_read_of_it(name: str) -> None:
    trace = _trace(name)
    found = fused_kernels(trace)
    size, storage, operators = trace.values.bytes(), trace.values.storage, trace.operators
    for chain, moved in zip(_chains(found), found.trace.operators.bytes.tolist(), strict=True):
        within = {int(storage[value]) for row in chain for value in operators.outputs[row]}
        read = {value for row in chain for value in operators.inputs[row].tolist() if int(storage[value]) not in within}
        assert moved >= sum(int(size[value]) for value in read)
        assert moved < sum(float(operators.bytes[row]) for row in chain)


def test_a_composed_norm_is_one_kernel_that_reads_its_input_once() -> None:
    """To float32, squares, mean, root, products: the mean of rows is of other elements and ends a chain."""
    trace = _trace("llama, composed", training=False)
    found = fused_kernels(trace)
    names = [[canonical(trace.operators.name[row])[0] for row in chain] for chain in _chains(found)]
    assert ["mul", "_to_copy", "mul"] in names  # by the root, back to 16 bits, by the weight


def test_the_norm_of_queries_and_their_rotation_are_one_kernel() -> None:
    """Halves are turned and put together again on the way, which is of fewer elements."""
    layers = {"num_layers": 1, "num_single_layers": 1}
    trace = triosim.model("flux.1-dev", training=False, configuration=layers, **load("torch-compile").model_options)
    storage, operators = trace.values.storage, trace.operators
    attentions = [row for row, name in enumerate(operators.name) if kind(name) == "attention"]
    queries, keys = (int(storage[value]) for value in operators.inputs[attentions[-1]].tolist()[:2])
    rotated = [
        [canonical(operators.name[row])[0] for row in chain]
        for chain in _chains(fused_kernels(trace))
        if {queries, keys} & {int(storage[value]) for value in operators.outputs[chain[-1]]}
    ]
    assert rotated == 2 * [["rms_norm", "neg", "stack", "_to_copy", "mul", "_to_copy", "mul", "add", "_to_copy"]]


@pytest.mark.parametrize("stack", ["torch-compile", "torchtitan-compile"])
def test_chains_take_less_time_and_fewer_launches(stack: str) -> None:
    compiled = load(stack)
    apart = replace(compiled, fused_pointwise=False)
    trace = triosim.model("gpt2", batch_size=4, **compiled.model_options)
    one, other = (
        triosim.simulate(trace, triosim.system("dgx-h100"), triosim.Plan(dp=8, stack=own)).iteration_time_s
        for own in (compiled, apart)
    )
    assert 0.85 * other < one < other


def test_a_recorded_trace_has_what_ran(tmp_path) -> None:
    """Nothing is fused a second time in what is no model by name."""
    trace = replace(_trace("gpt"), meta=replace(_trace("gpt").meta, made_by="recorder"))
    results = [
        triosim.simulate(
            trace, triosim.system("dgx-h100"), triosim.Plan(dp=8, stack=own), triosim.Fidelity(host="compiled")
        )
        for own in (load("torch-compile"), replace(load("torch-compile"), fused_pointwise=False))
    ]
    assert results[0].iteration_time_s == results[1].iteration_time_s


def test_sums_and_activations_are_part_of_the_batch_norm_before_them_and_of_its_backward() -> None:
    small = {"layers": [1, 1, 1, 1], "bottleneck": True}
    trace = triosim.model("resnet", configuration=small, batch_size=4, precision="float16")
    found = fused_kernels(trace)
    names = [tuple(canonical(trace.operators.name[row])[0] for row in chain) for chain in _chains(found)]
    assert names.count(("native_batch_norm", "relu")) == 1 + 4 * 2  # the first, and two of each block
    assert names.count(("native_batch_norm", "add", "relu")) == 4  # its last, with the shortcut's
    assert names.count(("threshold", "native_batch_norm")) == 1 + 4 * 2
    assert names.count(("add", "threshold", "native_batch_norm")) == 3  # with the branch's gradient, but for the last


def test_what_is_changed_in_place_is_read_and_written_once() -> None:
    small = {"layers": [1, 1, 1, 1], "bottleneck": True}
    trace = triosim.model("resnet", configuration=small, batch_size=4, precision="float16")
    found, size = fused_kernels(trace), trace.values.bytes()
    for chain, moved in zip(_chains(found), found.trace.operators.bytes.tolist(), strict=True):
        if [trace.operators.name[row] for row in chain] == ["aten::native_batch_norm", "aten::relu_"]:
            image = float(size[trace.operators.inputs[chain[0]][0]])
            assert 2 * image <= moved < 2.1 * image  # and channels' statistics


def test_scale_mask_softmax_and_dropout_are_one_kernel() -> None:
    trace = triosim.model(
        "bert-large", configuration={"num_hidden_layers": 1}, batch_size=2, attention="unfused", fused_softmax=False
    )
    names = [[canonical(trace.operators.name[row])[0] for row in chain] for chain in _chains(fused_kernels(trace))]
    kernels = [[name for name in chain if name != "_to_copy"] for chain in names if "_softmax" in chain]
    assert kernels == [["div", "add", "_softmax", "native_dropout"], ["native_dropout", "_softmax", "div"]]


def test_convolutions_norm_what_they_read_and_sum_what_they_write() -> None:
    small = {"layers": [1, 1, 1, 1], "bottleneck": True}
    trace = triosim.model("resnet", configuration=small, batch_size=4, precision="float16")
    found, names = fused_kernels(trace, in_convolutions=True), trace.operators.name
    read = [names[row] for row in found.last[found.inside] if names[row] == "aten::convolution"]
    assert len(read) == 2 * (2 * 4)  # two norms and activations of each block run in the convolution that follows
    kernels = sorted(zip(found.trace.operators.name, (names[row] for row in found.rows), strict=True))
    assert kernels.count(("aten::mul", "aten::relu_")) == 4  # sums with shortcuts, both of whose norms they apply
    assert kernels.count(("aten::native_batch_norm", "aten::relu_")) == 1  # the first, which pooling reads
    backward = [kernel for kernel, last in kernels if last == "aten::native_batch_norm_backward"]
    assert len(backward) == 1 + 4 * 4  # one pass each, of which convolutions made the sums but for
    assert backward.count("aten::native_batch_norm_backward") == 1 + 2  # the first, and those that pooling gave


def test_a_batch_norm_in_convolutions_is_named_by_a_stack() -> None:
    trace = triosim.model("resnet50", precision="float16", batch_size=64)
    machine, own = triosim.system(device="H100-SXM5-80GB"), load("mxnet")
    seconds = []
    for stack in (own, replace(own, batch_norms="apart"), replace(own, fused_pointwise=False)):
        plan = triosim.Plan(stack=stack, batch_size=64, layout="channels_last")
        seconds.append(triosim.simulate(trace, machine, plan).iteration_time_s)
    assert seconds[0] < 0.9 * seconds[1] < 0.9 * seconds[2]
