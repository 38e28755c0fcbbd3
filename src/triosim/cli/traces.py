"""``triosim trace``: record, import and look at traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triosim.workload.trace import Trace

trace_app = typer.Typer(help="Record, import and look at traces.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(trace_app, name="trace")


@trace_app.command("record", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def record(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="An unmodified PyTorch script; what follows it is passed to it.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Trace to write (default: SCRIPT.triosim).")
    ] = None,
    step: Annotated[int, typer.Option("--step", help="Which training step to record, the first is 1 (default 3).")] = 3,
    fake: Annotated[
        bool, typer.Option("--fake", help="Without hardware: shapes only, nothing is computed or timed.")
    ] = False,
) -> None:
    """Run a PyTorch script and record one of its training (or inference) steps."""
    from triosim.workload.record import record_script
    from triosim.workload.store import save

    made = record_script(script, list(context.args), step=step, fake=fake)
    target = output or Path(script.name).with_suffix(".triosim")
    save(made, target)
    _show(made)
    print(f"trace     {target}")


@trace_app.command("import")
def import_(
    path: Annotated[
        Path,
        typer.Argument(help="TrioSim CSV folder, Kineto JSON (plain or .gz), execution trace, or a folder with both."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Trace to write (default: beside the source).")
    ] = None,
    step: Annotated[
        str, typer.Option("--step", help="Step of a file with several: its number, median or all.")
    ] = "median",
    execution_trace: Annotated[
        Path | None, typer.Option("--execution-trace", help="The execution trace of a Kineto file.")
    ] = None,
) -> None:
    """Turn a foreign trace into a .triosim file."""
    from triosim.workload.reading import read
    from triosim.workload.store import save

    made = read(path, step=step, execution_trace=execution_trace)
    target = output or Path(path.name.split(".")[0]).with_suffix(".triosim")
    save(made, target)
    _show(made)
    print(f"trace     {target}")


@trace_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A trace of any known format.")],
    step: Annotated[
        str, typer.Option("--step", help="Step of a file with several: its number, median or all.")
    ] = "median",
    operators: Annotated[bool, typer.Option("--operators", help="List every operator.")] = False,
) -> None:
    """Show what a trace holds."""
    from triosim.workload.reading import read

    _show(read(path, step=step), operators)


def _show(trace: Trace, operators: bool = False) -> None:
    from rich.console import Console

    from triosim.report.trace import overview

    overview(trace, Console(), operators)
