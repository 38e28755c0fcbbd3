"""Zeros: by hand, as Sparseloop's published outputs have it, and the same as dense where there are none."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.accelerator.designs import MAC, THREE, random_mapping
from tests.command import run
from tests.data import shared
from triosim.accelerator import density as densities
from triosim.accelerator import sparse
from triosim.accelerator.architecture import Architecture, Compute, Energies, FanOut, Store
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import Operand, einsum, gemm
from triosim.accelerator.representation import FORMATS, RepresentationFormat
from triosim.accelerator.sparse import ActionOptimization, Sparse
from triosim.core.errors import InputError

DATA = Path(__file__).parent / "data"
PJ = 1e-12
PLAIN = Architecture(
    "plain", (Store("Buffer", None, 8, energies=Energies(1.95808 * PJ, 1.88608 * PJ, 1.88608 * PJ, 0.001606 * PJ)),),
    Compute("mac", 8, Energies(compute=0.315 * PJ)),
)  # fmt: skip
DOT = einsum("Z[M] += A[K] * B[K]", {"K": 16, "M": 1}, "dot", {"A": 0.25})
ONE_PASS = LoopMapping((Level("Buffer", (Loop("K", 16),)),))


def test_a_dot_product_that_gates_zeros():
    """Of 16 steps 4 have an A that is not zero; Z is read back for all but the first of them."""
    spared = (ActionOptimization("Buffer", "B", ("A",), False), ActionOptimization("Buffer", "Z", ("A",), False))
    rules = Sparse(spared=spared, compute="gating")
    found = sparse.evaluate(PLAIN, DOT, ONE_PASS, rules)
    rows = {a.tensor: a for a in found.accesses}
    assert (found.cycles, found.computes) == (16, 4)
    assert (rows["A"].reads, rows["B"].reads, rows["B"].spared_reads, rows["B"].spared) == (16, 4, 12, "gated")
    assert (rows["Z"].reads, rows["Z"].spared_reads, rows["Z"].updates, rows["Z"].spared_updates) == (3, 12, 4, 12)
    by_hand = 16 * 1.95808 + 4 * 1.95808 + 3 * 1.95808 + 4 * 1.88608 + 4 * 0.315 + 16 * 0.001606
    assert found.energy_j / PJ == pytest.approx(by_hand)
    assert found.energy_j / PJ == pytest.approx(53.866, rel=1e-5), "Sparseloop's published output"


def test_a_dot_product_that_skips_zeros_of_coordinates():
    rules = Sparse((RepresentationFormat("Buffer", "A", ("CP",)),), (ActionOptimization("Buffer", "B", ("A",), True),
                                                        ActionOptimization("Buffer", "Z", ("A",), True)))  # fmt: skip
    found = sparse.evaluate(PLAIN, DOT, ONE_PASS, rules)
    rows = {a.tensor: a for a in found.accesses}
    assert (found.cycles, found.computes) == (4, 4)
    assert (rows["A"].tile, rows["A"].reads, rows["A"].metadata_reads) == (4, 4, 4)
    assert (rows["B"].reads, rows["B"].spared) == (4, "skipped")


def energies(read, write, metadata_read, metadata_write, leak):
    return Energies(read * PJ, write * PJ, write * PJ, leak * PJ, metadata_read * PJ, metadata_write * PJ)


def test_two_compressed_matrices():
    """The worked example of Sparseloop's exercises: 8 x 8 x 8, A a quarter full, B half."""
    stores = (
        Store("Outside", None, 8, 4, energies=energies(2.290882, 2.694173, 0.373885, 0.726887, 0.002378)),
        Store("Buffer", None, 8, 1, keeps=("B", "Z"),
              energies=energies(1.060977, 0.988977, 0.553457, 0.517458, 0.003217)),
    )  # fmt: skip
    design = Architecture("spMspM", stores, PLAIN.compute)
    problem = einsum("Z[M,N] += A[M,K] * B[N,K]", {"M": 8, "N": 8, "K": 8}, "spMspM", {"A": 0.25, "B": 0.5})
    mapping = LoopMapping((Level("Buffer", (Loop("M", 8), Loop("K", 8), Loop("N", 8))),))
    ranks = ("UOP", "CP")
    rules = Sparse(
        (RepresentationFormat("Outside", "A", ranks), RepresentationFormat("Outside", "B", ranks),
        RepresentationFormat("Buffer", "B", ranks)),
        (ActionOptimization("Buffer", "A", ("B",), True), ActionOptimization("Buffer", "B", ("A",), True),
         ActionOptimization("Buffer", "Z", ("A", "B"), True)),
    )  # fmt: skip
    found = sparse.evaluate(design, problem, mapping, rules)
    rows = {(a.store, a.tensor): a for a in found.accesses}
    assert (found.cycles, found.computes) == (64, 64)
    a = rows["Outside", "A"]
    assert (a.reads, a.spared_reads, a.metadata_reads) == (64, 64, 36 + 64), "its reads pass the buffer by"
    b = rows["Buffer", "B"]
    assert (b.reads, b.spared_reads, b.fills, b.metadata_reads, b.metadata_fills) == (64, 192, 32, 18 + 64, 9 + 32)
    z = rows["Buffer", "Z"]
    assert (z.reads, z.spared_reads, z.updates, z.spared_updates) == (56, 392, 64, 448)
    expected = {("Outside", "A"): 74.04, ("Outside", "B"): 33.66, ("Outside", "Z"): 43.11, ("Buffer", "B"): 166.15,
                ("Buffer", "Z"): 122.71}  # fmt: skip
    for place, picojoules in expected.items():
        assert rows[place].energy_j / PJ == pytest.approx(picojoules, abs=0.005)
    assert found.energy_j / PJ == pytest.approx(460.182, rel=1e-3)


