"""The best plans are found exactly: bounds hold, and nothing that is left out would have been among them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triosim
from triosim.cli.workloads import load_workload
from triosim.core.errors import InputError
from triosim.fidelity import Fidelity
from triosim.hardware.catalog import accelerator
from triosim.kernels.physical.gemm import TUNED, engines, load, predict
from triosim.kernels.physical.gemm import most as fastest
from triosim.kernels.sustained import most
from triosim.kernels.work.gemm import gemm
from triosim.partition.experts import experts_of
from triosim.partition.rules.context import token_parts
from triosim.plan import Plan
from triosim.search.bounds import PlanBounds
from triosim.search.branch_and_bound import BestPlans, best_plans
from triosim.search.journal import Journal
from triosim.search.outcome import PlanOutcome
from triosim.search.pareto import dominates, pareto_front
from triosim.search.space import PlanSpace
from triosim.search.sweep import sweep
from triosim.trace.blocks import blocks

BATCH = 8
AMONG: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2), "pp": (1, 2, 4), "micro-batch-size": (1, 2), "recompute": ("none", "full"), "zero": (1,),
    "schedule.chunks": (3,), "sequence-parallel": (False,),
}  # fmt: skip


@pytest.fixture(scope="module")
def gpt2() -> triosim.Trace:
    return load_workload("gpt2", seq_len=128, training=True)


@pytest.fixture(scope="module")
def server() -> triosim.System:
    return triosim.system("dgx-a100", 1)


@pytest.fixture(scope="module")
def space(gpt2: triosim.Trace) -> PlanSpace:
    return PlanSpace([8], BATCH, len(blocks(gpt2)), 128, among=AMONG)


class _Memory:
    """Outcomes by plan."""

    def __init__(self, known: Mapping[str, PlanOutcome] | None = None) -> None:
        self.known = dict(known or {})
        self.asked = 0

    def get(self, asked: Mapping[str, Any]) -> PlanOutcome | None:
        return self.known.get(repr(sorted(asked.items())))

    def keep(self, asked: Mapping[str, Any], outcome: PlanOutcome) -> None:
        self.asked += 1
        self.known[repr(sorted(asked.items()))] = outcome


@pytest.fixture(scope="module")
def every(gpt2: triosim.Trace, server: triosim.System, space: PlanSpace) -> _Memory:
    """What each plan gives."""
    memory = _Memory()
    plans = [dict(one.asked) for one in space.candidates()]
    for asked, outcome in zip(plans, sweep(gpt2, server, plans, base=Plan(global_batch_size=BATCH)), strict=True):
        memory.keep(asked, outcome)
    return memory


def _best(workload: triosim.Trace, server: triosim.System, space: PlanSpace, **more: Any) -> BestPlans:
    return best_plans(workload, {8: server}, space, Plan(), **more)


def test_no_plan_is_below_its_bound(
    gpt2: triosim.Trace, server: triosim.System, space: PlanSpace, every: _Memory
) -> None:
    bounds = PlanBounds(gpt2, server, Plan(global_batch_size=BATCH), Fidelity())
    shares, sharper = [], []
    for one in space.candidates():
        bound, outcome = bounds.of(one), every.get(one.asked)
        cut = bounds.of_stages(one)
        assert not isinstance(cut, str)
        assert outcome is not None
        assert outcome.figures is not None
        assert not isinstance(bound, str)
        assert 0 < bound.seconds <= outcome.figures.iteration_time_s, one.asked
        assert 0 < bound.bytes <= outcome.figures.reserved_bytes, one.asked
        if one.asked["pp"] > 1:
            assert 0 < cut.seconds <= outcome.figures.iteration_time_s, one.asked
            assert 0 < cut.bytes <= outcome.figures.reserved_bytes, one.asked
            sharper.append((cut.seconds - bound.seconds, cut.bytes / outcome.figures.reserved_bytes))
        shares.append((bound.seconds / outcome.figures.iteration_time_s, bound.bytes / outcome.figures.reserved_bytes))
    assert max(seconds for seconds, _ in shares) > 0.7  # it says something
    assert max(size for _, size in shares) > 0.7
    assert max(seconds for seconds, _ in sharper) > 0
    assert max(size for _, size in sharper) > 0.5


def test_what_is_said_without_pricing_a_shape_is_below_what_the_shape_says() -> None:
    workload = load_workload("gpt3-1.3b", seq_len=256, training=True)
    bounds = PlanBounds(workload, triosim.system("dgx-a100", 1), Plan(global_batch_size=16), Fidelity())
    among = {"pp": (1, 2), "micro-batch-size": (1, 4), "schedule": ("1f1b",), "zero": (0, 1)}
    shares, earlier = [], []
    for one in PlanSpace([8], 16, len(blocks(workload)), 256, among=among).candidates():
        if one.asked["tp"] in (1, 4):
            bound, floor, plain = bounds.of(one), bounds.at_once(one), bounds.without_recomputation(one)
            assert not isinstance(bound, str)
            assert floor.bytes <= bound.bytes, one.asked
            assert plain.seconds <= bound.seconds, one.asked
            shares.append(floor.bytes / bound.bytes)
            earlier.append(plain.seconds / bound.seconds)
    assert min(shares) > 0.3
    assert max(shares) > 0.9
    assert 0.6 < min(earlier) < 0.9  # what runs again takes its time
    assert max(earlier) == 1.0


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gpt3-1.3b", {"tp": 4, "recompute": "full", "sequence-parallel": True}),
        ("mixtral-8x7b", {"tp": 2, "ep": 4, "recompute": "selective", "sequence-parallel": False}),
    ],
)
def test_equal_blocks_are_read_once(name: str, asked: dict[str, Any]) -> None:
    workload = load_workload(name, seq_len=128, training=True)
    plan = {"cp": 1, "ep": 1, "pp": 1, "dp": 8 // asked["tp"], "micro_batches": 2, "zero": 0, **asked}
    bounds = [
        PlanBounds(workload, triosim.system("dgx-a100", 1), Plan(global_batch_size=8), Fidelity()) for _ in range(2)
    ]
    assert bounds[0].repeats is not None
    bounds[1].repeats = None
    short, whole = (one.shape(plan) for one in bounds)
    assert not isinstance(short, str)
    assert not isinstance(whole, str)
    exact = ("forward_alone_s", "backward_alone_s", "host_s", "weights", "gradients", "states", "kept")
    assert [getattr(short, one) for one in exact] == pytest.approx([getattr(whole, one) for one in exact], rel=1e-12)
    for one in ("forward_s", "pass_s"):
        assert 0.99 * getattr(whole, one) < getattr(short, one) <= getattr(whole, one) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gpt3-1.3b", {"tp": (1, 4), "sequence-parallel": (False, True)}),
        ("mixtral-8x7b", {"tp": (2,), "ep": (2,), "sequence-parallel": (False,), "recompute": ("none",)}),
    ],
)
def test_stages_of_a_short_model_are_those_of_the_whole(name: str, axes: dict[str, Any]) -> None:
    workload = load_workload(name, seq_len=128, training=True)
    among = {"micro-batch-size": (1,), "zero": (0, 1), "recompute": ("none", "full"), **axes}
    bounds = [
        PlanBounds(workload, triosim.system("dgx-a100", 2), Plan(global_batch_size=64), Fidelity()) for _ in range(2)
    ]
    assert bounds[0].repeats is not None
    bounds[1].repeats = None
    plans = PlanSpace([16], 64, len(blocks(workload)), 128, 8 * ("mixtral" in name), among=among).candidates()
    plans = [one for one in plans if one.asked["pp"] > 1][::5]
    assert len(plans) > 4
    for one in plans:
        short, whole = (own.of_stages(one) for own in bounds)
        assert not isinstance(short, str)
        assert not isinstance(whole, str)
        assert short.seconds == pytest.approx(whole.seconds, rel=1e-9), one.asked
        assert short.bytes == pytest.approx(whole.bytes, rel=1e-9), one.asked


@pytest.mark.parametrize(
    ("fields", "lora"),
    [
        ({"quantize": "fp8-delayed", "optimizer": "adam8bit"}, None),
        ({"optimizer": "muon", "overlap": False}, "16"),
        ({"parallelism": ("sequence", "async-tp")}, None),
        ({"offload": ("optimizer",)}, None),
        ({"parallelism": ("hsdp",), "parallelism_options": {"dp-replicate": "2"}}, None),
        ({"parallelism": ("diloco",), "parallelism_options": {"every": "2"}}, None),
        ({"parallelism": ("powersgd",)}, None),
        ({"parallelism": ("zeropp",)}, None),
    ],
)
def test_pruning_changes_nothing_of_what_all_plans_have_in_common(fields: dict[str, Any], lora: str | None) -> None:
    workload, machine = load_workload("gpt2", seq_len=128, training=True, lora=lora), triosim.system("dgx-h100", 1)
    rules = fields.get("parallelism", ())
    among = {"tp": (1, 2), "pp": (1, 2), "micro-batch-size": (1,), "schedule": ("1f1b",), "recompute": ("none", "full"),
             "zero": (3,) if "zeropp" in rules else (0, 2), "sequence-parallel": ("async-tp" in rules,)}  # fmt: skip
    space = PlanSpace([8], BATCH, len(blocks(workload)), 128, among=among)
    known = _Memory()
    for objective in ("memory", "time"):
        how = {"objective": objective, "count": 3, "known": known}
        pruned, whole = (
            best_plans(workload, {8: machine}, space, Plan(**fields), prune=prune, **how) for prune in (True, False)
        )
        assert pruned.best == whole.best
    assert known.asked == len(space.candidates())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_pruning_changes_nothing_where_the_optimizer_multiplies_matrices() -> None:
    """What each rank updates of them differs from plan to plan, and is outlined with all blocks."""
    workload, machine = load_workload("gpt2", seq_len=128, training=True), triosim.system("dgx-h100", 1)
    among = {"tp": (1,), "pp": (2, 4), "micro-batch-size": (2,), "schedule": ("1f1b", "interleaved-1f1b"),
             "recompute": ("none",), "zero": (1, 3), "sequence-parallel": (False,)}  # fmt: skip
    space, known = PlanSpace([8], 4 * BATCH, len(blocks(workload)), 128, among=among), _Memory()
    pruned, whole = (
        best_plans(workload, {8: machine}, space, Plan(optimizer="muon"), count=2, known=known, prune=prune)
        for prune in (True, False)
    )
    assert pruned.best == whole.best
    assert known.asked == len(space.candidates()) > 4


@pytest.mark.parametrize("objective", ["time", "memory", "tokens-per-dollar"])
@pytest.mark.parametrize("whole_front", [False, True])
def test_pruning_changes_nothing(
    gpt2: triosim.Trace, server: triosim.System, space: PlanSpace, every: _Memory, objective: str, whole_front: bool
) -> None:
    how = {"objective": objective, "count": 4, "whole_front": whole_front, "known": every}
    pruned, whole = (_best(gpt2, server, space, prune=prune, **how) for prune in (True, False))
    assert (pruned.best, pruned.front) == (whole.best, whole.front)
    assert whole.predicted == whole.legal == len(space.candidates())
    assert pruned.predicted < whole.predicted
    assert len(pruned.best) == 4
    known = [outcome.figures for outcome in every.known.values() if outcome.figures]
    if objective == "time":
        assert pruned.best[0].figures.iteration_time_s == min(one.iteration_time_s for one in known)
    if objective == "memory":
        assert pruned.best[0].figures.reserved_bytes == min(one.reserved_bytes for one in known)
    if pruned.front is not None:
        costs = [one.costs for one in pruned.front]
        assert not any(dominates(a, b) for a in costs for b in costs if a is not b)


def test_experts_are_searched_exactly(server: triosim.System) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
    small = {**sizes, "num_hidden_layers": 8, "vocab_size": 4096}
    workload = triosim.model("mixtral-8x7b", sequence_length=256, configuration=small)
    among = {"tp": (1, 2), "pp": (1, 2), "micro-batch-size": (1, 4), "recompute": ("none",), "zero": (1,),
             "schedule": ("1f1b", "zb-h1"), "sequence-parallel": (False,)}  # fmt: skip
    space, memory = PlanSpace([8], 32, len(blocks(workload)), 256, experts_of(workload), among), _Memory()
    assert {one.asked["ep"] for one in space.candidates()} == {1, 2, 4, 8}
    whole, pruned = (_best(workload, server, space, count=3, known=memory, prune=prune) for prune in (False, True))
    assert pruned.best == whole.best
    assert whole.predicted == whole.legal
    assert pruned.predicted < whole.predicted


def test_products_are_never_faster_than_is_said(server: triosim.System) -> None:
    device = accelerator("h100")
    size = np.array([512.0, 8192.0, 65536.0])
    m, n, k = (one.ravel() for one in np.meshgrid(size, size, size))
    for one in (server.models[0], device):
        for batch in (1.0, 8.0):
            work = gemm(m, n, k, "bfloat16", batch)
            rate = work.flop() / predict(work, one, load().constants).seconds
            reached = fastest(one, "bfloat16", "tensor")
            assert 0.9 * reached < rate.max() <= reached
            assert most(one, "bfloat16") <= reached < one.peak("bfloat16")
    for engine in engines(device, "float8_e4m3fn"):
        work = gemm(m, n, k, "float8_e4m3fn", tuned=engine == TUNED)
        rate = work.flop() / predict(work, device, load().constants).seconds
        assert rate.max() <= fastest(device, "float8_e4m3fn", engine)


def test_plans_that_cannot_be_outlined_are_predicted(server: triosim.System) -> None:
    small = {"n_positions": 256, "n_layer": 8, "n_embd": 256, "n_head": 8}
    workload, base = triosim.model("gpt2", sequence_length=256, configuration=small), Plan(global_batch_size=32)
    asked = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 8, "schedule": "looped-bfs"}
    (outcome,) = sweep(workload, server, [asked], base=base)
    assert outcome.figures
    plan = base.replaced(tp=2, pp=2, dp=2, micro_batches=8, schedule="looped-bfs", training=True)
    assert outcome.figures.iteration_time_s == triosim.simulate(workload, server, plan).iteration_time_s


def test_what_is_known_is_not_predicted_again(
    gpt2: triosim.Trace, server: triosim.System, space: PlanSpace, every: _Memory
) -> None:
    half = _Memory(dict(list(every.known.items())[::2]))
    resumed, whole = (_best(gpt2, server, space, count=3, known=one) for one in (half, every))
    assert resumed == whole
    assert 0 < half.asked < whole.predicted


class _Killed(Exception):
    """What ends a search in the middle."""


class _Journaled:
    """Outcomes in a journal, of which a search is killed after some more."""

    def __init__(self, journal: Journal[PlanOutcome], left: int) -> None:
        self.journal, self.left = journal, left

    def get(self, asked: Mapping[str, Any]) -> PlanOutcome | None:
        return self.journal.found.get(repr(sorted(asked.items())))

    def keep(self, asked: Mapping[str, Any], outcome: PlanOutcome) -> None:
        self.journal.keep(repr(sorted(asked.items())), outcome)
        self.left -= 1
        if not self.left:
            raise _Killed


def test_a_search_that_is_killed_ten_times_finds_the_same(
    gpt2: triosim.Trace, server: triosim.System, space: PlanSpace, every: _Memory, tmp_path: Path
) -> None:
    path, draws = tmp_path / "plans.journal", random.Random(7)
    whole = _best(gpt2, server, space, count=12, known=every)
    found, kills, known = None, 0, [0]
    while found is None:
        with Journal(path, "one search", PlanOutcome.from_dict) as journal:
            known.append(len(journal.found))
            try:
                left = draws.randint(1, 2) if kills < 10 else -1
                found = _best(gpt2, server, space, count=12, known=_Journaled(journal, left))
            except _Killed:
                kills += 1
        if found is None:  # the last line is cut off anywhere
            written = path.read_bytes()
            path.write_bytes(written[: draws.randint(written[:-1].rindex(b"\n") + 1, len(written))])
    assert kills == 10
    assert (found.best, found.predicted) == (whole.best, whole.predicted)
    assert known[-1] > known[1] == 0


def test_what_becomes_known_while_plans_are_asked_for_is_given_back(
    gpt2: triosim.Trace, server: triosim.System
) -> None:
    known: dict[int, PlanOutcome] = {}

    def plans() -> Iterator[dict[str, Any]]:
        known[0] = PlanOutcome(0, {"tp": 2}, None, "was known")
        yield {"tp": 2}

    assert list(sweep(gpt2, server, plans(), base=Plan(global_batch_size=BATCH), known=known)) == [known[0]]


def test_the_front_of_a_few() -> None:
    assert pareto_front([(2.0, 2.0), (1.0, 3.0), (3.0, 1.0), (2.0, 3.0), (2.0, 2.0)]) == [1, 0, 2]
    assert pareto_front([]) == []


def test_the_space_has_each_plan_once_and_only_legal_ones() -> None:
    found = PlanSpace([64], 48, 12, 2048).candidates()
    seen = {repr(one.asked) for one in found}
    assert len(seen) == len(found) == found[-1].number + 1
    for one in found:
        asked = one.asked
        assert asked["tp"] * asked["pp"] * asked["dp"] == 64
        assert 48 % (asked["dp"] * asked["micro_batches"]) == 0
        assert 12 % one.parts == 0
        assert asked["zero"] < 2 or asked["pp"] == 1
        if asked.get("schedule") == "interleaved-1f1b":
            assert asked["micro_batches"] % asked["pp"] == 0
    assert {one.asked["cp"] for one in found} == {one.asked["ep"] for one in found} == {1}
    assert {one.asked["cp"] for one in PlanSpace([8], 8, 12, 32768).candidates()} == {1, 2, 4, 8}
    assert {one.asked["cp"] for one in PlanSpace([8], 8, 12, 8192).candidates()} == {1, 2}
    assert {one.asked["ep"] for one in PlanSpace([8], 8, 12, 2048, experts=8).candidates()} == {1, 2, 4, 8}
    odd = PlanSpace([8], 8, 12, 2048, experts=6)
    assert {one.asked["ep"] for one in odd.candidates()} == {1, 2}
    assert odd.illegal["ep does not divide the 6 experts of a layer"]


def test_without_sequences_nothing_is_divided_along_them_and_images_by_their_tokens() -> None:
    found = [one.asked for one in PlanSpace([8], 8, 12, token_parts=4).candidates()]
    assert {one["cp"] for one in found} == {1, 2, 4}
    assert not any(one["sequence-parallel"] for one in found)
    assert {one.asked["cp"] for one in PlanSpace([8], 8, 12).candidates()} == {1}


def test_a_diffusion_transformer_is_divided_by_its_tokens_where_that_is_best(server: triosim.System) -> None:
    """The bounds hold for it: the answer is that of predicting every plan."""
    workload = triosim.model("dit-b-2", batch_size=1, configuration={"depth": 4})
    among = {"pp": (1,), "recompute": ("none",), "zero": (0, 2), "tp": (1, 2)}
    space = PlanSpace([8], 2, len(blocks(workload)), token_parts=token_parts(workload), among=among)
    found = _best(workload, server, space)
    plans = [dict(one.asked) for one in space.candidates()]
    assert {plan["cp"] for plan in plans} == {2, 4, 8}  # two samples
    every = [one.figures for one in sweep(workload, server, plans, base=Plan(global_batch_size=2))]
    times = sorted(one.iteration_time_s for one in every if one is not None)
    assert [one.figures.iteration_time_s for one in found.best[:3]] == times[:3]


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(InputError, match="among"):
        PlanSpace([8], 8, 12, among={"dp": (1,)})
    with pytest.raises(InputError, match="batch must be at least 1"):
        PlanSpace([8], 0, 12)


def test_no_legal_plan_is_said(gpt2: triosim.Trace, server: triosim.System) -> None:
    with pytest.raises(InputError, match=r"no plan is legal: .*does not divide among the replicas"):
        _best(gpt2, server, PlanSpace([8], 3, 12, 128, among={"tp": (1,), "pp": (1,)}))
