"""The file that keeps a device learned from few networks: what was measured, what explains it, and a check of both.

JSON, schema ``triosim/few-shot/1``.  ``samples`` are all runs; ``explanations`` what was fitted to them, best first;
``golden`` what the file predicts of its own samples, looked at whenever it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.kernels.few_shot.device import LIVE, OPERATORS, POOL, WIDEST, DeviceFit, FewShotDevice, NetworkSample
from triosim.kernels.few_shot.networks import BLOCKS, CELLS, NAMES
from triosim.kernels.few_shot.pool import DevicePool
from triosim.kernels.pack import NETWORKS_ONLY

SCHEMA = f"{NETWORKS_ONLY}1"
_MOST = 1e30
"""Largest number that may stand anywhere in the file."""
TOLERANCE = 1e-9
"""Relative difference of a golden prediction from which on a file is refused."""


@dataclass(frozen=True)
class FewShotPack:
    """A device with everything that it came from.

    Attributes:
        device: predicts networks.
        date: when it was made, ``"2026-11-21"``.
        versions: of the program.
        provenance: names of the tables, and digests of them.
    """

    device: FewShotDevice
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


def text(pack: FewShotPack) -> str:
    """The file's content."""
    device = pack.device
    document = {
        "schema": SCHEMA,
        "date": pack.date,
        "versions": dict(pack.versions),
        "provenance": dict(pack.provenance),
        "device": device.name,
        "space": device.space,
        "operators": list(device.operators),
        "edges": [list(edge) for edge in device.edges],
        "networks": device.networks,
        "left_out": list(device.left_out),
        "explanations": [_explanation_row(one) for one in device.explanations],
        "pool": _pool_row(device.pool) if device.pool else None,
        "golden": _golden(device),
        "samples": {
            "network": [one.network for one in device.samples],
            "seconds": [one.seconds for one in device.samples],
        },
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _golden(device: FewShotDevice) -> list[float | None]:
    found = device.predict([one.network for one in device.samples], device.name)
    return [None if math.isnan(x) else x for x in found.seconds.tolist()]


def _explanation_row(one: DeviceFit) -> dict[str, Any]:
    return {
        "kind": one.kind, "error": one.error, "mean_error": one.mean_error, "spread": one.spread,
        "order": None if math.isnan(one.order) else one.order, "coefficients": one.coefficients.tolist(),
    }  # fmt: skip


def _pool_row(pool: DevicePool) -> dict[str, Any]:
    return {
        "devices": list(pool.devices), "space": pool.space, "operators": list(pool.operators),
        "edges": [list(edge) for edge in pool.edges], "only_live": list(pool.only_live),
        "coefficients": pool.coefficients.tolist(), "names": list(pool.names), "networks": pool.networks,
    }  # fmt: skip


def is_few_shot_file(path: Path) -> bool:
    """Whether a JSON file says that it is such a device; False where it cannot be read."""
    return guarded.schema(path).startswith(NETWORKS_ONLY)


def load(path: Path) -> FewShotPack:
    """The device of a file.

    Raises:
        InputError: the file cannot be read, is none, or no longer predicts what it did.
    """
    document = guarded.values(path, ".json")
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise InputError(f"{path}: schema is {quoted(found)}, expected {SCHEMA!r}: triosim calibrate --few writes one")
    try:
        pack = _parsed(document)
        golden, again = document["golden"], _golden(pack.device)
        same = len(golden) == len(again) and all(
            (a is None and b is None) or (a is not None and b is not None and abs(a - b) <= TOLERANCE * b)
            for a, b in zip(golden, again, strict=True)
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{quoted(error.args[0])} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: {what}: run triosim calibrate --few again") from None
    if not same:
        raise InputError(f"{path} no longer predicts what it did when made: run triosim calibrate --few again")
    return pack


def _parsed(document: dict[str, Any]) -> FewShotPack:
    space, pool = _one_of(document["space"], (CELLS, BLOCKS, NAMES)), document["pool"]
    operators, edges = _words(document["operators"]), _edges(document["edges"])
    known = _pool(pool) if pool is not None else None
    sizes = {OPERATORS: 1 + len(operators), LIVE: 1 + len(operators), POOL: len(known.devices) if known else -1}
    explanations = tuple(_explanation(row, sizes) for row in document["explanations"])
    if not explanations:
        raise ValueError("there is no explanation")
    columns = document["samples"]
    seconds = _numbers(columns["seconds"], (len(columns["network"]),), "seconds of samples")
    if not len(seconds) or not (seconds > 0).all():
        raise ValueError("samples do not have one positive time each")
    samples = tuple(
        NetworkSample(name, float(time)) for name, time in zip(_words(columns["network"]), seconds, strict=True)
    )
    device = FewShotDevice(
        str(document["device"]), samples, space, operators, edges, explanations, known, int(document["networks"]),
        _words(document["left_out"]),
    )  # fmt: skip
    provenance = {str(key): str(value) for key, value in document["provenance"].items()}
    versions = {str(key): str(value) for key, value in document["versions"].items()}
    return FewShotPack(device, str(document["date"]), versions, provenance)


def _explanation(row: dict[str, Any], sizes: Mapping[str, int]) -> DeviceFit:
    kind = _one_of(row["kind"], sizes)
    error, mean_error, spread = (float(row[name]) for name in ("error", "mean_error", "spread"))
    if not all(0 <= x < math.inf for x in (error, mean_error)) or not 0 <= spread <= WIDEST:
        raise ValueError(f"the error of {quoted(kind)} is no number of at least 0")
    coefficients = _numbers(row["coefficients"], (sizes[kind],), f"coefficients of {quoted(kind)}")
    if (coefficients < 0).any():
        raise ValueError(f"coefficients of {quoted(kind)} are negative")
    order = math.nan if row["order"] is None else float(row["order"])
    return DeviceFit(kind, error, mean_error, spread, order, coefficients)


def _pool(row: dict[str, Any]) -> DevicePool:
    space, devices = _one_of(row["space"], (CELLS, BLOCKS, NAMES)), _words(row["devices"])
    operators, edges, names = _words(row["operators"]), _edges(row["edges"]), _words(row["names"])
    width = len(names) if space == NAMES else 1 + len(edges) * len(operators)
    only_live = tuple(bool(one) for one in row["only_live"])
    if len(only_live) != len(devices):
        raise ValueError("the pool does not say of each device which operators run")
    coefficients = _numbers(row["coefficients"], (len(devices), width), "coefficients of the pool")
    return DevicePool(devices, space, operators, edges, only_live, coefficients, names, int(row["networks"]))


def _edges(rows: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(source), int(node)) for source, node in rows)


def _words(rows: Any) -> tuple[str, ...]:
    if not isinstance(rows, list) or not all(isinstance(one, str) for one in rows):
        raise ValueError("there is something that is not a list of names")
    return tuple(rows)


def _one_of(value: Any, known: Any) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{quoted(value)} is none of {', '.join(known)}")
    return value


def _numbers(values: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    if found.shape != shape or not (np.abs(found) <= _MOST).all():
        raise ValueError(f"{what} are not {' x '.join(map(str, shape))} numbers")
    return found
