"""Activation recomputation: what a block's forward would keep for its backward is dropped and made again before it.

The step becomes another step: the operators of a region run once more, in the phase ``recompute``, just before the
first backward operator that needs what they make, and the backward reads the second making.  Time and memory follow
from the new step alone.

* ``full`` (Chen et al., arXiv:1604.06174): the regions are the model's blocks; a block keeps what it was given.  The
  whole block runs again, as in Megatron-LM, or what its backward needs: ``torch.utils.checkpoint`` stops at the last
  operator whose inputs are needed, and ``jax.checkpoint`` leaves out what nobody reads; either saves the block's last
  product.
* ``selective`` (Korthikanti et al., arXiv:2205.05198, section 5): the regions are the attention cores, from the scores
  to what they weigh: much memory and little work.  An attention in one kernel keeps no scores: there is little to gain.
* ``pointwise`` (``minimal`` of MaxText; ``save_from_policy`` with products in PyTorch): of each block what takes about
  as long as reading its operands (norms, activations, casts, sums); products, attention and the dispatch of tokens to
  experts are kept.
* ``operators`` (torchtitan's ``selective_ac_option = op``): that, and every second product.  PyTorch's selective
  checkpoint keeps what it saves until the backward of the block, also the block's last product, which nothing reads
  again; a compiler drops that.
* ``projections`` (``save_qkv_proj`` of MaxText): each block keeps the queries, keys and values that its attention
  reads; of the rest runs again what the backward needs.
* ``full/2`` (torchtitan's ``selective_ac_option = 2``), and so on: every second block only.
* ``layernorm+moe_act``: parts of each block by the names of Megatron-Core's ``--recompute-modules`` (``core_attn``,
  ``layernorm``, ``mla_up_proj``, ``mlp``, ``moe``, ``moe_act``, ``shared_experts``) or by the model's own modules
  within a block (``self_attn.q_proj``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.trace.tables import NONE, Phase, Trace

if TYPE_CHECKING:
    from triosim.transform.recompute_regions import RecomputeRegion, StepFacts


@kept(8)
def recomputed(trace: Trace, which: str, how: str = "block") -> Trace:
    """The step with regions of its forward run again before their backward.

    Args:
        trace: a training step.
        which: a policy or parts of blocks, see above; ``"none"`` returns the trace as it is.
        how: of whole blocks, run again everything or what their backward needs, and whether what is saved stays
            although nothing needs it (:data:`triosim.stacks.RECOMPUTED`).

    Raises:
        PlanError: there is nothing of the kind to run again, the step does so already, or an operator changes what its
            region was given, so that it cannot be run again.
    """
    if which == "none" or not np.any(trace.operators.phase == Phase.BACKWARD):
        return trace
    from triosim.transform.recompute_regions import StepFacts, regions

    facts = StepFacts(trace)
    if np.any(trace.operators.phase == Phase.RECOMPUTE):
        raise PlanError(f"recompute {which}: {facts.name!r} already runs operators again: leave --recompute out")
    parts = [_RecomputeAnalysis(facts, region, which).part() for region in regions(facts, which, how)]
    again = [part for part in parts if part is not None]
    if not again:
        raise PlanError(
            f"recompute {which}: no backward operator of {facts.name!r} reads what would be made again: leave "
            "it out, or record the step with triosim trace record"
        )
    made = _woven(facts, again)
    rows = sum(len(part.rows) for part in again)
    note = f"recompute {which}: {rows} operators of {len(again)} regions run again before their backward"
    return replace(made, meta=replace(made.meta, step_time_s=None)).noted(note)


# --- one region -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RecomputedRegion:
    """A region as it is run again.

    Attributes:
        rows: its forward operators.
        inputs, outputs: what they read and write the second time.
        before: backward operator before which they run.
        reads, writes: of backward operators, what they read and write instead, by row.
    """

    rows: list[int]
    inputs: list[list[int]]
    outputs: list[list[int]]
    before: int
    reads: dict[int, list[int]]
    writes: dict[int, list[int]]


class _RecomputeAnalysis:
    """Works out what is made again and who reads it."""

    def __init__(self, facts: StepFacts, region: RecomputeRegion, which: str) -> None:
        self.facts, self.rows, self.which = facts, region.rows, which
        inside, around = set(region.rows), set(region.block)
        self.inner = {
            facts.storage[v]
            for row in region.rows for v in facts.outputs[row]
            if facts.made[facts.storage[v]] in inside and facts.storage[v] not in facts.lasting
        }  # fmt: skip
        self.given_on = {s for s in self.inner if any(row not in around for row in facts.read_by.get(s, ()))}
        """Storages that forward operators of later blocks read: they are kept for those, whatever happens here."""
        self.storages: dict[int, int] = {}  # storage -> the one that it is made in again
        self.values: dict[int, int] = {}

    def part(self) -> _RecomputedRegion | None:
        """The region run again; None where no backward operator needs it."""
        facts = self.facts
        needed, own = self.inner - self.given_on, self._own()
        found = {row for where in needed for row in facts.touched_by.get(where, ())}
        found |= {row for where in self.given_on for row in facts.touched_by.get(where, ()) if row in own}
        users = sorted(found)
        if not users:
            return None
        inputs, outputs = [], []
        for row in self.rows:
            inputs.append([self._again(v) for v in facts.inputs[row]])
            outputs.append([self._written(v, row) for v in facts.outputs[row]])
        reads, writes = {}, {}
        for row in users:
            swapped = self.inner if row in own else needed
            reads[row] = [self._again(v) if facts.storage[v] in swapped else v for v in facts.inputs[row]]
            writes[row] = [self._again(v) if facts.storage[v] in swapped else v for v in facts.outputs[row]]
        return _RecomputedRegion(self.rows, inputs, outputs, users[0], reads, writes)

    def _own(self) -> set[int]:
        """Backward operators of the region."""
        return {row for made in self.rows for row in self.facts.derivatives.get(made, ())}

    def _again(self, value: int) -> int:
        """The value that stands for ``value`` the second time."""
        known = self.values.get(value)
        if known is not None:
            return known
        where = self.facts.storage[value]
        if where not in self.inner:
            return value
        made = self.facts.copied(value, self._storage(where), self.facts.version[value])
        self.values[value] = made
        return made

    def _written(self, value: int, row: int) -> int:
        facts, where = self.facts, self.facts.storage[value]
        if where in self.inner:
            return self._again(value)
        version = facts.version[value]
        if not facts.view[row]:
            if where not in facts.lasting:
                raise PlanError(
                    f"recompute {self.which}: {facts.trace.operators.name[row]} in {self._module(row)!r} writes into "
                    "what its block was given, so the block cannot be run again: leave --recompute out"
                )
            version = facts.last_version[where] = facts.last_version[where] + 1
        self.values[value] = facts.copied(value, where, version)
        return self.values[value]

    def _storage(self, where: int) -> int:
        if where not in self.storages:
            self.storages[where] = self.facts.storages
            self.facts.storages += 1
        return self.storages[where]

    def _module(self, row: int) -> str:
        module = int(self.facts.trace.operators.module[row])
        return self.facts.trace.modules.path[module] if module >= 0 else self.facts.trace.meta.workload


# --- the new step -----------------------------------------------------------------------------------------------------


def _woven(facts: StepFacts, parts: Sequence[_RecomputedRegion]) -> Trace:
    """The trace with the parts in their places."""
    trace, count = facts.trace, len(facts.trace)
    values, operators = trace.values, trace.operators
    origins = np.array(facts.origins, np.int64)
    more = replace(
        values,
        storage=np.concatenate([values.storage, np.array(facts.new_storage, np.int32)]),
        version=np.concatenate([values.version, np.array(facts.new_version, np.int32)]),
        offset=np.concatenate([values.offset, values.offset[origins]]),
        shape=Ragged.stacked([values.shape, values.shape.take(origins)]),
        dtype=np.concatenate([values.dtype, values.dtype[origins]]),
        category=np.concatenate([values.category, values.category[origins]]),
        of=np.concatenate([values.of, values.of[origins]]),
        name=(*values.name, *(values.name[v] for v in facts.origins)),
        symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
    )
    source = np.concatenate([np.arange(count), *(np.array(part.rows) for part in parts)])
    place = np.concatenate([np.arange(count) + 0.5, *(np.full(len(part.rows), float(part.before)) for part in parts)])
    order = np.argsort(place, kind="stable")
    source, is_copy = source[order], (order >= count)
    inputs, outputs = list(facts.inputs), list(facts.outputs)
    for part in parts:
        for row, reads in part.reads.items():
            inputs[row] = _merged(facts.inputs[row], inputs[row], reads)
        for row, writes in part.writes.items():
            outputs[row] = _merged(facts.outputs[row], outputs[row], writes)
    inputs += [reads for part in parts for reads in part.inputs]
    outputs += [writes for part in parts for writes in part.outputs]
    new_row = np.full(count + 1, NONE, np.int32)  # the last for none
    new_row[source[~is_copy]] = np.flatnonzero(~is_copy)
    taken = replace(
        operators,
        name=_picked(operators.name, source.tolist()),
        phase=np.where(is_copy, np.int8(Phase.RECOMPUTE), operators.phase[source]).astype(np.int8),
        inputs=Ragged.of([inputs[i] for i in order.tolist()], np.int32),
        outputs=Ragged.of([outputs[i] for i in order.tolist()], np.int32),
        roles=operators.roles.take(source),
        args=_picked(operators.args, source.tolist()),
        forward=np.where(is_copy, new_row[source], new_row[operators.forward[source]]).astype(np.int32),
        **{
            column: getattr(operators, column)[source]
            for column in ("module", "view", "sync", "device_s", "host_s", "flop", "bytes")
        },
    )
    kernels = trace.kernels
    if len(kernels):
        of, again = _kernels(kernels.operator, source, is_copy, new_row)
        kernels = replace(
            kernels, operator=of, name=_picked(kernels.name, again.tolist()), device_s=kernels.device_s[again],
            stream=kernels.stream[again],
        )  # fmt: skip
    from triosim.transform.rewriting import categorised

    communications = trace.communications.unplaced()
    return categorised(replace(trace, values=more, operators=taken, kernels=kernels, communications=communications))


def _merged(first: Sequence[int], now: Sequence[int], then: Sequence[int]) -> list[int]:
    """An operator may read what several regions made: each swaps its own."""
    return [b if b != a else c for a, b, c in zip(first, then, now, strict=True)]


def _picked(texts: tuple[str, ...], rows: Iterable[int]) -> tuple[str, ...]:
    return tuple([texts[row] for row in rows])


def _kernels(
    of: NDArray[np.int32], source: NDArray[np.int64], is_copy: NDArray[np.bool_], new_row: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Operator and origin of each kernel, those of what runs again included."""
    by_row: dict[int, list[int]] = {}
    for kernel, row in enumerate(of.tolist()):
        by_row.setdefault(row, []).append(kernel)
    extra = [(new, k) for new in np.flatnonzero(is_copy).tolist() for k in by_row.get(int(source[new]), ())]
    rows = np.array([*new_row[of].tolist(), *(new for new, _ in extra)], np.int32)
    return rows, np.array([*range(len(of)), *(k for _, k in extra)], np.int64)
