"""What the scripts that judge have in common: ``--data``, ``--json``, and one sentence where something is wrong.

    python -m validation.judge.NAME --data PATH [--json OUT]

PATH is the table or folder that a script reads, or a folder that holds it as the folder of all measured data does.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from triosim.core.errors import InputError, no_such_file
from triosim.core.outputs import text_output


def parser(about: str | None, data: str | None = None, required: bool = True) -> argparse.ArgumentParser:
    """A command line with ``--json``, and with ``--data`` where a script reads measured data.

    Args:
        about: docstring of the script.
        data: what it reads.
        required: whether it does nothing without.
    """
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        made.add_argument("--data", type=Path, required=required, metavar="PATH", help=data)
    made.add_argument("--json", type=Path, metavar="OUT", help="also write the figures as JSON")
    return made


def find(data: Path, *names: str) -> Path:
    """The file or folder of measured data that a script reads.

    Args:
        data: what was given: the file or folder itself, or a folder that has one of the names, or their last parts.
        names: where it lies in the folder of all data, ``"energy/power_caps.csv"``; a folder's name ends in ``/``.
            Files are taken by any name, and so are folders.

    Raises:
        InputError: it is not there.
    """
    if not data.exists():
        raise no_such_file(data)
    folders = [name for name in names if name.endswith("/")]
    if data.is_file():
        if len(folders) < len(names):
            return data
        raise InputError(f"{data}: is a file: give a folder of the shape of {' or '.join(folders)}")
    for name in names:
        parts = Path(name).parts
        for first in range(len(parts)):
            found = data.joinpath(*parts[first:])
            if found.is_dir() if name in folders else found.is_file():
                return found
    if folders:
        return data  # by another name
    raise InputError(f"{data}: has no {' or '.join(names)}: give a folder that has it, or the file")


def rows(path: Path, *columns: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV file, by its header.

    Args:
        path: the file.
        columns: those that must be there.

    Raises:
        InputError: it is no text, or a column is missing.
    """
    with path.open(encoding="utf-8", newline="") as file:
        try:
            table = csv.DictReader(file)
            missing = [name for name in columns if name not in (table.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: has no column {missing[0]!r}: give a table of the shape that the help names")
            yield from table
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}: is no CSV file ({error})") from None


HEAD = f"{'rows':>5s}{'mean %':>8s}{'median':>8s}{'bias':>8s}{'worst':>8s}{'holds':>7s}"
"""Of :func:`figures`."""


def figures(off: Sequence[float], holds: Sequence[bool]) -> str:
    """Rows, mean and median of errors without their signs, bias (the median), the worst, how many intervals hold; %.

    Args:
        off: predicted over measured less 1, of each row.
        holds: whether its interval holds the measurement.
    """
    size, most = np.abs(off), int(np.argmax(np.abs(off)))
    return (
        f"{len(off):5d}{100 * size.mean():8.1f}{100 * np.median(size):8.1f}{100 * np.median(off):+8.1f}"
        f"{100 * off[most]:+8.1f}{100 * np.mean(holds):7.0f}"
    )


def write(path: Path | None, figures: object) -> None:
    """Write figures as JSON where a file was asked for.

    Raises:
        InputError: it cannot be written there.
    """
    if path is not None:
        with text_output(path) as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a script and leave: with its own code, or 2 and one sentence where what was given is wrong."""
    try:
        code = main()
    except InputError as error:
        print(f"validation: {error}", file=sys.stderr)
        code = 2
    except OSError as error:
        print(f"validation: {error.filename}: {error.strerror}", file=sys.stderr)
        code = 2
    raise SystemExit(code or 0)
