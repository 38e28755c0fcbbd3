"""What the host costs: launching one kernel, a network eager, compiled and in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from triosim.validate.kit import language, vision
from triosim.validate.kit.item import Item, RecordingSetup
from triosim.validate.kit.timing import graph

MODES = ("eager", "compiled", "graph")


def costs(tiny: bool) -> Iterator[Item]:
    """Launches by themselves, and forward passes of small batches, where the host binds."""
    for n in (10,) if tiny else (100, 1000):
        yield Item("launches", {"n": n}, partial(_launches, n))
    for name in ("gpt2",) if tiny else ("resnet18", "resnet50", "densenet121", "gpt2", "bert-base"):
        for mode in ("eager",) if tiny else MODES:
            yield Item("host_mode", {"network": name, "batch": 1, "mode": mode}, partial(_mode, name, mode, tiny))


def _launches(n: int, bench: RecordingSetup) -> Mapping[str, Any]:
    """Seconds for each of many small kernels: to issue it, and on the device."""
    x = torch.zeros(1, device=bench.device)

    def many() -> None:
        for _ in range(n):
            x.add_(1)

    return {"issue_s": bench.timer.host(many) / n, "seconds": bench.timer.median(many) / n}


def _mode(name: str, mode: str, tiny: bool, bench: RecordingSetup) -> Mapping[str, Any]:
    """Seconds of a forward pass: until the host has issued it, and until it is done."""
    text = name in language.SIZES
    model = (language.build(name, tiny) if text else vision.NETWORKS[name]()).to(bench.device).train(False)
    if text:
        vocabulary = language.TINY.vocabulary if tiny else language.SIZES[name].vocabulary
        x = torch.randint(vocabulary, (1, 16 if tiny else 128), device=bench.device)
    else:
        x = torch.randn(1, 3, 224, 224, device=bench.device)
    with torch.no_grad():
        run = torch.compile(model) if mode == "compiled" else model
        call = graph(lambda: model(x), 1) if mode == "graph" else lambda: run(x)
        seconds = bench.timer.median(call)
        return {"seconds": seconds, "host_s": bench.timer.host(call)}
