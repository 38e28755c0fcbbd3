"""``triosim validate``: predictions against real runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triosim.cli import completion
from triosim.cli.command import command, progress_bar, say, wants_summary
from triosim.cli.outputs import OUTPUT, JsonFile
from triosim.core.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "validate")(validate)


JOBS, RECORDING = "Jobs", "Recording instead"
PROCESSES, ROUNDS = 2, 12


def validate(
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", help="Processes of each job.", rich_help_panel=JOBS)
    ] = PROCESSES,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="LIST",
            help="gpt-tiny, gpt-small, gpt-deep or gpt-wide, comma separated (default gpt-tiny,gpt-small,gpt-wide).",
            show_default=False,
            rich_help_panel=JOBS,
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes",
            metavar="LIST",
            help="ddp, fsdp2, tp, gpipe or 1f1b, comma separated (default all).",
            show_default=False,
            rich_help_panel=JOBS,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="How often each runs, in turns.", rich_help_panel=JOBS)
    ] = ROUNDS,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="What it may take; 90 s later all is ended (default 150s; with --record 450s).",
            show_default=False,
            rich_help_panel=JOBS,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="cpu|cuda",
            help="cpu or cuda (default: GPUs if there is one a process; with --record cuda, cpu being tiny).",
            show_default=False,
            rich_help_panel=JOBS,
            autocompletion=completion.choices("cpu", "cuda"),
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FOLDER",
            help="Record this machine's GPU into a folder, for predictions elsewhere.",
            show_default=False,
            rich_help_panel=RECORDING,
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part",
            metavar="PART",
            help="ceilings, images, texts, gemm, convolution, attention, memory or host (default all, in this order).",
            show_default=False,
            rich_help_panel=RECORDING,
        ),
    ] = None,
    json: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Write a picture (.svg or .html).",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Predict parallel jobs of this machine, run them with PyTorch, and compare; about two minutes.

    With --record: record kernels, training steps and host costs of its GPU, a part of eight minutes at a time.
    """
    if record is not None:
        of_jobs = {
            "--processes": processes != PROCESSES, "--model": model, "--modes": modes, "--rounds": rounds != ROUNDS,
            "--json": json, "--plot": plot,
        }  # fmt: skip
        beside = [name for name, value in of_jobs.items() if value]
        if beside:
            raise InputError(f"{beside[0]} says something of jobs, and --record runs none: leave one of them out")
        _record(record, part, budget, device)
        return
    if part is not None:
        raise InputError(f"--part {part} is a part of what --record DIR records: give a folder with --record")
    _compare(processes, model, modes, rounds, budget, device, json, plot)


def _compare(
    processes: int, model: str | None, modes: str | None, rounds: int, budget: str | None, device: str | None,
    json: str | None, plot: Path | None,
) -> None:  # fmt: skip
    """Run the jobs, predict them, and show both."""
    from triosim.cli.streams import rich_console, written
    from triosim.core.outputs import check_distinct, is_standard_output, text_output
    from triosim.core.units import parse_budget
    from triosim.validate import plot as picture
    from triosim.validate.sizes import DEFAULT, MODES
    from triosim.validate.validation import BUDGET_S
    from triosim.validate.validation import validate as run

    if plot is not None and not is_standard_output(plot) and plot.suffix.lower() not in (".svg", ".html"):
        raise InputError(f"--plot {plot}: the picture is written as .svg or .html; give a name that ends so")
    check_distinct({"--json": json, "--plot": plot}, [])
    with progress_bar() as progress:
        found = run(
            processes=processes,
            models=_listed(model, DEFAULT),
            modes=_listed(modes, MODES),
            rounds=rounds,
            budget_s=BUDGET_S if budget is None else parse_budget(budget),
            device=device,
            progress=progress,
        )
    if plot is not None:
        picture.write(found, plot)
    if json is not None:
        with text_output(json) as file:
            file.write(found.to_json())
    if wants_summary(json, plot):
        from triosim.validate.terminal import show

        show(found, rich_console())
    say(written("picture", plot) + written("result", json), plot, json)


def _record(folder: Path, part: str | None, budget: str | None, device: str | None) -> None:
    """Record and say how far it is."""
    from importlib.util import find_spec

    from triosim.core.units import parse_budget

    if find_spec("torch") is None:
        raise InputError("recording needs PyTorch, which is not installed: pip install 'triosim[torch]'")
    from triosim.validate.kit.recorder import BUDGET_S, record_parts

    budget_s = BUDGET_S if budget is None else parse_budget(budget)
    with progress_bar() as progress:
        found = record_parts(folder, part, budget_s, device, progress)
    for one in found:
        failed = f", {one.failed} of them failed" if one.failed else ""
        say([f"{one.part:<12} {one.before + one.now} of {one.items} recorded, {one.now} now{failed}"])
    left = sum(one.left for one in found)
    say([f"{left} left: run it again with the same folder" if left else f"complete: {folder}"])


def _listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names between commas."""
    if text is None:
        return default
    return tuple(name.strip() for name in text.split(",") if name.strip())
