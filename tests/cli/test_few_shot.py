"""``triosim calibrate --few`` as a user sees it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.command import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "edge"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("few")
    done = run("calibrate", "--few", EXAMPLE / "raspi4.csv", "--pool", EXAMPLE / "pool.csv", cwd=folder)
    return folder / "raspi4-few-shot.json", done.stdout


def test_it_says_what_it_found_and_the_error_to_expect(learned: tuple[Path, str]) -> None:
    path, out = learned
    assert "found     a mixture of other devices; 90% of it runs only operators" in " ".join(out.split("\n")[:3])
    assert "off in the mean; 90 % within a factor of" in out
    assert f"--few {path.name} --predict NETWORKS.csv" in out
    document = json.loads(path.read_text())
    with (EXAMPLE / "raspi4.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert document["samples"]["network"] == [row["arch"] for row in rows]
    assert document["samples"]["seconds"] == pytest.approx([1e-3 * float(row["ms"]) for row in rows])


def test_it_predicts_other_networks(learned: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = learned
    words = ("calibrate", "--few", path, "--predict", EXAMPLE / "networks.csv")
    run(*words, cwd=tmp_path)
    lines = list(csv.DictReader((tmp_path / "networks-times.csv").open(encoding="utf-8")))
    assert len(lines) == 10
    for line in lines:
        assert 0 < float(line["low"]) < float(line["seconds"]) < float(line["high"]) < 1
    shown = run(*words, "-o", "-", cwd=tmp_path).stdout
    assert list(csv.DictReader(shown.splitlines())) == lines


def test_without_a_pool_and_under_another_name(tmp_path: Path) -> None:
    out = run("calibrate", "--few", EXAMPLE / "raspi4.csv", "--device", "My Pi", cwd=tmp_path).stdout
    assert out.startswith("device    My Pi\n")
    assert "nor_conv_3x3" in out
    assert (tmp_path / "My Pi-few-shot.json").exists()


def test_a_changed_file_is_refused(learned: tuple[Path, str], tmp_path: Path) -> None:
    document = json.loads(learned[0].read_text())
    for name, value, said in (
        ("golden", [1.0] * len(document["golden"]), "no longer predicts"),
        ("space", "words", "'words' is none of cells, blocks, names"),
        ("pool", None, "coefficients of 'pool' are not -1 numbers"),
        ("explanations", [], "there is no explanation"),
        ("samples", {"network": ["a"], "seconds": [0]}, "one positive time each"),
        ("schema", "triosim/few-shot/9", "expected 'triosim/few-shot/1'"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**document, name: value}))
        done = run("calibrate", "--few", path, "--predict", EXAMPLE / "networks.csv", cwd=tmp_path, code=2)
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "said"), [
    (("--pool", "x.csv"), "give --few FILE as well"),
    (("--few", "m.csv", "--run"), "one of them"),
    (("--few", "none.csv"), "none.csv: cannot be read"),
    (("--few", "m.csv", "--predict", "m.csv"), "--predict takes what was learned"),
    (("--few", "m.csv"), "m.csv has 1 networks; 4 are the least"),
    (("--few", "unit.csv"), "unit.csv has no columns of times"),
    (("--few", "zero.csv"), "zero.csv, line 2: '0' is no time above 0"),
    (("--few", "short.csv"), "short.csv, line 2: 1 fields, but 2 columns"),
    (("--few", "column.csv"), "column.csv has no column of networks"),
    (("--few", "m.csv", "--pool", "twice.csv"), "twice.csv has 'a|b' twice"),
    (("--few", "m.csv", "--pool", "alone.csv"), "alone.csv names no device"),
])  # fmt: skip
def test_what_the_user_got_wrong_is_one_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for name, text in (
        ("m", "arch,ms\na|b,1\n"), ("unit", "arch,hours\na|b,1\n"), ("zero", "arch,ms\na|b,0\n"),
        ("short", "arch,ms\na|b\n"), ("column", "name,ms\na|b,1\n"), ("twice", "arch,x\na|b,1\na|b,2\n"),
        ("alone", "arch\na|b\n"),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(text)
    before = set(tmp_path.iterdir())
    done = run("calibrate", *words, cwd=tmp_path, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_it_knows_no_single_operators(learned: tuple[Path, str]) -> None:
    done = run("infer", "gpt2", "--device", "A100", "--operator-times", learned[0], code=2)
    assert "was learned from whole networks and does not know single operators" in done.stderr


def test_operator_times_that_answer_for_no_operator_are_named(tmp_path: Path) -> None:
    """It was said of them that the network is a model without a device."""
    network, few = EXAMPLE / "mobile-block.json", tmp_path / "few.json"
    nothing = tmp_path / "nothing.json"
    assert "nothing.json: cannot be read" in run("infer", network, "--operator-times", nothing, code=2).stderr
    run("calibrate", "--few", EXAMPLE / "raspi4.csv", "-o", few)
    said = run("infer", network, "--operator-times", few, code=2).stderr
    assert "learned from whole networks" in said
    table = tmp_path / "measured.csv"
    table.write_text("kernel,ms\nk0000,1\n")
    assert "has no kernels.json" in run("calibrate", "--import", table, "--device", "phone", code=2).stderr


def test_times_that_nothing_explains_make_no_pack(tmp_path: Path) -> None:
    table = Path(__file__).resolve().parents[2] / "examples" / "edge" / "raspi4.csv"
    cells = [line.partition(",")[0] for line in table.read_text().splitlines()[1:6]]
    lines = [f"{cell},1e{5 * at - 8}" for at, cell in enumerate(cells)]
    (tmp_path / "wild.csv").write_text("\n".join(["arch,ms", *lines]) + "\n")
    done = run("calibrate", "--few", "wild.csv", cwd=tmp_path, code=2)
    assert "wild.csv: nothing explains these times" in done.stderr
    assert not list(tmp_path.glob("*.json"))
