"""Which operators of a step's forward run again before their backward, by the words of ``--recompute``.

A policy is a word; parts of a block are named as Megatron-Core's ``--recompute-modules`` does, or by the model's own
module (``mlp.gate_proj``, ``self_attn``).  What any of them leaves is a list of regions, each in its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.operators import kind
from triosim.stacks import NEEDED_AND_SAVED
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace

_FLOWS_ON = ("view", "copy", "elementwise", "softmax", "create")
"""Kinds of operator that may stand between the two products of an attention core."""


_CHEAP = ("view", "copy", "elementwise", "normalization", "create")
"""Kinds of operator that run again where products are kept."""
_PRODUCTS = ("linear", "matmul")
POLICIES = ("none", "full", "selective", "pointwise", "operators", "projections")
SYNONYMS = {"minimal": "pointwise", "save_qkv_proj": "projections"}
"""What MaxText calls policies."""
MODULES_TOLD = 12
"""Of a block, where one is not found."""


class StepFacts:
    """A trace's columns as lists, and where each storage comes from."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks = blocks(trace)
        self.block_of: list[int] = self.blocks.of(trace).tolist()
        self.name = trace.meta.workload or "the trace"
        operators, values = trace.operators, trace.values
        self.inputs, self.outputs = operators.inputs.lists(), operators.outputs.lists()
        self.view, self.phase = operators.view.tolist(), operators.phase.tolist()
        self.storage, self.version = values.storage.tolist(), values.version.tolist()
        self.forward = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
        self.later = np.flatnonzero(operators.phase == Phase.BACKWARD).tolist()
        self.lasting = set(values.storage[np.isin(values.category, [int(c) for c in PERSISTENT])].tolist())
        self.weights = set(values.storage[values.category == Category.WEIGHT].tolist())
        self.kinds = [kind(text) for text in operators.name]
        self.made: dict[int, int] = {}
        """Storage -> the operator that made it, -1 where it was there before."""
        for row, (reads, writes) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            for value in reads:
                self.made.setdefault(self.storage[value], NONE)
            for value in writes:
                self.made.setdefault(self.storage[value], row)
        self.read_by: dict[int, list[int]] = {}
        """Storage -> forward operators that read it, in order."""
        for row in self.forward:
            for value in self.inputs[row]:
                self.read_by.setdefault(self.storage[value], []).append(row)
        self.touched_by: dict[int, list[int]] = {}
        """Storage -> backward operators that read or write it, in order."""
        self.derivatives: dict[int, list[int]] = {}
        """Forward operator -> the backward operators that differentiate it."""
        forward = operators.forward.tolist()
        for row in self.later:
            self.derivatives.setdefault(forward[row], []).append(row)
            for where in {self.storage[v] for v in (*self.inputs[row], *self.outputs[row])}:
                self.touched_by.setdefault(where, []).append(row)
        self.bytes: list[int] = values.storage_bytes().tolist()
        """Of each storage."""
        # what this file adds
        self.origins: list[int] = []
        self.new_storage: list[int] = []
        self.new_version: list[int] = []
        self.storages = int(values.storage.max(initial=-1)) + 1
        self.last_version: dict[int, int] = {}
        for where, version in zip(self.storage, self.version, strict=True):
            self.last_version[where] = max(version, self.last_version.get(where, 0))

    def within_block(self, row: int) -> str:
        """Path of an operator's module from its block on, ``""`` for the block itself."""
        module = int(self.trace.operators.module[row])
        block = self.block_of[row]
        return self.trace.modules.path[module].removeprefix(self.blocks.path[block])[1:] if block >= 0 else ""

    def copied(self, value: int, storage: int, version: int) -> int:
        """A new value like ``value``."""
        self.origins.append(value)
        self.new_storage.append(storage)
        self.new_version.append(version)
        return len(self.storage) + len(self.origins) - 1


@dataclass(frozen=True)
class RecomputeRegion:
    """Forward operators that are recomputed together.

    Attributes:
        rows: the operators, in order.
        block: forward operators among which what is made may be made again: what others read is kept for them.
    """

    rows: list[int]
    block: list[int]


