"""The share of a long step from that of a short one: what was divided for each kind of block, for all blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.relations import Change, ChangedTables, RelatedTable, changed
from triosim.core.tiling import NO_UNIT, Contraction, NotRepeating, Tiling
from triosim.partition.step import Step
from triosim.partition.transfers import Transfers
from triosim.trace.repeated import PATTERN, RepeatedTrace, RepeatedUnits, differing, tables_of, tiled_all, trace_of
from triosim.trace.tables import Trace, Values

Counts = tuple[NDArray[np.float64], NDArray[np.float64]]
"""FLOP and bytes of operators."""


@dataclass(frozen=True)
class RepeatedStep:
    """A step of all blocks, repeated from a short one.

    Attributes:
        step: one rank's share.
        source: for each of its operators the one of the short step that it is.
        spanning: operators that touch tensors of all blocks; the short step has them with fewer tensors.
    """

    step: Step
    source: NDArray[np.int64]
    spanning: NDArray[np.int64]


def long_step(of: RepeatedTrace, step: Step, short: Trace, long: Trace) -> RepeatedStep:
    """One rank's share of the long step.

    Args:
        of: how the step repeats.
        step: one rank's share of the short step.
        short, long: the short and the long step before they were divided.

    Raises:
        NotRepeating: the share does not repeat its units.
    """
    if step.root_only:
        raise NotRepeating("operators that only the first replica runs")
    if step.trace is step.homes and step.homes is short:
        units = RepeatedUnits.of(short, of.unit)
        made = of.tiled(tables_of(short, units), tiled_all(units, of.copies))
        found = replace(step, trace=long, homes=long)
    else:
        labels = _labels(step, of.unit)
        own, undivided = step.homes.operators, short.operators
        if not np.array_equal(own.flop, undivided.flop, equal_nan=True) or not np.array_equal(
            own.bytes, undivided.bytes
        ):
            raise NotRepeating("the work of the undivided step is counted anew")
        _check(step, of.unit.tobytes(), of.paths[0], of.paths[-1])
        made = of.tiled(_tables(step, labels), _changes(labels, lambda unit: Tiling.of(unit, PATTERN, of.copies)))
        found = _step(step, made, (long.operators.flop, long.operators.bytes))
        if step.homes is short:
            found = replace(found, homes=long)
    return RepeatedStep(found, made.change["operators"].source, made.spanning["operators"])


@kept(64)
def _check(step: Step, unit: bytes, pattern: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Check that the share of the short step is what its units but one say: the same for all long steps of it.

    Args:
        step: one rank's share of the short step.
        unit: of each module, int64.
        pattern, after: paths of the blocks of the pattern, and of the unit after it.

    Raises:
        NotRepeating: it is not.
    """
    labels = _labels(step, np.frombuffer(unit, np.int64))
    change = _changes(labels, lambda unit: Contraction.of(unit, PATTERN, 1))
    nothing = np.zeros(len(change["operators"]))
    fewer = _step(step, changed(_tables(step, labels), change), (nothing, nothing))
    less = {name: one.units for name, one in change.items() if isinstance(one, Contraction)}
    once = _changes(less, lambda unit: Tiling.of(unit, PATTERN, 1))
    again = changed(_tables(fewer, less), once, [tuple(zip(pattern, after, strict=True))])
    where = differing(_step(fewer, again, (step.homes.operators.flop, step.homes.operators.bytes)), step)
    if where:
        raise NotRepeating(f"{where} of the share does not repeat")


def _changes(labels: dict[str, NDArray[np.int64]], change: Callable[[NDArray[np.int64]], Change]) -> dict[str, Change]:
    return {name: change(unit) for name, unit in labels.items()}


def _labels(step: Step, modules: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Units of all tables of a step."""
    homes = RepeatedUnits.of(step.homes, modules)
    local = RepeatedUnits.of(step.trace, modules, homes, step.origin)
    sent, operators = step.transfers, np.append(local.operators, NO_UNIT)  # the last for none, and for after all
    at = np.where(sent.after >= 0, sent.after, sent.before)
    count = len(homes.values)
    return {
        **{f.name: getattr(local, f.name) for f in fields(RepeatedUnits)},
        "homes": local.operators, "home values": homes.values, "home storages": homes.storages,
        "transfers": operators[at], "origin": local.values[count : count + len(step.origin)],
        "apart": local.values[sorted(step.apart)],
    }  # fmt: skip


def _tables(step: Step, labels: dict[str, NDArray[np.int64]]) -> dict[str, RelatedTable]:
    """All tables of a step."""

    def columns(table: object) -> dict[str, Any]:
        return {f.name: getattr(table, f.name) for f in fields(table)}  # type: ignore[arg-type]

    homes = step.homes.operators
    return {
        **tables_of(step.trace, RepeatedUnits(**{f.name: labels[f.name] for f in fields(RepeatedUnits)})),
        "homes": RelatedTable(
            labels["homes"], {"args": homes.args, "inputs": homes.inputs, "outputs": homes.outputs},
            {"inputs": "home values", "outputs": "home values"},
        ),
        "home values": RelatedTable(
            labels["home values"], columns(step.homes.values), {"storage": "home storages", "of": "home values"},
            named=frozenset(["name"]),
        ),
        "home storages": RelatedTable(labels["home storages"], {}),
        "transfers": RelatedTable(
            labels["transfers"], columns(step.transfers),
            {"after": "operators", "before": "operators", "value": "values"},
        ),
        "origin": RelatedTable(labels["origin"], {"value": np.array(step.origin, np.int64)}, {"value": "values"}),
        "apart": RelatedTable(labels["apart"], {"value": np.array(sorted(step.apart), np.int64)}, {"value": "values"}),
    }  # fmt: skip


def _step(step: Step, made: ChangedTables, counts: Counts) -> Step:
    """A changed step; ``counts`` are those of the undivided one."""
    trace = trace_of(step.trace, made)
    values = Values(**made.columns["home values"])
    if not np.array_equal(made.change["values"].source[: len(values)], made.change["home values"].source):
        raise NotRepeating("values of the share are not those of the undivided step")
    flop, moved = counts
    operators = replace(trace.operators, flop=flop, bytes=moved, **made.columns["homes"])
    origin, apart = (made.columns[name]["value"].tolist() for name in ("origin", "apart"))
    return replace(
        step, trace=trace, homes=replace(step.homes, operators=operators, values=values, modules=trace.modules),
        transfers=Transfers(**made.columns["transfers"]), origin=tuple(origin), apart=frozenset(apart),
    )  # fmt: skip
