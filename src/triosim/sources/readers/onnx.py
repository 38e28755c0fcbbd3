"""ONNX files, opsets 9 to 28: the network that a runtime would run, without times.

Shapes come from ONNX's own inference, for which the package ``onnx`` is needed (``pip install 'triosim[onnx]'``).
It is done twice, with two sizes of the batch: dimensions that grow with it follow it.  Weights are not looked
at, so files of which the weights lie elsewhere are read too.  Operators that ONNX Runtime's optimisers put into files
are in :mod:`triosim.sources.readers._runtime_operators`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.registry import registered
from triosim.sources.models._tape import Dim
from triosim.sources.readers._graph import FOLDED, GraphOperator, GraphTensor, NetworkGraph
from triosim.sources.readers._onnx_operators import RECURRENT, forward_trace
from triosim.sources.readers._quantised import in_eight_bits
from triosim.sources.readers._runtime_operators import RULES as OF_RUNTIME
from triosim.sources.readers._runtime_operators import type_of, with_known_shapes
from triosim.sources.reading import Reader
from triosim.trace.tables import BATCH, Meta, Trace

OPSETS = range(9, 29)
"""Versions of ONNX's operators whose attributes are read as they were meant."""
_OWN = ("", "ai.onnx")
"""Names of the domain of ONNX's own operators."""
_OTHER_BATCH = 7
"""Times the batch is larger in the second inference: a factor that few other dimensions have by chance."""
_SECOND = (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)
"""What may follow ``ir_version`` in the file: the tags of the model's other fields."""

_LARGE = 1 << 12
"""Bytes of a constant from which on it is a weight and not sizes."""

Shapes = dict[str, tuple[int, ...]]


@registered
class Onnx(Reader):
    """Reads an ONNX model."""

    what = "an ONNX model"
    takes_shapes = takes_unused = True

    def recognises(self, path: Path) -> bool:
        start = guarded.head(path, 3)
        return len(start) == 3 and start[0] == 0x08 and 1 <= start[1] <= 32 and start[2] in _SECOND

    def read(
        self,
        path: Path,
        *,
        step: str = "median",
        execution_trace: Path | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        unused: bool = False,
    ) -> Trace:
        """See :class:`~triosim.sources.reading.Reader`; ``shapes``: of inputs, instead of those of the file."""
        if execution_trace is not None or step not in ("median", "all", "0"):
            raise InputError(f"{path} holds a network and no steps; leave the execution trace and the step away")
        try:
            return self._trace(_model(path), path, shapes or {}, unused)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is a broken ONNX model ({quoted(str(error))}): export or copy it again") from None

    def _trace(self, model: Any, path: Path, shapes: Mapping[str, Sequence[int]], unused: bool) -> Trace:
        initializers = {one.name for one in model.graph.initializer}
        inputs = [one for one in model.graph.input if one.name not in initializers]
        for name in shapes:
            if name not in {one.name for one in inputs}:
                raise InputError(f"{path}: {unknown('input', name, [one.name for one in inputs])}")
        sizes = {one.name: _size(one, shapes.get(one.name), str(path)) for one in inputs}
        if not sizes:
            raise InputError(f"{path} has no input: export the network again")
        found = _inferred(model, sizes, str(path))
        while _choose(model, found.choices):
            found = _inferred(model, sizes, str(path))
        known, types = found.shapes, found.types
        first = next((size for size in sizes.values() if size), (1,))
        batch, grown = first[0], _grown(model, sizes, first, 0, str(path))
        if _longer(model, known, grown) and len(first) > 1:  # recurrent layers take their steps first, then the batch
            batch, grown = first[1], _grown(model, sizes, first, 1, str(path))
        follows = bool(grown) and all(name in grown for name in known) and not _longer(model, known, grown)
        tensors = {
            name: GraphTensor(_marked(shape, grown[name]) if follows else shape, types.get(name, "float32"))
            for name, shape in known.items()
        }  # fmt: skip
        for one in _constants(model):
            tensors[one.name] = GraphTensor(
                tuple(one.dims), _dtype(one.data_type), constant=True, values=_whole_numbers(one)
            )
        graph = NetworkGraph(
            list(_operators(model, path)), tensors, list(sizes), [one.name for one in model.graph.output],
            _opset(model),
        )  # fmt: skip
        graph, narrow = in_eight_bits(graph)
        notes: tuple[str, ...] = ("operators are those of the file: nothing is fused",)
        if narrow:
            notes += (f"{narrow} products between quantisation and its reverse run on 8 bits, as runtimes take them",)
        if any(node.type in RECURRENT for node in graph.operators):
            notes += ("recurrent layers run step by step; kernels that keep a layer's weights on chip take less",)
        meta = Meta(
            made_by="onnx", workload=path.name.removesuffix(".onnx"), batch_size=batch,
            framework=f"onnx opset {_opset(model)}", symbols="model" if follows else "",
            notes=notes,
        )  # fmt: skip
        return forward_trace(graph, meta, str(path), unused, OF_RUNTIME)


