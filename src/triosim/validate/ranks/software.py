"""What the framework does with gradients and parameters around collectives, over bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from triosim.validate.ranks.clock import DeviceTimer, ElapsedSeconds

KINDS = ("copy", "accumulate", "scale")
"""Copy into another buffer; add to what is there (a gradient of the next micro-batch); multiply in place."""

SIZES = (256 << 10, 2 << 20, 16 << 20)
PIECE = 256 << 10
"""Gradients come in pieces of about so many bytes."""


class SoftwareBenchmark:
    """Measures every kind at every size, once for each call of :meth:`measure`."""

    def __init__(self, device: torch.device, clock: DeviceTimer) -> None:
        self.clock = clock
        self.source, self.target = (torch.zeros(SIZES[-1] // 4, device=device) for _ in range(2))

    def measure(self) -> Iterator[tuple[str, int, ElapsedSeconds]]:
        """Kind, bytes of the tensors, and what it took."""
        for kind in KINDS:
            for size in SIZES:
                pieces = list(
                    zip(
                        self.target[: size // 4].split(PIECE // 4),
                        self.source[: size // 4].split(PIECE // 4),
                        strict=True,
                    )
                )
                self.clock.start()
                for target, source in pieces:
                    if kind == "copy":
                        target.copy_(source)
                    elif kind == "accumulate":
                        target.add_(source)
                    else:
                        target.mul_(0.5)
                yield kind, size, self.clock.stop()
