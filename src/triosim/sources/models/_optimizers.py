"""The optimizer's part of the step, as PyTorch runs it on a CUDA device.

By default PyTorch updates all parameters of one element type with a short list of ``_foreach`` operators; asked for
``fused=True``, and in the optimizers of large-model frameworks, one operator does it all.  Step counters, which
live on the host by default, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.trace.tables import Category, Phase


@dataclass
class ParameterGroup:
    """Parameters that are updated together.

    Attributes:
        weights: the parameters of the model.
        masters: what is updated: float32 copies of 16-bit parameters, or the parameters themselves.
        gradients: their gradients.
        states: the optimizer's own tensors by name, each a list with one per parameter.
    """

    weights: list[Tensor]
    masters: list[Tensor]
    gradients: list[Tensor]
    states: dict[str, list[Tensor]]


Update = Callable[[Net, ParameterGroup], None]


def optimize(net: Net, optimizer: str, fused: bool | None = None) -> None:
    """Append the update of every parameter of ``net`` that has a gradient.

    Parameters in a 16-bit type keep a float32 master copy beside the optimizer's float32 states: 16 bytes per parameter
    with AdamW (2 weight, 2 gradient, 4 master, 4 + 4 moments), as in ZeRO (Rajbhandari et al., arXiv:1910.02054,
    section 3.1).  Rows of tables with sparse gradients are moved by plain gradient descent.

    Args:
        net: the step after its backward.
        optimizer: one of :data:`OPTIMIZERS`.
        fused: one fused operator instead of the list of ``_foreach`` ones; None means PyTorch's default (not fused) for
            float32 parameters and, as large-model frameworks do, fused where there are master copies, because the
            list would need float32 copies of all gradients at once; it also follows ``net.fused``.
    """
    names, foreach_update, fused_update = OPTIMIZERS[optimizer]
    trained = [w for w in net.parameters.values() if w.grad is not None and w.storage not in net.looked_up]
    groups = ([w for w in trained if w.dtype == "float32"], [w for w in trained if w.dtype != "float32"])
    net.phase = Phase.OPTIMIZER
    for w in net.parameters.values():
        if w.grad is not None and w.storage in net.looked_up:
            _descend(net, w, w.grad, net.looked_up[w.storage])
    for weights, mixed in zip(groups, (False, True), strict=True):
        if not weights:
            continue
        masters = _states(net, weights) if mixed else weights
        states = {name: _states(net, weights) for name in names}
        group = ParameterGroup(weights, masters, [w.grad for w in weights if w.grad is not None], states)
        if fused or (fused is None and (mixed or net.fused)):
            fused_update(net, group)
        else:
            if mixed:
                group.gradients = [net.to(g, "float32") for g in group.gradients]
            foreach_update(net, group)
        if mixed:  # the copy overwrites the weights without reading them
            _operator(net, "_foreach_copy_", {"src": group.masters}, [net.overwritten(w) for w in weights])


def _descend(net: Net, table: Tensor, gradient: Tensor, rows: Tensor) -> None:
    """Add a sparse gradient to the rows of a table that it is of, as ``add_`` of a sparse tensor does on a device."""
    step = net.scaled(gradient)
    roles = ("self", "index", "source")
    net.operator("aten::index_add_", roles, (table, rows, step), (net.overwritten(table),), {"dim": 0})


def _states(net: Net, weights: Iterable[Tensor]) -> list[Tensor]:
    return [net.tensor(w.shape, "float32", Category.OPTIMIZER_STATE, of=w.value) for w in weights]


def _operator(net: Net, name: str, lists: Mapping[str, Sequence[Tensor]], outputs: Sequence[Tensor]) -> None:
    """``aten::name`` of lists of tensors, by argument name in the order of its schema."""
    inputs = [(role, t) for role, tensors in lists.items() for t in tensors]
    net.operator(f"aten::{name}", [role for role, _ in inputs], [t for _, t in inputs], outputs)


def _in_place(net: Net, name: str, written: Sequence[Tensor], **read: Sequence[Tensor]) -> list[Tensor]:
    """``aten::name(written, read...)``; the next versions of ``written``."""
    outputs = [net.overwritten(t) for t in written]
    _operator(net, name, {"self": written, **read}, outputs)
    return outputs


def _out_of_place(net: Net, name: str, first: Sequence[Tensor], **read: Sequence[Tensor]) -> list[Tensor]:
    """``aten::name(first, read...)``; new tensors like ``first``."""
    outputs = [net.tensor(t.shape, t.dtype) for t in first]
    _operator(net, name, {"self": first, **read}, outputs)
    return outputs


def _adamw(net: Net, group: ParameterGroup) -> None:
    group.masters = _in_place(net, "_foreach_mul_", group.masters)  # weight decay
    _adam(net, group)


def _adam(net: Net, group: ParameterGroup) -> None:
    gradients = group.gradients
    mean = _in_place(net, "_foreach_lerp_", group.states["exp_avg"], tensors1=gradients)
    square = _in_place(net, "_foreach_mul_", group.states["exp_avg_sq"])
    square = _in_place(net, "_foreach_addcmul_", square, tensor1=gradients, tensor2=gradients)
    root = _out_of_place(net, "_foreach_sqrt", square)
    root = _in_place(net, "_foreach_div_", root)  # bias correction
    root = _in_place(net, "_foreach_add_", root)  # epsilon
    group.masters = _in_place(net, "_foreach_addcdiv_", group.masters, tensor1=mean, tensor2=root)


def _sgd(net: Net, group: ParameterGroup) -> None:
    gradients = _out_of_place(net, "_foreach_add", group.gradients, other=group.masters)  # weight decay
    momentum = _in_place(net, "_foreach_mul_", group.states["momentum_buffer"])
    momentum = _in_place(net, "_foreach_add_", momentum, other=gradients)
    group.masters = _in_place(net, "_foreach_add_", group.masters, other=momentum)


def _fused(name: str, *roles: str) -> Update:
    def update(net: Net, group: ParameterGroup) -> None:
        states = dict(zip(roles, group.states.values(), strict=True))
        after = [[net.overwritten(t) for t in tensors] for tensors in (group.masters, *states.values())]
        lists = {"self": group.masters, "grads": group.gradients, **states}
        _operator(net, name, lists, [t for tensors in after for t in tensors])
        group.masters = after[0]

    return update


_MOMENTS = ("exp_avg", "exp_avg_sq")

OPTIMIZERS: dict[str, tuple[tuple[str, ...], Update, Update]] = {
    "adamw": (_MOMENTS, _adamw, _fused("_fused_adamw_", "exp_avgs", "exp_avg_sqs")),
    "adam": (_MOMENTS, _adam, _fused("_fused_adam_", "exp_avgs", "exp_avg_sqs")),
    "sgd": (("momentum_buffer",), _sgd, _fused("_fused_sgd_", "momentum_buffer_list")),
}
"""By name: the optimizer's states, its update as a list of operators, and fused.  SGD has momentum and weight decay."""
