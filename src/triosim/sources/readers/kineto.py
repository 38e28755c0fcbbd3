"""What torch.profiler (Kineto) exports: Chrome-trace JSON of PyTorch 1.8 to 2.13, for NVIDIA and AMD devices or CPU.

Times are kept in whole nanoseconds.  A kernel belongs to the operator whose call launched it (equal correlation, then
the innermost call around the launch), and to the step in which it was launched, not in which it ran.  The sum of the
trace's operator times, unattributed kernels included, is that of the file's kernels.  Communication kernels are kept
apart; copies and memsets are among the trace's kernels but not in its operator times: most bring in the batch, which
in a steady iteration happens beside the one before.

The file has no tensor identities: they come from an execution trace of the same run where one is given, else they are
inferred (:mod:`triosim.sources.readers._inference`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.guarded import INTEGERS
from triosim.core.registry import registered
from triosim.core.units import format_time
from triosim.operators import argument_names, canonical
from triosim.sources.readers import _communication as communication
from triosim.sources.readers import _events
from triosim.sources.readers._arguments import dimensions, dtype, written_constant
from triosim.sources.readers._choice import DeviceColumns, ProfileOverview, StepChoice, StepMark, choose, column
from triosim.sources.readers._events import CALL, LAUNCH, MODULE, SHAPED, EventIndex
from triosim.sources.readers._execution import Recording, is_execution_trace
from triosim.sources.readers._files import contains, files, head, parse_json
from triosim.sources.readers._host import HostClock, KernelLaunch, following
from triosim.sources.readers._inference import Inference, find_parameters, updates
from triosim.sources.readers._join import join
from triosim.sources.readers._purpose import ValuePurposes, decide
from triosim.sources.readers._step import Argument, ObservedTensor, OperatorRow, build, pass_key, resolve
from triosim.sources.readers._tree import CallNode, DeviceWork, launched, link, nest, operators, wraps
from triosim.sources.reading import Reader
from triosim.trace.accumulation import accumulation_note, median_pass, passes
from triosim.trace.builder import NAN, TraceBuilder
from triosim.trace.tables import NONE, Meta, Phase, Trace

_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy", "memset": "copy"}
_CALLS = ("cpu_op", "operator", "user_annotation")
_WAITS = re.compile(
    r"(cuda|hip|cu)(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy(2D|3D|Peer)?(_v2|_ptds)?$)"
)
_HOST_COPY = re.compile(r"DtoH|Device -> (Pageable|Host)|DeviceToHost", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_MODULE = re.compile(r"^nn\.Module: (.+)$")
_RIGHT_AFTER_NS = 20_000
"""A kernel that starts so soon after another has ended may have waited for it."""
_TENSOR_LIST = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?[^()]*)\)")


@dataclass(frozen=True)
class _Launch:
    """A call of the device's runtime or driver."""

    name: str
    thread: Hashable
    start: int
    end: int
    external: int


@dataclass(frozen=True)
class _DeviceInterval:
    """A kernel, copy or memset on a device.  ``launch`` is None where the file does not hold the call."""

    name: str
    copy: bool
    device: int
    stream: int
    start: int
    duration: int
    external: int
    launch: _Launch | None
    args: Mapping[str, Any]

    @property
    def issued(self) -> int:
        """When the host launched it (when it started, where the launch is not in the file)."""
        return self.launch.start if self.launch else self.start


@dataclass(frozen=True)
class _Span:
    """A named stretch of one thread."""

    name: str
    thread: Hashable
    start: int
    end: int


@dataclass
class _File:
    """The events of a file that count, sorted out."""

    nodes: list[CallNode] = field(default_factory=list)
    details: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    launches: dict[int, _Launch] = field(default_factory=dict)
    work: list[_DeviceInterval] = field(default_factory=list)
    steps: list[_Span] = field(default_factory=list)
    modules: list[_Span] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    shapes: bool = False


