"""The catalog: accelerators, links and ready systems, each figure with its source and how well it is known.

Three kinds of data file stand beside this one; units are in the column names, an empty cell is "not known".

``accelerators.csv``: dense peaks (no structured sparsity), one direction of links.  ``memory_gib`` is what the
datasheet calls GB; ``memory_visible_mib`` is what the driver leaves for programs, where somebody reported it, and is
then the capacity that counts.  ``link`` and ``host_link`` are rows of ``links.csv``; ``link_devices`` is how many
devices the scale-up link can join where that is limited (a bridge joins two cards).  ``aliases`` are short names that
people type, ``profiler_names`` what drivers print; ``;`` between them.  A short name without a form stands for the SXM
form with the most memory (``A100`` is ``A100-SXM4-80GB``), except that ``GH200`` is the common 96 GB one.

``links.csv``: bandwidth of one physical link and of all links of one device, one direction.  What large transfers
reach is that times ``large_message_efficiency``.

``systems/NAME.toml``: see :mod:`triosim.hardware.description`.

Everything here is read on first use and kept.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.hardware.accelerator import Accelerator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from triosim.hardware.system import Link

_FOLDER = Path(__file__).parent
_MIB, _GIB = 2**20, 2**30
_PEAKS = {  # element type: columns in TFLOP/s, of which the largest counts
    "float64": ("float64_tflops", "float64_tensor_tflops"),  # matrix products, the only fp64 work that peaks limit
    "float32": ("float32_tflops",),
    "tfloat32": ("tfloat32_tflops",),
    "float16": ("float16_tflops",),
    "bfloat16": ("bfloat16_tflops",),
    "float8_e4m3fn": ("float8_tflops",),
    "float4_e2m1": ("float4_tflops",),
    "int8": ("int8_tops",),
}


@dataclass(frozen=True)
class LinkFacts:
    """One row of ``links.csv`` in SI units, one direction.

    Attributes:
        name: ``"NVLink4"``.
        bandwidth: of all links of one device together, bytes per second, as the specification has it.
        efficiency: part of it that large transfers reach.
        latency, overhead: as in :class:`Link`.
        link_bandwidth: of one physical link; None where not known.
        links: physical links that one device has; None where not known.
        devices: how many devices it can join, None where the topology decides.
        half_bandwidth_bytes: size of a transfer that reaches half the bandwidth.
        energy_j_per_bit: energy to move one bit.
        family, scope, year: ``"NVLink"``, ``"scale-up"``, 2022.
        topology, confidence, source, notes: in words.
        rating: what communication libraries know the link by over ``bandwidth`` (see :class:`Link`): 1 unless somebody
            states another bandwidth than the catalog; None for a link that the catalog does not have.
    """

    name: str
    bandwidth: float
    efficiency: float = 1.0
    latency: float = 0.0
    overhead: float = 0.0
    link_bandwidth: float | None = None
    links: int | None = None
    devices: int | None = None
    half_bandwidth_bytes: float | None = None
    energy_j_per_bit: float | None = None
    family: str = ""
    scope: str = ""
    year: int | None = None
    topology: str = ""
    confidence: str = ""
    source: str = ""
    notes: str = ""
    rating: float | None = 1.0

    def link(self, links: int | None = None) -> Link:
        """What large transfers get over ``links`` physical links together, or over all links of a device.

        Raises:
            InputError: the catalog does not know what one physical link does.
        """
        if links is None:
            bandwidth = self.bandwidth
        elif self.link_bandwidth is None:
            raise InputError(f"what one physical link of {self.name} does is not known: give a bandwidth instead")
        else:
            bandwidth = self.link_bandwidth * links
        from triosim.hardware.system import Link  # which needs numpy, as prices and links as facts do not

        reached = bandwidth * self.efficiency
        rated = None if self.rating is None else reached * self.rating
        return Link(reached, self.latency, self.overhead, self.name, self.source, rated)

    def shared_among(self, neighbours: int) -> Link:
        """What a device has towards each of ``neighbours`` neighbours: whole physical links where there are enough."""
        each = (self.links or 0) // neighbours
        if neighbours > 1 and each and self.link_bandwidth:
            return self.link(each)
        whole = self.link()
        rated = None if whole.rated is None else whole.rated / neighbours
        return replace(whole, bandwidth=whole.bandwidth / neighbours, rated=rated)


def accelerators() -> list[str]:
    """Names of all accelerators, as in the file."""
    return list(_device_rows())


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name.

    Accepted are, whatever their case: the name itself; an alias (``H100``); the beginning of a name, up to a hyphen, if
    only one begins so (``GTX``); and what a profiler prints (``NVIDIA H100 80GB HBM3``).

    Raises:
        InputError: nothing or more than one thing answers to the name.
    """
    if name in _device_rows():
        return _accelerator(name)
    return _accelerator(_resolve(name, _device_names(), "device") or _unidentified(name))


