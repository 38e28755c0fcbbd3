"""Output files that are written whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from triosim.errors import InputError


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file to write to that takes its name only when everything has been written.

    A name that ends in ``.gz`` is compressed, at the fastest level and without a date, so that equal predictions make
    equal files.

    Raises:
        InputError: the file cannot be written there.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        cure = "give a folder that exists and may be written to"
        raise InputError(f"cannot write {path}: {error.strerror}; {cure}") from None
    try:
        with os.fdopen(handle, "wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed, io.TextIOWrapper(packed, "utf-8") as text:
                    yield text
            else:
                with io.TextIOWrapper(raw, "utf-8", newline="\n") as text:
                    yield text
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None
        raise
