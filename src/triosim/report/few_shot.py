"""What was learned of a device from few networks, for a person."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.console import Console

from triosim.core.units import format_time
from triosim.kernels.few_shot.device import FEWEST, LIVE, OPERATORS, POOL, DeviceFit, FewShotDevice
from triosim.kernels.few_shot.networks import CELLS, parse
from triosim.report.table import Column, TextTable, paragraph

MEANING = {
    OPERATORS: "every operator runs and adds its time, as under an eager runtime",
    LIVE: "only operators whose output reaches the result run, as behind a converter",
    POOL: "a mixture of other devices",
}
"""What each explanation says of the device."""
_FEW = 10
"""Networks below which the error to expect is itself hardly known."""
_NEAR = 1.5
"""Errors within this factor may trade places with the next draw of samples."""


def overview(device: FewShotDevice, console: Console) -> None:
    """Print which explanation was found, what it says, and the error to expect."""
    chosen = device.chosen
    table = TextTable((Column(style="dim"), Column(flow="wrap")))
    for name, value in (
        ("device", device.name),
        ("measured", _measured(device)),
        ("found", _meaning(device, chosen)),
        ("expect", f"{chosen.mean_error:.1%} off in the mean; 90 % within a factor of {math.exp(chosen.spread):.2f}"),
        ("order", "" if math.isnan(chosen.order) else f"rank correlation {chosen.order:.3f}"),
    ):
        if value:
            table.add_row(name, value)
    console.print(table)
    console.print()
    console.print(_explanations(device))
    console.print()
    console.print(_costs(device))
    console.print()
    paragraph(console, "error, order: of networks that were left out while learning", "dim", indent=2)
    for sentence in _remarks(device):
        paragraph(console, f"note: {sentence}", indent=2)


def _measured(device: FewShotDevice) -> str:
    runs = len(device.samples)
    return f"{device.networks} networks" + (
        f" in {runs} runs" if runs != device.networks + len(device.left_out) else ""
    )


def _meaning(device: FewShotDevice, one: DeviceFit) -> str:
    if one.kind == OPERATORS and device.space != CELLS:
        return "every block adds its time"
    if one.kind == POOL and device.space == CELLS:
        assert device.pool is not None
        live = sum(
            part for name, part in _parts(device) if device.pool.only_live[device.pool.devices.index(name)]
        )  # fmt: skip
        return f"{MEANING[POOL]}; {live:.0%} of it runs only operators whose output reaches the result"
    return MEANING[one.kind]


def _explanations(device: FewShotDevice) -> TextTable:
    table = TextTable((Column("explanation"), Column("error", True), Column("order", True)))
    for one in device.explanations:
        order = "-" if math.isnan(one.order) else f"{one.order:.3f}"
        table.add_row(one.kind, f"{one.mean_error:.1%}", order)
    return table


def _costs(device: FewShotDevice) -> TextTable:
    """What the chosen explanation is made of."""
    chosen = device.chosen
    if chosen.kind != POOL:
        table = TextTable((Column("one of", flow="path"), Column("takes", True)))
        for name, seconds in zip(("(the network itself)", *device.operators), chosen.coefficients, strict=True):
            table.add_row(name, format_time(float(seconds)))
        return table
    assert device.pool is not None
    table = TextTable((Column("like", flow="path"), Column("part of the time", True)))
    for name, part in _parts(device):
        table.add_row(name, f"{part:.0%}")
    return table


def _parts(device: FewShotDevice) -> list[tuple[str, float]]:
    """Devices of the pool by their part of the mean predicted time, the largest first."""
    assert device.pool is not None
    networks = parse([one.network for one in device.samples if one.network not in set(device.left_out)], device.name)
    parts = device.pool.times(networks).mean(axis=0) * device.chosen.coefficients
    rows = [
        (name, float(part)) for name, part in zip(device.pool.devices, parts / parts.sum(), strict=True) if part > 0
    ]
    return sorted(rows, key=lambda row: -row[1])


def _remarks(device: FewShotDevice) -> Iterator[str]:
    if device.left_out:
        yield (
            "networks without a path from input to output are left out, of which a converter makes constants: "
            f"{len(device.left_out)}"
        )
    rivals = [one.kind for one in device.explanations[1:] if one.error < _NEAR * device.chosen.error]
    if rivals and device.space == CELLS:
        yield (
            f"these networks are explained nearly as well by {' and '.join(rivals)}: measure some of which a part "
            "leads nowhere, which tells them apart"
        )
    if device.networks < _FEW:
        yield (
            f"{device.networks} networks say little of the error to expect ({FEWEST} are the least): measure 10 to 50 "
            "that differ in their operators"
        )
    seconds = np.array([one.seconds for one in device.samples])
    if len(seconds) >= FEWEST and np.allclose(seconds * 1e3, np.round(seconds * 1e3), rtol=1e-9, atol=1e-12):
        yield "all times are whole milliseconds: networks closer than that cannot be told apart"
    if device.pool is None:
        yield "with times of the same networks on other devices (--pool) few measurements tell more"
