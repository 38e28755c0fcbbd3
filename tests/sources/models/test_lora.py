"""Adapters of low rank: which operators run, what is kept, what is sent."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.command import run
from triosim.core.errors import InputError
from triosim.trace.tables import Category, Phase, Trace, check

WIDTH, INNER, LAYERS, VOCABULARY, LENGTH = 64, 96, 2, 120, 16
LLAMA = {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": VOCABULARY,
}  # fmt: skip
LINEAR = {"q_proj": (64, 64), "k_proj": (64, 64), "v_proj": (64, 64), "o_proj": (64, 64),
          "gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}  # fmt: skip
"""Outputs and inputs of the layers of a block."""


def llama(lora: str = "", **options) -> Trace:
    return triosim.model("llama", configuration=LLAMA, sequence_length=LENGTH, lora=lora, **options)


def held(trace: Trace, category: Category) -> int:
    values = trace.values
    first = np.unique(values.storage, return_index=True)[1]
    return int(values.storage_bytes()[values.storage[first[values.category[first] == category]]].sum())


def flop(trace: Trace, phase: Phase) -> float:
    return float(np.nansum(trace.operators.flop[trace.operators.phase == phase]))


def test_only_adapters_are_trained() -> None:
    """Bytes by hand, 16 bits: 2 of a gradient, 12 of a float32 copy and two moments for every weight of an adapter."""
    trace = llama("8")
    check(trace)
    adapters = LAYERS * sum(8 * (out + into) for out, into in LINEAR.values())
    assert held(trace, Category.GRADIENT) == 2 * adapters
    assert held(trace, Category.OPTIMIZER_STATE) == 12 * adapters
    assert held(trace, Category.WEIGHT) == held(llama(), Category.WEIGHT) + 2 * adapters
    names = [trace.values.name[v] for v in trace.weights().tolist()]
    assert "model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert not any("lora" in name and "lm_head" in name for name in names)


def test_the_parameters_of_a_known_model() -> None:
    """Llama-3-8B with rank 16 on all linear layers: 41,943,040 trainable parameters, as peft counts."""
    trace = triosim.model("llama-3-8b", sequence_length=16, lora="16")
    assert held(trace, Category.GRADIENT) == 2 * 41_943_040


def test_a_frozen_weight_has_no_gradient_and_the_first_block_no_input_gradient() -> None:
    """A product of the base runs twice (not three times), in the first block's q, k and v once."""
    plain, small = llama(), llama("8")
    products = 2 * LENGTH * LAYERS * sum(out * into for out, into in LINEAR.values())
    first = 2 * LENGTH * 3 * WIDTH * WIDTH
    adapters = 2 * LENGTH * LAYERS * 8 * sum(out + into for out, into in LINEAR.values())
    into_first = 2 * LENGTH * 3 * 8 * WIDTH  # of the first adapters, too
    assert flop(small, Phase.FORWARD) == flop(plain, Phase.FORWARD) + adapters
    head = 2 * LENGTH * WIDTH * VOCABULARY
    less = products + first + head  # gradients of weights; of the inputs of q, k and v; of the head's weight
    assert flop(small, Phase.BACKWARD) == flop(plain, Phase.BACKWARD) - less + 2 * adapters - into_first


def test_what_a_backward_makes_is_read_or_a_gradient() -> None:
    for lora in ("4", "4,targets=attention", "4,targets=down_proj,base=nf4"):
        trace = llama(lora)
        reads = set(trace.values.storage[trace.operators.inputs.values].tolist())
        for row in np.flatnonzero(trace.operators.phase == Phase.BACKWARD).tolist():
            made = [int(trace.values.storage[v]) for v in trace.operators.outputs.lists()[row]]
            assert any(where in reads for where in made), trace.operators.name[row]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("all", set(LINEAR)),
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("q_proj+up_proj", {"q_proj", "up_proj"}),
    ],
)
def test_targets(targets: str, expected: set[str]) -> None:
    trace = llama(f"4,targets={targets}")
    names = [trace.values.name[v] for v in trace.weights().tolist()]
    assert {name.split(".")[-3] for name in names if "lora_A" in name} == expected


