"""Listings of the catalog: ready systems, devices, models."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from triosim.hardware import build, catalog
from triosim.hardware.describe import describe
from triosim.units import format_bandwidth, format_bytes, format_count, format_time

_TIERS = {"scale_up": "devices of a server", "scale_out": "servers", "host": "device and host"}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        name, right = column.lstrip(">"), column.startswith(">")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=name in ("name", "device"), overflow="fold"
        )
    return table


def _fields(console: Console, title: str, fields: dict[str, Any]) -> None:
    console.print(f"[bold]{title}[/bold]", highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            table.add_row(name, Text(str(value)))
    console.print(table, highlight=False)


def systems(console: Console) -> None:
    """All ready systems, one line each."""
    table = _table("name", ">devices", "what it is")
    for row in catalog.system_rows():
        about = row["about"] if row["confidence"] == "high" else f"{row['about']} [{row['confidence']} confidence]"
        table.add_row(row["name"], str(row["devices"]), Text(about))
    console.print(table, highlight=False)


def system(name: str, console: Console) -> None:
    """One system in full; of a ready one also how its servers are joined."""
    ready = catalog.system_row(name) if "." not in name else None
    nodes = 2 if ready and ready["scale_out"] else 1
    found = describe(build.load(name, nodes))
    fields = {
        "what it is": ready["about"] if ready else None,
        "devices": f"{found['devices'] // nodes}" + (" in each server" if nodes > 1 else ""),
        "accelerators": ", ".join(f"{a['count'] // nodes} x {a['name']}" for a in found["accelerators"]),
        "memory each": format_bytes(found["accelerators"][0]["memory_bytes"]),
        "topology": found["topology"],
        "host": found["host_cpu"] or ("memory only" if found["host_memory"] else None),
        "confidence": ready["confidence"] if ready else None,
        "notes": ready["notes"] if ready else None,
    }
    _fields(console, ready["name"] if ready else found["name"], fields)
    console.print()
    table = _table("link", "joins", ">bandwidth", ">latency", ">overhead")
    for row in found["links"]:
        rate = row["bandwidth_bytes_per_s"]
        table.add_row(
            row["name"] or "-",
            _TIERS[row["tier"]],
            format_bandwidth(rate if rate is not None else math.inf),
            format_time(row["latency_s"]),
            format_time(row["overhead_s"]),
        )
    console.print(table, highlight=False)
    console.print("one direction of one link; bandwidth as large messages reach it", style="dim", highlight=False)
    for source in found["sources"]:
        console.print(Text(f"source: {source}"), style="dim", highlight=False)


def devices(console: Console) -> None:
    """All devices, one line each; compute in dense TFLOP/s."""
    table = _table("name", "kind", ">year", ">GiB", ">GB/s", ">fp32", ">bf16", ">fp8", ">watt")
    for name in catalog.accelerators():
        a = catalog.accelerator(name)
        peaks = (a.peak_flops.get(t) for t in ("float32", "bfloat16", "float8_e4m3fn"))
        table.add_row(
            a.name,
            a.kind,
            str(a.year or "-"),
            f"{a.memory_bytes / 2**30:.4g}" if a.memory_bytes else "-",
            f"{a.memory_bandwidth / 1e9:.5g}" if a.memory_bandwidth else "-",
            *(f"{p / 1e12:.4g}" if p else "-" for p in peaks),
            f"{a.tdp_w:.4g}" if a.tdp_w else "-",
        )
    console.print(table, highlight=False)
    console.print("fp32, bf16, fp8 in dense TFLOP/s", style="dim", highlight=False)


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


def models(console: Console) -> None:
    """All models known by name."""
    from triosim.workload import modelling

    table = _table("name", ">parameters", "family", "source")
    for preset in modelling.presets().values():
        source = preset.source.split(";")[0].split(", with")[0]
        table.add_row(preset.name, format_count(preset.parameters).strip(), preset.family, Text(source))
    console.print(table, highlight=False)


def model(name: str, console: Console) -> None:
    """One model in full."""
    from triosim.errors import unknown
    from triosim.workload import modelling

    presets = modelling.presets()
    if name not in presets:
        raise unknown("model", name, presets)
    preset = presets[name]
    fields = {
        "family": preset.family,
        "parameters": f"{preset.parameters:,}",
        **preset.configuration,
        "source": preset.source,
    }
    _fields(console, preset.name, fields)
