"""Kinds of damage: what happens to files on the way, by hand, and on purpose.

Each takes a random number generator and the bytes of a file, and returns other bytes.  Those of text do what they can
to any text: a format is a language of numbers, words, quotes and brackets to them.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

Damage = Callable[[Random, bytes], bytes]

NUMBERS = (
    "0", "-0", "-1", "1", "0.5", "-0.5", "1e308", "1e309", "-1e309", "1e-320", "NaN", "nan", "inf", "-inf", "Infinity",
    "2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "1e18", "1e30", "123456789012345678901234567890", "0x10", "0x_",
    "1_000", "07", "1e", "+5", "1e5", "100000", "1000000000",
)  # fmt: skip
"""Numbers that no file of this kind should hold, or only just."""

LONG = 5000
"""Digits of a number that no parser likes."""

OTHERS = (
    "null", "true", "false", '""', '"x"', '"\\ud800"', "[]", "{}", "[1]", '["a", 1]', '{"a": 1}', "[[1], [2, 3]]", "-1",
    "1.5", '"1e400"', '"[red]x[/]"', '"\x1b[31mx"', "2024-13-45", "~", "*a", "&a", "!!binary x", "''", '"../../etc"',
)  # fmt: skip
"""Values of other types."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\b(?:true|false|null|True|False|None)\b')
_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.:-]*|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[^\s\w]')


def bits(draw: Random, raw: bytes) -> bytes:
    """One to eight bits are another way round."""
    if not raw:
        return b"\x80"
    changed = bytearray(raw)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def octets(draw: Random, raw: bytes) -> bytes:
    """A few bytes are others."""
    at = draw.randrange(len(raw) + 1)
    count = draw.choice([1, 2, 4, 8])
    new = draw.choice([b"\0" * count, b"\xff" * count, draw.randbytes(count)])
    return raw[:at] + new + raw[at + draw.choice([0, count]) :]


def truncation(draw: Random, raw: bytes) -> bytes:
    """The end is missing, or the beginning."""
    at = draw.randrange(len(raw) + 1)
    return raw[:at] if draw.random() < 0.8 else raw[at:]


def duplication(draw: Random, raw: bytes) -> bytes:
    """A piece is there twice, or many times, there or elsewhere."""
    start = draw.randrange(len(raw) + 1)
    piece = raw[start : start + draw.choice([1, 8, 64, 512, len(raw)])]
    at = draw.choice([start, draw.randrange(len(raw) + 1)])
    return raw[:at] + piece * draw.choice([1, 1, 2, 50]) + raw[at:]


def removal(draw: Random, raw: bytes) -> bytes:
    """A piece is missing."""
    start = draw.randrange(len(raw) + 1)
    return raw[:start] + raw[start + draw.choice([1, 4, 16, 128]) :]


def lines(draw: Random, raw: bytes) -> bytes:
    """A line is gone, twice there, or has changed places with another."""
    rows = raw.split(b"\n")
    a, b = draw.randrange(len(rows)), draw.randrange(len(rows))
    what = draw.randrange(3)
    if what == 0:
        del rows[a]
    elif what == 1:
        rows.insert(b, rows[a])
    else:
        rows[a], rows[b] = rows[b], rows[a]
    return b"\n".join(rows)


def swap(draw: Random, raw: bytes) -> bytes:
    """Two words, numbers or brackets have changed places, or one is where the other is as well."""
    found = _some(draw, _TOKEN, raw, 2)
    if len(found) < 2:
        return octets(draw, raw)
    (a, b), (c, d) = found
    first = raw[a:b] if draw.random() < 0.3 else raw[c:d]
    return raw[:a] + first + raw[b:c] + raw[a:b] + raw[d:]


def numbers(draw: Random, raw: bytes) -> bytes:
    """One to three numbers are others: huge, negative, none, of thousands of digits."""
    for _ in range(draw.choice([1, 1, 1, 3])):
        found = _some(draw, _NUMBER, raw, 1)
        if not found:
            return octets(draw, raw)
        ((a, b),) = found
        raw = raw[:a] + _number(draw) + raw[b:]
    return raw


def types(draw: Random, raw: bytes) -> bytes:
    """A value is of another type."""
    found = _some(draw, _VALUE, raw, 1)
    if not found:
        return octets(draw, raw)
    ((a, b),) = found
    return raw[:a] + draw.choice(OTHERS).encode("utf-8", "surrogatepass") + raw[b:]


