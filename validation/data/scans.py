"""Published times of scans: the gated delta rule in fla's Triton kernels, heads of 128, bfloat16.

Sources: QwenLM/FlashQLA, ``benchmark/benchmark_results_H200.txt`` and ``benchmark_results_GB200.txt`` (column FLA, fla
0.5.1; whole chunks of one length only); MoonshotAI/FlashKDA, ``BENCHMARK_H20.md`` (column ``fla_chunk_gdn``).
"""

from __future__ import annotations

from typing import NamedTuple

from triosim.hardware import catalog
from triosim.kernels.physical import kinds
from triosim.kernels.work.scan import scans

HEAD, CHUNK = 128, 64
_FORWARD = {
    ("H200-SXM-141GB", 2, 8): {32768: 0.902, 16384: 0.455, 8192: 0.234, 4096: 0.132, 2048: 0.081},
    ("H200-SXM-141GB", 4, 16): {32768: 1.241, 16384: 0.614, 8192: 0.316, 4096: 0.166, 2048: 0.098},
    ("H200-SXM-141GB", 8, 32): {32768: 1.885, 16384: 0.914, 8192: 0.466, 4096: 0.244, 2048: 0.131},
    ("H200-SXM-141GB", 16, 64): {32768: 3.331, 16384: 1.598, 8192: 0.814, 4096: 0.417, 2048: 0.220},
    ("H200-SXM-141GB", 16, 32): {32768: 1.890, 16384: 0.930, 8192: 0.472, 4096: 0.247, 2048: 0.132},
    ("H200-SXM-141GB", 8, 24): {32768: 1.556, 16384: 0.764, 8192: 0.391, 4096: 0.213, 2048: 0.115},
    ("H200-SXM-141GB", 16, 48): {32768: 2.711, 16384: 1.311, 8192: 0.665, 4096: 0.344, 2048: 0.191},
    ("H200-SXM-141GB", 16, 16): {32768: 1.275, 16384: 0.648, 8192: 0.334, 4096: 0.175, 2048: 0.102},
    ("H200-SXM-141GB", 32, 32): {32768: 1.939, 16384: 0.972, 8192: 0.500, 4096: 0.263, 2048: 0.140},
    ("GB200-NVL72-186GB", 32, 32): {32768: 1.812, 16384: 0.920, 8192: 0.478, 4096: 0.251, 2048: 0.132},
    ("GB200-NVL72-186GB", 16, 16): {32768: 1.289, 16384: 0.663, 8192: 0.342, 4096: 0.178, 2048: 0.102},
    ("H20-SXM-96GB", 96, 96): {8192: 3.1985},
    ("H20-SXM-96GB", 64, 64): {8192: 2.0062},
}
"""Milliseconds of one sequence by its length; device, heads of keys and of values."""
_BACKWARD = {
    ("H200-SXM-141GB", 16, 32): (1.444, 1.453, 1.467, 1.500, 5.697, 5.708, 5.721, 5.781),
    ("H200-SXM-141GB", 8, 16): (0.957, 0.894, 0.830, 0.788, 3.701, 3.323, 3.093, 2.973),
    ("H200-SXM-141GB", 4, 8): (0.722, 0.656, 0.587, 0.455, 2.743, 2.360, 1.739, 1.727),
    ("H200-SXM-141GB", 2, 4): (0.606, 0.538, 0.469, 0.331, 2.311, 1.906, 1.251, 1.057),
    ("GB200-NVL72-186GB", 32, 32): (1.446, 1.396, 1.418, 1.444, 5.714, 5.730, 5.583, 5.602),
    ("GB200-NVL72-186GB", 16, 16): (1.013, 0.942, 0.860, 0.760, 3.934, 3.466, 3.157, 2.982),
    ("GB200-NVL72-186GB", 8, 8): (0.798, 0.727, 0.645, 0.476, 3.068, 2.596, 1.812, 1.769),
    ("GB200-NVL72-186GB", 4, 4): (0.671, 0.605, 0.523, 0.354, 2.640, 2.169, 1.389, 1.143),
}
"""Milliseconds of 8,192 tokens in 1, 2, 4 and 8 sequences, then of 32,768."""


class MeasuredScan(NamedTuple):
    """One row: what ran, and how long; ``predicted`` by the model as it stands."""

    device: str
    sequences: int
    length: int
    groups: int
    heads: int
    backward: bool
    seconds: float

    @property
    def predicted(self) -> float:
        """Seconds."""
        work = scans(
            self.sequences, self.length, self.heads, self.groups, HEAD, HEAD, CHUNK, delta=True, backward=self.backward
        )
        return float(kinds.price(work, catalog.accelerator(self.device)).seconds[0])


def rows() -> list[MeasuredScan]:
    """All rows."""
    found = [
        MeasuredScan(device, 1, length, groups, heads, False, ms / 1e3)
        for (device, groups, heads), by_length in _FORWARD.items()
        for length, ms in by_length.items()
    ]
    for (device, groups, heads), times in _BACKWARD.items():
        for at, ms in enumerate(times):
            tokens, sequences = (8192, 32768)[at // 4], 2 ** (at % 4)
            found.append(MeasuredScan(device, sequences, tokens // sequences, groups, heads, True, ms / 1e3))
    return found
