"""Kept predictions come out again; ``python -m tests.golden.plans`` shows all differences at once."""

from __future__ import annotations

import json

import pytest

from tests.golden.plans import CASES, Absent, differences, kept, observe


@pytest.mark.parametrize("name", CASES)
def test_as_kept(name: str) -> None:
    try:
        now = json.loads(json.dumps(observe(CASES[name])))
    except Absent as missing:
        pytest.skip(f"{missing} is not here")
    assert not differences(kept()[name], now)
