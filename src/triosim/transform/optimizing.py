"""Optimizers: what each keeps of a parameter and the operators of its update, for models by name and for traces.

An optimizer is one file of :mod:`triosim.transform.optimizers`.  It says which states a parameter has
(:meth:`OptimizerRule.states`) and appends the operators that PyTorch runs on a CUDA device to a step: a model under
construction, or a trace that is being changed.  Step counters, which live on the host by default, are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import PlanError
from triosim.core.options import configured
from triosim.core.registry import Registry
from triosim.operators import kind
from triosim.trace.tables import NONE, Category, Phase, Trace

if TYPE_CHECKING:
    from triosim.transform.rewriting import TraceRewriter

Shape = tuple[int, ...]
State = tuple[Shape, str]
"""Shape and element type of one of an optimizer's own tensors."""


class StepBuilder(Protocol):
    """A step to which operators can be appended."""

    def tensor(self, shape: Shape, dtype: str, category: Category = Category.TEMPORARY, *, of: int = NONE) -> Any:
        """A tensor on a new storage."""

    def overwritten(self, base: Any) -> Any:
        """What an operator leaves that writes into a tensor."""

    def alias(self, base: Any, shape: Shape) -> Any:
        """A tensor of another shape on the same storage."""

    def operator(
        self, name: str, roles: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any],
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """Append an operator."""


class StepOfParts(ABC):
    """A step in which a rank has a part of each parameter: what an update needs of the others is told here."""

    @abstractmethod
    def whole(self, tensor: Any) -> Any:
        """All of a tensor, brought together on one of the ranks, which goes on with it alone."""

    @abstractmethod
    def part(self, tensor: Any) -> Any:
        """The part that a rank is given back of what one rank has made of a whole tensor."""

    @abstractmethod
    def total(self, tensor: Any, dims: Sequence[int]) -> Any:
        """A sum over some dimensions of a parameter, counted from its last, of all parts where they divide one."""


@dataclass
class ParameterGroup:
    """Parameters of one element type, which are updated together.

    Attributes:
        names: of the parameters.
        weights: the parameters of the model.
        masters: what is updated: float32 copies of 16-bit parameters, or the parameters themselves.
        gradients: their gradients.
        states: the optimizer's own tensors by name, for each parameter in order; None where it has none of that name.
    """

    names: list[str]
    weights: list[Any]
    masters: list[Any]
    gradients: list[Any]
    states: dict[str, list[Any]]

    def only(self, at: Sequence[int]) -> ParameterGroup:
        """Some of the parameters."""
        states = {name: [own[i] for i in at] for name, own in self.states.items()}
        return ParameterGroup(
            [self.names[i] for i in at], [self.weights[i] for i in at], [self.masters[i] for i in at],
            [self.gradients[i] for i in at],
            {name: own for name, own in states.items() if any(t is not None for t in own)},
        )  # fmt: skip


class OptimizerRule(ABC):
    """How parameters follow their gradients; options are the fields of a dataclass."""

    @abstractmethod
    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        """Its own tensors for a parameter, by name.

        Args:
            name: of the parameter.
            shape: of it.
        """

    @abstractmethod
    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        """Append the update of a group as a list of operators, and put what is left of masters there."""

    def fused(self, step: StepBuilder, group: ParameterGroup) -> None:
        """The same as fused kernels do it, of PyTorch or of large-model frameworks."""
        self.update(step, group)


OPTIMIZERS: Registry[OptimizerRule] = Registry(
    "triosim.transform.optimizers", "triosim.optimizers", "optimizer", OptimizerRule
)
"""Optimizers, by the names of their files."""


def optimizer(text: str) -> OptimizerRule:
    """An optimizer as it is typed: ``adafactor`` or ``muon,steps=6``.

    Raises:
        InputError: there is no such optimizer or option.
    """
    name, *options = text.split(",")
    return configured(
        OPTIMIZERS.get(name.strip()), dict(one.partition("=")[::2] for one in options), f"optimizer {name.strip()}"
    )  # fmt: skip


# --- appending to a step ----------------------------------------------------------------------------------------------


