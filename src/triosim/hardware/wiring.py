"""From what somebody says of a link to the edges of a fabric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.core.errors import InputError
from triosim.core.units import format_time, parse_bandwidth
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.catalog import LinkFacts
from triosim.hardware.system import Fabric, Link
from triosim.hardware.topology import Shape, builder, check_size

if TYPE_CHECKING:  # pydantic is loaded only where a file is read
    from triosim.hardware.description import LinkTable

UNLIMITED = Link(float("inf"), rated=float("inf"))
"""A link that never limits."""

USUAL = {"scale_up": "NVLink4", "scale_out": "InfiniBand-NDR", "host": "PCIe5x16", "pool": "CXL2-x16"}
"""Links of the catalog whose latency and overhead stand for those that a file leaves out of a link without a name."""


def usual(use: str) -> LinkFacts:
    """The link of :data:`USUAL` for a use."""
    return catalog.link_facts(USUAL[use])


def join(
    topology: str,
    devices: int,
    wire: Link | LinkFacts,
    shape: Shape | None = None,
    options: Mapping[str, Any] | None = None,
    server: int | None = None,
) -> Fabric:
    """Build a topology by name.

    Args:
        topology: registered name.
        devices: number of devices.
        wire: a :class:`Link` is used as it is for every edge; facts of the catalog are what one device has in all,
            which is divided among the neighbours that it has in this topology.
        shape: see :class:`Topology`.
        options: of the topology, by name.
        server: devices (here NICs) of one server, for topologies to which this matters.

    Raises:
        InputError: no such topology or option, the shape does not hold the devices, or the link cannot join so many.
    """
    made = builder(topology, options, server)
    check_size(made, topology, devices, shape)
    if isinstance(wire, Link):
        return made.build(devices, wire, shape)
    if wire.devices is not None and devices > wire.devices:
        raise InputError(
            f"{wire.name} joins at most {wire.devices} of these devices, not {devices}: "
            "give another link, for example PCIe4x16, or a bandwidth"
        )
    counted = made.build(devices, Link(1.0), shape).edges
    own = counted.source < devices
    links = np.bincount(counted.source[own], np.array([k.bandwidth for k in counted.links])[counted.link[own]])
    neighbours = max(1, round(links.max(initial=1)))  # two links to one neighbour count twice
    return made.build(devices, wire.link() if neighbours == 1 else wire.shared_among(neighbours), shape)


def own_link(model: Accelerator, devices: int) -> Link | LinkFacts:
    """The scale-up link that a device brings with it; a single device needs none.

    Raises:
        InputError: there are several devices and their link is not known.
    """
    facts = catalog.device_link(model)
    if facts is not None:
        return facts
    if model.link_bandwidth and model.name not in catalog.accelerators():  # a user's own device: taken at its word
        like = usual("scale_up")
        return LinkFacts(
            model.name, model.link_bandwidth, 1.0, like.latency, like.overhead, source=model.source, rating=None
        )
    if devices == 1:
        return UNLIMITED
    if not model.name:
        raise InputError("several devices need a link: give --link, for example 50GB/s, or --device to use its own")
    host = f"{model.host_link} (its link to the host) or " if model.host_link else ""
    raise InputError(
        f"no link from one {model.name} to another is known: give one (--link, or link in a file), "
        f"for example {host}50GB/s"
    )


def own_host_link(model: Accelerator) -> LinkFacts:
    """The link to the host that a device brings with it.

    Raises:
        InputError: it has none that is known.
    """
    if not model.host_link:
        raise InputError(f"no host link of device {model.name or '(unnamed)'} is known: give link or bandwidth")
    return catalog.link_facts(model.host_link)


def named_link(name: str, model: Accelerator) -> LinkFacts:
    """A link of the catalog, with as many physical links as this device has if it is the device's own.

    Raises:
        InputError: no link has that name.
    """
    facts = catalog.link_facts(name)
    own = catalog.device_link(model) if model.link == facts.name else None
    return own or facts


def typed_link(given: str | float | Link, what: str, model: Accelerator) -> Link | LinkFacts:
    """A link as the command line gives it: a bandwidth, or the name of a link of the catalog.

    Raises:
        InputError: neither, or a bandwidth that is not above zero.
    """
    if isinstance(given, Link):
        return given
    if isinstance(given, str) and given.strip()[:1].isalpha() and given.strip().lower() not in ("inf", "nan"):
        return named_link(given, model)
    return Link(parse_bandwidth(given, what))


def table_link(table: LinkTable, use: str, facts: LinkFacts | None = None) -> Link:
    """The link that a table of a file describes.

    Args:
        table: of the file.
        use: what the link is for, a key of :data:`USUAL`: where there are no facts, latency and overhead that the table
            leaves out are those that are usual there.
        facts: stand in for what the table leaves out; those of the catalog if it names a link.

    Raises:
        InputError: neither a link nor a bandwidth is given, and nothing stands in.
    """
    if facts is None and table.link:
        facts = catalog.link_facts(table.link)
    if facts is not None:
        known = facts.link(table.links if facts.link_bandwidth or table.bandwidth is None else None)
    elif table.bandwidth is not None:
        known = usual(use).link()
        known = replace(known, name="", source=_assumed(table, use, known), rated=None)
    else:
        raise InputError("say how fast the link is: link (of the catalog) or bandwidth, for example 50GB/s")
    return replace(
        known,
        bandwidth=known.bandwidth if table.bandwidth is None else table.bandwidth,
        latency=known.latency if table.latency is None else table.latency,
        overhead=known.overhead if table.overhead is None else table.overhead,
        source="; ".join(s for s in (table.source, known.source) if s),
    )


def _assumed(table: LinkTable, use: str, usual: Link) -> str:
    """What is taken of the usual link for what a table with a bandwidth leaves out, in words."""
    figures = (("latency", table.latency, usual.latency), ("overhead", table.overhead, usual.overhead))
    taken = [f"{name} {format_time(value)}" for name, given, value in figures if given is None and value]
    return f"{' and '.join(taken)} as of {USUAL[use]}, for the file states none" if taken else ""


def table_wire(table: LinkTable, model: Accelerator, devices: int) -> Link | LinkFacts:
    """As :func:`table_link` for the links between ``devices`` devices of a model; facts stay facts unless the table
    says otherwise."""
    if table.link:
        given: Link | LinkFacts = named_link(table.link, model)
    elif table.bandwidth is None:
        given = own_link(model, devices)
    else:
        return table_link(table, "scale_up")
    if table.bandwidth is not None or table.links is not None:
        return table_link(table, "scale_up", given if isinstance(given, LinkFacts) else None)
    return replace(
        given,
        latency=given.latency if table.latency is None else table.latency,
        overhead=given.overhead if table.overhead is None else table.overhead,
    )
