"""Stacks: every one that comes with the program can be read, is short, and says where its facts are from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan
from triosim.composition.issuing import _exchanges
from triosim.core.dtypes import DTYPE_CODE, DTYPES
from triosim.core.errors import InputError
from triosim.energy.options import EnergyOptions
from triosim.partition.gradients import Gradient, gradients
from triosim.partition.main_gradients import with_main_gradients
from triosim.partition.resolve import replication, resolve, rules_of
from triosim.prediction.prepare import written
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.schedule._stage import PartFacts
from triosim.schedule.program import Op
from triosim.stacks import ASSUMED, FOLDER, Stack, load, names
from triosim.trace.tables import PERSISTENT, Category, Phase

WANTED = (
    "megatron-2021", "megatron-core", "megatron-deepspeed", "deepspeed-zero3", "llm-foundry", "torch-eager",
    "torch-compile", "torchtitan", "internevo", "maxtext", "apex-o2", "nemo", "megatron-2023", "bigscience",
    "deepspeed-2021", "nemo-2024", "torchtitan-compile", "megatron-2022", "flash-attention", "lit-gpt", "nanotron",
    "deepspeed-transformers", "megatron-gaudi", "mxnet",
)  # fmt: skip


def test_the_usual_stacks_are_there() -> None:
    assert set(WANTED) == set(names())


@pytest.mark.parametrize("name", WANTED)
def test_a_stack_is_short_and_every_fact_has_a_source(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    stack = load(name)
    assert stack.name == name
    assert stack.about
    facts = {line.split(" = ")[0] for line in text.split("[sources]")[0].splitlines() if " = " in line} - {"about"}
    assert facts == set(dict(stack.sources))


def test_vocabularies_are_padded_as_megatron_pads_them() -> None:
    assert load("megatron-core").vocabulary(50257, 8) == 51200
    assert load("megatron-core").vocabulary(50257) == 50304
    assert load("torch-eager").vocabulary(50257, 8) == 50257


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed = 2\n", "speed"),
        ('attention = "flash9"\n[sources]\nattention = "a paper"\n', "flash9"),
        ("clip = 1\n[sources]\nclip = 'a paper'\n", "true or false"),
        ("clip = true\n", "has no source"),
        ("vocabulary_multiple = 0\n[sources]\nvocabulary_multiple = 'x'\n", "at least 1"),
    ],
)
def test_a_stack_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load(str(file))


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(InputError, match="megatron-core"):
        load("megatron-cor")
    with pytest.raises(InputError, match=r"own\.toml"):
        load("/nowhere/own.toml")


def test_a_stack_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('about = "ours"\ngradients = "float32"\n[sources]\ngradients = "we wrote it"\n', encoding="utf-8")
    assert load(str(file)) == Stack(
        name="own", about="ours", gradients="float32", sources=(("gradients", "we wrote it"),)
    )


def test_launches_that_block_add_the_host_to_the_device() -> None:
    """Nothing of issuing hides behind the device where every launch waits for its kernel."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256)
    system = triosim.system(devices=1, device="A100")
    host = Fidelity(host="compiled")
    free, blocks = (
        triosim.simulate(trace, system, Plan(batch_size=8, stack=Stack(blocking_launches=b)), host, fit=False)
        for b in (False, True)
    )
    parts = blocks.breakdown_s
    launches = int((~trace.operators.view).sum())
    assert blocks.iteration_time_s == pytest.approx(parts.compute + parts.host, rel=0.03), "gaps between kernels"
    assert parts.host > 0.9 * launches * 6e-6
    assert free.breakdown_s.host < 0.5 * parts.host
    assert "every launch waits" in " ".join(blocks.sources)


