"""Kernel times of a step on a GPU: which operator launched which kernel.

While the step runs under ``torch.profiler``, the observer runs operator number ``n`` inside a marker ``op#n``.  A
kernel carries the correlation id of the runtime or driver call that launched it, and that call lies, on its thread,
inside exactly one marker.  Nothing is matched by order or by name, so nothing can be matched wrongly.

Kernel times survive being observed; the gaps between them do not.  The host's issue times are therefore scaled to the
host time of a step that was not observed.
"""

from __future__ import annotations

import bisect
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass

MARKER = "op#"
_NUMBER = re.compile(rf"^{MARKER}(\d+)$")
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "runtime", "driver")
_COMMUNICATION = re.compile(r"nccl|rccl", re.IGNORECASE)


@dataclass(frozen=True)
class Kernel:
    """One piece of work on the device.

    Attributes:
        operator: number of the operator that launched it, or -1.
        name: as the profiler calls it.
        seconds: duration.
        stream: device stream.
    """

    operator: int
    name: str
    seconds: float
    stream: int


@dataclass(frozen=True)
class ProfiledOperators:
    """Kernels, host times and communication of the operators in a profile.

    Attributes:
        kernels: in order of start; communication kernels are not among them.
        host_s: for each operator number the time from its start on the host to the start of the next one there.
        communication: kernels of NCCL or RCCL.
    """

    kernels: list[Kernel]
    host_s: dict[int, float]
    communication: list[Kernel]

    def lost(self) -> list[Kernel]:
        """Kernels that no operator launched."""
        return [kernel for kernel in self.kernels if kernel.operator < 0]


def marker(number: int) -> AbstractContextManager:
    """The context in which operator ``number`` runs under the profiler."""
    from torch._C import _profiler

    return _profiler._RecordFunctionFast(f"{MARKER}{number}")


def profiled(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Run something under the profiler, to its end on the device; the events of the profile."""
    profiler = Profiler()
    profiler.start()
    run()
    return profiler.stop()


class Profiler:
    """``torch.profiler`` from a point of the program to another."""

    def __init__(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    def start(self) -> None:
        """Begin."""
        self._wait()
        self._profile.start()

    def stop(self) -> list[dict[str, Any]]:
        """End once the device is idle; the events."""
        self._wait()
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.json"
            self._profile.export_chrome_trace(str(path))
            # Times are microseconds since 1970 with three decimals: more digits than a float holds.
            text = path.read_text(encoding="utf-8", errors="replace")
        return json.loads(text, parse_float=Decimal)["traceEvents"]


def _nanoseconds(microseconds: Any) -> int:
    return int(Decimal(str(microseconds)) * 1000)


def join(events: Iterable[Mapping[str, Any]]) -> ProfiledOperators:
    """Find the operator of every kernel in the events of a Chrome trace that the profiler exported."""
    markers: dict[tuple, list[tuple[int, int, int]]] = defaultdict(list)
    by_external: dict[Any, int] = {}
    launches: dict[Any, tuple[tuple, int]] = {}
    work = []
    for event in events:
        if event.get("ph") != "X":
            continue
        category, args = event.get("cat", ""), event.get("args") or {}
        if category in _DEVICE_WORK:
            work.append(event)
            continue
        if category == "gpu_user_annotation":
            continue
        thread = (event.get("pid"), event.get("tid"))
        found = _NUMBER.match(str(event.get("name", "")))
        if found:
            start = _nanoseconds(event["ts"])
            markers[thread].append((start, start + _nanoseconds(event.get("dur", 0)), int(found.group(1))))
            if args.get("External id"):
                by_external[args["External id"]] = int(found.group(1))
        elif category in _LAUNCHES and "correlation" in args:
            launches[args["correlation"]] = (thread, _nanoseconds(event["ts"]))
    for spans in markers.values():
        spans.sort()
    starts = {thread: [start for start, _, _ in spans] for thread, spans in markers.items()}

    def operator(event: Mapping[str, Any]) -> int:
        args = event.get("args") or {}
        launch = launches.get(args.get("correlation"))
        if launch is None:
            return by_external.get(args.get("External id"), -1)
        thread, moment = launch
        place = bisect.bisect_right(starts.get(thread, []), moment) - 1
        while place >= 0:  # innermost first: an operator may call others, whose markers lie inside its own
            _, end, number = markers[thread][place]
            if moment <= end:
                return number
            place -= 1
            if place < 0 or starts[thread][place] < moment - _FURTHEST_NS:
                break
        return -1

    kernels: list[Kernel] = []
    communication: list[Kernel] = []
    for event in sorted(work, key=lambda e: _nanoseconds(e["ts"])):
        args, name = event.get("args") or {}, str(event.get("name", ""))
        seconds = _nanoseconds(event.get("dur", 0)) * 1e-9
        kernel = Kernel(operator(event), name, seconds, int(args.get("stream", 0) or 0))
        (communication if _COMMUNICATION.search(name) else kernels).append(kernel)
    return ProfiledOperators(kernels, _host_times(markers), communication)


_FURTHEST_NS = 10_000_000_000
"""How long an operator may stay on the host; bounds the search for the marker around a launch."""


def _host_times(markers: Mapping[tuple, list[tuple[int, int, int]]]) -> dict[int, float]:
    """Time from the start of each operator on the host to the start of the next one, whichever thread runs it.

    Autograd's own thread takes over while the main thread waits, so the operators of all threads form one sequence.
    The last one counts to its own end.
    """
    spans = sorted(span for found in markers.values() for span in found)
    host = {}
    for (start, end, number), after in zip(spans, [*spans[1:], None], strict=True):
        host[number] = max((after[0] if after is not None else end) - start, 0) * 1e-9
    return host


def issue_times(joined: ProfiledOperators, rows: int, host_step_s: float | None) -> list[float]:
    """Host issue time of each of ``rows`` operators in seconds, scaled to ``host_step_s``.

    Args:
        joined: the profile of an observed step.
        rows: number of operators.
        host_step_s: host time of a step that was not observed, from its start until its last operator was issued, or
            None where it could not be measured because the host waits for the device in between.
    """
    if host_step_s is None or not joined.host_s:
        return []
    observed = sum(joined.host_s.values())
    scale = min(host_step_s / observed, 1.0) if observed > 0 else 0.0
    return [joined.host_s.get(number, 0.0) * scale for number in range(rows)]
