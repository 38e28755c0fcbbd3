"""What a framework does with gradients besides making them: adds up those of micro-batches, checks and clips them.

The step becomes another step, with these operators in it; time and memory follow from it alone.

* Between micro-batches the gradient of each parameter is added to what is there: in the parameter's type
  (``AccumulateGrad`` of PyTorch, from the second micro-batch on), or in float32 *main gradients* that are there
  throughout: 4 bytes a parameter more, in exchange for the 16-bit gradients, which then live only until they are added
  (Megatron-LM's ``accumulate_allreduce_grads_in_fp32``).  DeepSpeed's ``BF16_Optimizer`` copies each to float32 first
  (``lp.grad.data.to(hp_grad.dtype)``) and adds the copy: 18 bytes a parameter are moved instead of 10.  Megatron-LM's
  ``gradient_accumulation_fusion`` lets the product that makes a weight's gradient add it, to main gradients of either
  type.  A layer that has such a product has a backward of its own, in which the gradient of its input comes first, so
  that what is sent of it travels beside that product (``LinearWithGradAccumulationAndAsyncCommunication``; Transformer
  Engine's ``_Linear``); PyTorch's ``mm`` makes the gradient of the weight first.
* Where gradients are scattered among the replicas in every micro-batch, nothing whole is added up.  In a pipeline they
  wait for the last one, whole, and PyTorch's ``fully_shard`` adds them up in the type in which it reduces: the first
  is copied to it, the others are added (``to_accumulated_grad_if_needed``, ``accumulate_unsharded_grad_if_needed`` in
  ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``); what they are added to is there from the first backward to
  the reduction.
* Before the optimizer, float16 gradients are copied to float32 by those who keep master weights of their own
  (Megatron-LM's ``_copy_model_grads_to_main_grads``, Apex), which is what the rest works on; the copies are freed after
  the step.  Gradients are checked and unscaled (float16 with a scaled loss), their norm is found, and they are
  scaled by it (``clip_grad_norm_``); main gradients are set to zero for the next iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.partition.gradients import Gradient, gradients
from triosim.stacks import Stack
from triosim.trace.calls import count_work
from triosim.trace.repeated import ROOM
from triosim.trace.tables import ITEM_BYTES, NONE, Category, Phase, Trace

ADDS, CASTS = "aten::add_", "aten::_to_copy"
ACCUMULATOR = "accumulator"
"""Role of what a product adds its result to."""
_PRODUCTS = ("aten::mm",)
FUSED = "-fused"
"""How the ways of adding gradients up end in which the product that makes a weight's gradient adds it."""
_SIXTEEN = (DTYPE_CODE["float16"], DTYPE_CODE["bfloat16"])
NEVER, AT_ONCE, AT_THE_END = "never", "at once", "at the end"
"""When gradients are scattered among the replicas: not, in every micro-batch, or after the last one."""


def when_scattered(scattered: bool, waits: bool) -> str:
    """When gradients that are scattered, or not, are."""
    return (AT_THE_END if waits else AT_ONCE) if scattered else NEVER


def with_main_gradients(trace: Trace, stack: Stack, micro_batches: int, scattered: str = NEVER) -> Trace:
    """The step with what ``stack`` does with its gradients; one object for all plans that do the same with them.

    Args:
        trace: a training step of one micro-batch.
        stack: what is done.
        micro_batches: how often the step's forward and backward run before the optimizer.
        scattered: when gradients are scattered among the replicas (:data:`NEVER`, :data:`AT_ONCE`, so that nothing
            whole is added up, or :data:`AT_THE_END`).
    """
    return _with_main_gradients(trace, stack, micro_batches > 1, scattered)


