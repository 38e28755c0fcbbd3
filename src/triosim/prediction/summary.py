"""From a played job to the Result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.composition import update
from triosim.core.dataclass import dataclass
from triosim.energy.account import Energy, EnergyAccount
from triosim.energy.constants import EnergyConstants
from triosim.energy.cost import SECONDS_PER_HOUR, Cost, Usage, cost
from triosim.energy.options import EnergyOptions
from triosim.energy.usage import half_width, sample_name, varied
from triosim.engine.stats import Stats
from triosim.fidelity import Fidelity
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.describe import describe as describe_system
from triosim.hardware.power import constants
from triosim.kernels.estimate import CONFIDENCE
from triosim.kernels.pricing import describe as describe_times
from triosim.kernels.pricing import undecided_rows
from triosim.memory.top_allocations import holders
from triosim.plan import AXES, RunPlan, without_effect
from triosim.prediction.efficiency import efficiency
from triosim.prediction.largest_batch import fullest
from triosim.prediction.metrics import (
    breakdown,
    collective_rows,
    device_rows,
    layer_rows,
    memory_curve,
    peak,
    stage_rows,
)
from triosim.prediction.played_run import RankTimeUse, Run, S, transfers
from triosim.prediction.prepare import CompiledJob
from triosim.prediction.result import Interval, Memory, OnDemand, Result, Throughput, Workload
from triosim.prediction.timeline import CATEGORIES, Timeline
from triosim.prediction.uncertainty import Uncertainty, link_spread
from triosim.stacks import ASSUMED
from triosim.trace.calls import attention_kernels
from triosim.trace.tables import Phase
from triosim.transform.rescale import grown_share, guessed_batch

if TYPE_CHECKING:
    from triosim.composition.residual import JobSizes
    from triosim.prediction.variation import VariedTime

MOST = 0.5
"""Part of the recorded time that grows with the batch in any step whose batch size is right."""

HOLDERS = 12
"""So many of those that hold the peak are told."""


@dataclass(frozen=True)
class Summary:
    """All that the result is made of.

    Attributes:
        of: the job as it was prepared.
        run: the job as it was played.
        network: where the costs of collectives are from.
        stats: what the prediction took until now.
        uncertainty: finds that of the time.
        largest_batch: the largest batch that fits in memory, None where it was not looked for.
        energy: constants of energy beside the table's, and what devices draw that were calibrated.
    """

    of: CompiledJob
    run: Run
    network: tuple[str, ...]
    stats: Callable[[], Stats]
    uncertainty: Callable[[], Uncertainty]
    largest_batch: int | None = None
    energy: EnergyOptions = field(default_factory=EnergyOptions)

    def result(self) -> Result:
        """The prediction."""
        run, trace = self.run, self.of.step.trace
        spent = run.spent
        parts = breakdown(run, spent)
        seconds = run.end * S / run.iterations
        memory, throughput = self._memory(), self.throughput(seconds)
        account = self._account(spent, throughput, seconds)
        return Result(
            iteration_time_s=seconds,
            confidence=CONFIDENCE,
            active_time_s=run.active * S / run.iterations,
            throughput=throughput,
            efficiency=efficiency(self.of, seconds, throughput.tokens_per_s),
            breakdown_s=parts,
            memory=memory,
            devices=device_rows(run, spent, self.of.footprints),
            stages=stage_rows(run, spent),
            collectives=collective_rows(run, self.of.mesh.names),
            workload=self._workload(),
            system=describe_system(self.of.system),
            plan=self.run_plan(),
            fidelity=self._fidelity(),
            sources=self._sources(),
            warnings=self.warnings(memory.fits),
            tasks=run.played_tasks,
            flows=run.flows,
            on_demand=OnDemand(
                interval=lambda: self._interval(seconds),
                energy=account.energy,
                cost=lambda energy, interval, varies: self._cost(energy, seconds, throughput, interval, varies),
                layers=lambda: layer_rows(run, trace, account),
                timeline=lambda: self._timeline(account),
                stats=self.stats,
            ),
        )

    def _timeline(self, account: EnergyAccount) -> Timeline:
        """What ran where and when."""
        from triosim.prediction.timeline_of_run import timeline_of  # which few ask for

        job = self.of
        return timeline_of(self.run, job.step.trace, job.system, job.assignment, job.footprints, account)

    def _cost(
        self, energy: Energy, seconds: float, speed: Throughput, interval: tuple[float, float],
        varies: VariedTime | None,
    ) -> Cost:  # fmt: skip
        """What the job costs, and emits."""
        system = self.of.system
        counts = np.bincount(system.device_model[self.of.assignment.devices], minlength=len(system.models)).tolist()
        used = Usage(
            devices=tuple((m.name, float(n)) for m, n in zip(system.models, counts, strict=True) if n),
            hours=seconds / SECONDS_PER_HOUR, it_j=energy.node_j, pue=energy.pue,
            samples=speed.samples_per_s * seconds if speed.samples_per_s else None,
            tokens=speed.tokens_per_s * seconds if speed.tokens_per_s else None,
            sample=sample_name(self.of.plan.training, self.of.whole.meta.sequence_length),
            hours_spread=half_width(*interval), it_spread=half_width(*energy.interval_j),
            timed=energy.timed_j / energy.node_j if energy.node_j else 1.0,
            known=system.models,
        )  # fmt: skip
        return cost(varied(used, None if varies is None else vars(varies), seconds, "the result"), self.energy.cost)

    def _account(self, spent: Sequence[RankTimeUse], speed: Throughput, seconds: float) -> EnergyAccount:
        """What the job takes, to be added up when somebody asks."""
        of, run = self.of, self.run
        return EnergyAccount(
            programs=run.programs, lowered=run.lowered, played=run.played, iterations=run.iterations,
            trace=of.step.trace, system=of.system, assignment=of.assignment, times=of.full_clock, clocks=of.clocks,
            spent=spent, transfers=lambda cell: transfers(run, cell),
            constants=EnergyConstants(dict(self.energy.overrides)), known=self.energy.known(),
            samples=speed.samples_per_s * seconds if speed.samples_per_s else None,
            tokens=speed.tokens_per_s * seconds if speed.tokens_per_s else None,
        )  # fmt: skip

    def throughput(self, seconds: float) -> Throughput:
        """Samples and tokens a second, an iteration taking so long."""
        known = (
            self.of.job.recorded.meta.batch_size is not None
            or self.of.plan.batch_size
            or self.of.plan.global_batch_size
        )
        samples = self.of.mesh.global_batch_size / seconds if known and seconds else None
        length = self.of.whole.meta.sequence_length
        return Throughput(samples, samples * length if samples and length else None)

    def _interval(self, seconds: float) -> Interval:
        """What playing the job with other times showed (:mod:`triosim.prediction.uncertainty`).

        With a residual it is what measured iterations that were left out of its fit showed.
        """
        if self.of.residual is not None:
            spread = self.of.residual.spread_of(self._sizes())
            low, high = float(np.exp(-spread)), float(np.exp(spread))
            return Interval(seconds * low, seconds * high, (), 0, "iterations left out of the residual's fit")
        found = self.uncertainty()
        return Interval(seconds * found.low, seconds * found.high, found.causes, found.draws, found.drawn)

    def _sizes(self) -> JobSizes:
        """How large the job is, as a residual of composition counts."""
        from triosim.composition.residual import sizes

        assert self.of.residual is not None
        return sizes(self.of.programs, self.of.plan.iterations, self.of.residual.terms.scale)

    def _memory(self) -> Memory:
        """Memory of the fullest device, judged against its own capacity."""
        run, trace, found = self.run, self.of.step.trace, fullest(self.of)
        program, footprint = run.programs[found.program], self.of.footprints[found.program]
        assert program.lifetimes is not None
        return Memory(
            rank=int(program.ranks.min()),
            allocated_bytes=footprint.peak_bytes,
            reserved_bytes=footprint.reserved_bytes,
            capacity_bytes=found.capacity_bytes,
            fits=found.fits,
            context_bytes=found.context_bytes,
            categories={
                name: int(size) for name, size in zip(CATEGORIES, footprint.at_peak.tolist(), strict=True) if size
            },
            peak=peak(run, found.program, footprint, trace),
            holders=holders(program.lifetimes, footprint.peak_row, trace)[:HOLDERS],
            curve=memory_curve(run, found.program, footprint),
            host_bytes=program.host_bytes,
            nvme_bytes=program.nvme_bytes,
            largest_batch=self.largest_batch,
        )

    def _workload(self) -> Workload:
        meta = self.of.job.recorded.meta
        weights = self.of.job.recorded.weights()
        return Workload(
            name=meta.workload,
            made_by=meta.made_by,
            recorded_on=meta.device,
            recorded_batch_size=meta.batch_size if meta.made_by != "triosim.model" else None,
            recorded_micro_batches=meta.micro_batches,
            batch_size_guessed=bool(meta.batch_guess),
            batch_size=self.of.mesh.batch_size,
            sequence_length=self.of.whole.meta.sequence_length,
            parameters=int(self.of.job.recorded.values.elements()[weights].sum()),
            state_bytes=self.of.job.recorded.state_bytes(),
            operators=len(self.of.job.recorded),
            recorded_time_s=self._recorded_time() if meta.clock != "none" else None,
            recorded_step_time_s=meta.step_time_s,
            step=meta.step,
            training=self.of.plan.training,
            attention=" ".join(attention_kernels(self.of.job.recorded.operators)),
        )

    def _recorded_time(self) -> float:
        """Sum of the recorded operator times; what the plan runs again was recorded once."""
        recorded = self.of.job.recorded
        once = recorded.operators.phase != Phase.RECOMPUTE if self.of.plan.recompute != "none" else True
        return float(np.nansum(recorded.operators.device_s * recorded.runs(), where=once))

    def run_plan(self) -> RunPlan:
        """The plan as it was run."""
        return RunPlan(**self.run_fields())

    def run_fields(self) -> dict[str, Any]:
        """The fields of the plan as it was run: many plans are compared by some of them, without a plan anew."""
        mesh = self.of.mesh
        run = {
            **{name: size for name, size in mesh.axes if name in AXES}, "batch_size": mesh.batch_size,
            "global_batch_size": mesh.global_batch_size, "micro_batches": mesh.micro_batches,
            "micro_batch_size": mesh.micro_batch_size, "ranks": mesh.ranks,
            "sequence_length": self.of.whole.meta.sequence_length,
            "stages": tuple(self.of.stages.firsts) if mesh.stages > 1 else None,
        }  # fmt: skip
        return {**self.of.plan.asdict(), **run}

    def _fidelity(self) -> Fidelity:
        asked = self.of.fidelity
        return asked if asked.composition else asked.replaced(host=self.of.launching.mode)

    def _sources(self) -> tuple[str, ...]:
        found = [
            *describe_times(self.of.times, self.of.step.trace, self.of.job, self.of.fidelity.operator_times),
            f"host: {self.of.launching.source}",
            *self._stack(),
            *([guessed_batch(self.of.job.recorded)] if self.of.job.recorded.meta.batch_guess else ()),
            *self.of.job.recorded.meta.notes,
        ]
        if any(self.of.system.edge_name):
            found.append(
                "network: links of the catalog at the efficiency that large messages reach "
                f"(90 % within a factor {np.exp(link_spread(self.of.system, self.of.assignment)):.2f})"
            )
        elif self.of.mesh.ranks > 1:
            found.append("network: links as given, taken as exact")
        for m, (clock, brake) in self.of.clocks.items():
            found.append(_held(self.of.system.models[m], clock, brake))
        if self.of.step.replication.updates_on_host:
            found.append(update.source(self.of.system))
        if self._on_nvme():
            found.append(update.nvme_source(self.of.system))
        found += [f"collectives: {source}" for source in self.network]
        slowed = {i for i in self.of.interferes if i.slowdown > 1} if self.of.mesh.ranks > 1 else set()
        found += [
            f"interference: what computes beside a collective takes {i.slowdown:.3g} times as long: {i.source}"
            for i in sorted(slowed, key=lambda i: -i.slowdown)
        ]
        if self.of.fidelity.solver != "max-min":
            options = ", ".join(f"{name} {value}" for name, value in self.of.fidelity.solver_options.items())
            found.append(f"network model: {self.of.fidelity.solver}" + (f" ({options})" if options else ""))
        return (*found, *(f"system: {s}" for s in self.of.system.sources))

    def _stack(self) -> tuple[str, ...]:
        """The software that is taken to train a model by name."""
        plan = self.of.plan
        if not plan.training or self.of.job.recorded.meta.made_by != "triosim.model":
            return ()
        return (plan.stack.line(),) if plan.stack else (f"{ASSUMED.line()} (assumed: --stack names another)",)

    def _largest(self) -> str:
        """The largest batch that fits, as the end of a sentence."""
        if self.largest_batch is None:
            return ""
        parts, dp = self.of.mesh.micro_batches, self.of.mesh.replicas
        if not self.largest_batch:
            return f"; not even a batch of {parts} does" if parts > 1 else "; not even one sample does"
        over = f" per replica, {self.largest_batch * dp:,} over all {dp}" if dp > 1 else ""
        return f"; the largest batch that does is {self.largest_batch:,}{over}"

    def _strange(self) -> list[str]:
        """What a residual of composition was not fitted to."""
        learned = self.of.residual
        if learned is None:
            return []
        names = {"device_s": "device time", "launches": "launches", "sends": "transfers between stages"}
        beyond = learned.outside(self._sizes())
        words = [f"{factor:.3g} x the {names[name]}" for name, factor in beyond.items()]
        found = []
        if words:
            found.append(
                f"the residual of composition was fitted to other sizes: this job is beyond them by {', '.join(words)} "
                "an iteration, so the interval is wider"
            )
        model = self.of.fidelity.operator_times
        if learned.operator_times != model:
            found.append(
                f"the residual of composition was fitted with operator times {learned.operator_times!r}, not {model!r}"
            )
        return found

    def _on_nvme(self) -> int:
        """Bytes on the drives, of the rank that has most there."""
        return max((program.nvme_bytes for program in self.of.programs), default=0)

    def warnings(self, fits: bool | None) -> tuple[str, ...]:
        """What the user should know, the job fitting in memory or not."""
        found = [*self.of.warnings, *self.of.step.notes, *self._strange(), *without_effect(self.of.plan)]
        if self.of.system.ideal and self.of.fidelity.collective_protocol != "auto":
            found.append(
                f"protocol {self.of.fidelity.collective_protocol} changes nothing on links given by their figures, "
                "which have no costs of software: name a link of the catalog"
            )
        recorded = self.of.job.recorded
        if recorded.meta.batch_guess not in ("", "operators"):
            found.append(guessed_batch(recorded))
        divided = self.of.step.trace is not self.of.step.homes  # a rank's share is smaller for other reasons
        growing = grown_share(recorded, self.of.job.trace) if not divided else None
        if growing is not None and growing < MOST:
            found.append(
                f"only {100 * growing:.0f} % of the recorded operator time is in operators that grow with the batch: "
                "is the batch size of the trace right (--trace-batch-size)?"
            )
        if fits is False:
            found.append(f"the job does not fit in memory: times are as if it did{self._largest()}")
        if full := update.too_much_on_nvme(self.of.system, self.of.assignment.devices, self._on_nvme()):
            found.append(full)
        if self.of.mesh.ranks < self.of.mesh.devices:
            found.append(f"{self.of.mesh.ranks} of the system's {self.of.mesh.devices} devices are used")
        rows = undecided_rows(self.of.job)
        if rows:
            names = ", ".join(dict.fromkeys(self.of.step.trace.operators.name[r] for r in rows))
            found.append(
                f"it is not known whether {len(rows)} of {len(self.of.step.trace)} operators grow with the batch; the "
                f"interval covers both: {names[:200]}"
            )
        return tuple(found)


def _held(device: Accelerator, clock: float, brake: float) -> str:
    """What a power cap or a clock made of a device, one sentence."""
    asked = [f"a cap of {device.power_cap_w:g} W"] if device.power_cap_w is not None else []
    asked += [f"a clock of {device.clock_limit_hz / 1e6:g} MHz"] if device.clock_limit_hz is not None else []
    at = f"{clock * device.clock_hz / 1e6:.0f} MHz, " if device.clock_hz else ""
    more = f", everything stretched {brake:.3g} times beside" if brake > 1 else ""
    return (
        f"power: {' and '.join(asked)} lets {device.name or 'the device'} run at {at}{100 * clock:.0f} % of its boost "
        f"clock{more} (law of clock, voltage and power: {constants().source})"
    )
