"""Sequence parallelism against PyTorch's own and against Korthikanti's formulas.

``SequenceParallel`` and its companions run for real on a fake process group (no peers, no traffic); a dispatch mode
notes what they send.  Ours works from the trace of the undivided step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim import Plan, PlanError
from triosim.memory.blocks import StepStorages
from triosim.partition.main_gradients import with_main_gradients
from triosim.partition.partition import partition
from triosim.partition.rules.by_module import ByModule
from triosim.partition.rules.gather import Gather
from triosim.partition.rules.megatron import Megatron
from triosim.partition.rules.sequence import Sequence
from triosim.partition.rules.vocabulary import Vocabulary
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, COLLECTIVES
from triosim.prediction.prepare import prepare
from triosim.schedule.program import Op
from triosim.stacks import load
from triosim.trace.tables import Phase, Trace, check
from triosim.transform.rescale import padded_vocabulary

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from tests.partition.divided import mesh_of  # noqa: E402
from tests.partition.test_tensor_against_torch import _Sent  # noqa: E402

WIDTH, INNER, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 64, 128, 8, 2, 256, 2, 16


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(heads), FeedForward()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.ffn(self.norm_2(x))


class Llama(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(heads) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _SentWithin(_Sent):
    """Notes the all-reduces of ``loss_parallel`` too: they are sent within the dispatch of a DTensor's operator."""

    def __enter__(self):
        import torch.distributed._functional_collectives as functional

        self.functional, self.all_reduce = functional, functional.all_reduce

        def noted(tensor, *args, **options):
            self.found.append((self.backward, "all_reduce", tensor.numel() * tensor.element_size()))
            return self.all_reduce(tensor, *args, **options)

        functional.all_reduce = noted
        return super().__enter__()

    def __exit__(self, *error):
        self.functional.all_reduce = self.all_reduce
        return super().__exit__(*error)


