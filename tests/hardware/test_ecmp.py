"""Ethernet beyond one switch: ports reach less where a hash picks paths, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

import triosim
from triosim.hardware.ecmp import COLLIDING, PORTS
from triosim.hardware.system import System, Tier

RATE = 12.5e9 * 0.85
"""RoCEv2-100G, as the catalog has it."""


def _system(folder: Path, servers: int, link: str = 'link = "RoCEv2-100G"', topology: str = "switch") -> System:
    file = folder / "servers.toml"
    text = (
        '[devices]\nmodel = "A100"\ncount = 4\n[scale_up]\ntopology = "switch"\nlink = "NVLink3"\n'
        f'[scale_out]\ntopology = "{topology}"\nnics = 4\n{link}\n'
    )
    file.write_text(text, encoding="utf-8")
    return triosim.system(file, at_least=4 * servers)


def _port(system: System) -> float:
    """Bytes per second of the narrowest edge between servers."""
    return float(system.bandwidth[system.edge_tier == Tier.SCALE_OUT].min())


def test_flows_collide_beyond_the_ports_of_one_switch(tmp_path: Path) -> None:
    assert _port(_system(tmp_path, PORTS // 4)) == pytest.approx(RATE)
    assert _port(_system(tmp_path, PORTS // 4 + 1)) == pytest.approx(COLLIDING * RATE)


@pytest.mark.parametrize(
    ("link", "rate"),
    [('link = "InfiniBand-HDR"', 25e9 * 0.92), ('link = "Slingshot-11"', 25e9 * 0.92), ('bandwidth = "9 GB/s"', 9e9)],
)
def test_networks_that_spread_packets_and_figures_of_ones_own_stay(tmp_path: Path, link: str, rate: float) -> None:
    assert _port(_system(tmp_path, PORTS, link)) == pytest.approx(rate)


def test_paths_that_are_written_out_are_not_counted_twice(tmp_path: Path) -> None:
    assert _port(_system(tmp_path, PORTS, topology="rail-optimised")) == pytest.approx(RATE)


def test_libraries_know_the_link_by_its_rating(tmp_path: Path) -> None:
    few, many = _system(tmp_path, 2), _system(tmp_path, PORTS)
    rated = [float(s.rated[s.edge_tier == Tier.SCALE_OUT].min()) for s in (few, many)]
    assert rated[0] == rated[1]
