"""Measuring power: phases that each do one thing on this machine's device, and its sensors meanwhile.

Each phase repeats one kernel for as long as it is given; what it did is counted.  Sensors are read beside it:
``nvidia-smi`` in a process of its own, or the counters of energy that Intel's and AMD's processors have (RAPL).
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from triosim.core.errors import InputError
from triosim.sources.record.bench import element_types

EVERY_S = 0.05
"""Seconds between two looks at a sensor."""
RAPL = Path("/sys/class/powercap")
_LARGE = {"cpu": 2**28, "cuda": 2**31}
_SMALL = {"cpu": 2**18, "cuda": 2**22}
"""Bytes of a copy that no cache holds, and of one that the last-level cache does."""
_SIDE = {"cpu": 1024, "cuda": 8192}

Row = tuple[str, float, float, str, float, float]
"""What, start and end (seconds since 1970), element type, FLOP, bytes."""


def phases(device: str, seconds: float, progress: Callable[[str], None] = lambda what: None) -> list[Row]:
    """Run all phases.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        seconds: of each.
        progress: called before each with what it does.
    """
    found: list[Row] = []

    def run(
        what: str, step: Callable[[], object] | None, flop: float = 0.0, size: float = 0.0, dtype: str = ""
    ) -> None:
        progress(f"{what} {dtype}".strip())
        if step is not None:
            step()
        _wait(device)
        began, count = time.time(), 0
        while time.time() - began < seconds:
            if step is None:
                time.sleep(0.05)
                continue
            for _ in range(10):
                step()
            _wait(device)
            count += 10
        found.append((what, began, time.time(), dtype, flop * count, size * count))

    with torch.inference_mode():
        tiny = torch.zeros(32, device=device)
        run("busy", lambda: tiny.add_(1.0))
        for what, size in (("cache", _SMALL[device]), ("memory", _LARGE[device])):
            one = torch.zeros(size // 4, device=device)
            two = torch.empty_like(one)
            run(what, lambda a=two, b=one: a.copy_(b), size=2.0 * size)  # type: ignore[misc]
            del one, two
        for dtype in element_types(device):
            side = _SIDE[device]
            a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            out = torch.empty(side, side, device=device, dtype=dtype)
            name = str(dtype).removeprefix("torch.")
            run("product", lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 2.0 * side**3,  # type: ignore[misc]
                3.0 * side**2 * a.element_size(), name)  # fmt: skip
        run("idle", None)
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def sampled(sensor: str, found: list[tuple[float, float]]) -> Iterator[None]:
    """Adds samples of power, seconds since 1970 and watts, while the block runs.

    Args:
        sensor: ``"nvidia-smi"`` (the first device) or ``"rapl"`` (all packages together).
        found: what they are added to.

    Raises:
        InputError: this machine does not have that sensor, or it may not be read.
    """
    read = _nvidia_smi() if sensor == "nvidia-smi" else _rapl()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(EVERY_S):
            watts = read()
            if watts is not None:
                found.append((time.time(), watts))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)


def _nvidia_smi() -> Callable[[], float | None]:
    asked = ["nvidia-smi", "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]

    def read() -> float | None:
        try:
            return float(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout)
        except (ValueError, subprocess.SubprocessError):
            return None

    try:
        known = read()
    except OSError:
        known = None
    if known is None:
        raise InputError("nvidia-smi tells no power on this machine: log it elsewhere and give the file (--power FILE)")
    return read


def _rapl() -> Callable[[], float | None]:
    zones = [path / "energy_uj" for path in sorted(RAPL.glob("*-rapl:[0-9]*")) if path.name.count(":") == 1]
    last: list[float] = []

    def counted() -> float | None:
        try:
            return sum(float(zone.read_text()) for zone in zones) * 1e-6
        except (OSError, ValueError):
            return None

    if not zones or counted() is None:
        raise InputError(
            "this machine has no counters of energy that may be read (RAPL): run as root, or log power elsewhere and "
            "give the file (--power FILE)"
        )

    def read() -> float | None:
        now, joules = time.time(), counted()
        if joules is None:
            return None
        before, last[:] = list(last), [now, joules]
        if not before or joules < before[1]:  # the first look, or a counter that began anew
            return None
        return (joules - before[1]) / (now - before[0])

    return read