def _torch_sends(size: int, joint: bool = True) -> list[tuple[bool, str, int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (size,))
        model = Llama(HEADS // size)
        whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        column = ColwiseParallel() if joint else ColwiseParallel(input_layouts=Shard(1))
        row = RowwiseParallel(output_layouts=Shard(1))
        plan = {f"attention.{name}": column for name in ("wq", "wk", "wv")} | {"ffn.w1": column, "ffn.w3": column}
        plan |= {"attention.wo": row, "ffn.w2": row} | ({"attention": whole, "ffn": whole} if joint else {})
        plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
        ends = {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, mesh, ends)
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        with _SentWithin() as sent, loss_parallel():
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            sent.backward = True
            loss.backward()
        return sent.found
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """The undivided step, recorded without hardware."""
    model = Llama()

    def step(tokens):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    return triosim.record(step, torch.randint(0, VOCABULARY, (BATCH, LENGTH)), model=model)


def _divided(trace: Trace, size: int, *more) -> Step:
    step = partition(trace, mesh_of(tp=size), [Megatron(), Vocabulary(), *more])
    check(step.trace)
    return step


def _sent(step: Step) -> list[tuple[bool, str, int]]:
    phase = step.trace.operators.phase.tolist()
    columns = (step.transfers.after.tolist(), step.transfers.what.tolist(), step.transfers.bytes.tolist())
    return [
        (phase[after] != Phase.FORWARD, COLLECTIVES[what], size) for after, what, size in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_it_sends_what_torch_sends(recorded: Trace, size: int) -> None:
    expected = _torch_sends(size)
    assert len(expected) == 23
    found = _sent(_divided(recorded, size, Sequence(regather=False)))
    assert found == expected


@pytest.mark.parametrize("size", [2, 4])
def test_layers_that_are_each_given_a_divided_input_scatter_its_gradient_one_by_one(recorded: Trace, size: int) -> None:
    """Torch gathers one by one too, unless it compiles: equal gathers of a graph are one."""
    expected = [sent for sent in _torch_sends(size, joint=False) if sent[1] == "reduce_scatter"]
    found = _sent(_divided(recorded, size, Sequence(regather=False, joint=False)))
    assert [sent for sent in found if sent[1] == "reduce_scatter"] == expected
    assert len(expected) == 1 + 2 * LAYERS + 5 * LAYERS + 1  # embedding, products by row; those by column; the last
    together = _sent(_divided(recorded, size, Sequence(regather=False)))
    assert [sent for sent in found if sent[1] == "all_gather"] == [s for s in together if s[1] == "all_gather"]


@pytest.mark.parametrize("again", [True, False])
def test_what_the_backward_gathers_again_is_kept_for_it(recorded: Trace, again: bool) -> None:
    """What a norm gave of a rank's part of the sequence: of two norms a block, and the last."""
    step = _divided(recorded, 4, Sequence(regather=again))
    phase, rows = step.trace.operators.phase, range(len(step.trace))
    where, first, last = StepStorages(step.trace, step.transfers).touched(rows)
    gathers = step.transfers.take(np.flatnonzero(step.transfers.what == ALL_GATHER))
    normed = np.unique(step.trace.values.storage[gathers.value])
    made = np.isin(where, normed) & (phase[first] == Phase.FORWARD)
    kept = made & (phase[last] == Phase.BACKWARD)
    assert int(made.sum()) == 2 * LAYERS + 1
    assert int(kept.sum()) == (2 * LAYERS + 1 if again else 0)


@pytest.mark.parametrize("size", [2, 4])
def test_layers_that_the_user_names_send_the_same(recorded: Trace, size: int) -> None:
    styles = {f"*.{name}": "colwise" for name in ("wq", "wk", "wv", "w1", "w3")}
    styles |= {"*.wo": "rowwise", "*.w2": "rowwise", "embed": "vocab", "head": "vocab"}
    rules = [ByModule(styles), Sequence(regather=False)]
    step = partition(recorded, mesh_of(tp=size), rules)
    check(step.trace)
    assert _sent(step) == _torch_sends(size)


# --- what rests, and what it saves ------------------------------------------------------------------------------------


def _model(name: str, layers: str, sequence: int = 256, count: int = 2) -> Trace:
    trace = triosim.model(name, batch_size=2, sequence_length=sequence, configuration={layers: count})
    return padded_vocabulary(trace, 8)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "norms", "biases"),
    [
        ("llama-3-8b", "num_hidden_layers", 4096, 1, 0),
        ("gpt2", "n_layer", 768, 2, 1),
        ("bert-base", "num_hidden_layers", 768, 2, 1),
    ],
)
def test_megatron_sends_twice_a_layer_each_way_and_gathers_again(name, layers, hidden, norms, biases) -> None:
    """The gradients of norms (weight, bias) and of biases by row are sums over the sequence: all-reduced once."""
    count, size = 2, 4
    step = _divided(_model(name, layers), size, Sequence())
    activation = 2 * 256 * hidden * 2
    blocks = {key: n for key, n in Counter(_sent(step)).items() if key[2] in (activation, hidden * 2)}
    ends = 1  # the embedding and the output layer
    if name == "bert-base":  # its embeddings are whole only until their norm, and its head begins with a whole layer
        assert blocks[False, "all_gather", activation] in (2 * count, 2 * count + 1)
    else:
        assert blocks[False, "all_gather", activation] == 2 * count + ends
        assert blocks[False, "reduce_scatter", activation] == 2 * count + ends
        assert blocks[True, "reduce_scatter", activation] == 2 * count + ends
        assert blocks[True, "all_gather", activation] == 2 * (2 * count + ends)  # gradients, and inputs again
        assert blocks[True, "all_reduce", hidden * 2] == norms * (2 * count + 1) + 2 * biases * count


@pytest.mark.parametrize(("name", "layers"), [("llama-3-8b", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_what_is_gathered_again_travels_beside_the_gradient_of_the_input(name: str, layers: str) -> None:
    """Also where the product that waits for it reads a transpose of it (``Conv1D``), which is made later."""
    trace = with_main_gradients(_model(name, layers), load("megatron-core"), 4)
    step = _divided(trace, 2, Sequence())
    operators, transfers, storage = step.trace.operators, step.transfers, step.trace.values.storage
    made = {s: row for row in range(len(operators)) for s in storage[operators.outputs[row]] if not operators.view[row]}
    columns = (transfers.after, transfers.before, transfers.what, transfers.value)
    beside = [
        [operators.name[row] for row in range(after + 1, before)].count("aten::mm")
        for after, before, what, value in zip(*(column.tolist() for column in columns), strict=True)
        if what == ALL_GATHER and operators.phase[before] == Phase.BACKWARD
        and operators.phase[made[storage[value]]] == Phase.FORWARD
    ]  # fmt: skip
    tied = name == "gpt2"  # the gradient of its table is a sum of two, which no product makes by itself
    assert beside == [0 if tied else 1] + [1] * (2 * 2)


def _kept(step: Step) -> float:
    """Bytes of the second block's activations that its backward reads, in units of s b h."""
    trace = step.trace
    operators, storage = trace.operators, trace.values.storage
    paths = (*trace.modules.path, "")
    inside = np.array([f"{paths[module]}.".startswith("transformer.h.1.") for module in operators.module.tolist()])
    forward = np.flatnonzero(inside & (operators.phase == Phase.FORWARD))
    copies = step.homes.values.storage.max()
    made = {s for row in forward for s in storage[operators.outputs[row]]}
    gathered = {s for row in forward for s in storage[operators.inputs[row]] if s > copies}
    read = {s for row in np.flatnonzero(operators.phase == Phase.BACKWARD) for s in storage[operators.inputs[row]]}
    size = trace.values.storage_bytes()
    return sum(int(size[s]) for s in (made | gathered) & read) / (2 * 256 * 1280)


def test_activations_are_those_of_korthikanti() -> None:
    """34 s b h bytes whole, 10 + 24 / t under tensor parallelism, 34 / t with the sequence (table 2, no scores).

    Mean and deviation of the norms are kept too, four numbers for each token.
    """
    trace, more = _model("gpt2-large", "n_layer", count=3), 1.01
    t = 4
    assert 34 <= _kept(Step.whole(trace)) <= 34 * more
    assert 10 + 24 / t <= _kept(_divided(trace, t)) <= (10 + 24 / t) * more
    assert 34 / t <= _kept(_divided(trace, t, Sequence())) <= 34 / t * more
    kept = 34 / t + 2 * 2 * (1 - 1 / t)  # the gathered inputs of both pairs instead of their parts
    assert kept <= _kept(_divided(trace, t, Sequence(regather=False))) <= kept * more


def test_what_crosses_between_stages_is_the_part_that_rests() -> None:
    trace = triosim.model("llama-2-7b", batch_size=1, sequence_length=128, configuration={"num_hidden_layers": 4})
    system, plan = triosim.system("dgx-a100"), {"tp": 4, "pp": 2, "dp": 1, "micro_batches": 2}
    sent = [
        {row.bytes for row in triosim.simulate(trace, system, *asked(**plan, **more)).collectives if row.kind == "send"}
        for more in ({}, {"parallelism": ("sequence",)})
    ]
    assert sent == [{128 * 4096 * 2}, {128 * 4096 * 2 // 4}]


def test_a_gather_of_what_another_stage_made_is_on_the_stage_that_reads_it() -> None:
    """The cut falls between a norm and the layer that gathers its output."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=128, configuration={"n_layer": 2})
    plan = Plan(tp=4, pp=2, dp=1, stages=("transformer.h.1.mlp",), parallelism=("sequence",))
    ready = prepare(trace, triosim.system("dgx-a100"), plan)
    gathers = [
        [size for op, what, size in zip(p.op.tolist(), p.what.tolist(), p.bytes.tolist(), strict=True)
         if op == Op.COLLECTIVE and COLLECTIVES[what] == "all_gather"]
        for p in ready.programs
    ]  # fmt: skip
    step = ready.step
    expected = Counter(np.array(COLLECTIVES)[step.transfers.what].tolist())["all_gather"]
    assert sum(map(len, gathers)) == expected
    assert len(gathers[1]) == 5  # inputs of the feed-forward block and the output layer, both again, and a gradient


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_it_runs_under_every_kind_of_schedule(schedule: str) -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=128, configuration={"n_layer": 4})
    plan = Plan(tp=2, pp=2, dp=2, micro_batches=4, schedule=schedule, parallelism=("sequence",))
    result = triosim.simulate(trace, triosim.system("dgx-a100"), plan)
    assert result.iteration_time_s > 0


@pytest.mark.parametrize(
    ("size", "rules", "words"),
    [
        (3, [Megatron(), Sequence()], "sequence length 256 does not divide by tp 3: nearest that do are 255 or 258"),
        (4, [Gather(), Sequence()], "use tp-style megatron"),
    ],
)
def test_what_cannot_rest_is_refused(size: int, rules: list, words: str) -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256, configuration={"n_layer": 1})
    with pytest.raises(PlanError, match=words):
        partition(trace, mesh_of(tp=size), rules)


def test_a_trace_without_a_sequence_is_refused() -> None:
    trace = triosim.model("resnet18", batch_size=2)
    with pytest.raises(PlanError, match="reads no sequences of tokens: leave it out"):
        partition(trace, mesh_of(tp=2), [Megatron(), Sequence()])
    recorded = replace(trace, meta=replace(trace.meta, made_by="recorder"))
    with pytest.raises(PlanError, match="is the sequence is not known"):
        partition(recorded, mesh_of(tp=2), [Megatron(), Sequence()])


def test_without_ranks_to_rest_on_it_is_said() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 1})
    found = triosim.simulate(trace, triosim.system("dgx-a100"), Plan(parallelism=("sequence",))).warnings
    assert "sequence: tp is 1, so there is nothing to divide" in found
