"""Steps of post-training: phases, their times and the memory of all models together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim import InputError
from triosim.core.errors import PlanError
from triosim.fidelity import Fidelity
from triosim.hardware import machine
from triosim.plan import Plan
from triosim.posttraining.prediction import PostTrainingStep, predict
from triosim.posttraining.recipe import recipe
from triosim.posttraining.workload import PostTrainingWorkload
from triosim.prediction.simulate import simulate
from triosim.sources.modelling import model
from triosim.transform.inference import forward_only

SMALL = {
    "family": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 4096,
}  # fmt: skip
LAYERS = {key: value for key, value in SMALL.items() if key != "family"}
WEIGHTS = 4 * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 512 + 2 * 4096 * 512


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return path


def _step(small: Path, post: str, *more: str) -> dict:
    words = ("--system", "dgx-h100", "--seq-len", "256", "--post", post, *more)
    return json.loads(run("train", small, *words, "--json", "-").stdout)


def _phases(step: dict) -> dict[str, dict]:
    return {row["name"]: row for row in step["phases"]}


def _predicted(post: str, plan: Plan, devices: int = 8, rollout_s: float | None = None) -> PostTrainingStep:
    asked = recipe(post)
    policy = _llama()
    traces = {one.name: _llama(value_head=True) if one.scores else policy for one in asked.models(False)}
    system = machine.system("dgx-h100", at_least=devices)
    work = PostTrainingWorkload(asked, post.partition(",")[0], traces, False, rollout_s)
    return predict(work, system, plan, Fidelity())


def _llama(**more: object) -> triosim.Trace:
    return model("llama", sequence_length=256, configuration=LAYERS, **more)  # type: ignore[arg-type]


DIVIDED = [
    {"dp": 8}, {"dp": 2, "tp": 4}, {"dp": 4, "pp": 2, "micro_batches": 2}, {"dp": 8, "zero": 1}, {"dp": 8, "zero": 3},
    {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "zero": 1, "parallelism": ("sequence",)},
    {"dp": 8, "recompute": "full", "offload": ("optimizer",)},
]  # fmt: skip


@pytest.mark.parametrize("plan", DIVIDED, ids=str)
def test_phases_are_steps_of_their_own(plan: dict) -> None:
    """Twice the samples, once forward with the loss and without gradients, once as a training step."""
    found = _predicted("dpo", Plan(batch_size=4, **plan))
    system, fidelity = machine.system("dgx-h100"), Fidelity()
    forward = {key: plan[key] for key in ("dp", "tp", "pp", "micro_batches", "parallelism") if key in plan}
    zero = 3 if plan.get("zero") == 3 else 0
    reference = simulate(
        forward_only(_llama(), loss=True), system, Plan(batch_size=8, training=False, zero=zero, **forward), fidelity
    )
    update = simulate(_llama(), system, Plan(batch_size=8, **plan), fidelity, fit=False)
    assert [row.name for row in found.phases] == ["reference", "policy update"]
    assert [row.seconds for row in found.phases] == [reference.iteration_time_s, update.iteration_time_s]
    assert found.seconds == reference.iteration_time_s + update.iteration_time_s
    assert found.samples == 2 * found.prompts == update.plan.global_batch_size
    assert found.low_s <= found.seconds <= found.high_s


def test_updates_go_over_all_answers_so_many_times() -> None:
    found = _predicted("grpo,responses=4,minibatches=2,epochs=3", Plan(dp=8, batch_size=4), rollout_s=40.0)
    rows = {row.name: row for row in found.phases}
    assert list(rows) == ["roll-out", "old policy", "reference", "policy updates"]
    update = simulate(_llama(), machine.system("dgx-h100"), Plan(dp=8, batch_size=8), fit=False)
    assert rows["policy updates"].seconds == pytest.approx(6 * update.iteration_time_s)
    assert rows["policy updates"].count == 6
    assert (found.prompts, found.samples) == (32, 128)
    assert rows["old policy"].samples == 128
    assert rows["policy updates"].samples == 64
    assert rows["roll-out"].seconds == 40.0
    assert found.seconds == pytest.approx(sum(row.seconds for row in found.phases))


def test_forwards_take_as_many_samples_at_once_as_updates(small: Path) -> None:
    """Four micro-batches of two updates: eight in the forward, of the same size, and so as much memory."""
    both = _phases(_step(small, "grpo,responses=4,minibatches=2", "--rollout", "1s", "--micro-batches", "4"))
    one = _phases(_step(small, "grpo,responses=4,minibatches=1", "--rollout", "1s", "--micro-batches", "4"))
    assert both["reference"]["reserved_bytes"] == pytest.approx(one["reference"]["reserved_bytes"], rel=0.01)
    assert both["reference"]["each_s"] == pytest.approx(2 * one["reference"]["each_s"], rel=0.01)


def test_ppo_has_four_models(small: Path) -> None:
    step = _step(small, "ppo", "--rollout", "2s", "--tp", "2", "--zero", "1", "--batch-size", "4")
    names = ["roll-out", "rewards", "old policy", "reference", "values", "critic updates", "policy updates"]
    assert list(_phases(step)) == names
    models = {row["name"]: row for row in step["models"]}
    assert list(models) == ["policy", "reference", "reward", "critic"]
    assert models["policy"]["parameters"] == models["reference"]["parameters"] == WEIGHTS
    assert models["critic"]["parameters"] == models["reward"]["parameters"] == WEIGHTS - 4096 * 512 + 512
    assert models["critic"]["held_bytes"] > models["reward"]["held_bytes"]
    assert [name for name, row in models.items() if row["trained"]] == ["policy", "critic"]
    assert list(_phases(_step(small, "ppo,reward=rule,old=off,reference=none", "--rollout", "2s"))) == [
        "roll-out", "values", "critic updates", "policy updates",
    ]  # fmt: skip
    assert list(_phases(_step(small, f"grpo,reward={small}", "--rollout", "2s")))[1] == "rewards"


def test_all_models_are_in_memory(small: Path) -> None:
    """A frozen copy is its 16-bit weights, an eighth of them where ZeRO 3 divides them among eight."""
    step = _step(small, "dpo")
    alone = _step(small, "dpo,reference=none")
    held = {row["name"]: row["held_bytes"] for row in step["models"]}
    assert held["reference"] == pytest.approx(2 * WEIGHTS, rel=1e-3)
    assert held["policy"] == pytest.approx(16 * WEIGHTS, rel=0.01)  # weights, DDP's buckets, master, two states
    assert step["memory"]["reserved_bytes"] - alone["memory"]["reserved_bytes"] == held["reference"]
    assert step["memory"]["phase"] == "policy update"
    divided = {row["name"]: row["held_bytes"] for row in _step(small, "dpo", "--zero", "3")["models"]}
    assert divided["reference"] == pytest.approx(2 * WEIGHTS / 8, rel=2e-3)  # allocations are of 512 bytes
    assert divided["policy"] == pytest.approx(14 * WEIGHTS / 8, rel=0.01)


def test_the_reference_of_adapters_is_the_policy_without_them(small: Path) -> None:
    without = _step(small, "dpo", "--lora", "16")
    models = {row["name"]: row for row in without["models"]}
    assert models["reference"]["held_bytes"] == 0
    assert models["reference"]["parameters"] == WEIGHTS < models["policy"]["parameters"]
    copied = _step(small, "dpo,reference=model", "--lora", "16")
    more = copied["memory"]["reserved_bytes"] - without["memory"]["reserved_bytes"]
    assert more == pytest.approx(2 * WEIGHTS, rel=0.1)  # a copy of the whole policy, adapters included
    assert _phases(copied)["reference"]["each_s"] > _phases(without)["reference"]["each_s"]
    narrow = _step(small, "dpo", "--lora", "16,base=nf4")
    assert _phases(narrow)["reference"]["each_s"] > _phases(without)["reference"]["each_s"]


def test_the_roll_out_is_as_it_was_served(small: Path, tmp_path: Path) -> None:
    served = tmp_path / "served.json"
    traffic = ("--arrivals", "burst:64", "--lengths", "prompt=fixed:128;output=fixed:128", "--requests", "64")
    run("serve", small, "--system", "dgx-h100", "--replicas", "8", *traffic, "--json", served)
    step = _step(small, "grpo", "--rollout", str(served))
    assert _phases(step)["roll-out"]["seconds"] == json.loads(served.read_text())["duration_s"]
    done = run(
        "train", small, "--system", "dgx-h100", "--post", "grpo", "--batch-size", "2", "--rollout", served, code=2
    )
    assert "64 requests were served, and a step has 128 answers" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--post", "dqo"), "dpo"),
        (("--post", "dpo,responses=8"), "responses"),
        (("--post", "dpo,reference"), "give a name and a value"),
        (("--post", "dpo", "--rollout", "40s"), "has its answers already"),
        (("--post", "grpo"), "--rollout 40s"),
        (("--post", "grpo", "--rollout", "0s"), "answers take time"),
        (("--post", "grpo", "--rollout", "soon"), "--rollout"),
        (("--rollout", "40s"), "give --post"),
        (("--post", "dpo,reference=adapters"), "give --lora"),
        (("--post", "dpo", "--timeline", "t.json"), "--timeline"),
        (("--post", "dpo", "--sweep", "tp=1,2"), "--sweep"),
        (("--post", "dpo", "--iterations", "2"), "--iterations"),
        (("--post", "grpo,responses=3,minibatches=2", "--batch-size", "1", "--rollout", "1s"), "minibatches=2"),
        (("--post", "grpo,reward=resnet-50", "--rollout", "1s"), "is no decoder"),
    ],
)
def test_what_makes_no_sense_is_said(small: Path, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in run("train", small, "--system", "dgx-h100", "--seq-len", "256", *words, code=2).stderr


def test_a_trace_has_no_critic(tmp_path: Path) -> None:
    path = tmp_path / "llama.triosim"
    triosim.save(_llama(), path)
    assert list(_phases(_step_of_trace(path, "dpo"))) == ["reference", "policy update"]
    words = ("train", path, "--system", "dgx-h100", "--rollout", "1s")
    assert "name a model" in run(*words, "--post", "ppo", code=2).stderr


def _step_of_trace(path: Path, post: str) -> dict:
    return json.loads(run("train", path, "--system", "dgx-h100", "--post", post, "--json", "-").stdout)


def test_the_terminal_shows_phases_and_models(small: Path) -> None:
    done = run("train", small, "--system", "dgx-h100", "--post", "ppo", "--rollout", "40s", "--seq-len", "256")
    for word in ("roll-out", "critic updates", "reference", "holds", "prompts/s", "fits"):
        assert word in done.stdout


def test_inference_gathers_what_zero_3_divides() -> None:
    """Each block once, and the rest once: all parameters in 16 bits; a rank keeps an eighth."""
    system = machine.system("dgx-h100")
    found = simulate(_llama(), system, Plan(dp=8, zero=3, training=False), fit=False)
    assert sum(row.bytes * row.count for row in found.collectives) == pytest.approx(2 * WEIGHTS, rel=1e-3)
    assert {row.kind for row in found.collectives} == {"all_gather"}
    whole = simulate(_llama(), system, Plan(dp=8, training=False), fit=False)
    assert found.memory.allocated_bytes < whole.memory.allocated_bytes
    assert found.iteration_time_s > whole.iteration_time_s
    with pytest.raises(InputError, match="inference has not"):
        simulate(_llama(), system, Plan(dp=8, zero=1, training=False))


@pytest.mark.parametrize("plan", [{"tp": 4}, {"tp": 2, "pp": 2, "micro_batches": 2}, {"dp": 8, "zero": 3}], ids=str)
def test_a_forward_of_a_training_step_holds_what_one_without_training_does(plan: dict) -> None:
    """What the backward reads of a weight does not say how much of it a rank has."""
    system = machine.system("dgx-h100")
    own = simulate(forward_only(_llama(), loss=True), system, Plan(training=False, **plan), fit=False)
    built = simulate(_llama(training=False, scored=True), system, Plan(training=False, **plan), fit=False)
    assert own.memory.categories == built.memory.categories
    assert own.memory.reserved_bytes == built.memory.reserved_bytes
    assert own.iteration_time_s == built.iteration_time_s


def test_answers_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PlanError, match=r"1 prompt x 6 answers .* nearest that do are 2 or 3"):
        _predicted("grpo,responses=6,minibatches=4", Plan(dp=8, batch_size=1), rollout_s=1.0)


def test_products_of_forwards_are_quantised_as_those_of_updates(small):
    """A reference model multiplies in the bits that the policy does, and casts nothing for a backward."""
    more = ("--system", "dgx-h100", "--nodes", "1", "--batch-size", "8")
    wide, narrow = _step(small, "dpo", *more), _step(small, "dpo", *more, "--quantize", "fp8-current")
    for found in (wide, narrow):
        assert set(_phases(found)) == {"reference", "policy update"}
    said = [source for source in narrow["sources"] if source.startswith("quantize fp8-current: ")]
    assert said
    assert not any(source.startswith("quantize") for source in wide["sources"])
    alone = run("infer", small, "--seq-len", "256", "--system", "dgx-h100", "--quantize", "fp8-current", code=2)
    assert "it is of training steps" in alone.stderr


def test_a_quantised_forward_casts_each_tensor_once():
    from triosim.transform.quantization import CASTS, QUANTIZE, quantized

    step = _llama()
    whole, forward = quantized(step, "fp8-current"), quantized(forward_only(step), "fp8-current", forward=True)
    casts = [sum(name in CASTS for name in one.operators.name) for one in (forward, whole)]
    assert 0 < casts[0] < casts[1]
    outputs = forward.operators.outputs.lists()
    assert all(len(outputs[row]) == 1 for row, name in enumerate(forward.operators.name) if name == QUANTIZE)
    assert quantized(forward, "fp8-current") is forward
    with pytest.raises(PlanError, match="it is of training steps"):
        quantized(forward_only(step), "fp8-current")
