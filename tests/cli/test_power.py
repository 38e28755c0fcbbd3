"""Power caps, clocks and energy on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run

JOB = ("gpt2", "--seq-len", "256", "--device", "A100", "--host", "none")


def _energy(*more: str) -> dict:
    return json.loads(run("train", *JOB, "--json", "-", *more).stdout)


def test_a_lower_clock_slows_and_the_docs_say_by_what() -> None:
    free, slow = _energy(), _energy("--clock", "705MHz")
    assert slow["iteration_time_s"] > free["iteration_time_s"]
    assert slow["energy"]["devices"][0]["clock"] == 0.5
    assert slow["energy"]["device_mean_w"] < free["energy"]["device_mean_w"]
    assert any("a clock of 705 MHz" in words for words in slow["sources"])


def test_the_clock_of_least_energy_is_found() -> None:
    shown = run("train", *JOB, "--find", "clock", "--slowdown", "30%", "--constant", "host.share=0").stdout
    assert "Least energy at " in shown
    free = _energy("--constant", "host.share=0")
    best = _energy("--constant", "host.share=0", "--find", "clock", "--slowdown", "0.3")
    assert best["energy"]["node_j"] < free["energy"]["node_j"]
    assert best["iteration_time_s"] <= 1.3 * free["iteration_time_s"]
    none = _energy("--find", "clock", "--slowdown", "0")
    assert none["iteration_time_s"] <= free["iteration_time_s"]


def test_a_job_of_tokens_says_what_it_costs() -> None:
    shown = run("train", *JOB, "--tokens", "1e9", "--at", "FR", "--price", "2/h").stdout
    assert any(line.split()[:1] == ["job"] for line in shown.splitlines())
    found = _energy("--tokens", "1e9", "--at", "FR", "--price", "2/h")["cost"]
    job = next(row for row in found["rows"] if row["unit"] == "job")
    assert job["usd"] == pytest.approx(2 * job["device_hours"])
    assert found["place"] == "FR"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--power-cap", "60"], "the lowest that works is 1"), (["--power-cap", "-3"], "--power-cap"),
        (["--power-cap", "3 bar"], "unknown unit"), (["--clock", "5GHz"], "outside those of A100"),
        (["--find", "gold"], "--find must be clock"), (["--slowdown", "5%"], "give --find clock"),
        (["--find", "clock", "--clock", "900"], "give only one"),
        (["--find", "clock", "--slowdown", "x"], "--slowdown"),
        (["--constant", "facility.pue=0.5"], "at least 1"), (["--pue", "0.5"], "PUE must be at least 1"),
        (["--at", "mars"], "unknown place"), (["--pay", "later"], "way to pay"), (["--tokens", "many"], "--tokens"),
        (["--energy", "nothing.json"], "nothing.json: cannot be read"),
        (["--pue", "1.1", "--constant", "facility.pue=1.2"], "give only one"),
        (["--constant", "device.attained=0"], "is divided by"), (["--constant", "device.attained=2"], "0 to 1"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_sentence(words: list[str], said: str) -> None:
    done = run("train", *JOB, *words, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_constant_on_which_nothing_rests_is_named(tmp_path: Path) -> None:
    said = "nothing of this result rests on --constant "
    path = str(tmp_path / "result.json")
    both = run("train", *JOB, "--json", path, "--constant", "grid.FR=3", "--constant", "grid.world=40").stderr
    assert f"{said}grid.FR\n" in both
    assert said not in run("train", *JOB, "--at", "FR", "--constant", "grid.FR=3").stderr
    assert said not in run("train", *JOB, "--pue", "google", "--constant", "pue.google=1.05").stderr
    assert f"{said}pue.google\n" in run("train", *JOB, "--pue", "aws", "--constant", "pue.google=1.05").stderr
    shown = run("cost", path, "--constant", "facility.pue=1.3", "--constant", "memory.HBM=4").stderr
    assert f"{said}memory.HBM\n" in shown
    assert f"{said}grid.FR\n" in run("train", *JOB, "--compare", "overlap=off", "--constant", "grid.FR=3").stderr


def test_a_company_s_pue_is_that_of_its_constant() -> None:
    assert _energy("--pue", "google", "--constant", "pue.google=1.05")["energy"]["pue"] == 1.05


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "FR", "--grid", "40"), "both say the intensity"),
        (("--pay", "own", "--price", "3/h"), "give only one of --price and --pay"),
        (("--tokens", "1e9"), "tokens say how often the iteration of a job runs"),
    ],
)
def test_what_cannot_be_paid_is_said_before_anything_is_shown(words: tuple[str, ...], said: str) -> None:
    done = run("infer", "resnet18", "--device", "A100", "--host", "none", *words, code=2)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_cost_that_nobody_knows_is_named(tmp_path: Path) -> None:
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "chip"\npeak_flops = { float32 = 1e12 }\nmemory_bandwidth = "100 GB/s"\n')
    done = run("infer", "resnet18", "--device", chip, "--host", "none", "--price", "2/h")
    assert "what the job costs is not known" in done.stderr
