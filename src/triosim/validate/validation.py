"""The whole road of a validation: run, predict, compare."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from triosim.core.errors import InputError, unknown
from triosim.trace.store import load
from triosim.validate import launch
from triosim.validate.comparison import Validation, compare
from triosim.validate.measured import MeasuredMachine, MeasuredNetwork, MeasuredSeries, tables
from triosim.validate.sizes import DEFAULT, MODES, PARTS, DecoderSize, baselines, check, nulls, sizes

ROUNDS = 12
BUDGET_S = 150.0
GRACE_S = 90.0
"""After the budget the processes have so long to come to an end."""

MEASURED_SHARE = 0.8
"""Part of the budget in which rounds may begin, but for the first few of each network."""

REPEATS = 5
"""Observed steps of a recording."""


def validate(
    processes: int = 2,
    models: Sequence[str] = DEFAULT,
    modes: Sequence[str] = MODES,
    rounds: int = ROUNDS,
    budget_s: float = BUDGET_S,
    device: str | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> Validation:
    """Record steps, predict parallel jobs, run them, and compare.

    Args:
        processes: ranks of the jobs; one thread each on a CPU, one GPU each where there are enough.
        models: names of :mod:`triosim.validate.sizes`.
        modes: of :data:`triosim.validate.sizes.MODES`.
        rounds: how often everything runs, in turns; fewer if time is up, but three.
        budget_s: seconds that it should take; a minute and a half later it is ended.
        device: ``"cpu"`` or ``"cuda"``; None takes GPUs if there is one for each process.
        progress: told what is being done, in a few words.

    Raises:
        InputError: PyTorch or the devices are not there, a name is wrong, a network cannot be divided so, or a process
            failed or was not done in time.
    """
    if find_spec("torch") is None:
        raise InputError("validating needs PyTorch, which is not installed: pip install 'triosim[torch]'")
    for mode in modes:
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
    for what, count, least in (("processes", processes, 2), ("rounds", rounds, 1)):
        if count < least:
            raise InputError(f"--{what} must be at least {least}, got {count}")
    if budget_s < 10:
        raise InputError(f"--budget must be at least 10 s, got {budget_s:g} s")
    if not models or not modes:
        raise InputError("nothing to validate: name at least one --model and one of --modes")
    device = _device(device, processes)
    networks = sizes(tuple(dict.fromkeys(models)), device)
    for name, size in networks.items():
        check(name, size, tuple(modes), processes)
    return _run(nulls(processes), networks, tuple(dict.fromkeys(modes)), processes, rounds, budget_s, device, progress)


def _device(asked: str | None, processes: int) -> str:
    if asked not in (None, "cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {asked!r}")
    if asked == "cpu":
        return "cpu"
    from triosim.validate.ranks.devices import gpus  # loads PyTorch

    there = gpus()
    if asked == "cuda" and there < processes:
        raise InputError(f"{processes} processes need a GPU each, but PyTorch finds {there}: give --device cpu")
    return "cuda" if there >= processes else "cpu"


def _run(
    small: dict[str, DecoderSize],
    judged: dict[str, DecoderSize],
    modes: tuple[str, ...],
    processes: int,
    rounds: int,
    budget_s: float,
    device: str,
    progress: Callable[[str], None],
) -> Validation:
    begun, load_before = time.monotonic(), _load()
    networks = {**small, **judged}
    job: dict[str, Any] = {
        "processes": processes,
        "device": device,
        "networks": {name: asdict(size) for name, size in networks.items()},
        "small": list(small),
        "baselines": list(baselines(modes)),
        "modes": list(modes),
        "rounds": rounds,
        "repeats": REPEATS,
        "begun": time.time(),
        "seconds": budget_s * MEASURED_SHARE,
        "timeout_s": budget_s + GRACE_S,
    }
    progress("starting the processes")
    with tempfile.TemporaryDirectory(prefix="triosim-validate-") as name:
        folder = Path(name)
        ranks = launch.run(folder, job, progress)
        progress("predicting")
        found = [_network(folder, name, size, modes, ranks) for name, size in networks.items()]
    load_after = _load()
    machine = MeasuredMachine(
        device=device,
        name=found[0].whole.meta.device or "",
        processes=processes,
        cores=_cores(),
        tables=tables(ranks),
        versions={name: ranks[0][name] for name in ("torch", "python")},
        load=(load_before, load_after) if load_before is not None and load_after is not None else None,
    )
    return compare(machine, (found[0], found[1], found[2]), found[3:], time.monotonic() - begun)


def _network(
    folder: Path, name: str, size: DecoderSize, modes: tuple[str, ...], ranks: list[dict[str, Any]]
) -> MeasuredNetwork:
    series = {
        mode: MeasuredSeries.of([rank["networks"][name][mode] for rank in ranks])
        for mode in (*baselines(modes), *modes)
    }
    whole = load(folder / f"{name}-whole.triosim")
    part = load(folder / f"{name}-part.triosim") if PARTS in series else None
    return MeasuredNetwork(name, size.layers, whole, part, series)


def _load() -> float | None:
    """Load average of the last minute, where the system tells."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
