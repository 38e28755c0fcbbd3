"""How near published trainings were asked to come, source by source, and how near they come.

Targets were set before stacks and models were built, for the mean error of the rows that judge (odd numbers); where a
source has none of those of a part, its even rows stand there, which is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from validation.data.training import ABOVE_8K, FOUNDRY, PLAIN_1F1B, PTD, TO_8K

if TYPE_CHECKING:
    from validation.judge.training import Judged

APART = 0.05
"""Most that the biases of llm-foundry's short and long sequences may differ by."""


@dataclass(frozen=True)
class Target:
    """What a source, or a part of it, was asked.

    Attributes:
        source: its name in the table of measured trainings.
        limit: largest mean error.
        part: as of :class:`~validation.data.training.Row`; ``""`` for all of the source.
        memory: whether of bytes allocated, not of seconds.
    """

    source: str
    limit: float
    part: str = ""
    memory: bool = False

    def error(self, one: Judged) -> float:
        """Relative error of a row in what the target is of."""
        return one.memory if self.memory else one.error


TARGETS = (
    Target("Megatron-LM SC'21 Table 1", 0.03), Target("Megatron-LM SC'21 Table 2", 0.02, PTD),
    Target("Korthikanti et al. MLSys 2023 Table 5", 0.04), Target("Megatron-LM README 2020 scaling", 0.06),
    Target("vTrain measured set (single-node)", 0.09), Target("vTrain measured set (multi-node)", 0.07),
    Target("Zero Bubble PP ICLR 2024 Table 4", 0.03, PLAIN_1F1B),
    Target(FOUNDRY, 0.10, TO_8K), Target(FOUNDRY, 0.15, ABOVE_8K),
    Target("BigScience BLOOM topology runs", 0.08), Target("InternEvo train_performance", 0.08),
    Target("MaxText TPU tables", 0.15), Target("SimuMax A100-PCIe (derived)", 0.08),
    Target("SimuMax B200 real benchmark", 0.12), Target("torchtitan benchmarks", 0.10),
    Target("Zero Bubble PP ICLR 2024 Table 4", 0.02, memory=True),
    Target("SimuMax B200 real benchmark", 0.03, memory=True),
)  # fmt: skip


def gated(source: str, rows: Sequence[Judged]) -> tuple[list[Judged], float | None]:
    """The rows of a source that its targets are of, and the largest bias that these may have: its target for the mean
    error, which the bias can only be below.  None where the source has no target of its own."""
    own = [target for target in TARGETS if target.source == source and not target.memory]
    parts = {target.part for target in own}
    return [one for one in rows if not own or "" in parts or one.part in parts], own[0].limit if own else None


def lines(judged: Sequence[Judged]) -> list[str]:
    """A table of every target of which there are rows, and what is reached."""
    found = [f"{'source':39} {'of it':33} {'asked':>6} {'now':>6} {'rows':>4} {'bias':>6}"]
    for target in TARGETS:
        all_rows = [one for one in judged if one.source == target.source and target.part in ("", one.part)]
        told = [one for one in all_rows if not one.lacks and not math.isnan(target.error(one))]
        own = [one for one in told if one.judges] or told
        if own:
            what = "memory" if target.memory else target.part
            what += "" if own[0].judges else ", even"
            found.append(_line(target.source[:39], what, target.limit, [target.error(one) for one in own]))
    short, long = ([one.error for one in judged if one.judges and not one.lacks and one.source == FOUNDRY and
                    one.part == part] for part in (TO_8K, ABOVE_8K))  # fmt: skip
    if short and long:
        apart = abs(float(np.mean(short)) - float(np.mean(long)))
        missed = "" if apart <= APART else "  missed"
        found.append(f"{FOUNDRY:39} {'biases of both apart':33} {APART:6.1%} {apart:6.1%}{missed}")
    return found


def _line(source: str, what: str, limit: float, errors: Sequence[float]) -> str:
    mean, bias = float(np.mean(np.abs(errors))), float(np.mean(errors))
    missed = "" if mean <= limit else "  missed"
    return f"{source:39} {what:33} {limit:6.1%} {mean:6.1%} {len(errors):4} {bias:+6.1%}{missed}"
