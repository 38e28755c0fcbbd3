"""Speculative decoding."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.serving.fleets import MS, Linear, replica
from triosim.hardware import catalog
from triosim.serving.fleet import FleetRun, play
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.speculation import MedusaHeads, Speculation, SpeculationPlan, drafter_of, parse_speculation
from triosim.serving.step_times import StepShape

FREE = Linear(MS, 0, 0)


def served(
    table: RequestTable, chances: tuple[float, ...], engine: str = "vllm", blocks: int = 10_000, seed: int = 0,
    longest: int = 200_000,
) -> FleetRun:  # fmt: skip
    one = replica(engine, blocks, times=FREE, longest=longest)
    one.speculation = Speculation(SpeculationPlan("ngram", len(chances), chances), seed)
    return play(table, [one], ROUTERS.get("round-robin")())


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_tokens_of_a_step_follow_the_closed_form(chance: float, drafts: int) -> None:
    count = 30_000
    found = served(RequestTable.of([0.0], [10], [count]), (chance,) * drafts)
    expected = (1 - chance ** (drafts + 1)) / (1 - chance)
    assert SpeculationPlan("ngram", drafts, (chance,) * drafts).yields == pytest.approx(expected)
    steps = int(found.steps.sum()) - 1  # one was the prompt
    spread = drafts / 2  # no variable from 0 to g spreads more than g / 2
    assert (count - 1) / steps == pytest.approx(expected, abs=4 * spread / math.sqrt(steps))


def test_acceptance_by_position() -> None:
    chances = (0.9, 0.5, 0.1)
    found = served(RequestTable.of([0.0], [10], [50_000]), chances)
    expected = 1 + 0.9 + 0.9 * 0.5 + 0.9 * 0.5 * 0.1
    assert 1 + found.accepted / found.verifications == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("engine", ["vllm", "sarathi", "vllm-2023", "orca", "sglang", "trtllm"])
def test_all_drafts_held_or_none(engine: str) -> None:
    table = RequestTable.of([0.0], [20], [51])
    blocks = 10_000
    all_held = served(table, (1.0,) * 4, engine, blocks, longest=4096)
    none = served(table, (0.0,) * 4, engine, blocks, longest=4096)
    plain = play(table, [replica(engine, blocks, times=FREE)], ROUTERS.get("round-robin")())
    assert all_held.finished[0] - all_held.first_token[0] == 10 * MS  # 50 tokens, five at a time
    assert none.finished.tolist() == plain.finished.tolist()
    assert (none.accepted, all_held.accepted) == (0, 40)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 60)), min_size=1, max_size=12), st.integers(11, 40),
    st.sampled_from(["vllm", "sarathi", "sglang", "trtllm"]), st.integers(1, 6), st.floats(0, 1),
)  # fmt: skip
def test_tokens_and_blocks_are_conserved(
    lengths: list[tuple[int, int]], blocks: int, engine: str, drafts: int, chance: float
) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    table = RequestTable.of([0.0] * len(lengths), prompts, outputs)
    one = replica(engine, blocks * (16 if engine == "sglang" else 1), times=FREE)
    one.speculation = Speculation(SpeculationPlan("ngram", drafts, (chance,) * drafts))
    found = play(table, [one], ROUTERS.get("round-robin")())
    assert (found.finished > 0).all()
    assert one.cache.free == one.cache.blocks
    assert found.gaps.count == table.output.sum() - len(table)
    if not found.restarts.any():
        useful = int(table.prompt.sum() + table.output.sum()) - len(table)
        assert found.computed.sum() - (found.drafted - found.accepted) == useful


def test_draws_depend_on_the_request_and_the_seed_alone() -> None:
    draw = np.random.default_rng(1)
    many = RequestTable.of(np.cumsum(draw.exponential(0.01, 30)), draw.integers(1, 50, 30), draw.integers(20, 60, 30))
    first, again, other = (served(many, (0.7,) * 3, seed=seed) for seed in (0, 0, 1))
    assert first.finished.tolist() == again.finished.tolist() != other.finished.tolist()
    crowded = served(many, (0.7,) * 3, "sarathi")
    assert crowded.accepted == pytest.approx(first.accepted, rel=0.1)


def test_the_budget_of_a_step_is_kept() -> None:
    one = replica("vllm", times=FREE, max_tokens=10)
    one.speculation = Speculation(SpeculationPlan("ngram", 8, (1.0,) * 8))
    shapes = []
    one.times = _Told(shapes)
    play(RequestTable.of([0.0, 0.0], [5, 5], [40, 40]), [one], ROUTERS.get("round-robin")())
    assert max(step.tokens for step in shapes) == 10
    assert any(step.drafted == (1,) * 8 for step in shapes)


class _Told(Linear):
    """Takes down every step."""

    def __init__(self, shapes: list[StepShape]) -> None:
        super().__init__()
        self.shapes = shapes

    def ticks(self, step: StepShape, stage: int) -> int:
        self.shapes.append(step)
        return MS


def llama(layers_of: str = "llama-3-70b") -> tuple[ModelTimes, ServingKernels]:
    kernels = ServingKernels(served_model(layers_of), catalog.accelerator("H100-SXM5-80GB"), PRECISIONS["bf16"])
    return ModelTimes(kernels), kernels


@pytest.mark.parametrize(
    ("typed", "least", "most"),
    [
        ("ngram,acceptance=0.5", 0.0, 0.0),
        ("eagle,acceptance=0.5", 0.03, 0.4),  # four times a layer and the head, of 32 layers
        ("medusa,acceptance=0.5", 0.2, 0.6),  # four heads of the vocabulary
        ("draft,model=llama-3.2-1b,acceptance=0.5", 0.4, 1.2),  # four times a sixth of the weights, and launches
    ],
)
def test_what_drafting_costs(typed: str, least: float, most: float) -> None:
    times, kernels = llama("llama-3-8b")
    drafter = drafter_of(
        parse_speculation(typed), kernels.model, kernels.device, kernels.precision, kernels.kv_type, 1, kernels.moved,
        times,
    )  # fmt: skip
    plain = times.ticks(StepShape(8, (), 8, 8000, 8), 0)
    verified = StepShape(40, (), 8, 8000, 40, (8, 8, 8, 8))
    assert least * plain <= drafter.ticks(verified) <= most * plain
    assert plain <= times.ticks(verified, 0) < 1.2 * plain  # bound by the bytes of the weights
    assert (drafter.weights > 0) == (typed[:5] != "ngram")
    assert (drafter.kv_token > 0) == (not typed.startswith(("ngram", "medusa")))
    if isinstance(drafter, MedusaHeads):
        assert drafter.ticks(StepShape(8, ((8, 0),), 0, 0, 0)) == 0


def test_the_command_drafts_and_says_so() -> None:
    asked = (
        "serve", "llama-3-70b", "--system", "dgx-h100", "--tp", "8", "--arrivals", "poisson:1", "--lengths",
        "prompt=fixed:200;output=fixed:100", "--requests", "30", "--interval", "off",
    )  # fmt: skip
    plain = json.loads(run(*asked, "--json", "-").stdout)
    eagle = json.loads(run(*asked, "--json", "-", "--speculate", "eagle,tokens=3,acceptance=0.8/0.7/0.6").stdout)
    assert eagle["latency_s"]["tpot"]["mean"] < 0.75 * plain["latency_s"]["tpot"]["mean"]
    assert eagle["kv_blocks"][0] < plain["kv_blocks"][0]
    assert eagle["recomputed_tokens"] == 0
    assert 2.2 < eagle["tokens_per_verification"] < 2.8
    assert "accepted" in run(*asked, "--speculate", "ngram,acceptance=0.5").stdout


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("oracle,acceptance=1", "speculation by 'oracle' is not known"),
        ("ngram", "give acceptance"),
        ("ngram,acceptance=1.5", "give acceptance"),
        ("ngram,acceptance=0.5/0.5", "2 acceptances for 4 tokens"),
        ("draft,acceptance=0.5", "has a model"),
        ("eagle,model=llama-3.2-1b,acceptance=0.5", "has a model"),
        ("draft,model=gpt2,acceptance=0.5", "choose a draft of the same family"),
        ("ngram,tokens=0,acceptance=0.5", "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(typed: str, words: str) -> None:
    asked = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--arrivals", "poisson:1", "--lengths", "fixed:100")
    assert words in " ".join(run(*asked, "--speculate", typed, code=2).stderr.split())


@pytest.mark.parametrize("engine", ["orca", "faster-transformer", "vllm-2023"])
def test_engines_from_before_it_verify_no_drafts(engine: str) -> None:
    words = (
        "serve", "llama-3-8b", "--device", "H100", "--arrivals", "poisson:1", "--requests", "2", "--engine", engine,
        "--lengths", "fixed:64", "--speculate", "ngram,acceptance=0.5",
    )  # fmt: skip
    done = run(*words, code=2)
    assert f"the engine {engine} is of before speculative decoding" in done.stderr
    assert done.stderr.count("\n") == 1
