"""``triosim calibrate --few``: a device from few whole-network times, and what other networks take on it."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from triosim.cli.command import progress_bar, say, wants_summary
from triosim.core.errors import InputError


def write(table: Path, pool: Path | None, predict: Path | None, name: str | None, output: Path | None) -> None:
    """Learn a device from a table of measured networks, or predict networks on one that was learned.

    Args:
        table: of measured networks, or a file that this has written.
        pool: table of other devices.
        predict: table of networks whose times are asked for.
        name: of the device; the table's where not given.
        output: the pack, or the table of predicted times.

    Raises:
        InputError: a file cannot be read, or the options do not go together.
    """
    from triosim.kernels.few_shot.pack import is_few_shot_file

    learned = is_few_shot_file(table)
    if predict is not None:
        if not learned or pool is not None or name is not None:
            raise InputError(
                "--predict takes what was learned, alone: triosim calibrate --few PACK.json --predict NETWORKS.csv"
            )
        _predict(table, predict, output or Path(f"{predict.name.partition('.')[0]}-times.csv"))
    elif learned:
        raise InputError(f"{table} has been learned: give --predict NETWORKS.csv, networks whose times you ask for")
    else:
        _learn(table, pool, name or table.name.partition(".")[0], output)


def _learn(table: Path, pool: Path | None, name: str, output: Path | None) -> None:
    from datetime import datetime, timezone

    from triosim import __version__
    from triosim.cli.streams import rich_console, written
    from triosim.core import guarded
    from triosim.core.outputs import text_output
    from triosim.kernels.few_shot import device, pack, tables
    from triosim.report.few_shot import overview

    with progress_bar() as progress:
        progress("reading")
        known = tables.pool(pool) if pool is not None else None
        progress("learning")
        found = device.learn(name, tables.samples(table), known, str(table))
    provenance = {
        key: f"{path.name} sha256:{hashlib.sha256(guarded.content(path, packed=False)).hexdigest()[:16]}"
        for key, path in (("samples", table), ("pool", pool)) if path is not None
    }  # fmt: skip
    made = pack.FewShotPack(found, datetime.now(timezone.utc).date().isoformat(), {"triosim": __version__}, provenance)
    path = output or Path(f"{name}-few-shot.json")
    with text_output(path) as file:
        file.write(pack.text(made))
    if wants_summary(path):
        overview(found, rich_console())
        print()
    say(written("pack", path, f"  (triosim calibrate --few {path} --predict NETWORKS.csv)"), path)


def _predict(learned: Path, table: Path, output: Path) -> None:
    import csv

    from triosim.cli.streams import written
    from triosim.core.outputs import text_output
    from triosim.kernels.few_shot import pack, tables

    device = pack.load(learned).device
    names = tables.networks(table)
    found = device.predict(names, str(table))
    known = sum(reason is None for reason in found.reasons)
    if not known:
        raise InputError(f"{table}: no time of any network can be told, of the first because {found.reasons[0]}")
    factor = math.exp(found.spread)
    with text_output(output) as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow((tables.NETWORKS[0], "seconds", "low", "high", "remark"))
        for name, seconds, reason in zip(names, found.seconds.tolist(), found.reasons, strict=True):
            times = ("", "", "") if reason else (f"{x:.6g}" for x in (seconds, seconds / factor, seconds * factor))
            lines.writerow((name, *times, reason or ""))
    remark = f"  ({known} networks" + (f", {len(names) - known} without a time" if known < len(names) else "") + ")"
    say(written("times", output, remark), output)
