"""Published iterations that lie in the repository: each can be told to the program, and predictions are near."""

from __future__ import annotations

import pytest
from validation.data.training import read
from validation.judge.training import PUBLISHED, judge

ROWS = {row.id: row for row in read(PUBLISHED)}


def test_every_published_row_can_be_told() -> None:
    assert len(ROWS) == 68
    assert not [row.lacks for row in ROWS.values() if row.lacks]
    assert all(row.judges for row in ROWS.values() if row.id < "P0100"), "of the first none may shape a stack"


@pytest.mark.parametrize("row", ["P0019", "P0025", "P0035"])
def test_fully_sharded_training_on_a100_is_near(row: str) -> None:
    """Llama-3 8B and Llama-2 13B in torchtitan, Llama-2 34B in fms-fsdp: within 10 %, and the interval holds it."""
    found = judge(ROWS[row])
    assert abs(found.error) < 0.10
    assert found.low < found.measured < found.high
