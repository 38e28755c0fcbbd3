"""Processes that share some work."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from triosim.core.worker_processes import _interrupts_held, worker_processes


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts are taken as Python takes them: a command that a shell runs in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_worker_begins_comes_when_it_has_begun() -> None:
    reached = []

    def interrupted() -> None:
        with _interrupts_held():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _nothing() -> None:
    """Begin a worker."""


def test_a_pool_ends_whatever_its_workers_do() -> None:
    pool = worker_processes(1, _nothing)
    assert pool.submit(abs, -3).result() == 3
    pool.submit(time.sleep, 600)
    before = time.monotonic()
    pool.end()
    assert all(not process.is_alive() for process in _ended(pool, before + 30))


def _ended(pool: object, until: float) -> list:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    while any(process.is_alive() for process in processes) and time.monotonic() < until:
        time.sleep(0.05)
    return processes
