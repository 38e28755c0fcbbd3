"""Network models by name, with their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.graphs import GB_PER_S, US, Builder, wires
from triosim.core.errors import InputError
from triosim.engine.play import play
from triosim.engine.solver import Sharing
from triosim.engine.solvers.circuit import Circuit
from triosim.engine.solvers.max_min import MaxMin
from triosim.network.sharing import network_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smallest_first.py"


def test_a_model_without_options() -> None:
    assert isinstance(network_model("max-min"), MaxMin)


def test_options_reach_the_model() -> None:
    model = network_model("circuit", {"setup": "80us", "ports": "4", "receive-buffer": "1MiB"})
    assert isinstance(model, Circuit)
    assert (model.setup, model.ports, model.receive_buffer) == (80_000_000, 4, 2**20)


def test_a_model_of_ones_own_is_a_file() -> None:
    model = network_model(str(EXAMPLE))
    assert isinstance(model, Sharing)
    b = Builder()
    for size in (3000, 1000, 1000):
        b.transfer(0, size)
    played = play(b.graph(), wires([GB_PER_S], [[0]]), model)
    assert played.finish.tolist() == [5 * US, 2 * US, 2 * US]


MARKED = "from triosim.core.registry import registered\n\n@registered\nclass Own:\n    pass\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "own.py: no such file or folder"),
        ("import nothing_of_that_name", "own.py, line 1: ModuleNotFoundError: No module named"),
        ("class Own:\n    pass\n", "own.py: must end in one class marked with @registered .*, has 0"),
        (MARKED, "own.py: Own is no network model: derive it from triosim.engine.solver.NetworkModel"),
    ],
)
def test_a_file_that_is_no_model_is_refused(text: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=why):
        network_model(str(file))


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("token-ring", {}, "unknown network model"),
        ("max-min", {"setup": "1ms"}, "has no options"),
        ("circuit", {"set-up": "1ms"}, "did you mean setup"),
        ("circuit", {"ports": "-3"}, "at least 1"),
        ("circuit", {"setup": "soon"}, "not a number"),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        network_model(name, options)
