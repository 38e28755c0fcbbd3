"""Writing small execution traces as PyTorch's ExecutionTraceObserver does, in either layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def tensor(number: int, storage: int, shape: Sequence[int], *, kind: str = "float", offset: int = 0,
           device: str = "cuda:0") -> dict:  # fmt: skip
    """A tensor as an argument: id, storage id, shape."""
    size = {"float": 4, "long int": 8, "bool": 1, "c10::Half": 2}[kind]
    count = 1
    for extent in shape:
        count *= extent
    return {"value": [number, storage, offset, count, size, device], "shape": list(shape), "type": f"Tensor({kind})"}


def undefined(number: int) -> dict:
    """The tensor that is none."""
    return {"value": [number, 0, 0, 0, 0, ""], "shape": [], "type": "Tensor(nullptr (uninitialized))"}


def many(items: Sequence[dict], nested: bool = False) -> dict:
    """A list of tensors; ``nested`` as some versions write returned lists."""
    values, shapes = [i["value"] for i in items], [i["shape"] for i in items]
    kinds = f"GenericList[{','.join(i['type'] for i in items)}]"
    return {"value": [values] if nested else values, "shape": [shapes] if nested else shapes, "type": kinds}


def plain(value: Any, kind: str = "Int") -> dict:
    """A constant."""
    return {"value": value, "shape": [], "type": kind}


class Execution:
    """Collects nodes; ids count in order of start, nodes are written in order of completion."""

    def __init__(self, schema: str = "1.0.1") -> None:
        self.schema = schema
        self.number = 2
        self.nodes: list[dict] = []
        self._node(1, "[pytorch|profiler|execution_trace|process]", 1, 0, 7, 0, -1, 0, "", [], [])
        self._node(2, "[pytorch|profiler|execution_trace|thread]", 1, 1, 7, 0, -1, 0, "", [], [])
        self._node(3, "[pytorch|profiler|execution_trace|thread]", 1, 2, 7, 0, -1, 0, "", [], [])
        self.number = 3
        self.function = 0
        self.with_functions = True

    def op(self, name: str, inputs: Sequence[dict] = (), outputs: Sequence[dict] = (), schema: str = "", *,
           parent: int | None = None, tid: int = 1, seq: int = -1, fwd: int = 0, scope: int = 0,
           inside: Any = None) -> int:  # fmt: skip
        """One call; ``inside(id)`` makes the calls within it."""
        self.number += 1
        self.function += 1
        number, function = self.number, self.function if self.with_functions else 0
        if inside is not None:
            inside(number)
        above = parent if parent is not None else (2 if tid == 1 else 3)
        self._node(number, name, above, tid, scope, fwd, seq, function, schema, inputs, outputs)
        return number

    def _node(self, number: int, name: str, parent: int, tid: int, scope: int, fwd: int, seq: int, function: int,
              schema: str, inputs: Sequence[dict], outputs: Sequence[dict]) -> None:  # fmt: skip
        facts = {"rf_id": function, "fw_parent": 0, "seq_id": seq, "scope": scope, "tid": tid, "fw_tid": fwd,
                 "op_schema": schema}  # fmt: skip
        sides = {}
        for side, items in (("inputs", inputs), ("outputs", outputs)):
            columns = {"values": [i["value"] for i in items], "shapes": [i["shape"] for i in items],
                       "types": [i["type"] for i in items]}  # fmt: skip
            if self.schema == "1.0.1":
                one = side[:-1]
                sides[side] = columns["values"]
                sides[f"{one}_shapes"], sides[f"{one}_types"] = columns["shapes"], columns["types"]
            else:
                sides[side] = columns
        if self.schema == "1.0.1":
            self.nodes.append({"name": name, "id": number, "parent": parent, **facts, **sides})
        else:
            attrs = [{"name": key, "type": "uint64", "value": value} for key, value in facts.items()]
            self.nodes.append({"id": number, "name": name, "ctrl_deps": parent, **sides, "attrs": attrs})

    def data(self) -> dict:
        return {"schema": self.schema, "pid": 7, "time": "2025-01-01 00:00:00", "start_ts": 1, "nodes": self.nodes,
                "finish_ts": 2}  # fmt: skip

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.data()))
        return path


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
T = "aten::t(Tensor(a) self) -> Tensor(a)"
RELU_ = "aten::relu_(Tensor(a!) self) -> Tensor(a!)"
THRESHOLD = "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor"
SUM = "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"
DETACH = "aten::detach(Tensor(a) self) -> Tensor(a)"
EXPAND = "aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"
LERP = "aten::_foreach_lerp_.Scalar(Tensor(a!)[] self, Tensor[] tensors1, Scalar weight) -> ()"
ADDCDIV = (
    "aten::_foreach_addcdiv_.ScalarList(Tensor(a!)[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar[] scalars) -> ()"
)


def step(schema: str = "1.0.1", *, functions: bool = True) -> Execution:
    """One step of linear(8->16, no bias), relu in place, linear(16->2, no bias), sum, with an optimizer on lists.

    Ids are recycled as PyTorch does it: the gradient of the hidden layer gets the address of the scores, and tensor
    id 61 is used for two tensors.
    """
    e = Execution(schema)
    e.with_functions = functions
    x, w1, w2 = tensor(10, 11, [4, 8]), tensor(20, 21, [16, 8]), tensor(22, 23, [2, 16])
    hidden, scores, loss = tensor(30, 31, [4, 16]), tensor(40, 41, [4, 2]), tensor(50, 51, [])
    seed, spread = tensor(52, 53, []), tensor(54, 53, [4, 2])

    e.op("aten::linear", [x, w1], [hidden], LINEAR, seq=1)
    e.op("aten::relu_", [hidden], [hidden], RELU_, seq=2)
    e.op("aten::linear", [hidden, w2], [scores], LINEAR, seq=3)
    e.op("aten::sum", [scores, plain("<None>", "None")], [loss], SUM, seq=4)
    e.op("aten::ones_like", [loss], [seed], "aten::ones_like(Tensor self) -> Tensor")

    def node(name: str, seq: int, gradient: dict, calls: Any) -> None:
        def engine(number: int) -> None:
            e.op(name, [gradient], [], parent=number, tid=2, seq=seq, fwd=1, scope=1, inside=calls)

        e.op(f"autograd::engine::evaluate_function: {name}", tid=2, inside=engine)

    def accumulate(gradient: dict, again: dict) -> None:
        def engine(number: int) -> None:
            def detach(inner: int) -> None:
                e.op("aten::detach", [gradient], [again], DETACH, parent=inner, tid=2)

            e.op("torch::autograd::AccumulateGrad", [gradient], [], parent=number, tid=2, fwd=1, scope=1, inside=detach)

        e.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", tid=2, inside=engine)

    def expand(number: int) -> None:
        size = plain([4, 2], "GenericList[Int,Int]")
        e.op("aten::expand", [seed, size], [spread], EXPAND, parent=number, tid=2)

    node("SumBackward0", 4, seed, expand)
    grad_hidden, turned, grad_w2 = tensor(61, 41, [4, 16]), tensor(62, 53, [2, 4]), tensor(63, 64, [2, 16])

    def second(number: int) -> None:
        e.op("aten::mm", [spread, w2], [grad_hidden], MM, parent=number, tid=2)
        e.op("aten::t", [spread], [turned], T, parent=number, tid=2)
        e.op("aten::mm", [turned, tensor(65, 31, [4, 16])], [grad_w2], MM, parent=number, tid=2)  # unpacked: a new id

    node("MmBackward0", 3, spread, second)
    kept_w2 = tensor(66, 64, [2, 16])
    accumulate(grad_w2, kept_w2)
    grad_relu = tensor(61, 68, [4, 16])

    def threshold(number: int) -> None:
        saved = tensor(67, 31, [4, 16])
        e.op("aten::threshold_backward", [grad_hidden, saved, plain(0)], [grad_relu], THRESHOLD, parent=number, tid=2)

    node("ReluBackward0", 2, grad_hidden, threshold)
    turned, grad_w1 = tensor(70, 68, [16, 4]), tensor(71, 31, [16, 8])

    def first(number: int) -> None:
        e.op("aten::t", [grad_relu], [turned], T, parent=number, tid=2)
        e.op("aten::mm", [turned, x], [grad_w1], MM, parent=number, tid=2)

    node("MmBackward0", 1, grad_relu, first)
    kept_w1 = tensor(72, 31, [16, 8])
    accumulate(grad_w1, kept_w1)

    def optimizer(number: int) -> None:
        moments = [tensor(80, 81, [16, 8]), tensor(82, 83, [2, 16])]
        roots = [tensor(84, 85, [16, 8]), tensor(86, 87, [2, 16])]
        counts = [tensor(88, 89, [], device="cpu"), tensor(90, 91, [], device="cpu")]
        e.op("aten::_foreach_add_", [many(counts), plain(1)], [],
             "aten::_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()", parent=number)  # fmt: skip
        e.op("aten::_foreach_lerp_", [many(moments), many([kept_w1, kept_w2]), plain(0.1, "Double")], [], LERP,
             parent=number)  # fmt: skip
        e.op("aten::_foreach_sqrt", [many(moments)], [many(roots, nested=True)],
             "aten::_foreach_sqrt(Tensor[] self) -> Tensor[]", parent=number)  # fmt: skip
        e.op("aten::item", [counts[0]], [plain(3.0, "Double")], "aten::item(Tensor self) -> Scalar", parent=number)
        e.op("aten::_foreach_addcdiv_", [many([w1, w2]), many(moments), many(roots), plain([0.1, 0.1], "GenericList")],
             [], ADDCDIV, parent=number)  # fmt: skip

    e.op("Optimizer.step#Adam.step", scope=7, inside=optimizer)
    return e
