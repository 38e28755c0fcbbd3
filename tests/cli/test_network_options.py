"""--solver, --solver-option and --placement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from tests.traces import chain

FULL = ("--devices", "4", "--topology", "full", "--link", "1GB/s", "--overlap", "off")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chain.triosim"
    triosim.save(chain(layers=2), path)
    return path


def seconds(trace: Path, *arguments: str) -> float:
    return json.loads(run("train", trace, *arguments, "--json", "-").stdout)["iteration_time_s"]


def test_circuits_are_set_up_once(trace: Path) -> None:
    links = seconds(trace, *FULL)
    circuits = seconds(trace, *FULL, "--solver", "circuit", "--solver-option", "setup=20ms")
    assert circuits == pytest.approx(links + 0.020, rel=1e-6)


def test_a_ring_through_a_mesh(trace: Path) -> None:
    mesh = ("--devices", "8", "--topology", "mesh", "--shape", "4x2", "--link", "1MB/s", "--overlap", "off")
    straight, cycle = seconds(trace, *mesh), seconds(trace, *mesh, "--placement", "grid-cycle")
    assert cycle <= straight
    assert cycle == seconds(trace, *mesh, "--placement", "0,1,3,5,7,6,4,2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*FULL, "--solver", "telepathy"), "unknown network model"),
        ((*FULL, "--solver-option", "setup"), "a name and a value"),
        ((*FULL, "--solver-option", "setup=1ms"), "has no options"),
        ((*FULL, "--solver", "circuit", "--solver-option", "ports=0"), "at least 1"),
        (("--devices", "4", "--link", "1GB/s", "--solver", "circuit"), "--topology full"),
        ((*FULL, "--placement", "0,1"), "names 2 devices for 4 ranks"),
        ((*FULL, "--placement", "0,1,2,2"), "device 2"),
        ((*FULL, "--placement", "zigzag"), "or grid-cycle"),
        ((*FULL, "--placement", "grid-cycle"), "shape"),
    ],
)
def test_what_cannot_be_is_refused(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run("train", trace, *arguments, code=2)
    assert words in " ".join(done.stderr.split())
