"""Recording an unmodified script: ``triosim trace record train.py``.

The script runs as it would by itself.  Hooks tell where its iterations begin and end; one of them is observed, then the
script is ended.

An *iteration* begins with the first call of the model after the one before is complete.  It is complete when every
optimizer has stepped; without optimizers when a backward pass has ended; in inference when the model returns.  What
comes after that and before the next call of the model - the next batch, printing the loss - is kept only as far as it
has to do with the iteration: its input is there before it begins.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.sources.record import gpu
from triosim.sources.record.assemble import assemble
from triosim.sources.record.fakes import accelerator_defaults, fake, loadable
from triosim.sources.record.function import (
    WITHOUT_HARDWARE,
    StepStopwatch,
    apply_kernels,
    device_name,
    float32_products,
    framework,
    measurable,
    one_thread,
)
from triosim.sources.record.modules import ModuleWatch, name_everything
from triosim.sources.record.observer import Observer, StepTape, thread_clock
from triosim.sources.record.patches import replaced
from triosim.sources.record.phases import PhaseWatch
from triosim.trace.tables import Meta, Trace

THIRD = 3
"""Default iteration: the first creates the optimizer's state, the second is timed without being observed."""

MEDIAN_OF = 5
"""Iterations that ``step="median"`` chooses from."""


