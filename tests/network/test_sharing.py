"""Network models by name, with their options."""

from __future__ import annotations

import pytest

from triosim.engine.solvers.circuit import Circuit
from triosim.engine.solvers.max_min import MaxMin
from triosim.errors import InputError
from triosim.network.sharing import network_model


def test_a_model_without_options() -> None:
    assert isinstance(network_model("max-min"), MaxMin)


def test_options_reach_the_model() -> None:
    model = network_model("circuit", {"setup": "80us", "ports": "4", "receive-buffer": "1MiB"})
    assert isinstance(model, Circuit)
    assert (model.setup, model.ports, model.receive_buffer) == (80_000_000, 4, 2**20)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("token-ring", {}, "unknown network model"),
        ("max-min", {"setup": "1ms"}, "takes no options"),
        ("circuit", {"set-up": "1ms"}, "did you mean setup"),
        ("circuit", {"ports": "-3"}, "at least 1"),
        ("circuit", {"setup": "soon"}, "not a number"),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        network_model(name, options)