def test_weights_in_four_bits_are_brought_back_in_forward_and_backward() -> None:
    trace = llama("4,base=nf4")
    check(trace)
    small = sum(out * into for out, into in LINEAR.values())
    assert held(llama("4"), Category.WEIGHT) - held(trace, Category.WEIGHT) == LAYERS * small * (2 - 0.5)
    scales = LAYERS * sum(out * -(-into // 64) for out, into in LINEAR.values())
    assert held(trace, Category.BUFFER) - held(llama("4"), Category.BUFFER) == scales
    o = trace.operators
    rows = [row for row, name in enumerate(o.name) if name.endswith("dequantize_4bit")]
    count = Counter(Phase(int(o.phase[row])) for row in rows)
    first = 3  # whose inputs need no gradient
    assert count == {Phase.FORWARD: 7 * LAYERS, Phase.BACKWARD: 7 * LAYERS - first}


@pytest.mark.parametrize("lora", ["8", "8,base=nf4"])
def test_tensor_parallel_ranks_share_frozen_weights_and_adapters(lora: str) -> None:
    """The base's sums stay; with each block come two of adapters after layers by row, five before those by column."""
    system, plan = triosim.system("dgx-h100"), triosim.Plan(tp=4, dp=1, idle_ok=True)
    sums = {}
    for text in ("", lora):
        result = triosim.simulate(llama(text), system, plan, triosim.Fidelity(host="none"), fit=False)
        sums[text] = Counter({c.bytes: c.count for c in result.collectives if c.kind == "all_reduce"})
        assert all("lora_A" in one for one in result.warnings if "whole" in one)
    base, adapters = LENGTH * WIDTH * 2, LENGTH * 8 * 2
    assert sums[lora][base] == sums[""][base] - 1  # the first block's input needs no gradient
    assert sums[lora][adapters] == LAYERS * (2 + 5)


def test_data_parallel_replicas_reduce_adapters_only() -> None:
    trace = llama("8")
    result = triosim.simulate(trace, triosim.system("dgx-h100"), triosim.Plan(dp=8), fit=False)
    sent = sum(c.count * c.bytes for c in result.collectives)
    assert sent == held(trace, Category.GRADIENT)


@settings(max_examples=15)
@given(st.integers(1, 32), st.sets(st.sampled_from(sorted(LINEAR)), min_size=1))
def test_trained_bytes_follow_rank_and_targets(rank: int, targets: set[str]) -> None:
    trace = llama(f"{rank},targets={'+'.join(sorted(targets))}")
    assert held(trace, Category.GRADIENT) == 2 * LAYERS * rank * sum(sum(LINEAR[name]) for name in targets)


@pytest.mark.parametrize("base", ["same", "nf4"])
def test_magnitudes_are_trained_too(base: str) -> None:
    """One for each output; the product of both adapters is as large as the weight, and made in every forward."""
    plain, trace = llama(f"8,base={base}"), llama(f"8,base={base},dora=on")
    check(trace)
    outputs = LAYERS * sum(out for out, _ in LINEAR.values())
    assert held(trace, Category.GRADIENT) == held(plain, Category.GRADIENT) + 2 * outputs
    products = 2 * LAYERS * sum(into * into * 8 + into * out * 8 for out, into in LINEAR.values())
    assert flop_of(trace, _products(trace)) - flop_of(plain, _products(plain)) == products
    check(triosim.model("gpt2", sequence_length=16, lora="4,dora=on"))  # weights that are stored transposed, and biases


def _products(trace: Trace) -> list[int]:
    return [row for row, name in enumerate(trace.operators.name) if name in ("aten::mm", "aten::addmm")]


def flop_of(trace: Trace, rows: list[int]) -> float:
    return float(trace.operators.flop[rows].sum())


@pytest.mark.parametrize(
    "plan", [{"tp": 4, "dp": 2}, {"dp": 8, "zero": 3}, {"pp": 2, "dp": 4, "micro_batches": 2}], ids=str
)
def test_magnitudes_go_with_every_way_to_divide(plan: dict[str, int]) -> None:
    system = triosim.system("dgx-h100")
    small, large = (
        triosim.simulate(llama(text), system, triosim.Plan(**plan), fit=False) for text in ("8", "8,dora=on")
    )
    assert small.iteration_time_s < large.iteration_time_s
    assert small.memory.allocated_bytes < large.memory.allocated_bytes


def test_bad_adapters_are_refused() -> None:
    with pytest.raises(InputError, match="no linear layer 'qproj' in its blocks: say all, attention, or of its"):
        llama("8,targets=qproj")
    with pytest.raises(InputError, match="rank must be a whole number from 1 up"):
        llama("0")
    with pytest.raises(InputError, match="base must be same, nf4 or quantized"):
        llama("8,base=int8")


def test_the_command() -> None:
    said = run("train", "gpt2", "--seq-len", "64", "--device", "A100", "--lora", "8", "--quiet").stdout
    assert "LoRA 8" in said
    error = run("train", "examples/gpt-small-cpu.triosim", "--device", "A100", "--lora", "8", code=2).stderr
    assert "record the step with its adapters" in error


# --- against PyTorch --------------------------------------------------------------------------------------------------


def test_same_operators_as_a_model_with_magnitudes_in_pytorch() -> None:
    """DoRA as ``peft`` runs it without dropout: order, shapes, what has a gradient."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.sources.models import test_against_transformers as against
    from tests.sources.models.test_against_torch import our_rows

    class WithMagnitude(torch.nn.Module):
        def __init__(self, base: torch.nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.lora_A = torch.nn.Linear(base.in_features, 4, bias=False)
            self.lora_B = torch.nn.Linear(4, base.out_features, bias=False)
            self.magnitude = torch.nn.Parameter(torch.ones(base.out_features))

        def forward(self, x):
            plain, thin = self.base(x), self.lora_B(self.lora_A(x))
            eye = torch.eye(self.base.in_features, dtype=x.dtype)
            change = self.lora_B(self.lora_A(eye)).T.detach()
            norm = torch.linalg.norm(self.base.weight + 0.5 * change, dim=1).detach()
            scale = (self.magnitude / norm).view(1, -1)
            return plain + ((scale - 1) * plain + scale * thin * 0.5)

    def with_adapters(net) -> None:
        net.requires_grad_(False)
        for layer in net.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, module in list(part.named_children()):
                    if isinstance(module, torch.nn.Linear):
                        setattr(part, name, WithMagnitude(module))

    _, forward, backward = against.theirs("llama", LLAMA, with_adapters)
    trace = triosim.model(
        "llama", configuration=LLAMA, batch_size=against.BATCH, sequence_length=against.LENGTH, lora="4,dora=on"
    )
    for phase, rows in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        assert against.of_model(our_rows(trace, phase)) == against.of_model(rows)


def test_same_operators_as_a_model_with_adapters_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.sources.models import test_against_transformers as against
    from tests.sources.models.test_against_torch import our_rows

    class Adapted(torch.nn.Module):
        """What peft's ``LoraLayer`` does without dropout."""

        def __init__(self, base: torch.nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.lora_A = torch.nn.Linear(base.in_features, 4, bias=False)
            self.lora_B = torch.nn.Linear(4, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.lora_B(self.lora_A(x)) * 0.5

    def with_adapters(net) -> None:
        net.requires_grad_(False)
        for layer in net.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, module in list(part.named_children()):
                    if isinstance(module, torch.nn.Linear):
                        setattr(part, name, Adapted(module))

    _, forward, backward = against.theirs("llama", LLAMA, with_adapters)
    trace = triosim.model(
        "llama", configuration=LLAMA, batch_size=against.BATCH, sequence_length=against.LENGTH, lora="4"
    )
    for phase, rows in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        assert against.of_model(our_rows(trace, phase)) == against.of_model(rows)
