"""The command line: parse, call the API, print.  It is started by :mod:`triosim.__main__`.

A command's module is imported when the command is wanted, and nothing heavy before it runs.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from triosim.cli.command import HELP, CommandGroup, write_list


class _Command(NamedTuple):
    """A command as it is listed.

    Attributes:
        group: under which.
        module: in :mod:`triosim.cli`; its ``register`` adds the command to a typer application, or where the module has
            several, ``MODULE:FUNCTION`` does.
        about: what it does, in a line of at most 65 characters.
    """

    group: str
    module: str
    about: str


COMMANDS = {
    "train": _Command("Predictions", "predict:register_train", "A training step: time, memory, where the time goes."),
    "infer": _Command("Predictions", "predict:register_infer", "An inference step (a forward pass)."),
    "search": _Command("Predictions", "search", "The best ways to train a model on a machine."),
    "serve": _Command("Predictions", "serve", "A fleet of model replicas under traffic: latency and rate."),
    "astra": _Command("Predictions", "astra", "What is ready for ASTRA-sim: Chakra traces and its files."),
    "accelerator": _Command("Predictions", "accelerator", "Designs that do not exist: evaluate and map them."),
    "explore": _Command("Predictions", "explore", "Sizes of a design that no others beat."),
    "cost": _Command("Predictions", "cost", "What a predicted job costs and emits, without simulating."),
    "compare": _Command("Predictions", "compare", "What makes the difference between predictions."),
    "together": _Command("Predictions", "together", "Several jobs on one network, arriving and leaving."),
    "job": _Command("Predictions", "job", "A whole job of a prediction: failures, checkpoints, days."),
    "systems": _Command(
        "What is known by name", "catalog:register_systems", "Ready systems: all of them, or one in full."
    ),
    "devices": _Command("What is known by name", "catalog:register_devices", "Devices: all of them, or one in full."),
    "models": _Command("What is known by name", "catalog:register_models", "Models: all of them, or one in full."),
    "trace": _Command("Measurements", "traces", "Record, import and look at traces."),
    "calibrate": _Command("Measurements", "calibrate", "Fit operator times, or composition, to what was measured."),
    "validate": _Command("Measurements", "validate", "Predict jobs of this machine, run them, and compare."),
}
"""All commands in the order in which they are listed."""


class _Commands(CommandGroup):
    """All commands, each loaded when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # only names are read from it

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command of that name, None if there is none."""
        return _loaded(name) if name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names and what they do, in groups; loads none of them."""
        for group in dict.fromkeys(command.group for command in COMMANDS.values()):
            rows = [(name, command.about) for name, command in COMMANDS.items() if command.group == group]
            write_list(formatter, group, rows, max(map(len, COMMANDS)))


@functools.cache
def _loaded(name: str) -> Any:
    holder = typer.Typer(cls=CommandGroup, context_settings=HELP, add_completion=False, rich_markup_mode=None)
    holder.callback()(lambda: None)
    module, _, function = COMMANDS[name].module.partition(":")
    getattr(import_module(f"triosim.cli.{module}"), function or "register")(holder)
    group: Any = typer.main.get_group(holder)
    return group.commands[name]


app = typer.Typer(
    name="triosim",
    help="Predict time and memory of ML training and inference on many accelerators, from one single-device trace or a "
    "model's name.",
    cls=_Commands,
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from triosim import __version__
        from triosim.engine.play import selected_engine

        typer.echo(f"triosim {__version__} ({selected_engine()} engine)")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print version and engine.")
    ] = None,
) -> None:
    """Common to all commands."""
