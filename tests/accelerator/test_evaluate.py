"""What mappings cost: by hand, and as Timeloop and its published outputs have it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.accelerator.designs import BUFFER, DRAM, MAC, PJ, REGISTERS, THREE, random_mapping
from tests.data import shared
from triosim.accelerator.architecture import Architecture, Compute, Energies, FanOut, Store
from triosim.accelerator.evaluate import FILLING, TIMINGS, as_json, evaluate
from triosim.accelerator.mapping import Level, Loop, LoopMapping, nest_lines
from triosim.accelerator.problem import attention, chained, convolution, einsum, gemm
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

# Outputs[4, 2] += Inputs[4, 6] Weights[6, 2].  DRAM goes through M in two halves, the buffer through K in three parts;
# two instances along X share the columns; registers do two rows and two values of K.
BY_HAND = LoopMapping((
    Level("DRAM", (Loop("M", 2),)),
    Level("Buffer", (Loop("K", 3),)),
    Level("PE", (Loop("N", 2, "x"),)),
    Level("Registers", (Loop("M", 2), Loop("K", 2))),
))  # fmt: skip


def test_counts_by_hand():
    found = evaluate(THREE, gemm(m=4, n=2, k=6), BY_HAND)
    rows = {(a.store, a.tensor): (a.tile, a.reads, a.fills, a.updates) for a in found.accesses}
    assert found.cycles == 2 * 3 * 2 * 2
    assert (found.used, found.instances) == (2, 12)
    # Inputs: each half of the rows is read from DRAM once; both columns need the same inputs, which are sent to both.
    assert rows["DRAM", "Inputs"] == (24, 24, 0, 0)
    assert rows["Buffer", "Inputs"] == (12, 2 * 3 * 4, 24, 0)
    assert rows["Registers", "Inputs"] == (4, 24, 24, 0)
    # Weights do not depend on M: the buffer keeps all 12 through both halves; each instance has its own column.
    assert rows["DRAM", "Weights"] == (12, 12, 0, 0)
    assert rows["Buffer", "Weights"] == (12, 2 * 3 * 2 * 2, 12, 0)
    assert rows["Registers", "Weights"] == (2, 24, 12, 0)
    # Outputs stay in registers through K: updated at each step, read back but for the first of each of its 4.
    assert rows["Registers", "Outputs"] == (2, 24 - 4, 0, 24)
    assert rows["Buffer", "Outputs"] == (4, 0, 0, 8)
    assert rows["DRAM", "Outputs"] == (8, 0, 0, 8)


def test_energy_by_hand():
    found = evaluate(THREE, gemm(m=4, n=2, k=6), BY_HAND)
    rows = {(a.store, a.tensor): a.energy_j / PJ for a in found.accesses}
    assert rows["DRAM", "Inputs"] == pytest.approx(24 / 4 * 100)
    assert rows["Buffer", "Inputs"] == pytest.approx(24 / 2 * 10 + 24 / 2 * 11)
    assert rows["Registers", "Outputs"] == pytest.approx(2 * (20 * 1 + 24 * 1.3))
    assert found.compute_j == pytest.approx(48 * 0.5 * PJ)
    assert dict(found.leakage_j) == pytest.approx({"DRAM": 24 * PJ, "Buffer": 2.4 * PJ, "Registers": 0.48 * PJ})
    assert sum(found.levels.values()) == pytest.approx(found.energy_j)
    assert found.seconds == 24e-9


def test_accesses_are_counted_whole():
    wide = dataclasses.replace(DRAM, words_per_access=5)
    design = dataclasses.replace(THREE, nodes=(wide, *THREE.nodes[1:]))
    found = evaluate(design, gemm(m=4, n=2, k=6), BY_HAND)
    assert found.accesses[0].tensor == "Weights"
    assert found.accesses[0].energy_j == pytest.approx(3 * 100 * PJ), "12 words in accesses of 5 are three"


def test_a_row_that_serves_a_cluster_is_paid_once():
    """Four instances of which two share a row: 4 in use are 2 rows, 1 in use is 1."""
    registers = dataclasses.replace(REGISTERS, cluster_size=2)
    design = Architecture("clusters", (DRAM, FanOut("PE", 4), registers), MAC)
    for used, rows in ((4, 2), (1, 1)):
        mapping = LoopMapping((Level("PE", (Loop("N", used, "x"),)), Level("Registers", (Loop("N", 4 // used),))))
        found = evaluate(design, gemm(m=1, n=4, k=1), mapping)
        weights = next(a for a in found.accesses if (a.store, a.tensor) == ("Registers", "Weights"))
        assert weights.energy_j == pytest.approx(rows * (weights.reads + 1.1 * weights.fills) * PJ)


def test_a_sliding_window_brings_only_what_is_new():
    """A filter of 3 over rows: the first window is 3, each of the 7 others brings its stride."""
    keeps = Store("Window", 64, keeps=("Inputs", "Weights", "Outputs"))
    design = Architecture("slide", (DRAM, keeps), Compute())
    for stride, new in ((1, 1), (2, 2), (3, 3), (4, 3)):
        problem = convolution(p=8, r=3, stride=stride)
        mapping = LoopMapping((Level("DRAM", (Loop("P", 8),)), Level("Window", (Loop("R", 3),))))
        found = evaluate(design, problem, mapping)
        inputs = next(a for a in found.accesses if (a.store, a.tensor) == ("Window", "Inputs"))
        assert inputs.fills == 3 + 7 * new


def test_both_gradients_are_the_same_work():
    for gradient in ("", "input", "weight"):
        problem = convolution(c=4, m=6, p=4, q=4, r=3, s=3, gradient=gradient)
        found = evaluate(THREE, problem, random_mapping(3, dataclasses.replace(THREE, nodes=ROOMY), problem))
        assert found.computes == 4 * 6 * 16 * 9
        updated = {a.tensor for a in found.accesses if a.updates}
        assert updated == {{"": "Outputs", "input": "Inputs", "weight": "Weights"}[gradient]}


ROOMY = (
    DRAM, dataclasses.replace(BUFFER, capacity_words=None), FanOut("PE", 4, 3),
    dataclasses.replace(REGISTERS, capacity_words=None),
)  # fmt: skip


def test_groups_and_heads_are_dimensions_of_their_own():
    assert convolution(c=8, m=8, p=4, q=4, r=3, s=3, groups=4).computes == 8 * 2 * 16 * 9
    scores, values = attention(heads=8, kv_heads=2, queries=4, keys=16, depth=32)
    assert scores.computes == values.computes == 8 * 4 * 16 * 32
    assert scores.words(scores.tensors[2]) == 2 * 16 * 32, "keys of two heads"
    assert [tensor.name for _, tensor in chained((scores, values))] == ["Scores"]


def test_an_einsum_may_be_written_as_text():
    written = einsum("Outputs[n,m,p] += Weights[m,c,r] * Inputs[n,c,2*p+r]", {"n": 1, "m": 4, "c": 2, "p": 5, "r": 3})
    assert written.words(written.tensors[2]) == 2 * (2 * 4 + 3)
    assert written.output.name == "Outputs"


def test_time_of_three_readings():
    """Ten words through a port of one word a cycle take longer than four steps."""
    slow = dataclasses.replace(DRAM, read_bandwidth=0.5)
    single = Architecture("slow", (slow, dataclasses.replace(BUFFER, buffering=1)), MAC)
    double = Architecture("slow", (slow, dataclasses.replace(BUFFER, buffering=2)), MAC)
    problem = gemm(m=4, n=1, k=1)
    mapping = LoopMapping((Level("DRAM", (Loop("M", 4),)),))
    reads = 4 + 1
    assert evaluate(single, problem, mapping, "ideal").cycles == 4
    assert evaluate(single, problem, mapping, "bandwidth").cycles == reads / 0.5
    assert evaluate(single, problem, mapping, "bandwidth").binds == "DRAM read"
    assert evaluate(single, problem, mapping, "double-buffer").cycles == 4 + reads / 0.5
    assert evaluate(double, problem, mapping, "double-buffer").cycles == reads / 0.5 + 2 / 0.5, "the first tile is seen"


@pytest.mark.parametrize("seed", range(20))
def test_a_more_careful_reading_of_time_is_never_shorter(seed):
    slow = tuple(
        dataclasses.replace(node, read_bandwidth=0.7, write_bandwidth=0.6) if isinstance(node, Store) else node
        for node in ROOMY
    )
    design = dataclasses.replace(THREE, nodes=slow)
    problem = convolution(c=4, m=6, p=4, q=4, r=3, s=3)
    mapping = random_mapping(seed, design, problem)
    cycles = [evaluate(design, problem, mapping, timing).cycles for timing in TIMINGS]
    assert cycles == sorted(cycles)
    waiting = evaluate(design, problem, mapping, "double-buffer").binds == FILLING
    assert waiting == (cycles[2] > 2 * cycles[1])


ALL = (Loop("M", 4), Loop("N", 2), Loop("K", 6))


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((Level("DRAM", (Loop("M", 3), *ALL[1:])),), "the loops of M multiply to 3, and its bound is 4"),
        ((Level("Buffer", (Loop("Z", 2),)),), "unknown dimension"),
        ((Level("Cache", (Loop("M", 4),)),), "unknown node"),
        ((Level("PE", (Loop("M", 4),)),), "a fan-out, which has no loops in time"),
        ((Level("DRAM", (Loop("M", 4, "x"),)),), "a store, not a fan-out"),
        ((Level("PE", (Loop("M", 4, "y"), Loop("N", 2, "x"))), Level("DRAM", (Loop("K", 6),))),
         "over 4 along Y, of which there are 3"),
        ((Level("DRAM", ()), Level("DRAM", ())), "mapped twice"),
        ((Level("DRAM", ALL, ("Inputs", "Outputs")), Level("Buffer", (), ("Inputs",)),
          Level("Registers", (), ("Inputs",))), "tensor Weights is kept nowhere"),
        ((Level("DRAM", ALL, ("Inputs", "Outputs")),), "kept by Buffer but not by DRAM"),
        ((Level("DRAM", ALL, ("Everything",)),), "unknown"),
    ],
)  # fmt: skip
def test_mappings_that_cannot_run_are_refused(levels, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        evaluate(THREE, gemm(m=4, n=2, k=6), LoopMapping(levels))


def test_a_tile_over_capacity_names_tensor_and_words():
    mapping = LoopMapping((Level("Registers", (Loop("M", 8), Loop("K", 8))),))
    with pytest.raises(InputError, match="Registers take 80 words, of which Inputs 64, and it holds 64"):
        evaluate(THREE, gemm(m=8, n=1, k=8), mapping)


def test_the_loop_nest_is_drawn():
    lines = nest_lines(BY_HAND, THREE, gemm(m=4, n=2, k=6))
    assert lines[0] == "[DRAM: Weights, Inputs, Outputs]"
    assert lines[1:4] == ["for M in 2", "  [Buffer: Weights, Inputs, Outputs]", "  for K in 3"]
    assert lines[4].strip() == "parallel X PE: N in 2"
    assert lines[-1].strip() == "mac"


CASES = ("alex1", "alex3", "eyeriss_like_default", "r50_3x3_56", "simple_weight_stationary_default")


@pytest.mark.parametrize("case", CASES)
def test_published_outputs_come_out_exactly(case):
    folder = shared("accelerator", case)
    expected = json.loads((folder / "expected.json").read_text())
    found = read([folder / f"{name}.yaml" for name in ("arch", "problem", "mapping", "ERT")])
    assert found.mapping is not None
    design, problem = found.design, found.problem
    result = evaluate(design, problem, found.mapping.mapping(design, problem))
    rows = {(a.store, a.tensor): a for a in result.accesses}
    assert len(rows) == sum(map(len, expected["levels"].values()))
    for store, tensors in expected["levels"].items():
        for tensor, row in tensors.items():
            access = rows[store, tensor]
            for what in ("tile", "instances", "reads", "fills", "updates"):
                assert getattr(access, what) == row[what], (store, tensor, what)
            assert access.energy_j / PJ == pytest.approx(row["energy_pj"], rel=1e-6)
    assert (result.cycles, result.used, result.instances) == (
        expected["cycles"], expected["utilized_instances"], expected["instances"],
    )  # fmt: skip
    assert result.energy_j * 1e6 == pytest.approx(expected["energy_uj_by_rules"], rel=1e-6)


def test_json_holds_what_the_terminal_shows():
    found = as_json(evaluate(THREE, gemm(m=4, n=2, k=6), BY_HAND))
    assert found["cycles"] == 24
    assert json.loads(json.dumps(found)) == found


def test_energies_that_are_none_are_refused():
    for value, words in ((-1.0, "-1"), (float("nan"), "nan")):
        with pytest.raises(InputError, match=f"energy of read is {words}"):
            dataclasses.replace(THREE, nodes=(dataclasses.replace(DRAM, energies=Energies(read=value * PJ)),))
