"""Our own TOML, and what is written in other tools' formats: read again, it is the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.accelerator.designs import THREE, random_mapping
from tests.accelerator.timeloop_text import architecture_text, problem_text
from triosim.accelerator import writing
from triosim.accelerator.architecture import Architecture, Energies, FanOut, Store
from triosim.accelerator.energies import FACTOR, completed, multiply_add_j, sram_j
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import convolution, einsum, gemm
from triosim.accelerator.reading import Contents, read
from triosim.core.errors import InputError

DESIGN = """
name = "little"
clock = "200 MHz"
technology = "45nm"
[[node]]
store = "DRAM"
words_per_access = 4
[[node]]
store = "buffer"
capacity = "64 KiB"
bandwidth = 16
keeps = ["Inputs", "Outputs"]
pj = { read = 6.1, write = 6.2, update = 6.3 }
[[node]]
fan_out = "PE"
x = 14
y = 12
[[node]]
store = "registers"
words = 64
[[node]]
compute = "mac"
"""
PROBLEM = """
[[problem]]
kind = "convolution"
c = 3
m = 32
p = 8
q = 14
r = 3
s = 3
stride = [2, 1]
densities = { Weights = 0.5 }
"""
MAPPING = """
[[level]]
at = "DRAM"
loops = "M4 P8"
[[level]]
at = "PE"
x = "Q14"
y = "S3 C3"
[[level]]
at = "registers"
loops = "M=8 R=3"
keeps = ["Weights", "Outputs"]
"""


def written(folder: Path, **texts: str) -> Contents:
    paths = []
    for name, text in texts.items():
        path = folder / name.replace("_", ".")
        path.write_text(text)
        paths.append(path)
    return read(paths)


def test_twenty_lines_of_toml_are_a_design(tmp_path):
    found = written(tmp_path, design_toml=DESIGN, problem_toml=PROBLEM, mapping_toml=MAPPING)
    design, problem = found.design, found.problem
    assert design.clock_hz == 200e6
    assert [n.name for n in design.nodes] == ["DRAM", "buffer", "PE", "registers"]
    buffer = design.stores[1]
    assert (buffer.capacity_words, buffer.read_bandwidth, buffer.keeps) == (32768, 16, ("Inputs", "Outputs"))
    assert buffer.energies.update == pytest.approx(6.3e-12)
    expected = convolution(c=3, m=32, p=8, q=14, r=3, s=3, stride=(2, 1)).sparse({"Weights": 0.5})
    assert problem == expected
    assert found.mapping is not None
    mapping = found.mapping.mapping(design, problem)
    assert mapping == LoopMapping((
        Level("DRAM", (Loop("M", 4), Loop("P", 8))),
        Level("PE", (Loop("C", 3, "y"), Loop("S", 3, "y"), Loop("Q", 14, "x"))),
        Level("registers", (Loop("M", 8), Loop("R", 3)), ("Weights", "Outputs")),
    ))  # fmt: skip
    assert evaluate(design, problem, mapping, "ideal").cycles == 4 * 8 * 8 * 3


def test_other_problems_in_toml(tmp_path):
    text = """
