"""Packs: the constants of an operator model, read from a JSON file that says where each comes from.

A pack gives, per class of work and engine (:mod:`triosim.kernels.classes`), the constants of a roofline::

    seconds = kernels * floor + join(FLOP / (compute * peak), bytes / (memory * bandwidth))
    join(c, m) = (c ** overlap + m ** overlap) ** (1 / overlap)

``overlap`` infinite is the textbook roofline, the larger of the two (Williams, Waterman, Patterson: "Roofline: an
insightful visual performance model", CACM 2009); 1 is their sum, for operators that alternate between the two.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.classes import ENGINES, GROUPS, STANDS_IN, OperatorClasses

SCHEMA = "triosim/operator-pack/1"
CALIBRATION = "triosim/calibration/"
"""How the schema of a calibration begins (:mod:`triosim.kernels.calibration.pack`)."""
NETWORKS_ONLY = "triosim/few-shot/"
"""How the schema of a device learned from whole networks begins (:mod:`triosim.kernels.few_shot.pack`)."""
DEFAULT = "roofline"
"""Name of the pack that comes with the program."""

_COLUMNS = ("floor_s", "compute", "memory", "overlap", "spread", "spread_unseen")


@dataclass(frozen=True)
class ArchitectureRate:
    """Rate that a class reaches on devices of some architectures that are no GPUs.

    Attributes:
        architectures: their names, whole.
        row: of the class.
        compute: fraction of the datasheet's peak that large operators reach.
        spread: half-width of the 90 % interval (natural logarithm).
    """

    architectures: tuple[str, ...]
    row: int
    compute: float
    spread: float


@dataclass(frozen=True)
class RooflinePack:
    """Constants of a roofline by class, one row per class that was fitted or stands in for one.

    Attributes:
        name: of the pack, for people.
        keys: ``"matrix/tensor"``: class and engine.
        floor_s: seconds of a kernel that does next to nothing.
        compute: fraction of the datasheet's peak that large operators reach.
        memory: fraction of the datasheet's bandwidth that large operators reach.
        overlap: see the module's docstring.
        spread: half-width of the 90 % interval (natural logarithm) on a device of a family in ``families``.
        spread_unseen: the same on any other device.
        families: first words of the architectures (``"Ampere"``) that the constants were fitted on.
        elsewhere: least spread on what is not a GPU, where nothing at all was measured.
        own: what was measured on processors that are no GPUs.
        measured: whether the class was fitted to measurements of itself.
        row: row for each (group, engine), shape ``(len(GROUPS), len(ENGINES))``.
        provenance: what the constants were fitted to, and how well they predict.
    """

    name: str
    keys: tuple[str, ...]
    floor_s: NDArray[np.float64]
    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    overlap: NDArray[np.float64]
    spread: NDArray[np.float64]
    spread_unseen: NDArray[np.float64]
    families: tuple[tuple[str, ...], ...]
    elsewhere: float
    own: tuple[ArchitectureRate, ...]
    measured: NDArray[np.bool_]
    row: NDArray[np.int8]
    provenance: dict[str, Any]

    def rows(self, classified: OperatorClasses) -> NDArray[np.int8]:
        """Row of each operator's constants."""
        return self.row[classified.group, classified.engine]

    def spread_on(self, device: Accelerator) -> NDArray[np.float64]:
        """Spread of each row on this device: the wider one where its family was not among those fitted."""
        if device.kind not in GPUS:
            found = np.maximum(self.spread_unseen, self.elsewhere)
            for one in self._own_of(device):
                found[one.row] = one.spread
            return found
        family = device.architecture.split(" ")[0] if device.vendor == "NVIDIA" else ""
        seen = np.array([family in families for families in self.families], bool)
        return np.where(seen, self.spread, self.spread_unseen)

    def compute_on(self, device: Accelerator) -> NDArray[np.float64]:
        """Fraction of the peak that each row reaches on this device."""
        found = self.compute.copy()
        for one in self._own_of(device):
            found[one.row] = one.compute
        return found

    def _own_of(self, device: Accelerator) -> list[ArchitectureRate]:
        return [one for one in self.own if device.architecture in one.architectures]


@functools.lru_cache(maxsize=8)
def load(name: str = DEFAULT) -> RooflinePack:
    """The pack that comes with the program, or one of the user's own from a file (``name`` ends in ``.json``).

    Raises:
        InputError: the file is not there, or not a pack.
    """
    if not name.endswith(".json"):
        source = Path(__file__).parent / "data" / f"{name}.json"
        return _parse(json.loads(source.read_text(encoding="utf-8")), f"{name}.json")
    return _parse(guarded.values(Path(name), ".json"), name)


def is_calibration_file(name: str) -> bool:
    """Whether a JSON file says that it is a calibration; False where it cannot be read."""
    return guarded.schema(Path(name)).startswith(CALIBRATION)


