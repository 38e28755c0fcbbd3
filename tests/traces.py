"""Small hand-made traces for tests."""

from __future__ import annotations

from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, Trace


def chain(
    layers: int = 8,
    batch: int = 64,
    width: int = 128,
    forward_s: float = 1e-3,
    backward_s: float = 2e-3,
    optimizer_s: float = 0.0,
    skips: tuple[tuple[int, int], ...] = (),
    weight_s: float | None = None,
) -> Trace:
    """A chain of equal linear layers, each forward and backward of the same time.

    ``skips`` adds the output of layer ``a`` to the input of layer ``b`` (by an operator that takes no time).  With
    ``weight_s`` a backward is two products: ``backward_s`` for the input's gradient, ``weight_s`` for the weight's.
    """
    b = TraceBuilder()
    weights = []
    for i in range(layers):
        weights.append(b.value((width, width), "float32", Category.WEIGHT, name=f"layer{i}.weight"))
    x = b.value((batch, width), "float32", Category.INPUT)
    outputs, rows, adds = [], [], {}
    for i in range(layers):
        module = b.module(f"layer{i}", "Linear")
        for source, target in skips:
            if target == i:
                y = b.value((batch, width), "float32", Category.ACTIVATION)
                adds[i] = b.operator(
                    "aten::add", [x, outputs[source]], [y], roles=["self", "other"], phase=Phase.FORWARD, module=module,
                    device_s=0.0,
                )  # fmt: skip
                x = y
        y = b.value((batch, width), "float32", Category.ACTIVATION)
        rows.append(
            (
                b.operator(
                    "aten::linear", [x, weights[i]], [y], roles=["input", "weight"], phase=Phase.FORWARD, module=module,
                    device_s=forward_s,
                ),
                x,
            )
        )  # fmt: skip
        outputs.append(y)
        x = y
    grad = b.value((batch, width), "float32", Category.GRADIENT)
    grads = []
    for i in reversed(range(layers)):
        row, source = rows[i]
        gx = b.value((batch, width), "float32", Category.GRADIENT)
        gw = b.value((width, width), "float32", Category.GRADIENT, of=weights[i])
        if weight_s is None:
            b.operator(
                "autograd::LinearBackward0", [grad, source, weights[i]], [gx, gw],
                roles=["grad_output", "input", "weight"], phase=Phase.BACKWARD, module=b.module(f"layer{i}"),
                forward=row, device_s=backward_s,
            )  # fmt: skip
        else:
            for other, made, seconds in ((weights[i], gx, backward_s), (source, gw, weight_s)):
                b.operator(
                    "aten::mm", [grad, other], [made], roles=["self", "mat2"], phase=Phase.BACKWARD,
                    module=b.module(f"layer{i}"), forward=row, device_s=seconds,
                )  # fmt: skip
        if i in adds:
            b.operator(
                "autograd::AddBackward0", [gx], [gx], roles=["grad_output"], phase=Phase.BACKWARD,
                module=b.module(f"layer{i}"), forward=adds[i], device_s=0.0,
            )  # fmt: skip
        grad = gx
        grads.append(gw)
    if optimizer_s:
        grads = grads[::-1]
        new = [b.next_version(w) for w in weights]
        b.operator(
            "aten::_foreach_add_", [*weights, *grads], new, roles=["self"] * layers + ["other"] * layers,
            phase=Phase.OPTIMIZER, device_s=optimizer_s,
        )  # fmt: skip
    return b.build(Meta("test", workload="chain", batch_size=batch, clock="gpu"))
