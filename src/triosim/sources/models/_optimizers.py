"""The optimizer's part of the step of a model by name, as PyTorch runs it on a CUDA device.

By default PyTorch updates all parameters of one element type with a short list of ``_foreach`` operators; asked for
``fused=True``, and in the optimizers of large-model frameworks, one operator does it all.  What each optimizer does is
said in :mod:`triosim.transform.optimizers`.
"""

from __future__ import annotations

from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.trace.tables import Phase
from triosim.transform.optimizing import append
from triosim.transform.optimizing import optimizer as optimizer_of


def optimize(net: Net, optimizer: str, fused: bool | None = None) -> None:
    """Append the update of every parameter of ``net`` that has a gradient.

    Parameters in a 16-bit type keep a float32 master copy beside the optimizer's float32 states: 16 bytes per parameter
    with AdamW (2 weight, 2 gradient, 4 master, 4 + 4 moments), as in ZeRO (Rajbhandari et al., arXiv:1910.02054,
    section 3.1).  Where ``net.kernels.masters`` is off they keep states in their own type, 8 bytes: so does PyTorch's
    optimizer of a model that was put in 16 bits.

    Args:
        net: the step after its backward.
        optimizer: one of :data:`~triosim.transform.optimizing.OPTIMIZERS`, perhaps with options.
        fused: one fused operator instead of the list of ``_foreach`` ones; None means PyTorch's default (not fused) for
            float32 parameters and, as large-model frameworks do, fused where parameters have 16 bits, because the
            list would need float32 copies of all gradients at once; it also follows ``net.kernels.fused``.
    """
    how = optimizer_of(optimizer)
    updated = {name: w for name, w in net.parameters.items() if w.grad is not None}
    trained = [(name, w) for name, w in updated.items() if w.storage not in net.looked_up]
    single = [(name, w) for name, w in trained if w.dtype == "float32"]
    net.phase = Phase.OPTIMIZER
    for w in updated.values():
        if w.grad is not None and w.storage in net.looked_up:
            _descend(net, w, w.grad, net.looked_up[w.storage])
    for own, mixed in ((single, False), ([pair for pair in trained if pair[1].dtype != "float32"], True)):
        if own:
            names, weights = [name for name, _ in own], [w for _, w in own]
            gradients = [w.grad for w in weights]
            at_once = bool(fused or (fused is None and (mixed or net.kernels.fused)))
            append(net, how, names, weights, gradients, at_once, mixed and net.kernels.masters)


def _descend(net: Net, table: Tensor, gradient: Tensor, rows: Tensor) -> None:
    """Add a sparse gradient to the rows of a table that it is of, as ``add_`` of a sparse tensor does on a device."""
    step = net.scaled(gradient)
    roles = ("self", "index", "source")
    net.operator("aten::index_add_", roles, (table, rows, step), (net.overwritten(table),), {"dim": 0})
