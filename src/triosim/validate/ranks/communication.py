"""What collectives and transfers take between the processes, over sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from triosim.validate.ranks.clock import DeviceTimer, ElapsedSeconds

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send")
"""What is measured; ``send`` is a transfer from the first rank to the second, of which each notes its own side."""

LARGEST = 32 << 20
SIZES = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 12 << 20, LARGEST)
"""Bytes of the full buffer (of a transfer: sent)."""

_TOGETHER = 1 << 20
"""Small ones are repeated until about so many bytes have been moved, at most eight times."""


class CommunicationBenchmark:
    """Measures every kind at every size, once for each call of :meth:`measure`.

    Args:
        device: of the buffers.
        clock: what time is taken with.
    """

    def __init__(self, device: torch.device, clock: DeviceTimer) -> None:
        self.clock = clock
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.whole = torch.zeros(LARGEST // 4 // self.ranks * self.ranks, device=device)
        self.part = torch.zeros(len(self.whole) // self.ranks, device=device)

    def measure(self) -> Iterator[tuple[str, int, ElapsedSeconds]]:
        """Kind, bytes, and what one call took in this process; nothing for ranks that do not take part."""
        for kind in KINDS:
            for size in SIZES:
                call = self._call(kind, size)
                times = max(1, min(8, _TOGETHER // size))
                dist.barrier()
                self.clock.start()
                for _ in range(times):
                    call()
                spent = self.clock.stop()
                if kind != "send" or self.rank < 2:
                    name = "receive" if kind == "send" and self.rank == 1 else kind
                    yield name, size, ElapsedSeconds(spent.wall_s / times, spent.cpu_s / times)

    def _call(self, kind: str, size: int) -> Callable[[], object]:
        whole = self.whole[: max(size // 4 // self.ranks, 1) * self.ranks]
        part = self.part[: len(whole) // self.ranks]
        if kind == "all_reduce":
            return lambda: dist.all_reduce(whole)
        if kind == "all_gather":
            return lambda: dist.all_gather_into_tensor(whole, part)
        if kind == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(part, whole)
        if self.rank > 1:
            return lambda: None
        way, other = (dist.isend, 1) if self.rank == 0 else (dist.irecv, 0)
        return lambda: [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(way, whole, other)])]
