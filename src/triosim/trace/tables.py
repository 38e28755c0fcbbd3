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

import math
from dataclasses import field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPES
from triosim.core.errors import InputError, printable, quoted
from triosim.core.guarded import check_values, parse_json

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

ITEM_BYTES: NDArray[np.float64] = np.array(list(DTYPE_BYTES.values()))

BATCH = 1
SEQUENCE = 2
VOCABULARY = 4
KEY_HEADS = 8
JOINED_HEADS = 16
UNDECIDED = 128
"""Bits of a dimension's symbol: proportional to the batch, to the sequence length, to the vocabulary, to the heads of
keys and values where those of queries are more, to heads of queries, keys and values in one (the last three known of
models by name), or not known."""

SYMBOLS = {"batch": BATCH, "sequence": SEQUENCE, "vocabulary": VOCABULARY}
"""Symbols by name."""

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
        symbols: one byte per dimension, bits :data:`BATCH`, :data:`SEQUENCE`, :data:`VOCABULARY`, :data:`UNDECIDED`;
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
        """Element count of each value; found once and kept, read-only."""
        return self._elements

    @cached_property
    def _elements(self) -> NDArray[np.int64]:
        found = self.shape.products()
        found.setflags(write=False)
        return found

    def bytes(self) -> NDArray[np.int64]:
        """Bytes of each value (of the view, not of its storage); found once and kept, read-only."""
        return self._bytes

    @cached_property
    def _bytes(self) -> NDArray[np.int64]:
        found = np.ceil(self.elements() * ITEM_BYTES[self.dtype]).astype(np.int64)
        found.setflags(write=False)
        return found

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


GUESSES = {
    "operators": "the first dimension of most convolutions, attentions and embeddings",
    "products": "the first dimension of most matrix products, which may hold more than the batch",
    "input": "the first dimension of the first input, which may be another one",
}
"""How the batch size of a source that does not state it was guessed."""


