"""Money and carbon: published jobs, laws, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.command import run
from triosim import Plan
from triosim.core.errors import InputError
from triosim.energy.cost import CostOptions, Usage, cost, facility_pue, grid_name, process
from triosim.energy.options import EnergyOptions
from triosim.energy.usage import hourly, nominal, read

USAGE = Usage(devices=(("H100-SXM5-80GB", 8.0),), hours=0.5, it_j=2e7, pue=1.2, samples=64.0, tokens=64 * 4096.0)

PUBLISHED = [
    # Luccioni et al. 2023; Patterson et al. 2021; Llama 2 paper; Llama 3.1 model card
    ("A100", 1082990, 400, 1.0, 57, 433.196, 24.69, 1e-3),
    ("V100", 3552000, 330, 1.10, 429, 1287, 552.1, 3e-3),
    ("A100", 184320, 400, 1.0, 423.5, 73.728, 31.22, 1e-3),
    ("A100", 368640, 400, 1.0, 423.5, 147.456, 62.44, 1e-3),
    ("A100", 1720320, 400, 1.0, 423.5, 688.128, 291.42, 1e-3),
    ("H100", 30840000, 700, 1.0, 413.7, 21588, 8930, 1e-3),
]


@pytest.mark.parametrize(("device", "hours", "watts", "pue", "grid", "mwh", "tonnes", "off"), PUBLISHED)
def test_published_jobs_are_bookkept(
    device: str, hours: float, watts: float, pue: float, grid: float, mwh: float, tonnes: float, off: float
) -> None:
    row = cost(nominal(device, hours, watts), CostOptions(grid_g_per_kwh=(grid,), pue=pue)).rows[0]
    assert row.facility_kwh / 1000 == pytest.approx(mwh, rel=off)
    assert row.location_kg / 1000 == pytest.approx(tonnes, rel=off)


def test_deepseek_v3_at_two_dollars_an_hour() -> None:
    row = cost(nominal("H800", 2.788e6, 700), CostOptions(price_per_hour=2.0)).rows[0]
    assert row.usd == 5.576e6


@given(st.floats(1e-3, 1e4), st.floats(0, 2000), st.floats(1, 3), st.sampled_from(["list", "reserved", "spot", "own"]))
def test_rows_are_proportional_and_parts_add_up(hours: float, grid: float, pue: float, mode: str) -> None:
    options = CostOptions(grid_g_per_kwh=(grid,), pue=pue, mode=mode, tokens=1e12)
    found = cost(replace(USAGE, hours=hours), options)
    units = {row.unit: row for row in found.rows}
    assert set(units) == {"iteration", "job", "million tokens", "sample"}
    assert USAGE.tokens is not None
    factor = 1e12 / USAGE.tokens
    for name in ("hours", "it_kwh", "facility_kwh", "usd", "location_kg", "embodied_kg", "water_l"):
        one, all_ = getattr(units["iteration"], name), getattr(units["job"], name)
        assert all_ == pytest.approx(one * factor, rel=1e-9)
    for row in found.rows:
        assert row.usd == math.fsum(row.usd_parts.values())
        assert row.facility_kwh == row.it_kwh * pue


def test_market_and_location_are_apart() -> None:
    row = cost(USAGE, CostOptions(at="FR", market=0.75)).rows[0]
    assert row.market_kg == pytest.approx(row.location_kg / 4)
    assert row.location_kg == pytest.approx(row.facility_kwh * 0.056)


def test_reserved_and_spot_are_cheaper_than_the_list_price() -> None:
    usd = [cost(USAGE, CostOptions(mode=mode)).rows[0].usd or 0.0 for mode in ("list", "reserved", "spot")]
    assert usd[0] > usd[1] > usd[2] > 0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.integers(0, 90))
def test_hourly_grids_are_averaged_over_the_job(values: list[float], hours: int) -> None:
    usage = Usage(devices=(("A100", 1.0),), hours=hours + 0.5, it_j=3.6e6, pue=1.0)
    row = cost(usage, CostOptions(grid_g_per_kwh=tuple(values))).rows[0]
    whole = [values[i % len(values)] for i in range(hours)]
    mean = (sum(whole) + 0.5 * values[hours % len(values)]) / (hours + 0.5)
    assert row.location_kg * 1000 == pytest.approx(mean, rel=1e-9, abs=1e-9)


def test_constants_that_were_used_are_named() -> None:
    found = cost(USAGE, CostOptions(at="FR", overrides=(("grid.FR", 40.0),)))
    assert any(words.startswith("grid.FR 40 g/kWh: as given") for words in found.sources)
    assert any(words.startswith("product.H100") for words in found.sources)
    assert not any(words.startswith("grid.DE") for words in found.sources)
    assert found.rows[0].location_kg == pytest.approx(found.rows[0].facility_kwh * 0.04)


def test_a_price_that_nobody_knows_is_said() -> None:
    found = cost(replace(USAGE, devices=(("my-chip", 4.0),)), CostOptions())
    assert found.rows[0].usd is None
    assert any("rent of my-chip: not known" in words for words in found.sources)


def test_devices_without_a_study_are_reckoned_after_act() -> None:
    """TU102-like: 754 mm2 would be 12 nm; an H100's die at 5 nm is 8.14 cm2."""
    from triosim.energy.constants import EnergyConstants
    from triosim.energy.cost import _Costing
    from triosim.hardware.catalog import accelerator

    costing = _Costing(USAGE, CostOptions(), EnergyConstants())
    device = accelerator("L40S")
    grams = 2.75 * 0.5 * 1000 + 430 + 500
    die = 6.09 / 0.875 * grams / 1000
    assert device.memory_bytes is not None
    memory = device.memory_bytes / 2**30 * 65 / 1000
    assert costing.device_kg(device) == pytest.approx(die + memory + 0.15)
    assert process("5/6nm") == 5.0
    assert process("12nm") == 12.0


