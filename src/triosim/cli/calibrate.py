"""``triosim calibrate``: measured kernels of one device bring predictions closer to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from triosim.cli import completion
from triosim.cli.command import command, say, wants_summary
from triosim.cli.completion import choices
from triosim.cli.fields import argument, given, option
from triosim.cli.fields import command as function_of
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, no_such_file, quoted

if TYPE_CHECKING:
    from triosim.kernels.calibration.pack import CalibrationPack

MEASURED = "Instead of a trace"
"""The group of options that say what else to calibrate with."""


@dataclass(frozen=True)
class CalibrateOptions:
    """What ``calibrate`` takes, in the order in which help lists it."""

    trace: str | None = argument(
        "TRACE", "A recorded or imported trace with operator times.", default=None, complete=completion.files
    )
    run: bool = option("--run", help="Measure kernels on this machine.", default=False, group=MEASURED)
    runtime: str | None = option(
        "--runtime",
        help="What runs them: torch, onnxruntime or numpy (default torch); with --import what ran them.",
        group=MEASURED, metavar="NAME", complete=choices("torch", "onnxruntime", "numpy"),
    )  # fmt: skip
    threads: int | None = option(
        "--threads",
        help="Threads of a processor that share a kernel (default 1; of numpy as many as it was started with).",
        group=MEASURED, metavar="N",
    )  # fmt: skip
    export_kernels: Path | None = option(
        "--export-kernels",
        help="Write kernels as ONNX files, to be measured on a device where TrioSim does not run.",
        group=MEASURED, metavar="FOLDER",
    )  # fmt: skip
    import_: Path | None = option(
        "--import",
        help="Table (CSV) of what was measured of those, in their folder: columns kernel and ms.",
        group=MEASURED, metavar="FILE",
    )  # fmt: skip
    iterations: Path | None = option(
        "--iterations",
        help="Table (CSV) of measured iterations: options of train as columns, and seconds; fits what composition "
        "adds to operator times (train --composition).",
        group=MEASURED, metavar="FILE",
    )  # fmt: skip
    power: str | None = option(
        "--power",
        help="What the device draws: runs phases on this machine with PyTorch beside a sensor, or beside a log "
        "that is written meanwhile (CSV: time, watts); fits joules of FLOP and bytes (train --energy).",
        group=MEASURED, metavar="FILE|nvidia-smi|rapl",
    )  # fmt: skip
    phases: Path | None = option(
        "--phases",
        help="With --power FILE: phases that were run elsewhere (CSV: what, start, end, dtype, flop, bytes).",
        group=MEASURED, metavar="FILE",
    )  # fmt: skip
    few: Path | None = option(
        "--few",
        help="Table (CSV) of 10 to 50 whole networks that were timed: columns arch (a cell, blocks or a name) and "
        "ms; learns what others take.",
        group=MEASURED, metavar="FILE",
    )  # fmt: skip
    pool: Path | None = option(
        "--pool", help="With --few: table of what networks took on other devices, a column each.", group=MEASURED,
        metavar="FILE",
    )  # fmt: skip
    predict: Path | None = option(
        "--predict",
        help="With --few PACK.json, what it has learned: table of networks (arch) whose times are asked for.",
        group=MEASURED, metavar="FILE",
    )  # fmt: skip
    device: str | None = option(
        "--device",
        help="Device (triosim devices) or file that describes one, where the trace does not name it; with --run "
        "also cpu or cuda; with --few and --import what to call it.",
        metavar="NAME|FILE", complete=completion.devices,
    )  # fmt: skip
    budget: str | None = option("--budget", help="Time that --run may take (default 4m).", metavar="TIME")
    step: str | None = option(
        "--step", help="Step of a foreign trace with several: its number or median.", metavar="STEP",
        complete=choices("median"),
    )  # fmt: skip
    output: Path | None = option(
        "-o", "--output",
        help="File to write (default: DEVICE-calibration.json, composition.json, DEVICE-few-shot.json).",
        metavar="FILE",
    )  # fmt: skip


SOURCES = ("trace", "run", "iterations", "power", "few", "export_kernels", "import_")
"""Fields that say what to calibrate with."""

_OF_NETWORKS = (("few",), "--pool and --predict go with networks that were timed: give --few FILE as well")
_OF_KERNELS = (
    ("run", "import_"), "--runtime and --threads say how kernels are measured: give --run or --import as well"
)  # fmt: skip
BESIDE = {
    "pool": _OF_NETWORKS,
    "predict": _OF_NETWORKS,
    "phases": (
        ("power",), "--phases says what a device did while its power was logged: give --power FILE as well"
    ),
    "runtime": _OF_KERNELS,
    "threads": _OF_KERNELS,
    "budget": (
        ("run", "power"), "--budget bounds the measurements of --run and --power; all else has been measured already"
    ),
    "step": (("trace",), "--step chooses among the steps of a trace: leave it out"),
    "device": (
        ("trace", "run", "power", "few", "import_"),
        "--device says what was measured; --iterations names it in a column, and --export-kernels writes the same "
        "kernels for any: leave it out",
    ),
    "output": (
        ("trace", "run", "iterations", "power", "few", "import_"),
        "--export-kernels names the folder that it writes: leave -o out",
    ),
}  # fmt: skip
"""Every other field: the sources that it says something about, and what is said where none of them is given."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = """Fit operator times to measured kernels of one device, or composition to measured iterations.

    Kernels are those of a trace, or measured on this machine (--run) or elsewhere (--import); the pack that is written
    goes to --operator-times of train and infer.  What is fitted to --iterations goes to --composition.
    """
    command(app, "calibrate")(function_of(CalibrateOptions, calibrate, about))


def calibrate(options: CalibrateOptions) -> None:
    """Fit what the one source that is given was measured for, and write it.

    Raises:
        InputError: there is none or several, an option says nothing of it, or a file cannot be read.
    """
    from triosim.core.outputs import check_distinct

    source = _source(options)
    read = ("iterations", "power", "phases", "few", "pool", "predict", "device", "import_")
    names = [("TRACE", options.trace), *((f"--{name.rstrip('_')}", getattr(options, name)) for name in read)]
    check_distinct({"--output": options.output}, names)
    device, output = options.device, options.output
    if source == "few":
        from triosim.cli.few_shot import write as write_few

        assert options.few is not None
        write_few(options.few, options.pool, options.predict, device, output)
    elif source == "power":
        from triosim.cli.power import write as write_power

        write_power(str(options.power), options.phases, device, options.budget, output)
    elif source == "iterations":
        from triosim.cli.iterations import write as write_composition

        assert options.iterations is not None
        write_composition(options.iterations, output or Path("composition.json"))
    elif source == "export_kernels":
        from triosim.cli.runtimes import export

        assert options.export_kernels is not None
        export(options.export_kernels)
    else:
        pack = _pack(source, options)
        if source == "run":
            _tell_few(pack, options.budget, options.output)
        _write(pack, output or Path(f"{_slug(pack.calibration.device.name)}-calibration.json"))


FEW_KERNELS = 20
"""Different kernels below which a pack says next to nothing: of none of its classes can an interval be learned."""


def _tell_few(pack: CalibrationPack, budget: str | None, output: Path | None) -> None:
    """Warn of a pack from so few kernels that most of a model is predicted as without it."""
    count = sum(len(one.anchors) for one in pack.calibration.learned.values())
    if count < FEW_KERNELS:
        classes = ", ".join(one.name for one in pack.calibration.learned.values())
        say(
            [f"warning: {count} kernels were measured in {budget or '4m'}, of {classes} alone: all others will be "
             "predicted as without this pack; give a longer --budget (4m if it is left out)"],
            output,
        )  # fmt: skip


def _source(options: CalibrateOptions) -> str:
    """The field that says what to calibrate with.

    Raises:
        InputError: there is not one, or another field says nothing of it.
    """
    sources = [name for name in SOURCES if getattr(options, name) not in (None, False)]
    for name, _ in given(options):
        if name in BESIDE and len(sources) < 2 and not set(sources) & set(BESIDE[name][0]):
            raise InputError(BESIDE[name][1])
    if len(sources) != 1:
        raise InputError(
            "triosim calibrate takes a trace, --run, --iterations, --power, --few, --export-kernels or --import, one "
            "of them: triosim calibrate STEP.triosim"
        )
    if options.threads is not None and options.threads < 1:
        raise InputError(f"--threads {options.threads}: give 1 or more")
    return sources[0]


def _pack(source: str, options: CalibrateOptions) -> CalibrationPack:
    """The calibration from kernels of a trace, or measured here or elsewhere."""
    if source == "run":
        from triosim.cli.measuring import measured_here

        return measured_here(options.device, options.budget, options.runtime, options.threads)
    if source == "import_":
        from triosim.cli.runtimes import imported

        assert options.import_ is not None
        return imported(options.import_, options.device, options.runtime or "a runtime", options.threads or 1)
    return _of_trace(str(options.trace), options.device, options.step)


def _of_trace(name: str, device: str | None, step: str | None) -> CalibrationPack:
    from triosim.hardware.build import accelerator, is_file
    from triosim.hardware.catalog import identify
    from triosim.kernels.calibration.making import calibrate as made_of
    from triosim.sources.reading import load

    if not os.path.exists(name):
        raise no_such_file(name)
    trace = load(Path(name), step=step or "median")
    described = accelerator(device) if device else None
    if described is not None:
        recorded = trace.meta.device and identify(trace.meta.device)
        other = recorded and not is_file(str(device)) and recorded != described.name
        if other or (trace.meta.clock == "cpu" and described.kind == "gpu"):
            raise InputError(
                f"{name} was recorded on {quoted(trace.meta.device or 'a processor')}, and its kernels say nothing of "
                f"{described.name}: leave --device {device} out"
            )
    return made_of(trace, described, name=Path(name).name)[0]


def _write(pack: CalibrationPack, path: Path) -> None:
    from triosim.cli.streams import rich_console, written
    from triosim.core.outputs import text_output
    from triosim.kernels.calibration.pack import text
    from triosim.report.calibration import overview

    with text_output(path) as file:
        file.write(text(pack))
    if wants_summary(path):
        overview(pack, rich_console())
        print()
    say(written("pack", path, f"  (triosim train WORKLOAD --operator-times {path})"), path)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "device"
