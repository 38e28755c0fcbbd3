"""``triosim search``, as a user types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.command import run, run_until_killed
from triosim.core.guarded import parse_toml

JOB = ("search", "gpt2", "--seq-len", "128", "--system", "dgx-a100", "--nodes", "1", "--under", "batch=8")
SHAPES = ("--among", "recompute=none", "--among", "tp=1,2", "--among", "pp=1,2")
FEW = (*SHAPES, "--among", "micro-batch-size=1", "--among", "schedule=1f1b,zb-h1")


def test_the_best_plans_are_ranked_and_can_be_copied(tmp_path: Path) -> None:
    words = (*JOB, *FEW, "--best", "2", "--price", "2/h", "--front", "--among", "zero=1", "--json", "plans.json")
    shown = run(*words, cwd=tmp_path).stdout
    assert "The best of them as a command:" in shown
    assert "No other plan beats these" in shown
    assert not any(line.endswith("B") and len(line.split()) == 2 for line in shown.splitlines())  # memory alone
    assert "legal plans were predicted" in shown
    assert "A device hour costs 2 USD, as given." in shown
    found = json.loads((tmp_path / "plans.json").read_text())
    assert found["schema"] == "triosim/search/1"
    assert [one["rank"] for one in found["plans"]] == [1, 2]
    best = found["plans"][0]
    assert best["command"] in shown
    assert best["usd_per_iteration"] == pytest.approx(best["figures"]["iteration_time_s"] * 8 * 2 / 3600)
    assert best["tokens_per_usd"] == pytest.approx(8 * 128 / best["usd_per_iteration"])
    alone = json.loads(run(*shlex.split(best["command"])[1:], "--json", "-").stdout)
    assert alone["iteration_time_s"] == pytest.approx(best["figures"]["iteration_time_s"], rel=1e-3)
    assert not list(tmp_path.glob("*.jsonl"))


def test_options_of_what_a_plan_does_not_divide_are_left_out_of_its_command() -> None:
    """How ranks share sequences and experts is said of the plans in which they do."""
    words = ("search", "gpt2", "--seq-len", "128", "--system", "dgx-a100", "--under", "batch=8", "--among", "cp=1,2")
    words += ("--among", "tp=1", "--among", "pp=1", "--parallelism-option", "cp-style=ring", "--best", "40")
    found = json.loads(run(*words, "--json", "-").stdout)["plans"]
    assert {one["asked"]["cp"] for one in found} == {1, 2}
    for one in found:
        assert ("cp-style=ring" in one["command"]) == (one["asked"]["cp"] == 2)
    for cp in (1, 2):
        one = next(one for one in found if one["asked"]["cp"] == cp)
        alone = json.loads(run(*shlex.split(one["command"])[1:], "--json", "-").stdout)
        assert alone["iteration_time_s"] == pytest.approx(one["figures"]["iteration_time_s"], rel=1e-3)


def test_where_nothing_fits_it_says_what_a_plan_must_hold() -> None:
    """16 bytes of each parameter (weight, gradient, float32 copy and moments), on eight devices."""
    shown = run("search", "llama-3-70b", "--system", "dgx-h100", "--nodes", "1", "--under", "batch=8").stdout
    assert f"Each must hold at least {70_553_706_496 * 16 / 8 / 2**30:.1f} GiB on a device" in shown


def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    many = (*SHAPES, "--among", "micro-batch-size=1,2", "--among", "zero=1")  # so many that some are left when it dies
    words = (*JOB, *many, "--best", "6", "--json", "plans.json", "--quiet")
    journal = tmp_path / "plans.json.journal.jsonl"
    run_until_killed(3, *words, cwd=tmp_path)
    assert not (tmp_path / "plans.json").exists()
    assert "plans are known" in run(*words[:-1], cwd=tmp_path).stderr
    first = (tmp_path / "plans.json").read_bytes()
    assert not journal.exists()
    run(*words, cwd=tmp_path)
    assert (tmp_path / "plans.json").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--under", "batch=9"), "--under gives batch twice"),
        (("--under", "speed=1"), "unknown name after --under"),
        (("--objective", "speed"), "unknown objective"),
        (("--among", "dp=1"), "unknown name after --among"),
        (("--routing", "zipf"), "no plan can be formed: unknown routing 'zipf'"),
        (("--quantize", "nvfp4", "--among", "tp=1"), "no plan can be formed: quantize nvfp4: the matrix units of"),
        (("--best", "0"), "--best must be at least 1"),
        (("--workers", "0"), "--workers must be at least 1"),
        (("--export", "nemo"), "unknown framework"),
        (("--export", "megatron="), "give the file a name"),
        (("--nodes", "1,x"), "--nodes must be whole numbers"),
        (("--devices", "16"), "--system and --devices describe the machine twice"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    done = run(*JOB, *words, code=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "1", "--under", "batch=0"), "--under batch must be at least 1, got 0"),
        (("--nodes", "1", "--under", "memory=1GB"), "give --under batch=N"),
        (
            ("--devices", "12", "--under", "batch=8"),
            "--devices 12 are no whole servers of 8: nearest that are: 8 or 16",
        ),
    ],
)
def test_what_is_lacking_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    assert said in run("search", "gpt2", "--system", "dgx-a100", *words, code=2).stderr


def test_a_machine_that_is_not_told_is_asked_for() -> None:
    for words, said in (
        ((), "how many devices there are is not known: give --system, or --devices N"),
        (("--device", "A100-SXM4-80GB", "--nodes", "2"), "name one (of A100-SXM4-80GB: "),
    ):
        assert said in run("search", "gpt2", *words, "--under", "batch=8", code=2).stderr


def test_what_all_plans_have_in_common_stands_in_the_command() -> None:
    common = ("--optimizer", "adam8bit", "--interference", "off", "--lora", "16")
    words = ("search", "gpt2", "--seq-len", "128", "--system", "dgx-a100", "--devices", "8", "--under", "batch=8")
    found = json.loads(run(*words, *common, *FEW, "--under", "memory=30GB", "--best", "1", "--json", "-").stdout)
    (best,) = found["plans"]
    assert all(word in shlex.split(best["command"]) for word in common)
    alone = json.loads(run(*shlex.split(best["command"])[1:], "--json", "-").stdout)
    assert alone["iteration_time_s"] == pytest.approx(best["figures"]["iteration_time_s"], rel=1e-3)


def test_the_best_plan_is_written_for_a_framework(tmp_path: Path) -> None:
    among = ("--among", "recompute=none", "--among", "tp=2", "--among", "pp=1", "--best", "3")
    shown = run(*JOB, *among, "--among", "zero=2,3", "--export", "megatron").stdout
    assert "megatron cannot say zero 2" in shown
    assert "--use-megatron-fsdp" in shown
    run(*JOB, *among, "--among", "zero=3", "--among", "sequence-parallel=on", "--export", "torchtitan=job.toml",
        "--json", "plans.json", cwd=tmp_path)  # fmt: skip
    read = parse_toml((tmp_path / "job.toml").read_text(), "job.toml")
    best = json.loads((tmp_path / "plans.json").read_text())["plans"][0]
    assert read["parallelism"]["data_parallel_shard_degree"] == best["asked"]["dp"]
    assert read["training"]["seq_len"] == 128
    assert best["configuration"] == {"framework": "torchtitan", "text": (tmp_path / "job.toml").read_text(), "why": ""}
    none = run(*JOB, *among, "--among", "zero=1", "--export", "torchtitan", "--json", "none.json", cwd=tmp_path, code=2)
    assert "torchtitan cannot say" in none.stderr
    assert "cannot say" in json.loads((tmp_path / "none.json").read_text())["plans"][0]["configuration"]["why"]
