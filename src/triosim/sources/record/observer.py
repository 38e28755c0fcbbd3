"""The front end of recording: every operator that PyTorch dispatches passes through one mode.

What is noted while the step runs is only what cannot be found out later: which value each tensor is, when the
operator ran and what autograd was doing.  :mod:`triosim.sources.record.assemble` makes the trace of it afterwards.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from triosim.core.dataclass import dataclass
from triosim.sources.record.ledger import Ledger, parts
from triosim.sources.record.modules import ModuleNames, ModuleWatch, name_everything
from triosim.sources.record.phases import PhaseWatch
from triosim.sources.record.signature import COLLECTIVES, SKIPPED, Arguments, Signature, arguments, signature
from triosim.trace.tables import Phase

NONE = -1
NAN = float("nan")
NOTEWORTHY_NS = 20_000
"""Time between two operators that is worth a look at what was freed in it; usual are 10 us."""

NO_SEQUENCE = 2**64 - 1
"""Sequence number of autograd nodes that differentiate nothing (the accumulation into a weight's gradient)."""


@dataclass
class RecordedOperator:
    """One operator as it ran.

    Attributes:
        name: ``"aten::addmm"``.
        phase: as far as it was known at the time.
        module: index into the watch's modules, or -1.
        inputs, roles, outputs, args: as in :class:`~triosim.trace.tables.Operators`, values of the ledger.
        written: the values among ``outputs`` that were left by writing in place.
        view: it made another view only.
        sync: the host waited for it.
        seconds: time it took, NaN where no clock runs.
        grad_mode: gradient mode was on.
        after_backward: a backward pass of this step had ended.
        thread: the thread that ran it.
        sequence: of a forward operator, the number of the last autograd node made when it ran (its own, if it has
            one); of a backward operator, the number of the node being run, -1 if none.
        node: name of the autograd node being run.
        task: number of the backward pass, -1 outside.
        gap: nanoseconds from its end to the start of the next one, without what the observer did in between.
        frees: a large storage was released in that time.
        collective: ranks that take part in a communication (0 if it does not say), None for operators.
    """

    name: str
    phase: Phase
    module: int
    inputs: list[int]
    roles: list[str]
    outputs: list[int]
    args: dict[str, Any]
    written: tuple[int, ...]
    view: bool
    sync: bool
    seconds: float
    grad_mode: bool
    after_backward: bool
    thread: int
    sequence: int
    node: str
    task: int
    gap: int = 0
    frees: bool = False
    collective: int | None = None


@dataclass
class StepTape:
    """What one recorded step left behind.

    Attributes:
        ledger: storages and values.
        rows: operators in the order of their start.
        names: names of modules and parameters.
        modules: the modules in order of first call, to which :attr:`RecordedOperator.module` points.
        parameters: value of each parameter in ``names.parameters``.
        buffers: value of each buffer in ``names.buffers``.
        states: value of each optimizer-state tensor -> value of its parameter, or -1.
        gradients: storage that ended in a parameter's ``.grad`` -> value of the parameter.
        inputs: storages of the tensors that were given to the step.
        constants: storages of tensors in plain attributes of modules.
        calls: for each call of a root with parameters the row at which it began, the backward passes that had ended
            before, and the shape of its first tensor.
        kernels: (row, kernel name, seconds, stream).
        host: host issue time of each row in seconds, empty where not measured.
        notes: for the reader of the trace.
    """

    ledger: Ledger
    names: ModuleNames
    modules: list[torch.nn.Module]
    rows: list[RecordedOperator] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    inputs: set[int] = field(default_factory=set)
    constants: set[int] = field(default_factory=set)
    calls: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    kernels: list[tuple[int, str, float, int]] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Observer(TorchDispatchMode):
    """Writes every operator of one step on a :class:`StepTape`.

    Args:
        modules, phases: the active watches.
        model: the model, where the user named it.
        clock: nanoseconds of device time (``time.thread_time_ns`` for the CPU), or None.
        marker: makes the context in which operator number ``n`` runs, for profilers to find it.
        inputs: tensors given to the step.
    """

    def __init__(
        self,
        modules: ModuleWatch,
        phases: PhaseWatch,
        *,
        model: torch.nn.Module | None = None,
        clock: Callable[[], int] | None = None,
        marker: Callable[[int], AbstractContextManager] | None = None,
        inputs: tuple[Tensor, ...] = (),
    ) -> None:
        super().__init__()
        self._watch = modules
        self._phases = phases
        self._clock = clock
        self._marker = marker
        self._backwards = phases.backwards
        self._inputs = inputs
        self._model = model
        self._left = 0
        self.tape = StepTape(Ledger(), ModuleNames(), modules.seen)

    # --- what is there before the step -------------------------------------------------------------------------------

    def start(self) -> None:
        """Enter what is there before the step, and begin to observe."""
        self._register()
        self.__enter__()

    def stop(self) -> StepTape:
        """End observing; the tape."""
        self.__exit__(None, None, None)
        self.look_at_gradients()
        tape = self.tape
        _charge_releases(tape)
        tape.constants = {s for t in tape.names.constants if (s := tape.ledger.known(t)) != NONE}
        tape.names.constants.clear()
        return tape

    def _register(self) -> None:
        tape, ledger = self.tape, self.tape.ledger
        tape.names = name_everything(self._model, self._watch, self._phases.optimizers)
        tape.parameters = [ledger.read(p) for _, p in tape.names.parameters]
        tape.buffers = [ledger.read(b) for _, b in tape.names.buffers]
        self._value_of = {id(p): v for (_, p), v in zip(tape.names.parameters, tape.parameters, strict=True)}
        for tensor in self._inputs:
            for part in parts(tensor):
                tape.inputs.add(ledger.storage(part))
        self.look_at_gradients()
        for optimizer in self._phases.optimizers:
            for parameter, state in optimizer.state.items():
                of = [self._value_of.get(id(part), NONE) for part in parts(parameter)] if _is(parameter) else [NONE]
                for tensor in state.values() if isinstance(state, dict) else ():
                    if _is(tensor):
                        for part in parts(tensor):
                            tape.states[ledger.read(part)] = of[0]

    def look_at_gradients(self) -> None:
        """Note which storages are the gradients of which parameters now."""
        tape = self.tape
        for owner, value in zip(tape.names.owners, tape.parameters, strict=True):
            gradient = owner.grad
            if gradient is not None:
                for part in parts(gradient):
                    tape.gradients[tape.ledger.values[tape.ledger.read(part)].storage] = value

    def root_called(self, module: torch.nn.Module, args: tuple) -> None:
        """Note that the model is called."""
        if next(module.parameters(), None) is not None:
            shape = next((tuple(a.shape) for a in args if _is(a) and a.dim()), ())
            self.tape.calls.append((len(self.tape.rows), self._phases.backwards, shape))

    # --- the step ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a distributed tensor: what it does to its parts comes back here
        known = signature(func)
        if known.space in SKIPPED:
            return func(*args, **kwargs)
        if known.composite:  # autograd would have taken it apart; in inference mode nobody has
            with self:
                return func.decompose(*args, **kwargs)
        number = len(self.tape.rows)
        clock = self._clock
        if clock is not None and number:
            self._note_gap(self.tape.rows[-1], clock() - self._left)
        given = arguments(known, args, kwargs)
        inputs = [self._read(t) for t in given.reads]
        row = self._row(known, inputs, given.roles, given.rest)
        self.tape.rows.append(row)
        with self._marker(number) if self._marker is not None else nullcontext():
            start = clock() if clock is not None else 0
            result = func(*args, **kwargs)
            if clock is not None:
                row.seconds = (clock() - start) * 1e-9
        self._finish(row, number, known, given, args, result)
        if clock is not None:
            self._left = clock()
        return result

    def _note_gap(self, row: RecordedOperator, gap: int) -> None:
        row.gap = gap
        row.frees = gap > NOTEWORTHY_NS and self.tape.ledger.released()

    def _read(self, tensor: Tensor) -> int:
        value = self.tape.ledger.read(tensor)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._value_of:
            self._meet_weight(tensor, value)
        return value

    def _meet_weight(self, tensor: Tensor, value: int) -> None:
        """A tensor with a gradient that is in no module and no optimizer, and none of the inputs, is a weight too."""
        tape, storage = self.tape, self.tape.ledger.values[value].storage
        if tape.ledger.born[storage] == NONE and storage not in tape.inputs:
            tape.names.parameters.append(("", tensor))
            tape.names.owners.append(tensor)
            tape.parameters.append(value)
            self._value_of[id(tensor)] = value

    def _row(self, known: Signature, inputs: list[int], roles: list[str], rest: dict[str, Any]) -> RecordedOperator:
        phase = self._phases.now()
        sequence, node_name, task = NONE, "", torch._C._current_graph_task_id()
        if phase == Phase.BACKWARD:
            node = torch._C._current_autograd_node()
            if node is not None:
                node_name, number = node.name(), node._sequence_nr()
                sequence = NONE if number >= NO_SEQUENCE else number
        elif phase != Phase.OPTIMIZER:
            sequence = torch._C._autograd._get_sequence_nr() - 1
        return RecordedOperator(
            name=known.name, phase=phase, module=self._watch.current(), inputs=inputs, roles=roles, outputs=[],
            args=rest, written=(), view=False, sync=known.syncs, seconds=NAN, grad_mode=torch.is_grad_enabled(),
            after_backward=self._phases.backwards > self._backwards, thread=threading.get_ident(), sequence=sequence,
            node=node_name, task=task,
        )  # fmt: skip

    def _finish(
        self, row: RecordedOperator, number: int, known: Signature, given: Arguments, args: tuple, result: Any
    ) -> None:
        ledger, reads, writes = self.tape.ledger, given.reads, given.writes
        returned = _returned(result, len(known.aliases))
        if known.metadata_only:
            row.outputs = [ledger.read(t, number) for t in writes]
            row.view = True
            return
        for place, tensor in returned:
            alias = known.aliases[place] if place < len(known.aliases) else NONE
            source = args[alias] if 0 <= alias < len(args) else None
            if isinstance(source, Tensor) and source is not tensor:
                ledger.alias(tensor, source)
        left = {id(t): ledger.wrote(t) for t in writes}
        storages = {ledger.values[v].storage for v in left.values()}
        outputs = []
        for _, tensor in returned:
            if ledger.storage(tensor, number) in storages:  # the written tensor itself, or its stand-in
                continue
            outputs.append(ledger.made(tensor, number))
        row.written = tuple(left.values())
        row.outputs = [*outputs, *row.written]
        if not left and outputs and known.space not in COLLECTIVES:
            sources = {ledger.values[v].storage for v in row.inputs}
            row.view = all(ledger.values[v].storage in sources for v in outputs)
        if known.space in COLLECTIVES:
            row.collective = _group_size(known, args)
        elif known.base in ("_to_copy", "copy_") and not row.sync:
            row.sync = _to_host(reads, [t for _, t in returned], row.args)
        elif row.sync and known.base == "_local_scalar_dense":
            row.sync = not self._on_host(reads)

    def _on_host(self, reads: list[Tensor]) -> bool:
        """Whether a number that is read lives on the host although the model lives on a device."""
        return any(t.device.type == "cpu" for t in reads) and any(
            p.device.type != "cpu" for _, p in self.tape.names.parameters[:1]
        )


def _charge_releases(tape: StepTape) -> None:
    """Count giving memory back as part of the operator that no longer needed it, in place.

    On the CPU it happens on the same thread, between one operator and the next, and costs with the size of what is
    freed.  What usually lies between two operators (Python, autograd) is not counted.
    """
    freeing = [row for row in tape.rows if row.frees]
    if freeing:
        usual = statistics.median(row.gap for row in tape.rows)
        for row in freeing:
            row.seconds += max(row.gap - usual, 0) * 1e-9


def _is(thing: Any) -> bool:
    return isinstance(thing, Tensor)


def _returned(result: Any, returns: int) -> list[tuple[int, Tensor]]:
    """The tensors of a result, each with the place of the return that it belongs to (a list is one return)."""
    items = result if returns > 1 else (result,)
    found: list[tuple[int, Tensor]] = []
    for place, item in enumerate(items):
        if isinstance(item, Tensor):
            found.append((place, item))
        elif isinstance(item, (tuple, list)):
            found.extend((place, part) for part in item if isinstance(part, Tensor))
    return found


def _to_host(reads: list[Tensor], returned: list[Tensor], args: dict[str, Any]) -> bool:
    """Whether a copy brings something from a device to the host and waits for it."""
    arrives = any(t.device.type == "cpu" for t in returned)
    return arrives and any(t.device.type != "cpu" for t in reads) and not args.get("non_blocking", False)


def _group_size(known: Signature, args: tuple) -> int:
    """Ranks that take part in a communication, 0 where it does not say."""
    from torch.distributed import distributed_c10d

    for argument, given in zip(known.positional, args, strict=False):
        if argument.name == "group_size":
            return int(given)
        if argument.name == "group_name":
            return int(distributed_c10d._resolve_process_group(given).size())
        if argument.name == "process_group":
            return int(distributed_c10d.ProcessGroup.unbox(given).size())
    return 0


def thread_clock() -> int:
    """Processor time of this thread in nanoseconds: the clock that other programs on the machine do not disturb."""
    return time.thread_time_ns()
