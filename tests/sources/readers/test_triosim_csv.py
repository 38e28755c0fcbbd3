"""TrioSim CSV folders: what the files hold, and the dataflow that they leave out."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.data import shared
from triosim.core.errors import InputError
from triosim.sources.reading import load
from triosim.trace.tables import Category, Phase, Trace, check
from triosim.transform.rescale import establish_symbols, undecided

NODE = "autograd::engine::evaluate_function: "


class Folder:
    """Writes ``trace.csv`` and ``tensor.csv`` as the exporter does: the uses of dropped operators are in the second."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[tuple[int, ...], int, int]] = {}
        self.operators: list[list] = []
        self.uses: list[list] = []
        self.number = 0

    def tensor(self, number: int, shape: Sequence[int], storage: int | None = None, size: int = 4) -> int:
        self.shapes[number] = (tuple(shape), storage if storage is not None else number + 1, size)
        return number

    def _use(self, number: int, role: str) -> None:
        shape, storage, size = self.shapes[number]
        elements = int(np.prod(shape)) if size else 0
        self.uses.append([len(self.uses), number, list(shape), elements, size, role, storage, 0])

    def op(self, name: str, inputs: Sequence[tuple[int, str]], outputs: Sequence[int], stage: str, us: float = 10,
           dropped: bool = False) -> None:  # fmt: skip
        self.number += 1
        for number, role in inputs:
            self._use(number, role)
        for number in outputs:
            self._use(number, "output")
        if not dropped:
            listed = ["[" + "; ".join(map(str, ids)) + "]" for ids in ([n for n, _ in inputs], outputs)]
            sizes = ["[]", "[]"]
            self.operators.append([self.number, name, *listed, us + 1, us, *sizes, 0, stage, 0])

    def write(self, path: Path) -> Path:
        path.mkdir(exist_ok=True)
        header = ["OperatorID", "OperatorName", "Operator_input", "Operator_output", "Operator_cudatime",
                  "Operator_cudatimenooverlap", "InputSize", "OutputSize", "gpuid", "stage", "tpflag"]  # fmt: skip
        self._file(path / "trace.csv", header, self.operators)
        header = ["Index", "TensorID", "TensorShape", "TensorNumElement", "TensorEachByte", "TensorType",
                  "TensorStorgeid", "gpuid"]  # fmt: skip
        self._file(path / "tensor.csv", header, self.uses)
        return path

    @staticmethod
    def _file(path: Path, header: list[str], rows: list[list]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows([header, *rows])
        path.write_text(text.getvalue())


def folder(*, optimizer: str = "adam") -> Folder:
    """One step of: h = relu(A x); s = C dropout(B h + h), cross entropy; batch 2, all linear layers with bias.

    As in real files the products' backward shows the transposed weight only, the mask and what the loss saved are
    nobody's output, the gradient of h is summed up within B's backward, and the view before C is dropped.
    """
    f = Folder()
    t = f.tensor
    x, wa, ba, h = t(4, [2, 4]), t(6, [4, 4]), t(8, [4]), t(10, [2, 4])
    wb, bb, y = t(12, [4, 4]), t(14, [4]), t(16, [2, 4])
    d, mask, flat = t(18, [2, 4, 1]), t(20, [2, 4], size=1), t(22, [2, 4], storage=19)
    wc, bc, s = t(24, [3, 4]), t(26, [3]), t(28, [2, 3])
    target, loss, one = t(30, [2], size=8), t(32, []), t(34, [])
    f.op("aten::linear", [(x, "input"), (wa, "weight"), (ba, "bias=None")], [h], "forward")
    f.op("aten::relu_", [(h, "input")], [h], "forward")
    f.op("aten::linear", [(h, "input"), (wb, "weight"), (bb, "bias=None")], [y], "forward")
    f.op("aten::add_", [(y, "input"), (h, "other")], [y], "forward")
    f.op("aten::dropout", [(y, "input")], [d], "forward")
    f.op("aten::flatten", [(d, "input")], [flat], "forward", dropped=True)
    f.op("aten::linear", [(flat, "input"), (wc, "weight"), (bc, "bias=None")], [s], "forward")
    f.op("aten::cross_entropy_loss", [(s, "input"), (target, "target")], [loss], "forward")
    f.op("aten::ones_like", [(loss, "input")], [one], "forward")

    none, scores, weight = t(40, [], storage=0, size=0), t(42, [2, 3]), t(44, [])
    g1, again, g2 = t(46, [2, 3]), t(48, [2, 3], storage=43), t(50, [2, 3])
    f.op(NODE + "NllLossBackward0", [(one, "grad_output"), (scores, "input"), (target, "target"), (none, "weight"),
         (weight, "total_weight")], [g1], "backward")  # fmt: skip
    f.op(NODE + "LogSoftmaxBackward0", [(g1, "grad_output"), (again, "output")], [g2], "backward")
    turned, back = t(52, [4, 3], storage=25), t(54, [3, 4], storage=25)
    f.op(NODE + "AddmmBackward0", [(turned, "input")], [back], "backward")
    g3, g4 = t(56, [2, 4]), t(58, [2, 4])
    f.op(NODE + "ViewBackward0", [(t(60, [2, 4], storage=57), "input")], [g3], "backward", dropped=True)
    f.op(NODE + "NativeDropoutBackward0", [(g3, "grad_output"), (mask, "mask")], [g4], "backward")
    f.op(NODE + "AddBackward0", [], [], "backward", dropped=True)
    f.op(NODE + "AddmmBackward0", [(t(62, [4, 4], storage=13), "input")], [t(64, [4, 4], storage=13)], "backward")
    unpacked, g5 = t(66, [2, 4], storage=11), t(68, [2, 4])
    f.op(NODE + "ReluBackward0", [(g4, "grad_output"), (unpacked, "input")], [g5], "backward")
    f.op(NODE + "AddmmBackward0", [(t(70, [4, 4], storage=7), "input")], [t(72, [4, 4], storage=7)], "backward")

    weights = [wa, ba, wb, bb, wc, bc]
    made = [t(100 + 2 * i, f.shapes[w][0]) for i, w in enumerate(weights)]
    first = [t(120 + 2 * i, f.shapes[w][0]) for i, w in enumerate(weights)]
    second = [t(140 + 2 * i, f.shapes[w][0]) for i, w in enumerate(weights)]
    roots = [t(160 + 2 * i, f.shapes[w][0]) for i, w in enumerate(weights)]

    def lists(name: str, *read: list[int], out: Sequence[int] = (), stage: str = "optimizer") -> None:
        f.op(name, [(n, "input") for part in read for n in part], list(out), stage)

    if optimizer == "adam":
        lists("aten::_foreach_lerp_", first, made)
        lists("aten::_foreach_mul_", second)
        lists("aten::_foreach_addcmul_", second, made, made)
        lists("aten::_foreach_sqrt", second, out=roots)
        lists("aten::_foreach_div_", roots)
        lists("aten::_foreach_add_", roots)
        lists("aten::_foreach_addcdiv_", weights, first, roots)
    elif optimizer == "sgd":
        lists("aten::_foreach_add_", weights, made)
    elif optimizer == "fused":  # the exporter takes it for a part of the forward pass
        counts = [t(180 + 2 * i, []) for i in range(6)]
        lists("aten::_fused_adam_", weights, made, first, second, counts, stage="forward")
    elif optimizer == "loop":
        for w, g, m in zip(weights, made, first, strict=True):
            f.op("aten::mul_", [(m, "input")], [m], "forward")
            f.op("aten::add_", [(m, "input"), (g, "other")], [m], "forward")
            f.op("aten::add_", [(w, "input"), (m, "other")], [w], "forward")
    return f


def names(trace: Trace) -> list[str]:
    return [name.rpartition(": ")[2] for name in trace.operators.name]


def at(trace: Trace, name: str) -> list[int]:
    return [row for row, other in enumerate(names(trace)) if other == name]


def gradients(trace: Trace) -> dict[int, int]:
    """The operator that makes the gradient of each parameter."""
    values = trace.values
    found = {}
    for row, outputs in enumerate(trace.operators.outputs.lists()):
        for value in outputs:
            if values.category[value] == Category.GRADIENT:
                found[int(values.of[value])] = row
    return found


def assert_connected(trace: Trace) -> None:
    """Every gradient depends on the loss, the loss on the input and every parameter that the forward pass uses, the
    optimizer on every gradient; and nothing in the backward pass is read without having been made."""
    operators, values, writers = trace.operators, trace.values, trace.writers()
    given = {Category.WEIGHT, Category.BUFFER, Category.INPUT, Category.LABEL}
    above: list[set[int]] = []
    for row, (reads, sources) in enumerate(zip(operators.inputs.lists(), writers, strict=True)):
        reached = {row}
        for value, writer in zip(reads, sources, strict=True):
            if writer >= 0:
                reached |= above[writer]
            elif operators.phase[row] == Phase.BACKWARD:
                assert Category(values.category[value]) in given, (row, operators.name[row])
        above.append(reached)
    loss = at(trace, "aten::cross_entropy_loss")[0]
    forward = {
        row for row in range(loss) if trace.values.category[operators.inputs[row]].tolist().count(Category.WEIGHT)
    }
    assert forward <= above[loss]
    made = gradients(trace)
    assert set(made) == set(trace.weights().tolist())
    assert all(loss in above[row] for row in made.values())
    updated = at(trace, "aten::_foreach_addcdiv_")
    if updated:
        assert set(made.values()) <= above[updated[0]]


class TestFiles:
    def test_recognised_by_its_header(self, tmp_path):
        folder().write(tmp_path / "a")
        for file in (tmp_path / "a").iterdir():
            file.rename(file.with_suffix(".x"))
        assert len(load(tmp_path / "a")) == 22
        assert len(load(tmp_path / "a" / "trace.x")) == 22

    def test_columns_in_any_order(self, tmp_path):
        path = folder().write(tmp_path / "a")
        expected = load(path)
        for name in ("trace.csv", "tensor.csv"):
            rows = list(csv.reader((path / name).open()))
            Folder._file(path / name, [*rows[0][::-1], "more"], [[*row[::-1], "x"] for row in rows[1:]])
        assert load(path).operators.name == expected.operators.name
        assert load(path).writers() == expected.writers()

    def test_meta(self, tmp_path):
        meta = load(folder().write(tmp_path / "net")).meta
        assert (meta.made_by, meta.workload, meta.device, meta.clock) == ("triosim-csv", "net", None, "gpu")
        assert (meta.batch_size, meta.identity) == (2, "exact")

    def test_times_are_sums_of_kernels(self, tmp_path):
        trace = load(folder().write(tmp_path / "a"))
        assert trace.device_time() == pytest.approx(22 * 10e-6)

    def test_an_execution_trace_is_not_needed(self, tmp_path):
        path = folder().write(tmp_path / "a")
        with pytest.raises(InputError, match="leave the execution trace"):
            load(path, execution_trace=path / "trace.csv")

    def test_it_has_one_step(self, tmp_path):
        with pytest.raises(InputError, match="holds one step"):
            load(folder().write(tmp_path / "a"), step=7)


class TestDataflow:
    @pytest.fixture
    def trace(self, tmp_path) -> Trace:
        return load(folder().write(tmp_path / "a"))

    def test_it_is_whole(self, trace):
        check(trace)
        assert_connected(trace)
        assert trace.meta.notes == (
            "element types are known by their size only: 4 bytes are taken as float32, 2 as float16",
        )

    def test_roles_are_those_of_each_use(self, trace):
        roles = [[trace.operators.role_names[r] for r in row] for row in trace.operators.roles]
        assert roles[0] == ["input", "weight", "bias"]
        assert roles[3] == ["input", "other"]
        assert roles[6] == ["input", "target"]

    def test_in_place_operators_make_new_versions(self, trace):
        values, operators = trace.values, trace.operators
        for row in (1, 3):
            before, after = operators.inputs[row][0], operators.outputs[row][0]
            assert values.storage[before] == values.storage[after]
            assert values.version[after] == values.version[before] + 1

    def test_a_dropped_view_does_not_break_the_flow(self, trace):
        assert trace.writers()[5][0] == 4

    def test_backward_operators_know_their_forward_operators(self, trace):
        linked = [(names(trace)[row], int(trace.operators.forward[row])) for row in range(8, 15)]
        assert linked == [
            ("NllLossBackward0", 6),
            ("LogSoftmaxBackward0", 6),
            ("AddmmBackward0", 5),
            ("NativeDropoutBackward0", 4),
            ("AddmmBackward0", 2),
            ("ReluBackward0", 1),
            ("AddmmBackward0", 0),
        ]

    def test_products_get_all_their_tensors(self, trace):
        operators, values = trace.operators, trace.values
        last, middle, first = at(trace, "AddmmBackward0")
        for row, shapes, made in (
            (last, [[2, 3], [2, 4], [3, 4]], [[2, 4], [3, 4], [3]]),
            (middle, [[2, 4], [2, 4], [4, 4], [2, 4]], [[2, 4], [4, 4], [4]]),
            (first, [[2, 4], [2, 4], [4, 4]], [[4, 4], [4]]),  # the input of the net wants no gradient
        ):
            assert [values.shape[v].tolist() for v in operators.inputs[row]] == shapes
            assert sorted(values.shape[v].tolist() for v in operators.outputs[row]) == sorted(made)
            roles = [operators.role_names[r] for r in operators.roles[row]]
            assert roles[:3] == ["grad_output", "input", "weight"]
        # one product for each gradient of a matrix
        flop = trace.operators.flop
        assert flop[last] == 2 * flop[5]
        assert flop[first] == flop[0]

    def test_gradients_that_meet_are_summed_by_the_later_operator(self, trace):
        operators, values, writers = trace.operators, trace.values, trace.writers()
        dropout, product = at(trace, "NativeDropoutBackward0")[0], at(trace, "AddmmBackward0")[1]
        relu = at(trace, "ReluBackward0")[0]
        assert writers[product][0] == dropout
        assert operators.role_names[operators.roles[product][-1]] == "accumulate"
        assert writers[product][-1] == dropout
        assert writers[relu] == [product, 1]
        read_by_relu, read_by_product = operators.inputs[relu][0], operators.inputs[product][0]
        assert values.storage[read_by_relu] == values.storage[read_by_product]
        assert values.version[read_by_relu] == values.version[read_by_product] + 1

    def test_what_is_saved_for_backward_is_an_output_of_forward(self, trace):
        operators, values = trace.operators, trace.values
        assert [values.shape[v].tolist() for v in operators.outputs[4]] == [[2, 4, 1], [2, 4]]  # and the mask
        assert [values.shape[v].tolist() for v in operators.outputs[6]] == [[], [2, 3], []]
        mask = operators.outputs[4][1]
        assert values.category[mask] == Category.ACTIVATION
        assert values.bytes()[mask] == 8

    def test_undefined_tensors_are_left_out(self, trace):
        row = at(trace, "NllLossBackward0")[0]
        assert [trace.operators.role_names[r] for r in trace.operators.roles[row]] == [
            "grad_output", "input", "target", "total_weight",
        ]  # fmt: skip

    def test_categories(self, trace):
        category, inputs = trace.values.category, trace.operators.inputs
        assert category[inputs[0]].tolist() == [Category.INPUT, Category.WEIGHT, Category.WEIGHT]
        assert category[inputs[6][1]] == Category.LABEL
        assert category[trace.operators.outputs[0][0]] == Category.ACTIVATION

    def test_each_layer_has_a_module(self, trace):
        modules = [trace.modules.path[m] if m >= 0 else "" for m in trace.operators.module]
        assert modules[:7] == ["linear_0", "", "linear_1", "", "", "linear_2", ""]
        assert [modules[row] for row in at(trace, "AddmmBackward0")] == ["linear_2", "linear_1", "linear_0"]
        assert [trace.values.name[w] for w in trace.weights()][:3] == [
            "linear_0.weight", "linear_0.bias", "linear_1.weight",
        ]  # fmt: skip

    def test_the_batch_can_be_followed(self, trace):
        assert undecided(establish_symbols(trace)).size == 0


class TestOptimizers:
    @pytest.mark.parametrize("optimizer", ["adam", "sgd", "fused", "loop"])
    def test_parameters_and_gradients(self, tmp_path, optimizer):
        trace = load(folder(optimizer=optimizer).write(tmp_path / "a"))
        values = trace.values
        assert [values.shape[w].tolist() for w in trace.weights()] == [[4, 4], [4], [4, 4], [4], [3, 4], [3]]
        assert_connected(trace)
        written = {int(values.storage[v]) for row in range(len(trace)) for v in trace.operators.outputs[row]
                   if trace.operators.phase[row] == Phase.OPTIMIZER}  # fmt: skip
        assert set(values.storage[trace.weights()].tolist()) <= written

    @pytest.mark.parametrize(("optimizer", "states"), [("adam", 12), ("sgd", 0), ("fused", 18), ("loop", 6)])
    def test_states(self, tmp_path, optimizer, states):
        trace = load(folder(optimizer=optimizer).write(tmp_path / "a"))
        values = trace.values
        mine = (values.category == Category.OPTIMIZER_STATE) & (values.version == 0)
        assert np.count_nonzero(mine) == states
        owners = Counter(values.of[mine].tolist())
        assert set(owners) <= set(trace.weights().tolist())
        assert set(owners.values()) <= {states // 6}

    @pytest.mark.parametrize("optimizer", ["fused", "loop"])
    def test_what_the_exporter_calls_forward(self, tmp_path, optimizer):
        trace = load(folder(optimizer=optimizer).write(tmp_path / "a"))
        last = at(trace, "AddmmBackward0")[-1]
        assert set(trace.operators.phase[last + 1 :].tolist()) == {Phase.OPTIMIZER}

    def test_without_an_optimizer(self, tmp_path):
        trace = load(folder(optimizer="none").write(tmp_path / "a"))
        assert len(trace.weights()) == 6
        assert_connected(trace)

    def test_inference(self, tmp_path):
        f = folder(optimizer="none")
        f.operators = f.operators[:6]
        f.uses = f.uses[: next(i for i, use in enumerate(f.uses) if use[5] == "target")]
        trace = load(f.write(tmp_path / "a"))
        assert len(trace.weights()) == 6
        assert set(trace.operators.phase.tolist()) == {Phase.FORWARD}


class TestBroken:
    def expect(self, path: Path, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def change(self, path: Path, name: str, line: int, old: str, new: str) -> Path:
        folder().write(path)
        lines = (path / name).read_text().splitlines()
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        (path / name).write_text("\n".join(lines))
        return path

    def test_no_tensors(self, tmp_path):
        path = folder().write(tmp_path / "a")
        (path / "tensor.csv").unlink()
        self.expect(path, "has no tensor.csv")

    @pytest.mark.parametrize("column", ["Operator_input", "Operator_cudatimenooverlap", "stage"])
    def test_a_missing_operator_column(self, tmp_path, column):
        self.expect(self.change(tmp_path / "a", "trace.csv", 1, column, "other"), f"has no column {column}")

    @pytest.mark.parametrize("column", ["TensorShape", "TensorStorgeid", "TensorEachByte"])
    def test_a_missing_tensor_column(self, tmp_path, column):
        self.expect(self.change(tmp_path / "a", "tensor.csv", 1, column, "other"), f"has no column {column}")

    @pytest.mark.parametrize(
        ("name", "line", "old", "new", "words"),
        [
            ("trace.csv", 3, ",10,", ",fast,", "line 3: Operator_cudatimenooverlap 'fast' is not a number"),
            ("trace.csv", 3, ",10,", ",-10,", "line 3: Operator_cudatimenooverlap '-10' is not a time"),
            ("trace.csv", 3, ",10,", ",nan,", "line 3: Operator_cudatimenooverlap 'nan' is not a time"),
            ("trace.csv", 3, "[10]", "[999]", "line 3: tensor 999 is not in tensor.csv"),
            ("trace.csv", 3, "[10]", "[x]", "line 3: Operator_input 'x' is not a whole number"),
            ("trace.csv", 3, "[10]", "10", "line 3: Operator_input '10' is not a list in brackets"),
            ("trace.csv", 3, "forward", "sideways", "line 3: stage 'sideways' is not forward, backward or optimizer"),
            ("tensor.csv", 3, '"[4, 4]"', '"[4, x]"', "line 3: TensorShape 'x' is not a whole number"),
            ("tensor.csv", 3, '"[4, 4]"', '"[4, 5]"', r"line 3: tensor 6 has shape \[4, 5\] but 16 elements"),
            ("tensor.csv", 3, '"[4, 4]"', '"[-4, -4]"', "line 3: tensor 6 has a negative size"),
            ("tensor.csv", 3, ",16,4,", ",16,3,", "line 3: tensor 6 has elements of 3 bytes"),
            ("tensor.csv", 3, ",16,4,", ",many,4,", "line 3: TensorNumElement 'many' is not a whole number"),
        ],
    )
    def test_a_broken_cell(self, tmp_path, name, line, old, new, words):
        self.expect(self.change(tmp_path / "a", name, line, old, new), words)

    @pytest.mark.parametrize("name", ["trace.csv", "tensor.csv"])
    def test_a_row_cut_short(self, tmp_path, name):
        path = folder().write(tmp_path / "a")
        lines = (path / name).read_text().splitlines()
        (path / name).write_text("\n".join([*lines[:4], lines[4][:8]]))
        self.expect(path, "line 5: .* is missing; is the file cut short|tensor .* is not in")

    @pytest.mark.parametrize("name", ["trace.csv", "tensor.csv"])
    def test_a_header_only(self, tmp_path, name):
        path = folder().write(tmp_path / "a")
        (path / name).write_text((path / name).read_text().splitlines()[0])
        self.expect(path, "has a header but no rows")

    def test_a_tensor_file_without_its_end(self, tmp_path):
        path = folder().write(tmp_path / "a")
        lines = (path / "tensor.csv").read_text().splitlines()
        (path / "tensor.csv").write_text("\n".join(lines[:20]))
        self.expect(path, "line .*: tensor .* is not in tensor.csv")


MEASURED = {
    # device ms of the whole and of each phase as the exporter has it, parameters, their bytes, operators
    "vgg13": (94.038, {"FORWARD": 28.105, "BACKWARD": 62.365, "OPTIMIZER": 3.568}, 26, 532_191_392, 77),
    "resnet50": (70.723, {"FORWARD": 23.901, "BACKWARD": 45.977, "OPTIMIZER": 0.845}, 161, 102_228_128, 396),
}


@pytest.mark.parametrize("name", MEASURED)
class TestMeasured:
    """The two traces of the TrioSim release, H100 at batch 128."""

    @pytest.fixture
    def trace(self, name) -> Trace:
        return load(shared("triosim-h100", name))

    def test_times(self, trace, name):
        total, phases, _, _, operators = MEASURED[name]
        assert len(trace) == operators
        assert trace.device_time() * 1e3 == pytest.approx(total, abs=1e-9)
        for phase, expected in phases.items():
            seconds = trace.operators.device_s[trace.operators.phase == Phase[phase]].sum()
            assert seconds * 1e3 == pytest.approx(expected, abs=1e-9)

    def test_parameters(self, trace, name):
        _, _, count, size, _ = MEASURED[name]
        weights = trace.weights()
        assert len(weights) == count
        assert int(trace.values.bytes()[weights].sum()) == size
        assert trace.meta.batch_size == 128

    def test_the_dataflow_is_connected(self, trace, name):
        check(trace)
        assert_connected(trace)
        linked = trace.operators.forward[trace.operators.phase == Phase.BACKWARD]
        assert np.all(linked >= 0)

    def test_every_gradient_has_its_parameters_shape_and_is_made_by_its_backward(self, trace, name):
        values, operators = trace.values, trace.operators
        for weight, row in gradients(trace).items():
            assert operators.phase[row] == Phase.BACKWARD
            assert weight in operators.inputs[operators.forward[row]]
            mine = [v for v in operators.outputs[row] if values.of[v] == weight]
            assert [values.shape[v].tolist() for v in mine] == [values.shape[weight].tolist()]

    def test_every_result_of_the_backward_pass_is_read(self, trace, name):
        values, operators = trace.values, trace.operators
        read_ = {(values.storage[v], values.version[v]) for v in operators.inputs.values}
        for row in np.flatnonzero(operators.phase == Phase.BACKWARD):
            for value in operators.outputs[row]:
                assert (values.storage[value], values.version[value]) in read_, (names(trace)[row], value)

    def test_optimizer_states(self, trace, name):
        size = MEASURED[name][3]
        values = trace.values
        mine = (values.category == Category.OPTIMIZER_STATE) & (values.version == 0)
        assert Counter(values.of[mine].tolist()) == dict.fromkeys(trace.weights().tolist(), 2)  # both moments of Adam
        assert values.bytes()[mine].sum() == 2 * size

    def test_the_batch_can_be_followed_everywhere(self, trace, name):
        assert undecided(establish_symbols(trace)).size == 0


def test_gradient_buckets_of_resnet50():
    """DDP reduces in reverse order of registration; a bucket closes with the gradient that makes it reach its cap.

    A real run of ResNet-50 on two A100 sent these buckets (PyTorch, caps of 1 MiB for the first and 25 MiB).
    """
    trace = load(shared("triosim-h100", "resnet50"))
    sizes = trace.values.bytes()[trace.weights()].tolist()
    buckets, open_, cap = [], 0, 1 << 20
    for size in reversed(sizes):
        open_ += size
        if open_ >= cap:
            buckets.append(open_)
            open_, cap = 0, 25 << 20
    buckets += [open_] if open_ else []
    assert buckets == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]


def test_buffers_of_resnet50():
    trace = load(shared("triosim-h100", "resnet50"))
    values = trace.values
    buffers = np.flatnonzero((values.category == Category.BUFFER) & (values.version == 0))
    roles = Counter(values.name[v].rpartition(".")[2].rpartition("_")[0] or values.name[v] for v in buffers)
    assert len(buffers) == 159  # running mean, variance and count of 53 batch norms
    assert roles["running"] == 106
