"""Operators in order on one stream, and collectives on another that slow down the operators beside them.

Nothing here shares a link, so one pass over the operators says when each begins.  Times are whole ticks, equal to those
of :mod:`triosim.engine.contended`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import triosim.engine._native as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None  # type: ignore[assignment]

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


def pass_chain(step: tuple[Any, ...], more: tuple[Any, ...]) -> _native.PassChain | None:
    """What runs passes of a step in C++, None where there was no compiler.

    Args:
        step: as of :func:`run_operator_chain`.
        more: of each collective the ticks before its bytes move, and whether it is called in every pass; ticks of a gap
            and of launching what is sent; how many times longer collectives take beside those of another axis where
            they are waited for, and how many times longer those do; whether operators wait for their host.
    """
    return None if _native is None else _native.PassChain(step, more)


def run_operator_chain(
    step: tuple[Any, ...], rows: Int32, called: NDArray[np.int8], under_way: Int64, hosted: bool = False
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Run operators in order on one stream, with collectives on another that slow down the operators beside them.

    Args:
        step: of each operator ticks, ticks of the gap after it, ticks for which the host issues it, and whether it is
            skipped; lists (ends and values) of the collectives that are called after it, before it, and that it needs;
            ticks of each collective; ticks for which the host issues one; how many times longer an operator takes
            beside one.
        rows: operators, in order.
        called: which collectives are called.
        under_way: until when collectives that were called before are under way, -1 for the others.
        hosted: whether nothing begins before its host has issued it, in order from tick 0.

    Returns:
        when each of ``rows`` begins, is done and has been issued; when each collective begins and ends, -1 for one that
        is not called.
    """
    if _native is not None:
        found: tuple[Int64, Int64, Int64, Int64, Int64] = _native.chained(step, rows, called, under_way, hosted)[:5]
        return found
    ticks, gaps, issue, skips, *lists, calls, call_issue, slowdown = step
    after, early, needs = (
        [values[a:b].tolist() for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        for ends, values in zip(lists[::2], lists[1::2], strict=True)
    )
    begin, done, issued = (np.zeros(len(rows), np.int64) for _ in range(3))
    call_begin, call_end = np.full(len(calls), -1, np.int64), under_way.copy()
    host = free = talks = 0  # a collective is under way from ``talks`` to ``talked``
    talked = int(under_way.max(initial=0))

    def call(number: int) -> None:
        nonlocal host, talks, talked
        if called[number]:
            host += call_issue if hosted else 0
            at = max(free, talked, host)
            talks = at if at > talked else talks
            talked = at + int(calls[number])
            call_begin[number], call_end[number] = at, talked

    for place, row in enumerate(rows.tolist()):
        for number in early[row]:
            call(number)
        ready = max([free, *(int(call_end[number]) for number in needs[row])])
        if skips[row]:
            free = ready
            begin[place] = done[place] = free
        else:
            host += int(issue[row]) if hosted else 0
            ready = max(ready, host)
            length, start = int(ticks[row]), max(talks, ready)
            if slowdown > 1 and talked > start and ready + length > start:
                rest, concurrent = float(length - (start - ready)), (talked - start) / slowdown
                whole = rest * slowdown if rest <= concurrent else talked - start + rest - concurrent
                stretched = math.floor(whole + 0.5)  # halves up, as C++ does
                length = start - ready + stretched
            begin[place], done[place] = ready, ready + length
            free = ready + length + int(gaps[row])
        issued[place] = host
        for number in after[row]:
            call(number)
    return begin, done, issued, call_begin, call_end
