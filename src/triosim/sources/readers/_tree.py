"""Calls as a profiler saw them, nested, and which of them become the operators of a trace.

Profilers record every level: ``aten::linear`` calls ``aten::addmm`` calls ``aten::as_strided``.  An operator of the
trace is the outermost call of a dispatched operator: ``aten::linear`` in the forward pass, and below an autograd node
the operators that the node calls (``aten::mm``, ``aten::convolution_backward``).  What only wraps operators - autograd
nodes, annotations, custom functions, compiled regions - becomes none, unless it launched kernels itself.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.operators import canonical, in_place, is_backward
from triosim.sources.readers._step import Argument, ObservedTensor, OperatorRow
from triosim.trace.tables import Phase

UNATTRIBUTED = "unattributed"
"""Name of the operators that hold kernels for which no operator was found."""

_ENGINE = "autograd::engine::evaluate_function"
_ACCUMULATE = "AccumulateGrad"
_NODE = re.compile(r"(^|::)[A-Za-z_]\w*Backward\d*$")
_WRAPPERS = ("autograd::", "torch::autograd::", "torch::distributed::", "torch.distributed.", "torch::jit::")
_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms", "nccl:", "gloo:")


@dataclass(frozen=True)
class DeviceWork:
    """One piece of device work: its name, nanoseconds and stream, and whether it is a copy or a memset."""

    name: str
    duration: int
    stream: int
    copy: bool = False


@dataclass(eq=False)
class CallNode:
    """One recorded call.

    Attributes:
        name: as recorded.
        thread: which thread made it.
        start, end: host time in nanoseconds (or any order, where the source has no times).
        annotation: a span that a user or a framework marked, no operator.
        sequence, forward_thread: autograd's number of the call and, on backward nodes, the thread of the forward
            call with that number (0 on forward calls); -1 for none.
        external: the profiler's id of the call, -1 for none; ``function`` the id that execution traces share.
        arguments, results, args: tensors and constants, where the source shows them.
        shown: whether the source gives tensor identities for this call.
        kernels: device work that this call itself launched.
        waits: nanoseconds in which this call itself waited for the device.
        children: calls within, in order.
    """

    name: str
    thread: Hashable
    start: int
    end: int
    annotation: bool = False
    sequence: int = -1
    forward_thread: int = 0
    external: int = -1
    function: int = 0
    arguments: list[Argument] = field(default_factory=list)
    results: list[ObservedTensor] = field(default_factory=list)
    args: dict = field(default_factory=dict)
    shown: bool = False
    kernels: list[DeviceWork] = field(default_factory=list)
    waits: int = 0
    parent: CallNode | None = None
    children: list[CallNode] = field(default_factory=list)

    def walk(self) -> Iterator[CallNode]:
        """This call and all within it, callers first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    @property
    def engine(self) -> bool:
        """Whether it is a node of the backward pass (or the engine's call of one)."""
        return self.name.startswith(_ENGINE) or (not self.annotation and bool(_NODE.search(self.name)))

    @property
    def number(self) -> tuple[int, int]:
        """Sequence number and forward thread; the engine's call of a node may show them on the node only."""
        if self.sequence < 0 and self.name.startswith(_ENGINE):
            for child in self.children:
                if child.engine and child.sequence >= 0:
                    return child.sequence, child.forward_thread
        return self.sequence, self.forward_thread


def nest(nodes: Sequence[CallNode]) -> list[CallNode]:
    """Set parents and children from the times on each thread; the outermost calls in order of start."""
    roots: list[CallNode] = []
    stacks: dict[Hashable, list[CallNode]] = {}
    for node in sorted(nodes, key=lambda n: (n.start, -n.end)):
        stack = stacks.setdefault(node.thread, [])
        while stack and stack[-1].end <= node.start:
            stack.pop()
        if stack:
            node.parent = stack[-1]
            stack[-1].children.append(node)
        else:
            roots.append(node)
        stack.append(node)
    return roots


def is_communication(name: str) -> bool:
    """Whether a call only starts a transfer between ranks."""
    return name.startswith(_COMMUNICATION)


def wraps(node: CallNode) -> bool:
    """Whether a call is no operator itself but a frame around operators."""
    if node.annotation or node.engine or node.name.startswith(_WRAPPERS) or is_communication(node.name):
        return True
    return "::" not in node.name and bool(node.children)


@dataclass
class CallContext:
    """Properties that hold for everything below a call."""

    phase: Phase
    node: CallNode | None = None
    recomputes: bool = False


