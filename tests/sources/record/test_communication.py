"""Communication in a recorded rank is set apart from its operators."""

from __future__ import annotations

import pytest

from tests.sources.record.steps import quick, torch, trained
from triosim.trace.tables import Category, Phase

nn = torch.nn
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
RANKS = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 32, bias=False)
        self.down = nn.Linear(32, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=fake_pg.FakeStore())
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def test_tensor_parallel_layers_show_their_all_reduces(mesh) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    step = trained(model, torch.optim.SGD(model.parameters(), 0.1, foreach=True), lambda s, y: s.sum())
    look = quick(step, torch.randn(4, 8), torch.zeros(4))
    sent = look.trace.communications
    assert set(sent.kind) == {"all_reduce"}
    assert len(sent) == 3  # one for each block forward, one for the second block's input backward
    assert set(sent.bytes) == {4 * 8 * 4}
    assert set(sent.group_size) == {RANKS}
    assert all(op.name != "wait_tensor" and "c10d" not in op.name for op in look)
    assert look.weight("0.up.weight").shape == (32 // RANKS, 8)  # what lies on this rank
    assert {v.of for v in look.values if v.category == Category.GRADIENT} == {0, 1, 2, 3}
    products = look.named("mm", Phase.BACKWARD)
    assert len(products) == 7
    assert all(look.ops[op.forward].name == "mm" for op in products)
