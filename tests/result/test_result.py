"""What a result says of itself: printed, in a notebook, and as frames."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import triosim
from tests.report.example import make
from triosim.core.errors import InputError
from triosim.prediction.result import Result
from triosim.prediction.result.frame import TABLES


@pytest.fixture(scope="module")
def result() -> Result:
    plan = triosim.Plan(dp=2, pp=2, micro_batches=2, iterations=2)
    return triosim.simulate(triosim.model("gpt2", sequence_length=128), triosim.system(device="H100", devices=4), plan)


def test_printed_it_is_seven_short_lines(result: Result) -> None:
    for shown in (str(result), repr(result), f"{result}"):
        lines = shown.splitlines()
        assert len(lines) == 7
        assert max(map(len, lines)) <= 125
    head, iteration, goes, throughput, energy, memory, more = repr(result).splitlines()
    assert head.startswith("gpt2")
    assert "dp 2, pp 2, 2 micro-batches" in head
    assert " ms (90 % between " in iteration
    assert "compute " in goes
    assert " tokens/s" in throughput
    assert " MFU" in throughput
    assert " J/token" in energy
    assert memory.endswith("fits")
    assert ".to_frame(" in more


def test_a_notebook_shows_a_table_in_which_names_are_text() -> None:
    odd = dataclasses.replace(make(), warnings=("<script>alert(1)</script> & \x1b[31m",))
    odd = dataclasses.replace(odd, workload=dataclasses.replace(odd.workload, name="<b>llama</b>"))
    page = odd._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; " in page
    assert "&lt;b&gt;llama&lt;/b&gt; on " in page
    assert "<script" not in page
    assert "\x1b" not in page
    assert "41.2 % MFU" in page
    assert "\x1b" not in repr(odd)
    assert len(repr(odd).splitlines()) == 7


def columns(frame: Any) -> dict[str, list]:
    return frame.to_pydict() if isinstance(frame, pyarrow.Table) else frame.to_dict("list")


@pytest.fixture(params=["pandas", "pyarrow"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Frames of one library: without pandas, as if it were not installed."""
    if request.param == "pandas":
        pytest.importorskip("pandas")
        return "pandas"
    found = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    return "pyarrow"


@pytest.mark.parametrize("table", TABLES)
def test_frames_are_of_pandas_or_else_of_pyarrow(result: Result, table: str, library: str) -> None:
    frame = result.to_frame(table)
    assert type(frame).__module__.split(".")[0] == library
    assert len(frame) > 0


def test_rows_of_the_result_become_rows_of_frames(result: Result) -> None:
    for table in ("layers", "collectives", "devices", "stages"):
        frame = columns(result.to_frame(table))
        rows = [dict(zip(frame, row, strict=True)) for row in zip(*frame.values(), strict=True)]
        assert rows == [dataclasses.asdict(row) for row in getattr(result, table)]


def test_operators_add_up_to_the_layers_and_the_stages(result: Result) -> None:
    frame = {name: np.array(column) for name, column in columns(result.to_frame()).items()}
    for stage in result.stages:
        own = frame["stage"] == stage.stage
        assert frame["compute_s"][own].sum() == pytest.approx(stage.compute_s, rel=1e-9)
    for row in result.layers:
        own = (frame["module"] == row.module) & (frame["phase"] == row.phase)
        assert frame["compute_s"][own].sum() == pytest.approx(row.compute_s, rel=1e-9)
        assert frame["communication_s"][own].sum() == pytest.approx(row.communication_s, rel=1e-9)
    forward = frame["calls"][(frame["phase"] == "forward") & (frame["compute_s"] > 0)]
    assert set(forward) == {2.0}  # once for each micro-batch
    assert np.nansum(frame["flop"]) * 2 > result.efficiency.model_flop  # two replicas; fused attention computes more
    assert np.nansum(frame["flop"]) * 2 < 1.1 * result.efficiency.model_flop


