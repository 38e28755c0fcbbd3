"""Operators of a network that a runtime runs as one, and what each then takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.kernels.estimate import Estimates
from triosim.sources.runtimes.rules import Fusion, RuntimeRules
from triosim.trace.tables import Trace


def run_by(rules: RuntimeRules, trace: Trace, alone: Estimates) -> Estimates:
    """Times of a network's operators as a runtime runs them.

    Args:
        rules: of the runtime.
        trace: of the network, forward only.
        alone: times of the operators by themselves.

    Returns:
        The times: chains that run as one take what their main operator takes and a share of the others' time, which
        stays with the others.  The first operator that takes time also has what a call takes.
    """
    seconds = alone.seconds * shares(rules.fusions, trace)
    runs = np.flatnonzero(seconds > 0)
    if runs.size:
        seconds[runs[0]] += rules.call_s
    fused = int((shares(rules.fusions, trace) != 1).sum())
    threads = f"{rules.threads} thread{'s' if rules.threads != 1 else ''}"
    words = f"as {rules.name} {rules.version} runs it with {threads}".replace("  ", " ")
    words += f": {fused} of {len(trace)} operators run as one with another" if fused else ": each operator by itself"
    return replace(alone, seconds=seconds, notes=(*alone.notes, words))


def shares(fusions: Sequence[Fusion], trace: Trace) -> NDArray[np.float64]:
    """Part of each operator's time that remains, shape ``(operators,)``: 1 for those that run by themselves.

    Chains are taken in the order of the network, at each operator the longest that fits.
    """
    operators, views = trace.operators, trace.operators.view.tolist()
    storage = trace.values.storage.tolist()
    reads, writes = operators.inputs.lists(), operators.outputs.lists()
    readers: dict[int, list[int]] = {}  # of a storage; whoever only looks at it does not read it
    for row, given in enumerate(reads):
        if not views[row]:
            for value in dict.fromkeys(storage[value] for value in given):
                readers.setdefault(value, []).append(row)
    order = sorted(fusions, key=lambda one: -len(one.operators))
    found = np.ones(len(trace))
    taken = np.zeros(len(trace), bool)
    for row in range(len(trace)):
        if views[row] or taken[row]:
            continue
        for one in order:
            chain = _chain(one.operators, row, operators.name, writes, storage, readers)
            if chain and not taken[chain].any():
                taken[chain] = True
                found[[at for place, at in enumerate(chain) if place != one.main]] = one.share
                break
    return found


def _chain(
    names: Sequence[str], first: int, name: Sequence[str], writes: Sequence[Sequence[int]], storage: Sequence[int],
    readers: dict[int, list[int]],
) -> list[int]:  # fmt: skip
    """Rows of the operators of these names, from ``first``; none where they do not follow one another, or where what is
    between is read by others too."""
    if name[first] != names[0]:
        return []
    rows = [first]
    for wanted in names[1:]:
        following = readers.get(storage[writes[rows[-1]][0]], [])
        after = [row for row in following if row not in rows and name[row] == wanted]
        if not after:
            return []
        rows.append(after[0])
    between = {row for at in rows[:-1] for value in writes[at] for row in readers.get(storage[value], [])}
    return rows if between <= set(rows) else []
