"""Keeps freed memory for what is made next, while large columns come and go.

The C library gives every large block back to the operating system at once, which clears it before it hands it out
again.  A job of millions of tasks has a dozen columns of them, most of which live for one of its plays: clearing memory
anew for each took half of the time.  Within :func:`freed_memory_kept` the library keeps what is freed, for as much as
there was at once; afterwards it gives back what it has.

Only glibc is asked for this.  Elsewhere, and where another allocator stands in for it, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # M_... of malloc.h
_NEVER = -1
_MAPPED = 32 * 2**20
"""Bytes from which on glibc maps a block by itself, and half of the free ones that it keeps: the most that it comes to
by itself on 64 bits as blocks are freed (DEFAULT_MMAP_THRESHOLD_MAX of malloc.c).  Once told anything it no longer
adapts."""
_MAPS = 65536
"""How many such blocks there may be: what glibc begins with."""

_lock = Lock()
_within = 0
"""Blocks that are being run, of all threads."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within the block memory that is freed is kept for what is made next; afterwards it is given back."""
    libc = _glibc()
    if libc is None:
        yield
        return
    _enter(libc)
    try:
        yield
    finally:
        _leave(libc)


def _enter(libc: Any) -> None:
    global _within
    with _lock:
        _within += 1
        if _within == 1:
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)


def _leave(libc: Any) -> None:
    global _within
    with _lock:
        _within -= 1
        if not _within:
            libc.mallopt(_MMAP_MAX, _MAPS)
            libc.mallopt(_MMAP_THRESHOLD, _MAPPED)
            libc.mallopt(_TRIM_THRESHOLD, 2 * _MAPPED)
            libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library of this process where it is glibc, else None."""
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version, libc.mallopt, libc.malloc_trim  # noqa: B018 - asks whether they are there
    except (AttributeError, OSError, TypeError):
        return None
    return libc
