"""The trace of one step of a torch.profiler (Kineto) file: who launched what, what it took, which tensor is which.

A kernel belongs to the operator whose call launched it: equal correlation, then the innermost call around the launch.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import format_time
from triosim.operators import canonical
from triosim.sources.readers import _communication as communication
from triosim.sources.readers._choice import StepChoice
from triosim.sources.readers._execution import Recording
from triosim.sources.readers._host import HostClock, KernelLaunch, following
from triosim.sources.readers._inference import Inference, find_parameters, updates
from triosim.sources.readers._join import join
from triosim.sources.readers._purpose import ValuePurposes, decide
from triosim.sources.readers._step import ObservedTensor, OperatorRow, build, pass_key, resolve
from triosim.sources.readers._tree import CallNode, DeviceWork, launched, link, nest, operators, wraps
from triosim.trace.accumulation import accumulation_note, median_pass, passes
from triosim.trace.builder import NAN, TraceBuilder
from triosim.trace.tables import NONE, Meta, Phase, Trace

_WAITS = re.compile(
    r"(cuda|hip|cu)(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy(2D|3D|Peer)?(_v2|_ptds)?$)"
)
_HOST_COPY = re.compile(r"DtoH|Device -> (Pageable|Host)|DeviceToHost", re.IGNORECASE)
_RIGHT_AFTER_NS = 20_000
"""A kernel that starts so soon after another has ended may have waited for it."""


@dataclass(frozen=True)
class RuntimeCall:
    """A call of the device's runtime or driver."""

    name: str
    thread: Hashable
    start: int
    end: int
    external: int

    @property
    def waits(self) -> bool:
        """Whether the host waits in it for the device."""
        return _WAITS.search(self.name) is not None


@dataclass(frozen=True)
class DeviceInterval:
    """A kernel, copy or memset on a device.  ``launch`` is None where the file does not hold the call."""

    name: str
    copy: bool
    device: int
    stream: int
    start: int
    duration: int
    external: int
    launch: RuntimeCall | None
    args: Mapping[str, Any]

    @property
    def issued(self) -> int:
        """When the host launched it (when it started, where the launch is not in the file)."""
        return self.launch.start if self.launch else self.start


@dataclass(frozen=True)
class ThreadSpan:
    """A named stretch of one thread."""

    name: str
    thread: Hashable
    start: int
    end: int


@dataclass
class ProfileFile:
    """The events of a file that count, sorted out."""

    nodes: list[CallNode] = field(default_factory=list)
    details: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    launches: dict[int, RuntimeCall] = field(default_factory=dict)
    work: list[DeviceInterval] = field(default_factory=list)
    steps: list[ThreadSpan] = field(default_factory=list)
    modules: list[ThreadSpan] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    shapes: bool = False


def step_trace(path: Path, file: ProfileFile, choice: StepChoice, recording: Recording | None) -> Trace:
    """The trace of one step.

    Args:
        path: the profile.
        file: what it holds.
        choice: the step.
        recording: an execution trace of the same run, which knows which tensor is which.

    Raises:
        InputError: the two share no operators.
    """
    notes, begin, end = list(choice.notes), choice.begin, choice.end
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
    host, launching = {id(row): row.host_s for row, _ in found}, dict[int, float]()
    if gpu:
        last = max([end, *(n.end for n in nodes), *(w.launch.end for w in work if w.launch)])
        full = choice.work.blocked(begin, last)
        launching = _charge(found, work, [*waits, *full], begin, end, choice.label not in ("", "all"))
        _mark_waits(found, waits)
    else:
        for row, _ in found:
            row.device_s = row.host_s = NAN
    found, dropped = (found, []) if recording is not None else _one_pass(found, host, gpu, end)
    rows = _with_unattributed([row for row, _ in found], found, [w for w in homeless if not _within(w.issued, dropped)])
    _modules(found, file.modules)
    copies = sum(w.duration for w in calls if w.copy) * 1e-9
    if copies:
        notes.append(f"copies and memsets, {format_time(copies)} in all, are not operator time")
    purposes = _identities(rows, found, recording is not None, choice.shapes, notes)
    if unlinked:
        notes.append(f"{unlinked} backward operators could not be tied to a forward operator")
    if not gpu:
        for row in rows:  # what only makes another view is over in no time on a device
            row.device_s = 0.0 if row.view else host[id(row)]
        notes.append("times are those of CPU operators under the profiler")
    pace, parts = following(_issued(calls)), len(dropped) + 1
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
        step_time_s=None if choice.label == "" else (end - begin) * 1e-9,
        launch_delay_s=pace.delay_s,
        kernel_gap_s=pace.gap_s,
        identity="exact" if recording is not None else "inferred",
        steps=choice.labels,
        step=choice.label,
        notes=tuple(notes),
    )

    def add_communications(builder: TraceBuilder) -> None:
        kept = [(row, node) for row, node in found if row.index >= 0]
        needs = _needed(work, kept)
        for item in work:
            if communication.is_communication_kernel(item.name):
                after = next((row.index for row, node in kept if node.start > item.issued), len(builder))
                after = NONE if _within(item.issued, dropped) else after
                place = (after, needs.get(id(item), NONE), launching.get(id(item), 0.0))
                _communicate(builder, item, homes, file, place)

    return build(rows, meta, purposes.weights, add_communications)


