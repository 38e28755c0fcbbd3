"""Joules of a job: sums that are exact, laws that hold whatever the constants are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from triosim import Fidelity, Plan, Result
from triosim.core.errors import InputError
from triosim.energy.constants import EnergyConstants, check, parse, table
from triosim.energy.device import device_energy
from triosim.energy.options import EnergyOptions
from triosim.hardware.catalog import accelerator, accelerators
from triosim.hardware.power import held_back

PLANS = {
    "one": Plan(dp=1, batch_size=1),
    "dp": Plan(dp=8, batch_size=2),
    "tp": Plan(tp=8, batch_size=1),
    "pp": Plan(pp=4, dp=2, batch_size=4, micro_batches=4),
    "zero": Plan(dp=8, batch_size=2, zero=3, recompute="full"),
    "split": Plan(pp=4, dp=2, batch_size=4, micro_batches=4, schedule="zb-h1"),
    "iterations": Plan(dp=8, batch_size=1, iterations=3),
}


def _simulate(plan: Plan, cap: float | None = None, fold: bool = True, **options: float) -> Result:
    system = (
        triosim.system("dgx-a100", 1) if plan.replica_ranks * (plan.dp or 1) == 8 else triosim.system(device="A100")
    )
    system = system if cap is None else held_back(system, cap_w=cap)
    trace = _trace()
    told = EnergyOptions(tuple(options.items()))
    return triosim.simulate(trace, system, plan, Fidelity(fold=fold), energy=told)


@cache
def _trace() -> triosim.Trace:
    return triosim.model("gpt2", sequence_length=256)


@cache
def _result(name: str) -> Result:
    return _simulate(PLANS[name])


def _nano(joules: float) -> int:
    return round(joules * 1e9)


@pytest.mark.parametrize("name", PLANS)
def test_parts_add_up_to_the_node_and_with_pue_to_the_facility(name: str) -> None:
    energy = _result(name).energy
    assert energy is not None
    whole = _nano(energy.operators_j + energy.idle_j + energy.links_j + energy.host_j)
    assert abs(whole - _nano(energy.node_j)) <= 1
    assert energy.facility_j == energy.node_j * energy.pue
    assert sum(energy.parts_j.values()) == pytest.approx(energy.operators_j, rel=1e-12)
    assert energy.interval_j[0] < energy.node_j < energy.interval_j[1]


@pytest.mark.parametrize("name", PLANS)
def test_operators_of_all_ranks_add_up(name: str) -> None:
    result = _result(name)
    energy, slices = result.energy, result.timeline.slices
    assert energy is not None
    total = float(np.nansum(slices.energy)) / result.timeline.iterations
    assert total == pytest.approx(energy.operators_j, rel=1e-9)


@pytest.mark.parametrize("name", ["one", "dp", "tp", "zero"])
def test_layers_of_one_rank_add_up_to_its_operators(name: str) -> None:
    result = _result(name)
    ranks = sum(row.count for row in result.devices)
    energy = result.energy
    assert energy is not None
    assert ranks * sum(row.energy_j or 0.0 for row in result.layers) == pytest.approx(energy.operators_j, rel=1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_the_mean_of_the_power_curve_is_the_mean_power(name: str) -> None:
    energy = _result(name).energy
    assert energy is not None
    assert float(np.mean(energy.curve.watts)) == pytest.approx(energy.mean_w, rel=1e-3)
    assert max(energy.curve.watts) <= energy.peak_w * (1 + 1e-9)


@pytest.mark.parametrize("name", PLANS)
def test_a_device_draws_no_more_than_its_tdp(name: str) -> None:
    result = _result(name)
    assert result.timeline.power
    for track in result.timeline.power:
        assert track.watts.max() <= 400.0 * (1 + 1e-6)
        assert track.watts.min() > 0


def test_folded_and_unfolded_jobs_take_the_same() -> None:
    folded, unfolded = _result("dp").energy, _simulate(PLANS["dp"], fold=False).energy
    assert folded is not None
    assert unfolded is not None
    assert (folded.operators_j, folded.idle_j, folded.links_j, folded.node_j) == (
        unfolded.operators_j, unfolded.idle_j, unfolded.links_j, unfolded.node_j,
    )  # fmt: skip


def test_iterations_compute_and_move_the_same_each() -> None:
    """Static power follows time, which collectives of the iteration before stretch."""
    one, three = _simulate(Plan(dp=8, batch_size=1)).energy, _result("iterations").energy
    assert one is not None
    assert three is not None
    for name in ("cache", "memory", "bfloat16 FLOP"):
        assert three.parts_j[name] == pytest.approx(one.parts_j[name], rel=1e-12)


def test_constants_that_are_given_count() -> None:
    energy = _simulate(PLANS["dp"], **{"facility.pue": 1.1, "host.share": 0.0}).energy
    assert energy is not None
    assert energy.pue == 1.1
    assert energy.host_j == 0.0
    assert any("facility.pue 1.1 ratio: as given" in words for words in energy.sources)


def test_a_cap_holds_and_slows() -> None:
    free, capped = _result("one"), _simulate(PLANS["one"], cap=180)
    assert capped.iteration_time_s >= free.iteration_time_s
    assert free.energy is not None
    assert capped.energy is not None
    assert capped.energy.devices[0].clock < 1
    assert any("a cap of 180 W" in words for words in capped.sources)


@settings(max_examples=examples(25))
@given(name=st.sampled_from(("one", "tp", "pp", "zero")), cap=st.floats(133, 400))
def test_a_device_draws_no_more_than_its_cap_or_the_result_says_why(name: str, cap: float) -> None:
    result = _simulate(PLANS[name], cap=cap)
    energy = result.energy
    assert energy is not None
    most = max(row.mean_w for row in energy.devices)
    said = any("bounds what all devices of its kind compute" in words for words in energy.sources)
    assert said == (most > cap * (1 + 1e-6))
    if name == "one":  # no links
        assert not said
    assert most <= (cap + energy.links_j / result.iteration_time_s) * (1 + 1e-6)


def test_a_cap_bounds_what_devices_draw_with_the_user_s_constants() -> None:
    usual, given = (_simulate(PLANS["one"], cap=180, **more).energy for more in ({}, {"device.attained": 0.4}))
    assert usual is not None
    assert given is not None
    assert given.devices[0].clock < usual.devices[0].clock  # a FLOP takes more than the table says


def test_a_cap_at_the_tdp_changes_nothing() -> None:
    assert _simulate(PLANS["one"], cap=400).iteration_time_s == _result("one").iteration_time_s


def test_a_device_without_a_tdp_has_no_energy() -> None:
    trace = triosim.load("examples/resnet50-cpu.triosim")
    result = triosim.simulate(trace, triosim.system(devices=2, link=10e9))
    assert result.energy is None
    assert all(row.energy_j is None for row in result.layers)
    assert result.to_dict()["energy"] is None
    with pytest.raises(InputError, match="TDP"):
        held_back(triosim.system(devices=2, link=10e9), cap_w=100)


def test_every_device_with_a_tdp_has_plausible_constants() -> None:
    for name in accelerators():
        device = accelerator(name)
        found = device_energy(device, EnergyConstants())
        if found is None:
            assert device.tdp_w is None or not device.priced
            continue
        assert 0 < found.idle_w <= found.static_w < found.tdp_w
        assert np.all(found.flop_j > 0)
        assert found.memory_j_per_byte >= 0
        assert found.cache_j_per_byte >= 0


def test_every_constant_has_its_source() -> None:
    for constant in table().values():
        assert constant.source
        assert constant.unit
        assert constant.year
        assert constant.confidence in ("high", "medium", "low")
        assert constant.low <= constant.value <= constant.high


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("facility.pue=0.9", "at least 1"), ("grid.FR=-1", "at least 0 g/kWh"), ("grid.FR=nan", "at least 0"),
        ("grid.XX=1", "unknown constant"), ("grid.FR", "for example grid.FR=40"), ("life.use=2", "0 to 1"),
    ],
)  # fmt: skip
def test_constants_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse([text])


def test_a_constant_is_given_once() -> None:
    with pytest.raises(InputError, match="twice"):
        parse(["grid.FR=1", "grid.FR=2"])
    check("grid.FR", 40.0)
