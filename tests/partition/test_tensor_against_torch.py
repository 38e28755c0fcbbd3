"""Tensor parallelism against PyTorch's own: same collectives, in the same order, of the same bytes.

PyTorch's ``parallelize_module`` runs for real on a fake process group (no peers, no traffic); a dispatch mode notes
what it sends.  Ours works from the trace of the undivided step.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import triosim  # noqa: E402
from tests.partition.divided import divided  # noqa: E402
from triosim.schedule.program import COLLECTIVES  # noqa: E402
from triosim.trace.tables import Phase  # noqa: E402

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 64, 8, 2, 128, 2, 16


class Block(nn.Module):
    """A GPT block; ``fused`` has one projection for queries, keys and values."""

    def __init__(self, fused: bool, heads: int) -> None:
        super().__init__()
        self.fused, self.heads = fused, heads
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, s, _ = x.shape
        y = self.ln_1(x)
        q, k, v = self.qkv(y).chunk(3, dim=-1) if self.fused else (self.q(y), self.k(y), self.v(y))
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, fused: bool, heads: int = HEADS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(fused, heads) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


KINDS = {
    "all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
}  # fmt: skip


class _Sent(TorchDispatchMode):
    """Notes functional collectives: kind and bytes of the full buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self.found: list[tuple[bool, str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional":
            kind = KINDS.get(func._opname)
            if kind:
                full = out if kind == "all_gather" else args[0]
                self.found.append((self.backward, kind, full.numel() * full.element_size()))
        return out


def _torch_sends(fused: bool, size: int, plan) -> list[tuple[bool, str, int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (size,))
        model = GPT(fused, heads=HEADS // size)
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        with _Sent() as sent:
            loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1))
            sent.backward = True
            loss.backward()
        return sent.found
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", params=[True, False], ids=["fused", "separate"])
def recorded(request):
    """The undivided step, recorded without hardware."""
    fused = request.param

    def make():
        model = GPT(fused)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step(tokens):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
            optimizer.step()

        return model, step

    model, step = make()
    return fused, triosim.record(step, torch.randint(0, VOCABULARY, (BATCH, LENGTH)), model=model)


def _ours(trace, size: int, **how) -> list[tuple[bool, str, int]]:
    step = divided(trace, size, **how)
    transfers = step.transfers
    phase = step.trace.operators.phase
    return [
        (bool(phase[after] != Phase.FORWARD), COLLECTIVES[what], size_)
        for after, what, size_ in zip(
            transfers.after.tolist(), transfers.what.tolist(), transfers.bytes.tolist(), strict=True
        )
    ]


def _plans(fused: bool):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    columns = ("qkv", "fc1") if fused else ("q", "k", "v", "fc1")
    rows = ("proj", "fc2")
    theirs = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    ours = {f"blocks.*.{name}": "colwise" for name in columns} | {f"blocks.*.{name}": "rowwise" for name in rows}
    return theirs, ours


@pytest.mark.parametrize("size", [2, 4])
def test_a_plan_sends_what_parallelize_module_sends(recorded, size: int) -> None:
    fused, trace = recorded
    theirs, ours = _plans(fused)
    expected = _torch_sends(fused, size, theirs)
    assert len(expected) == LAYERS * (4 if fused else 6)
    assert _ours(trace, size, plan=ours) == expected


@pytest.mark.parametrize("size", [2, 4])
def test_the_default_finds_the_same_pairs_by_itself(recorded, size: int) -> None:
    """The same layers are cut; gradients of queries, keys and values are summed before the all-reduce."""
    _, trace = recorded
    theirs, _ = _plans(True)
    assert _ours(trace, size) == _torch_sends(True, size, theirs)


@pytest.mark.parametrize("size", [2, 4])
def test_gather_moves_full_outputs_forward_and_input_gradients_backward(recorded, size: int) -> None:
    _, trace = recorded
    found = _ours(trace, size, style="gather")
    forward = [(kind, n) for backward, kind, n in found if not backward]
    assert {kind for kind, _ in forward} == {"all_gather"}
    layers = [n for n, path in enumerate(trace.modules.path) if trace.modules.kind[n] in ("Linear", "Embedding")]
    assert len(forward) == len(layers)
    rows = BATCH * LENGTH * 4
    assert sum(n for _, n in forward) == rows * (WIDTH + VOCABULARY + LAYERS * (3 * WIDTH + WIDTH + 4 * WIDTH + WIDTH))
    backward = [(kind, n) for back, kind, n in found if back]
    assert {kind for kind, _ in backward} == {"all_reduce"}