# Reference outputs of Accelergy-Project/timeloop-accelergy-exercises (MIT), sparseloop/02.2.2, 03.2.1, 03.2.2, 03.2.3.
BACKING = Store("Outside", None, 8, 4, metadata_bits=4, metadata_width=4,
                energies=energies(2.268273, 2.671563, 0.356362, 0.709364, 9e-5))  # fmt: skip


def test_tiled_compressed_matrices():
    """02.2.2: B comes in four tiles, whose offsets are a rank more outside."""
    buffer = Store("Buffer", 64, 8, 1, 5, 5, keeps=("B", "Z"), metadata_bits=4, metadata_width=4,
                   energies=energies(0.567914, 0.495914, 0.296154, 0.260154, 0.000611))  # fmt: skip
    design = Architecture("tiled", (BACKING, buffer), PLAIN.compute)
    problem = einsum("Z[M,N] += A[M,K] * B[N,K]", {"M": 8, "N": 8, "K": 8}, "spMspM", {"A": 0.25, "B": 0.5})
    mapping = LoopMapping((
        Level("Outside", (Loop("N", 4),)), Level("Buffer", (Loop("K", 8), Loop("N", 2), Loop("M", 8))),
    ))  # fmt: skip
    rules = Sparse(
        (RepresentationFormat("Outside", "A", ("UOP", "CP")),
         RepresentationFormat("Outside", "B", ("UOP", "UOP", "CP")),
         RepresentationFormat("Buffer", "B", ("UOP", "CP"))),
        (ActionOptimization("Buffer", "A", ("B",), True), ActionOptimization("Buffer", "B", ("A",), True),
         ActionOptimization("Buffer", "Z", ("A", "B"), True)),
    )  # fmt: skip
    found = sparse.evaluate(design, problem, mapping, rules)
    rows = {(a.store, a.tensor): a for a in found.accesses}
    assert (found.cycles, found.computes) == (64, 64)
    b = rows["Outside", "B"]
    assert (b.tile, b.reads, b.metadata_tile, b.metadata_reads) == (32, 32, 5 + 4 * 9 + 32, 5 + 36 + 32)
    assert rows["Outside", "A"].metadata_reads == 36 + 64
    b = rows["Buffer", "B"]
    assert (b.tile, b.reads, b.spared_reads, b.fills, b.metadata_reads, b.metadata_fills) == (8, 64, 192, 32, 136, 68)
    assert b.energy_j / PJ == pytest.approx(110.18, abs=0.005)
    assert rows["Buffer", "Z"].energy_j / PJ == pytest.approx(63.54, abs=0.005)
    assert rows["Outside", "Z"].energy_j / PJ == pytest.approx(42.75, abs=0.005)


