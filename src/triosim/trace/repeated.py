"""A trace of many equal blocks as a short one of few, and what is made of the short one taken back to all blocks.

Blocks (:mod:`triosim.trace.blocks`) that follow one another and are alike, or alternate, form *units*; a trace of more
than :data:`KEPT` is shortened to the first and the last few.  What works operator by operator then need see each kind
of block once.  Nothing is taken on trust: what the short trace stands for is compared with the trace itself, column by
column, and what is made of the short trace has to repeat its own units (:meth:`RepeatedTrace.checked`) before it is
repeated further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim import operators as rules
from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.relations import Change, ChangedTables, RelatedTable, changed, renamed
from triosim.core.tiling import NO_UNIT, Contraction, NotRepeating, Tiling, laid
from triosim.trace.blocks import blocks
from triosim.trace.calls import call_of, calls_of
from triosim.trace.tables import NONE, Category, Modules, Operators, Phase, Trace, Values

PATTERN = 3
"""The unit that is repeated: the third, so that its neighbours have neighbours of their own.  What stands before the
first unit counts as unit 0."""
KEPT = 2 * PATTERN
"""Units of a short trace."""
ROOM = 64_000
"""Operators of the traces that a stage of a prediction keeps: eight of many layers, or dozens of short ones."""
LONGEST_PERIOD = 8
"""Blocks that a unit may consist of, for models whose layers alternate."""
LEAST_SAVED = 4
"""Blocks fewer than which are not worth leaving out."""


@dataclass(frozen=True)
class RepeatedUnits:
    """The unit that everything in a trace is in: labels from 0 on, :data:`NO_UNIT` for what is in none.

    Attributes:
        operators, values, storages, modules: by row of the tables, by number of the storages.
    """

    operators: NDArray[np.int64]
    values: NDArray[np.int64]
    storages: NDArray[np.int64]
    modules: NDArray[np.int64]

    @staticmethod
    def of(
        trace: Trace, modules: NDArray[np.int64], known: RepeatedUnits | None = None, origin: tuple[int, ...] = ()
    ) -> RepeatedUnits:
        """What operators, values and storages are in, from the units of the modules.

        A value is in the unit of the operator that touches it first, otherwise in that of the parameter that it belongs
        to, or of what else is on its storage.  A parameter that only an optimizer touches is in that of its module.

        Args:
            trace: the tables.
            modules: units of the modules.
            known: units of the first values and storages.
            origin: values that those after the known ones are of.
        """
        operators, values = trace.operators, trace.values
        touched = np.full(len(values), len(operators), np.int64)
        for table in (operators.inputs, operators.outputs):
            np.minimum.at(touched, table.values, table.rows())
        storages = int(values.storage.max(initial=NONE)) + 1
        rows = np.append(modules, NO_UNIT)[operators.module]
        named = _by_name(trace, modules, rows, touched)
        unit = _values(values, rows, touched, storages, named, known, origin)
        settled = _settled(operators, rows, unit)
        if not np.array_equal(settled, rows):
            rows, unit = settled, _values(values, settled, touched, storages, named, known, origin)
        on = _first_on(values.storage, unit, storages)
        empty = np.bincount(values.storage, minlength=storages) == 0
        on = on[np.maximum.accumulate(np.where(empty, 0, np.arange(storages)))]  # numbers that are not used
        if known is not None:
            on[: len(known.storages)] = known.storages
        return RepeatedUnits(rows, unit, on, modules)


def _by_name(
    trace: Trace, modules: NDArray[np.int64], rows: NDArray[np.int64], touched: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Units of parameters that no operator of a module touches, by the module that their names begin with."""
    values = trace.values
    found = np.full(len(values), NO_UNIT, np.int64)
    lone = (np.append(rows, NO_UNIT)[touched] < 0) & (values.category == Category.WEIGHT)
    unit: dict[str, int] = {}
    for row in np.flatnonzero(lone).tolist():
        unit = unit or dict(zip(trace.modules.path, modules.tolist(), strict=True))
        found[row] = unit.get(values.name[row].rpartition(".")[0], NO_UNIT)
    return found


