"""The file that keeps a calibration: what was measured, what was learned from it, and a check of both.

JSON, schema ``triosim/calibration/2``.  ``samples`` are the measured kernels as columns, of which a column that is the
same everywhere is one value; ``learned`` is what was fitted to them; ``golden`` are kernels with the seconds that this
pack predicts, looked at whenever it is read.  Where the shipped constants have moved on since (``constants`` is their
hash) everything is fitted anew from the samples.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError, quoted
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.calibration.anchors import Anchors
from triosim.kernels.calibration.calibration import Calibration, calibrated
from triosim.kernels.calibration.fitting import (
    ClassFit,
    MeasuredKernels,
    Menu,
    by_class,
    different,
    operator_name,
    variants,
)
from triosim.kernels.pack import CALIBRATION
from triosim.kernels.physical.kinds import BY_NAME, KernelKind, RateFactors, Work
from triosim.kernels.work import attention, moe, stream
from triosim.sources.runtimes.rules import Fusion, RuntimeRules

SCHEMA = f"{CALIBRATION}2"
TOLERANCE = 1e-9
"""Relative difference of a golden prediction from which on a pack is refused: far above rounding, far below meaning."""
_GOLDEN = (0.0, 0.5, 1.0)
"""Quantiles of the measured times at which each class has a golden prediction."""
_CODES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("attention", "family"): attention.FAMILIES, ("moe", "family"): moe.FAMILIES, ("stream", "kind"): stream.KINDS,
    **{(kind, "dtype"): DTYPES for kind in ("gemm", "convolution", "attention", "moe", "scan")},
}  # fmt: skip
"""Columns of work that are indices, and the names they stand for: the file holds names."""
_COUNTS = frozenset((
    "m", "n", "k", "batch", "images", "in_channels", "out_channels", "groups", "in_rows", "in_columns", "out_rows",
    "out_columns", "kernel_rows", "kernel_columns", "stride", "queries", "keys", "heads", "kv_heads", "head", "tokens",
    "topk", "hidden", "inner", "experts",
))  # fmt: skip
"""Columns of work that are 1 at least."""
_ABOVE_ZERO = frozenset((
    "a_bytes", "b_bytes", "c_bytes", "q_bytes", "kv_bytes", "weight_bytes", "token_bytes", "item", "rows",
))  # fmt: skip
"""Columns that may be a part of 1, but not 0 as the rest."""
_MOST, _MOST_FIGURE = 2.0**53, 1e21
"""What a column of work, and a figure of a device, may be at most."""
_MOST_LOG = 20.0
"""Logarithm of the largest factor: 5e8, beyond anything that a kernel could differ by."""
_MOST_TILE = 1 << 16
"""Rows or columns of a tile at most."""


@dataclass(frozen=True)
class RecordedHost:
    """What launching costs, as recorded.

    Attributes:
        issue_s: median time of the host from one launch to the next.
        launches: how many there were.
        delay_s: from the end of a launch to the start of the kernel on an idle stream, None where not recorded.
        gap_s: between a kernel and the next one that was waiting for it, None where not recorded.
    """

    issue_s: float
    launches: int
    delay_s: float | None = None
    gap_s: float | None = None


@dataclass(frozen=True)
class CalibrationPack:
    """A calibration with everything that it came from.

    Attributes:
        calibration: prices kernels.
        measured: by the name of their kind.
        host: what launching costs, None where it was not recorded.
        date: when it was made, ``"2026-11-21"``.
        versions: of the program, the framework and the driver.
        provenance: ``trace`` (its name), ``made_by``, how many of its ``operators`` the kernels stand for and how many
            were ``left_out``.
        refitted: whether it was fitted anew when it was read.
        rules: how the runtime that was measured runs networks from files; None where it is not known.
    """

    calibration: Calibration
    measured: Mapping[str, MeasuredKernels]
    host: RecordedHost | None = None
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    refitted: bool = False
    rules: RuntimeRules | None = None


@functools.cache
def constants_version() -> str:
    """Hash of the constants that come with the program and of their schema."""
    folder = resources.files("triosim.kernels") / "data" / "physical"
    found = hashlib.sha256()
    for name in sorted(BY_NAME):
        found.update((folder / f"{name}.json").read_bytes())
    return found.hexdigest()[:16]


# Writing --------------------------------------------------------------------------------------------------------------


def text(pack: CalibrationPack) -> str:
    """The file's content."""
    calibration = pack.calibration
    pack = replace(pack, measured={name: different(one) for name, one in pack.measured.items()})
    samples = {name: _sample(BY_NAME[name], one) for name, one in pack.measured.items()}
    columns = {name: sample["work"] for name, sample in samples.items()}
    document = {
        "schema": SCHEMA,
        "date": pack.date,
        "versions": dict(pack.versions),
        "constants": constants_version(),
        "device": {name: value for name, value in asdict(calibration.device).items() if value not in (None, "")},
        "drift": calibration.drift,
        "host": asdict(pack.host) if pack.host else None,
        **({"runtime": asdict(pack.rules)} if pack.rules else {}),
        "provenance": {**pack.provenance, "samples": _hash(pack.measured, columns)},
        "learned": [_learned_row(one) for one in calibration.learned.values()],
        "golden": _golden(pack),
        "samples": samples,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _sample(kind: KernelKind, measured: MeasuredKernels) -> dict[str, Any]:
    menus = {name: [list(tile) for tile in menu] for name, menu in measured.menus.items()}
    return {
        "work": _columns(kind, measured.work),
        "seconds": measured.seconds.tolist(),
        **({"before": measured.before.tolist()} if measured.before is not None else {}),
        **({"tiles": menus} if menus else {}),
        **({"operators": list(measured.names)} if measured.names else {}),
    }


def _columns(kind: KernelKind, work: Work) -> dict[str, Any]:
    out = {}
    for column in fields(work):
        values = getattr(work, column.name)
        names = _CODES.get((kind.name, column.name))
        row = [names[code] for code in values.tolist()] if names else [_short(x) for x in values.tolist()]
        out[column.name] = row[0] if row and all(x == row[0] for x in row) else row
    return out


def _short(x: float | bool) -> float | int | bool:
    return int(x) if isinstance(x, float) and x.is_integer() and abs(x) < 2**53 else x


def _learned_row(one: ClassFit) -> dict[str, Any]:
    return {
        "kind": one.kind, "class": one.name, "logs": one.logs.tolist(), "tiles": [list(tile) for tile in one.menu],
        "operators": dict(one.operators), "reach": one.anchors.reach, "apart": one.anchors.apart, "spread": one.spread,
        "typical": one.typical, "before": one.before, "after": one.after, "error": one.anchors.error.tolist(),
    }  # fmt: skip


def _golden(pack: CalibrationPack) -> dict[str, Any]:
    out = {}
    for name, measured in pack.measured.items():
        kind, rows = BY_NAME[name], []
        for code, of_class in by_class(kind, measured.work):
            if (name, kind.classes[code]) in pack.calibration.learned:
                order = of_class[np.argsort(measured.seconds[of_class], kind="stable")]
                rows += [int(order[round(q * (len(order) - 1))]) for q in _GOLDEN]
        work = measured.work.take(np.array(sorted(set(rows)), np.int64))
        if len(work):
            seconds = pack.calibration.priced(kind, work, pack.calibration.device).seconds
            out[name] = {"work": _columns(kind, work), "seconds": seconds.tolist()}
    return out


def _hash(measured: Mapping[str, MeasuredKernels], columns: Mapping[str, Iterable[str]]) -> str:
    """Of these columns of every kind, and the times and operators, as 64-bit numbers."""
    found = hashlib.sha256()
    for name in sorted(measured):
        one = measured[name]
        for column in (*(getattr(one.work, column) for column in sorted(columns[name])), one.seconds):
            found.update(np.ascontiguousarray(column, "<f8").tobytes())
        found.update("\n".join((name, *one.names)).encode())
    return found.hexdigest()


# Reading --------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def load(name: str) -> CalibrationPack:
    """The calibration of a file.

    Raises:
        InputError: the file cannot be read, is no calibration, was changed, or no longer predicts what it did.
    """
    document = guarded.values(Path(name), ".json")
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith(CALIBRATION):
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InputError(
            f"calibration {name}: schema is {quoted(found)}, expected {SCHEMA!r}: triosim calibrate writes one"
        )
    try:
        return _parsed(document, name)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{quoted(error.args[0])} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"calibration {name}: {what}: run triosim calibrate again") from None


