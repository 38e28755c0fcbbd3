"""A mixture of experts: a router, and feed-forward parts of which every token takes a few.

Tokens are sorted by expert and multiplied group by group in one kernel (``torch._grouped_mm``), as Hugging Face and
torchtitan do where no token is dropped; what is computed does not depend on how evenly the router spreads them.
Sources: Shazeer et al., arXiv:1701.06538; Gale et al., arXiv:2211.15841; Liu et al., arXiv:2412.19437 (groups).
"""

from __future__ import annotations

import math

from triosim.core.dataclass import dataclass
from triosim.operators.experts import EACH
from triosim.sources.models._family import Blocks
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, activate
from triosim.sources.models._pointwise import wider
from triosim.sources.models._tape import Shape, Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class ExpertRouter:
    """Chooses the experts of each token.

    Attributes:
        width: of the residual stream.
        experts, chosen: how many there are, and how many a token takes.
        kind: class of the module.
        name: of the module.
        score: ``softmax`` or ``sigmoid`` of all before choosing, or of those chosen: ``chosen``, ``chosen sigmoid``.
        normalised: weights of the chosen are divided by their sum.
        rounded: weights are cast to the type of the tokens; those of the chosen are taken in float32.
        full_precision: the product is computed in float32.
        groups, best_groups: experts are chosen from the best groups only.
        scaled: weights are multiplied by a number.
        correction: a buffer is added to the scores before choosing (balance without a loss).
        bias: the product has one.
        narrow: scores are taken in the type of the tokens, not in float32.
        bounded: how the sum by which weights are divided is kept from being nothing: ``clamp``, or ``add`` a number.
    """

    width: int
    experts: int
    chosen: int
    kind: str
    name: str = "gate"
    score: str = "softmax"
    normalised: bool = True
    rounded: bool = False
    full_precision: bool = False
    groups: int = 1
    best_groups: int = 1
    correction: bool = False
    scaled: bool = False
    bias: bool = False
    narrow: bool = False
    bounded: str = ""

    def problem(self) -> str:
        """What is wrong with the sizes, or ``""``."""
        if self.chosen > self.experts:
            return f"a token takes {self.chosen} of {self.experts} experts"
        if self.experts % self.groups:
            return f"{self.groups} groups do not divide {self.experts} experts"
        if self.best_groups > self.groups:
            return f"experts are chosen from {self.best_groups} of {self.groups} groups"
        return ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.linear(f"{at}.{self.name}", self.width, self.experts, bias=self.bias)
        if self.correction:
            w.buffers[f"{at}.{self.name}.e_score_correction_bias"] = ((self.experts,), "float32")

    def __call__(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of tokens ``x`` [tokens, width], [tokens, chosen] each."""
        with net.module(self.name, self.kind):
            weight, bias = net.parameter("weight"), net.optional("bias")
            if net.kernels.fused and self.full_precision and bias is None:
                return self._scored(net, _wide_product(net, x, weight), x)
            read = net.to(x, "float32") if self.full_precision else x
            weight = net.to(weight, "float32") if self.full_precision else weight
            read, weight, bias = net.operands(read, weight, bias)
            return self._scored(net, net.mm(read, net.t(weight), bias, column_major=True), x)

    def _scored(self, net: Net, logits: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.score.startswith("chosen"):
            top, numbers = _topk(net, logits if self.narrow else net.to(logits, "float32"), self.chosen)
            if self.score == "chosen":
                top = _softmax(net, net.to(top, "float32") if self.rounded else top)
                return (net.to(top, x.dtype) if self.rounded else top), numbers
            top = net.to(net.sigmoid(net.to(top, "float32") if self.rounded else top), x.dtype)
            return (_divided(net, top, _summed(net, top, 1, keepdim=True), False) if self.normalised else top), numbers
        if self.score == "sigmoid":
            scores = net.sigmoid(logits if self.narrow else net.to(logits, "float32"))
        else:
            scores = _softmax(net, logits if self.narrow else net.to(logits, "float32"))
        top, numbers = self._choose(net, scores)
        if self.normalised:
            total = _summed(net, top, 1, keepdim=True)
            if self.bounded:
                total = net.clamp(total) if self.bounded == "clamp" else net.shifted(total)
            top = _divided(net, top, total, in_place=not self.bounded)
        if self.scaled:
            top = net.scaled(top)
        return (net.to(top, x.dtype) if self.rounded else top), numbers

    def _choose(self, net: Net, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.groups == 1 and not self.correction:
            return _topk(net, scores, self.chosen)
        judged = scores
        if self.correction:
            judged = _pointwise(net, "aten::add", scores, net.buffers[f"{net.path}.e_score_correction_bias"])
        if self.groups > 1:
            judged = self._of_best_groups(net, judged)
        if not self.correction:
            return _topk(net, scores, self.chosen)
        _, numbers = _topk(net, judged, self.chosen, differentiated=False)
        return _gathered(net, scores, numbers), numbers

    def _of_best_groups(self, net: Net, judged: Tensor) -> Tensor:
        """Scores of experts in other than the best groups set aside; nothing here is differentiated."""
        rows, size = judged.shape[0], self.experts // self.groups
        grouped = net.alias(judged, (rows, self.groups, size))
        net.operator("aten::view", ("self",), (judged,), (grouped,), view=True)
        if self.correction:  # DeepSeek-V3: the sum of the best two
            best = _topk(net, grouped, min(2, size), differentiated=False)[0]
            of_group = net.tensor((rows, self.groups), judged.dtype)
            net.operator("aten::sum", ("self",), (best,), (of_group,), {"dim": [-1], "keepdim": False})
        else:
            of_group, at = net.tensor((rows, self.groups), judged.dtype), net.tensor((rows, self.groups), "int64")
            net.operator("aten::max", ("self",), (grouped,), (of_group, at), {"dim": -1, "keepdim": False})
        _, numbers = _topk(net, of_group, self.best_groups, differentiated=False)
        mask = net.tensor(of_group.shape, of_group.dtype)
        net.operator("aten::zeros_like", ("self",), (of_group,), (mask,))
        marked = net.overwritten(mask)
        net.operator("aten::scatter_", ("self", "index"), (mask, numbers), (marked,), {"dim": 1})
        wide = net.tensor((rows, self.experts), of_group.dtype)
        net.operator("aten::clone", ("self",), (marked,), (wide,))
        return _pointwise(net, "aten::masked_fill", judged, wide)


def is_sparse(layer: int, every: int, dense: Blocks) -> bool:
    """Whether a block has experts: every n-th, but for those that are said to be dense (Qwen)."""
    return (layer + 1) % every == 0 and layer not in dense


@dataclass(frozen=True)
class Experts:
    """Routed experts, and those that every token passes.

    Attributes:
        router: chooses.
        inner: width within an expert.
        kind: class of the block; ``experts_kind`` of the module with the weights.
        activation: of the gated experts; ``clamped`` is GPT-OSS's: limits and a sigmoid with a factor.
        bias: products have biases.
        inputs_first: weights are stored [experts, inputs, outputs].
        weighed_first: a token is weighed before it enters an expert, not after.
        shared, shared_name: the expert of every token.
        shared_gate: its result is weighed by a product of its own, and it is computed first.
        shared_first: it is computed first.
        averaged: what it and the experts give is halved when it has been added up.
        router_first: the router is registered before the experts; ``experts_last``: so is what every token passes.
        gated: the first product makes a gate as well; otherwise its activation alone.
        names: of the two products' weights; or of three, gate and up apart, stored [experts, inner, width] each.
        dropout: probability, before the second product.
        idle: so many experts, the last, give a token back as it is; they take as many tokens as they would if all
            experts took equally many.
    """

    router: ExpertRouter
    inner: int
    kind: str
    experts_kind: str
    activation: str = "silu"
    bias: bool = False
    inputs_first: bool = False
    weighed_first: bool = False
    shared: FeedForward | None = None
    shared_name: str = "shared_expert"
    shared_gate: bool = False
    shared_first: bool = False
    router_first: bool = True
    experts_last: bool = False
    gated: bool = True
    names: tuple[str, ...] = ("gate_up_proj", "down_proj")
    dropout: float = 0.0
    averaged: bool = False
    idle: int = 0

    @property
    def working(self) -> int:
        """Experts that compute something."""
        return self.router.experts - self.idle

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        if self.router_first:
            self.router.weights(w, at)
        if self.shared and self.experts_last:
            self.shared.weights(w, f"{at}.{self.shared_name}")
        for name, inputs, outputs, inputs_first in self._sizes():
            shape = (inputs, outputs) if inputs_first else (outputs, inputs)
            w.add(f"{at}.experts.{name}", self.working, *shape)
            if self.bias:
                w.add(f"{at}.experts.{name}_bias", self.working, outputs)
        if not self.router_first:
            self.router.weights(w, at)
        if self.shared and not self.experts_last:
            self.shared.weights(w, f"{at}.{self.shared_name}")
        if self.shared_gate:
            w.linear(f"{at}.{self.shared_name}_gate", self.router.width, 1, bias=False)

    def _sizes(self) -> list[tuple[str, int, int, bool]]:
        """Name, inputs and outputs of each product, and whether its weight is stored with the inputs first."""
        width, *firsts = self.router.width, *self.names[:-1]
        made = self.inner * (2 if self.gated and len(firsts) == 1 else 1)
        last = (self.names[-1], self.inner, width, self.inputs_first or len(firsts) == 2)
        return [*((name, width, made, self.inputs_first) for name in firsts), last]

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        shape = x.shape
        flat = net.view(x, (math.prod(shape[:-1]), shape[-1]))
        shared = self._shared(net, flat) if self.shared_gate or (self.shared and self.shared_first) else None
        weights, numbers = self.router(net, flat)
        with net.module("experts", self.experts_kind):
            y = self.routed(net, flat, weights, numbers)
        if shared is not None and not self.shared_gate:
            return net.view(net.add(y, shared), shape)
        if shared is not None:
            share = net.sigmoid(net.linear(f"{self.shared_name}_gate", flat))
            return net.view(net.add(y, _rows_scaled(net, shared, share)), shape)
        y = net.view(y, shape)
        y = net.add(y, self._shared(net, x)) if self.shared else y
        return net.scaled(y, "aten::div") if self.averaged else y

    def _shared(self, net: Net, x: Tensor) -> Tensor:
        assert self.shared is not None
        with net.module(self.shared_name, self.shared.kind):
            return self.shared(net, x)

    def routed(self, net: Net, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        """What the experts of tokens ``x`` [tokens, width] make of them, by weights and numbers [tokens, chosen]."""
        kernels = ("silu", "clamped") if self.gated else ("relu2",)
        if net.kernels.fused and self.activation in kernels and not (self.weighed_first or self.idle):
            return self._fused(net, x, weights, numbers)
        tokens, width = x.shape
        chosen, rows = self.router.chosen, tokens * self.router.chosen
        weights, numbers = net.view(weights, (rows,)), net.view(numbers, (rows,))
        by_expert, order = net.tensor((rows,), "int64"), net.tensor((rows,), "int64")
        net.operator("aten::sort", ("self",), (numbers,), (by_expert, order), {"dim": -1})
        token = _pointwise(net, "aten::floor_divide", order)
        taken = tokens * max(1, round(chosen * self.working / self.router.experts))
        token, idle = net.split(token, [taken, tokens * chosen - taken], 0) if self.idle else (token, None)
        y = net.indexed(x, token)
        weights = net.indexed(weights, order)
        ends = self._ends(net, by_expert)
        if self.weighed_first:
            y = _rows_scaled(net, y, _column(net, weights))
        y = net.dropout(self._activated(net, self._made(net, y, ends, by_expert)), self.dropout)
        y = self._product(net, self.names[-1], y, ends, by_expert)
        if idle is not None:
            y = net.cat((y, net.indexed(x, idle)), 0, rows)
        if not self.weighed_first:
            y = _rows_scaled(net, y, _column(net, weights))
        inverse = net.tensor((rows,), "int64")
        net.operator("aten::arange", (), (), (inverse,))
        back = net.overwritten(order)
        net.operator("aten::index_put_", ("self", "indices", "values"), (order, order, inverse), (back,))
        y = net.view(net.indexed(y, back), (tokens, chosen, width))
        return net.to(_summed(net, y, 1, keepdim=False), x.dtype)

    def _fused(self, net: Net, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        """As Megatron-Core calls Transformer Engine: rows are permuted, weighed with the activation, and added up again
        by one kernel each."""
        y, places, weights = _permuted(net, x, numbers, weights)
        by_expert = places if self.bias else None
        ends = self._ends(net, net.view(numbers, (y.shape[0],)))
        if net.kernels.one_by_one and self.bias:
            return _added_up(net, self._biased_apart(net, y, ends, places, weights), places, x)
        made = self._made(net, y, ends, by_expert)
        if self.gated:
            y = net.swiglu(made[0], made[1], weights, clamped=self.activation == "clamped")
        else:
            y = net.squared_relu(made[0], weights)
        y = self._product(net, self.names[-1], y, ends, by_expert)
        return _added_up(net, y, places, x)

    def _biased_apart(self, net: Net, y: Tensor, ends: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        """Rows sorted by expert, as Megatron-Core's ``TEGroupedMLP`` leads them through experts with biases.

        The first product adds its bias as it ends, and the product that makes its weight's gradient sums that of the
        bias (``general_grouped_gemm`` of Transformer Engine).  Limits are kernels, whose results are joined before the
        activation's kernel reads them (``weighted_bias_quick_geglu_impl`` of ``fusions/fused_bias_geglu.py``).  The
        second bias is weighed and added expert by expert (``_apply_bias`` of ``transformer/moe/experts.py``).
        """
        first, last = self.names[0], self.names[-1]
        made = _grouped_mm(net, y, *self._laid(net, first, ends), bias=net.parameter(f"{first}_bias"))
        gate, up = net.split(made, [self.inner] * 2)
        if self.activation == "clamped":
            gate, up = net.clamp(gate), net.clamp(up)
        y = net.packed_swiglu(net.cat((gate, up), 1), weights, clamped=self.activation == "clamped")
        y = _grouped_mm(net, y, *self._laid(net, last, ends))
        return _weighed_bias(net, y, net.parameter(f"{last}_bias"), places, weights)

    def _laid(self, net: Net, name: str, ends: Tensor) -> tuple[Tensor, Tensor, bool]:
        """What a grouped product reads beside the rows: its weight, where rows end; and if the weight is turned."""
        weight = net.parameter(name)
        turned = not next(inputs_first for known, _, _, inputs_first in self._sizes() if known == name)
        return net.transpose(weight, 1, 2) if turned else weight, ends, turned

    def _ends(self, net: Net, by_expert: Tensor) -> Tensor:
        """Where the rows of each expert end."""
        count = (self.working,)
        narrow = net.tensor(by_expert.shape, "int32")
        net.operator("aten::_to_copy", ("self",), (by_expert,), (narrow,), {"dtype": "int32"})
        held, ends = net.tensor(count, "int32"), net.tensor(count, "int32")
        net.operator("aten::histc", ("self",), (narrow,), (held,), {"bins": self.working})
        net.operator("aten::cumsum", ("self",), (held,), (ends,), {"dim": 0})
        return ends

    def _product(self, net: Net, name: str, x: Tensor, ends: Tensor, by_expert: Tensor | None) -> Tensor:
        y = _grouped_mm(net, x, *self._laid(net, name, ends))
        if by_expert is None or not self.bias:
            return y
        return net.add_(y, net.indexed(net.parameter(f"{name}_bias"), by_expert))

    def _made(self, net: Net, x: Tensor, ends: Tensor, by_expert: Tensor | None) -> list[Tensor]:
        """What goes into the activation: gate and up, or one alone."""
        made = [self._product(net, name, x, ends, by_expert) for name in self.names[:-1]]
        return net.split(made[0], [self.inner] * 2) if self.gated and len(made) == 1 else made

    def _activated(self, net: Net, made: list[Tensor]) -> Tensor:
        if not self.gated:
            return activate(net, made[0], self.activation)
        gate, up = made
        if self.activation == "clamped":
            gate, up = net.clamp(gate), net.clamp(up)
            return net.mul(net.shifted(up), net.mul(gate, net.sigmoid(net.scaled(gate))))
        if net.kernels.fused and self.activation == "silu":
            return net.swiglu(gate, up)
        return net.mul(activate(net, gate, self.activation), up)


# --- operators that only mixtures of experts call ---------------------------------------------------------------------


def _grouped_mm(
    net: Net, x: Tensor, weight: Tensor, ends: Tensor, transposed: bool, bias: Tensor | None = None
) -> Tensor:
    """Rows [rows, inputs] sorted by expert times [experts, inputs, outputs], which may be a transposed view; perhaps
    with a bias [experts, outputs] that costs nothing beside."""
    y = net.tensor((x.shape[0], weight.shape[2]), x.dtype, needs_grad=x.needs_grad or weight.needs_grad)
    roles, name = ("self", "mat2", "offs"), "aten::_grouped_mm"
    row = net.operator(name, roles, (x, weight, ends), (y,))

    def rule(g: Tensor) -> None:
        if weight.needs_grad and transposed:  # comes out in the layout in which the weight is stored
            dw = net.tensor((weight.shape[0], weight.shape[2], weight.shape[1]), weight.dtype)
            net.operator(name, roles, (net.transpose(g, 0, 1), x, ends), (dw,))
            net.give(weight, net.transpose(dw, 1, 2))
        elif weight.needs_grad:
            dw = net.tensor(weight.shape, weight.dtype)
            net.operator(name, roles, (net.transpose(x, 0, 1), g, ends), (dw,))
            net.give(weight, dw)
        if bias is not None and bias.needs_grad:
            db = net.tensor(bias.shape, bias.dtype)
            net.operator("aten::clone", ("self",), (bias,), (db,))  # as small as it is: what the product has summed
            net.give(bias, db)
        if x.needs_grad:
            dx = net.tensor(x.shape, x.dtype)
            net.operator(name, roles, (g, net.transpose(weight, 1, 2), ends), (dx,))
            net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _wide_product(net: Net, x: Tensor, weight: Tensor) -> Tensor:
    """Scores of tokens in float32 from factors of 16 bits: what is given back is multiplied in float32, by Transformer
    Engine in TF32 (``RouterGatingLinearFunction`` of Megatron-Core's ``moe_utils.py``)."""
    name, roles = "transformer_engine::mm", ("self", "mat2")
    y = net.tensor((x.shape[0], weight.shape[0]), "float32", needs_grad=True)
    row = net.operator(name, roles, (x, net.t(weight)), (y,))

    def rule(g: Tensor) -> None:
        read, dw = net.to(x, "float32"), net.tensor(weight.shape, "float32")
        if x.needs_grad:
            dx = net.tensor(x.shape, "float32")
            net.operator(name, roles, (g, net.to(weight, "float32")), (dx,))
            net.give(x, net.to(dx, x.dtype))
        net.operator(name, roles, (net.t(g), read), (dw,))
        net.give(weight, net.to(dw, weight.dtype))

    net.derivative(row, (y,), rule)
    return y


def _permuted(net: Net, x: Tensor, numbers: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [tokens, width] copied for each expert that a token takes and sorted by it, where the copies are, and their
    weights [rows, 1]."""
    rows, name = x.shape[0] * numbers.shape[1], "transformer_engine::moe_permute"
    y, places = net.tensor((rows, x.shape[1]), x.dtype, needs_grad=x.needs_grad), net.tensor((rows,), "int32")
    weighed = net.tensor((rows, 1), weights.dtype, needs_grad=weights.needs_grad)
    row = net.operator(name, ("self", "indices", "weights"), (x, numbers, weights), (y, places, weighed))

    def rule(g: Tensor, of_weights: Tensor) -> None:
        dx, dw = net.tensor(x.shape, x.dtype), net.tensor(weights.shape, weights.dtype)
        roles = ("grad_output", "row_id_map", "grad_weights")
        net.operator(f"{name}_backward", roles, (g, places, of_weights), (dx, dw))
        net.give(x, dx)
        net.give(weights, dw)

    net.derivative(row, (y, weighed), rule)
    return y, places, weighed


def _weighed_bias(net: Net, y: Tensor, bias: Tensor, by_expert: Tensor, weights: Tensor) -> Tensor:
    """Rows [rows, width] and, of each one's expert, the bias [experts, width] times the row's weight [rows, 1] in
    float32: a product and a sum for each expert, joined and brought back to the type of ``y``."""
    scaled = net.tensor(y.shape, "float32", needs_grad=True)
    made = net.operator(f"{EACH}index", ("self", "indices"), (bias, by_expert), (scaled,))

    def of_product(g: Tensor) -> None:
        of_bias, of_weights = net.tensor(g.shape, g.dtype), net.tensor(g.shape, g.dtype)
        net.operator(f"{EACH}mul", ("self", "other"), (g, weights), (of_bias,))
        zeros, db = net.tensor(bias.shape, bias.dtype), net.tensor(bias.shape, bias.dtype)
        net.operator("aten::new_zeros", ("self",), (g,), (zeros,))
        roles = ("self", "indices", "values")
        net.operator(f"{EACH}index_put", roles, (zeros, by_expert, of_bias), (db,), {"accumulate": True})
        net.give(bias, db)
        net.operator(f"{EACH}mul", ("self", "other"), (g, scaled), (of_weights,))
        dw = net.tensor(weights.shape, g.dtype)
        net.operator(f"{EACH}sum", ("self",), (of_weights,), (dw,), {"dim": [1], "keepdim": True})
        net.give(weights, net.to(dw, weights.dtype))

    net.derivative(made, (scaled,), of_product)
    total = net.tensor(y.shape, "float32", needs_grad=True)
    added = net.operator(f"{EACH}add", ("self", "other"), (y, scaled), (total,))

    def of_sum(g: Tensor) -> None:
        narrow, dy = net.tensor(y.shape, y.dtype), net.tensor(y.shape, y.dtype)
        net.operator(f"{EACH}_to_copy", ("self",), (g,), (narrow,), {"dtype": y.dtype})
        net.operator("aten::clone", ("self",), (narrow,), (dy,))  # parts of what was split are joined
        net.give(y, dy)
        net.give(scaled, g)

    net.derivative(added, (total,), of_sum)
    return net.to(net.cat((total,), 0), y.dtype)


def _added_up(net: Net, y: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """The copies of each token [rows, width] added up, in the shape of ``like``."""
    out, name = net.tensor(like.shape, like.dtype, needs_grad=y.needs_grad), "transformer_engine::moe_unpermute"
    row = net.operator(name, ("self", "row_id_map"), (y, places), (out,))

    def rule(g: Tensor) -> None:
        dy = net.tensor(y.shape, y.dtype)
        net.operator(f"{name}_backward", ("grad_output", "row_id_map"), (g, places), (dy,))
        net.give(y, dy)

    net.derivative(row, (out,), rule)
    return out


def _topk(net: Net, x: Tensor, k: int, differentiated: bool = True) -> tuple[Tensor, Tensor]:
    """The greatest ``k`` of the last dimension and their places."""
    shape = (*x.shape[:-1], k)
    y, places = net.tensor(shape, x.dtype, needs_grad=x.needs_grad and differentiated), net.tensor(shape, "int64")
    row = net.operator("aten::topk", ("self",), (x,), (y, places), {"k": k, "dim": -1})
    net.derivative(row, (y,), lambda g: net.give(x, _scattered(net, g, places, x.shape)))
    return y, places


def _gathered(net: Net, x: Tensor, places: Tensor) -> Tensor:
    """Elements of the last dimension at ``places``."""
    y = net.tensor(places.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::gather", ("self", "index"), (x, places), (y,), {"dim": 1})
    net.derivative(row, (y,), lambda g: net.give(x, _scattered(net, g, places, x.shape, "aten::scatter_add_")))
    return y


def _scattered(net: Net, g: Tensor, places: Tensor, shape: Shape, name: str = "aten::scatter") -> Tensor:
    zeros, dx = _zeros(net, g, shape), net.tensor(shape, g.dtype)
    net.operator(name, ("self", "index", "src"), (zeros, places, g), (dx,), {"dim": 1})
    return dx


def _zeros(net: Net, like: Tensor, shape: Shape) -> Tensor:
    y = net.tensor(shape, like.dtype)
    net.operator("aten::new_zeros", ("self",), (like,), (y,))
    return y


def _softmax(net: Net, x: Tensor) -> Tensor:
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::_softmax", ("self",), (x,), (y,), {"dim": 1, "half_to_float": False})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::_softmax_backward_data", ("grad_output", "output"), (g, y), (dx,), {"dim": 1})
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _summed(net: Net, x: Tensor, dim: int, keepdim: bool) -> Tensor:
    shape = (*x.shape[:dim], *((1,) if keepdim else ()), *x.shape[dim + 1 :])
    y = net.tensor(shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::sum", ("self",), (x,), (y,), {"dim": [dim], "keepdim": keepdim})

    def rule(g: Tensor) -> None:
        if keepdim:
            dx = net.alias(g, x.shape)
            net.operator("aten::expand", ("self",), (g,), (dx,), view=True)
        else:  # spread out
            dx = net.tensor(x.shape, x.dtype)
            net.operator("aten::clone", ("self",), (g,), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _divided(net: Net, x: Tensor, total: Tensor, in_place: bool = True) -> Tensor:
    """``x`` [rows, n] over [rows, 1], written into ``x`` or new."""
    before = _pointwise(net, "aten::clone", x) if in_place else x  # which the derivative reads
    y = net.overwritten(x) if in_place else net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad or total.needs_grad)
    row = net.operator("aten::div_" if in_place else "aten::div", ("self", "other"), (x, total), (y,))

    def rule(g: Tensor) -> None:
        net.give(x, _pointwise(net, "aten::div", g, total))
        share = _pointwise(net, "aten::div", before, total)
        parts = _pointwise(net, "aten::mul", _pointwise(net, "aten::neg", g), share)
        parts = _pointwise(net, "aten::div", parts, total)
        dt = net.tensor(total.shape, total.dtype)
        net.operator("aten::sum", ("self",), (parts,), (dt,), {"dim": [1], "keepdim": True})
        net.give(total, dt)

    net.derivative(row, (y,), rule)
    return y


def _rows_scaled(net: Net, x: Tensor, by: Tensor) -> Tensor:
    """``x`` [rows, width] times [rows, 1], in the wider of their types."""
    wide = "float32" if "float32" in (x.dtype, by.dtype) else x.dtype
    y = net.tensor(x.shape, wide, needs_grad=x.needs_grad or by.needs_grad)
    row = net.operator("aten::mul", ("self", "other"), (x, by), (y,))

    def rule(g: Tensor) -> None:
        parts = _pointwise(net, "aten::mul", g, x) if by.needs_grad else None
        dx = net.to(_pointwise(net, "aten::mul", g, by), x.dtype) if x.needs_grad else None
        if parts is not None:
            db = net.tensor(by.shape, parts.dtype)
            net.operator("aten::sum", ("self",), (parts,), (db,), {"dim": [1], "keepdim": True})
            net.give(by, net.to(db, by.dtype))
        if dx is not None:
            net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _column(net: Net, x: Tensor) -> Tensor:
    """A vector as a matrix of one column."""
    y = net.alias(x, (*x.shape, 1))
    row = net.operator("aten::unsqueeze", ("self",), (x,), (y,), {"dim": 1}, view=True)
    net.derivative(row, (y,), lambda g: net.give(x, net.view(g, x.shape, "aten::squeeze")))
    return y


def _pointwise(net: Net, name: str, x: Tensor, other: Tensor | None = None) -> Tensor:
    """A pointwise operator in a derivative, or on what needs none; ``other`` may have fewer dimensions."""
    y = net.tensor(x.shape, x.dtype if other is None else wider(x, other))
    read = (x,) if other is None else (x, other)
    net.operator(name, ("self", "other")[: len(read)], read, (y,))
    return y
