"""Laws of counting: a walk of the loops gives the same, and what should change nothing changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accelerator.designs import BUFFER, DRAM, REGISTERS, THREE, random_mapping
from tests.accelerator.walk import walk
from tests.exploring import examples
from triosim.accelerator import ragged
from triosim.accelerator.architecture import Architecture, FanOut
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.nest import AccessCounts, LoopNest
from triosim.accelerator.problem import Problem, convolution, gemm

COUNTS = [field.name for field in dataclasses.fields(AccessCounts)]


def small_gemm(chance: random.Random) -> Problem:
    return gemm(m=chance.choice([1, 2, 3, 4, 6, 8]), n=chance.choice([1, 2, 4, 5, 6]), k=chance.choice([1, 2, 4, 6, 9]))


def some_bypass(chance: random.Random, problem: Problem) -> Architecture:
    def keeps() -> tuple[str, ...]:
        return tuple(t.name for t in problem.tensors if chance.random() < 0.7)

    buffer, registers = (dataclasses.replace(store, keeps=keeps()) for store in (BUFFER, REGISTERS))
    return dataclasses.replace(THREE, nodes=(DRAM, buffer, FanOut("PE", 4, 3), registers))


def counted(nest: LoopNest, *mappings: LoopMapping) -> AccessCounts:
    return nest.count(*nest.arrays(mappings))


@pytest.mark.parametrize("part", range(10))
def test_a_walk_of_the_loops_gives_the_same_counts(part):
    for seed in range(100 * part, 100 * part + examples(100)):
        chance = random.Random(seed)
        problem = small_gemm(chance)
        design = some_bypass(chance, problem)
        mapping = random_mapping(seed, design, problem)
        nest = LoopNest.of(design, problem, mapping)
        counts, walked = counted(nest, mapping), walk(design, problem, mapping)
        assert counts.steps[0] == walked.steps
        for s, store in enumerate(design.stores):
            assert counts.instances[s, 0] == walked.instances[store.name]
            for t, tensor in enumerate(problem.tensors):
                for what in ("reads", "fills", "updates") if nest.keeps[s][t] else ():
                    found = getattr(counts, what)[s, t, 0] * counts.instances[s, 0]
                    place = store.name, tensor.name
                    assert found == getattr(walked, what)[place], (seed, *place, what)


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6))
def test_ragged_rules_are_the_perfect_ones_where_factors_divide(seed):
    chance = random.Random(seed)
    problem = small_gemm(chance) if seed % 2 else convolution(
        c=2, m=chance.choice([2, 3]), p=chance.choice([4, 6]), r=3, s=2, stride=chance.choice([1, 2]),
        gradient=chance.choice(["", "input", "weight"]),
    )  # fmt: skip
    design = some_bypass(chance, problem)
    mapping = random_mapping(seed, design, problem)
    nest = LoopNest.of(design, problem, mapping)
    perfect, cut = counted(nest, mapping), ragged.count(nest, *nest.arrays([mapping]))
    for name in COUNTS:
        assert np.array_equal(getattr(perfect, name), getattr(cut, name)), name


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6))
def test_permuting_loops_that_do_not_index_a_tensor_does_not_move_it(seed):
    """Neighbours that do not index a tensor may change places; so may loops of one iteration and anything."""
    chance = random.Random(seed)
    problem = convolution(c=4, m=6, p=4, q=4, r=3, s=3)
    mapping = random_mapping(seed, THREE, problem)
    nest = LoopNest.of(THREE, problem, mapping)
    before = counted(nest, mapping)
    for t, tensor in enumerate(problem.tensors):
        levels = []
        for level in mapping.levels:
            loops: list[Loop] = []
            for indexes, run in itertools.groupby(level.loops, lambda x, t=tensor: x.dimension in t.dimensions):
                neighbours = list(run)
                if not indexes:
                    chance.shuffle(neighbours)
                loops += neighbours
            for dimension in problem.dimensions:
                if dimension not in {x.dimension for x in loops} and level.node != "PE":
                    loops.insert(chance.randint(0, len(loops)), Loop(dimension, 1))
            levels.append(Level(level.node, tuple(loops), level.keeps))
        after = counted(nest, LoopMapping(tuple(levels)))
        for what in ("tile", "reads", "fills", "updates"):
            assert np.array_equal(getattr(before, what)[:, t], getattr(after, what)[:, t]), (tensor.name, what)


def test_many_mappings_side_by_side_are_counted_like_each_alone():
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3, stride=2)
    mappings = [random_mapping(seed, THREE, problem) for seed in range(50)]
    nest = LoopNest.of(THREE, problem)
    together = counted(nest, *mappings)
    for b, mapping in enumerate(mappings):
        alone = counted(nest, mapping)
        for name in COUNTS:
            assert np.array_equal(getattr(together, name)[..., b], getattr(alone, name)[..., 0])


def test_arrays_and_mappings_are_the_same_thing():
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    nest = LoopNest.of(THREE, problem)
    for seed in range(30):
        mapping = random_mapping(seed, THREE, problem)
        factors, orders = nest.arrays([mapping])
        again = nest.mapping(factors[..., 0], orders[..., 0])
        assert evaluate(THREE, problem, again) == dataclasses.replace(evaluate(THREE, problem, mapping), mapping=again)


def ragged_mapping(seed: int, problem: Problem) -> LoopMapping:
    """Loops that exceed the bounds wherever they do not divide."""
    chance = random.Random(seed)
    levels: dict[str, list[Loop]] = {"DRAM": [], "Buffer": [], "PE": [], "Registers": []}
    for dimension, bound in problem.bound.items():
        inner = chance.randint(1, bound)
        middle = chance.randint(1, math.ceil(bound / inner))
        outer = math.ceil(bound / inner / middle)
        for node, count in zip(chance.sample(list(levels), 3), (inner, middle, outer), strict=True):
            if node == "PE" and count > 3:
                node = "Buffer"
            levels[node].append(Loop(dimension, count, chance.choice("xy") if node == "PE" else ""))
    made = []
    for node, loops in levels.items():
        axes = {x.axis for x in loops}
        spread = [loops[0]] if node == "PE" and loops and len(axes) == 1 else loops
        made.append(Level(node, tuple(spread)))
        if len(spread) < len(loops):
            made[0] = Level("DRAM", made[0].loops + tuple(Loop(x.dimension, x.count) for x in loops[1:]))
    return LoopMapping(tuple(made), True)


@settings(max_examples=examples(60))
@given(st.integers(0, 10**6))
def test_a_ragged_mapping_computes_every_point_once(seed):
    problem = gemm(m=7, n=5, k=11)
    mapping = ragged_mapping(seed, problem)
    nest = LoopNest.of(THREE, problem, mapping)
    counts = counted(nest, mapping)
    innermost = len(THREE.stores) - 1
    outputs = [t.output for t in problem.tensors].index(True)
    assert counts.updates[innermost, outputs, 0] * counts.instances[innermost, 0] == pytest.approx(problem.computes)
    assert counts.steps[0] * counts.used[0] >= problem.computes
    for t, tensor in enumerate(problem.tensors):
        if not tensor.output:
            assert counts.reads[0, t, 0] >= problem.words(tensor), "every element is read at least once"


def test_a_ragged_mapping_by_hand():
    """7 rows in tiles of 3: 3 + 3 + 1.  Weights pass by for each of the three, inputs once, and the last is cut off."""
    problem = gemm(m=7, n=2, k=2)
    mapping = LoopMapping(
        (Level("DRAM", (Loop("M", 3),)), Level("Buffer", (Loop("N", 2),)),
         Level("Registers", (Loop("M", 3), Loop("K", 2)))), True,
    )  # fmt: skip
    found = {(a.store, a.tensor): a for a in evaluate(THREE, problem, mapping).accesses}
    assert found["DRAM", "Inputs"].reads == 14
    assert found["Buffer", "Inputs"].fills == 14
    assert found["Buffer", "Weights"].fills == 4, "N lies inside, M does not index them: they stay"
    assert found["Registers", "Weights"].fills == 3 * 4, "both columns again for each of the three tiles of rows"
    assert found["Registers", "Outputs"].updates == 28
    assert found["Buffer", "Outputs"].updates == 14
    assert evaluate(THREE, problem, mapping).cycles == 28
