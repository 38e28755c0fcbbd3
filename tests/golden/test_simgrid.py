"""Flows that share links end when SimGrid's max-min solver says; see make_simgrid.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.engine.graphs import Builder, wires
from triosim.engine.graph import CAPACITY_PER_BYTE
from triosim.engine.play import ENGINES

CASES = json.loads(Path(__file__).with_name("simgrid.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_flows_end_when_simgrid_says(engine: str, case: dict) -> None:
    b = Builder()
    rows = [b.transfer(route, size, before=[b.compute(start)]) for start, route, size in case["flows"]]
    network = wires([rate * CAPACITY_PER_BYTE for rate in case["capacity"]], case["routes"])
    played = ENGINES[engine](b.graph(), network, None)
    took = (played.finish[rows] - played.start[rows]) * 1e-12
    starts = np.array([start for start, _, _ in case["flows"]]) * 1e-12
    np.testing.assert_allclose(took, np.array(case["ends_s"]) - starts, rtol=1e-9)
