"""Guessing who made what, for sources that show shapes but no tensor identities.

The rule is stream order: what an operator reads is the most recent value of that shape and element type, one that
nothing has read yet before others.  What is better than a guess comes first: a weight is recognised by its argument's
name; the shape of a forward operator's output is that of the gradient which autograd hands to its backward; a backward
operator reads such a gradient and what its forward operator read, made or saved; and where autograd adds gradients
up, the value had further readers (a residual connection).  Traces made this way say so
(``meta.identity == "inferred"``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triosim.operators import GRADIENT_ROLES, canonical, is_backward, kind_named, reads_result, written_roles
from triosim.sources.readers._shapes import output_shapes
from triosim.sources.readers._step import (
    Argument,
    ObservedTensor,
    ObservedValue,
    OperatorRow,
    Shape,
    Storage,
    whole_value,
)
from triosim.trace.tables import Category, Phase

_OUTPUT_ROLES = ("output", "out", "result")
_SUMS = ("add", "stack", "cat")
_PRODUCTS = ("linear", "matmul")
_COUNTERS = ("int64", "int32")


class _ValuePool:
    """Values found by shape and element type, or by size."""

    def __init__(self, values: Iterable[ObservedValue] = ()) -> None:
        self.exact: dict[tuple[Shape, str], list[ObservedValue]] = {}
        self.sized: dict[tuple[int, str], list[ObservedValue]] = {}
        for value in values:
            self.add(value)

    def add(self, value: ObservedValue) -> None:
        self.exact.setdefault((value.shape, value.dtype), []).append(value)
        self.sized.setdefault((math.prod(value.shape), value.dtype), []).append(value)

    def find(
        self, tensor: ObservedTensor, accept: Callable[[ObservedValue], bool], exact: bool = True, depth: int = 64
    ) -> ObservedValue | None:
        """The accepted value of this shape, or of this size (another view; a transposed one first), added last."""
        table: Mapping[Any, list[ObservedValue]] = self.exact if exact else self.sized
        if not exact and tensor.elements <= 1:
            return None
        extent = tensor.shape if exact else tensor.elements
        keys = [(extent, tensor.dtype)] if tensor.dtype != "unknown" else [k for k in table if k[0] == extent]
        accepted = (v for key in keys for v in table.get(key, [])[: -depth - 1 : -1] if accept(v))
        if exact:
            return next(accepted, None)
        listed = list(accepted)
        turned = (value for value in listed if value.shape == tensor.shape[::-1])
        return next(turned, next(iter(listed), None))


class Inference:
    """Walks rows whose arguments have shapes but no identities.

    Args:
        expected: for a forward row (by ``id``) the tensors whose shapes its outputs have.
        incoming: for an autograd node (by ``id``) the shapes of the gradients that it was given.
        shared: forward rows (by ``id``) whose first input another operator reads later on: autograd adds up its
            gradients when it comes to them.
    """

    def __init__(
        self,
        expected: Mapping[int, Sequence[ObservedTensor]],
        incoming: Mapping[int, Sequence[Shape]] | None = None,
        shared: Collection[int] = (),
    ) -> None:
        self.expected = expected
        self.incoming = incoming or {}
        self.shared = shared
        self.everything = _ValuePool()
        self.made_backward = _ValuePool()
        self.local = _ValuePool()  # made by the autograd node at hand
        self.wanted = _ValuePool()
        self.in_node: set[int] = set()
        self.group: object = None
        self.consumed: set[int] = set()
        self.weights: list[tuple[OperatorRow, ObservedValue]] = []
        self.recomputed: set[int] = set()
        self.readers: dict[int, list[OperatorRow]] = {}
        self.gradient_of: dict[int, ObservedValue] = {}  # the gradient of a forward value, as far as it is known
        self.viewed: set[int] = set()  # values that are but views of others
        self.pending: list[OperatorRow] = []  # rows whose output's shape is not known yet, the most recent last

    def run(self, rows: Iterable[OperatorRow]) -> None:
        """Fill ``inputs``, ``roles`` and ``outputs``; rows without shapes get none."""
        for row in rows:
            if row.phase == Phase.OPTIMIZER:
                continue  # see :func:`updates`
            if row.group is not self.group:
                self.group, self.local, self.in_node = row.group, _ValuePool(), set()
            taken: list[ObservedValue] = []
            gradients = list(self.incoming.get(id(row.group), ()))
            for argument in row.arguments:
                value = self._input(row, argument, taken, self._is_gradient(row, argument, gradients))
                taken.append(value)
                if row.kind in _PRODUCTS and id(value) in self.in_node:
                    gradients.clear()  # the gradient comes in transposed: the other factor was saved
                row.inputs.append(value)
                row.roles.append(argument.role)
                value.storage.read_in.add(row.phase)
                if value.storage.first_read is None:
                    value.storage.first_read = (row, argument.role)
            self.consumed.update(id(v) for v in row.inputs)
            if row.phase == Phase.FORWARD:
                for value in row.inputs:
                    self.readers.setdefault(id(value), []).append(row)
            if id(row) in self.shared and row.inputs:
                self.wanted.add(row.inputs[0])
            row.outputs = self._outputs(row)
            for value in reversed(row.outputs):  # the first output is the likeliest to be read next
                self._add(value, row)
            if row.view:
                self.viewed.update(id(v) for v in row.outputs)
            if row.phase == Phase.BACKWARD and row.forward is not None and row.forward.inputs and row.outputs:
                source = row.forward.inputs[0]
                if math.prod(row.outputs[0].shape) == math.prod(source.shape):
                    self.gradient_of[id(source)] = row.outputs[0]

    def _add(self, value: ObservedValue, row: OperatorRow) -> None:
        self.everything.add(value)
        if row.phase == Phase.BACKWARD:
            self.made_backward.add(value)
            self.local.add(value)
            self.in_node.add(id(value))

    # --- inputs ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_gradient(row: OperatorRow, argument: Argument, incoming: list[Shape]) -> bool:
        """Whether an argument of a backward operator is a gradient rather than something saved.

        The operators of the backward pass by name tell; of any other operator that an autograd node calls, as many
        arguments as the node was given gradients of that shape, and all that are added up or put together.
        """
        if row.phase != Phase.BACKWARD:
            return False
        name, backward = canonical(row.name)
        if backward or argument.role in GRADIENT_ROLES:
            return argument.role in GRADIENT_ROLES
        if name in _SUMS:
            return True
        if argument.tensor.shape in incoming:
            incoming.remove(argument.tensor.shape)
            return True
        return False

    def _input(
        self, row: OperatorRow, argument: Argument, taken: Sequence[ObservedValue], gradient: bool
    ) -> ObservedValue:
        tensor = argument.tensor
        if row.phase in (Phase.FORWARD, Phase.RECOMPUTE) and argument.role in kind_named(row.kind).weights:
            return self._weight(row, tensor)

        def free(value: ObservedValue) -> bool:
            other = all(value.storage is not t.storage or value.offset != t.offset for t in taken)
            return other and value.version == value.storage.version

        if row.phase == Phase.BACKWARD:
            if gradient:
                found = (self._other_branch(row, free) if taken else None) or self._incoming(row, tensor, free)
            else:
                found = self._saved(row, argument, taken, free)
        elif argument.role == "target":
            found = self.everything.find(tensor, lambda value: free(value) and id(value) not in self.consumed)
        elif tensor.shape or tensor.dtype not in _COUNTERS:
            found = self._earlier(tensor, free) or self._claimed(row, tensor)
        else:
            found = None  # a counter (of batches seen, say): each is one of its own
        if found is None and row.phase == Phase.BACKWARD:
            found = self._earlier(tensor, free) or self._claimed(row, tensor)
        if found is None:
            found = Storage().value(tensor)
            self._add(found, row)
        if found.shape != tensor.shape:
            tensor = replace(tensor, dtype=found.dtype)
            found = found.storage.value(replace(tensor, offset=found.offset), found.version)
        return found

    def _incoming(
        self, row: OperatorRow, tensor: ObservedTensor, free: Callable[[ObservedValue], bool]
    ) -> ObservedValue | None:
        """A gradient: the most recent one of the shape; the first one of all was made after the forward pass.

        What an autograd node is given was made before it; only sums take what the node has just made.
        """
        if canonical(row.name)[0] not in _SUMS:
            before = self._incoming_from(tensor, lambda value: free(value) and id(value) not in self.in_node)
            if before is not None:
                return before
        return self._incoming_from(tensor, free)

    def _incoming_from(self, tensor: ObservedTensor, free: Callable[[ObservedValue], bool]) -> ObservedValue | None:
        return (
            self.made_backward.find(tensor, lambda value: free(value) and id(value) not in self.consumed, depth=8)
            or self.made_backward.find(tensor, free)
            or self.everything.find(tensor, lambda value: free(value) and id(value) not in self.consumed, depth=4)
            or self.made_backward.find(tensor, free, exact=False)
        )

    def _other_branch(self, row: OperatorRow, free: Callable[[ObservedValue], bool]) -> ObservedValue | None:
        """Where autograd adds up the gradients of a value that a residual connection reads too: that connection's
        gradient, which is the gradient of the sum."""
        if canonical(row.name)[0] != "add" or row.forward is None or not row.forward.inputs:
            return None
        for reader in self.readers.get(id(row.forward.inputs[0]), ()):
            if reader is not row.forward and canonical(reader.name)[0] == "add" and reader.outputs:
                found = self.gradient_of.get(id(reader.outputs[0]))
                if found is not None and free(found):
                    return found
        return None

    def _saved(
        self,
        row: OperatorRow,
        argument: Argument,
        taken: Sequence[ObservedValue],
        free: Callable[[ObservedValue], bool],
    ) -> ObservedValue | None:
        """What the node made itself, or its forward operator read, made, or must have saved."""
        tensor, forward = argument.tensor, row.forward
        if forward is not None and is_backward(row.name):
            return self._saved_by(row, forward, argument, taken)
        near = [*forward.inputs, *forward.outputs] if forward is not None else []
        if forward is not None and row.kind in _PRODUCTS and taken:
            # the gradient meets the weight, the transposed gradient the input
            turned = id(taken[0]) in self.in_node
            pairs = zip(forward.inputs, forward.roles, strict=True)
            weights = kind_named(forward.kind).weights
            near = [value for value, role in pairs if (role not in weights) == turned]
        pool = _ValuePool(reversed(near))

        def unread(value: ObservedValue) -> bool:
            return value not in taken

        def local(value: ObservedValue) -> bool:
            """A product is not factor of another in one node, and a view not seen through a second one."""
            if row.kind == "view":
                return free(value) and id(value) not in self.viewed
            maker = value.storage.creator
            product = maker is not None and maker.kind in _PRODUCTS and maker.group is row.group
            return free(value) and not (row.kind in _PRODUCTS and (product or id(value) in self.consumed))

        found = self.local.find(tensor, local)
        found = found or pool.find(tensor, unread)
        if row.kind in ("view", *_PRODUCTS):
            found = found or pool.find(tensor, unread, exact=False)
        return (
            found
            or self.made_backward.find(tensor, free, depth=8)
            or pool.find(tensor, unread, exact=False)
            or self.made_backward.find(tensor, free, exact=False, depth=8)
        )

    @staticmethod
    def _saved_by(
        row: OperatorRow, forward: OperatorRow, argument: Argument, taken: Sequence[ObservedValue]
    ) -> ObservedValue | None:
        """What a backward operator reads besides gradients: an argument of the same name, the input or the output of
        its forward operator, else something that one has saved (masks, indices, statistics)."""
        tensor, role = argument.tensor, argument.role
        from_output = reads_result(row.name, role)
        for value, name in zip(forward.inputs, forward.roles, strict=True):
            if not from_output and name == role and math.prod(value.shape) == tensor.elements:
                return value
        sides = (forward.outputs, forward.inputs) if from_output else (forward.inputs, forward.outputs)
        main = role in _OUTPUT_ROLES or role in ("self", "input", "other")
        near = [v for side in sides for v in side] if main else forward.outputs[1:]
        pool = _ValuePool(reversed(near))

        def unread(value: ObservedValue) -> bool:
            return value not in taken

        found = pool.find(tensor, unread) or (pool.find(tensor, unread, exact=False) if main else None)
        if found is None and tensor.shape:
            found = Storage(creator=forward, writer=forward).value(tensor)
            forward.outputs.append(found)
        return found

    def _earlier(self, tensor: ObservedTensor, free: Callable[[ObservedValue], bool]) -> ObservedValue | None:
        """The most recent value that nothing has read yet, else one that is known to be read again, else any."""

        def fresh(value: ObservedValue) -> bool:
            return id(value) not in self.consumed and free(value)

        again = self.wanted.find(tensor, free)
        return (
            self.everything.find(tensor, fresh, depth=8)
            or again
            or self.everything.find(tensor, fresh, exact=False, depth=8)
            or self.everything.find(tensor, free)
            or self.everything.find(tensor, free, exact=False)
        )

    def _claimed(self, row: OperatorRow, tensor: ObservedTensor) -> ObservedValue | None:
        """The output of the last operator of this phase, if its shape is not known otherwise."""
        if not self.pending or self.pending[-1].phase != row.phase or not tensor.elements:
            return None
        maker = self.pending.pop()
        value = Storage(creator=maker, writer=maker).value(tensor)
        if not value.storage.floating:
            return None
        maker.outputs.append(value)
        self._add(value, maker)
        return value

    def _weight(self, row: OperatorRow, tensor: ObservedTensor) -> ObservedValue:
        def cast(value: ObservedValue) -> bool:
            return value.storage.creator is not None and value.storage.creator.kind == "copy"

        if row.phase == Phase.RECOMPUTE:
            for _, value in reversed(self.weights):
                if (value.shape, value.dtype) == (tensor.shape, tensor.dtype) and id(value) not in self.recomputed:
                    self.recomputed.add(id(value))
                    return value

        def unread(value: ObservedValue) -> bool:
            return cast(value) and id(value) not in self.consumed

        found = self.everything.find(tensor, unread, depth=2)
        value = found if found is not None else Storage().value(tensor)
        if row.phase == Phase.FORWARD:
            self.weights.append((row, value))
        return value

    # --- outputs -----------------------------------------------------------------------------------------------------

    def _outputs(self, row: OperatorRow) -> list[ObservedValue]:
        written = written_roles(row.name)
        if written:
            return self._written(row, written)
        shapes = self._shapes(row)
        if shapes is None or (not row.inputs and not self.expected.get(id(row))):
            if row.inputs and row.works and shapes is None:
                self.pending = [*self.pending[-3:], row]
            return []
        dtype = self._dtype(row)
        if row.kind == "view" and not row.works and row.inputs:
            source = row.inputs[0]
            row.view = True
            parts = len(shapes) > 1  # unbind, split, chunk: one after another
            return [
                source.storage.value(
                    ObservedTensor(shape, source.dtype, offset=source.offset + parts * i * math.prod(shape)),
                    source.version,
                )
                for i, shape in enumerate(shapes)
            ]
        return [Storage(creator=row, writer=row).value(ObservedTensor(shape, dtype)) for shape in shapes]

    @staticmethod
    def _written(row: OperatorRow, written: frozenset[str]) -> list[ObservedValue]:
        outputs: list[ObservedValue] = []
        for value, role in zip(row.inputs, row.roles, strict=True):
            if role not in written and not (value is row.inputs[0] and "self" in written):
                continue
            storage = value.storage
            if row.kind == "view" and not row.works:
                continue
            storage.version += 1
            storage.written_in.add(row.phase)
            storage.writer = row
            outputs.append(storage.value(ObservedTensor(value.shape, value.dtype, offset=value.offset)))
        return outputs

    def _dtype(self, row: OperatorRow) -> str:
        known = self.expected.get(id(row))
        if known:
            return known[0].dtype
        floats = [v.dtype for v in row.inputs if v.storage.floating]
        if row.kind == "embedding" and not is_backward(row.name):
            return row.inputs[0].dtype
        return (floats or [v.dtype for v in row.inputs] or ["unknown"])[0]

    def _shapes(self, row: OperatorRow) -> list[Shape] | None:
        known = self.expected.get(id(row))
        return [t.shape for t in known] if known else output_shapes(row)


def updates(rows: Sequence[OperatorRow], weights: Sequence[Storage]) -> None:
    """Give the optimizer's operators the parameters, gradients and states that they must have read and written.

    Known for Adam and SGD on lists (``_foreach_*``, ``_fused_*``) when one operator updates all parameters, and for
    updates of one parameter at a time; anything else keeps no tensors.
    """
    gradients: dict[int, ObservedValue] = {}
    for row in rows:
        for value in row.outputs:
            if value.storage.category == Category.GRADIENT and value.storage.of is not None:
                gradients[id(value.storage.of)] = value
    states: dict[tuple[int, str], Storage] = {}

    def read(row: OperatorRow, weight: Storage, roles: Sequence[tuple[str, str]]) -> None:
        whole = whole_value(weight)
        for role, what in roles:
            if what == "gradient":
                if id(weight) not in gradients:
                    continue
                value = gradients[id(weight)]
            elif what == "weight":
                value = weight.value(ObservedTensor(whole.shape, whole.dtype))
            else:
                state = states.setdefault((id(weight), what), Storage(category=Category.OPTIMIZER_STATE, of=weight))
                value = state.value(ObservedTensor(whole.shape, whole.dtype))
            row.inputs.append(value)
            row.roles.append(role)
            value.storage.read_in.add(row.phase)
            if role == "self" or (what != "gradient" and row.name.startswith("aten::_fused")):
                value.storage.version += 1
                value.storage.written_in.add(row.phase)
                row.outputs.append(value.storage.value(ObservedTensor(value.shape, value.dtype)))

    steps = [row for row in rows if row.phase == Phase.OPTIMIZER]
    names = [canonical(row.name)[0] for row in steps]
    divides = any(name in ("addcdiv", "_foreach_addcdiv") or name.startswith("_fused") for name in names)
    last_add = max((i for i, name in enumerate(names) if name == "_foreach_add"), default=-1)
    waiting = list(weights)
    for i, (row, name) in enumerate(zip(steps, names, strict=True)):
        roles = _UPDATES.get(name)
        if roles and names.count(name) == 1:
            for role in dict.fromkeys(roles):
                for weight in weights:
                    read(row, weight, [role])
        elif i == last_add and not divides:
            for role in (("self", "weight"), ("other", "gradient")):
                for weight in weights:
                    read(row, weight, [role])
        elif name == "addcdiv" or (name == "add" and not divides):
            shape = row.arguments[0].tensor.shape if row.arguments else None
            updated = next((w for w in waiting if whole_value(w).shape == shape), None)
            if updated is not None and shape:
                waiting.remove(updated)
                read(row, updated, [("self", "weight"), ("tensor1" if name == "addcdiv" else "other", "gradient")])


_UPDATES: dict[str, tuple[tuple[str, str], ...]] = {
    "_foreach_lerp": (("self", "first"), ("tensors1", "gradient")),
    "_foreach_addcmul": (("self", "second"), ("tensor1", "gradient")),
    "_foreach_addcdiv": (("self", "weight"), ("tensor1", "first"), ("tensor2", "second")),
    "_fused_adam": (("self", "weight"), ("grads", "gradient"), ("exp_avgs", "first"), ("exp_avg_sqs", "second")),
    "_fused_adamw": (("self", "weight"), ("grads", "gradient"), ("exp_avgs", "first"), ("exp_avg_sqs", "second")),
    "_fused_sgd": (("self", "weight"), ("grads", "gradient")),
}
"""What the lists of an optimizer's operator hold, as (argument name, what): "first" and "second" are Adam's moments."""


def find_parameters(rows: Sequence[OperatorRow], accumulated: Sequence[Shape]) -> None:
    """Mark as parameters what the forward pass reads without having made it, for which autograd accumulates a gradient
    of that shape, and which no argument's name gave away (an embedding of positions that is simply added).

    Args:
        rows: rows with inferred inputs.
        accumulated: shapes of the gradients that autograd accumulated.
    """
    waiting = Counter(accumulated)
    others: dict[int, ObservedValue] = {}
    known: set[int] = set()
    for row in rows:
        if row.phase == Phase.FORWARD:
            for value, role in zip(row.inputs, row.roles, strict=True):
                if (
                    role in ("weight", "bias")
                    and role in kind_named(row.kind).weights
                    and id(value.storage) not in known
                ):
                    known.add(id(value.storage))
                    waiting[value.shape] -= 1
                elif value.storage.creator is None and value.storage.floating:
                    others.setdefault(id(value.storage), value)
    for key, value in others.items():
        if key not in known and waiting[value.shape] > 0:
            waiting[value.shape] -= 1
            value.storage.parameter = True
