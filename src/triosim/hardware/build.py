"""Systems from names, from files and from a few figures on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.core.errors import no_such_file, says_where
from triosim.core.units import parse_latency
from triosim.hardware import catalog, pim, shipped
from triosim.hardware.accelerator import UNNAMED, Accelerator
from triosim.hardware.catalog import LinkFacts
from triosim.hardware.cluster import (
    at,
    checked_count,
    cluster,
    device_of,
    numbered,
    prefix,
    sources,
    switch_names,
    with_memory,
)  # fmt: skip
from triosim.hardware.system import Edges, Link, System, Tier, assemble
from triosim.hardware.topology import Shape, parse_shape
from triosim.hardware.wiring import join, own_link, typed_link

if TYPE_CHECKING:
    from triosim.hardware.description import SystemFile

_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def load(name_or_path: str | Path, nodes: int | None = None, at_least: int = 1) -> System:
    """A ready system of the catalog by name, or the system that a file describes.

    Args:
        name_or_path: ``"dgx-h100"``, ``"my-cluster.toml"``.
        nodes: how many such nodes, joined by the system's scale-out network; None for as many as the file says, or else
            as hold ``at_least`` devices.
        at_least: devices.

    Raises:
        InputError: no such system, the file is wrong, or several nodes are asked of a system without scale-out network.
    """
    name = os.fspath(name_or_path)
    return from_file(name, nodes, at_least) if is_file(name) else ready(name, nodes, at_least)


def is_file(name_or_path: str) -> bool:
    """Whether a text that names a system or a device means a file: it has folders or a file's ending in it.

    Names may have dots, and a file without an ending says nothing of its format: neither is taken for a file.

    Raises:
        InputError: it means a file that is not there.
    """
    if not says_where(name_or_path, _SUFFIXES):
        return False
    if not os.path.exists(name_or_path):
        raise no_such_file(name_or_path)
    return True


def ready(name: str, nodes: int | None = None, at_least: int = 1) -> System:
    """A system of the catalog; see :func:`load`.

    Raises:
        InputError: as :func:`load`.
    """
    path = catalog.system_file(name)
    return _clustered(shipped.read(path), path, f"system {path.stem}", nodes, at_least)


def from_file(path: str | Path, nodes: int | None = None, at_least: int = 1) -> System:
    """The system that a file describes (:mod:`triosim.hardware.description` says how); see :func:`load`.

    Raises:
        InputError: as :func:`load`.
    """
    from triosim.hardware.description import read_system  # loads pydantic

    return _clustered(read_system(Path(path)), Path(path), str(path), nodes, at_least)


def accelerator(name_or_path: str | Path) -> Accelerator:
    """An accelerator of the catalog by name, or the one that a TOML or YAML file describes.

    ``"A100+attacc"`` is one with memory that computes (:mod:`triosim.hardware.pim`).

    Raises:
        InputError: no such device, or the file is wrong.
    """
    name = os.fspath(name_or_path)
    if catalog.has_accelerator(name):
        return catalog.accelerator(name)
    processor, memory = pim.split(name)
    if memory:
        return with_memory(accelerator(processor), memory)
    from triosim.hardware import designed

    if designed.is_design(name):
        return designed.device((name,))
    if not is_file(name):
        return catalog.accelerator(name)
    from triosim.hardware.description import read_device  # loads pydantic

    table = read_device(Path(name))
    with at(name):
        return device_of(table)


def flat(
    device: str | Path | Accelerator | None = None,
    devices: int = 1,
    topology: str = "switch",
    link: str | float | Link | None = None,
    latency: str | float | None = None,
    *,
    shape: str | Shape | None = None,
    options: Mapping[str, Any] | None = None,
    host_link: str | float | Link | None = None,
    pool_link: str | float | Link | None = None,
) -> System:
    """``devices`` devices of one kind in one server, joined by one kind of link.

    Args:
        device: name in the catalog, a file that describes one, or an accelerator; None for one that nobody named.
        devices: how many.
        topology: name of a builder.
        link: bandwidth of one link (a text with a unit, or bytes per second), without latency and overhead, and with
            ideal collectives; or the name of a link of the catalog, with its efficiency, latency and overhead.  None is
            the device's own link.  A link of the catalog is what one device has in all: between neighbours it is
            divided among them.
        latency: seconds, or text with a unit, one way over one logical hop; None is the catalog's, or 0 where ``link``
            is a bandwidth.
        shape: of a grid or tree, ``"4x2"`` or ``(4, 2)``.
        options: of the topology, by name.
        host_link: link of each device to a host memory, as ``link``; None for no host memory.
        pool_link: link of each device to a memory pool, as ``link``; None for no pool.

    Raises:
        InputError: unknown names, figures that are not above zero, a shape that does not hold the devices, or several
            devices between which no link is known.
    """
    checked_count(devices, "devices")
    if device is None:
        model = UNNAMED
    else:
        model = device if isinstance(device, Accelerator) else accelerator(device)
    wire = own_link(model, devices) if link is None else typed_link(link, "--link", model)
    if latency is not None:
        wire = replace(wire, latency=parse_latency(latency, "--latency"))
    fabric = join(topology, devices, wire, parse_shape(shape) if isinstance(shape, str) else shape, options)

    names = [*numbered(prefix(model), devices), *switch_names(fabric.switches, wire.name)]
    edges = [fabric.edges]
    extra = {"host0": -1, "pool": -1}
    for name, option, given in (("host0", "--host-link", host_link), ("pool", "--pool-link", pool_link)):
        if given is not None:
            spoke = typed_link(given, option, model)
            extra[name] = len(names)
            names.append(name)
            hub = np.full(devices, extra[name])
            spoke = spoke.link() if isinstance(spoke, LinkFacts) else spoke
            edges.append(Edges.both_ways(np.arange(devices), hub, spoke, tier=Tier.HOST))
    joined = Edges.join(edges)
    system = assemble(
        f"{devices} x {model.name or 'device'}" + (f", {topology}" if devices > 1 else ""),
        [model],
        np.zeros(devices, np.int32),
        np.zeros(devices, np.int32),
        names,
        [extra["host0"]],
        joined,
        pool=extra["pool"],
    )
    return replace(
        system,
        topology=topology if devices > 1 else "",
        torus=fabric.torus,
        sources=sources([model], joined.links),
        ideal=isinstance(wire, Link) and not wire.name,
    )


def _clustered(file: SystemFile, path: Path, where: str, nodes: int | None, at_least: int) -> System:
    if nodes is not None:
        checked_count(nodes, "nodes")
    return cluster(file, where, path.stem, nodes or file.nodes or -(-at_least // file.count))
