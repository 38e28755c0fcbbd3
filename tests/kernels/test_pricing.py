"""The one call and its story."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest

from tests.kernels.example import DEVICE, OTHER, job, step
from tests.kernels.test_changes import marked
from tests.sources.readers.profiles import Profile
from triosim import simulate, system
from triosim.core.errors import InputError
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import MODELS, PricingJob
from triosim.kernels.pricing import describe, price, undecided_rows
from triosim.sources.reading import read
from triosim.transform.rescale import rescale


def test_the_models_that_users_can_name():
    assert {"auto", "recorded", "proportional", "roofline"} <= set(MODELS.names())
    with pytest.raises(InputError, match="unknown operator model 'rooflien': did you mean roofline"):
        price(job(), "rooflien")


def test_a_pack_is_a_model(tmp_path):
    text = (resources.files("triosim.kernels") / "data" / "roofline.json").read_text(encoding="utf-8")
    slow = json.loads(text)
    for entry in slow["classes"].values():
        entry["memory"] /= 2
        entry["compute"] /= 2
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(slow))
    ours, theirs = (price(job(recorded_on=None), model).seconds for model in ("roofline", str(path)))
    assert np.all(theirs[[0, 1, 3]] > ours[[0, 1, 3]])
    assert "pack 'roofline'" in describe(price(job(recorded_on=None), str(path)), job().trace, None, str(path))[1]


def test_sentences_name_sources_shares_and_devices():
    asked = job(64)
    found = price(asked)
    (first,) = describe(found, asked.trace, asked)
    share = round(100 * 30e-6 / found.seconds.sum())
    assert f"{share} % recorded on Example" in first
    assert f"{100 - share} % recorded times of Example carried over" in first
    assert first.endswith("by physical models") or "by physical models," in first
    elsewhere = job(device=OTHER, recorded_on=None)
    assert describe(price(elsewhere), elsewhere.trace, elsewhere)[0].endswith(
        "100 % physical models on Faster (tiles, waves, caches, power), without a recording"
    )
    first, second = describe(price(elsewhere, "roofline"), elsewhere.trace, elsewhere, "roofline")
    assert first.endswith("100 % the roofline on Faster, without a recording")
    assert "measured kernels" in second


def test_undecided_operators_are_listed():
    recorded = marked(step(), 3)
    asked = PricingJob(rescale(recorded, 32), DEVICE, recorded, DEVICE)
    story = describe(price(asked), asked.trace, asked)[-1]
    assert story.startswith("1 of 4 operators")
    assert "unchanged to x4" in story
    assert story.endswith("aten::relu")
    assert undecided_rows(asked) == [1, 2]
    assert undecided_rows(PricingJob(recorded, DEVICE, recorded, DEVICE)) == []


def test_a_trace_without_time():
    nothing = Estimates(np.zeros(4), np.zeros(4), np.zeros(4, np.int8), np.zeros(4, np.int8))
    assert describe(nothing, step()) == ["operator times: no operator takes device time"]


def test_times_of_a_processor_are_not_those_of_a_gpu(tmp_path):
    profile = tmp_path / "mine.json"
    p = Profile()
    for at in range(3):
        p.op("aten::mm", 1000 * at, 900, dims=[[64, 64], [64, 64]])
    recorded = read(p.write(profile))
    assert (recorded.meta.clock, recorded.meta.device) == ("cpu", None)
    there = simulate(recorded, system(device="A100"))
    assert there.iteration_time_s < 1e-3
    assert not any("recorded on A100" in line for line in there.sources)
    assert simulate(recorded, system(device="EPYC-7763")).iteration_time_s == pytest.approx(2.7e-3, rel=0.1)


def test_what_was_profiled_without_shapes_is_not_priced_from_them(tmp_path):
    p = Profile()
    p.op("aten::mm", 0, 900)
    recorded = read(p.write(tmp_path / "mine.json"))
    assert simulate(recorded, system()).iteration_time_s == pytest.approx(0.9e-3, rel=0.01)
    with pytest.raises(InputError, match=r"holds no shapes, .* profile again with record_shapes=True"):
        simulate(recorded, system(device="A100"))