def has_accelerator(name: str) -> bool:
    """Whether :func:`accelerator` takes a text as it is: as a name, an alias or what a profiler prints.

    A profiler's names have strokes and dots in them (``Instinct MI250X / MI250``), as paths do.
    """
    return _typed(name) in _device_names() or identify(name) is not None


def identify(profiler_name: str) -> str | None:
    """The catalog name of a device as drivers and profilers print it, or None.

    Strict: slices of a device (MIG, vGPU) and names that the catalog does not list are not guessed at.
    """
    return _printed_names().get(_printed(profiler_name))


def aliases(name: str) -> list[str]:
    """Short names of an accelerator (its catalog name given)."""
    return _split(_device_rows()[name]["aliases"])


def accelerator_row(name: str) -> dict[str, Any]:
    """One accelerator as plain values in SI units: fields of :class:`Accelerator`, ``aliases``, what is known beside.

    Raises:
        InputError: as :func:`accelerator`.
    """
    device = accelerator(name)
    row = _device_rows()[device.name]
    extra = {
        "aliases": _split(row["aliases"]),
        "compute_unit": row["compute_unit_kind"],
        "datasheet_memory_bytes": _integer(row["memory_gib"], _GIB),
        "memory_source": row["memory_visible_source"],
        "matrix_source": row["matrix_source"],
        "pcie": row["pcie"],
    }
    return {**asdict(device), **extra}


def links() -> list[str]:
    """Names of all links, as in the file."""
    return list(_links())


def link(name: str) -> Link:
    """What large transfers get over all links of that kind that one device has; latency and overhead of one hop.

    Raises:
        InputError: no link has that name.
    """
    return link_facts(name).link()


def link_facts(name: str) -> LinkFacts:
    """The row of that link: raw figures, efficiency, source.

    Raises:
        InputError: no link has that name.
    """
    known = _links()
    found = _resolve(name, _link_names(), "link")
    if found is None:
        raise unknown("link", name, known, "(or give a bandwidth such as 50GB/s)")
    return known[found]


@lru_cache(maxsize=1)
def _link_names() -> dict[str, str]:
    """Names of links, by how they are typed."""
    return _named((name, name) for name in _links())


def link_families() -> dict[str, str]:
    """The family of each link, by its name as the catalog spells it."""
    return {name: facts.family for name, facts in _links().items()}


def device_link(device: Accelerator) -> LinkFacts | None:
    """The scale-up link of a device with the device's own number of links, or None where it has none that is known."""
    if not device.link:
        return None
    facts = link_facts(device.link)
    if device.link_bandwidth:
        count, each = device.links, facts.link_bandwidth
        rated = count * each if count and each else facts.bandwidth
        facts = replace(
            facts,
            bandwidth=device.link_bandwidth,
            link_bandwidth=device.link_bandwidth / count if count else each,
            links=count,
            rating=rated / device.link_bandwidth,
        )
    limit = _device_rows()[device.name]["link_devices"] if device.name in _device_rows() else ""
    return replace(facts, devices=int(limit) if limit else None)


