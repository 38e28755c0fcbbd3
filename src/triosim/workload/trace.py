"""The Trace: one training or inference step on one device, as tables of columns.

This is the first contract of the pipeline.  Whatever made the step known - our recorder, a foreign
file, a model's configuration - the rest of the program sees only this.

Identity is exact.  A *storage* is one allocation; an address that the allocator hands out again is a
new storage.  A *value* is what one tensor held at one moment: a view is another value on the same storage,
and writing in place makes a new value with the next version of the storage.  So "who wrote what this
operator reads" has one answer: the last operator before it that wrote to that storage
(:meth:`Trace.writers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged

SCHEMA = "triosim/trace/1"


class Phase(IntEnum):
    """Part of the step that an operator belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    RECOMPUTE = 3


class Category(IntEnum):
    """What a value is for."""

    WEIGHT = 0
    BUFFER = 1
    INPUT = 2
    LABEL = 3
    ACTIVATION = 4
    GRADIENT = 5
    OPTIMIZER_STATE = 6
    TEMPORARY = 7
    COMMUNICATION = 8
    """Buffers of collectives: in no trace, for they come with a plan."""


PERSISTENT = (Category.WEIGHT, Category.BUFFER, Category.OPTIMIZER_STATE)
"""Categories that stay in memory from one iteration to the next."""

DTYPE_BYTES: dict[str, float] = {
    "unknown": 4, "float64": 8, "float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float4_e2m1": 0.5, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "int4": 0.5, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Element types and their sizes in bytes; a value's ``dtype`` is an index into :data:`DTYPES`."""

DTYPES: tuple[str, ...] = tuple(DTYPE_BYTES)
DTYPE_CODE: dict[str, int] = {name: code for code, name in enumerate(DTYPES)}
ITEM_BYTES: NDArray[np.float64] = np.array(list(DTYPE_BYTES.values()))

BATCH = 1
SEQUENCE = 2
UNDECIDED = 128
"""Bits of a dimension's symbol: proportional to the batch, to the sequence length, or not known."""

NONE = -1


@dataclass(frozen=True)
class Operators:
    """One row per operator, in the order in which the device ran them.  ``n`` rows.

    Attributes:
        name: as the framework calls it, ``"aten::addmm"``.
        phase: :class:`Phase` codes, int8.
        module: row of the innermost module that called it, or -1.  Backward operators carry the
            module of the forward operator they differentiate.
        inputs: value ids read, in schema order, lists of tensors flattened, absent tensors left out.
        roles: for each input, its argument name as an index into ``role_names``; same row lengths.
        outputs: value ids written or returned.  An in-place operator returns the next version.
        args: the arguments that are not tensors, by schema name, as canonical JSON (``"{}"``).
        forward: for a backward operator the row of the forward operator it differentiates, else -1.
        view: the operator only makes another view (no kernel, no time).
        sync: the host waits for the device here (``.item()``).
        device_s: measured device time in seconds, NaN where not measured.
        host_s: measured host issue time in seconds, NaN where not measured: what the host did since it had issued the
            operator before, without the times in which it waited for the device.
        flop: floating-point operations, NaN for kinds that have no such count.
        bytes: bytes read and written, each tensor once.
    """

    name: tuple[str, ...]
    phase: NDArray[np.int8]
    module: NDArray[np.int32]
    inputs: Ragged
    roles: Ragged
    role_names: tuple[str, ...]
    outputs: Ragged
    args: tuple[str, ...]
    forward: NDArray[np.int32]
    view: NDArray[np.bool_]
    sync: NDArray[np.bool_]
    device_s: NDArray[np.float64]
    host_s: NDArray[np.float64]
    flop: NDArray[np.float64]
    bytes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Values:
    """One row per value: what one tensor held at one moment.

    Attributes:
        storage: allocation that holds it, int32.
        version: how often the storage had been written before, int32.
        offset: first element within the storage.
        shape: dimensions.
        dtype: index into :data:`DTYPES`, int8.
        category: :class:`Category` codes, int8.
        of: for a gradient or an optimizer state the weight's value id, else -1.
        name: parameter or buffer name, ``""`` for the rest.
        symbols: one byte per dimension, bits :data:`BATCH`, :data:`SEQUENCE`, :data:`UNDECIDED`;
            meaningful only when ``meta.symbols`` says how they were found.
    """

    storage: NDArray[np.int32]
    version: NDArray[np.int32]
    offset: NDArray[np.int64]
    shape: Ragged
    dtype: NDArray[np.int8]
    category: NDArray[np.int8]
    of: NDArray[np.int32]
    name: tuple[str, ...]
    symbols: Ragged

    def __len__(self) -> int:
        return len(self.storage)

    def elements(self) -> NDArray[np.int64]:
        """Element count of each value."""
        return self.shape.products()

    def bytes(self) -> NDArray[np.int64]:
        """Bytes of each value (of the view, not of its storage)."""
        return np.ceil(self.elements() * ITEM_BYTES[self.dtype]).astype(np.int64)

    def storage_bytes(self) -> NDArray[np.int64]:
        """Bytes of each storage: the furthest element that any of its values reaches."""
        reach = np.ceil((self.offset + self.elements()) * ITEM_BYTES[self.dtype]).astype(np.int64)
        out = np.zeros(int(self.storage.max(initial=-1)) + 1, np.int64)
        np.maximum.at(out, self.storage, reach)
        return out


@dataclass(frozen=True)
class Modules:
    """The modules of the model: qualified name and class, in order of first use."""

    path: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.path)


