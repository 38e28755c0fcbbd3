from __future__ import annotations

import subprocess
import sys

import pytest

from tests.engine.graphs import GB_PER_S, US, Builder, wires
from triosim.core.errors import InputError
from triosim.engine.play import ENGINES, play
from triosim.engine.solver import SOLVERS
from triosim.engine.solvers.max_min import MaxMin


@pytest.mark.parametrize("solver", ["max-min", MaxMin()])
def test_a_model_is_given_by_name_or_as_an_object(solver: object) -> None:
    b = Builder()
    b.transfer(0, 1000)
    played = play(b.graph(), wires([GB_PER_S], [[0]]), solver)
    assert played.finish.tolist() == [US]
    assert played.engine == next(iter(ENGINES))


def test_a_model_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match="unknown network model 'max-mim': did you mean max-min"):
        play(Builder().graph(), wires([], []), "max-mim")


def test_listing_models_imports_none_of_them() -> None:
    assert {"max-min", "equal-split"} <= set(SOLVERS.names())
    code = (
        "import sys; from triosim.engine.solver import SOLVERS; SOLVERS.names(); "
        "sys.exit(any(name.startswith('triosim.engine.solvers.') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_engine_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENGINES:
        monkeypatch.setenv("TRIOSIM_ENGINE", name)
        assert play(Builder().graph(), wires([], [])).engine == name


def test_an_engine_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSIM_ENGINE", "warp")
    with pytest.raises(InputError, match="TRIOSIM_ENGINE=warp: unknown engine, known are native and reference"):
        play(Builder().graph(), wires([], []))


def test_the_native_engine_cannot_be_chosen_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSIM_ENGINE", "native")
    monkeypatch.setattr("triosim.engine.play.ENGINES", {"reference": ENGINES["reference"]})
    with pytest.raises(InputError, match="was not built when TrioSim was installed; install it again with a C\\+\\+20"):
        play(Builder().graph(), wires([], []))
