"""Looking for mappings: what is found is right, the best where all are tried, and the same for a seed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.accelerator.designs import BUFFER, DRAM, MAC, REGISTERS, THREE, energies
from tests.data import shared
from triosim.accelerator import mapper, presets
from triosim.accelerator.architecture import Architecture, FanOut, Store
from triosim.accelerator.designs import MappingSearch, cost
from triosim.accelerator.directives import Constraints, LevelConstraint
from triosim.accelerator.evaluate import costs, evaluate
from triosim.accelerator.mapspace import primes_of, space
from triosim.accelerator.problem import convolution, gemm
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

SMALL = Architecture(
    "small", (DRAM, dataclasses.replace(BUFFER, capacity_words=40, keeps=("Weights", "Inputs", "Outputs")),
              FanOut("PE", 2, 1), dataclasses.replace(REGISTERS, capacity_words=6, keeps=("Weights", "Outputs"))), MAC,
)  # fmt: skip
PROBLEM = gemm(m=4, n=4, k=4)
KEPT = dataclasses.replace(THREE, nodes=tuple(
    dataclasses.replace(node, keeps=("Weights", "Inputs", "Outputs")) if isinstance(node, Store) else node
    for node in THREE.nodes
))  # fmt: skip


def search(design=SMALL, problem=PROBLEM, rules=None, **options):
    return mapper.search(design, problem, rules, **{"budget": 20_000, **options})


def test_the_best_of_all_is_the_best_that_any_search_finds():
    everything = search(searcher="exhaustive", budget=10**6)
    assert everything.finished
    assert everything.proposed == space(SMALL, PROBLEM).size
    for objective in ("energy", "delay", "edp"):
        best = search(searcher="exhaustive", budget=10**6, objective=objective).best
        for searcher in ("genetic", "random"):
            found = search(searcher=searcher, objective=objective, budget=30_000).best
            values = {"energy": "energy_j", "delay": "cycles", "edp": "edp"}
            assert getattr(found, values[objective]) == pytest.approx(getattr(best, values[objective]), rel=1e-12)


def test_a_front_holds_the_best_of_both_and_nothing_that_another_beats():
    """Rows of 16 words are read whole: four units do it in a quarter of the time, and each for itself."""
    rows = dataclasses.replace(
        REGISTERS, capacity_words=6, keeps=("Weights", "Outputs"), words_per_access=16, energies=energies(20)
    )
    buffer = dataclasses.replace(BUFFER, capacity_words=14, keeps=("Inputs", "Outputs"))
    design = Architecture("rows", (DRAM, buffer, FanOut("PE", 4), rows), MAC)

    def every(objective):
        return search(design, gemm(m=4, n=4, k=2), searcher="exhaustive", budget=10**6, objective=objective)

    front = every("pareto").front
    assert len(front) > 1
    assert min(f.energy_j for f in front) == every("energy").best.energy_j
    assert front[0].cycles == every("delay").best.cycles
    for one in front:
        assert not any(o.energy_j <= one.energy_j and o.cycles <= one.cycles for o in front if o is not one)


@pytest.mark.parametrize("searcher", ["genetic", "random"])
def test_what_is_found_costs_what_it_is_said_to(searcher):
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    found = search(KEPT, problem, searcher=searcher).best
    result = evaluate(KEPT, problem, found.mapping)
    assert result.energy_j == pytest.approx(found.energy_j)
    assert result.cycles == found.cycles


def test_one_seed_gives_one_answer_on_any_number_of_processes():
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    one = search(KEPT, problem, seed=3, budget=12_000)
    assert search(KEPT, problem, seed=3, budget=12_000) == one
    assert search(KEPT, problem, seed=3, budget=12_000, workers=2) == one
    assert search(KEPT, problem, seed=4, budget=12_000).curve != one.curve


def test_what_stores_keep_is_searched_where_nobody_says_it():
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    assert len(mapper.free_pairs(THREE, problem, Constraints())) == 6
    one = search(THREE, problem, budget=30_000)
    assert one.best.edp <= search(KEPT, problem, budget=10_000).best.edp
    assert evaluate(THREE, problem, one.best.mapping).cycles == one.best.cycles


def test_an_interruption_keeps_the_best_so_far(monkeypatch):
    calls = 0

    def interrupted(*args):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return costs(*args)

    monkeypatch.setattr(mapper, "costs", interrupted)
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    found = search(KEPT, problem, budget=10**6)
    assert not found.finished
    assert found.best.cycles > 0


def test_a_deadline_ends_the_search():
    found = search(THREE, convolution(c=4, m=6, p=8, q=4), budget=10**7, deadline=0.0)
    assert not found.finished
    assert found.proposed < 10**6


def test_every_random_mapping_fits():
    problem = convolution(c=8, m=16, p=12, q=12, r=3, s=3)
    where = space(THREE, problem)
    random = np.random.default_rng(0)
    factors, genes = where.factors(where.random_genes(random, 300))
    assert (where.excess(factors) == 0).all()
    assert (factors.prod(axis=0) == np.array(problem.bounds)[:, None]).all()
    again, same = where.factors(genes)
    assert (genes == same).all()
    assert (again == factors).all()


def test_one_mapping_is_placed_as_in_a_batch():
    problem = convolution(c=8, m=16, p=12, q=12, r=3, s=3)
    for where in (space(THREE, problem), space(THREE, convolution(c=3, m=6, p=7, q=5))):
        random = np.random.default_rng(1)
        genes = np.array([random.choice(options, 200) for options in where.choices])
        factors, moved = where.factors(genes)
        excess = where.excess(factors)
        assert (excess > 0).any()
        for b in range(200):
            rows, at, beyond = where.placed(genes[:, b].tolist())
            assert rows == factors[..., b].tolist()
            assert at == moved[:, b].tolist()
            assert np.isclose(beyond, excess[b], rtol=1e-12)
        assert all(where.placed(where.random_one(random))[2] == 0 for _ in range(20))
        for _ in range(200):  # a mapping that fits is left as it is, another is made to
            drawn = [int(options[random.integers(0, len(options))]) for options in where.choices]
            _, at, beyond = where.placed(drawn)
            made = where.fitted(drawn)
            assert where.placed(made)[1:] == (made, 0.0)
            assert beyond > 0 or made == at


def test_everything_is_every_mapping_once():
    where = space(SMALL, PROBLEM)
    seen = set()
    for factors, orders in where.everything(500):
        for b in range(factors.shape[2]):
            seen.add((factors[..., b].tobytes(), orders[..., b].tobytes()))
    assert len(seen) == where.size


RULES = Constraints((
    LevelConstraint("PE", "xy", exact=(("K", 1), ("N", 1)), inner=("M",), split=1),
    LevelConstraint("Registers", "", most=(("M", 2),), exact=(("K", 4),)),
    LevelConstraint("Buffer", "", inner=("N", "K")),
))  # fmt: skip


@pytest.mark.parametrize("searcher", ["genetic", "random", "exhaustive"])
def test_constraints_are_kept(searcher):
    problem = gemm(m=8, n=4, k=16)
    where = space(THREE, problem, RULES)
    run = mapper.SEARCHERS.get(searcher)().search(where, np.random.default_rng(1), 10**9)
    proposed = next(run)
    dims = problem.dimensions
    at = {(slot.node, slot.axis): i for i, slot in enumerate(where.nest.slots)}
    factors, orders = proposed.factors, proposed.orders
    for axis in "xy":
        assert (factors[at["PE", axis], dims.index("K")] == 1).all()
    assert (factors[at["PE", "y"]] == 1).all(), "M is the only one, and runs along X"
    assert (factors[at["Registers", ""], dims.index("K")] == 4).all()
    assert (factors[at["Registers", ""], dims.index("M")] <= 2).all()
    buffer = 1
    assert (orders[buffer, -1] == dims.index("N")).all()
    assert (orders[buffer, -2] == dims.index("K")).all()
    assert (factors.prod(axis=0) == np.array(problem.bounds)[:, None]).all()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Constraints((LevelConstraint("Registers", "", exact=(("M", 64), ("N", 64))),)),
         "the capacity of Registers rules all out: the smallest tiles of Weights, Inputs, Outputs take 4224 words"),
        (Constraints((LevelConstraint("Buffer", "", exact=(("M", 3),)),)),
         "multiply to 3, which does not divide its bound 64"),
        (Constraints((LevelConstraint("PE", "xy", exact=(("M", 16),)),)), "PE is to spread M over 16"),
        (Constraints(tuple(LevelConstraint(n, "", exact=(("M", 1),)) for n in ("DRAM", "Buffer", "Registers", "PE"))),
         "leave no place for a factor of 2 of M"),
    ],
)  # fmt: skip
def test_what_rules_all_mappings_out_is_named(rules, words):
    with pytest.raises(InputError, match="no mapping is possible") as refused:
        search(KEPT, gemm(m=64, n=64, k=64), rules)
    assert words in str(refused.value)


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(InputError, match="unknown objective"):
        search(objective="beauty")
    with pytest.raises(InputError, match="unknown mapping search"):
        search(searcher="guess")
    with pytest.raises(InputError, match="more than the budget of 10"):
        search(searcher="exhaustive", budget=10)
    for text in ("0", "0s", "soon"):
        with pytest.raises(InputError, match="budget"):
            mapper.parse_budget(text)
    assert (mapper.parse_budget("2s"), mapper.parse_budget("500")) == (2 * mapper.RATE, 500)


def test_primes():
    assert primes_of(1) == []
    assert primes_of(360) == [5, 3, 3, 2, 2, 2]
    assert primes_of(1_000_003) == [1_000_003]


@pytest.mark.parametrize("case", ["alex1", "alex3", "r50_3x3_56"])
def test_what_is_found_beats_the_mapping_that_was_published(case):
    folder = shared("accelerator", case)
    given = read([folder / f"{name}.yaml" for name in ("arch", "problem", "mapping", "ERT")])
    assert given.mapping is not None
    design, problem = given.design, given.problem
    mapping = given.mapping.mapping(design, problem)
    before = evaluate(design, problem, mapping)
    rules = mapper.with_keeps(Constraints(), mapping, problem)
    found = mapper.search(design, problem, rules, budget=100_000)
    assert found.best.edp < before.energy_j * before.cycles


@pytest.mark.parametrize("objective", ["edp", "pareto"])
def test_a_search_that_ends_early_says_how_much_it_leaves(objective: str) -> None:
    """With too few searches side by side nothing says how far a longer one would come."""
    found = read([presets.known("eyeriss")])
    problem = gemm("product", m=512, n=768, k=3072)
    rules = found.constraints.constraints(found.design, problem) if found.constraints else Constraints()
    short, long = (search(found.design, problem, rules, objective=objective, budget=b) for b in (20, 20_000))
    assert math.isinf(short.spread)
    assert mapper.as_json(short, objective)["spread"] is None
    assert 1 < long.spread < math.inf
    assert math.isinf(short.energy_spread)
    assert 1 < long.energy_spread < math.inf


def test_the_interval_of_an_early_stop_holds_what_a_longer_search_finds(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIOSIM_CACHE", str(tmp_path))
    found = read([presets.known("eyeriss")])
    problem = gemm("product", m=512, n=768, k=3072)
    short, long = (cost(found, problem, MappingSearch(budget=b)) for b in (20, 20_000))
    assert long.cycles < short.cycles
    assert short.cycles / math.exp(short.open) <= long.cycles
    assert short.energy_j / math.exp(short.open_j) <= long.energy_j
