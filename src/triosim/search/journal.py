"""What a sweep has found so far, in a file beside its output, so that one that was killed goes on where it was.

The first line says what the sweep is of: a digest of the workload, the machine, the plan that all others are made from,
every file that they name, and the version.  Each further line is what a plan asks, and its outcome.  Lines are appended
whole; a last one that was cut off is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from triosim import __version__
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.guarded import parse_json

SCHEMA = "triosim/sweep-journal/1"


def beside(output: str | os.PathLike[str]) -> Path:
    """Where the journal of a sweep with this output is."""
    return Path(f"{os.path.realpath(output)}.journal.jsonl")


def digest(*values: object, files: Iterable[str] = ()) -> str:
    """Hexadecimal digest of what values consist of, and of the content of those of ``files`` that exist."""
    found = hashlib.sha256(__version__.encode())
    for value in values:
        _add(found, value)
    for name in sorted(set(files)):
        if os.path.isfile(name):
            found.update(Path(name).read_bytes())
    return found.hexdigest()


def _add(found: Any, value: object) -> None:
    """Count a value in, with its type, so that what is different is told apart."""
    found.update(f"{type(value).__name__}:".encode())
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype.str}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Ragged):
        _add(found, value.values)
        _add(found, value.offsets)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            found.update(one.name.encode())
            _add(found, getattr(value, one.name))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and not isinstance(value, (str, bytes))):
        parts: Any = value
        found.update(str(len(parts)).encode())
        for part in parts:
            _add(found, part)
    else:
        found.update(repr(value).encode() + b";")


class JournalledOutcome(Protocol):
    """What a plan gave, as values that JSON has, from which it can be made again."""

    def to_dict(self) -> dict[str, Any]: ...


K = TypeVar("K", bound=JournalledOutcome)


class Journal(Generic[K]):
    """The file; use it in a ``with`` block.

    Args:
        path: of the file.
        key: digest of what the sweep is of.
        read: makes an outcome of what its ``to_dict`` made; raises KeyError, TypeError or ValueError if it did not.

    Attributes:
        found: outcomes by what their plans ask.
        other: whether there was a journal of another sweep, which is written over.
    """

    def __init__(self, path: Path, key: str, read: Callable[[dict[str, Any]], K]) -> None:
        self.path, self.key, self.read = path, key, read
        self.found: dict[str, K] = {}
        self.other = False
        whole = self._read()
        try:
            self._file = path.open("r+b" if path.exists() else "x+b")
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"cannot write {path}: {why}; give the output another folder") from None
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._line({"schema": SCHEMA, "key": key})

    def __enter__(self) -> Journal[K]:
        return self

    def __exit__(self, *how: object) -> None:
        self._file.close()

    def keep(self, asked: str, outcome: K) -> None:
        """Remember what a plan gave, under what it asks."""
        self._line({"asked": asked, "outcome": outcome.to_dict()})

    def done(self) -> None:
        """The output is complete: nothing needs to be remembered any more."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _line(self, content: dict[str, Any]) -> None:
        self._file.write(json.dumps(content).encode() + b"\n")
        self._file.flush()

    def _read(self) -> int:
        """Read what is there; returns the bytes that are worth keeping."""
        if not self.path.is_file():
            return 0
        whole = 0
        for place, line in enumerate(_lines(self.path)):
            try:
                content = parse_json(line.decode(), str(self.path))
                if not place:
                    if content["schema"] != SCHEMA:
                        raise ValueError(content["schema"])
                    if content["key"] != self.key:
                        self.other = True
                        return 0
                else:
                    self.found[content["asked"]] = self.read(content["outcome"])
            except (InputError, KeyError, TypeError, ValueError):
                if not place:
                    raise InputError(
                        f"{self.path} is no journal of a sweep: give the output another name, or move that file away"
                    ) from None
                break
            whole += len(line)
        return whole


def _lines(path: Path) -> Iterator[bytes]:
    """Lines that are complete."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line