def regions(facts: StepFacts, which: str, how: str = "block") -> list[RecomputeRegion]:
    """What a choice runs again.

    Args:
        facts: of a training step.
        which: a policy, one followed by ``/n`` for every n-th block, or parts of a block joined by ``+``.
        how: as of :func:`triosim.transform.recompute.recomputed`.

    Raises:
        PlanError: the step has nothing of the kind.
    """
    policy, _, nth = which.partition("/")
    if nth and not (nth.isdecimal() and int(nth)):
        raise PlanError(f"recompute {which}: write full/N for every N-th block, N from 1 on")
    if not policy:
        raise PlanError("recompute is empty: give none, full, selective or another policy")
    every, policy = int(nth or 1), SYNONYMS.get(policy, policy)
    there = _blocks(facts)
    chosen = there[every - 1 :: every]  # the second, fourth, ... of full/2, as torchtitan counts
    if there and every > len(there):
        raise PlanError(
            f"recompute {which}: there are {len(there)} blocks, and none is the {every}th: give a smaller N"
        )
    if policy == "selective":
        found = [RecomputeRegion(rows, rows) for rows in _attention_cores(facts)[every - 1 :: every]]
    elif policy in POLICIES:
        found = [RecomputeRegion(rows, block) for block in chosen for rows in _by_policy(facts, block, policy, how)]
    else:
        found = _of_parts(facts, chosen, policy)
    if not found:
        what = "attention" if policy == "selective" else "repeated blocks (numbered modules)"
        raise PlanError(f"recompute {which}: no {what} found in {facts.name!r}: leave --recompute out")
    return found


def _by_policy(facts: StepFacts, block: list[int], policy: str, how: str) -> list[list[int]]:
    if policy == "full":
        rows = block if how == "block" else _needed_within(facts, block, block)
    elif policy == "projections":
        rows = _needed_within(facts, block, _after_projections(facts, block))
    else:
        rows = _cheap(facts, block, policy == "operators")
        if how == NEEDED_AND_SAVED and rows:
            rows = sorted({*rows, *_of_saved(facts, block, rows)})
    return [rows] if rows else []


def _of_saved(facts: StepFacts, block: list[int], again: list[int]) -> list[int]:
    """Views of saved products that the backward does not read: looked at again, they stay until then.

    PyTorch's selective checkpoint takes what it saved from its cache while a block runs again, and frees it after that
    (``torch/utils/checkpoint.py``, ``_CachingTorchDispatchMode``).
    """
    saved = {
        facts.storage[v]
        for row in block if facts.kinds[row] in _PRODUCTS and row not in again
        for v in facts.outputs[row]
    }  # fmt: skip
    unread = {where for where in saved if where not in facts.touched_by and where not in facts.lasting}
    first: dict[int, int] = {}
    for row in block:
        where = facts.storage[facts.inputs[row][0]] if facts.view[row] and facts.inputs[row] else -1
        if where in unread and row not in again:
            first.setdefault(where, row)
    return list(first.values())


def _after_projections(facts: StepFacts, block: list[int]) -> list[int]:
    """A block without what makes the queries, keys and values of its attention, from their products on."""
    inside, cores = set(block), [rows for rows in _attention_cores(facts) if rows[0] in set(block)]
    writers, kept = facts.trace.writers(), set[int]()
    waiting = [maker for rows in cores for maker in writers[rows[0]]]
    waiting += [maker for rows in cores for maker in writers[rows[-1]] if maker not in rows]
    while waiting:
        row = waiting.pop()
        if row in inside and row not in kept and row >= 0:
            kept.add(row)
            waiting += [] if facts.kinds[row] in _PRODUCTS else writers[row]
    return [row for row in block if row not in kept]


def _needed_within(facts: StepFacts, block: list[int], rows: list[int]) -> list[int]:
    """Those of a block's rows that its own backward needs: what it hands to the next block is kept for that one."""
    own = {later for row in block for later in facts.derivatives.get(row, ())}
    inside, wanted, found = set(block), set[int](), []
    for row in reversed(rows):
        made = {facts.storage[v] for v in facts.outputs[row]}
        handed_on = {where for where in made if any(reader not in inside for reader in facts.read_by.get(where, ()))}
        used = {where for where in made - handed_on if where in facts.touched_by}
        used |= {where for where in handed_on if own.intersection(facts.touched_by.get(where, ()))}
        if made & wanted or used:
            found.append(row)
            wanted |= {facts.storage[v] for v in facts.inputs[row]}
    return found[::-1]


# --- parts of a block -------------------------------------------------------------------------------------------------


