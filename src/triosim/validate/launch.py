"""Starting the processes of a validation, watching them, and leaving none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triosim.core.errors import InputError
from triosim.core.outputs import terminable

POLL_S = 0.1
LAST_LINES = 400
"""Characters of a failed process's last words that are shown."""


def run(
    folder: Path, job: dict[str, Any], progress: Callable[[str], None] = lambda words: None
) -> list[dict[str, Any]]:
    """Run a job in its processes and return what each brings back, by rank.

    The processes meet through a file in ``folder`` and talk over the loopback interface only.  Each is the leader of a
    process group of its own, which is killed when this function is left, however that happens; and each ends by itself
    when the process that started it is gone.

    Args:
        folder: empty folder for what passes between the processes.
        job: see :mod:`triosim.validate.ranks.__main__`; ``processes`` and ``timeout_s`` among it.
        progress: called with what is being done, in a few words.

    Raises:
        InputError: a process failed, or they were not done in time.
    """
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    started: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + job["timeout_s"]
    with terminable():
        try:
            for rank in range(job["processes"]):
                started.append(_start(folder, rank))
            _watch(started, folder, deadline, job["timeout_s"], progress)
        finally:
            for process in started:
                _end(process)
    return [json.loads((folder / f"rank-{r}.json").read_text(encoding="utf-8")) for r in range(job["processes"])]


def _start(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {
        **os.environ, **one_thread, "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback,
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "triosim.validate.ranks", str(folder), str(rank)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip


def _watch(
    started: list[subprocess.Popen[bytes]],
    folder: Path,
    deadline: float,
    limit_s: float,
    progress: Callable[[str], None],
) -> None:
    said = ""
    while True:
        codes = [process.poll() for process in started]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            raise InputError(f"process {failed} of {len(started)} failed: {_last_words(folder, failed)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise InputError(
                f"the processes were not done after {limit_s:.0f} s and were ended: give fewer --model or "
                "--modes, fewer --rounds, or more --budget"
            )
        progress_file = folder / "progress"
        words = progress_file.read_text(encoding="utf-8") if progress_file.exists() else ""
        if words and words != said:
            said = words
            progress(words)
        time.sleep(POLL_S)


def _last_words(folder: Path, rank: int) -> str:
    """The last line that a process wrote, which in Python names the error."""
    text = (folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1][-LAST_LINES:] if text else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it has started."""
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (OSError, AttributeError):  # gone already, or no process groups here
            process.kill()
        process.wait()
