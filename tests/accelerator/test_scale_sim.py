"""SCALE-Sim's files, and its report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.command import run
from triosim.accelerator.energies import DEFAULT_NM, multiply_add_j
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

DATA = Path(__file__).parent / "data"
CFG, LAYERS, PRODUCTS = DATA / "array.cfg", DATA / "layers.csv", DATA / "products.csv"


def test_a_configuration_and_its_layers():
    found = read([CFG, LAYERS])
    assert found.array is not None
    assert (found.array.rows, found.array.columns, found.array.dataflow, found.array.name) == (8, 4, "ws", "small")
    assert (found.array.filter_bytes, found.array.bandwidth) == (65536, None)
    first, second = found.problems
    assert first.bound == {"N": 1, "C": 4, "M": 8, "P": 8, "Q": 8, "R": 3, "S": 3}
    assert second.bound == {"N": 1, "C": 10, "M": 20, "P": 6, "Q": 6, "R": 5, "S": 5}


def test_the_command_says_what_the_tool_says(tmp_path):
    report = tmp_path / "COMPUTE_REPORT.csv"
    words = ("accelerator", "evaluate", CFG, LAYERS, "--timing", "ideal", "--stats", report, "--json", "-")
    found = json.loads(run(*words).stdout)
    first = found["layers"][0]
    counts = [first[name] for name in ("cycles", "ifmap_reads", "filter_reads", "ofmap_writes")]
    assert counts == [819, 4608, 288, 2560]
    assert first["utilization"] == pytest.approx(0.703297, abs=1e-6)
    with report.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["Total Cycles"] for row in rows] == ["819", str(found["layers"][1]["cycles"])]
    assert float(rows[0]["Overall Util %"]) == pytest.approx(70.3297, abs=1e-4)
    assert "tiny3x3" in run("accelerator", "evaluate", CFG, LAYERS).stdout
    assert "10,495" in run("accelerator", "evaluate", CFG, PRODUCTS).stdout
    paper = json.loads(run("accelerator", "evaluate", CFG, PRODUCTS, "--form", "paper", "--json", "-").stdout)
    assert paper["cycles"] == 8 * 16 * (2 * 8 + 4 + 64 - 2)


def test_a_bandwidth_of_the_user_makes_it_wait(tmp_path):
    slow = tmp_path / "slow.cfg"
    slow.write_text(CFG.read_text().replace("CALC", "USER").replace("Bandwidth : 10", "Bandwidth : 0.5,0.5,0.5"))
    words = ("accelerator", "evaluate", slow, PRODUCTS, "--timing", "double-buffer", "--json", "-")
    assert json.loads(run(*words).stdout)["layers"][0]["stall_cycles"] > 0


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("array.cfg", ("ArrayHeight:    8", ""), "ArrayHeight is missing"),
        ("array.cfg", ("ArrayHeight:    8", "ArrayHeight: eight"), "'eight' is no whole number"),
        ("array.cfg", ("Dataflow : ws", "Dataflow : xs"), "unknown dataflow"),
        ("array.cfg", ("ArrayHeight:    8", "ArrayHeight: 0"), "the least is 1 by 1"),
        ("array.cfg", ("CALC", "USER\n[architecture_presets]\nBandwidth: fast"), "is no number of words a cycle"),
        ("layers.csv", ("10, 10, 3, 3", "10, 10, 30, 3"), "give the padded input"),
        ("layers.csv", ("4, 8, 1,", "4, 8, 0,"), "a stride of 0"),
        ("layers.csv", ("tiny3x3, 10", "tiny3x3, ten"), "line 2, ifmapheight: 'ten' is no whole number"),
        ("layers.csv", (", 20, 2,", ""), "has 5 of 7 sizes"),
        ("products.csv", ("g, 64, 64, 64,", "network"), "holds no layer"),
        ("products.csv", ("64, 64, 64", "64, 0, 64"), "dimension N is 0"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(name, change, words, tmp_path):
    text = (DATA / name).read_text()
    assert change[0] in text
    path = tmp_path / name
    path.write_text(text.replace(*change))
    with pytest.raises(InputError, match=words):
        read([path])


def test_an_array_has_no_energies_to_write(tmp_path):
    done = run("accelerator", "evaluate", CFG, PRODUCTS, "--ert", tmp_path / "ert.yaml", code=2)
    assert "has no energies" in done.stderr
    found = json.loads(run("accelerator", "evaluate", CFG, PRODUCTS, "--json", "-").stdout)
    layer = found["layers"][0]
    assert found["energy_j"] == pytest.approx(sum(layer["energy_j_by_level"].values()))
    assert layer["energy_j_by_level"]["compute"] == pytest.approx(64**3 * multiply_add_j(8, DEFAULT_NM))
    done = run("accelerator", "map", CFG, PRODUCTS, code=2)
    assert "small is a systolic array, whose mapping is given" in done.stderr


def test_statistics_and_energies_are_written(tmp_path):
    files = [DATA / f"{name}.yaml" for name in ("arch_03", "problem", "mapping_03")]
    run("accelerator", "evaluate", *files, "--stats", tmp_path / "stats.txt", "--ert", tmp_path / "ert.yaml")
    assert "Scalar reads (per-instance)" in (tmp_path / "stats.txt").read_text()
    one = run("accelerator", "evaluate", *files, "--json", "-").stdout
    two = run("accelerator", "evaluate", *files, "--also", tmp_path / "ert.yaml", "--json", "-").stdout
    assert json.loads(two)["energy_j"] == pytest.approx(json.loads(one)["energy_j"])
    assert json.loads(two)["assumed"] == []


def test_a_depth_wise_layer_is_one_for_each_channel(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS.read_text().replace("tiny3x3", "DP1").replace("4, 8, 1,", "4, 1, 1,"))
    found = read([CFG, path]).problems
    assert [p.name for p in found] == ["DP1Channel_0", "DP1Channel_1", "DP1Channel_2", "DP1Channel_3", "s2_5x5"]
    assert found[0].computes == 64 * 9
