"""How much memory one call may take, and the refusal of what would take more.

Whatever would build something large (a table of operators, a decompressed file, tasks of many ranks) says beforehand
how many bytes it expects to need.  What is above the limit ends with one sentence at once, instead of minutes later
with an exhausted machine.  The limit is half of the machine's memory; ``--max-memory`` and :func:`memory_limit`
change it.

A file that grows when it is unpacked (gzip, a zip, Parquet) may grow a hundredfold, or to a gigabyte if that is more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from triosim.core.errors import InputError
from triosim.core.units import format_bytes

FALLBACK_BYTES = 4 * 2**30
"""The limit where the operating system does not say how much memory the machine has."""

EXPANSION = 100
"""Times its own size that a file may take unpacked: JSON of profilers takes 10 to 30."""

EXPANSION_BYTES = 10**9
"""Bytes that any file may take unpacked, however small it is."""

TASK_BYTES = 350
"""Memory of a task, from the row of a program that it is to the result; 320 to 340 were measured
(``python -m tests.fuzz sizes``)."""

COPY_BYTES = 175
"""The same of one more task of the same row, where ranks that run one program are played one by one: 143 and 171 were
measured on GPT-3 over 512 GPUs and GPT-2 over 8,192 (``--fold off``)."""

MOST_TASKS = 2**31
"""Tasks are numbered with 32 bits."""

WEIGHT_BYTES = 10_000
"""Memory of a step by name for each weight of its model: 6,000 to 8,500 were measured, operators and all."""

_limit: ContextVar[int | None] = ContextVar("triosim_memory_limit", default=None)


def limit_bytes() -> int:
    """Bytes that one call may take: what :func:`memory_limit` set, else half of the machine's memory."""
    given = _limit.get()
    return given if given is not None else machine_bytes() // 2


@cache  # asked for every line of a JSONL file
def machine_bytes() -> int:
    """Memory of this machine in bytes, or of the control group that this process is confined to if that is less."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2 * FALLBACK_BYTES
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            memory = min(memory, int(file.read()))
    except (OSError, ValueError):
        pass
    return memory


def set_memory_limit(size: int) -> None:
    """From now on one call may take ``size`` bytes.

    Raises:
        InputError: ``size`` is below 1.
    """
    if size < 1:
        raise InputError(f"the limit of memory must be at least 1 byte, got {size}: give a size, for example 8GB")
    _limit.set(size)


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Within the block one call may take ``size`` bytes."""
    token = _limit.set(size)
    try:
        yield
    finally:
        _limit.reset(token)


def check_memory(needed: float, what: str, suggestion: str = "") -> None:
    """Refuse what would take more memory than the limit.

    Args:
        needed: expected bytes, an estimate that is made before anything is built.
        what: what would take them, with its place, as the beginning of a sentence: ``"131072 devices on a full mesh"``.
        suggestion: what to do about it apart from raising the limit, as ``"use fewer devices"``.

    Raises:
        InputError: ``needed`` is above :func:`limit_bytes`.
    """
    if needed > limit_bytes():
        ways = f"{suggestion}, or " if suggestion else ""
        raise InputError(
            f"{what} would take about {format_bytes(needed)} of memory, more than the limit of "
            f"{format_bytes(limit_bytes())}: {ways}raise it with --max-memory"
        )


def check_tasks(tasks: float, what: str, suggestion: str, rows: float | None = None) -> None:
    """Refuse a job of more tasks than memory holds.

    Args:
        tasks: how many there would be.
        what, suggestion: as of :func:`check_memory`.
        rows: of programs, of which they are copies; None where each is a row of its own.

    Raises:
        InputError: their memory is above the limit, or they are more than can be numbered.
    """
    written = tasks if rows is None else rows
    check_memory(written * (TASK_BYTES - COPY_BYTES) + tasks * COPY_BYTES, what, suggestion)
    if tasks >= MOST_TASKS:
        raise InputError(f"{what} would be {tasks:,.0f} tasks, more than {MOST_TASKS:,} can be numbered: {suggestion}")


def most_unpacked(packed: int) -> int:
    """Bytes that a file of ``packed`` bytes may take unpacked; a limit that the user set goes before.

    See :data:`EXPANSION` and :data:`EXPANSION_BYTES`.
    """
    given = _limit.get()
    return given if given is not None else max(EXPANSION * packed, EXPANSION_BYTES)


def check_unpacked(unpacked: float, packed: int, what: str) -> None:
    """Refuse a file that would grow out of all proportion when it is unpacked.

    Args:
        unpacked: expected bytes, before anything is unpacked.
        packed: size of the file in bytes.
        what: the file, as the beginning of a sentence.

    Raises:
        InputError: ``unpacked`` is above :func:`most_unpacked`.
    """
    if unpacked > most_unpacked(packed):
        raise InputError(
            f"{what} would grow from {format_bytes(packed)} to at least {format_bytes(unpacked)} when unpacked, more "
            f"than the limit of {format_bytes(most_unpacked(packed))}: give the right file, or raise the limit with "
            "--max-memory"
        )