def test_a_host_that_waits_for_transfers_launches_anew_after_each() -> None:
    """What a stage computes first after a transfer starts an issue and a launch delay later than it could; gradients of
    a parameter that both stages have hold nothing up.  The second stage is little more than the head, so that its host
    has nothing to launch ahead of, and with a padded vocabulary its products are short."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=1024, configuration={"vocab_size": 50304})
    system = triosim.system("dgx-a100")
    took = {
        (n, host, waits): triosim.simulate(
            trace,
            system,
            Plan(
                dp=1,
                pp=2,
                idle_ok=True,
                micro_batches=n,
                batch_size=8 * n,
                stages=("transformer.ln_f",),
                stack=Stack(blocking_transfers=waits),
            ),
            Fidelity(host=host),
            fit=False,
        )
        for n, host in ((1, "compiled"), (4, "compiled"), (4, "large-model"), (1, "graph"), (1, "none"))
        for waits in (False, True)
    }
    more = {
        key[:2]: took[key].iteration_time_s - took[key[0], key[1], False].iteration_time_s for key in took if key[2]
    }
    assert more[1, "compiled"] == pytest.approx(2 * (6e-6 + 2e-6)), "forwards, backwards"
    assert more[4, "compiled"] > 2 * more[1, "compiled"]
    assert more[4, "large-model"] > 3 * more[4, "compiled"], "short kernels after a transfer wait for the host"
    assert more[1, "graph"] == more[1, "none"] == 0
    assert "waits for every transfer" in " ".join(took[1, "compiled", True].sources)


def test_pairs_exchange_at_once() -> None:
    """Where a forward and the backward after it exchange at once, transfers between the two hold nothing up."""
    trace, system = triosim.model("gpt2", batch_size=1, sequence_length=256), triosim.system("dgx-a100")
    plan = Plan(dp=1, pp=2, idle_ok=True, micro_batches=4, batch_size=8, stack=Stack())
    known = EnergyOptions().known()
    job = written(stage_job(price_job(trace, system, plan, Fidelity(host="none"), drawn=known)))
    step = job.step.trace
    for program in job.programs:
        every, pairs = (set(_exchanges(program, step, pair)[0].tolist()) for pair in (False, True))
        computes = np.flatnonzero((program.op == Op.COMPUTE) & (program.operator >= 0))
        phase = step.operators.phase[program.operator[computes]]
        at = {row: int(np.searchsorted(computes, row)) for row in every}
        between = {row for row in every if at[row] and phase[at[row] - 1] == Phase.FORWARD != phase[at[row]]}
        assert bool(between) == (program.stage == 0), "the last stage goes back at once"
        assert pairs == every - between


def test_parts_are_sent_and_gathered() -> None:
    """The bytes between stages fall by the tensor-parallel size; beside sequence parallelism nothing changes."""
    trace, system = triosim.model("gpt2", batch_size=1, sequence_length=1024), triosim.system("dgx-a100", nodes=2)

    def moved(scatters: bool, **plan: Any) -> tuple[dict[str, int], float]:
        asked = Plan(
            dp=1, tp=4, pp=4, idle_ok=True, micro_batches=4, batch_size=4,
            stack=Stack(scattered_transfers=scatters), **plan,
        )  # fmt: skip
        found = triosim.simulate(trace, system, asked, fit=False)
        rows = [row for row in found.collectives if row.count > 2]  # without the gradient of tied embeddings
        return {
            kind: sum(row.bytes * row.count for row in rows if row.kind == kind) for kind in ("send", "all_gather")
        }, found.iteration_time_s

    (whole, _), (parts, _) = moved(False), moved(True)
    assert parts["send"] * 4 == whole["send"] > 0
    assert parts["all_gather"] == whole["all_gather"] + whole["send"], "every value is gathered once"
    sequence = {"parallelism": ("sequence",)}
    assert moved(True, **sequence) == moved(False, **sequence)


def test_gradients_may_be_reduced_after_the_backward() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256)
    system = triosim.system("dgx-a100")
    beside, after = (
        triosim.simulate(
            trace, system, Plan(dp=8, batch_size=1, stack=Stack(overlap_gradients=o)), Fidelity(host="none"), fit=False
        )
        for o in (True, False)
    )
    assert len(beside.collectives) > 1
    assert sum(row.count for row in after.collectives) == 1
    assert sum(row.bytes * row.count for row in after.collectives) == sum(r.bytes * r.count for r in beside.collectives)
    assert after.breakdown_s.exposed_communication > beside.breakdown_s.exposed_communication


def test_updated_parameters_may_be_gathered_beside_the_next_forward() -> None:
    """The same bytes are gathered; only what the first layers wait for is seen, with and without a pipeline."""
    trace, system = triosim.model("gpt2", batch_size=1, sequence_length=1024), triosim.system("dgx-a100")
    pipeline = {"dp": 4, "pp": 2, "batch_size": 4, "micro_batches": 4}
    for more, hidden in (({"dp": 8, "batch_size": 1}, 0.5), (pipeline, 0.1)):
        after, beside = (
            triosim.simulate(
                trace, system, Plan(zero=1, stack=Stack(overlap_parameters=o), **more), Fidelity(host="none"), fit=False
            )
            for o in (False, True)
        )
        moved = [
            {row.kind: row.bytes * row.count for row in one.collectives if row.kind == "all_gather"}
            for one in (after, beside)
        ]
        assert moved[0] == moved[1] != {}
        assert beside.memory.allocated_bytes == after.memory.allocated_bytes
        seen = [one.breakdown_s.exposed_communication for one in (after, beside)]
        gathered = sum(row.seconds for row in after.collectives if row.kind == "all_gather")
        assert 0 < seen[1] < seen[0] - hidden * gathered, more
        assert beside.iteration_time_s < after.iteration_time_s
        assert "gathered beside the next forward" in " ".join(beside.sources)


def test_the_forward_waits_for_parameters_that_are_gathered_beside_it() -> None:
    """A network so slow that gathering takes all the time: no layer computes before its parameters are there."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64)
    system = triosim.system(devices=8, device="H100-SXM", link="1GB/s")
    run = triosim.simulate(
        trace, system, Plan(dp=8, zero=1, batch_size=1, stack=Stack(overlap_parameters=True)), Fidelity(host="none"),
        fit=False,
    )  # fmt: skip
    both = sum(row.seconds for row in run.collectives)
    assert run.iteration_time_s > 0.9 * both, "the forward ends after the gathering, and the reduction follows it"


