"""Where the tokens of a step are that reads no sequences: patches of latents, tokens of an image and of its prompt.

The tokens that attention relates to each other are the positions of its queries.  A dimension of what the step is given
whose parts come to lie there, outermost, is an axis of tokens: rows of latents before a patch embedding, tokens of a
packed image, those of a prompt that an image and itself attend to, and the tables of their places.  What only keys
follow (a prompt in cross-attention) is not one: every rank has all of it.

Source: Fang et al., "xDiT" (arXiv:2411.01738), section 4.1.1: sequences of images and of prompts that are in one
attention with them are both divided; ``diffusers``' ``ContextParallelConfig`` divides the same inputs of FLUX.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from triosim.operators import NO_LABEL
from triosim.partition.attention_share import QUERIES
from triosim.partition.facts import Facts
from triosim.partition.placements import Shard
from triosim.trace.symbols import Segment, propagate_symbol
from triosim.trace.tables import Category, Phase


def tokens_of(facts: Facts) -> dict[int, Shard]:
    """The axis of tokens in each value that the step is given; labels follow what they are compared with.

    Args:
        facts: of a step.

    Returns:
        Empty where no attention is one operator, or where nothing that is given comes to lie in its queries.
    """
    rows = forward_attentions(facts)
    if not rows:
        return {}
    seeds = dict[int, Shard]()
    for value, category in enumerate(facts.category):
        for dim, extent in enumerate(facts.shapes[value]) if category == Category.INPUT else ():
            seed = Shard.whole(dim, extent)
            found = follow_tokens(facts, {value: seed}, rows[0], facts.inputs[rows[0]])
            if extent > 1 and value not in seeds and query_parts(facts, rows[0], found):
                seeds[value] = seed
    return {**seeds, **_labels(facts, seeds)} if seeds else {}


def follow_tokens(
    facts: Facts, seeds: dict[int, Shard], until: int | None = None, asked: Sequence[int] | None = None
) -> list[tuple[Segment, ...]]:
    """Where the tokens are in each value: every stream of them is divided alike, and so is what they are joined to.

    Nothing is taken for tokens because of its extent, which the batch may have too.

    Args:
        facts: of a step.
        seeds: axes of tokens.
        until: operators to follow them through, None for all.
        asked: values of which it is wanted, None for all.
    """
    return propagate_symbol(facts.trace, seeds, 0, until, True, asked).segments


def forward_attentions(facts: Facts) -> list[int]:
    """Rows of the forward that are attentions in one operator."""
    return [
        row for row, phase in enumerate(facts.phase) if phase == Phase.FORWARD and facts.calls[row].kind == "attention"
    ]


def common_parts(facts: Facts, seeds: Mapping[int, Shard], found: Sequence[Sequence[Shard]]) -> int:
    """The most parts into which all tokens can be cut alike: what it is a multiple of divides them too.

    Args:
        facts: of a step.
        seeds: axes of tokens in what it is given.
        found: of each value, where the tokens are.

    Returns:
        0 where an attention keeps no tokens apart, or there is none.
    """
    parts = [query_parts(facts, row, found) for row in forward_attentions(facts)] if seeds else []
    return math.gcd(*parts, *(seed.size for seed in seeds.values())) if parts and all(parts) else 0


def query_parts(facts: Facts, row: int, found: Sequence[Sequence[Shard]]) -> int:
    """Into how many parts an attention's queries can be cut along their tokens, 0 where they follow none.

    Args:
        facts: of a step.
        row: an attention.
        found: of each value, where the tokens are.
    """
    dims = facts.dims(row)
    label = dims.label(QUERIES)
    for value, labels in zip(facts.inputs[row], dims.inputs, strict=True):
        for shard in found[value] if label != NO_LABEL and label in labels else ():
            if labels[shard.dim] == label and shard.outer == 1:
                return shard.size
    return 0


def _labels(facts: Facts, seeds: dict[int, Shard]) -> dict[int, Shard]:
    """The axis of tokens in labels, from what the loss compares with them."""
    ends = next((row for row, phase in enumerate(facts.phase) if phase != Phase.FORWARD), len(facts.phase))
    found = follow_tokens(facts, seeds, ends)
    labels = dict[int, Shard]()
    label_of = {value: value for value, category in enumerate(facts.category) if category == Category.LABEL}
    for row in range(ends):
        reads, dims = facts.inputs[row], facts.dims(row).inputs
        follows = {named[s.dim] for value, named in zip(reads, dims, strict=True) for s in found[value]} - {NO_LABEL}
        for value, named in zip(reads, dims, strict=True):
            if value not in label_of:
                continue
            if len(reads) == 1:  # a cast
                label_of |= {
                    made: label_of[value] for made in facts.outputs[row] if facts.shapes[made] == facts.shapes[value]
                }
            for dim in [dim for dim, label in enumerate(named) if label in follows][:1]:
                labels.setdefault(label_of[value], Shard.whole(dim, facts.shapes[value][dim]))
    return labels
