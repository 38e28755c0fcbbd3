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
from triosim.energy.calibration import PowerLog, PowerPhase, calibrated, document, read_log, read_pack, read_phases
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


PHASES = {
    "idle": "1700000000,1700000010,,,", "busy": "1700000010,1700000020,,,", "cache": "1700000020,1700000030,,,4e13",
    "memory": "1700000030,1700000040,,,1.5e13", "product": "1700000040,1700000050,bfloat16,2.5e15,1e12",
}  # fmt: skip
WATTS = (60.0, 100.0, 250.0, 330.0, 400.0)


def _files(folder: Path, watts: tuple[float, ...] = WATTS, column: str = "power", unit: str = "W") -> tuple[Path, Path]:
    """Phases of a run and a log of it."""
    phases, log = folder / "phases.csv", folder / "log.csv"
    lines = [f"{what},{rest}" for what, rest in PHASES.items()]
    phases.write_text("\n".join(["what,start,end,dtype,flop,bytes", *lines]) + "\n")
    samples = [f"{1_700_000_000.1 + step / 4},{watts[step // 40]:.9g} {unit}" for step in range(200)]
    log.write_text("\n".join([f"time,{column}", *samples]) + "\n")
    return phases, log


def _fitted(phases: Path, log: Path) -> float:
    return calibrated(DEVICE, read_phases(phases), read_log(log)).energy.static_w


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("what,start,", "what,begin,", "has no column 'start'"), ("idle,1700000000", "idle,0", "line 2: start and end"),
        ("1700000010,,,", "1700000010000,,,", "not milliseconds"), (",,,4e13", ",,,4e13,7", "more fields than columns"),
        ("busy,", "idle,", "a phase busy is missing"), (",,,1.5e13", ",,,1.5e3", "a byte of memory would take"),
        ("2.5e15", "2500", "give FLOP and not TFLOP"), ("2.5e15", "2.5e30", "give FLOP and not TFLOP"),
        ("product,", "idle,1700000000,1700000010,,,\nproduct,", "the phase idle is there twice"),
        ("product,", "product,1700000000,1700000010,bfloat16,1e15,\nproduct,", "product bfloat16 is there twice"),
    ],
)  # fmt: skip
def test_phases_that_make_no_sense_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    phases, log = _files(tmp_path)
    phases.write_text(phases.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        _fitted(phases, log)


@pytest.mark.parametrize(
    ("watts", "said"),
    [
        ((0, 0, 0, 0, 0), "draws nothing in the phase busy"), ((100, 100, 100, 100, 100), "would take no energy"),
        ((60, 100, 250, 330, 90), "would take no energy"), ((500, 100, 250, 330, 400), "500 W in the phase idle"),
        ((6e5, 1e6, 2.5e6, 3.3e6, 4e6), "watts, not milliwatts"),
    ],
)  # fmt: skip
def test_watts_that_no_device_draws_are_refused(tmp_path: Path, watts: tuple[float, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        _fitted(*_files(tmp_path, watts))


def test_power_is_read_in_its_unit(tmp_path: Path) -> None:
    mine = tuple(1000 * one for one in WATTS)
    assert _fitted(*_files(tmp_path)) == 100
    assert _fitted(*_files(tmp_path, mine, unit="mW")) == pytest.approx(100)
    assert _fitted(*_files(tmp_path, mine, column="power_mw", unit="")) == pytest.approx(100)
    phases, log = _files(tmp_path, unit="bar")
    with pytest.raises(InputError, match=r"log\.csv, line 2: '60 bar' is no power"):
        _fitted(phases, log)


@pytest.mark.parametrize("time", ["1.76e12", "nan", "inf", "-1", "1e30"])
def test_a_log_of_no_time_is_refused(tmp_path: Path, time: str) -> None:
    (tmp_path / "log.csv").write_text(f"time,power\n{time},100\n")
    with pytest.raises(InputError, match=r"line 2: .* is no time: give seconds since 1970, not milliseconds"):
        read_log(tmp_path / "log.csv")


def test_dates_of_iso_8601_are_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("time,power\n2025-10-09T08:53:20+00:00,1\n2025-10-09T08:53:21Z,2\n")
    assert read_log(tmp_path / "log.csv").time.tolist() == [1760000000, 1760000001]


def test_a_device_of_a_file_is_predicted_from_its_pack(tmp_path: Path) -> None:
    phases, log = _files(tmp_path)
    pack, device = tmp_path / "pack.json", "examples/next-device.toml"
    run("calibrate", "--power", str(log), "--phases", str(phases), "--device", device, "-o", str(pack))
    made = read_pack(pack)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(document(made)))
    assert read_pack(again).energy.flop_j.tolist() == made.energy.flop_j.tolist()
    done = run("train", "gpt2", "--seq-len", "128", "--device", device, "--energy", str(pack), "--json", "-")
    assert "measured power of 5 phases" in done.stdout


def test_a_log_that_nobody_writes_is_said_before_anything_is_measured() -> None:
    pytest.importorskip("torch")
    done = run("calibrate", "--power", "nosuch.csv", "--device", "EPYC-7763", code=2)
    assert "nosuch.csv: no such file" in done.stderr
