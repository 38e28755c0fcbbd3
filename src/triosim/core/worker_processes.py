"""Processes of this machine that share some work, and end with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from triosim.core.errors import InputError


def worker_processes(workers: int, begin: Callable[..., None], *what: object) -> ProcessPoolExecutor:
    """A pool of processes.

    Args:
        workers: how many.
        begin: called with ``what`` in each before it works.
        what: is sent to each once.
    """
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begun, (begin, what))


def _begun(begin: Callable[..., None], what: tuple[object, ...]) -> None:
    begin(*what)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A worker whose parent was killed would wait for ever."""
    parent.join()
    os._exit(1)


def ended(workers: int) -> InputError:
    """What to say when one of them ended by itself (:class:`concurrent.futures.process.BrokenProcessPool`)."""
    return InputError(
        f"one of {workers} workers ended before it was done, as a machine does that runs out of memory: use fewer"
    )
