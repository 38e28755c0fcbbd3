"""Every example in the README and the documentation runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            if match.group(1) == language:
                found.append(pytest.param(match.group(2), id=f"{page.stem}-{number}"))
    return found


def _commands() -> list:
    commands = []
    for block in _blocks("console"):
        for line in block.values[0].splitlines():
            if line.startswith("$ triosim"):
                commands.append(pytest.param(line[2:], id=line[2:]))
    return commands


@pytest.mark.parametrize("command", _commands())
def test_a_command_of_the_documentation_runs(command: str, tmp_path: Path) -> None:
    if " record " in command:
        pytest.importorskip("torch")
    words = shlex.split(command)[1:]
    for at, word in enumerate(words[1:], start=1):
        if words[at - 1] in ("-o", "--json", "--timeline", "--report") and word != "-":
            words[at] = str(tmp_path / Path(word).name)
    run = [sys.executable, "-m", "triosim.cli.main", *words]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", _blocks("python"))
def test_python_of_the_documentation_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", _blocks("toml"))
def test_files_of_the_documentation_are_read(text: str, tmp_path: Path) -> None:
    from triosim.hardware import build
    from triosim.workload import modelling

    file = tmp_path / "example.toml"
    file.write_text(text)
    if "family" in text:
        assert len(modelling.from_file(file, sequence_length=64))
    elif "times = " in text:
        from triosim.kernels.mapping import load

        assert load(file).times
    elif "wise" in text:
        from triosim.hardware.description import read_table

        assert set(read_table(file).values()) <= {"colwise", "rowwise", "gather", "vocab", "replicate"}
    elif "[devices" not in text and "peak_flops" in text:
        from triosim.hardware.cluster import device_of
        from triosim.hardware.description import read_device

        assert device_of(read_device(file)).priced
    else:
        assert build.load(file).devices
