"""Putting back the dataflow that the TrioSim CSV leaves out of its backward pass.

Of an autograd node the CSV shows the tensors of its first step only.  What is missing follows from the forward pass:
backward runs it in reverse, the gradient of a value comes from the backward of every operator that read it, and
the gradient of a parameter from the backward of the operator that uses it.  So each backward operator is tied to the
forward operator that it differentiates, and then

* products by a weight, which show a transposed weight only, get all inputs and outputs;
* a gradient read without having been made becomes an output of the backward operator that it must come from;
* gradients of one value that several operators contribute to are summed by the later ones, as autograd does
  (inside the node, so that the measured time of the node holds the addition);
* tensors saved for the backward pass become outputs of the forward operator;
* gradients that the optimizer reads become outputs of the backward operator that makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.operators import GRADIENT_ROLES, canonical
from triosim.sources.readers._purpose import aligned_with_weights, find_weights
from triosim.sources.readers._step import Argument, ObservedTensor, ObservedValue, OperatorRow, Storage, resolve
from triosim.trace.tables import Phase

_GRADIENT_ROLES = (*GRADIENT_ROLES, "grad_outputs")
_SAME_KIND = ("convolution", "normalization", "pooling", "embedding", "attention", "softmax")
_PRODUCTS = ("linear", "matmul")
_PREFIXES = ("native_", "cudnn_", "miopen_", "mkldnn_", "thnn_", "fused_", "_")
_ONE_OF = {
    "nll_loss": "cross_entropy_loss", "nll_loss2d": "cross_entropy_loss", "log_softmax": "cross_entropy_loss",
    "mean": "adaptive_avg_pool2d", "threshold": "relu", "max_pool2d_with_indices": "max_pool2d",
}  # fmt: skip


def complete(rows: Sequence[OperatorRow]) -> list[str]:
    """Complete the rows in place and resolve them; the names of backward operators that could not be tied."""
    resolve(rows, _same)
    undecided = link(rows)
    _Completion(rows).run()
    resolve(rows, _same)
    return undecided


def _same(row: OperatorRow, argument: Argument, storage: Storage) -> bool:
    """Storage ids are recycled between operators that the CSV does not show: only an equal extent is a view."""
    if argument.tensor.reach != storage.reach:
        return False
    if argument.role in _GRADIENT_ROLES:
        return storage.writer is not None and storage.writer.phase == Phase.BACKWARD
    return True


def link(rows: Sequence[OperatorRow]) -> list[str]:
    """Set ``forward`` of the backward rows; the names of those for which no forward operator fits."""
    forward = [row for row in rows if row.phase == Phase.FORWARD]
    touched = [{id(v.storage) for v in (*row.inputs, *row.outputs)} for row in forward]
    used: set[tuple[str, int]] = set()
    undecided = []
    for row in rows:
        if row.phase != Phase.BACKWARD:
            continue
        saved = {id(v.storage) for v, role in zip(row.inputs, row.roles, strict=True) if role not in _GRADIENT_ROLES}
        sizes = {_elements(v) for v, role in zip(row.inputs, row.roles, strict=True) if role in _GRADIENT_ROLES}
        best: tuple[int, bool, int] | None = None
        for at, candidate in enumerate(forward):
            if not _differentiates(row.name, candidate.name) or not candidate.outputs:
                continue
            evidence = 2 * len(saved & touched[at]) + (_elements(candidate.outputs[0]) in sizes)
            rank = (evidence, (row.name, at) not in used, at)
            best = rank if best is None or rank > best else best
        if best is None:
            undecided.append(row.name.rpartition(": ")[2])
            continue
        used.add((row.name, best[2]))
        row.forward = forward[best[2]]
    return undecided


def _elements(value: ObservedValue) -> int:
    return ObservedTensor(value.shape, value.dtype).elements


def _differentiates(backward: str, forward: str) -> bool:
    a, b = _base(backward), _base(forward)
    if a == b or _ONE_OF.get(a) == b:
        return True
    mine, theirs = OperatorRow(backward, Phase.BACKWARD).kind, OperatorRow(forward, Phase.FORWARD).kind
    return (mine == theirs and mine in _SAME_KIND) or (mine in _PRODUCTS and theirs in _PRODUCTS)


def _base(name: str) -> str:
    base = canonical(name)[0]
    for prefix in _PREFIXES:
        base = base.removeprefix(prefix)
    return base


class _Completion:
    """Edits the tensors of linked rows; :func:`resolve` then sees a whole dataflow."""

    def __init__(self, rows: Sequence[OperatorRow]) -> None:
        self.rows = rows
        self.place = {id(row): at for at, row in enumerate(rows)}
        self.backward: dict[int, list[OperatorRow]] = {}
        for row in rows:
            if row.phase == Phase.BACKWARD and row.forward is not None:
                self.backward.setdefault(id(row.forward), []).append(row)
        self.readers: dict[tuple[int, int], list[OperatorRow]] = {}
        for row in rows:
            if row.phase == Phase.FORWARD:
                for value in row.inputs:
                    self.readers.setdefault((id(value.storage), value.version), []).append(row)
        weights = find_weights(rows)
        self.weights = {id(w): w for w in weights}
        self.trainable = self._trainable()
        self.given = self._optimizer_gradients(weights)
        self.next_id = -2

    def run(self) -> None:
        for row in self.rows:
            if row.phase == Phase.BACKWARD and row.forward is not None:
                self._saved(row, row.forward)
                self._gradient(row, row.forward)
        for row in self.rows:
            if row.phase == Phase.BACKWARD and row.forward is not None and self._last(row.forward) is row:
                self._parameters(row, row.forward)

    # --- facts -------------------------------------------------------------------------------------------------------

    def _trainable(self) -> set[int]:
        """Storages whose gradient is wanted: parameters and what is computed from them."""
        found = set(self.weights)
        for row in self.rows:
            if row.phase == Phase.FORWARD and any(id(v.storage) in found for v in row.inputs):
                found.update(id(v.storage) for v in row.outputs if v.storage.floating)
        return found

    def _optimizer_gradients(self, weights: Sequence[Storage]) -> dict[int, ObservedTensor]:
        """The tensor that the optimizer reads as each parameter's gradient: beside the parameter, never written."""
        owner = aligned_with_weights(self.rows, weights)
        found: dict[int, ObservedTensor] = {}
        for row in self.rows:
            if row.phase == Phase.OPTIMIZER:
                for argument, value in zip(row.arguments, row.inputs, strict=True):
                    storage = value.storage
                    weight = owner.get(id(storage))
                    if weight is not None and Phase.OPTIMIZER not in storage.written_in and value.shape:
                        found.setdefault(id(weight), argument.tensor)
        return found

    def _first(self, forward: OperatorRow) -> OperatorRow:
        return self.backward[id(forward)][0]

    def _last(self, forward: OperatorRow) -> OperatorRow:
        return self.backward[id(forward)][-1]

    def _sources(self, value: ObservedValue, seen: set[int]) -> list[OperatorRow]:
        """Backward rows that contribute to the gradient of a forward value, in the order in which they ran."""
        found: dict[int, OperatorRow] = {}
        for row in self.readers.get((id(value.storage), value.version), ()):
            if id(row) in seen:
                continue
            seen.add(id(row))
            if id(row) in self.backward:
                found[id(row)] = self._last(row)
            elif row.kind in ("view", "elementwise", "copy") and row.outputs:  # its backward launched no kernel
                found.update((id(s.forward), s) for s in self._sources(row.outputs[0], seen))
        return sorted(found.values(), key=lambda s: self.place[id(s)])

    # --- edits -------------------------------------------------------------------------------------------------------

    def _tensor(self, like: ObservedTensor | ObservedValue, storage: int | None = None) -> ObservedTensor:
        self.next_id -= 1
        return ObservedTensor(like.shape, like.dtype, self.next_id, self.next_id if storage is None else storage)

    def _saved(self, row: OperatorRow, forward: OperatorRow) -> None:
        """What the backward reads, nothing made and the forward pass did not show, the forward operator has saved."""
        made = {(t.id, t.storage) for t in forward.results}
        for argument, value in zip(row.arguments, row.inputs, strict=True):
            storage, tensor = value.storage, argument.tensor
            hidden = storage.creator is None and storage.first_read is not None
            if not hidden or storage.first_read[0].phase != Phase.BACKWARD:  # type: ignore[index]
                continue
            if argument.role in _GRADIENT_ROLES or self._is_gradient(row, forward, argument):
                continue
            if (tensor.id, tensor.storage) not in made:
                forward.results.append(tensor)
                made.add((tensor.id, tensor.storage))

    def _is_gradient(self, row: OperatorRow, forward: OperatorRow, argument: Argument) -> bool:
        """Whether an argument without a telling name is the incoming gradient: none other is, and the size fits."""
        if any(a.role in _GRADIENT_ROLES for a in row.arguments):
            return False
        return argument.tensor.elements == _elements(forward.outputs[0]) and row is self._first(forward)

    def _gradient(self, row: OperatorRow, forward: OperatorRow) -> None:
        """See to the incoming gradient of one backward row."""
        output = forward.outputs[0]
        if row is self._first(forward):
            sources = self._sources(output, set())
        else:
            linked = self.backward[id(forward)]
            sources = [linked[linked.index(row) - 1]]
        sources = [s for s in sources if self.place[id(s)] < self.place[id(row)]]
        at = self._incoming(row, forward)
        if at is None:
            if row.kind in _PRODUCTS:
                self._product(row, forward, sources)
            return
        argument, storage = row.arguments[at], row.inputs[at].storage
        argument.role = "grad_output"
        if not sources:
            return
        tensor = argument.tensor
        if storage.writer in sources:
            first = sources.index(storage.writer)
            self._read_all(storage.writer, output, sources[:first])
            for source in sources[first + 1 :]:
                self._accumulate(source, output, tensor)
        elif storage.creator is None or storage.creator.phase != Phase.BACKWARD or len(sources) > 1:
            self._read_all(sources[-1], output, sources[:-1])
            self._give(sources[-1], output, tensor)

    def _incoming(self, row: OperatorRow, forward: OperatorRow) -> int | None:
        for at, argument in enumerate(row.arguments):
            if argument.role in _GRADIENT_ROLES:
                return at
        known = {id(v.storage) for v in (*forward.inputs, *forward.outputs)} | set(self.weights)
        for at, (argument, value) in enumerate(zip(row.arguments, row.inputs, strict=True)):
            if id(value.storage) not in known and self._is_gradient(row, forward, argument):
                return at
        return None

    def _product(self, row: OperatorRow, forward: OperatorRow, sources: list[OperatorRow]) -> None:
        """Give a product's backward node its gradient, the factors, and a gradient for every factor that wants one."""
        output = forward.outputs[0]
        if sources:
            incoming = self._own(sources[0], output) or self._give(sources[0], output, self._tensor(output))
            for source in sources[1:]:
                self._accumulate(source, output, incoming)
        else:
            incoming = self._tensor(output)
        factors = [a for a in forward.arguments if a.role != "bias" and len(a.tensor.shape) > 1]
        row.arguments = [Argument("grad_output", incoming), *(Argument(a.role, a.tensor) for a in factors)]
        row.results = []
        for value in forward.inputs:  # the gradient of the input first, those of parameters later
            if id(value.storage) in self.trainable and id(value.storage) not in self.weights:
                row.results.append(self._tensor(value))

    def _own(self, source: OperatorRow, value: ObservedValue) -> ObservedTensor | None:
        """The output of a backward row that is its contribution to the gradient of ``value``."""
        exact = [t for t in source.results if t.shape == value.shape]
        sized = [t for t in source.results if t.elements == _elements(value)]
        return next(iter(exact or sized), None)

    def _give(self, source: OperatorRow, value: ObservedValue, tensor: ObservedTensor) -> ObservedTensor:
        """Make ``tensor`` what ``source`` contributes to the gradient of ``value``."""
        own = self._own(source, value)
        if own is not None and own.shape != tensor.shape:
            tensor = self._tensor(own, tensor.storage)  # read through another view
        if own is None:
            source.results.insert(0, tensor)
        elif self._read_later(source, own, tensor):
            source.results.append(tensor)
        else:
            source.results[source.results.index(own)] = tensor
        return tensor

    def _read_later(self, source: OperatorRow, own: ObservedTensor, instead: ObservedTensor) -> bool:
        if (own.id, own.storage) == (instead.id, instead.storage):
            return False
        later = self.rows[self.place[id(source)] + 1 :]
        for row in later:
            if any((a.tensor.id, a.tensor.storage) == (own.id, own.storage) for a in row.arguments):
                return True
            if any(t.storage == own.storage for t in row.results):
                return False
        return False

    def _accumulate(self, source: OperatorRow, value: ObservedValue, tensor: ObservedTensor) -> None:
        """``source`` adds its contribution to a gradient that is there already."""
        if any(a.role == "accumulate" and a.tensor.storage == tensor.storage for a in source.arguments):
            return
        source.arguments.append(Argument("accumulate", tensor, written=True))
        self._give(source, value, tensor)

    def _read_all(self, row: OperatorRow, value: ObservedValue, sources: list[OperatorRow]) -> None:
        """``row`` adds up what the earlier ``sources`` contribute."""
        for source in sources:
            tensor = self._own(source, value) or self._give(source, value, self._tensor(value))
            row.arguments.append(Argument("accumulate", tensor))

    def _parameters(self, row: OperatorRow, forward: OperatorRow) -> None:
        """Make every parameter's gradient an output of the backward row."""
        made = {t.storage: t for linked in self.backward[id(forward)] for t in linked.results}
        for value, role in zip(forward.inputs, forward.roles, strict=True):
            if id(value.storage) not in self.weights:
                continue
            tensor = self.given.get(id(value.storage))
            if tensor is not None and tensor.storage in made and made[tensor.storage].elements == tensor.elements:
                continue
            same_shape = [t for t in row.results if t.shape == value.shape]
            product = row.kind in _PRODUCTS and role in ("weight", "bias", "self", "mat1", "mat2", "other")
            if not same_shape or product:
                row.results.append(tensor or self._tensor(value))
            elif tensor is not None and len(same_shape) == 1:  # the gradient was copied into place
                row.results[row.results.index(same_shape[0])] = tensor