def test_a_convolution_of_run_lengths_whose_accesses_are_partly_empty():
    """03.2.1: of 3 weights 0.43 are left, one or two: each is an access of four words, where 1.29 / 4 would do."""
    buffer = Store("Buffer", 64, 8, 1, metadata_bits=4, metadata_width=4,
                   energies=energies(0.567914, 0.495914, 0.108523, 0.096313, 0.000459))  # fmt: skip
    problem = einsum("Outputs[Q] += Weights[S] * Inputs[S+Q]", {"S": 3, "Q": 9}, "conv1d", {"Weights": 0.43})
    mapping = LoopMapping((Level("Buffer", (Loop("Q", 9), Loop("S", 3))),))
    rules = Sparse(
        (RepresentationFormat("Outside", "Weights", ("RLE",)), RepresentationFormat("Buffer", "Weights", ("RLE",))),
        (ActionOptimization("Buffer", "Inputs", ("Weights",), True),
         ActionOptimization("Buffer", "Outputs", ("Weights",), True)),
    )  # fmt: skip
    found = sparse.evaluate(Architecture("line", (BACKING, buffer), PLAIN.compute), problem, mapping, rules)
    rows = {(a.store, a.tensor): a for a in found.accesses}
    assert (found.cycles, found.computes) == (12, 12)
    w = rows["Buffer", "Weights"]
    assert (w.reads, w.fills, w.metadata_reads, w.metadata_fills) == (12, 2, 12, 2), "9 passes over 1.29, one of it"
    o = rows["Buffer", "Outputs"]
    assert (o.reads, o.spared_reads, o.updates, o.spared_updates) == (7, 11, 12, 15)
    by_hand = 1 * (1 / (3 * 0.43 / 4)) * 2.268273 + 2 * 0.356362
    assert rows["Outside", "Weights"].energy_j / PJ == pytest.approx(by_hand)
    assert by_hand == pytest.approx(7.75, abs=0.005), "the published output"
    assert found.energy_j / PJ / found.computes == pytest.approx(4.82, abs=0.005)


