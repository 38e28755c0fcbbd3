"""Which operators external times belong to: by name, in order, or as a mapping file says.

Where a file has several launches of what the trace has once or more, their number must be a whole multiple: the file
then holds so many iterations, and each operator gets the median of its own.  Whatever fits nothing is listed with the
reason and left to the model that prices the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.kernels.external_mapping import ExternalMapping, Part
from triosim.kernels.external_times import SIDES, ExternalTimes, Granularity
from triosim.trace.tables import Phase, Trace

_PHASES = {SIDES.index("forward"): Phase.FORWARD, SIDES.index("backward"): Phase.BACKWARD}
_COPIES = ("Memcpy", "Memset")
"""Beginnings of the names of copies and memsets, which are no part of an operator's time."""


@dataclass(frozen=True)
class MatchedTimes:
    """External times of a trace's operators.

    Attributes:
        seconds: of each operator, NaN where none was given.
        share: part of the operator's work that these are the time of, below 1 where only some of its kernels were
            given.
        left: rows that fit nothing, and why.
    """

    seconds: NDArray[np.float64]
    share: NDArray[np.float64]
    left: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MatchTarget:
    """The operators that times are looked for.

    Attributes:
        trace: operators, with the kernels behind them where the source named them.
        launches: whether each launches anything.
        weight: seconds that the rest of the program thinks each takes, to divide the time of a module by.
    """

    trace: Trace
    launches: NDArray[np.bool_]
    weight: NDArray[np.float64]


def match(mapping: ExternalMapping, tables: Sequence[ExternalTimes], target: MatchTarget) -> MatchedTimes:
    """The operators that the times in ``tables`` are of.

    Raises:
        InputError: what a mapping file or the order asks for does not go together.
    """
    if mapping.match == "operators":
        return _mapped(mapping, tables, target)
    if mapping.match == "order":
        return _ordered(mapping, tables, target)
    found = [_NAMED[table.what](table, target) for table in tables]
    seconds, share = found[0].seconds, found[0].share
    for one in found[1:]:
        given = np.isfinite(one.seconds)
        seconds, share = np.where(given, one.seconds, seconds), np.where(given, one.share, share)
    return MatchedTimes(seconds, share, tuple(left for one in found for left in one.left))


# by name --------------------------------------------------------------------------------------------------------------


def _by_kernel(times: ExternalTimes, target: MatchTarget) -> MatchedTimes:
    """Kernel for kernel: all launches of one name, in order, those of the trace."""
    kernels = target.trace.kernels
    at: dict[str, list[int]] = {}
    for row, name in enumerate(kernels.name):
        if not name.startswith(_COPIES):
            at.setdefault(" ".join(name.split()), []).append(row)
    new = np.full(len(kernels), np.nan)
    left = []
    for key, rows in _groups(times):
        here = np.array(at.get(" ".join(key[0].split()), []), np.int64)
        laid = _laid(times, rows, kernels.device_s[here]) if here.size else "no such kernel in the trace"
        if isinstance(laid, str):
            left.append((key[0], laid))
        else:
            new[here] = laid
    return MatchedTimes(*_summed(target, new), tuple(left))


def _by_operator(times: ExternalTimes, target: MatchTarget) -> MatchedTimes:
    """Operator for operator; a row that names its module too counts before one that does not."""
    seconds = np.full(len(target.trace), np.nan)
    left = []
    made = _outputs(target.trace)
    for key, rows in sorted(_groups(times), key=lambda group: bool(group[0][1])):
        name, module, side, elements = key
        here = _selected(target, name, module or "*") & _of_side(target.trace, side)
        here &= (made == elements) | (elements == 0)
        at = np.flatnonzero(here)
        once = len(rows) == 1 and times.launches[rows[0]] == 1
        laid: NDArray | str = "no such operator in the trace"
        if at.size:
            laid = np.full(len(at), times.seconds[rows[0]]) if once else _laid(times, rows, target.weight[at])
        if isinstance(laid, str):
            left.append((f"{name} | {module}" if module else name, laid))
        else:
            seconds[at] = laid
    return MatchedTimes(seconds, np.ones(len(seconds)), tuple(left))


