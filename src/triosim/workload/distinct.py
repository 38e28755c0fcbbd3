"""The different calls of a trace: a model of many layers repeats few, and pricing one prices all that are equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.workload.trace import NONE, Kernels, Trace

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def distinct(trace: Trace, *others: NDArray) -> tuple[Trace, NDArray[np.int64]]:
    """The operators of a trace that differ in name, arguments, shapes, element types, FLOP or bytes.

    Equality is that of 64-bit fingerprints (the finalizer of splitmix64 over all of it): two different calls among a
    million are taken for one with a probability of about 3e-8.

    Args:
        trace: the operators.
        others: more columns, one row per operator, by which calls differ.

    Returns:
        A trace of the first of each in the order of the fingerprints, with their values and no kernels, modules or
        links to forward operators; and for every operator of ``trace`` its row there.
    """
    prints = fingerprints(trace)
    for column in others:
        prints = mixed(prints ^ _bits(column))
    _, first, row = np.unique(prints, return_index=True, return_inverse=True)
    return _only(trace, first), row.ravel()


def fingerprints(trace: Trace) -> NDArray[np.uint64]:
    """A number for each operator that tells it from those that do other work."""
    operators, values = trace.operators, trace.values
    value = _rows(values.shape, mixed(values.shape.values.astype(np.uint64)))
    value = mixed(value ^ values.dtype.astype(np.uint64) * _ODD)
    reads = value[operators.inputs.values] + mixed(operators.roles.values.astype(np.uint64) + np.uint64(1))
    prints = mixed(_codes(operators.name) * _ODD + _codes(operators.args))
    prints = mixed(prints ^ _rows(operators.inputs, mixed(reads)))
    prints = mixed(prints ^ _rows(operators.outputs, value[operators.outputs.values]))
    for column in (operators.view, operators.flop, operators.bytes):
        prints = mixed(prints ^ _bits(column))
    return prints


def _codes(names: tuple[str, ...]) -> NDArray[np.uint64]:
    found = {name: code for code, name in enumerate(dict.fromkeys(names))}
    return np.fromiter(map(found.__getitem__, names), np.uint64, len(names))


def _bits(column: NDArray) -> NDArray[np.uint64]:
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


def _only(trace: Trace, rows: NDArray[np.int64]) -> Trace:
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
