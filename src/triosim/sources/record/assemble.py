"""From what was noted while the step ran to a Trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from triosim.operators import canonical
from triosim.sources.record.categories import categorise, settle_phases
from triosim.sources.record.links import link
from triosim.sources.record.observer import RecordedOperator, StepTape
from triosim.trace.accumulation import one_micro_batch
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, Trace

NONE = -1

_COLLECTIVES = {
    "all_reduce": ("allreduce", "all_reduce"), "all_gather": ("allgather", "all_gather"),
    "reduce_scatter": ("reduce_scatter",), "broadcast": ("broadcast",), "all_to_all": ("alltoall", "all_to_all"),
    "scatter": ("scatter",), "gather": ("gather",), "reduce": ("reduce",), "send": ("send", "isend"),
    "receive": ("recv", "irecv"),
}  # fmt: skip


def assemble(
    tape: StepTape, meta: Meta, symbols: Mapping[int, Sequence[int]] | None = None, dropped: Collection[int] = ()
) -> Trace:
    """The trace of a recorded step; of one micro-batch, where it accumulates gradients.

    Args:
        tape: what was noted.
        meta: where it comes from; the batch size is filled in from the step where it is None.
        symbols: symbols of the values of the ledger, where they are known.
        dropped: rows to leave out; what they made counts as having been there before.
    """
    symbols = symbols or {}
    for place, maker in enumerate(tape.ledger.born):
        if maker in dropped:
            tape.ledger.born[place] = NONE
    settle_phases(tape)
    links = link(tape)
    category, of = categorise(tape)
    kept = [n for n, row in enumerate(tape.rows) if n not in dropped and row.collective is None]
    builder = TraceBuilder()
    modules = [builder.module(_path(tape, i), type(m).__name__) for i, m in enumerate(tape.modules)]
    value = _values(tape, kept, category, of, symbols, builder)
    new_row = {NONE: NONE}
    for number in kept:
        row = tape.rows[number]
        phase = row.phase
        module = links.module[number]
        new_row[number] = builder.operator(
            row.name, [value[v] for v in row.inputs], [value[v] for v in row.outputs], roles=row.roles, phase=phase,
            args=row.args, module=modules[module] if module != NONE and phase != Phase.OPTIMIZER else NONE,
            forward=new_row.get(links.forward[number], NONE), view=row.view,
            sync=row.sync and not _reads_host_scalar(row, category),
            device_s=0.0 if row.view and not math.isnan(row.seconds) else row.seconds,
            host_s=tape.host[number] if tape.host else math.nan,
        )  # fmt: skip
    for number, name, seconds, stream in tape.kernels:
        if number in new_row:
            builder.kernel(new_row[number], name, seconds, stream)
    _communications(tape, dropped, builder)
    if meta.batch_size is None:
        meta = replace(meta, batch_size=_batch_size(tape, category, dropped))
    if meta.sequence_length is None:
        meta = replace(meta, sequence_length=_sequence_length(tape, category, value))
    return one_micro_batch(builder.build(replace(meta, notes=(*meta.notes, *tape.notes))))


def _path(tape: StepTape, index: int) -> str:
    module = tape.modules[index]
    return tape.names.modules.get(id(module), type(module).__name__)


def _values(
    tape: StepTape, kept: list[int], category: list[Category], of: list[int], symbols: Mapping[int, Sequence[int]],
    builder: TraceBuilder,
) -> dict[int, int]:  # fmt: skip
    """Put the values that matter into the builder; ledger value -> value of the trace."""
    names = {v: name for (name, _), v in zip(tape.names.parameters, tape.parameters, strict=True)}
    names |= {v: name for (name, _), v in zip(tape.names.buffers, tape.buffers, strict=True)}
    wanted = {v for n in kept for v in (*tape.rows[n].inputs, *tape.rows[n].outputs)}
    wanted.update(names, tape.states)
    wanted.update(weight for weight in of if weight != NONE)
    new: dict[int, int] = {NONE: NONE}
    storages: dict[int, int] = {}
    for old in sorted(wanted):
        value = tape.ledger.values[old]
        if value.storage not in storages:
            storages[value.storage] = builder.storage()
        new[old] = builder.value(
            value.shape, str(value.dtype).removeprefix("torch."), category[old], storage=storages[value.storage],
            version=value.version, offset=value.offset, of=new.get(of[old], NONE), name=names.get(old, ""),
            symbols=symbols.get(old),
        )  # fmt: skip
    return new


def _reads_host_scalar(row: RecordedOperator, category: list[Category]) -> bool:
    """An optimizer that asks its step count for a number: it keeps that number on the host for the purpose."""
    return canonical(row.name)[0] == "_local_scalar_dense" and any(
        category[v] == Category.OPTIMIZER_STATE for v in row.inputs
    )


def _communications(tape: StepTape, dropped: Collection[int], builder: TraceBuilder) -> None:
    for number, row in enumerate(tape.rows):
        if row.collective is None or number in dropped:
            continue
        short = row.name.partition("::")[2].strip("_")
        kind = next((k for k, stems in _COLLECTIVES.items() if any(short.startswith(s) for s in stems)), None)
        if kind is not None:  # the rest only waits for one or wraps its result
            builder.communication(row.name, kind, float(_full_buffer(tape, row)), row.collective, row.seconds)


def _full_buffer(tape: StepTape, row: RecordedOperator) -> int:
    """Bytes of the largest of a communication's arguments and of its result: what is gathered, or not yet scattered."""
    size: dict[str, int] = defaultdict(int)
    for value, role in [*zip(row.inputs, row.roles, strict=True), *((v, "") for v in row.outputs)]:
        entry = tape.ledger.values[value]
        size[role] += math.prod(entry.shape) * entry.dtype.itemsize
    return max(size.values(), default=0)


def _batch_size(tape: StepTape, category: list[Category], dropped: Collection[int]) -> int | None:
    """Samples of the step: the first extent of what the model was given, once for every backward pass."""
    total, rounds = 0, set()
    starts = [start for start, _, _ in tape.calls] + [len(tape.rows)]
    for (start, backwards, shape), end in zip(tape.calls, starts[1:], strict=True):
        if backwards not in rounds:
            rounds.add(backwards)
            total += shape[0] if shape else _first_input(tape, category, range(start, end), dropped)
    return total or _first_input(tape, category, range(len(tape.rows)), dropped) or None


def _sequence_length(tape: StepTape, category: list[Category], kept: Collection[int]) -> int | None:
    """Second extent of the first input that holds token ids [batch, sequence], None if there are none."""
    for number, value in enumerate(tape.ledger.values):
        integers = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool)
        if category[number] == Category.INPUT and number in kept and integers and len(value.shape) == 2:
            return value.shape[1] if value.shape[1] > 1 else None
    return None


def _first_input(tape: StepTape, category: list[Category], rows: range, dropped: Collection[int]) -> int:
    for number in rows:
        if number in dropped:
            continue
        for value in tape.rows[number].inputs:
            shape = tape.ledger.values[value].shape
            if category[value] == Category.INPUT and shape:
                return shape[0]
    return 0
