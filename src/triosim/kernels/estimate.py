"""Estimates: seconds with an interval and a source, as columns."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

CONFIDENCE = 0.9
Z90 = 1.6448536269514722
"""Standard normal quantile of 0.95: a 90 % interval reaches this many standard deviations to each side."""


class Source(IntEnum):
    """Where an operator's time comes from."""

    NOTHING = 0
    RECORDED = 1
    ANCHORED = 2
    PROPORTIONAL = 3
    ROOFLINE = 4
    UNDECIDED = 5
    REGRESSION = 6
    WAVES = 7
    TABLE = 8
    EXTERNAL = 9
    PHYSICAL = 10
    CALIBRATED = 11
    OWN = 12
    """A model that is none of the program's own."""
    DESIGN = 13
    """Loop nests on a device that is a design."""


class Limit(IntEnum):
    """What binds an operator."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2
    LAUNCH = 3


@dataclass(frozen=True)
class OperatorJoules:
    """Joules of operators on a design, one row each, where its model says them; leakage while they run included.

    Attributes:
        compute: of multiplications and of the vector unit.
        chip: of memories on the chip.
        memory: of the outermost memory.
        open: joules times the natural logarithm of the factor by which a longer search for mappings may change them.
    """

    compute: NDArray[np.float64]
    chip: NDArray[np.float64]
    memory: NDArray[np.float64]
    open: NDArray[np.float64]

    def take(self, rows: NDArray[np.int64]) -> OperatorJoules:
        """These rows."""
        return OperatorJoules(self.compute[rows], self.chip[rows], self.memory[rows], self.open[rows])


@dataclass(frozen=True)
class Estimates:
    """Operator times, one row per operator.

    Attributes:
        seconds: median estimate.
        spread: natural logarithm of the 90 % interval's factor: the time lies between
            ``seconds * exp(-spread)`` and ``seconds * exp(spread)`` nine times out of ten.
        source: :class:`Source` codes, int8.
        limit: :class:`Limit` codes, int8.
        notes: sentences on what a reader of the prediction should know about these times.
        warnings: sentences on what is not as a reader would expect.
        joules: of the operators, where the model says them; else they follow from what the device draws.
        clock: over the full one, at which each runs where its power holds it back, 1 where nothing does; None where
            nobody says.
    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.int8]
    limit: NDArray[np.int8]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    joules: OperatorJoules | None = None
    clock: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.seconds)


def check(answer: object, rows: int, name: str) -> None:
    """Refuse what is no estimate of each operator; for the answers of other people's models.

    Args:
        answer: of a model.
        rows: operators that it was asked for.
        name: of the model, as the beginning of a sentence.

    Raises:
        InputError: it is something else, has other rows, or holds what no time and no code is.
    """
    if not isinstance(answer, Estimates):
        raise InputError(f"{name} answers with {quoted(answer)}: it must be Estimates (triosim.kernels.estimate)")
    for column, kind in (("seconds", "f"), ("spread", "f"), ("source", "i"), ("limit", "i")):
        value = getattr(answer, column)
        if not isinstance(value, np.ndarray) or value.shape != (rows,) or value.dtype.kind != kind:
            raise InputError(
                f"{name} answers with {column} {quoted(value)}: it must be an array of {rows} "
                f"{'numbers' if kind == 'f' else 'codes'}, one for each operator"
            )
    for column, what in (("seconds", "a time of zero or more"), ("spread", "a number of zero or more")):
        value = getattr(answer, column)
        wrong = np.flatnonzero(~(np.isfinite(value) & (value >= 0)))
        if wrong.size:
            row = int(wrong[0])
            raise InputError(f"{name} answers with {column} {float(value[row])} of operator {row}: it must be {what}")
    for column, codes in (("source", Source), ("limit", Limit)):
        value = getattr(answer, column)
        unknown = np.flatnonzero(~np.isin(value, list(codes)))
        if unknown.size:
            row = int(unknown[0])
            code = int(value[row])
            raise InputError(f"{name} answers with {column} {code} of operator {row}, which is no {codes.__name__}")
