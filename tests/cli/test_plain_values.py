"""Options are read as typer reads them, and without pydantic where they are plain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from triosim.cli.command import Command

VALUES = (
    [], ["--number", "8"], ["--number", "007"], ["--number", " 8"], ["--number", "-3"], ["--number", "8.0"],
    ["--number", "1_000"], ["--number", "eight"], ["--number", "9" * 30], ["--few", "3"], ["--few", "30"],
    ["--text", "a b"], ["--text", ""], ["--text", "8"], ["--word", "a"], ["--word", "c"], ["--real", "0.5"],
    ["--real", "1e3"], ["--real", "x"], ["--many", "a", "--many", "b"], ["--path", "x/y"], ["--flag"], ["--no-flag"],
    ["given"], ["given", "more"],
)  # fmt: skip


def read(plain: bool, arguments: list[str]) -> Any:
    """What a command is called with, or what is said."""
    app, found = typer.Typer(), []

    @app.command(cls=Command if plain else None)
    def run(
        first: str = "none",
        number: Annotated[int | None, typer.Option()] = None,
        few: Annotated[int, typer.Option(min=1, max=9)] = 4,
        text: Annotated[str | None, typer.Option()] = None,
        word: Annotated[Literal["a", "b"], typer.Option()] = "b",
        real: Annotated[float, typer.Option()] = 1.5,
        many: Annotated[list[str] | None, typer.Option()] = None,
        path: Annotated[Path | None, typer.Option()] = None,
        flag: Annotated[bool, typer.Option()] = False,
    ) -> None:
        found.append((first, number, few, text, word, real, many, path, flag))

    code = CliRunner().invoke(app, arguments).exit_code
    return [(value, type(value)) for value in found[0]] if found else code != 0


@pytest.mark.parametrize("arguments", VALUES, ids=" ".join)
def test_every_value_is_read_as_typer_reads_it(arguments: list[str]) -> None:
    assert read(True, arguments) == read(False, arguments)


def test_pydantic_is_not_loaded_to_read_options() -> None:
    program = (
        "import sys; sys.argv = ['triosim', 'train', 'nothing', '--tp', '8', '--system', 'dgx-h100', '-q']\n"
        "from triosim.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2 False\n", done.stderr
