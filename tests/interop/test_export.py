"""Chakra traces of a simulated job: read back and played on the same network they take the same time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.asked import asked
from tests.command import run
from tests.traces import chain
from triosim import save
from triosim.cli.astra import chakra_writer
from triosim.hardware.build import flat
from triosim.interop.astra.play import simulate as play_traces
from triosim.interop.chakra.file import read
from triosim.interop.chakra.trace import ChakraNodeType, Comm
from triosim.prediction.simulate import simulate

JOBS: list[tuple[dict[str, Any], str]] = [
    ({"dp": 4}, "ring"),
    ({"dp": 8}, "switch"),
    ({"dp": 4, "overlap": False, "iterations": 2}, "ring"),
    ({"tp": 4}, "full"),
    ({"pp": 4, "micro_batches": 4}, "switch"),
    ({"pp": 3, "micro_batches": 2, "schedule": "gpipe"}, "full"),
    ({"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2}, "switch"),
]


def exported(folder: Path, plan: dict[str, Any], topology: str, **options: Any) -> tuple[float, dict[str, Any]]:
    """Simulate a job, write its traces; returns its time and the arguments with which to play them."""
    devices = plan.get("dp", 1) * plan.get("tp", 1) * plan.get("pp", 1)
    machine = flat(devices=devices, topology=topology, link=64 * 2.0**30, latency=2e-6, **options)
    workload = chain(layers=8, optimizer_s=1e-3)
    result = simulate(
        workload, machine, *asked(collective_algorithm="ring", **plan), on_finished=chakra_writer(folder, [])
    )
    files = {"workload": folder / "triosim", "system": folder / "system.json", "network": folder / "network.yml"}
    return result.iteration_time_s * plan.get("iterations", 1), files | {"comm_group": folder / "comm_groups.json"}


@pytest.mark.parametrize(("plan", "topology"), JOBS, ids=lambda x: str(x))
def test_round_trip(tmp_path: Path, plan: dict[str, Any], topology: str) -> None:
    """To the picosecond: durations travel exactly, and buffers that divide by the ranks are cut alike."""
    seconds, files = exported(tmp_path, plan, topology)
    assert play_traces(**files, slots="recorded").seconds == pytest.approx(seconds, rel=1e-14)
    one = play_traces(**files).seconds
    assert seconds * (1 - 1e-14) <= one <= 1.01 * seconds  # one communication at a time may only cost


def test_what_a_trace_holds(tmp_path: Path) -> None:
    exported(tmp_path, {"dp": 2, "pp": 2, "micro_batches": 2}, "switch")
    trace = read(tmp_path / "triosim.0.et")
    kinds = trace.kind.tolist()
    assert {ChakraNodeType.COMP, ChakraNodeType.COMM_SEND, ChakraNodeType.COMM_RECV, ChakraNodeType.COMM_COLL} <= set(
        kinds
    )
    sends = [row for row, kind in enumerate(kinds) if kind == ChakraNodeType.COMM_SEND]
    assert {int(trace.target[row]) for row in sends} == {2}
    reduces = [row for row, kind in enumerate(kinds) if kind == ChakraNodeType.COMM_COLL]
    assert {int(trace.comm[row]) for row in reduces} == {Comm.ALL_REDUCE}
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    assert {tuple(groups[trace.group[row]]) for row in reduces} == {(0, 1)}
    assert sorted(tuple(group) for group in groups.values()) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    computes = trace.kind == ChakraNodeType.COMP
    assert (trace.micros[computes] * 10**6 - trace.ticks[computes]).max() <= 10**6


def test_without_the_exact_durations_microseconds_are_left(tmp_path: Path) -> None:
    """What ASTRA-sim reads: whole microseconds.  With computations of milliseconds that is close all the same."""
    from dataclasses import replace

    import numpy as np

    from triosim.interop.chakra.file import write

    seconds, files = exported(tmp_path, {"dp": 4}, "ring")
    for rank in range(4):
        path = tmp_path / f"triosim.{rank}.et"
        trace = read(path)
        write(replace(trace, ticks=np.full(len(trace), -1, np.int64)), path)
    assert play_traces(**files, slots="recorded").seconds == pytest.approx(seconds, rel=1e-3)


def test_a_system_that_astra_sim_cannot_describe_has_no_network_file(tmp_path: Path) -> None:
    exported(tmp_path, {"dp": 4}, "mesh", shape="2x2")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["comm_groups.json", *(f"triosim.{rank}.et" for rank in range(4))]


def test_values_that_start_elsewhere_are_memory_loads(tmp_path: Path) -> None:
    plan = {"dp": 2, "places": {"weight": "host"}}
    files = exported(tmp_path, plan, "switch", host_link=32e9)[1]
    assert ChakraNodeType.MEM_LOAD in read(tmp_path / "triosim.0.et").kind.tolist()
    assert not files["network"].exists()


def test_the_command(tmp_path: Path) -> None:
    save(chain(layers=8, optimizer_s=1e-3), tmp_path / "chain.triosim")
    folder = tmp_path / "traces"
    link = ("--devices", "4", "--topology", "ring", "--link", "64GiB/s", "--latency", "2us", "--algorithm", "ring")
    done = run("train", tmp_path / "chain.triosim", "--dp", "4", *link, "--chakra", folder, "--json", "-")
    assert "chakra" in done.stderr
    expected = json.loads(done.stdout)["iteration_time_s"]
    files = ("--workload", folder / "triosim", "--system", folder / "system.json", "--network", folder / "network.yml")
    again = run("astra", *files, "--comm-group", folder / "comm_groups.json", "--json", "-")
    assert json.loads(again.stdout)["iteration_time_s"] == pytest.approx(expected, rel=1e-12)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    save(chain(layers=4), tmp_path / "chain.triosim")
    (tmp_path / "taken").write_text("")
    link = ("--dp", "2", "--link", "1GB/s")
    done = run("train", tmp_path / "chain.triosim", *link, "--chakra", tmp_path / "taken", code=2)
    assert "there is a file of that name; give a folder" in done.stderr
