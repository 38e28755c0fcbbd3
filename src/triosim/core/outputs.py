"""Where everything that TrioSim writes goes: files and folders that appear whole or not at all.

A new file is written beside its place under another name and takes the name when it is complete.  Whoever reads it
never sees half of it, and an interrupted command leaves what was there before.  What is no regular file (a device, a
pipe) or cannot be replaced without losing something (a second name, another owner) is written *through*: the content is
completed elsewhere and then copied into it.  ``-`` is standard output.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from triosim.core.errors import InputError, quoted

STANDARD_OUTPUT = "-"
"""The name under which an output goes to standard output."""

PAGES = (".html", ".htm", ".gz", "")
"""What the name of a page may end in."""

_STANDARD_OUTPUTS = (STANDARD_OUTPUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_NOT_REPLACED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.ETXTBSY)
"""Refusals to put a new file into a folder, or over an old one, although that one may itself be written to."""


def is_standard_output(path: str | os.PathLike[str] | None) -> bool:
    """Whether an output of this name goes to standard output."""
    return path is not None and os.fspath(path) in _STANDARD_OUTPUTS


@contextmanager
def text_output(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file to write to, in UTF-8, which takes its name only when everything has been written.

    A name that ends in ``.gz`` is compressed, at the fastest level and without a date, so that equal predictions make
    equal files.

    Raises:
        InputError: the file cannot be written there.
    """
    import gzip

    with ExitStack() as opened:
        raw = opened.enter_context(_output(path))
        packed = opened.enter_context(gzip.GzipFile("", "wb", 1, raw, mtime=0)) if Path(path).suffix == ".gz" else None
        text = io.TextIOWrapper(packed or raw, "utf-8", errors="replace", newline="\n")
        yield text
        text.flush()
        text.detach()  # closing it would close the file before it has its name


@contextmanager
def binary_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file of bytes to write to, which takes its name only when everything has been written.

    Raises:
        InputError: the file cannot be written there, or it is standard output and that is a terminal.
    """
    if is_standard_output(path) and sys.stdout is not None and sys.stdout.isatty():
        raise InputError("this output is not text: send standard output to a file or a program, or name a file")
    with _output(path) as file:
        yield file


@contextmanager
def folder_output(path: str | os.PathLike[str], belongs: Callable[[str], bool]) -> Iterator[Path]:
    """A folder to fill, which takes its name and the place of an older one only when it is complete.

    Args:
        path: the folder: new, empty, or one of an earlier run.
        belongs: whether a file of this name may be of an earlier run.  A folder that holds anything else is left alone.

    Raises:
        InputError: the folder cannot be written there, or holds what is not of an earlier run.
    """
    place = Path(os.path.realpath(path))
    with _refusals(path), terminable():
        check_folder(path, belongs)
        missing = [parent for parent in place.parents if not parent.exists()]
        made = _beside(place)
        try:
            made.mkdir(parents=True)
            if place.exists():
                _carry_over(place.stat(), made)
            yield made
            _swap(made, place)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            for parent in missing:
                with suppress(OSError):
                    parent.rmdir()
            raise


def check_folder(path: str | os.PathLike[str], belongs: Callable[[str], bool]) -> None:
    """Refuse a folder that :func:`folder_output` would refuse; cheap, to be asked before long work.

    Raises:
        InputError: it is no folder, or holds what is not of an earlier run.
    """
    if is_standard_output(path):
        raise InputError("a folder cannot go to standard output: name a folder")
    place = Path(os.path.realpath(path))
    if not place.exists():
        return
    if not place.is_dir():
        raise InputError(f"cannot write {path}: there is a file of that name; give a folder")
    strangers = sorted(name for name in os.listdir(place) if not belongs(name))
    if strangers:
        raise InputError(
            f"the folder {path} holds {strangers[0]!r}, which is not of an earlier run: give a folder that is new or "
            "empty"
        )
    if os.path.samefile(place, os.curdir):
        raise InputError(f"the folder {path} is the one that the command runs in: give another one")


def check_ending(option: str, name: str | os.PathLike[str], endings: Sequence[str]) -> None:
    """Refuse the name of a file whose ending does not say its form.

    Raises:
        InputError: the name ends otherwise.
    """
    if not str(name).endswith(tuple(endings)):
        raise InputError(f"{option} {quoted(str(name))}: give a name that ends in {', '.join(endings)}")


def check_distinct(
    outputs: Mapping[str, str | os.PathLike[str] | None],
    inputs: Iterable[tuple[str, str | os.PathLike[str] | None]],
    is_read: Callable[[Path], bool] = lambda path: True,
    folders: Container[str] = (),
) -> None:
    """Refuse an output that is an input or another output of the same command, under whatever name, that lies in a
    folder that does not exist, or a page whose name is of another format: before anything is computed.

    Args:
        outputs: option -> file or folder, None where it is not given.
        inputs: options and what they read.  Names of no file (a model, a ready system) are passed over.
        is_read: of an existing file in a folder that is read: whether it is what the folder is read for.
        folders: options whose output may be a folder, which is made with those above it.

    Raises:
        InputError: two of them are the same, a file has nowhere to stand, or what is written has another format.
    """
    read = [(name, Path(path)) for name, path in inputs if path is not None and os.path.exists(path)]
    taken: dict[str, Path] = {}
    for name, given in outputs.items():
        if given is None:
            continue
        path = Path(given)
        for other, source in read:
            inside = source.is_dir() and _within(path, source) and path.is_file() and is_read(path)
            if _same(path, source) or inside or (path.is_dir() and _within(source, path)):
                raise InputError(f"{name} {path} would overwrite what {other} reads: give it another name")
        for other, earlier in taken.items():
            if is_standard_output(path) and is_standard_output(earlier):
                raise InputError(f"{other} and {name} cannot both go to standard output: name a file for one of them")
            if _same(path, earlier):
                raise InputError(f"{other} and {name} both write {path}: give them different names")
            if _within(path, earlier) or _within(earlier, path):
                raise InputError(f"{other} {earlier} and {name} {path}: one lies in the other; write them side by side")
        taken[name] = path
    for name, path in taken.items():
        folder = os.path.dirname(os.path.realpath(path))
        if name not in folders and not is_standard_output(path) and not os.path.exists(folder):
            raise _no_folder(path, folder)
        if name == "--report" and path.suffix.lower() not in PAGES and not is_standard_output(path):
            raise InputError(f"{name} {path}: the page is written as HTML; give a name that ends in .html")


def _no_folder(path: str | os.PathLike[str], folder: str) -> InputError:
    return InputError(f"cannot write {path}: there is no folder {folder}; give one that exists")


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block, being asked to end (SIGTERM, or SIGHUP of a terminal that closes) clears up as Ctrl-C does.

    A program that handles the signals itself goes on doing so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else [])]
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file of bytes that is delivered when the block ends well."""
    import tempfile

    with _refusals(path), terminable(), ExitStack() as opened:
        place = Path(os.path.realpath(path))  # a link stays, what it points to is written
        beside = _beside(place)
        opened.callback(beside.unlink, missing_ok=True)
        through = is_standard_output(path) or _is_written_through(path) or not _create(beside, place)
        with tempfile.TemporaryFile() if through else beside.open("r+b") as file:
            yield file
            if through:
                _copy(file, path)
        if not through and not _replace(place, beside):
            with beside.open("rb") as complete:
                _copy(complete, path)


