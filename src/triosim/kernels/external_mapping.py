"""Mapping files: which external times belong to which operators, in TOML.

    times = ["accel-sim.txt"]      # what simulators or profilers wrote, beside this file
    clock = "1.41 GHz"             # where they count cycles and do not say how long one is
    device = "H100-SXM5-80GB"      # whose times they are, where a system has several devices
    shapes = "trace"               # the shapes that were simulated: those of the trace, or "plan": of the priced step

    [operators]
    "aten::convolution | layer1.*" = "implicit_gemm*"   # operator | module = kernel
    "#12" = [0, 3]                                      # row of the trace = sum of these rows of the times

Without ``[operators]`` times and operators are matched by name, or in their order with ``match = "order"``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.hardware.catalog import accelerator

SUFFIX = ".toml"
SHAPES = ("trace", "plan")
MATCHES = ("name", "order", "operators")
_KEYS = ("times", "clock", "device", "shapes", "match", "operators")
_HERTZ = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
_FREQUENCY = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)

Part = int | str
"""A row of the times, or the pattern of a name."""


@dataclass(frozen=True)
class ExternalMapping:
    """What a mapping file says.

    Attributes:
        path: of the file, or of the times where there is no mapping file.
        times: files of external times; their rows are numbered through in this order.
        match: one of :data:`MATCHES`; ``"operators"`` as the table ``[operators]`` says.
        operators: what is selected, and the parts that its time is the sum of.
        shapes: one of :data:`SHAPES`, or ``""`` for the default.
        clock_hz: frequency of the counted cycles, None where not given.
        device: name of the device whose times they are, ``""`` for whichever is priced.
    """

    path: Path
    times: tuple[Path, ...]
    match: str = "name"
    operators: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    shapes: str = ""
    clock_hz: float | None = None
    device: str = ""


def load(path: Path) -> ExternalMapping:
    """The mapping in a TOML file; any other file is one of times, to be matched by name.

    Raises:
        InputError: a key is unknown, missing or of the wrong kind.
    """
    if path.suffix.lower() != SUFFIX:
        return ExternalMapping(path, (path,))
    document = guarded.document(path, "a table of keys such as match and operators")
    for key in document:
        if key not in _KEYS:
            raise unknown(f"key in mapping file {path}:", key, _KEYS)
    operators = document.get("operators")
    match = document.get("match", "name" if operators is None else "operators")
    if match not in MATCHES or (match == "operators") != (operators is not None):
        raise InputError(
            f'{path}: match is {quoted(match)}; give "name" or "order", or leave it away and give a table [operators]'
        )
    shapes = document.get("shapes", "")
    if "shapes" in document and shapes not in SHAPES:
        raise InputError(f'{path}: shapes is {quoted(shapes)}; give "trace" or "plan"')
    return ExternalMapping(
        path,
        tuple(path.parent / name for name in _texts(path, document.get("times"))),
        match,
        tuple((key, _parts(path, key, value)) for key, value in _table(path, operators).items()),
        shapes,
        _hertz(path, document["clock"]) if "clock" in document else None,
        _device(path, document.get("device", "")),
    )


def _texts(path: Path, given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(text, str) and text for text in found):
        raise InputError(f'{path}: times must name one or more files of external times, as times = "accel-sim.txt"')
    return found


def _table(path: Path, operators: Any) -> dict[str, Any]:
    if operators is not None and (not isinstance(operators, dict) or not operators):
        raise InputError(f'{path}: [operators] must have lines such as "aten::addmm | fc" = "kernel name"')
    return operators or {}


def _parts(path: Path, key: str, value: Any) -> tuple[Part, ...]:
    parts = value if isinstance(value, list) else [value]
    good = (isinstance(part, int | str) and not isinstance(part, bool) and part != "" for part in parts)
    if not parts or not all(good):
        raise InputError(
            f"{path}: {quoted(key)} is {quoted(value)}; give a kernel's name, a row of the times, or a list of them"
        )
    return tuple(parts)


def _device(path: Path, given: Any) -> str:
    """The catalog's name of a device, or the name as it is of one that a user described."""
    if not isinstance(given, str):
        raise InputError(f'{path}: device is {quoted(given)}; give a name, as device = "H100-SXM5-80GB"')
    try:
        return accelerator(given).name if given else ""
    except InputError:
        return given


def _hertz(path: Path, given: Any) -> float:
    match = _FREQUENCY.fullmatch(given) if isinstance(given, str) else None
    scale = _HERTZ.get(match.group(2).lower()) if match else None
    value = float(match.group(1)) * scale if match and scale else 0.0
    if not 1e3 <= value <= 1e12:
        raise InputError(f'{path}: clock is {quoted(given)}; give a frequency such as "1.41 GHz"')
    return value
