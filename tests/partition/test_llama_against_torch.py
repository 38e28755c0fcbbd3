"""Llama 3 at full width against PyTorch on fake process groups: what is sent, and what a rank keeps.

``fully_shard``, ``parallelize_module`` and DDP run for real on fake tensors (no peers, no memory); dispatch modes note
collectives.  Ours are the models by name.  Two layers of each are built, which is all that layers differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest import mock

import pytest

import triosim
from tests.asked import asked
from triosim.partition.shards import resident
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.schedule.program import COLLECTIVES, Op
from triosim.trace.tables import Category, Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tests.partition.test_hsdp import _SentToo  # noqa: E402
from tests.partition.test_sequence import _SentWithin  # noqa: E402

LAYERS, LENGTH, VOCABULARY = 2, 512, 128_256
MODELS = {"llama-3-8b": (4096, 14336, 32), "llama-3-70b": (8192, 28672, 64)}
"""Width, inner width and heads; both have 8 heads of keys."""
Sent = list[tuple[str, int]]


@contextmanager
def _mesh(**axes: int) -> Iterator[Any]:
    """A mesh of a fake process group, and fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=prod(axes.values()), store=FakeStore())
    torch.set_default_dtype(torch.bfloat16)
    try:
        mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        joined = DeviceMesh._concatenate

        def with_numbers(meshes: Any) -> Any:  # ranks of a mesh are numbers, not fake ones
            with unset_fake_temporarily():
                return joined(meshes)

        with mock.patch.object(DeviceMesh, "_concatenate", with_numbers), FakeTensorMode(allow_non_fake_inputs=True):
            yield mesh
    finally:
        torch.set_default_dtype(torch.float32)
        dist.destroy_process_group()


def _network(name: str) -> Any:
    from transformers.initialization import no_init_weights

    width, inner, heads = MODELS[name]
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=8,
        vocab_size=VOCABULARY, num_hidden_layers=LAYERS, tie_word_embeddings=False,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    with no_init_weights():
        return transformers.LlamaForCausalLM(config)


def _sharded(name: str, mesh: Any, reshard: bool = True) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = _network(name)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh)


def _backward(model: Any) -> None:
    tokens = torch.zeros((1, LENGTH), dtype=torch.int64)
    F.cross_entropy(model(tokens, use_cache=False).logits.view(-1, VOCABULARY), tokens.view(-1)).backward()


def _prepared(name: str, ranks: int, rules: tuple[str, ...] = (), **plan: Any) -> CompiledJob:
    trace = triosim.model(name, sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    system = triosim.system(device="H100", devices=ranks, link="50GB/s")
    return prepare(trace, system, *asked(parallelism=rules, batch_size=1, host="none", **plan))


def _ours(job: CompiledJob, axes: Callable[[str], bool] = lambda axis: True) -> Sent:
    (program,) = job.programs
    names = job.mesh.names
    rows = zip(program.op, program.what, program.axis, program.bytes.tolist(), strict=True)
    return [(COLLECTIVES[w], n) for op, w, axis, n in rows if op == Op.COLLECTIVE and axes(names[axis])]


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize(("zero", "reshard"), [(3, True), (2, False)])
def test_what_fully_shard_sends(name: str, zero: int, reshard: bool) -> None:
    with _mesh(dp=64) as mesh, _SentToo() as sent:
        _backward(_sharded(name, mesh, reshard))
    assert sent.found == _ours(_prepared(name, 64, zero=zero))
    kinds = [kind for kind, _ in sent.found]
    assert kinds.count("all_gather") == LAYERS * (2 if reshard else 1) + 1
    assert kinds.count("reduce_scatter") == LAYERS + 1


@pytest.mark.parametrize("name", list(MODELS))
def test_what_hybrid_sharding_sends(name: str) -> None:
    with _mesh(dp_replicate=8, dp_shard=8) as mesh, _SentToo() as sent:
        _backward(_sharded(name, mesh))
    ours = _ours(_prepared(name, 64, ("hsdp",), zero=3, parallelism_options={"dp_replicate": 8}))
    assert sent.found == ours
    assert [kind for kind, _ in ours].count("all_reduce") == LAYERS + 1


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("ranks", [8, 48])
def test_a_rank_keeps_what_fully_shard_keeps(name: str, ranks: int) -> None:
    """Bytes of parameters; of 48 ranks rows are padded on some, and the lowest has most."""
    with _mesh(dp=ranks) as mesh:
        model = _sharded(name, mesh)
        kept = sum(p.to_local().numel() * p.element_size() for p in model.parameters())
    job = _prepared(name, ranks, zero=3)
    assert int(resident(job.step.trace, ranks)[1].sum()) == kept


class _LlamaAttention(nn.Module):
    """Grouped heads without rotation, which nothing is sent for."""

    def __init__(self, width: int, heads: int, keys: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.wq, self.wo = nn.Linear(width, heads * size, bias=False), nn.Linear(heads * size, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, keys * size, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.size).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, -1))


