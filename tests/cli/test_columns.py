"""What commands print fits the terminal: no line too long, none ends in blanks, no head is cut, no word broken."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import run

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "resnet50-cpu.triosim")
DESIGN = Path(__file__).parents[1] / "accelerator" / "data"
COMMANDS = {
    "train": ("train", "gpt2", "--device", "H100", "--devices", "8"),
    "stages": ("train", "gpt2", "--device", "H100", "--devices", "4", "--tp", "2", "--pp", "2", "--micro-batches", "2"),
    "infer": ("infer", "gpt2", "--device", "T4", "--devices", "1"),
    "trace": ("trace", "show", EXAMPLE),
    "operators": ("trace", "show", EXAMPLE, "--operators"),
    "devices": ("devices",),
    "device": ("devices", "H100"),
    "systems": ("systems",),
    "system": ("systems", "dgx-h100"),
    "models": ("models",),
    "design": (
        "accelerator", "evaluate", *(str(DESIGN / f"{name}.yaml") for name in ("arch_03", "problem", "mapping_03")),
        "--also", str(DESIGN / "ert.yaml"),
    ),
    "model": ("models", "llama-3-8b"),
}  # fmt: skip
HEADS = {
    "train": ("Communication", "over", "calls", "bytes in all", "time in all", "algorithm", "Modules", "share"),
    "stages": ("Communication", "over", "calls", "algorithm", "Modules", "forward", "backward", "share"),
    "trace": ("phase", "operators", "time", "kind", "share", "FLOP", "bytes"),
    "operators": ("row", "operator", "module", "time", "FLOP", "bytes"),
    "devices": ("name", "kind", "year", "GiB", "GB/s", "fp32", "bf16", "fp8", "watt"),
    "systems": ("name", "devices", "what it is"),
    "system": ("link", "joins", "bandwidth", "latency", "overhead"),
    "design": ("level", "tensor", "tile", "instances", "reads", "fills", "updates", "energy", "share"),
    "models": ("name", "parameters", "family", "source"),
}


@pytest.fixture(params=[80, 40, 60, 100, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_fit_and_end_in_no_blanks(name: str, width: int) -> None:
    shown = run(*COMMANDS[name]).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip()]
    assert not re.search(r"\S…", shown)  # only the beginning of a path is ever cut
    if width >= 80:
        words = shown.split()
        assert not [head for head in HEADS.get(name, ()) for word in head.split() if word not in words]
        assert "left out" not in shown or name == "operators"


@pytest.mark.parametrize("name", ["train", "devices", "trace"])
def test_a_terminal_shows_the_same_lines_as_a_pipe(name: str) -> None:
    """Colours apart: on a terminal tables were padded with blanks that a narrower window breaks."""
    outer, inner = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "triosim", *COMMANDS[name]]
        with subprocess.Popen(command, stdout=inner, stderr=subprocess.DEVNULL, env=environment) as process:
            os.close(inner)
            shown = b""
            while True:
                try:
                    part = os.read(outer, 65536)
                except OSError:  # the other end is closed
                    break
                if not part:
                    break
                shown += part
        assert process.returncode == 0
    finally:
        os.close(outer)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode().replace("\r\n", "\n"))
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert text == piped
