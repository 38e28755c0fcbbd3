"""``triosim explore`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.command import run, run_until_killed

EXAMPLES = Path(__file__).parents[2] / "examples" / "accelerator"
ARRAY = ("explore", EXAMPLES / "array.toml", EXAMPLES / "layer.toml", "--objectives", "cycles,energy,units")
VARY = ("--vary", "rows=8,16,32,64", "--vary", "columns=8,16,32,64", "--vary", "dataflow=os,ws",
        "--vary", "bandwidth=8,32,128")  # fmt: skip


def test_the_front_is_shown_and_written(tmp_path):
    files = {name: tmp_path / name for name in ("front.csv", "front.svg", "steps.jsonl", "all.json")}
    done = run(*ARRAY, *VARY, "--budget", "40", "--surrogate", "20", "--csv", files["front.csv"], "--chart",
               files["front.svg"], "--trajectory", files["steps.jsonl"], "--json", files["all.json"])  # fmt: skip
    assert "explored     40 of 96 points by genetic" in done.stdout
    assert "against our own model" in " ".join(done.stdout.split())
    found = json.loads(files["all.json"].read_text())
    assert len(found["trials"]) == 40
    table = files["front.csv"].read_text().splitlines()
    assert table[0] == "cycles,energy_J,units,rows,columns,dataflow,bandwidth"
    assert len(table) == 1 + len(found["front"])
    steps = [json.loads(line) for line in files["steps.jsonl"].read_text().splitlines()]
    assert [step["values"] for step in steps] == [trial["values"] for trial in found["trials"]]
    circles = ElementTree.parse(files["front.svg"]).getroot().findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len({tuple(trial["costs"].values()) for trial in found["trials"]})
    assert found["surrogate"]["error_is"] == "against our model, on points held out"
    assert found["surrogate"]["inside"]["points"] >= 8
    for point in found["front"]:
        assert not any(
            all(a <= b for a, b in zip(other["costs"].values(), point["costs"].values(), strict=True))
            for other in found["front"] if other["values"] != point["values"]
        )  # fmt: skip


def test_a_design_is_explored_with_mappings_of_each_point():
    done = run("explore", EXAMPLES / "little.toml", EXAMPLES / "layer.toml", "--vary", "PE.x=7,14", "--vary",
               "buffer.capacity=16,32768", "--mappings", "500", "--json", "-")  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found["trials"]) == 4
    assert found["front"]


def test_workers_write_the_same():
    design = ("explore", EXAMPLES / "little.toml", EXAMPLES / "layer.toml", "--vary", "PE.x=7,14", "--vary",
              "buffer.capacity=16,32768", "--mappings", "500", "--json", "-")  # fmt: skip
    assert run(*design, "--workers", "2").stdout == run(*design).stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing is varied"), (["--vary", "rows"], "for example rows=8,16,32"),
        (["--vary", "rows=8,8"], "give each once"), (["--vary", "rows=8", "--vary", "rows=16"], "varied twice"),
        (["--vary", "depth=8"], "unknown size of the array 'depth'"), (["--vary", "rows=-8,4"], "rows: -8 is no size"),
        (["--vary", "rows=8,x"], "'x' is no number, as the other values are"),
        (["--vary", "rows=1.5"], "whole number"), (["--vary", "dataflow=os,xs"], "unknown dataflow 'xs'"),
        (["--vary", "rows=8", "--searcher", "luck"], "unknown searcher 'luck'"),
        (["--vary", "rows=8", "--budget", "0"], "a budget of 0 points"),
        (["--vary", "rows=8", "--objectives", "area"], "unknown objective 'area'"),
        (["--vary", "rows=8", "--objectives", "cycles", "--chart", "x.svg"], "--chart shows two objectives"),
        (["--vary", "rows=8", "--mappings", "0"], "--mappings 0"),
        (["--vary", "rows=8", "--workers", "0"], "--workers must be at least 1"),
        ([*VARY, "--searcher", "annealing", "--budget", "20", "--workers", "2"], "'annealing' needs the costs"),
        (["--vary", "rows=8,16", "--surrogate", "20"], "points to learn from"),
        ([*VARY, "--surrogate", "36"], "a surrogate of 36 points leaves fewer than 8 of 36"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(options, words):
    done = run("explore", EXAMPLES / "array.toml", EXAMPLES / "layer.toml", *options, code=2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_whole_number_is_one_however_it_is_written() -> None:
    """``1e2`` is a hundred rows, not 100.0."""
    design = ("explore", EXAMPLES / "array.toml", EXAMPLES / "layer.toml")
    found = json.loads(run(*design, "--vary", "rows=1e2,8", "--json", "-").stdout)
    assert "100.0" not in json.dumps(found["front"])


def test_one_that_was_killed_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    """What a process that is killed has evaluated stands beside its output."""
    words = ("explore", EXAMPLES / "little.toml", EXAMPLES / "layer.toml", "--vary", "buffer.capacity=8192,16384,32768",
             "--vary", "PE.x=7,14", "--vary", "PE.y=4,6,12", "--mappings", "20000", "--json", "found.json")  # fmt: skip
    journal = tmp_path / "found.json.journal.jsonl"
    run_until_killed(3, *words, cwd=tmp_path)
    assert not (tmp_path / "found.json").exists()
    assert "points are known from" in run(*words, cwd=tmp_path).stderr
    resumed = (tmp_path / "found.json").read_bytes()
    assert not journal.exists()
    run(*words, cwd=tmp_path)
    assert (tmp_path / "found.json").read_bytes() == resumed
