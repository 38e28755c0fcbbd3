"""The HTML page: self-contained, safe, moderate in size, and drawn without an error in a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import run
from tests.report.example import make, with_parts
from triosim.core.errors import InputError
from triosim.core.units import format_bytes, format_time
from triosim.prediction.result import Efficiency, Result
from triosim.prediction.timeline import MemoryTrack
from triosim.report import html
from triosim.report.messages import spans
from triosim.schedule.program import Op

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ODD = '</script><script>alert("x")</script><!-- & é'


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def odd(result: Result) -> Result:
    """The same prediction with names that would break a careless page."""
    timeline = result.timeline
    timeline = dataclasses.replace(
        timeline, names=tuple(n + ODD for n in timeline.names), modules=tuple(m + ODD for m in timeline.modules),
        rank_names=tuple(n + ODD for n in timeline.rank_names),
        links=dataclasses.replace(timeline.links, name=tuple(n + ODD for n in timeline.links.name)),
    )  # fmt: skip
    layers = [dataclasses.replace(row, module=row.module + ODD) for row in result.layers]
    return dataclasses.replace(
        with_parts(result, layers, timeline), workload=dataclasses.replace(result.workload, name=ODD),
        fidelity=result.fidelity.replaced(solver_options={ODD: ODD}), sources=(ODD,), warnings=(ODD,),
    )  # fmt: skip


def test_the_page_is_one_file_that_reaches_for_nothing(tmp_path: Path) -> None:
    html.write(make(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert "default-src 'none'" in page
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", page)
    assert not re.search(r"https?://|@import|\bsrc=|\bfetch\(|XMLHttpRequest", outside)


def test_names_cannot_break_out(tmp_path: Path) -> None:
    page = html.render(odd(make(layers=1)))
    assert "alert(" not in re.sub(r'<script id="data".*?</script>', "", page, flags=re.S).replace("alert(&quot;", "")
    assert page.count("</script>") == 2
    assert any(name.endswith(ODD) for name in embedded(page)["timeline"]["names"])


def test_the_picture_holds_every_slice() -> None:
    result = make(iterations=2)
    timeline = embedded(html.render(result))["timeline"]
    s = result.timeline.slices
    assert timeline["slices"] == len(s) == sum(len(lane["kind"]) for lane in timeline["lanes"])
    start, begin, end = spans(s)
    length = sum(sum(lane["length"]) for lane in timeline["lanes"])
    assert length == pytest.approx(float((end - start).sum()) * 1e9, abs=len(s))
    waited = sum(sum(lane.get("wait", ())) for lane in timeline["lanes"])
    assert waited == pytest.approx(float((begin - start).sum()) * 1e9, abs=len(s))
    for lane in timeline["lanes"]:
        at = np.cumsum(lane["start"])
        assert np.all(at[1:] >= (at + lane["length"])[:-1])
        assert sum(lane["micro_batch"][1::2]) == len(lane["kind"])
    kinds = timeline["kinds"]
    seconds = dict.fromkeys(html.GROUPS, 0)
    for lane in timeline["lanes"]:
        for kind, ns in zip(lane["kind"], lane["length"], strict=True):
            seconds[html.GROUPS[kinds[kind][6]]] += ns
    for phase, code in (("forward", 0), ("backward", 1), ("optimizer", 2)):
        mine = (s.op == Op.COMPUTE) & (s.phase == code)
        assert seconds[phase] == pytest.approx(float((s.end - s.start)[mine].sum()) * 1e9, abs=len(s))


def test_many_slices_are_thinned_and_the_page_says_so() -> None:
    result = make()
    timeline = embedded(html.render(result, limit=700))["timeline"]
    assert timeline["slices"] == 700
    assert [r["rank"] for r in timeline["ranks"]] == [0, 2]
    assert timeline["notes"][0] == "Shown: 2 of 4 ranks, one of each kind."
    left = int(np.isin(result.timeline.slices.rank, (0, 2)).sum()) - 700
    assert timeline["notes"][1].startswith(f"Left out of the picture: the {left} shortest slices (6 us and less).")
    assert not embedded(html.render(result))["timeline"]["notes"]


def test_a_large_run_makes_a_moderate_file() -> None:
    result = make(stages=4, replicas=2, micro_batches=8, layers=9)
    assert len(result.timeline.slices) > 8 * 2900
    assert len(html.render(result).encode()) < 1_000_000


def test_a_shortened_memory_curve_keeps_its_peak_and_its_end() -> None:
    rng = np.random.default_rng(1)
    timeline = make().timeline
    time = np.sort(rng.random(20_000)) * timeline.end * rng.choice([0.2, 1.0], 20_000)
    time.sort()
    held = rng.integers(0, 2**34, (20_000, 8)) // 1024 * 1024
    short = html._track(MemoryTrack(0, time, held), timeline)
    kib = np.array(short["kib"]).T
    assert len(short["time"]) <= 2 * html.STEPS + 1
    assert np.all(np.diff(short["time"]) >= 0)
    assert kib.sum(axis=1).max() * 1024 == held.sum(axis=1).max()
    assert np.array_equal(kib[-1] * 1024, held[-1])


def test_unlimited_links_and_unknown_numbers_are_valid_json() -> None:
    result = make()
    links = dataclasses.replace(result.timeline.links, bandwidth=np.full(8, np.inf))
    changed = dataclasses.replace(result.timeline, links=links)
    workload = dataclasses.replace(result.workload, recorded_time_s=float("nan"))
    result = dataclasses.replace(with_parts(result, timeline=changed), workload=workload)
    rows = embedded(html.render(result))["links"]["rows"]
    assert rows
    assert all(row[2] is None and row[3] == 0 for row in rows)


def test_values_are_written_with_their_units() -> None:
    values = {"capacity_bytes": 2**34, "wall_s": 0.021, "a": {"link": "NVLink"}, "on": True, "none": None, "n": 12345}
    assert html._pairs(values) == [
        ["capacity", "16 GiB", 0], ["wall", "21 ms", 0], ["a", "", 0], ["link", "NVLink", 1], ["on", "yes", 0],
        ["n", "12,345", 0],
    ]  # fmt: skip
    devices = [{"name": "H100", "memory_bandwidth_bytes_per_s": 3.352e12, "peak_flops": {"bfloat16": 9.894e14}}]
    assert html._pairs({"accelerators": devices, "latency_s": 2e-6}) == [
        ["accelerators", "H100", 0], ["memory bandwidth", "3.352 TB/s", 1], ["peak flops", "", 1],
        ["bfloat16", "989.4 TFLOP/s", 2], ["latency", "2 us", 0],
    ]  # fmt: skip


def test_shares_of_modules_are_of_the_devices_time() -> None:
    result = make(stages=2)
    page = html.data(result)["modules"]
    assert page["whole_s"] == 2 * result.iteration_time_s
    assert sum(compute + exposed for _, _, compute, exposed, _ in page["rows"]) <= page["whole_s"]


def test_what_the_devices_reach_is_told_with_its_source() -> None:
    shown = html.data(make())
    assert shown["headline"]["efficiency"]["mfu"] == 0.412
    rows = {name: value for name, value, _ in dict(shown["about"])["Efficiency"]}
    assert rows["MFU"] == "41.2 %"
    assert rows["peak of a device"] == "989.4 TFLOP/s"
    assert rows["source"].endswith("a datasheet")
    unknown = dataclasses.replace(
        make(), efficiency=Efficiency(None, None, None, None, "", None, "the peak is not known")
    )
    assert dict(html.data(unknown)["about"])["Efficiency"] == [
        ["MFU", "not known", 0], ["source", "the peak is not known", 0],
    ]  # fmt: skip


def test_a_page_that_cannot_be_written_is_a_plain_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        html.write(make(layers=1), tmp_path / "absent" / "report.html")


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's elements after its scripts have run, and what the browser complained about."""
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    switches = (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", f"user-data-dir={profile}", "enable-logging=stderr",
        "virtual-time-budget=4000", "window-size=1300,1600", "dump-dom",
    )  # fmt: skip
    command = [BROWSER, *(f"--{switch}" for switch in switches), page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("case", ["usual", "odd", "smallest", "does not fit"])
def test_a_browser_draws_the_page_without_complaint(case: str, tmp_path: Path) -> None:
    result = {
        "usual": lambda: make(iterations=2),
        "odd": lambda: odd(make(layers=1)),
        "smallest": lambda: make(stages=1, replicas=1, micro_batches=1, layers=1, host=False, capacity=False),
        "does not fit": lambda: make(fits=False),
    }[case]()
    html.write(result, tmp_path / "report.html")
    shown, complaints = browse(tmp_path / "report.html", tmp_path / "profile")
    assert not complaints
    assert 'data-ready="yes"' in shown
    body = re.sub(r"<script.*?</script>", "", shown, flags=re.S)
    canvas = re.search(r'<canvas id="timeline-canvas" width="(\d+)" height="(\d+)"', body)
    assert canvas
    assert int(canvas[1]) > 1000
    assert int(canvas[2]) >= 40
    assert len(re.findall(r'<div class="card">', body)) == 5
    data = embedded(html.render(result))
    areas = len(data["tracks"][0]["categories"]) + (result.energy is not None)  # memory by kind, and power over time
    assert len(re.findall(r'<path d="M', body)) == areas
    rows = re.search(r'<table id="modules-table">.*?</table>', body, re.S)
    assert rows
    assert rows[0].count("<tr>") > 5
    if case == "usual":
        known = (format_time(result.iteration_time_s), format_bytes(result.memory.reserved_bytes + 500 * 2**20))
        used = "41.2&nbsp;% of 989.4 TFLOP/s bfloat16 (MFU)"
        for words in (*known, used, "Fits", "all reduce", "gpu0 -&gt; switch0", "model.layers.*", "stage 1"):
            assert words in body
        shares = [float(x) for x in re.findall(r"(?<=<td>)[\d.]+(?=&nbsp;%</td>)", rows[0])]
        top = re.findall(r"padding-left: 4px.*?<td>([\d.]+)&nbsp;%</td>", rows[0])
        assert shares
        assert 0 < sum(map(float, top)) <= 100.1
    if case == "smallest":
        assert not re.search(r"\bstages?\b", re.sub(r"<style.*?</style>", "", body, flags=re.S), re.I)
    if case == "odd":
        assert "&lt;/script&gt;&lt;script&gt;alert" in body
    if case == "does not fit":
        assert "Does not fit" in body


def test_the_keyboard_stays_where_it_was_when_a_table_is_sorted_or_a_module_opened(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    presses = """<script>addEventListener("load", () => setTimeout(() => {
      const held = [];
      for (const wanted of ["#modules-table th button", "#modules-table button.toggle", "#links-table th button"]) {
        const button = document.querySelector(wanted), before = button.dataset.key;
        button.focus(); button.click();
        const now = document.activeElement;
        held.push(before !== undefined && now !== button && now.dataset.key === before);
      }
      document.body.dataset.held = held.join(" ");
    }, 300))</script></body>"""
    page.write_text(html.render(make()).replace("</body>", presses))
    shown, complaints = browse(page, tmp_path / "profile")
    assert not complaints
    assert 'data-held="true true true"' in shown
    assert not re.search(r"<button[^>]*></button>", shown), "a button that says nothing"


@pytest.mark.parametrize("words", [
    ("train", "gpt2", "--device", "A100"),
    ("serve", "gpt2", "--device", "A100", "--arrivals", "poisson:8", "--lengths", "fixed:64", "--requests", "20"),
    ("accelerator", "map", "eyeriss", "examples/accelerator/layer.toml", "--budget", "50"),
])  # fmt: skip
def test_pages_fit_a_telephone(words: tuple[str, ...], tmp_path: Path) -> None:
    page, frame = tmp_path / "page.html", tmp_path / "frame.html"
    run(*words, "--report", page)
    asked = "parent.postMessage([innerWidth, document.documentElement.scrollWidth].join(), '*')"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("</body>", f"<script>setTimeout(() => {asked}, 300)</script></body>"))
    listens = "<script>onmessage = (told) => { document.body.dataset.widths = told.data }</script>"
    frame.write_text(f'<body>{listens}<iframe src="page.html" width="400" height="900" style="border: 0"></iframe>')
    shown, _ = browse(frame, tmp_path / "profile")
    widths = re.search(r'data-widths="(\d+),(\d+)"', shown)
    assert widths
    assert int(widths[1]) == 400
    assert int(widths[2]) <= 400