@pytest.mark.parametrize(
    ("spread", "kept", "cost", "weights", "published"),
    [
        (1, ("Inputs",), (1.990514, 1.918514, 0.20536, 0.181388, 0.001736), (36, 188), (198.71, 395.32, 5.92)),
        (4, ("Inputs", "Outputs"), (1.043454, 0.971454, 0.296154, 0.260154, 0.001014), (45 + 180, 188),
         (None, 238.91, None)),
    ],
)  # fmt: skip
def test_output_channels_of_a_convolution(spread, kept, cost, weights, published):
    """03.2.2, where outputs pass the buffer by, and 03.2.3 on four units: weights pass by, 187.2 of 432 are left."""
    nodes = (BACKING, FanOut("units", spread), Store("Buffer", 256, 8, 1, keeps=kept, energies=energies(*cost)))
    problem = einsum("Outputs[M,Q] += Weights[M,S] * Inputs[S+Q]", {"M": 16, "S": 3, "Q": 9}, "conv1d+oc",
                     {"Weights": 0.4333})  # fmt: skip
    inner = (Loop("Q", 9), Loop("S", 3)) + ((Loop("M", 16),) if spread == 1 else ())
    mapping = LoopMapping((Level("Outside", (Loop("M", 4),) if spread > 1 else ()),
                           Level("units", (Loop("M", 4, "x"),) if spread > 1 else ()),
                           Level("Buffer", inner)))  # fmt: skip
    ranks = ("UOP", "UOP", "RLE") if spread > 1 else ("UOP", "RLE")
    rules = Sparse(
        (RepresentationFormat("Outside", "Weights", ranks),),
        (ActionOptimization("Buffer", "Inputs", ("Weights",), True),
         ActionOptimization("Buffer", "Outputs", ("Weights",), True)),
    )  # fmt: skip
    found = sparse.evaluate(Architecture("oc", nodes, PLAIN.compute), problem, mapping, rules)
    rows = {(a.store, a.tensor): a for a in found.accesses}
    assert (found.cycles, found.computes) == (188 / spread, 188)
    w = rows["Outside", "Weights"]
    assert (w.tile, w.reads, w.spared, w.metadata_reads) == (21, 188, "", sum(weights))
    i = rows["Buffer", "Inputs"]
    assert (i.reads * spread, i.spared_reads * spread, i.fills) == (188, 244, 11)
    assert i.energy_j / PJ == pytest.approx(published[1], abs=0.005)
    if spread > 1:
        o = rows["Buffer", "Outputs"]
        assert (o.reads, o.spared_reads, o.updates, o.spared_updates) == (31, 41, 47, 61)
        assert o.energy_j / PJ == pytest.approx(312.02, abs=0.005)
        return
    o = rows["Outside", "Outputs"]
    assert (o.reads, o.updates) == (288, 432), "not kept in the buffer"
    assert w.energy_j / PJ == pytest.approx(published[0], abs=0.005)
    assert found.energy_j / PJ / found.computes == pytest.approx(published[2], abs=0.005)


GATED = Sparse(spared=(ActionOptimization("Registers", "Weights", ("Inputs",), False),))


@pytest.mark.parametrize(("rate", "cycles"), [(None, 32), (1.0, 32), (2.0, 16), (4.0, 8)])
def test_gated_accesses_pass_their_port(rate, cycles):
    """As sparseloop/04.2.1 has it: 8 of 32 happen, all 32 go through the port, one a step where none is stated."""
    stores = (Store("Outside", energies=energies(1, 1, 0, 0, 0)),
              Store("Registers", None, read_bandwidth=rate, energies=energies(1, 1, 0, 0, 0),
                    keeps=("Weights",)))  # fmt: skip
    problem = gemm(m=1, n=4, k=8).sparse({"Inputs": 0.25})
    mapping = LoopMapping((Level("Registers", (Loop("N", 4), Loop("K", 8))),))
    found = sparse.evaluate(Architecture("gated", stores, MAC), problem, mapping, GATED)
    row = next(a for a in found.accesses if (a.store, a.tensor) == ("Registers", "Weights"))
    assert (found.computes, row.reads, row.spared_reads, row.spared) == (8, 8, 24, "gated")
    assert found.cycles == cycles


def test_what_stays_is_read_unless_all_that_it_meets_is_zero():
    """A word of A stays in the registers while N runs over four words of B, and goes to two units with others of B."""
    stores = (Store("Outside", energies=energies(1, 1, 0, 0, 0)), FanOut("units", 2),
              Store("Registers", None, energies=energies(1, 1, 0, 0, 0), keeps=("A",)))  # fmt: skip
    problem = einsum("Z[M,N] += A[M,K] * B[N,K]", {"M": 8, "N": 8, "K": 8}, "stays", {"B": 0.1})
    mapping = LoopMapping((
        Level("Outside", (Loop("M", 8), Loop("K", 8), Loop("N", 4))), Level("units", (Loop("N", 2, "x"),)),
    ))  # fmt: skip
    for at, reads in (("Registers", 64 * 4 * 0.1), ("Outside", 64 * 0.8)):
        rules = Sparse(spared=(ActionOptimization(at, "A", ("B",), True),))
        found = sparse.evaluate(Architecture("stays", stores, MAC), problem, mapping, rules)
        row = next(a for a in found.accesses if (a.store, a.tensor) == (at, "A"))
        assert row.reads == math.ceil(reads), "64 words, to both units at once"
        inner = next(a for a in found.accesses if (a.store, a.tensor) == ("Registers", "A"))
        assert inner.fills == (64 if at == "Registers" else 52), "what is not handed down is missing below"


