"""How far a recorded time can be trusted at other shapes and on another device: fitted constants.

A model is off for each operator by some factor; its logarithm is the operator's *residual*.  It is carried over to
other shapes, where it drifts, and in part to other devices.  The constants were fitted by
``validation/fit/anchoring.py`` to pairs of measurements of the same kernel at two sizes or on two devices, for each
model (*basis*) apart;
:mod:`triosim.kernels.models.auto` says how they are used.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.kernels.classes import ENGINES, GROUPS, STANDS_IN, OperatorClasses, by_name, group_of_name

SCHEMA = "triosim/anchoring/2"


@dataclass(frozen=True)
class Residuals:
    """What is known of one model's residuals.

    Attributes:
        keep_length: logarithm of the change of modelled time over which the part of a residual that does not persist
            fades to 1 / e.
        drift_length: logarithm of the change of work over which the error of an anchored time reaches its full size
            but for a factor 1 / e in its square.
        classes: per class and engine (``"matrix/tensor"``, or the class alone) ``persist``, the part that all sizes
            share of what residuals differ from the mean of their class by; ``few``, how many operators it takes for
            that mean to count half; ``drift``, the 90 % error of an anchored time far from its anchor; ``transfer``,
            the part of a residual that another device shares; ``device_spread``, the 90 % error of an anchored time on
            another device; and ``paired``, 1 where that was measured, else 0.
        default: the same for classes that no pairs were measured of.
    """

    keep_length: float
    drift_length: float
    classes: dict[str, dict[str, float]]
    default: dict[str, float]

    def column(self, name: str, classified: OperatorClasses) -> NDArray[np.float64]:
        """One constant for each operator."""
        table = np.array([[self._of(group, engine)[name] for engine in ENGINES] for group in GROUPS], np.float64)
        return np.asarray(table[classified.group, classified.engine])

    def _of(self, group: str, engine: str) -> dict[str, float]:
        return self.classes.get(f"{group}/{engine}") or self.classes.get(group) or self.default


@dataclass(frozen=True)
class Anchoring:
    """Constants of anchoring.

    Attributes:
        recorded_spread: 90 % half-width (logarithm) of a recorded time that is used as it is: what repetitions of the
            same operator differ by.
        proportional_edges_s: recorded times between which proportional scaling was judged apart.
        proportional: 90 % of the errors of scaling in proportion to the work are below this times the logarithm of the
            ratio; per group of :data:`triosim.kernels.classes.GROUPS` and recorded time, shape
            ``(len(GROUPS), len(proportional_edges_s) + 1)``.
        residuals: of every model that times are carried over by.
    """

    recorded_spread: float
    proportional_edges_s: NDArray[np.float64]
    proportional: NDArray[np.float64]
    residuals: dict[str, Residuals]

    def proportional_spread(self, names: Sequence[str], recorded_s: NDArray, distance: NDArray) -> NDArray[np.float64]:
        """Spread of operators scaled with their work.

        Args:
            names: of the operators.
            recorded_s: their recorded times.
            distance: absolute logarithm of the ratio of work.
        """
        at = np.digitize(np.nan_to_num(recorded_s), self.proportional_edges_s)
        slope = self.proportional[by_name(names, group_of_name), at]
        return np.hypot(self.recorded_spread, slope * distance)


@functools.lru_cache(maxsize=1)
def load() -> Anchoring:
    """The constants that come with the program."""
    text = (Path(__file__).parent / "data" / "anchoring.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    if document["schema"] != SCHEMA:
        raise RuntimeError(f"anchoring.json has schema {document['schema']!r}, expected {SCHEMA!r}")

    def numbers(entry: dict[str, Any]) -> dict[str, float]:
        found = {name: float(entry[name]) for name in ("persist", "few", "drift", "device_length", "device_spread")}
        return {**found, "paired": float(bool(entry.get("pairs_of_devices")))}

    slopes = document["proportional"]["slopes"]
    return Anchoring(
        recorded_spread=float(document["recorded_spread"]),
        proportional_edges_s=np.array(document["proportional"]["edges_s"], np.float64),
        proportional=np.array([slopes[group if group in slopes else STANDS_IN[group]] for group in GROUPS], np.float64),
        residuals={
            basis: Residuals(
                float(one["keep_length"]),
                float(one["drift_length"]),
                {key: numbers(entry) for key, entry in one["classes"].items()},
                numbers(one["default"]),
            )
            for basis, one in document["residuals"].items()
        },
    )
