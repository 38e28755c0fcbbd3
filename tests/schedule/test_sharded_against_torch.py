"""ZeRO 2 and 3 against PyTorch's FSDP2: same collectives, in the same order, of the same bytes.

``fully_shard`` runs for real on a fake process group (no peers, no traffic); a dispatch mode notes what it sends.  Ours
works from the trace of the undivided step.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import triosim  # noqa: E402
from tests.asked import asked  # noqa: E402
from tests.partition.test_tensor_against_torch import (  # noqa: E402
    BATCH,
    GPT,
    HEADS,
    LAYERS,
    LENGTH,
    VOCABULARY,
    WIDTH,
)
from triosim import Fidelity, Plan  # noqa: E402
from triosim.prediction.prepare import prepare  # noqa: E402
from triosim.schedule.program import COLLECTIVES, Op  # noqa: E402
from triosim.trace.tables import Category, Phase  # noqa: E402

KINDS = {"_allgather_base_": ("all_gather", 0), "_reduce_scatter_base_": ("reduce_scatter", 1)}


class _Sent(TorchDispatchMode):
    """Notes collectives of process groups: kind and bytes of the full buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "c10d" and func._opname in KINDS:
            kind, full = KINDS[func._opname]
            self.found.append((kind, args[full].numel() * args[full].element_size()))
        return out


