"""``triosim trace``: record, import and look at traces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import completion
from triosim.cli.command import Command, CommandGroup, command, say, wants_summary

if TYPE_CHECKING:
    from triosim.trace.tables import Trace

trace_app = typer.Typer(
    cls=CommandGroup, help="Record, import and look at traces.", no_args_is_help=True, rich_markup_mode=None
)
STEP = typer.Option(
    "--step", metavar="STEP", help="Step of a file with several: its number, median or all.",
    autocompletion=completion.choices("median", "all"),
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(trace_app, name="trace")


class _Record(Command):
    """The command that runs a script: what follows the script is the script's, apart from options of ours that do not
    stand in every command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See :class:`Command`."""
        options: list[Any] = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        own = {name: not option.is_flag for option in options for name in option.opts}
        ours = {n: v for n, v in own.items() if n in ("-o", "--output", "--step", "--fake")}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            place += 2 if own.get(args[place]) else 1
        before, script, rest = args[:place], args[place : place + 1], args[place + 1 :]
        if script and script != ["--"]:
            taken, left = _divided(rest, ours)
            args = [*before, *taken, *script, "--", *left]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def _divided(words: list[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Words of a command line that are some options with their values, and the others.

    Args:
        words: in order; ``--`` ends the options.
        options: names, and whether they have a value.
    """
    found: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if word == "--":
            others += rest
        elif name not in options:
            others.append(word)
        else:
            found += [word] if value or not options[name] else [word, *islice(rest, 1)]
    return found, others


@command(
    trace_app, "record", cls=_Record, short_help="Run a PyTorch script and record one of its steps.",
    context_settings={"allow_extra_args": True},
)  # fmt: skip
def record(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT",
            help="An unmodified PyTorch script; what follows it is passed to it.",
            autocompletion=completion.files,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Trace to write (default: SCRIPT.triosim)."),
    ] = None,
    step: Annotated[
        int,
        typer.Option(
            "--step", metavar="N", help="Which training step to record, the first is 1 (default 3).", show_default=False
        ),
    ] = 3,
    fake: Annotated[
        bool, typer.Option("--fake", help="Without hardware: shapes only, nothing is computed or timed.")
    ] = False,
) -> None:
    """Run a PyTorch script and record one of its training (or inference) steps."""
    from triosim.cli.streams import standard_output_kept
    from triosim.core.outputs import check_distinct, is_standard_output
    from triosim.sources.record import record_script

    target = output or Path(script.name).with_suffix(".triosim")
    check_distinct({"--output": target}, [("the script", script)])
    with standard_output_kept() if is_standard_output(target) else nullcontext():
        made = record_script(script, list(context.args), step=step, fake=fake)
    _save(made, target)


@command(trace_app, "import")
def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            autocompletion=completion.files,
            help="TrioSim CSV folder, Kineto JSON (plain or .gz), execution trace, or a folder with both.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Trace to write (default: beside the source)."),
    ] = None,
    step: Annotated[str, STEP] = "median",
    execution_trace: Annotated[
        Path | None,
        typer.Option(
            "--execution-trace",
            metavar="FILE",
            help="The execution trace of a Kineto file.",
            autocompletion=completion.files,
        ),
    ] = None,
) -> None:
    """Turn a foreign trace into a .triosim file."""
    from triosim.core.outputs import check_distinct
    from triosim.sources.reading import load, recognised

    target = output or Path(path.name.split(".")[0]).with_suffix(".triosim")
    check_distinct({"--output": target}, [("PATH", path), ("--execution-trace", execution_trace)], recognised)
    _save(load(path, step=step, execution_trace=execution_trace), target)


@command(trace_app, "show")
def show(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A trace of any known format.", autocompletion=completion.files),
    ],
    step: Annotated[str, STEP] = "median",
    operators: Annotated[bool, typer.Option("--operators", help="List every operator.")] = False,
) -> None:
    """Show what a trace holds."""
    from triosim.sources.reading import load

    _show(load(path, step=step), operators)


def _save(trace: Trace, target: Path) -> None:
    """Write a trace, show it and say where it is."""
    from triosim.cli.streams import written
    from triosim.trace.store import save

    save(trace, target)
    if wants_summary(target):
        _show(trace)
    say(written("trace", target), target)


def _show(trace: Trace, operators: bool = False) -> None:
    from triosim.cli.streams import rich_console
    from triosim.report.trace import overview

    overview(trace, rich_console(), operators)
