"""Attention by heads between operators by tokens: all-to-alls instead of gathered keys and values.

Source: Jacobs et al., "DeepSpeed Ulysses" (arXiv:2309.14509), section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.caching import kept
from triosim.core.errors import PlanError
from triosim.partition.attention_share import HEADS, KEYS, QUERIES, AttentionShare, Region, is_sent
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_TO_ALL
from triosim.trace.tables import NONE


@kept(8)
def exchanged(step: Step, size: int, axis: int) -> Step:
    """The step of a rank that within attention has all positions of a part of the heads.

    Queries, keys and values are exchanged before the forward and its result after it, the gradient of the result before
    the backward and those of queries, keys and values after it; of each a rank sends what it has.  The copies that put
    what was received in order are not in the step.

    Args:
        step: divided along the sequence, keys and values gathered before attention.
        size: ranks along the axis.
        axis: row of the mesh's axes.

    Raises:
        PlanError: attention is several operators, or its heads do not divide.
    """
    share = AttentionShare(step, size, axis, "ulysses")
    by_heads: dict[tuple[Region, tuple[int, ...]], int] = {}  # part of a storage, shape by tokens -> value by heads

    def exchange(value: int, names: Sequence[str]) -> tuple[int, bool]:
        """The same value by heads, and whether it was there already."""
        key = share.region(value), share.shapes[value]
        known = key in by_heads
        if not known:
            by_heads[key] = share.copy(value, _by_heads(share.shapes[value], names, size))
        return by_heads[key], known

    for row in share.rows:
        reads, writes = share.names[row]
        before = share.facts.trace.writers()[row]
        for at, (value, names) in enumerate(zip(list(share.inputs[row]), reads, strict=True)):
            if {QUERIES, KEYS} & set(names):
                share.inputs[row][at], known = exchange(value, names)
                if not known and is_sent(names):
                    after = before[at] if before[at] != NONE else share.writer(value, row)
                    share.send(value, ALL_TO_ALL, after, row)
        for at, (value, names) in enumerate(zip(list(share.outputs[row]), writes, strict=True)):
            if HEADS in names and {QUERIES, KEYS} & set(names):
                share.outputs[row][at], _ = exchange(value, names)
                reader = share.reader(value, row) if is_sent(names) else None
                if reader is not None:
                    share.send(value, ALL_TO_ALL, row, reader)
    return share.step()


def _by_heads(own: tuple[int, ...], names: Sequence[str], size: int) -> tuple[int, ...]:
    """All positions of a part of the heads, of a part of the positions of all heads.

    Raises:
        PlanError: the heads do not divide.
    """
    shape = list(own)
    for at, name in enumerate(names):
        if name == HEADS and shape[at] % size:
            heads = shape[at]
            fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise PlanError(
                f"context: the {heads} heads of keys or queries that a rank has do not divide by cp {size} for "
                f"cp-style ulysses: sizes that do are {fits}; gather and ring take any"
            )
        if name == HEADS:
            shape[at] //= size
        elif name == QUERIES or (name == KEYS and QUERIES not in names):
            shape[at] *= size
    return tuple(shape)