def test_full_recomputation_runs_what_a_stack_says_again() -> None:
    """A dropout after the last product would need it again: Llama has none."""
    trace, system = triosim.model("llama-3.2-1b", batch_size=1, sequence_length=256), triosim.system("dgx-a100")
    block, needed = (
        triosim.simulate(
            trace, system, Plan(dp=8, batch_size=1, recompute="full", stack=Stack(recomputed=o)), Fidelity(host="none"),
            fit=False,
        )
        for o in ("block", "needed")
    )  # fmt: skip
    assert needed.breakdown_s.compute < 0.99 * block.breakdown_s.compute


@pytest.mark.parametrize(
    ("asked", "replicas", "sizes"),
    [
        ({}, 8, ([2, 2, 2, 2], [8])), ({}, 64, ([4, 4], [8])),
        ({"bucket_bytes": 1, "first_bucket_bytes": 1}, 8, ([1] * 8, [1] * 8)),
        ({"pp": 1}, 16, ([2] * 8,)), ({"pp": 1, "overlap": False}, 16, ([16],)),
    ],
    ids=str,
)  # fmt: skip
def test_gradients_are_reduced_in_the_buckets_of_the_stack(
    asked: dict[str, Any], replicas: int, sizes: tuple[list[int], ...]
) -> None:
    """Of 2,000 parameters, or 60 times the replicas, in the first part; one behind it."""
    stack = Stack(bucket_parameters=2000, bucket_parameters_per_replica=60, later_buckets=False, gradients="float32")
    plan = Plan(**{"pp": 2, "dp": replicas, "micro_batches": 2, "stack": stack, "idle_ok": True, **asked})
    mesh = resolve(plan, 128, None, rules=rules_of(plan, True))
    placed = replication(rules_of(plan, True), mesh)
    grads = [Gradient(n, n, 16 - n, 4 * 1000) for n in range(16)]
    for stage, expected in enumerate(sizes):
        part = object.__new__(PartFacts)
        own = grads[: 8 if plan.pp == 2 else 16]
        part.number, part.copy, part.plan = stage, 0, plan
        part.job = SimpleNamespace(replication=placed, step=SimpleNamespace(apart=()), bits=(16.0, 32.0))  # type: ignore[assignment]
        assert [len(group) for group in part.grouped(own)] == expected