def _parsed(document: dict[str, Any], name: str) -> CalibrationPack:
    device = _device(document["device"])
    samples, drift = document["samples"], float(document["drift"])
    measured = {kind: _measured(BY_NAME[kind], one, f"samples of {quoted(kind)}") for kind, one in samples.items()}
    if document["provenance"]["samples"] != _hash(measured, {kind: one["work"] for kind, one in samples.items()}):
        raise InputError(f"calibration {name}: 'samples' were changed since they were measured: run triosim calibrate")
    host, rules = document["host"], document.get("runtime")
    about = (
        measured, _host(host) if host else None, str(document["date"]),
        {str(k): str(v) for k, v in document["versions"].items()}, dict(document["provenance"]),
    )  # fmt: skip
    found = None if rules is None else _rules(rules)
    if document["schema"] != SCHEMA or document["constants"] != constants_version():
        measured = {kind: replace(one, names=tuple(map(operator_name, one.names))) for kind, one in measured.items()}
        return CalibrationPack(calibrated(device, measured, drift), measured, *about[1:], refitted=True, rules=found)
    works, names = {}, {}
    for kind, one in measured.items():
        for code, rows in by_class(BY_NAME[kind], one.work):
            key = kind, BY_NAME[kind].classes[code]
            works[key] = one.work.take(rows)
            names[key] = variants(works[key], [one.names[row] for row in rows.tolist()] if one.names else ())
    learned = {}
    for row in document["learned"]:
        key = str(row["kind"]), str(row["class"])
        learned[key] = _learned(row, BY_NAME[key[0]].shape(works[key]), names[key])
    calibration = Calibration(device, learned, drift)
    _check_golden(calibration, document["golden"], name)
    return CalibrationPack(calibration, *about, rules=found)


