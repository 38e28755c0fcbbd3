"""What a cut makes each part of a model exchange for itself.

A value crosses from part to part in its home placement, and so does its gradient on the way back.  What a step gathers
once for several readers (the input of gate and up, of queries, keys and values) is gathered by every part that has one
of them; what a step adds up before it is scattered (the gradients of that input) is scattered by every part that has a
summand, and the parts of the sum are added where the value came from.  So each part is what it would be if it were the
whole model: that is how a stage runs whose module redistributes its inputs, as PyTorch's ``PrepareModuleInput`` and
Megatron-LM's column-parallel layers do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.operators import canonical
from triosim.partition.step import Step
from triosim.partition.transfers import REDUCE_SCATTER, Transfer, Transfers
from triosim.trace.tables import Phase

_ADDS = ("add", "sub", "clone", "copy", "to", "_to_copy", "detach", "alias", "contiguous")


@dataclass(frozen=True)
class Redistribution:
    """The transfers of a step that is cut.

    Attributes:
        transfers: those of the whole step, in the same order, and after them what parts exchange for themselves.
        returned: part and storage of what it received -> those of ``transfers`` that scatter its gradient there.
    """

    transfers: Transfers
    returned: dict[tuple[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class _Shared:
    """What has several readers, or several summands.

    Attributes:
        copy: transfer, by the operators that read what it has made.
        reader: those operators, ascending for each transfer.
        scatter: transfer, by the operators of whose outputs it scatters the sum.
        summand: those operators.
        received: for each of them the storages that the operator reads which it differentiates, as it is made.
    """

    copy: NDArray[np.int64]
    reader: NDArray[np.int64]
    scatter: NDArray[np.int64]
    summand: NDArray[np.int64]
    received: tuple[tuple[int, ...], ...]


def redistribution(step: Step, of: NDArray[np.int32]) -> Redistribution:
    """What is exchanged within the parts of a step.

    Args:
        step: one rank's share of a micro-batch.
        of: part of each operator, -1 for those of the optimizer.
    """
    sent = step.transfers
    if not len(sent) or int(of.max(initial=0)) <= 0:
        return Redistribution(sent, {})
    shared = _shared(step)
    more = _gathered_again(sent, shared, of)
    numbers: dict[tuple[int, int], int] = {}  # transfer and part -> what scatters there
    apart = np.flatnonzero(of[shared.summand] != of[sent.after[shared.scatter]])
    ends: dict[tuple[int, int], int] = {}
    for at in apart.tolist():
        ends[int(shared.scatter[at]), int(of[shared.summand[at]])] = int(shared.summand[at])
    for (number, part), row in sorted(ends.items()):
        numbers[number, part] = len(sent) + len(more)
        more.append(_again(sent, number, row, len(of)))
    returned: dict[tuple[int, int], set[int]] = {}
    for at in np.flatnonzero(np.isin(shared.scatter, shared.scatter[apart])).tolist():
        number, part = int(shared.scatter[at]), int(of[shared.summand[at]])
        for storage in shared.received[at]:
            returned.setdefault((part, storage), set()).add(numbers.get((number, part), number))
    return Redistribution(sent.followed_by(more), {key: tuple(sorted(own)) for key, own in returned.items()})


def _gathered_again(sent: Transfers, shared: _Shared, of: NDArray[np.int32]) -> list[Transfer]:
    """What makes a copy in each part that reads it, but for the one in which the step makes it."""
    found: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(of[shared.reader] != of[sent.before[shared.copy]]).tolist():
        found.setdefault((int(shared.copy[at]), int(of[shared.reader[at]])), int(shared.reader[at]))
    return [_again(sent, number, -1, row) for (number, _), row in sorted(found.items(), key=lambda item: item[::-1])]


def _again(sent: Transfers, number: int, after: int, before: int) -> Transfer:
    """A transfer of the same, elsewhere."""
    what, axis, size, value = (int(column[number]) for column in (sent.what, sent.axis, sent.bytes, sent.value))
    return Transfer(after, before, what, axis, size, value, bool(sent.beside[number]))


@kept(8)
def _shared(step: Step) -> _Shared:
    """The copies that several operators read, and the sums of several summands, of a step."""
    copies = _copies(step)
    sums = _sums(step)
    return _Shared(
        np.array([number for number, _ in copies], np.int64), np.array([row for _, row in copies], np.int64),
        np.array([number for number, _, _ in sums], np.int64), np.array([row for _, row, _ in sums], np.int64),
        tuple(received for _, _, received in sums),
    )  # fmt: skip


def _copies(step: Step) -> list[tuple[int, int]]:
    """Transfers, and operators that read what each has made, in the order of the operators; those of one are left out.

    What a transfer has made is a value beside those of ``step.homes``, on a storage of its own that no operator writes,
    and a copy, or a copy of a copy, of what was sent.
    """
    operators, storage, sent = step.trace.operators, step.trace.values.storage, step.transfers
    own = len(step.homes.values)
    value, row = operators.inputs.values, operators.inputs.rows()
    extra = (value >= own) & (operators.phase[row] != Phase.OPTIMIZER)
    written = storage[operators.outputs.values]
    extra &= (storage[value] > step.homes.values.storage.max(initial=-1)) & ~np.isin(storage[value], written)
    readers: dict[int, list[int]] = {}
    read: dict[int, list[int]] = {}
    for at in np.flatnonzero(extra).tolist():
        readers.setdefault(int(storage[value[at]]), []).append(int(row[at]))
        read.setdefault(int(row[at]), []).append(int(value[at]))
    found: dict[tuple[int, int], None] = {}
    for number, (before, what) in enumerate(zip(sent.before.tolist(), sent.value.tolist(), strict=True)):
        for copy in read.get(before, ()):
            origin = copy
            while origin >= own and origin != what:
                origin = step.origin[origin - own]
            rows = readers[int(storage[copy])]
            if origin == what and rows[0] != rows[-1]:
                found.update(dict.fromkeys((number, reader) for reader in rows))
    return list(found)


def _sums(step: Step) -> list[tuple[int, int, tuple[int, ...]]]:
    """Transfers that scatter a sum in the backward, operators that make or add its summands, in their order, and the
    storages that those read which they differentiate."""
    homes, sent = step.homes, step.transfers
    operators, storage, elements = homes.operators, homes.values.storage, homes.values.elements()
    found: list[tuple[int, int, tuple[int, ...]]] = []
    scatters = (sent.what == REDUCE_SCATTER) & (sent.after >= 0)
    scatters[scatters] = operators.phase[sent.after[scatters]] == Phase.BACKWARD
    if not scatters.any():
        return found
    writers = homes.writers()
    for number in np.flatnonzero(scatters).tolist():
        whole = int(elements[sent.value[number]])
        waiting, tree = [int(sent.after[number])], dict[int, tuple[int, ...]]()
        while waiting:
            row = waiting.pop()
            if row in tree or operators.phase[row] != Phase.BACKWARD:
                continue
            adds = operators.view[row] or canonical(operators.name[row])[0] in _ADDS
            if adds:
                waiting += [writer for writer in writers[row] if writer >= 0]
            elif all(elements[value] <= whole for value in operators.outputs[row].tolist()):
                continue  # a part already, of which one rank has each
            of = int(operators.forward[row])
            tree[row] = tuple(dict.fromkeys(storage[operators.inputs[of]].tolist())) if of >= 0 and not adds else ()
        rows = sorted(row for row in tree if not operators.view[row])
        if len(rows) > 1:
            found += [(number, row, tree[row]) for row in rows]
    return found
