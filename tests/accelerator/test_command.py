"""``triosim accelerator`` as a user types it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import run
from triosim.accelerator.datacentric import Hardware
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.files.maestro import Maestro
from triosim.accelerator.mapper import RATE, parse_budget
from triosim.accelerator.reading import read
from triosim.core.errors import InputError
from triosim.report.accelerator_page import PlottedCase, _marks, roofs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = [ROOT / "examples/accelerator" / name for name in ("little.toml", "layer.toml", "rows.toml")]
DATA = Path(__file__).parent / "data"
FILES = [DATA / f"{name}.yaml" for name in ("arch_03", "problem", "mapping_03")]


def test_evaluate_prints_levels_energy_and_the_loop_nest():
    done = run("accelerator", "evaluate", *FILES, "--also", DATA / "ert.yaml")
    assert "cycles       64" in done.stdout
    assert "registers  Outputs" in done.stdout
    assert "parallel X buffer_spatial: M in 4" in done.stdout


def test_evaluate_writes_json_and_nothing_else():
    done = run("accelerator", "evaluate", *FILES, "--also", DATA / "ert.yaml", "--json", "-")
    found = json.loads(done.stdout)
    assert found["cycles"] == 64
    assert found["levels"]["registers"]["Weights"]["reads"] == 64
    assert sum(found["energy_j_by_level"].values()) == pytest.approx(found["energy_j"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("factors: M2 N0 K4", "factors: M2 N0 K8"), "the loops of K multiply to 32, and its bound is 16"),
        (("M4 N2", "M8 N1"), "spread over 8 along X, of which there are 4"),
        (("target: DRAM", "target: HBM"), "unknown node"),
        (("M=1 N=1", "M=1 Z=1"), "unknown dimension"),
        (("keep: [Inputs, Outputs]", "keep: [Inputs, Sums]"), "unknown tensor"),
        (("factors: M1 N1 K4", "factors: M8 N4 K16"), "multiply to"),
    ],
)  # fmt: skip
def test_a_mapping_that_cannot_run_is_one_sentence(change, words, tmp_path):
    text = FILES[2].read_text()
    assert change[0] in text
    path = tmp_path / "mapping.yaml"
    path.write_text(text.replace(*change))
    done = run("accelerator", "evaluate", *FILES[:2], path, code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_missing_is_named(tmp_path):
    assert "unknown design" in run("accelerator", "evaluate", "eyeris", *FILES[1:], code=2).stderr
    nowhere = tmp_path / "nowhere.yaml"
    assert "nowhere.yaml: cannot be read" in run("accelerator", "evaluate", nowhere, *FILES[1:], code=2).stderr
    assert "holds no mapping" in run("accelerator", "evaluate", *FILES[:2], DATA / "ert.yaml", code=2).stderr
    other = tmp_path / "other.yaml"
    other.write_text("a: 1\n")
    assert "in a known format" in run("accelerator", "evaluate", FILES[0], other, FILES[2], code=2).stderr


def test_map_finds_a_mapping_and_writes_it_in_two_formats(tmp_path):
    design, problem = FILES[:2]
    rules = tmp_path / "rules.toml"
    rules.write_text('[[constraint]]\nat = "buffer_spatial"\ninnermost = "M K N"\nsplit = 1\n')
    also = ("--also", DATA / "ert.yaml", "--also", rules)
    done = run("accelerator", "map", design, problem, *also, "--budget", "6000", "--json", tmp_path / "found.json",
               "-o", tmp_path / "best.toml")  # fmt: skip
    assert " of which fit, for least edp" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["search"]["objective"] == "edp"
    assert found["search"]["finished"]
    for name in ("best.toml", "best.yaml"):
        if name.endswith("yaml"):
            run("accelerator", "map", design, problem, *also, "--budget", "6000", "-o", tmp_path / name)
        again = run("accelerator", "evaluate", design, problem, tmp_path / name, *also, "--json", "-")
        result = json.loads(again.stdout)
        assert (result["cycles"], result["energy_j"]) == (found["cycles"], pytest.approx(found["energy_j"]))


@pytest.mark.parametrize("search", ["genetic", "random"])
@pytest.mark.parametrize("design", ["diannao", "eyeriss", "gemmini-like", "tpu-v1"])
def test_what_is_looked_for_can_be_written_as_timeloops_yaml(design, search, tmp_path):
    """Without minding it each of these runs a dimension along X and Y, which that format cannot say."""
    layer, best = EXAMPLE[1], tmp_path / "best.yaml"
    done = run("accelerator", "map", design, layer, "--search", search, "--budget", "3000", "--json",
               tmp_path / "found.json", "-o", best)  # fmt: skip
    assert "mapping " in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    again = json.loads(run("accelerator", "evaluate", design, layer, best, "--json", "-").stdout)
    assert (again["cycles"], again["energy_j"]) == (found["cycles"], pytest.approx(found["energy_j"]))


def test_map_follows_seed_objective_and_constraints(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[constraint]]\nat = "buffer"\nfactors = "K=2"\nbypass = ["Weights"]\n')
    words = ("accelerator", "map", *FILES[:2], "--also", rules, "--budget", "4000", "--json", "-")
    one = run(*words, "--seed", "1").stdout
    assert one == run(*words, "--seed", "1", "--workers", "2").stdout
    found = json.loads(one)
    buffer = next(level for level in found["mapping"] if level["at"] == "buffer")
    assert ["K", 2, ""] in buffer["loops"]
    assert "Weights" not in buffer["keeps"]
    fastest = json.loads(run(*words, "--objective", "delay").stdout)
    assert fastest["cycles"] <= found["cycles"]
    front = json.loads(run(*words, "--objective", "pareto").stdout)["search"]["front"]
    assert front == sorted(front, key=lambda point: point["cycles"])


def test_map_takes_every_einsum_of_a_chain(tmp_path):
    problem = tmp_path / "attention.toml"
    problem.write_text('[problem]\nkind = "attention"\nheads = 2\nqueries = 8\nkeys = 16\ndepth = 8\n')
    done = run("accelerator", "map", "eyeriss", problem, "--budget", "3000", "--json", "-")
    layers = json.loads(done.stdout)["layers"]
    assert [layer["problem"] for layer in layers] == ["attention scores", "attention values"]
    kept = {level["at"]: level["keeps"] for level in layers[0]["mapping"] if "keeps" in level}
    assert kept["filter_spad"] == ["Keys"], "which play the weights"
    assert kept["psum_spad"] == ["Scores"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--objective", "beauty"), "unknown objective"),
        (("--search", "guess"), "unknown mapping search"),
        (("--budget", "never"), "--budget"),
        (("--budget", "0"), "no mapping at all"),
        (("--workers", "0"), "the least is 1"),
        (("--seed", "-1"), "give 0 or more"),
        (("--timing", "soon"), "unknown timing"),
        (("--search", "exhaustive", "--budget", "10"), "more than the budget of 10"),
    ],
)
def test_a_search_that_cannot_be_is_one_sentence(words, sentence):
    also = ("--also", FILES[2])
    done = run("accelerator", "map", *FILES[:2], *also, *words, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_show_lists_designs_and_one_with_its_sources():
    listed = run("accelerator", "show").stdout
    for name in ("eyeriss", "simba", "nvdla-like", "tpu-v1", "gemmini-like", "diannao"):
        assert name in listed
        shown = run("accelerator", "show", name).stdout
        assert "source of" in shown
        assert "assumed: " in shown
    assert "area of buffer: 0.005 mm2" in run("accelerator", "show", FILES[0], "--also", DATA / "ert.yaml").stdout
    assert "unknown design" in run("accelerator", "show", "eyeris", code=2).stderr


def test_the_page_draws_energy_loops_and_roofline(tmp_path: Path) -> None:
    page, found = tmp_path / "page.html", tmp_path / "found.json"
    run("accelerator", "evaluate", *EXAMPLE, "--report", page, "--json", found)
    html, said = page.read_text(encoding="utf-8"), json.loads(found.read_text())
    assert "http:" not in html
    assert "https:" not in html
    bars = re.findall(r'width:([\d.]+)%" title="([^:]*): ([\d.]+) (\w+)"', html)
    joules = {"mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9}
    assert sum(float(value) * joules[unit] for *_, value, unit in bars) == pytest.approx(said["energy_j"], rel=1e-3)
    assert html.count('class="level"') == len(said["levels"])
    assert html.count("<div") == html.count("</div>")
    assert "bound by buffer read" in html
    searched = tmp_path / "searched.html"
    run("accelerator", "map", "eyeriss", EXAMPLE[1], "--objective", "pareto", "--budget", "20000", "--report", searched)
    assert "no other is better in both" in searched.read_text(encoding="utf-8")
    array = ("accelerator", "evaluate", ROOT / "examples/accelerator/array.toml", EXAMPLE[1])
    assert "no levels to draw" in run(*array, "--report", page, code=2).stderr


@given(st.sampled_from([1, 4, 16, 64]), st.sampled_from([8, 32, 500]))
@settings(max_examples=12)
def test_a_mapping_touches_the_slope_of_the_store_that_binds(outer: int, inner: int) -> None:
    found = read([Path(one) for one in EXAMPLE])
    nodes = tuple(
        replace(node, read_bandwidth=float(rate), write_bandwidth=float(rate))
        if (rate := {"DRAM": outer, "buffer": inner}.get(node.name)) else node for node in found.design.nodes
    )  # fmt: skip
    design, problem = replace(found.design, nodes=nodes), found.problems[0]
    assert found.mapping is not None
    result = evaluate(design, problem, found.mapping.mapping(design, problem))
    height = result.computes / result.cycles
    lines = roofs([PlottedCase(result, design, problem)])
    under = {line.name: height / (line.points[0][0] * line.words_per_cycle) for line in lines}
    assert set(under) == {"DRAM", "buffer"}
    assert all(value <= 1 + 1e-9 for value in under.values())
    if result.binds != "compute":
        assert under[result.binds.split()[0]] == pytest.approx(1)


def test_map_takes_every_layer_of_a_workload(tmp_path: Path) -> None:
    done = run("accelerator", "map", "eyeriss", "vgg11", "--budget", "300")
    assert "all" in done.stdout
    document = json.loads(run("accelerator", "map", "eyeriss", "vgg11", "--budget", "300", "--json", "-").stdout)
    each = document["layers"]
    assert sum(one["times"] for one in each) == 8 + 3  # convolutions and layers, equal ones counted together
    assert len(each) < 11
    assert "no model of that name" in run("accelerator", "map", "eyeriss", "vgg99", code=2).stderr


def test_hardware_in_the_words_of_maestros_own_files(tmp_path: Path) -> None:
    """As ``data/hw/accelerator_1.m`` there writes it."""
    file = tmp_path / "hw.m"
    file.write_text("num_pes: 256\nl1_size_cstr: 512\nl2_size_cstr: 65536\nnoc_bw_cstr: 32\noffchip_bw_cstr: 32\n")
    assert Maestro().recognises(file)
    assert Maestro().read(file).hardware == Hardware(256, 512, 65536, 32)


def test_numbers_beyond_what_a_clock_counts_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tiles.json"
    file.write_text(json.dumps({"schema": "triosim/tiles/1", "cores": 1, "tiles": [{"name": "a", "cycles": 1e17}]}))
    assert "the most is 1e+12" in run("accelerator", "play", file, code=2).stderr


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('at = "PE"\nfactors = "Z=4"', "unknown dimension 'Z': known: C, M, N, P, Q, R, S"),
        ('at = "PE"\ninnermost = "Z"', "unknown dimension 'Z'"),
        ('at = "buffer"\nbypass = ["Nope"]', "unknown tensor 'Nope'"),
        ('at = "buffer"\nkeep = ["Weights"]\nbypass = ["Weights"]', "Weights is both kept and passed by"),
    ],
)
def test_constraints_of_what_no_problem_has_are_refused(body: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text(f"[[constraint]]\n{body}\n")
    design, layer = "examples/accelerator/little.toml", "examples/accelerator/layer.toml"
    done = run("accelerator", "map", design, layer, "--budget", "300", "--also", file, code=2)
    assert words in done.stderr


def test_a_budget_without_a_unit_is_a_number_of_mappings() -> None:
    assert parse_budget("5e3") == parse_budget("5000") == 5000
    assert parse_budget("10 s") == parse_budget("10000ms") == 10 * RATE
    for text, words in (
        ("2000.5", "no whole number of mappings"), ("1e30", "more mappings than a week"), ("8d", "longer than a week"),
        ("0.5", "no whole number"), ("1us", "no mapping at all"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            parse_budget(text)


def test_written_counts_have_all_their_digits(tmp_path: Path) -> None:
    stats = tmp_path / "stats.txt"
    run("accelerator", "evaluate", *EXAMPLE, "--stats", stats)
    assert "Scalar reads (per-instance)              : 9633792\n" in stats.read_text()
    layers = tmp_path / "layers.csv"
    layers.write_text("Layer,M,N,K\na,12345,1234,1234\n")
    run("accelerator", "evaluate", DATA / "array.cfg", layers, "--stats", stats)
    cycles = stats.read_text().splitlines()[1].split(",")[1]
    found = json.loads(run("accelerator", "evaluate", DATA / "array.cfg", layers, "--json", "-").stdout)
    assert cycles == f"{found['cycles']:.0f}"
    assert len(cycles) > 6


def test_a_store_that_keeps_what_no_problem_has_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text(EXAMPLE[0].read_text().replace('"Inputs", "Outputs"', '"Input", "Outputs"'))
    for words in (("accelerator", "evaluate", file, *EXAMPLE[1:]), ("accelerator", "map", file, EXAMPLE[1]),
                  ("train", "resnet18", "--device", file)):  # fmt: skip
        done = run(*words, code=2)
        assert "buffer: unknown tensor 'Input': did you mean Inputs" in done.stderr
        assert done.stderr.count("\n") == 1
    own = tmp_path / "own.toml"
    own.write_text('[[problem]]\neinsum = "C[m,n] += Input[m,k] * B[k,n]"\nbounds = { m = 4, n = 4, k = 4 }\n')
    run("accelerator", "map", file, own, "--budget", "300")


def test_a_place_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "layer.toml"
    file.write_text(EXAMPLE[1].read_text().replace("c = 64", 'c = "64"'))
    done = run("accelerator", "evaluate", EXAMPLE[0], file, EXAMPLE[2], code=2)
    assert done.stderr.count("layer.toml") == 1


def test_what_stands_in_place_of_a_design_is_named() -> None:
    for words in (("map", DATA / "hardware.m", DATA / "layers.m"), ("show", DATA / "hardware.m")):
        assert "has only the stores that a mapping gives it" in run("accelerator", *words, code=2).stderr


def test_show_tells_an_array_in_full() -> None:
    shown = run("accelerator", "show", EXAMPLE[0].with_name("array.toml")).stdout
    assert "16 bits a word, bandwidth of the memory outside 128 words in a cycle" in shown
    assert re.search(r"memory +459\.6\n", shown)


def test_the_smallest_array_takes_a_cycle(tmp_path: Path) -> None:
    array, product = tmp_path / "array.toml", tmp_path / "product.toml"
    array.write_text('[array]\nrows = 1\ncolumns = 1\ndataflow = "os"\n')
    product.write_text('[problem]\nkind = "gemm"\nm = 1\nn = 1\nk = 1\n')
    assert json.loads(run("accelerator", "evaluate", array, product, "--json", "-").stdout)["cycles"] == 1
    assert "unknown timing" in run("accelerator", "evaluate", array, product, "--timing", "soon", code=2).stderr
    array.write_text("[array]\nrows = 1\ncolumns = 1\nword_bytes = 0\n")
    assert "words of 0 bytes" in run("accelerator", "evaluate", array, product, code=2).stderr


def test_a_search_whose_output_has_no_folder_does_not_begin(tmp_path: Path) -> None:
    words = ("accelerator", "map", "eyeriss", EXAMPLE[1], "--budget", "7d", "--json", tmp_path / "no" / "found.json")
    assert "there is no folder" in run(*words, code=2).stderr


@given(st.floats(1e-9, 1e9), st.floats(1.05, 1e6))
def test_an_axis_has_marks_however_narrow_it_is(low: float, ratio: float) -> None:
    marks = _marks(low, low * ratio)
    assert 2 <= len(marks) <= 9
    assert marks == sorted(set(marks))
    assert all(low * (1 - 1e-9) <= mark <= low * ratio * (1 + 1e-9) for mark in marks)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('skip = "Inputs"', "on is missing"),
        ('skip = "Inputs"\ngate = "Inputs"\non = ["Weights"]', "give one of them"),
        ("", "says nothing of zeros"), ('tensor = "Weights"\nformat = ["XY"]', "unknown format in"),
    ],
)  # fmt: skip
def test_zeros_that_say_nothing_are_refused(body: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "zeros.toml"
    file.write_text(f'[[zeros]]\nat = "registers"\n{body}\n')
    done = run("accelerator", "evaluate", *EXAMPLE, "--also", file, code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("x = 14", "x = 99999999999"), "has 1,199,999,999,988 compute units: the most is"),
        (("bandwidth = 16", "bandwidth = 1e-300"), "buffer: read_bandwidth is 1e-300: give words for each cycle"),
        (('compute = "mac"', 'compute = "mac"\nword_bits = 0'), "mac: word_bits is 0: the least is 1"),
        (("words = 128", "words = 128\naside = -1"), "aside is -1: give 0 or more"),
        (("words = 128", "words = 128\nmetadata_words = -4"), "metadata_words is -4: give 0 or more"),
        (("words = 128", 'words = 128\nkind = "flash"'), "unknown kind of memory 'flash'"),
        (("words = 128", "words = 128\npj = { read = 1e308 }"), "the energy of read is 1e+308 pJ: the most is 1e+12"),
        (('"200 MHz"', "true"), "clock: True is no clock: write 200 MHz"),
        (('"200 MHz"', "1e-300"), "a clock of 1e-300 Hz: give one from 1 Hz"),
        (('"45nm"', '"999999nm"'), "names no process"),
        (('store = "registers"', 'store = ""'), "a node has no name: give it one"),
    ],
)
def test_a_design_that_no_chip_has_is_one_sentence(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    text = EXAMPLE[0].read_text()
    assert change[0] in text
    path = tmp_path / "design.toml"
    path.write_text(text.replace(*change))
    done = run("accelerator", "evaluate", path, *EXAMPLE[1:], code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('kind = "attention"\nheads = 0\nqueries = 4\nkeys = 4\ndepth = 4', "0 heads, and 0 of keys: the least is 1"),
        ('kind = "convolution"\nstride = [true, 1]', "is neither a whole number nor two"),
        ('kind = "convolution"\ngradient = "both"', "known: input, weight or leave it out for the forward pass"),
        ('kind = "gemm"\nm = 4\nn = 4\nk = 4\nname = ["x"]', "name: ['x'] is no text: give one"),
    ],
)
def test_a_problem_that_cannot_be_is_one_sentence(body: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.toml"
    path.write_text(f"[problem]\n{body}\n")
    done = run("accelerator", "map", "eyeriss", path, "--budget", "500", code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_says_nothing_of_a_design_or_an_array_is_refused(tmp_path: Path) -> None:
    array = ROOT / "examples/accelerator/array.toml"
    rules = tmp_path / "rules.toml"
    rules.write_text('[[constraint]]\nat = "DRAM"\nfactors = "M=1"\n')
    for words, sentence in (
        (("evaluate", array, EXAMPLE[1], "--also", rules), "the files hold constraints, and a systolic array"),
        (("evaluate", array, EXAMPLE[1], "--also", DATA / "ert.yaml"), "the files hold energies, and a systolic array"),
        (("evaluate", *EXAMPLE, "--form", "paper"), "--form paper is of systolic arrays, which"),
        (("map", "eyeriss", EXAMPLE[1], "--also", array), "a design and a systolic array are two devices"),
        (("map", "eyeriss", EXAMPLE[1], "-o", tmp_path / "best.json"), "is written as .toml or as Timeloop's .yaml"),
    ):
        assert sentence in run("accelerator", *words, code=2).stderr


def test_a_value_that_is_no_number_is_no_expression(tmp_path: Path) -> None:
    table = tmp_path / "ert.yaml"
    table.write_text((DATA / "ert.yaml").read_text().replace("energy: 100", "energy: [1]"))
    done = run("accelerator", "evaluate", *FILES, "--also", table, code=2)
    assert "DRAM, read: [1] is no number: give one" in done.stderr
