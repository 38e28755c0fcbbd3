"""What is done with gradients besides making them: time and memory of adding up, checking and clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan
from triosim.operators import kind
from triosim.partition.gradients import gradients
from triosim.partition.main_gradients import ACCUMULATOR, ADDS, AT_ONCE, AT_THE_END, often, with_main_gradients
from triosim.stacks import Stack
from triosim.trace.tables import Phase, Trace, check

SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 1024,
}  # fmt: skip
MAIN, FUSED = Stack(gradients="float32"), Stack(gradients="float32-fused")


def _trace(precision: str = "bfloat16") -> Trace:
    return triosim.model("llama", batch_size=1, sequence_length=256, precision=precision, configuration=SMALL)


def _predict(stack: Stack | None, **plan: Any) -> Any:
    plan = {"micro_batches": 4, "dp": 1, "idle_ok": True, **plan}
    system, fidelity = triosim.system("hgx-a100"), Fidelity(host="none")
    return triosim.simulate(_trace(), system, Plan(stack=stack, **plan), fidelity, fit=False)


def _parameters(trace: Trace) -> int:
    return int(trace.values.elements()[trace.weights()].sum())


def _names(trace: Trace) -> list[str]:
    return list(trace.operators.name)


def test_one_micro_batch_adds_nothing() -> None:
    trace = _trace()
    assert with_main_gradients(trace, Stack(), 1) is trace


def test_every_gradient_is_added_once_in_its_own_type() -> None:
    trace = _trace()
    made = with_main_gradients(trace, Stack(), 4)
    added = [row for row, name in enumerate(made.operators.name) if name == ADDS]
    assert len(added) - _names(trace).count(ADDS) == len(gradients(trace))
    share = often(made, Stack(), 4)
    assert np.count_nonzero(share == 0.75) == len(gradients(trace))
    assert np.count_nonzero(share == 1) > 0
    assert {g.bytes for g in gradients(made)} == {g.bytes for g in gradients(trace)}


def test_layers_with_a_backward_of_their_own_make_the_gradient_of_the_input_first() -> None:
    """PyTorch's ``mm`` makes that of the weight first; nothing else moves, and nothing reads what is not there yet."""
    trace = _trace()
    check(made := with_main_gradients(trace, FUSED, 4))

    def weights_first(of: Trace) -> list[bool]:
        rows = np.flatnonzero((of.operators.phase == Phase.BACKWARD) & (np.array(of.operators.name) == "aten::mm"))
        weights = {g.ready for g in gradients(of)}
        pairs: dict[int, list[int]] = {}
        for row in rows.tolist():
            pairs.setdefault(int(of.operators.forward[row]), []).append(row)
        return [pair[0] in weights for pair in pairs.values() if len(pair) == 2]

    assert weights_first(trace) == [True] * (7 * SMALL["num_hidden_layers"] + 1)
    assert weights_first(made) == [False] * (7 * SMALL["num_hidden_layers"] + 1)
    assert np.nansum(made.operators.flop) == np.nansum(trace.operators.flop)


REDUCED = Stack(reduce="float32")


def test_gradients_that_wait_for_the_last_micro_batch_are_added_up_in_the_type_they_are_reduced_in() -> None:
    """PyTorch's fully_shard copies the first gradient to it and adds the others: 6 bytes a parameter, then 10."""
    trace = _trace()
    for stack, item, first in ((Stack(), 2, 0.0), (REDUCED, 4, 0.6)):
        made = with_main_gradients(trace, stack, 4, AT_THE_END)
        assert sum(g.bytes for g in gradients(made)) == item * _parameters(trace)
        assert _names(made).count(ADDS) - _names(trace).count(ADDS) == len(gradients(trace))
        share = often(made, stack, 4)
        assert np.count_nonzero(np.isclose(share, (3 + first) / 4)) == len(gradients(trace))
        assert with_main_gradients(trace, stack, 4, AT_ONCE) is trace
    for stack in (REDUCED, MAIN):  # what was scattered is freed, and not set to zero
        assert "aten::_foreach_zero_" not in with_main_gradients(trace, stack, 4, AT_THE_END).operators.name


def test_a_single_gradient_that_waits_is_copied_to_the_type_it_is_reduced_in() -> None:
    trace = _trace()
    made = with_main_gradients(trace, REDUCED, 1, AT_THE_END)
    assert np.count_nonzero(np.isclose(often(made, REDUCED, 1), 0.6)) == len(gradients(trace))
    assert with_main_gradients(trace, Stack(), 1, AT_THE_END) is trace
    single = _trace("float32")
    assert with_main_gradients(single, REDUCED, 1, AT_THE_END) is single


@pytest.mark.parametrize("zero", [2, 3])
def test_whole_gradients_of_a_pipeline_take_the_memory_of_their_type(zero: int) -> None:
    """Two bytes more for each parameter of a stage; parts of them would be a quarter of that, and a block's buffer."""
    sizes = {**SMALL, "num_hidden_layers": 8, "vocab_size": 128}
    trace = triosim.model("llama", batch_size=1, sequence_length=256, precision="bfloat16", configuration=sizes)
    single, own = (
        triosim.simulate(
            trace, triosim.system("hgx-a100"), Plan(stack=stack, zero=zero, pp=2, dp=4, micro_batches=4),  # type: ignore[arg-type]
            Fidelity(host="none"), fit=False,
        ).memory.allocated_bytes
        for stack in (REDUCED, Stack())
    )  # fmt: skip
    assert single - own > 0.9 * 2 * _parameters(trace) / 2


