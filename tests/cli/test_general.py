"""What every command takes and says: help in groups, -h, --quiet, --verbose, --traceback, --max-memory, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

import triosim
from tests.command import Done, run
from tests.traces import chain
from triosim.cli.main import COMMANDS

GROUPS = {"trace": ("record", "import", "show"), "accelerator": ("evaluate",)}
EVERY = [words for name in COMMANDS for words in [(name, sub) for sub in GROUPS.get(name, ())] or [(name,)]]
COMMON = ("-h, --help", "-q, --quiet", "-v, --verbose", "--traceback", "--max-memory SIZE")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    triosim.save(chain(layers=8), tmp_path / "chain.triosim")
    return tmp_path


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_the_common_options_and_both_helps(words: tuple[str, ...], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(*words, "-h").stdout
    assert text == run(*words, "--help").stdout
    for option in COMMON:
        assert option in text
    assert max(map(len, text.splitlines())) <= 80
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_every_command_is_listed_under_its_name_and_whole(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), *((name,) for name in GROUPS)):
        text = run(*words, "-h").stdout
        assert "..." not in text.split("\n\n", 2)[2]
        assert max(map(len, text.splitlines())) <= 80
    text = run("-h").stdout
    assert text == run("--help").stdout
    for name, command in COMMANDS.items():
        assert f"  {name:10}" in text
        assert command.about in text
        assert run(name, "-h").stdout.splitlines()[0].partition("triosim ")[2].startswith(f"{name} ")


def test_options_of_train_are_in_groups(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("train", "-h").stdout.splitlines()
    groups = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups == [
        "Arguments", "Workload", "Machine", "How it is divided", "Batch", "Memory", "Communication",
        "How it is predicted", "Many plans", "Output",
        "Power, energy and cost", "Post-training", "General",
    ]  # fmt: skip
    assert lines.index("Machine:") < next(i for i, line in enumerate(lines) if "--system NAME|FILE" in line)
    assert sum(line.startswith("  --dp N ") for line in lines) == 1


def test_no_word_of_help_is_broken(monkeypatch) -> None:
    for columns in (50, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert {"fat-tree,", "large-model,", "interleaved-1f1b,"} <= set(run("train", "-h").stdout.split())


def test_help_loads_no_command_and_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['triosim', '--help']\nfrom triosim.__main__ import main\n"
    code += "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.split())
    assert "triosim.cli.main" in loaded
    heavy = {"numpy", "pydantic", "rich", "yaml"}
    assert not loaded & {"triosim.cli.predict", "triosim.plan", "triosim.core.registry", *heavy}


def test_a_prediction_loads_nothing_heavy_that_it_does_not_use() -> None:
    code = "import sys; sys.argv = ['triosim', 'train', 'bert-base', '--system', 'dgx-h100', '--tp', '2']\n"
    code += "from triosim.__main__ import main\ntry:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.split())
    assert "triosim.report.terminal" in loaded
    heavy = {"pydantic", "yaml", "torch", "pandas", "pyarrow", "tempfile", "importlib.resources"}
    assert not loaded & heavy
    others = {
        "accelerator.designs", "cli.resuming", "composition.residual", "engine.check", "engine.reference",
        "hardware.description", "hardware.designed",
        "kernels.calibration.pack", "kernels.models.roofline", "kernels.pack", "kernels.transfer",
        "network.scale_up_routes", "partition.rules.context", "partition.rules.dataparallel",
        "partition.rules.experts", "partition.rules.offload", "prediction.variation", "schedule.deadlock",
        "schedule.pass_times", "search.clock_search", "search.sweep", "sources.models._dora",
        "sources.models._scan", "sources.models._unfused", "trace.store", "transform.alignment",
        "transform.blockwise", "transform.recompute_regions", "transform.rewriting",
    }  # fmt: skip
    for name in sorted(others):  # each is there, and not loaded
        assert find_spec(f"triosim.{name}") is not None
        assert f"triosim.{name}" not in loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_only_the_command_that_is_asked_for_is_made(name: str) -> None:
    holder = typer.Typer()
    module, _, function = COMMANDS[name].module.partition(":")
    getattr(import_module(f"triosim.cli.{module}"), function or "register")(holder)
    assert [made.name for made in (*holder.registered_commands, *holder.registered_groups)] == [name]


def test_a_prediction_starts_no_threads_of_linear_algebra() -> None:
    code = "import os; from triosim.cli.command import import_numpy; import_numpy(); import numpy\n"
    code += "print(len(os.listdir('/proc/self/task')), 'OPENBLAS_NUM_THREADS' in os.environ)"
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted on Linux only")
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment).stdout
    assert said == "1 False\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trian",), "no such command 'trian'"),
        (("trace", "foo"), "no such command 'foo'"),
        (("train",), "missing argument 'WORKLOAD'"),
        (("train", "gpt2", "--dvices", "3"), "--dvices"),
        (("train", "gpt2", "--dp", "x"), "'--dp'"),
        (("train", "gpt2", "more"), "unexpected extra argument"),
        (("astra",), "missing option '--workload'"),
        (("--foo",), "--foo"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    text = run(*words, code=2).stderr
    assert said in text
    assert "-h says what there is" in text
    assert text.startswith("triosim: ")
    assert len(text.splitlines()) == 1


# --- quiet and verbose ------------------------------------------------------------------------------------------------


def _train(folder: Path, *more: str, code: int = 0) -> Done:
    return run("train", "chain.triosim", "--devices", "2", "--link", "1GB/s", *more, cwd=folder, code=code)


def test_quiet_says_the_result_and_nothing_else(folder: Path) -> None:
    loud, quiet = _train(folder), _train(folder, "-q")
    assert loud.stdout == quiet.stdout
    assert "took" in loud.stderr
    assert not quiet.stderr


def test_quiet_says_nothing_where_the_result_goes_to_a_file(folder: Path) -> None:
    loud, quiet = _train(folder, "--json", "a.json"), _train(folder, "--json", "b.json", "--quiet")
    assert "result    a.json" in loud.stdout
    assert "Iteration" in loud.stdout
    assert not quiet.stdout
    assert not quiet.stderr
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()


def test_quiet_leaves_errors_and_standard_output(folder: Path) -> None:
    assert "idle" in _train(folder, "-q", "--dp", "1", code=2).stderr
    assert json.loads(_train(folder, "-q", "--json", "-").stdout)["plan"]["dp"] == 2


def test_quiet_imports_without_a_word(folder: Path) -> None:
    done = run("trace", "import", "chain.triosim", "-o", "copy.triosim", "-q", cwd=folder)
    assert not done.stdout
    assert not done.stderr
    assert (folder / "copy.triosim").exists()


def test_verbose_says_each_stage_and_what_it_took(folder: Path) -> None:
    done = _train(folder, "-v")
    for words in (" s  reading the workload", " s  playing the job", " s  adding up", "CPU s)", "B of memory"):
        assert words in done.stderr
    assert done.stdout == _train(folder).stdout
    assert "CPU s)" in run("models", "-v").stderr


def test_quiet_and_verbose_contradict_each_other(folder: Path) -> None:
    assert "give one of them" in _train(folder, "-q", "-v", code=2).stderr


# --- errors and memory ------------------------------------------------------------------------------------------------


def test_traceback_shows_where_an_error_came_up(folder: Path) -> None:
    plain = _train(folder, "--dp", "1", code=2).stderr
    (folder / "own.py").write_text("from triosim.core.registry import registered\n\nraise KeyError('x')\n")
    assert len(plain.splitlines()) == 1
    for more in (("--dp", "1"), ("--solver", "own.py")):
        words = ["train", "chain.triosim", "--devices", "2", "--link", "1GB/s", *more, "--traceback"]
        done = subprocess.run([sys.executable, "-m", "triosim", *words], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 2
        assert done.stderr.startswith("Traceback")
        assert done.stderr.splitlines()[-1].startswith("triosim: ")
    assert "own.py" in done.stderr
    assert "KeyError: 'x'" in done.stderr


def test_max_memory_is_the_limit_of_the_call(folder: Path) -> None:
    from triosim.core.limits import limit_bytes

    before = limit_bytes()
    said = _train(folder, "--max-memory", "1KB", code=2).stderr
    assert "--max-memory" in said
    assert "the limit of" in said
    assert limit_bytes() == before
    _train(folder, "--max-memory", "4GB")


@pytest.mark.parametrize(("size", "words"), [("0", "give a size such as 8GB"), ("much", "--max-memory 'much'")])
def test_a_limit_that_is_none_is_refused(folder: Path, size: str, words: str) -> None:
    assert words in _train(folder, "--max-memory", size, code=2).stderr


# --- recording: what follows the script is the script's ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "output", "passed"),
    [
        (("s.py", "-o", "x.triosim", "-v", "-h"), "x.triosim", ["-v", "-h"]),
        (("-o", "x.triosim", "s.py", "--quiet", "--lr", "1"), "x.triosim", ["--quiet", "--lr", "1"]),
        (("s.py", "--output=x.triosim", "--", "-o", "y"), "x.triosim", ["-o", "y"]),
        (("--max-memory", "4GB", "s.py", "a", "--fake"), None, ["a"]),
        (("s.py",), None, []),
    ],
)
def test_what_follows_the_script_is_passed_to_it(words, output, passed, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("torch")
    from triosim.sources import record

    seen = []

    def record_script(script, arguments, **options):
        seen.append((str(script), arguments, options))
        raise triosim.InputError("seen")

    monkeypatch.setattr(record, "record_script", record_script)
    (tmp_path / "s.py").write_text("")
    assert "seen" in run("trace", "record", *words, code=2, cwd=tmp_path).stderr
    assert [(script, arguments) for script, arguments, _ in seen] == [("s.py", passed)]
    assert seen[0][2]["fake"] is ("--fake" in words)


# --- completion -------------------------------------------------------------------------------------------------------


def _completed(line: str, cwd: Path) -> list[str]:
    """What bash is offered after a line, whose last word is being typed."""
    words = line.split(" ")
    environment = {
        **os.environ, "_TRIOSIM_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    code = "import sys; sys.argv = ['triosim']\nfrom triosim.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment)
    assert not done.stderr
    return done.stdout.split()


def test_names_and_files_are_completed(folder: Path) -> None:
    (folder / "sub").mkdir()
    assert _completed("triosim mod", folder) == ["models"]
    assert _completed("triosim train llama-3.1-8", folder) == ["llama-3.1-8b"]
    assert _completed("triosim train cha", folder) == ["chain.triosim"]
    assert _completed("triosim train su", folder) == ["sub" + os.sep]
    assert _completed("triosim train gpt2 --device H200", folder)[0].startswith("H200")
    assert _completed("triosim train gpt2 --system dgx-h1", folder) == ["dgx-h100"]


def test_parts_and_words_are_completed(folder: Path) -> None:
    assert _completed("triosim train gpt2 --schedule inter", folder) == ["interleaved-1f1b"]
    assert _completed("triosim train gpt2 --recompute s", folder) == ["selective"]
    assert "--seq-len" in _completed("triosim train gpt2 --se", folder)


def test_completion_can_be_installed() -> None:
    assert "--install-completion" in run("-h").stdout
