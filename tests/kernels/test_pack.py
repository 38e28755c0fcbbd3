"""Packs: reading them, refusing bad ones, and the formula."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.fit import roofline as script

from tests.kernels.example import DEVICE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels.classes import ENGINES, GROUPS
from triosim.kernels.pack import join, load


def document() -> dict:
    text = (resources.files("triosim.kernels") / "data" / "roofline.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_the_pack_has_a_row_for_every_class_and_says_where_it_is_from():
    pack = load()
    for g, group in enumerate(GROUPS):
        for e, engine in enumerate(ENGINES):
            key = pack.keys[pack.row[g, e]]
            if f"{group}/{engine}" in pack.keys:
                assert key == f"{group}/{engine}"
    assert all(entry["source"] for entry in document()["classes"].values())
    assert np.all(pack.spread_unseen >= pack.spread)
    assert np.all((pack.compute <= 1) & (pack.memory <= 1)), "faster than the datasheet"


def test_families_that_were_not_measured_get_the_wider_interval():
    pack = load()
    at = pack.keys.index("matrix/tensor")
    for architecture, vendor, kind, expected in (
        ("Hopper GH100", "NVIDIA", "gpu", pack.spread[at]),
        ("Rubin", "NVIDIA", "gpu", pack.spread_unseen[at]),
        ("CDNA3", "AMD", "gpu", pack.spread_unseen[at]),
        ("Zen 4", "AMD", "cpu", max(pack.spread_unseen[at], math.log(2))),
    ):
        device = replace(DEVICE, architecture=architecture, vendor=vendor, kind=kind)
        assert pack.spread_on(device)[at] == pytest.approx(expected, rel=1e-3)


times = st.floats(0, 1e3)


@given(times, times, st.sampled_from([1.0, 2.0, 3.0, math.inf]))
def test_join_lies_between_the_larger_and_the_sum(a, b, overlap):
    joined = float(join(np.array([a]), np.array([b]), overlap)[0])
    assert max(a, b) * (1 - 1e-12) <= joined <= (a + b) * (1 + 1e-12)
    if overlap == math.inf:
        assert joined == max(a, b)
    if overlap == 2:
        assert joined == pytest.approx(math.hypot(a, b), rel=1e-12)


def test_join_takes_an_overlap_per_row():
    a, b = np.array([3.0, 3.0, 3.0]), np.array([4.0, 4.0, 4.0])
    assert join(a, b, np.array([1.0, 2.0, math.inf])).tolist() == pytest.approx([7.0, 5.0, 4.0])


def test_products_on_a_tpu_reach_what_xla_does_on_one():
    """As the fit: 84 and 92 % of the peak with the host's dispatch, which is the rest; other classes as elsewhere."""
    pack = load()
    tpu, gpu = (catalog.accelerator(name) for name in ("TPU-v5e", "A100-SXM4-80GB"))
    row = pack.keys.index("matrix/tensor")
    share = pack.compute_on(tpu)[row]
    assert share == pytest.approx(script.xla_products(), rel=1e-3)
    ideal = 2 * 8192**3 / script.V5E_PEAK
    dispatch = script.XLA_SECONDS[1024] - 2 * 1024**3 / script.V5E_PEAK / share
    assert dispatch + ideal / share == pytest.approx(script.XLA_SECONDS[8192], rel=0.02)
    assert np.array_equal(pack.compute_on(gpu), pack.compute)
    others = np.arange(len(pack.keys)) != row
    assert np.array_equal(pack.compute_on(tpu)[others], pack.compute[others])
    assert pack.spread_on(tpu)[row] < pack.elsewhere <= pack.spread_on(tpu)[others].min()


def test_products_on_gaudi_2_reach_what_intel_measured():
    pack = load()
    gaudi, later = (catalog.accelerator(name) for name in ("Gaudi2", "Gaudi3"))
    for engine, reach in script.GAUDI_REACH.items():
        row = pack.keys.index(f"matrix/{engine}")
        assert pack.compute_on(gaudi)[row] == reach > pack.compute_on(later)[row] == pack.compute[row]


def test_a_pack_of_the_user(tmp_path):
    mine = document() | {"name": "mine"}
    mine["classes"]["elementwise"]["memory"] = 0.5
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(mine))
    pack = load(str(path))
    assert pack.name == "mine"
    assert pack.memory[pack.keys.index("elementwise")] == 0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema="other/1"), "schema is 'other/1'"),
        (lambda d: d.pop("classes"), "'classes' is missing"),
        (lambda d: d["classes"]["elementwise"].pop("memory"), "class 'elementwise' has no 'memory'"),
        (lambda d: d["classes"]["elementwise"].update(memory=0), "it must be positive"),
        (lambda d: d["classes"]["elementwise"].update(memory="fast"), "not a number"),
        (lambda d: d["classes"].pop("other"), "and so is 'other'"),
        (lambda d: d.pop("elsewhere"), "'elsewhere'"),
        (lambda d: d.update(own={}), "'own' is not a list"),
        (lambda d: d.update(own=[{"class": "elementwise"}]), "own[0] needs 'architectures'"),
        (lambda d: d.update(own=[{"class": "none", "architectures": ["X"]}]), "a 'class' of"),
        (
            lambda d: d.update(own=[{"class": "other", "architectures": ["X"], "compute": 0.0, "spread": 0.1}]),
            "must be positive",
        ),
    ],
)
def test_bad_packs_are_refused(tmp_path, change, says):
    bad = document() | {"own": []}
    bad["classes"] = {key: value for key, value in bad["classes"].items() if key in ("elementwise", "other")}
    bad["classes"] |= {key: dict(bad["classes"]["other"]) for key in GROUPS if key not in ("nothing", *bad["classes"])}
    if "and so is" in says:
        bad["classes"].pop("rowwise")
    change(bad)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(bad))
    with pytest.raises(InputError, match=r"bad\.json") as error:
        load(str(path))
    assert says in str(error.value)


def test_a_file_that_is_not_there_or_not_json(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load(str(tmp_path / "absent.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match="broken JSON at line 1"):
        load(str(tmp_path / "broken.json"))
