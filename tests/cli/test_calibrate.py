"""``triosim calibrate`` as a user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command import run
from tests.kernels.calibration.example import pack
from triosim.cli import measuring
from triosim.cli.calibrate import _tell_few
from triosim.cli.main import app
from triosim.core.errors import InputError
from triosim.kernels.calibration.pack import text

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "gpt-small-cpu.triosim"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("calibrate")
    done = run("calibrate", EXAMPLE, cwd=folder)
    return folder / "AMD-EPYC-calibration.json", done.stdout


def test_a_trace_gives_a_pack_and_a_table(made: tuple[Path, str]) -> None:
    path, out = made
    document = json.loads(path.read_text())
    assert document["schema"] == "triosim/calibration/2"
    assert document["provenance"]["trace"] == EXAMPLE.name
    assert re.search(r"^class +kernels +compute +memory +launch +before +after +interval$", out, re.MULTILINE)
    assert re.search(r"^matrix/simt +\d+ +x[\d.]+ ", out, re.MULTILINE)
    assert f"--operator-times {path.name}" in out
    assert all(len(line) <= 80 and line == line.rstrip() for line in out.splitlines() if not line.startswith("pack"))


def test_a_prediction_uses_the_pack_and_says_so(made: tuple[Path, str]) -> None:
    path, _ = made
    done = run("train", EXAMPLE, "--batch-size", "16", "--operator-times", path, "--json", "-", cwd=path.parent)
    result = json.loads(done.stdout)
    assert any("kernels measured on AMD EPYC" in sentence for sentence in result["sources"])
    assert 1.5 < result["iteration_time_s"] < 2.5, "about twice the second of batch 8"


def test_a_model_by_name_runs_on_the_calibrated_device(made: tuple[Path, str]) -> None:
    path, _ = made
    words = ("train", "gpt2", "--seq-len", "64", "--precision", "float32", "--operator-times", path, "--json", "-")
    done = run(*words, cwd=path.parent)
    assert "AMD EPYC" in json.loads(done.stdout)["system"]["name"]


def test_on_another_device_it_is_one_sentence(made: tuple[Path, str]) -> None:
    path, _ = made
    done = run("train", EXAMPLE, "--device", "H100", "--operator-times", path, cwd=path.parent, code=2)
    assert "is of 'AMD EPYC', not of 'H100-SXM5-80GB'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "said"), [
    ((), "triosim calibrate takes"),
    (("x.triosim", "--run"), "triosim calibrate takes"),
    (("none.triosim",), "none.triosim: no such file or folder"),
    ((str(EXAMPLE), "--budget", "4m"), "--budget bounds the measurements of --run"),
    ((str(EXAMPLE), "--device", "H1000"), "unknown device 'H1000'"),
    (("--run", "--budget", "1s"), "too short to measure anything"),
    (("--run", "--budget", "soon"), "--budget"),
    (("--run", "--step", "3"), "--step chooses among the steps of a trace"),
    (("--power", "nvidia-smi", "--threads", "2"), "--runtime and --threads say how kernels are measured"),
    (("--power", "nvidia-smi", "--export-kernels", "k"), "triosim calibrate takes"),
])  # fmt: skip
def test_what_the_user_got_wrong_is_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", *words])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_budgets_are_times() -> None:
    assert measuring._seconds("4m") == 240
    assert measuring._seconds("1.5 min") == 90
    assert measuring._seconds("30s") == 30
    assert measuring._seconds("45") == 45
    with pytest.raises(InputError, match="unknown unit"):
        measuring._seconds("4 parsecs")


def test_being_interrupted_writes_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import triosim.sources.record as record

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "measure", interrupted, raising=False)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", "--run", "--device", "cpu"])
    assert done.exit_code == 130
    assert "interrupted, nothing was written" in done.output
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_the_catalog_does_not_know_is_told_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import triosim.sources.record as record

    monkeypatch.setattr(record, "devices_here", lambda: ["cuda", "cpu"], raising=False)
    monkeypatch.setattr(record, "device_name", lambda kind: "Dream-1", raising=False)
    monkeypatch.setattr(record, "measure", lambda *_: pytest.fail("must not begin"), raising=False)
    with pytest.raises(InputError, match="does not know 'Dream-1': describe it in a file"):
        measuring.measured_here(None, None, None, None)


def test_kernels_measured_here_make_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of small kernels through the whole command; the real one takes minutes."""
    pytest.importorskip("torch")
    from triosim.sources.record import bench, cases

    monkeypatch.setattr(bench, "_MOST_CASES", 24)
    monkeypatch.setattr(bench, "LONGEST_S", 1e-3)
    monkeypatch.setattr(bench, "TOO_MUCH", 100.0)
    monkeypatch.setattr(cases, "LARGE_BYTES", 2**22)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", "--run", "--device", "cpu", "--budget", "4m", "-o", "here.json"])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "here.json").read_text())
    assert document["device"]["kind"] == "cpu"
    assert document["device"]["confidence"] == "measured"
    assert document["provenance"]["made_by"] == "triosim.calibrate"
    assert document["versions"]["torch"]
    assert {"gemm", "convolution", "attention", "stream"} <= set(document["samples"])


@pytest.mark.parametrize(("words", "said"), [
    ((str(EXAMPLE), "--device", "A100"), "was recorded on 'AMD EPYC', and its kernels say nothing of A100-SXM4-80GB"),
    (("--run", "--budget", "inf"), "--budget 'inf' never ends"),
    (("--run", "--threads", "100000"), "--threads 100000: this machine has "),
    (("--import", "measured.csv", "--device", ""), "--import takes the name of what was measured"),
    (("--import", "measured.csv", "--device", "a/b"), "a/b"),
    (("--import", "measured.csv", "--device", "Pixel 8.1"), "kernels.json, which says what each kernel is"),
])  # fmt: skip
def test_what_would_measure_something_else_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text("kernel,ms\nk0000,1\n")
    done = run("calibrate", *words, cwd=tmp_path, code=2)
    assert said in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_a_pack_from_few_kernels_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """As measured in five seconds: a kernel or two, and all others are predicted as without the pack."""
    _tell_few(pack(1), "5s", None)
    told = " ".join(capsys.readouterr().out.split())
    assert "kernels were measured in 5s, of" in told
    assert "all others will be predicted as without this pack; give a longer --budget" in told
    _tell_few(pack(25), "5s", None)
    assert not capsys.readouterr().out


def test_range_is_said_of_networks_from_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text(text(pack()))
    done = run("infer", "gpt2", "--operator-times", path, "--extrapolate", code=2)
    assert "--extrapolate is of networks from files (ONNX, nn-Meter)" in done.stderr


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_table_of_other_columns_than_commas_is_refused(mark: str, name: str, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"arch{mark}ms\nresnet18{mark}1,5\n")
    phases = tmp_path / "phases.csv"
    phases.write_text(mark.join(["time", "watts"]) + "\n" + mark.join(["0", "1,5"]) + "\n")
    for words in (("--few", table), ("--iterations", table), ("--power", phases, "--phases", phases)):
        done = run("calibrate", *words, "--device", "A100", code=2) if words[0] != "--iterations" else run(
            "calibrate", *words, code=2)  # fmt: skip
        assert f"columns are separated by {name}: export it with commas" in done.stderr