@dataclass(frozen=True)
class Meta:
    """Where a trace comes from and what it was taken on.

    Attributes:
        made_by: ``"triosim.record"``, ``"triosim.model"``, or the reader's name.
        workload: what it is a trace of, for people.
        device: the device's name, or None when the source names none.
        framework: ``"torch 2.13.0"``.
        batch_size: samples that go through the model at once, None where unknown: those of the step, or of one
            micro-batch where it accumulates gradients.
        micro_batches: how often the forward and backward passes run before the optimizer does; the tables show one.
        batch_guess: how the batch size was found where the source does not state it, a key of :data:`GUESSES`; ``""``
            where it does.
        sequence_length: tokens per sample, None for workloads without.
        float32_products: what matrix products of float32 are rounded to where a device multiplies it faster:
            ``"tfloat32"`` where TF32 was allowed for them, ``""`` where not.
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
    micro_batches: int = 1
    batch_guess: str = ""
    sequence_length: int | None = None
    float32_products: str = ""
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

    def __repr__(self) -> str:
        """One line; the tables would be hundreds of thousands of characters."""
        meta = self.meta
        words = [f"{len(self):,} operators"]
        words += [f"batch {meta.batch_size}"] if meta.batch_size is not None else []
        words += [f"{meta.sequence_length} tokens"] if meta.sequence_length else []
        words.append(f"times of {meta.device or 'an unnamed device'}" if meta.clock != "none" else "no times")
        return printable(f"Trace of {meta.workload or 'a workload'}: {', '.join(words)} ({meta.made_by})")

    def noted(self, *notes: str) -> Trace:
        """The same trace with more notes in its meta data."""
        return replace(self, meta=replace(self.meta, notes=(*self.meta.notes, *notes)))

    def device_time(self) -> float:
        """Sum of the measured operator times of a step in seconds (unmeasured operators count nothing)."""
        return float(np.nansum(self.operators.device_s * self.runs()))

    def runs(self) -> NDArray[np.int64]:
        """How often each operator runs in a step: once, or once for each micro-batch."""
        return np.where(self.operators.phase == Phase.OPTIMIZER, 1, self.meta.micro_batches)

    def select(self, rows: NDArray[np.int64]) -> Trace:
        """The trace with these operators only, in ascending order; values stay as they are.

        Communications that were launched before an operator which is left out are tied to none.
        """
        operators, n = self.operators, len(self)
        new_row = np.full(n + 1, NONE, np.int32)
        new_row[rows] = np.arange(len(rows))
        chosen = rows.tolist()
        forward = operators.forward[rows]
        kernel_row = new_row[self.kernels.operator]
        stay = kernel_row >= 0
        new_row[n] = len(rows)  # after all
        communications = replace(
            self.communications,
            operator=np.where(self.communications.operator >= 0, new_row[self.communications.operator], NONE),
            needed=np.where(self.communications.needed >= 0, new_row[self.communications.needed], NONE),
        )
        return replace(
            self,
            operators=replace(
                operators,
                name=tuple(operators.name[row] for row in chosen),
                phase=operators.phase[rows],
                module=operators.module[rows],
                inputs=operators.inputs.take(rows),
                roles=operators.roles.take(rows),
                outputs=operators.outputs.take(rows),
                args=tuple(operators.args[row] for row in chosen),
                forward=np.where(forward >= 0, new_row[forward], NONE).astype(np.int32),
                view=operators.view[rows],
                sync=operators.sync[rows],
                device_s=operators.device_s[rows],
                host_s=operators.host_s[rows],
                flop=operators.flop[rows],
                bytes=operators.bytes[rows],
            ),
            kernels=replace(
                self.kernels,
                operator=kernel_row[stay],
                name=tuple(name for name, kept in zip(self.kernels.name, stay.tolist(), strict=True) if kept),
                device_s=self.kernels.device_s[stay],
                stream=self.kernels.stream[stay],
            ),
            communications=communications,
        )

    def weights(self) -> NDArray[np.int64]:
        """Value ids of the parameters (first version each), in registration order."""
        values = self.values
        return np.flatnonzero((values.category == Category.WEIGHT) & (values.version == 0) & _first_of_storage(values))

    def state_bytes(self) -> int:
        """Bytes of the weights and of what the optimizer keeps, each allocation once; of a step that trains some of its
        weights those are left out that it does not (below adapters), which are where they were read from."""
        values = self.values
        kept = _first_of_storage(values) & np.isin(values.category, (Category.WEIGHT, Category.OPTIMIZER_STATE))
        gradients = values.of[(values.category == Category.GRADIENT) & (values.of >= 0)]
        if len(gradients):
            changed = np.zeros(int(values.storage.max()) + 1, bool)
            changed[values.storage[gradients]] = changed[values.storage[values.version > 0]] = True
            kept &= (values.category != Category.WEIGHT) | changed[values.storage]
        return int(values.storage_bytes()[values.storage[kept]].sum())

    def writers(self) -> list[list[int]]:
        """For each operator and each of its inputs, the operator that wrote what it reads, or -1.

        The writer is the last earlier operator that wrote to the input's storage; views write nothing.  Found once and
        kept, so not to be changed.
        """
        return self._writers

    @cached_property
    def writer(self) -> NDArray[np.int64]:
        """:meth:`writers` of all operators in one array, shape ``(inputs of all operators,)``."""
        operators, storage, count = self.operators, self.values.storage.astype(np.int64), len(self.operators)
        by = operators.outputs.rows()
        at = np.flatnonzero(~operators.view[by])
        wrote = np.sort(storage[operators.outputs.values[at]] * count + by[at])
        read = storage[operators.inputs.values] * count
        before = np.searchsorted(wrote, read + operators.inputs.rows()) - 1
        last = np.append(wrote, NONE)[before]  # where nothing was written before, that of the end
        return np.where((before >= 0) & (last >= read), last - read, NONE)

    @cached_property
    def _writers(self) -> list[list[int]]:
        return Ragged(self.writer, self.operators.inputs.offsets).lists()


def _first_of_storage(values: Values) -> NDArray[np.bool_]:
    first = np.zeros(len(values), bool)
    _, rows = np.unique(values.storage, return_index=True)
    first[rows] = True
    return first


# --- what a trace must be ---------------------------------------------------------------------------------------------

LONGEST_S = 1e9
"""Seconds beyond which a time in a trace is a slip (30 years)."""

LARGEST_BYTES = 2.0**62
"""Bytes beyond which a tensor is a slip: sizes are counted in 64 bits."""


def check(trace: Trace) -> None:
    """Check that the tables fit together and that every value makes sense.

    Raises:
        InputError: they do not; the message says which table and what is wrong.
    """
    operators, values = trace.operators, trace.values
    n, m = len(operators), len(values)
    for table, rows in (
        (operators, n), (values, m), (trace.modules, len(trace.modules)), (trace.kernels, len(trace.kernels)),
        (trace.communications, len(trace.communications)),
    ):  # fmt: skip
        for own in fields(table):
            if own.name != "role_names" and len(getattr(table, own.name)) != rows:
                raise InputError(f"column {own.name} is not as long as the others of its table")
    _refuse(not np.array_equal(operators.inputs.offsets, operators.roles.offsets), "roles do not match inputs")
    _refuse(not np.array_equal(values.shape.offsets, values.symbols.offsets), "symbols do not match shapes")
    codes: tuple[tuple[str, NDArray[Any], int, int | None], ...] = (
        ("input", operators.inputs.values, 0, m),
        ("output", operators.outputs.values, 0, m),
        ("module", operators.module, NONE, len(trace.modules)),
        ("phase", operators.phase, 0, len(Phase)),
        ("role", operators.roles.values, 0, len(operators.role_names)),
        ("forward operator", operators.forward, NONE, n),
        ("category", values.category, 0, len(Category)),
        ("element type", values.dtype, 0, len(DTYPES)),
        ("storage", values.storage, 0, 4 * m + 64),  # they are numbered, from 0 on
        ("version", values.version, 0, None),
        ("offset", values.offset, 0, None),
        ("dimension", values.shape.values, 0, None),
        ("weight of a gradient", values.of, NONE, m),
        ("operator of a kernel", trace.kernels.operator, 0, n),
        ("operator after a communication", trace.communications.operator, NONE, n + 1),
        ("operator that needs a communication", trace.communications.needed, NONE, n),
        ("group of a communication", trace.communications.group_size, 0, None),
    )
    for what, column, low, high in codes:
        _within(what, column, low, high)
    _refuse(bool(np.any(operators.forward >= np.arange(n))), "an operator differentiates a later one")
    _check_sizes(values)
    for what, amount, largest, missing in (
        ("device time of an operator", operators.device_s, LONGEST_S, True),
        ("host time of an operator", operators.host_s, LONGEST_S, True),
        ("FLOP", operators.flop, math.inf, True),
        ("bytes", operators.bytes, math.inf, True),
        ("time of a kernel", trace.kernels.device_s, LONGEST_S, False),
        ("time of a communication", trace.communications.device_s, LONGEST_S, False),
        ("host time of a communication", trace.communications.host_s, LONGEST_S, True),
        ("bytes of a communication", trace.communications.bytes, math.inf, True),
    ):
        _amounts(what, amount, largest, missing)
    for text in set(operators.args) - {"{}"}:
        arguments = parse_json(text, "arguments", lenient=True)  # a mask is filled with minus infinity
        _refuse(not isinstance(arguments, dict), f"arguments {quoted(text)} are no JSON object")
        check_values(arguments, "arguments", finite=None)
    _check_meta(trace.meta)


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise InputError(why)


def _within(what: str, column: NDArray[Any], low: int, high: int | None) -> None:
    outside = column[(column < low) if high is None else (column < low) | (column >= high)]
    _refuse(bool(outside.size), f"{what} {outside[0] if outside.size else ''} is out of range")


def _amounts(what: str, column: NDArray[np.float64], largest: float, missing: bool) -> None:
    wrong = ~((column >= 0) & (column <= largest) & np.isfinite(column) | (missing & np.isnan(column)))
    _refuse(bool(wrong.any()), f"{what} {column[wrong][0] if wrong.any() else ''} makes no sense")


def _check_sizes(values: Values) -> None:
    elements = np.ones(len(values))
    with np.errstate(over="ignore"):  # an infinite size is too large as well
        np.multiply.at(elements, values.shape.rows(), values.shape.values.astype(np.float64))
    reach = (elements + values.offset) * ITEM_BYTES[values.dtype]
    _refuse(not np.all(reach < LARGEST_BYTES), "a tensor has more bytes than 64 bits can count")


def _check_meta(meta: Meta) -> None:
    _refuse(meta.batch_guess not in ("", *GUESSES), f"batch_guess {quoted(meta.batch_guess)} is not known")
    for name in ("batch_size", "sequence_length", "micro_batches"):
        value = getattr(meta, name)
        _refuse(value is not None and not 1 <= value < 2**31, f"{name} {quoted(value)} is no count of at least 1")
    for name in ("step_time_s", "launch_delay_s", "kernel_gap_s"):
        value = getattr(meta, name)
        _refuse(value is not None and not 0 <= value <= LONGEST_S, f"{name} {quoted(value)} makes no sense")
