"""Designs, problems and mappings in TOML, as short as they can be.

A design lists its nodes from the outside in.  Quantities are texts with a unit or bare numbers in SI units::

    name = "little"
    clock = "200 MHz"
    technology = "45nm"                   # for energies that are not stated
    [[node]]
    store = "DRAM"
    words_per_access = 4
    [[node]]
    store = "buffer"
    capacity = "64 KiB"                   # or words = 32768
    bandwidth = 16                        # words for each cycle; or read_bandwidth and write_bandwidth
    keeps = ["Inputs", "Outputs"]
    pj = { read = 6.1, write = 6.1, update = 6.1, leak = 0.01 }
    [[node]]
    fan_out = "PE"
    x = 14
    y = 12
    [[node]]
    compute = "mac"
    pj = { compute = 0.2 }

A problem is a kind or an einsum, a mapping lists loops from the outermost::

    [problem]
    kind = "convolution"                  # gemm, attention
    c = 3
    m = 32
    [[problem]]
    einsum = "O[m,p] += W[m,r] * I[2*p+r]"
    bounds = { m = 4, p = 8, r = 3 }
    densities = { W = 0.5 }

    [[level]]
    at = "DRAM"
    loops = "M4 P2"
    [[level]]
    at = "PE"
    x = "M8"
    y = "R3 C3"

Constraints are ``[[constraint]]`` with ``at``, ``factors``, ``innermost``, ``keep`` and ``bypass``; zeros are
``[[zeros]]`` with ``at`` and either ``tensor`` and ``format`` or ``gate`` or ``skip`` (a tensor) and ``on`` (tensors).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.accelerator import problem as problems
from triosim.accelerator.architecture import ACTIONS, Architecture, Compute, Energies, FanOut, Store
from triosim.accelerator.directives import ALL_OTHERS, Directive, Directives, factors, permutation
from triosim.accelerator.energies import process_nm
from triosim.accelerator.problem import Problem
from triosim.accelerator.reading import LARGEST, Contents, placed
from triosim.accelerator.representation import FORMATS, RepresentationFormat
from triosim.accelerator.sparse import ActionOptimization, Sparse
from triosim.accelerator.systolic import Array
from triosim.core import guarded
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.registry import registered
from triosim.core.units import parse_bytes

_SECTION = re.compile(rb"^\s*\[\[?\s*(node|problem|level|constraint|zeros|array)\b", re.M)
_PICO = 1e-12
_HERTZ = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_ENERGIES = (*ACTIONS, "compute")


@registered
class Toml:
    """TrioSim's own files."""

    def recognises(self, path: Path) -> bool:
        """TOML with one of the tables of this format."""
        return path.suffix.lower() == ".toml" and bool(_SECTION.search(guarded.head(path, LARGEST)))

    def read(self, path: Path) -> Contents:
        """Whatever the file describes.

        Raises:
            InputError: broken TOML, an unknown key, or a value that cannot be used.
        """
        where = str(path)
        table = _TomlTable(guarded.document(path), where)
        sections = {name: table.tables(name) for name in ("node", "problem", "level", "constraint", "zeros", "array")}
        architecture = _architecture(table, sections["node"]) if sections["node"] else None
        arrays = [_array(row) for row in sections["array"]]
        if len(arrays) > 1:
            raise InputError(f"{where}: holds {len(arrays)} arrays: give one")
        levels = tuple(d for row in sections["level"] for d in _level(row))
        constraints = tuple(d for row in sections["constraint"] for d in _constraint(row))
        found = Contents(
            architecture=architecture,
            array=arrays[0] if arrays else None,
            problems=tuple(p for row in sections["problem"] for p in _problems(row)),
            mapping=Directives(levels) if sections["level"] else None,
            constraints=Directives(constraints) if constraints else None,
            sparse=_zeros(sections["zeros"]) if sections["zeros"] else None,
        )  # fmt: skip
        table.done()
        return found


