"""What engines do, step by step, and what happens to policies that break a rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import triosim
from tests.serving.fleets import MS, Linear, replica, serve
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.serving.capacity import memory, static_share
from triosim.serving.fleet import play
from triosim.serving.metrics import measure
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.policy import ENGINES, Batch, Policy, engine_on
from triosim.serving.pool import Pool
from triosim.serving.pool_times import step_times
from triosim.serving.replica import PolicyError
from triosim.serving.requests import Request, RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.step_times import NO_HOST, StepShape

ONE = Linear(base=MS, token=0, key=0)
"""Every step takes a millisecond."""


def at_once(prompt: list[int], output: list[int]) -> RequestTable:
    return RequestTable.of(np.zeros(len(prompt)), prompt, output)


def milliseconds(values: np.ndarray) -> list[float]:
    return (values / MS).tolist()


def test_vllm_cuts_a_prompt_to_what_the_budget_leaves() -> None:
    one = replica("vllm", max_tokens=100, times=ONE)
    served = serve(at_once([80, 80], [3, 2]), one)
    # steps: 80 + 20; decode + 60; decode + decode
    assert milliseconds(served.first_token) == [1, 2]
    assert milliseconds(served.finished) == [3, 3]


def test_vllm_2023_runs_prompts_before_decodes() -> None:
    table = RequestTable.of([0, 0.0015], [50, 50], [4, 2])
    served = serve(table, replica("vllm-2023", times=ONE))
    # steps end at 1 prompt, 2 decode, 3 the other prompt, 4 both, 5 the first
    assert milliseconds(served.first_token) == [1, 3]
    assert milliseconds(served.finished) == [5, 4]
    assert milliseconds(served.waited) == [1, 0]


def test_vllm_2023_pads_prompts_to_the_longest() -> None:
    served = serve(at_once([300, 30, 300], [1, 1, 1]), replica("vllm-2023", max_tokens=600, times=ONE))
    assert milliseconds(served.first_token) == [1, 1, 2]


def test_vllm_v0_counts_the_tokens_of_prompts() -> None:
    """630 of the first three, where the published engine would count 900."""
    served = serve(at_once([300, 30, 300, 30], [1, 1, 1, 1]), replica("vllm-v0", max_tokens=640, times=ONE))
    assert milliseconds(served.first_token) == [1, 1, 1, 2]


def test_vllm_v0_waits_for_its_host_and_launches_prompts_one_by_one() -> None:
    """What version 1 hides or compiles: 128 requests that decode, and a prompt of one token."""
    system = triosim.system(device="H100-SXM5-80GB")
    decode, prompt = StepShape(128, (), 128, 128 * 500, 128), StepShape(1, ((1, 0),), 0, 0, 1)
    old, new = (
        step_times(Pool("llama-3-8b", system, engine=name), served_model("llama-3-8b"), host=ENGINES.get(name)().host())
        for name in ("vllm-v0", "vllm")
    )
    assert (old.ticks(decode, 0) - new.ticks(decode, 0)) / 1e9 == pytest.approx(1.28 + 0.106 * 128 - 0.3, rel=1e-3)
    launches = 32 * old.kernels.eager_launches
    assert old.ticks(prompt, 0) > launches * 46.5e6 > 2 * new.ticks(prompt, 0)


def test_padding_is_counted() -> None:
    served = serve(at_once([5], [3]), replica("vllm", times=ONE))  # steps of 5, 1 and 1 tokens, filled to even numbers
    assert served.padding.tolist() == [3]
    assert measure(served).figures["padding_share"] == pytest.approx(3 / 10)


def test_sarathi_never_delays_a_decode() -> None:
    table = RequestTable.of([0, 0.0015], [50, 1000], [4, 2])
    served = serve(table, replica("sarathi", max_tokens=512, times=ONE))
    # the second prompt takes 511 tokens of a step, then 489
    assert milliseconds(served.first_token) == [1, 4]
    assert milliseconds(served.finished) == [4, 5]
    assert served.waited.sum() == 0


def test_orca_reserves_the_longest_length() -> None:
    one = replica("orca", 8, longest=64, times=ONE)  # room for two
    served = serve(at_once([10, 10, 10], [2, 3, 1]), one)
    assert milliseconds(served.first_token) == [1, 1, 3]


def test_faster_transformer_lets_nobody_join() -> None:
    one = replica("faster-transformer", 8, longest=64, times=ONE)
    served = serve(at_once([10, 10, 10], [2, 3, 1]), one)
    assert milliseconds(served.finished) == [2, 3, 4]


def test_lightllm_looks_at_prompts_now_and_then() -> None:
    table = RequestTable.of([0, 0.0015], [10, 10], [30, 2])
    served = serve(table, replica("lightllm", 100, times=ONE))
    # a prompt and ten decodes, then the other prompt
    assert milliseconds(served.first_token) == [1, 12]


def test_lightllm_admits_only_what_fits_to_the_end() -> None:
    served = serve(at_once([10, 10], [10, 10]), replica("lightllm", 39, times=ONE))
    assert milliseconds(served.scheduled) == [0, 10]
    served = serve(at_once([10, 10], [10, 10]), replica("lightllm", 40, times=ONE))
    assert milliseconds(served.scheduled) == [0, 0]


def test_the_latest_arrival_gives_way_and_computes_again() -> None:
    one = replica("vllm", 4, times=ONE, longest=64)
    served = serve(at_once([32, 32], [4, 3]), one)
    # both prompts fill the cache; the first decode takes both blocks of the second, which comes back at 4
    assert served.restarts.tolist() == [0, 1]
    assert milliseconds(served.first_token) == [1, 1]
    assert milliseconds(served.finished) == [4, 6]
    assert served.computed.tolist() == [32 + 3 + 32 + 33 + 1]


def test_sglang_never_mixes_prompts_and_decodes() -> None:
    table = RequestTable.of([0, 0.0015], [50, 50], [5, 2])
    served = serve(table, replica("sglang", times=ONE))
    # steps end at 1 prompt, 2 decode, 3 a decode that was scheduled at 1, 4 the other prompt, 5 both, 6 the first
    assert milliseconds(served.first_token) == [1, 4]
    assert milliseconds(served.finished) == [6, 5]


@pytest.mark.parametrize(
    ("engine", "options", "first"),
    [
        ("vllm", {}, 4), ("vllm", {"async_scheduling": False}, 3), ("trtllm", {}, 4), ("trtllm", {"overlap": False}, 3),
        ("sglang", {}, 4), ("sarathi", {}, 3), ("orca", {}, 3),
    ],
)  # fmt: skip
def test_engines_that_schedule_ahead_see_who_comes_a_step_later(engine: str, options: dict, first: int) -> None:
    for core in (True, False):
        table = RequestTable.of([0, 0.0015], [5, 5], [8, 1])  # which comes while the second step runs
        served = play(table, [replica(engine, longest=32, times=ONE, **options)], ROUTERS.get("random")(), core=core)
        assert milliseconds(served.first_token) == [1, first], core


def test_who_comes_when_nothing_runs_begins_at_once() -> None:
    table = RequestTable.of([0, 0.0105, 0], [5, 5, 5], [1, 1, 1], follows=[-1, -1, 0], sort=True)
    served = serve(table, replica("vllm", times=ONE))
    assert milliseconds(np.sort(served.first_token)) == [1, 2, 11.5]


def test_sglang_cuts_the_last_prompt_to_the_chunk() -> None:
    served = serve(at_once([60, 60], [1, 1]), replica("sglang", max_tokens=100, times=ONE))
    assert milliseconds(served.first_token) == [1, 2]


def test_sglang_keeps_room_for_a_share_of_what_is_to_come() -> None:
    # 100 tokens: 20 + 40 of the first; a share of 0.7 of its 39 remaining leaves 52.7 of 80, less than 20 + 40
    one = replica("sglang", 100, times=ONE)
    assert milliseconds(serve(at_once([20, 20], [40, 40]), one).scheduled)[1] > 0
    roomy = replica("sglang", 110, times=ONE)
    served = serve(at_once([20, 20], [40, 10]), roomy)
    assert milliseconds(served.scheduled) == [0, 0]


@pytest.mark.parametrize("share", ["1.5", "-0.1"])
def test_a_share_is_of_a_whole(share: str) -> None:
    with pytest.raises(InputError, match="engine sglang: share must be a number from 0 up and up to 1"):
        engine_on(catalog.accelerator("H100-SXM5-80GB"), "sglang", {"share": share})


def test_trtllm_reserves_to_the_end_or_not_at_all() -> None:
    table = at_once([32, 32], [33, 33])  # two blocks each to their ends
    assert milliseconds(serve(table, replica("trtllm", 3, times=ONE)).scheduled) == [0, 33]
    loose = serve(table, replica("trtllm", 3, times=ONE, capacity="max-utilisation"))
    assert milliseconds(loose.scheduled) == [0, 0]
    assert loose.restarts.tolist() == [0, 1]


def test_trtllm_waits_for_the_tokens_of_a_whole_prompt() -> None:
    assert milliseconds(serve(at_once([60, 60], [1, 1]), replica("trtllm", max_tokens=100, times=ONE)).scheduled) == [
        0,
        1,
    ]
    served = serve(at_once([60, 60], [1, 1]), replica("trtllm", max_tokens=100, times=ONE, chunked=True))
    assert milliseconds(served.scheduled) == [0, 0]
    with pytest.raises(InputError, match="capacity must be no-evict or max-utilisation, got 'all'"):
        engine_on(catalog.accelerator("H100-SXM5-80GB"), "trtllm", {"capacity": "all"})


def test_no_policy_is_longer_than_a_hundred_lines() -> None:
    from importlib import import_module
    from inspect import getsource

    for name in ENGINES.names():
        source = getsource(import_module(ENGINES.get(name).__module__))
        assert len(source.splitlines()) <= 100, name


# --- rules ------------------------------------------------------------------------------------------------------------


@dataclass
class Broken(Policy):
    """Does one thing wrong."""

    how: str = ""
    max_tokens: int | None = 64
    done: list[Request] = field(init=False, default_factory=list)

    def schedule(self) -> Batch:
        """First come, first served, and one fault."""
        if self.how == "nobody":
            return []
        if self.how == "not admitted" and self.waiting:
            request = self.waiting[0]
            self.cache.hold(request, request.known)
            return [(request, request.lacks)]
        while self.waiting:
            request = self.waiting[0]
            if self.how != "no blocks":
                self.cache.start(request, request.known)
            self.admit()
            self.done.append(request)
        step = [(request, request.lacks) for request in self.ready()]
        if self.how == "busy":
            return [(request, request.lacks) for request in self.running]
        for request, _ in step:
            self.cache.hold(request, request.known if self.how != "no blocks" else 0)
        if self.how == "twice":
            step = step * 2
        if self.how == "too many":
            step = [(request, tokens + 1) for request, tokens in step]
        if self.how == "none":
            step = [(request, 0) for request, _ in step]
        if self.how == "done":
            step = [(request, 1) for request in self.done]
        return step


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("twice", "put request 0 into a step twice"),
        ("too many", "where it lacks 40"),
        ("none", "gave request 0 0 tokens"),
        ("no blocks", "without the blocks to hold them"),
        ("budget", "gave a step 80 tokens, more than its budget of 64"),
        ("done", "scheduled request 0, which is done"),
        ("nobody", "schedules nobody although 2 requests wait"),
        ("not admitted", "does not run: call admit first"),
    ],
)
def test_a_broken_rule_is_named(how: str, rule: str) -> None:
    with pytest.raises(PolicyError, match=rule):
        serve(
            at_once([40, 40], [1 if how == "done" else 3, 3]),
            replica(Broken(how=how, max_tokens=64 if how == "budget" else None)),
        )


def test_a_busy_request_is_named() -> None:
    with pytest.raises(PolicyError, match="in a step that has not ended"):
        serve(at_once([10], [3]), replica(Broken(how="busy"), times=Linear(stages=2)))


@pytest.mark.parametrize("engine", ENGINES.names())
def test_a_request_that_can_never_run_is_refused(engine: str) -> None:
    size = ENGINES.get(engine).block_tokens
    for prompt, longest in ((2000, 100), (2000, 4096)):
        with pytest.raises(InputError, match=r"request 0 .*(longer than|cannot run)"):
            serve(at_once([prompt], [1]), replica(engine, 1024 // size, longest=longest))


def test_lightllm_has_no_pipeline() -> None:
    with pytest.raises(InputError, match="runs on one pipeline stage, not 2"):
        replica("lightllm", times=Linear(stages=2))


def test_an_engine_sets_itself_up_by_its_device() -> None:
    large, a100 = (catalog.accelerator(name) for name in ("H100-SXM5-80GB", "A100-SXM4-80GB"))
    small = catalog.accelerator("RTX-4090")
    found = [engine_on(device, "vllm", {}) for device in (large, a100, small)]
    assert [(one.max_tokens, one.max_running) for one in found] == [(8192, 1024), (2048, 256), (2048, 256)]
    typed = engine_on(large, "vllm", {"max-tokens": "1000"})
    assert (typed.max_tokens, typed.max_running) == (1000, 1024)
    shares = [static_share(gib * 2.0**30, devices) for gib, devices in ((80, 1), (80, 8), (24, 1), (180, 8))]
    assert shares == [0.875, 0.831, 0.879, 0.822]


def test_sglang_leaves_to_its_steps_what_weights_and_cache_do_not_take() -> None:
    device, model = catalog.accelerator("H100-SXM5-80GB"), served_model("llama-3-8b")
    kept = memory(
        model, device, PRECISIONS["bf16"], "bfloat16", block_tokens=1, tokens=8192, sequences=256, utilisation=0.8,
        static=True,
    )  # fmt: skip
    assert kept.weights + kept.cache == pytest.approx(0.8 * (kept.capacity - kept.context))
    assert kept.weights + kept.cache + kept.activations + kept.context == pytest.approx(kept.capacity)
    assert kept.blocks == kept.cache // 131_072


def test_trtllm_takes_a_share_of_what_weights_and_a_step_leave() -> None:
    device, model = catalog.accelerator("A100-SXM4-80GB"), served_model("qwen3-32b")
    sizes = {"block_tokens": 32, "tokens": 8192, "sequences": 1024}
    kept = memory(model, device, PRECISIONS["bf16"], "bfloat16", utilisation=0.9, free=True, **sizes)
    assert kept.cache == pytest.approx(0.9 * (kept.capacity - kept.weights - kept.activations - kept.context))
    assert kept.cache > 1.5 * memory(model, device, PRECISIONS["bf16"], "bfloat16", **sizes).cache
    assert ENGINES.get("trtllm").free
    assert not ENGINES.get("vllm").free


def test_who_schedules_ahead_hides_the_host() -> None:
    ahead = ENGINES.get("vllm")().host()
    assert ahead.hidden
    assert (ahead.step_s, ahead.sequence_s) == (0, 0)
    assert ahead.gap_s > 0
    runner, synchronous = {"model_runner": 2}, {"async_scheduling": False}
    assert ENGINES.get("vllm")(**runner).host() == NO_HOST
    assert not ENGINES.get("vllm")(**synchronous).host().hidden
