"""What published trainings were asked, and which rows of a source that is of."""

from __future__ import annotations

import re

from validation.data.training import FOUNDRY, PTD, TO_8K, ZERO_3
from validation.judge import targets
from validation.judge.training import Judged, table

SC21 = "Megatron-LM SC'21 Table 2"


def row(source: str, part: str, error: float, judges: bool = True) -> Judged:
    return Judged("T0001", source, judges, True, 1.0, 1.0 + error, 0.1, 9.0, part=part)


def test_a_part_of_a_source_is_judged_without_its_rest() -> None:
    rows = [row(SC21, PTD, 0.01), row(SC21, ZERO_3, -0.4)]
    assert targets.gated(SC21, rows) == (rows[:1], 0.02)
    assert not table(rows, "of which one is asked")
    assert table([row(SC21, PTD, 0.03), *rows[1:]], "beyond 2 %") == [SC21]
    (line,) = targets.lines(rows)[1:]
    assert re.search(r"PTD-P +2\.0% +1\.0% +1 +\+1\.0%$", line)


def test_a_source_without_targets_gates_with_all_its_rows() -> None:
    rows = [row("somebody", "", 0.01)]
    assert targets.gated("somebody", rows) == (rows, None)
    assert len(targets.lines(rows)) == 1


def test_what_is_missed_is_marked_and_even_rows_stand_in_for_odd_ones() -> None:
    (line,) = targets.lines([row(FOUNDRY, TO_8K, -0.2, judges=False)])[1:]
    assert "to 8,192 tokens, even" in line
    assert line.endswith("missed")
    (line,) = targets.lines([row(FOUNDRY, TO_8K, -0.2, judges=False), row(FOUNDRY, TO_8K, 0.09)])[1:]
    assert line.endswith("+9.0%")
