"""One thing to record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from triosim.core.dataclass import dataclass
from triosim.validate.kit.timing import Timer


@dataclass(frozen=True)
class RecordingSetup:
    """What an item is recorded with.

    Attributes:
        device, timer: where, and what takes the time.
        tiny: whether sizes are such that a CPU tries them out in seconds.
        traces: folder for traces.
    """

    device: torch.device
    timer: Timer
    tiny: bool
    traces: Path


@dataclass(frozen=True)
class Item:
    """One thing to record: a row of the part's file.

    Attributes:
        kind: of it.
        what: sizes and the like, which with the kind tell it from all others.
        measure: does it; returns what was found, times in seconds.
    """

    kind: str
    what: Mapping[str, Any]
    measure: Callable[[RecordingSetup], Mapping[str, Any]]

    @property
    def key(self) -> str:
        """Kind and sizes as text."""
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.what.items())])


def kernel(
    kind: str, make: Callable[[RecordingSetup], Callable[[], object]], what: Mapping[str, Any], cold: bool = True
) -> Item:
    """An item that times one call.

    Args:
        kind: of kernel.
        make: makes the tensors and returns the call.
        what: sizes.
        cold: whether caches are emptied before each call; beside it there is the warm time inside a graph.
    """

    def measure(bench: RecordingSetup) -> Mapping[str, Any]:
        call = make(bench)
        times = sorted(bench.timer.times(call, cold=cold))
        found: dict[str, Any] = {"seconds": times[len(times) // 2], "least_s": times[0], "cold": cold}
        try:
            inside = bench.timer.in_graph(call)
        except RuntimeError as error:  # what allocates or asks the device cannot be captured
            bench.timer.sync()
            found["graph_error"] = str(error).splitlines()[0][:100]
        else:
            if inside is not None:
                found["graph_s"] = inside
        return found

    return Item(kind, what, measure)
