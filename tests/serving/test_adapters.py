"""LoRA adapters, loaded on demand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.serving.fleets import MS, Linear, replica
from triosim.hardware import catalog
from triosim.serving.adapters import AdaptedTimes, AdapterPlan, AdapterSlots, parse_adapters
from triosim.serving.fleet import FleetRun, play
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import Batch
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.step_times import StepShape
from triosim.serving.swap import HostCopies

COPY = HostCopies(2 * MS, 1e9)
"""An adapter of a megabyte takes 3 ms."""


def served(
    table: RequestTable, asked: list[int], slots: int, engine: str = "vllm", steps: list[Batch] | None = None,
    blocks: int = 1000,
) -> FleetRun:  # fmt: skip
    one = replica(engine, blocks, times=Linear(MS, 0, 0))
    one.slots = AdapterSlots(AdapterPlan(max(asked) + 1, slots=slots), asked, COPY, 1e6)
    if steps is not None:
        one.on_step = lambda batch, begin, end: steps.append(list(batch))
    return play(table, [one], ROUTERS.get("round-robin")())


def test_a_step_waits_for_each_adapter_that_it_loads() -> None:
    table = RequestTable.of([0.0, 1.0, 2.0], [10] * 3, [5] * 3)
    found = served(table, [0, 0, 1], 4)
    assert found.adapter_loads == 2
    assert (found.finished - found.arrived).tolist() == [8 * MS, 5 * MS, 8 * MS]
    two = served(RequestTable.of([0.0, 0.0], [10] * 2, [5] * 2), [0, 1], 4)
    assert two.finished.tolist() == [11 * MS, 11 * MS]


def test_the_slot_used_longest_ago_is_given_up() -> None:
    asked = [0, 1, 0, 2, 0, 1]
    table = RequestTable.of([float(place) for place in range(6)], [10] * 6, [2] * 6)
    found = served(table, asked, 2)
    assert (found.finished - found.arrived).tolist() == [one * MS for one in (5, 5, 2, 5, 2, 5)]


@pytest.mark.parametrize("engine", ["vllm", "sarathi", "sglang", "trtllm", "orca", "vllm-2023"])
def test_a_step_has_no_more_adapters_than_slots(engine: str) -> None:
    draw = np.random.default_rng(2)
    asked = draw.integers(0, 6, 40).tolist()
    table = RequestTable.of(np.cumsum(draw.exponential(0.002, 40)), draw.integers(5, 60, 40), draw.integers(1, 30, 40))
    steps: list[Batch] = []
    found = served(table, asked, 2, engine, steps, 10_000)
    assert max(len({asked[request.row] for request, _ in batch}) for batch in steps) == 2
    assert found.adapter_loads >= 6


@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=15),
    st.integers(1, 6), st.integers(8, 30), st.sampled_from([0.0, 0.003, 1.0]),
)  # fmt: skip
def test_all_are_served_whatever_the_slots(
    lengths: list[tuple[int, int, int]], slots: int, blocks: int, gap: float
) -> None:
    prompts, outputs, asked = zip(*lengths, strict=True)
    table = RequestTable.of([gap * place for place in range(len(asked))], prompts, outputs)
    found = served(table, list(asked), slots, blocks=blocks)
    assert (found.finished > 0).all()
    assert found.adapter_loads >= len(set(asked))
    if slots >= len(set(asked)):
        assert found.adapter_loads == len(set(asked))


def test_who_finds_no_slot_is_overtaken_and_waits_in_its_place() -> None:
    table = RequestTable.of([0.0, 0.001, 0.002, 0.003], [10] * 4, [20] * 4)
    found = served(table, [0, 1, 0, 1], 1)
    assert found.scheduled[2] < found.finished[0] <= found.scheduled[1] <= found.scheduled[3]
    assert found.adapter_loads == 2


def test_adapters_of_one_rank_take_what_they_are_made_of() -> None:
    model = served_model("llama-2-7b")
    width, inner = 4096, 11008
    parameters = 32 * 16 * (4 * 2 * width + 2 * (width + inner) + inner + width)
    assert AdapterPlan(1, 16).bytes(model) == 2 * parameters
    assert AdapterPlan(1, 16).bytes(model) / 2 < AdapterPlan(1, 16).bytes(model, 2) < AdapterPlan(1, 16).bytes(model)


def test_what_adapters_cost_in_a_step() -> None:
    kernels = ServingKernels(served_model("llama-3-8b"), catalog.accelerator("H100-SXM5-80GB"), PRECISIONS["bf16"])
    base = ModelTimes(kernels)
    times = AdaptedTimes(base, kernels, AdapterPlan(64, 16))
    decode = StepShape(16, (), 16, 16_000, 16)
    plain, one, many = (times.ticks(decode._replace(adapters=count), 0) for count in (0, 1, 16))
    assert base.ticks(decode, 0) < plain <= one < many < 1.5 * base.ticks(decode, 0)
    reads = 16 * AdapterPlan(1, 16).bytes(kernels.model) / 3.35e12 * 1e12  # H100: 3.35 TB/s
    assert many - one > 0.8 * 15 / 16 * reads


def test_adapters_are_drawn_by_the_seed() -> None:
    even, steep = AdapterPlan(10).asked(20_000, 3), AdapterPlan(10, zipf=1.0).asked(20_000, 3)
    assert np.bincount(even, minlength=10) / 20_000 == pytest.approx(np.full(10, 0.1), abs=0.01)
    weights = 1 / np.arange(1, 11)
    assert np.bincount(steep, minlength=10) / 20_000 == pytest.approx(weights / weights.sum(), abs=0.015)
    assert AdapterPlan(10).asked(50, 3).tolist() == even[:50].tolist()
    assert AdapterPlan(10).asked(50, 4).tolist() != even[:50].tolist()


ASKED = (
    "serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--arrivals", "poisson:8", "--lengths", "uniform:128-512",
    "--requests", "60", "--interval", "off",
)  # fmt: skip


def test_the_command_loads_adapters_and_says_so() -> None:
    plain = json.loads(run(*ASKED, "--json", "-").stdout)
    few = json.loads(run(*ASKED, "--json", "-", "--lora", "64,slots=2").stdout)
    many = json.loads(run(*ASKED, "--json", "-", "--lora", "64,slots=64").stdout)
    assert many["kv_blocks"][0] < plain["kv_blocks"][0]
    assert plain["adapter_loads"] == 0 < many["adapter_loads"] < few["adapter_loads"]
    assert plain["latency_s"]["ttft"]["mean"] < many["latency_s"]["ttft"]["mean"] < few["latency_s"]["ttft"]["mean"]
    assert "loaded" in run(*ASKED, "--lora", "4").stdout
    assert parse_adapters("4").slots == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lora", "0"], "adapters"),
        (["--lora", "4,slots=0"], "slots"),
        (["--lora", "4,color=red"], "color"),
        (["--lora", "4", "--system", "dgx-h100", "--tp", "4", "--pp", "2"], "one pipeline stage"),
    ],
)
def test_what_makes_no_sense_is_refused(options: list[str], words: str) -> None:
    asked = [one for one in ASKED if "--system" not in options or one not in ("--device", "H100-SXM5-80GB")]
    assert words in " ".join(run(*asked, *options, code=2).stderr.split())