def refuse_networks_only(schema: object, name: str) -> None:
    """Refuse what was learned from whole networks where operators are to be priced.

    Raises:
        InputError: so it is.
    """
    if str(schema).startswith(NETWORKS_ONLY):
        raise InputError(
            f"{name} was learned from whole networks and does not know single operators: give it to "
            f"triosim calibrate --few {name} --predict NETWORKS.csv"
        )


def _parse(document: Any, name: str) -> RooflinePack:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        refuse_networks_only(found, name)
        raise InputError(f"operator pack {name}: schema is {quoted(found)}, this version reads {SCHEMA!r}")
    classes = document.get("classes")
    if not isinstance(classes, dict):
        raise InputError(f"operator pack {name}: 'classes' is missing")
    keys = tuple(classes)
    table = np.array([[_number(classes, key, column, name) for column in _COLUMNS] for key in keys], np.float64)
    return RooflinePack(
        name=str(document.get("name", name)),
        keys=keys,
        **{column: table[:, at] for at, column in enumerate(_COLUMNS)},
        families=tuple(tuple(classes[key].get("families", ())) for key in keys),
        elsewhere=_elsewhere(document, name),
        own=_own(document, keys, name),
        measured=np.array(["like" not in classes[key] for key in keys], bool),
        row=_rows(keys, name),
        provenance=document.get("provenance", {}),
    )


def _elsewhere(document: dict[str, Any], name: str) -> float:
    entry = document.get("elsewhere")
    value = entry.get("spread") if isinstance(entry, dict) else None
    if not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"operator pack {name}: 'elsewhere' has no 'spread'")
    return float(value)


def _own(document: dict[str, Any], keys: tuple[str, ...], name: str) -> tuple[ArchitectureRate, ...]:
    entries = document.get("own", [])
    if not isinstance(entries, list):
        raise InputError(f"operator pack {name}: 'own' is not a list")
    found = []
    for at, entry in enumerate(entries):
        where = f"own[{at}]"
        if not isinstance(entry, dict) or entry.get("class") not in keys or not entry.get("architectures"):
            raise InputError(f"operator pack {name}: {where} needs 'architectures' and a 'class' of {', '.join(keys)}")
        compute, spread = (_number({where: entry}, where, column, name) for column in ("compute", "spread"))
        found.append(ArchitectureRate(tuple(entry["architectures"]), keys.index(entry["class"]), compute, spread))
    return tuple(found)


def _number(classes: dict[str, Any], key: str, column: str, name: str) -> float:
    entry = classes[key]
    if not isinstance(entry, dict) or column not in entry:
        raise InputError(f"operator pack {name}: class {quoted(key)} has no {quoted(column)}")
    value = entry[column]
    if value is None and column == "overlap":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(
            f"operator pack {name}: {quoted(column)} of class {quoted(key)} is {quoted(value)}, not a number"
        )
    if value < 0 or (value == 0 and column in ("compute", "memory", "overlap")):
        raise InputError(
            f"operator pack {name}: {quoted(column)} of class {quoted(key)} is {value}, it must be positive"
        )
    return float(value)


def _rows(keys: tuple[str, ...], name: str) -> NDArray[np.int8]:
    """Row of every (group, engine): that of its own key, else of the group alone, else of the class that stands in."""
    at = {key: row for row, key in enumerate(keys)}
    rows = np.zeros((len(GROUPS), len(ENGINES)), np.int8)
    for g, group in enumerate(GROUPS):
        if group == "nothing":
            continue
        for e, engine in enumerate(ENGINES):
            like = STANDS_IN.get(group, group)
            names = (f"{group}/{engine}", group, f"{like}/{engine}", like, "other")
            key = next((one for one in names if one in at), "")
            if key not in at:
                raise InputError(f"operator pack {name}: class {quoted(group)} is missing, and so is 'other'")
            rows[g, e] = at[key]
    return rows


def join(compute_s: NDArray, memory_s: NDArray, overlap: NDArray | float) -> NDArray[np.float64]:
    """Time of work that takes ``compute_s`` on the arithmetic and ``memory_s`` on the memory, seconds.

    See the module's docstring; ``overlap`` is one number or one per row.
    """
    if np.ndim(overlap) == 0:
        return _join(compute_s, memory_s, float(overlap))
    out = np.empty(len(compute_s))
    for power in np.unique(overlap):
        at = overlap == power
        out[at] = _join(compute_s[at], memory_s[at], float(power))
    return out


def _join(compute_s: NDArray, memory_s: NDArray, power: float) -> NDArray[np.float64]:
    larger = np.maximum(compute_s, memory_s)
    if math.isinf(power):
        return larger
    if power == 1:
        return compute_s + memory_s
    smaller = np.minimum(compute_s, memory_s)
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    return larger * (1 + ratio**power) ** (1 / power)
