"""Where the ranks of a mesh are on a torus: each axis of the mesh on sides of its own, or on a part of them.

Axes choose in turn, the innermost first, as JAX gives physical axes to logical ones (``create_device_mesh`` in
``jax/experimental/mesh_utils.py``): whole sides if some have as many devices, rather more than fewer.  Where none have,
as for eight ranks on 16 x 16 x 24, it takes a part of one or several, by which a member has the most links to others of
its group: 2 x 2 x 2 rather than eight in a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.network.torus_box import BoxSide


def torus_order(axes: Sequence[int], torus: Sequence[int]) -> NDArray[np.int32] | None:
    """The device of each rank, or None where the axes cannot be laid out in whole parts of sides.

    Args:
        axes: sizes of the axes of the mesh, the innermost (neighbouring ranks) first.
        torus: sides of the torus, whose devices are numbered along the last one first.
    """
    left, strides = list(torus), [1] * len(torus)
    place = np.zeros((len(torus), 1), np.int64)  # coordinates of the ranks so far
    for size in axes:
        chosen = _chosen(size, left, strides, torus)
        if chosen is None:
            return None
        at = np.stack(np.unravel_index(np.arange(size), chosen)) * np.array(strides)[:, None]
        place = (at[:, :, None] + place[:, None, :]).reshape(len(torus), -1)
        left = [have // part for have, part in zip(left, chosen, strict=True)]
        strides = [stride * part for stride, part in zip(strides, chosen, strict=True)]
    return np.asarray(np.ravel_multi_index(tuple(place), tuple(torus)), np.int32)


def _chosen(size: int, left: Sequence[int], strides: Sequence[int], torus: Sequence[int]) -> tuple[int, ...] | None:
    """How many of each side an axis takes."""

    def merit(parts: tuple[int, ...]) -> tuple:
        taken = [
            BoxSide(part, stride, part > 2 and part * stride == side)
            for part, stride, side in zip(parts, strides, torus, strict=True)
            if part > 1
        ]
        whole = all(part in (1, side) for part, side in zip(parts, torus, strict=True))
        apart = sum(side.farthest for side in taken)
        return whole, len(taken) if whole else sum(side.links for side in taken), -apart, parts[::-1]

    return max(_parts(size, left), key=merit, default=None)


def _parts(size: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to make a size of parts of what is left of the sides."""
    if not left:
        if size == 1:
            yield ()
        return
    for part in range(1, left[0] + 1):
        if left[0] % part == 0 and size % part == 0:
            for rest in _parts(size // part, left[1:]):
                yield (part, *rest)


def ranks_on_tori(axes: Sequence[int], torus: Sequence[int], devices: int) -> NDArray[np.int32] | None:
    """As :func:`torus_order`, of a machine of one torus or several, which the outermost axis goes across."""
    if not torus or math.prod(axes) <= 1:
        return None
    each = math.prod(torus)
    if math.prod(axes) <= each:
        return torus_order(axes, torus)
    inside: list[int] = []
    for size in axes:
        room = each // math.prod(inside)
        across = size if room == 1 else -(-size // room) if size > room else 1
        if size % across:
            return None
        inside.append(size // across)
    tori = math.prod(axes) // each
    if math.prod(inside) != each or tori * each > devices:
        return None
    order = torus_order(inside, torus)
    return None if order is None else (order + each * np.arange(tori, dtype=np.int32)[:, None]).reshape(-1)
