"""Every listed model, device and system can be named, and what is not there is said with what is like it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.command import run
from tests.traces import chain
from triosim.hardware import catalog
from triosim.hardware.system import System
from triosim.sources import modelling
from triosim.trace.tables import Trace

MODELS, DEVICES, SYSTEMS = list(modelling.presets()), catalog.accelerators(), catalog.systems()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Trace, System]]:
    """What the command asks to be predicted; predicting it would take too long here."""
    asked = []

    def simulate(trace: Trace, system: System, *args: Any, **options: Any) -> None:
        asked.append((trace, system))
        raise triosim.InputError("resolved")

    monkeypatch.setattr(importlib.import_module("triosim.prediction.simulate"), "simulate", simulate)
    return asked


def _resolved(*arguments: str, command: str = "train") -> None:
    done = run(command, *arguments, code=2)
    assert done.stderr == "triosim: resolved\n"


@pytest.mark.parametrize("name", MODELS)
def test_every_listed_model_can_be_trained(name: str, asked: list[tuple[Trace, System]]) -> None:
    _resolved(name, "--device", "H100", command="infer")
    ((trace, _),) = asked
    assert trace.meta.workload is not None
    assert trace.meta.workload.startswith(f"{name}, ")


def test_every_listed_device_can_be_named(asked: list[tuple[Trace, System]]) -> None:
    for name in DEVICES:
        _resolved("resnet18", "--device", name)
    assert [system.models[0].name for _, system in asked] == DEVICES


def test_every_listed_system_can_be_named(asked: list[tuple[Trace, System]]) -> None:
    for name in SYSTEMS:
        _resolved("resnet18", "--system", name)
    assert [system.devices for _, system in asked] == [catalog.system_row(name)["devices"] for name in SYSTEMS]


@pytest.mark.parametrize(
    ("command", "names"), [("models", MODELS), ("devices", DEVICES), ("systems", SYSTEMS)], ids=lambda x: x[0]
)
def test_every_listed_name_is_shown(command: str, names: list[str]) -> None:
    listed = {line.split()[0] for line in run(command).stdout.splitlines() if line.strip()}
    assert set(names) <= listed
    for name in names:
        assert run(command, name).stdout.startswith(name)


def test_a_device_as_a_profiler_prints_it(asked: list[tuple[Trace, System]]) -> None:
    for name in ("Instinct MI250X / MI250", "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz"):
        _resolved("resnet18", "--device", name)


def test_a_folder_that_is_called_like_a_model_does_not_hide_it(
    asked: list[tuple[Trace, System]], tmp_path: Path
) -> None:
    (tmp_path / "gpt2").mkdir()
    assert run("train", "gpt2", "--device", "H100", code=2, cwd=tmp_path).stderr == "triosim: resolved\n"
    triosim.save(chain(), tmp_path / "llama-3.1-8b")
    run("train", "llama-3.1-8b", code=2, cwd=tmp_path)
    assert [trace.meta.made_by == "triosim.model" for trace, _ in asked] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "llama-3.1-9b"), "unknown model 'llama-3.1-9b': did you mean llama-3.1-8b"),
        (("train", "stepp.triosim"), "stepp.triosim: no such file or folder: did you mean step.triosim?"),
        (("train", "here/step.triosim"), "here/step.triosim: no such file or folder"),
        (("trace", "show", "stepp.triosim"), "did you mean step.triosim?"),
        (("calibrate", "stepp.triosim"), "did you mean step.triosim?"),
        (("train", "step.triosim", "--system", "dgx.h100"), "unknown system 'dgx.h100': did you mean dgx-h100"),
        (("train", "step.triosim", "--system", "clusters.toml"), "did you mean cluster.toml?"),
        (("train", "step.triosim", "--device", "H100.5"), "unknown device 'H100.5': did you mean H100"),
        (("train", "step.triosim", "--device", "mine.json"), "mine.json: no such file or folder"),
        (("systems", "clusters.toml"), "did you mean cluster.toml?"),
        (("devices", "a/b.toml"), "a/b.toml: no such file or folder"),
        (("infer", "step.triosim", "--device", "H100", "--prompt", "5", "--output", "2"), "does not describe a model"),
        (
            ("serve", "step.triosim", "--device", "H100", "--arrivals", "poisson:1", "--lengths", "fixed:20"),
            "step.triosim does not describe a model: give a model's name",
        ),
        (("serve", "x" * 5000, "--device", "H100", "--arrivals", "poisson:1", "--lengths", "fixed:9"), "unknown model"),
        (("train", "x" * 5000), "unknown model"),
        (("train", "x/" * 5000), "no such file or folder"),
    ],
)  # fmt: skip
def test_what_is_not_there(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    triosim.save(chain(), tmp_path / "step.triosim")
    (tmp_path / "cluster.toml").write_text('name = "x"\n')
    said = run(*arguments, code=2, cwd=tmp_path).stderr
    assert words in said
    assert len(said) < 1500


def test_a_device_file_in_json(tmp_path: Path) -> None:
    triosim.save(chain(), tmp_path / "step.triosim")
    (tmp_path / "mine.json").write_text(json.dumps({"name": "mine", "peak_flops": {"float32": 1e13}}))
    run("train", "step.triosim", "--device", "mine.json", "--operator-times", "recorded", cwd=tmp_path)


def test_devices_are_listed_with_their_16_bit_rates_in_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.split() for line in run("devices").stdout.splitlines()]
    assert [head for head in lines[0] if head.startswith(("fp", "bf"))] == ["fp32", "fp16", "bf16", "fp8"]
    rows = {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1 : 1 + len(DEVICES)]}
    assert list(rows) == DEVICES
    found = {name: (rows[name]["fp16"], rows[name]["bf16"]) for name in ("V100-SXM2-32GB", "A100-SXM4-80GB", "TPU-v4")}
    assert found == {"V100-SXM2-32GB": ("125", "-"), "A100-SXM4-80GB": ("312", "312"), "TPU-v4": ("-", "275")}
