"""Modulation (adaLN): layers that make shifts, scales and gates of a sample, which are spread over all of its tokens.

What such a layer makes is needed whole, by norms that every rank computes, so that no layer by row can follow it.  Its
weights are many beside what it makes, one vector for each sample: it is cut by column, and the vectors are gathered.
So the plans of diffusion transformers have it that use PyTorch's tensor parallelism: ``norm1.linear`` is
``ColwiseParallel(output_layouts=Replicate())`` in those of cache-dit and ParaAttention.
"""

from __future__ import annotations

import math
from dataclasses import replace

from triosim.partition.facts import Facts, WeightUse
from triosim.partition.rule import Placing
from triosim.trace.tables import Phase


def modulation(facts: Facts, placing: Placing) -> Placing:
    """A placing with the modulating layers that are still whole cut by column and gathered."""
    found = [
        layer
        for layer in facts.layers
        if layer.weight not in placing.weights
        and not layer.embedding
        and not placing.refusal(facts, layer, layer.out_dim)
        and _is_spread(facts, layer)
    ]
    weights = {layer.weight: layer.out_dim for layer in found}
    return replace(placing.sharding(weights), gathered=placing.gathered | {layer.row for layer in found})


def _is_spread(facts: Facts, layer: WeightUse) -> bool:
    """Whether all that reads the layer's output repeats it: through views and operators on each element alone."""
    samples = facts.trace.meta.batch_size or 0
    made = facts.outputs[layer.row][0]
    if math.prod(facts.shapes[made]) > samples * facts.shapes[layer.weight][layer.out_dim]:
        return False  # something of every token
    storages, spread = {facts.storage[made]}, False
    for row in range(layer.row + 1, len(facts.inputs)):
        own = [v for v in facts.inputs[row] if facts.storage[v] in storages]
        if facts.phase[row] != Phase.FORWARD or not own:
            continue
        size = math.prod(facts.shapes[facts.outputs[row][0]])
        call = facts.calls[row]
        if call.kind not in ("view", "elementwise"):
            return False
        if call.kind == "elementwise" and size > max(math.prod(facts.shapes[v]) for v in own):
            spread = True
        else:
            storages.update(facts.storage[v] for v in facts.outputs[row])
    return spread