def _rules(row: dict[str, Any]) -> RuntimeRules:
    fusions = tuple(
        Fusion(tuple(str(name) for name in one["operators"]), int(one["main"]), float(one["share"]))
        for one in row["fusions"]
    )
    for one in fusions:
        if not (0 <= one.share < math.inf and 0 <= one.main < len(one.operators) > 1):
            raise ValueError(f"runtime: a chain of {len(one.operators)} operators has share {one.share:g}")
    rules = RuntimeRules(
        str(row["name"]), str(row["version"]), int(row["threads"]), float(row["call_s"]), fusions, bool(row["unused"])
    )
    if not (0 <= rules.call_s < math.inf and rules.threads >= 1):
        raise ValueError(f"runtime: {rules.threads} threads and {rules.call_s:g} seconds for a call")
    return rules


def _host(row: dict[str, Any]) -> RecordedHost:
    delay, gap = (None if row[name] is None else float(row[name]) for name in ("delay_s", "gap_s"))
    return RecordedHost(float(row["issue_s"]), int(row["launches"]), delay, gap)


def _device(row: dict[str, Any]) -> Accelerator:
    known = {f.name for f in fields(Accelerator)}
    figures = {key: value for key, value in row.items() if key in known}
    if figures.get("matrix_types") is not None:  # JSON has lists
        figures["matrix_types"] = tuple(figures["matrix_types"])
    for key, value in (*figures.items(), *figures.get("peak_flops", {}).items()):
        free = key == "price_per_hour" and value == 0
        if isinstance(value, int | float) and not free and not 0 < value <= _MOST_FIGURE:
            raise ValueError(f"device: {quoted(key)} is {value}, it must be above 0 and at most {_MOST_FIGURE:g}")
    device = Accelerator(**figures)
    if not device.priced:
        raise ValueError(f"device {quoted(device.name)} has no compute peak or no memory bandwidth")
    return device


def _measured(kind: KernelKind, row: dict[str, Any], where: str) -> MeasuredKernels:
    seconds = _numbers(row["seconds"], where)
    menus = {name: _menu(menu, where) for name, menu in row.get("tiles", {}).items()}
    before = _numbers(row["before"], where) if "before" in row else None
    if (before is not None and len(before) != len(seconds)) or not (seconds > 0).all():
        raise ValueError(f"{where} do not have one positive time each")
    names = tuple(str(name) for name in row.get("operators", ()))
    if len(names) not in (0, len(seconds)):
        raise ValueError(f"{where} do not have one operator each")
    return MeasuredKernels(_work(kind, row["work"], len(seconds), where), seconds, before, menus, names)


