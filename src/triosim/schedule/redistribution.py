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
from triosim.partition.copies import readers_of_copies
from triosim.partition.step import Step
from triosim.partition.transfers import BESIDE_WEIGHTS, REDUCE_SCATTER, Transfer, Transfers
from triosim.trace.tables import Phase

_ADDS = ("add", "sub", "clone", "copy", "to", "_to_copy", "detach", "alias", "contiguous")


@dataclass(frozen=True)
class Redistribution:
    """The transfers of a step that is cut.

    Attributes:
        transfers: those of the whole step, in the same order, and after them what parts exchange for themselves.
        returned: part and storage of what it received -> those of ``transfers`` that scatter its gradient there.
        readers: those of ``transfers`` that are gathered in pieces -> the operators of the same part that read them.
        summands: those that are made beside weight gradients -> the operators that make, or add, what is sent.
    """

    transfers: Transfers
    returned: dict[tuple[int, int], tuple[int, ...]]
    readers: dict[int, tuple[int, ...]]
    summands: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class SharedReaders:
    """Who reads what is gathered, and what has several summands.

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
    whole, pieces = int(of.max(initial=0)) <= 0, bool((sent.pieces != 1).any())
    if not len(sent) or (whole and not pieces):
        return Redistribution(sent, {}, {}, {})
    shared = shared_readers(step)
    again = _gathered_again(shared, sent.before, of)
    more = [_again(sent, number, -1, row) for (number, _), row in again]
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
    readers: dict[int, tuple[int, ...]] = {}
    in_pieces = np.flatnonzero(sent.pieces > 1).tolist() if pieces else []
    made = [(number, number, int(of[sent.before[number]])) for number in in_pieces if sent.before[number] < len(of)]
    made += [(len(sent) + at, number, part) for at, ((number, part), _) in enumerate(again) if number in in_pieces]
    for new, number, part in made:
        rows = shared.reader[shared.copy == number]
        readers[new] = tuple(rows[of[rows] == part].tolist())
    ours = {key: tuple(sorted(own)) for key, own in returned.items()}
    beside = np.flatnonzero(sent.pieces == BESIDE_WEIGHTS).tolist() if pieces else []
    summands = {number: tuple(shared.summand[shared.scatter == number].tolist()) for number in beside}
    return Redistribution(
        sent.followed_by(more), ours, readers, {number: rows for number, rows in summands.items() if rows}
    )


def _gathered_again(
    shared: SharedReaders, before: NDArray[np.int32], of: NDArray[np.int32]
) -> list[tuple[tuple[int, int], int]]:
    """Transfers and parts that read what is made in another part, with the first operator of each that does; ``before``
    is the operator for which the step makes it."""
    found: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(of[shared.reader] != of[before[shared.copy]]).tolist():
        found.setdefault((int(shared.copy[at]), int(of[shared.reader[at]])), int(shared.reader[at]))
    return sorted(found.items(), key=lambda item: item[::-1])


def _again(sent: Transfers, number: int, after: int, before: int) -> Transfer:
    """A transfer of the same, elsewhere."""
    what, axis, size, value = (int(column[number]) for column in (sent.what, sent.axis, sent.bytes, sent.value))
    pieces, copied = int(sent.pieces[number]), bool(sent.copied[number])
    return Transfer(after, before, what, axis, size, value, bool(sent.beside[number]), pieces, copied)


@kept(8)
def shared_readers(step: Step) -> SharedReaders:
    """The copies that several operators read, and the sums of several summands, of a step."""
    copies = dict.fromkeys((number, row) for number, row, _ in readers_of_copies(step))
    sums = _sums(step)
    return SharedReaders(
        np.array([number for number, _ in copies], np.int64), np.array([row for _, row in copies], np.int64),
        np.array([number for number, _, _ in sums], np.int64), np.array([row for _, row, _ in sums], np.int64),
        tuple(received for _, _, received in sums),
    )  # fmt: skip


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