def _homes(
    nodes: Sequence[CallNode], file: ProfileFile, begin: int, end: int
) -> tuple[dict[int, CallNode], list[tuple[int, int]]]:
    """The innermost call around each launch of the step (by ``id`` of the launch), and when the host waited (ns).

    Calls note on the way how long they waited themselves.
    """
    by_thread: dict[Hashable, list[tuple[int, int, int, CallNode | RuntimeCall]]] = {}
    for node in nodes:
        by_thread.setdefault(node.thread, []).append((node.start, 0, -node.end, node))
    launches = [launch for launch in file.launches.values() if begin <= launch.start < end]
    for launch in launches:
        by_thread.setdefault(launch.thread, []).append((launch.start, 1, -launch.end, launch))
    found: dict[int, CallNode] = {}
    waits = [(launch.start, launch.end) for launch in launches if launch.waits]
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
                if item.waits:
                    stack[-1].waits += item.end - item.start
    return found, waits


def _attach(
    work: Sequence[DeviceInterval], homes: Mapping[int, CallNode], nodes: Sequence[CallNode]
) -> list[DeviceInterval]:
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
    rows: list[OperatorRow], found: Sequence[tuple[OperatorRow, CallNode]], homeless: Sequence[DeviceInterval]
) -> list[OperatorRow]:
    """The rows with one more for each name of the kernels that no call launched, where the first was issued."""
    groups: dict[str, list[DeviceInterval]] = {}
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


def _modules(found: Sequence[tuple[OperatorRow, CallNode]], spans: Sequence[ThreadSpan]) -> None:
    """Name the innermost ``nn.Module`` around each call: ``VGG_0.Sequential_0.Conv2d_3``, class ``Conv2d``."""
    calls: dict[Hashable, list[tuple[OperatorRow, CallNode]]] = {}
    for row, node in found:
        if row.phase == Phase.FORWARD:
            calls.setdefault(node.thread, []).append((row, node))
    if not calls or not spans:
        return
    most = max(calls, key=lambda thread: len(calls[thread]))
    by_thread: dict[Hashable, list[ThreadSpan]] = {}
    for span in spans:
        by_thread.setdefault(span.thread if span.thread in calls else most, []).append(span)
    for thread, mine in by_thread.items():
        mine.sort(key=lambda s: (s.start, -s.end))
        stack: list[ThreadSpan] = []
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


def _issued(work: Sequence[DeviceInterval]) -> list[KernelLaunch]:
    """Calls and kernels of what the file shows the launch of, in order."""
    return [
        KernelLaunch(w.launch.start, w.launch.end, w.stream, w.start, w.start + w.duration)
        for w in work
        if w.launch is not None
    ]


def _charge(
    found: Sequence[tuple[OperatorRow, CallNode]],
    work: Sequence[DeviceInterval],
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
    events: list[tuple[int, int, OperatorRow | DeviceInterval]] = [
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


def _needed(work: Sequence[DeviceInterval], kept: Sequence[tuple[OperatorRow, CallNode]]) -> dict[int, int]:
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
    item: DeviceInterval,
    homes: Mapping[int, CallNode],
    file: ProfileFile,
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
