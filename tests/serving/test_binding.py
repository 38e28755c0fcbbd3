"""What binds a fleet: too few requests, a full cache, or one of three resources of its devices."""

from __future__ import annotations

import pytest

import triosim
from tests.command import run
from triosim.serving.deployment import Deployment, ServingResult, serve
from triosim.serving.pool import Pool
from triosim.serving.pool_times import PricedPools
from triosim.serving.traffic import traffic

PRICED: PricedPools = {}


@pytest.fixture(scope="module")
def machine() -> triosim.System:
    return triosim.system(device="H100", devices=1)


def served(system: triosim.System, arrivals: str, lengths: str, **more: object) -> ServingResult:
    own = Pool("llama-3-8b", system, **more)  # type: ignore[arg-type]
    return serve(Deployment((own,), idle_ok=True), traffic(arrivals, lengths, 300), interval=False, priced=PRICED)


@pytest.mark.parametrize(
    ("arrivals", "lengths", "blocks", "resource"),
    [
        ("constant:1", "fixed:512", None, "requests"),
        ("burst:300", "prompt=fixed:2000;output=fixed:8", None, "compute"),
        ("users:8", "prompt=fixed:20;output=fixed:200", None, "memory bandwidth"),
        ("burst:300", "prompt=fixed:200;output=fixed:200", 1000, "KV cache"),
    ],
)
def test_what_binds_follows_from_the_traffic(
    machine: triosim.System, arrivals: str, lengths: str, blocks: int | None, resource: str
) -> None:
    (found,) = served(machine, arrivals, lengths, blocks=blocks).binding
    assert found.resource == resource
    assert (found.busy < 0.9) == (resource == "requests")
    assert found.compute is not None
    assert found.memory_bandwidth is not None
    assert 0 < found.compute < 1
    assert 0 < found.memory_bandwidth < 1
    assert found.links == 0


def test_slow_links_bind_long_prompts() -> None:
    slow = triosim.system(device="H100", devices=8, link="20GB/s")
    (found,) = served(slow, "burst:300", "prompt=fixed:1000;output=fixed:8", tensor_parallel=8).binding
    assert found.resource == "links"
    assert found.links is not None
    assert found.compute is not None
    assert found.links > found.compute


def test_decodes_of_one_user_read_the_weights_at_nearly_all_of_the_bandwidth(machine: triosim.System) -> None:
    """Weights over time over the datasheet's bandwidth: what the share is, but for the cache and activations."""
    found = served(machine, "users:1", "prompt=fixed:20;output=fixed:200")
    (binding,) = found.binding
    weights = found.memory[0].weights if found.memory[0] else 0.0
    steps = found.metrics.figures["steps"] or 0
    bandwidth = machine.models[0].memory_bandwidth or 0.0
    alone = weights * steps / bandwidth / (found.metrics.duration_s * binding.busy)
    assert alone * 0.9 < (binding.memory_bandwidth or 0.0) < alone * 1.1  # the embedding is not read whole


def test_it_is_said() -> None:
    words = ("serve", "llama-3-8b", "--device", "H100", "--arrivals", "poisson:2", "--lengths", "fixed:128")
    assert "binds           requests (of the busy time" in run(*words, "--requests", "50").stdout
    images = ("serve", "dit-s-2", "--device", "H100", "--arrivals", "burst:99", "--steps", "5", "--requests", "99")
    assert "binds           devices\n" in run(*images).stdout
