"""The one kind of error that a user is meant to see; a message quotes what the user gave, cut to a safe length.

Whatever is wrong with what the user gave - a file, a name, a plan - is raised as
:class:`InputError` with one sentence that names the file, the place in it and the cure.  The command
line prints that sentence and exits with code 2; a traceback therefore always means a defect of TrioSim.

Values come from files that may be damaged or hostile, so messages show them with :func:`quoted` and everything that
goes to a terminal passes :func:`printable`.
"""

from __future__ import annotations

import difflib
import os
import re
import reprlib
from collections.abc import Iterable
from functools import lru_cache

LONGEST_VALUE = 80
"""Characters of a value that a message repeats."""

LONGEST_MESSAGE = 1200
"""Characters of a message."""

LONGEST_PATH = 300
"""Characters of a path that is not there."""

_LISTED = 12  # names that there are, where none is like the one that was given
_COMPARED = 5000  # names: a system can have a million nodes, and each takes 20 us to compare with


class InputError(ValueError):
    """What the user gave cannot be used; the message says what, where and how to mend it."""

    def __init__(self, message: object = "") -> None:
        super().__init__(_shortened(str(message), LONGEST_MESSAGE))


class PlanError(InputError):
    """A plan that cannot be formed; the message names the conflict and the nearest plans that work."""


def unknown(what: str, name: object, known: Iterable[str], suggestion: str = "") -> InputError:
    """An :class:`InputError` for a name that nothing answers to, with the closest known names."""
    text = (name if isinstance(name, str) else quoted(name))[:LONGEST_VALUE]
    known = sorted(known)
    lower = {k.lower(): k for k in known[:_COMPARED]}
    near = [lower[k] for k in difflib.get_close_matches(text.lower(), lower, n=3, cutoff=0.5)]
    near = near or [k for k in known if text.lower() in k.lower()][:5]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        more = f" and {len(known) - _LISTED:,} more" if len(known) > _LISTED else ""
        hint = "known: " + ", ".join(known[:_LISTED]) + more if known else "there is none"
    return InputError(f"unknown {what} {quoted(name)}: {hint}{' ' + suggestion if suggestion else ''}")


ALIKE, SHORTEST_KEY = 0.8, 5
"""How much a key that means nothing may be like one that does before it is taken to be misspelled, and how long it is
at least: a ``turn`` or ``mode`` may well be another's."""


def check_spelling(keys: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse keys of a table that nobody reads and that are nearly spelled like one that is not there.

    For formats whose tables may hold what others read: such keys are passed over.

    Args:
        keys: of the table.
        known: keys that mean something.
        where: of the table, for messages.

    Raises:
        InputError: a key is misspelled.
    """
    there, read = frozenset(keys), frozenset(known)
    for key in sorted(there - read):
        near = next((one for one in _spelled_like(key, read) if one not in there), None)
        if near is not None:
            raise InputError(f"{where}: {quoted(key)} means nothing here: did you mean {near}?")


@lru_cache(maxsize=1024)  # a file of a million lines has the same keys in each
def _spelled_like(key: str, known: frozenset[str]) -> list[str]:
    """Keys that one may be a misspelling of, the likest first."""
    return difflib.get_close_matches(key, known, n=3, cutoff=ALIKE) if len(key) >= SHORTEST_KEY else []


def no_such_file(path: str | os.PathLike[str]) -> InputError:
    """An :class:`InputError` for a path at which nothing is, with the names in that folder that are like it."""
    return InputError(f"{_shortened(os.fspath(path), LONGEST_PATH)}: no such file or folder{like(path)}")


def like(path: str | os.PathLike[str]) -> str:
    """The end of a sentence about a path at which nothing is: what in its folder has a name like it."""
    folder, name = os.path.split(os.fspath(path))
    try:
        there = os.listdir(folder or os.curdir)[:_COMPARED]
    except (OSError, ValueError):
        return ""
    near = [os.path.join(folder, found) for found in difflib.get_close_matches(name, there, n=3, cutoff=0.7)]
    return f": did you mean {' or '.join(near)}?" if near else ""


def says_where(name: str, endings: Iterable[str]) -> bool:
    """Whether a text that may be a name or a path can only be a path: it has folders in it, or one of the endings."""
    return os.path.basename(name) != name or name.lower().endswith(tuple(endings))


# --- values in messages -----------------------------------------------------------------------------------------------


class _Quoted(reprlib.Repr):
    """Abbreviates on the way down: what is left out is never turned into text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 4
        self.maxstring = self.maxother = LONGEST_VALUE - 3

    def repr_bytes(self, x: bytes, level: int) -> str:
        """Bytes are cut like text."""
        return _shortened(repr(x[: self.maxstring]) + ("..." if len(x) > self.maxstring else ""), LONGEST_VALUE)

    def repr_int(self, x: int, level: int) -> str:
        """A number of thousands of digits takes long to write, and Python refuses to."""
        return repr(x) if x.bit_length() < 200 else f"a number of about {round(x.bit_length() * 0.30103)} digits"


_QUOTED = _Quoted()


def quoted(value: object) -> str:
    """A value as messages repeat it: its ``repr``, of which at most :data:`LONGEST_VALUE` characters are made.

    The cost does not depend on the size of the value, and control characters are escaped.
    """
    return _shortened(_QUOTED.repr(value), LONGEST_VALUE)


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    tail = longest // 4
    return f"{text[: longest - tail - 3]}...{text[-tail:]}"


# --- text on a terminal -----------------------------------------------------------------------------------------------

_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: escape sequences begin with one
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction and line marks: they reorder what is seen
    "\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # what cannot be seen
    "\ud800-\udfff]"  # halves of characters: no terminal can be given them
)


def printable(text: str, keep: str = "") -> str:
    """Text that changes nothing on a terminal but the places that it fills.

    Args:
        text: from a file, a file's name, or a message with either.
        keep: characters that stay as they are although they control something, such as ``"\\n"``.
    """
    if not _HARMFUL.search(text):
        return text
    return _HARMFUL.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
