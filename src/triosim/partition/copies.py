"""Who reads what a transfer has made."""

from __future__ import annotations

import numpy as np

from triosim.core.caching import kept
from triosim.partition.step import Step
from triosim.trace.tables import Phase


@kept(8)
def readers_of_copies(step: Step) -> tuple[tuple[int, int, int], ...]:
    """Transfers, operators that read what each has made, views among them, and the copy that they read, in order.

    What a transfer has made is a value beside those of ``step.homes``, on a storage of its own that no operator writes,
    and a copy, or a copy of a copy, of what was sent.
    """
    operators, storage, sent = step.trace.operators, step.trace.values.storage, step.transfers
    own = len(step.homes.values)
    value, row = operators.inputs.values, operators.inputs.rows()
    extra = (value >= own) & (operators.phase[row] != Phase.OPTIMIZER)
    written = storage[operators.outputs.values]
    extra &= (storage[value] > step.homes.values.storage.max(initial=-1)) & ~np.isin(storage[value], written)
    readers: dict[int, list[tuple[int, int]]] = {}
    read: dict[int, list[int]] = {}
    for at in np.flatnonzero(extra).tolist():
        readers.setdefault(int(storage[value[at]]), []).append((int(row[at]), int(value[at])))
        read.setdefault(int(row[at]), []).append(int(value[at]))
    found: dict[tuple[int, int, int], None] = {}
    for number, (before, what) in enumerate(zip(sent.before.tolist(), sent.value.tolist(), strict=True)):
        for copy in read.get(before, ()):
            origin = copy
            while origin >= own and origin != what:
                origin = step.origin[origin - own]
            if origin == what:
                found.update(dict.fromkeys((number, *reader) for reader in readers[int(storage[copy])]))
    return tuple(found)
