"""Runs many cases in a child, which may hang, crash or take all memory, and keeps what became of them.

What has been found is a file that is written whole after each batch; a later run goes on where it ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.cases import FINDING, Outcome, run
from triosim.core import registry
from triosim.core.limits import memory_limit, set_memory_limit

CPU_S = 10
"""Seconds of computing after which a case hangs."""

MEMORY = 1 << 30
"""Bytes that a case may take."""

LIMIT = 256 << 20
"""Limit of memory (``--max-memory``) under which cases run: larger jobs would be done, and take their time."""

_ADDRESSES = 8 << 30
_MEMORY_FILES = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk takes longer than most readers
_REPORT_S = 1.0


@dataclass
class State:
    """What is known so far.

    Attributes:
        seed: of all cases.
        next: for each name the number of the case that comes next.
        counts: name -> kind of damage -> how many were read, refused, and neither.
        findings: the first case of each place at which something went wrong, and how many came after it.
    """

    seed: int = 0
    next: dict[str, int] = field(default_factory=dict)
    counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, number: int, outcome: Outcome) -> None:
        """Note what became of a case."""
        row = self.counts.setdefault(name, {}).setdefault(outcome.kind, [0, 0, 0])
        row[outcome.what] += 1
        self.next[name] = max(self.next.get(name, 0), number + 1)
        if outcome.what == FINDING:
            key = f"{name}: {outcome.where}: {outcome.error.split(':')[0]}"
            known = self.findings.setdefault(
                key, {"name": name, "seed": self.seed, "case": number, "kind": outcome.kind, "error": outcome.error,
                      "where": outcome.where, "times": 0},
            )  # fmt: skip
            known["times"] += 1

    def total(self) -> int:
        """Cases that were run."""
        return sum(sum(row) for kinds in self.counts.values() for row in kinds.values())

    def save(self, path: Path) -> None:
        """Write it whole."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        os.replace(part, path)

    @staticmethod
    def load(path: Path) -> State:
        """Read what :meth:`save` wrote."""
        return State(**json.loads(path.read_text(encoding="utf-8")))


class Hang(BaseException):
    """A case has computed for too long."""


def warm(names: list[str]) -> None:
    """Import what cases need, so that no child has to."""
    with memory_limit(LIMIT), tempfile.TemporaryDirectory(dir=_MEMORY_FILES) as folder:
        for name in names:
            for number in range(3):
                run(name, -1, number, Path(folder))


def batch(name: str, seed: int, numbers: range, progress: Callable[[int, Outcome], None]) -> None:
    """Run cases in children, each going on after the case at which the one before it died.

    Args:
        name: what they are given to.
        seed, numbers: of the cases.
        tell: told the number and the outcome of each.
    """
    done = numbers.start
    died: dict[int, str] = {}
    context = multiprocessing.get_context("fork")
    while done < numbers.stop:
        here, there = context.Pipe(duplex=False)
        place = mmap.mmap(-1, 8)
        with tempfile.TemporaryDirectory(dir=_MEMORY_FILES) as folder:
            child = context.Process(
                target=_child, args=(name, seed, range(done, numbers.stop), dict(died), there, place, Path(folder))
            )
            child.start()
            there.close()
            for number, outcome in _received(here, child, place):
                progress(number, outcome)
                done = number + 1
            child.join()
        if done < numbers.stop:
            number = struct.unpack("q", place[:8])[0]
            code = child.exitcode or 0
            died[number] = "computes without end" if code == -signal.SIGKILL else f"ends the process ({code})"


def _received(here: Connection, child: Any, place: mmap.mmap) -> Iterator[tuple[int, Outcome]]:
    """What a child says, until it ends; one that is stuck in native code is ended."""
    at, since = -1, _cpu_s(child.pid)
    while True:
        if here.poll(1.0):
            try:
                yield from here.recv()
            except EOFError:
                return
            continue
        number, now = struct.unpack("q", place[:8])[0], _cpu_s(child.pid)
        if number != at:
            at, since = number, now
        elif now - since > 2 * CPU_S:
            child.kill()
            return


def _cpu_s(pid: int) -> float:
    """Seconds that a process has computed."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(
    name: str, seed: int, numbers: range, died: dict[int, str], there: Connection, place: mmap.mmap, folder: Path
) -> None:
    faulthandler.disable()  # what ends this process is told by the parent
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_memory_limit(LIMIT)
    registry.entry_points = functools.cache(registry.entry_points)  # type: ignore[attr-defined]  # else most of the time

    def hang(number: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, hang)
    found: list[tuple[int, Outcome]] = []
    with contextlib.suppress(OSError):  # the highest that the parent had is not the child's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    base, told = _peak(), time.monotonic()
    for number in numbers:
        place[:8] = struct.pack("q", number)
        if number in died:
            found.append((number, Outcome("any", FINDING, died[number], "the process")))
            continue
        before = _peak()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            outcome = run(name, seed, number, folder)
        except Hang as error:
            from tests.fuzz.cases import _where

            outcome = Outcome("any", FINDING, f"more than {CPU_S} s", _where(error))
        except MemoryError:
            outcome = Outcome("any", FINDING, "out of memory", "")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        peak = _peak()
        grown = peak > before and peak - base > MEMORY
        if grown and outcome.what != FINDING:
            outcome = Outcome(outcome.kind, FINDING, f"took {(peak - base) >> 20} MiB", "memory")
        found.append((number, outcome))
        if grown or time.monotonic() - told > _REPORT_S:
            there.send(found)
            found, told = [], time.monotonic()
        if grown:
            os._exit(0)  # the next child has a peak of its own
    there.send(found)
    there.close()
    os._exit(0)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
