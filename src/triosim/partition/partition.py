"""Dividing a step: rules place values on an axis, propagation inserts the transfers, what is left whole is told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.core.errors import PlanError
from triosim.partition.facts import Facts
from triosim.partition.local_trace import cut
from triosim.partition.mesh import Mesh
from triosim.partition.propagate import propagate
from triosim.partition.rule import Placing, Rule
from triosim.partition.rule_checks import checked_placing
from triosim.partition.step import Step
from triosim.trace.repeated import ROOM, RepeatedTrace
from triosim.trace.tables import Trace

LEAST_SHARE = 0.02
"""What is left whole is told where it is at least this part of the parameters."""
MOST_NOTES = 4
"""Refusals that are told."""


def partition(trace: Trace, mesh: Mesh, rules: Sequence[Rule], of: RepeatedTrace | None = None) -> Step:
    """One rank's share of a step.

    Args:
        trace: the whole step.
        mesh: the ranks.
        rules: what places values on the axes, in order.
        of: where ``trace`` is short, how it repeats: what is told then counts all blocks.

    Raises:
        PlanError: nothing can be divided, or a rule cannot do what is asked.
        NotRepeating: what is told of the blocks does not repeat.
    """
    placing = [rule for rule in rules if rule.places]
    if not placing:
        return Step.whole(trace)
    step = _whole(trace)
    for name in dict.fromkeys(rule.axis for rule in sorted(placing, key=lambda rule: not rule.cuts_inputs)):
        own = [rule for rule in placing if rule.axis == name]
        step = along_axis(step, name, mesh.size(name), own, mesh.row(name) if name in mesh.names else -1, of)
    return step


@kept(64, room=ROOM, size=lambda step: len(step.trace))
def _whole(trace: Trace) -> Step:
    """The step that nothing divides yet: one for each trace, so that what is divided further is found again."""
    return Step.whole(trace)


@kept(64, room=ROOM, size=lambda step: len(step.trace))
def along_axis(step: Step, name: str, size: int, rules: Sequence[Rule], axis: int, of: RepeatedTrace | None) -> Step:
    """The share of a step, as other axes have divided it, on another axis.

    Args:
        step: as others have divided it.
        name, size, axis: of the axis, ``axis`` its row of the mesh.
        rules: what places values on it, in order.
        of: as of :func:`partition`.

    Raises:
        PlanError, NotRepeating: as of :func:`partition`.
    """
    trace = step.trace
    if size == 1:
        idle = [type(rule).__name__.lower() for rule in rules if rule.needs_ranks]
        notes = (f"{' and '.join(idle)}: {name} is 1, so there is nothing to divide",) if idle else ()
        return replace(step, notes=(*step.notes, *notes))
    facts = Facts(trace, step.origin)
    placing = Placing(name, size)
    for rule in rules:
        placing = checked_placing(rule, rule.place(facts, placing), facts)
    if not placing.weights and not placing.inputs:
        why = (
            f": {placing.refused[0]}"
            if placing.refused
            else ": no two layers follow each other without needing the whole between"
        )
        raise PlanError(f"{name} {size} cannot divide any layer of {trace.meta.workload or 'the trace'}{why}")
    share, weights, shards = propagate(facts, placing, axis, step.origin)
    length = trace.meta.sequence_length
    if length and any(rule.cuts_inputs for rule in rules):  # what divides the share further sees sequences of its own
        meta = replace(trace.meta, sequence_length=length // size)
        share = replace(share, trace=replace(share.trace, meta=meta), homes=replace(share.homes, meta=meta))
    told = [] if placing.inputs and not placing.weights else _notes(trace, placing, weights, of)
    if not len(step.transfers):
        return replace(share, notes=(*step.notes, *told))
    sent = step.transfers
    inputs = trace.operators.inputs
    read = inputs.values[np.minimum(inputs.offsets[sent.after], len(inputs.values) - 1)]
    value = np.where(sent.value >= 0, sent.value, read)  # sums within a loss are as many as it has rows
    parts = np.where(np.isin(value, list(shards)), size, 1)  # of what is Shard here too a part is sent there
    sent = replace(sent, bytes=-(-sent.bytes // parts))
    homes = cut(step.homes, {value: dim for value, dim in shards.items() if value < len(step.homes.values)}, size)
    return replace(share, transfers=sent.with_more(share.transfers), homes=homes, notes=(*step.notes, *told))


def _notes(trace: Trace, placing: Placing, weights: Mapping[int, int], of: RepeatedTrace | None) -> list[str]:
    """What is left whole on every rank, and why where that is known; not what the user leaves whole.

    Weights of one dimension (norms, biases) stay whole in every division and are not told.
    """
    about = f"{placing.axis} {placing.size}: "
    refused = of.sentences(placing.refused) if of else placing.refused
    found = [f"{about}left whole, because {why}" for why in dict.fromkeys(refused)][:MOST_NOTES]
    everything = trace.weights().tolist()
    elements = trace.values.elements() * (of.times(trace) if of else 1)
    rank = np.diff(trace.values.shape.offsets)
    whole = [w for w in everything if w not in weights and w not in placing.left and rank[w] > 1]
    share = elements[whole].sum() / max(int(elements[everything].sum()), 1)
    if share >= LEAST_SHARE and not placing.chosen:
        sizes: dict[str, int] = {}
        for weight in whole:
            label = re.sub(r"\.\d+(?=\.)", ".*", trace.values.name[weight].removesuffix(".weight")) or "unnamed"
            sizes[label] = sizes.get(label, 0) + int(elements[weight])
        names = sorted(sizes, key=lambda label: -sizes[label])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(
            f"{about}{100 * share:.0f} % of the parameters are left whole, on every rank, as no rule divides them: "
            f"{', '.join(names[:3])}{more}"
        )
    return found