def _torch_sends(ways: int, reshard: bool, parts: int, recompute: bool = False) -> list[tuple[str, int]]:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ways, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ways,))
        model = GPT(True)
        for number, block in enumerate(model.blocks):
            if recompute:
                model.blocks[number] = checkpoint_wrapper(block)
            fully_shard(model.blocks[number], mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        tokens = torch.randint(0, VOCABULARY, (BATCH // parts, LENGTH))
        with _Sent() as sent:
            for _ in range(parts):
                F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
        return sent.found
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def recorded():
    """The undivided step, recorded without hardware."""
    model = GPT(True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(tokens):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
        optimizer.step()

    return triosim.record(step, torch.randint(0, VOCABULARY, (BATCH, LENGTH)), model=model)


def _program(trace, ways: int, **plan):
    system = triosim.system(devices=ways, link="1GB/s")
    return prepare(trace, system, *asked(dp=ways, host="none", **plan))


def _ours(trace, ways: int, **plan) -> list[tuple[str, int]]:
    (program,) = _program(trace, ways, **plan).programs
    return [
        (COLLECTIVES[what], size)
        for op, what, size in zip(program.op, program.what, program.bytes.tolist(), strict=True)
        if op == Op.COLLECTIVE
    ]


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "accumulated"])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("ways", [2, 3])
def test_what_fully_shard_sends(recorded, ways: int, level: int, parts: int) -> None:
    expected = _torch_sends(ways, level == 3, parts)
    gathers = (1 + LAYERS * (2 if level == 3 else 1)) * parts
    assert [kind for kind, _ in expected].count("all_gather") == gathers
    for overlap in (True, False):
        assert _ours(recorded, ways, zero=level, micro_batches=parts, overlap=overlap) == expected


@pytest.mark.parametrize("level", [2, 3])
def test_a_block_that_is_run_again_is_gathered_once_for_both(recorded, level: int) -> None:
    assert _ours(recorded, 2, zero=level, recompute="full") == _torch_sends(2, level == 3, 1, recompute=True)


@pytest.mark.parametrize("ways", [3, 4])
def test_a_rank_keeps_what_fully_shard_keeps(recorded, ways: int) -> None:
    """Bytes of parameters, gradients and optimizer states of rank 0 after a step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ways, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ways,))
        model = GPT(True)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
        optimizer.step()

        def held(tensors) -> int:
            return sum(t.to_local().numel() * t.element_size() for t in tensors)

        weights, grads = held(model.parameters()), held(p.grad for p in model.parameters())
        states = held(s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    finally:
        dist.destroy_process_group()
    (program,) = _program(recorded, ways, zero=3).programs
    lives = program.lifetimes
    stays = lives.end == len(program)

    def ours(category: Category) -> int:
        return int(lives.bytes[stays & (lives.category == category)].sum())

    assert ours(Category.WEIGHT) == weights
    assert ours(Category.GRADIENT) == grads
    assert states <= ours(Category.OPTIMIZER_STATE) <= states + 4 * len(list(model.parameters()))  # step counters


@pytest.mark.parametrize("level", [2, 3])
def test_the_peak_is_what_fsdp2s_own_tracker_finds(recorded, level: int) -> None:
    """Most that is held in a forward and backward, the optimizer and its states left out."""
    tracker = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ways = 2
    dist.init_process_group("fake", rank=0, world_size=ways, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ways,))
        with FakeTensorMode():
            model = GPT(True)
            for block in model.blocks:
                fully_shard(block, mesh=mesh, reshard_after_forward=level == 3)
            fully_shard(model, mesh=mesh)
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
            watch = tracker.FSDPMemTracker(model)
            watch.track_inputs((tokens,))
            with watch:
                F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
            ((_, peak),) = watch.get_tracker_snapshot("peak").items()
    finally:
        dist.destroy_process_group()
    job = _program(recorded, ways, zero=level)
    (program,) = job.programs
    lives = program.lifetimes
    optimizer = int(np.argmax(job.step.trace.operators.phase[program.operator] == Phase.OPTIMIZER))
    counted = lives.category != Category.OPTIMIZER_STATE
    held = [int(lives.bytes[counted & (lives.start <= row) & (lives.end >= row)].sum()) for row in range(optimizer)]
    assert max(held) == pytest.approx(peak["Total"], rel=0.01)


class _Part(torch.nn.Module):
    """The embedding and the first block of a GPT, or the rest of it."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        gpt = GPT(True)
        self.embed = gpt.embed if stage == 0 else None
        self.blocks = gpt.blocks[:1] if stage == 0 else gpt.blocks[1:]
        self.rest = None if stage == 0 else torch.nn.Sequential(gpt.norm, gpt.head)

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.rest is None else self.rest(x)


def _torch_stage_sends(stage: int, schedule: str, reshard: bool, parts: int) -> list[tuple[str, int]]:
    """What a rank of one of two stages sends to its peers in the other replica; what stages send stays away."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=2 * stage, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        model = _Part(stage)
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh["dp"])
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        one = BATCH // parts
        hidden = torch.zeros(one, LENGTH, WIDTH, requires_grad=True)
        given = torch.zeros(one, LENGTH, dtype=torch.long) if stage == 0 else hidden
        made = hidden if stage == 0 else torch.zeros(one, LENGTH, VOCABULARY)
        grads = {"output_grads": torch.zeros(one, LENGTH, WIDTH)} if stage == 0 else {}
        part = PipelineStage(
            model, stage, 2, torch.device("cpu"), input_args=(given,), output_args=made, group=mesh.get_group("pp"),
            **grads,
        )  # fmt: skip
        run = (Schedule1F1B if schedule == "1f1b" else ScheduleGPipe)(
            part, parts, loss_fn=lambda out, target: F.cross_entropy(out.view(-1, VOCABULARY), target.view(-1))
        )
        with _Sent() as sent:
            run.step(tokens) if stage == 0 else run.step(target=tokens)
        return sent.found
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("stage", [0, 1])
def test_what_fully_shard_sends_in_a_stage_of_a_pipeline(
    recorded, stage: int, level: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake peers of a stage agree (1) that shapes are known."""
    monkeypatch.setattr(dist, "recv", lambda tensor, *args, **kwargs: tensor.fill_(1))
    expected = _torch_stage_sends(stage, schedule, level == 3, BATCH)
    system = triosim.system(devices=4, link="1GB/s")
    plan = Plan(pp=2, stages=("blocks.1",), zero=level, schedule=schedule, micro_batches=BATCH)
    program = prepare(recorded, system, plan, Fidelity(host="none")).programs[stage]
    rows = (program.op == Op.COLLECTIVE).nonzero()[0].tolist()
    assert [(COLLECTIVES[program.what[i]], int(program.bytes[i])) for i in rows] == expected


@pytest.mark.parametrize("level", [2, 3])
def test_what_fully_shard_sends_beside_tensor_parallelism(recorded, level: int) -> None:
    """Each tensor-parallel rank shards its own part of the weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    cut = {"qkv": ColwiseParallel(), "fc1": ColwiseParallel(), "proj": RowwiseParallel(), "fc2": RowwiseParallel()}
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = GPT(True, heads=HEADS // 2)
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], cut)
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=level == 3)
        fully_shard(model, mesh=mesh["dp"])
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        with _Sent() as sent:
            F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
    finally:
        dist.destroy_process_group()
    system = triosim.system(devices=4, link="1GB/s")
    ready = prepare(recorded, system, Plan(dp=2, tp=2, zero=level), Fidelity(host="none"))
    (program,) = ready.programs
    rows = ((program.op == Op.COLLECTIVE) & (program.axis == ready.mesh.row("dp"))).nonzero()[0].tolist()
    assert [(COLLECTIVES[program.what[i]], int(program.bytes[i])) for i in rows] == sent.found
