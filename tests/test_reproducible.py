"""Equal input gives equal bytes: from run to run, under any hash seed, on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run, spawn
from tests.traces import chain
from triosim.engine.play import ENGINES
from triosim.engine.stats import Stats
from triosim.interop.astra.play import AstraResult

JOBS = {
    "interval from draws, transfers that share links": (
        "train gpt2 --device A100 --devices 8 --tp 2 --pp 2 --micro-batches 4 --link 25GB/s --latency 2us"
    ),
    "a network model that serves one of two equal messages first": (
        "train TRACE --devices 4 --topology ring --link 1GB/s --bucket-size 1KiB --solver store-and-forward"
    ),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_results_pages_and_timelines_are_equal_byte_for_byte(job: str, tmp_path: Path) -> None:
    trace = tmp_path / "chain.triosim"
    triosim.save(chain(layers=8, optimizer_s=1e-3), trace)
    files = {}
    for seed, engine in enumerate([*ENGINES, "reference"]):
        own = tmp_path / str(seed)
        own.mkdir()
        outputs = {name: own / name for name in ("result.json", "page.html", "timeline.json.gz")}
        words = [str(trace) if word == "TRACE" else word for word in job.split()]
        options = [
            text for pair in zip(("--json", "--report", "--timeline"), outputs.values(), strict=True) for text in pair
        ]
        done = spawn(*words, *options, PYTHONHASHSEED=str(seed), TRIOSIM_ENGINE=engine)
        assert f"{engine} engine" in done.stderr
        printed = done.stdout.replace(str(own), "").encode()
        files[seed] = {**{name: path.read_bytes() for name, path in outputs.items()}, "printed": printed}
    first, *others = files.values()
    assert json.loads(first["result.json"])["simulation"]["draws"] > 0
    for other in others:
        for name, content in first.items():
            assert other[name] == content, name


def test_a_seed_governs_the_draws_and_nothing_else() -> None:
    job, system = triosim.model("gpt2", batch_size=4), triosim.system(device="H100", devices=1)
    one, same, other = (triosim.simulate(job, system, fidelity=triosim.Fidelity(seed=seed)) for seed in (0, 0, 1))
    assert one.to_json() == same.to_json()
    assert other.interval_s != one.interval_s
    plain, again = one.to_dict(), other.to_dict()
    for row in (*plain["cost"]["rows"], *again["cost"]["rows"]):
        del row["interval"]  # of which that of the time is a cause
    assert {key for key in plain if plain[key] != again[key]} == {"interval_s", "fidelity"}
    assert {key for key in plain["fidelity"] if plain["fidelity"][key] != again["fidelity"][key]} == {"seed"}


@pytest.mark.parametrize("seed", ["-1", "1.5", "abc"])
def test_a_seed_is_a_whole_number_of_at_least_0(seed: str) -> None:
    done = run("train", "gpt2", "--device", "H100", "--devices", "1", "--seed", seed, code=2)
    assert "seed" in done.stderr
    assert seed != "-1" or "seed must be a whole number of at least 0, got -1" in done.stderr


def test_the_number_of_draws_is_decided_by_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,474 tasks: the engines once drew 200 times and not at all, for each had a budget of its own."""
    job = triosim.model("llama-3-8b"), triosim.system("dgx-h100"), triosim.Plan(tp=8)
    results = []
    for engine in ENGINES:
        monkeypatch.setenv("TRIOSIM_ENGINE", engine)
        results.append(triosim.simulate(*job))
        assert results[-1].stats is not None
        assert results[-1].stats.engine == engine
    assert results[0].simulation.draws == 200
    assert {result.to_json() for result in results} == {results[0].to_json()}


def test_what_a_prediction_took_is_told_beside_it(tmp_path: Path) -> None:
    trace = tmp_path / "chain.triosim"
    triosim.save(chain(layers=8), trace)
    done = run("train", trace, "--json", "-")
    assert set(json.loads(done.stdout)["simulation"]) == {"tasks", "flows", "draws", "drawn"}
    (line,) = done.stderr.splitlines()
    assert line.startswith("took ")
    assert " engine): " in line
    done = run("train", trace, "--json", "-", "--stats", tmp_path / "stats.json")
    assert not any(line.startswith("took ") for line in done.stderr.splitlines())
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["schema"] == "triosim/stats/1"
    assert set(stats) == {"schema", "wall_s", "cpu_s", "engine", "tasks", "flows", "draws", "drawn"}
    assert stats["engine"] in ENGINES
    assert stats["wall_s"] > 0
    done = run("train", trace, "--json", tmp_path / "same", "--stats", tmp_path / "same", code=2)
    assert "--stats" in done.stderr


def test_what_a_simulation_of_astra_sims_files_took_is_no_part_of_its_json() -> None:
    made = [
        AstraResult((), "w", "s", "n", "max-min", "one", 0, {"tasks": 1}, (), Stats(wall, wall, engine))
        for wall, engine in ((0.1, "native"), (0.2, "reference"))
    ]
    assert made[0].to_json() == made[1].to_json()
