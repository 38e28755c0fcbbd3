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
    the backward and those of queries, keys and values after it; of each a rank sends what it has.  Copies that put
    heads and positions in order are an operator behind each attention (:mod:`triosim.partition.context_copies`).

    Args:
        step: divided along the sequence, keys and values gathered before attention.
        size: ranks along the axis.
        axis: row of the mesh's axes.

    Raises:
        PlanError: attention is several operators, or its heads do not divide.
    """
    share = AttentionShare(step, size, axis, "ulysses")
    heads = HeadExchange(share, size)
    for row in share.rows:
        reads, writes = share.names[row]
        for at, (value, names) in enumerate(zip(list(share.inputs[row]), reads, strict=True)):
            if {QUERIES, KEYS} & set(names):
                share.inputs[row][at], known = heads(value, names)
                if not known and is_sent(names):
                    share.send(value, ALL_TO_ALL, heads.made(row, at, value), row)
        for at, (value, names) in enumerate(zip(list(share.outputs[row]), writes, strict=True)):
            if HEADS in names and {QUERIES, KEYS} & set(names):
                share.outputs[row][at], _ = heads(value, names)
                reader = share.reader(value, row) if is_sent(names) else None
                if reader is not None:
                    share.send(value, ALL_TO_ALL, row, reader)
    return share.step()


class HeadExchange:
    """Values of attentions by heads, one for each part of a storage.

    Args:
        share: the attentions.
        size: ranks that exchange heads for positions.
    """

    def __init__(self, share: AttentionShare, size: int) -> None:
        self.share, self.size = share, size
        self._made: dict[tuple[Region, tuple[int, ...]], int] = {}

    def __call__(self, value: int, names: Sequence[str]) -> tuple[int, bool]:
        """A value that has heads or positions by heads, and whether it was there already.

        Raises:
            PlanError: the heads do not divide.
        """
        key = self.share.region(value), self.share.shapes[value]
        known = key in self._made
        if not known:
            self._made[key] = self.share.copy(value, by_heads(self.share.shapes[value], names, self.size))
        return self._made[key], known

    def made(self, row: int, at: int, value: int) -> int:
        """The operator that made what attention ``row`` reads at a place."""
        before = self.share.facts.trace.writers()[row][at]
        return before if before != NONE else self.share.writer(value, row)


def by_heads(own: tuple[int, ...], names: Sequence[str], size: int) -> tuple[int, ...]:
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
