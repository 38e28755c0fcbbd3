"""Within the block freed memory serves what is made next; afterwards the system has it back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from triosim.core import freed_memory
from triosim.core.freed_memory import freed_memory_kept

COUNT = """
import resource, threading
import numpy as np
from triosim.core.freed_memory import freed_memory_kept

SIZE = 8 * 2**20  # of 8 bytes: twice what glibc keeps by itself
PAGES = 8 * SIZE // resource.getpagesize()

def cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(SIZE)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / PAGES

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / PAGES

cleared()
before = resident()
with freed_memory_kept():
    cleared()
    with freed_memory_kept():
        pass
    print(cleared())
    print(resident() - before)
print(resident() - before)
print(cleared())
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What a C library is told."""
    calls: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, *given: int) -> None:
            calls.append(given)

        def malloc_trim(self, *given: int) -> None:
            calls.append(given)

    monkeypatch.setattr(freed_memory, "_glibc", Library)
    return calls


@pytest.mark.skipif(freed_memory._glibc() is None or sys.platform != "linux", reason="asks glibc on Linux")
def test_what_is_freed_serves_again_and_is_given_back() -> None:
    # numpy asks for huge pages, of which a few faults would clear as much
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, env={"NUMPY_MADVISE_HUGEPAGE": "0"}
    )
    within, kept, left, after = map(float, done.stdout.split())
    assert within < 0.1
    assert kept > 0.9
    assert left < 0.1
    assert after > 0.9


def test_the_outermost_block_alone_changes_and_restores(told: list[tuple[int, ...]]) -> None:
    with freed_memory_kept():
        asked = list(told)
        with freed_memory_kept():
            pass
        assert told == asked
    assert asked
    assert told[-1] == (0,)  # malloc_trim
    assert {name for name, *_ in asked} < {name for name, *_ in told[len(asked) : -1]}


def test_what_fails_within_restores_too(told: list[tuple[int, ...]]) -> None:
    with pytest.raises(KeyError), freed_memory_kept():
        raise KeyError
    assert told[-1] == (0,)


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_glibc", lambda: None)
    with freed_memory_kept():
        assert freed_memory._within == 0
