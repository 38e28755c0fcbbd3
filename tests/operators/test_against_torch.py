"""What kinds say of operators, against PyTorch itself: argument names, and what is linear."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from triosim.operators import Call, canonical, dims, kind, results
from triosim.operators._names import _known

torch = pytest.importorskip("torch")


def schemas() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            found.setdefault(schema.name[6:], []).append([a.name for a in schema.arguments])
    return found


def test_arguments_are_those_of_a_schema_in_its_order() -> None:
    known, wrong, checked = schemas(), {}, 0
    for name, arguments in _known().arguments.items():
        overloads = known.get(name, []) + known.get(name + "_", [])
        if not overloads:
            continue
        checked += 1
        if not any(list(arguments) == given[: len(arguments)] for given in overloads):
            wrong[name] = (arguments, overloads[0])
    assert checked > 300
    assert not wrong


def made(shapes: Sequence[tuple[int, ...]]) -> list:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


A = torch.ops.aten
LINEAR = [
    (A.mm, "self mat2", [(3, 4), (4, 5)], {}),
    (A.addmm, "self mat1 mat2", [(5,), (3, 4), (4, 5)], {}),
    (A.linear, "input weight bias", [(2, 3, 4), (5, 4), (5,)], {}),
    (A.bmm, "self mat2", [(2, 3, 4), (2, 4, 5)], {}),
    (A.baddbmm, "self batch1 batch2", [(2, 3, 5), (2, 3, 4), (2, 4, 5)], {}),
    (A.matmul, "self other", [(2, 3, 4), (4, 5)], {}),
    (A.conv2d, "input weight bias", [(2, 3, 5, 5), (4, 3, 3, 3), (4,)], {}),
    (A.scaled_dot_product_attention, "query key value", [(2, 2, 3, 4)] * 3, {}),
    (A.embedding, "weight", [(7, 3)], {"indices": torch.tensor([1, 4])}),
    (A.avg_pool2d, "self", [(1, 2, 4, 4)], {"kernel_size": [2, 2]}),
    (A.max_pool2d, "self", [(1, 2, 4, 4)], {"kernel_size": [2, 2]}),
    (A._log_softmax, "self", [(3, 4)], {"dim": 1, "half_to_float": False}),
    (A.nll_loss, "self", [(3, 4)], {"target": torch.tensor([0, 1, 2])}),
    (A.mse_loss, "self target", [(3, 4), (3, 4)], {}),
    (A.layer_norm, "input", [(3, 4)], {"normalized_shape": [4]}),
    (A.add, "self other", [(3, 4), (4,)], {}),
    (A.sub, "self other", [(3, 4), (4,)], {}),
    (A.mul, "self other", [(3, 4), (4,)], {}),
    (A.div, "self other", [(3, 4), (4,)], {}),
    (A.add, "self", [(3, 4)], {"other": 1.0}),
    (A.mul, "self", [(3, 4)], {"other": 2.0}),
    (A.neg, "self", [(3, 4)], {}),
    (A.exp, "self", [(3, 4)], {}),
    (A.relu, "self", [(3, 4)], {}),
    (A.where, "self other", [(3, 4), (3, 4)], {"condition": torch.tensor([True, False, True, True])}),
    (A.masked_fill, "self", [(3, 4)], {"mask": torch.tensor([True, False, True, True]), "value": 0}),
    (A.masked_fill, "self", [(3, 4)], {"mask": torch.tensor([True, False, True, True]), "value": 1}),
    (A.lerp, "self end weight", [(3, 4)] * 3, {}),
    (A.addcmul, "self tensor1 tensor2", [(3, 4)] * 3, {}),
    (A.addcdiv, "self tensor1 tensor2", [(3, 4)] * 3, {}),
    (A.tril, "self", [(3, 4)], {}),
    (A.sum, "self", [(3, 4)], {"dim": [1]}),
    (A.mean, "self", [(3, 4)], {"dim": [1]}),
    (A.amax, "self", [(3, 4)], {"dim": [1]}),
    (A.cumsum, "self", [(3, 4)], {"dim": 1}),
    (A.logsumexp, "self", [(3, 4)], {"dim": [1]}),
    (A.clone, "self", [(3, 4)], {}),
    (A.roll, "self", [(3, 4)], {"shifts": [1], "dims": [1]}),
    (A.constant_pad_nd, "self", [(3, 4)], {"pad": [1, 1], "value": 0.0}),
    (A.constant_pad_nd, "self", [(3, 4)], {"pad": [1, 1], "value": 1.0}),
    (A.transpose, "self", [(3, 4)], {"dim0": 0, "dim1": 1}),
    (A.view, "self", [(3, 4)], {"size": [12]}),
    (A.slice, "self", [(3, 4)], {"dim": 1, "start": 1, "end": 3}),
    (A.index_select, "self", [(3, 4)], {"dim": 0, "index": torch.tensor([0, 2])}),
    (A.gather, "self", [(3, 4)], {"dim": 1, "index": torch.tensor([[0, 2], [1, 1], [3, 0]])}),
    (A.index_add, "self source", [(3, 4), (2, 4)], {"dim": 0, "index": torch.tensor([0, 2])}),
    (A.sort, "self", [(3, 4)], {}),
    (A.gelu_backward, "grad_output self", [(3, 4)] * 2, {}),
    (A._softmax_backward_data, "grad_output output", [(3, 4)] * 2, {"dim": 1, "input_dtype": torch.float64}),
    (A.convolution_backward, "grad_output input weight", [(2, 4, 3, 3), (2, 3, 5, 5), (4, 3, 3, 3)],
     {"bias_sizes": [4], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False,
      "output_padding": [0, 0], "groups": 1, "output_mask": [True, True, True]}),
    (A.embedding_dense_backward, "grad_output", [(2, 3)],
     {"indices": torch.tensor([1, 4]), "num_weights": 7, "padding_idx": -1, "scale_grad_by_freq": False}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "roles", "shapes", "args"), LINEAR, ids=lambda x: getattr(x, "__name__", ""))
def test_sums_pass_where_and_only_where_the_operator_is_linear(operator, roles, shapes, args) -> None:
    """f(x + x') = f(x) + f(x') for the inputs of a set at once, the others kept; every single input is tried."""
    torch.manual_seed(0)
    names, first, second = roles.split(), made(shapes), made(shapes)

    def run(values: Sequence) -> list:
        out = operator(**dict(zip(names, values, strict=True)), **args)
        return [t for t in (out if isinstance(out, tuple | list) else [out]) if t.is_floating_point()]

    def linear(at: frozenset[int]) -> bool:
        other = [b if i in at else a for i, (a, b) in enumerate(zip(first, second, strict=True))]
        both = [a + b if i in at else a for i, (a, b) in enumerate(zip(first, second, strict=True))]
        pairs = zip(run(first), run(other), run(both), strict=True)
        return all(torch.allclose(x + y, z) for x, y, z in pairs)

    tensors = {name: value for name, value in args.items() if isinstance(value, torch.Tensor)}
    title = f"aten::{operator.__name__}"
    base, backward = canonical(title)
    call = Call(
        base, backward, kind(title), (*names, *tensors), (*shapes, *(tuple(t.shape) for t in tensors.values())),
        tuple(tuple(t.shape) for t in run(first)), {k: v for k, v in args.items() if k not in tensors}, title,
    )  # fmt: skip
    told = dims(call).linear
    for inputs in told:
        assert linear(inputs), f"not linear in {sorted(inputs)}"
    for at in range(len(names)):
        alone = frozenset((at,))
        if alone not in told:
            assert not linear(alone), f"linear in {names[at]}"


F, H, I, B = torch.float32, torch.bfloat16, torch.int64, torch.bool
RESULTS = [
    ("mm", {"self": (3, 4), "mat2": (4, 5)}, {}),
    ("addmm", {"self": (5,), "mat1": (3, 4), "mat2": (4, 5)}, {}),
    ("linear", {"input": (2, 3, 4), "weight": (5, 4), "bias": (5,)}, {}),
    ("bmm", {"self": (2, 3, 4), "mat2": (2, 4, 5)}, {}),
    ("baddbmm", {"self": (2, 3, 5), "batch1": (2, 3, 4), "batch2": (2, 4, 5)}, {}),
    ("addbmm", {"self": (3, 5), "batch1": (2, 3, 4), "batch2": (2, 4, 5)}, {}),
    ("matmul", {"self": (6, 1, 3, 4), "other": (2, 4, 5)}, {}),
    ("matmul", {"self": (4,), "other": (2, 4, 5)}, {}),
    ("matmul", {"self": (2, 3, 4), "other": (4,)}, {}),
    ("mv", {"self": (3, 4), "vec": (4,)}, {}),
    ("dot", {"self": (4,), "tensor": (4,)}, {}),
    ("convolution", {"input": (2, 6, 9, 8), "weight": (4, 3, 3, 2), "bias": (4,)},
     {"stride": [2, 1], "padding": [1, 0], "dilation": [2, 1], "transposed": False, "output_padding": [0, 0],
      "groups": 2}),
    ("convolution", {"input": (2, 6, 5, 5), "weight": (6, 3, 3, 2), "bias": (6,)},
     {"stride": [2, 2], "padding": [1, 0], "dilation": [2, 1], "transposed": True, "output_padding": [1, 0],
      "groups": 2}),
    ("convolution_backward", {"grad_output": (2, 4, 3, 3), "input": (2, 3, 5, 5), "weight": (4, 3, 3, 3)},
     {"bias_sizes": [4], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False,
      "output_padding": [0, 0], "groups": 1, "output_mask": [True, True, True]}),
    ("max_pool2d_with_indices", {"self": (2, 3, 9, 9)}, {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]}),
    ("avg_pool2d", {"self": (2, 3, 9, 9)}, {"kernel_size": [2, 3]}),
    ("avg_pool2d", {"self": (2, 3, 8, 8)},
     {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True}),
    ("avg_pool2d_backward", {"grad_output": (2, 3, 4, 4), "self": (2, 3, 8, 8)},
     {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False, "count_include_pad": True,
      "divisor_override": None}),
    ("_adaptive_avg_pool2d", {"self": (2, 3, 8, 8)}, {"output_size": [7, 5]}),
    ("embedding", {"weight": (7, 3), "indices": ((2, 4), I)}, {}),
    ("embedding_dense_backward", {"grad_output": (2, 4, 3), "indices": ((2, 4), I)},
     {"num_weights": 7, "padding_idx": -1, "scale_grad_by_freq": False}),
    ("native_layer_norm", {"input": ((2, 3, 4), H), "weight": ((4,), H), "bias": ((4,), H)},
     {"normalized_shape": [4], "eps": 1e-5}),
    ("native_group_norm", {"input": (2, 6, 5), "weight": (6,), "bias": (6,)},
     {"N": 2, "C": 6, "HxW": 5, "group": 3, "eps": 1e-5}),
    ("_softmax", {"self": (3, 4)}, {"dim": 1, "half_to_float": False}),
    ("_softmax_backward_data", {"grad_output": (3, 4), "output": (3, 4)}, {"dim": 1, "input_dtype": F}),
    ("nll_loss_forward", {"self": (3, 4), "target": ((3,), I)}, {"weight": None, "reduction": 1, "ignore_index": -100}),
    ("nll_loss_forward", {"self": (3, 4), "target": ((3,), I)}, {"weight": None, "reduction": 0, "ignore_index": -100}),
    ("nll_loss_backward", {"grad_output": (), "self": (3, 4), "target": ((3,), I), "total_weight": ()},
     {"weight": None, "reduction": 1, "ignore_index": -100}),
    ("mse_loss", {"self": (3, 4), "target": (3, 4)}, {}),
    ("mse_loss", {"self": (3, 4), "target": (3, 4)}, {"reduction": 0}),
    ("add", {"self": (3, 1, 4), "other": (5, 1)}, {}),
    ("add", {"self": ((3, 4), H), "other": ((3, 4), F)}, {}),
    ("add", {"self": ((3, 4), H), "other": ((), F)}, {}),
    ("add", {"self": ((3, 4), I), "other": ((), F)}, {}),
    ("mul", {"self": ((3, 4), I), "other": ((3, 4), B)}, {}),
    ("gt", {"self": (3, 4), "other": (4,)}, {}),
    ("where", {"condition": ((3, 4), B), "self": (3, 1), "other": (4,)}, {}),
    ("masked_fill", {"self": (3, 4), "mask": ((4,), B)}, {"value": 0}),
    ("gelu_backward", {"grad_output": (3, 4), "self": (3, 4)}, {}),
    ("threshold_backward", {"grad_output": (3, 4), "self": (3, 4)}, {"threshold": 0}),
    ("native_dropout", {"input": (3, 4)}, {"p": 0.1, "train": True}),
    ("native_dropout_backward", {"grad_output": (3, 4), "mask": ((3, 4), B)}, {"scale": 2.0}),
    ("sum", {"self": (3, 4, 5)}, {"dim": [0, -1], "keepdim": False}),
    ("sum", {"self": ((3, 4), B)}, {"dim": [0], "keepdim": True}),
    ("mean", {"self": (3, 4, 5)}, {"dim": [1], "keepdim": True}),
    ("mean", {"self": (3, 4)}, {}),
    ("amax", {"self": (3, 4)}, {"dim": [1], "keepdim": False}),
    ("argmax", {"self": (3, 4)}, {"dim": 1, "keepdim": False}),
    ("var_mean", {"self": (3, 4)}, {"dim": [1], "keepdim": True}),
    ("max", {"self": (3, 4)}, {"dim": 1, "keepdim": False}),
    ("cumsum", {"self": (3, 4)}, {"dim": 1}),
    ("cat", {"tensors": [(3, 4), (3, 2)]}, {"dim": -1}),
    ("stack", {"tensors": [(3, 4), (3, 4)]}, {"dim": -1}),
    ("clone", {"self": (3, 4)}, {}),
    ("repeat", {"self": (3, 4)}, {"repeats": [2, 1, 3]}),
    ("repeat_interleave", {"self": (3, 4)}, {"repeats": 2, "dim": 1}),
    ("constant_pad_nd", {"self": (3, 4)}, {"pad": [1, 2, 0, 1]}),
    ("flip", {"self": (3, 4)}, {"dims": [0]}),
    ("roll", {"self": (3, 4)}, {"shifts": [1], "dims": [0]}),
    ("view", {"self": (3, 4)}, {"size": [2, -1]}),
    ("expand", {"self": (3, 1)}, {"size": [2, -1, 4]}),
    ("transpose", {"self": (3, 4, 5)}, {"dim0": 0, "dim1": -1}),
    ("permute", {"self": (3, 4, 5)}, {"dims": [2, 0, 1]}),
    ("t", {"self": (3, 4)}, {}),
    ("unsqueeze", {"self": (3, 4)}, {"dim": -1}),
    ("squeeze", {"self": (3, 1, 4, 1)}, {"dim": 1}),
    ("squeeze", {"self": (3, 1, 4, 1)}, {}),
    ("flatten", {"self": (3, 4, 5)}, {"start_dim": 1}),
    ("unflatten", {"self": (3, 8)}, {"dim": 1, "sizes": [2, -1]}),
    ("slice", {"self": (3, 9)}, {"dim": 1, "start": 1, "end": -1, "step": 3}),
    ("select", {"self": (3, 4)}, {"dim": 0, "index": -1}),
    ("narrow", {"self": (3, 4)}, {"dim": 1, "start": 1, "length": 2}),
    ("split", {"self": (3, 7)}, {"split_size": 3, "dim": 1}),
    ("split_with_sizes", {"self": (3, 7)}, {"split_sizes": [3, 4], "dim": 1}),
    ("chunk", {"self": (3, 7)}, {"chunks": 3, "dim": 1}),
    ("unbind", {"self": (3, 7)}, {"dim": 0}),
    ("view_as_complex", {"self": (3, 2)}, {}),
    ("slice_backward", {"grad_output": (3, 2)}, {"input_sizes": [3, 9], "dim": 1, "start": 1, "end": 3, "step": 1}),
    ("ones_like", {"self": ((3, 4), H)}, {}),
    ("new_zeros", {"self": ((3, 4), H)}, {"size": [7]}),
    ("zeros", {}, {"size": [3, 4]}),
    ("index_select", {"self": (3, 4), "index": ((5,), I)}, {"dim": 0}),
    ("gather", {"self": (3, 4), "index": ((3, 2), I)}, {"dim": 1}),
    ("scatter_add", {"self": (3, 4), "index": ((3, 2), I), "src": (3, 2)}, {"dim": 1}),
    ("index_add", {"self": (3, 4), "index": ((2,), I), "source": (2, 4)}, {"dim": 0}),
    ("sort", {"self": (3, 4)}, {}),
    ("topk", {"self": (3, 8)}, {"k": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tensors", "args"), RESULTS, ids=[f"{name}{i}" for i, (name, *_) in enumerate(RESULTS)]
)
def test_results_are_those_that_pytorch_finds_without_data(name, tensors, args) -> None:
    def meta(given) -> object:
        if isinstance(given, list):
            return [meta(one) for one in given]
        shape, dtype = given if len(given) == 2 and isinstance(given[1], torch.dtype) else (given, F)
        return torch.empty(shape, dtype=dtype, device="meta")

    inputs = {role: meta(given) for role, given in tensors.items()}
    keywords = {"device": "meta"} if name == "zeros" else {}
    out = getattr(torch.ops.aten, name)(**inputs, **args, **keywords)
    wanted = [t for t in (out if isinstance(out, tuple | list) else [out]) if t is not None]
    flat = [(role, t) for role, value in inputs.items() for t in (value if isinstance(value, list) else [value])]
    title = f"aten::{name}"
    base, backward = canonical(title)
    call = Call(
        base, backward, kind(title), tuple(role for role, _ in flat), tuple(tuple(t.shape) for _, t in flat), (),
        {k: v for k, v in args.items() if not isinstance(v, torch.dtype)}, title, tuple(word(t) for _, t in flat),
    )  # fmt: skip
    found = results(call)
    assert found is not None
    assert [(r.shape, r.dtype) for r in found] == [(tuple(t.shape), word(t)) for t in wanted][: len(found)]
    # the bias's gradient is of a bias that the backward does not read, a mean of one sum
    assert len(found) == len(wanted)


def word(tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
