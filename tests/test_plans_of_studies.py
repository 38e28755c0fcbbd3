"""Where plans of studies are ranked: the study's own row is one of the plans that it chose from."""

from __future__ import annotations

import math

import pytest
from validation.data.training import Row
from validation.judge import plans

SIZES = {"n_embd": 64, "n_layer": 6, "n_head": 4, "n_positions": 64, "vocab_size": 512}
PLAN = {"dp": 1, "tp": 1, "pp": 4, "batch_size": 8, "zero": 0, "micro_batches": 8, "recompute": "none",
        "quantize": "none", "overlap": True, "idle_ok": True, "stages": ("a", "b", "c")}  # fmt: skip


def _row(number: int, seconds: float, **plan: object) -> Row:
    return Row(
        f"T{number}", "Zero Bubble PP ICLR 2024 Table 4", "A", seconds, stack="megatron-2023", configuration=SIZES,
        sequence=64, plan={**PLAN, **plan}, system={"like": "hgx-a100", "devices": 4},
    )  # fmt: skip


def test_the_fastest_of_a_job_is_what_the_study_found() -> None:
    slow, fast, other = _row(1, 2.0), _row(2, 1.0, schedule="zb-h1"), _row(3, 0.5, batch_size=4, micro_batches=4)
    assert plans.chosen([slow, fast, other]) == [fast, other]


def test_a_study_chooses_from_plans_that_hold_its_own() -> None:
    row = _row(1, 1.0)
    own, legal, formed = plans.plans_of(row, plans.STUDIES[row.source])
    made = [formed(one) for one in legal]
    same = [one for one in made if (one.pp, one.micro_batches, one.schedule, one.recompute) == (4, 8, "1f1b", "none")]
    assert len(same) == 1
    assert same[0].stages == ("transformer.h.1", "transformer.h.3", "transformer.h.5")  # a block less at either end
    assert same[0].stack == own.stack


def test_a_faster_plan_moves_a_study_back() -> None:
    row = _row(1, 1.0, recompute="full", stages=("transformer.h.1", "transformer.h.3", "transformer.h.5"))
    placed = plans.place(row, plans.STUDIES[row.source], 0)
    assert placed.drawn == placed.legal
    assert placed.fit == placed.legal
    assert placed.faster > 0  # the same without recomputation at least
    assert placed.best_s < placed.predicted
    assert not placed.among_first


def test_ranks() -> None:
    assert plans.spearman([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(1)
    assert plans.spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert plans.spearman([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(plans.spearman([1.0, 2.0], [1.0, 2.0]))