def _model(path: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise InputError(
            f"{path} is an ONNX model, which takes the package onnx: pip install 'triosim[onnx]'"
        ) from None
    raw = guarded.content(path)
    try:
        model = onnx.load_model_from_string(raw)
    except Exception as error:  # protobuf's errors have no public class of their own
        raise InputError(f"{path} is a broken ONNX model ({str(error)[:80]}): export or copy it again") from None
    for one in model.graph.initializer:  # weights are not looked at, and copied twice
        if len(one.raw_data) > _LARGE:
            one.ClearField("raw_data")
    if model.functions:
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    if not model.graph.node:
        raise InputError(f"{path} is a broken ONNX model without operators: export or copy it again")
    opset = _opset(model)
    if opset not in OPSETS:
        raise InputError(
            f"{path} uses opset {opset}, known are {OPSETS[0]} to {OPSETS[-1]}: export it with one of these"
        )
    _check_domains(model, path)
    return model


_OTHER = "export the network with ONNX's own operators"
_OTHERS = {
    "ai.onnx.ml": "its trees, kernels and encoders are no network: give the file of one",
    "ai.onnx.training": "a file for inference is read: export the network without its optimizer",
    "ai.onnx.preview.training": "a file for inference is read: export the network without its optimizer",
    "com.microsoft.nchwc": "ONNX Runtime laid this file out for one processor: save it at ORT_ENABLE_EXTENDED or below",
    "com.microsoft.extensions": "export the network without what prepares texts and images",
    "ai.onnx.contrib": "export the network without what prepares texts and images",
    "org.pytorch": "PyTorch found no operator of ONNX: export with a later opset, or with dynamo=True",
    "aten": "PyTorch found no operator of ONNX: export with a later opset, or with dynamo=True",
}
"""What to do about operators of other domains, by how these begin."""


def _check_domains(model: Any, path: Path) -> None:
    """Refuse operators that are neither ONNX's own nor known of its runtime, before shapes are inferred of them."""
    for number, node in enumerate(model.graph.node):
        if node.domain not in _OWN and type_of(node.domain, node.op_type) not in OF_RUNTIME:
            cure = next((cure for domain, cure in _OTHERS.items() if node.domain.startswith(domain)), _OTHER)
            raise InputError(
                f"{path}: node {quoted(_named(node, number))} is of type {quoted(node.op_type)} of "
                f"{quoted(node.domain)}, which is not known: {cure}"
            )


def _named(node: Any, number: int) -> str:
    return str(node.name or f"{node.op_type}_{number}")


def _constants(model: Any) -> Iterator[Any]:
    """Tensors whose values the file holds, under the names that operators read them by."""
    from onnx import TensorProto, numpy_helper

    yield from model.graph.initializer
    for node in model.graph.node:
        for one in node.attribute if node.op_type == "Constant" else ():
            made = TensorProto()
            if one.name == "value":
                made.CopyFrom(one.t)
            elif one.name in ("value_int", "value_ints"):
                made = numpy_helper.from_array(np.array(one.i if one.name == "value_int" else one.ints, np.int64))
            else:
                continue
            made.name = node.output[0]
            yield made


def _whole_numbers(tensor: Any) -> tuple[int, ...]:
    """What a small tensor of whole numbers holds."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64) or np.prod(tensor.dims, dtype=float) > _FEW:
        return ()
    return tuple(int(one) for one in numpy_helper.to_array(tensor).reshape(-1))


def _opset(model: Any) -> int:
    return max((int(one.version) for one in model.opset_import if one.domain in _OWN), default=0)


def _grown(model: Any, sizes: Shapes, first: tuple[int, ...], at: int, where: str) -> Shapes:
    """Shapes with a larger batch, which is dimension ``at`` of inputs; empty where the network does not allow it."""
    batch = first[at]
    larger = {
        name: (*size[:at], batch * _OTHER_BATCH, *size[at + 1 :]) if size[at : at + 1] == (batch,) else size
        for name, size in sizes.items()
    }
    try:
        return _inferred(model, larger, where).shapes
    except InputError:
        return {}


def _longer(model: Any, known: Shapes, grown: Shapes) -> bool:
    """Whether a recurrent layer takes more steps in the second inference: then what grew is no batch."""
    for node in model.graph.node:
        if node.op_type in RECURRENT and node.input[0] in known and node.input[0] in grown:
            steps = 1 if any(one.name == "layout" and one.i for one in node.attribute) else 0
            if known[node.input[0]][steps] != grown[node.input[0]][steps]:
                return True
    return False


def _size(one: Any, given: Sequence[int] | None, where: str) -> tuple[int, ...]:
    """The shape of an input.

    Raises:
        InputError: the file leaves a dimension open, and nothing was given; or what was given does not fit.
    """
    stated = [int(side.dim_value) for side in one.type.tensor_type.shape.dim]
    words = ",".join(str(side) if side > 0 else "?" for side in stated)
    if given is None:
        if any(side < 1 for side in stated):
            usual = (1, 3, 224, 224) if len(stated) == 4 else (1,) * len(stated)  # of four sides: an image
            example = ",".join(str(side if side > 0 else other) for side, other in zip(stated, usual, strict=True))
            raise InputError(
                f"{where}: input {quoted(one.name)} has the open shape {words}: give --input-shape {one.name}={example}"
            )
        return tuple(stated)
    pairs = list(zip(stated, given, strict=False))
    if len(given) != len(stated) or any(s not in (0, g) for s, g in pairs[1:]):  # the batch may change
        raise InputError(f"{where}: input {quoted(one.name)} has the shape {words}, not {','.join(map(str, given))}")
    return tuple(int(side) for side in given)


@dataclass(frozen=True)
class KnownTensors:
    """What is known of the tensors of a network before it runs.

    Attributes:
        shapes: of each, where it can be known.
        types: of elements.
        choices: what follows from shapes and chooses between branches.
    """

    shapes: Shapes
    types: Mapping[str, str]
    choices: Mapping[str, bool]


def _inferred(model: Any, sizes: Mapping[str, tuple[int, ...]], where: str) -> KnownTensors:
    """Shape and element type of every tensor, with inputs of these sizes.

    ONNX's inference follows sizes that are computed as the network runs only in later opsets.  Where some remain
    unknown, they are computed here and become constants, until nothing new is known.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for one in copy.graph.input:
        if one.name in sizes:
            for side, size in zip(one.type.tensor_type.shape.dim, sizes[one.name], strict=True):
                side.dim_value = size
    for one in copy.graph.output:
        one.type.tensor_type.ClearField("shape")
    for node in copy.graph.node:
        if node.op_type in _LIKE_INPUT and node.domain in _OWN:  # of which ONNX infers nothing
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    asked = {node.input[0] for node in copy.graph.node if node.op_type == "If"}
    with_known_shapes(copy, onnx)
    while True:
        try:
            # of branches the one that is not taken need make no sense
            found = onnx.shape_inference.infer_shapes(copy, data_prop=True, strict_mode=not asked)
        except Exception as error:  # onnx's own class is not to be imported by its name in all versions
            said = " ".join(str(error).split())[:160]
            raise InputError(f"{where}: shapes do not go together ({said}): export the network again") from None
        shapes: Shapes = {}
        types: dict[str, str] = {}
        for one in (*found.graph.input, *found.graph.value_info, *found.graph.output):
            kind = one.type.tensor_type
            types[one.name] = _dtype(kind.elem_type)
            if kind.HasField("shape") and all(side.HasField("dim_value") for side in kind.shape.dim):
                shapes[one.name] = tuple(int(side.dim_value) for side in kind.shape.dim)
        for one in copy.graph.initializer:
            shapes.setdefault(one.name, tuple(int(side) for side in one.dims))
            types.setdefault(one.name, _dtype(one.data_type))
        made = {name for node in copy.graph.node for name in node.output}
        if (made <= shapes.keys() and not asked) or not _settled(copy, shapes):
            return KnownTensors(shapes, types, _choices(copy, asked))


def _choices(model: Any, asked: Container[str]) -> dict[str, bool]:
    """Constants among the conditions that are asked for."""
    from onnx import numpy_helper

    return {
        one.name: bool(numpy_helper.to_array(one).reshape(-1)[0])
        for one in model.graph.initializer
        if one.name in asked
    }


def _choose(model: Any, choices: Mapping[str, bool]) -> bool:
    """Put the chosen branch in the place of each ``If`` of which the condition is known, in place; whether there was
    one."""
    from onnx import helper

    nodes: list[Any] = []
    if not any(node.op_type == "If" and node.input[0] in choices for node in model.graph.node):
        return False
    for node in model.graph.node:
        if node.op_type != "If" or node.input[0] not in choices:
            nodes.append(node)
            continue
        chosen = "then_branch" if choices[node.input[0]] else "else_branch"
        (branch,) = (one.g for one in node.attribute if one.name == chosen)
        ends = zip(branch.output, node.output, strict=True)
        nodes += [*branch.node, *(helper.make_node("Identity", [own.name], [name]) for own, name in ends)]
        model.graph.initializer.extend(branch.initializer)
    _replace_nodes(model, nodes)
    return True


def _replace_nodes(model: Any, nodes: Sequence[Any]) -> None:
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


_LIKE_INPUT = ("GroupNormalization", "MeanVarianceNormalization", "RMSNormalization", "RotaryEmbedding", "Swish")
"""Operators whose result is like their first input."""
_SIZES = frozenset((
    "Add", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "And", "Expand", "Floor",
    "Gather", "Greater", "Identity", "Less", "Max", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceProd", "ReduceSum", "Reshape", "ScatterND",
    "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
))  # fmt: skip
"""Operators that sizes are computed with."""
_FEW = 64
"""Elements of a tensor of sizes at most."""


def _settled(model: Any, shapes: Shapes) -> bool:
    """Turn operators whose results follow from known shapes into constants, in place; whether there were any."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    values = {
        one.name: numpy_helper.to_array(one)
        for one in model.graph.initializer
        if np.prod(one.dims, dtype=float) <= _FEW
    }
    kept, settled = [], False
    for node in model.graph.node:
        if node.op_type == "Shape" and node.input[0] in shapes:
            part = {one.name: one.i for one in node.attribute}  # from opset 15 on
            sides = shapes[node.input[0]][part.get("start", 0) : part.get("end")]
            results: list[Any] = [np.array(sides, np.int64)]
        elif node.op_type in _SIZES and node.domain == "" and all(name in values for name in node.input if name):
            if node.op_type in ("ConstantOfShape", "Expand") and _large(values[node.input[-1]]):
                kept.append(node)
                continue
            try:
                feeds = {name: values[name] for name in node.input if name}
                if node.op_type in ("Squeeze", "Unsqueeze") and node.attribute:  # the evaluator knows the later form
                    change = np.squeeze if node.op_type == "Squeeze" else np.expand_dims
                    results = [change(values[node.input[0]], tuple(node.attribute[0].ints))]
                else:
                    results = list(ReferenceEvaluator(node, opsets={"": _opset(model)}).run(None, feeds))
            except Exception:  # whatever numpy says of sizes that make no sense: they stay unknown
                results = []
        else:
            results = []
        if len(results) != len(node.output) or any(np.size(one) > _FEW for one in results):
            kept.append(node)
            continue
        settled = True
        for name, one in zip(node.output, results, strict=True):
            values[name] = np.asarray(one)
            model.graph.initializer.append(numpy_helper.from_array(values[name], name))
    if settled:
        _replace_nodes(model, kept)
    return settled


def _large(sides: Any) -> bool:
    """Whether a tensor of these sides is none of sizes."""
    return bool(np.ndim(sides) != 1 or (np.asarray(sides) < 0).any() or np.prod(sides, dtype=float) > _FEW)


def _dtype(code: int) -> str:
    import onnx

    name = onnx.TensorProto.DataType.Name(code).lower() if code else "float"
    name = {"float": "float32", "double": "float64"}.get(name, name)
    return name if name in DTYPES else "unknown"


def _marked(shape: tuple[int, ...], grown: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, with dimensions that grew with the batch marked as following it."""
    if len(shape) != len(grown):
        return shape
    return tuple(
        Dim(side, BATCH) if other == side * _OTHER_BATCH and side else side
        for side, other in zip(shape, grown, strict=True)
    )


def _operators(model: Any, path: Path) -> Iterator[GraphOperator]:
    from onnx import helper

    for number, node in enumerate(model.graph.node):
        name, kind = _named(node, number), type_of(node.domain, node.op_type)
        attributes: dict[str, Any] = {}
        for one in node.attribute if node.op_type not in FOLDED else ():
            value = helper.get_attribute_value(one)
            attributes[one.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        yield GraphOperator(name, kind, tuple(node.input), tuple(node.output), attributes)
