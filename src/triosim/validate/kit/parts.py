"""What there is to record, in order of worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from triosim.validate.kit import host, steps, sweeps
from triosim.validate.kit.item import Item

PARTS: dict[str, Callable[[bool], Iterator[Item]]] = {
    "ceilings": sweeps.ceilings,
    "images": steps.images,
    "texts": steps.texts,
    "gemm": sweeps.gemm,
    "convolution": sweeps.convolution,
    "attention": sweeps.attention,
    "memory": sweeps.memory,
    "host": host.costs,
}
"""By name; each gives its items for a GPU, or (True) a few at a tiny size."""