def nesting(draw: Random, raw: bytes) -> bytes:
    """A value is deep inside lists or tables, closed again or not."""
    found = _some(draw, _VALUE, raw, 1)
    ((a, b),) = found or [(len(raw), len(raw))]
    depth = draw.choice([2, 70, 1000, 100_000])
    left, right = draw.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"- ", b""), (b"(", b")"), (b"a.", b"")])
    return raw[:a] + left * depth + (raw[a:b] or b"1") + right * draw.choice([0, depth, depth, depth]) + raw[b:]


def packed(draw: Random, raw: bytes) -> bytes:
    """The file is gzip, sound or damaged, or such a file in another, or a small file that becomes large."""
    what = draw.randrange(5)
    if what == 0:
        return gzip.compress(raw, 1, mtime=0)
    if what == 1:
        return gzip.compress(gzip.compress(raw, 1, mtime=0), 1, mtime=0)
    if what == 2:
        return bomb(1 << 24 if draw.random() < 0.05 else 1 << 20)
    damage = draw.choice([bits, octets, truncation, duplication])
    return damage(draw, gzip.compress(raw, 1, mtime=0))


BYTES: dict[str, Damage] = {
    "bits": bits, "octets": octets, "truncation": truncation, "duplication": duplication, "removal": removal,
    "packed": packed,
}  # fmt: skip
"""Damage to any file."""

TEXT: dict[str, Damage] = {
    **BYTES, "lines": lines, "swap": swap, "numbers": numbers, "types": types, "nesting": nesting,
}  # fmt: skip
"""Damage to text."""


def zipped(inner: Callable[[Random, str, bytes], bytes]) -> Damage:
    """Damage to one member of a zip file, which is a sound zip file afterwards.

    Args:
        inner: damages a member, given its name.
    """

    def damage(draw: Random, raw: bytes) -> bytes:
        members = _members(raw)
        if not members:
            return octets(draw, raw)
        name = draw.choice(sorted(members))
        members[name] = inner(draw, name, members[name])
        return archive(members)

    return damage


def container(draw: Random, raw: bytes) -> bytes:
    """A zip file of the same members: some gone, twice there, renamed, packed, or one that becomes large."""
    members = _members(raw)
    if not members:
        return octets(draw, raw)
    name = draw.choice(sorted(members))
    what = draw.randrange(5)
    if what == 0:
        del members[name]
    elif what == 1:
        members[draw.choice(["../up", "/abs", "a" * 300, "meta.json/x", ""])] = members.pop(name)
    elif what == 2:
        members[name] = members[draw.choice(sorted(members))]
    elif what == 3:
        members[name] = bytes(draw.choice([0, 1 << 20, 1 << 24]))
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
    return archive(members, method, twice=name if what == 4 else "")


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, twice: str = "") -> bytes:
    """A zip file."""
    out = io.BytesIO()
    with contextlib.redirect_stderr(None), zipfile.ZipFile(out, "w", method) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name or "x", (1980, 1, 1, 0, 0, 0)), content, compress_type=method)
    if twice in members:
        raw = out.getvalue()
        return raw[: len(raw) // 2] + raw
    return out.getvalue()


@functools.cache
def bomb(size: int) -> bytes:
    """A gzip file of zeros, made without holding them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])


def column(draw: Random, values: list[Any]) -> list[Any]:
    """A column of a table with one value, or all, that should not be there; of the same type, so that it can be
    written again."""
    if not values:
        return values
    changed, at = list(values), draw.randrange(len(values))
    sample = values[at]
    if isinstance(sample, list):
        changed[at] = column(draw, sample) if draw.random() < 0.6 else sample * draw.choice([0, 2, 3])
    elif isinstance(sample, bool):
        changed[at] = not sample
    elif isinstance(sample, int):
        changed[at] = draw.choice([-1, -2, 0, 1, len(values), len(values) + 1, 2**31 - 1, -(2**31), sample + 1, 127])
    elif isinstance(sample, float):
        changed[at] = draw.choice([float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e300, 1e-300, 5e-324])
    else:
        changed[at] = draw.choice(["", "x" * 5000, "[red]", "\x1b[31m", "\n", "aten::", "aten::mm", "\U0001f600"])
    return [changed[at]] * len(values) if draw.random() < 0.1 else changed


def _members(raw: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as file:
            return {name: file.read(name) for name in file.namelist()}
    except Exception:
        return {}


def _some(draw: Random, what: re.Pattern[bytes], raw: bytes, count: int) -> list[tuple[int, int]]:
    """Places of some tokens, in order; looks at a part of a long file."""
    start = draw.randrange(max(len(raw) - 4096, 0) + 1)
    found = [match.span() for match in what.finditer(raw, start, start + 8192)]
    return sorted(draw.sample(found, min(count, len(found))))


def _number(draw: Random) -> bytes:
    if draw.random() < 0.05:
        return b"9" * LONG
    return draw.choice(NUMBERS).encode()