def test_buckets_of_a_stack_are_what_is_reduced() -> None:
    """Megatron-Core: a stage of less than 40,000,000 parameters is reduced at once, PyTorch's DDP in many parts."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=128, precision="bfloat16")

    def reduced(**asked: Any) -> list[int]:
        plan = Plan(dp=4, tp=2, micro_batches=2, stack=load("megatron-core"), **asked)
        job = written(stage_job(price_job(trace, triosim.system("hgx-a100"), plan)))
        program = job.programs[0]
        sizes = program.bytes[(program.op == Op.COLLECTIVE) & (program.axis == job.mesh.row("dp"))]
        return sorted(int(size) for size in sizes)

    own, asked = reduced(), reduced(bucket_bytes=26_214_400)
    assert len(own) < len(asked)
    assert sum(own) == sum(asked)
    assert max(own) >= 160_000_000


def test_nothing_may_compute_beside_transfers_of_tensor_parallelism() -> None:
    """Beside the backward's all-reduces of input gradients run the products of weight gradients, or nothing does."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=1024)
    system = triosim.system("dgx-a100")
    beside, alone = (
        triosim.simulate(
            trace, system, Plan(tp=4, dp=1, batch_size=8, idle_ok=True, stack=Stack(overlap_tensor=o)),
            Fidelity(host="none"), fit=False,
        )
        for o in (True, False)
    )  # fmt: skip
    parts = alone.breakdown_s
    assert parts.exposed_communication == pytest.approx(parts.communication)
    assert beside.breakdown_s.exposed_communication < 0.9 * parts.exposed_communication
    assert [row.count for row in alone.collectives] == [row.count for row in beside.collectives]
    assert alone.iteration_time_s > beside.iteration_time_s
    assert "nothing computed beside" in " ".join(alone.sources)


def test_float16_gradients_may_be_copied_before_the_optimizer() -> None:
    """Copies are made once, the optimizer and what comes before it read them, and none outlives the step."""
    stack = load("megatron-2021")
    for precision, copies in (("float16", True), ("bfloat16", False)):
        trace = triosim.model("gpt2", batch_size=1, sequence_length=64, precision=precision)
        made = with_main_gradients(trace, stack, 2)
        operators, values = made.operators, made.values
        rows = [
            row for row, name in enumerate(operators.name)
            if name == "aten::_foreach_copy_" and values.dtype[operators.outputs[row][0]] == DTYPE_CODE["float32"]
        ]  # fmt: skip
        assert len(rows) == copies
        found = gradients(made)
        (adam,) = (row for row, name in enumerate(operators.name) if "adam" in name)
        own = {DTYPES[values.dtype[v]] for v in operators.inputs[adam].tolist() if values.category[v] not in PERSISTENT}
        assert own == {"float32"} if copies else {precision}
        if copies:
            assert len(operators.outputs[rows[0]]) == len(found)
            assert set(values.category[operators.outputs[rows[0]]].tolist()) == {int(Category.TEMPORARY)}
            fresh = values.bytes()[operators.outputs[rows[0]]].sum()
            assert fresh == 4 * sum(int(values.bytes()[g.parameter]) // 2 for g in found)


def test_sharded_parameters_may_be_gathered_module_by_module() -> None:
    """Four large modules a layer, positions and the rest, all but the rest again; small ones stay."""
    layers = 3
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256, configuration={"n_layer": layers})
    system = triosim.system("dgx-a100")

    def ran(**facts: Any) -> triosim.Result:
        plan = Plan(dp=8, batch_size=1, zero=3, stack=Stack(**facts))
        return triosim.simulate(trace, system, plan, Fidelity(host="none"), fit=False)

    def sent(result: triosim.Result, kind: str) -> tuple[int, int]:
        rows = [row for row in result.collectives if row.kind == kind]
        return sum(row.count for row in rows), sum(row.bytes * row.count for row in rows)

    block, module, waiting = ran(), ran(gathers="module"), ran(gathers="module", overlap_gradients=False)
    assert sent(block, "all_gather")[0] == 2 * layers + 1
    assert sent(module, "all_gather")[0] == 2 * (4 * layers + 1) + 1
    assert sent(module, "reduce_scatter")[0] == (4 * layers + 1) + 1
    more = 2 * 768 * (1024 - layers * 4)  # positions are gathered twice, two norms a layer once
    assert sent(module, "all_gather")[1] == sent(block, "all_gather")[1] + more
    assert sent(module, "reduce_scatter")[1] == sent(block, "reduce_scatter")[1]
    assert module.breakdown_s.exposed_communication > block.breakdown_s.exposed_communication
    assert waiting.breakdown_s.exposed_communication > module.breakdown_s.exposed_communication
    assert sent(waiting, "reduce_scatter") == sent(module, "reduce_scatter")
    assert "module by module" in Stack(gathers="module").line()