def test_of_two_ways_to_spare_the_one_that_saves_most_is_taken():
    problem = einsum("Z[M] += A[K] * B[K]", {"K": 16, "M": 1}, "either", {"A": 0.25, "B": 0.5})
    options = (ActionOptimization("Buffer", "B", ("A",), True, 1), ActionOptimization("Buffer", "A", ("B",), True, 1))
    found = sparse.evaluate(PLAIN, problem, ONE_PASS, Sparse(spared=options))
    reads = {a.tensor: a.reads for a in found.accesses}
    assert (reads["A"], reads["B"]) == (16, 4), "A is empty more often than B"
    both = sparse.evaluate(PLAIN, problem, ONE_PASS, Sparse(spared=tuple(
        dataclasses.replace(option, choice=0) for option in options)))  # fmt: skip
    reads = {a.tensor: a.reads for a in both.accesses}
    assert (reads["A"], reads["B"]) == (8, 4)
    assert (found.computes, both.computes) == (4, 2)


def test_compressed_words_are_unpacked_where_they_arrive():
    """sparseloop/04.2.1 and .3: a buffer that keeps every word unpacks what it is filled with."""
    cost = Energies(1 * PJ, 1 * PJ, 1 * PJ, decompression_count=0.5 * PJ, compression_count=0.25 * PJ)
    stores = (Store("Outside", energies=Energies(0, 0, 0)), Store("Buffer", None, energies=cost))
    mapping = LoopMapping((Level("Buffer", (Loop("K", 16),)),))
    problem = einsum("Z[M] += A[K] * B[K]", {"K": 16, "M": 1}, "packed", {"A": 0.25, "Z": 0.5})
    rules = Sparse((RepresentationFormat("Outside", "A", ("CP",)), RepresentationFormat("Outside", "Z", ("CP",))))
    found = sparse.evaluate(Architecture("packed", stores, MAC), problem, mapping, rules)
    rows = {(a.store, a.tensor): a for a in found.accesses}
    assert rows["Buffer", "A"].energy_j / PJ == pytest.approx(16 + 16 + 16 * 0.5)
    assert rows["Buffer", "B"].energy_j / PJ == pytest.approx(16 + 16)
    assert rows["Buffer", "Z"].energy_j / PJ == pytest.approx(15 + 16 + 1 * 0.25)


@pytest.mark.parametrize("density", [0.05, 0.3, 0.7])
def test_words_that_lie_anywhere_are_what_draws_show(density):
    """Words, run lengths and accesses of four words, of tiles of 4 x 6 out of 8 x 12."""
    tensor = Operand("A", ((("M", 1),), (("K", 1),)), density=density, distribution="hypergeometric")
    random = np.random.default_rng(1)
    filled = math.ceil(96 * density)
    accesses = words = 0.0
    draws = 4_000
    for _ in range(draws):
        whole = np.zeros(96, bool)
        whole[:filled] = True
        tile = random.permutation(whole).reshape(8, 12)[:4, :6]
        words += tile.sum()
        accesses += math.ceil(tile.sum() / 4)
    assert densities.access_ratio(tensor, 24, 96, 4) == pytest.approx(accesses / (words / 4), rel=0.03)
    outcomes = densities.occupancies(tensor, 24, 96)
    assert sum(p for _, p in outcomes) == pytest.approx(1)
    assert sum(n * p for n, p in outcomes) == pytest.approx(words / draws, rel=0.05)
    design = Architecture(
        "anywhere", (Store("Outside"), Store("Buffer", None, 8, energies=energies(1, 1, 0, 0, 0))), MAC
    )
    problem = einsum("Z[M] += A[M,K] * B[K]", {"M": 8, "K": 12}, "anywhere")
    problem = dataclasses.replace(problem, tensors=tuple(tensor if t.name == "A" else t for t in problem.tensors))
    mapping = LoopMapping((
        Level("Outside", (Loop("M", 2), Loop("K", 2))), Level("Buffer", (Loop("M", 4), Loop("K", 6))),
    ))  # fmt: skip
    rules = Sparse((RepresentationFormat("Buffer", "A", ("UOP", "RLE")),))
    row = next(a for a in sparse.evaluate(design, problem, mapping, rules).accesses
               if (a.store, a.tensor) == ("Buffer", "A"))  # fmt: skip
    assert row.metadata_tile - 5 == pytest.approx(words / draws, abs=1), "offsets of 4 rows, and the words"


