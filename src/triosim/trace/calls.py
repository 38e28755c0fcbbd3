"""The operators of a trace as calls, equal ones once: a model of many layers repeats few.

What :mod:`triosim.operators` says of one call is found here for all operators of a trace.  Two operators are the same
call where name, arguments, roles, shapes and element types are equal and the same inputs show one value.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim import operators as rules
from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPES
from triosim.operators import (
    ATTENTION_KERNELS,
    AttentionWork,
    Call,
    ConvolutionWork,
    Dims,
    ExpertsWork,
    ProductWork,
    ScanWork,
)
from triosim.trace.tables import NONE, Kernels, Operators, Trace, Values

W = TypeVar("W", ProductWork, ConvolutionWork, AttentionWork, ExpertsWork, ScanWork)

MANY = 32
"""Tensors of an operator from which on they are looked up together."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Calls:
    """The calls of a trace; by the number of an operator the one object that stands for all equal calls.

    Attributes:
        row: for each operator the number of its call, shape ``(operators,)``.
        first: for each call its first operator, shape ``(calls,)``.
        prints: for each call the number that tells it from all others, of whatever trace, ascending, ``(calls,)``.
    """

    def __init__(self, trace: Trace) -> None:
        self.prints, self.first, self.row = np.unique(_fingerprints(trace), return_index=True, return_inverse=True)
        self.row = self.row.ravel()
        self.unique: list[Call] = _known_calls(trace, self.prints, self.first)
        """The calls by number."""
        self._of_row: list[int] = self.row.tolist()

    def __len__(self) -> int:
        return len(self._of_row)

    def __getitem__(self, row: int) -> Call:
        return self.unique[self._of_row[row]]

    def dims(self, row: int) -> Dims:
        """Dimensions of an operator's call, those along which patches lie side by side being ones that divide."""
        return rules.dims_by_parts(self[row])

    def column(self, what: Callable[[Call], float]) -> NDArray[np.float64]:
        """``what`` of every operator's call."""
        return np.array([what(call) for call in self.unique], np.float64).reshape(len(self.unique))[self.row]

    def work(self, rows: NDArray[np.int64], shape: type[W]) -> list[W]:
        """What the calls of these operators multiply, as ``shape``; where that is not known a cube of their FLOP."""
        found: dict[int, W] = {}
        for number in set(self.row[rows].tolist()):
            call = self.unique[number]
            asked = rules.work(call)
            found[number] = asked if isinstance(asked, shape) else shape.cube(rules.flop(call))
        return [found[number] for number in self.row[rows].tolist()]


def calls_of(trace: Trace) -> Calls:
    """The calls of a trace, found once for the same operators and values."""
    kept = trace.operators.__dict__.get("_calls")
    if kept is None or kept[0] is not trace.values:
        kept = (trace.values, Calls(trace))
        trace.operators.__dict__["_calls"] = kept
    return kept[1]


def problems(trace: Trace) -> tuple[str, ...]:
    """At most three sentences on operators whose shapes do not tell their work; they are priced by their bytes."""
    calls, operators = calls_of(trace), trace.operators
    found = [rules.problem(call) for call in calls.unique]
    rows = np.flatnonzero(np.array([bool(text) for text in found], bool)[calls.row]).tolist()
    kept: dict[str, list[int]] = {}
    for row in rows:
        if not operators.view[row]:
            kept.setdefault(found[calls.row[row]], []).append(row)
    paths = (*trace.modules.path, "")
    sentences = []
    for text, at in kept.items():
        place = paths[operators.module[at[0]]]
        where = f"operator {at[0]}{f' in {place}' if place else ''}{f' and {len(at) - 1} more' if at[1:] else ''}"
        sentences.append(f"{text} ({where}): priced by its bytes alone")
    return tuple(sentences[:3])


def count_work(trace: Trace) -> Trace:
    """The same trace with FLOP and bytes counted anew from its shapes; FLOP that were not known stay unknown."""
    calls = calls_of(trace)
    flop = calls.column(rules.flop)
    flop[np.isnan(trace.operators.flop)] = np.nan
    counted = replace(trace.operators, flop=flop, bytes=calls.column(rules.bytes_of))
    counted.__dict__["_calls"] = (trace.values, calls)
    return replace(trace, operators=counted)