def operators(roots: Sequence[CallNode]) -> list[tuple[OperatorRow, CallNode]]:
    """The rows of a step with the call of each, in order of start.

    Phases: below an autograd node backward (recompute for forward calls that run there again), inside
    ``Optimizer.step`` optimizer, before that forward; where nothing marks the optimizer, whatever follows the
    last backward call on the forward thread is the optimizer's if it works on lists or in place.
    """
    found: list[tuple[OperatorRow, CallNode]] = []
    forward = {call.thread for root in roots for call in _outside(root) if call.sequence >= 0}
    engine = {root.thread for root in roots if root.engine} - forward  # threads of autograd's own
    for root in roots:
        _descend(root, CallContext(Phase.BACKWARD if root.thread in engine else Phase.FORWARD), found)
    found.sort(key=lambda pair: pair[1].start)
    _before_the_optimizer(found)
    _unmarked_optimizer(found)
    return found


def _outside(root: CallNode) -> Iterator[CallNode]:
    """The calls of a tree that are not below an autograd node."""
    stack = [root]
    while stack:
        node = stack.pop()
        if not node.engine:
            yield node
            stack.extend(node.children)


def _descend(root: CallNode, frame: CallContext, found: list[tuple[OperatorRow, CallNode]]) -> None:
    stack: list[tuple[CallNode, CallContext]] = [(root, frame)]
    overhead: dict[int, int] = {}  # nanoseconds of an autograd node itself, which its first operator bears
    while stack:
        node, frame = stack.pop()
        frame = _below(node, frame)
        if not wraps(node):
            row = _row(node, frame)
            row.host_s += overhead.pop(id(frame.node), 0) * 1e-9
            found.append((row, node))
            continue
        if node.engine:
            own = node.end - node.start - node.waits - sum(c.end - c.start for c in node.children)
            overhead[id(frame.node)] = overhead.get(id(frame.node), 0) + max(own, 0)
        if _ACCUMULATE in node.name and not node.name.startswith(_ENGINE) and node.arguments:
            argument = Argument("gradient", node.arguments[0].tensor)
            found.append((OperatorRow(node.name, Phase.BACKWARD, [argument], gradient=True), node))
        foreign = node.annotation or is_communication(node.name)
        own_name = [(node.name, node.kernels)] if node.kernels else []
        for name, kernels in _by_name(node.kernels) if foreign else own_name:
            found.append((launched(name, kernels, frame.phase, foreign), node))
        stack.extend((child, frame) for child in reversed(node.children))


def _by_name(kernels: Sequence[DeviceWork]) -> list[tuple[str, list[DeviceWork]]]:
    groups: dict[str, list[DeviceWork]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.name, []).append(kernel)
    return list(groups.items())


def launched(name: str, kernels: Sequence[DeviceWork], phase: Phase, foreign: bool) -> OperatorRow:
    """The row of kernels that no dispatched operator launched, named after their wrapper, or by kernel name."""
    row = OperatorRow(UNATTRIBUTED if foreign else name, phase, args={"kernel": name} if foreign else {})
    _measure(row, list(kernels), 0, False)
    return row


def _below(node: CallNode, frame: CallContext) -> CallContext:
    if node.name.startswith("Optimizer."):
        return CallContext(Phase.OPTIMIZER, node)
    if node.engine:
        nested = frame.node is not None and not node.name.startswith(_ENGINE)
        return CallContext(Phase.BACKWARD, frame.node if nested else node)
    if frame.phase == Phase.BACKWARD and frame.node is not None and not frame.recomputes and _again(node):
        return CallContext(Phase.RECOMPUTE, node, recomputes=True)
    return frame


def _again(node: CallNode) -> bool:
    """Whether a call within a backward node is a forward call: autograd gave it a number of its own."""
    return node.sequence >= 0 and not node.forward_thread and not is_backward(node.name) and not node.annotation


def _row(node: CallNode, frame: CallContext) -> OperatorRow:
    kernels: list[DeviceWork] = []
    waits = 0
    inner: list[ObservedTensor] = []
    for call in node.walk():
        kernels += call.kernels
        waits += call.waits
        if call is not node:
            read = {a.tensor.storage for a in call.arguments}
            inner += [t for t in call.results if t.storage not in read]
    phase = frame.phase
    if phase == Phase.FORWARD and (node.name.startswith("aten::_fused_") or "_foreach_" in node.name):
        phase = Phase.OPTIMIZER if OperatorRow(node.name, phase).kind == "optimizer" else phase
    row = OperatorRow(
        node.name, phase, list(node.arguments), list(node.results), inner, dict(node.args), group=frame.node
    )
    _measure(row, kernels, max(node.end - node.start - waits, 0), waits > 0)
    return row