@pytest.mark.parametrize("seed", range(30))
def test_without_zeros_it_is_the_dense_evaluation(seed):
    problem = gemm(m=8, n=6, k=12)
    mapping = random_mapping(seed, THREE, problem)
    if sum(loop.count for loop in mapping.level("Registers").loops) > 12:
        return
    rules = Sparse(
        tuple(RepresentationFormat("Buffer", t.name, ("U",)) for t in problem.tensors),
        tuple(ActionOptimization("Registers", t.name, ("Inputs", "Weights"), bool(seed % 2)) for t in problem.tensors),
        "skipping" if seed % 3 else "gating",
    )
    found = sparse.evaluate(THREE, problem, mapping, rules)
    dense = evaluate(THREE, problem, mapping)
    assert found.energy_j == pytest.approx(dense.energy_j, rel=1e-12)
    assert (found.cycles, found.computes) == (dense.cycles, dense.computes)
    for one, other in zip(found.accesses, dense.accesses, strict=True):
        assert (one.reads, one.fills, one.updates, one.tile) == (other.reads, other.fills, other.updates, other.tile)
        assert one.spared_reads == one.spared_updates == one.metadata_tile == 0


@pytest.mark.parametrize("density", [0.1, 0.5])
def test_the_chance_that_a_tile_is_empty_is_what_draws_show(density):
    tensor = Operand("A", ((("K", 1),),), density=density, distribution="hypergeometric")
    random = np.random.default_rng(0)
    whole, tile = 40, 6
    filled = round(density * whole)
    draws = [(random.permutation(whole)[:tile] < filled).any() for _ in range(20_000)]
    assert densities.chance(tensor, tile, whole) == pytest.approx(np.mean(draws), abs=0.015)
    assert densities.chance(tensor, 1, whole) == density
    assert densities.chance(tensor, whole, whole) == 1
    structured = dataclasses.replace(tensor, distribution="fixed-structured")
    assert densities.chance(structured, tile, whole) == min(1, density * tile)


def test_room_is_checked_for_the_expected_tile_and_told_of_the_fullest():
    store = Store("Buffer", 20, 8, energies=PLAIN.stores[0].energies)
    design = Architecture("tight", (Store("DRAM", kind="DRAM"), store), MAC)
    mapping = LoopMapping((Level("Buffer", (Loop("K", 16),)), Level("DRAM", (Loop("M", 4),))))
    problem = einsum("Z[M] += A[M,K] * B[K]", {"K": 16, "M": 4}, "dot", {"A": 0.125, "B": 0.125})
    stored = (RepresentationFormat("Buffer", "A", ("CP",)), RepresentationFormat("Buffer", "B", ("CP",)))
    assert sparse.evaluate(design, problem, mapping, Sparse(stored)).overfull == ()
    anywhere = dataclasses.replace(
        problem, tensors=tuple(dataclasses.replace(t, distribution="hypergeometric") for t in problem.tensors)
    )
    found = sparse.evaluate(design, anywhere, mapping, Sparse(stored))
    assert found.overfull == (), "the fullest tiles are 8 of A, all that it has, 2 of B and 1 of Z"
    fuller = anywhere.sparse({"A": 0.3})
    assert sparse.evaluate(design, fuller, mapping, Sparse(stored)).overfull == ()
    fullest = anywhere.sparse({"A": 0.5, "B": 0.5})
    assert sparse.evaluate(design, fullest, mapping, Sparse(stored)).overfull == ("Buffer",)
    with pytest.raises(InputError, match="expected tiles at Buffer take 25 words, of which B 16, and it holds 20"):
        sparse.evaluate(design, fullest, mapping, Sparse(stored[:1]))
    narrow = dataclasses.replace(design, nodes=(design.nodes[0], dataclasses.replace(store, metadata_words=3)))
    with pytest.raises(InputError, match="metadata at Buffer takes 4 words, and it holds 3"):
        sparse.evaluate(narrow, problem, mapping, Sparse(stored))


