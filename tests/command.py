"""The command as a user types it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from triosim.__main__ import main

Done = subprocess.CompletedProcess[str]


def run(*arguments: str | Path, code: int = 0, cwd: Path | None = None) -> Done:
    """Run ``triosim`` in this process: starting another one would take most of the time.

    What is no fault of the user is raised as it is.
    """
    words = ["triosim", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with _inside(cwd), mock.patch.object(sys, "argv", words), mock.patch.multiple(sys, stdout=out, stderr=err):
        try:
            main()
        except SystemExit as end:
            found = end.code or 0
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return _judged(subprocess.CompletedProcess(words, found, *texts), code)


def spawn(*arguments: str | Path, code: int = 0, cwd: Path | None = None, **environment: str) -> Done:
    """Run ``triosim`` in a process of its own."""
    command = [sys.executable, "-m", "triosim", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})
    return _judged(done, code)


def _judged(done: Done, code: int) -> Done:
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr or done.stdout
    return done


@contextlib.contextmanager
def _inside(folder: Path | None) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)


DIES = """
import os, signal, sys
from triosim.__main__ import main
from triosim.search.journal import Journal
keep, left = Journal.keep, int(sys.argv.pop(1))
def and_die(self, *outcome):
    global left
    keep(self, *outcome)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
Journal.keep = and_die
main()
"""
"""A command that is killed as soon as its journal holds so many outcomes: killed from outside, a quick machine may be
through with all of them first."""


def run_until_killed(outcomes: int, *words: object, cwd: Path) -> None:
    """Run a search or sweep that ``kill -9`` ends when its journal holds so many outcomes."""
    done = subprocess.run([sys.executable, "-c", DIES, str(outcomes), *map(str, words)], cwd=cwd, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
