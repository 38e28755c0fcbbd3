"""``triosim accelerator play`` and ``fuse`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "accelerator"


def test_play_shows_cores_and_writes_json(tmp_path):
    done = run("accelerator", "play", EXAMPLES / "tiles.json", "--json", tmp_path / "run.json")
    assert "two layers on two cores: 6 tiles on 2 cores" in done.stdout
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["cycles"] >= found["least_cycles"] > 0
    assert found["seconds"] == pytest.approx(found["cycles"] / 1e9)
    assert [tile["name"] for tile in found["tiles"]][:2] == ["first.0", "first.1"]


def test_fused_tiles_play_as_they_were_told(tmp_path):
    words = ("accelerator", "fuse", EXAMPLES / "array.toml", EXAMPLES / "layers.toml", "--tiles", "4")
    found = json.loads(run(*words, "--json", "-", "-o", tmp_path / "tiles.json").stdout)["runs"]
    again = json.loads(run("accelerator", "play", tmp_path / "tiles.json", "--json", "-").stdout)
    assert again["cycles"] == found["fused"]["cycles"]
    assert found["fused"]["memory_bytes"] < found["layer by layer"]["memory_bytes"]
    whole = json.loads(run(*words, "--depth", "1", "--json", "-").stdout)["runs"]
    assert whole["fused"]["cycles"] == whole["layer by layer"]["cycles"] == found["layer by layer"]["cycles"]
    narrow = json.loads(run(*words, "--memory-bandwidth", "4", "--json", "-").stdout)["runs"]
    assert narrow["fused"]["cycles"] > found["fused"]["cycles"]
    mesh = run(*words, "--cores", "4", "--topology", "mesh", "--core-bandwidth", "8", "--assign", "layers")
    assert "layer by layer" in mesh.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tiles": [{"name": "a", "cycles": 1, "after": ["b"]}, {"name": "b", "cycles": 1, "from": {"a": 1}}]},
         "wait for each other in a circle: a -> b -> a"),
        ({"tiles": [{"name": "a", "cycles": 1, "after": ["a"]}]}, "in a circle: a -> a"),
        ({"tiles": [{"name": "a", "cycles": 1, "core": "middle"}]}, "unknown core 'middle'"),
        ({"tiles": [{"name": "a", "cycles": 1, "core": ["left"]}]}, "unknown core"),
        ({"tiles": [{"name": "a", "cycles": -5}]}, "tile 'a': cycles is -5: give a number of 0 or more"),
        ({"tiles": [{"name": "a"}]}, "has no cycles"),
        ({"tiles": [{"name": "a", "cycles": 1, "from": {"b": 1}}]}, "unknown tile 'b'"),
        ({"tiles": [{"name": "a", "cycles": 1, "reads": 1.5}]}, "whole number of bytes"),
        ({"tiles": [{"name": "a", "cycles": 1, "keeps": ["weights"]}]}, "unknown kept data 'weights'"),
        ({"tiles": [{"name": "a", "cycles": 1, "cost": 2}]}, "unknown key 'cost'"),
        ({"tiles": [{"name": "a", "cycles": 1}, {"name": "a", "cycles": 1}]}, "is the name of tile 1 too"),
        ({"tiles": []}, "give a list of at least one"),
        ({"cores": 0}, "cores is 0"),
        ({"cores": ["x", "x"]}, "two cores are called 'x'"),
        ({"buffers": 0}, "buffers is 0"),
        ({"memory": {"bandwidth": 0}}, "bandwidth is 0"),
        ({"network": {"topology": "torus"}}, "unknown topology 'torus'"),
        ({"network": {"topology": "bus", "columns": 2}}, "columns is of a mesh"),
        ({"network": {"topology": "mesh", "columns": 3}}, "3 columns do not divide 2 cores"),
        ({"schema": "other"}, "schema is 'other'"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_one_sentence(change, words, tmp_path):
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps({**json.loads((EXAMPLES / "tiles.json").read_text()), **change}))
    done = run("accelerator", "play", path, code=2)
    assert words in done.stderr
    assert "tiles.json" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cores", "0"], "--cores 0: give 1 to 1024"), (["--tiles", "0"], "0 tiles of a layer"),
        (["--depth", "0"], "0 fused layers"), (["--assign", "best"], "unknown assignment 'best'"),
        (["--topology", "ring"], "unknown topology 'ring'"), (["--core-bandwidth", "-1"], "between cores: bandwidth"),
        (["--memory-bandwidth", "0"], "--memory-bandwidth: bandwidth is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_fused_is_one_sentence(options, words):
    done = run("accelerator", "fuse", EXAMPLES / "array.toml", EXAMPLES / "layers.toml", *options, code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
