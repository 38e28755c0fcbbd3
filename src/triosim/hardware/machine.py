"""A machine by name, by file, or put together from a device, a count and a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triosim.core.errors import InputError
from triosim.hardware import build, catalog
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System


def system(
    name: str | Path | None = None,
    nodes: int | None = None,
    *,
    device: str | Accelerator | None = None,
    devices: int | None = None,
    topology: str | None = None,
    link: str | float | None = None,
    latency: str | float | None = None,
    shape: str | tuple[int, ...] | None = None,
    topology_options: Mapping[str, Any] | None = None,
    host_link: str | float | None = None,
    pool_link: str | float | None = None,
    routing: str | None = None,
    routing_options: Mapping[str, Any] | None = None,
    at_least: int = 1,
) -> System:
    """A System in the words of the command line.

    Either ``name`` (a ready system or a file) with ``nodes``, or ``device`` and what goes with it.

    Args:
        name: ready system of the catalog, or a TOML or YAML file.
        nodes: servers of that system; by default as many as its file says, or else as hold ``at_least`` devices.
        device: device of the catalog or a file, or the device itself; None for one that nobody named.
        devices: how many; by default ``at_least``.
        topology: name of a builder (default ``switch``).
        link, latency: of a link, one direction; None for the device's own link.
        shape: of a grid or tree, ``"4x2"``.
        topology_options: further options of the topology, by name.
        host_link, pool_link: bandwidth of each device to a host memory or a shared memory pool.
        routing, routing_options: how transfers choose their way; None for what the system says.
        at_least: devices that the plan needs.

    Raises:
        InputError: unknown names, figures that make no sense, or two descriptions of the machine at once.
    """
    flat = {
        "device": device, "devices": devices, "topology": topology, "link": link, "latency": latency, "shape": shape,
        "topology-option": topology_options, "host-link": host_link, "pool-link": pool_link,
    }  # fmt: skip
    if name is None:
        if nodes is not None:
            raise InputError(f"--nodes counts the servers of a --system: {_servers(device)}, or use --devices")
        count = devices if devices is not None else at_least
        made = build.flat(
            device, count, topology or "switch", link, latency, shape=shape, options=topology_options,
            host_link=host_link, pool_link=pool_link,
        )  # fmt: skip
        return _routed(made, routing, routing_options)
    clash = next((option for option, value in flat.items() if value is not None), None)
    if clash:
        raise InputError(f"--system and --{clash} describe the machine twice: give one of them")
    made = build.load(name, nodes, at_least)
    return _routed(made, routing, routing_options)


def _servers(device: str | Accelerator | None) -> str:
    """What to name as system, of servers of that device where the catalog has some."""
    if isinstance(device, str) and catalog.has_accelerator(device):
        model = catalog.accelerator(device).name
        made = [row["name"] for row in catalog.system_rows() if row["model"] == model and row["scale_out"]]
        if made:
            return f"name one (of {model}: {', '.join(made)})"
    return "name one"


def _routed(made: System, routing: str | None, options: Mapping[str, Any] | None) -> System:
    """The System with another routing, or with other options of its own."""
    if routing is None:
        both = {**made.routing_options, **(options or {})}
        return replace(made, routing_options=both, routing_place="") if options else made
    return replace(made, routing=routing, routing_options=dict(options or {}), routing_place="")
