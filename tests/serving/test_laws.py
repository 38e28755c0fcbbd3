"""Laws that any engine keeps to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from tests.serving.fleets import MS, Linear, blocks, replica, serve
from triosim.serving.fleet import FleetRun, play
from triosim.serving.metrics import measure
from triosim.serving.policy import ENGINES
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS

NAMES = ENGINES.names()


@st.composite
def tables(draw: st.DrawFn, most: int = 60) -> RequestTable:
    """Some requests, close enough together to queue."""
    n = draw(st.integers(1, most))
    gaps = draw(st.lists(st.integers(0, 30), min_size=n, max_size=n))
    prompt = draw(st.lists(st.integers(1, 200), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    return RequestTable.of(np.cumsum(gaps) * 1e-3, prompt, output)


def conserved(served: FleetRun, table: RequestTable) -> None:
    """Every token is computed once, but the last of each request, and those that were lost again."""
    assert (served.first_token >= served.scheduled).all()
    assert (served.scheduled >= served.arrived).all()
    assert (served.finished >= served.first_token).all()
    assert ((served.finished == served.first_token) == (table.output == 1)).all()
    needed = int((table.prompt + table.output - 1).sum())
    recomputed = measure(served).figures["recomputed_tokens"]
    assert recomputed == int(served.computed.sum()) + served.hit_tokens - needed
    assert recomputed >= 0
    assert (recomputed == 0) == (served.restarts.sum() == 0)
    assert served.gaps.count == int(table.output.sum()) - len(table)
    assert served.gaps.total == int((served.finished - served.first_token).sum())


@pytest.mark.parametrize("engine", NAMES)
@settings(max_examples=examples(40))
@given(table=tables(), running=st.integers(1, 8))
def test_tokens_and_blocks_are_conserved(engine: str, table: RequestTable, running: int) -> None:
    one = replica(engine, blocks(engine, 8000), longest=256, max_running=running)
    conserved(serve(table, one), table)
    assert one.cache.free == one.cache.blocks
    assert one.outstanding == 0


@pytest.mark.parametrize("engine", ["vllm", "vllm-2023", "sarathi", "sglang", "lightllm", "trtllm"])
@settings(max_examples=examples(40))
@given(table=tables(), tokens=st.integers(272, 640))
def test_they_are_when_the_cache_is_too_small(engine: str, table: RequestTable, tokens: int) -> None:
    options = {"capacity": "max-utilisation"} if engine == "trtllm" else {}
    one = replica(engine, blocks(engine, tokens), longest=256, **options)
    conserved(serve(table, one), table)
    assert one.cache.free == one.cache.blocks


@pytest.mark.parametrize("engine", ["vllm", "vllm-2023", "sarathi", "sglang", "trtllm"])
def test_such_caches_are_too_small(engine: str) -> None:
    """What the law above is worth: requests do lose their blocks."""
    options = {"capacity": "max-utilisation"} if engine == "trtllm" else {}
    table = RequestTable.of(np.zeros(40), np.full(40, 50), np.full(40, 60))
    served = serve(table, replica(engine, blocks(engine, 640), longest=256, **options))
    assert served.restarts.sum() > 0


def test_trtllm_without_eviction_evicts_nobody() -> None:
    table = RequestTable.of(np.zeros(40), np.full(40, 50), np.full(40, 60))
    assert serve(table, replica("trtllm", 20, longest=256)).restarts.sum() == 0


@pytest.mark.parametrize("engine", NAMES)
@settings(max_examples=10)
@given(table=tables(20), stages=st.integers(2, 3))
def test_they_are_in_a_pipeline(engine: str, table: RequestTable, stages: int) -> None:
    if not ENGINES.get(engine).pipelines:
        return
    one = replica(engine, blocks(engine, 960), longest=256, times=Linear(stages=stages))
    conserved(serve(table, one), table)
    assert one.cache.free == one.cache.blocks


def _columns(served: FleetRun) -> list:
    names = (
        "scheduled",
        "first_token",
        "finished",
        "waited",
        "restarts",
        "cached",
        "steps",
        "busy",
        "computed",
        "padding",
    )
    return [getattr(served, name).tolist() for name in (*names, "peak_blocks")] + [
        served.gaps.quantiles([0.1, 0.5, 0.9])
    ]


@pytest.mark.parametrize("engine", [name for name in NAMES if ENGINES.get(name).steady])
@settings(max_examples=examples(80))
@given(
    table=tables(), tokens=st.integers(272, 1200), reuse=st.booleans(), number=st.integers(1, 3),
    router=st.sampled_from(["least-outstanding", "prefix-aware", "round-robin"]),
)  # fmt: skip
def test_steady_decoding_played_at_once_changes_nothing(
    engine: str, table: RequestTable, tokens: int, reuse: bool, number: int, router: str
) -> None:
    runs = []
    for steady in (True, False):
        options = {"capacity": "max-utilisation"} if engine == "trtllm" else {}
        fleet = [
            replica(engine, blocks(engine, tokens), longest=256, reuse=reuse, number=n, **options)
            for n in range(number)
        ]
        for one in fleet:
            one.steady &= steady
        runs.append(_columns(serve(table, *fleet, router=router)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("engine", NAMES)
@settings(max_examples=10)
@given(table=tables())
def test_littles_law_holds_exactly(engine: str, table: RequestTable) -> None:
    """The integral of the number in the system is the sum of the times in it, whole picoseconds."""
    served = serve(table, replica(engine, blocks(engine, 8000), longest=256))
    times = np.concatenate([served.arrived, served.finished])
    change = np.concatenate([np.ones(len(table), np.int64), -np.ones(len(table), np.int64)])
    order = np.argsort(times, kind="stable")
    inside = np.cumsum(change[order])[:-1]
    assert int((inside * np.diff(times[order])).sum()) == int((served.finished - served.arrived).sum())


@pytest.mark.parametrize("engine", NAMES)
def test_constant_requests_at_constant_intervals_never_wait(engine: str) -> None:
    """D/D/1 below capacity: all have the time of one alone; above it, each waits for so much more."""
    alone = serve(RequestTable.of([0.0], [100], [5]), replica(engine, blocks(engine, 8000), max_running=1))
    service = int(alone.finished[0])
    for gap in (service, service + MS):
        seconds = np.arange(50) * gap / 1e12
        served = serve(
            RequestTable.of(seconds, np.full(50, 100), np.full(50, 5)),
            replica(engine, blocks(engine, 8000), max_running=1),
        )
        assert (served.finished - served.arrived == service).all()
    gap = service - MS // 2
    served = serve(
        RequestTable.of(np.arange(50) * gap / 1e12, np.full(50, 100), np.full(50, 5)),
        replica(engine, blocks(engine, 8000), max_running=1),
    )
    assert (served.finished - served.arrived == service + np.arange(50) * (MS // 2)).all()


def test_one_at_a_time_with_random_arrivals_is_m_d_1() -> None:
    """Mean waiting is rho S / (2 (1 - rho)); the standard error comes from batches of the run."""
    n, rho = 40_000, 0.7
    times = Linear(base=MS, token=0, key=0)
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1e-3 / rho, n))
    served = serve(RequestTable.of(arrivals, np.full(n, 8), np.ones(n)), replica("vllm", max_running=1, times=times))
    waits = (served.scheduled - served.arrived) / MS
    batches = waits.reshape(40, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(len(batches))
    assert abs(waits.mean() - rho / (2 * (1 - rho))) < 3 * error
    assert error < 0.1


def test_orca_is_sarathi_where_no_prompt_is_cut() -> None:
    table = RequestTable.of(np.arange(40) * 0.011, np.full(40, 90), np.full(40, 6))
    orca, sarathi = (serve(table, replica(name, 8000)) for name in ("orca", "sarathi"))
    assert (orca.finished == sarathi.finished).all()
    assert (orca.first_token == sarathi.first_token).all()


@settings(max_examples=examples(30))
@given(table=tables(), size=st.integers(17, 60))
def test_where_all_fit_to_their_end_none_is_evicted(table: RequestTable, size: int) -> None:
    """A cache for all at once never runs out, nor does any cache where a request is admitted only if it fits whole."""
    whole = int(-(-(table.prompt + table.output) // 16).sum())
    assert not serve(table, replica("vllm", max(whole, 17), longest=256)).restarts.any()
    assert not serve(table, replica("trtllm", blocks("trtllm", 16 * size), longest=256)).restarts.any()


def test_more_cache_can_evict_more() -> None:
    """Who is admitted needs room for the prompt, not for the answer: twice the cache admits requests that then grow out
    of it, where before they waited for each other."""
    prompt, output = [*[1] * 11, 18, 98, 130, 179, 1, 1], [*[1] * 11, 16, 16, 16, 15, 15, 1]
    table = RequestTable.of(np.zeros(17), prompt, output)
    few, more = (serve(table, replica("vllm", n, longest=256)) for n in (17, 34))
    assert few.restarts.sum() == 0
    assert more.restarts.sum() == 1


@settings(max_examples=examples(20))
@given(table=tables(), front=st.integers(1, 40), engine=st.sampled_from(["vllm", "orca"]))
def test_clients_see_tokens_later_by_what_is_before_the_engine(table: RequestTable, front: int, engine: str) -> None:
    def played(later: int) -> FleetRun:
        return play(table, [replica(engine, longest=256)], ROUTERS.get("random")(), front=later * MS)

    near, far = played(0), played(front)
    assert (far.first_token - near.first_token == front * MS).all()
    assert (far.finished - near.finished == front * MS).all()
    assert (far.arrived == table.arrived).all()
    assert (far.scheduled == near.scheduled).all()


def test_clients_ask_again_when_they_have_their_answer() -> None:
    table = RequestTable.of([0, 0.5, 0.5], [5, 5, 5], [3, 3, 3], follows=[-1, 0, 1])
    one = play(table, [replica("vllm")], ROUTERS.get("random")(), front=7 * MS)
    assert (one.arrived[1:] == one.finished[:-1] + 500 * MS).all()
    assert len(set((one.finished - one.arrived).tolist())) == 1
