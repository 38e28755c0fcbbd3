"""Repeated blocks are found in the module tree."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.traces import chain
from triosim.trace.blocks import blocks


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("gpt2", 12, "transformer.h.0", "transformer.h.11"),
        ("llama-3.2-1b", 16, "model.layers.0", "model.layers.15"),
        ("resnet50", 16, "layer1.0", "layer4.2"),
        ("densenet121", 7, "features.denseblock1", "features.denseblock4"),
    ],
)
def test_blocks_of_named_models(name: str, count: int, first: str, last: str) -> None:
    found = blocks(triosim.model(name))
    assert (len(found), found.path[0], found.path[-1]) == (count, first, last)


def test_a_list_of_single_layers_has_no_blocks() -> None:
    assert len(blocks(triosim.model("vgg13"))) == 0
    assert len(blocks(chain())) == 0


def test_operators_know_their_block() -> None:
    trace = triosim.model("gpt2", sequence_length=64)
    found = blocks(trace)
    of = found.of(trace)
    for row in np.flatnonzero(trace.operators.module >= 0).tolist():
        path = trace.modules.path[trace.operators.module[row]]
        block = found.path[of[row]] if of[row] >= 0 else ""
        assert (path + ".").startswith(block + ".") if block else ".h." not in path
