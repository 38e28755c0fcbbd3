"""Every command once from end to end, as a user types it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

import triosim
from tests.command import run
from tests.traces import chain

BREAKDOWN = ("compute", "exposed_communication", "host", "idle")


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chain.triosim"
    triosim.save(chain(layers=8, optimizer_s=1e-3), path)
    return path


def _result(*arguments: str | Path) -> dict:
    done = run(*arguments, "--json", "-")
    return json.loads(done.stdout)


def test_train_prints_only_json_when_asked(trace: Path) -> None:
    result = _result("train", trace, "--devices", "4", "--topology", "ring", "--link", "1GB/s", "--latency", "2us")
    assert result["schema"] == "triosim/result/1"
    assert result["iteration_time_s"] == pytest.approx(sum(result["breakdown_s"][k] for k in BREAKDOWN))
    low, high = result["interval_s"]
    assert low <= result["iteration_time_s"] <= high
    assert result["confidence"] == 0.9
    assert result["plan"]["dp"] == 4
    assert result["throughput"]["samples_per_s"] == pytest.approx(4 * 64 / result["iteration_time_s"])
    for key in ("memory", "devices", "stages", "layers", "collectives", "workload", "system", "sources", "simulation"):
        assert result[key], key
    assert set(result["simulation"]) == {"tasks", "flows", "draws", "drawn"}
    (row,) = result["devices"]
    assert set(row) >= {
        "rank",
        "count",
        "stage",
        "busy_s",
        "communication_s",
        "idle_s",
        "host_cpu_s",
        "allocated_bytes",
    }


@pytest.mark.parametrize(
    "plan",
    [
        ("--dp", "4"),
        ("--tp", "4", "--tp-style", "gather"),
        ("--pp", "4", "--micro-batches", "8", "--schedule", "gpipe"),
        ("--dp", "2", "--tp", "2", "--overlap", "off"),
        ("--dp", "4", "--global-batch-size", "128", "--bucket-size", "64KiB"),
        ("--pp", "2", "--dp", "2", "--stages", "layer3", "--iterations", "2"),
        ("--batch-size", "32", "--host", "eager", "--operator-times", "proportional"),
    ],
    ids=" ".join,
)
def test_every_option_of_a_plan(trace: Path, plan: tuple[str, ...]) -> None:
    result = _result("train", trace, "--devices", "4", "--link", "1GB/s", *plan)
    assert result["iteration_time_s"] > 0


@pytest.mark.parametrize("topology", ["switch", "full", "ring", "mesh", "torus", "tree", "fat-tree"])
def test_every_topology(trace: Path, topology: str) -> None:
    result = _result("train", trace, "--devices", "4", "--topology", topology, "--link", "1GB/s", "--latency", "1us")
    assert result["system"]["topology"] == topology


def test_train_summarises_and_writes_what_is_asked(trace: Path, tmp_path: Path) -> None:
    out = [tmp_path / name for name in ("r.json", "t.json.gz", "p.html")]
    arguments = ("--devices", "2", "--link", "1GB/s", "--json", out[0], "--timeline", out[1], "--report", out[2])
    done = run("train", trace, *arguments)
    assert "Iteration" in done.stdout
    assert all(str(path) in done.stdout for path in out)
    assert len(done.stdout.splitlines()) < 50
    assert json.loads(out[0].read_text())["plan"]["dp"] == 2
    assert json.loads(gzip.decompress(out[1].read_bytes()))["traceEvents"]
    assert out[2].read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_timeline_of_ranks_that_send_nothing(trace: Path, tmp_path: Path) -> None:
    run("infer", trace, "--system", "dgx-a100", "--timeline", tmp_path / "t.json", "--report", tmp_path / "p.html")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_infer_runs_forward_only(trace: Path) -> None:
    result = _result("infer", trace)
    assert result["iteration_time_s"] == pytest.approx(8e-3)
    assert {row["phase"] for row in result["layers"]} == {"forward"}


def test_a_model_by_name_on_a_ready_system() -> None:
    result = _result("train", "llama-3-8b", "--system", "dgx-h100", "--dp", "8", "--seq-len", "512")
    assert result["workload"]["parameters"] == 8030261248
    assert result["throughput"]["tokens_per_s"] == pytest.approx(8 * 512 / result["iteration_time_s"])
    assert result["interval_s"][1] > 1.05 * result["iteration_time_s"]


def test_nodes_are_added_until_the_plan_fits() -> None:
    result = _result("train", "gpt2", "--system", "dgx-a100", "--dp", "16", "--seq-len", "128")
    assert result["system"]["devices"] == 16


def test_devices_may_be_left_idle(trace: Path) -> None:
    result = _result("train", trace, "--devices", "8", "--link", "1GB/s", "--dp", "3", "--idle-ok")
    assert (result["plan"]["dp"], result["system"]["devices"]) == (3, 8)


def test_a_system_of_ones_own(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        'name = "two"\n[[device]]\nname = "a"\nmodel = "A100"\n[[device]]\nname = "b"\nmodel = "A100"\n'
        '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "10GB/s"\nlatency = "5us"\n'
    )
    result = _result("train", trace, "--system", file, "--dp", "2")
    assert result["system"]["name"] == "two"


def test_a_tensor_parallel_plan_of_ones_own(trace: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('"layer0" = "colwise"\n"layer1" = "rowwise"\n')
    result = _result("train", trace, "--tp", "2", "--link", "1GB/s", "--tp-plan", plan)
    assert sum(c["count"] for c in result["collectives"] if c["axis"] == "tp") == 2


def test_places(trace: Path) -> None:
    plain = _result("train", trace, "--host-link", "100MB/s")
    result = _result("train", trace, "--host-link", "100MB/s", "--place", "weight=host", "--place", "input=host")
    assert result["iteration_time_s"] > plain["iteration_time_s"]


def test_systems_devices_and_models_are_listed_and_shown() -> None:
    for command, name, words in (
        ("systems", "dgx-h100", "NVLink"),
        ("devices", "H100", "Hopper"),
        ("devices", "T4", "bfloat16 emulated at 0.55 of float32"),
        ("devices", "T4", "float16, int8 (compute capability 7.5)"),
        ("models", "llama-3-8b", "8,030,261,248"),
    ):
        assert name.lower().split("-")[0] in run(command).stdout.lower()
        assert words in run(command, name).stdout


def test_trace_show_and_import(trace: Path, tmp_path: Path) -> None:
    shown = run("trace", "show", trace, "--operators").stdout
    assert "aten::linear" in shown
    assert "backward" in shown
    target = tmp_path / "copy.triosim"
    assert str(target) in run("trace", "import", trace, "-o", target).stdout.replace("\n", "")
    assert triosim.load(target).operators.name == triosim.load(trace).operators.name


def test_version_names_the_engine() -> None:
    assert run("--version").stdout.startswith(f"triosim {triosim.__version__} (")


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    for command in ("train", "infer", "trace", "systems", "devices", "models"):
        assert command in text


def test_a_second_recording_of_another_device(tmp_path) -> None:
    recorded = chain(layers=8, optimizer_s=1e-3)
    paths = []
    for device, times in (("NVIDIA A40", 1.0), ("NVIDIA A100-SXM4-80GB", 0.2)):
        operators = replace(recorded.operators, device_s=recorded.operators.device_s * times)
        paths.append(tmp_path / f"{device.split()[-1]}.triosim")
        triosim.save(replace(recorded, operators=operators, meta=replace(recorded.meta, device=device)), paths[-1])
    given = ([paths[0]], [paths[1]], [paths[0], "--also", paths[1]])
    seconds = [_result("train", *one, "--device", "H100")["iteration_time_s"] for one in given]
    assert min(seconds[:2]) < seconds[2] < max(seconds[:2])


@pytest.mark.parametrize("words", [("--rounds", "3"), ("--model", "gpt-tiny"), ("--json", "x.json")])
def test_recording_refuses_options_of_jobs(words: tuple[str, str], tmp_path: Path) -> None:
    done = run("validate", "--record", "folder", *words, cwd=tmp_path, code=2)
    assert f"{words[0]} says something of jobs, and --record runs none" in done.stderr
