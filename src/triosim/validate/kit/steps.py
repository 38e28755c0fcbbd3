"""Whole training steps: a trace, and what the step takes without instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from triosim.validate.kit import language, vision
from triosim.validate.kit.item import Item, RecordingSetup
from triosim.validate.kit.sweeps import rounding

STEP_TIMES = 10
IMAGE, TINY_IMAGE = 224, 32
BATCHES = {  # two for each network: what fills a large device, and a quarter of it
    "resnet18": (128, 32), "resnet50": (128, 32), "resnet152": (64, 16), "densenet121": (64, 16),
    "densenet201": (64, 16), "vgg11": (128, 32), "vgg19": (128, 32),
    "gpt2": (8, 2), "bert-base": (16, 4), "t5-small": (16, 4), "llama-3.2-1b": (4, 1),
}  # fmt: skip
LENGTHS = {"gpt2": 1024, "bert-base": 512, "t5-small": 512, "llama-3.2-1b": 2048}


def images(tiny: bool) -> Iterator[Item]:
    """The paper's convolutional networks, Adam, float32 with tensor cores, without, and bfloat16 by autocast."""
    for name in ("resnet18",) if tiny else vision.NETWORKS:
        for batch in (2,) if tiny else BATCHES[name]:
            for dtype in ("tfloat32",) if tiny else ("tfloat32", "bfloat16", "float32"):
                side = TINY_IMAGE if tiny else IMAGE
                what = {"network": name, "batch": batch, "dtype": dtype, "image": side}
                yield Item("training_step", what, partial(_images, name, batch, dtype, side))


def texts(tiny: bool) -> Iterator[Item]:
    """The language models, AdamW, float32 with tensor cores and weights in bfloat16."""
    for name in ("gpt2",) if tiny else language.SIZES:
        for batch in (2,) if tiny else BATCHES[name]:
            for dtype in ("tfloat32",) if tiny else ("bfloat16", "tfloat32"):
                length = 16 if tiny else LENGTHS[name]
                what = {"network": name, "batch": batch, "dtype": dtype, "length": length}
                yield Item("training_step", what, partial(_texts, name, batch, dtype, length, tiny))


def _images(name: str, batch: int, dtype: str, side: int, bench: RecordingSetup) -> Mapping[str, Any]:
    torch.manual_seed(0)
    model = vision.NETWORKS[name]().to(bench.device).train()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    x = torch.randn(batch, 3, side, side, device=bench.device)
    labels = torch.randint(1000, (batch,), device=bench.device)

    def step(x: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(bench.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return {"source": "triosim", **_step(f"{name}-b{batch}-{dtype}", dtype, model, step, (x, labels), bench)}


def _texts(name: str, batch: int, dtype: str, length: int, tiny: bool, bench: RecordingSetup) -> Mapping[str, Any]:
    torch.manual_seed(0)
    model = language.build(name, tiny).to(bench.device).train()
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    vocabulary = language.TINY.vocabulary if tiny else language.SIZES[name].vocabulary
    tokens = torch.randint(vocabulary, (batch, length), device=bench.device)

    def step(tokens: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        language.loss(model, tokens).backward()
        optimizer.step()

    source = "triosim" if tiny else language.source()
    return {"source": source, **_step(f"{name}-b{batch}-{dtype}", dtype, model, step, (tokens,), bench)}


def _step(
    name: str,
    dtype: str,
    model: nn.Module,
    step: Callable[..., None],
    inputs: tuple[Tensor, ...],
    bench: RecordingSetup,
) -> Mapping[str, Any]:
    """Times without instruments first, then the trace."""
    from triosim.sources.record import record
    from triosim.trace.store import save

    with rounding(dtype):
        if bench.timer.cuda:
            torch.cuda.reset_peak_memory_stats()
        call = partial(step, *inputs)
        times = sorted(bench.timer.times(call, STEP_TIMES))
        found: dict[str, Any] = {
            "seconds": times[len(times) // 2],
            "least_s": times[0],
            "host_s": bench.timer.host(call),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        if bench.timer.cuda:
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
            found["reserved_bytes"] = torch.cuda.max_memory_reserved()
        trace = record(step, *inputs, model=model, repeats=3, workload=name)
        bench.traces.mkdir(parents=True, exist_ok=True)
        save(trace, bench.traces / f"{name}.triosim")
    return {**found, "trace": f"{bench.traces.name}/{name}.triosim"}