def test_the_timeline_has_a_row_for_each_slice(result: Result) -> None:
    frame = columns(result.to_frame("timeline"))
    assert len(frame["name"]) == len(result.timeline.slices)
    assert max(frame["end_s"]) == pytest.approx(result.timeline.end)
    assert set(frame["stage"]) == {0, 1}
    assert {"compute", "collective", "send"} <= set(frame["kind"])
    row = frame["kind"].index("collective")
    assert frame["name"][row] == "all_reduce"


def test_an_unknown_table_is_named_with_those_there_are(result: Result) -> None:
    with pytest.raises(triosim.InputError, match=r"no table 'kernels': its tables are operators, layers, .*timeline"):
        result.to_frame("kernels")


def test_the_json_holds_what_the_attributes_hold(result: Result) -> None:
    plain = json.loads(result.to_json())
    assert plain == json.loads(json.dumps(result.to_dict()))
    assert plain["efficiency"] == dataclasses.asdict(result.efficiency)
    assert plain["throughput"] == dataclasses.asdict(result.throughput)
    assert plain["workload"] == dataclasses.asdict(result.workload)
    assert plain["system"]["accelerators"][0]["name"] == result.system.accelerators[0].name
    assert plain["plan"]["micro_batch_size"] == result.plan.micro_batch_size == 1
    assert plain["plan"]["stages"] == list(result.plan.stages or ())


def test_neither_library_is_imported_for_a_summary() -> None:
    code = """
import sys, triosim
print(triosim.simulate(triosim.model("gpt2", sequence_length=16), triosim.system(device="H100", devices=1)))
print(*(name for name in ("pandas", "pyarrow") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 8
    assert not done.stdout.splitlines()[-1]


def test_what_a_session_holds_prints_in_a_line(result: Result) -> None:
    """A trace once wrote 200,000 characters, a system of 64 devices 44,000."""
    trace, system = triosim.model("llama-3-8b"), triosim.system("dgx-h100", 8)
    named = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, workload="\x1b[2Jx"))
    for shown in (repr(trace), repr(system), repr(result.timeline), repr(named)):
        assert shown.isprintable()
        assert len(shown) < 160
    assert repr(trace).startswith(f"Trace of {trace.meta.workload}: {len(trace):,} operators, batch 1, 8192 tokens")
    assert repr(system).startswith("System 8 x dgx-h100: 64 x H100-SXM5-80GB, 8 servers, ")
    recorded = triosim.load("examples/resnet50-cpu.triosim")
    assert repr(recorded).endswith("batch 8, times of AMD EPYC (triosim.record)")
    assert repr(result.timeline).endswith(f"{len(result.timeline.slices):,} slices, 4 ranks, 2 iteration(s)")


def test_the_documentation_names_every_key_of_the_json(result: Result) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    plain = result.to_dict()
    missing = [key for key in (*plain, *plain["efficiency"]) if f"`{key}`" not in page and key != "schema"]
    assert not missing


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpt2", "dgx-h100"), r"the workload must be a Trace, not 'gpt2': make one with triosim.model\(NAME\)"),
        ((triosim.model("gpt2", sequence_length=16), "dgx-h100"), r"make one with triosim.system\(NAME\)"),
    ],
)
def test_a_name_instead_of_what_it_names_is_a_sentence(arguments: tuple, words: str) -> None:
    workload, system = arguments
    calls = (
        lambda: triosim.simulate(workload, system), lambda: next(triosim.sweep(workload, system, [{}])),
        lambda: triosim.simulate_together([(workload, triosim.Plan())], system),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(triosim.InputError, match=words):
            call()


def test_a_result_goes_into_another_process() -> None:
    """Functions that work out what is not asked for yet could not be pickled."""
    model, machine = triosim.model("gpt2", sequence_length=64), triosim.system("dgx-a100", 1)
    result = triosim.simulate(model, machine, triosim.Plan(dp=8))
    assert copy.copy(result) is copy.deepcopy(result) is result
    found = pickle.loads(pickle.dumps(result))
    assert found == result
    assert found.to_json() == result.to_json()
    with pytest.raises(InputError, match=r"ask for result\.timeline there"):
        found.to_frame("timeline")
    rows = len(result.to_frame("timeline"))
    assert len(pickle.loads(pickle.dumps(result)).to_frame("timeline")) == rows
