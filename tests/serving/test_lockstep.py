"""Ranks of data-parallel attention: they step together, share experts, and keep what any replica keeps."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import triosim
from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.serving.capacity import memory
from triosim.serving.deployment import Deployment, serve
from triosim.serving.fleet_file import fleet_file
from triosim.serving.kernel_times import NOTHING_MOVED
from triosim.serving.lockstep import LockStepTimes
from triosim.serving.model import precision_of, served_model
from triosim.serving.pool import Pool
from triosim.serving.pool_replicas import replicas_of
from triosim.serving.pool_times import lock_step, step_times
from triosim.serving.step_times import StepShape
from triosim.serving.traffic import traffic

MODEL = "deepseek-v2-lite"


@pytest.fixture(scope="module")
def machine() -> triosim.System:
    return triosim.system("dgx-h100", 1)


def pool(machine: triosim.System, ranks: int = 4, **more: object) -> Pool:
    return Pool(MODEL, machine, attention_ranks=ranks, **more)  # type: ignore[arg-type]


def requests(count: int = 60, rate: float = 40.0) -> object:
    return traffic(f"poisson:{rate:g}", "uniform:64-512", count, seed=3)


def times(own: Pool) -> LockStepTimes:
    model = served_model(own.model)
    return lock_step(own, step_times(own, model), own.first, NOTHING_MOVED)


DECODE = StepShape(16, (), 16, 16 * 800, 16)
PROMPT = StepShape(512, ((512, 0),), 0, 0, 1)
IDLE = StepShape(0, (), 0, 0, 0)


def test_ranks_begin_and_end_their_steps_together(machine: triosim.System) -> None:
    own = pool(machine)
    ranks, _ = replicas_of(own, served_model(MODEL), 0, NOTHING_MOVED)
    spans: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in ranks:
        rank.on_step = lambda batch, begin, end, number=rank.number: spans[begin, end].append(number)
    from tests.serving.fleets import serve as played

    found = played(requests(), *ranks)  # type: ignore[arg-type]
    assert (found.finished > 0).all()
    ordered = sorted(spans)
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(ordered))
    assert max(len(numbers) for numbers in spans.values()) == 4
    assert len({rank.busy[0] for rank in ranks}) == 1  # the idle ones wait in the exchanges of the others


def test_all_tokens_are_computed_once(machine: triosim.System) -> None:
    table = requests()
    found = serve(Deployment((pool(machine),), idle_ok=True), table, interval=False)  # type: ignore[arg-type]
    whole = int((table.prompt + table.output - 1).sum())  # type: ignore[attr-defined]
    assert int(found.served.computed.sum()) == whole
    assert found.metrics.figures["requests"] == 60
    assert len(found.to_dict()["replicas"]) == 4


def test_a_step_takes_as_long_as_the_fullest_rank(machine: triosim.System) -> None:
    found = times(pool(machine))
    one = found.ticks([DECODE, IDLE, IDLE, IDLE])
    four = found.ticks([DECODE] * 4)
    assert one < four < 2 * one  # more experts are touched
    assert found.ticks([PROMPT, DECODE, DECODE, DECODE]) == found.ticks([DECODE, DECODE, PROMPT, DECODE])
    assert found.ticks([PROMPT, DECODE, DECODE, DECODE]) > found.own.device_ticks(PROMPT, 0)


@settings(max_examples=examples(30))
@given(st.integers(1, 100_000), st.floats(1.0, 4.0))
def test_the_fullest_device_has_no_less_than_the_mean(machine: triosim.System, tokens: int, skew: float) -> None:
    even, skewed = times(pool(machine, expert_skew=1.0)), times(pool(machine, expert_skew=skew))
    n = np.array([float(tokens)])
    mean = tokens / even.devices
    experts = even.kernels.model.experts
    assert experts is not None

    def fullest(of: LockStepTimes, tokens: NDArray[np.float64]) -> float:
        return float(of.experts.rows(tokens, experts)[0]) / experts.chosen

    assert mean <= fullest(even, n) <= fullest(skewed, n) + 1e-9
    assert fullest(skewed, n) <= tokens
    many = np.array([1e9])
    assert fullest(even, many) * even.devices / 1e9 == pytest.approx(1, rel=1e-3)  # chance evens out


def test_experts_are_divided_and_the_rest_is_not() -> None:
    model, precision = served_model("deepseek-v3"), precision_of("fp8")
    whole, shared = (model.weight_bytes(precision, attention_ranks=ranks) for ranks in (1, 8))
    assert whole - shared == pytest.approx(model.expert_parameters * 7 / 8)
    assert model.expert_parameters == 58 * 256 * 3 * 7168 * 2048


def test_caches_of_ranks_hold_more_of_a_latent_model_than_one_of_all(machine: triosim.System) -> None:
    """Each device of tensor parallelism keeps the latent vectors of all tokens, each rank those of its own."""
    model, device = served_model("deepseek-v3"), triosim.system("dgx-h200", 1).models[0]
    how = {"block_tokens": 16, "tokens": 8192, "sequences": 1024}
    args = model, device, precision_of("fp8"), "bfloat16"
    one = memory(*args, **how, tensor_parallel=8)  # type: ignore[arg-type]
    rank = memory(*args, **how, attention_ranks=8)  # type: ignore[arg-type]
    assert rank.block == one.block
    assert 8 * rank.blocks > 4 * one.blocks


def test_exchanges_are_those_of_training(machine: triosim.System) -> None:
    """An all-to-all among 8: seven eighths of the buffer leave each device over its links."""
    between = times(pool(machine, 8)).communication
    size = 2.0**28
    took = float(between.all_to_all(np.array([size]), 8)[0])
    assert size * 7 / 8 / 450e9 < took < 2 * size * 7 / 8 / 450e9
    assert float(between.all_to_all(np.array([size]), 1)[0]) == 0


def test_what_is_gathered_and_scattered_passes_each_link_twice(machine: triosim.System) -> None:
    between = times(pool(machine, 8)).communication
    size = np.array([2.0**28])
    both = float(between.gather_and_scatter(size, size, 8)[0])
    assert 2 * size[0] * 7 / 8 / 450e9 < both < 2 * 2 * size[0] * 7 / 8 / 450e9
    assert float(between.gather_and_scatter(size, size, 1)[0]) == 0
    assert float(between.gather_and_scatter(size / 2, size, 8)[0]) < both


def test_tokens_of_few_experts_are_sent_sooner_than_gathered(machine: triosim.System) -> None:
    """Each token of one expert goes to one device of eight, where gathering takes it to all."""
    found = {}
    for exchange in ("gather", "all-to-all"):
        own = times(pool(machine, 8, engine_options={"expert-exchange": exchange}))
        experts = own.kernels.model.experts
        assert experts is not None
        found[exchange] = own._moved([4096] * 8)
    assert found["all-to-all"] < found["gather"]  # six of eight ways at most, and not all of them


def test_gathered_rows_are_filled_up_in_graphs(machine: triosim.System) -> None:
    own = times(pool(machine, 4))
    assert own._moved([100, 1, 1, 1]) == own._moved([104] * 4)
    assert own._moved([4000, 1, 1, 1]) < own._moved([4000] * 4)  # no graph: as many as there are


def test_decodes_of_all_ranks_fill_the_graph_of_the_fullest(machine: triosim.System) -> None:
    sized = times(pool(machine, engine="trtllm", engine_options={"graph-sizes": "1/2/4/8/64"}))
    plain = times(pool(machine, engine="trtllm"))
    few = StepShape(1, (), 1, 800, 1)
    assert sized.ticks([DECODE, few, few, few]) > plain.ticks([DECODE, few, few, few])
    beyond = StepShape(65, (), 65, 65 * 800, 65)
    assert sized.own.padded(65) == 65
    assert sized.own.padded(9) == 64
    assert sized.own.computed(PROMPT) == 512
    assert sized.ticks([beyond] * 4) <= plain.ticks([beyond] * 4)  # 72 rows of vLLM's sizes


@pytest.mark.parametrize("sizes", ["4/2", "a", "0/1", "1//2", "1/1"])
def test_sizes_of_graphs_ascend(machine: triosim.System, sizes: str) -> None:
    with pytest.raises(InputError, match=r"graph-sizes .*: give whole numbers above zero that ascend"):
        times(pool(machine, engine_options={"graph-sizes": sizes}))


def test_a_fleet_whose_ranks_decode_what_others_prefill(machine: triosim.System, tmp_path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f'model = "{MODEL}"\nsystem = "dgx-h100"\n[[pool]]\nname = "prefill"\nrole = "prefill"\ntp = 2\nreplicas = 2\n'
        '[[pool]]\nname = "decode"\nrole = "decode"\ndp = 4\nexpert_skew = 1.5\n'
    )
    found = serve(fleet_file(path), requests(), interval=False)  # type: ignore[arg-type]
    assert found.metrics.figures["requests"] == 60
    assert found.metrics.figures["sent_bytes"] > 0
    assert [row["pool"] for row in found.to_dict()["replicas"]] == [0, 0, 1, 1, 1, 1]
    assert all(row["steps"] for row in found.to_dict()["replicas"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "llama-3-8b"}, "has none: use --replicas 4"),
        ({"stages": 2}, "--pp does not go with ranks"),
        ({"speculation": "ngram:3"}, "--speculate does not go with ranks"),
        ({"preemption": "swap"}, "--preemption swap does not go with ranks"),
        ({"mtbf_s": 100.0}, "--mtbf does not go with ranks"),
        ({"expert_skew": 9.0}, "must be from 1"),
        ({"attention_ranks": 1, "expert_skew": 2.0}, "give --ep or --dp of at least 2"),
        ({"attention_ranks": 16}, "has 8: use fewer"),
    ],
)
def test_what_does_not_go_together(machine: triosim.System, change: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        serve(Deployment((replace(pool(machine), **change),), idle_ok=True), requests())  # type: ignore[arg-type]


def test_on_the_command_line() -> None:
    command = [
        sys.executable, "-m", "triosim", "serve", MODEL, "--system", "dgx-h100", "--dp", "8", "--arrivals",
        "poisson:20", "--lengths", "uniform:64-256", "--requests", "50",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "(8 ranks of attention)" in " ".join(shown.split())
    assert "blocks a rank" in shown