class _TomlTable:
    """A table whose keys are taken one by one; what is left is unknown."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where
        self.taken: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        self.taken.append(key)
        return self.values.pop(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """A text.

        Raises:
            InputError: it is none, or missing.
        """
        value = self.take(key, default)
        if not isinstance(value, str):
            raise InputError(f"{self.where}, {key}: {quoted(value)} is no text: give one")
        return value

    def number(self, key: str) -> float | None:
        """A number; None where there is none.

        Raises:
            InputError: it is none.
        """
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.where}, {key}: {quoted(value)} is no number: give one")
        return float(value)

    def whole(self, key: str, default: int | None = None) -> int | None:
        """A whole number."""
        value = self.number(key)
        if value is None:
            return default
        if not math.isfinite(value) or value != int(value):
            raise InputError(f"{self.where}, {key}: {value} is no whole number: give one")
        return int(value)

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of texts; None where there is none."""
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InputError(f'{self.where}, {key}: {quoted(value)} is no list of names: write ["A", "B"]')
        return tuple(value)

    def tables(self, key: str) -> list[_TomlTable]:
        """One table or a list of them."""
        value = self.take(key, [])
        rows = value if isinstance(value, list) else [value]
        for row in rows:
            if not isinstance(row, dict):
                raise InputError(f"{self.where}, {key}: {quoted(row)} is no table: write [{key}] above its keys")
        return [_TomlTable(row, f"{self.where}, {key} {i + 1}") for i, row in enumerate(rows)]

    def table(self, key: str) -> _TomlTable:
        """A table, empty where there is none."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise InputError(f"{self.where}, {key}: {quoted(value)} is no table")
        return _TomlTable(value, f"{self.where}, {key}")

    def done(self) -> None:
        """Refuse what nobody took.

        Raises:
            InputError: a key that is not known here.
        """
        for key in self.values:
            raise unknown(f"key in {self.where}:", key, self.taken)


def _architecture(table: _TomlTable, rows: list[_TomlTable]) -> Architecture:
    name = table.text("name", "") or Path(table.where).stem
    clock = _clock(table)
    technology = table.text("technology", "")
    if technology and not process_nm(technology):
        raise InputError(f"{table.where}: technology {quoted(technology)} names no process: give one such as 45nm")
    sources = table.table("sources")
    cited = tuple((key, str(value)) for key, value in sources.values.items())
    table.take("about")
    nodes: list[Store | FanOut] = []
    compute: Compute | None = None
    for row in rows:
        if compute is not None:
            raise InputError(f"{row.where}: stands below the compute unit: move it above")
        if "fan_out" in row.values:
            nodes.append(FanOut(row.text("fan_out"), row.whole("x", 1) or 0, row.whole("y", 1) or 0))
        elif "compute" in row.values:
            compute = Compute(row.text("compute"), row.whole("word_bits", 16) or 0, _energies(row))
        else:
            nodes.append(_store(row))
        row.done()
    if compute is None:
        raise InputError(f'{table.where}: has no compute unit: end the nodes with [[node]] and compute = "mac"')
    with placed(table.where):
        return Architecture(name, tuple(nodes), compute, clock, technology, cited)


def _clock(table: _TomlTable) -> float | None:
    value = table.take("clock")
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kMG]?)Hz\s*", str(value))
    if not match:
        raise InputError(f"{table.where}, clock: {quoted(value)} is no clock: write 200 MHz")
    return float(match[1]) * _HERTZ[match[2]]


def _store(row: _TomlTable) -> Store:
    name = row.text("store")
    bits = row.whole("word_bits", 16) or 0
    words = row.whole("words")
    capacity = row.take("capacity")
    if capacity is not None:
        if words is not None:
            raise InputError(f"{row.where}: gives both words and capacity: give one")
        words = parse_bytes(capacity, f"{row.where}, capacity") * 8 // max(bits, 1)
    both = row.number("bandwidth")
    reading, writing = row.number("read_bandwidth"), row.number("write_bandwidth")
    return Store(
        name, words, bits, row.whole("words_per_access", 1) or 0, both if reading is None else reading,
        both if writing is None else writing, row.names("keeps"), _energies(row), row.whole("buffering", 1) or 0,
        row.whole("cluster_size", 1) or 0, row.whole("metadata_words"),
        row.text("kind", "DRAM" if "dram" in name.lower() else "SRAM"), row.whole("aside", 0) or 0,
        row.whole("metadata_bits"), row.whole("metadata_width"),
    )  # fmt: skip


def _energies(row: _TomlTable) -> Energies:
    table = row.table("pj")
    found = {}
    for action in _ENERGIES:
        value = table.number(action)
        if value is not None:
            found[action] = value * _PICO
    table.done()
    return Energies(**found)


def _array(row: _TomlTable) -> Array:
    sizes = {f"{what}_bytes": row.take(what) for what in ("ifmap", "filter", "ofmap")}
    made = Array(
        row.whole("rows") or 0, row.whole("columns") or 0, row.text("dataflow", "os"), row.text("name", "array"),
        **{key: parse_bytes(value, f"{row.where}, {key}") for key, value in sizes.items() if value is not None},
        bandwidth=row.number("bandwidth"), word_bytes=row.whole("word_bytes", 1) or 0,
    )  # fmt: skip
    row.done()
    return made


# --- problems ---------------------------------------------------------------------------------------------------------

_SIZES = {
    "convolution": ("n", "c", "m", "p", "q", "r", "s", "groups"),
    "gemm": ("m", "n", "k", "batch"),
    "attention": ("heads", "queries", "keys", "depth", "batch", "kv_heads"),
}
_NEEDED = {"gemm": ("m", "n", "k"), "attention": ("heads", "queries", "keys", "depth")}


def _problems(row: _TomlTable) -> tuple[Problem, ...]:
    densities = row.table("densities")
    shares = {name: densities.number(name) or 0.0 for name in list(densities.values)}
    name = row.text("name", "")
    with placed(row.where):
        if "einsum" in row.values:
            bounds = row.table("bounds")
            sizes = {key: bounds.whole(key) or 0 for key in list(bounds.values)}
            found = (problems.einsum(row.text("einsum"), sizes, name, shares),)
            row.done()
            return found
        kind = row.text("kind")
        if kind not in _SIZES:
            raise unknown("kind of problem", kind, _SIZES)
        given: dict[str, Any] = {key: row.whole(key) for key in _SIZES[kind]}
        given = {key: value for key, value in given.items() if value is not None}
        for key in _NEEDED.get(kind, ()):
            if key not in given:
                raise InputError(f"a {kind} needs {key}: give it")
        if kind == "convolution":
            given |= {key: _pair(row, key) for key in ("stride", "dilation")}
            made: tuple[Problem, ...] = (
                problems.convolution(name or kind, gradient=row.text("gradient", ""), **given),
            )
        elif kind == "gemm":
            made = (problems.gemm(name or kind, **given),)
        else:
            made = problems.attention(name or kind, **given)
        row.done()
        known = {tensor.name for p in made for tensor in p.tensors}
        for tensor in shares:
            if tensor not in known:
                raise unknown("tensor", tensor, known)
        return tuple(
            p.sparse({t.name: shares[t.name] for t in p.tensors if t.name in shares}) for p in made
        )  # fmt: skip


def _pair(row: _TomlTable, key: str) -> int | tuple[int, int]:
    value = row.take(key, 1)
    both = value if isinstance(value, list) else [value]
    if (value is both[0] or len(both) == 2) and all(isinstance(x, int) and not isinstance(x, bool) for x in both):
        return (both[0], both[-1])
    raise InputError(f"{key}: {quoted(value)} is neither a whole number nor two: give 2 or [2, 1]")


# --- mappings, constraints, zeros -------------------------------------------------------------------------------------


def _level(row: _TomlTable) -> list[Directive]:
    at = row.text("at")
    where = f"{row.where}, {at}"
    found = []
    loops = row.take("loops")
    if loops is not None:
        rows = factors(loops, where)
        found.append(Directive(at, "temporal", rows, tuple(d for d, _, _ in reversed(rows)), where=where))
    for axis in ("x", "y"):
        spread = row.take(axis)
        if spread is not None:
            rows = factors(spread, where)
            found.append(Directive(at, "spatial", rows, tuple(d for d, _, _ in rows), where=where, axis=axis))
    keeps = row.names("keeps")
    if keeps is not None:
        found.append(Directive(at, "keep", keep=keeps, bypass=ALL_OTHERS, where=where))
    row.done()
    return found


def _constraint(row: _TomlTable) -> list[Directive]:
    at = row.text("at")
    where = f"{row.where}, {at}"
    rows = factors(row.take("factors", []), where)
    inner = permutation(row.take("innermost", []), where)
    split = row.whole("split")
    keep, bypass = row.names("keep") or (), row.names("bypass") or ()
    row.done()
    found = []
    if rows or inner:
        found.append(Directive(at, "either", rows, inner, split, where=where))
    if keep or bypass:
        found.append(Directive(at, "keep", keep=keep, bypass=bypass, where=where))
    return found


def _zeros(rows: list[_TomlTable]) -> Sparse:
    stored, spared, compute = [], [], None
    for row in rows:
        at = row.text("at")
        if at == "compute":
            compute = row.text("how")
            if compute not in ("gating", "skipping"):
                raise unknown(f"way to treat zeros in {row.where}:", compute, ("gating", "skipping"))
            row.done()
            continue
        ranks = row.names("format")
        if ranks is not None:
            for rank in ranks:
                if rank not in FORMATS:
                    raise unknown(f"format in {row.where}:", rank, FORMATS)
            stored.append(RepresentationFormat(at, row.text("tensor"), ranks))
        gate, skip = row.take("gate"), row.take("skip")
        if gate is not None and skip is not None:
            raise InputError(f"{row.where}: both gates and skips: give one of them, another [[zeros]] has the other")
        if ranks is None and gate is None and skip is None:
            raise InputError(f"{row.where}: says nothing of zeros: give a tensor and its format, or gate or skip")
        if gate is not None or skip is not None:
            conditions = row.names("on") or ()
            if not conditions:
                raise InputError(f'{row.where}: on is missing: name the tensors whose zeros count, as on = ["Weights"]')
            spared.append(ActionOptimization(at, str(gate if skip is None else skip), conditions, skip is not None))
        row.done()
    return Sparse(tuple(stored), tuple(spared), compute)
