"""Constants of a device from phases and a log of its power."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.energy.calibration import PowerLog, PowerPhase, calibrated, document, read_log, read_pack
from triosim.hardware.catalog import accelerator

BEGAN = 1_700_000_000.0
DEVICE = accelerator("A100")


def _made(idle: float, static: float, cache: float, memory: float, flop: float) -> tuple[list[PowerPhase], PowerLog]:
    """Phases of ten seconds on a device with these constants (W, pJ/B, pJ/FLOP), and its power every 50 ms."""
    moved, work = 1e13, 1.5e15
    rows = [
        ("idle", idle, {}), ("busy", static, {}),
        ("cache", static + moved * cache * 1e-12 / 10, {"bytes": moved}),
        ("memory", static + moved * (cache + memory) * 1e-12 / 10, {"bytes": moved}),
        ("product", static + work * flop * 1e-12 / 10, {"flop": work, "dtype": "bfloat16"}),
    ]  # fmt: skip
    phases, time, watts = [], [], []
    for number, (what, power, more) in enumerate(rows):
        start = BEGAN + 12 * number
        phases.append(PowerPhase(what, start, start + 10, **more))
        ticks = np.arange(0.0, 10.0, 0.05)
        time.append(start + ticks)
        watts.append(np.where(ticks < 3, 0.5 * power, power))  # the sensor settles
    return phases, PowerLog(np.concatenate(time), np.concatenate(watts))


@given(st.floats(20, 60), st.floats(70, 150), st.floats(0, 40), st.floats(0, 60), st.floats(0.1, 1.5))
def test_constants_are_found_again(idle: float, static: float, cache: float, memory: float, flop: float) -> None:
    phases, log = _made(idle, static, cache, memory, flop)
    found = calibrated(DEVICE, phases, log).energy
    assert found.idle_w == pytest.approx(idle)
    assert found.static_w == pytest.approx(static)
    assert found.cache_j_per_byte * 1e12 == pytest.approx(cache, rel=1e-6, abs=1e-6)
    assert found.memory_j_per_byte * 1e12 == pytest.approx(memory, rel=1e-6, abs=1e-6)
    assert found.flop_j[DTYPE_CODE["bfloat16"]] * 1e12 == pytest.approx(flop, rel=1e-6)


def test_a_pack_is_read_as_it_was_written(tmp_path: Path) -> None:
    pack = calibrated(DEVICE, *_made(50, 100, 20, 30, 0.8))
    path = tmp_path / "pack.json"
    path.write_text(json.dumps(document(pack)))
    again = read_pack(path)
    assert again.phases == pack.phases
    assert again.energy.static_w == pack.energy.static_w
    assert np.array_equal(again.energy.flop_j, pack.energy.flop_j)


def test_a_log_that_does_not_overlap_is_refused() -> None:
    phases, log = _made(50, 100, 20, 30, 0.8)
    with pytest.raises(InputError, match="does not overlap the run"):
        calibrated(DEVICE, phases, PowerLog(log.time + 3600, log.watts))
    with pytest.raises(InputError, match="does not overlap the run: it is empty"):
        calibrated(DEVICE, phases, PowerLog(np.zeros(0), np.zeros(0)))
    with pytest.raises(InputError, match="log more often"):
        calibrated(DEVICE, phases, PowerLog(log.time[::150], log.watts[::150]))
    with pytest.raises(InputError, match="a phase memory is missing"):
        calibrated(DEVICE, [phase for phase in phases if phase.what != "memory"], log)


def test_what_nvidia_smi_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "timestamp, power.draw [W]\n2026/01/31 12:00:00.250, 61.23 W\n2026/01/31 12:00:00.500, [N/A]\n"
        "2026/01/31 12:00:00.750, 300 W\n"
    )
    log = read_log(path)
    assert log.watts.tolist() == [61.23, 300.0]
    assert log.time[1] - log.time[0] == pytest.approx(0.5)
    for text, said in (("a,b\n1,2\n", "no power log"), ("time,power_w\nnow,3\n", "is no time")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_log(path)


def test_the_command_fits_and_a_prediction_uses_it(tmp_path: Path) -> None:
    phases, log = _made(50, 100, 20, 30, 0.8)
    columns = ("what", "start", "end", "dtype", "flop", "bytes")
    rows = [",".join(columns), *(",".join(str(getattr(phase, name)) for name in columns) for phase in phases)]
    (tmp_path / "phases.csv").write_text("\n".join(rows) + "\n")
    lines = [f"{t},{w}" for t, w in zip(log.time.tolist(), log.watts.tolist(), strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["time_s,power_w", *lines]) + "\n")
    given = ("calibrate", "--power", "log.csv", "--phases", "phases.csv", "--device", "A100", "-o", "pack.json")
    shown = run(*given, cwd=tmp_path).stdout
    assert "static 100.0 W, idle 50.0 W" in shown
    asked = ("train", "gpt2", "--seq-len", "128", "--device", "A100", "--json", "-")
    plain = json.loads(run(*asked, cwd=tmp_path).stdout)["energy"]
    found = json.loads(run(*asked, "--energy", "pack.json", cwd=tmp_path).stdout)["energy"]
    other = run("train", "gpt2", "--device", "H100", "--energy", "pack.json", cwd=tmp_path, code=2)
    assert "is of 'A100" in other.stderr
    assert "measured power of 5 phases" in found["sources"][0]
    assert found["operators_j"] != plain["operators_j"]
    late = [f"{t + 9e4},{w}" for t, w in zip(log.time.tolist(), log.watts.tolist(), strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["time_s,power_w", *late]) + "\n")
    refused = run(*given, code=2, cwd=tmp_path)
    assert "does not overlap the run" in refused.stderr
    assert run("calibrate", "--phases", "phases.csv", code=2, cwd=tmp_path).stderr.count("\n") == 1


def test_files_that_are_no_packs_are_refused(tmp_path: Path) -> None:
    path, schema = tmp_path / "x.json", "triosim/energy-calibration/1"
    for found, said in (
        ({}, "no energy calibration"), ({"schema": schema}, "damaged"),
        ({"schema": schema, "device": "A100", "phases": [{"what": "nap"}]}, "phase 1"),
    ):  # fmt: skip
        path.write_text(json.dumps(found))
        with pytest.raises(InputError, match=said):
            read_pack(path)
