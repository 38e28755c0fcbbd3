"""Execution traces: exact identities from recycled ids, alone and joined with a profile."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.data import shared
from tests.sources.readers.executions import ADDCDIV, LINEAR, Execution, many, plain, step, tensor, undefined
from tests.sources.readers.profiles import AUTOGRAD, MAIN, Profile
from triosim.core.errors import InputError
from triosim.sources.reading import load
from triosim.trace.tables import Category, Phase, Trace, check

LAYOUTS = ["1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4", "2.0.0-unheard-of"]


def named(trace: Trace, name: str) -> list[int]:
    return [row for row, other in enumerate(trace.operators.name) if other == name]


def profile_of(execution: Execution, *, functions: bool = True) -> Profile:
    """The profile of the same calls: 10 us each, those with tensors in and out launch a 5 us kernel."""
    p = Profile()
    nodes = {n["id"]: n for n in execution.nodes}
    children: dict[int, list[int]] = {}
    for number, node in sorted(nodes.items()):
        if number > 3:
            children.setdefault(node["parent"], []).append(number)
    clock = [0.0]

    def call(number: int) -> None:
        node, begin = nodes[number], clock[0]
        clock[0] += 2
        for child in children.get(number, ()):
            call(child)
        clock[0] += 8
        tid = MAIN if node["tid"] == 1 else AUTOGRAD
        category = "user_annotation" if node["scope"] == 7 else "cpu_op"
        more = {"Record function id": node["rf_id"]} if functions else {}
        seq = node["seq_id"] if node["seq_id"] >= 0 else None
        p.op(node["name"], begin, clock[0] - begin, tid=tid, seq=seq, fwd=node["fw_tid"], category=category, **more)
        if node["name"] in ("aten::linear", "aten::mm", "aten::relu_", "aten::sum", "aten::threshold_backward"):
            p.kernel(f"k{number}", 10_000 + clock[0], 5, launch=begin + 3, tid=tid)
        clock[0] += 1

    for root in sorted(children[2] + children.get(3, [])):
        call(root)
    return p


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "any.name"


class TestIdentity:
    @pytest.fixture(params=LAYOUTS)
    def trace(self, request, path) -> Trace:
        return load(step(request.param).write(path))

    def test_tables_agree(self, trace):
        check(trace)
        assert trace.meta.identity == "exact"
        assert trace.meta.batch_size == 4

    def test_operators_are_in_order_of_start(self, trace):
        assert trace.operators.name[:5] == (
            "aten::linear",
            "aten::relu_",
            "aten::linear",
            "aten::sum",
            "aten::ones_like",
        )
        assert [Phase(p).name for p in trace.operators.phase[[0, 5, len(trace) - 1]]] == [
            "FORWARD", "BACKWARD", "OPTIMIZER",
        ]  # fmt: skip

    def test_an_in_place_write_is_a_new_version(self, trace):
        before, after = trace.operators.inputs[1][0], trace.operators.outputs[1][0]
        values = trace.values
        assert values.storage[before] == values.storage[after]
        assert (values.version[before], values.version[after]) == (0, 1)

    def test_a_recycled_address_is_a_new_storage(self, trace):
        values, operators = trace.values, trace.operators
        scores = operators.outputs[2][0]
        gradient = operators.outputs[named(trace, "aten::mm")[0]][0]  # same storage id in the file
        assert values.storage[scores] != values.storage[gradient]

    def test_a_recycled_tensor_id_is_another_value(self, trace):
        products, relu = named(trace, "aten::mm"), named(trace, "aten::threshold_backward")[0]
        operators = trace.operators
        assert operators.inputs[relu][0] == operators.outputs[products[0]][0]
        assert operators.outputs[relu][0] != operators.outputs[products[0]][0]
        assert trace.writers()[named(trace, "aten::t")[1]] == [relu]

    def test_an_unpacked_tensor_is_the_one_that_was_saved(self, trace):
        writers = trace.writers()
        assert writers[named(trace, "aten::mm")[1]] == [named(trace, "aten::ones_like")[0], 1]
        assert writers[named(trace, "aten::threshold_backward")[0]][1] == 1

    def test_views_share_the_storage_and_write_nothing(self, trace):
        row = named(trace, "aten::expand")[0]
        assert trace.operators.view[row]
        values = trace.values
        assert values.storage[trace.operators.inputs[row][0]] == values.storage[trace.operators.outputs[row][0]]

    def test_parameters_in_the_optimizers_order_with_their_gradients(self, trace):
        values = trace.values
        weights = trace.weights().tolist()
        assert [values.shape[w].tolist() for w in weights] == [[16, 8], [2, 16]]
        products = named(trace, "aten::mm")
        for weight, row in zip(weights, (products[2], products[1]), strict=True):
            gradient = trace.operators.outputs[row][0]
            assert values.category[gradient] == Category.GRADIENT
            assert values.of[gradient] == weight
        assert trace.writers()[named(trace, "aten::_foreach_lerp_")[0]][2:] == [products[2], products[1]]

    def test_optimizer_states_belong_to_parameters(self, trace):
        row = named(trace, "aten::_foreach_lerp_")[0]
        moments = trace.operators.inputs[row][:2]
        assert trace.values.category[moments].tolist() == [Category.OPTIMIZER_STATE] * 2
        assert trace.values.of[moments].tolist() == trace.weights().tolist()
        counts = trace.operators.inputs[named(trace, "aten::_foreach_add_")[0]]
        assert trace.values.category[counts].tolist() == [Category.OPTIMIZER_STATE] * 2

    def test_lists_are_written_in_place_without_being_returned(self, trace):
        row = named(trace, "aten::_foreach_addcdiv_")[0]
        assert trace.operators.outputs[row].size == 2
        assert trace.values.version[trace.operators.outputs[row]].tolist() == [1, 1]
        roles = [trace.operators.role_names[r] for r in trace.operators.roles[row]]
        assert roles == ["self"] * 2 + ["tensor1"] * 2 + ["tensor2"] * 2

    def test_lists_in_lists_are_returned(self, trace):
        row = named(trace, "aten::_foreach_sqrt")[0]
        assert [trace.values.shape[v].tolist() for v in trace.operators.outputs[row]] == [[16, 8], [2, 16]]

    def test_it_has_no_times(self, trace):
        assert np.isnan(trace.operators.device_s).all()
        assert np.isnan(trace.operators.host_s).all()
        assert trace.meta.clock == "none"
        assert any("no times" in note for note in trace.meta.notes)

    def test_modules_from_weights(self, trace):
        assert trace.modules.path == ("linear_0", "linear_1")

    def test_categories(self, trace):
        storage, category = trace.values.storage, trace.values.category
        hidden = storage[trace.operators.outputs[0][0]]
        assert set(category[storage == hidden].tolist()) == {Category.ACTIVATION}
        assert category[trace.operators.inputs[0][0]] == Category.INPUT


class TestTensors:
    def one(self, path: Path, inputs, outputs, schema="aten::op(Tensor self) -> Tensor", name="aten::op") -> Trace:
        e = Execution()
        e.op(name, inputs, outputs, schema)
        return load(e.write(path))

    def test_undefined_tensors_are_left_out(self, path):
        trace = self.one(path, [tensor(4, 5, [3]), undefined(6)], [undefined(7), tensor(8, 9, [3])])
        assert (trace.operators.inputs[0].size, trace.operators.outputs[0].size) == (1, 1)

    def test_tensors_without_elements_share_nothing(self, path):
        e = Execution()
        e.op("aten::op", [], [tensor(4, 5, [0])])
        e.op("aten::op", [], [tensor(6, 5, [0])])
        e.op("aten::op", [tensor(4, 5, [0]), tensor(6, 5, [0])], [tensor(8, 9, [3])])
        trace = load(e.write(path))
        assert trace.writers()[2] == [0, 1]

    def test_element_types_and_offsets(self, path):
        inputs = [tensor(4, 5, [3], kind="c10::Half", offset=6), tensor(6, 7, [3], kind="long int")]
        trace = self.one(path, inputs, [tensor(8, 9, [3], kind="bool")])
        values = trace.values
        assert values.bytes()[trace.operators.inputs[0]].tolist() == [6, 24]
        assert values.offset[trace.operators.inputs[0]].tolist() == [6, 0]
        assert values.bytes()[trace.operators.outputs[0]].tolist() == [3]

    def test_arguments_by_their_names_in_the_schema(self, path):
        schema = (
            "aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, str mode='a,b', *, "
            "bool x=False) -> Tensor"
        )
        inputs = [tensor(4, 5, [3]), tensor(6, 7, [3]), plain("<None>", "None"), plain([2, 2], "GenericList[Int,Int]"),
                  plain("same", "String"), plain(True, "Bool")]  # fmt: skip
        trace = self.one(path, inputs, [tensor(8, 9, [3])], schema, "aten::conv2d")
        assert [trace.operators.role_names[r] for r in trace.operators.roles[0]] == ["input", "weight"]
        assert json.loads(trace.operators.args[0]) == {"stride": [2, 2], "mode": "same", "x": True}

    def test_without_a_schema_names_come_from_the_operator(self, path):
        trace = self.one(path, [tensor(4, 5, [3, 2]), tensor(6, 7, [4, 2])], [tensor(8, 9, [3, 4])], "", "aten::linear")
        assert [trace.operators.role_names[r] for r in trace.operators.roles[0]] == ["input", "weight"]

    def test_what_an_operator_saves_for_later_is_among_its_outputs(self, path):
        e = Execution()

        def inside(number: int) -> None:
            e.op("aten::max_pool2d_with_indices", [tensor(4, 5, [4, 4])],
                 [tensor(8, 9, [2, 2]), tensor(10, 11, [2, 2], kind="long int")], parent=number)  # fmt: skip

        e.op("aten::max_pool2d", [tensor(4, 5, [4, 4])], [tensor(8, 9, [2, 2])], inside=inside)
        e.op("aten::neg", [tensor(8, 9, [2, 2])], [tensor(12, 13, [2, 2])])
        assert load(e.write(path)).operators.outputs[0].size == 1  # nothing reads the indices
        e.op("aten::use", [tensor(10, 11, [2, 2], kind="long int")], [tensor(14, 15, [2, 2])])
        trace = load(e.write(path))
        assert trace.operators.outputs[0].size == 2
        assert trace.writers()[2] == [0]

    def test_a_gradient_that_is_kept_from_step_to_step(self, path):
        e = Execution()
        weight, kept, state = tensor(4, 5, [3, 2]), tensor(6, 7, [3, 2]), tensor(8, 9, [3, 2])
        written = "aten::_foreach_zero_(Tensor(a!)[] self) -> ()"
        e.op("Optimizer.zero_grad#Adam.zero_grad", scope=7, inside=lambda n: e.op(
            "aten::_foreach_zero_", [many([kept])], [], written, parent=n))  # fmt: skip
        e.op("aten::linear", [tensor(10, 11, [1, 2]), weight], [tensor(12, 13, [1, 3])], LINEAR, seq=1)

        def accumulate(number: int) -> None:
            e.op("aten::add_", [kept, tensor(14, 15, [3, 2])], [kept],
                 "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)", parent=number, tid=2)  # fmt: skip

        e.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", tid=2, inside=accumulate)

        def update(number: int) -> None:
            e.op("aten::_foreach_addcdiv_", [many([weight]), many([state]), many([kept])], [], ADDCDIV, parent=number)

        e.op("Optimizer.step#Adam.step", scope=7, inside=update)
        trace = load(e.write(path))
        category = trace.values.category
        assert category[trace.operators.inputs[0][0]] == Category.GRADIENT
        updated = trace.operators.inputs[len(trace) - 1]
        assert category[updated].tolist() == [Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT]
        assert trace.values.of[updated].tolist()[1:] == [updated[0], updated[0]]

    def test_an_unknown_scalar_is_no_part_of_what_lived_at_its_address(self, path):
        e = Execution()
        e.op("aten::op", [tensor(4, 5, [3])], [tensor(6, 7, [8])])
        e.op("aten::div", [tensor(4, 5, [3]), tensor(9, 7, [])], [tensor(10, 11, [3])])
        trace = load(e.write(path))
        assert trace.writers()[1] == [-1, -1]

    def test_a_wait_is_one_for_device_tensors_only(self, path):
        e = Execution()
        e.op("aten::item", [tensor(4, 5, [])], [plain(1.0)])
        e.op("aten::item", [tensor(6, 7, [], device="cpu")], [plain(1.0)])
        assert load(e.write(path)).operators.sync.tolist() == [True, False]


class TestNodes:
    def test_nodes_are_written_when_they_complete(self, path):
        e = step()
        assert [n["id"] for n in e.nodes] != sorted(n["id"] for n in e.nodes)
        shuffled = {**e.data(), "nodes": sorted(e.nodes, key=lambda n: n["id"])}
        expected = load(e.write(path))
        path.write_text(json.dumps(shuffled))
        assert load(path).operators.name == expected.operators.name

    def test_the_root_that_is_its_own_parent(self, path):
        assert step().nodes[0]["parent"] == step().nodes[0]["id"]
        assert len(load(step().write(path))) > 0

    def test_wrong_parents_after_an_exception(self, path):
        """A call that was left by an exception is not written, and later calls name it as their parent."""
        e = step()
        expected = load(e.write(path))
        lost = max(n["id"] for n in e.nodes if n["name"] == "aten::threshold_backward")
        e.nodes = [n for n in e.nodes if n["id"] != lost]
        for node in e.nodes:
            if node["id"] > lost and node["parent"] in (2, 3):
                node["parent"] = lost
        trace = load(e.write(path))
        assert trace.operators.name == tuple(n for n in expected.operators.name if n != "aten::threshold_backward")
        phases = [p for n, p in zip(expected.operators.name, expected.operators.phase, strict=True)
                  if n != "aten::threshold_backward"]  # fmt: skip
        assert trace.operators.phase.tolist() == phases

    def test_steps(self, path):
        e = Execution()
        for n in (3, 4, 5):

            def inside(number: int, n: int = n) -> None:
                for k in range(n):
                    e.op("aten::neg", [tensor(10 * n, 11, [k + 1])], [tensor(10 * n + 2, 13, [k + 1])], parent=number)

            e.op(f"ProfilerStep#{n}", scope=7, inside=inside)
        e.write(path)
        assert len(load(path)) == 4
        assert load(path).meta.steps == ("3", "4", "5")
        assert len(load(path, step=3)) == 3
        assert len(load(path, step="all")) == 12
        with pytest.raises(InputError, match="no step 9"):
            load(path, step=9)


class TestJoin:
    @pytest.mark.parametrize("functions", [True, False])
    def test_times_and_identities(self, tmp_path, functions):
        e = step(functions=functions)
        e.write(tmp_path / "a")
        profile_of(e, functions=functions).write(tmp_path / "b")
        trace = load(tmp_path)
        alone = load(tmp_path / "a")
        check(trace)
        assert trace.meta.identity == "exact"
        assert trace.operators.name == alone.operators.name
        assert trace.writers() == alone.writers()
        assert np.array_equal(trace.values.category, alone.values.category)
        assert np.array_equal(trace.operators.view, alone.operators.view)
        assert trace.device_time() == pytest.approx(8 * 5e-6)
        assert trace.operators.device_s[named(trace, "aten::mm")].tolist() == pytest.approx([5e-6] * 3)
        assert trace.meta.clock == "gpu"

    def test_given_by_hand(self, tmp_path):
        e = step()
        (tmp_path / "x").mkdir()
        profile = profile_of(e).write(tmp_path / "p")
        recording = e.write(tmp_path / "x" / "e")
        assert load(profile).meta.identity == "inferred"
        assert load(profile, execution_trace=recording).meta.identity == "exact"

    @pytest.mark.parametrize("functions", [True, False])
    @pytest.mark.parametrize("name", ["aten::relu_", "aten::threshold_backward", "aten::detach", "aten::sum"])
    def test_a_call_that_the_profile_lacks(self, tmp_path, name, functions):
        e = step(functions=functions)
        whole = load(e.write(tmp_path / "a"))
        p = profile_of(e, functions=functions)
        at = next(i for i, event in enumerate(p.events) if event["name"] == name)
        lost = p.events.pop(at)
        if p.events[at]["cat"] == "cuda_runtime":  # its launch and kernel
            del p.events[at : at + 2]
        p.write(tmp_path / "b")
        trace = load(tmp_path)
        assert trace.operators.name == whole.operators.name
        assert trace.writers() == whole.writers()
        assert lost["name"] == name
        row = named(trace, name)[0]
        assert trace.operators.device_s[row] == 0

    @pytest.mark.parametrize("functions", [True, False])
    @pytest.mark.parametrize("name", ["aten::relu_", "aten::_foreach_add_", "aten::detach"])
    def test_a_call_that_the_execution_trace_lacks(self, tmp_path, name, functions):
        e = step(functions=functions)
        p = profile_of(e, functions=functions)
        at = next(i for i, node in enumerate(e.nodes) if node["name"] == name)
        e.nodes.pop(at)
        e.write(tmp_path / "a")
        p.write(tmp_path / "b")
        trace = load(tmp_path)
        row = named(trace, name)[0]
        assert trace.operators.inputs[row].size == 0
        assert trace.device_time() == pytest.approx(8 * 5e-6)
        assert any(note.startswith("1 operators of the profile are not") for note in trace.meta.notes)
        rest = [r for r in range(len(trace)) if r != row]
        assert all(trace.operators.inputs[r].size for r in rest)

    def test_calls_of_other_steps_are_left_out(self, tmp_path):
        e = step()
        p = profile_of(e)
        for k in range(3):  # after the step that was profiled
            e.op("aten::neg", [tensor(900 + 4 * k, 901 + 4 * k, [2])], [tensor(902 + 4 * k, 903 + 4 * k, [2])])
        e.write(tmp_path / "a")
        p.write(tmp_path / "b")
        assert not named(load(tmp_path), "aten::neg")

    def test_names_must_agree(self, tmp_path):
        e = step()
        p = profile_of(e)
        for node in e.nodes:
            node["name"] = f"other::{node['name']}" if node["id"] > 3 else node["name"]
        e.write(tmp_path / "a")
        p.write(tmp_path / "b")
        with pytest.raises(InputError, match="share no operators; are they of one run"):
            load(tmp_path)

    def test_two_execution_traces_in_a_folder(self, tmp_path):
        e = step()
        e.write(tmp_path / "a")
        e.write(tmp_path / "c")
        with pytest.raises(InputError, match=r"2 execution traces \(a, c\)"):
            load(tmp_path)
        profile_of(e).write(tmp_path / "b")
        with pytest.raises(InputError, match=r"2 execution traces \(a, c\)"):
            load(tmp_path)

    def test_the_median_is_taken_among_the_steps_that_both_cover(self, tmp_path):
        e = step()
        p = profile_of(e)
        end = max(event["ts"] + event["dur"] for event in p.events if event["cat"] == "cpu_op")
        p.mark("ProfilerStep#1", -1, end + 2)
        p.mark("ProfilerStep#2", end + 1000, 50)
        for i in range(20):
            p.op("aten::mm", end + 1000 + i, 0.5, **{"Record function id": 900 + i})
            p.kernel("gemm", 90_000 + i, 0.1, launch=end + 1000.1 + i, launch_dur=0.1)
        e.write(tmp_path / "a")
        p.write(tmp_path / "b")
        assert load(tmp_path).meta.step == "1"


class TestBroken:
    def expect(self, path: Path, e: Execution, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            load(e.write(path))
        assert str(path) in str(caught.value)

    def test_no_nodes(self, path):
        e = Execution()
        e.nodes = []
        self.expect(path, e, "no list of nodes")

    @pytest.mark.parametrize("value", ["seven", None, 1.5])
    def test_an_id_that_is_none(self, path, value):
        e = step()
        e.nodes[5]["id"] = value
        self.expect(path, e, "node 5 .* has the id .*, which is not a whole number")

    def test_an_id_twice(self, path):
        e = step()
        e.nodes[5]["id"] = e.nodes[6]["id"]
        self.expect(path, e, "two nodes have the id")

    def test_a_parent_that_starts_later(self, path):
        e = step()
        e.nodes[5]["parent"] = 10_000
        self.expect(path, e, "has the parent 10000, which started after it")

    def test_a_node_without_a_name(self, path):
        e = step()
        del e.nodes[5]["name"]
        self.expect(path, e, "node 5 has no name")

    def test_cut_short(self, path):
        text = json.dumps(step().data())
        path.write_text(text[: len(text) // 2])
        with pytest.raises(InputError, match="broken JSON at line 1"):
            load(path)

    def test_it_takes_no_second_one(self, tmp_path):
        a, b = step().write(tmp_path / "a"), step().write(tmp_path / "b")
        with pytest.raises(InputError, match="an execution trace itself"):
            load(a, execution_trace=b)


class TestMeasured:
    """VGG-13 at batch 512 on one H100: the profile and the execution trace of one iteration."""

    @pytest.fixture(scope="class")
    @classmethod
    def trace(cls) -> Trace:
        return load(shared("triosim-h100", "vgg13-bs512-raw"))

    def test_times(self, trace):
        kernels = zip(trace.kernels.name, trace.kernels.device_s.tolist(), strict=True)
        assert sum(s for name, s in kernels if not name.startswith("Memset")) == pytest.approx(0.346344, abs=1e-9)
        assert trace.device_time() == pytest.approx(0.346344, abs=1e-9)
        assert trace.kernels.device_s.sum() == pytest.approx(0.34637, abs=1e-9)  # 33 memsets more
        assert trace.meta.notes == ("copies and memsets, 26 us in all, are not operator time",)

    def test_parameters(self, trace):
        weights = trace.weights()
        assert len(weights) == 26
        assert int(trace.values.bytes()[weights].sum()) == 532_191_392
        assert trace.meta.batch_size == 512
        assert trace.meta.device == "NVIDIA H100 80GB HBM3"

    def test_each_has_a_gradient_that_backward_makes_and_the_optimizer_reads(self, trace):
        values, operators = trace.values, trace.operators
        made: dict[int, int] = {}
        for row, outputs in enumerate(operators.outputs.lists()):
            for value in outputs:
                if values.category[value] == Category.GRADIENT and not operators.view[row]:
                    made[int(values.of[value])] = row
        assert set(made) == set(trace.weights().tolist())
        for weight, row in made.items():
            assert operators.phase[row] == Phase.BACKWARD
            assert weight in {int(v) for v in operators.inputs[operators.forward[row]]}
        update = named(trace, "aten::_foreach_lerp_")[0]
        assert sorted(w for w in trace.writers()[update] if w >= 0) == sorted(made.values())

    def test_nothing_is_read_that_was_neither_there_nor_made(self, trace):
        given = {Category.WEIGHT, Category.INPUT, Category.LABEL, Category.OPTIMIZER_STATE}
        for reads, writers in zip(trace.operators.inputs.lists(), trace.writers(), strict=True):
            for value, writer in zip(reads, writers, strict=True):
                assert writer >= 0 or Category(trace.values.category[value]) in given

    def test_alone_it_has_the_same_dataflow(self, trace):
        alone = load(next(shared("triosim-h100", "vgg13-bs512-raw").glob("graph_*")))
        assert alone.operators.name == trace.operators.name
        assert alone.writers() == trace.writers()
        assert math.isnan(alone.operators.device_s[0])

    def test_schemas_give_arguments(self, trace):
        assert json.loads(trace.operators.args[0]) == {
            "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1,
        }  # fmt: skip

    def test_modules_have_their_names(self, trace):
        assert "VGG_0.Sequential_1.Linear_2" in trace.modules.path
