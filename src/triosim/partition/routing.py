"""How many of the rows that tokens send to experts each expert gets, and each rank that has some of them.

``uniform`` gives all experts alike; ``zipf:S`` gives the i-th most popular ``i ** -S`` (Zipf's law), of which ranks
have one each in turn, so that what is popular is spread over them; a file has a count of tokens or a share for each
expert, in their order, and neighbours lie on one rank, as frameworks place them.

A token takes ``k`` different experts, so that no expert has more than ``1 / k`` of the rows: what lies above is shared
among the others in proportion (sampling with inclusion proportional to size, without replacement).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import PlanError

UNIFORM = "uniform"
_ZIPF = "zipf:"


def routing_of(asked: str) -> float | tuple[float, ...]:
    """What was asked for: the exponent of Zipf's law, 0 for uniform, or shares of experts in their order, sum 1.

    Raises:
        PlanError: it is no routing, or a histogram that cannot be read or does not sum.
    """
    if asked == UNIFORM:
        return 0.0
    if not asked.startswith(_ZIPF):
        return _histogram(Path(asked))
    try:
        exponent = float(asked.removeprefix(_ZIPF))
    except ValueError:
        exponent = math.nan
    if not 0 <= exponent < math.inf:
        raise PlanError(f"experts: routing {asked} has no exponent of 0 or more: give zipf:1")
    return exponent


def _histogram(path: Path) -> tuple[float, ...]:
    try:
        text = path.read_text(encoding="utf-8").strip()
        text = text[1:-1] if text.startswith("[") and text.endswith("]") else text  # a list of JSON or of Python
        counts = [float(word) for word in text.replace(",", " ").split()]
    except OSError:
        raise PlanError(
            f"experts: routing {path} is neither uniform nor zipf:S nor a file that can be read: give one of these"
        ) from None
    except ValueError:
        raise PlanError(
            f"experts: routing {path} is no histogram: give a number for each expert, with spaces or commas between, "
            "or a list of them"
        ) from None
    total = math.fsum(counts)
    if not 0 < total < math.inf or min(counts) < 0:
        raise PlanError(f"experts: routing {path} sums to {total:g} or has less than nothing: give counts of tokens")
    if any(one % 1 for one in counts) and abs(total - 1) > 1e-3:
        raise PlanError(f"experts: routing {path} has shares that sum to {total:g}: give shares of 1, or counts")
    return tuple(one / total for one in counts)


def expert_shares(routing: float | tuple[float, ...], experts: int, chosen: float) -> NDArray[np.float64]:
    """Share of the rows that each expert gets, shape ``(experts,)``, sum 1; Zipf's most popular first.

    Args:
        routing: as :func:`routing_of` gives it.
        experts: how many there are.
        chosen: experts that a token takes.

    Raises:
        PlanError: a histogram has another number of experts, or fewer with tokens than a token takes.
    """
    if isinstance(routing, tuple) and len(routing) != experts:
        raise PlanError(f"experts: routing has {len(routing)} experts, the layers {experts}: give a number for each")
    wanted: NDArray[np.float64] = (
        np.array(routing) if isinstance(routing, tuple) else np.arange(1, experts + 1, dtype=np.float64) ** -routing
    )
    most, full = 1 / chosen, np.zeros(experts, bool)
    if np.count_nonzero(wanted) * most < 1 - 1e-9:
        raise PlanError(f"experts: routing has fewer experts with tokens than the {chosen:g} that a token takes")
    shares: NDArray[np.float64] = wanted / wanted.sum()
    while np.any(over := ~full & (shares > most * (1 + 1e-12))):
        full |= over
        rest = np.where(full, 0, wanted)
        total = rest.sum()
        shares = np.where(full, most, rest / total * (1 - most * full.sum()) if total else 0)
    return shares


def rank_shares(
    routing: float | tuple[float, ...], experts: int, chosen: float, ranks: int, capacity: float = math.inf
) -> NDArray[np.float64]:
    """Share of the rows that each rank gets, shape ``(ranks,)``; the sum is 1 without what is dropped.

    Args:
        routing, experts, chosen: as of :func:`expert_shares`.
        ranks: among which the experts are divided.
        capacity: rows that an expert takes at most, over the mean; it drops what is more.

    Raises:
        PlanError: as :func:`expert_shares`.
    """
    shares = np.minimum(expert_shares(routing, experts, chosen), capacity / experts)
    dealt = shares.reshape(ranks, -1).T if isinstance(routing, tuple) else shares.reshape(-1, ranks)
    summed: NDArray[np.float64] = dealt.sum(0)
    return summed