def _written(tmp_path: Path, **options: object) -> Path:
    trace = triosim.model("gpt2", sequence_length=128)
    system = triosim.system(device="A100", devices=2, link="100GB/s")
    result = triosim.simulate(trace, system, Plan(dp=2), **options)
    path = tmp_path / "result.json"
    path.write_text(result.to_json())
    return path


def test_a_written_result_costs_what_the_prediction_said(tmp_path: Path) -> None:
    options = CostOptions(at="DE", price_per_hour=1.5, tokens=1e9)
    path = _written(tmp_path, energy=EnergyOptions(cost=options))
    again = json.loads(json.dumps([row.usd for row in cost(read(path), options).rows]))
    said = [row["usd"] for row in json.loads(path.read_text())["cost"]["rows"]]
    assert again == pytest.approx(said, rel=1e-12)


def test_the_command_re_costs(tmp_path: Path) -> None:
    path = _written(tmp_path)
    done = run("cost", str(path), "--at", "fr", "--price", "2/h", "--tokens", "1e9", "--pue", "google", "--json", "-")
    found = json.loads(done.stdout)
    assert found["schema"] == "triosim/cost/1"
    assert found["pue"] == 1.1
    assert [row["unit"] for row in found["rows"]] == ["iteration", "job", "million tokens", "sample"]
    shown = run("cost", str(path), "--pay", "own")
    assert "electricity" in shown.stdout
    assert "Rests on" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pue", "0.9"], "PUE must be at least 1"), (["--grid", "-3"], "at least 0 g/kWh"),
        (["--constant", "grid.FR=-1"], "at least 0 g/kWh"), (["--constant", "facility.pue=0.5"], "at least 1"),
        (["--at", "atlantis"], "unknown place"), (["--price", "free"], "--price"), (["--pay", "never"], "way to pay"),
        (["--market", "1.5"], "0 to 1"), (["--tokens", "0"], "--tokens"), (["--hours", "3"], "leave out --device"),
        (["--constant", "grid.FR"], "for example grid.FR=40"),
        (["--pay", "own", "--price", "2/h"], "give only one of --price and --pay"),
        (["--pay", "spot", "--price", "2/h"], "give only one of --price and --pay"),
        (["--at", "FR", "--grid", "40"], "both say the intensity"), (["--price", "-1/h"], "at least 0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    done = run("cost", str(_written(tmp_path)), *words, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_price_may_name_its_unit(tmp_path: Path) -> None:
    path = str(_written(tmp_path))
    said = [json.loads(run("cost", path, "--price", text, "--json", "-").stdout)["rows"] for text in
            ("2", "2/h", "$2/h", "2 USD/h", "2USD")]  # fmt: skip
    assert all(rows == said[0] for rows in said)
    assert "at least 0, for example 2/h" in run("cost", path, "--price", "2/d", code=2).stderr


def test_a_request_costs_between_what_its_times_are_between(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    run("infer", "llama-2-7b", "--device", "A100", "--prompt", "64", "--output", "8", "--json", path)
    low, high = json.loads(path.read_text())["interval"]["e2e_s"]
    row = cost(read(path)).rows[0]
    assert row.usd is not None
    width = math.log(row.interval["usd"][1] / row.interval["usd"][0])
    assert width == pytest.approx(math.log(high / low))
    assert any("hosts are not in it" in words for words in cost(read(path)).sources)


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, said in (
        ("{}", "is no result"), ('{"schema": "triosim/result/1", "energy": null}', "has no energy"),
        ('{"schema": "triosim/result/1", "energy": {}, "iteration_time_s": 1}', "damaged result"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read(path)


def test_grids_by_the_hour_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("hour,g_co2e_per_kwh\n0,50\n1,70\n")
    assert hourly(path) == (50.0, 70.0)
    for text, said in (
        ("hour,x\n0,1\n", "no column g_co2e_per_kwh"), ("hour,g_co2e_per_kwh\n0,-1\n", "line 2: .* at least 0"),
        ("hour,g_co2e_per_kwh\n0,a\n", "line 2: .* no number"), ("hour,g_co2e_per_kwh\n", "no lines"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            hourly(path)


def test_a_prediction_takes_a_grid_by_the_hour(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("hour,g_co2e_per_kwh\n0,50\n1,90\n")
    asked = ("train", "gpt2", "--seq-len", "128", "--device", "A100", "--tokens", "1e9", "--json", "-")
    job = {}
    for grid in (str(path), "70"):
        rows = json.loads(run(*asked, "--grid", grid).stdout)["cost"]["rows"]
        job[grid] = next(row for row in rows if row["unit"] == "job")
    hours, kwh = job["70"]["hours"], job["70"]["facility_kwh"]
    assert job["70"]["location_kg"] == pytest.approx(0.07 * kwh)
    whole, rest = divmod(hours, 2)
    mean = (140 * whole + 50 * min(rest, 1) + 90 * max(rest - 1, 0)) / hours
    assert job[str(path)]["location_kg"] == pytest.approx(mean / 1000 * kwh)
    assert "at least 0 g/kWh" in run(*asked[:-2], "--grid", "-3", code=2).stderr


def test_places_and_companies_by_name() -> None:
    assert grid_name("N. Virginia") == grid_name("n-virginia")
    assert facility_pue("Google") == 1.1
    with pytest.raises(InputError, match="unknown PUE"):
        facility_pue("nobody")


def test_water_is_that_of_the_company_whose_facility_it_is(tmp_path: Path) -> None:
    path, litres = _written(tmp_path), {}
    kwh = cost(read(path)).rows[0].it_kwh
    for words in (("--pue", "AWS"), ("--pue", "google"), ("--pue", "aws", "--constant", "facility.wue=1")):
        found = json.loads(run("cost", str(path), *words, "--json", "-").stdout)
        litres[words[1:]] = found["rows"][0]["water_l"] / kwh
    assert list(litres.values()) == pytest.approx([0.17, 1.8, 1.0])
    predicted = ("train", "gpt2", "--device", "H100", "--seq-len", "128", "--tokens", "1e9", "--json", "-")
    job = json.loads(run(*predicted, "--pue", "aws").stdout)["cost"]["rows"][0]
    assert job["water_l"] / job["it_kwh"] == pytest.approx(0.17)


def test_tokens_beside_hours_of_a_whole_job_are_refused_and_a_price_is_shown() -> None:
    hours = ("cost", "--device", "H100", "--hours", "1000")
    assert "of a whole job already: leave --tokens out" in run(*hours, "--tokens", "1e9", code=2).stderr
    assert "2 USD/h, world, PUE" in run(*hours, "--price", "2/h").stdout
    assert "list, world, PUE" in run(*hours).stdout


def test_intervals_share_what_their_figures_share() -> None:
    sure = cost(replace(USAGE, pue=1.2), CostOptions(grid_g_per_kwh=(400.0,), pue=1.2)).rows[0].interval
    assert sure["usd"][0] == sure["usd"][1]
    assert sure["location_kg"][0] == sure["location_kg"][1]
    slow = replace(USAGE, hours_spread=math.log(1.5), it_spread=math.log(1.2), timed=0.25)
    options = CostOptions(grid_g_per_kwh=(400.0,), pue=1.2, tokens=1e12)
    for row in cost(slow, options).rows:
        assert row.usd is not None
        assert row.interval["usd"] == pytest.approx((row.usd / 1.5, row.usd * 1.5))  # the hours alone
        longer = math.hypot(math.log(1 + 0.25 * 0.5), math.log(1.2))
        assert row.interval["location_kg"][1] == pytest.approx(row.location_kg * math.exp(longer))
        low, high = row.interval["facility_kwh"]
        assert row.interval["location_kg"] == pytest.approx((0.4 * low, 0.4 * high))


def test_intervals_are_of_constants_until_somebody_gives_them() -> None:
    usual = cost(replace(USAGE, pue=None)).rows[0]
    assert usual.interval["facility_kwh"] == pytest.approx(
        (usual.facility_kwh / 1.56 * 1.08, usual.facility_kwh / 1.56 * 1.6)
    )
    given = cost(replace(USAGE, pue=None), CostOptions(overrides=(("facility.pue", 1.56), ("facility.wue", 1.8))))
    assert given.rows[0].interval["water_l"][0] == given.rows[0].interval["water_l"][1]
    assert "facility_kwh" in given.rows[0].interval
    own = cost(USAGE, CostOptions(mode="own")).rows[0]
    assert own.usd is not None
    assert own.interval["usd"][0] < 0.9 * own.usd < 1.1 * own.usd < own.interval["usd"][1]


DEVICE = """
name = "mine"
memory = "256 GiB"
memory_type = "HBM3"
memory_bandwidth = "12 TB/s"
tdp_w = 1500
process = "3 nm"
price_per_hour = 1.5
peak_flops = { bfloat16 = 3500e12 }
"""


def test_a_price_of_a_device_file_is_in_the_cost_of_its_results(tmp_path: Path) -> None:
    path, json_file = tmp_path / "mine.toml", tmp_path / "result.json"
    path.write_text(DEVICE)
    serve = ("--arrivals", "poisson:4", "--lengths", "fixed:100", "--requests", "20", "--interval", "off")
    for words in (
        ("train", "llama-3.2-1b", "--seq-len", "64", "--devices", "2", "--link", "100GB/s"),
        ("serve", "llama-3.2-1b", *serve),
        ("infer", "llama-3.2-1b", "--prompt", "100", "--output", "4"),
    ):
        run(*words, "--device", path, "--json", json_file)
        row, *_ = json.loads(run("cost", json_file, "--json", "-").stdout)["rows"]
        assert row["usd"] == pytest.approx(1.5 * row["device_hours"])
        inside = json.loads(json_file.read_text()).get("cost")
        if inside is not None:
            assert inside["rows"][0]["usd"] == pytest.approx(row["usd"])
            assert inside["rows"][0]["embodied_kg"] == pytest.approx(row["embodied_kg"])
        assert "rent of mine: 1.5 USD/h, as its description has it" in " ".join(run("cost", json_file).stdout.split())
    hours = json.loads(run("cost", "--device", path, "--hours", "10", "--json", "-").stdout)["rows"][0]
    assert (hours["usd"], hours["it_kwh"]) == (15.0, 15.0)


def test_a_result_without_facts_of_its_devices_takes_those_of_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    run("train", "llama-3.2-1b", "--seq-len", "64", "--device", "H100", "--json", path)
    found, now = json.loads(path.read_text()), read(path)
    for one in found["system"]["accelerators"]:
        for name in ("process", "memory_type", "tdp_w", "price_per_hour"):
            del one[name]
    path.write_text(json.dumps(found))
    assert cost(read(path)).rows == cost(now).rows


def test_the_mean_of_iterations_that_vary_is_what_is_paid(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ("train", "llama-3.2-1b", "--seq-len", "64", "--device", "H100", "--devices", "2", "--json", path)
    run(*words)
    plain = cost(read(path)).rows[0]
    run(*words, "--variation", "devices=0.1")
    found = json.loads(path.read_text())
    row = cost(read(path)).rows[0]
    assert row.hours * 3600 == pytest.approx(found["variation"]["mean_s"])
    assert row.hours > plain.hours
    timed = found["energy"]["timed_j"] / found["energy"]["node_j"]
    assert row.it_kwh == pytest.approx(plain.it_kwh * (1 + timed * (row.hours / plain.hours - 1)))
    inside = found["cost"]["rows"][0]
    assert (inside["hours"], inside["usd"]) == pytest.approx((row.hours, row.usd))
    of_job = json.loads(run("job", path, "--iterations", "100", "--mtbf", "none", "--json", "-").stdout)
    assert of_job["training_s"] == pytest.approx(100 * row.hours * 3600)
    assert "iterations that vary (devices=0.1)" in " ".join(run("cost", path).stdout.split())
