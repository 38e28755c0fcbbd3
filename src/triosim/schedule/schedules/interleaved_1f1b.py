"""Interleaved 1F1B: each stage has several chunks of the model, so that the pipeline fills in smaller steps.

Source: Narayanan et al. 2021 (arXiv:2104.04473), section 2.2: with ``v`` chunks the bubble is a ``v``-th of that of
1F1B, ``(p - 1) (T_F + T_B) / v`` for the times of all chunks of a stage together.  Micro-batches go through the chunks
in rounds of ``p``; where ``p`` does not divide their number, in as many equal rounds as come closest, as PyTorch's
``ScheduleInterleaved1F1B`` does.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class Interleaved1F1B(Schedule):
    """1F1B over several chunks of the model on each stage.

    Attributes:
        chunks: of each stage (virtual stages).
        combined: one more forward first, so that a forward and the backward after it are of different micro-batches and
            run in turn, one computing while the other exchanges the tokens of experts.
    """

    chunks: int = 2
    combined: bool = False

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise PlanError(f"schedule interleaved-1f1b: chunks must be at least 1, got {self.chunks}")

    @property
    def chunks_per_stage(self) -> int:
        """As asked for."""
        return self.chunks

    @property
    def combines(self) -> bool:
        """As asked for."""
        return self.combined

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Two more forwards of warm-up for each stage behind, and a round for each chunk but the last; then in turn.

        Raises:
            PlanError: micro-batches cannot be divided into equal rounds.
        """
        rounds = max(1, micro_batches // stages)
        if micro_batches % rounds:
            near = [m for m in range(max(1, micro_batches - stages), micro_batches + stages + 1) if not m % stages]
            raise PlanError(
                f"schedule interleaved-1f1b runs micro-batches in {rounds} equal rounds over {stages} stages, and "
                f"{micro_batches} cannot be divided so: nearest that can are {' and '.join(map(str, near))}"
            )
        length, total = micro_batches // rounds, micro_batches * self.chunks
        apart = 2 if self.chunks > 1 or self.combined else 1  # one chunk is 1F1B
        warm_up = min((self.chunks - 1) * length + apart * (stages - 1 - stage) + self.combined, total)

        forwards, backwards = _in_rounds(self.chunks, length, rounds)
        in_turn = total - warm_up
        order = list(forwards[:warm_up])
        order += chain.from_iterable(zip(forwards[warm_up:], backwards[:in_turn], strict=True))
        order += backwards[in_turn:]
        return order


@lru_cache(2)
def _in_rounds(chunks: int, length: int, rounds: int) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """Forwards and backwards in their order, which is that of every stage."""
    turns = [(number, chunk) for number in range(rounds) for chunk in range(chunks)]
    forwards, backwards = (
        tuple(
            Action(what, number * length + place, chunks - 1 - chunk if back else chunk)
            for number, chunk in turns for place in range(length)
        )
        for what, back in ((Pass.FORWARD, False), (Pass.BACKWARD, True))
    )  # fmt: skip
    return forwards, backwards