def test_metadata_of_every_format():
    problem = einsum("Z[M] += A[M,K] * B[K]", {"M": 4, "K": 8}, "fibres", {"A": 0.25})
    mapping = LoopMapping((Level("Buffer", (Loop("M", 4), Loop("K", 8))),))
    words = {  # payloads of the innermost rank are the data; a rank that no loop is left for costs nothing
        ("UOP", "CP"): 5 + 8, ("UOP", "UOP"): 5, ("CP", "RLE"): 4 + 4 + 8, ("U", "B"): 32, ("B", "B"): 4 + 4 + 32,
        ("CP",): 8, ("UOP", "UOP", "RLE"): 5 + 4 * 9,
    }  # fmt: skip
    assert {rank for ranks in words for rank in ranks} == set(FORMATS)
    for ranks, expected in words.items():
        found = sparse.evaluate(PLAIN, problem, mapping, Sparse((RepresentationFormat("Buffer", "A", ranks),)))
        assert found.accesses[1].tensor == "A"
        assert found.accesses[1].metadata_tile == expected, ranks


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Sparse((RepresentationFormat("Cache", "A", ("CP",)),)), "unknown store"),
        (Sparse((RepresentationFormat("Buffer", "Q", ("CP",)),)), "unknown tensor"),
        (Sparse(spared=(ActionOptimization("Buffer", "A", ("Q",), True),)), "unknown tensor"),
    ],
)
def test_names_that_are_not_there_are_refused(rules, words):
    with pytest.raises(InputError, match=words):
        sparse.evaluate(PLAIN, DOT, ONE_PASS, rules)


def test_the_command_minds_zeros_where_a_file_says_so(tmp_path):
    zeros = tmp_path / "zeros.toml"
    zeros.write_text('[[zeros]]\nat = "registers"\nskip = "Inputs"\non = ["Weights"]\n'
                     '[[zeros]]\nat = "registers"\ntensor = "Weights"\nformat = ["CP"]\n')  # fmt: skip
    files = [DATA / f"{name}.yaml" for name in ("arch_03", "problem", "mapping_03")]
    done = run("accelerator", "evaluate", *files, "--also", zeros, "--json", "-")
    found = json.loads(done.stdout)["sparse"]
    assert found["cycles"] == 32
    assert found["computes"] == 256
    assert "with zeros minded" in run("accelerator", "evaluate", *files, "--also", zeros).stdout
    mapped = run("accelerator", "map", *files[:2], "--also", files[2], "--also", zeros, "--budget", "2000").stdout
    assert "with zeros minded" in mapped
    assert "the search minded no zeros" in mapped


def test_published_outputs_come_out(capsys):
    from validation.judge import accelerator as judge

    rows = judge.zeros(shared("accelerator", "sparse.json"))
    assert len(rows) >= 4
    assert all(row["exact"] for row in rows), rows
    assert all(math.isclose(row["energy_pj"], row["energy_pj_expected"], rel_tol=1e-3) for row in rows)