def _values(
    values: Values, rows: NDArray[np.int64], touched: NDArray[np.int64], storages: int, named: NDArray[np.int64],
    known: RepeatedUnits | None, origin: tuple[int, ...],
) -> NDArray[np.int64]:  # fmt: skip
    """Units of values, from those of operators and the operator that touches each first."""
    unit = np.append(rows, NO_UNIT)[touched]
    unit = np.where(unit < 0, named, unit)
    if known is not None:
        given = len(known.values)
        unit[:given] = known.values
        of = np.array(origin, np.int64)
        more = unit[given : given + len(of)]
        unit[given : given + len(of)] = np.where(more >= 0, more, unit[of])
    unit = np.where((unit < 0) & (values.of >= 0), unit[values.of], unit)
    on = _first_on(values.storage, unit, storages)
    return np.where(unit < 0, on[values.storage], unit)


def _first_on(storage: NDArray[np.int32], unit: NDArray[np.int64], storages: int) -> NDArray[np.int64]:
    """Unit of the first value on each storage that is in one."""
    found = np.full(storages, NO_UNIT, np.int64)
    within = np.flatnonzero(unit >= 0)[::-1]
    found[storage[within]] = unit[within]
    return found


def _settled(operators: Operators, rows: NDArray[np.int64], unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units of operators, those of an optimizer where all that they touch is in one."""
    least, most = np.full(len(rows), np.iinfo(np.int64).max), np.full(len(rows), NO_UNIT, np.int64)
    for table in (operators.inputs, operators.outputs):
        own, touched = table.rows(), unit[table.values]
        inside = touched >= 0
        np.minimum.at(least, own[inside], touched[inside])
        np.maximum.at(most, own[inside], touched[inside])
    alone = (rows < 0) & (operators.phase == Phase.OPTIMIZER) & (least == most)
    return np.where(alone, most, rows)


# --- a trace as tables ------------------------------------------------------------------------------------------------


def tables_of(trace: Trace, units: RepeatedUnits) -> dict[str, RelatedTable]:
    """A trace's tables, and what their columns refer to."""

    def columns(table: object, *left_out: str) -> dict[str, Any]:
        return {f.name: getattr(table, f.name) for f in fields(table) if f.name not in left_out}  # type: ignore[arg-type]

    return {
        "operators": RelatedTable(
            units.operators, columns(trace.operators, "role_names"),
            {"module": "modules", "inputs": "values", "outputs": "values", "forward": "operators"}, {"roles": "inputs"},
        ),
        "values": RelatedTable(
            units.values, columns(trace.values), {"storage": "storages", "of": "values"}, named=frozenset(["name"])
        ),
        "storages": RelatedTable(units.storages, {}),
        "modules": RelatedTable(units.modules, columns(trace.modules), named=frozenset(["path"])),
    }  # fmt: skip


def tiled_all(units: RepeatedUnits, copies: int) -> dict[str, Change]:
    """Every table with the pattern repeated."""
    return {f.name: Tiling.of(getattr(units, f.name), PATTERN, copies) for f in fields(RepeatedUnits)}


def contracted_all(units: RepeatedUnits, dropped: int) -> dict[str, Change]:
    """Every table without the units after the pattern."""
    return {f.name: Contraction.of(getattr(units, f.name), PATTERN, dropped) for f in fields(RepeatedUnits)}


def contracted_units(change: Mapping[str, Change]) -> RepeatedUnits:
    """Labels of tables that were contracted."""
    return RepeatedUnits(**{f.name: change[f.name].units for f in fields(RepeatedUnits)})  # type: ignore[union-attr]


def trace_of(trace: Trace, made: ChangedTables, like: Trace | None = None) -> Trace:
    """A changed trace; FLOP and bytes of operators that span all blocks are counted anew, or are those of ``like``."""
    columns = made.columns
    values = Values(**columns["values"])
    operators = Operators(role_names=trace.operators.role_names, **columns["operators"])
    rows = made.spanning["operators"]
    if rows.size:
        flop, moved = operators.flop.copy(), operators.bytes.copy()
        if like is not None:
            flop[rows], moved[rows] = like.operators.flop[rows], like.operators.bytes[rows]
        else:
            for row in rows.tolist():
                call = call_of(operators, values, row)
                flop[row] = flop[row] if np.isnan(flop[row]) else rules.flop(call)
                moved[row] = rules.bytes_of(call)
        operators = replace(operators, flop=flop, bytes=moved)
    return replace(trace, operators=operators, values=values, modules=Modules(**columns["modules"]))


def differing(a: object, b: object) -> str:
    """The first column in which two dataclasses of columns differ, ``""`` for none."""
    for f in fields(a):  # type: ignore[arg-type]
        mine, theirs = getattr(a, f.name), getattr(b, f.name)
        if mine is theirs:
            continue
        if isinstance(mine, np.ndarray):
            same = mine.dtype == theirs.dtype and np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
        elif isinstance(mine, Ragged):
            same = np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.values, theirs.values)
        elif hasattr(mine, "__dataclass_fields__"):
            inner = differing(mine, theirs)
            if inner:
                return f"{f.name}.{inner}"
            continue
        else:
            same = mine == theirs
        if not same:
            return f.name
    return ""