class _LlamaFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _LlamaBlock(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention = _LlamaAttention(width, heads, 8, width // heads)
        self.ffn = _LlamaFeedForward(width, inner)
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm_1(x))
        return x + self.ffn(self.norm_2(x))


class _Llama(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        width = MODELS[name][0]
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(_LlamaBlock(*MODELS[name]) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _tensor_parallel(name: str, mesh: Any) -> Any:
    """As torchtitan parallelizes Llama 3: sequences between the layers, vocabulary and loss in parts."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model = _Llama(name)
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    plan = {f"attention.{weight}": column for weight in ("wq", "wk", "wv")} | {"ffn.w1": column, "ffn.w3": column}
    plan |= {"attention.wo": row, "ffn.w2": row, "attention": whole, "ffn": whole}
    plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }  # fmt: skip
    parallelize_module(model, mesh["tp"], ends)
    return fully_shard(model, mesh=mesh["dp"])


@pytest.mark.parametrize("name", list(MODELS))
def test_what_tensor_and_sequence_parallelism_send_with_fully_shard(name: str) -> None:
    """8 x 8 ranks, each axis by itself, forward and backward."""
    from torch.distributed.tensor.parallel import loss_parallel

    with _mesh(dp=8, tp=8) as mesh:
        model = _tensor_parallel(name, mesh)
        tokens = torch.zeros((1, LENGTH), dtype=torch.int64)
        with _SentToo() as sharded, _SentWithin() as sent, loss_parallel():
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            sent.backward = True
            loss.backward()
    job = _prepared(name, 64, ("sequence",), tp=8, zero=3, parallelism_options={"regather": False})
    assert sharded.found == _ours(job, lambda axis: axis == "dp")
    transfers, phase = job.step.transfers, [*job.step.trace.operators.phase.tolist(), Phase.BACKWARD]
    rows = zip(transfers.after, transfers.before, transfers.what, transfers.bytes.tolist(), strict=True)
    ours = [(phase[before], (phase[after] != Phase.FORWARD, COLLECTIVES[w], n)) for after, before, w, n in rows]
    norms = (True, "all_reduce", MODELS[name][0] * 2)  # PyTorch's come in the backward, noted twice; ours after it
    assert [one for one in sent.found if one != norms] == [one for needs, one in ours if needs != Phase.OPTIMIZER]
    assert [one for needs, one in ours if needs == Phase.OPTIMIZER] == [norms] * (2 * LAYERS + 1)
    assert sent.found.count(norms) == 2 * (2 * LAYERS + 1)


WAYS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "fsdp": ({"dp": 64}, {"zero": 3}),
    "hsdp": (
        {"dp_replicate": 8, "dp_shard": 8},
        {"zero": 3, "rules": ("hsdp",), "parallelism_options": {"dp_replicate": 8}},
    ),
    "tp": ({"dp": 8, "tp": 8}, {"zero": 3, "tp": 8, "rules": ("sequence",)}),
}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("way", list(WAYS))
def test_a_rank_keeps_parameters_and_moments_as_pytorch_does(name: str, way: str) -> None:
    """Of AdamW both moments; ours are float32, PyTorch's of the parameters' type, so elements are compared; ours has
    parameters in float32 beside them."""
    axes, plan = WAYS[way]
    with _mesh(**axes) as mesh:
        model = _tensor_parallel(name, mesh) if way == "tp" else _sharded(name, mesh)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        optimizer.step()
        kept = sum(p.to_local().numel() * p.element_size() for p in model.parameters())
        moments = sum(
            state[which].to_local().numel() for state in optimizer.state.values() for which in ("exp_avg", "exp_avg_sq")
        )
    job = _prepared(name, 64, **plan)
    shards = job.step.replication.shards(job.mesh)
    assert int(resident(job.step.trace, shards)[1].sum()) == kept
    values = job.step.trace.values
    states = (values.category == Category.OPTIMIZER_STATE) & (values.version == 0)
    elements = {int(s): int(n) for s, n in zip(values.storage[states], values.elements()[states], strict=True)}
    assert 2 * sum(elements.values()) == 3 * moments


def test_the_buckets_of_ddp_are_those_that_its_hook_is_given() -> None:
    """From the second iteration on DDP fills them as gradients become ready, which is in reverse order of registration
    but for norms: Hugging Face registers both of a layer last, and a bucket ends between them."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4,
             "vocab_size": 8192, "num_hidden_layers": 6}  # fmt: skip
    found: list[list[int]] = []

    def hook(state, bucket):  # DDP refuses annotations of any other kind than its own
        found[-1].append(bucket.buffer().numel() * bucket.buffer().element_size())
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        model = DistributedDataParallel(
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))
        )
        model.register_comm_hook(None, hook)
        tokens = torch.zeros((1, 16), dtype=torch.int64)
        for _ in range(2):
            found.append([])
            F.cross_entropy(model(tokens, use_cache=False).logits.flatten(0, 1), tokens.flatten()).backward()
    finally:
        dist.destroy_process_group()
    trace = triosim.model(
        "llama-3-8b", sequence_length=16, precision="float32", configuration={**sizes, "head_dim": 64}
    )  # fmt: skip
    job = prepare(trace, triosim.system("dgx-a100"), *asked(batch_size=1, host="none"))
    assert len(found[1]) == 4
    ours, norm = [size for _, size in _ours(job)], sizes["hidden_size"] * 4
    assert sum(ours) == sum(found[1])
    assert [abs(one - other) for one, other in zip(ours, found[1], strict=True)] == [0, 2 * norm, 0, 2 * norm]
