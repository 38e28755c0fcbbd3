"""A validation for real, as small as it gets, and what it is asked wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triosim.cli.main import app
from triosim.core.errors import InputError
from triosim.validate.validation import validate


def test_two_processes_data_parallel() -> None:
    """Really run and compared.  How far prediction and measurement are apart is no matter of a test: it is what
    ``triosim validate`` prints, and other work on the machine, such as the rest of the suite, moves it as it likes."""
    pytest.importorskip("torch")
    found = validate(models=["gpt-tiny"], modes=["ddp"], rounds=5, budget_s=1e6, device="cpu")
    (row,) = found.rows
    assert (row.network, row.mode, row.rank) == ("gpt-tiny", "ddp", None)
    assert row.rounds == 5
    for quantity in (row.cpu_s, row.wall_s):
        assert quantity.parts.total == pytest.approx(quantity.predicted)
        assert quantity.low < quantity.predicted < quantity.high
        assert quantity.measured > 0
    assert min(row.cpu_s.parts.compute, row.cpu_s.parts.communication) > 0
    assert found.machine.tables["all_reduce"].keys() == found.machine.tables["send"].keys()


def test_a_rank_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "job.json").write_text('{"device": "cpu", "processes": 2, "timeout_s": 3600, "begun": 0}')
    process = subprocess.Popen(
        [sys.executable, "-m", "triosim.validate.ranks", str(tmp_path), "0"], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.close()  # as it is when the parent has died; the second rank never comes
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"modes": ["dpp"]}, "unknown mode 'dpp': did you mean ddp"),
        ({"models": ["gpt-tny"]}, "unknown model to validate 'gpt-tny': did you mean gpt-tiny"),
        ({"processes": 1}, "--processes must be at least 2, got 1"),
        ({"rounds": 0}, "--rounds must be at least 1, got 0"),
        ({"budget_s": 1}, "--budget must be at least 10 s"),
        ({"device": "tpu"}, "--device must be cpu or cuda"),
        ({"modes": []}, "nothing to validate"),
        ({"processes": 3, "models": ["gpt-tiny"]}, "2 blocks, too few for gpipe over 3 processes"),
        ({"processes": 3, "models": ["gpt-small"]}, "8 heads of gpt-small do not divide over 3 processes"),
    ],
)
def test_what_is_asked_wrongly(wrong: dict, said: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=said):
        validate(**{"device": "cpu", **wrong})


def test_the_picture_is_refused_before_anything_runs() -> None:
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["validate", "--plot", "picture.png"])
    assert isinstance(done.exception, InputError)
    assert "picture.png" in str(done.exception)