def unique_calls(trace: Trace, *others: NDArray[Any]) -> tuple[Trace, NDArray[np.int64]]:
    """The operators of a trace that differ in their call, FLOP or bytes.

    Args:
        trace: the operators.
        others: more columns, one row per operator, by which calls differ.

    Returns:
        A trace of the first of each in no particular order, with their values and no kernels, modules or links to
        forward operators; and for every operator of ``trace`` its row there.
    """
    prints = calls_of(trace).row.astype(np.uint64)
    for column in (trace.operators.flop, trace.operators.bytes, *others):
        prints = mixed(prints ^ _bits(column))
    _, first, row = np.unique(prints, return_index=True, return_inverse=True)
    return only(trace, first), row.ravel()


_CALLS: dict[int, Call] = {}
"""Calls that traces had, by their fingerprints: the steps of a sweep have most of their calls in common."""
KNOWN = 16384
"""Most of them that are kept."""


def _known_calls(trace: Trace, prints: NDArray[np.uint64], first: NDArray[np.int64]) -> list[Call]:
    """The calls with these fingerprints, which these operators of a trace are."""
    if len(_CALLS) > KNOWN:
        _CALLS.clear()
    found = []
    for number, row in zip(prints.tolist(), first.tolist(), strict=True):
        call = _CALLS.get(number)
        if call is None:
            call = _CALLS[number] = call_of(trace.operators, trace.values, row)
        found.append(call)
    return found


def call_of(operators: Operators, values: Values, row: int) -> Call:
    """The call of one operator."""
    name = operators.name[row]
    base, backward = rules.canonical(name)
    read, written = operators.inputs[row], operators.outputs[row]
    reads, writes = read.tolist(), written.tolist()
    names = operators.role_names
    return Call(
        base, backward, rules.kind(name), tuple([names[r] for r in operators.roles[row].tolist()]),
        _shapes(values, read), _shapes(values, written),
        _arguments(operators.args[row]), name, tuple([DTYPES[d] for d in values.dtype[read].tolist()]),
        tuple([DTYPES[d] for d in values.dtype[written].tolist()]), _repeats(reads), _repeats(writes),
        bool(operators.view[row]),
    )  # fmt: skip


def _shapes(values: Values, rows: NDArray[np.int32]) -> tuple[tuple[int, ...], ...]:
    """Shapes of values."""
    shape = values.shape
    if len(rows) > MANY:
        many = shape.take(rows)
        _, first, at = np.unique(
            _rows(many, mixed(many.values.astype(np.uint64))), return_index=True, return_inverse=True
        )
        few = [tuple(many[row].tolist()) for row in first.tolist()]
        return tuple([few[row] for row in at.ravel().tolist()])
    return tuple([tuple(shape.values[shape.offsets[row] : shape.offsets[row + 1]].tolist()) for row in rows.tolist()])


@functools.lru_cache(maxsize=8192)
def _arguments(text: str) -> dict[str, Any]:
    """The arguments that are not tensors, from their JSON text."""
    return {} if text == "{}" else json.loads(text)


def attention_kernels(operators: Operators) -> tuple[str, ...]:
    """Kernels of :data:`triosim.operators.ATTENTION_KERNELS` that operators ask for by their arguments, each once."""
    asked = [_arguments(text).get("kernel") for text in set(operators.args) if '"kernel"' in text]
    return tuple(kernel for kernel in ATTENTION_KERNELS if kernel in asked)


def with_arguments(text: str, **more: object) -> str:
    """An operator's arguments, JSON text, with others; None leaves one out."""
    args = {key: value for key, value in {**_arguments(text), **more}.items() if value is not None}
    return json.dumps(args, sort_keys=True, separators=(",", ":"))


