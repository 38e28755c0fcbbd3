"""``triosim calibrate --export-kernels`` and ``--import``: kernels as a runtime elsewhere runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from triosim.cli.command import progress_bar, say
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.kernels.calibration.pack import CalibrationPack


def export(folder: Path) -> None:
    """Write kernels as ONNX files to be measured elsewhere.

    Raises:
        InputError: the folder cannot be written, or ONNX is not installed.
    """
    from triosim.core.outputs import folder_output
    from triosim.sources.runtimes import exchange

    with folder_output(folder, exchange.is_exported) as place, progress_bar() as progress:
        count = exchange.export(place, lambda name: progress(f"writing {name}"))
    say([f"kernels   {folder}  ({count} networks to be measured; how: {folder / exchange.PAGE})"], folder)


def imported(table: Path, device: str | None, runtime: str, threads: int) -> CalibrationPack:
    """A calibration from what was measured elsewhere, with the kernels' list beside the table.

    Raises:
        InputError: the table or the list cannot be read, or nothing of use was measured.
    """
    from triosim.hardware.build import accelerator, is_file
    from triosim.hardware.catalog import has_accelerator
    from triosim.kernels.calibration.making import calibrate
    from triosim.kernels.few_shot import tables
    from triosim.sources.runtimes import exchange

    if not device:
        raise InputError("--import takes the name of what was measured: give --device my-phone, or a device's file")
    known = accelerator(device) if has_accelerator(device) or is_file(device) else None
    times = tables.kernel_times(table)
    bench = exchange.imported(table.parent, times, known.name if known else device, runtime, threads)
    return calibrate(bench.trace, known, name=table.name, machine={"threads": threads}, rules=bench.rules)[0]
