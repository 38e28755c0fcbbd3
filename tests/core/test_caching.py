"""Results that are kept: by value what has one, by identity the columns of tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import triosim
from triosim import Plan
from triosim.core.caching import kept
from triosim.core.errors import InputError


@dataclass(frozen=True)
class Table:
    name: str
    column: np.ndarray


def test_calls_are_told_apart_by_value_and_by_the_columns_of_tables() -> None:
    calls = []

    @kept(8)
    def work(table: Table, factor: float = 1, options: dict | None = None) -> float:
        calls.append(factor)
        return float(table.column.sum()) * factor

    ones, same = np.ones(3), Table("a", np.ones(3))
    assert work(Table("a", ones)) == work(Table("a", ones)) == 3
    assert len(calls) == 1
    work(same)  # equal, but another column
    work(Table("b", ones))
    work(Table("a", ones), 1.0)  # 1 and 1.0 may give other types
    work(Table("a", ones), factor=2)
    work(Table("a", ones), options={"x": [1, 2]})
    assert len(calls) == 6
    work(Table("a", ones), options={"x": [1, 2]})
    assert len(calls) == 6


def test_the_least_recently_used_goes_first_and_errors_are_not_kept() -> None:
    calls = []

    @kept(2)
    def work(x: int) -> int:
        calls.append(x)
        if x < 0:
            raise InputError("negative")
        return x

    for x in (1, 2, 1, 3, 1):
        work(x)
    assert calls == [1, 2, 3]
    work(2)
    assert calls == [1, 2, 3, 2]
    for _ in range(2):
        with pytest.raises(InputError):
            work(-1)
    assert calls[4:] == [-1, -1]


def test_a_second_prediction_is_that_of_the_first() -> None:
    """Whatever was asked before, also of a trace with the same name and shapes but other times."""
    trace, system = triosim.model("gpt2"), triosim.system("dgx-h100")
    plans = [Plan(tp=2, recompute=how, zero=zero) for how in ("none", "full") for zero in (0, 1)]
    once = [triosim.simulate(trace, system, plan).iteration_time_s for plan in plans]
    again = [triosim.simulate(trace, system, plan).iteration_time_s for plan in reversed(plans)]
    assert once == again[::-1]
    assert len(set(once)) == len(once)
    renamed = replace(trace, operators=replace(trace.operators))
    assert triosim.simulate(renamed, system, plans[0]).iteration_time_s == once[0]


def test_large_results_leave_room_for_few() -> None:
    calls: list[int] = []

    @kept(10, room=10, size=len)
    def zeros(length: int) -> tuple[int, ...]:
        calls.append(length)
        return (0,) * length

    for length in (1, 2, 3, 4, 1, 2, 3, 4):
        zeros(length)
    assert calls == [1, 2, 3, 4]  # together they just fit
    zeros(8)
    assert len(zeros(20)) == 20  # too large for all of it, and kept as the only one
    calls.clear()
    zeros(20), zeros(1)
    assert calls == [1]
