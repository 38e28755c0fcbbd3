"""The one way in for files that users give: JSON, TOML, gzip, zip, CSV and protobuf, and YAML by its neighbour.

A file may be cut short, damaged, of another kind than its name says, or written to do harm.  Whatever is wrong with it
ends here as an :class:`~triosim.core.errors.InputError`, one sentence with the file and, where there is one, the
place in it; nothing that a parser raises gets past.  What a file would take in memory is estimated and compared with
the limits of :mod:`triosim.core.limits` before it is unpacked or parsed.

Documents that people write (:func:`document`) are checked further: no deeper than :data:`DEEPEST`, no key twice, every
key a text, whole numbers of 64 bits, no NaN.  What the values *mean* is for the reader of each format.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from triosim.core.errors import LONGEST_VALUE, InputError, like, quoted
from triosim.core.limits import check_memory, check_unpacked, most_unpacked

DEEPEST = 64
"""Levels of nesting in a document that a person writes."""

LARGEST = {".json": 256 << 20, ".toml": 16 << 20, ".yaml": 512 << 10, ".yml": 512 << 10}
"""Bytes of such a document by its ending.  YAML is parsed at 60 kB/s in the worst case, TOML at 3 MB/s."""

INTEGERS = range(-(2**63), 2**63)
"""Whole numbers that a column can hold."""

_GZIP = b"\x1f\x8b"
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LARGEST_DIRECTORY = 1 << 20
_PIECE = 1 << 20
_LONGEST_LITERAL = 1 << 20


# --- bytes ------------------------------------------------------------------------------------------------------------


def content(path: Path, packed: bool = True) -> bytes:
    """All of a file, decompressed where it is gzip.

    Args:
        path: the file.
        packed: whether gzip is expected; otherwise the bytes are returned as they are.

    Raises:
        InputError: no such file, not a plain file, unreadable, a damaged gzip file, or too large.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path} is a folder: give the file in it")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a plain file: save its content in one and give that")
        check_memory(status.st_size, str(path))
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or quoted(str(error))
        hint = like(path) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: cannot be read: {reason}{hint}") from None
    except ValueError as error:  # a path that no system can have: a zero byte, half a character
        if isinstance(error, InputError):
            raise
        raise InputError(f"{quoted(str(path))}: cannot be read: no file can be called so") from None
    return unzipped(raw, str(path)) if packed and raw.startswith(_GZIP) else raw


def unzipped(raw: bytes, where: str) -> bytes:
    """The content of a gzip file.

    Its size is counted first, without keeping anything.

    Raises:
        InputError: damaged, or it would grow out of all proportion.
    """
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                check_unpacked(size, len(raw), where)
        check_memory(size, f"{where}, unpacked,")
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error, struct.error) as error:
        reason = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise InputError(f"{where} is a damaged gzip file ({reason}): copy or record it again") from None


def pieces(path: Path, size: int = _PIECE) -> Iterator[bytes]:
    """A file from beginning to end in pieces of ``size`` bytes, decompressed where it is gzip; the last is shorter.

    Raises:
        InputError: as :func:`content`.
    """
    with _opened(path) as file:
        there, passed = path.stat().st_size, 0
        while piece := file.read(size):
            passed += len(piece)
            if isinstance(file, gzip.GzipFile):
                check_unpacked(passed, there, str(path))
            yield piece