def test_collectives_of_lists_and_waiting_gathers_cost_the_host() -> None:
    """A collective of a list is an operator more for each rank; a host that waits for each gather hides nothing."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256, configuration={"n_layer": 3})

    def host_s(devices: int, **facts: Any) -> tuple[float, float]:
        plan = Plan(dp=devices, batch_size=1, zero=3, stack=Stack(host="eager", gathers="module", **facts))
        found = triosim.simulate(trace, triosim.system("dgx-a100", nodes=devices // 8), plan, fit=False)
        return found.iteration_time_s, sum(row.count for row in found.collectives if row.kind != "all_reduce")

    for devices in (8, 64):
        plain, _ = host_s(devices)
        listed, calls = host_s(devices, listed_collectives=True)
        waiting, _ = host_s(devices, blocking_gathers=True)
        assert waiting > plain
        assert listed > plain
        assert listed - plain <= calls * devices * 1e-4  # some tens of microseconds for an operator
    assert host_s(64, listed_collectives=True)[0] - host_s(64)[0] > host_s(8, listed_collectives=True)[0] - host_s(8)[0]


def test_a_squared_relu_is_one_kernel_where_operators_are_fused() -> None:
    small = {
        "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128
    }  # fmt: skip
    for fused in (True, False):
        trace = triosim.model("nemotron", configuration=small, sequence_length=32, batch_size=1, fused=fused)
        names = [name.partition("::")[2] for name in trace.operators.name]
        one, steps = names.count("squared_relu"), names.count("relu")
        assert (one, steps, names.count("squared_relu_backward")) == ((2, 0, 2) if fused else (0, 2, 0))
        assert names.count("threshold_backward") == steps


def test_hooks_around_modules_cost_the_host_under_zero_3_only() -> None:
    """DeepSpeed hooks into each module where parameters are gathered; elsewhere PyTorch launches as it does alone."""
    step = triosim.model("gpt2", batch_size=1, sequence_length=64, precision="float16")
    system = triosim.system("hgx-a100")

    def seconds(stack: Stack, zero: int) -> float:
        return triosim.simulate(step, system, Plan(dp=8, zero=zero, stack=stack)).iteration_time_s

    deepspeed = load("deepspeed-zero3")
    slow, fast = (replace(deepspeed, host=host, gathering_host="") for host in ("large-model", "eager"))
    assert seconds(deepspeed, 3) == seconds(slow, 3) > 1.5 * seconds(fast, 3)
    assert seconds(deepspeed, 2) == seconds(fast, 2)


def test_gelu_spelled_out_is_eight_operators_and_their_derivatives() -> None:
    """Power, two products and a sum, tanh, a sum and two products, as NewGELUActivation has them."""
    one, spelled = (
        triosim.model("gpt2", batch_size=1, sequence_length=64, **replace(ASSUMED, gelu=gelu).model_options)
        for gelu in ("", "composed")
    )
    layers = 12
    assert (np.array(one.operators.name) == "aten::gelu").sum() == layers
    forward = (spelled.operators.phase == Phase.FORWARD).sum() - (one.operators.phase == Phase.FORWARD).sum()
    assert forward == (8 - 1) * layers
    assert "aten::gelu" not in spelled.operators.name
    assert (np.array(spelled.operators.name) == "aten::tanh_backward").sum() == layers