def _is_written_through(path: str | os.PathLike[str]) -> bool:
    """Whether there is something under this name that is not to be replaced.

    Raises:
        InputError: it is a folder, or must not be written to.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(path, os.W_OK):
        raise InputError(f"cannot write {path}: it is write-protected; give another name")
    already_open = os.path.abspath(path).startswith(("/dev/fd/", "/proc/"))
    return already_open or status.st_nlink > 1 or not stat.S_ISREG(status.st_mode)


def _create(beside: Path, place: Path) -> bool:
    """Make an empty file with the owner and the mode of the one at ``place``; False where only that one can be written
    to."""
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        if place.exists():
            _carry_over(place.stat(), beside)
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not place.is_file():
            raise
        return False
    return True


def _replace(place: Path, complete: Path) -> bool:
    """Give a complete file its name; False where there is a file that can be written to but not replaced."""
    try:
        os.replace(complete, place)
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not place.is_file():
            raise
        return False
    return True


def _beside(place: Path) -> Path:
    """A name in the same folder that nothing has; of fixed length, as the given one may be as long as names can be."""
    import secrets

    return place.with_name(f".triosim-{secrets.token_hex(8)}.part")


def _carry_over(status: os.stat_result, path: Path) -> None:
    """Give a new file or folder the owner and the mode of the one that it replaces."""
    own = path.stat()
    if sys.platform != "win32" and (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        os.chown(path, status.st_uid, status.st_gid)
    path.chmod(stat.S_IMODE(status.st_mode))


def _copy(content: IO[bytes], path: str | os.PathLike[str]) -> None:
    """Write complete content into standard output or into what is there."""
    content.seek(0)
    if not is_standard_output(path):
        with open(path, "wb") as target:
            shutil.copyfileobj(content, target)
    elif sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    else:
        sys.stdout.flush()
        shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _swap(made: Path, place: Path) -> None:
    """Put a complete folder into the place of an older one, or of none."""
    older = _beside(place)
    try:
        if place.exists():
            os.rename(place, older)
        os.rename(made, place)
    except BaseException:
        if older.exists() and not place.exists():
            os.rename(older, place)
        raise
    finally:
        if place.exists():
            shutil.rmtree(older, ignore_errors=True)


@contextmanager
def _refusals(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the operating system refuses, as one sentence; a reader of standard output who has gone is no fault."""
    try:
        yield
    except BrokenPipeError:
        if is_standard_output(path):
            raise
        raise InputError(f"cannot write {path}: its reader has gone") from None
    except OSError as error:
        if is_standard_output(path):
            raise InputError(f"cannot write standard output: {error.strerror or error}; name a file instead") from None
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.exists(folder):
            raise _no_folder(path, folder) from None
        cure = "give a folder that may be written to"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "free some space or give another place"
        raise InputError(f"cannot write {path}: {error.strerror or error}; {cure}") from None


def _same(one: Path, other: Path) -> bool:
    """Whether two names are of one file; devices that swallow or show whatever comes may be named twice."""
    try:
        if stat.S_ISCHR(os.stat(one).st_mode):
            return False
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _within(path: Path, folder: Path) -> bool:
    """Whether a file lies in or below a folder; anything may be, before they are made."""
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents
