"""Chains of elementwise operators that a compiler makes one kernel of.

TorchInductor writes one loop for operators that go over the same elements and read each other, casts among them, and
puts the norm or the softmax of their rows into it (Ansel et al., "PyTorch 2", ASPLOS 2024, section 4): what only they
read never leaves the registers.  Here the operators of a trace stay what they are.  The last of a chain takes the time
of the whole kernel, whose bytes are what the chain reads from outside and what others read of it; those before it take
none and are not launched.

A batch norm is one pass that sums and one that goes over the elements again (``native_batch_norm`` and its backward in
``torch/_decomp/decompositions.py``): the sum with another branch and the activation behind it are part of the second,
the activation's derivative before its backward of both.

Where convolutions take part of batch norms (:mod:`triosim.composition.norm_convolutions`), what is left of a chain
around one is a kernel of elementwise operators, or none.

A chain is of one pass, forward or backward, for these are compiled apart, and it ends where anything else reads what it
makes.  An operator over a part of what another makes (half of the features, turned by their positions) goes into its
loop, since elementwise operators are written into whatever reads them.

Memory is that of the single operators.  What the passes hand to each other is what AOTAutograd's partitioner chooses,
which makes cheap chains again and keeps what products read: stacks that compile name fused kernels, which keep just
that (``tests/stacks/test_compiled_saves.py``).  What lives within a chain alone is not taken off: it is at no peak of
the published rows of torchtitan, where the loss or the sums of gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition.norm_convolutions import BATCH_NORMS, NormConvolutions
from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.operators import canonical, kind
from triosim.trace.calls import only
from triosim.trace.tables import NONE, Phase, Trace
from triosim.transform.quantization import CASTS

LONGEST = 64
"""Operators of a kernel at most (``max_fusion_size`` of ``torch/_inductor/config.py``)."""
_COPIES = frozenset(("clone", "contiguous", "copy", "to", "_to_copy"))
_CATS = frozenset(("cat", "_cat", "concat", "concatenate", "stack"))
_NORMS = frozenset(("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm"))
_SOFTMAX = frozenset(("_softmax", "softmax"))


@dataclass(frozen=True)
class FusedKernels:
    """Kernels that several operators of a trace become.

    Attributes:
        last: the operator that stands for the kernel that each operator is in, the last of its chain; itself where it
            is in none, shape ``(operators,)``.
        rows: those that stand for a chain, ascending.
        trace: the kernels as operators, one for each of ``rows``.
    """

    last: NDArray[np.int64]
    rows: NDArray[np.int64]
    trace: Trace

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Operators that are part of a later one's kernel, shape ``(operators,)``."""
        return np.asarray(self.last != np.arange(len(self.last)))


@kept(16)
def fused_kernels(trace: Trace, in_convolutions: bool = False) -> FusedKernels:
    """The chains of a trace that become one kernel each.

    Args:
        trace: a step.
        in_convolutions: whether convolutions take part of batch norms.
    """
    taking = NormConvolutions(trace) if in_convolutions else None
    known = {name: _takes(name) for name in set(trace.operators.name)}
    takes = [known[name] for name in trace.operators.name]
    if taking is not None:
        takes = ["map" if taking.sums(row) else what for row, what in enumerate(takes)]
    chains = _chains(trace, takes, in_convolutions)
    last = np.arange(len(trace))
    for chain in chains:
        last[chain] = chain[-1]
    if taking is not None:
        for chain in chains:
            if (reader := taking.norms(chain)) is not None:
                last[chain] = reader
        chains = [chain for chain in chains if last[chain[-1]] == chain[-1]]
    rows = np.array([chain[-1] for chain in chains], np.int64)
    return FusedKernels(last, rows, _as_operators(trace, chains, takes))