def record_script(
    path: str | os.PathLike[str], argv: Sequence[str] = (), *, step: int | str = THIRD, fake: bool = False
) -> Trace:
    """Run a training or inference script and record one of its iterations.

    Args:
        path: the script; it runs as ``__main__`` and need not know of TrioSim.
        argv: its arguments.
        step: number of the iteration, from 1; or ``"median"``, the one of median time of the third to seventh.
        fake: run it without hardware, under tensors that have no data; operators get no times.

    Raises:
        InputError: there is no such script, it fails, or it ends before the iteration is complete.
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise InputError(f"{path}: there is no such script")
    if step == "median":
        wanted = range(THIRD, THIRD + (1 if fake else MEDIAN_OF))
    elif isinstance(step, int) and step >= 1:
        wanted = range(step, step + 1)
    else:
        raise InputError(f"step {step!r} is no iteration: give a number from 1, or 'median'")
    recording = _Recording(path, wanted, fake)
    recording.run(list(argv))
    return recording.trace()


class _ScriptEnd(BaseException):
    """Ends the script; no ``except Exception`` of the script catches it."""


@dataclass
class _ObservedIteration:
    """An observed iteration.

    Attributes:
        number: counted from 1.
        tape: what was noted.
        tail: the first row after the iteration was complete.
    """

    number: int
    tape: StepTape
    tail: int


class _Recording:
    """A run of a script and the iterations observed in it."""

    def __init__(self, path: Path, wanted: range, without_hardware: bool) -> None:
        self.path = path
        self.wanted = wanted
        self.fake = without_hardware
        self.found: list[_ObservedIteration] = []
        self.modules = ModuleWatch()
        self.phases = PhaseWatch(self.modules)
        self.number = 0
        self.complete = True
        self.kind = "cpu"
        self.stopwatch: StepStopwatch | None = None
        self._made_optimizers = 0
        self._stepped: set[int] = set()
        self._stepped_now: set[int] = set()
        self._observer: Observer | None = None
        self._profiler: gpu.Profiler | None = None
        self._tail = 0
        self._done = False

    # --- running the script ------------------------------------------------------------------------------------------

    def run(self, argv: list[str]) -> None:
        """Run the script until enough iterations have been observed."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_as_main(self.path, argv))
            stack.enter_context(one_thread())
            stack.enter_context(_eager())
            if self.fake:
                for context in (fake(), accelerator_defaults(), loadable()):
                    stack.enter_context(context)
            stack.enter_context(self._counting_optimizers())
            stack.enter_context(self.modules)
            stack.enter_context(self.phases)
            self.modules.on_root, self.modules.on_root_end = self._root_called, self._root_ended
            self.phases.on_optimizer, self.phases.on_optimizer_end = self._optimizer_steps, self._optimizer_stepped
            self.phases.on_backward_end = self._backward_ended
            try:
                ended = self._run_main()
            finally:
                self._close()
        if not self.found:
            complete = self.number if self.complete else self.number - 1
            raise InputError(
                f"{self.path}: the script {ended} after {max(complete, 0)} complete iterations, before iteration "
                f"{self.wanted.start} was: let it run longer or give an earlier --step"
            )

    def _run_main(self) -> str:
        try:
            runpy.run_path(str(self.path), run_name="__main__")
        except _ScriptEnd:
            pass
        except SystemExit as exit_:
            if exit_.code not in (None, 0):
                return f"ended itself (exit code {exit_.code})"
        except InputError:
            raise
        except Exception as error:
            if self._done or self.found:
                return "ended"
            raise InputError(f"{_place(self.path, error)}: {type(error).__name__}: {error}") from error
        return "ended"

    @contextlib.contextmanager
    def _counting_optimizers(self) -> Iterator[None]:
        original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._made_optimizers += 1
            original(optimizer, *args, **kwargs)

        with replaced(torch.optim.Optimizer, "__init__", init):
            yield

    # --- where iterations begin and end ------------------------------------------------------------------------------

    def _root_called(self, module: torch.nn.Module, args: tuple) -> None:
        if next(module.parameters(), None) is not None and self.complete:
            self._stop()
            evaluates = self._made_optimizers and not (module.training and torch.is_grad_enabled())
            if not evaluates:
                self._begin()
        if self._observer is not None:
            self._observer.root_called(module, args)

    def _root_ended(self, module: torch.nn.Module) -> None:
        if not self._made_optimizers and not self.phases.backwards and next(module.parameters(), None) is not None:
            self._completed()

    def _backward_ended(self) -> None:
        if self._observer is not None:
            self._observer.look_at_gradients()
        if not self._made_optimizers:
            self._completed()

    def _optimizer_steps(self, optimizer: Any) -> None:
        if self._observer is not None:
            self._observer.look_at_gradients()

    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._stepped.add(id(optimizer))
        self._stepped_now.add(id(optimizer))
        if self._stepped_now < self._stepped:
            return
        self._completed()
        if not self.modules.roots:  # a model that is no module: one iteration begins where the other ends
            self._stop()
            self._begin()

    def _completed(self) -> None:
        if self.complete:
            return
        self.complete = True
        if self._observer is not None:
            self._tail = len(self._observer.tape.rows)
        elif self.stopwatch is not None:
            self.stopwatch.stop()

    def _begin(self) -> None:
        self.number += 1
        self.complete = False
        self._stepped_now.clear()
        if self.number == 1 and 1 not in self.wanted:
            return
        torch.set_num_threads(1)  # the script may have chosen another number
        if self.stopwatch is None and not self.fake:
            names = name_everything(None, self.modules, self.phases.optimizers)
            self.kind = measurable({p.device.type for _, p in names.parameters})
            self.stopwatch = StepStopwatch(self.kind)
        if self.number not in self.wanted:
            if self.stopwatch is not None:
                self.stopwatch.start()
            return
        self._observe()

    def _observe(self) -> None:
        on_cpu = self.kind == "cpu" and not self.fake
        if self.kind == "cuda":
            self._profiler = gpu.Profiler()
            self._profiler.start()
        self._observer = Observer(
            self.modules, self.phases, clock=thread_clock if on_cpu else None,
            marker=gpu.marker if self._profiler is not None else None,
        )  # fmt: skip
        self._observer.start()

    def _stop(self) -> None:
        """End the observation, and the script if that was the last one."""
        self._close()
        if self._done:
            raise _ScriptEnd

    def _close(self) -> None:
        """End the observation."""
        if self._observer is None:
            return
        observer, self._observer = self._observer, None
        if _get_current_dispatch_mode() is not observer:
            raise InputError(
                f"{self.path}: iteration {self.number} opens a torch dispatch mode that it does not close: "
                "choose an iteration without it"
            )
        observer.stop()
        if self._profiler is not None:
            host_s = self.stopwatch.host_s() if self.stopwatch is not None else None
            apply_kernels(observer.tape, gpu.join(self._profiler.stop()), host_s)
            self._profiler = None
        if self.complete:
            self.found.append(_ObservedIteration(self.number, observer.tape, self._tail))
            self._done = self.number == self.wanted[-1]

    # --- the trace ---------------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """The chosen iteration."""
        chosen = self.found[0]
        if not self.fake:
            chosen = sorted(self.found, key=lambda i: sum(row.seconds for row in i.tape.rows))[len(self.found) // 2]
        dropped = _unrelated(chosen)
        meta = Meta(
            made_by="triosim.record", workload=self.path.stem, framework=framework(),
            float32_products=float32_products(),
            steps=tuple(str(i.number) for i in self.found), step=str(chosen.number),
            notes=(WITHOUT_HARDWARE,) if self.fake else (),
        )  # fmt: skip
        if not self.fake:
            meta = replace(
                meta, device=device_name(self.kind), clock="gpu" if self.kind == "cuda" else "cpu",
                step_time_s=self.stopwatch.step_s() if self.stopwatch is not None else None,
            )  # fmt: skip
        return assemble(chosen.tape, meta, dropped=dropped)


def _unrelated(iteration: _ObservedIteration) -> set[int]:
    """Rows after the end of an iteration that neither read nor write anything of it (the next batch is brought in)."""
    tape = iteration.tape
    storage = [v.storage for v in tape.ledger.values]
    related = {storage[v] for v in (*tape.parameters, *tape.buffers, *tape.states)} | set(tape.gradients)
    related |= {place for place, born in enumerate(tape.ledger.born) if 0 <= born < iteration.tail}
    dropped = set()
    for number in range(iteration.tail, len(tape.rows)):
        row = tape.rows[number]
        if any(storage[v] in related for v in (*row.inputs, *row.written)):
            related.update(storage[v] for v in row.outputs)
        else:
            dropped.add(number)
    return dropped


@contextlib.contextmanager
def _as_main(path: Path, argv: list[str]) -> Iterator[None]:
    """Arguments and import path as the script would have them by itself."""
    before = sys.argv, sys.path[:]
    sys.argv = [str(path), *argv]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _eager() -> contextlib.AbstractContextManager:
    """Compiled functions run as they are written: a dispatch mode cannot see into a compiled one."""
    stance = getattr(torch.compiler, "set_stance", None)  # from PyTorch 2.6; before, a mode switches compilation off
    return stance("force_eager") if stance is not None else contextlib.nullcontext()


def _place(path: Path, error: BaseException) -> str:
    """The innermost line of the script that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f"{path} line {lines[-1]}" if lines else str(path)
