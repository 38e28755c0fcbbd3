"""Processes of this machine that share some work, and end with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from triosim.core.errors import InputError


class WorkerPool(ProcessPoolExecutor):
    """Processes that are begun when there is work for them; an interrupt while one begins is no fault of its."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """See :meth:`concurrent.futures.Executor.submit`."""
        with _interrupts_held():
            return super().submit(function, *args, **named)

    def end(self) -> None:
        """End all processes at once, whatever they do."""
        processes = list((getattr(self, "_processes", None) or {}).values())
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interrupts come after the block, to this process; one that begins within takes them when it is ready."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "pthread_sigmask"):  # Windows has none
        yield
        return
    came: list[int] = []
    # A thread of a library may take the signal in place of this one, whose mask new processes have.
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def worker_processes(workers: int, begin: Callable[..., None], *what: object) -> WorkerPool:
    """A pool of processes.

    Args:
        workers: how many.
        begin: called with ``what`` in each before it works.
        what: is sent to each once.
    """
    return WorkerPool(workers, multiprocessing.get_context("spawn"), _begun, (begin, what))


def _begun(begin: Callable[..., None], what: tuple[object, ...]) -> None:
    begin(*what)
    if hasattr(signal, "pthread_sigmask"):
        if signal.SIGINT in signal.sigpending() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
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
