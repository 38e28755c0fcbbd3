"""Communication kernels in a profiler's file: which they are, what they do, how much they move."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from triosim.core.dtypes import DTYPE_BYTES
from triosim.sources.readers._arguments import dtype

_KERNELS = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|cross_device_reduce|multimem_(all|one)|userbuffers_|(all_?reduce|all_?gather|"
    r"reduce_?scatter)_?(fusion_)?kernel",
    re.IGNORECASE,
)
_KINDS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("sendrecv", ""), ("send", "send"),
    ("recv", "receive"), ("receive", "receive"), ("gather", "gather"), ("scatter", "scatter"), ("reduce", "reduce"),
)  # fmt: skip


@functools.lru_cache(maxsize=65536)
def is_communication_kernel(name: str) -> bool:
    """Whether a kernel moves data between devices for a collective (NCCL, RCCL, custom all-reduces)."""
    return bool(_KERNELS.search(name))


def kind_of(text: str) -> str:
    """``"all_reduce"`` from ``"nccl:all_reduce"``, ``"allreduce"`` or a kernel's name; ``""`` where none is named."""
    letters = re.sub(r"[^a-z]", "", text.lower())
    return next((kind for key, kind in _KINDS if key in letters), "")


def full_bytes(args: Mapping[str, Any]) -> float:
    """Bytes of the full buffer from the arguments that PyTorch attaches, NaN without them.

    The counts are elements of this rank: the larger of in and out is the gathered, unscattered buffer.
    """
    counts = [_count(args.get(key)) for key in ("In msg nelems", "Out msg nelems")]
    element = dtype(str(args.get("dtype", "")))
    if element is None or max(counts) < 0:
        return math.nan
    return max(counts) * DTYPE_BYTES[element]


def group_size(args: Mapping[str, Any], groups: Mapping[str, int]) -> int:
    """Ranks that take part, 0 where the file does not say."""
    size = _count(args.get("Group size"))
    return size if size > 0 else groups.get(str(args.get("Process Group Name", "")), 0)


def process_groups(distributed: Any) -> dict[str, int]:
    """Name and size of the process groups in a file's ``distributedInfo``."""
    listed = distributed.get("pg_config") if isinstance(distributed, Mapping) else None
    found = {}
    for group in listed if isinstance(listed, list) else ():
        if isinstance(group, Mapping) and _count(group.get("pg_size")) > 0:
            found[str(group.get("pg_name", ""))] = _count(group["pg_size"])
    return found


def largest(shapes: Iterable[tuple[tuple[int, ...], str]]) -> float:
    """Bytes of the largest of some tensors, NaN without any."""
    return max((math.prod(shape) * DTYPE_BYTES[element] for shape, element in shapes), default=math.nan)


def _count(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1