[[problem]]
einsum = "O[m,p] += W[m,r] * I[2*p+r]"
bounds = { m = 4, p = 8, r = 3 }
[[problem]]
kind = "gemm"
m = 2
n = 3
k = 4
[[problem]]
kind = "attention"
heads = 4
queries = 8
keys = 8
depth = 16
"""
    found = written(tmp_path, problems_toml=text).problems
    assert [p.name for p in found] == ["O", "gemm", "attention scores", "attention values"]
    assert found[0].words(found[0].tensors[2]) == 2 * 7 + 3
    with pytest.raises(InputError, match="one problem is needed"):
        _ = written(tmp_path, problems_toml=text).problem


BAD = {
    DESIGN.replace("clock", "clok"): "unknown key .*clok",
    DESIGN.replace("200 MHz", "fast"): "is no clock",
    DESIGN.replace('fan_out = "PE"', 'fan_out = "DRAM"'): "two nodes are called 'DRAM'",
    DESIGN.replace("x = 14", "x = 0"): "a fan-out of 0 by 12",
    DESIGN.replace("read = 6.1", "read = -6.1"): "the energy of read is -6.1 pJ",
    DESIGN.replace("read = 6.1", "reed = 6.1"): "unknown key .*reed",
    DESIGN.replace("words = 64", 'words = 64\ncapacity = "1 KiB"'): "both words and capacity",
    DESIGN.replace("words = 64", "words = 6.5"): "is no whole number",
    DESIGN.replace("bandwidth = 16", "bandwidth = 0"): "read_bandwidth is 0.0: give words for each cycle",
    DESIGN.replace('[[node]]\ncompute = "mac"\n', ""): "has no compute unit",
    DESIGN + '[[node]]\nstore = "below"\n': "stands below the compute unit",
    PROBLEM.replace('"convolution"', '"dance"'): "unknown kind of problem",
    PROBLEM.replace("m = 32", "m = 0"): "dimension M is 0",
    PROBLEM.replace("stride = [2, 1]", "stride = [2]"): "neither a whole number nor two",
    PROBLEM.replace("Weights = 0.5", "Weights = 1.5"): "density 1.5 is not above 0",
    PROBLEM.replace("Weights = 0.5", "Weight = 0.5"): "unknown tensor",
    '[problem]\nkind = "gemm"\nm = 2\n': "a gemm needs n",
    '[problem]\neinsum = "O = A + B"\nbounds = {m = 1}\n': "is no einsum",
    '[problem]\neinsum = "O[m] += A[k] * B[m]"\nbounds = {m = 1}\n': "unknown dimension",
    '[[level]]\nat = "DRAM"\nloops = "M four"\n': "cannot be read",
    "[[node\n": "not valid TOML",
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_used_is_one_sentence(text, tmp_path):
    with pytest.raises(InputError, match=BAD[text]) as refused:
        written(tmp_path, file_toml=text)
    assert "file.toml" in str(refused.value)


SIDE_BY_SIDE = Architecture(
    "beside", (
        Store("DRAM", None, 16, 4, kind="LPDDR4", energies=Energies(1e-10, 1.1e-10, 1.2e-10, 0.0)),
        FanOut("PE", 4, 2),
        Store("weights", 32, 16, 2, keeps=("Weights",), aside=1, kind="regfile",
              energies=Energies(1e-12, 2e-12, 3e-12)),
        Store("sums", 16, 32, keeps=("Outputs",), aside=1, buffering=2, cluster_size=4, energies=Energies(read=1e-13),
              read_bandwidth=2.5),
    ), clock_hz=5e8, technology="16nm",
)  # fmt: skip


@pytest.mark.parametrize("design", [THREE, SIDE_BY_SIDE])
def test_yaml_that_is_written_is_read_as_the_same(design, tmp_path):
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3, stride=2).sparse({"Weights": 0.25})
    found = written(
        tmp_path, arch_yaml=architecture_text(design, problem), ert_yaml=writing.ert(design),
        problem_yaml=problem_text(problem),
    )  # fmt: skip
    assert found.problem == problem
    assert found.architecture is not None
    read_again = found.architecture.with_energies(dict(found.energies))
    assert read_again.name == design.name
    rules = found.constraints.constraints(read_again, problem).keeps if found.constraints else ()
    for one, other in zip(read_again.nodes, design.nodes, strict=True):
        if isinstance(one, Store) and isinstance(other, Store):
            assert dataclasses.replace(one, energies=Energies(), keeps=None) == dataclasses.replace(
                other, energies=Energies(), keeps=None
            )
            for field in dataclasses.fields(Energies):
                values = getattr(one.energies, field.name), getattr(other.energies, field.name)
                assert values[0] == values[1] or values[0] == pytest.approx(values[1], rel=1e-15)
            if other.keeps is not None:
                assert {t for s, t, kept in rules if s == other.name and kept} == set(other.keeps)
        else:
            assert one == other
    assert read_again.clock_hz == pytest.approx(design.clock_hz)


@pytest.mark.parametrize("seed", range(25))
def test_mappings_that_are_written_are_read_as_the_same(seed, tmp_path):
    problem = convolution(c=4, m=6, p=8, q=4, r=3, s=3)
    mapping = random_mapping(seed, THREE, problem)
    expected = evaluate(THREE, problem, mapping)
    for name, write in (("m_yaml", writing.timeloop_mapping), ("m_toml", writing.toml_mapping)):
        spread = [x.dimension for x in mapping.level("PE").loops]
        if name == "m_yaml" and len(set(spread)) < len(spread):
            with pytest.raises(InputError, match="along both X and Y of PE"):
                write(mapping, THREE, problem)
            continue
        found = written(tmp_path, **{name: write(mapping, THREE, problem)})
        assert found.mapping is not None
        again = found.mapping.mapping(THREE, problem)
        assert dataclasses.replace(evaluate(THREE, problem, again), mapping=mapping) == expected
        for node in THREE.nodes:
            loops = [x for x in mapping.level(node.name).loops if x.count > 1]
            order = sorted(loops, key=lambda x: x.axis) if isinstance(node, FanOut) else loops
            found_loops = list(again.level(node.name).loops)
            assert (sorted(found_loops, key=lambda x: x.axis) if isinstance(node, FanOut) else found_loops) == order


def test_statistics_have_the_fields_that_scripts_look_for():
    problem = gemm(m=4, n=2, k=6)
    found = evaluate(THREE, problem, LoopMapping((Level("DRAM", tuple(Loop(d, n) for d, n in problem.bound.items())),)))
    text = writing.timeloop_stats(found, THREE)
    for words in ("=== Registers ===", "Scalar reads (per-instance)", "Cycles: 48", "Computes = 48", "fJ/Compute",
                  "Utilization: 8.33%", f"Energy: {found.energy_j * 1e6:.2f} uJ"):  # fmt: skip
        assert words in text


def test_energies_that_nobody_states_are_assumed_and_widen_the_interval():
    design = Architecture(
        "bare", (Store("DRAM", kind="DRAM", words_per_access=4), FanOut("PE", 2), Store("buffer", 4096, 16, 4),
                 Store("r", 4, kind="regfile")), technology="45nm",
    )  # fmt: skip
    made = completed(design)
    assert [a.component for a in made.assumed] == ["DRAM", "buffer", "r", "mac"]
    assert made.stores[0].energies.read == pytest.approx((1300e-12 * 2600e-12) ** 0.5)
    assert made.stores[1].energies.read == pytest.approx(10e-12), "8 KB, 64 bits: a row of the table"
    assert made.stores[2].energies.write == made.compute.energies.compute
    problem = gemm(m=4, n=2, k=6)
    mapping = LoopMapping((Level("buffer", tuple(Loop(d, n) for d, n in problem.bound.items())),))
    found = evaluate(made, problem, mapping)
    low, high = found.interval_j
    assert low < found.energy_j < high
    only = found.levels["DRAM"]
    assert high - (found.energy_j - only) * FACTOR == pytest.approx(only * 2**0.5)
    exact = evaluate(THREE, problem, mapping_of(problem))
    assert exact.interval_j == (pytest.approx(exact.energy_j),) * 2


def mapping_of(problem):
    return LoopMapping((Level("DRAM", tuple(Loop(d, n) for d, n in problem.bound.items())),))


def test_energies_follow_size_bits_and_process():
    assert sram_j(32768, 64, 45) == pytest.approx(20e-12)
    assert sram_j(32768, 128, 7) == pytest.approx(17e-12)
    assert sram_j(16384, 64, 45) == pytest.approx((10 * 20) ** 0.5 * 1e-12)
    assert 8.5e-12 < sram_j(32768, 64, 16) < 20e-12
    assert multiply_add_j(8, 45) == pytest.approx(0.2e-12 + 0.1e-12 * (0.03 / 0.1) ** 0.5)
    assert multiply_add_j(16, 45) > multiply_add_j(16, 7)


def test_an_einsum_of_its_own_runs_on_any_design():
    problem = einsum("O[m,p] += W[m,r] * I[2*p+r]", {"m": 4, "p": 8, "r": 3})
    assert evaluate(THREE, problem, mapping_of(problem)).computes == 96


def test_what_a_design_keeps_follows_the_part_that_a_tensor_plays():
    roles = {gradient: convolution(c=2, m=2, gradient=gradient).roles for gradient in ("", "input", "weight")}
    assert roles[""] == {"Outputs": "Outputs", "Inputs": "Inputs", "Weights": "Weights"}
    assert roles["input"] == {"Outputs": "Inputs", "Inputs": "Outputs", "Weights": "Weights"}
    assert roles["weight"] == {"Outputs": "Weights", "Inputs": "Inputs", "Weights": "Outputs"}
    product = einsum("Z[M,N] += A[M,K] * B[K,N]", {"M": 2, "N": 2, "K": 2})
    assert product.roles == {"Outputs": "Z", "Inputs": "A", "Weights": "B"}
    assert (product.played_by("Weights"), product.played_by("A"), product.played_by("Q")) == ("B", "A", None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("own.yaml", "a: &a\n  b: *a\n", "own.yaml, line 1: not valid YAML: an anchor contains itself"),
        ("own.yaml", "a: [1,\n", "own.yaml, line 2: not valid YAML"),
        ("own.yaml", f"a: {'x' * (600 << 10)}\n", "own.yaml: larger than 512 KiB"),
        ("own.json", '{"a": 1', "own.json is broken JSON"),
        ("own.yaml", "a: 1\n", "own.yaml: neither a design nor a problem nor a mapping"),
    ],
)
def test_a_file_of_no_known_format_says_first_what_is_wrong_with_it(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read([path])
    assert said in str(refused.value)