# --- shortening -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepeatedTrace:
    """A trace of many equal units, as a short one.

    Attributes:
        short: with the first and the last units only.
        unit: of each module of ``short``.
        paths: paths of the blocks of the pattern, of each unit that was left out, and of the one after.
    """

    short: Trace
    unit: NDArray[np.int64]
    paths: tuple[tuple[str, ...], ...]

    @property
    def copies(self) -> int:
        """Units that were left out."""
        return len(self.paths) - 2

    def long(self, made: Trace) -> Trace:
        """What was made of the short trace, for all units.

        Raises:
            NotRepeating: it does not repeat its units.
        """
        units = RepeatedUnits.of(made, self.unit)
        self.check(made, units)
        return trace_of(made, self.tiled(tables_of(made, units), tiled_all(units, self.copies)))

    def times(self, made: Trace) -> NDArray[np.int64]:
        """How many values of the long trace each value of one that was made of the short trace stands for."""
        return np.where(RepeatedUnits.of(made, self.unit).values == PATTERN, self.copies + 1, 1)

    def sentences(self, of_short: Sequence[str]) -> list[str]:
        """Sentences that begin with the path of a module, in the order of the modules, for all units.

        Raises:
            NotRepeating: those of the pattern do not stand beside its neighbours'.
        """
        unit = dict(zip(self.short.modules.path, self.unit.tolist(), strict=True))
        labels = np.array([unit.get(text.partition(" ")[0], NO_UNIT) for text in of_short], np.int64)
        source, copy = laid(labels, PATTERN, self.copies)
        found = [of_short[row] for row in source.tolist()]
        for at in np.flatnonzero(copy).tolist():
            found[at] = renamed(found[at], list(zip(self.paths[0], self.paths[copy[at]], strict=True)))
        return found

    def check(self, made: Trace, units: RepeatedUnits) -> None:
        """Check that what was made of the short trace is what its units but one say.

        Raises:
            NotRepeating: it is not.
        """
        fewer = contracted_all(units, 1)
        short = trace_of(made, changed(tables_of(made, units), fewer))
        less = contracted_units(fewer)
        again = trace_of(short, self.tiled(tables_of(short, less), tiled_all(less, 1), once=True))
        where = differing(again, made)
        if where:
            raise NotRepeating(f"{where} does not repeat")

    def tiled(
        self, tables: Mapping[str, RelatedTable], change: Mapping[str, Change], once: bool = False
    ) -> ChangedTables:
        """Tables with all units, as ``change`` says; ``once``: with one more, the last of :attr:`paths`."""
        names = self.paths[-1:] if once else self.paths[1:-1]
        return changed(tables, change, [tuple(zip(self.paths[0], own, strict=True)) for own in names])


