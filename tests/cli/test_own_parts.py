"""Parts in files of the user's own: named by path, with options, and what goes wrong in them is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from tests.traces import chain

SOLVER = """
from triosim.engine.solver import Sharing
from triosim.core.registry import registered

@registered
class Lossy(Sharing):
    def __init__(self, loss: float = 0.0, after=0):
        if loss > 1:
            raise ValueError("more is lost than sent")
        self.kept, self.after = 1 - loss, after

    def start(self, wires):
        super().start(wires)
        self.flows = {}

    def rates(self, now, joined, left):
        for number in left:
            del self.flows[number]
        self.flows.update({flow.number: flow for flow in joined})
        if self.after and now >= self.after:
            {}["gone"]
        return {n: int(min(self.capacity[l] for l in f.links) * self.kept) for n, f in self.flows.items()}
"""
SCHEDULE = """
from dataclasses import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule

@registered
@dataclass(frozen=True)
class OneByOne(Schedule):
    fail: bool = False

    def actions(self, stage, stages, micro_batches):
        assert not self.fail, "asked to"
        return [Action(what, m) for m in range(micro_batches) for what in (Pass.FORWARD, Pass.BACKWARD)]
"""
MODEL = """
from dataclasses import replace
from triosim.kernels.model import OperatorModel
from triosim.kernels.models.recorded import Recorded
from triosim.core.registry import registered

@registered
class Slower(OperatorModel):
    def __init__(self, times: float):
        self.times = times

    def price(self, job):
        found = Recorded().price(job)
        if self.times < 0:
            return 1 / 0
        return replace(found, seconds=found.seconds * self.times)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    triosim.save(chain(layers=4, batch=8), path / "chain.triosim")
    for name, text in (("lossy.py", SOLVER), ("one_by_one.py", SCHEDULE), ("slower.py", MODEL)):
        (path / name).write_text(text)
    return path


def _seconds(folder: Path, *arguments: str) -> float:
    done = run("train", "chain.triosim", "--link", "1MB/s", *arguments, "--json", "-", cwd=folder)
    return float(json.loads(done.stdout)["iteration_time_s"])


def test_an_option_of_ones_own_model_is_a_number(folder: Path) -> None:
    lossy = ("--dp", "2", "--overlap", "off", "--solver", "lossy.py")
    whole, half = (_seconds(folder, *lossy, "--solver-option", f"loss={x}") for x in ("0", "0.5"))
    assert half > 1.5 * whole
    assert whole == _seconds(folder, *lossy)


def test_a_schedule_of_ones_own(folder: Path) -> None:
    pipeline = ("--pp", "2", "--micro-batches", "4")
    assert _seconds(folder, *pipeline, "--schedule", "one_by_one.py") > _seconds(folder, *pipeline)


def test_a_schedule_takes_options(folder: Path) -> None:
    four = ("--pp", "2", "--micro-batches", "4", "--schedule", "interleaved-1f1b", "--schedule-option")
    assert _seconds(folder, *four, "chunks=2") != _seconds(folder, *four, "chunks=1")
    result = run("train", "chain.triosim", "--link", "1MB/s", *four, "chunks=2", "--json", "-", cwd=folder).stdout
    assert json.loads(result)["plan"]["schedule_options"] == {"chunks": "2"}


def test_an_operator_model_of_ones_own(folder: Path) -> None:
    own = ("--operator-times", "slower.py", "--operator-option")
    assert _seconds(folder, *own, "times=3") == pytest.approx(3 * _seconds(folder, *own, "times=1"), rel=1e-9)