def _by_module(times: ExternalTimes, target: MatchTarget) -> MatchedTimes:
    """The operators of a module in one pass share its time in the measure of what each was thought to take."""
    trace = target.trace
    at: dict[str, list[int]] = {}
    for row, path in enumerate(trace.modules.path):
        at.setdefault(path.replace(".", "_"), []).append(row)
    seconds = np.full(len(trace), np.nan)
    left = []
    made = _outputs(trace)
    for (name, _, side, elements), rows in _groups(times):
        inside = np.isin(trace.operators.module, at.get(name, []))
        here = np.flatnonzero(inside & target.launches & _of_side(trace, side))
        title = f"{name} {SIDES[side]}".strip()
        if not here.size:
            left.append((title, "no such module in the trace" if name not in at else "launches nothing in this pass"))
        elif elements and not np.any(made[inside & _of_side(trace, SIDES.index("forward"))] == elements):
            left.append((title, f"its output has {elements} elements, that of the trace's module another number"))
        else:
            laid = _laid(times, rows, np.ones(1))
            if isinstance(laid, str):
                left.append((title, laid))
                continue
            weight = target.weight[here]
            seconds[here] = laid[0] * (weight / weight.sum() if weight.sum() > 0 else 1 / len(here))
    return MatchedTimes(seconds, np.ones(len(seconds)), tuple(left))


def _by_nothing(times: ExternalTimes, target: MatchTarget) -> MatchedTimes:
    reason = "has no operator's name: give a mapping file"
    nothing = np.full(len(target.trace), np.nan)
    return MatchedTimes(nothing, np.ones(len(nothing)), tuple((name, reason) for name in times.name))


_NAMED = {
    Granularity.KERNEL: _by_kernel,
    Granularity.OPERATOR: _by_operator,
    Granularity.MODULE: _by_module,
    Granularity.REGION: _by_nothing,
}


def _groups(times: ExternalTimes) -> Iterator[tuple[tuple[str, str, int, int], list[int]]]:
    """Rows that say they are of the same, in the order of the first of each."""
    found: dict[tuple[str, str, int, int], list[int]] = {}
    keys = zip(times.name, times.module, times.side.tolist(), times.elements.tolist(), strict=True)
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return iter(found.items())


def _laid(times: ExternalTimes, rows: list[int], recorded: NDArray[np.float64]) -> NDArray[np.float64] | str:
    """The times in ``rows`` laid over as many launches of the trace, or why they cannot be.

    A mean over several launches is divided in the measure of the recorded times, so that the short ones stay short.
    """
    want = len(recorded)
    seconds = times.seconds[rows]
    if np.isnan(seconds).any():
        return "did not finish" if len(rows) == 1 else f"{int(np.isnan(seconds).sum())} launches did not finish"
    if len(rows) == 1:
        launches = int(times.launches[rows[0]])
        if launches % want:
            return f"{_count(launches)} here, {want} in the trace"
        mean = float(np.nan_to_num(recorded).mean())
        shape = recorded / mean if mean > 0 and np.isfinite(recorded).all() else np.ones(want)
        return seconds[0] * shape
    if np.any(times.launches[rows] > 1):
        return f"{len(rows)} totals of this name: give a mapping file"
    if len(rows) % want:
        return f"{_count(len(rows))} here, {want} in the trace"
    laid: NDArray[np.float64] = np.median(seconds.reshape(-1, want), axis=0)
    return laid


def _count(launches: int) -> str:
    return "1 launch" if launches == 1 else f"{launches} launches"


