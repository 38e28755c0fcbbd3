from __future__ import annotations

from collections.abc import Callable

import pytest

from triosim.engine.graph import GraphRun
from triosim.engine.play import ENGINES

Player = Callable[..., GraphRun]


@pytest.fixture(scope="session", params=list(ENGINES))
def play(request: pytest.FixtureRequest) -> Player:
    """Each engine in turn: what is tested with it is what every engine must do."""
    return ENGINES[request.param]
