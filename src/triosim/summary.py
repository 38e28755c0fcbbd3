"""From a played job to the Result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triosim import tally
from triosim.hardware.describe import describe as describe_system
from triosim.kernels.estimate import CONFIDENCE
from triosim.kernels.pricing import describe as describe_times
from triosim.kernels.pricing import undecided_rows
from triosim.kernels.uncertainty import total_half_width
from triosim.prepare import Prepared
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
        of: the job as it was prepared.
        run: the job as it was played.
        network: where the costs of collectives are from.
        cost: cost of the prediction itself.
    """

    of: Prepared
    run: tally.Run
    network: tuple[str, ...]
    cost: Simulation

    def result(self) -> Result:
        """The prediction."""
        run, trace = self.run, self.of.step.trace
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
            devices=tally.device_rows(run, spent, self.of.feet),
            stages=tally.stage_rows(run, spent),
            layers=tally.layer_rows(run, trace),
            collectives=tally.collective_rows(run),
            workload=self._workload(),
            system=describe_system(self.of.system),
            plan=self._plan(),
            sources=self._sources(),
            warnings=self._warnings(memory),
            simulation=self.cost,
            make_timeline=lambda: tally.timeline(run, trace, self.of.system, self.of.placement, self.of.feet),
        )

    def _throughput(self, seconds: float) -> dict[str, float | None]:
        known = (
            self.of.job.recorded.meta.batch_size is not None
            or self.of.plan.batch_size
            or self.of.plan.global_batch_size
        )
        samples = self.of.mesh.global_batch_size / seconds if known and seconds else None
        length = self.of.step.trace.meta.sequence_length
        return {"samples_per_s": samples, "tokens_per_s": samples * length if samples and length else None}

    def _interval(self, seconds: float, parts: tally.Breakdown) -> tuple[float, float]:
        """Operator times, the network and the host err independently of each other, each as a whole."""
        operators = total_half_width(self.of.times, self.of.step.trace)
        network = CATALOG_LINK_SPREAD if any(self.of.system.edge_name) else 0.0
        shares = (
            (seconds - parts.exposed_communication - parts.host, operators),
            (parts.exposed_communication, network),
            (parts.host, self.of.launching.spread),
        )
        above = np.sqrt(sum((share * np.expm1(width)) ** 2 for share, width in shares))
        below = np.sqrt(sum((share * -np.expm1(-width)) ** 2 for share, width in shares))
        return max(seconds - float(below), 0.0), seconds + float(above)

    def _memory(self) -> Memory:
        """Memory of the fullest device, judged against its own capacity."""
        worst: Memory | None = None
        for program, foot in zip(self.run.programs, self.of.feet, strict=True):
            device = self.of.system.model(int(self.of.placement.devices[program.ranks.min()]))
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
        meta, trace = self.of.job.recorded.meta, self.of.step.trace
        weights = self.of.job.recorded.weights()
        return {
            "name": meta.workload,
            "made_by": meta.made_by,
            "recorded_on": meta.device,
            "recorded_batch_size": meta.batch_size if meta.made_by != "triosim.model" else None,
            "batch_size": self.of.mesh.batch_size,
            "sequence_length": trace.meta.sequence_length,
            "parameters": int(self.of.job.recorded.values.elements()[weights].sum()),
            "operators": len(self.of.job.recorded),
            "recorded_time_s": self.of.job.recorded.device_time() if meta.clock != "none" else None,
            "recorded_step_time_s": meta.step_time_s,
            "step": meta.step,
            "training": self.of.plan.training,
        }

    def _plan(self) -> dict:
        mesh = self.of.mesh
        asked = self.of.plan.model_dump()
        asked.update(
            dp=mesh.dp, tp=mesh.tp, pp=mesh.pp, batch_size=mesh.batch_size, global_batch_size=mesh.global_batch_size,
            micro_batch_size=mesh.micro_batch_size, ranks=mesh.ranks, host=self.of.launching.mode,
            sequence_length=self.of.step.trace.meta.sequence_length,
            stages=list(self.of.stages.firsts) if mesh.pp > 1 else None,
        )  # fmt: skip
        return asked

    def _sources(self) -> tuple[str, ...]:
        found = [
            *describe_times(self.of.times, self.of.step.trace, self.of.job, self.of.plan.operator_times),
            f"host: {self.of.launching.source}",
            *self.of.job.recorded.meta.notes,
        ]
        if any(self.of.system.edge_name):
            found.append(
                "network: links of the catalog at the efficiency that large messages reach "
                f"(90 % within a factor {np.exp(CATALOG_LINK_SPREAD):.2f})"
            )
            found += [f"collectives: {source}" for source in self.network]
        elif self.of.mesh.ranks > 1:
            found.append("network: links as given, taken as exact")
        if self.of.plan.solver != "max-min":
            options = ", ".join(f"{name} {value}" for name, value in self.of.plan.solver_options.items())
            found.append(f"network model: {self.of.plan.solver}" + (f" ({options})" if options else ""))
        return (*found, *(f"system: {s}" for s in self.of.system.sources))

    def _warnings(self, memory: Memory) -> tuple[str, ...]:
        found = list(self.of.step.notes)
        if memory.fits is False:
            found.append("the job does not fit in memory: times are as if it did")
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