def test_main_gradients_are_float32_and_there_throughout() -> None:
    trace = _trace()
    for stack in (MAIN, FUSED):
        made = with_main_gradients(trace, stack, 1)
        assert sum(g.bytes for g in gradients(made)) == 4 * _parameters(trace)
        assert "aten::_foreach_zero_" in made.operators.name
        optimizer = np.flatnonzero(made.operators.phase == Phase.OPTIMIZER)
        read = {int(v) for row in optimizer.tolist() for v in made.operators.inputs[row]}
        assert all(any(int(made.values.storage[v]) == g.storage for v in read) for g in gradients(made))


def test_a_product_adds_what_it_makes_where_that_is_fused() -> None:
    trace = _trace()
    apart, fused = (with_main_gradients(trace, stack, 1) for stack in (MAIN, FUSED))
    products = sum(1 for name in _names(trace) if kind(name) == "linear")
    with_accumulator = [
        row for row in range(len(fused))
        if any(fused.operators.role_names[int(r)] == ACCUMULATOR for r in fused.operators.roles[row])
    ]  # fmt: skip
    assert 0 < len(with_accumulator) < products
    assert _names(fused).count(ADDS) + len(with_accumulator) == _names(apart).count(ADDS)
    assert float(fused.operators.bytes.sum()) < float(apart.operators.bytes.sum())
    assert np.nansum(fused.operators.flop) <= np.nansum(apart.operators.flop)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_products_add_to_main_gradients_of_16_bits(precision: str) -> None:
    """There throughout, 2 bytes a parameter; every product adds as often as it runs, and nothing is added apart."""
    trace = _trace(precision)
    single = with_main_gradients(_trace(), FUSED, 4)
    made = with_main_gradients(trace, Stack(gradients="parameter-fused"), 4)
    assert sum(g.bytes for g in gradients(made)) == 2 * _parameters(trace)
    assert _names(made).count(ADDS) == _names(single).count(ADDS)
    assert "aten::_foreach_zero_" in made.operators.name
    assert (often(made, Stack(gradients="parameter-fused"), 4) == 1).all()
    assert float(made.operators.bytes.sum()) < float(with_main_gradients(trace, Stack(), 4).operators.bytes.sum())


def test_float16_is_added_up_in_its_own_type() -> None:
    trace = _trace("float16")
    made = with_main_gradients(trace, Stack(gradients="float32", loss_scale=True), 4)
    assert sum(g.bytes for g in gradients(made)) == 2 * _parameters(trace)
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" in made.operators.name
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" not in with_main_gradients(
        _trace(), Stack(gradients="float32", loss_scale=True), 4, False
    ).operators.name  # fmt: skip


def test_clipping_reads_all_gradients_and_writes_them() -> None:
    trace = _trace()
    made = with_main_gradients(trace, Stack(clip=True), 1)
    rows = {name: row for row, name in enumerate(made.operators.name)}
    each = 2 * _parameters(trace)
    assert made.operators.bytes[rows["aten::_foreach_norm"]] == pytest.approx(each)
    clips = [r for r, name in enumerate(made.operators.name) if name == "aten::_foreach_mul_"]
    assert made.operators.bytes[clips[0]] == pytest.approx(2 * each)
    assert rows["aten::_foreach_norm"] < clips[0]


def test_micro_batches_cost_more_than_their_passes() -> None:
    """Eight backwards are not eight times one: their gradients are added up."""
    trace = _trace()
    one = _predict(None, micro_batches=1)
    eight = _predict(None, micro_batches=8)
    optimizer = [layer for layer in one.layers if layer.phase == "optimizer"]
    update = sum(layer.compute_s for layer in optimizer)
    assert eight.iteration_time_s > 8 * (one.iteration_time_s - update) + update
    assert _parameters(trace) > 0


@pytest.mark.parametrize(
    "plan",
    [
        {}, {"tp": 2}, {"tp": 2, "parallelism": ["sequence"]}, {"pp": 2}, {"dp": 2}, {"dp": 2, "zero": 1},
        {"pp": 2, "schedule": "zb-h1"}, {"recompute": "full"},
    ],
    ids=str,
)  # fmt: skip
def test_main_gradients_take_two_bytes_a_parameter_more_in_every_plan(plan: dict[str, Any]) -> None:
    """2 + 4 + 12 bytes instead of 2 + 2 + 12; what is divided is divided here too."""
    own, main = _predict(Stack(), **plan), _predict(MAIN, **plan)
    most = 2.2 * _parameters(_trace())
    more = main.memory.allocated_bytes - own.memory.allocated_bytes
    if plan == {"dp": 2}:  # DDP's buckets are a copy of all gradients, which main gradients need not
        more += 2 * _parameters(_trace())
    assert 0 < more <= most
    assert more <= most / (plan.get("tp", 1) ** 0.7)
    assert main.iteration_time_s > own.iteration_time_s


def test_reducing_in_float32_sends_twice_the_bytes() -> None:
    def sent(stack: Stack) -> int:
        found = _predict(stack, dp=4, zero=3, micro_batches=1).collectives
        return sum(c.bytes * c.count for c in found if c.kind == "reduce_scatter")

    assert sent(Stack(reduce="float32")) == pytest.approx(2 * sent(Stack()), rel=0.01)


def test_a_stack_is_named_among_the_sources() -> None:
    assert any("assumed" in line and "torch-eager" in line for line in _predict(None).sources)
    assert any(line.startswith("stack own:") for line in _predict(Stack(name="own")).sources)