def _of_parts(facts: StepFacts, within: list[list[int]], parts: str) -> list[RecomputeRegion]:
    """The named parts of blocks, cut into pieces that share nothing which is made again.

    What a part hands on is kept (``torch.utils.checkpoint``), except of those in :data:`OUTPUT_DISCARDED`.
    """
    chosen, names, discarded = set[int](), dict[str, None](), set[int]()
    for part in parts.split("+"):
        rows = {row for block in within for row in _part(facts, block, part.strip(), names)}
        if not rows:
            said = ", ".join(list(names)[:MODULES_TOLD]) if names else "no modules"
            raise PlanError(
                f"recompute {parts}: no block of {facts.name!r} has a part {part.strip()!r}: "
                f"say {', '.join(POLICIES)}, {', '.join(PARTS)}, or of its modules: {said}"
            )
        chosen |= rows
        discarded |= rows if part.strip() in OUTPUT_DISCARDED else set()
    return [
        RecomputeRegion(piece, block if discarded.intersection(piece) else piece)
        for block in within for piece in _pieces(facts, [row for row in block if row in chosen])
    ]  # fmt: skip


def _part(facts: StepFacts, block: list[int], part: str, names: dict[str, None]) -> list[int]:
    """Operators of a part of a block; ``names`` collects the modules of blocks."""
    paths = {row: facts.within_block(row) for row in block}
    names |= {path: None for path in paths.values() if path}
    if part in PARTS:
        return PARTS[part](facts, block, paths)
    return [row for row in block if f"{paths[row]}.".startswith(f"{part}.")]


