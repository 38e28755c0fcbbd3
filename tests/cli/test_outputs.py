"""What the command writes, wherever it goes: files, standard output, pipes, full disks, poor terminals."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import triosim
from tests.command import run, spawn
from tests.traces import chain
from triosim.cli.streams import rich_console

JOB = ("--devices", "2", "--link", "1GB/s")
posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outputs") / "chain.triosim"
    triosim.save(chain(layers=4), path)
    return path


def _shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of ``triosim`` in a line."""
    function = f'triosim() {{ "{sys.executable}" -m triosim "$@"; }}\n'
    done = subprocess.run(
        ["/bin/sh", "-c", function + line], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(("option", "name"), [("--timeline", "file.json"), ("--report", "file.html")])
def test_each_output_goes_to_standard_output(trace: Path, tmp_path: Path, option: str, name: str) -> None:
    shown = run("train", trace, *JOB, option, "-", "--json", tmp_path / "result.json")
    run("train", trace, *JOB, option, tmp_path / name)
    written = (tmp_path / name).read_text(encoding="utf-8")
    assert (shown.stdout[:99], shown.stdout[-99:]) == (written[:99], written[-99:])
    written_line, took = shown.stderr.splitlines()
    assert written_line == f"result    {tmp_path / 'result.json'}"
    assert took.startswith("took ")


def test_a_trace_goes_to_standard_output(trace: Path, tmp_path: Path) -> None:
    imported = subprocess.run(
        [sys.executable, "-m", "triosim", "trace", "import", trace, "-o", "-"], stdout=subprocess.PIPE, check=True
    )
    assert imported.stdout == trace.read_bytes()


def test_a_recorded_trace_is_not_mixed_with_what_the_script_prints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "step.py").write_text(
        "import os, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "while True:\n"
        "    print('from the script')\n"
        "    os.system('echo from another program')\n"
        "    model(torch.zeros(2, 4)).sum().backward()\n"
    )
    command = [sys.executable, "-m", "triosim", "trace", "record", "step.py", "-o", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert "meta.json" in zipfile.ZipFile(io.BytesIO(done.stdout)).namelist()
    assert done.stderr.count(b"from the script\n") == done.stderr.count(b"from another program\n") >= 3


def test_a_calibration_goes_to_standard_output(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "gpt-small-cpu.triosim"
    assert json.loads(run("calibrate", example, "-o", "-").stdout)["schema"] == "triosim/calibration/2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--json", "-", "--report", "-"), "--json and --report cannot both go to standard output"),
        (("--json", "{trace}"), "--json {trace} would overwrite what WORKLOAD reads"),
        (("--report", "{folder}/link"), "--report {folder}/link would overwrite what WORKLOAD reads"),
        (("--also", "{folder}/other", "--timeline", "{folder}/other"), "would overwrite what --also reads"),
        (("--json", "{folder}/one", "--report", "{folder}/./one"), "--json and --report both write"),
        (("--chakra", "{folder}/out", "--json", "{folder}/out/r.json"), "one lies in the other"),
        (("--chakra", "{folder}"), "--chakra {folder} would overwrite what WORKLOAD reads"),
        (("--chakra", "{folder}/notes"), "holds 'thesis.tex', which is not of an earlier run"),
        (("--chakra", "-"), "a folder cannot go to standard output"),
        (("--json", "{folder}/notes"), "it is a folder; give the name of a file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outputs_that_would_destroy_something_are_refused(
    trace: Path, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    own, other = tmp_path / "chain.triosim", tmp_path / "other"
    for path in (own, other):
        path.write_bytes(trace.read_bytes())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("")
    if sys.platform != "win32":
        (tmp_path / "link").symlink_to(own)
    given = {"trace": own, "folder": tmp_path}
    done = run("train", own, *JOB, *(word.format(**given) for word in words), code=2)
    assert sentence.format(**given) in done.stderr
    assert done.stdout == ""
    assert own.read_bytes() == other.read_bytes() == trace.read_bytes()


def test_a_trace_is_not_imported_onto_itself(trace: Path, tmp_path: Path) -> None:
    own = tmp_path / "chain.triosim"
    own.write_bytes(trace.read_bytes())
    done = run("trace", "import", own, code=2, cwd=tmp_path)
    assert "--output chain.triosim would overwrite what PATH reads" in done.stderr


def test_ranks_of_a_larger_job_do_not_stay(trace: Path, tmp_path: Path) -> None:
    for ranks in (4, 2):
        run("train", trace, "--devices", ranks, "--link", "1GB/s", "--chakra", tmp_path / "out")
        assert len(list((tmp_path / "out").glob("*.et"))) == ranks


@posix
@pytest.mark.parametrize("words", ["devices", "train {trace} --dp 1 --json -", "--help"])
def test_a_full_disk_is_a_sentence(trace: Path, words: str) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no full device here")
    done = _shell(f"triosim {words.format(trace=trace)} > /dev/full")
    assert done.stderr.startswith("triosim: cannot write standard output: No space left on device")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


@posix
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("triosim train {trace} --dp 1 --json - >&-", 2),
        ("triosim devices >&-", 0),
        ("triosim train absent 2>&-", 2),
    ],
)
def test_a_closed_stream_is_a_sentence_or_nothing(trace: Path, line: str, code: int) -> None:
    done = _shell(line.format(trace=trace))
    assert done.returncode == code
    closed = "triosim: cannot write standard output: it is closed; name a file instead\n"
    assert done.stderr == (closed if "- >&-" in line else "")


@posix
def test_a_reader_that_has_seen_enough_is_no_fault(trace: Path) -> None:
    done = _shell(f"triosim train {trace} --dp 1 --report - | head -c 9")
    assert done.stdout == "<!doctype"
    assert done.stderr == ""


@pytest.mark.parametrize("columns", ["0", "1", "7", "x"])
def test_a_terminal_without_a_width(columns: str, monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert rich_console().width >= 40
    for words in (("devices",), ("train", trace, "--dp", "1"), ("train", "--help"), ("trace", "show", trace)):
        assert len(run(*words).stdout) > 100


def test_a_terminal_of_ascii(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "Zeit in µs….json"
    poor = {"PYTHONIOENCODING": "ascii"}
    done = spawn("train", trace, *JOB, "--json", file, **poor)
    assert done.stdout.isascii()
    assert done.stdout.splitlines()[-1].endswith("Zeit in us..json")
    assert "unknown model 'm?del'" in spawn("train", "mödel", code=2, **poor).stderr


@pytest.mark.parametrize("module", ["triosim.cli.main", "typer", "triosim.core.outputs", "numpy"])
def test_an_interruption_while_modules_are_imported(trace: Path, module: str) -> None:
    code = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs tests in the background ignores it

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED"] and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from triosim.__main__ import main
main()
"""
    command = [sys.executable, "-c", code, "train", str(trace), "--dp", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "INTERRUPTED": module})
    assert done.returncode == 130
    assert done.stderr in ("", "triosim: interrupted\n")
    assert done.stdout == ""