@kept(64, room=ROOM, size=len)
def _with_main_gradients(trace: Trace, stack: Stack, several: bool, scattered: str) -> Trace:
    """The step where there are several micro-batches, or one."""
    found = gradients(trace)
    if not found or not np.any(trace.operators.phase == Phase.OPTIMIZER):
        return trace
    edit, mode = _Edit(trace), _mode(trace, stack)
    latest = {g.parameter: edit.read_by_optimizer(g) for g in found}
    if stack.gradients.endswith(FUSED):
        edit.weights_last(found)
    if scattered != AT_ONCE:
        reduced = stack.reduce if scattered == AT_THE_END else "gradient"
        if mode != "parameter":
            for g in found:
                edit.to_main(g, latest, mode)
        elif reduced != "gradient":
            for g in found:
                edit.add_in_type(g, latest, DTYPE_CODE[reduced], several)
        elif several:
            for g in found:
                edit.add_in_place(g, latest)
    order = [g.parameter for g in found]
    half = bool(np.any(trace.values.dtype[trace.weights()] == DTYPE_CODE["float16"]))
    if stack.copied_gradients and half:
        edit.copied(order, latest)
    if stack.loss_scale and half:
        edit.overwrite("aten::_amp_foreach_non_finite_check_and_unscale_", order, latest)
    if stack.clip:
        edit.norm(order, latest)
        edit.overwrite("aten::_foreach_mul_", order, latest)
    if mode != "parameter" and scattered == NEVER:
        edit.zero(order, latest)
    return edit.build() if edit.changed else trace


def _mode(trace: Trace, stack: Stack) -> str:
    """Where gradients are added up: those of float16 parameters in no wider type."""
    types = set(trace.values.dtype[trace.weights()].tolist())
    brain, half = (DTYPE_CODE[name] in types for name in ("bfloat16", "float16"))
    return stack.gradients if brain or (half and not stack.gradients.startswith("float32")) else "parameter"


def often(trace: Trace, stack: Stack, micro_batches: int) -> NDArray[np.float64]:
    """Part of the micro-batches in which each operator runs, shape ``(operators,)``.

    Gradients in the parameters' type are handed over in the first micro-batch, or copied to the type in which they are
    added up, and added in the others; the time of an addition is spread over all, and that of a copy is told by the
    bytes that it moves.
    """
    out = np.ones(len(trace))
    if _mode(trace, stack) != "parameter":
        return out
    operators, values = trace.operators, trace.values
    adds = np.array([name == ADDS for name in operators.name], bool)
    rows = np.flatnonzero(adds & (operators.phase == Phase.BACKWARD) & (operators.outputs.lengths() > 0))
    made = operators.outputs.values[operators.outputs.offsets[rows]]
    summed = (values.category[made] == Category.GRADIENT) & (values.of[made] >= 0)
    rows, made = rows[summed], made[summed]
    added = operators.inputs.values[operators.inputs.offsets[rows] + 1]
    one, whole = ITEM_BYTES[values.dtype[added]], ITEM_BYTES[values.dtype[made]]
    copied = np.where(values.dtype[added] == values.dtype[made], 0.0, (one + whole) / (one + 2.0 * whole))
    out[rows] = (micro_batches - 1 + copied) / micro_batches
    return out


@dataclass
class _Row:
    """An operator that is added: after row ``after`` of the trace, reading ``inputs`` in ``roles``."""

    after: float
    name: str
    phase: int
    like: int
    inputs: list[int]
    roles: list[str]
    outputs: list[int]


