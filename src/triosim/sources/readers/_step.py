"""One step as a foreign source shows it, and how it becomes a Trace.

A source shows *tensors*: shapes with an id, and the id of the storage behind them, both of which profilers hand
out again once the memory has been freed.  :func:`resolve` walks the operators in order and works out *values* with
exact identity; :func:`build` decides what each storage is for and writes the Trace.  What a reader has to do is to
fill :class:`OperatorRow` objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.operators import canonical, kind
from triosim.trace.accumulation import TELLING
from triosim.trace.builder import NAN, TraceBuilder
from triosim.trace.tables import NONE, Category, Meta, Phase, Trace

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ObservedTensor:
    """One tensor as one operator saw it.

    Attributes:
        shape: dimensions.
        dtype: element type, a key of :data:`~triosim.trace.tables.DTYPE_BYTES`.
        id: the source's id of the tensor, -1 for none.
        storage: the source's id of the memory behind it, -1 for none (such a tensor is on its own).
        offset: first element within the storage.
    """

    shape: Shape
    dtype: str
    id: int = NONE
    storage: int = NONE
    offset: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def reach(self) -> float:
        """Bytes from the start of the storage to the end of the tensor."""
        return (self.offset + self.elements) * DTYPE_BYTES[self.dtype]


@dataclass
class Argument:
    """A tensor argument of an operator: its name in the operator's schema, and whether the operator writes to it."""

    role: str
    tensor: ObservedTensor
    written: bool = False


@dataclass(eq=False)
class Storage:
    """One allocation, and what is found out about it on the way.

    Attributes:
        creator: the operator that allocated it, None for what was there before or came from elsewhere.
        writer: the operator that wrote to it last.
        inside: the operator that allocated it without returning it; None once something else reads it.
        reach: bytes known to belong to it; ``extents`` are offset, elements and type of the tensors known to.
        version: how often it has been written since it was created.
        parameter: known to be a parameter by other evidence than its use.
        category, of, name: as in :class:`~triosim.trace.tables.Values`.
        read_in, written_in: phases of the operators that read it or wrote to it in place.
        first_read: the first operator that read it, and as which argument.
        values: what it has held.
    """

    creator: OperatorRow | None = None
    writer: OperatorRow | None = None
    inside: OperatorRow | None = None
    reach: float = 0.0
    extents: set[tuple[int, int, str]] = field(default_factory=set)
    version: int = 0
    parameter: bool = False
    category: Category | None = None
    of: Storage | None = None
    name: str = ""
    read_in: set[Phase] = field(default_factory=set)
    written_in: set[Phase] = field(default_factory=set)
    first_read: tuple[OperatorRow, str] | None = None
    values: dict[tuple, ObservedValue] = field(default_factory=dict)

    def value(self, tensor: ObservedTensor, version: int | None = None) -> ObservedValue:
        """The value that ``tensor`` shows, now or at an earlier version."""
        at = self.version if version is None else version
        key = (at, tensor.offset, tensor.shape, tensor.dtype)
        if key not in self.values:
            self.values[key] = ObservedValue(self, at, tensor.offset, tensor.shape, tensor.dtype)
        return self.values[key]

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        names = ("float", "bfloat", "tfloat", "unknown", "complex")
        return any(value.dtype.startswith(names) for value in self.values.values())


@dataclass(eq=False)
class ObservedValue:
    """What one tensor held at one moment."""

    storage: Storage
    version: int
    offset: int
    shape: Shape
    dtype: str


@dataclass(eq=False)
class OperatorRow:
    """One operator of the step.

    Attributes:
        name, phase, args, view, sync, device_s, host_s: as in :class:`~triosim.trace.tables.Operators`.
        arguments, results: tensors read and returned, as the source shows them.
        inner: tensors that were allocated inside the operator, for what is saved for the backward pass.
        module: path of the innermost module, ``""`` for none; ``module_kind`` is its class.
        forward: for a backward operator the operator that it differentiates.
        kernels: name, seconds and stream of each kernel that it launched.
        group: the autograd node (or other wrapper) that it ran in; rows of one node share it.
        gradient: not an operator but the news that its one argument becomes a parameter's gradient; ``maker`` is
            then the operator that had written it last.
        inputs, outputs: values, filled by :func:`resolve` (or by the reader itself).
    """

    name: str
    phase: Phase
    arguments: list[Argument] = field(default_factory=list)
    results: list[ObservedTensor] = field(default_factory=list)
    inner: list[ObservedTensor] = field(default_factory=list)
    args: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    module_kind: str = ""
    forward: OperatorRow | None = None
    view: bool = False
    sync: bool = False
    device_s: float = NAN
    host_s: float = NAN
    kernels: list[tuple[str, float, int]] = field(default_factory=list)
    group: object = None
    gradient: bool = False
    maker: OperatorRow | None = None
    inputs: list[ObservedValue] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    outputs: list[ObservedValue] = field(default_factory=list)
    index: int = NONE

    @property
    def kind(self) -> str:
        """Class of the operator."""
        return kind(self.name)

    @property
    def works(self) -> bool:
        """Whether it is known to have used the device."""
        return bool(self.kernels) or self.device_s > 0


