"""What models are trained by: one number in the end."""

from __future__ import annotations

from triosim.sources.models._pointwise import PointwiseLayers
from triosim.sources.models._tape import Tensor


class LossLayers(PointwiseLayers):
    """What is trained to score classes."""

    def cross_entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        """Mean cross entropy of [rows, classes] against [rows], computed in float32."""
        if self.kernels.how_loss == "fused":
            return self._fused_cross_entropy(scores, target)
        scores = self.to(scores, "float32")  # as autocast does, and models without it
        if self.kernels.how_loss == "in-place":
            return self._cross_entropy_in_place(scores, target)
        log_p = self._like(scores)
        args = {"dim": 1, "half_to_float": False}
        row = self.operator("aten::_log_softmax", ("self",), (scores,), (log_p,), args)

        def softmax_rule(g: Tensor) -> None:
            dx = self._like(scores, False)
            self.operator("aten::_log_softmax_backward_data", ("grad_output", "output"), (g, log_p), (dx,), {"dim": 1})
            self.give(scores, dx)

        self.derivative(row, (log_p,), softmax_rule)
        loss, total = self.tensor((), "float32", needs_grad=log_p.needs_grad), self.tensor((), "float32")
        loss_args = {"reduction": 1, "ignore_index": -100}
        row = self.operator("aten::nll_loss_forward", ("self", "target"), (log_p, target), (loss, total), loss_args)

        def loss_rule(g: Tensor) -> None:
            dx = self._like(log_p, False)
            roles = ("grad_output", "self", "target", "total_weight")
            self.operator("aten::nll_loss_backward", roles, (g, log_p, target, total), (dx,), loss_args)
            self.give(log_p, dx)

        self.derivative(row, (loss,), loss_rule)
        return loss

    def _fused_cross_entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        """One kernel each way; the gradient takes the place of the scores."""
        name = "transformer_engine::cross_entropy"
        loss = self.tensor((), "float32", needs_grad=scores.needs_grad)
        logsumexp = self.tensor(scores.shape[:1], "float32")
        row = self.operator(name, ("input", "target"), (scores, target), (loss, logsumexp))

        def rule(g: Tensor) -> None:
            dx = self.overwritten(scores, False)
            roles = ("grad_output", "input", "target", "logsumexp")
            self.operator(f"{name}_backward", roles, (g, scores, target, logsumexp), (dx,))
            self.give(scores, dx)

        self.derivative(row, (loss,), rule)
        return loss

    def _cross_entropy_in_place(self, scores: Tensor, target: Tensor) -> Tensor:
        """Megatron's for a vocabulary in parts, one operator for its steps: the softmax takes the place of the scores,
        and their gradient that of the softmax."""
        name = "megatron::vocab_parallel_cross_entropy"
        loss = self.tensor((), "float32", needs_grad=scores.needs_grad)
        softmax = self.overwritten(scores, False)
        row = self.operator(name, ("input", "target"), (scores, target), (loss, softmax))

        def rule(g: Tensor) -> None:
            dx = self.overwritten(softmax, False)
            roles = ("grad_output", "input", "target")
            self.operator(f"{name}_backward", roles, (g, softmax, target), (dx,))
            self.give(scores, dx)

        self.derivative(row, (loss,), rule)
        return loss


def squared_error(net: PointwiseLayers, x: Tensor, target: Tensor) -> Tensor:
    """The mean squared difference of two tensors of one shape, in float32."""
    return _loss(net, "mse_loss", net.to(x, "float32"), net.to(target, "float32"))


def binary_cross_entropy(net: PointwiseLayers, x: Tensor, target: Tensor) -> Tensor:
    """The mean cross entropy of probabilities and labels of one shape, in float32."""
    return _loss(net, "binary_cross_entropy", net.to(x, "float32"), target)


def cross_entropy_of_scores(net: PointwiseLayers, x: Tensor, target: Tensor) -> Tensor:
    """The mean cross entropy of what a sigmoid makes probabilities of, in float32; its derivative is written out."""
    x, target = net.to(x, "float32"), net.to(target, "float32")
    y = net.tensor((), "float32", needs_grad=x.needs_grad)
    name, args = "aten::binary_cross_entropy_with_logits", {"reduction": 1}
    row = net.operator(name, ("self", "target"), (x, target), (y,), args)

    def rule(g: Tensor) -> None:
        dx = net.unary("aten::sigmoid", x)
        for step, read in (("sub_", (target,)), ("mul_", (g,)), ("div_", ())):
            made = net.overwritten(dx)
            net.operator(f"aten::{step}", ("self", "other")[: 1 + len(read)], (dx, *read), (made,))
            dx = made
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _loss(net: PointwiseLayers, name: str, x: Tensor, target: Tensor) -> Tensor:
    y = net.tensor((), "float32", needs_grad=x.needs_grad)
    args = {"reduction": 1}
    row = net.operator(f"aten::{name}", ("self", "target"), (x, target), (y,), args)

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator(f"aten::{name}_backward", ("grad_output", "self", "target"), (g, x, target), (dx,), args)
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
