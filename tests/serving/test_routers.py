"""Who serves a request."""

from __future__ import annotations

import numpy as np
import pytest

from tests.serving.fleets import MS, Linear, replica, serve
from tests.serving.test_laws import conserved
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.serving.requests import PromptHashes, RequestTable
from triosim.serving.router import ROUTERS

ONE = Linear(base=MS, token=0, key=0)


def fleet(count: int, **options: bool) -> list:
    return [replica("vllm", number=number, times=ONE, **options) for number in range(count)]


def table(n: int = 60, **columns: object) -> RequestTable:
    return RequestTable.of(np.arange(n) * 2e-4, np.full(n, 20), np.tile([2, 9, 30], n)[:n], **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ROUTERS.names())
def test_every_request_is_served_once(name: str) -> None:
    requests = table()
    served = serve(requests, *fleet(3), router=name)
    conserved(served, requests)
    assert set(served.replica.tolist()) == {0, 1, 2}


def test_round_robin_takes_turns() -> None:
    assert serve(table(7), *fleet(3)).replica.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_least_outstanding_counts_running_requests_too() -> None:
    requests = RequestTable.of([0, 0.0001, 0.0002], [10, 10, 10], [50, 1, 1])
    assert serve(requests, *fleet(2), router="least-outstanding").replica.tolist() == [0, 1, 0]
    later = RequestTable.of([0, 0.0001, 0.0102], [10, 10, 10], [50, 1, 1])
    assert serve(later, *fleet(2), router="least-outstanding").replica.tolist() == [0, 1, 1]


def test_two_choices_wait_less_than_random() -> None:
    n = 3000
    gaps = np.random.default_rng(1).exponential(1, n)
    requests = RequestTable.of(np.cumsum(gaps) * 1.1e-3 / 8 / 2, np.full(n, 20), np.full(n, 2))
    waits = {}
    for name in ("random", "two-choices", "least-outstanding"):
        replicas = [replica("vllm", number=k, times=ONE, max_running=1) for k in range(8)]
        served = serve(requests, *replicas, router=name)
        waits[name] = (served.scheduled - served.arrived).mean()
    assert waits["least-outstanding"] < waits["two-choices"] < waits["random"]


def test_a_session_stays_where_it_began() -> None:
    sessions = np.arange(60) % 7
    served = serve(table(session=sessions), *fleet(3), router="session")
    for session in range(7):
        assert len(set(served.replica[sessions == session].tolist())) == 1


def test_prefix_aware_goes_where_the_prefix_is() -> None:
    hashes = PromptHashes(Ragged.of([[100 + row % 3, 200 + row % 3] for row in range(60)]), 16)
    requests = RequestTable.of(np.arange(60) * 3e-3, np.full(60, 33), np.full(60, 1), hashes=hashes)
    served = serve(requests, *fleet(3, reuse=True), router="prefix-aware")
    kinds = np.arange(60) % 3
    for kind in range(3):
        assert len(set(served.replica[kinds == kind].tolist())) == 1
    assert served.hit_tokens == 57 * 32


def test_a_fleet_needs_a_replica() -> None:
    with pytest.raises(InputError, match="holds no replica"):
        serve(table(3))
