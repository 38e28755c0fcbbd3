"""The plans that may be run: every division of a training step that its sizes allow.

A plan is legal where frameworks run it as it stands:

* ``tp x pp x dp`` ranks fill the devices, and the replicas (``dp / cp``) share the global batch equally.
* Each stage has equally many of the repeated blocks, and with chunks each chunk has.
* ``interleaved-1f1b`` gets micro-batches in whole rounds of ``pp``.
* ZeRO 2 and 3 are without a pipeline, as they exchange gradients and parameters with each micro-batch: together they
  are tried where ``among`` names them.
* Without sequences nothing is divided along them; images whose tokens attention keeps apart are divided by ``cp``.
* ``cp`` and ``ep`` take ranks of the data axis, and ``ep`` divides the experts; what else a model does not divide by,
  its rules say (:mod:`.bounds`).

What would be the same plan under another name is left out: ZeRO on one rank, sequence parallelism without ``tp``,
a schedule without a pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import product
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.core.options import configured
from triosim.partition.experts import experts_of
from triosim.partition.rules.context import token_parts
from triosim.plan import divisors
from triosim.schedule.actions import SCHEDULES as KNOWN
from triosim.schedule.actions import Schedule
from triosim.trace.blocks import blocks
from triosim.trace.tables import Trace

AXES = ("tp", "pp", "cp", "ep", "micro-batch-size", "schedule", "schedule.chunks", "recompute", "zero",
        "sequence-parallel")  # fmt: skip
"""What a search varies, named as in ``--sweep``."""

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1")
"""Schedules that are tried: each trades memory, bubbles and sends otherwise; ``gpipe`` has the bubbles of ``1f1b`` and
keeps more."""
CHUNKED = "interleaved-1f1b"
"""The schedule that takes chunks."""
RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 2, 3)
LEAST_TOKENS = 4096
"""Tokens of a sequence that each of the ranks that share it is left at least, where ``among`` does not say otherwise.
Published recipes leave as many or more: Llama 3 has 131,072 among 16 (arXiv:2407.21783, section 3.3.2), Megatron Bridge
8,192 among 2 (docs/performance-summary-archive.md, Llama 3.1 405B)."""
MOST = 2_000_000
"""Plans beyond which nobody waits."""


@dataclass(frozen=True)
class Candidate:
    """A legal plan.

    Attributes:
        number: its place in the space, from 0.
        devices: that it fills.
        asked: its fields, as a sweep has them (:func:`triosim.search.grid.with_fields`).
    """

    number: int
    devices: int
    asked: Mapping[str, Any]

    @property
    def parts(self) -> int:
        """Stages times chunks."""
        pp = int(self.asked["pp"])
        return pp * schedule_of(self.asked).model_parts if pp > 1 else 1


def schedule_of(asked: Mapping[str, Any]) -> Schedule:
    """The schedule that a plan asks for."""
    return _schedule(str(asked.get("schedule", "1f1b")), int(asked.get("schedule.chunks", 0)))


@lru_cache(64)
def _schedule(name: str, chunks: int) -> Schedule:
    options = {"chunks": chunks} if chunks else {}
    found: Schedule = configured(KNOWN.chosen(name), options, f"schedule {name}")
    return found


@dataclass(frozen=True)
class PlanSpace:
    """All legal plans of a model on some numbers of devices.

    Attributes:
        devices: how many there may be; each number is a space of its own.
        batch: samples per iteration, of all replicas.
        blocks: repeated blocks of the model, 0 where none are known.
        sequence: tokens per sample, None where not known.
        experts: how many experts a layer has, 0 without any; of layers that differ the greatest common divisor.
        among: values that an axis is to have, instead of all; of :data:`AXES`.
        illegal: why combinations are no plans, counted while :meth:`candidates` runs.
        token_parts: without sequences, into how many parts the tokens of images can be cut.

    Raises:
        InputError: an axis is none that a search varies, or the batch is less than 1.
    """

    devices: Sequence[int]
    batch: int
    blocks: int
    sequence: int | None = None
    experts: int = 0
    among: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    illegal: Counter[str] = field(default_factory=Counter)
    token_parts: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"--under batch must be at least 1, got {self.batch}")
        for name in self.among:
            if name not in AXES:
                raise unknown("name after --among", name, AXES)

    @classmethod
    def of(cls, workload: Trace, devices: Sequence[int], batch: int, among: Mapping[str, Sequence[Any]]) -> PlanSpace:
        """The space of a model: its blocks, its sequence and its experts are those of the trace."""
        length = workload.meta.sequence_length
        parts = 1 if length else token_parts(workload)
        return cls(
            devices, batch, len(blocks(workload)), length, experts_of(workload), among, token_parts=parts
        )  # fmt: skip

    def candidates(self) -> list[Candidate]:
        """All of them, in an order that depends on nothing else.

        Raises:
            InputError: there are too many.
        """
        self.illegal.clear()
        found: list[Candidate] = []
        for devices in self.devices:
            for asked in self._asked(devices):
                found.append(Candidate(len(found), devices, asked))
                if len(found) > MOST:
                    raise InputError(f"more than {MOST:,} plans are legal: give some of their sizes with --among")
        return found

    def _asked(self, devices: int) -> Iterator[dict[str, Any]]:
        for tp in self._values("tp", divisors(devices)):
            for pp in self._values("pp", divisors(devices // tp) if devices % tp == 0 else [1]):
                if devices % (tp * pp):
                    self.illegal["tp x pp does not divide the devices"] += 1
                    continue
                yield from self._replicas(tp, pp, devices // (tp * pp))

    def _replicas(self, tp: int, pp: int, dp: int) -> Iterator[dict[str, Any]]:
        for cp in self._values("cp", [n for n in divisors(dp) if n == 1 or self._shares(n)]):
            if dp % cp or (self.sequence or self.token_parts) % cp:
                self.illegal["cp does not divide the replicas or the sequence"] += 1
                continue
            if self.batch % (dp // cp):
                self.illegal["the global batch does not divide among the replicas"] += 1
                continue
            for ep in self._values("ep", divisors(dp) if self.experts else [1]):
                if dp % ep:
                    self.illegal["ep does not divide the replicas"] += 1
                    continue
                if self.experts % ep:
                    self.illegal[f"ep does not divide the {self.experts} experts of a layer"] += 1
                    continue
                sizes = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep}
                yield from self._batches(sizes, self.batch // (dp // cp))

    def _shares(self, cp: int) -> bool:
        """Whether so many ranks are tried to share a sequence, or an image."""
        if self.sequence:
            return cp * LEAST_TOKENS <= self.sequence
        return self.token_parts % cp == 0

    def _batches(self, sizes: Mapping[str, int], own: int) -> Iterator[dict[str, Any]]:
        """Plans of a mesh whose replicas have ``own`` samples each."""
        pp, tp, dp = sizes["pp"], sizes["tp"], sizes["dp"]
        schedules = list(self._schedules(pp))
        for size in self._values("micro-batch-size", divisors(own)):
            if own % size:
                self.illegal["the micro-batch does not divide the replica's batch"] += 1
                continue
            count = own // size
            others = product(
                schedules,
                self._values("recompute", RECOMPUTE),
                self._values("zero", ZERO if dp > 1 else (0,)),
                self._values("sequence-parallel", (False, True) if self.sequence else (False,)) if tp > 1 else (False,),
            )
            for schedule, recompute, zero, sequence in others:
                if schedule.get("schedule") == CHUNKED and count % pp:
                    self.illegal[f"{CHUNKED} needs micro-batches in whole rounds of pp"] += 1
                elif zero >= 2 and pp > 1 and "zero" not in self.among:
                    self.illegal["zero 2 and 3 are combined with a pipeline only where --among names them"] += 1
                else:
                    yield {
                        **sizes, "micro_batches": count, **schedule, "recompute": recompute, "zero": zero,
                        "sequence-parallel": sequence,
                    }  # fmt: skip

    def _schedules(self, pp: int) -> Iterator[dict[str, Any]]:
        """Schedules, with their chunks, that give each stage equally many blocks."""
        if pp == 1:
            yield {}
            return
        if self.blocks % pp or not self.blocks:
            self.illegal[f"pp does not divide the {self.blocks} repeated blocks"] += 1
            return
        for name in self._values("schedule", SCHEDULES):
            if name != CHUNKED:
                if self.blocks % (pp * schedule_of({"schedule": name}).model_parts):
                    self.illegal[f"pp x the chunks of {name} does not divide the {self.blocks} repeated blocks"] += 1
                else:
                    yield {"schedule": name}
                continue
            for chunks in self._values("schedule.chunks", divisors(self.blocks // pp)[1:]):
                if (self.blocks // pp) % int(chunks):
                    self.illegal[f"pp x chunks does not divide the {self.blocks} repeated blocks"] += 1
                else:
                    yield {"schedule": name, "schedule.chunks": int(chunks)}

    def _values(self, axis: str, every: Sequence[Any]) -> Sequence[Any]:
        return self.among.get(axis, every)
