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

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError, quoted
from triosim.core.guarded import INTEGERS
from triosim.core.registry import registered
from triosim.operators import argument_names, canonical
from triosim.sources.readers import _communication as communication
from triosim.sources.readers import _events
from triosim.sources.readers._arguments import dimensions, dtype, written_constant
from triosim.sources.readers._choice import DeviceColumns, ProfileOverview, StepChoice, StepMark, choose, column, narrow
from triosim.sources.readers._events import EventIndex
from triosim.sources.readers._execution import Recording, is_execution_trace
from triosim.sources.readers._files import contains, files, head, parse_json
from triosim.sources.readers._kineto_step import DeviceInterval, ProfileFile, RuntimeCall, ThreadSpan, step_trace
from triosim.sources.readers._optimizer_steps import ends_of_steps
from triosim.sources.readers._step import Argument, ObservedTensor
from triosim.sources.readers._tree import CallNode
from triosim.sources.reading import Reader
from triosim.trace.tables import Trace

_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy", "memset": "copy"}
_CALLS = ("cpu_op", "operator", "user_annotation")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_MODULE = re.compile(r"^nn\.Module: (.+)$")
_TENSOR_LIST = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?[^()]*)\)")


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
        return step_trace(profiles[0], *_read(profiles[0], step, recording), recording)


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


def _read(path: Path, step: str, recording: Recording | None) -> tuple[ProfileFile, StepChoice]:
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

    ends = [] if file.steps else ends_of_steps(file.nodes)
    if ends:
        begin, end = whole()
        borders = [begin, *(until + 1 for until in ends[:-1]), end]
        file.steps = [ThreadSpan(str(at), "", *span) for at, span in enumerate(pairwise(borders), start=1)]
    choice = choose(path, _overview(file), step, functions, whole)
    if ends:
        note = f"the file marks no steps: it is cut into {len(ends)} where its optimizer ends"
        choice = replace(choice, notes=(*choice.notes, note))
    file.work = [w for w in file.work if w.device == choice.device]
    return file, choice


def _read_part(
    path: Path, index: EventIndex, step: str, functions: Mapping[int, Any] | None
) -> tuple[ProfileFile, StepChoice] | None:
    """The same of one marked step, from an index of the file; None where no step is marked."""
    calls, launches, works, modules = index.calls, index.launches, index.works, index.modules
    marking = np.array([bool(_STEP.search(name)) for name in index.names], np.bool_)
    marks = marking[calls.name]
    if not marks.any() or (marks.all() and not len(index.launch)):
        return None
    spans = _parse(path, index.events((calls, marks)), {}).steps
    seen = ProfileOverview(
        marks=tuple(StepMark(s.name, s.start, s.end) for s in spans),
        work=_device_columns(index),
        calls=calls.start[~marks],
        functions=calls.function if functions is None else calls.function[~marks],
        shapes=bool(np.any(calls.shaped[~marks])),
    )
    choice = choose(path, seen, step, functions, lambda: (0, 0))
    begin, end = choice.begin, choice.end

    def during(start: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (begin <= start) & (start < end)

    called, worked, launched = during(calls.start) & ~marks, during(seen.work.call), during(launches.start)
    worked &= seen.work.device == choice.device
    tied = np.unique(np.concatenate([works.correlation[worked], launches.correlation[launched]]))
    launched |= np.isin(launches.correlation, tied[tied >= 0])
    inside = (modules.start < end) & (modules.start + modules.duration > begin)
    top = index.top(("deviceProperties", "distributedInfo"))
    events = index.events((calls, called), (launches, launched), (works, worked), (modules, inside))
    return _parse(path, events, top), choice


def _device_columns(index: EventIndex) -> DeviceColumns:
    """What an index shows of devices."""
    launches, works = index.launches, index.works
    linked = index.launch >= 0
    by = index.launch[linked]
    call = works.start
    call[linked] = launches.start[by]
    calling = np.zeros(len(call), np.int64)
    calling[linked] = launches.duration[by]
    stream = works.stream
    stream[stream >= 0] %= 2**31
    moving = np.array([communication.is_communication_kernel(name) for name in index.names], np.bool_)
    return DeviceColumns(
        device=narrow(works.device),
        stream=narrow(np.maximum(stream, -1)),
        start=works.start,
        duration=narrow(works.duration),
        call=call,
        calling=narrow(calling),
        linked=linked,
        communication=moving[works.name],
    )


def _overview(file: ProfileFile) -> ProfileOverview:
    """What a file shows as a whole."""
    work = file.work
    columns = DeviceColumns(
        device=narrow(column(w.device for w in work)),
        stream=narrow(column(w.stream for w in work)),
        start=column(w.start for w in work),
        duration=narrow(column(w.duration for w in work)),
        call=column(w.issued for w in work),
        calling=narrow(column(w.launch.end - w.launch.start if w.launch else 0 for w in work)),
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


def _parse(path: Path, events: Sequence[Any], top: Mapping[str, Any]) -> ProfileFile:
    """Sort events out.

    Args:
        path: the file, for messages.
        events: all of them, or some in the order of the file.
        top: what else the file holds.
    """
    found = ProfileFile(
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
            found.modules.append(ThreadSpan(module.group(1), thread, start, start + duration))
        elif not call:
            launch = RuntimeCall(
                name, thread, start, start + duration, _number(_any(args, "External id", "external id"))
            )
            correlation = _number(args.get("correlation"))
            known = found.launches.get(correlation)
            if correlation >= 0 and (known is None or launch.start < known.start):
                found.launches[correlation] = launch
            elif launch.waits:
                found.launches[-2 - index] = launch
        elif step := _STEP.search(name):
            found.steps.append(ThreadSpan(step.group(1), thread, start, start + duration))
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
    found: ProfileFile, name: str, category: str, thread: Hashable, start: int, duration: int, args: Mapping[str, Any]
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
    found: ProfileFile,
    category: str,
    name: str,
    start: int,
    duration: int,
    event: Mapping[str, Any],
    args: Mapping[str, Any],
) -> DeviceInterval:
    correlation = _number(args.get("correlation"))
    external = _number(_any(args, "External id", "external id"))
    launch = found.launches.get(correlation) if correlation >= 0 else None
    if external == correlation:  # how old versions wrote "not linked"
        external = -1
    return DeviceInterval(
        name, _WORK[category] == "copy", _number(args.get("device", event.get("pid"))),
        _stream(args.get("stream", event.get("tid"))), start, duration, external, launch, args,
    )  # fmt: skip


def _devices(properties: Any) -> dict[int, str]:
    found = {}
    for device in properties if isinstance(properties, list) else ():
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            found[_number(device.get("id"))] = device["name"]
    return found
