"""The catalog's own system files, read without the checks that users' files need, and without pydantic.

Importing pydantic and making its models takes longer than all else of a small prediction's start, and what the catalog
holds was checked when it was made: a test reads every file both ways.  The values have the names and the defaults of
:mod:`triosim.hardware.description`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from triosim.core import guarded
from triosim.core.units import parse_bandwidth, parse_bytes, parse_time

if TYPE_CHECKING:
    from triosim.hardware.description import SystemFile

_LINK = {"link": None, "links": None, "bandwidth": None, "latency": None, "overhead": None, "source": ""}
_FILE = {
    "name": None, "about": "", "source": "", "confidence": "", "notes": "", "nodes": None, "devices": None,
    "device": (), "scale_up": None, "switch": (), "link": (), "host": None, "scale_out": None, "nvme": None,
    "pool": None, "routing": None,
}  # fmt: skip
_TABLES: dict[str, dict[str, Any]] = {
    "devices": {"model": None, "count": 1, "source": ""},
    "scale_up": {**_LINK, "topology": None, "shape": None, "options": {}},
    "host": {**_LINK, "cpu": None, "cores": None, "devices_per_link": 1},
    "nvme": {"drives": 1, "read": None, "write": None, "capacity": None, "latency": None, "source": ""},
    "scale_out": {**_LINK, "topology": "switch", "shape": None, "options": {}, "nics": None},
}
_QUANTITIES: dict[str, Callable[[Any, str], float]] = {
    "bandwidth": parse_bandwidth, "latency": parse_time, "overhead": parse_time, "read": parse_bandwidth,
    "write": parse_bandwidth, "capacity": parse_bytes,
}  # fmt: skip


def read(path: Path) -> SystemFile:
    """The description in a file of the catalog; of a file that says more than :data:`_TABLES` knows, checked as any.

    Raises:
        InputError: as :func:`triosim.hardware.description.read_system`.
    """
    found = guarded.document(path)
    known = found.keys() <= _FILE.keys() and "devices" in found
    for key, value in found.items():
        known &= value.keys() <= _TABLES.get(key, {}).keys() if isinstance(value, dict) else isinstance(value, str)
    if not known or not isinstance(found["devices"].get("model"), str):
        from triosim.hardware.description import read_system  # loads pydantic

        return read_system(path)
    tables = {key: _table(key, value) if isinstance(value, dict) else value for key, value in found.items()}
    made = SimpleNamespace(**{**_FILE, **tables})
    made.count = made.devices.count
    return cast("SystemFile", made)


def _table(key: str, given: dict[str, Any]) -> SimpleNamespace:
    """One table with what it leaves out, quantities as numbers."""
    values: dict[str, Any] = {
        name: _QUANTITIES[name](v, name) if name in _QUANTITIES else v for name, v in given.items()
    }
    if "shape" in values:
        values["shape"] = tuple(values["shape"])
    return SimpleNamespace(**{**_TABLES[key], **values})
