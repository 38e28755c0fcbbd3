"""Steps of float32 whose products are rounded to TF32, by name and recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim.core.dtypes import DTYPES
from triosim.hardware import catalog
from triosim.kernels.classes import ATTENTION, ATTENTION_BACKWARD, MATRIX, classify
from triosim.sources.modelling import model
from triosim.trace.store import load, save
from triosim.trace.tables import Trace

SIZES = {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 128}


def gpt(precision: str) -> Trace:
    return model("gpt", batch_size=3, precision=precision, configuration=SIZES, attention="unfused")


def multiplied(trace: Trace, device: str) -> set[str]:
    """Types that the products of a trace are multiplied in."""
    found = classify(trace, catalog.accelerator(device))
    rows = np.isin(found.group, (MATRIX, ATTENTION, ATTENTION_BACKWARD))
    return {DTYPES[code] for code in set(found.dtype[rows].tolist())}


def test_only_the_products_differ_from_a_step_of_float32():
    own, wide = gpt("tf32"), gpt("float32")
    assert own.operators.name == wide.operators.name
    for column in ("dtype", "storage", "category"):
        assert np.array_equal(getattr(own.values, column), getattr(wide.values, column))
    assert multiplied(own, "A100-SXM4-40GB") == {"tfloat32"}
    assert multiplied(wide, "A100-SXM4-40GB") == {"float32"}
    assert multiplied(own, "V100-SXM2-16GB") == {"float32"}  # whose matrix units have none


def test_a_trace_that_is_told_later_is_classified_anew():
    wide = gpt("float32")
    assert multiplied(wide, "A100-SXM4-40GB") == {"float32"}
    told = replace(wide, meta=replace(wide.meta, float32_products="tfloat32"))
    assert multiplied(told, "A100-SXM4-40GB") == {"tfloat32"}
    assert multiplied(wide, "A100-SXM4-40GB") == {"float32"}


def test_it_stands_in_files(tmp_path):
    save(gpt("tfloat32"), tmp_path / "step.triosim")
    assert multiplied(load(tmp_path / "step.triosim"), "A100-SXM4-40GB") == {"tfloat32"}


def test_products_of_a_whole_step_take_less_time_where_the_device_has_it():
    def seconds(precision: str, device: str) -> float:
        step = model("gpt2", batch_size=8, precision=precision, sequence_length=512)
        return triosim.simulate(step, triosim.system(device=device), fit=False).iteration_time_s

    assert seconds("tf32", "A100-SXM4-40GB") < 0.6 * seconds("float32", "A100-SXM4-40GB")
    assert seconds("tf32", "V100-SXM2-16GB") == pytest.approx(seconds("float32", "V100-SXM2-16GB"), rel=1e-12)


@pytest.mark.parametrize(("asked", "said"), [("highest", ""), ("high", "tfloat32")])
def test_recordings_say_what_was_allowed(asked: str, said: str):
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        layer = torch.nn.Linear(8, 8)
        trace = triosim.record(lambda x: layer(x).sum().backward(), torch.ones(2, 8), model=layer)
    finally:
        torch.set_float32_matmul_precision(before)
    assert trace.meta.float32_products == said