def _repeats(values: list[int]) -> tuple[int, ...]:
    if len(set(values)) == len(values):
        return ()
    first = {value: at for at, value in reversed(list(enumerate(values)))}
    return tuple(at for at, value in enumerate(values) if first[value] != at)


def _fingerprints(trace: Trace) -> NDArray[np.uint64]:
    """A number for each operator that tells its call from others.

    Equality is that of 64-bit fingerprints (the finalizer of splitmix64 over all of it): two different calls among a
    million are taken for one with a probability of about 3e-8.
    """
    operators, values = trace.operators, trace.values
    value = _rows(values.shape, mixed(values.shape.values.astype(np.uint64)))
    value = mixed(value ^ values.dtype.astype(np.uint64) * _ODD)
    reads = value[operators.inputs.values] + _codes(operators.role_names)[operators.roles.values]
    writes = value[operators.outputs.values]
    for table, prints in ((operators.inputs, reads), (operators.outputs, writes)):
        prints[_again(table)] ^= _SECOND
    prints = mixed(_codes(operators.name) * _ODD + _codes(operators.args))
    prints = mixed(prints ^ _rows(operators.inputs, mixed(reads)))
    prints = mixed(prints ^ _rows(operators.outputs, writes))
    return mixed(prints ^ _bits(operators.view))


def _again(table: Ragged) -> NDArray[np.int64]:
    """Places of the entries that are equal to an earlier one of their row."""
    keys = table.rows() * (int(table.values.max(initial=0)) + 1) + table.values
    order = np.argsort(keys, kind="stable")
    again: NDArray[np.int64] = order[1:][keys[order[1:]] == keys[order[:-1]]]
    return again


def _codes(texts: tuple[str, ...]) -> NDArray[np.uint64]:
    return np.fromiter(map(_code, texts), np.uint64, len(texts))


@functools.lru_cache(maxsize=65536)
def _code(text: str) -> int:
    """A number that tells a text from others, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(column, np.float64).view(np.uint64)


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Splitmix64's finalizer (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
    x = x + _ODD
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


def _rows(table: Ragged, prints: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One fingerprint for each row of ``table`` from those of its entries; order and length count."""
    lengths = table.lengths()
    out = mixed(lengths.astype(np.uint64))
    within = np.arange(len(prints)) - np.repeat(table.offsets[:-1], lengths)
    placed = mixed(prints + within.astype(np.uint64) * _FIRST)
    filled = np.flatnonzero(lengths)
    if filled.size:
        out[filled] += np.add.reduceat(placed, table.offsets[:-1][filled])
    return mixed(out)


def only(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    """These operators with their values; they keep neither modules nor kernels nor links to forward operators."""
    operators, values = trace.operators, trace.values
    inputs, outputs = operators.inputs.take(rows), operators.outputs.take(rows)
    kept, at = np.unique(np.concatenate([inputs.values, outputs.values]), return_inverse=True)
    at = at.ravel()
    chosen = rows.tolist()
    none = np.full(len(rows), NONE, np.int32)
    columns = {name: getattr(operators, name)[rows] for name in (
        "phase", "view", "sync", "device_s", "host_s", "flop", "bytes"
    )}  # fmt: skip
    return replace(
        trace,
        operators=replace(
            operators, name=tuple(map(operators.name.__getitem__, chosen)),
            args=tuple(map(operators.args.__getitem__, chosen)), roles=operators.roles.take(rows),
            inputs=Ragged(at[: len(inputs.values)], inputs.offsets),
            outputs=Ragged(at[len(inputs.values) :], outputs.offsets), module=none, forward=none, **columns,
        ),
        values=replace(
            values, storage=values.storage[kept], version=values.version[kept], offset=values.offset[kept],
            shape=values.shape.take(kept), dtype=values.dtype[kept], category=values.category[kept],
            of=np.full(len(kept), NONE, np.int32), name=tuple(map(values.name.__getitem__, kept.tolist())),
            symbols=values.symbols.take(kept),
        ),
        kernels=Kernels(np.zeros(0, np.int32), (), np.zeros(0), np.zeros(0, np.int32)),
    )  # fmt: skip