def systems() -> list[str]:
    """Names of the ready systems."""
    return sorted(path.stem for path in (_FOLDER / "systems").glob("*.toml"))


def system_file(name: str) -> Path:
    """The file that describes a ready system.

    Raises:
        InputError: no ready system has that name.
    """
    known = systems()
    found = name.strip().lower().replace("_", "-")
    if found not in known:
        cure = "(`triosim systems` lists them; a file needs its ending .toml, .yaml or .json)"
        raise unknown("system", name, known, cure)
    return _FOLDER / "systems" / f"{found}.toml"


def system_rows() -> list[dict[str, Any]]:
    """All ready systems as plain values, for listing; see :func:`system_row`."""
    return [system_row(name) for name in systems()]


def system_row(name: str) -> dict[str, Any]:
    """One ready system as plain values: what it is, its devices and how they are joined, and where that is from.

    ``description`` is everything that its file says.

    Raises:
        InputError: no ready system has that name.
    """
    path = system_file(name)
    said = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        "name": path.stem,
        "about": said["about"],
        "devices": said["devices"]["count"],
        "model": said["devices"]["model"],
        "topology": said.get("scale_up", {}).get("topology", "graph" if "link" in said else ""),
        "scale_out": said.get("scale_out", {}).get("link", ""),
        "confidence": said["confidence"],
        "source": said["source"],
        "notes": said.get("notes", ""),
        "description": said,
    }


@lru_cache(maxsize=1)
def _device_rows() -> dict[str, dict[str, str]]:
    return _table("accelerators.csv")


@lru_cache(maxsize=1)
def _links() -> dict[str, LinkFacts]:
    return {name: _link_facts(row) for name, row in _table("links.csv").items()}


@lru_cache(maxsize=1)
def _device_names() -> dict[str, str]:
    return _named((text, name) for name, row in _device_rows().items() for text in [name, *_split(row["aliases"])])


@lru_cache(maxsize=1)
def _printed_names() -> dict[str, str]:
    rows = _device_rows().items()
    printed = _named(((text, name) for name, row in rows for text in _split(row["profiler_names"])), _printed)
    return {**_named(((name, name) for name, _ in rows), _printed), **printed}


def _table(file: str) -> dict[str, dict[str, str]]:
    with open(_FOLDER / file, newline="", encoding="utf-8") as lines:
        return {row["name"]: row for row in csv.DictReader(lines)}


@cache
def _accelerator(name: str) -> Accelerator:
    row = _device_rows()[name]
    peaks = {
        dtype: max(known)
        for dtype, columns in _PEAKS.items()
        if (known := [x for c in columns if (x := _number(row[c], 12)) is not None])
    }
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        kind=row["kind"],
        architecture=row["architecture"],
        year=_integer(row["year"]),
        process=row["process"],
        compute_units=_integer(row["compute_units"]),
        clock_hz=_number(row["boost_clock_mhz"], 6),
        peak_flops=peaks,
        compute_capability=row["compute_capability"],
        matrix_types=_matrix_types(row["matrix_types"]),
        sparsity_factor=_number(row["sparsity_factor"]) or 1.0,
        memory_bytes=_integer(row["memory_visible_mib"], _MIB) or _integer(row["memory_gib"], _GIB),
        memory_type=row["memory_type"],
        memory_bandwidth=_number(row["memory_bandwidth_gb_s"], 9),
        cache_bytes=_integer(row["last_level_cache_mib"], _MIB),
        link=row["link"],
        link_bandwidth=_number(row["link_bandwidth_gb_s"], 9),
        links=_physical_links(row["link"], _number(row["link_bandwidth_gb_s"], 9)),
        host_link=row["host_link"],
        tdp_w=_number(row["tdp_w"]),
        idle_w=_number(row["idle_w"]),
        price_per_hour=_number(row["rent_usd_per_hour"]),
        confidence=row["confidence"],
        source=row["source"],
        notes=row["notes"],
    )


