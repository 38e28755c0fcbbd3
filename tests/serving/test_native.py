"""The core in C++ plays as Python does, to the last picosecond, and leaves to Python what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.fleets import MS, Linear, blocks, replica
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.units import MOST_SUM
from triosim.hardware import catalog
from triosim.serving import native, quantiles
from triosim.serving.engines.vllm import Vllm
from triosim.serving.fleet import FleetRun, play
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.kv_cache import EVICTIONS, KVCache, LayerGroups, PrefixCache
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import ENGINES, Batch
from triosim.serving.quantiles import Samples
from triosim.serving.replica import PolicyError, Replica
from triosim.serving.requests import PromptHashes, RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.step_times import StepHost, StepShape, StepTimes

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiler was there at installation")


@cache
def model_times(device: str = "H100-SXM5-80GB", host_ms: float = 0.0, graphs: tuple[int, ...] = ()) -> ModelTimes:
    kernels = ServingKernels(served_model("llama-3-8b"), catalog.accelerator(device), PRECISIONS["bf16"])
    return ModelTimes(kernels, host_s=host_ms / 1e3, gap_s=1e-6, graph_sizes=graphs)


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    """Few requests that may come at once, follow each other and share what their prompts begin with."""
    count = draw(st.integers(1, 24))
    whole = st.lists(st.integers(1, 120), min_size=count, max_size=count)
    span = draw(st.sampled_from([0.0, 0.05, 2.0]))
    arrived = sorted(draw(st.lists(st.floats(0, span), min_size=count, max_size=count)))
    follows = [-1] * count
    if draw(st.booleans()):
        follows = [draw(st.integers(-1, row - 1)) if row else -1 for row in range(count)]
    prompt, output = draw(whole), draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    hashes = None
    if draw(st.booleans()):
        covers, outputs = draw(st.sampled_from([4, 8, 16, 32])), draw(st.booleans())
        rows = []
        for row in range(count):
            tokens = prompt[row] + (output[row] if outputs else 0)
            kind, shared = draw(st.integers(0, 2)), draw(st.integers(0, 30))
            rows.append([place * 10 + (kind if place < shared else 100 + row) for place in range(-(-tokens // covers))])
        hashes = PromptHashes(Ragged.of(rows), covers, outputs)
    session = [draw(st.integers(-1, 3)) for _ in range(count)]
    return RequestTable.of(
        arrived, prompt, output, session=session, follows=follows, hashes=hashes, sort=False
    )  # fmt: skip


ENGINE_OPTIONS: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("vllm"), st.fixed_dictionaries({"max_tokens": st.sampled_from([7, 64, 2048, None])})),
    st.tuples(
        st.just("sarathi"),
        st.fixed_dictionaries(
            {"max_tokens": st.sampled_from([32, 512, None]), "watermark": st.sampled_from([0.0, 0.01, 0.2])}
        ),
    ),
    st.tuples(st.just("orca"), st.just({})),
    st.tuples(
        st.sampled_from(["vllm-2023", "vllm-v0"]),
        st.fixed_dictionaries(
            {"max_tokens": st.sampled_from([200, 4096, None]), "watermark": st.sampled_from([0.0, 0.01, 0.2])}
        ),
    ),
    st.tuples(
        st.just("lightllm"),
        st.fixed_dictionaries(
            {"max_tokens": st.sampled_from([130, 4096, None]), "decode_steps": st.sampled_from([0, 1, 10])}
        ),
    ),
    st.tuples(st.just("faster-transformer"), st.just({})),
    st.tuples(
        st.just("sglang"),
        st.fixed_dictionaries({"max_tokens": st.sampled_from([16, 100, 8192]), "share": st.sampled_from([0.1, 0.7])}),
    ),
    st.tuples(
        st.just("trtllm"),
        st.fixed_dictionaries(
            {
                "capacity": st.sampled_from(["no-evict", "max-utilisation"]),
                "chunked": st.just(True),
                "max_tokens": st.sampled_from([30, 8192]),
            }
        ),
    ),
)


@dataclass(frozen=True)
class Case:
    """How replicas are made, afresh for each run."""

    engine: str
    options: dict[str, Any]
    blocks: int
    tokens: int
    caching: str
    times: StepTimes
    replicas: int
    router: str
    steady: bool
    groups: LayerGroups | None
    states: int

    def fleet(self) -> list[Replica]:
        """As :func:`triosim.serving.pool_replicas.replicas_of` makes it."""
        made = []
        for number in range(self.replicas):
            policy = ENGINES.get(self.engine)(**self.options, block_tokens=self.tokens)
            if not self.steady:
                policy.steady = False  # type: ignore[misc]
            kind = self.caching
            kv = KVCache(self.blocks, self.tokens, self.groups, self.states) if kind == "none" else None
            kv = kv or PrefixCache(self.blocks, self.tokens, kind.startswith("radix"), kind[-3:], self.groups)
            made.append(Replica(number, policy, kv, self.times, 200))
        return made


@st.composite
def cases(draw: st.DrawFn) -> Case:
    engine, options = draw(ENGINE_OPTIONS)
    tokens = draw(st.sampled_from([1, 4, 16]))
    room = draw(st.sampled_from([200, 260, 500, 4000]))
    caching = draw(st.sampled_from(["none", *(f"{how} {which}" for how in ("hash", "radix") for which in EVICTIONS)]))
    known = [Linear(), Linear(MS, 0, 0), model_times(), model_times("A100-SXM4-80GB", 8.0)]
    times = draw(st.sampled_from([*known, model_times(graphs=(1, 3, 11))]))
    running = draw(st.sampled_from([1, 3, 200]))
    windows = [LayerGroups(2, 1, 30), LayerGroups(1, 3, 16), LayerGroups(1, 2, 1)]
    groups = draw(st.sampled_from([None, *windows])) if engine == "vllm" else None
    return Case(
        engine, options | {"max_running": running}, -(-room // tokens), tokens, caching, times,
        draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from(ROUTERS.names())), draw(st.booleans()), groups,
        0 if groups else draw(st.sampled_from([0, 1, 7])),
    )  # fmt: skip


def outcome(table: RequestTable, case: Case, core: bool) -> dict[str, Any] | str:
    """All that can be told of a run, or what it was refused with."""
    fleet = case.fleet()
    try:
        served = play(table, fleet, ROUTERS.get(case.router)(), core=core)
    except PolicyError as error:
        return str(error)
    return told(served) | {"free": [one.cache.free for one in fleet]}


def as_counted(samples: Samples) -> tuple[Any, ...]:
    pairs = zip(*(column.tolist() for column in samples._counted(samples.exact)), strict=True)
    return samples.exact, samples.count, samples.total, samples.least, samples.most, sorted(pairs)


def told(served: FleetRun) -> dict[str, Any]:
    found = {}
    for one in fields(served):
        value = getattr(served, one.name)
        if isinstance(value, Samples):
            value = as_counted(value)
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        if one.name != "requests":
            found[one.name] = value
    return found


def fits(table: RequestTable, case: Case) -> bool:
    ends = table.prompt + table.output
    one = case.fleet()[0]
    covers = table.hashes.tokens if table.hashes is not None else case.tokens
    return not native._refused(table, one, int(np.argmax(ends))) and not (covers % case.tokens and case.tokens % covers)


@given(tables(), cases())
def test_the_core_plays_as_python_does(table: RequestTable, case: Case) -> None:
    if not fits(table, case):
        return
    assert outcome(table, case, core=True) == outcome(table, case, core=False)


@given(
    tables(), cases(), st.sampled_from(["", "lightllm", "vllm-2023", "vllm-v0", "faster-transformer", "by priority"])
)
def test_policies_that_python_has_are_asked_alike(table: RequestTable, case: Case, engine: str) -> None:
    if engine == "by priority":
        ranks = np.arange(len(table)) * 7 % 3
        table, case = replace(table, priority=ranks), replace(case, engine="vllm", options={"priority": True})
    elif engine:
        tokens = 1 if engine == "lightllm" else case.tokens
        case = replace(case, engine=engine, options={}, tokens=tokens, groups=None, states=0)
    expected = outcome(table, case, core=False) if fits(table, case) else None
    if expected is None:
        return
    played = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "ENGINES", ())
        real = native._native.play
        patch.setattr(native, "_native", SimpleNamespace(play=lambda *args: played.append(args) or real(*args)))
        found = outcome(table, case, core=True)
    assert found == expected
    assert len(played) == 1


@pytest.mark.parametrize("engine", native.ENGINES)
def test_the_core_is_used_where_it_can_be(engine: str) -> None:
    table = RequestTable.of(np.linspace(0, 3, 60), np.arange(20, 80), np.arange(1, 61))
    one = replica(engine)
    found = native.play(table, [one], ROUTERS.get("round-robin")())
    assert found is not None
    again = play(table, [replica(engine)], ROUTERS.get("round-robin")(), core=False)
    assert found.rows["finished"].tolist() == again.finished.tolist()
    assert (one.steps, one.busy, one.tokens) == (again.steps[0], [again.busy[0]], again.computed[0])


def test_the_engine_that_is_asked_for_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RequestTable.of([0.0], [20], [3])
    router = ROUTERS.get("round-robin")()
    monkeypatch.setenv("TRIOSIM_ENGINE", "reference")
    assert native.play(table, [replica("vllm")], router) is None
    assert play(table, [replica("vllm")], router).finished[0] > 0
    monkeypatch.setenv("TRIOSIM_ENGINE", "native")
    assert native.play(table, [replica("vllm")], router) is not None
    monkeypatch.setenv("TRIOSIM_ENGINE", "warp")
    with pytest.raises(InputError, match="TRIOSIM_ENGINE=warp: unknown engine"):
        play(table, [replica("vllm")], router)


@pytest.mark.parametrize("engine", native.ENGINES)
@pytest.mark.parametrize("reuse", [False, True])
def test_a_long_run_with_evictions_is_the_same(engine: str, reuse: bool) -> None:
    draw = np.random.default_rng(7)
    prompt, output = draw.integers(50, 900, 300), draw.integers(1, 300, 300)
    table = RequestTable.of(np.cumsum(draw.exponential(1 / 25, 300)), prompt, output)
    longest = blocks(engine, 6000)

    def served(core: bool) -> dict[str, Any]:
        one = replica(engine, longest, reuse=reuse, times=model_times(), longest=1300)
        return told(play(table, [one], ROUTERS.get("round-robin")(), core=core))

    found = served(True)
    assert found == served(False)
    if engine in ("vllm", "sarathi"):
        assert sum(found["restarts"]) > 0


def test_steps_beyond_the_tables_are_asked_for() -> None:
    table = RequestTable.of([0.0, 0.1, 0.2], [40_000, 1_200_000, 30], [4, 3, 2])

    def served(core: bool) -> dict[str, Any]:
        one = replica("vllm", 100_000, times=model_times(), longest=1 << 21, max_tokens=20_000)
        return told(play(table, [one], ROUTERS.get("round-robin")(), core=core))

    assert served(True) == served(False)


def test_samples_are_sketched_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (quantiles, native):
        monkeypatch.setattr(where, "MOST_EXACT", 40)
    draw = np.random.default_rng(3)
    table = RequestTable.of(np.cumsum(draw.exponential(0.02, 80)), draw.integers(5, 200, 80), draw.integers(1, 90, 80))

    def served(core: bool) -> Samples:
        one = replica("sarathi", times=model_times())
        play(table, [one], ROUTERS.get("round-robin")(), core=core)
        return one.gaps

    found, expected = served(True), served(False)
    assert not found.exact
    assert as_counted(found) == as_counted(expected)


class Mine(Vllm):
    """A subclass may do anything."""


def test_what_the_core_does_not_know_is_left_to_python() -> None:
    table = RequestTable.of([0.0, 0.1], [50, 50], [4, 2])
    router = ROUTERS.get("round-robin")

    def played(one: Replica, asked: RequestTable = table) -> bool:
        return native.play(asked, [one], router()) is not None

    assert played(replica("vllm"))
    assert not played(replica(Mine()))
    assert not played(replica("vllm", priority=True))
    assert not played(replica("vllm", times=Linear(stages=2)))
    assert not played(replica("vllm", longest=40))  # Python says which request is too long
    assert not played(replica("vllm"), replace(table, priority=np.array([0, 1])))
    told_of = replica("vllm")
    told_of.on_step = lambda batch, begin, end: None
    assert not played(told_of)


@pytest.mark.parametrize("policy", [Vllm, Mine])
def test_who_is_never_scheduled_is_named_as_ever(policy: type[Vllm]) -> None:
    table = RequestTable.of([0.0], [50], [4])
    with pytest.raises(PolicyError, match="schedules nobody"):
        play(table, [replica(policy(max_tokens=0))], ROUTERS.get("round-robin")())


@pytest.mark.parametrize("router", ["random", "two-choices"])
def test_a_run_that_python_takes_over_is_routed_as_if_it_had_begun_there(router: str) -> None:
    """Tokens that LightLLM counts one by one do not fit into blocks of four: C++ gives up in the midst of it."""
    table = RequestTable.of([0.0] * 16, [74, 56] * 8, [40, 35] * 8)
    case = Case(
        "lightllm", {"max_tokens": 130, "decode_steps": 0, "max_running": 3}, 50, 4, "none", Linear(), 2, router,
        steady=False, groups=None, states=0,
    )  # fmt: skip
    found = outcome(table, case, core=True)
    assert found == outcome(table, case, core=False)
    assert "without the blocks to hold them" in found


class Answers(Vllm):
    """Answers what it was given a function for, once somebody runs."""

    def schedule(self) -> Batch:
        step = super().schedule()
        return WRONG[self.wrong](step) if step else step


WRONG: dict[str, Callable[[Batch], Any]] = {
    "twice": lambda step: step + step,
    "more than it lacks": lambda step: [(request, count + 1) for request, count in step],
    "none": lambda step: [(request, 0) for request, _ in step],
    "a part": lambda step: [(request, count / 2) for request, count in step],
    "three": lambda step: [(request, count, 1) for request, count in step],
    "no list": lambda step: 7,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_broken_rule_is_named_as_python_names_it(wrong: str) -> None:
    def said(core: bool) -> str:
        policy = Answers()
        policy.wrong = wrong  # type: ignore[attr-defined]
        with pytest.raises((PolicyError, ValueError, TypeError)) as error:
            play(RequestTable.of([0.0], [51], [4]), [replica(policy)], ROUTERS.get("round-robin")(), core=core)
        return str(error.value)

    assert said(True) == said(False)
    if wrong == "a part":
        assert "a whole number of tokens" in said(True)


def test_numbers_of_numpy_and_lists_are_pairs_too() -> None:
    class Lists(Vllm):
        def schedule(self) -> Batch:
            return tuple([request, np.int64(count)] for request, count in super().schedule())  # type: ignore[return-value]

    table = RequestTable.of([0.0, 0.001], [51, 20], [4, 7])
    found, expected = (play(table, [replica(one)], ROUTERS.get("round-robin")()) for one in (Lists(), Vllm()))
    assert told(found) == told(expected)


@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize("cache", [KVCache, PrefixCache])
@pytest.mark.parametrize("kind", [np.int64, np.int16, np.uint8])
def test_numbers_of_numpy_do_not_overflow(core: bool, cache: type[KVCache], kind: type) -> None:
    class Own(Vllm):
        def schedule(self) -> Batch:
            while self.waiting and self.cache.start(self.waiting[0], kind(100)):
                self.admit()
            return [
                (request, kind(min(request.lacks, 100)))
                for request in self.running
                if self.cache.hold(request, request.computed + min(request.lacks, 100))
            ]

    class Plain(Own):
        def schedule(self) -> Batch:
            return [(request, int(count)) for request, count in super().schedule()]

    table = RequestTable.of([0.0, 0.001], [40_000, 300], [4, 7])
    made = (Replica(0, own(max_tokens=1000), cache(4000, 16), Linear(), 1 << 16) for own in (Own, Plain))
    found, expected = (play(table, [one], ROUTERS.get("round-robin")(), core=core) for one in made)
    assert told(found) == told(expected)


@pytest.mark.parametrize("core", [True, False])
def test_blocks_are_asked_for_whole_tokens(core: bool) -> None:
    class Half(Vllm):
        def schedule(self) -> Batch:
            for request in self.waiting:
                self.cache.hold(request, 2.5)  # type: ignore[arg-type]
            return []

    with pytest.raises(InputError, match=r"asked to hold 2\.5 tokens: give it a whole number"):
        play(RequestTable.of([0.0], [5], [4]), [replica(Half())], ROUTERS.get("round-robin")(), core=core)


def test_a_run_that_is_too_long_is_refused_whoever_plays() -> None:
    table = RequestTable.of([0.0], [51], [40])
    for policy in (Vllm(), Mine()):
        with pytest.raises(InputError, match="106 days"):
            play(table, [replica(policy, times=Linear(MOST_SUM // 20))], ROUTERS.get("round-robin")())


def test_errors_of_a_policy_come_through() -> None:
    class Fails(Vllm):
        def schedule(self) -> Batch:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        play(RequestTable.of([0.0], [5], [4]), [replica(Fails())], ROUTERS.get("round-robin")())


def test_errors_of_step_times_come_through() -> None:
    class Wrong(Linear):
        def ticks(self, step: StepShape, stage: int) -> int:
            raise RuntimeError("no time")

    with pytest.raises(RuntimeError, match="no time"):
        play(RequestTable.of([0.0], [5], [4]), [replica("vllm", times=Wrong())], ROUTERS.get("round-robin")())


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    table = RequestTable.of(np.arange(3000) / 100, [5] * 3000, [2] * 3000)
    play(table, [replica("vllm")], ROUTERS.get("round-robin")(), progress=lambda done, of: seen.append((done, of)))
    assert seen == [(0, 3000), (1024, 3000), (2048, 3000)]


def test_kernels_of_prompts_are_launched_one_by_one_in_both() -> None:
    draw = np.random.default_rng(5)
    table = RequestTable.of(np.cumsum(draw.exponential(0.01, 60)), draw.integers(5, 900, 60), draw.integers(1, 90, 60))
    kernels = model_times().kernels
    served = {}
    for launch in (0.0, 1e-4):
        times = ModelTimes(kernels, engine_host=StepHost(launch_s=launch))
        runs = [
            play(table, [replica("sglang", times=times)], ROUTERS.get("round-robin")(), core=core)
            for core in (True, False)
        ]
        assert told(runs[0]) == told(runs[1])
        served[launch] = runs[0]
    least = kernels.model.layers * kernels.eager_launches * 10**8 - 10**10  # of 0.1 ms each, but what a decode hides
    assert (served[1e-4].first_token - served[1e-4].scheduled).min() >= least
    assert (served[0.0].first_token - served[0.0].scheduled).min() < least


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "vllm-2023"])
def test_kernels_of_a_prompt_are_launched_while_others_decode(engine: str) -> None:
    """The second prompt comes while the first request decodes; an engine that schedules ahead launches it meanwhile."""
    kernels = model_times().kernels
    launched = (kernels.model.layers * kernels.eager_launches + 5) * 10**8
    times = ModelTimes(kernels, engine_host=StepHost(launch_s=1e-4))
    table = RequestTable.of([0.0, 0.1], [20, 20], [200, 2])
    runs = [
        play(table, [replica(engine, times=times)], ROUTERS.get("round-robin")(), core=core) for core in (True, False)
    ]
    assert told(runs[0]) == told(runs[1])
    took = int(runs[0].first_token[1] - runs[0].scheduled[1])
    decode = times.ticks(StepShape(1, (), 1, 60, 1), 0)
    hidden = engine != "vllm-2023"
    assert took == pytest.approx(launched - decode * hidden, rel=1e-3)
    assert times.after(StepShape(20, ((20, 0),), 0, 0, 1), 10**6) == launched - 10**6


@pytest.mark.parametrize("hidden", [True, False])
def test_the_host_of_an_engine_takes_as_long_in_both(hidden: bool) -> None:
    draw = np.random.default_rng(5)
    table = RequestTable.of(np.cumsum(draw.exponential(0.01, 60)), draw.integers(5, 900, 60), draw.integers(1, 90, 60))
    served = {}
    for seconds in (0.0, 2e-4):
        times = ModelTimes(model_times().kernels, engine_host=StepHost(3e-3 * (seconds > 0), seconds, hidden))
        runs = [
            play(table, [replica("vllm", times=times)], ROUTERS.get("round-robin")(), core=core)
            for core in (True, False)
        ]
        assert told(runs[0]) == told(runs[1])
        served[seconds] = runs[0]
    assert (served[2e-4].finished >= served[0.0].finished).all()
    assert served[2e-4].finished.max() > served[0.0].finished.max()


def test_a_step_takes_the_longer_of_two_or_waits_for_the_host() -> None:
    alone = ModelTimes(model_times().kernels)
    step = StepShape(20, ((4, 0),), 16, 16 * 100, 17)
    device = alone.ticks(step, 0)
    for each, hidden, expected in (
        (1e-6, True, device), (1e-2, True, 17 * 10**10 + 10**9), (1e-5, False, device + 17 * 10**7 + 10**9),
    ):  # fmt: skip
        host = StepHost(1e-3, each, hidden)
        assert ModelTimes(alone.kernels, engine_host=host).ticks(step, 0) == expected
    decodes = StepShape(16, (), 16, 16 * 100, 16)
    waits = ModelTimes(alone.kernels, engine_host=StepHost(0.0, 1e-5, hidden=False))
    assert waits.ticks(decodes, 0) == alone.ticks(decodes, 0) + 16 * 10**7