def resolve(rows: Sequence[OperatorRow], same: Callable[[OperatorRow, Argument, Storage], bool] | None = None) -> None:
    """Fill ``inputs``, ``roles`` and ``outputs`` of all rows with values of exact identity.

    A result whose storage is that of an argument is a view of it, or its next version where the operator writes;
    any other result starts a new storage, whatever its id was used for before.  What is read without having been
    made by a row is a storage of its own, unless it is an unrecorded view of a living one.

    Args:
        rows: the operators in order.
        same: decides whether an argument that no row made, with the storage id of a living storage, is a view of
            that storage (default: when it shows as many elements from the same place as one that is known, as
            tensors do that autograd saved and unpacked).
    """
    storages = _LivingStorages(same or _looks_alike)
    for row in rows:
        row.inputs, row.roles, row.outputs = [], [], []
        own = storages.read(row)
        written = {id(s): s for s in _written(row, own)}
        for storage in written.values():
            storage.version += 1
            storage.written_in.add(row.phase)
        storages.make(row, own)
        for storage in written.values():
            storage.writer = row
        aliases = bool(row.outputs) and not written and all(id(v.storage) in map(id, own.values()) for v in row.outputs)
        row.view = row.view or (aliases and not row.works)


class _LivingStorages:
    """Which storage a tensor of the source is in, while the rows go by.

    Attributes:
        living: id of a storage in the source -> the storage that has it now; ids are used again.
        known: ids of a tensor and of its storage -> the storage in which it was seen.
        alone: id of a tensor without a storage -> one of its own.
    """

    def __init__(self, same: Callable[[OperatorRow, Argument, Storage], bool]) -> None:
        self.same = same
        self.living: dict[int, Storage] = {}
        self.known: dict[tuple[int, int], Storage] = {}
        self.alone: dict[int, Storage] = {}

    def read(self, row: OperatorRow) -> dict[int, Storage]:
        """Fill the inputs of a row; returns the storages of its arguments by their ids."""
        own: dict[int, Storage] = {}
        for argument in row.arguments:
            storage = self._source(row, argument)
            row.inputs.append(storage.value(argument.tensor))
            row.roles.append(argument.role)
            if argument.tensor.storage != NONE and argument.tensor.elements:
                own[argument.tensor.storage] = storage
            if row.gradient:
                row.maker = storage.writer
            else:
                _read(row, argument.role, storage)
        return own

    def make(self, row: OperatorRow, own: Mapping[int, Storage]) -> None:
        """Fill the outputs of a row, of which ``own`` are the storages of the arguments."""
        returned = {t.storage for t in row.results}
        for tensor in row.inner:
            if tensor.storage not in own and tensor.storage not in returned and tensor.elements:
                self._register(tensor, Storage(creator=row, writer=row, inside=row))
        shown: set[int] = set()
        fresh: dict[int, Storage] = {}
        for tensor in row.results:
            known_storage = own.get(tensor.storage) or fresh.get(tensor.storage)
            storage = known_storage or Storage(creator=row, writer=row)
            if known_storage is None and tensor.storage != NONE and tensor.elements:
                fresh[tensor.storage] = storage
            if tensor.storage != NONE and tensor.elements:
                self._register(tensor, storage)
            elif tensor.id != NONE:
                self.alone[tensor.id] = storage
            value = storage.value(tensor)
            if value not in row.outputs:
                row.outputs.append(value)
            shown.add(id(storage))
        for argument, value in zip(row.arguments, list(row.inputs), strict=True):
            if argument.written and id(value.storage) not in shown:
                row.outputs.append(value.storage.value(argument.tensor))

    def _source(self, row: OperatorRow, argument: Argument) -> Storage:
        """The storage that an argument is read from."""
        tensor = argument.tensor
        if tensor.storage == NONE or not tensor.elements:
            return self.alone.setdefault(tensor.id, Storage()) if tensor.id != NONE else Storage()
        storage = self.living.get(tensor.storage)
        if storage is not None and self.known.get((tensor.id, tensor.storage)) is not storage:
            storage = storage if self.same(row, argument, storage) else None
        if storage is None:
            storage = Storage()
        self._register(tensor, storage)
        if storage.inside is not None:
            storage.inside.outputs.append(storage.value(tensor))
            storage.inside = None
        return storage

    def _register(self, tensor: ObservedTensor, storage: Storage) -> None:
        storage.reach = max(storage.reach, tensor.reach)
        storage.extents.add((tensor.offset, tensor.elements, tensor.dtype))
        self.living[tensor.storage] = storage
        self.known[tensor.id, tensor.storage] = storage