@dataclass(frozen=True)
class Kernels:
    """Device kernels behind the operators, where the source names them (may be empty); copies and memsets too.

    An operator's ``device_s`` is the sum of its kernels without the copies and memsets.

    Attributes:
        operator: row of the operator that launched it.
        name: kernel name.
        device_s: duration in seconds.
        stream: device stream.
    """

    operator: NDArray[np.int32]
    name: tuple[str, ...]
    device_s: NDArray[np.float64]
    stream: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Communications:
    """Communication kernels found in a foreign file; neither compute nor extrapolated.

    Attributes:
        name: kernel name.
        kind: ``"all_reduce"``, ``"send"``, ... or ``""`` where the file does not say.
        bytes: size of the full buffer, NaN where unknown.
        group_size: ranks taking part, 0 where unknown.
        device_s: duration in seconds (waiting for peers included).
        operator: row of the operator before which the host launched it (the number of rows if after all), -1 where
            unknown.
        needed: row of the first operator that was seen to wait for it, -1 for none.
        stream: device stream, -1 where unknown.
        host_s: what launching it cost the host in seconds, NaN where not measured.
    """

    name: tuple[str, ...]
    kind: tuple[str, ...]
    bytes: NDArray[np.float64]
    group_size: NDArray[np.int32]
    device_s: NDArray[np.float64]
    operator: NDArray[np.int32]
    needed: NDArray[np.int32]
    stream: NDArray[np.int32]
    host_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.name)

    def unplaced(self) -> Communications:
        """The same, no longer tied to rows of operators."""
        unknown = np.full(len(self), NONE, np.int32)
        return replace(self, operator=unknown, needed=unknown)

    @staticmethod
    def none() -> Communications:
        """No communication."""
        nothing, rows = np.zeros(0), np.zeros(0, np.int32)
        return Communications((), (), nothing, rows, nothing, rows, rows, rows, nothing)


@dataclass(frozen=True)
class Meta:
    """Where a trace comes from and what it was taken on.

    Attributes:
        made_by: ``"triosim.record"``, ``"triosim.model"``, or the reader's name.
        workload: what it is a trace of, for people.
        device: the device's name, or None when the source names none.
        framework: ``"torch 2.13.0"``.
        batch_size: samples in the step, None where unknown.
        sequence_length: tokens per sample, None for workloads without.
        clock: what ``device_s`` is: ``"cpu"`` (process time of one thread), ``"gpu"`` (kernel times), ``"none"``.
        step_time_s: measured time of an un-instrumented step, or None.
        launch_delay_s: from the return of the call that launches a kernel to its start on an idle stream, or None.
        kernel_gap_s: between a kernel and the next on its stream, which had been launched before, or None.
        symbols: how the dimensions that follow the batch were found: ``"traced twice"``, ``"model"``,
            ``"propagated"``, ``"two traces"`` or ``""`` (not yet).
        identity: ``"exact"``, or ``"inferred"`` where the source has no tensor identities.
        steps: steps found in the source file; ``step`` is the one taken (its label).
        notes: what a reader of the prediction should know about the source.
        schema: name and version of this layout.
    """

    made_by: str
    workload: str = ""
    device: str | None = None
    framework: str = ""
    batch_size: int | None = None
    sequence_length: int | None = None
    clock: str = "none"
    step_time_s: float | None = None
    launch_delay_s: float | None = None
    kernel_gap_s: float | None = None
    symbols: str = ""
    identity: str = "exact"
    steps: tuple[str, ...] = ()
    step: str = ""
    notes: tuple[str, ...] = ()
    schema: str = SCHEMA


