"""``--sweep``, as a user types it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.command import run, run_until_killed

JOB = ("train", "gpt2", "--seq-len", "128", "--system", "dgx-a100", "--nodes", "1", "--global-batch-size", "8")


def test_plans_are_ranked_and_written(tmp_path: Path) -> None:
    outputs = ("--json", "plans.json", "--csv", "plans.csv")
    done = run(*JOB, "--sweep", "tp=1,2,3", "pp=1,2", "--zero", "1", *outputs, cwd=tmp_path)
    assert "2 of 6 plans fell out" in done.stdout
    found = json.loads((tmp_path / "plans.json").read_text())
    assert found["schema"] == "triosim/sweep/1"
    assert [one["asked"] for one in found["plans"]] == [{"tp": t, "pp": p} for t in (1, 2, 3) for p in (1, 2)]
    best = min((one for one in found["plans"] if one["figures"]), key=lambda one: one["figures"]["iteration_time_s"])
    assert best["rank"] == 1
    assert [one["rank"] for one in found["plans"][4:]] == [None, None]
    assert [one["plans"] for one in found["fell_out"]] == [2]
    rows = list(csv.DictReader((tmp_path / "plans.csv").open()))
    assert [row["rank"] for row in rows] == [str(one["rank"] or "") for one in found["plans"]]
    alone = run(*JOB, "--tp", "2", "--pp", "2", "--zero", "1", "--json", "-")
    assert float(rows[3]["iteration_time_s"]) == json.loads(alone.stdout)["iteration_time_s"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plans.csv", "plans.json"]


def test_where_nothing_fits_it_says_what_the_smallest_plan_needs() -> None:
    done = run("train", "llama-3-70b", "--seq-len", "512", "--system", "dgx-a100", "--sweep", "tp=2,8", "zero=0,3")
    said = " ".join(done.stdout.split())
    assert "4 of 4 plans fell out: 4 does not fit in memory: the smallest needs" in said
    assert "(tp=8 zero=" in said


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--sweep", "stack=nemo"), ("train", "--sweep", "tp=1,2", "lora=8,16"),
        ("train", "--compare", "tp=2,power-cap=300"),
        ("search", "--under", "batch=8", "--among", "optimizer=lion"),
    ],
)  # fmt: skip
def test_what_all_plans_have_in_common_is_given_by_itself(words: tuple[str, ...]) -> None:
    done = run(words[0], "gpt2", "--system", "dgx-a100", "--nodes", "1", *words[1:], code=2)
    name = words[-1].split(",")[-1 if words[1] == "--compare" else 0].partition("=")[0]
    assert f"{name}: all plans have that in common: give --{name} by itself" in done.stderr


def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    words = (*JOB, "--sweep", "tp=1,2,4", "pp=1,2", "zero=0,1", "--json", "plans.json", "--quiet")
    journal = tmp_path / "plans.json.journal.jsonl"
    run_until_killed(3, *words, cwd=tmp_path)
    assert not (tmp_path / "plans.json").exists()
    resumed = run(*words[:-1], cwd=tmp_path)
    assert "plans are known from" in resumed.stderr
    first = (tmp_path / "plans.json").read_bytes()
    assert not journal.exists()
    run(*words, cwd=tmp_path)
    assert (tmp_path / "plans.json").read_bytes() == first


def test_another_workload_starts_anew(tmp_path: Path) -> None:
    from triosim.search.journal import Journal
    from triosim.search.outcome import PlanOutcome

    Journal(tmp_path / "plans.csv.journal.jsonl", "of another", PlanOutcome.from_dict).__exit__()
    assert "starts anew" in run(*JOB, "--sweep", "tp=8", "--csv", "plans.csv", cwd=tmp_path).stderr


def test_what_does_not_go_together_is_a_sentence(tmp_path: Path) -> None:
    assert "of one prediction" in run(*JOB, "--sweep", "tp=1", "--timeline", "t.json", code=2, cwd=tmp_path).stderr
    assert "give --sweep as well" in run(*JOB, "--workers", "2", code=2).stderr
    assert "give --sweep as well" in run(*JOB, "--csv", "t.csv", code=2, cwd=tmp_path).stderr
    assert "at least 1" in run(*JOB, "--sweep", "tp=1", "--workers", "0", code=2).stderr
    assert "tq" in run(*JOB, "--sweep", "tq=1", code=2).stderr
    alone = run(*JOB, "--sweep", "tp=7", code=2)
    assert "cannot be divided into tp 7" in alone.stderr
    assert alone.stdout == ""
    assert "none of the 2 plans can be formed" in run(*JOB, "--sweep", "tp=7,9", code=2).stderr
    for option in (("--tp", "2"), ("--micro-batches", "2"), ("--sequence-parallel",)):
        words = ("--sweep", f"{option[0][2:]}=on" if len(option) < 2 else f"{option[0][2:]}=1,2")
        assert f"{option[0]} is given by itself and in --sweep" in run(*JOB, *option, *words, code=2).stderr
    assert "unexpected extra argument" in run(*JOB, "--sweep", "tp=1", "pp", code=2).stderr


def test_a_sweep_of_clocks_says_what_plans_take_and_give_for_it(tmp_path: Path) -> None:
    """Joules are those of a prediction of the plan alone; sweeps of other things have no such columns."""
    words = ("train", "gpt2", "--system", "dgx-a100")
    done = run(*words, "--sweep", "clock=none,900MHz", "--json", "plans.json", "--csv", "plans.csv", cwd=tmp_path)
    assert not done.stdout.strip().startswith("rank")
    plans = json.loads((tmp_path / "plans.json").read_text())["plans"]
    alone = json.loads(run(*words, "--clock", "900MHz", "--json", "-").stdout)
    slow = next(plan["figures"] for plan in plans if plan["asked"]["clock"] == "900MHz")
    assert slow["energy_j"] == alone["energy"]["node_j"]
    tokens = alone["throughput"]["tokens_per_s"] * alone["iteration_time_s"]
    assert slow["tokens_per_j"] == pytest.approx(tokens / slow["energy_j"])
    assert "energy_j,tokens_per_j,why" in (tmp_path / "plans.csv").read_text().splitlines()[0]
    assert "tokens/J" in run(*words, "--sweep", "power-cap=none,300W").stdout
    assert "energy" not in run(*words, "--sweep", "tp=1,2", "--csv", "-").stdout
