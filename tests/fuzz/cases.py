"""Cases: the input that follows from a name, a seed and a number, and what becomes of it."""

from __future__ import annotations

import functools
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.damage import Damage, octets
from tests.fuzz.odd import RUNS
from tests.fuzz.subjects import Files, Reader, readers
from triosim.core.errors import InputError

TAKEN, REFUSED, FINDING = range(3)
"""What becomes of an input: it is read, it is refused with a sentence, or neither."""

LONGEST_SENTENCE = 1300
"""Characters of a refusal: the message, and the name of the file before it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        kind: of damage.
        what: :data:`TAKEN`, :data:`REFUSED` or :data:`FINDING`.
        error: of a finding, its type and message.
        where: of a finding, the innermost line of the package.
    """

    kind: str
    what: int
    error: str = ""
    where: str = ""


def names() -> list[str]:
    """All that can be given odd input."""
    return [*_readers(), *RUNS]


@functools.cache
def _readers() -> dict[str, Reader]:
    return readers()


def damaged(name: str, seed: int, number: int) -> tuple[str, Files]:
    """The files of a case of a reader, and the kind of damage that was done to them."""
    reader, draw = _readers()[name], Random(f"{seed}/{name}/{number}")
    files = dict(draw.choice(reader.seeds()))
    kind = draw.choice(list(reader.damage))
    main = next(iter(files))
    chosen = main if draw.random() < 0.8 else draw.choice(list(files))
    files[chosen] = _done(reader.damage[kind], draw, files[chosen])
    if draw.random() < 0.15:
        again = draw.choice(list(reader.damage))
        files[chosen] = _done(reader.damage[again], draw, files[chosen])
    return kind, files


def _done(damage: Damage, draw: Random, raw: bytes) -> bytes:
    """A file after it was damaged; what is so broken that its parts cannot be found gets other bytes."""
    try:
        return damage(draw, raw)
    except Exception:
        return octets(draw, raw)


def run(name: str, seed: int, number: int, folder: Path) -> Outcome:
    """Run a case.

    Args:
        name: one of :func:`names`.
        seed, number: of the case.
        folder: for its files; they stay there until the next case writes its own.
    """
    if name in RUNS:
        draw = Random(f"{seed}/{name}/{number}")
        return judged("drawn", lambda: RUNS[name](draw))
    kind, files = damaged(name, seed, number)
    return judged(kind, lambda: read(name, files, folder))


def read(name: str, files: Files, folder: Path) -> None:
    """Give files to a reader."""
    place = folder / name
    place.mkdir(exist_ok=True)
    for old in place.iterdir():
        if old.name not in files:
            old.unlink()
    for file, content in files.items():
        (place / file).write_bytes(content)
    _readers()[name].read(place, next(iter(files)))


def judged(kind: str, call: object) -> Outcome:
    """What becomes of a call; a number that overflows on the way (a RuntimeWarning of NumPy's) is a finding too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            call()  # type: ignore[operator]
    except InputError as error:
        said = str(error)
        if not said.strip() or len(said) > LONGEST_SENTENCE:
            return Outcome(kind, FINDING, f"a refusal of {len(said)} characters", _where(error))
        return Outcome(kind, REFUSED)
    except Exception as error:
        return Outcome(kind, FINDING, f"{type(error).__name__}: {error}"[:300], _where(error))
    return Outcome(kind, TAKEN)


def replay(name: str, seed: int, number: int) -> Outcome:
    """Run a case on its own, showing how it ends."""
    with tempfile.TemporaryDirectory() as folder:
        if name in RUNS:
            RUNS[name](Random(f"{seed}/{name}/{number}"))
        else:
            kind, files = damaged(name, seed, number)
            for file, content in files.items():
                print(f"--- {kind}: {file}, {len(content)} bytes\n{content[:2000]!r}")
            read(name, files, Path(folder))
    return Outcome("", TAKEN)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/triosim/" in f.filename] or list(frames)
    last = own[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"