@dataclass(frozen=True)
class Trace:
    """One step on one device.  See the module's docstring for what identity means."""

    meta: Meta
    operators: Operators
    values: Values
    modules: Modules
    kernels: Kernels
    communications: Communications = field(default_factory=Communications.none)

    def __len__(self) -> int:
        return len(self.operators)

    def noted(self, *notes: str) -> Trace:
        """The same trace with more notes in its meta data."""
        return replace(self, meta=replace(self.meta, notes=(*self.meta.notes, *notes)))

    def device_time(self) -> float:
        """Sum of the measured operator times in seconds (unmeasured operators count nothing)."""
        return float(np.nansum(self.operators.device_s))

    def weights(self) -> NDArray[np.int64]:
        """Value ids of the parameters (first version each), in registration order."""
        values = self.values
        return np.flatnonzero((values.category == Category.WEIGHT) & (values.version == 0) & _first_of_storage(values))

    def writers(self) -> list[list[int]]:
        """For each operator and each of its inputs, the operator that wrote what it reads, or -1.

        The writer is the last earlier operator that wrote to the input's storage; views write nothing.  Found once and
        kept, so not to be changed.
        """
        return self._writers

    @cached_property
    def _writers(self) -> list[list[int]]:
        operators, storage = self.operators, self.values.storage.tolist()
        inputs, outputs, views = operators.inputs.lists(), operators.outputs.lists(), operators.view.tolist()
        last: dict[int, int] = {}
        found = []
        for row, reads in enumerate(inputs):
            found.append([last.get(storage[value], NONE) for value in reads])
            if not views[row]:
                for value in outputs[row]:
                    last[storage[value]] = row
        return found


def _first_of_storage(values: Values) -> NDArray[np.bool_]:
    first = np.zeros(len(values), bool)
    _, rows = np.unique(values.storage, return_index=True)
    first[rows] = True
    return first


def check(trace: Trace) -> None:
    """Raise ``AssertionError`` if the tables contradict each other (used by tests and by the file reader)."""
    operators, values = trace.operators, trace.values
    n, m = len(operators), len(values)
    columns: Sequence[Sequence | NDArray | Ragged] = (
        operators.phase, operators.module, operators.inputs, operators.roles, operators.outputs, operators.args,
        operators.forward, operators.view, operators.sync, operators.device_s, operators.host_s, operators.flop,
        operators.bytes,
    )  # fmt: skip
    assert all(len(column) == n for column in columns), "operator columns differ in length"
    assert np.array_equal(operators.inputs.offsets, operators.roles.offsets), "roles do not match inputs"
    value_columns = (values.version, values.offset, values.shape, values.dtype, values.category, values.of, values.name)
    assert all(len(column) == m for column in value_columns), "value columns differ in length"
    assert np.array_equal(values.shape.offsets, values.symbols.offsets), "symbols do not match shapes"
    for ids in (operators.inputs.values, operators.outputs.values):
        assert ids.size == 0 or (ids.min() >= 0 and ids.max() < m), "value id out of range"
    assert np.all((operators.module >= NONE) & (operators.module < len(trace.modules))), "module out of range"
    assert np.all(operators.forward < np.arange(n)), "an operator differentiates a later one"
    assert not np.any(operators.device_s < 0), "negative time"
    assert np.all(values.shape.values >= 0), "negative dimension"