def append(
    step: StepBuilder,
    how: OptimizerRule,
    names: Sequence[str],
    weights: Sequence[Any],
    gradients: Sequence[Any],
    fused: bool,
    masters: bool,
) -> None:
    """Append the update of parameters of one element type.

    Args:
        step: where to.
        how: which optimizer.
        names, weights, gradients: of the parameters.
        fused: as fused kernels.
        masters: keep a float32 copy of each parameter, which is updated and then copied into it; otherwise states are
            in the parameter's own type, as ``torch.optim`` makes them (``zeros_like``).
    """
    own = [how.states(name, w.shape) for name, w in zip(names, weights, strict=True)]
    if not masters:
        own = [_in_type(states, w.dtype) for states, w in zip(own, weights, strict=True)]
    kinds = dict.fromkeys(name for one in own for name in one)
    copies = [_state(step, (w.shape, "float32"), w) for w in weights] if masters else list(weights)
    states = {
        kind: [_state(step, one[kind], w) if kind in one else None for one, w in zip(own, weights, strict=True)]
        for kind in kinds
    }
    group = ParameterGroup(list(names), list(weights), copies, list(gradients), states)
    if fused:
        how.fused(step, group)
    else:
        if masters:
            group.gradients = [cast(step, g, "float32") for g in group.gradients]
        how.update(step, group)
    if masters:  # the copy overwrites the weights without reading them
        operator(step, "aten::_foreach_copy_", {"src": group.masters}, [step.overwritten(w) for w in weights])


def _in_type(states: Mapping[str, State], dtype: str) -> dict[str, State]:
    """States of a parameter in its type where they would be in float32."""
    return {kind: (shape, dtype if own == "float32" else own) for kind, (shape, own) in states.items()}


def _state(step: StepBuilder, state: State, weight: Any) -> Any:
    shape, dtype = state
    return step.tensor(shape, dtype, Category.OPTIMIZER_STATE, of=weight.value)


def cast(step: StepBuilder, tensor: Any, dtype: str, of: int = NONE) -> Any:
    """A copy in another element type; the tensor itself if it has that type already.

    Args:
        step: where to.
        tensor: what is copied.
        dtype: that type.
        of: the parameter that it is a part of the update of.
    """
    if tensor.dtype == dtype:
        return tensor
    made = step.tensor(tensor.shape, dtype, of=of)
    step.operator("aten::_to_copy", ("self",), (tensor,), (made,), {"dtype": dtype})
    return made


def operator(step: StepBuilder, name: str, lists: Mapping[str, Sequence[Any]], outputs: Sequence[Any]) -> None:
    """An operator of lists of tensors, by argument name in the order of its schema."""
    inputs = [(role, t) for role, tensors in lists.items() for t in tensors]
    step.operator(name, [role for role, _ in inputs], [t for _, t in inputs], outputs)


def in_place(step: StepBuilder, name: str, written: Sequence[Any], **read: Sequence[Any]) -> list[Any]:
    """``aten::name(written, read...)``; the next versions of ``written``."""
    outputs = [step.overwritten(t) for t in written]
    operator(step, f"aten::{name}", {"self": written, **read}, outputs)
    return outputs


def out_of_place(step: StepBuilder, name: str, first: Sequence[Any], **read: Sequence[Any]) -> list[Any]:
    """``aten::name(first, read...)``; new tensors like ``first``."""
    outputs = [step.tensor(t.shape, t.dtype) for t in first]
    operator(step, f"aten::{name}", {"self": first, **read}, outputs)
    return outputs


def made(
    step: StepBuilder, weight: Any, name: str, shape: Shape, args: Mapping[str, Any] | None = None, dtype: str = "",
    **reads: Any,
) -> Any:  # fmt: skip
    """``aten::name(reads...)``, a new tensor; what belongs to a weight is worked out on the stage that has it."""
    new = step.tensor(shape, dtype or next(iter(reads.values())).dtype, of=weight.value)
    step.operator(f"aten::{name}", tuple(reads), tuple(reads.values()), (new,), args)
    return new


def written(step: StepBuilder, name: str, tensor: Any, **reads: Any) -> Any:
    """``aten::name(tensor, reads...)``, which writes into the tensor."""
    left = step.overwritten(tensor)
    step.operator(f"aten::{name}", ("self", *reads), (tensor, *reads.values()), (left,))
    return left


def fused_kernel(step: StepBuilder, name: str, group: ParameterGroup, roles: Mapping[str, str]) -> None:
    """``aten::name`` of masters, gradients and states, which it writes but for the gradients.

    Args:
        step: where to.
        name: of the operator.
        group: what is updated.
        roles: names of its arguments by the names of the states.
    """
    states = {role: group.states[state] for state, role in roles.items()}
    after = [[step.overwritten(t) for t in tensors] for tensors in (group.masters, *states.values())]
    lists = {"self": group.masters, "grads": group.gradients, **states}
    operator(step, f"aten::{name}", lists, [t for tensors in after for t in tensors])
    group.masters = after[0]


def whole(step: StepBuilder, tensor: Any) -> Any:
    """All of a tensor, of which a rank may have a part (:meth:`StepOfParts.whole`)."""
    return step.whole(tensor) if isinstance(step, StepOfParts) else tensor


