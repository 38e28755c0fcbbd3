"""Steps of post-training are searched as exactly as single steps are."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim.fidelity import Fidelity
from triosim.plan import Plan
from triosim.posttraining.prediction import predict
from triosim.posttraining.recipe import recipe
from triosim.posttraining.workload import PostTrainingWorkload
from triosim.search.bounds import PlanBound
from triosim.search.branch_and_bound import BestPlans, best_plans
from triosim.search.posttraining import PostTrainingBounds, PostTrainingTask
from triosim.search.space import PlanSpace
from triosim.sources.modelling import model
from triosim.trace.blocks import blocks

PROMPTS = 16
LAYERS = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
    "vocab_size": 8192,
}  # fmt: skip
STEPS = ("dpo", "grpo,responses=4,minibatches=2,epochs=2", "ppo,minibatches=2")
AMONG = {
    "tp": (1, 2), "pp": (1, 2, 4), "micro-batch-size": (2, 4), "recompute": ("none", "full"), "zero": (0, 1, 3),
    "schedule.chunks": (2,), "sequence-parallel": (False,),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> triosim.System:
    return triosim.system("dgx-h100")


@pytest.fixture(scope="module")
def policy() -> triosim.Trace:
    return model("llama", sequence_length=512, configuration=LAYERS)


def _step(post: str, policy: triosim.Trace) -> PostTrainingWorkload:
    asked = recipe(post)
    scores = model("llama", sequence_length=512, configuration=LAYERS, value_head=True)
    traces = {one.name: scores if one.scores else policy for one in asked.models(False)}
    return PostTrainingWorkload(asked, post.partition(",")[0], traces, False, 0.5 if asked.rolls_out else None)


def _space(step: PostTrainingWorkload) -> PlanSpace:
    return PlanSpace([8], step.samples_of_an_update(PROMPTS), len(blocks(step.policy)), 512, among=AMONG)


@pytest.mark.parametrize("post", STEPS)
def test_no_step_is_below_its_bound(post: str, policy: triosim.Trace, server: triosim.System) -> None:
    step, base = _step(post, policy), Plan(global_batch_size=PROMPTS)
    bounds, task = PostTrainingBounds(step, server, base, Fidelity()), PostTrainingTask(step, server, base, Fidelity())
    shares = []
    for one in _space(step).candidates()[::5]:
        figures = task.outcome(one.number, dict(one.asked)).figures
        if figures is None:  # ZeRO 3 and a backward in two
            continue
        for name in ("at_once", "by_volume", "without_recomputation", "of", "of_stages"):
            least = getattr(bounds, name)(one)
            assert isinstance(least, PlanBound)
            assert (step.rollout_s or 0) <= least.seconds <= figures.iteration_time_s, (name, one.asked)
            assert least.bytes <= figures.reserved_bytes, (name, one.asked)
            if name == "of":
                given = step.rollout_s or 0.0
                shares.append((
                    (least.seconds - given) / (figures.iteration_time_s - given), least.bytes / figures.reserved_bytes
                ))  # fmt: skip
    assert len(shares) > 10
    assert max(seconds for seconds, _ in shares) > 0.7  # it says something
    assert max(size for _, size in shares) > 0.7


def _found(step: PostTrainingWorkload, server: triosim.System, quantize: str = "none", **more: object) -> BestPlans:
    base = Plan(global_batch_size=PROMPTS, quantize=quantize)
    space = replace(_space(step), among={**AMONG, "recompute": ("none",), "micro-batch-size": (2,)})
    return best_plans(step, {8: server}, space, base, count=3, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("post", "quantize"), [(STEPS[0], "fp8-block"), (STEPS[1], "none")])
def test_bounds_leave_out_nothing_that_is_among_the_best(
    post: str, quantize: str, policy: triosim.Trace, server: triosim.System
) -> None:
    step = _step(post, policy)
    pruned, whole = (_found(step, server, quantize, prune=prune) for prune in (True, False))
    assert pruned.best == whole.best
    assert pruned.predicted < whole.predicted == whole.legal


def test_figures_are_those_of_the_step(policy: triosim.Trace, server: triosim.System) -> None:
    step = _step(STEPS[1], policy)
    best = _found(step, server).best[0]
    asked = {name.replace("-", "_"): value for name, value in best.candidate.asked.items()}
    fields = {name: value for name, value in asked.items() if name in ("tp", "pp", "dp", "cp", "ep", "zero")}
    plan = Plan(global_batch_size=PROMPTS, micro_batches=asked["micro_batches"], **fields)
    if "schedule" in asked:
        plan = plan.replaced(schedule=asked["schedule"])
    alone, found = predict(step, server, plan, Fidelity()), best.figures
    assert found.iteration_time_s == alone.seconds
    assert found.reserved_bytes == alone.memory.reserved_bytes
    assert found.samples_per_s == alone.samples / alone.seconds
    parts = found.compute_s + found.exposed_communication_s + found.host_s + found.idle_s
    assert parts == pytest.approx(found.iteration_time_s)
    assert found.idle_s > 0.5  # devices wait for the roll-out


# --- as a user types it -----------------------------------------------------------------------------------------------

SMALL = {"family": "llama", **LAYERS}
FEW = ("--among", "tp=1,2", "--among", "pp=1", "--among", "recompute=none", "--among", "micro-batch-size=2")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return path


def _words(small: Path, *more: str) -> tuple[str, ...]:
    return ("search", str(small), "--seq-len", "256", "--system", "dgx-h100", "--under", "batch=16", *FEW, *more)


def test_the_best_step_can_be_copied(small: Path) -> None:
    words = _words(small, "--post", "grpo,responses=4,minibatches=2", "--rollout", "2s", "--lora", "16")
    found = json.loads(run(*words, "--best", "1", "--front", "--json", "-").stdout)
    best = found["plans"][0]
    assert found["post"] == "grpo,responses=4,minibatches=2"
    alone = json.loads(run(*shlex.split(best["command"])[1:], "--json", "-").stdout)
    assert alone["schema"] == "triosim/posttraining/1"
    assert alone["iteration_time_s"] == best["figures"]["iteration_time_s"]
    assert best["tokens_per_usd"] == pytest.approx(16 * 4 * 256 / best["usd_per_iteration"])
    assert found["front"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--post", "grpo,responses=4"), "say how long that takes, as --rollout 40s"),
        (("--post", "grpo,minibatches=3", "--rollout", "1s"), "16 prompts x 8 answers cannot be divided into"),
        (("--rollout", "1s"), "--rollout is of a step of post-training"),
        (("--post", "dpo", "--export", "megatron"), "leave out it or --post"),
        (("--post", "dpo", "--power-cap", "300W"), "--power-cap is of one iteration"),
        (("--post", "dpp"), "unknown post-training 'dpp'"),
    ],
)
def test_what_makes_no_sense_of_a_step_is_one_sentence(small: Path, more: tuple[str, ...], said: str) -> None:
    done = run(*_words(small, *more), code=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_as_many_answers_must_be_served_as_a_step_has(small: Path, tmp_path: Path) -> None:
    served = tmp_path / "served.json"
    served.write_text(json.dumps({"schema": "triosim/serving/1", "duration_s": 3.0, "requests": 32}))
    words = _words(small, "--post", "grpo,responses=4", "--rollout", str(served))
    assert "32 requests were served, and a step has 64 answers" in run(*words, code=2).stderr
