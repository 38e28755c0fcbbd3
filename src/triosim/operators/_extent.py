"""Extents that are proportional to named sizes: the batch, the tokens of a sequence, the requests in flight, ..."""

from __future__ import annotations

import functools

Term = tuple[tuple[str, int], ...]
"""A product of powers of named sizes, sorted by name: ``(("batch", 1), ("sequence", 2))``; ``()`` is a constant."""


@functools.lru_cache(maxsize=1024)
def _joined(a: Term, b: Term, sign: int) -> Term:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


class Extent(int):
    """A dimension whose extent is proportional to a product of named sizes; products and exact quotients are too.

    It is a number like any other; a sum is a plain number, for a sum of products is none.
    """

    term: Term

    def __new__(cls, size: int, *symbols: str) -> Extent:
        """An extent of ``size`` that is proportional to the product of ``symbols``."""
        return cls.of(size, tuple(sorted((name, symbols.count(name)) for name in set(symbols))))

    @classmethod
    def of(cls, size: int, term: Term) -> Extent:
        """An extent of ``size`` that is proportional to ``term``."""
        self = int.__new__(cls, size)
        self.term = term
        return self

    def __mul__(self, other: int) -> Extent:
        return Extent.of(int(self) * int(other), _joined(self.term, term_of(other), 1))

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        quotient, rest = divmod(int(self), int(other))
        term = _joined(self.term, term_of(other), -1)
        return quotient if rest or not term else Extent.of(quotient, term)


def term_of(extent: int) -> Term:
    """What an extent is proportional to; ``()`` for a plain number."""
    return extent.term if type(extent) is Extent else ()