@registered
class Kineto(Reader):
    """Reads a torch.profiler JSON, or a folder that holds one and perhaps its execution trace."""

    what = "a torch.profiler (Kineto) JSON, plain or gzipped"

    def recognises(self, path: Path) -> bool:
        return bool(_profiles(path))

    def read(self, path: Path, *, step: str = "median", execution_trace: Path | None = None) -> Trace:
        profiles = _profiles(path)
        if len(profiles) > 1:
            names = ", ".join(p.name for p in profiles[:4]) + (", ..." if len(profiles) > 4 else "")
            raise InputError(f"{path} holds {len(profiles)} profiles ({names}); give the path of one")
        if path.is_dir() and execution_trace is None:
            companions = [p for p in files(path) if is_execution_trace(p)]
            if len(companions) > 1:
                names = ", ".join(p.name for p in companions)
                raise InputError(f"{path} holds {len(companions)} execution traces ({names}); keep the one of this run")
            execution_trace = companions[0] if companions else None
        recording = None if execution_trace is None else Recording.read(execution_trace)
        return _trace(profiles[0], *_read(profiles[0], step, recording), recording)


def _profiles(path: Path) -> list[Path]:
    return [p for p in (files(path) if path.is_dir() else [path]) if _is_profile(p)]


def _is_profile(path: Path) -> bool:
    start = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        return b'"ph"' in start and b'"ts"' in start
    if not start.startswith(b"{") or is_execution_trace(path):
        return False
    return b'"traceEvents"' in start or contains(path, b'"traceEvents"')


# --- parsing ---------------------------------------------------------------------------------------------------------


def _read(path: Path, step: str, recording: Recording | None) -> tuple[_File, StepChoice]:
    """The step asked for and the events of it; of all events where the file cannot be read in parts."""
    functions = None if recording is None else recording.functions
    if step != "all":
        index = _events.index(path, functions is not None)
        if index is not None and (found := _read_part(path, index, step, functions)) is not None:
            return found
    data = parse_json(path, parse_float=str)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError(f"{path} has no list of traceEvents; export the trace again")
    file = _parse(path, events, data if isinstance(data, dict) else {})
    if not file.nodes and not file.work:
        raise InputError(f"{path} holds no operators and no kernels; profile with CPU and CUDA activities")

    def whole() -> tuple[int, int]:
        times = [t for n in file.nodes for t in (n.start, n.end)] + [w.issued for w in file.work]
        return min(times), max(times) + 1

    choice = choose(path, _overview(file), step, functions, whole)
    file.work = [w for w in file.work if w.device == choice.device]
    return file, choice


