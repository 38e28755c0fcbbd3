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
from triosim.accelerator.architecture import Architecture, Compute, Energies, Store
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
