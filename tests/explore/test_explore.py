"""Searchers, fronts, surrogates."""

from __future__ import annotations

import itertools
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.explore.quadratic import SPACE, Quadratic
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.presets import load
from triosim.accelerator.problem import gemm
from triosim.accelerator.reading import Contents
from triosim.accelerator.systolic import Array
from triosim.core.errors import InputError
from triosim.explore.accelerators import DesignExploration
from triosim.explore.exploration import STRATEGIES, Trial, pareto
from triosim.explore.explore import explore
from triosim.explore.mappings import MappingExploration
from triosim.explore.space import ChoiceSpace, VariedValue
from triosim.explore.surrogate import GaussianProcess, learned

SEARCHERS = [name for name in STRATEGIES.names() if find_spec("optuna") or name not in ("tpe", "nsga2")]


def _true_front():
    what = Quadratic()
    return {trial.costs for trial in pareto([what.trial(p) for p in itertools.product(*map(range, SPACE.sizes))])}


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_searchers_repeat_by_seed_and_ask_within_the_space(searcher):
    one, other = (explore(Quadratic(), searcher, 40, seed=3) for _ in range(2))
    assert one == other
    assert 8 <= len(one.trials) <= 40
    assert all(0 <= at < size for trial in one.trials for at, size in zip(trial.point, SPACE.sizes, strict=True))
    assert explore(Quadratic(), searcher, 40, seed=4).trials != one.trials


@pytest.mark.parametrize("searcher", ["genetic", "annealing"])
def test_what_learns_finds_more_of_the_front_than_chance(searcher):
    """Over ten seeds, of the product of both costs the best that is found in 40 of 288 points."""

    def best(name):
        found = [explore(Quadratic(), name, 40, seed).front for seed in range(10)]
        return np.mean([min(np.log(np.prod(trial.costs)) for trial in front) for front in found])

    assert best(searcher) < best("random")


@pytest.mark.parametrize(("searcher", "budget"), [("genetic", 100), ("random", 100), ("annealing", 1000)])
def test_workers_find_what_one_process_finds(searcher, budget):
    told, also = [], []
    one = explore(Quadratic(), searcher, budget, 3, lambda count, trial: told.append((count, trial)))
    two = explore(Quadratic(), searcher, budget, 3, lambda count, trial: also.append((count, trial)), workers=2)
    assert one == two
    assert told == also


def test_a_searcher_that_waits_for_costs_has_no_use_for_workers():
    with pytest.raises(InputError, match="'annealing' needs the costs of each point before"):
        explore(Quadratic(), "annealing", 40, workers=2)
    with pytest.raises(InputError, match="at least 1, got 0"):
        explore(Quadratic(), "genetic", 40, workers=0)


def test_all_of_a_space_is_found_where_the_budget_allows():
    found = explore(Quadratic(), "random", 1000)
    assert len(found.trials) == SPACE.size
    assert {trial.costs for trial in found.front} == _true_front()


def test_what_cannot_be_run_is_told_and_is_never_on_the_front():
    found = explore(Quadratic(), "genetic", 100)
    broken = [trial for trial in found.trials if trial.costs is None]
    assert broken
    assert all(trial.why == "broken cannot be run" for trial in broken)
    with pytest.raises(InputError, match="none of 2 points can be run, the last because: no"):
        pareto([Trial((0,), None, "yes"), Trial((1,), None, "no")])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30))
def test_nothing_on_a_front_is_beaten(costs):
    trials = [Trial((at,), tuple(map(float, one))) for at, one in enumerate(costs)]
    found = [trial.costs for trial in pareto(trials)]
    for one in costs:
        assert any(a <= one[0] and b <= one[1] for a, b in found)
    for (a, b), (c, d) in itertools.permutations(found, 2):
        assert not (a <= c and b <= d)


def test_an_interruption_keeps_what_was_found():
    def stop(count, trial):
        if count == 12:
            raise KeyboardInterrupt

    found = explore(Quadratic(), "genetic", 100, on_trial=stop)
    assert len(found.trials) == 12
    assert not found.finished


# --- what is explored -------------------------------------------------------------------------------------------------


def test_an_array_of_the_closed_form_is_what_evaluate_says():
    space = ChoiceSpace(
        (VariedValue("rows", (8, 16)), VariedValue("columns", (8, 16)), VariedValue("dataflow", ("os", "ws")))
    )
    what = DesignExploration(Contents(array=Array(4, 4)), [gemm(m=64, n=64, k=64)], space, ("cycles", "units"))
    # F (T + R + C - 2) - 1 of 4 x 4 folds of 64 steps with outputs in place on 16 x 16.
    assert what.trial((1, 1, 0)).costs == (16 * (64 + 30) - 1, 256.0)


