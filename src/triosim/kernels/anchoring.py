"""How far a recorded time can be trusted at other shapes and on another device: fitted constants.

The roofline is off for each operator by some factor; its logarithm is the operator's *residual*.  It is carried over
to other shapes, where it drifts, and in part to other devices.  The constants were fitted by
``validation/fit_anchoring.py`` to pairs of measurements of the same kernel at two sizes or on two devices;
:mod:`triosim.kernels.models.auto` says how they are used.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.classes import GROUPS, by_name, group_of_name

SCHEMA = "triosim/anchoring/1"


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
        drift_length: logarithm of the change of work over which the error of an anchored time reaches its full size
            but for a factor 1 / e in its square.
        classes: per class and engine (keys of a pack) ``drift``, the 90 % error of an anchored time far from its
            anchor; ``transfer``, the part of a residual that another device shares; ``device_spread``, the 90 % error
            of an anchored time on another device; and ``paired``, 1 where that was measured, else 0.
        default: the same for classes that no pairs were measured of.
    """

    recorded_spread: float
    proportional_edges_s: NDArray[np.float64]
    proportional: NDArray[np.float64]
    drift_length: float
    classes: dict[str, dict[str, float]]
    default: dict[str, float]

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

    def column(self, name: str, keys: tuple[str, ...]) -> NDArray[np.float64]:
        """One constant for each key of a pack."""
        return np.array([self.classes.get(key, self.default)[name] for key in keys], np.float64)


@functools.lru_cache(maxsize=1)
def load() -> Anchoring:
    """The constants that come with the program."""
    text = (resources.files("triosim.kernels") / "data" / "anchoring.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    if document["schema"] != SCHEMA:
        raise RuntimeError(f"anchoring.json has schema {document['schema']!r}, expected {SCHEMA!r}")

    def numbers(entry: dict[str, Any]) -> dict[str, float]:
        found = {name: float(entry[name]) for name in ("drift", "transfer", "device_spread")}
        return {**found, "paired": float(bool(entry.get("pairs_of_devices")))}

    return Anchoring(
        recorded_spread=float(document["recorded_spread"]),
        proportional_edges_s=np.array(document["proportional"]["edges_s"], np.float64),
        proportional=np.array([document["proportional"]["slopes"][group] for group in GROUPS], np.float64),
        drift_length=float(document["drift_length"]),
        classes={key: numbers(entry) for key, entry in document["classes"].items()},
        default=numbers(document["default"]),
    )