def _measure(row: OperatorRow, kernels: list[DeviceWork], host: int, sync: bool) -> None:
    row.kernels = [(k.name, k.duration * 1e-9, k.stream) for k in kernels]
    row.device_s = sum(k.duration for k in kernels if not k.copy) * 1e-9
    row.host_s = host * 1e-9
    row.sync = sync


def _before_the_optimizer(found: list[tuple[OperatorRow, CallNode]]) -> None:
    """What lies between the backward pass and the optimizer's step (unscaling, clipping) belongs to the latter."""
    since: int | None = None  # the first row after the last backward one
    for at, (row, call) in enumerate(found):
        if row.phase == Phase.BACKWARD:
            since = at + 1
        elif row.phase == Phase.OPTIMIZER and any(n.name.startswith("Optimizer.step") for n in _callers(call)):
            for between, _ in found[since if since is not None else at : at]:
                between.phase = Phase.OPTIMIZER
            since = None


def _unmarked_optimizer(found: list[tuple[OperatorRow, CallNode]]) -> None:
    if any(node.name.startswith("Optimizer.") for _, call in found for node in _callers(call)):
        return
    last = max((i for i, (row, _) in enumerate(found) if row.phase == Phase.BACKWARD), default=len(found))
    started = False
    for row, _ in found[last + 1 :]:
        started = started or row.kind == "optimizer" or in_place(row.name)
        if started and row.phase == Phase.FORWARD:
            row.phase = Phase.OPTIMIZER


def _callers(node: CallNode | None) -> Iterator[CallNode]:
    while node is not None:
        yield node
        node = node.parent


def link(roots: Sequence[CallNode], found: Sequence[tuple[OperatorRow, CallNode]]) -> int:
    """Tie backward rows to the forward rows they differentiate, by autograd's (thread, sequence number).

    Returns how many rows of numbered autograd nodes that used the device could not be tied.

    Several calls can carry one number - nested ones, and calls before it that made no autograd node; the one that made
    the node is the last that started.  Numbers restart on every thread, and backward nodes count threads in
    their own way: each of their thread numbers goes to the thread on which most of its numbers are found.
    """
    home: dict[int, OperatorRow] = {}
    for row, call in found:
        if not row.gradient:
            for node in call.walk():
                home[id(node)] = row
    for row, call in sorted(found, key=lambda pair: -pair[0].device_s):  # a custom function is its heaviest operator
        for node in _callers(call.parent):
            if not (row.gradient or node.engine or node.annotation):
                home.setdefault(id(node), row)
    forward: dict[Hashable, dict[int, list[CallNode]]] = {}
    backward: dict[int, set[int]] = {}
    for root in roots:
        for node in root.walk():
            sequence, thread = node.number
            if sequence >= 0 and node.engine:
                backward.setdefault(thread, set()).add(sequence)
            elif sequence >= 0 and id(node) in home:
                forward.setdefault(node.thread, {}).setdefault(sequence, []).append(node)
    threads = {number: _thread_of(numbers, forward) for number, numbers in backward.items()}
    missed = 0
    for row, call in found:
        if row.phase != Phase.BACKWARD or row.gradient:
            continue
        numbered = next((n for n in _callers(call) if n.engine and n.number[0] >= 0), None)
        if numbered is None:
            continue
        sequence, thread = numbered.number
        calls = forward.get(threads[thread], {}).get(sequence, [])
        best = _maker(numbered, [c for c in calls if home[id(c)].phase in (Phase.FORWARD, Phase.RECOMPUTE)])
        if best is not None and home[id(best)] is not row:
            row.forward = home[id(best)]
        else:
            missed += row.works
    return missed


def _thread_of(numbers: set[int], forward: dict[Hashable, dict[int, list[CallNode]]]) -> Hashable:
    return max(forward, key=lambda t: (len(numbers & forward[t].keys()), -len(forward[t])), default=None)


def _maker(node: CallNode, calls: list[CallNode]) -> CallNode | None:
    if not calls:
        return None
    wanted = canonical(node.name)[0]
    named = [c for c in calls if canonical(c.name)[0] == wanted]
    return max(named or calls, key=lambda c: c.start)
