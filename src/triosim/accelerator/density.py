"""Where zeros lie: how many words of a tile are not zero, and with which chance it is empty.

``fixed-structured``: every tile holds the same share, the whole number below it or above, with the chances that make
its mean.  ``hypergeometric``: the words that are not zero, a whole number of the whole tensor, lie anywhere.
"""

from __future__ import annotations

import math

from triosim.accelerator.problem import Operand

_LEAST = 1e-12
"""Chance of a number of words below which it is left out of a sum."""

_ROUNDED = 9
"""Digits behind the point to which products of counts and shares are rounded before they become whole numbers."""


def ceil(value: float) -> float:
    """The whole number above, of a product of counts and shares."""
    return float(math.ceil(round(value, _ROUNDED)))


def floor(value: float) -> float:
    """The whole number below."""
    return float(math.floor(round(value, _ROUNDED)))


def expected_words(tensor: Operand, tile: float) -> float:
    """Words that are not zero in a tile, the whole number above."""
    return ceil(tensor.density * tile)


def worst_words(tensor: Operand, tile: float, whole: float) -> float:
    """Words that are not zero in the fullest tile; ``whole``: elements of the tensor."""
    if tensor.distribution == "fixed-structured":
        return expected_words(tensor, tile)
    return min(tile, expected_words(tensor, whole))


def share(tensor: Operand, whole: float) -> float:
    """Share of words that are not zero: the density, or for words that lie anywhere, whole ones of the tensor."""
    if tensor.distribution == "fixed-structured":
        return tensor.density
    return expected_words(tensor, whole) / whole


def _log_choose(n: float, k: float) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def occupancies(tensor: Operand, tile: float, whole: float) -> list[tuple[float, float]]:
    """(words that are not zero in a tile, chance), for all that are not next to impossible."""
    if tensor.distribution == "fixed-structured":
        mean = round(tensor.density * tile, _ROUNDED)
        above = mean - math.floor(mean)
        return [(n, p) for n, p in ((math.floor(mean), 1 - above), (math.ceil(mean), above)) if p > 0]
    filled = expected_words(tensor, whole)
    least, most = max(0, int(tile + filled - whole)), int(min(tile, filled))
    every = _log_choose(whole, tile)

    def chance_of(n: int) -> float:
        return math.exp(_log_choose(filled, n) + _log_choose(whole - filled, tile - n) - every)

    middle = min(max(int(tile * filled / whole), least), most)
    found: list[tuple[float, float]] = []
    for way in (range(middle, least - 1, -1), range(middle + 1, most + 1)):
        for n in way:
            p = chance_of(n)
            if p < _LEAST:
                break
            found.append((float(n), p))
    return sorted(found)


def chance(tensor: Operand, tile: float, whole: float) -> float:
    """Chance that a tile of a tensor holds anything but zeros; ``whole``: elements of the tensor."""
    if tile <= 1:
        return share(tensor, whole)
    if tensor.distribution == "fixed-structured":
        return min(1.0, tensor.density * tile)
    return chance_among(tile, whole, expected_words(tensor, whole))


def chance_among(tile: float, whole: float, filled: float) -> float:
    """Chance that a tile of ``whole`` words, of which ``filled`` are not zero, holds one of these."""
    if whole - filled < tile:
        return 1.0
    # all of the tile among the zeros: a product of falling shares
    return 1.0 - math.exp(_log_choose(whole - filled, tile) - _log_choose(whole, tile))


def access_ratio(tensor: Operand, tile: float, whole: float, words_per_access: int) -> float:
    """Accesses of a compressed tile, each of several words of which the last may be partly empty, over those of as many
    words in one piece.

    Where the tile is so large that this differs by less than a hundredth from 1, it is 1: the mean number of empty
    words in the last access of a tile is half of ``words_per_access - 1``.
    """
    density = share(tensor, whole)
    if words_per_access <= 1 or not tile or not 0 < density < 1:
        return 1.0
    coarse = max(math.floor(round(density * 10, _ROUNDED)), 1) / 10  # the threshold is taken by tenths
    if tile // words_per_access >= math.ceil(round(50 * (1 - 1 / words_per_access) / coarse, _ROUNDED)):
        return 1.0
    accesses = sum(p * math.ceil(n / words_per_access) for n, p in occupancies(tensor, tile, whole))
    return accesses / (tile * density / words_per_access)
