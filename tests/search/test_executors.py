"""Several processes give what one gives, whoever runs them and whoever dies."""

from __future__ import annotations

import os
import signal
import sys
import types

import pytest

import triosim
from triosim.core.errors import InputError
from triosim.plan import Plan
from triosim.search.executor import EXECUTORS
from triosim.search.grid import grid, parse_axes
from triosim.search.outcome import PlanOutcome
from triosim.search.sweep import sweep

PLANS = list(grid(parse_axes(["tp=1,2,3", "zero=0,1", "micro-batch-size=1,2"])))
BASE = Plan(global_batch_size=16)


@pytest.fixture(scope="module")
def gpt2() -> triosim.Trace:
    return triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 2})


@pytest.fixture(scope="module")
def server() -> triosim.System:
    return triosim.system("dgx-a100")


@pytest.fixture(scope="module")
def alone(gpt2: triosim.Trace, server: triosim.System) -> list[PlanOutcome]:
    return list(sweep(gpt2, server, PLANS, base=BASE))


def test_processes_give_what_one_gives(gpt2: triosim.Trace, server: triosim.System, alone: list[PlanOutcome]) -> None:
    assert list(sweep(gpt2, server, PLANS, base=BASE, workers=2)) == alone


def test_a_ray_cluster_gives_what_one_process_gives_though_a_worker_is_killed(
    gpt2: triosim.Trace, server: triosim.System, alone: list[PlanOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from triosim.search.executors.ray import RayWorker

    monkeypatch.setattr(RayWorker, "number", lambda self: os.getpid(), raising=False)
    killed: list[int] = []
    made = EXECUTORS.get("ray")
    begin = made.__init__

    def watched(self: object, *given: object) -> None:
        begin(self, *given)
        killed.append(ray.get(self._workers[0].number.remote()))  # type: ignore[attr-defined]

    def kill(outcome: PlanOutcome) -> None:
        if len(killed) == 1:
            killed.append(0)
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(made, "__init__", watched)
    assert list(sweep(gpt2, server, PLANS, base=BASE, workers=2, executor="ray", made=kill)) == alone
    assert len(killed) == 2
    assert not ray.is_initialized()


def test_without_ray_there_is_a_cure(
    gpt2: triosim.Trace, server: triosim.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'triosim\[ray\]'"):
        list(sweep(gpt2, server, PLANS, base=BASE, workers=2, executor="ray"))


def test_a_cluster_that_does_not_answer_is_a_sentence(
    gpt2: triosim.Trace, server: triosim.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**given: object) -> None:
        raise ConnectionError(f"no answer from {given['address']}\nwith a second line")

    ray = types.SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "far:6379")
    with pytest.raises(InputError, match="cluster at far:6379") as told:
        list(sweep(gpt2, server, PLANS, base=BASE, workers=2, executor="ray"))
    assert "\n" not in str(told.value)


def test_an_executor_that_nobody_knows_is_named(gpt2: triosim.Trace, server: triosim.System) -> None:
    with pytest.raises(InputError, match="unknown executor 'dask': known: local, ray"):
        list(sweep(gpt2, server, PLANS, base=BASE, workers=2, executor="dask"))
