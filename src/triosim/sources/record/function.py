"""Recording a step that is given as a function."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from triosim.core.errors import InputError
from triosim.sources.record import gpu
from triosim.sources.record.assemble import assemble
from triosim.sources.record.fakes import accelerator_defaults, fake
from triosim.sources.record.modules import ModuleWatch, name_everything
from triosim.sources.record.observer import Observer, StepTape, thread_clock
from triosim.sources.record.phases import PhaseWatch
from triosim.sources.record.twice import Extents, Symbols, extents, find, resized
from triosim.trace.tables import Meta, Trace

DEVICES = (None, "cpu", "cuda", "fake")

SETTLING = 2
"""Observed steps that are not counted: what observing allocates finds its place in memory (or the profiler starts).

Plain steps come before all observed ones and do not take turns with them: on the CPU each kind leaves memory
otherwise than it found it, and what the allocator gets anew from the system shows as operator time."""

WITHOUT_HARDWARE = (
    "recorded without hardware: no operator times; optimizers that leave the choice to PyTorch update all weights at "
    "once, as they do on an accelerator"
)


def record(
    step: Callable[..., Any],
    *inputs: Any,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    device: str | None = None,
    warmup: int = 2,
    repeats: int = 5,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    workload: str | None = None,
) -> Trace:
    """Record one training or inference step of PyTorch.

    ``step(*inputs)`` is called ``warmup`` times, then ``repeats`` times as it is, then ``repeats`` times (and twice
    before) under observation.  It is an ordinary step: forward, loss, ``backward``, ``optimizer.step``, or a mere
    call of a model; it needs no marks.  The result has the structure of one step and, for each operator, the median
    of its measured times.  On the CPU, times are processor time of one thread (PyTorch is held to one thread); on a
    GPU they are kernel times from ``torch.profiler``.

    Which dimensions follow the batch and the sequence is found by running the step twice more under fake tensors with
    other ``inputs`` (so give the batch as ``inputs``; a step that makes its own data cannot be varied).  Weights,
    gradients and optimizer states are as after the last real step.

    Args:
        step: the step; called with ``inputs``.
        inputs: tensors (or lists, tuples, dicts of them) whose first dimension is the batch.
        model: the model; only needed for the names of modules that are never called as a whole.
        optimizer: an optimizer that does not derive from ``torch.optim.Optimizer`` (others are noticed).
        device: ``"fake"`` runs without hardware and measures nothing; ``"cpu"`` or ``"cuda"`` insist that the step runs
            there; None takes the step as it is.
        warmup: steps before anything is noted, at least one, so that the state of the optimizer exists.
        repeats: observed steps; also plain steps, whose median is the trace's ``meta.step_time_s``.
        batch_size: samples in the step; default the first extent of the first tensor among ``inputs``.
        sequence_length: tokens per sample; default the second extent of token ids among ``inputs``.
        workload: what to call it; default the class of the model.

    Raises:
        InputError: a device that is not there or cannot be measured, or counts that make no sense.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r} is none that a step is recorded on: give 'cpu', 'cuda', 'fake' or None")
    if warmup < 1 or repeats < 1:
        raise InputError("warmup and repeats must be at least 1: the first step creates the optimizer's state")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("this PyTorch has no device 'cuda': give 'cpu', or 'fake' to record without hardware")
    now = extents(inputs, batch_size, sequence_length)
    session = _Session(step, model, optimizer)
    leaves = [*tree_leaves(list(inputs)), *(model.parameters() if model is not None else ())]
    if device == "fake" or any(isinstance(t, FakeTensor) for t in leaves):
        return session.without_hardware(inputs, now, workload)
    return session.measured(inputs, now, workload, device, warmup, repeats)