@dataclass(frozen=True)
class UnitRun:
    """Units that follow one another among the blocks of a model, more than are kept.

    Attributes:
        begin: blocks before them.
        period: blocks of each.
        units: how many.
    """

    begin: int
    period: int
    units: int

    @staticmethod
    def of(signatures: Sequence[object]) -> UnitRun | None:
        """The run of which most can be left out, of blocks that are alike where their signatures are equal; None where
        that is too little."""
        best = UnitRun(0, 1, 0)
        for period in range(1, LONGEST_PERIOD + 1):
            begin = 0
            for at in range(len(signatures)):
                if at + period >= len(signatures) or signatures[at] != signatures[at + period]:
                    units = (at + period - begin) // period if at + period <= len(signatures) else 0
                    if (units - KEPT) * period > best.dropped * best.period:
                        best = UnitRun(begin, period, units)
                    begin = at + 1
        return best if best.dropped * best.period >= LEAST_SAVED else None

    @property
    def dropped(self) -> int:
        """Units that are left out."""
        return self.units - KEPT

    def labels(self, blocks: int) -> NDArray[np.int64]:
        """The unit of each block, and at the end of what is in no block."""
        label = np.full(blocks + 1, NO_UNIT, np.int64)
        end = self.begin + self.units * self.period
        label[: self.begin] = 0
        label[self.begin : end] = 1 + np.arange(self.units * self.period) // self.period
        label[end:-1] = self.units + 1
        return label

    def kept(self, blocks: int) -> list[int]:
        """Blocks that are not left out."""
        first = self.begin + PATTERN * self.period
        return [*range(first), *range(first + self.dropped * self.period, blocks)]

    def paths(self, path: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Of :class:`RepeatedTrace`, from those of all blocks."""
        first = self.begin + (PATTERN - 1) * self.period
        begins = [first + at * self.period for at in range(self.dropped + 2)]
        return tuple(tuple(path[begin : begin + self.period]) for begin in begins)


def lengthened(short: Trace, run: UnitRun, path: Sequence[str]) -> Trace:
    """The trace of all blocks from that of the blocks that a run keeps; :func:`repeated` then knows that one.

    Args:
        short: a trace with ``run.kept(len(path))`` of the blocks.
        run: what is left out.
        path: of all blocks.

    Raises:
        NotRepeating: the blocks are not those of the trace, or its units do not repeat.
    """
    found = blocks(short)
    if list(found.path) != [path[block] for block in run.kept(len(path))]:
        raise NotRepeating("other blocks")
    labels = UnitRun(run.begin, run.period, KEPT).labels(len(found))
    made = RepeatedTrace(short, labels[found.of_module], run.paths(path))
    units = RepeatedUnits.of(short, made.unit)
    made.check(short, units)
    whole = made.tiled(tables_of(short, units), tiled_all(units, made.copies))
    long = trace_of(short, whole)
    source = whole.change["operators"].source
    outside = np.flatnonzero(units.operators[source] == NO_UNIT)
    for row, place in zip(source[outside].tolist(), outside.tolist(), strict=True):
        _check_lists(short.operators, row, long.operators, place)
    repeated.known(made, long)  # type: ignore[attr-defined]
    return long


def _check_lists(short: Operators, row: int, long: Operators, place: int) -> None:
    """Check an operator of many lists, as those of an optimizer: lists that were equally long have to stay so.

    Raises:
        NotRepeating: one has become longer than another, whose entries are in no unit.
    """
    before, after = (
        [*np.unique(table.roles[at], return_counts=True)[1].tolist(), len(table.outputs[at])]
        for table, at in ((short, row), (long, place))
    )
    if len(before) != len(after) or len(set(zip(before, after, strict=True))) > len(set(before)):
        raise NotRepeating(f"the lists of {short.name[row]}")


@kept(8)
def repeated(trace: Trace) -> RepeatedTrace | None:
    """The trace as a short one; None where it has no units that repeat, or too few.

    A trace with kernels or communications of its own is not shortened: no two blocks of a recording are equal.
    """
    if len(trace.kernels) or len(trace.communications):
        return None
    found = blocks(trace)
    of = found.of(trace)
    run = UnitRun.of(_signatures(trace, of, len(found)))
    if run is None:
        return None
    modules = run.labels(len(found))[found.of_module]
    try:
        whole = RepeatedUnits.of(trace, modules)
        change = contracted_all(whole, run.dropped)
        short = trace_of(trace, changed(tables_of(trace, whole), change))
        made = RepeatedTrace(short, contracted_units(change).modules, run.paths(found.path))
        units_of = RepeatedUnits.of(short, made.unit)
        again = trace_of(short, made.tiled(tables_of(short, units_of), tiled_all(units_of, run.dropped)))
    except NotRepeating:
        return None
    return None if differing(again, trace) else made


def _signatures(trace: Trace, of: NDArray[np.int32], count: int) -> list[bytes]:
    """What tells blocks apart: calls, phases and measured times of their operators."""
    operators = trace.operators
    order = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[order], np.arange(count + 1))
    columns = np.stack(
        [
            calls_of(trace).row.astype(np.float64), operators.phase.astype(np.float64),
            operators.device_s, operators.host_s,
        ]
    )[:, order]  # fmt: skip
    return [columns[:, a:b].tobytes() for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
