"""Kinds of kernels behind one set of functions, and the physical model of a trace."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import triosim
from tests.kernels.example import DEVICE, UNKNOWN, job, one, step
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels.estimate import Source
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.physical import kinds
from triosim.kernels.physical.kinds import BY_NAME, KINDS, RateFactors
from triosim.kernels.pricing import price
from triosim.kernels.work.attention import attention
from triosim.kernels.work.convolution import convolution
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.kernels.work.scan import scans
from triosim.kernels.work.stream import rowwise

H100 = catalog.accelerator("H100-SXM5-80GB")
SIZES = np.array([1.0, 8.0, 64.0])

WORK: dict[str, Any] = {
    "gemm": gemm(512 * SIZES, 4096.0, 4096.0, "bfloat16"),
    "convolution": convolution(
        8 * SIZES, np.full(3, 64.0), np.full(3, 64.0), np.full(3, 56.0), 3, DTYPE_CODE["float32"]
    ),
    "attention": attention(SIZES, 2048.0, 2048.0, 32.0, 8.0, 128.0),
    "moe": experts(64 * SIZES, 2.0, 4096.0, 14336.0, 8.0),
    "scan": scans(SIZES, 4096.0, 64.0, 8.0, 128.0, 64.0, 256.0, 4.0),
    "stream": rowwise("elementwise", 4096 * SIZES, np.full(3, 4096.0)),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_prices_its_work(kind):
    work = WORK[kind.name]
    found = kinds.price(work, H100)
    assert kinds.kind_of(work) is kind
    assert np.all(np.diff(found.seconds) > 0)
    assert np.all(found.source == Source.PHYSICAL)
    assert np.all((found.spread > 0.05) & (found.spread < 1))
    assert kind.shape(work).shape[0] == 3
    assert set(kind.class_of(work).tolist()) <= set(range(len(kind.classes)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_scalars_move_what_they_are_named_after(kind):
    work = WORK[kind.name].take(np.array([2]))
    base = kind.predict(work, H100, kind.constants()).seconds[0]
    faster = {
        name: kind.predict(work, H100, kind.scaled(kind.constants(), RateFactors(**{name: 2.0}))).seconds[0]
        for name in ("compute", "bandwidth", "launch")
    }
    assert faster["compute"] < base or faster["bandwidth"] < base
    assert faster["launch"] > base
    both = kind.predict(work, H100, kind.scaled(kind.constants(), RateFactors(2.0, 2.0, 0.5))).seconds[0]
    assert both == pytest.approx(base / 2, rel=0.25)
    assert kind.predict(work, H100, kind.scaled(kind.constants(), RateFactors())).seconds[0] == base


def test_scalars_follow_constants_that_there_are():
    one_each = {
        "gemm": next(iter(BY_NAME["gemm"].constants().values())),
        "convolution": next(iter(BY_NAME["convolution"].constants().values())),
        "prefill": next(iter(BY_NAME["attention"].constants().prefill.families.values())),
        "decode": next(iter(BY_NAME["attention"].constants().decode.families.values())),
        "moe": next(iter(BY_NAME["moe"].constants().families.values())),
        "stream": next(iter(BY_NAME["stream"].constants().values())),
    }
    for name, follows in kinds._FOLLOWS.items():
        assert set(follows) <= {field.name for field in fields(one_each[name])}, name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_intervals_are_wider_on_devices_whose_family_was_not_measured(kind):
    work = WORK[kind.name]
    limit = kind.predict(work, H100, kind.constants()).limit
    strange = replace(H100, name="Next", architecture="Rubin", compute_capability="13.0")
    here, there, usual = (kind.spread(work, limit, device) for device in (H100, strange, None))
    assert np.all(usual <= here)
    assert np.all(here <= there)
    assert np.all(usual < there)


def test_a_workstation_is_not_the_server_of_its_name():
    """Experts were measured on a B200 and an L40S: an RTX PRO 6000 has the name of the one and the units of neither."""
    work, (experts,) = WORK["moe"], (kind for kind in KINDS if kind.name == "moe")
    limit = experts.predict(work, H100, experts.constants()).limit
    known, card = (catalog.accelerator(name) for name in ("B200-SXM-180GB", "RTX-PRO-6000-Server"))
    assert np.all(experts.spread(work, limit, known) < experts.spread(work, limit, card))


def test_a_trace_is_priced_operator_by_operator_whatever_stands_beside_it():
    trace = triosim.model("gpt2", batch_size=2)
    whole = PhysicalBaseModel().predict(trace, H100)
    row = trace.operators.name.index("aten::linear") if "aten::linear" in trace.operators.name else 0
    assert whole.seconds[trace.operators.view].sum() == 0
    assert np.all(whole.spread[whole.seconds > 0] > 0)
    assert np.all(whole.usual <= whole.spread)
    again = PhysicalBaseModel().predict(trace, H100, np.ones(len(trace), np.int64))
    assert np.array_equal(whole.seconds, again.seconds)
    more = PhysicalBaseModel().predict(trace, H100, np.full(len(trace), 3))
    assert more.seconds[row] > whole.seconds[row]


def test_what_is_no_gpu_is_priced_by_the_roofline():
    asked = job(recorded_on=None, device=replace(DEVICE, kind="cpu"))
    assert np.array_equal(price(asked, "physical").seconds, price(asked, "roofline").seconds)
    assert set(price(asked, "physical").source.tolist()) == {Source.ROOFLINE, Source.NOTHING}


def test_a_device_without_a_datasheet_is_refused():
    with pytest.raises(InputError, match="compute peak"):
        price(job(device=UNKNOWN, recorded_on=None), "physical")
    with pytest.raises(TypeError, match="not a table of work"):
        kinds.kind_of(step())


def test_a_product_alone_and_in_a_trace_take_the_same_time():
    trace = one("aten::linear", [(2048, 4096), (1024, 4096)], (2048, 1024), "bfloat16", ["input", "weight"])
    alone = kinds.price(gemm(2048.0, 1024.0, 4096.0, "bfloat16"), H100)
    assert PhysicalBaseModel().predict(trace, H100).seconds[0] == pytest.approx(alone.seconds[0], rel=1e-12)
