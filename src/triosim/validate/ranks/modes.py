"""Ways to run a training step in several processes, each as PyTorch documents it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from triosim.validate.ranks.networks import StageDecoder, batch, loss
from triosim.validate.sizes import MICRO_BATCHES, TP_PLAN, DecoderSize, stage_starts

Step = Callable[[], None]


def _network(size: DecoderSize, device: torch.device, first: int = 0, last: int | None = None) -> StageDecoder:
    torch.manual_seed(0)
    return StageDecoder(size, first, last).to(device)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    """Forward, loss, backward, optimizer."""

    def step(tokens: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(tokens), labels).backward()
        optimizer.step()

    return step


def _plain(model: nn.Module, size: DecoderSize, device: torch.device) -> Step:
    return partial(step_of(model, _optimizer(model)), *batch(size, device))


def alone(size: DecoderSize, device: torch.device) -> Step:
    """One process by itself, on the whole batch."""
    return _plain(_network(size, device), size, device)


def parts(size: DecoderSize, device: torch.device) -> Step:
    """One process by itself, on micro-batches whose gradients are added up, as in a pipeline of one stage."""
    model = _network(size, device)
    optimizer = _optimizer(model)
    pairs = [list(t.chunk(MICRO_BATCHES)) for t in batch(size, device)]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for tokens, labels in zip(*pairs, strict=True):
            loss(model(tokens), labels).backward()
        optimizer.step()

    return step


def ddp(size: DecoderSize, device: torch.device) -> Step:
    """``DistributedDataParallel``; each rank has a whole batch."""
    ids = [device.index] if device.type == "cuda" else None
    return _plain(nn.parallel.DistributedDataParallel(_network(size, device), device_ids=ids), size, device)


def fsdp2(size: DecoderSize, device: torch.device) -> Step:
    """``fully_shard`` of every block and of the whole; each rank has a whole batch."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before PyTorch 2.6
        from torch.distributed._composable.fsdp import fully_shard
    model = _network(size, device)
    mesh = _mesh(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _plain(model, size, device)


def tp(size: DecoderSize, device: torch.device) -> Step:
    """``parallelize_module`` by :data:`triosim.validate.sizes.TP_PLAN`; all ranks work on one batch."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = _network(size, device)
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    parallelize_module(model, _mesh(device), {name: styles[style]() for name, style in TP_PLAN.items()})
    return _plain(model, size, device)


def _pipeline(schedule: str, size: DecoderSize, device: torch.device) -> Step:
    from torch.distributed import pipelining

    rank, stages = dist.get_rank(), dist.get_world_size()
    starts = stage_starts(size.layers, stages)
    model = _network(size, device, starts[rank], starts[rank + 1])
    optimizer = _optimizer(model)
    stage = pipelining.PipelineStage(model, rank, stages, device)
    plan: Any = getattr(pipelining, schedule)(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss)
    tokens, labels = batch(size, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        given = (tokens,) if rank == 0 else ()
        if rank == stages - 1:
            plan.step(*given, target=labels, losses=[])
        else:
            plan.step(*given)
        optimizer.step()

    return step


def _mesh(device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (dist.get_world_size(),))


MODES: dict[str, Callable[[DecoderSize, torch.device], Step]] = {
    "alone": alone,
    "parts": parts,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tp": tp,
    "gpipe": partial(_pipeline, "ScheduleGPipe"),
    "1f1b": partial(_pipeline, "Schedule1F1B"),
}
"""By name: makes the model and its optimizer, and returns a function that does one step."""
