"""Heads that are shorter than the arrays that multiply them."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.hardware import catalog
from triosim.kernels.models.roofline import of_work
from triosim.kernels.systolic_arrays import filled, side
from triosim.kernels.work.attention import attention


@pytest.mark.parametrize(("device", "length"), [("TPU-v4", 128), ("TPU-v5e", 128), ("TPU-v6e", 256), ("A100", 0)])
def test_arrays_of_the_catalog(device: str, length: int) -> None:
    assert side(catalog.accelerator(device)) == length


def test_heads_fill_a_part_of_the_array() -> None:
    heads = np.array([64.0, 128.0, 192.0, 256.0])
    assert filled(heads, catalog.accelerator("TPU-v6e")).tolist() == [0.25, 0.5, 0.75, 1.0]
    assert filled(heads, catalog.accelerator("TPU-v5e")).tolist() == [0.5, 1.0, 0.75, 1.0]
    assert filled(heads, catalog.accelerator("H100")).tolist() == [1.0] * 4


def test_attention_of_short_heads_takes_as_long_as_that_of_long_ones() -> None:
    """On a v6e heads of 128 take as long as as many of 256, which is twice the FLOP; on a v5e half as long."""

    def seconds(device: str, head: int) -> float:
        work = attention(1, 8192, 8192, 16, 16, head)
        return float(of_work(work, catalog.accelerator(device)).seconds[0])

    assert seconds("TPU-v6e", 128) == pytest.approx(seconds("TPU-v6e", 256), rel=0.1)
    assert seconds("TPU-v5e", 128) == pytest.approx(seconds("TPU-v5e", 256) / 2, rel=0.1)
