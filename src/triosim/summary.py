"""From a played job to the Result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triosim import tally
from triosim.composition.host import Host
from triosim.hardware.describe import describe as describe_system
from triosim.hardware.system import System
from triosim.kernels.estimate import CONFIDENCE, Estimates
from triosim.kernels.model import Job
from triosim.kernels.pricing import describe as describe_times
from triosim.kernels.pricing import undecided_rows
from triosim.kernels.uncertainty import total_half_width
from triosim.memory.footprint import Footprint
from triosim.network.placement import Placement
from triosim.parallelism.stages import Stages
from triosim.parallelism.step import Step
from triosim.plan import Mesh, Plan
from triosim.result import Memory, Result, Simulation
from triosim.timeline import CATEGORIES

CATALOG_LINK_SPREAD = 0.3
"""Natural logarithm of the 90 % interval's factor of a transfer over links of the catalog: large-message efficiency and
latency are those of one collective library and message size each (see the sources in the catalog).  Links that the user
describes are taken at their word."""

CONTEXT_BYTES = {"gpu": 500 << 20}
"""What the framework's context takes on a device beside the tensors.  CUDA contexts of PyTorch processes take 300 to
600 MB by device and version (PyTorch forum and issue reports); none is counted for other kinds of device."""


@dataclass(frozen=True)
class Summary:
    """All that the result is made of.

    Attributes:
        job: what was priced, on the slowest device: the recorded step and one rank's share of it.
        times: its operator times.
        step, stages, launching: how the step was divided, cut and launched.
        system, plan, mesh, placement: on what and how.
        run, feet: the played job, and the memory of each of its programs.
        network: where the costs of collectives are from.
        cost: cost of the prediction itself.
    """

    job: Job
    step: Step
    system: System
    plan: Plan
    mesh: Mesh
    placement: Placement
    times: Estimates
    stages: Stages
    launching: Host
    run: tally.Run
    feet: Sequence[Footprint]
    network: tuple[str, ...]
    cost: Simulation

    def result(self) -> Result:
        """The prediction."""
        run, trace = self.run, self.step.trace
        spent = [tally.occupied(run, cell) for cell in range(run.lowered.cells)]
        parts = tally.breakdown(run, spent)
        seconds = run.end * tally.S / run.iterations
        memory = self._memory()
        return Result(
            iteration_time_s=seconds,
            interval_s=self._interval(seconds, parts),
            confidence=CONFIDENCE,
            active_time_s=tally.active(run) * tally.S / run.iterations,
            throughput=self._throughput(seconds),
            breakdown_s=parts,
            memory=memory,
            devices=tally.device_rows(run, spent, self.feet),
            stages=tally.stage_rows(run, spent),
            layers=tally.layer_rows(run, trace),
            collectives=tally.collective_rows(run),
            workload=self._workload(),
            system=describe_system(self.system),
            plan=self._plan(),
            sources=self._sources(),
            warnings=self._warnings(memory),
            simulation=self.cost,
            make_timeline=lambda: tally.timeline(run, trace, self.system, self.placement, self.feet),
        )

    def _throughput(self, seconds: float) -> dict[str, float | None]:
        known = self.job.recorded.meta.batch_size is not None or self.plan.batch_size or self.plan.global_batch_size
        samples = self.mesh.global_batch_size / seconds if known and seconds else None
        length = self.step.trace.meta.sequence_length
        return {"samples_per_s": samples, "tokens_per_s": samples * length if samples and length else None}

    def _interval(self, seconds: float, parts: tally.Breakdown) -> tuple[float, float]:
        """Operator times, the network and the host err independently of each other, each as a whole."""
        operators = total_half_width(self.times, self.step.trace)
        network = CATALOG_LINK_SPREAD if any(self.system.edge_name) else 0.0
        shares = (
            (seconds - parts.exposed_communication - parts.host, operators),
            (parts.exposed_communication, network),
            (parts.host, self.launching.spread),
        )
        above = np.sqrt(sum((share * np.expm1(width)) ** 2 for share, width in shares))
        below = np.sqrt(sum((share * -np.expm1(-width)) ** 2 for share, width in shares))
        return max(seconds - float(below), 0.0), seconds + float(above)

    def _memory(self) -> Memory:
        """Memory of the fullest device, judged against its own capacity."""
        worst: Memory | None = None
        for program, foot in zip(self.run.programs, self.feet, strict=True):
            device = self.system.model(int(self.placement.devices[program.ranks.min()]))
            context = CONTEXT_BYTES.get(device.kind, 0) if device.name else 0
            capacity = device.memory_bytes
            fits = foot.reserved_bytes + context <= capacity if capacity is not None else None
            held = {name: int(size) for name, size in zip(CATEGORIES, foot.at_peak.tolist(), strict=True) if size}
            found = Memory(foot.peak_bytes, foot.reserved_bytes, capacity, fits, context, held)
            if worst is None or (found.fits is False, found.reserved_bytes) > (
                worst.fits is False,
                worst.reserved_bytes,
            ):
                worst = found
        assert worst is not None
        return worst

    def _workload(self) -> dict:
        meta, trace = self.job.recorded.meta, self.step.trace
        weights = self.job.recorded.weights()
        return {
            "name": meta.workload,
            "made_by": meta.made_by,
            "recorded_on": meta.device,
            "recorded_batch_size": meta.batch_size if meta.made_by != "triosim.model" else None,
            "batch_size": self.mesh.batch_size,
            "sequence_length": trace.meta.sequence_length,
            "parameters": int(self.job.recorded.values.elements()[weights].sum()),
            "operators": len(self.job.recorded),
            "recorded_time_s": self.job.recorded.device_time() if meta.clock != "none" else None,
            "recorded_step_time_s": meta.step_time_s,
            "step": meta.step,
            "training": self.plan.training,
        }

    def _plan(self) -> dict:
        mesh = self.mesh
        asked = self.plan.model_dump()
        asked.update(
            dp=mesh.dp, tp=mesh.tp, pp=mesh.pp, batch_size=mesh.batch_size, global_batch_size=mesh.global_batch_size,
            micro_batch_size=mesh.micro_batch_size, ranks=mesh.ranks, host=self.launching.mode,
            sequence_length=self.step.trace.meta.sequence_length,
            stages=list(self.stages.firsts) if mesh.pp > 1 else None,
        )  # fmt: skip
        return asked

    def _sources(self) -> tuple[str, ...]:
        found = [
            *describe_times(self.times, self.step.trace),
            f"host: {self.launching.source}",
            *self.job.recorded.meta.notes,
        ]
        if any(self.system.edge_name):
            found.append(
                "network: links of the catalog at the efficiency that large messages reach "
                f"(90 % within a factor {np.exp(CATALOG_LINK_SPREAD):.2f})"
            )
            found += [f"collectives: {source}" for source in self.network]
        elif self.mesh.ranks > 1:
            found.append("network: links as given, taken as exact")
        if self.plan.solver != "max-min":
            options = ", ".join(f"{name} {value}" for name, value in self.plan.solver_options.items())
            found.append(f"network model: {self.plan.solver}" + (f" ({options})" if options else ""))
        return (*found, *(f"system: {s}" for s in self.system.sources))

    def _warnings(self, memory: Memory) -> tuple[str, ...]:
        found = list(self.step.notes)
        if memory.fits is False:
            found.append("the job does not fit in memory: times are as if it did")
        if self.mesh.ranks < self.mesh.devices:
            found.append(f"{self.mesh.ranks} of the system's {self.mesh.devices} devices are used")
        rows = undecided_rows(self.job)
        if rows:
            names = ", ".join(dict.fromkeys(self.step.trace.operators.name[r] for r in rows))
            found.append(
                f"it is not known whether {len(rows)} of {len(self.step.trace)} operators grow with the batch; the "
                f"interval covers both: {names[:200]}"
            )
        return tuple(found)
