"""What an operator's schema says: which tensors it reads, which it writes, and the rest of its arguments."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from triosim.operators import CHANNELS_LAST, LAYOUT

OVERWRITES = frozenset({
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_",
    "geometric_", "_foreach_copy_", "_foreach_zero_",
})  # fmt: skip
"""In-place operators that write their first argument without reading it."""

HIDDEN_WRITES: dict[str, frozenset[str]] = {
    name: frozenset({"running_mean", "running_var"})
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats")
}
"""Arguments that are written in training although the schema does not say so."""

SYNCHRONISES = frozenset({
    "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "unique_consecutive",
    "_unique2", "bincount",
})  # fmt: skip
"""Operators whose result (or its size) the host needs before it can go on."""

PLACEMENT = frozenset({"device", "layout", "pin_memory", "generator"})
"""Arguments that say where or how something is kept, not what is computed."""

SKIPPED = frozenset({"prim", "prims", "profiler", "debugprims"})
"""Namespaces of calls that are no work of the device (``prim::device`` asks a tensor where it is)."""

COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Namespaces of communication."""


class SchemaArgument(NamedTuple):
    """One argument of a schema.

    Attributes:
        name: its name.
        written: the operator writes to it.
        read: the operator reads it.
    """

    name: str
    written: bool
    read: bool


class Signature(NamedTuple):
    """What is known of an operator before it is called.

    Attributes:
        name: ``"aten::addmm"``.
        base: ``"addmm"``.
        space: ``"aten"``.
        positional: all arguments in schema order.
        named: the same by name.
        metadata_only: it changes shape, strides or storage of its first argument in place, not the content (``t_``).
        aliases: for each return the argument that it is a view of (or is), by the schema, else -1.
        syncs: the host waits for its result.
        composite: it is made of other operators and does nothing itself.
    """

    name: str
    base: str
    space: str
    positional: tuple[SchemaArgument, ...]
    named: dict[str, SchemaArgument]
    metadata_only: bool
    aliases: tuple[int, ...]
    syncs: bool
    composite: bool


@functools.cache
def signature(func: torch._ops.OpOverload) -> Signature:
    """The signature of an overload."""
    schema = func._schema
    space, _, base = schema.name.partition("::")
    arguments = []
    for place, argument in enumerate(schema.arguments):
        written = bool(argument.alias_info and argument.alias_info.is_write)
        unread = argument.is_out or (place == 0 and base in OVERWRITES)
        arguments.append(SchemaArgument(argument.name, written, not (written and unread)))
    return Signature(
        name=schema.name,
        base=base,
        space=space,
        positional=tuple(arguments),
        named={a.name: a for a in arguments},
        metadata_only=torch.Tag.inplace_view in func.tags,
        aliases=tuple(_aliased(schema, place) for place in range(len(schema.returns))),
        syncs=base in SYNCHRONISES,
        composite=space not in SKIPPED
        and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
    )


def _aliased(schema: Any, place: int) -> int:
    """The argument that the return in ``place`` is a view of, or -1."""
    info = schema.returns[place].alias_info
    if info is None:
        return -1
    names = set(info.before_set) | set(info.after_set)
    candidates = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None]
    for i in candidates:
        if names & set(schema.arguments[i].alias_info.before_set):
            return i
    return candidates[0] if candidates else -1  # "Tensor(a)[]" does not repeat the letter where it can be read


class Arguments(NamedTuple):
    """The arguments of one call, sorted into what a trace keeps.

    Attributes:
        reads: tensors read, in schema order, lists flattened.
        roles: name of the argument that each of them belongs to.
        writes: tensors written.
        rest: everything else by name, ready for JSON.
    """

    reads: list[Tensor]
    roles: list[str]
    writes: list[Tensor]
    rest: dict[str, Any]


def arguments(known: Signature, args: tuple, kwargs: dict[str, Any]) -> Arguments:
    """Sort the arguments of a call."""
    sorted_ = Arguments([], [], [], {})
    for argument, given in zip(known.positional, args, strict=False):
        _sort(argument, given, sorted_)
    for name, given in kwargs.items():
        _sort(known.named[name], given, sorted_)
    hidden = HIDDEN_WRITES.get(known.base)
    if hidden and _training(known, args, kwargs):
        sorted_.writes.extend(t for t, role in zip(sorted_.reads, sorted_.roles, strict=True) if role in hidden)
    elif known.base.startswith("_fused_") and kwargs.get("grad_scale") is None:
        # The schema marks the gradients as written because unscaling may happen in place; without a scale it does not.
        gradients = {id(t) for t, role in zip(sorted_.reads, sorted_.roles, strict=True) if role == "grads"}
        sorted_.writes[:] = [t for t in sorted_.writes if id(t) not in gradients]
    if ("convolution" in known.base or "batch_norm" in known.base) and any(
        _side_by_side(t) for t, role in zip(sorted_.reads, sorted_.roles, strict=True) if role in _LAYS_OUT
    ):
        sorted_.rest[LAYOUT] = CHANNELS_LAST
    return sorted_


_LAYS_OUT = ("input", "self", "weight")
"""Arguments of a convolution whose layout decides in which it runs (``cudnn_conv_suggest_memory_format``); of a batch
norm it is the input (its weight is a vector)."""


def _side_by_side(tensor: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side, and could lie otherwise."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous()


def _training(known: Signature, args: tuple, kwargs: dict[str, Any]) -> bool:
    if "training" not in known.named:
        return True
    place = [a.name for a in known.positional].index("training")
    return bool(args[place] if place < len(args) else kwargs.get("training"))


def _sort(argument: SchemaArgument, given: Any, into: Arguments) -> None:
    if isinstance(given, Tensor):
        if argument.read:
            into.reads.append(given)
            into.roles.append(argument.name)
        if argument.written:
            into.writes.append(given)
    elif isinstance(given, (list, tuple)) and any(isinstance(item, (Tensor, list)) for item in given):
        for item in given:
            if isinstance(item, (Tensor, list)):
                _sort(argument, item, into)
    elif argument.name not in PLACEMENT:
        into.rest[argument.name] = plain(given)


def plain(given: Any) -> Any:
    """An argument that is no tensor as something that JSON can hold."""
    if given is None or isinstance(given, (bool, str)):
        return given
    if isinstance(given, int):
        return int(given)
    if isinstance(given, float):
        return float(given) if math.isfinite(given) else str(float(given))
    if isinstance(given, (list, tuple)):
        return [plain(item) for item in given]
    if isinstance(given, (torch.dtype, torch.layout, torch.memory_format)):
        return str(given).removeprefix("torch.")
    if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return plain(given.node.hint)
    return str(given)
