"""Whole jobs, from results and on the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim import InputError
from triosim.job.prediction import JobEvaluation, JobIteration, JobOptions, predict
from triosim.job.reading import iteration_of, read
from triosim.prediction.variation import parse_variation

LLAMA = JobIteration("llama", 5.0, 4.5, 6.0, 16_384, 16_000_000.0, 2000.0, 405e9 * 14)
"""Of the size of Llama 3 405B on 16,384 H100."""


def test_llama_3_fails_as_often_as_was_published() -> None:
    """54 days: 419 interruptions, more than 90 % of the time effective (arXiv:2407.21783, section 3.3.4)."""
    found = predict(LLAMA, JobOptions(iterations=round(54 * 86_400 / 5.0)))
    assert found.failures == pytest.approx(419 * found.total_s / (54 * 86_400), rel=0.02)
    assert 0.85 < found.effective < 0.99
    assert found.failures_range[0] < found.failures < found.failures_range[1]
    assert found.device_hours == pytest.approx(found.total_s / 3600 * 16_384)


def test_parts_are_the_whole() -> None:
    options = JobOptions(tokens=15e12, evaluation=JobEvaluation(1000, 90.0), warm_up_s=120, spares=2, repair_s=86_400)
    found = predict(LLAMA, options)
    parts = found.training_s + found.evaluation_s + found.writing_s + found.lost_s + found.down_s
    assert found.total_s == pytest.approx(parts)
    assert found.iterations == math.ceil(15e12 / 16e6)
    assert found.evaluation_s == found.iterations // 1000 * 90
    assert found.total_interval_s[0] < found.total_s < found.total_interval_s[1]


def test_without_failures_it_is_the_iterations() -> None:
    found = predict(LLAMA, JobOptions(iterations=1000, device_mtbf_s=math.inf))
    assert found.failures == found.lost_s == found.down_s == 0
    assert found.total_s == pytest.approx(1000 * 5 + found.checkpoint.written_s)
    assert found.every == 1000


def test_a_checkpoint_comes_no_later_than_the_end() -> None:
    """One every so many iterations that the job has fewer is one at the end, not an interval that nothing survives."""
    found, end = (predict(LLAMA, JobOptions(iterations=1_000, every=n)) for n in (10**9, 1_000))
    assert (found.every, found.total_s) == (end.every, end.total_s) == (1_000, end.total_s)


@pytest.mark.parametrize("every", [10, 40, 200, 1000])
def test_no_interval_is_better_than_the_best(every: int) -> None:
    best, other = (predict(LLAMA, JobOptions(iterations=500_000, every=n)) for n in (None, every))
    assert other.total_s >= best.total_s * 0.999


def test_writing_beside_training_stops_it_for_less() -> None:
    direct, beside = (predict(LLAMA, JobOptions(iterations=500_000, staging=rate)) for rate in (None, 25e9))
    assert beside.writing_s < direct.writing_s
    assert beside.total_s < direct.total_s


@pytest.mark.parametrize(
    "plan",
    [
        triosim.Plan(tp=2), triosim.Plan(tp=2, zero=1), triosim.Plan(tp=2, zero=3),
        triosim.Plan(tp=2, parallelism=("context",), parallelism_options={"cp": "2"}),
        triosim.Plan(tp=2, offload=("optimizer",)),
    ],
)  # fmt: skip
def test_a_checkpoint_has_every_parameter_and_state_once(plan: triosim.Plan) -> None:
    trace = triosim.model("llama-3.2-1b", sequence_length=128)
    result = triosim.simulate(trace, triosim.system("dgx-a100"), plan)
    found = iteration_of(result.to_dict())
    assert found.state_bytes == 1_235_814_400 * (2 + 12)
    assert found.devices == 8
    assert found.tokens == 128 * (2 if plan.parallelism else 4)
    assert (found.low, found.high) == result.interval_s


def test_a_checkpoint_has_the_experts_of_all_ranks() -> None:
    trace = triosim.model("mixtral-8x7b", sequence_length=128, configuration={"num_hidden_layers": 2})
    plan = triosim.Plan(zero=1, parallelism=("experts",), parallelism_options={"ep": "4"})
    result = triosim.simulate(trace, triosim.system("dgx-h100"), plan)
    assert iteration_of(result.to_dict()).state_bytes == result.workload.parameters * (2 + 12)


def test_a_checkpoint_leaves_out_what_is_not_trained() -> None:
    """16 x (inputs + outputs) of seven layers of each block (Hu et al., arXiv:2106.09685), 2 + 12 bytes each."""
    trace = triosim.model("llama-3.2-1b", sequence_length=128, lora="16")
    result = triosim.simulate(trace, triosim.system("dgx-a100"), triosim.Plan(zero=3))
    layers = ((2048, 2048), (2048, 512), (2048, 512), (2048, 2048), (2048, 8192), (2048, 8192), (8192, 2048))
    assert iteration_of(result.to_dict()).state_bytes == 16 * 16 * sum(map(sum, layers)) * (2 + 12)


def test_steps_of_post_training_are_iterations(tmp_path: Path) -> None:
    """A checkpoint has the policy and the critic, not the reference nor the reward model."""
    file = tmp_path / "step.json"
    post = ("--post", "ppo,responses=2", "--rollout", "40s")
    run("train", "llama-3.2-1b", "--seq-len", "128", "--system", "dgx-a100", *post, "--json", str(file))
    step = json.loads(file.read_text())
    found = iteration_of(step)
    assert found.seconds == step["iteration_time_s"] > 40
    assert found.state_bytes == sum(m["parameters"] for m in step["models"] if m["trained"]) * (2 + 12)
    assert (found.tokens, found.samples, found.devices) == (128 * 16, 16, 8)
    assert "Checkpoint  " in run("job", str(file), "--iterations", "100").stdout
    del step["models"][0]["state_bytes"]
    file.write_text(json.dumps(step))
    assert "damaged result: 'state_bytes' is missing" in run("job", str(file), "--iterations", "9", code=2).stderr


def test_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    run("train", "llama-3.2-1b", "--seq-len", "128", "--system", "dgx-a100", "--json", str(file))
    job = ("job", str(file), "--tokens", "1e12", "--evaluate", "1000=90s", "--warm-up", "2min")
    done = run(*job, "--asynchronous", "20GB/s", "--spares", "1", "--repair", "24h")
    for words in ("device hours", "Effective", "the best; Young", "Where the time goes", "evaluation", "Rests on"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    for more in ((), ("--mtbf", "none")):
        plain = json.loads(run(*job, *more, "--json", "-").stdout)
        assert plain["schema"] == "triosim/job/1"
        assert plain["iterations"] == math.ceil(1e12 / read(file).tokens)
        assert (plain["best_s"] is None) == bool(more)


def test_iterations_that_vary_take_their_mean() -> None:
    """A job has many of them: the waiting of varying iterations was left out of it."""
    result = triosim.simulate(
        triosim.model("gpt2", sequence_length=64), triosim.system("dgx-a100", 1), triosim.Plan(dp=8),
        variation=parse_variation("stragglers=0.1x2"),
    )  # fmt: skip
    of, once = iteration_of(result.to_dict()), iteration_of({**result.to_dict(), "variation": None})
    assert result.variation is not None
    assert of.seconds == pytest.approx(result.variation.mean_s)
    assert of.seconds > 1.1 * once.seconds
    assert (of.low / once.low, of.high / once.high) == pytest.approx([of.seconds / once.seconds] * 2)
    assert (of.tokens, of.samples) == (once.tokens, once.samples)
    job = predict(of, JobOptions(iterations=10, device_mtbf_s=math.inf))
    assert job.training_s == pytest.approx(10 * result.variation.mean_s)
    assert "stragglers=0.1x2" in job.sources[0]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("give tokens or iterations", ()),
        ("give tokens or iterations", ("--tokens", "1e9", "--iterations", "5")),
        ("--evaluate '1000': give iterations and a time", ("--iterations", "5", "--evaluate", "1000")),
        ("--spares and --repair go together", ("--iterations", "5", "--spares", "1")),
        ("--every must be at least 1, got 0", ("--iterations", "5", "--every", "0")),
        ("unknown unit 'weeks'", ("--iterations", "5", "--mtbf", "3weeks")),
        ("a job has at least 1 iteration", ("--iterations", "0")),
        ("a job of 1e+30 iterations is longer than any", ("--iterations", "1" + 30 * "0")),
        ("--seed must be at least 0, got -1", ("--iterations", "5", "--seed", "-1")),
    ],
)
def test_bad_input_is_a_sentence(words: str, options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    trace = triosim.model("llama-3.2-1b", sequence_length=128, configuration={"num_hidden_layers": 1})
    file.write_text(json.dumps(triosim.simulate(trace, triosim.system("dgx-a100")).to_dict()))
    done = run("job", str(file), *options, code=2)
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "document"),
    [
        ("is no result of triosim", {}),
        ("damaged result", {"schema": "triosim/result/1"}),
        ("is no training", {"schema": "triosim/result/1", "workload": {"training": False}}),
    ],
)
def test_what_is_no_result_is_a_sentence(words: str, document: dict) -> None:
    with pytest.raises(InputError, match=words):
        iteration_of(document)