def _work(kind: KernelKind, columns: dict[str, Any], count: int, where: str) -> Any:
    made = []
    for column in fields(kind.work):
        # a column that has come since stands for what no kernel did then, which is 0
        names = _CODES.get((kind.name, column.name))
        given = columns.get(column.name, names[0] if names else 0)
        is_one = not isinstance(given, list)
        values = [given] if is_one else given
        if names:
            unknown = [value for value in values if value not in names]
            if unknown:
                raise ValueError(
                    f"column {quoted(column.name)} of {where} has {quoted(unknown[0])}, which this version does not "
                    "know"
                )
            values = [names.index(value) for value in values]
        row = np.asarray(values)
        if row.dtype.kind not in "bif" or row.shape != (1 if is_one else count,) or not np.isfinite(row).all():
            raise ValueError(f"column {quoted(column.name)} of {where} is not {count} numbers")
        bools = column.type == "NDArray[np.bool_]"
        row = row.astype(np.int8 if names else bool if bools else np.float64)
        least = 1 if column.name in _COUNTS else 2.0**-10 if column.name in _ABOVE_ZERO else 0
        if column.name in columns and not names and not bools and not ((row >= least) & (row <= _MOST)).all():
            raise ValueError(f"column {quoted(column.name)} of {where} is not from {least:g} to {_MOST:g}")
        made.append(np.full(count, row[0]) if is_one else row)
    return kind.work(*made)


def _learned(row: dict[str, Any], shape: NDArray[np.float64], names: Sequence[str]) -> ClassFit:
    where = f"class {quoted(row['class'])}"
    logs, error = _numbers(row["logs"], where), _numbers(row["error"], where)
    if len(logs) != len(fields(RateFactors)) or len(error) != len(shape):
        raise ValueError(f"{where} has {len(logs)} factors and {len(error)} errors of {len(shape)} kernels")
    operators = {str(name): float(x) for name, x in row["operators"].items()}
    for what, values in (("factors", logs), ("errors", error), ("operators", _numbers([*operators.values()], where))):
        if (np.abs(values) > _MOST_LOG).any():
            raise ValueError(f"{where} has {what} beyond a factor of exp({_MOST_LOG:g})")
    menu = _menu(row["tiles"], where)
    spread = None if row["spread"] is None else float(row["spread"])
    reach, apart = float(row["reach"]), float(row["apart"])
    if not (reach > 0 and 0 <= apart < math.inf):
        raise ValueError(f"{where} has a reach of {reach:g} and operators {apart:g} apart")
    anchors = Anchors(shape, error, reach, tuple(names), apart)
    return ClassFit(
        row["kind"], row["class"], logs, menu, operators, anchors, spread, float(row["typical"]),
        float(row["before"]), None if row["after"] is None else float(row["after"]),
    )  # fmt: skip


def _menu(rows: Any, where: str) -> Menu:
    menu = tuple((int(height), int(width)) for height, width in rows)
    if not all(1 <= side <= _MOST_TILE for tile in menu for side in tile):
        raise ValueError(f"{where} have tiles that are not of 1 to {_MOST_TILE} rows and columns")
    return menu


def _numbers(values: Any, where: str) -> NDArray[np.float64]:
    row = np.asarray(values, np.float64)
    if row.ndim != 1 or not np.isfinite(row).all():
        raise ValueError(f"{where} hold something that is not a list of numbers")
    return row


def _check_golden(calibration: Calibration, golden: dict[str, Any], name: str) -> None:
    for key, row in golden.items():
        kind, expected = BY_NAME[key], _numbers(row["seconds"], "golden predictions")
        if not (expected > 0).all():
            raise ValueError("golden predictions are not positive times")
        work = _work(kind, row["work"], len(expected), "golden predictions")
        found = calibration.priced(kind, work, calibration.device).seconds
        off = float(np.max(np.abs(found / expected - 1), initial=0.0))
        if not off <= TOLERANCE:
            raise InputError(
                f"calibration {name}: predicts kernels of kind {quoted(key)} {_percent(off)} off what it did when it "
                "was "
                "made, so the models behind it have changed: run triosim calibrate again"
            )


def _percent(off: float) -> str:
    return f"{100 * off:.2g} %" if math.isfinite(off) else "altogether"