class _Chain:
    """A chain that may still get longer."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.rows: list[int] = []
        self.made: list[int] = []  # storages of what its operators made
        self.normed = False


def _chains(trace: Trace, takes: Sequence[str], single: bool) -> list[list[int]]:
    """Rows of each chain of two operators or more, or of one batch norm where a ``single`` counts; by their last.

    ``takes`` is of each operator (:func:`_takes`).
    """
    operators, storage, elements = trace.operators, trace.values.storage, trace.values.elements()
    inputs, outputs, views = operators.inputs.lists(), operators.outputs.lists(), operators.view.tolist()
    phases = operators.phase.tolist()
    open_: dict[int, _Chain] = {}  # by the storage of what they have made
    found: list[list[int]] = []
    phase = NONE

    def end(chain: _Chain) -> None:
        alone = single and canonical(operators.name[chain.rows[0]])[0] in BATCH_NORMS if chain.rows else False
        if len(chain.rows) > 1 or alone:
            found.append(sorted(chain.rows))
        for made in chain.made:
            if open_.get(made) is chain:
                del open_[made]

    for row, name in enumerate(operators.name):
        if views[row]:
            continue
        if phases[row] != phase:
            for chain in {id(one): one for one in open_.values()}.values():
                end(chain)
            phase = phases[row]
        read = {id(one): one for value in inputs[row] if (one := open_.get(int(storage[value]))) is not None}
        what = takes[row] if phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE) and outputs[row] else ""
        what = "" if phase == Phase.BACKWARD and name.endswith("_") else what  # sums of the autograd engine
        count = int(elements[outputs[row][0]]) if what else 0
        joined = _Chain(count)
        for chain in read.values():
            # a loop over a part of what a chain makes computes that part again from what the chain reads
            alike = what == "cat" or (what and chain.elements == count) or (what == "map" and count < chain.elements)
            norms = chain.normed and (joined.normed or what == "norm")
            if not alike or norms or len(joined.rows) + len(chain.rows) >= LONGEST:
                end(chain)
                continue
            joined.elements = count if what == "cat" else max(joined.elements, chain.elements)
            joined.rows += chain.rows
            joined.made += chain.made
            joined.normed |= chain.normed
            open_.update((made, joined) for made in chain.made if open_.get(made) is chain)
        if what:
            joined.rows.append(row)
            joined.normed |= what == "norm"
            for value in outputs[row]:
                joined.made.append(int(storage[value]))
                open_[joined.made[-1]] = joined
    for chain in {id(one): one for one in open_.values()}.values():
        end(chain)
    return sorted(found, key=lambda chain: chain[-1])


def _takes(name: str) -> str:
    """``"norm"``, ``"map"``, ``"cat"``, or ``""`` for what is no part of a chain.

    Casts to 8 bits say themselves what they read.  Parts that are put together are made in the loop of the whole
    (``pointwise_cat`` of ``torch/_inductor/lowering.py``).
    """
    short, backward = canonical(name)
    own = kind(name)
    if name in CASTS:
        return ""
    if own == "softmax":
        return "norm" if short in _SOFTMAX else ""
    if own == "normalization":
        return "norm" if short in BATCH_NORMS or (short in _NORMS and not backward) else ""
    if own == "copy" and short in _CATS:
        return "cat"
    return "map" if own == "elementwise" or (own == "copy" and short in _COPIES) else ""


def _as_operators(trace: Trace, chains: Sequence[Sequence[int]], takes: Sequence[str]) -> Trace:
    """One operator for each chain: its norm or softmax if it has one, else a product of elements.

    It reads what the chain reads from outside, and writes what others read of it.
    """
    operators, storage, elements = trace.operators, trace.values.storage, trace.values.elements()
    inputs, outputs, roles = operators.inputs.lists(), operators.outputs.lists(), operators.roles.lists()
    readers: dict[int, list[int]] = {}
    for row in np.flatnonzero(~operators.view).tolist():
        for value in inputs[row]:
            readers.setdefault(int(storage[value]), []).append(row)
    names = list(operators.role_names)
    code = {role: _code(names, role) for role in ("input", "self", "other")}
    made: dict[str, list[list[int]]] = {"inputs": [], "roles": [], "outputs": []}
    name, args = [], []
    for chain in chains:
        own, within = set(chain), set[int]()
        norm = next((row for row in chain if takes[row] == "norm"), None)
        read: dict[int, int] = {}
        for row in chain:
            for value, role in zip(inputs[row], roles[row], strict=True):
                if int(storage[value]) not in within:
                    kept_role = row == norm and names[role] in ("weight", "bias")
                    read[value] = role if kept_role else read.get(value, code["other"])
            within.update(int(storage[value]) for value in outputs[row])  # what is changed in place was read before
        first = max(read, key=lambda value: (names[read[value]] == "other", int(elements[value])), default=None)
        if first is not None:
            read = {first: code["input" if norm is not None else "self"], **read}
            read[first] = code["input" if norm is not None else "self"]
        last = {int(storage[value]): value for row in chain for value in outputs[row]}
        written = [value for at, value in last.items() if any(reader not in own for reader in readers.get(at, ()))]
        made["inputs"].append(list(read))
        made["roles"].append(list(read.values()))
        made["outputs"].append(written or outputs[chain[-1]][:1])
        name.append("aten::mul" if norm is None else operators.name[norm])
        args.append("{}" if norm is None else operators.args[norm])
    rows = np.array([chain[-1] for chain in chains], np.int64)
    moved = np.array([
        float(trace.values.bytes()[[*read, *written]].sum())
        for read, written in zip(made["inputs"], made["outputs"], strict=True)
    ])  # fmt: skip
    table = replace(
        operators, inputs=_spread(operators.inputs, rows, made["inputs"]),
        roles=_spread(operators.roles, rows, made["roles"]),
        outputs=_spread(operators.outputs, rows, made["outputs"]), role_names=tuple(names),
    )  # fmt: skip
    kernels = only(replace(trace, operators=table), rows)
    return replace(
        kernels,
        operators=replace(
            kernels.operators, name=tuple(name), args=tuple(args), bytes=moved, flop=np.full(len(rows), np.nan)
        ),
    )


def _code(names: list[str], role: str) -> int:
    if role not in names:
        names.append(role)
    return names.index(role)


def _spread(column: Ragged, rows: NDArray[np.int64], own: Sequence[Sequence[int]]) -> Ragged:
    """A column with other contents in some rows."""
    lists = list(column.lists())
    for row, content in zip(rows.tolist(), own, strict=True):
        lists[row] = list(content)
    return Ragged.of(lists, column.values.dtype)