class _Session:
    """One recording: the step and what is known about it from running it."""

    def __init__(self, step: Callable[..., Any], model: torch.nn.Module | None, optimizer: Any) -> None:
        self.step = step
        self.model = model
        self.modules = ModuleWatch()
        self.phases = PhaseWatch(self.modules)
        if optimizer is not None:
            self.phases.optimizers.append(optimizer)

    def without_hardware(self, inputs: Sequence[Any], now: Extents, workload: str | None) -> Trace:
        """Record under fake tensors."""
        with fake(tree_leaves(list(inputs))), accelerator_defaults(), self._unharmed():
            given = resized(inputs, now, now)
            with self.modules, self.phases:
                self.step(*given)
            tape = self._observe(given)
            found, notes = find(tape, lambda other: self._observe(resized(inputs, now, other)), now)
        return self._finish(tape, self._meta(workload, now, notes=[WITHOUT_HARDWARE, *notes]), found)

    def measured(
        self, inputs: Sequence[Any], now: Extents, workload: str | None, device: str | None, warmup: int, repeats: int
    ) -> Trace:
        """Record on the hardware that the step runs on."""
        with one_thread():
            with self.modules, self.phases:
                for _ in range(warmup):
                    self.step(*inputs)
            kind = self._device(inputs)
            if device is not None and kind != device:
                raise InputError(f"the step runs on {kind}, not on {device}: move the model and its inputs there first")
            stopwatch, runs = StepStopwatch(kind), []
            for _ in range(repeats):
                stopwatch.start()
                self.step(*inputs)
                stopwatch.stop()
            for left in reversed(range(SETTLING + repeats)):
                tape = self._observe_measured(inputs, kind, stopwatch.host_s())
                if left < repeats:
                    runs.append(Times.of(tape))
                if left:  # of all but the last only the times are kept, so that memory is as before the first
                    del tape
        note = settle_times(tape, runs)
        found, notes = self._symbols(tape, inputs, now)
        meta = self._meta(
            workload, now, notes=[*note, *notes], device=device_name(kind), clock="gpu" if kind == "cuda" else "cpu",
            step_time_s=stopwatch.step_s(),
        )  # fmt: skip
        return self._finish(tape, meta, found)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _observe(self, inputs: Sequence[Any], clock: Callable[[], int] | None = None, marker: Any = None) -> StepTape:
        with self.modules, self.phases:
            tensors = tuple(t for t in tree_leaves(list(inputs)) if isinstance(t, Tensor))
            observer = Observer(self.modules, self.phases, model=self.model, clock=clock, marker=marker, inputs=tensors)
            with observing(observer, self.modules, self.phases):
                self.step(*inputs)
        return observer.tape

    def _observe_measured(self, inputs: Sequence[Any], kind: str, host_s: float | None) -> StepTape:
        if kind == "cpu":
            return self._observe(inputs, clock=thread_clock)
        profiler = gpu.Profiler()
        profiler.start()
        tape = self._observe(inputs, marker=gpu.marker)
        apply_kernels(tape, gpu.join(profiler.stop()), host_s)
        return tape

    def _symbols(self, tape: StepTape, inputs: Sequence[Any], now: Extents) -> tuple[Symbols | None, list[str]]:
        def again(other: Extents) -> StepTape:
            with fake(), self._unharmed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a run that the user has not asked for
                return self._observe(resized(inputs, now, other))

        return find(tape, again, now)

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Put gradients and optimizer states back that a run under fake tensors replaces."""
        optimizers = self.phases.optimizers
        before = [(o, {p: dict(s) for p, s in o.state.items() if isinstance(s, dict)}) for o in optimizers]
        names = name_everything(self.model, self.modules, optimizers)
        gradients = {id(p): p.grad for _, p in names.parameters}
        try:
            yield
        finally:
            for _, p in name_everything(self.model, self.modules, optimizers).parameters:
                if not isinstance(p, FakeTensor) and isinstance(p.grad, FakeTensor):
                    p.grad = gradients.get(id(p))
            known = {id(o): states for o, states in before}
            for o in optimizers:
                for p in [p for p in o.state if isinstance(p, Tensor) and not isinstance(p, FakeTensor)]:
                    if p in known.get(id(o), {}):
                        o.state[p] = known[id(o)][p]
                    else:
                        del o.state[p]

    def _device(self, inputs: Sequence[Any]) -> str:
        names = name_everything(self.model, self.modules, self.phases.optimizers)
        tensors = [p for _, p in names.parameters] + [t for t in tree_leaves(list(inputs)) if isinstance(t, Tensor)]
        return measurable({t.device.type for t in tensors})

    def _meta(self, workload: str | None, now: Extents, notes: Sequence[str] = (), **more: Any) -> Meta:
        if workload is None:
            names = name_everything(self.model, self.modules, self.phases.optimizers)
            main = next((m for m in names.held if names.modules[id(m)] == ""), None)
            workload = type(main).__name__ if main is not None else getattr(self.step, "__name__", "step")
        return Meta(
            made_by="triosim.record", workload=workload, framework=framework(), batch_size=now.batch,
            sequence_length=now.sequence, float32_products=float32_products(), notes=tuple(notes), **more,
        )  # fmt: skip

    @staticmethod
    def _finish(tape: StepTape, meta: Meta, found: Symbols | None) -> Trace:
        from dataclasses import replace

        return assemble(tape, replace(meta, symbols="traced twice" if found is not None else ""), found)


# --- shared with the recording of scripts ----------------------------------------------------------------------------


@contextlib.contextmanager
def observing(observer: Observer, modules: ModuleWatch, phases: PhaseWatch) -> Iterator[None]:
    """Connect an observer with the watches while it is on."""
    modules.on_root = observer.root_called
    phases.on_optimizer = lambda _: observer.look_at_gradients()
    phases.on_backward_end = observer.look_at_gradients
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        modules.on_root = phases.on_optimizer = phases.on_backward_end = None


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Hold PyTorch to one thread: processor time is counted per thread."""
    return on_threads(1)


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Hold PyTorch to so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class StepStopwatch:
    """Times of steps that are not observed.

    On the CPU it counts processor time of the process; on a GPU wall time until the device is idle, and separately
    until the host has issued everything.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._started = 0
        self._steps: list[float] = []
        self._host: list[float] = []

    def start(self) -> None:
        """A step begins."""
        if self._kind == "cuda":
            torch.cuda.synchronize()
        self._started = self._now()

    def stop(self) -> None:
        """The step has been issued."""
        issued = self._now()
        if self._kind == "cuda":
            torch.cuda.synchronize()
            self._host.append((issued - self._started) * 1e-9)
        self._steps.append((self._now() - self._started) * 1e-9)

    def _now(self) -> int:
        return time.process_time_ns() if self._kind == "cpu" else time.perf_counter_ns()

    def step_s(self) -> float | None:
        """Median time of a step in seconds."""
        return statistics.median(self._steps) if self._steps else None

    def host_s(self) -> float | None:
        """Median host time of a step in seconds, None on the CPU."""
        return statistics.median(self._host) if self._host else None


def apply_kernels(tape: StepTape, joined: gpu.ProfiledOperators, host_s: float | None) -> None:
    """Give every row of a tape the device time of its kernels, in place."""
    for row in tape.rows:
        row.seconds = 0.0
    for kernel in joined.kernels:
        if 0 <= kernel.operator < len(tape.rows):
            tape.rows[kernel.operator].seconds += kernel.seconds
            tape.kernels.append((kernel.operator, kernel.name, kernel.seconds, kernel.stream))
    waits = any(row.sync for row in tape.rows)
    tape.host = gpu.issue_times(joined, len(tape.rows), None if waits else host_s)
    lost = joined.lost()
    if lost:
        total = sum(kernel.seconds for kernel in lost)
        tape.notes.append(f"{len(lost)} kernels ({total:.3g} s) were launched outside of operators and left out")
    if joined.communication:
        tape.notes.append(f"{len(joined.communication)} communication kernels were left out")


class Times(NamedTuple):
    """What is kept of an observed step whose structure is not needed.

    Attributes:
        plan: fingerprint of the operators and their shapes.
        seconds: time of each row.
        kernels: names of the kernels' operators and their seconds.
        host: host time of each row, may be empty.
    """

    plan: int
    seconds: NDArray[np.float64]
    kernels: tuple[int, NDArray[np.float64]]
    host: NDArray[np.float64]

    @staticmethod
    def of(tape: StepTape) -> Times:
        """The times on a tape."""
        values = tape.ledger.values
        plan = tuple((r.name, tuple(values[v].shape for v in (*r.inputs, *r.outputs))) for r in tape.rows)
        return Times(
            hash(plan), np.array([row.seconds for row in tape.rows]),
            (hash(tuple(k[:2] for k in tape.kernels)), np.array([k[2] for k in tape.kernels])), np.array(tape.host),
        )  # fmt: skip


def settle_times(tape: StepTape, runs: Sequence[Times]) -> list[str]:
    """Give the last tape for each operator and kernel the median over all runs, in place; notes if the runs differ."""
    last = runs[-1]
    alike = [run for run in runs if run.plan == last.plan]
    for row, seconds in zip(tape.rows, np.median([run.seconds for run in alike], axis=0).tolist(), strict=True):
        row.seconds = seconds
    if tape.kernels:
        same = [run.kernels[1] for run in alike if run.kernels[0] == last.kernels[0]]
        medians = np.median(same, axis=0).tolist()
        tape.kernels = [(*kernel[:2], s, kernel[3]) for kernel, s in zip(tape.kernels, medians, strict=True)]
    if tape.host and all(len(run.host) for run in alike):
        tape.host = np.median([run.host for run in alike], axis=0).tolist()
    if len(alike) < len(runs):
        return [f"{len(runs) - len(alike)} of {len(runs)} observed steps ran other operators and were not used"]
    return []


def measurable(kinds: set[str]) -> str:
    """The kind of device that a step with tensors on devices of these kinds is measured on."""
    accelerators = kinds - {"cpu", "meta"}
    other = accelerators - {"cuda"}
    if other:
        raise InputError(
            f"the step runs on {', '.join(sorted(other))}, where operators cannot be timed: run it on 'cpu' or 'cuda', "
            "or record with device='fake'"
        )
    return "cuda" if accelerators else "cpu"


def device_name(kind: str) -> str:
    """What the device is called by its maker."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def framework() -> str:
    """Name and version of the framework."""
    return f"torch {torch.__version__.partition('+')[0]}"


def float32_products() -> str:
    """What the framework lets matrix products of float32 be rounded to on a GPU, as traces say it."""
    return "" if torch.get_float32_matmul_precision() == "highest" else "tfloat32"
