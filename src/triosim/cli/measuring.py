"""``triosim calibrate --run``: kernels as this machine runs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from triosim.cli.command import general
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.hardware.accelerator import Accelerator
    from triosim.kernels.calibration.pack import CalibrationPack
    from triosim.sources.runtimes.bench import BenchmarkProgress, KernelBenchmark

SHORTEST_S = 5.0
"""Budget below which nothing of use can be measured."""


def measured_here(device: str | None, budget: str | None, runtime: str | None, threads: int | None) -> CalibrationPack:
    """A calibration from kernels that are measured now.

    Args:
        device: that the kernels run on: a catalog name or a file, or cpu or cuda.
        budget: time that measuring may take (4 minutes).
        runtime: what runs them (torch).
        threads: of a processor that share a kernel (1; of numpy as many as it was started with).

    Raises:
        InputError: the runtime or the device is not there or not known, or the budget is too small.
    """
    from triosim.kernels.calibration.figures import machine
    from triosim.kernels.calibration.making import calibrate

    budget_s, runtime = _seconds(budget or "4m"), runtime or "torch"
    if runtime == "numpy" and threads is None:
        from triosim.sources.runtimes.numpy_runtime import started_threads

        threads = started_threads()
    threads = threads or 1
    if threads > max(os.cpu_count() or 1, 1):
        raise InputError(f"--threads {threads}: this machine has {os.cpu_count()} processors, give no more than that")
    described, kind = _described(device)
    if runtime == "torch":
        bench = _with_torch(kind, described is None, budget_s, threads)
    else:
        bench = _with_runtime(runtime, kind, budget_s, threads)
    here = {**machine(), "threads": bench.threads} if bench.trace.meta.clock == "cpu" else None
    pack, _ = calibrate(
        bench.trace, described, drift=bench.drift, versions=bench.versions, machine=here, rules=bench.rules
    )
    return pack


def _described(device: str | None) -> tuple[Accelerator | None, str | None]:
    """The device that the user describes, and of which kind it is; None where that is not said."""
    if device in (None, "cpu", "cuda"):
        return None, device
    from triosim.hardware.build import accelerator

    found = accelerator(str(device))
    return found, "cpu" if found.kind == "cpu" else "cuda"


def _with_runtime(name: str, kind: str | None, budget_s: float, threads: int) -> KernelBenchmark:
    if kind == "cuda":
        raise InputError(f"--runtime {name} is measured on the processor: leave --device out, or give cpu")
    from triosim.sources.runtimes.bench import measure_runtime
    from triosim.sources.runtimes.runtime import inference_runtime

    runtime = inference_runtime(name, threads)
    with _bar(name) as progress:
        return measure_runtime(runtime, budget_s, progress)


def _with_torch(kind: str | None, unnamed: bool, budget_s: float, threads: int) -> KernelBenchmark:
    from triosim.hardware.catalog import identify
    from triosim.sources.record import device_name, devices_here, measure

    kind = kind or devices_here()[0]
    if kind == "cuda" and kind in devices_here() and unnamed and identify(device_name(kind)) is None:
        raise InputError(
            f"the catalog does not know {device_name(kind)!r}: describe it in a file (docs/systems.md) and give that "
            "as --device"
        )
    if kind == "cuda" and threads != 1:
        raise InputError(f"--threads {threads}: kernels of a GPU are not shared by threads, leave it out")
    with _bar("PyTorch") as progress:
        return measure(kind, budget_s, progress, threads)


@contextmanager
def _bar(runtime: str) -> Iterator[Callable[[BenchmarkProgress], None]]:
    """A progress bar on standard error; being interrupted is one sentence."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from triosim.cli.streams import rich_console

    if general().quiet:
        yield lambda now: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=rich_console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"starting {runtime}", total=1.0)
            yield lambda now: bar.update(
                task, description=f"measuring: {now.what}", completed=now.gone_s, total=now.budget_s
            )
    except KeyboardInterrupt:
        print(
            "triosim: interrupted, nothing was written: run it again, with a smaller --budget if it takes too long",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None


def _seconds(text: str) -> float:
    """Seconds that measuring may take."""
    from triosim.core.units import parse_budget

    seconds = parse_budget(text)
    if seconds < SHORTEST_S:
        raise InputError(f"--budget {text}: too short to measure anything, give at least {SHORTEST_S:g}s")
    return seconds
