"""Layer by layer as the user says, in the words of torch's ``parallelize_module`` (``--tp-plan``)."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import field, replace

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.facts import Facts
from triosim.partition.rule import Placing, Rule


@registered
@dataclass(frozen=True)
class ByModule(Rule):
    """Cuts the layers that are named.

    Attributes:
        styles: module path pattern -> ``colwise``, ``rowwise``, ``gather`` (colwise with its output gathered),
            ``vocab`` (an embedding cut by rows of its table; an output layer cut by columns with the loss computed on
            the parts) or ``replicate``.
    """

    styles: Mapping[str, str] = field(default_factory=dict)

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """The named weights.

        Raises:
            PlanError: a pattern matches no layer, or a layer does not divide.
        """
        weights, rows, losses = dict(placing.weights), set[int](), placing.losses_divided
        unused = dict.fromkeys(self.styles)
        for layer in facts.layers:
            pattern = next((p for p in self.styles if fnmatch.fnmatchcase(layer.path, p)), None)
            if pattern is None:
                continue
            unused.pop(pattern, None)
            style = self.styles[pattern]
            if style == "replicate":
                continue
            by_rows = style == "rowwise" or (style == "vocab" and layer.embedding)
            dim = layer.in_dim if by_rows else layer.out_dim
            why = placing.refusal(facts, layer, dim)
            if why:
                raise PlanError(f"tp-plan: layer {layer.path!r} cannot be {style}: {why}")
            weights.setdefault(layer.weight, dim)
            if style == "gather":
                rows.add(layer.row)
            losses = losses or (style == "vocab" and not layer.embedding)
        if unused:
            known = ", ".join(dict.fromkeys(layer.path for layer in facts.layers))
            raise PlanError(f"tp-plan: no layer with a weight matches {next(iter(unused))!r}; layers are {known[:300]}")
        return replace(
            placing.sharding(weights), gathered=placing.gathered | rows, losses_divided=losses, at_boundaries=True,
            chosen=True,
        )  # fmt: skip