def test_sizes_of_a_design_are_changed_and_cost_what_they_cost():
    design = load("eyeriss")
    space = ChoiceSpace((VariedValue("PE.x", (7, 14)), VariedValue("global_buffer.capacity", (1024, 65536))))
    names = [node.name for node in design.nodes]
    if "PE" not in names:
        fan = next(node.name for node in design.nodes if hasattr(node, "x"))
        space = ChoiceSpace((VariedValue(f"{fan}.x", (7, 14)), *space.choices[1:]))
    what = DesignExploration(Contents(architecture=design), [gemm(m=32, n=32, k=32)], space, ("cycles", "units"))
    small, large = what.trial((0, 1)).costs, what.trial((1, 1)).costs
    assert large[1] == 2 * small[1]
    with pytest.raises(InputError, match="unknown size of the design"):
        DesignExploration(
            Contents(architecture=design), [gemm(m=2, n=2, k=2)], ChoiceSpace((VariedValue("rows", (1,)),))
        )


def test_a_cost_of_nothing_is_no_cost():
    """Without energies nothing can be compared by energy."""
    what = MappingExploration(load("eyeriss"), gemm(m=16, n=12, k=8))
    trial = what.trial(what.drawn(np.random.default_rng(0)))
    assert trial.costs is None
    assert trial.why.startswith("energy is 0")


def test_a_mapping_costs_what_its_evaluation_says():
    design, problem = Contents(architecture=load("eyeriss")).design, gemm(m=16, n=12, k=8)
    what = MappingExploration(design, problem)
    random = np.random.default_rng(0)
    for _ in range(20):
        trial = what.trial(what.drawn(random))
        assert trial.costs is not None
        found = evaluate(design, problem, what.mapping(what.space.values(trial.point)))
        assert trial.costs == pytest.approx((found.cycles, found.energy_j))
    wrong = [what.trial(what.space.drawn(random)) for _ in range(50)]
    assert any("exceed what is there" in trial.why for trial in wrong)


# --- surrogate --------------------------------------------------------------------------------------------------------


def test_a_gaussian_process_goes_through_what_it_was_shown():
    random = np.random.default_rng(0)
    x = random.random((40, 2))
    y = np.sin(3 * x[:, 0]) + x[:, 1]
    made = GaussianProcess.fitted(x, y)
    assert np.abs(made.predicted(x) - y).max() < 0.02
    fresh = random.random((200, 2))
    assert np.abs(made.predicted(fresh) - (np.sin(3 * fresh[:, 0]) + fresh[:, 1])).mean() < 0.01


def test_errors_are_of_points_that_were_not_shown_and_worse_outside():
    found = learned(Quadratic(), 60, seed=1)
    assert found.inside is not None
    assert found.outside is not None
    assert all(error < 0.25 for error in found.inside.mean)
    assert sum(found.outside.mean) > sum(found.inside.mean)
    assert all(most >= mean / 2 for mean, most in zip(found.inside.mean, found.inside.most, strict=True))


def test_a_surrogate_errs_by_what_it_is_told():
    """The error inside, worked out anew from the points that are left."""
    what = Quadratic()
    found = learned(what, 30, seed=2)
    points = list(itertools.product(range(9), range(6), range(2)))
    true = np.array([what.trial(point).costs for point in points])
    off = np.abs(found.predicted(SPACE, points) / true - 1).mean(axis=0)
    assert found.inside.mean == pytest.approx(off, rel=0.8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ChoiceSpace(()), "nothing is varied"),
        (lambda: ChoiceSpace((VariedValue("a", (1, 1)),)), "give each once"),
        (lambda: ChoiceSpace((VariedValue("a", (1,)), VariedValue("a", (2,)))), "varied twice"),
        (lambda: explore(Quadratic(), "best"), "unknown searcher"),
        (lambda: explore(Quadratic(), budget=0), "the least is 1"),
        (lambda: explore(Quadratic(), seed=-1), "give 0 or more"),
        (lambda: learned(Quadratic(), 3), "the least is 8"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_an_interrupt_before_anything_is_found_is_an_interrupt():
    class Interrupted(Quadratic):
        def evaluated(self, values):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(Interrupted(), "random", 5)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_any_seed_is_taken(searcher):
    one, other = (explore(Quadratic(), searcher, 10, seed=10**14 + 1) for _ in range(2))
    assert one == other
