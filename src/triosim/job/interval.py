"""How often to write a checkpoint: Young's and Daly's formulas, and the exact expectation with its minimum.

Failures come at random with a mean time M between them.  Let a job work for w between checkpoints, each of which stops
it for d and is safe b later; after a failure D passes until it works again.  Between two failures it then gets through

    sum over n >= 1 of exp(-(D + w + d + b + (n - 1) P) / M),    P = d + max(w, b)

intervals in the mean, so that a long job takes ``M exp((D + w + d + b) / M) (1 - exp(-P / M))`` for each.  With b = 0
that is Daly's equation for the total wall clock time, ``M exp(R / M) (exp((w + d) / M) - 1)``.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006,
equation 37 for the optimum.
"""

from __future__ import annotations

import math

from triosim.job.checkpoint import Checkpoint

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 80
"""Of the golden section: the interval shrinks to 1e-16 of where it began."""


def young(blocking_s: float, mtbf_s: float) -> float:
    """Work between checkpoints in seconds, to first order: ``sqrt(2 d M)``."""
    return math.sqrt(2 * blocking_s * mtbf_s)


def daly(blocking_s: float, mtbf_s: float) -> float:
    """Work between checkpoints in seconds, to higher order; M where a checkpoint takes 2 M or longer."""
    if blocking_s >= 2 * mtbf_s:
        return mtbf_s
    part = blocking_s / (2 * mtbf_s)
    return math.sqrt(2 * blocking_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - blocking_s


def stretch(work_s: float, checkpoint: Checkpoint, down_s: float, mtbf_s: float) -> float:
    """Time that a long job takes over the time it works, at least 1; infinite where it gets nowhere.

    Args:
        work_s: work between checkpoints.
        checkpoint: what is written.
        down_s: from a failure until the job works again.
        mtbf_s: mean time between failures; ``inf`` for none.
    """
    blocking, background = checkpoint.blocking_s, checkpoint.background_s
    period = blocking + max(work_s, background)
    if math.isinf(mtbf_s):
        return period / work_s
    exponent = (down_s + work_s + blocking + background) / mtbf_s
    if exponent > 700:  # beyond what a float holds
        return math.inf
    return mtbf_s * math.exp(exponent) * -math.expm1(-period / mtbf_s) / work_s


def best(checkpoint: Checkpoint, down_s: float, mtbf_s: float, least_s: float, most_s: float) -> float:
    """Work between checkpoints in seconds that makes :func:`stretch` least, of ``least_s`` to ``most_s``."""
    if math.isinf(mtbf_s) or most_s <= least_s:
        return most_s
    # Of its logarithm the stretch falls, then rises: what checkpoints cost, then what failures do.
    low, high = math.log(least_s), math.log(min(most_s, max(100 * mtbf_s, 2 * least_s)))
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = (stretch(math.exp(x), checkpoint, down_s, mtbf_s) for x in (a, b))
    for _ in range(_STEPS):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = stretch(math.exp(a), checkpoint, down_s, mtbf_s)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = stretch(math.exp(b), checkpoint, down_s, mtbf_s)
    return math.exp((low + high) / 2)
