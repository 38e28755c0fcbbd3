"""Every layer by column, with its output gathered at once (the ``tensor_parallel`` library's way).

The full output is gathered forward, the full input gradient all-reduced backward.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.partition.facts import Facts
from triosim.partition.rule import Placing, Rule


@registered
@dataclass(frozen=True)
class Gather(Rule):
    """Cuts every layer along its output."""

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Weights of all layers, and their rows as gathered."""
        weights, rows, refused = dict(placing.weights), set[int](), list[str]()
        for layer in facts.layers:
            why = "" if layer.weight in weights else placing.refusal(facts, layer, layer.out_dim)
            if why:
                refused.append(why)
            else:
                weights.setdefault(layer.weight, layer.out_dim)
                rows.add(layer.row)
        placing = replace(placing.sharding(weights), gathered=placing.gathered | rows)
        return placing.refusing(*refused)
