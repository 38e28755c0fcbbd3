"""Topologies, their options and routings as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run

TRACE = Path(__file__).parents[2] / "examples" / "resnet50-cpu.triosim"
SPINES = ("train", str(TRACE), "--devices", "8", "--topology", "leaf-spine", "--shape", "2x4", "--link", "1GB/s")


def communication(*more: str) -> float:
    return float(json.loads(run(*SPINES, *more, "--json", "-").stdout)["breakdown_s"]["communication"])


def test_oversubscription_is_felt() -> None:
    # The ring between the leaves crosses one uplink each way, of 4 GB/s without oversubscription.
    assert communication() == communication("--topology-option", "oversubscription=4")
    assert communication("--topology-option", "oversubscription=16") > 3.5 * communication()


def test_the_hash_spreads_over_spines() -> None:
    # A ring that changes the leaf at each step: four flows each way, which one spine makes share a link.
    across = ("--topology-option", "spines=4", "--placement", "0,4,1,5,2,6,3,7")
    assert communication(*across, "--routing", "ecmp") < 0.8 * communication(*across)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--topology-option", "spines"), "--topology-option 'spines': give a name and a value"),
        (("--topology-option", "spins=2"), "unknown option 'spins': did you mean spines"),
        (("--routing", "ecpm"), "unknown routing 'ecpm': did you mean ecmp"),
        (("--routing-option", "seed=1"), "unknown option 'seed'"),
        (("--routing", "static"), "give option table"),
        (("--routing", "static", "--routing-option", "table=no.toml"), "no.toml: cannot be read"),
        (("--system", "dgx-h100", "--topology-option", "spines=2"), "describe the machine twice"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(more: tuple[str, ...], problem: str) -> None:
    assert problem in " ".join(run(*SPINES, *more, code=2).stderr.split())