def _looks_alike(row: OperatorRow, argument: Argument, storage: Storage) -> bool:
    tensor = argument.tensor
    return (tensor.offset, tensor.elements, tensor.dtype) in storage.extents


def _written(row: OperatorRow, own: dict[int, Storage]) -> Iterable[Storage]:
    for argument in row.arguments:
        if argument.written and argument.tensor.storage in own:
            yield own[argument.tensor.storage]


def _read(row: OperatorRow, role: str, storage: Storage) -> None:
    storage.read_in.add(row.phase)
    if storage.first_read is None:
        storage.first_read = (row, role)


def build(
    rows: Sequence[OperatorRow], meta: Meta, weights: Sequence[Storage], finish: Callable[[TraceBuilder], None]
) -> Trace:
    """The Trace of resolved rows, with the parameters' values first in the order of ``weights``.

    Args:
        rows: operators in order, their storages' categories decided.
        meta: the trace's meta data.
        weights: storages of the parameters in registration order.
        finish: adds to the builder what the rows do not hold (communication kernels).
    """
    rows = [row for row in rows if not row.gradient]
    builder = TraceBuilder()
    numbers: dict[int, int] = {}
    ids: dict[int, int] = {}

    def emit(value: ObservedValue) -> int:
        if id(value) in ids:
            return ids[id(value)]
        storage = value.storage
        if id(storage) not in numbers:
            numbers[id(storage)] = builder.storage()
        of = NONE
        if storage.of is not None:
            of = ids.get(id(first[id(storage.of)]), NONE)
        ids[id(value)] = builder.value(
            value.shape, value.dtype, storage.category if storage.category is not None else Category.TEMPORARY,
            storage=numbers[id(storage)], version=value.version, offset=value.offset, of=of, name=storage.name,
        )  # fmt: skip
        return ids[id(value)]

    first = {id(storage): whole_value(storage) for storage in weights}
    for storage in weights:
        emit(first[id(storage)])
    for index, row in enumerate(rows):
        row.index = index
    for row in rows:
        operator = builder.operator(
            row.name,
            [emit(v) for v in row.inputs],
            [emit(v) for v in row.outputs],
            roles=row.roles,
            phase=row.phase,
            args=row.args,
            module=builder.module(row.module, row.module_kind) if row.module else NONE,
            forward=row.forward.index if row.forward is not None and row.forward.index < row.index else NONE,
            view=row.view,
            sync=row.sync,
            device_s=row.device_s,
            host_s=row.host_s,
        )
        for name, seconds, stream in row.kernels:
            builder.kernel(operator, name, seconds, stream)
    finish(builder)
    return builder.build(meta)


def pass_key(row: OperatorRow) -> tuple | None:
    """What is the same in every pass of a step that accumulates gradients; None for operators that may differ."""
    if row.phase != Phase.FORWARD or row.kind not in TELLING:
        return None
    weights = tuple(a.tensor.shape for a in row.arguments if a.role in ("weight", "bias", "mat2"))
    return canonical(row.name)[0], weights


def whole_value(storage: Storage) -> ObservedValue:
    """The value that shows most of a storage before anything wrote to it (the parameter itself, not a part of it)."""
    unwritten = [v for v in storage.values.values() if v.version == 0]
    return max(unwritten, key=lambda v: math.prod(v.shape) - v.offset)
