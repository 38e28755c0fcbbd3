"""The command line: parse, call the API, print.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim.errors import InputError

EXIT_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="triosim",
    help="Predict time and memory of ML training and inference on many accelerators, from one single-device trace or a "
    "model's name.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from triosim import __version__
        from triosim.engine.play import chosen

        typer.echo(f"triosim {__version__} ({chosen()} engine)")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print version and engine.")
    ] = None,
) -> None:
    """Common to all commands."""


def _register() -> None:
    from triosim.cli import astra, calibrate, catalog, predict, traces, validate

    predict.register(app)
    traces.register(app)
    catalog.register(app)
    calibrate.register(app)
    astra.register(app)
    validate.register(app)


_register()


def main() -> None:
    """Run the command line; what the user got wrong is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except InputError as error:
        print(f"triosim: {error}", file=sys.stderr)
        sys.exit(EXIT_INPUT)
    except KeyboardInterrupt:
        print("triosim: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