def part(step: StepBuilder, tensor: Any) -> Any:
    """What a rank has of a tensor that was whole (:meth:`StepOfParts.part`)."""
    return step.part(tensor) if isinstance(step, StepOfParts) else tensor


def total(step: StepBuilder, tensor: Any, dims: Sequence[int]) -> Any:
    """A sum over dimensions of a parameter, of which a rank may have a part (:meth:`StepOfParts.total`)."""
    return step.total(tensor, dims) if isinstance(step, StepOfParts) else tensor


# --- in a trace -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EditedTensor:
    """A tensor of a trace that is being edited."""

    value: int
    shape: Shape
    dtype: str


class SymbolicExtent(int):
    """A dimension that knows what it follows (:class:`~triosim.trace.tables.Values`), as a padded vocabulary."""

    symbol: int

    @staticmethod
    def of(shape: Sequence[int], symbols: Sequence[int]) -> Shape:
        """A shape made of such dimensions."""
        made = tuple(map(SymbolicExtent, shape))
        for extent, symbol in zip(made, symbols, strict=True):
            extent.symbol = symbol
        return made


class OptimizerSection:
    """The end of a trace, where its optimizer is written."""

    def __init__(self, edit: TraceRewriter) -> None:
        self.edit = edit
        self._last = len(edit.trace) - 1

    def held(self, value: int) -> EditedTensor:
        """A value of the trace."""
        shape = SymbolicExtent.of(self.edit.shape[value], self.edit.symbols[value])
        return EditedTensor(value, shape, DTYPES[self.edit.dtype[value]])

    def tensor(
        self, shape: Shape, dtype: str, category: Category = Category.TEMPORARY, *, of: int = NONE
    ) -> EditedTensor:
        """See :class:`StepBuilder`."""
        symbols = [extent.symbol if isinstance(extent, SymbolicExtent) else 0 for extent in shape]
        return self.held(self.edit.value(shape, dtype, category, of=of, symbols=symbols))

    def overwritten(self, base: EditedTensor) -> EditedTensor:
        """See :class:`StepBuilder`."""
        return self.held(self.edit.overwritten(base.value))

    def alias(self, base: EditedTensor, shape: Shape) -> EditedTensor:
        """See :class:`StepBuilder`."""
        return self.held(self.edit.view(base.value, shape, [0] * len(shape)))

    def operator(
        self, name: str, roles: Sequence[str], inputs: Sequence[EditedTensor], outputs: Sequence[EditedTensor],
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """See :class:`StepBuilder`."""
        return self.edit.listed(
            self._last, name, roles, [t.value for t in inputs], [t.value for t in outputs], Phase.OPTIMIZER, args
        )


def row_updates(trace: Trace) -> dict[int, list[int]]:
    """Parameters to rows of which sparse gradients are added, value ids, and the operators that do so.

    No optimizer has states of them: they follow by plain gradient descent, whatever the others do
    (:mod:`triosim.sources.models.dlrm`).
    """
    operators, values = trace.operators, trace.values
    rows = np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()
    if not any(operators.name[row] == _ADD_ROWS for row in rows):
        return {}
    parameter = {int(values.storage[v]): v for v in trace.weights().tolist()}
    reads, writes = operators.inputs.lists(), operators.outputs.lists()
    made = {int(values.storage[value]): row for row in rows for value in writes[row]}
    found: dict[int, list[int]] = {}
    for row in rows:
        weight = parameter.get(int(values.storage[writes[row][0]])) if operators.name[row] == _ADD_ROWS else None
        if weight is not None:
            scaled = [made[storage] for storage in map(int, values.storage[reads[row]]) if storage in made]
            found.setdefault(weight, []).extend(dict.fromkeys([*(one for one in scaled if one < row), row]))
    return found


_ADD_ROWS = "aten::index_add_"


def without_optimizer(edit: TraceRewriter, but: Iterable[int] = ()) -> None:
    """Take the optimizer out of a step, and what it keeps.

    Args:
        edit: the step.
        but: operators of it that stay.
    """
    edit.gone.update(set(np.flatnonzero(edit.trace.operators.phase == Phase.OPTIMIZER).tolist()).difference(but))
    for value, category in enumerate(edit.category):
        if category == Category.OPTIMIZER_STATE:
            edit.forget(value)


@dataclass(frozen=True)
class OwnOptimizer:
    """The optimizer of a step.

    Attributes:
        name: the likest of :data:`OPTIMIZERS`.
        fused: whether it runs as one operator.
        masters: whether 16-bit parameters have float32 copies.
    """

    name: str
    fused: bool
    masters: bool


def found_in(trace: Trace) -> OwnOptimizer:
    """The optimizer that a step runs, told by its operators, else by how many states a parameter has."""
    operators, values = trace.operators, trace.values
    rows = np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()
    names = [operators.name[row].rpartition("::")[2] for row in rows]
    storage, category = values.storage.tolist(), values.category.tolist()
    masters = any(
        "copy" in name and category[value] == Category.WEIGHT and DTYPES[values.dtype[value]] in _SIXTEEN
        for name, row in zip(names, rows, strict=True)
        for value in trace.operators.outputs.lists()[row]
    )
    fused = any("fused" in name for name in names)
    for known in ("adamw", "adam", "sgd"):
        if any(known in name for name in names):
            return OwnOptimizer(known, fused, masters)
    shapes = values.shape.lists()
    states: dict[int, set[int]] = {}
    for value, what in enumerate(category):
        of = int(values.of[value])
        if what == Category.OPTIMIZER_STATE and of >= 0 and shapes[value] == shapes[of]:
            states.setdefault(of, set()).add(storage[value])
    most = max(map(len, states.values()), default=0) - masters
    return OwnOptimizer("adamw" if most >= 2 else "sgd", fused, masters)


_SIXTEEN = ("bfloat16", "float16")


def update_all(
    edit: TraceRewriter, how: OptimizerRule, trained: Iterable[tuple[int, int]], fused: bool, masters: bool
) -> None:
    """Append an optimizer to a step that has none.

    Args:
        edit: the step.
        how: which.
        trained: parameters and their gradients, value ids.
        fused: as fused kernels.
        masters: 16-bit parameters have float32 copies.
    """
    end = OptimizerSection(edit)
    groups: dict[str, list[tuple[int, int]]] = {}
    for weight, gradient in trained:
        groups.setdefault(DTYPES[edit.dtype[weight]], []).append((weight, gradient))
    for dtype, pairs in groups.items():
        weights, gradients = [end.held(w) for w, _ in pairs], [end.held(g) for _, g in pairs]
        copied = masters and dtype in _SIXTEEN
        names = [edit.name(weight) for weight, _ in pairs]
        append(end, how, names, weights, gradients, fused, copied)


@kept(16)
def needs_whole_tensors(trace: Trace) -> bool:
    """Whether an optimizer multiplies matrices, so that a part of a parameter cannot be updated by itself."""
    operators = trace.operators
    rows = np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()
    return any(kind(operators.name[row]) in ("matmul", "linear") for row in rows)


def gradients_of(trace: Trace) -> list[tuple[int, int]]:
    """Parameters that are trained and the gradients that the optimizer finds, value ids, in order of registration."""
    values, operators = trace.values, trace.operators
    storage = values.storage.tolist()
    parameter = {storage[v]: v for v in trace.weights().tolist()}
    latest: dict[int, int] = {}
    shapes = values.shape.lists()
    gradients = np.flatnonzero((values.category == Category.GRADIENT) & (values.of >= 0)).tolist()
    for value in gradients:
        own = parameter.get(storage[int(values.of[value])])
        if own is not None and (shapes[value] == shapes[own] or own not in latest):
            latest[own] = value
    read = {
        storage[v]: v for row in np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()
        for v in reversed(operators.inputs.lists()[row])
    }  # fmt: skip
    return [(own, read.get(storage[latest[own]], latest[own])) for own in parameter.values() if own in latest]


@kept(8)
def optimized(trace: Trace, text: str) -> Trace:
    """The step with another optimizer.

    Args:
        trace: a training step.
        text: as of :func:`optimizer`; ``""`` leaves the step as it is.

    Raises:
        InputError: there is no such optimizer.
        PlanError: the step has no backward, or does not say which gradients belong to which parameters.
    """
    if not text:
        return trace
    if not np.any(trace.operators.phase == Phase.BACKWARD):
        raise PlanError(f"optimizer {text}: without a backward nothing is updated: leave it out")
    how = optimizer(text)
    trained = gradients_of(trace)
    if not trained:
        raise PlanError(
            f"optimizer {text}: {trace.meta.workload or 'the trace'!r} does not say which gradient belongs to which "
            "parameter: record the step with triosim trace record, or name a model"
        )
    before, by_rows = found_in(trace), row_updates(trace)
    from triosim.transform.rewriting import TraceRewriter

    edit = TraceRewriter(trace)
    without_optimizer(edit, (row for rows in by_rows.values() for row in rows))
    update_all(edit, how, [pair for pair in trained if pair[0] not in by_rows], before.fused, before.masters)
    left = f", but for the rows of {len(by_rows)} tables, which follow by plain gradient descent" if by_rows else ""
    return edit.build().noted(f"optimizer {text} instead of the step's own{left}")
