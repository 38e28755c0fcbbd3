"""Statistics that GPGPU-Sim and Accel-Sim print: cycles of each kernel, from the running total."""

from __future__ import annotations

import math
import re
from pathlib import Path

from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_TOTAL = re.compile(r"^gpu_tot_sim_cycle\s*=\s*(\S+)\s*$", re.MULTILINE)
_STATISTIC = re.compile(r"(kernel_name|kernel_stream_id|gpu_tot_sim_cycle)\s*=\s*(.*?)\s*")
_LAUNCHED = re.compile(r"launching kernel name:\s*(.*?)\s*(?:uid:.*)?")
_KEYS = ("kernel_name", "kernel_stream_id", "gpu_tot_sim_cycle", "launching kernel name:")
_CUT = "break due to reaching the maximum cycles"
_FREQUENCIES = re.compile(r"clock freqs:\s*([\d.]+)\s*:")  # Hz: core, interconnect, L2, memory
_DOMAINS = re.compile(r"^-gpgpu_clock_domains\s+([\d.]+)\s*:", re.MULTILINE)  # MHz, in the same order


@registered
class GpgpuSim(ExternalReader):
    """One row a kernel in the order in which they ended; its cycles are the increase of ``gpu_tot_sim_cycle``.

    The total runs through the simulation without a reset, so that a kernel that the simulator leaves out or plays in
    several pieces is still counted once (``gpu_sim_cycle`` starts anew with each launch).  The clock is that of the
    core domain: given by the user, else in the file (``clock freqs:`` or ``-gpgpu_clock_domains``), else the device's.
    """

    title = "GPGPU-Sim or Accel-Sim statistics (gpu_tot_sim_cycle)"

    def recognises(self, text: str) -> bool:
        return _TOTAL.search(text) is not None

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a total that is no count or goes back, or cycles of which nobody says how long one is.
        """
        hertz, whence = _clock(path, text, clock)
        rows: list[ExternalRow] = []
        launched: list[str] = []
        streams: set[str] = set()
        name, before, cut = "", 0, False
        for number, line in enumerate(text.split("\n"), start=1):
            cut |= _CUT in line
            if not line.startswith(_KEYS):
                continue
            if match := _LAUNCHED.fullmatch(line.rstrip()):
                launched.append(match.group(1))
            elif match := _STATISTIC.fullmatch(line):
                key, value = match.groups()
                if key == "kernel_name":
                    name = value
                elif key == "kernel_stream_id":
                    streams.add(value)
                else:
                    total = _cycles(path, number, value, before)
                    if name or total > before:  # statistics printed once more at the end belong to no kernel
                        seconds = math.nan if cut else (total - before) / hertz
                        rows.append(ExternalRow(name or f"kernel {len(rows)}", seconds))
                    name, before = "", total
        rows += [ExternalRow(left, math.nan) for left in launched[len(rows) :]]  # launched and never seen to end
        notes = [f"{path}: cycles of {hertz / 1e6:g} MHz, {whence}"]
        if len(streams) > 1:
            notes.append(f"{path}: kernels of {len(streams)} streams: a kernel's time is that since the end before")
        return table(f"GPGPU-Sim statistics {path}", Granularity.KERNEL, rows, notes)


_DIGITS = 18  # of 64 bits


def _cycles(path: Path, line: int, value: str, before: int) -> int:
    if not value.isdecimal() or len(value) > _DIGITS:
        raise InputError(f"{path}, line {line}: gpu_tot_sim_cycle is {quoted(value)}, not a count; correct it")
    if int(value) < before:
        raise InputError(
            f"{path}, line {line}: gpu_tot_sim_cycle goes back from {before} to {value}, so the file holds several "
            "runs; give each a file of its own"
        )
    return int(value)


def _clock(path: Path, text: str, clock: ClockRates) -> tuple[float, str]:
    """Frequency of the core clock in Hz and where it is from."""
    if clock.given:
        return clock.given, "as given"
    for pattern, scale in ((_FREQUENCIES, 1.0), (_DOMAINS, 1e6)):
        match = pattern.search(text)
        if match and match.group(1).count(".") <= 1 and float(match.group(1)) > 0:
            return float(match.group(1)) * scale, "as simulated"
    if clock.device:
        return clock.device, "the device's"
    raise InputError(f"{path} counts cycles and does not say how long one is; give clock = '1.41GHz' in a mapping file")