def slices(path: Path, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Parts of a file, decompressed where it is gzip: offset and length of each, in ascending order.

    Raises:
        InputError: as :func:`content`.
    """
    with _opened(path) as file:
        at = 0
        for offset, length in places:
            while at < offset:  # GzipFile.seek reads in small pieces
                if not isinstance(file, gzip.GzipFile):
                    at = file.seek(offset)
                elif passed := len(file.read(min(offset - at, _PIECE))):
                    at += passed
                else:
                    return
            found = file.read(length)
            at += len(found)
            yield found


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file of bytes to read from, decompressed where it is gzip; what goes wrong becomes a sentence."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error, struct.error) as error:
        reason = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise InputError(f"{path} is a damaged gzip file ({reason}): copy or record it again") from None
    except OSError as error:
        reason = error.strerror or quoted(str(error))
        raise InputError(f"{path}: cannot be read: {reason}") from None


def head(path: Path, size: int) -> bytes:
    """The first ``size`` bytes of a file, decompressed and without a byte order mark; empty where nothing can be read.
    Never raises.
    """
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            raw = file.read(size)
    except (OSError, ValueError):
        return b""
    if not raw.startswith(_GZIP):
        return raw.removeprefix(codecs.BOM_UTF8)
    try:
        return zlib.decompressobj(wbits=31).decompress(raw, size)
    except zlib.error:
        return b""


def contains(path: Path, needle: bytes) -> bool:
    """Whether a file, decompressed, contains ``needle`` anywhere; reads it piece by piece.  Never raises."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            most = most_unpacked(path.stat().st_size)
            tail, passed = b"", 0
            while piece := file.read(_PIECE):
                if needle in tail + piece:
                    return True
                tail, passed = piece[-len(needle) :], passed + len(piece)
                if passed > most:
                    return False
    except (OSError, EOFError, ValueError, zlib.error, struct.error):
        pass
    return False


def text(raw: bytes, where: str, errors: str = "strict") -> str:
    """UTF-8 text, with or without a byte-order mark.

    Raises:
        InputError: it is none.
    """
    check_memory(2 * len(raw), where)
    try:
        return raw.decode("utf-8-sig", errors=errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte {error.start} is not UTF-8 text: save the file as UTF-8") from None


# --- zip --------------------------------------------------------------------------------------------------------------


def members(path: Path) -> frozenset[str]:
    """Names of the members of a zip file; empty where it is none.  Never raises."""
    try:
        if not path.is_file():
            return frozenset()
        with path.open("rb") as file:
            if _directory_bytes(file) > _LARGEST_DIRECTORY:
                return frozenset()
            with zipfile.ZipFile(file) as archive:
                return frozenset(archive.namelist())
    except _ZIP_ERRORS:
        return frozenset()


def unpacked(path: Path, names: Sequence[str], what: str) -> dict[str, bytes]:
    """Members of a zip file.

    Args:
        path: the file.
        names: members that it must have.
        what: it should be, for messages: ``"trace file"``.

    Raises:
        InputError: unreadable, no zip file, without one of the members, damaged, or it would grow out of all
            proportion.
    """
    raw = io.BytesIO(content(path, packed=False))
    try:
        if _directory_bytes(raw) > _LARGEST_DIRECTORY:
            raise InputError(f"{path} is not a {what}: it has far more members than one: give the right file")
        with zipfile.ZipFile(raw) as archive:
            there = {info.filename: info for info in archive.infolist()}
            missing = sorted(set(names) - set(there))
            if missing:
                raise InputError(f"{path} is not a complete {what}: {', '.join(missing)} is missing: make it again")
            wanted = [there[name] for name in names]
            if any(info.compress_type not in _ZIP_METHODS for info in wanted):
                raise InputError(f"{path} is not a {what}: its members are packed in another way: make it again")
            size = sum(info.file_size for info in wanted)
            check_unpacked(size, raw.getbuffer().nbytes, str(path))
            check_memory(size, f"{path}, unpacked,")
            return {name: archive.read(info) for name, info in zip(names, wanted, strict=True)}
    except InputError:
        raise
    except _ZIP_ERRORS as error:
        raise InputError(f"{path} is not a {what}, or is damaged ({error}): make or copy it again") from None


_ZIP_ERRORS = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, KeyError,
    NotImplementedError, RuntimeError, OverflowError, IndexError,
)  # fmt: skip
"""What :mod:`zipfile` raises for damaged archives."""


def _directory_bytes(file: IO[bytes]) -> int:
    """Size of a zip file's directory, which :mod:`zipfile` reads whole; 0 where there is none."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - 65_557, 0))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(b"PK\5\6")
    return int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0


# --- JSON -------------------------------------------------------------------------------------------------------------

_BAD_ESCAPE = r'\\(?!["\\/bfnrtu])'
_HALF = r"\\u[dD]{}[0-9a-fA-F]{{2}}"
_HALVES = (
    _HALF.format("[89aAbB]") + r"(?!" + _HALF.format("[c-fC-F]") + r")|"
    r"(?<!\\u[dD][89aAbB][0-9a-fA-F]{2})" + _HALF.format("[c-fC-F]")
)


def parse_json(
    source: str, where: str, *, parse_float: Callable[[str], Any] | None = None, lenient: bool = False
) -> Any:
    """The values of a JSON text.

    Args:
        source: the text.
        where: the file, for messages.
        parse_float: what becomes of numbers with a fraction or an exponent.
        lenient: JSON as profilers write it: NaN, infinities, raw control characters and lone backslashes pass.

    Raises:
        InputError: not JSON, with the line and column where it stops being so, nested too deeply, with a number of
            thousands of digits, or with a number that JSON does not have.
    """
    check_memory(_json_memory(source), f"{where}, read as JSON,", "give a part of it")
    if "\\ud" in source or "\\uD" in source:
        source = re.sub(_HALVES, r"\\ufffd", source)
    options: dict[str, Any] = {"parse_float": parse_float, "strict": not lenient}
    if not lenient:
        options |= {"parse_constant": _no_number, "object_pairs_hook": _unique}
    try:
        try:
            return json.loads(source, **options)
        except json.JSONDecodeError as error:
            if not lenient or "escape" not in error.msg:
                raise
            return json.loads(re.sub(_BAD_ESCAPE, r"\\\\", source), **options)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        end = "it ends too early" if error.pos >= len(source.rstrip()) - 1 else error.msg
        raise InputError(f"{where} is broken JSON at {place} ({end}): write or copy it again") from None
    except _HookRefusal as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise too_deep(where) from None
    except ValueError:
        raise InputError(f"{where}: a number has thousands of digits: write or copy it again") from None


class _HookRefusal(Exception):
    """What a hook of a parser does not take, in words."""


def _no_number(word: str) -> Any:
    raise _HookRefusal(f"{word} is no JSON number: give a finite one, or null where the format says so")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _HookRefusal(f"key {quoted(twice)} is given twice: keep one")
    return made


def _json_memory(source: str) -> float:
    """Bytes that a JSON text takes as Python objects, at most: 240 an object, 72 a list, 56 a value."""
    values = source.count(",") + source.count(":")
    return 2 * len(source) + 240 * source.count("{") + 72 * source.count("[") + 56 * values


# --- TOML and YAML ----------------------------------------------------------------------------------------------------

_PARTS = 64
"""Parts of a dotted key: TOML's parser takes memory with the square of their number."""
_KEY_PART = re.compile(r"[\w\"'-]\s*\.")


def parse_toml(source: str, where: str) -> Any:
    """The values of a TOML text.

    Raises:
        InputError: not TOML, nested too deeply, or with a number of thousands of digits.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    for number, line in enumerate(source.split("\n"), start=1):
        if line.count(".") > _PARTS and any(
            len(_KEY_PART.findall(piece)) > _PARTS for piece in re.split(r"[][,={}]", line)
        ):
            raise InputError(f"{where}, line {number}: a key of more than {_PARTS} parts: nest fewer tables")
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise too_deep(where) from None
    except ValueError as error:
        digits = "a number has thousands of digits" if "digits" in str(error) else str(error)
        raise InputError(f"{where}: not valid TOML: {digits}") from None


# --- documents that people write --------------------------------------------------------------------------------------


def document(
    path: Path, what: str = "a table of keys", form: str | None = None, tags: Iterable[str] = (), largest: int = 0
) -> dict[str, Any]:
    """The table in a JSON, TOML or YAML file that a person has written, or that a program keeps for one.

    Args:
        path: the file.
        what: it must be, as the end of a sentence.
        form: ``".json"``, ``".toml"`` or ``".yaml"``; by default the ending of the file's name says which it is.
        tags: of YAML, see :func:`parse_yaml`.
        largest: bytes that the file may have; by default as :data:`LARGEST` says.

    Raises:
        InputError: it is none, or holds what no such document holds (see the module's docstring).
    """
    found = values(path, form, tags, largest)
    if not isinstance(found, dict):
        raise InputError(f"{path}: must be {what}, not {_kind_of(found)}")
    return found


def values(path: Path, form: str | None = None, tags: Iterable[str] = (), largest: int = 0) -> Any:
    """Whatever a JSON, TOML or YAML file holds; see :func:`document`."""
    where, form = str(path), form or path.suffix.lower()
    largest = largest or LARGEST.get(form, 0)
    if form not in LARGEST:
        raise InputError(f"{path}: must be TOML, YAML or JSON: give a file that ends in {', '.join(LARGEST)}")
    raw = content(path, packed=False)
    if len(raw) > largest:
        limit = f"{largest >> 20} MiB" if largest >= 1 << 20 else f"{largest >> 10} KiB"
        other = ": write so long a table as TOML" if form in (".yaml", ".yml") else ": give a smaller one"
        raise InputError(f"{path}: larger than {limit}, which is too much for a {form} file{other}")
    source = text(raw, where)
    if form in (".yaml", ".yml"):
        from triosim.core.guarded_yaml import parse_yaml  # which few files are

        found = parse_yaml(source, where, tags)
    else:
        found = {".json": parse_json, ".toml": parse_toml}[form](source, where)
    check_values(found, where, finite=form == ".json")
    return found


def schema(path: Path) -> str:
    """The text under ``schema`` in a JSON file, ``""`` where there is none or it cannot be read.  Never raises."""
    try:
        found = values(path, ".json")
    except InputError:
        return ""
    named = found.get("schema") if isinstance(found, dict) else None
    return named if isinstance(named, str) else ""


def check_values(found: Any, where: str, finite: bool | None = False) -> None:
    """Check what a document holds, to the bottom, without calling itself.

    Args:
        found: the values.
        where: the file, for messages.
        finite: whether infinite numbers are refused too; None takes NaN as well.

    Raises:
        InputError: nested too deeply, a whole number beyond 64 bits, a number that is none, or half a character.
    """
    waiting: list[tuple[Any, int, str]] = [(found, 0, "")]
    while waiting:
        value, depth, place = waiting.pop()
        if depth > DEEPEST:
            raise too_deep(where)
        if isinstance(value, Mapping):
            for key, part in value.items():
                waiting.append((part, depth + 1, f"{place}.{key}"[-LONGEST_VALUE:].lstrip(".")))
                waiting.append((key, depth + 1, place))
        elif isinstance(value, list):
            if set(map(type, value)) == {float} and all(map(math.isfinite, value)):
                continue  # columns of measured numbers are long
            waiting.extend((part, depth + 1, place) for part in value)
        elif problem := _problem(value, finite):
            raise InputError(f"{where}: {place + ': ' if place else ''}{problem}")


def _problem(value: Any, finite: bool | None) -> str:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            return f"{quoted(value)} holds half a character: write it again"
    elif isinstance(value, int):
        if value not in INTEGERS:
            return f"is too large: give a number of at most 64 bits, got {quoted(value)}"
    elif isinstance(value, float) and finite is not None and (math.isnan(value) or (finite and math.isinf(value))):
        return f"must be a finite number, got {value}"
    return ""


def _kind_of(value: Any) -> str:
    names = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def too_deep(where: str) -> InputError:
    """What is said of a document of too many levels."""
    return InputError(f"{where}: nested too deeply (more than {DEEPEST} levels): write it flatter")


# --- other parsers ----------------------------------------------------------------------------------------------------


def rows(source: str, where: str) -> csv.DictReader[str]:
    """The rows of a CSV text by the names in its header; read them within :func:`csv_errors`.

    Raises:
        InputError: two columns have one name, of which only one would be read, or columns are not separated by commas.
    """
    check_memory(20 * len(source), f"{where}, read as a table,", "give a part of it")
    found = csv.DictReader(io.StringIO(source, newline=""))
    with csv_errors(where, lambda: 1):
        names = [name for name in found.fieldnames or () if name]
    _check_commas(names, where)
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise InputError(f"{where} has two columns {quoted(twice)}: leave one of them away")
    return found


def cells(source: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV text without names: their numbers from 1 on, and the cells of each, without blanks.

    Raises:
        InputError: what is to be a line cannot be one, or columns are not separated by commas.
    """
    check_memory(20 * len(source), f"{where}, read as a table,", "give a part of it")
    number = 1
    with csv_errors(where, lambda: number):
        for row in csv.reader(io.StringIO(source, newline="")):
            if number == 1:
                _check_commas(row, where)
            yield number, [cell.strip() for cell in row]
            number += 1


def _check_commas(head: Sequence[str], where: str) -> None:
    """Refuse a table that is separated by something else: read so, its numbers may have decimal commas, and 1,5 would
    be two cells."""
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if any(mark in cell for cell in head):
            raise InputError(
                f"{where}: columns are separated by {name}: export it with commas between columns and points in numbers"
            )


@contextmanager
def csv_errors(where: str, line: Callable[[], int]) -> Iterator[None]:
    """Turns what :mod:`csv` raises into a sentence with the line."""
    try:
        yield
    except csv.Error as error:
        raise InputError(f"{where}, line {line()}: not comma separated ({error}): export it again") from None


def literal(source: str) -> Any:
    """The Python literal that a text is: numbers, texts, lists and the like.

    Raises:
        ValueError: it is none, or too long or deep to be looked at.
    """
    import ast

    if len(source) > _LONGEST_LITERAL:
        raise ValueError(f"a text of {len(source)} characters")
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"{quoted(source)} is no list") from None


def parsed(message: Any, record: bytes, where: str) -> Any:
    """A protobuf message filled from the bytes of a record.

    Raises:
        InputError: they are not of such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(record)
    except (DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise InputError(f"{where} is no {message.DESCRIPTOR.name}: is it the right kind of file?") from None
    return message


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Around the readers of whole files: what a file can bring about anywhere in them becomes a sentence.

    A reader that follows a file's own nesting may run out of stack, and one that a limit has let through may run out of
    memory.
    """
    try:
        yield
    except RecursionError:
        raise too_deep(str(where)) from None
    except MemoryError:
        raise InputError(f"{where} takes more memory than there is: give a part of it") from None