def _read_part(
    path: Path, index: EventIndex, step: str, functions: Mapping[int, Any] | None
) -> tuple[_File, StepChoice] | None:
    """The same of one marked step, from an index of the file; None where no step is marked."""
    marking = np.array([bool(_STEP.search(name)) for name in index.names], np.bool_)
    calling = (index.kind == CALL) | (index.kind == SHAPED)
    marks, calls = calling & marking[index.name], calling & ~marking[index.name]
    if not marks.any() or not (calls.any() or len(index.works)):
        return None
    spans = _parse(path, index.events(np.flatnonzero(marks)), {}).steps
    launches = index.others[index.kind[index.others] == LAUNCH]
    numbered = np.full(len(index.kind), -1, np.int64)
    numbered[index.others] = index.correlation
    duration = np.zeros(len(index.kind), np.int64)
    duration[index.others] = index.duration
    # of launches of the same number the earliest counts, of equally early ones the first in the file
    known = launches[numbered[launches] >= 0]
    known = known[np.argsort(index.start[known], kind="stable")]
    numbers, first = np.unique(numbered[known], return_index=True)
    known = known[first]
    wanted = numbered[index.works]
    at = np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
    linked = numbers[at] == wanted if len(numbers) else np.zeros(len(wanted), np.bool_)
    by = known[at[linked]]
    call, returned = index.start[index.works], index.start[index.works]
    call[linked], returned[linked] = index.start[by], index.start[by] + duration[by]
    moving = np.array([communication.is_communication_kernel(name) for name in index.names], np.bool_)
    work = DeviceColumns(
        device=index.device,
        stream=np.where(index.stream >= 0, index.stream % 2**31, -1),
        start=index.start[index.works],
        duration=duration[index.works],
        call=call,
        returned=returned,
        linked=linked,
        communication=moving[index.name[index.works]],
    )
    seen = ProfileOverview(
        marks=tuple(StepMark(s.name, s.start, s.end) for s in spans),
        work=work,
        calls=index.start[calls],
        functions=index.function[~marking[index.name[calling]]] if functions is not None else index.function,
        shapes=bool(np.any(index.kind[calls] == SHAPED)),
    )
    choice = choose(path, seen, step, functions, lambda: (0, 0))
    begin, end = choice.begin, choice.end

    def during(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (begin <= index.start[rows]) & (index.start[rows] < end)

    kept = np.zeros(len(index.kind), np.bool_)
    kept[calls] = during(np.flatnonzero(calls))
    kept[index.works] = (begin <= call) & (call < end) & (index.device == choice.device)
    kept[launches] = during(launches)
    tied = np.unique(numbered[kept])
    kept[launches] |= np.isin(numbered[launches], tied[tied >= 0])
    modules = index.others[index.kind[index.others] == MODULE]
    kept[modules] = (index.start[modules] < end) & (index.start[modules] + duration[modules] > begin)
    top = index.top(("deviceProperties", "distributedInfo"))
    return _parse(path, index.events(np.flatnonzero(kept)), top), choice


def _overview(file: _File) -> ProfileOverview:
    """What a file shows as a whole."""
    work = file.work
    columns = DeviceColumns(
        device=column(w.device for w in work),
        stream=column(w.stream for w in work),
        start=column(w.start for w in work),
        duration=column(w.duration for w in work),
        call=column(w.issued for w in work),
        returned=column(w.launch.end if w.launch else w.start for w in work),
        linked=np.array([w.launch is not None for w in work], np.bool_),
        communication=np.array([communication.is_communication_kernel(w.name) for w in work], np.bool_),
    )
    return ProfileOverview(
        marks=tuple(StepMark(s.name, s.start, s.end) for s in file.steps),
        work=columns,
        calls=column(n.start for n in file.nodes),
        functions=column(n.function for n in file.nodes),
        shapes=file.shapes,
    )


def _parse(path: Path, events: Sequence[Any], top: Mapping[str, Any]) -> _File:
    """Sort events out.

    Args:
        path: the file, for messages.
        events: all of them, or some in the order of the file.
        top: what else the file holds.
    """
    found = _File(
        devices=_devices(top.get("deviceProperties")), groups=communication.process_groups(top.get("distributedInfo"))
    )
    work: list[tuple[str, str, int, int, Mapping[str, Any], Mapping[str, Any]]] = []
    threads: dict[tuple[str, str], tuple[str, str]] = {}
    for index, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = str(event.get("cat", "")).lower()
        name = str(event.get("name", ""))
        call = category in _CALLS
        if not (call or category in _WORK or category.endswith(("runtime", "driver")) or category == "python_function"):
            continue
        module = _MODULE.match(name) if category == "python_function" else None
        if category == "python_function" and module is None:
            continue
        start, duration = _times(path, index, name, event)
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in _WORK:
            work.append((category, name, start, duration, event, args))
            continue
        key = (str(event.get("pid")), str(event.get("tid")))
        thread = threads.setdefault(key, key)
        if module is not None:
            found.modules.append(_Span(module.group(1), thread, start, start + duration))
        elif not call:
            launch = _Launch(name, thread, start, start + duration, _number(_any(args, "External id", "external id")))
            correlation = _number(args.get("correlation"))
            known = found.launches.get(correlation)
            if correlation >= 0 and (known is None or launch.start < known.start):
                found.launches[correlation] = launch
            elif _WAITS.search(name):
                found.launches[-2 - index] = launch
        elif step := _STEP.search(name):
            found.steps.append(_Span(step.group(1), thread, start, start + duration))
        else:
            _call(found, name, category, thread, start, duration, args)
    for category, name, start, duration, event, args in work:
        found.work.append(_work(found, category, name, start, duration, event, args))
    return found


def _times(path: Path, index: int, name: str, event: Mapping[str, Any]) -> tuple[int, int]:
    start, duration = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur", 0))
    if start is None or duration is None:
        key = "ts" if start is None else "dur"
        raise InputError(
            f"{path}: event {index} ({quoted(name[:60])}) has {key} {quoted(event.get(key))}, which is not a time"
        )
    if duration < 0:
        raise InputError(f"{path}: event {index} ({quoted(name[:60])}) has the negative duration {event.get('dur')}")
    return start, duration


def _nanoseconds(value: Any) -> int | None:
    """Whole nanoseconds from microseconds as JSON holds them, exact for decimal text."""
    if isinstance(value, bool):
        return None
    try:
        found = value * 1000 if type(value) is int else int((Decimal(value) * 1000).to_integral_value())
    except (InvalidOperation, TypeError, ValueError, OverflowError):
        return None
    return found if found in INTEGERS else None


def _number(value: Any) -> int:
    """An id that may be written as text, -1 for none and for what is too large to be one."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if number in INTEGERS else -1


def _stream(value: Any) -> int:
    """The number of a stream, which has 32 bits; -1 where it is none."""
    number = _number(value)
    return number % 2**31 if number >= 0 else -1


def _any(args: Mapping[str, Any], *keys: str) -> Any:
    for key in keys:
        if key in args:
            return args[key]
    return None


def _call(
    found: _File, name: str, category: str, thread: Hashable, start: int, duration: int, args: Mapping[str, Any]
) -> None:
    annotation = category == "user_annotation" or name.startswith("Optimizer.")
    node = CallNode(
        name, thread, start, start + duration, annotation,
        sequence=_number(args.get("Sequence number")),
        forward_thread=max(_number(_any(args, "Fwd thread id", "Forward thread id")), 0),
        external=_number(_any(args, "External id", "external id")),
        function=max(_number(args.get("Record function id")), 0),
    )  # fmt: skip
    dims = _any(args, "Input Dims", "Input dims")
    if isinstance(dims, list) and dims:
        found.shapes = True
        _arguments(node, dims, _any(args, "Input type", "Input Type"), args.get("Concrete Inputs"))
    if name.startswith(("record_param_comms", "nccl:", "c10d::")):
        found.details[id(node)] = args
    found.nodes.append(node)


def _arguments(node: CallNode, dims: list, types: Any, constants: Any) -> None:
    types = types if isinstance(types, list) else []
    constants = constants if isinstance(constants, list) else []
    if canonical(node.name)[0] == "linear":  # some versions put what else lay on the stack before the three
        dims, types, constants = dims[-3:], types[-3:], constants[-3:]
    for at, (role, extents) in enumerate(zip(argument_names(node.name, len(dims)), dims, strict=True)):
        kind = str(types[at]) if at < len(types) else ""
        element = dtype(kind)
        shape = dimensions(extents)
        if element is not None or (shape and not types):
            node.arguments.append(Argument(role, ObservedTensor(shape or (), element or "unknown")))
        elif isinstance(extents, list) and extents and all(isinstance(e, list) for e in extents):
            inside = [dtype(name) or "unknown" for name in _TENSOR_LIST.findall(kind)]
            shapes = [dimensions(e) for e in extents]
            if kind in ("TensorList", "") or inside:
                for i, item in enumerate(shapes):
                    if item is not None:
                        element = inside[i] if i < len(inside) else "unknown"
                        node.arguments.append(Argument(role, ObservedTensor(item, element)))
        elif at < len(constants) and (value := written_constant(constants[at])) is not None:
            node.args[role] = value


def _work(
    found: _File, category: str, name: str, start: int, duration: int, event: Mapping[str, Any], args: Mapping[str, Any]
) -> _DeviceInterval:
    correlation = _number(args.get("correlation"))
    external = _number(_any(args, "External id", "external id"))
    launch = found.launches.get(correlation) if correlation >= 0 else None
    if external == correlation:  # how old versions wrote "not linked"
        external = -1
    return _DeviceInterval(
        name, _WORK[category] == "copy", _number(args.get("device", event.get("pid"))),
        _stream(args.get("stream", event.get("tid"))), start, duration, external, launch, args,
    )  # fmt: skip


def _devices(properties: Any) -> dict[int, str]:
    found = {}
    for device in properties if isinstance(properties, list) else ():
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            found[_number(device.get("id"))] = device["name"]
    return found


# --- one step --------------------------------------------------------------------------------------------------------


def _trace(path: Path, file: _File, choice: StepChoice, recording: Recording | None) -> Trace:
    notes = list(choice.notes)
    labels, label, begin, end = choice.labels, choice.label, choice.begin, choice.end
    nodes = [n for n in file.nodes if begin <= n.start < end]
    work = [w for w in file.work if begin <= w.issued < end]
    roots = nest(nodes)
    homes, waits = _homes(nodes, file, begin, end)
    calls = [w for w in work if not communication.is_communication_kernel(w.name)]
    homeless = _attach(calls, homes, nodes)
    if recording is not None:
        roots, joined, missed = join(roots, recording.roots)
        if not joined:
            raise InputError(f"{path} and {recording.path} share no operators; are they of one run?")
        notes += [f"{missed} operators of the profile are not in the execution trace"] if missed else []
    found = operators(roots)
    unlinked = link(roots, found)
    gpu = choice.device is not None
    host = {id(row): row.host_s for row, _ in found}
    launching: dict[int, float] = {}
    if gpu:
        launching = _charge(found, work, [*waits, *choice.work.blocked()], begin, end, label not in ("", "all"))
        _mark_waits(found, waits)
    for row, _ in found:
        if not gpu:
            row.device_s = row.host_s = NAN
    found, dropped = (found, []) if recording is not None else _one_pass(found, host, gpu, end)
    homeless = [w for w in homeless if not _within(w.issued, dropped)]
    rows = [row for row, _ in found]
    rows = _with_unattributed(rows, found, homeless)
    _modules(found, file.modules)
    copies = sum(w.duration for w in calls if w.copy) * 1e-9
    if copies:
        notes.append(f"copies and memsets, {format_time(copies)} in all, are not operator time")
    purposes = _identities(rows, found, recording is not None, choice.shapes, notes)
    if unlinked:
        notes.append(f"{unlinked} backward operators could not be tied to a forward operator")
    for row in rows:
        if not gpu:  # what only makes another view is over in no time on a device
            row.device_s = 0.0 if row.view else host[id(row)]
    if not gpu:
        notes.append("times are those of CPU operators under the profiler")
    pace = following(_issued(calls))
    parts = len(dropped) + 1
    if parts > 1:
        notes.append(accumulation_note(parts))
    meta = Meta(
        made_by="kineto" if recording is None else "kineto+execution-trace",
        workload=re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name),
        device=file.devices.get(work[0].device if work else -1),
        framework="torch",
        batch_size=purposes.batch.size,
        micro_batches=parts,
        batch_guess=purposes.batch.guess,
        sequence_length=purposes.batch.sequence,
        clock="gpu" if gpu else "cpu",
        step_time_s=None if label == "" else (end - begin) * 1e-9,
        launch_delay_s=pace.delay_s,
        kernel_gap_s=pace.gap_s,
        identity="exact" if recording is not None else "inferred",
        steps=labels,
        step=label,
        notes=tuple(notes),
    )

    def finish(builder: TraceBuilder) -> None:
        kept = [(row, node) for row, node in found if row.index >= 0]
        needs = _needed(work, kept)
        for item in work:
            if communication.is_communication_kernel(item.name):
                after = next((row.index for row, node in kept if node.start > item.issued), len(builder))
                after = NONE if _within(item.issued, dropped) else after
                place = (after, needs.get(id(item), NONE), launching.get(id(item), 0.0))
                _communicate(builder, item, homes, file, place)

    return build(rows, meta, purposes.weights, finish)


def _homes(
    nodes: Sequence[CallNode], file: _File, begin: int, end: int
) -> tuple[dict[int, CallNode], list[tuple[int, int]]]:
    """The innermost call around each launch of the step (by ``id`` of the launch), and when the host waited (ns).

    Calls note on the way how long they waited themselves.
    """
    by_thread: dict[Hashable, list[tuple[int, int, int, CallNode | _Launch]]] = {}
    for node in nodes:
        by_thread.setdefault(node.thread, []).append((node.start, 0, -node.end, node))
    launches = [launch for launch in file.launches.values() if begin <= launch.start < end]
    for launch in launches:
        by_thread.setdefault(launch.thread, []).append((launch.start, 1, -launch.end, launch))
    found: dict[int, CallNode] = {}
    waits = [(launch.start, launch.end) for launch in launches if _WAITS.search(launch.name)]
    for events in by_thread.values():
        events.sort(key=lambda e: e[:3])
        stack: list[CallNode] = []
        for start, _, negative_end, item in events:
            until = -negative_end
            while stack and (stack[-1].end < start or (stack[-1].end == start < until)):
                stack.pop()
            if isinstance(item, CallNode):
                while stack and stack[-1].end <= start:
                    stack.pop()
                stack.append(item)
            elif stack:
                found[id(item)] = stack[-1]
                if _WAITS.search(item.name):
                    stack[-1].waits += item.end - item.start
    return found, waits


def _attach(
    work: Sequence[_DeviceInterval], homes: Mapping[int, CallNode], nodes: Sequence[CallNode]
) -> list[_DeviceInterval]:
    """Give each call the work that it launched; returns what no call launched."""
    by_id = {node.external: node for node in nodes if node.external >= 0}
    homeless = []
    for item in sorted(work, key=lambda w: (w.issued, w.start)):
        node = homes.get(id(item.launch)) if item.launch else None
        if node is None:
            linked = item.external if item.external >= 0 else -1
            node = by_id.get(linked)
        if node is None:
            homeless.append(item)
            continue
        node.kernels.append(DeviceWork(item.name, item.duration, item.stream, item.copy))
        if item.copy and item.launch and _HOST_COPY.search(item.name) and "Pinned" not in item.name:
            node.waits += item.launch.end - item.launch.start  # a copy to pageable memory blocks the host
    return homeless


def _one_pass(
    found: list[tuple[OperatorRow, CallNode]], host: Mapping[int, float], gpu: bool, end: int
) -> tuple[list[tuple[OperatorRow, CallNode]], list[tuple[int, int]]]:
    """One of the passes of a step that accumulates gradients, and the host times of the others.

    Without tensor identities every pass would seem to have parameters of its own.  Where an execution trace tells
    identities, :func:`~triosim.trace.accumulation.one_micro_batch` does this with better evidence.
    """
    rows = [row for row, _ in found]
    all_passes = passes([row.phase for row in rows], [pass_key(row) for row in rows])
    if not all_passes:
        return found, []
    kept = median_pass(all_passes, [row.device_s if gpu else host[id(row)] for row in rows])
    starts = [found[rows.start][1].start for rows in all_passes]
    after = all_passes[-1].stop
    starts.append(found[after][1].start if after < len(found) else end)
    spans = zip(pairwise(starts), all_passes, strict=True)
    dropped = [span for span, rows in spans if rows != kept]
    return [*found[: all_passes[0].start], *found[kept.start : kept.stop], *found[after:]], dropped


def _within(when: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(begin <= when < end for begin, end in spans)


def _with_unattributed(
    rows: list[OperatorRow], found: Sequence[tuple[OperatorRow, CallNode]], homeless: Sequence[_DeviceInterval]
) -> list[OperatorRow]:
    """The rows with one more for each name of the kernels that no call launched, where the first was issued."""
    groups: dict[str, list[_DeviceInterval]] = {}
    for item in homeless:
        groups.setdefault(item.name, []).append(item)
    starts = [(node.start, row) for row, node in found]
    for name, items in groups.items():
        before = [row.phase for start, row in starts if start <= items[0].issued]
        kernels = [DeviceWork(name, item.duration, item.stream, item.copy) for item in items]
        row = launched(name, kernels, before[-1] if before else Phase.FORWARD, foreign=True)
        at = sum(start <= items[0].issued for start, _ in starts)
        starts.insert(at, (items[0].issued, row))
    return [row for _, row in starts]


def _modules(found: Sequence[tuple[OperatorRow, CallNode]], spans: Sequence[_Span]) -> None:
    """Name the innermost ``nn.Module`` around each call: ``VGG_0.Sequential_0.Conv2d_3``, class ``Conv2d``."""
    calls: dict[Hashable, list[tuple[OperatorRow, CallNode]]] = {}
    for row, node in found:
        if row.phase == Phase.FORWARD:
            calls.setdefault(node.thread, []).append((row, node))
    if not calls or not spans:
        return
    most = max(calls, key=lambda thread: len(calls[thread]))
    by_thread: dict[Hashable, list[_Span]] = {}
    for span in spans:
        by_thread.setdefault(span.thread if span.thread in calls else most, []).append(span)
    for thread, mine in by_thread.items():
        mine.sort(key=lambda s: (s.start, -s.end))
        stack: list[_Span] = []
        at = 0
        for row, node in calls[thread]:
            while at < len(mine) and mine[at].start <= node.start:
                while stack and stack[-1].end <= mine[at].start:
                    stack.pop()
                stack.append(mine[at])
                at += 1
            while stack and stack[-1].end <= node.start:
                stack.pop()
            if stack:
                row.module = ".".join(span.name for span in stack)
                row.module_kind = re.sub(r"_\d+$", "", stack[-1].name)


def _identities(
    rows: list[OperatorRow], found: Sequence[tuple[OperatorRow, CallNode]], exact: bool, shapes: bool, notes: list[str]
) -> ValuePurposes:
    if exact:
        for row, node in found:
            if not node.shown:
                row.arguments, row.results = [], []
        rows[:] = [row for row in rows if not row.gradient or row.arguments]
        resolve(rows)
        purposes = decide(rows)
    else:
        accumulated = [row.arguments[0].tensor.shape for row in rows if row.gradient]
        rows[:] = [row for row in rows if not row.gradient]
        Inference(_expected(found), _incoming(found), _shared(found)).run(rows)
        find_parameters(rows, accumulated)
        purposes = decide(rows)
        updates(rows, purposes.weights)
        if shapes:
            notes.append(
                "tensor identities are inferred from shapes and order: give the execution trace for exact ones"
            )
        else:
            notes.append("the profile has no shapes (record_shapes=True was not set): operators have no inputs, and "
                         "neither the batch size nor the parameters are known")  # fmt: skip
    if purposes.without_gradient and any(row.phase == Phase.BACKWARD for row in rows):
        missing, of = len(purposes.without_gradient), len(purposes.weights)
        notes.append(f"for {missing} of {of} parameters no gradient was found")
    unattributed = sum(row.device_s for row in rows if row.name == "unattributed")
    if unattributed:
        notes.append(f"{unattributed * 1e3:.3f} ms of kernels were launched by no recorded operator")
    return purposes


def _expected(found: Sequence[tuple[OperatorRow, CallNode]]) -> dict[int, list[ObservedTensor]]:
    """Shapes of forward outputs: those of the gradients that autograd hands to the last node of each forward row."""
    best: dict[int, tuple[int, list[ObservedTensor]]] = {}
    for row, call in found:
        node: CallNode | None = call
        while node is not None and row.forward is not None:
            if node.engine and node.arguments and node.sequence >= 0:
                known = best.get(id(row.forward))
                if known is None or node.sequence > known[0]:
                    best[id(row.forward)] = (node.sequence, [a.tensor for a in node.arguments])
                break
            node = node.parent
    return {key: tensors for key, (_, tensors) in best.items()}


def _shared(found: Sequence[tuple[OperatorRow, CallNode]]) -> set[int]:
    """Forward rows whose input has further readers: when autograd comes to them it adds the gradients up."""
    return {
        id(row.forward)
        for row, call in found
        if row.forward is not None and canonical(row.name)[0] == "add" and call.parent is row.group
    }


def _incoming(found: Sequence[tuple[OperatorRow, CallNode]]) -> dict[int, list[tuple[int, ...]]]:
    """Shapes of the gradients that autograd handed to the node around each backward row."""
    shapes: dict[int, list[tuple[int, ...]]] = {}
    for row, _ in found:
        group = row.group
        if isinstance(group, CallNode) and id(group) not in shapes:
            functions = [c for c in (group, *group.children) if c.engine or c.name.endswith("AccumulateGrad")]
            given = next((f.arguments for f in functions if f.arguments), [])
            shapes[id(group)] = [a.tensor.shape for a in given]
    return shapes


def _issued(work: Sequence[_DeviceInterval]) -> list[KernelLaunch]:
    """Calls and kernels of what the file shows the launch of, in order."""
    return [
        KernelLaunch(w.launch.start, w.launch.end, w.stream, w.start, w.start + w.duration)
        for w in work
        if w.launch is not None
    ]


def _charge(
    found: Sequence[tuple[OperatorRow, CallNode]],
    work: Sequence[_DeviceInterval],
    waits: list[tuple[int, int]],
    begin: int,
    end: int,
    marked: bool,
) -> dict[int, float]:
    """Set what each operator cost the host; returns it of each communication kernel, by ``id``.

    What the host did after the last operator of a ``marked`` step comes before the first of the next, and so counts as
    the first's.
    A copy to pageable memory holds the host until it has ended, whether or not the file shows the call that waits.
    """
    held = [
        (w.launch.start, max(w.launch.end, w.start + w.duration))
        for w in work
        if w.launch is not None and w.copy and _HOST_COPY.search(w.name) and "Pinned" not in w.name
    ]
    clock = HostClock(begin, [*waits, *held])
    events: list[tuple[int, int, OperatorRow | _DeviceInterval]] = [
        (node.start, node.end, row) for row, node in found if not (row.gradient or wraps(node))
    ]
    events += [
        (w.launch.start, w.launch.end, w)
        for w in work
        if w.launch is not None and communication.is_communication_kernel(w.name)
    ]
    events.sort(key=lambda e: e[:2])
    charged: dict[int, float] = {}
    first: OperatorRow | None = None
    for _, until, item in events:
        seconds = clock.until(until)
        if isinstance(item, OperatorRow):
            item.host_s = seconds
            first = first or item
        else:
            charged[id(item)] = seconds
    if first is not None and marked:
        first.host_s += clock.until(end)
    return charged


def _mark_waits(found: Sequence[tuple[OperatorRow, CallNode]], waits: Sequence[tuple[int, int]]) -> None:
    """An operator after which the host waited for the device, outside any operator, is one at which it waits."""
    rows = [(node.start, node.end, row) for row, node in found if not (row.gradient or wraps(node))]
    starts = [start for start, _, _ in rows]
    for begin, _ in waits:
        at = bisect.bisect_right(starts, begin) - 1
        if at >= 0 and rows[at][1] <= begin:
            rows[at][2].sync = True


def _needed(work: Sequence[_DeviceInterval], kept: Sequence[tuple[OperatorRow, CallNode]]) -> dict[int, int]:
    """For each communication kernel (by ``id``) the first operator that was seen to wait for it.

    A kernel of another stream waited if it had been launched before the communication ended, and started right
    when it did, its own stream having been idle before.
    """
    starts, index = [node.start for _, node in kept], [row.index for row, _ in kept]
    found: dict[int, int] = {}
    ordered = sorted(work, key=lambda w: w.start)
    for item in ordered:
        if item.launch is None or not communication.is_communication_kernel(item.name):
            continue
        end = item.start + item.duration
        idle: dict[int, int] = {}
        for other in ordered:
            if other.stream == item.stream or other.launch is None:
                continue
            held = other.launch.end < end <= other.start < end + _RIGHT_AFTER_NS
            if held and idle.get(other.stream, 0) < end and other.issued > item.issued:
                at = bisect.bisect_right(starts, other.issued) - 1
                if at >= 0:
                    found[id(item)] = index[at]
                break
            idle[other.stream] = max(idle.get(other.stream, 0), other.start + other.duration)
            if other.start > end + _RIGHT_AFTER_NS:
                break
    return found


def _communicate(
    builder: TraceBuilder,
    item: _DeviceInterval,
    homes: Mapping[int, CallNode],
    file: _File,
    place: tuple[int, int, float],
) -> None:
    """Note one communication kernel with what its own arguments, or the calls around its launch, tell.

    ``place`` is the operator before which it was launched, the one that waited for it, and what it cost the host.
    """
    node = homes.get(id(item.launch)) if item.launch else None
    around: list[CallNode] = []
    while node is not None:
        around.append(node)
        node = node.parent
    told = [item.args, *(file.details[id(n)] for n in around if id(n) in file.details)]
    kind = next((k for args in told if (k := communication.kind_of(str(args.get("Collective name", ""))))), "")
    names = [n.name for n in around if n.name.startswith(("nccl:", "c10d::"))]
    kind = kind or next((k for name in [*names, item.name] if (k := communication.kind_of(name))), "")
    size = next((b for args in told if (b := communication.full_bytes(args)) == b), NAN)
    if size != size:
        own = [n for n in around if id(n) in file.details]
        shown = [a.tensor for n in own for a in n.arguments if a.tensor.shape]
        size = communication.largest((tensor.shape, tensor.dtype) for tensor in shown)
    group = next((g for args in told if (g := communication.group_size(args, file.groups))), 0)
    operator, needed, host = place
    builder.communication(
        item.name,
        kind,
        size,
        group,
        item.duration * 1e-9,
        operator=operator,
        needed=needed,
        stream=item.stream,
        host_s=host,
    )
