"""The Result: everything a user asks of a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.result_file import SCHEMA
from triosim.energy.account import Energy
from triosim.energy.cost import Cost
from triosim.engine.stats import Stats
from triosim.fidelity import Fidelity
from triosim.hardware.describe import SystemDescription
from triosim.memory.top_allocations import TopAllocation
from triosim.plan import RunPlan
from triosim.prediction.timeline import Timeline

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from triosim.prediction.variation import VariedTime

FIELDS = (
    "iteration_time_s", "interval_s", "confidence", "active_time_s", "throughput", "efficiency", "breakdown_s",
    "energy", "cost", "memory", "devices", "stages", "layers", "collectives", "workload", "system", "plan", "fidelity",
    "sources",
    "warnings", "simulation", "uncertainty", "variation",
)  # fmt: skip
"""What the JSON consists of."""


@dataclass(frozen=True)
class Throughput:
    """Of the global batch; None where not known."""

    samples_per_s: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class Efficiency:
    """How much of what the devices could multiply is used; None where not known.

    Attributes:
        mfu: model FLOP utilization, ``model_flop / (iteration time x peaks of all devices)`` (Chowdhery et al., "PaLM",
            arXiv:2204.02311, appendix B).
        flop_per_s_per_device: ``model_flop / (iteration time x devices)``.
        tokens_per_s_per_device: tokens of the global batch over iteration time and devices.
        model_flop: what the products of the model take in an iteration over all replicas, a multiply-add counting two;
            nothing that is computed again counts, nor what several ranks compute alike.
        precision: element type that most of them are multiplied in, on devices that emulate it that which it runs in;
            ``""`` where there are none.
        peak_flop_per_s_per_device: dense peak of that type in the datasheet, mean over the devices.
        source: where the peak is from, or why there is no utilization, one sentence.
    """

    mfu: float | None
    flop_per_s_per_device: float | None
    tokens_per_s_per_device: float | None
    model_flop: float | None
    precision: str
    peak_flop_per_s_per_device: float | None
    source: str


@dataclass(frozen=True)
class Workload:
    """The step that was predicted: its model, its batch, and what was recorded of it.

    Attributes:
        name: for people.
        made_by: ``"triosim.record"``, ``"triosim.model"``, or the reader's name.
        recorded_on: device that the trace names.
        recorded_batch_size: samples that went through the model at once when it was recorded; None for a model by name.
        recorded_micro_batches: how often that was in the recorded step.
        batch_size_guessed: whether the source does not state the batch.
        batch_size: samples per replica and iteration of the prediction.
        sequence_length: tokens per sample, None for workloads without.
        parameters: elements of all weights.
        state_bytes: of the weights and of what the optimizer keeps, each once: what a checkpoint has.
        operators: of the recorded step.
        recorded_time_s: sum of the recorded operator times, None without any.
        recorded_step_time_s: measured time of the step, None where not measured.
        step: label of the step in its file.
        training: whether gradients and the optimizer are part of it.
        attention: kernels of its attention, as ``--attention`` names them, those that differ with blanks between them;
            empty where none is asked for or attention is plain products.
    """

    name: str
    made_by: str
    recorded_on: str | None
    recorded_batch_size: int | None
    recorded_micro_batches: int
    batch_size_guessed: bool
    batch_size: int
    sequence_length: int | None
    parameters: int
    state_bytes: int
    operators: int
    recorded_time_s: float | None
    recorded_step_time_s: float | None
    step: str
    training: bool
    attention: str = ""


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
        host_bytes, nvme_bytes: what the rank keeps in host memory, and on the drives of its server (offload).
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
    holders: tuple[TopAllocation, ...] = ()
    curve: MemoryCurve = MemoryCurve((), ())
    host_bytes: int = 0
    nvme_bytes: int = 0
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

    Seconds are per iteration, bytes per micro-batch.  ``exposed_communication_s`` is the part of ``communication_s``
    in which the rank computed nothing, and while several transfers were in flight that of the first: over all rows of
    a stage ``compute_s + exposed_communication_s`` is at most the iteration time.  ``energy_j`` is what its operators
    take, static power of the device included; None where that is not known.
    """

    module: str
    phase: str
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    energy_j: float | None = None


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
        without: by what factor the interval would be as wide without it; of software that nobody named, with its name.
        suggestion: what would make it surer, as the end of a sentence; ``""`` where nothing would.
    """

    name: str
    share: float
    without: float
    suggestion: str


@dataclass(frozen=True)
class Simulation:
    """What was simulated; equal for equal input, on every engine.

    Attributes:
        tasks, flows: of one run; those inside collectives count among the flows.
        draws: runs with other times that the interval comes from; 0 where it was found in another way.
        drawn: ``"links shared anew"`` where each of them was a whole run, ``"links shared as predicted"`` where
            transfers shared links as they did in the prediction; else the way.
    """

    tasks: int
    flows: int
    draws: int
    drawn: str


@dataclass(frozen=True)
class Interval:
    """Where an iteration time is with the result's confidence.

    Attributes:
        low_s, high_s: its ends.
        causes: what makes it so wide, the largest first; empty where that was not played.
        draws, drawn: as of :class:`Simulation`.
    """

    low_s: float
    high_s: float
    causes: tuple[Cause, ...]
    draws: int
    drawn: str


@dataclass(frozen=True)
class OnDemand:
    """Parts of a result that are worked out when somebody first asks for them.

    Attributes:
        interval: that of the iteration time.
        energy: joules of an iteration; None where what a device draws is not known.
        cost: that of an iteration with this energy, interval and variation.
        layers: rows per module.
        timeline: everything that happened.
        stats: what the prediction took until now.
    """

    interval: Callable[[], Interval]
    energy: Callable[[], Energy | None]
    cost: Callable[[Energy, tuple[float, float], VariedTime | None], Cost]
    layers: Callable[[], tuple[LayerRow, ...]]
    timeline: Callable[[], Timeline]
    stats: Callable[[], Stats]


@dataclass(frozen=True)
class KnownPart:
    """A part of a result that another process has worked out."""

    value: Any

    def __call__(self, *_: Any) -> Any:
        """It."""
        return self.value


def _left_behind() -> Timeline:
    """The timeline of a result that came from another process without it.

    Raises:
        InputError: always.
    """
    raise InputError(
        "the timeline of this result stayed in the process that made it: ask for result.timeline there, before the "
        "result is sent"
    )


@dataclass(frozen=True, repr=False)
class Result:
    """A prediction.  :meth:`to_dict` is the JSON that ``--json`` writes (schema ``triosim/result/1``).

    Printed it is a summary of seven lines (six where energy is not known), in a notebook a small table.

    What takes long to add up, and not everybody asks for, is worked out on first access: the interval, energy, the
    rows per module and the timeline.

    Attributes:
        iteration_time_s: seconds per iteration.
        interval_s: 90 % interval of it.
        confidence: of the interval.
        active_time_s: part of an iteration with at least one device or transfer busy.
        throughput, efficiency, breakdown_s, memory, devices, stages, layers, collectives: see their classes.
        workload, system, plan: what was run, with everything filled in.
        fidelity: which models predicted it.
        sources: where each class of estimate came from, one sentence each.
        warnings: what the user should know, one sentence each.
        simulation: what was simulated.
        uncertainty: what makes the interval so wide, the largest cause first; empty where that was not played.
        variation: how long iterations are where something varies from one to the next; None where nobody asked.
        timeline: everything that happened (not part of the JSON).
        stats: what it took until this is first asked for (not part of the JSON).
        tasks, flows: of one run; those inside collectives count among the flows.
        on_demand: works out what is not there yet.
    """

    iteration_time_s: float
    confidence: float
    active_time_s: float
    throughput: Throughput
    efficiency: Efficiency
    breakdown_s: Breakdown
    memory: Memory
    devices: tuple[DeviceRow, ...]
    stages: tuple[StageRow, ...]
    collectives: tuple[CollectiveRow, ...]
    workload: Workload
    system: SystemDescription
    plan: RunPlan
    fidelity: Fidelity
    sources: tuple[str, ...]
    warnings: tuple[str, ...]
    tasks: int
    flows: int
    on_demand: OnDemand = field(compare=False)
    variation: VariedTime | None = None

    @cached_property
    def _interval(self) -> Interval:
        return self.on_demand.interval()

    @property
    def interval_s(self) -> tuple[float, float]:
        """See the class."""
        return self._interval.low_s, self._interval.high_s

    @property
    def uncertainty(self) -> tuple[Cause, ...]:
        """See the class."""
        return self._interval.causes

    @property
    def simulation(self) -> Simulation:
        """See the class."""
        return Simulation(self.tasks, self.flows, self._interval.draws, self._interval.drawn)

    @cached_property
    def energy(self) -> Energy | None:
        """Joules of an iteration; None where what a device draws is not known."""
        return self.on_demand.energy()

    @cached_property
    def cost(self) -> Cost | None:
        """Dollars, grams and litres of an iteration, a job and a token; None where its energy is not known."""
        if self.energy is None:
            return None
        return self.on_demand.cost(self.energy, self.interval_s, self.variation)

    @cached_property
    def layers(self) -> tuple[LayerRow, ...]:
        """See the class."""
        return self.on_demand.layers()

    @cached_property
    def timeline(self) -> Timeline:
        """See the class."""
        return self.on_demand.timeline()

    @cached_property
    def stats(self) -> Stats:
        """See the class."""
        return self.on_demand.stats()

    def __copy__(self) -> Result:
        """Itself: it does not change."""
        return self

    def __deepcopy__(self, memo: Any) -> Result:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What goes into another process: everything worked out, the timeline where somebody has asked for it."""
        there = OnDemand(
            interval=KnownPart(self._interval),
            energy=KnownPart(self.energy),
            cost=KnownPart(self.cost),
            layers=KnownPart(self.layers),
            timeline=KnownPart(self.timeline) if "timeline" in vars(self) else _left_behind,
            stats=KnownPart(self.stats),
        )
        return {**vars(self), "on_demand": there}

    def __repr__(self) -> str:
        from triosim.prediction.result.words import summary

        return summary(self)

    def _repr_html_(self) -> str:
        """The summary as notebooks show it."""
        from triosim.prediction.result.words import summary_html

        return summary_html(self)

    def to_frame(self, table: str = "operators") -> pandas.DataFrame | pyarrow.Table:
        """One table of the result as a frame: of pandas where that is installed, else of pyarrow.

        Columns have the names of the rows' attributes; quantities end in their unit (``_s``, ``_bytes``, ``_flop``).

        Args:
            table: ``"operators"`` (what one rank of each stage runs, one row per operator), ``"layers"``,
                ``"collectives"``, ``"devices"``, ``"stages"`` or ``"timeline"`` (all that happened).

        Raises:
            InputError: there is no such table.
        """
        from triosim.prediction.result.frame import to_frame

        return to_frame(self, table)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain: dict[str, Any] = {"schema": SCHEMA}
        for name in FIELDS:
            plain[name] = _plain(getattr(self, name))
        return plain

    def to_json(self) -> str:
        """The JSON text; numbers that JSON cannot write (``inf``) become null."""
        from triosim.core.plain_json import json_text

        return json_text(self.to_dict())


def _plain(value: Any) -> Any:
    """Dictionaries, lists, texts and numbers alone."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value