def _physical_links(name: str, bandwidth: float | None) -> int | None:
    """How many links of a kind reach a bandwidth together; None if no whole number does."""
    each = _links()[name].link_bandwidth if name else None
    if not each or not bandwidth:
        return None
    return round(bandwidth / each) if abs(bandwidth / each - round(bandwidth / each)) < 1e-6 else None


def _link_facts(row: dict[str, str]) -> LinkFacts:
    return LinkFacts(
        name=row["name"],
        bandwidth=float(row["bandwidth_per_device_gb_s"] + "e9"),
        efficiency=float(row["large_message_efficiency"]),
        latency=float(row["latency_us"] + "e-6"),
        overhead=float(row["software_latency_us"] + "e-6"),
        link_bandwidth=_number(row["bandwidth_per_link_gb_s"], 9),
        links=_integer(row["links_per_device"]),
        half_bandwidth_bytes=_number(row["half_bandwidth_message_kb"], 3),
        energy_j_per_bit=_number(row["energy_pj_per_bit"], -12),
        family=row["family"],
        scope=row["scope"],
        year=_integer(row["year"]),
        topology=row["topology"],
        confidence=row["confidence"],
        source=row["source"],
        notes=row["notes"],
    )


def _number(cell: str, power: int = 0) -> float | None:
    """The number in a cell times ten to ``power``, exactly as if it had been written so."""
    return float(f"{cell}e{power}") if cell else None


def _integer(cell: str, unit: int = 1) -> int | None:
    return round(float(cell) * unit) if cell else None


def _matrix_types(cell: str) -> tuple[str, ...] | None:
    """Types that the matrix units multiply: ``none`` where there are no such units, None where the cell is empty."""
    return None if not cell else () if cell == "none" else tuple(_split(cell))


def _split(cell: str) -> list[str]:
    return [text.strip() for text in cell.split(";") if text.strip()]


def _typed(text: str) -> str:
    """A name as people type it: case, blanks and underscores do not matter."""
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


def _printed(text: str) -> str:
    """A name as drivers print it: vendors' names and marks do not matter."""
    text = re.sub(r"\((r|tm|c)\)", " ", text.lower())
    words = re.sub(r"[^a-z0-9.+@]+", " ", text).split()
    return " ".join(w for w in words if w not in {"nvidia", "tesla", "geforce", "amd", "intel", "apple", "corporation"})


def _named(pairs: Iterable[tuple[str, str]], key: Callable[[str], str] = _typed) -> dict[str, str]:
    names: dict[str, str] = {}
    for text, name in pairs:
        if names.setdefault(key(text), name) != name:
            raise RuntimeError(f"catalog: {text!r} stands for both {names[key(text)]} and {name}")
    return names


def _resolve(text: str, names: dict[str, str], what: str) -> str | None:
    """What ``text`` stands for: a whole name, the one name that has the same letters and digits, or the one that begins
    with it up to a hyphen."""
    wanted = _typed(text)
    if wanted in names:
        return names[wanted]
    alike = {name for typed, name in names.items() if wanted and typed.replace("-", "") == wanted.replace("-", "")}
    if len(alike) == 1:
        return alike.pop()
    begun = {name for typed, name in names.items() if wanted and typed.startswith(wanted + "-")}
    if len(begun) > 1:
        raise InputError(f"{what} {text!r} could be {', '.join(sorted(begun))}: say which")
    return begun.pop() if begun else None


def _unidentified(name: str) -> str:
    """A last try for a device name that nobody would type."""
    found = identify(name)
    if found is None:
        known = {*accelerators(), *(alias for device in accelerators() for alias in aliases(device))}
        raise unknown("device", name, known, "(`triosim devices` lists them)")
    return found