def _norms(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    """The norms of the residual stream, not those within attention."""
    return [row for row in block if facts.kinds[row] == "normalization" and "." not in paths[row]]


def _expert_activation(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    """What is cheap between the first and the last product of the routed experts."""
    products = [row for row in block if facts.kinds[row] == "experts"]
    if not products:
        return []
    between = {row for row in block if products[0] < row < products[-1] and facts.kinds[row] in _CHEAP}
    # a bias that is added in place belongs to the product
    return _needed(facts, [
        row for row in sorted(between)
        if facts.view[row] or all(facts.made[facts.storage[v]] in between for v in facts.outputs[row])
    ])  # fmt: skip


def _routed(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    """The whole layer of experts: router, dispatch, products, the shared experts."""
    if not (products := [row for row in block if facts.kinds[row] == "experts"]):
        return []
    layer = paths[products[0]].partition(".")[0]
    return [row for row in block if paths[row].partition(".")[0] == layer]


def _dense(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    """The feed-forward layer of a block without experts: modules that multiply by weights and hold no attention."""
    if _routed(facts, block, paths):
        return []
    layer = {row: paths[row].partition(".")[0] for row in block}
    attending = {layer[row] for row in block if facts.kinds[row] in ("attention", "softmax")}
    feeding = {layer[row] for row in block if facts.kinds[row] in _PRODUCTS} - attending - {""}
    return [row for row in block if layer[row] in feeding]


def _shared_experts(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    return [row for row in block if any("shared_expert" in name for name in paths[row].split("."))]


def _from_latents(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    """Of attention over latents: norms of the latents, their products up, rotation, up to what attention reads."""
    up = [row for row in block if paths[row].endswith(("q_b_proj", "kv_b_proj"))]
    cores = [row for row in block if facts.kinds[row] == "attention" or facts.kinds[row] == "softmax"]
    if not up or not cores:
        return []
    attention = paths[up[0]].rpartition(".")[0]
    down = ("q_a_proj", "kv_a_proj_with_mqa")
    return [
        row for row in block
        if row < cores[0] and f"{paths[row]}.".startswith(f"{attention}.") and not paths[row].endswith(down)
    ]  # fmt: skip


def _cores_of(facts: StepFacts, block: list[int], paths: dict[int, str]) -> list[int]:
    inside = set(block)
    return [row for rows in _attention_cores(facts) if rows[0] in inside for row in rows]


PARTS: dict[str, Callable[[StepFacts, list[int], dict[int, str]], list[int]]] = {
    "core_attn": _cores_of, "layernorm": _norms, "mla_up_proj": _from_latents, "mlp": _dense, "moe": _routed,
    "moe_act": _expert_activation, "shared_experts": _shared_experts,
}  # fmt: skip
"""Parts of a block by the names of Megatron-Core's ``--recompute-modules``
(``megatron/core/transformer/transformer_config.py``)."""
OUTPUT_DISCARDED = ("layernorm", "mla_up_proj", "moe_act")
"""Parts whose output is made again, too (Megatron-Core's ``CheckpointWithoutOutput``)."""


def _pieces(facts: StepFacts, rows: list[int]) -> list[list[int]]:
    """Operators in groups, such that no group reads what another makes."""
    group: dict[int, int] = {}  # storage made here -> its piece
    pieces: dict[int, list[int]] = {}
    for row in rows:
        touched = {facts.storage[v] for v in (*facts.inputs[row], *facts.outputs[row])}
        joined = sorted({group[where] for where in touched if where in group})
        members = sorted([row, *(r for piece in joined for r in pieces.pop(piece))])
        pieces[row] = members
        written = {facts.storage[v] for v in facts.outputs[row]}
        group |= {where: row for where, piece in group.items() if piece in joined} | dict.fromkeys(written, row)
    return sorted(pieces.values())


# --- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(facts: StepFacts) -> list[list[int]]:
    """Runs of forward operators in one block."""
    of = facts.block_of
    runs: list[list[int]] = []
    before = NONE
    for row in facts.forward:
        if of[row] != NONE and of[row] == before:
            runs[-1].append(row)
        elif of[row] != NONE:
            runs.append([row])
        before = of[row]
    return runs


def _cheap(facts: StepFacts, block: list[int], products: bool) -> list[int]:
    """Operators of a block that run again: the cheap ones and, where asked for, every second product.

    What would have to keep more than it saves does not: an addition whose summands nobody else needs.
    """
    inside, found, again, multiplied = set(block), [], set[int](), 0
    for row in block:
        of_kind = facts.kinds[row]
        multiplied += of_kind in _PRODUCTS
        if of_kind not in _CHEAP and not (products and of_kind in _PRODUCTS and multiplied % 2 == 0):
            continue
        read, made = ({facts.storage[v] for v in values} for values in (facts.inputs[row], facts.outputs[row]))
        only_for_this = [
            where for where in read - made
            if facts.made[where] in inside and where not in again and where not in facts.touched_by
        ]  # fmt: skip
        if facts.view[row] or sum(facts.bytes[s] for s in only_for_this) < sum(facts.bytes[s] for s in made - read):
            found.append(row)
            again |= made
    return _needed_within(facts, block, found)


def _needed(facts: StepFacts, rows: list[int]) -> list[int]:
    """Those of rows that the backward needs, or another that it needs."""
    wanted, found = set[int](), []
    for row in reversed(rows):
        made = {facts.storage[v] for v in facts.outputs[row]}
        if made & wanted or any(where in facts.touched_by for where in made):
            found.append(row)
            wanted |= {facts.storage[v] for v in facts.inputs[row]}
    return found[::-1]


def _attention_cores(facts: StepFacts) -> list[list[int]]:
    """Forward operators of each attention core: one fused operator, or from the scores to the product with values."""
    writers = facts.trace.writers()
    position = {row: i for i, row in enumerate(facts.forward)}
    found = []
    for row in facts.forward:
        if facts.kinds[row] == "attention":
            found.append([row])
        elif facts.kinds[row] == "softmax":
            scores = _product(facts, row, lambda r: writers[r])
            weighed = _product(facts, row, lambda r: [n for v in facts.outputs[r] for n in _readers(facts, v, r)])
            if scores != NONE and weighed != NONE:
                found.append(facts.forward[position[scores] : position[weighed] + 1])
    return found


def _readers(facts: StepFacts, value: int, after: int) -> list[int]:
    return [row for row in facts.read_by.get(facts.storage[value], ()) if row > after]


def _product(facts: StepFacts, start: int, steps: Callable[[int], Iterable[int]]) -> int:
    """The nearest product without a weight that is reached over elementwise operators, -1 for none."""
    waiting, seen = [start], {start}
    while waiting:
        for row in steps(waiting.pop(0)):
            if row == NONE or row in seen or facts.phase[row] != Phase.FORWARD:
                continue
            seen.add(row)
            if facts.kinds[row] == "matmul" and not any(facts.storage[v] in facts.weights for v in facts.inputs[row]):
                return row
            if facts.kinds[row] in _FLOWS_ON:
                waiting.append(row)
    return NONE