def _summed(target: MatchTarget, new: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From kernels to operators: the sum of those given, and the part of the recorded time that they stand for."""
    kernels, n = target.trace.kernels, len(target.trace)
    given = np.isfinite(new)
    counts = np.array([not name.startswith(_COPIES) for name in kernels.name], bool)
    weight = np.where(np.nan_to_num(kernels.device_s) > 0, np.nan_to_num(kernels.device_s), 1e-12)
    total = np.bincount(kernels.operator[counts], weight[counts], n)
    part = np.bincount(kernels.operator[given], weight[given], n)
    seconds = np.bincount(kernels.operator[given], new[given], n)
    return np.where(part > 0, seconds, np.nan), np.divide(part, total, out=np.ones(n), where=part > 0)


# in order -------------------------------------------------------------------------------------------------------------


def _ordered(mapping: ExternalMapping, tables: Sequence[ExternalTimes], target: MatchTarget) -> MatchedTimes:
    """One to one with the kernels of the trace, or with its operators where it names none or the times are not of any.

    Raises:
        InputError: there are more or less of the one than of the other.
    """
    times = _joined(tables)
    kernels = target.trace.kernels
    by_kernel = len(kernels) > 0 and all(table.what == Granularity.KERNEL for table in tables)
    if by_kernel:
        at = np.array([row for row, name in enumerate(kernels.name) if not name.startswith(_COPIES)], np.int64)
    else:
        at = np.flatnonzero(target.launches)
    unfinished = np.flatnonzero(np.isnan(times.seconds))
    if unfinished.size:
        raise InputError(f"{mapping.path}: row {unfinished[0]} of the times did not finish, so the order is lost")
    if np.any(times.launches > 1):
        raise InputError(f"{mapping.path}: a summary has no order; give a trace of launches, or a table [operators]")
    if not at.size or len(times) % len(at):
        what = "kernels" if by_kernel else "operators that launch something"
        raise InputError(
            f"{mapping.path}: {len(times)} rows of times and {len(at)} {what} in the trace do not go together in "
            "order; select operators in a table [operators]"
        )
    laid = np.median(times.seconds.reshape(-1, len(at)), axis=0)
    new = np.full(len(kernels) if by_kernel else len(target.trace), np.nan)
    new[at] = laid
    return MatchedTimes(*_summed(target, new), ()) if by_kernel else MatchedTimes(new, np.ones(len(new)), ())


def _joined(tables: Sequence[ExternalTimes]) -> ExternalTimes:
    """The rows of several tables, numbered through."""
    if len(tables) == 1:
        return tables[0]
    return ExternalTimes(
        source=", ".join(one.source for one in tables),
        what=tables[0].what,
        name=tuple(name for one in tables for name in one.name),
        module=tuple(module for one in tables for module in one.module),
        side=np.concatenate([one.side for one in tables]),
        launches=np.concatenate([one.launches for one in tables]),
        seconds=np.concatenate([one.seconds for one in tables]),
        elements=np.concatenate([one.elements for one in tables]),
    )


# as a mapping file says -----------------------------------------------------------------------------------------------


def _mapped(mapping: ExternalMapping, tables: Sequence[ExternalTimes], target: MatchTarget) -> MatchedTimes:
    """Every line of ``[operators]``: the operators that it selects, and the times that it gives them.

    Raises:
        InputError: a line selects no operators or no times, an operator is selected twice, or the numbers of both do
            not go together.
    """
    times = _joined(tables)
    seconds = np.full(len(target.trace), np.nan)
    used = np.zeros(len(times), bool)
    by = np.full(len(target.trace), -1)
    for line, (key, parts) in enumerate(mapping.operators):
        at = _lines_operators(mapping, key, target)
        twice = at[by[at] >= 0]
        if twice.size:
            other = mapping.operators[by[twice[0]]][0]
            raise InputError(
                f"{mapping.path}: operator {twice[0]} ({target.trace.operators.name[twice[0]]}) is selected by "
                f"{quoted(other)} and by {quoted(key)}; let one of them select less"
            )
        by[at] = line
        seconds[at] = 0.0
        for part in parts:
            rows = _lines_rows(mapping, key, part, times)
            used[rows] = True
            seconds[at] += _part(mapping, key, part, times, rows, len(at))
    left = tuple((times.name[row], "not in the mapping file") for row in np.flatnonzero(~used).tolist())
    return MatchedTimes(seconds, np.ones(len(seconds)), left)


def _lines_operators(mapping: ExternalMapping, key: str, target: MatchTarget) -> NDArray[np.int64]:
    """Operators that one line selects: ``"#12"`` or ``"operator | module"``, each a pattern."""
    trace = target.trace
    if key.startswith("#"):
        if not key[1:].strip().isdecimal() or int(key[1:]) >= len(trace):
            raise InputError(f"{mapping.path}: {quoted(key)} is no operator; rows are #0 to #{len(trace) - 1}")
        if not target.launches[int(key[1:])]:
            raise InputError(f"{mapping.path}: operator {key} ({trace.operators.name[int(key[1:])]}) launches nothing")
        return np.array([int(key[1:])], np.int64)
    name, _, module = (word.strip() for word in key.partition("|"))
    found = np.flatnonzero(_selected(target, name or "*", module or "*"))
    if found.size:
        return found
    hint = "(triosim trace show --operators lists operators and modules)"
    named = _selected(target, name or "*", "*")
    if not named.any():
        known = {name for name, launches in zip(trace.operators.name, target.launches, strict=True) if launches}
        raise unknown(f"operator in {mapping.path}:", name, known, hint)
    paths = (*trace.modules.path, "")
    raise unknown(
        f"module of {name or '*'} in {mapping.path}:", module, {paths[m] for m in trace.operators.module[named]}, hint
    )


def _selected(target: MatchTarget, name: str, module: str) -> NDArray[np.bool_]:
    """Operators that launch something with this name, whole or without its namespace, in this module."""
    trace = target.trace
    names = {full: _fits(full, name) or _fits(full.split("::")[-1], name) for full in set(trace.operators.name)}
    found = np.fromiter(map(names.__getitem__, trace.operators.name), bool, len(trace)) & target.launches
    if module == "*":
        return found
    inside = np.array([*(_fits(path, module) for path in trace.modules.path), _fits("", module)], bool)
    return found & inside[trace.operators.module]  # -1, in no module, is the last


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is this one or of this pattern; names of kernels may have ``*`` and ``[`` of their own."""
    return name == pattern or fnmatchcase(name, pattern)


def _lines_rows(mapping: ExternalMapping, key: str, part: Part, times: ExternalTimes) -> list[int]:
    """Rows of the times that one part names."""
    if isinstance(part, int):
        if not 0 <= part < len(times):
            raise InputError(
                f"{mapping.path}: {quoted(key)} names row {part}; the times have rows 0 to {len(times) - 1}"
            )
        return [part]
    rows = [row for row, name in enumerate(times.name) if name == part]
    rows = rows or [row for row, name in enumerate(times.name) if fnmatchcase(name, part)]
    if not rows:
        raise unknown(f"name in {mapping.path}, {quoted(key)}:", part, set(times.name))
    return rows


def _part(
    mapping: ExternalMapping, key: str, part: Part, times: ExternalTimes, rows: list[int], want: int
) -> NDArray[np.float64]:
    """Seconds of one part for each of the ``want`` operators that a line selects."""
    seconds = times.seconds[rows]
    if np.isnan(seconds).any():
        raise InputError(
            f"{mapping.path}: {quoted(key)} names {quoted(part)}, which did not finish; let the simulation end"
        )
    if len(rows) == 1:
        return np.full(want, seconds[0])
    names = [times.name[row] for row in rows]
    alike = all(name == names[at % want] for at, name in enumerate(names))
    if len(rows) % want or np.any(times.launches[rows] > 1) or (len(rows) > want and not alike):
        raise InputError(
            f"{mapping.path}: {quoted(key)} selects {want} operators and {quoted(part)} {len(rows)} rows of times; "
            "name one row, "
            "as many rows, or several kernels of an operator as a list"
        )
    laid: NDArray[np.float64] = np.median(seconds.reshape(-1, want), axis=0)
    return laid


# both -----------------------------------------------------------------------------------------------------------------


def _of_side(trace: Trace, side: int) -> NDArray[np.bool_]:
    if side in _PHASES:
        found: NDArray[np.bool_] = trace.operators.phase == _PHASES[side]
        return found
    return np.ones(len(trace), bool)


def _outputs(trace: Trace) -> NDArray[np.int64]:
    """Elements of each operator's first output, 0 where it has none."""
    outputs = trace.operators.outputs
    some = outputs.lengths() > 0
    made = np.zeros(len(trace), np.int64)
    made[some] = trace.values.elements()[outputs.values[outputs.offsets[:-1][some]]]
    return made