@dataclass
class _Edit:
    """A trace that is being changed."""

    trace: Trace
    rows: list[_Row] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    columns: list[tuple[int, int, int, int]] = field(default_factory=list)  # storage, version, dtype, of
    categories: list[int] = field(default_factory=list)
    places: dict[int, float] = field(default_factory=dict)  # rows that are run elsewhere
    changed: bool = False

    def __post_init__(self) -> None:
        values, operators = self.trace.values, self.trace.operators
        self.storage, self.version = values.storage.copy(), values.version.copy()
        self.dtype, self.category, self.of = values.dtype.copy(), values.category.copy(), values.of.copy()
        self.inputs, self.outputs = list(operators.inputs.lists()), operators.outputs.lists()
        self.roles = list(operators.roles.lists())  # the lists are shared; rows of a copy are replaced
        self.role_names = list(operators.role_names)
        self.on: dict[int, list[int]] = {}
        for value, where in enumerate(values.storage.tolist()):
            self.on.setdefault(where, []).append(value)
        self.touches: dict[int, list[int]] = {}
        for row, (reads, writes) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            for value in {*reads, *writes}:
                self.touches.setdefault(int(values.storage[value]), []).append(row)
        self.optimizer = np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist()
        self.reads: dict[int, list[tuple[int, int]]] = {}  # value -> rows of the optimizer that read it, and where
        for row in self.optimizer:
            self.inputs[row] = list(self.inputs[row])
            for place, value in enumerate(self.inputs[row]):
                self.reads.setdefault(value, []).append((row, place))
        self.storages = int(values.storage.max(initial=-1)) + 1
        self.scalar = -1

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, like: int, storage: int, version: int, dtype: int, of: int, category: int) -> int:
        """A new value with the shape of ``like``."""
        self.origin.append(like)
        self.columns.append((storage, version, dtype, of))
        self.categories.append(category)
        return len(self.trace.values) + len(self.origin) - 1

    def read_by_optimizer(self, g: Gradient) -> int:
        """The gradient as the optimizer reads it, or as it was last written."""
        on = self.on[g.storage]
        read = [(*where, value) for value in on for where in self.reads.get(value, ())]
        return int(min(read)[2] if read else max(on, key=lambda v: int(self.version[v])))

    def _last(self, g: Gradient) -> int:
        """The last row of the backward that writes or views the gradient."""
        phase = self.trace.operators.phase
        return int(max(row for row in self.touches[g.storage] if phase[row] != Phase.OPTIMIZER))

    def _swap(self, g: Gradient, new: int) -> None:
        """The optimizer reads ``new`` instead of what is on the gradient's storage."""
        for value in self.on[g.storage]:
            self._read_instead(value, new)

    def _read_instead(self, value: int, new: int) -> None:
        """The optimizer reads ``new`` instead of ``value``."""
        places = self.reads.pop(value, [])
        for row, place in places:
            self.inputs[row][place] = new
        self.reads.setdefault(new, []).extend(places)

    def weights_last(self, found: Sequence[Gradient]) -> None:
        """The product that makes a weight's gradient comes after that of the layer's input, where it came before."""
        operators = self.trace.operators
        forward: list[int] = operators.forward.tolist()
        products: dict[int, int] = {}  # row of the forward -> its last product in the backward
        for row in np.flatnonzero(operators.phase == Phase.BACKWARD).tolist():
            if operators.name[row] in _PRODUCTS and forward[row] >= 0:
                products[forward[row]] = row
        for g in found:
            last = products.get(forward[g.ready], NONE)
            if operators.name[g.ready] in _PRODUCTS and last > g.ready:
                moved = [row for row in dict.fromkeys(self.touches[g.storage]) if g.ready <= row < last]
                for at, row in enumerate(moved):  # the product, and views of what it makes
                    self.places[row] = last + 0.1 + 0.1 * at / len(moved)
                self.changed = True

    # --- micro-batches ------------------------------------------------------------------------------------------------

    def add_in_place(self, g: Gradient, latest: dict[int, int]) -> None:
        """Each micro-batch's gradient is added to what is there, in its own type."""
        self._accumulate(g, latest, int(self.dtype[latest[g.parameter]]))

    def add_in_type(self, g: Gradient, latest: dict[int, int], dtype: int, several: bool) -> None:
        """Gradients of another type than the one they are added up in are copied to it, if only to be reduced."""
        if several or dtype != int(self.dtype[latest[g.parameter]]):
            self._accumulate(g, latest, dtype)

    def to_main(self, g: Gradient, latest: dict[int, int], mode: str) -> None:
        """Gradients are added to what is there throughout, in the way that is called ``mode``."""
        operators, own = self.trace.operators, int(self.dtype[latest[g.parameter]])
        dtype = DTYPE_CODE["float32"] if mode.startswith("float32") else own
        product = operators.name[g.ready] in _PRODUCTS and len(self.outputs[g.ready]) == 1
        if own not in _SIXTEEN or not mode.endswith(FUSED) or not product:
            self._accumulate(g, latest, dtype, copied=own != dtype and mode.endswith("-copied"))
            return
        made = self.outputs[g.ready][0]
        before = self.value(made, g.storage, 0, dtype, g.parameter, Category.GRADIENT)
        for value in self.on[g.storage]:
            self.dtype[value], self.version[value] = dtype, self.version[value] + 1
        self.inputs[g.ready] = [*self.inputs[g.ready], before]
        self.roles[g.ready] = [*self.roles[g.ready], self._role(ACCUMULATOR)]
        self.changed = True

    def _accumulate(self, g: Gradient, latest: dict[int, int], dtype: int, copied: bool = False) -> None:
        made = added = latest[g.parameter]
        place = self._last(g) + 0.5
        if copied:
            added = self.value(made, self.storages, 0, dtype, NONE, Category.TEMPORARY)
            self.storages += 1
            self.rows.append(_Row(place - 0.1, CASTS, Phase.BACKWARD, g.ready, [made], ["self"], [added]))
        storage = self.storages
        self.storages += 1
        before = self.value(made, storage, 0, dtype, g.parameter, Category.GRADIENT)
        after = self.value(made, storage, 1, dtype, g.parameter, Category.GRADIENT)
        self.rows.append(_Row(place, ADDS, Phase.BACKWARD, g.ready, [before, added], ["self", "other"], [after]))
        self._swap(g, after)
        for value in self.on[g.storage]:
            self.category[value], self.of[value] = Category.TEMPORARY, NONE
        latest[g.parameter] = after
        self.changed = True

    # --- before and after the optimizer -------------------------------------------------------------------------------

    def overwrite(self, name: str, order: Sequence[int], latest: dict[int, int]) -> None:
        """One operator that reads all gradients and writes them."""
        read = [latest[p] for p in order]
        written = [self._next(latest[p], p) for p in order]
        self._before_optimizer(name, read, written)
        for before, after in zip(read, written, strict=True):
            self._read_instead(before, after)
        for parameter, value in zip(order, written, strict=True):
            latest[parameter] = value

    def copied(self, order: Sequence[int], latest: dict[int, int]) -> None:
        """One operator that copies all gradients to float32, which the optimizer reads instead."""
        single = DTYPE_CODE["float32"]
        read = [latest[p] for p in order]
        written = []
        for parameter, value in zip(order, read, strict=True):
            written.append(self.value(self._origin(value), self.storages, 0, single, parameter, Category.TEMPORARY))
            self.storages += 1
        self._before_optimizer("aten::_foreach_copy_", read, written, role="src")
        for parameter, before, after in zip(order, read, written, strict=True):
            self._read_instead(before, after)
            latest[parameter] = after

    def norm(self, order: Sequence[int], latest: dict[int, int]) -> None:
        """One operator that reads all gradients; its results are a number each, which weigh nothing."""
        self._before_optimizer("aten::_foreach_norm", [latest[p] for p in order], [])

    def zero(self, order: Sequence[int], latest: dict[int, int]) -> None:
        """One operator that writes all gradients."""
        written = [self._next(latest[p], p) for p in order]
        last = self.optimizer[-1]
        self.rows.append(_Row(last + 0.5, "aten::_foreach_zero_", Phase.OPTIMIZER, last, [], [], written))
        self.changed = True

    def _before_optimizer(self, name: str, read: list[int], written: list[int], role: str = "self") -> None:
        first = self.optimizer[0]
        place = first - 0.5 + 0.01 * len(self.rows) / (1 + len(self.rows))
        self.rows.append(_Row(place, name, Phase.OPTIMIZER, first, read, [role] * len(read), written))
        self.changed = True

    def _next(self, value: int, parameter: int) -> int:
        """The next version of a value."""
        storage, version, dtype = self._facts(value)
        count = len(self.trace.values)
        copied = value >= count and self.categories[value - count] == Category.TEMPORARY
        category = Category.TEMPORARY if copied else Category.GRADIENT
        return self.value(self._origin(value), storage, version + 1, dtype, parameter, category)

    def _facts(self, value: int) -> tuple[int, int, int]:
        count = len(self.trace.values)
        if value >= count:
            return self.columns[value - count][:3]
        return int(self.storage[value]), int(self.version[value]), int(self.dtype[value])

    def _origin(self, value: int) -> int:
        count = len(self.trace.values)
        return self.origin[value - count] if value >= count else value

    def _role(self, name: str) -> int:
        if name not in self.role_names:
            self.role_names.append(name)
        return self.role_names.index(name)

    # --- the new trace ------------------------------------------------------------------------------------------------

    def build(self) -> Trace:
        """The changed trace, its work counted anew."""
        trace, count, more = self.trace, len(self.trace), len(self.rows)
        values, operators = trace.values, trace.operators
        origin = np.array(self.origin, np.int64)
        column = np.array(self.columns, np.int64).reshape(-1, 4)
        changed = replace(
            values,
            storage=np.append(self.storage, column[:, 0]).astype(np.int32),
            version=np.append(self.version, column[:, 1]).astype(np.int32),
            offset=np.append(values.offset, values.offset[origin]),
            shape=Ragged.stacked([values.shape, values.shape.take(origin)]),
            dtype=np.append(self.dtype, column[:, 2]).astype(np.int8),
            category=np.append(self.category, np.array(self.categories, np.int8)).astype(np.int8),
            of=np.append(self.of, column[:, 3]).astype(np.int32),
            name=(*values.name, *("" for _ in self.origin)),
            symbols=Ragged.stacked([values.symbols, values.symbols.take(origin)]),
        )
        place = np.append(np.arange(count, dtype=np.float64), [row.after for row in self.rows])
        place[list(self.places)] = list(self.places.values())
        order = np.argsort(place, kind="stable")
        new_row = np.full(count + 1, NONE, np.int32)
        new_row[order[order < count]] = np.flatnonzero(order < count)
        like = np.append(np.arange(count), np.array([row.like for row in self.rows], np.int64))[order]
        added = order >= count
        inputs = [*self.inputs, *(row.inputs for row in self.rows)]
        outputs = [*self.outputs, *(row.outputs for row in self.rows)]
        roles = [*self.roles, *([self._role(name) for name in row.roles] for row in self.rows)]
        name = [*operators.name, *(row.name for row in self.rows)]
        phase = np.append(operators.phase, np.array([row.phase for row in self.rows], np.int8))
        args = [*operators.args, *("{}" for _ in range(more))]
        listed = order.tolist()
        made = replace(
            operators,
            name=tuple(name[i] for i in listed),
            phase=phase[order].astype(np.int8),
            module=operators.module[like],
            inputs=Ragged.of([inputs[i] for i in listed], np.int32),
            roles=Ragged.of([roles[i] for i in listed], np.int32),
            role_names=tuple(self.role_names),
            outputs=Ragged.of([outputs[i] for i in listed], np.int32),
            args=tuple(args[i] for i in listed),
            forward=new_row[operators.forward[like]].astype(np.int32),
            view=np.where(added, False, operators.view[like]),
            sync=np.where(added, False, operators.sync[like]),
            device_s=np.where(added, np.nan, operators.device_s[like]),
            host_s=np.where(added, np.nan, operators.host_s[like]),
            flop=np.where(added, 0.0, operators.flop[like]),
            bytes=np.where(added, 0.0, operators.bytes[like]),
        )
        return count_work(replace(trace, values=changed, operators=made))
