"""MAESTRO's hardware and data-centric mappings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run
from triosim.accelerator.mapping import Loop
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

DATA = Path(__file__).parent / "data"
HARDWARE, LAYERS = DATA / "hardware.m", DATA / "layers.m"


def test_directives_are_loops():
    """256 units in clusters of 64 are 4: 8 output channels in two rounds, 64 of 128 input channels in one cluster."""
    (design, problem, mapping), _ = read([HARDWARE, LAYERS]).cases()
    assert problem.bound == {"N": 1, "C": 128, "M": 8, "P": 14, "Q": 14, "R": 3, "S": 3}
    assert problem.computes == 8 * 128 * 9 * 14 * 14
    assert [(n.name, getattr(n, "x", None)) for n in design.nodes] == [
        ("DRAM", None), ("L2", None), ("units_0", 4), ("cluster_1", None), ("units_1", 64), ("L1", None),
    ]  # fmt: skip
    assert mapping.level("DRAM").loops == (Loop("M", 2), Loop("C", 2), Loop("P", 14), Loop("Q", 14))
    assert mapping.level("units_0").loops == (Loop("M", 4, "x"),)
    assert mapping.level("units_1").loops == (Loop("C", 64, "x"),)
    assert mapping.level("cluster_1").loops == ()
    assert mapping.level("L1").loops == (Loop("R", 3), Loop("S", 3))


def test_a_matrix_product_and_a_remainder():
    _, (design, problem, mapping) = read([HARDWARE, LAYERS]).cases()
    assert problem.computes == 32 * 20 * 16
    assert design.compute_instances == 256
    assert mapping.level("DRAM").loops == (Loop("M", 2), Loop("N", 5))
    assert mapping.level("units_0").loops == (Loop("M", 16, "x"),)
    assert mapping.level("L1").loops == (Loop("N", 4),)


def test_the_command_evaluates_all_layers():
    found = json.loads(run("accelerator", "evaluate", HARDWARE, LAYERS, "--timing", "ideal", "--json", "-").stdout)
    first, second = found["layers"]
    assert first["cycles"] == 2 * 2 * 14 * 14 * 9
    assert first["utilization"] == 1
    assert second["cycles"] == 2 * 5 * 4
    assert "GEMM1" in run("accelerator", "evaluate", HARDWARE, LAYERS).stdout


def test_rows_of_a_filter_beside_the_rows_that_meet_them(tmp_path):
    """Row stationary: units of a cluster have a filter row each, and the input rows that belong to it."""
    text = """Network rows { Layer L { Type: CONV Stride { X: 2, Y: 2 }
      Dimensions { K: 4, C: 2, R: 3, S: 3, Y: 9, X: 9 }
      Dataflow { TemporalMap(2,2) K; SpatialMap(Sz(R),1) Y; TemporalMap(Sz(S),1) X; Cluster(Sz(R), P);
                 SpatialMap(1,1) Y; SpatialMap(1,1) R; } } }"""
    (tmp_path / "rows.m").write_text(text)
    (tmp_path / "units.m").write_text("NumPEs: 12\n")
    ((_, problem, mapping),) = read([tmp_path / "units.m", tmp_path / "rows.m"]).cases()
    assert (problem.bound["P"], problem.bound["Q"]) == (4, 4)
    assert mapping.level("units_0").loops == (Loop("P", 4, "x"),)
    assert mapping.level("units_1").loops == (Loop("R", 3, "x"),)
    assert mapping.level("DRAM").loops == (Loop("M", 2), Loop("Q", 4))


def test_multiplications_are_those_of_the_sizes(tmp_path):
    """The first convolution of ResNet-50 has 118,013,952; its rows have to be given with their padding."""
    text = """Network resnet50 { Layer CONV1 { Type: CONV Stride { X: 2, Y: 2 }
      Dimensions { K: 64, C: 3, R: 7, S: 7, Y: SIZE, X: SIZE }
      Dataflow { SpatialMap(1,1) K; TemporalMap(Sz(R),1) Y; TemporalMap(Sz(S),1) X; } } }"""
    for size, computes in (("230", 118_013_952), ("224", 64 * 3 * 49 * 109 * 109)):
        (tmp_path / "net.m").write_text(text.replace("SIZE", size))
        found = read([HARDWARE, tmp_path / "net.m"])
        assert found.problem.computes == computes
        assert any("with its padding" in note for note in found.notes)


def test_a_depth_wise_layer_has_a_filter_for_each_channel(tmp_path):
    (tmp_path / "net.m").write_text("""Network n { Layer D { Type: DSCONV Dimensions { C: 6, R: 3, S: 3, Y: 8, X: 8 }
      Dataflow { TemporalMap(Sz(R),1) Y; SpatialMap(Sz(S),1) X; } } }""")
    assert read([HARDWARE, tmp_path / "net.m"]).problem.computes == 6 * 9 * 36


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("layers.m", ("Cluster(64, P)", "Cluster(60, P)"), "clusters of 60 do not divide 256 units"),
        ("layers.m", ("TemporalMap(64,64) C", "TemporalMap(64,64) Z"), "unknown dimension in its Dataflow"),
        ("layers.m", ("TemporalMap(64,64) C", "SpatialMap(64,64) C"), "M and C are both spread over one level"),
        ("layers.m", ("Type: CONV", "Type: DANCE"), "unknown type of layer"),
        ("layers.m", ("SpatialMap(1,1) K", "SpatialMop(1,1) K"), "unknown directive"),
        ("layers.m", ("SpatialMap(1,1) K", "SpatialMap(0,1) K"), "the least is 1"),
        ("layers.m", ("Sz(R),1) Y", "Sz(Q),1) Y"), "unknown dimension in Sz"),
        ("layers.m", ("K: 8, C: 128", "C: 128"), "has no size of K"),
        ("layers.m", ("Y: 16", "Y: 2"), "give the padded input"),
        ("layers.m", ("Y: 16", "Y: sixteen"), "line 6: 'sixteen' stands where a number is expected"),
        ("layers.m", ("Stride { X: 1, Y: 1 }", "Stride [ 1 ]"), "is not known here"),
        ("hardware.m", ("NumPEs: 256", "NumPEs: 0"), "NumPEs is 0"),
        ("hardware.m", ("NumPEs: 256", "NumPEs: many"), "is not NAME: NUMBER"),
        ("hardware.m", ("L1Size", "L7Size"), "unknown figure"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(name, change, words, tmp_path):
    text = (DATA / name).read_text()
    assert change[0] in text
    path = tmp_path / name
    path.write_text(text.replace(*change))
    other = HARDWARE if name == "layers.m" else LAYERS
    with pytest.raises(InputError, match=words):
        read([other, path]).cases()


def test_a_mapping_without_hardware_is_refused(tmp_path):
    with pytest.raises(InputError, match="need hardware"):
        read([LAYERS]).cases()
    (tmp_path / "cut.m").write_text(LAYERS.read_text()[:-20])
    with pytest.raises(InputError, match="ends too early"):
        read([tmp_path / "cut.m"])