FULL = ("--dp", "2", "--solver", "lossy.py", "--solver-option")
PIPELINE = ("--pp", "2", "--micro-batches", "4", "--schedule")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*FULL, "loss=much"), "network model lossy.py: loss must be a number, got 'much'"),
        ((*FULL, "los=0.1"), "unknown option 'los': did you mean loss"),
        ((*FULL, "loss=2"), "lossy.py, line 9, in __init__: ValueError: more is lost than sent"),
        ((*FULL, "after=1"), "lossy.py, line 21, in rates: KeyError: 'gone'"),
        ((*PIPELINE, "one_by_one.py", "--schedule-option", "fail=on"), "line 12, in actions: AssertionError: asked to"),
        ((*PIPELINE, "interleaved-1f1b", "--schedule-option", "chunks=two"), "chunks must be a whole number"),
        ((*PIPELINE, "gpipe", "--schedule-option", "chunks=2"), "schedule gpipe has no options: leave out chunks"),
        ((*PIPELINE, "slower.py"), "Slower is no pipeline schedule: derive it from triosim.schedule.actions.Schedule"),
        (("--operator-times", "slower.py"), "operator model slower.py needs a value for its option times"),
        (("--operator-times", "slower.py", "--operator-option", "times=-1"), "in price: ZeroDivisionError: division"),
        (("--operator-times", "recorded", "--operator-option", "a=1"), "operator model recorded has no options"),
        (("--operator-times", "nowhere.py"), "nowhere.py: no such file or folder"),
        (("--operator-times", "slow.py"), "did you mean slower.py?"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run("train", "chain.triosim", "--link", "1MB/s", *arguments, code=2, cwd=folder)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_that_name", "own.py, line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("\n\nraise SystemExit(3)", "own.py, line 3: it ends the program"),
        ("def f(:\n", "own.py, line 1: invalid syntax"),
        ("x = 1", "must end in one class marked with @registered (triosim.core.registry), has 0"),
        ("raise RuntimeError('two\\nlines')", "own.py, line 1: RuntimeError: two"),
        ("raise FileNotFoundError(2, 'No such file', 'x')", "own.py, line 1: FileNotFoundError: [Errno 2]"),
        ("\x00", "own.py"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--solver", "--schedule", "--operator-times"])
def test_a_file_that_cannot_be_run(folder: Path, tmp_path: Path, option: str, text: str, words: str) -> None:
    (tmp_path / "own.py").write_text(text)
    done = run("train", folder / "chain.triosim", option, "own.py", code=2, cwd=tmp_path)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_file_is_run_again_when_it_has_changed(folder: Path, tmp_path: Path) -> None:
    for text, words in (("x = 1 # one\n", "has 0"), (SOLVER + SOLVER.replace("Lossy", "Lossier"), "has 2")):
        (tmp_path / "own.py").write_text(text)
        assert words in run("train", folder / "chain.triosim", "--solver", "own.py", code=2, cwd=tmp_path).stderr


ANSWERS = {
    "schedule": (
        """
from dataclasses import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule

@registered
@dataclass(frozen=True)
class Own(Schedule):
    def actions(self, stage, stages, micro_batches):
        return {}
""",
        ("--pp", "2", "--micro-batches", "4", "--schedule", "own.py"),
    ),
    "model": (
        """
from dataclasses import replace
from triosim.kernels.model import OperatorModel
from triosim.kernels.models.recorded import Recorded
from triosim.core.registry import registered

@registered
class Own(OperatorModel):
    def price(self, job):
        found = Recorded().price(job)
        return {}
""",
        ("--operator-times", "own.py"),
    ),
    "solver": (
        """
from triosim.engine.solver import Sharing
from triosim.core.registry import registered

@registered
class Own(Sharing):
    def rates(self, now, joined, left):
        return {}
""",
        ("--dp", "2", "--solver", "own.py"),
    ),
}
"""Parts whose one method is left open, and how they are used."""


@pytest.mark.parametrize(
    ("part", "answer", "words"),
    [
        ("schedule", "None", "stage 0 of 2 answers with None, which is no Action"),
        ("schedule", "[]", "stage 0 of 2 runs 0 of 4 micro-batches to the end"),
        ("schedule", "[Action(Pass.FORWARD, 0)]", "runs 0 of 4 micro-batches to the end: each needs forward, backward"),
        ("schedule", "[Action(Pass.BACKWARD, 0)]", "runs backward of micro-batch 0 where forward is its next pass"),
        ("schedule", "[Action(Pass.FORWARD, 0)] * 2", "runs forward of micro-batch 0 where backward is its next pass"),
        ("schedule", "[Action(Pass.FORWARD, 7)]", "runs micro-batch 7, which does not exist"),
        ("schedule", "[Action(Pass.FORWARD, 0, 1)]", "runs micro-batch 0 of chunk 1, which does not exist"),
        ("schedule", "[(0, 0, 0)]", "answers with (0, 0, 0), which is no Action"),
        ("model", "None", "operator model own.py answers with None: it must be Estimates"),
        ("model", "found.seconds", "it must be Estimates"),
        ("model", "replace(found, seconds=found.seconds[:3])", "it must be an array of 8 numbers"),
        ("model", "replace(found, spread=None)", "spread None: it must be an array of 8 numbers"),
        ("model", "replace(found, seconds=-found.seconds)", "seconds -0.001 of operator 0: it must be a time"),
        ("model", "replace(found, seconds=found.seconds * float('nan'))", "seconds nan of operator 0"),
        ("model", "replace(found, source=found.source + 100)", "source 101 of operator 0, which is no Source"),
        ("solver", "None", "'NoneType' object has no attribute 'items', after own.py was used: look at what"),
        ("solver", "{}", "Stuck: 2 of 18 tasks never start or never end"),
        ("solver", "{99: 1}", "KeyError: 99, after own.py was used"),
        ("solver", "{f.number: 0.5 for f in joined}", "gave a transfer the rate 0.5"),
        ("solver", "{f.number: 10**18 for f in joined}", "1/1024 byte per second: give at most what the link has"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_is_refused(folder: Path, tmp_path: Path, part: str, answer: str, words: str) -> None:
    text, arguments = ANSWERS[part]
    (tmp_path / "own.py").write_text(text.replace("return {}", f"return {answer}"))
    done = run("train", folder / "chain.triosim", "--link", "1MB/s", *arguments, code=2, cwd=tmp_path)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_our_own_defects_are_not_laid_at_the_door_of_a_file_used_before(folder: Path, monkeypatch) -> None:
    run("train", "chain.triosim", "--dp", "2", "--link", "1MB/s", "--solver", "lossy.py", cwd=folder)
    monkeypatch.setattr("triosim.report.listing.devices", lambda console: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("devices")
