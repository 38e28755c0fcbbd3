"""``stats.txt`` of gem5: one region for each dump of the statistics."""

from __future__ import annotations

import re
from pathlib import Path

from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.kernels.external_times import ClockRates, ExternalReader, ExternalRow, ExternalTimes, Granularity, table

_BEGIN = re.compile(r"^-+ Begin Simulation Statistics -+\s*$", re.MULTILINE)
_END = re.compile(r"^-+ End Simulation Statistics\s+-+\s*$", re.MULTILINE)
_STATISTIC = re.compile(
    r"^(simTicks|sim_ticks|finalTick|final_tick|simFreq|sim_freq|simSeconds|sim_seconds)\s+(\S+)", re.MULTILINE
)
_NEW_NAME = {
    "sim_ticks": "simTicks", "final_tick": "finalTick", "sim_freq": "simFreq", "sim_seconds": "simSeconds",
}  # fmt: skip


@registered
class Gem5(ExternalReader):
    """One row for each region, named ``region 0``, ``region 1``, ...

    A region ends with a dump of the statistics.  It begins with the last reset, or with the dump before where nothing
    was reset since: the shorter of ``simTicks``, which counts from the reset, and of the difference of ``finalTick``,
    which is never reset.  Ticks are taken rather than ``simSeconds``, which is rounded to a microsecond.
    """

    title = "gem5 statistics (stats.txt)"

    def recognises(self, text: str) -> bool:
        return _BEGIN.search(text) is not None

    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """See :class:`ExternalReader`.

        Raises:
            InputError: a region is cut off, or says neither its ticks nor its seconds.
        """
        rows: list[ExternalRow] = []
        before = 0.0
        for number, begin in enumerate(starts := list(_BEGIN.finditer(text))):
            stop = starts[number + 1].start() if number + 1 < len(starts) else len(text)
            line = text.count("\n", 0, begin.start()) + 1
            end = _END.search(text, begin.end(), stop)
            if end is None:
                raise InputError(f"{path}: region {number} (line {line}) is cut off; let the simulation end")
            found = _statistics(path, number, text[begin.end() : end.start()])
            final = found.get("finalTick")
            rows.append(ExternalRow(f"region {number}", _seconds(path, number, line, found, before)))
            before = before if final is None else final
        return table(f"gem5 statistics {path}", Granularity.REGION, rows)


def _statistics(path: Path, region: int, text: str) -> dict[str, float]:
    found = {}
    for name, value in _STATISTIC.findall(text):
        try:
            found[_NEW_NAME.get(name, name)] = float(value)
        except ValueError:
            raise InputError(
                f"{path}: {name} of region {region} is {quoted(value)}, not a number; correct it"
            ) from None
    return found


def _seconds(path: Path, region: int, line: int, found: dict[str, float], before: float) -> float:
    ticks, rate = found.get("simTicks"), found.get("simFreq")
    if ticks is not None and rate:
        return min(ticks, found.get("finalTick", ticks + before) - before) / rate
    if "simSeconds" in found:
        return found["simSeconds"]
    raise InputError(
        f"{path}: region {region} (line {line}) has neither simTicks with simFreq nor simSeconds; dump the "
        "statistics of the root too"
    )
