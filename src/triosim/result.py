"""The Result: everything a user asks of a prediction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from triosim.memory.holders import Holder
from triosim.timeline import Timeline

SCHEMA = "triosim/result/1"


@dataclass(frozen=True)
class Breakdown:
    """Mean over devices, seconds per iteration.

    ``compute + exposed_communication + host + idle`` is the iteration time; ``communication`` is the time with at
    least one transfer of the device in flight, whether or not the device computed meanwhile.
    """

    compute: float
    communication: float
    exposed_communication: float
    host: float
    idle: float


@dataclass(frozen=True)
class Peak:
    """When memory is fullest.

    Attributes:
        phase, module, operator: what was running; empty before the first operator.
        time_s: when that began, from the start of the run.
    """

    phase: str
    module: str
    operator: str
    time_s: float


@dataclass(frozen=True)
class MemoryCurve:
    """What tensors hold over time: from ``time_s[i]`` on at most ``bytes[i]``, until the next."""

    time_s: tuple[float, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest device, bytes.

    Attributes:
        allocated_bytes: peak of what tensors hold.
        reserved_bytes: peak of what the caching allocator holds for them.
        capacity_bytes: what the device has, None where not known.
        fits: whether reserved memory and the framework's context fit, None where the capacity is not known.
        context_bytes: what the framework's context takes beside the tensors.
        categories: what the peak consists of, bytes by category.
        rank: the lowest rank that is so full.
        peak: when it is.
        holders: who holds it, by category and module, the largest first.
        curve: memory over the run.
        host_bytes: what the rank keeps in host memory (offload).
        largest_batch: the largest batch per replica that fits (0: none does), None where it was not looked for.
    """

    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int | None
    fits: bool | None
    context_bytes: int
    categories: dict[str, int]
    rank: int = 0
    peak: Peak = Peak("", "", "", 0.0)
    holders: tuple[Holder, ...] = ()
    curve: MemoryCurve = MemoryCurve((), ())
    host_bytes: int = 0
    largest_batch: int | None = None


@dataclass(frozen=True)
class DeviceRow:
    """One rank class; times in seconds per iteration, mean over its ranks."""

    rank: int
    count: int
    stage: int
    busy_s: float
    communication_s: float
    idle_s: float
    host_cpu_s: float
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class StageRow:
    """One pipeline stage; seconds per iteration, mean over its ranks."""

    stage: int
    compute_s: float
    communication_s: float


@dataclass(frozen=True)
class LayerRow:
    """One module in one phase, on the first rank of the stage that runs it.

    Seconds are per iteration, bytes per micro-batch.
    """

    module: str
    phase: str
    compute_s: float
    communication_s: float
    input_bytes: int
    output_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives (and stage-to-stage sends) of one shape, per iteration; ``bytes`` is one call's full buffer."""

    axis: str
    kind: str
    group_size: int
    bytes: int
    count: int
    seconds: float
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class Cause:
    """One thing that makes a prediction unsure.

    Attributes:
        name: what it is.
        share: its part of the variance.
        without: by what factor the interval would be as wide without it.
        cure: what would make it surer, as the end of a sentence; ``""`` where nothing would.
    """

    name: str
    share: float
    without: float
    cure: str


@dataclass(frozen=True)
class Simulation:
    """What the run cost."""

    tasks: int
    flows: int
    wall_s: float
    cpu_s: float
    engine: str
    iterations: int


@dataclass(frozen=True)
class Result:
    """A prediction.  :meth:`to_dict` is the JSON that ``--json`` writes (schema ``triosim/result/1``).

    Attributes:
        iteration_time_s: seconds per iteration.
        interval_s: 90 % interval of it.
        confidence: of the interval.
        active_time_s: part of an iteration with at least one device or transfer busy.
        throughput: ``samples_per_s`` and ``tokens_per_s`` of the global batch; None where not known.
        breakdown_s, memory, devices, stages, layers, collectives: see their classes.
        workload, system, plan: what was asked, in plain values.
        sources: where each class of estimate came from, one sentence each.
        warnings: what the user should know, one sentence each.
        simulation: cost of the run.
        make_timeline: makes the timeline, which nobody may ask for.
        uncertainty: what makes the interval so wide, the largest cause first; empty where that was not played.
    """

    iteration_time_s: float
    interval_s: tuple[float, float]
    confidence: float
    active_time_s: float
    throughput: dict[str, float | None]
    breakdown_s: Breakdown
    memory: Memory
    devices: tuple[DeviceRow, ...]
    stages: tuple[StageRow, ...]
    layers: tuple[LayerRow, ...]
    collectives: tuple[CollectiveRow, ...]
    workload: dict[str, Any]
    system: dict[str, Any]
    plan: dict[str, Any]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]
    simulation: Simulation
    make_timeline: Callable[[], Timeline] = field(repr=False, compare=False)
    uncertainty: tuple[Cause, ...] = ()

    @cached_property
    def timeline(self) -> Timeline:
        """Everything that happened (not part of the JSON)."""
        return self.make_timeline()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain: dict[str, Any] = {"schema": SCHEMA}
        for name in self.__dataclass_fields__:
            if name != "make_timeline":
                value = getattr(self, name)
                if isinstance(value, tuple):
                    plain[name] = [asdict(v) if hasattr(v, "__dataclass_fields__") else v for v in value]
                else:
                    plain[name] = asdict(value) if hasattr(value, "__dataclass_fields__") else value
        return plain

    def to_json(self) -> str:
        """The JSON text; numbers that JSON cannot write (``inf``) become null."""
        return json.dumps(_finite(self.to_dict()), indent=1) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
