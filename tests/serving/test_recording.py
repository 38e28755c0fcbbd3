"""Recorded runs: the same results, steps that add up, and the pictures of them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.report.test_perfetto import Decoded
from tests.serving.fleets import Linear, replica, serve
from triosim.report.over_time import mean_value, most_value, share_of_time
from triosim.serving.fleet import FleetRun
from triosim.serving.recording import RunRecord, RunRecorder
from triosim.serving.replica import Replica
from triosim.serving.request_phases import PHASES, phases, standing
from triosim.serving.requests import RequestTable

H100 = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB")
TIGHT = (
    "--arrivals", "burst:40", "--lengths", "prompt=fixed:100;output=uniform:100-300", "--requests", "40", "--kv-blocks",
    "150",
)  # fmt: skip


def recorded(table: RequestTable, *replicas: Replica) -> tuple[FleetRun, RunRecord]:
    recorder = RunRecorder()
    for one in replicas:
        one.recorder = recorder
    return serve(table, *replicas), recorder.record()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=20),
       st.integers(16, 60), st.sampled_from([1, 2]), st.sampled_from(["vllm", "sarathi", "trtllm"]))  # fmt: skip
def test_a_recorded_run_is_the_same_and_adds_up(
    rows: list[tuple[int, int, int]], blocks: int, stages: int, engine: str
) -> None:
    gaps, prompt, output = zip(*rows, strict=True)
    table = RequestTable.of(np.cumsum(gaps) / 1000, prompt, output)
    if engine == "trtllm" and stages > 1:
        stages = 1
    options = {"times": Linear(stages=stages)}
    plain = serve(table, replica(engine, blocks, **options))  # type: ignore[arg-type]
    served, record = recorded(table, replica(engine, blocks, **options))  # type: ignore[arg-type]
    for name in ("scheduled", "first_token", "finished", "restarts", "waited"):
        assert getattr(served, name).tolist() == getattr(plain, name).tolist()
    steps = record.steps
    assert len(steps) == stages * int(served.steps[0])
    assert int((steps.end - steps.begin).sum()) == round(float(served.busy[0]) * stages)
    assert int(steps.tokens.sum()) == stages * int(served.computed[0])
    assert (steps.decodes + steps.prompt_tokens == steps.tokens).all()
    # who is given blocks and gives way before the step begins is counted by the cache alone
    held = int(record.kv_blocks.max())
    assert held <= int(served.peak_blocks[0])
    assert held == int(served.peak_blocks[0]) or served.restarts.any()
    assert record.kv_blocks[-1] == 0
    life = phases(served, record)
    for request in range(len(table)):
        mine = life.row == request
        assert life.begin[mine].tolist() == [served.arrived[request], *life.end[mine][:-1].tolist()]
        assert life.end[mine][-1] == served.finished[request]
    away = life.phase == PHASES.index("waiting again")
    assert set(life.row[away].tolist()) <= set(np.flatnonzero(served.restarts).tolist())
    there = standing(served, record)  # Little's law: the area below the curves is the time in the system
    area = sum(float((value[:-1] * np.diff(time)).sum()) for time, value in there.values())
    assert area == float((served.finished - served.arrived).sum())


def test_who_gave_way_waits_again() -> None:
    served, record = recorded(RequestTable.of([0.0, 0.0], [100, 100], [200, 200]), replica("vllm", 20))
    assert served.restarts.sum() >= 1
    life = phases(served, record)
    away = life.phase == PHASES.index("waiting again")
    assert away.sum() == served.restarts.sum()
    assert (life.end - life.begin)[away].sum() > 0


def test_parts_of_time() -> None:
    edges = np.array([0.0, 10.0, 20.0, 30.0])
    time, value = np.array([5, 12, 25]), np.array([2, 4, 0])
    assert mean_value(time, value, edges).tolist() == [1.0, 3.6, 2.0]
    assert most_value(time, value, edges).tolist() == [2.0, 4.0, 4.0]
    assert share_of_time(np.array([2, 8]), np.array([4, 25]), edges).tolist() == [0.4, 1.0, 0.5]


def test_both_timelines_hold_the_same(tmp_path: Path) -> None:
    chrome, binary = tmp_path / "t.json", tmp_path / "t.pftrace"
    done = run(*H100, *TIGHT, "--timeline", chrome, "--json", tmp_path / "r.json")
    assert "ui.perfetto.dev" in done.stdout
    run(*H100, *TIGHT, "--timeline", binary)
    figures = json.loads((tmp_path / "r.json").read_text())
    assert figures["preemptions"] > 0
    events = json.loads(chrome.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    steps = [event for event in spans if "tokens" in event["args"]]
    assert len(steps) == figures["steps"]
    assert sum(event["args"]["tokens"] for event in steps) == figures["computed_tokens"]
    whole = [event for event in spans if re.fullmatch(r"request \d+", event["name"])]
    assert len(whole) == 40
    assert sum(event["name"] == "waiting again" for event in spans) == figures["preemptions"]
    used = [event["args"]["blocks"] for event in events if event["name"] == "KV blocks in use"]
    assert max(used) / 150 == figures["kv_peak"]
    read = Decoded(binary)
    assert sorted(one["name"] for one in read.slices) == sorted(event["name"] for event in spans)


def test_a_replica_that_never_began_has_an_empty_row(tmp_path: Path) -> None:
    binary = tmp_path / "t.pftrace"
    fleet = ("--replicas", "3", "--autoscale", "target=64,least=1")
    run(*H100, *TIGHT, *fleet, "--timeline", binary, "--json", tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["replicas"][2]["steps"] == 0
    assert Decoded(binary).slices


def test_steps_of_a_replica_that_fails_end_there(tmp_path: Path) -> None:
    chrome, out = tmp_path / "t.json", tmp_path / "r.json"
    fails = ("--replicas", "2", "--mtbf", "1s", "--repair", "1s", "--interval", "off")
    run(*H100, *TIGHT, *fails, "--timeline", chrome, "--json", out)
    figures = json.loads(out.read_text())
    assert figures["replica_failures"] > 0
    spans = [event for event in json.loads(chrome.read_text())["traceEvents"] if event["ph"] == "X"]
    busy = sum(event["dur"] for event in spans if "tokens" in event["args"]) / 1e6
    assert abs(busy / sum(one["busy_s"] for one in figures["replicas"]) - 1) < 1e-9
    assert any(event["name"] == "waiting again" for event in spans)


def test_the_page_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(*H100, *TIGHT, "--replicas", "2", "--slo", "ttft=p99:1ms", "--report", out)
    assert f"report    {out}" in done.stdout
    page = out.read_text()
    assert "0 of 1" in page
    assert "http://" not in page
    assert "https://" not in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 7
    for picture in pictures:
        ElementTree.fromstring(picture)
    lives = pictures[-1]
    assert lives.count("<g>") == 40
    assert "waiting again" in page


def test_lives_that_would_be_slivers_are_drawn_of_neighbours(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run(*H100, "--arrivals", "poisson:2", "--lengths", "prompt=fixed:64;output=fixed:16", "--requests", "400",
        "--interval", "off", "--report", out)  # fmt: skip
    page = out.read_text()
    assert "64 tokens of prompt and 16 of output on average" in page
    assert "24 of 400 requests, one after the other in the middle of the run" in page
    lives = re.findall(r"<svg.*?</svg>", page, re.DOTALL)[-1]
    assert lives.count("<g>") == 24
    edges = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', lives)]
    assert min(edges) == 64.0
    assert 800 < max(edges) < 1108
    assert re.findall(r'<text class="[a-z]*" x="64.0" y="\d+">([^<]*)<', lives) != ["0"]


def test_pictures_are_of_one_run(tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    for words, why in (
        (("--report", page, "--find", "rate", "--slo", "ttft=1s"), "--report is of one run, and --find makes many"),
        (("--report", page, "--sweep", "tp=1,2"), "--report is of one run, and --sweep makes many"),
        (("--timeline", str(tmp_path / "t.txt")), "ends in .pftrace, .json, .json.gz"),
    ):
        done = run(*H100, *TIGHT, *words, code=2)
        assert why in done.stderr
        assert not list(tmp_path.iterdir())
