"""Listings of the catalog: ready systems, devices, models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.units import format_bandwidth, format_bytes, format_count, format_time
from triosim.hardware import build, catalog
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.describe import describe
from triosim.hardware.description import SystemFile, read_system
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication
from triosim.network.routing import routing_of
from triosim.report.table import Column, TextTable, paragraph

_TIERS = {
    "scale_up": "devices of a server",
    "scale_out": "servers",
    "host": "device and host",
    "nvme": "host and drives",
}


def _fields(console: Console, title: str, fields: dict[str, Any]) -> None:
    console.print(title, style="bold", highlight=False)
    table = TextTable((Column(style="dim"), Column(flow="wrap")))
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            table.add_row(name, str(value))
    console.print(table)


def systems(console: Console) -> None:
    """All ready systems, one line each."""
    table = TextTable((Column("name"), Column("devices", right=True), Column("what it is", flow="wrap")))
    for row in catalog.system_rows():
        about = row["about"] if row["confidence"] == "high" else f"{row['about']} [{row['confidence']} confidence]"
        table.add_row(row["name"], str(row["devices"]), Text(about))
    console.print(table)


def system(name: str, console: Console) -> None:
    """One system in full, its servers and what joins them included."""
    ready = None if build.is_file(name) else catalog.system_row(name)
    file = read_system(Path(name) if ready is None else catalog.system_file(name))
    nodes = file.nodes or (2 if file.scale_out else 1)
    made = build.load(name, nodes)
    routing_of(made)  # refuses one that is not there
    found = describe(made)
    fields = {
        "what it is": ready["about"] if ready else None,
        "devices": f"{found.devices // nodes}" + (" in each server" if nodes > 1 else ""),
        "accelerators": ", ".join(f"{a.count // nodes} x {a.name}" for a in found.accelerators),
        "memory each": format_bytes(found.accelerators[0].memory_bytes),
        "topology": found.topology,
        "servers": _servers(file),
        "host": found.host_cpu or ("memory only" if found.host_memory else None),
        "confidence": ready["confidence"] if ready else None,
        "notes": ready["notes"] if ready else None,
    }
    _fields(console, ready["name"] if ready else found.name, fields)
    console.print()
    table = TextTable(
        (
            Column("link"), Column("joins", flow="wrap"), Column("bandwidth", right=True),
            Column("latency", right=True, optional=1), Column("overhead", right=True, optional=2),
        )
    )  # fmt: skip
    for row in found.links:
        rate = row.bandwidth_bytes_per_s
        table.add_row(
            row.name or "-",
            _TIERS[row.tier],
            format_bandwidth(rate if rate is not None else math.inf),
            format_time(row.latency_s),
            format_time(row.overhead_s),
        )
    console.print(table)
    paragraph(console, "one direction of one link; bandwidth as large messages reach it", "dim")
    for source in found.sources:
        paragraph(console, f"source: {source}", "dim", indent=2)


def _servers(file: SystemFile) -> str | None:
    """How many servers there are, and by what they are joined; None for one that cannot be joined."""
    if file.scale_out is None:
        return None
    count = file.scale_out.nics or file.count
    said = f"{file.nodes}" if file.nodes else "as many as --nodes says"
    nics = f"{count} NIC{'s' if count > 1 else ''} each"
    return f"{said}, {nics}, joined by topology {file.scale_out.topology}"


def devices(console: Console) -> None:
    """All devices, one line each; compute in dense TFLOP/s."""
    optional = {"kind": 7, "year": 6, "watt": 5, "fp8": 4, "fp32": 3, "GB/s": 2, "fp16": 1}
    heads = ("name", "kind", "year", "GiB", "GB/s", "fp32", "fp16", "bf16", "fp8", "watt")
    table = TextTable([Column(x, x not in ("name", "kind"), optional=optional.get(x, 0)) for x in heads])
    for name in catalog.accelerators():
        a = catalog.accelerator(name)
        peaks = (a.peak_flops.get(t) for t in ("float32", "float16", "bfloat16", "float8_e4m3fn"))
        table.add_row(
            a.name,
            a.kind,
            str(a.year or "-"),
            _figure(a.memory_bytes / 2**30) if a.memory_bytes else "-",
            _figure(a.memory_bandwidth / 1e9) if a.memory_bandwidth else "-",
            *(_figure(p / 1e12) if p else "-" for p in peaks),
            _figure(a.tdp_w) if a.tdp_w else "-",
        )
    console.print(table)
    paragraph(console, "fp32, fp16, bf16, fp8: dense TFLOP/s of the datasheet", "dim")


def _figure(value: float) -> str:
    """About three digits in at most four characters: with all columns a line has no more room."""
    if value < 0.005:
        return "<.01"
    for scale, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * scale:
            return f"{value / scale:.0f}{letter}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def device(name: str, console: Console) -> None:
    """One device in full."""
    a = build.accelerator(name)
    known = a.name in catalog.accelerators()
    fields = {
        "also called": ", ".join(catalog.aliases(a.name)) if known else None,
        "kind": " ".join(x for x in (a.vendor, a.architecture, a.kind) if x),
        "year, process": ", ".join(x for x in (str(a.year or ""), a.process) if x),
        "compute units": a.compute_units,
        "clock": f"{a.clock_hz / 1e6:g} MHz" if a.clock_hz else None,
        "dense peaks": ", ".join(f"{dtype} {rate / 1e12:g} TFLOP/s" for dtype, rate in a.peak_flops.items()),
        "matrix units": _matrix_units(a),
        "other types": _other_types(a),
        "memory": f"{format_bytes(a.memory_bytes)} {a.memory_type}".strip() if a.memory_bytes else None,
        "bandwidth": format_bandwidth(a.memory_bandwidth) if a.memory_bandwidth else None,
        "last-level cache": format_bytes(a.cache_bytes) if a.cache_bytes else None,
        "link": f"{a.link} {format_bandwidth(a.link_bandwidth) if a.link_bandwidth else ''}".strip(),
        "host link": a.host_link,
        "power": f"{a.tdp_w:g} W" + (f", idle {a.idle_w:g} W" if a.idle_w else "") if a.tdp_w else None,
        "rent": f"{a.price_per_hour:g} $/h" if a.price_per_hour else None,
        "confidence": a.confidence,
        "source": a.source,
        "notes": a.notes,
    }
    _fields(console, a.name or name, fields)


def _matrix_units(a: Accelerator) -> str | None:
    """Which types they multiply, as far as the catalog knows."""
    if a.matrix_types is None:
        return None
    capability = f" (compute capability {a.compute_capability})" if a.compute_capability else ""
    return (", ".join(a.matrix_types) or "none") + capability


def _other_types(a: Accelerator) -> str | None:
    """What becomes of the types of models that the device does not multiply natively."""
    found: dict[str, list[str]] = {}
    for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1") if a.peak_flops else ():
        how = multiplication(a, dtype)
        where = f"{how.rate:.2g} of {how.dtype}" if how.rate < 1 else f"{how.dtype}'s rate"
        said = {
            MultiplicationMethod.NATIVE: f"at {where}" if how.dtype != dtype else "",
            MultiplicationMethod.EMULATED: f"emulated at {where}",
            MultiplicationMethod.ASSUMED: f"assumed at {where}",
            MultiplicationMethod.IMPOSSIBLE: "not at all",
        }[how.method]
        if said:
            found.setdefault(said, []).append(dtype)
    return "; ".join(f"{', '.join(types)} {said}" for said, types in found.items()) or None


def models(console: Console) -> None:
    """All models known by name."""
    from triosim.sources import modelling

    table = TextTable(
        (
            Column("name"), Column("parameters", right=True, optional=1), Column("family", optional=2),
            Column("source", flow="wrap"),
        )
    )  # fmt: skip
    for preset in modelling.presets().values():
        source = preset.source.split(";")[0].split(", with")[0]
        table.add_row(preset.name, format_count(preset.parameters).strip(), preset.family, Text(source))
    console.print(table)


def model(name: str, console: Console) -> None:
    """One model in full."""
    from triosim.core.errors import unknown
    from triosim.sources import modelling

    preset = modelling.preset(name)
    if preset is None:
        raise unknown("model", name, modelling.presets())
    fields = {
        "family": preset.family,
        "parameters": f"{preset.parameters:,}",
        **preset.configuration,
        "source": preset.source,
    }
    _fields(console, preset.name, fields)
