"""What a topology builder is: a number of devices and one kind of link in, a fabric out.

One builder is one file in ``hardware/topologies``; other distributions add theirs through entry points of the group
``triosim.topologies``.

Latency is counted in logical hops.  A link's latency is one way from device to device over one hop, and a switch adds
nothing: on the way device - switch - device the first edge carries it and the second carries none.  A route that
crosses further switches pays once more for each edge between two switches.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.limits import COPY_BYTES, check_memory
from triosim.core.options import configured, options_of
from triosim.core.registry import Registry
from triosim.hardware.system import Fabric, Link

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TopologySize:
    """How large a topology is, counted before it is built.

    Attributes:
        links: full-duplex links.
        places: devices that a ring through all of them tells apart, each of which is played on its own.
    """

    links: int
    places: int


class Topology(ABC):
    """Joins devices by links.  One subclass a file in ``hardware/topologies``.

    One with options is a frozen dataclass (see :mod:`triosim.core.options`).  An option ``server`` is filled in,
    where the user leaves it out, with the number of devices (NICs in a scale-out network) that one server brings.
    """

    @abstractmethod
    def build(self, devices: int, link: Link, shape: Shape | None = None) -> Fabric:
        """Join ``devices`` devices.

        Args:
            devices: at least 1; a single device has no links.
            link: one direction of one link; what it joins is said by each builder.
            shape: rows x columns of a grid, or fan-outs of a tree from the root down; None for a sensible default.

        Raises:
            InputError: the shape does not hold this number of devices; the message names the nearest that does.
        """

    def size(self, devices: int, shape: Shape | None = None) -> TopologySize:
        """How many links and places there will be; a job that memory does not hold is refused by them.

        Here for topologies of which nothing is known: as many links as devices, and no two places alike.

        Raises:
            InputError: as :meth:`build`.
        """
        return TopologySize(devices, devices)


TOPOLOGIES = Registry("triosim.hardware.topologies", "triosim.topologies", "topology", Topology)
"""Topology builders by name (``--topology``)."""


def builder(name: str, options: Mapping[str, Any] | None = None, server: int | None = None) -> Topology:
    """The topology of that name with its options.

    Args:
        name: registered name.
        options: see :func:`triosim.core.options.configured`.
        server: devices of one server, if that is known.

    Raises:
        InputError: no such topology or option, or a value that the option does not take.
    """
    found = TOPOLOGIES.get(name)
    given = dict(options or {})
    if server is not None and "server" in (options_of(found) or ()):
        given.setdefault("server", server)
    return configured(found, given, f"topology {name}")


PLAYED_TASKS = 400
"""Tasks of a small model's step, of each device that is like no other."""

DEVICE_BYTES, LINK_BYTES = 1000, 800
"""Memory of a device and of a link, from the System to the routes of a ring: 1,600 to 1,900 together were measured on a
switch, a ring and rails of 131,072 (``python -m tests.fuzz sizes``)."""


def check_size(made: Topology, name: str, devices: int, shape: Shape | None) -> None:
    """Refuse what memory would not hold, before it is built.

    Raises:
        InputError: there would be too many links, or places that are like no other; or the shape does not fit.
    """
    size = made.size(devices, shape)
    needed = devices * DEVICE_BYTES + size.links * LINK_BYTES + size.places * PLAYED_TASKS * COPY_BYTES
    of = f" of {format_shape(shape)}" if shape else ""
    check_memory(needed, f"{devices:,} devices on topology {name}{of}", "use fewer devices, or a switch")


def parse_shape(text: str) -> Shape:
    """``"4x2"`` as ``(4, 2)``.

    Raises:
        InputError: not whole numbers above zero with ``x`` between them.
    """
    if not re.fullmatch(r"\s*\d+(\s*[xX×]\s*\d+)*\s*", text) or 0 in (shape := _numbers(text)):
        raise InputError(f"shape {text!r} is not whole numbers above zero joined by x, for example 4x2")
    return shape


def format_shape(shape: Shape) -> str:
    """``(4, 2)`` as ``"4x2"``."""
    return "x".join(map(str, shape))


def near_square(count: int, dimensions: int = 2) -> Shape:
    """The factors of ``count`` that are closest to each other, smallest first."""
    return nearest_shape(count, (count ** (1 / dimensions),) * dimensions)


def checked_shape(topology: str, devices: int, shape: Shape | None, dimensions: int = 2, of: str = "devices") -> Shape:
    """``shape`` if it holds ``devices`` devices (or what it is ``of``); the near-square default in ``dimensions``
    dimensions if there is none.

    Raises:
        InputError: a side is not a whole number above zero, or the product is not the number of devices.
    """
    if shape is None:
        return near_square(devices, dimensions)
    _whole_numbers(topology, shape)
    if math.prod(shape) != devices:
        raise InputError(
            f"topology {topology}: shape {format_shape(shape)} holds {math.prod(shape)} {of}, not {devices}; "
            f"the nearest shape for {devices} is {format_shape(nearest_shape(devices, shape))}"
        )
    return tuple(shape)


def checked_sides(topology: str, shape: Shape, *names: str) -> Shape:
    """``shape`` if it has a side for each name.

    Raises:
        InputError: it has more or fewer, or a side is not a whole number above zero.
    """
    _whole_numbers(topology, shape)
    if len(shape) != len(names):
        raise InputError(f"topology {topology}: a shape is {' x '.join(names)}, which {format_shape(shape)} is not")
    return tuple(shape)


def not_twice(topology: str, shape: Shape, **option: int | None) -> None:
    """Refuse an option that says what a shape says.

    Raises:
        InputError: the option was given beside the shape.
    """
    for name, value in option.items():
        if value is not None:
            raise InputError(f"topology {topology}: shape {format_shape(shape)} and {name} {value}: give one of them")


def _whole_numbers(topology: str, shape: Shape) -> None:
    if not shape or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in shape):
        raise InputError(f"topology {topology}: shape {shape!r} must be whole numbers above zero, for example 4x2")


def no_shape(topology: str, shape: Shape | None) -> None:
    """Refuse a shape where there is nothing to shape.

    Raises:
        InputError: a shape was given.
    """
    if shape is not None:
        raise InputError(f"topology {topology} has no shape: leave out {format_shape(shape)}")


def _numbers(text: str) -> Shape:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def nearest_shape(count: int, wanted: tuple[float, ...]) -> Shape:
    """The shape with product ``count`` whose sides are closest in ratio to ``wanted``; of equals, small sides first."""

    def distance(shape: Shape) -> tuple[float, Shape]:
        return round(sum(abs(math.log(a / b)) for a, b in zip(shape, wanted, strict=True)), 9), shape

    return min(_factorings(count, len(wanted)), key=distance)


def _factorings(count: int, sides: int) -> Iterator[Shape]:
    """All ordered ways to write ``count`` as a product of ``sides`` whole numbers."""
    if sides == 1:
        yield (count,)
        return
    divisors = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    for first in sorted({*divisors, *(count // d for d in divisors)}):
        for rest in _factorings(count // first, sides - 1):
            yield (first, *rest)
