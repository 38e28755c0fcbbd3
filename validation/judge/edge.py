"""Phones and other devices from few whole-network times, against all that were measured.

    python -m validation.judge.edge --data FOLDER [--draws 30] [--seed 0] [--json FILE]
    python -m validation.judge.edge --here [--budget 4m] [--json FILE]

FOLDER has the tables of HELP (Lee et al.: "HELP: Hardware-Adaptive Efficient Latency Prediction for NAS via
Meta-Learning", NeurIPS 2021) as ``edge_latency_nb201.csv`` and ``edge_latency_fbnet.csv``, also compressed, or others
of their shape.  Each target is learned from 10, 20 and 50 networks drawn at random, with HELP's own nine devices as
the pool, and predicts the networks that it was not shown.  Networks without a path from input to output are left out.
Columns: mean rank correlation over the draws; mean error; how many of the 90 % intervals hold; the explanation that
was chosen most often.  Of NAS-Bench-201 HELP's six targets are judged, of any other table all columns outside the pool;
without HELP's devices there is no pool.

``--here`` measures this machine's processor instead: its kernels under ONNX Runtime and PyTorch (``triosim calibrate
--run``), and eight networks (:mod:`validation.edge_networks`) as they are predicted from these and as they run.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation import command

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.kernels.few_shot import device as few_shot
from triosim.kernels.few_shot.networks import NetworkSet, parse
from triosim.kernels.few_shot.pool import learn as learn_pool

SAMPLES = (10, 20, 50)
TABLES = {"nb201": "edge_latency_nb201.csv", "fbnet": "edge_latency_fbnet.csv"}
POOL = {
    "nb201": (
        "1080ti_1", "1080ti_32", "1080ti_256", "silver_4114", "silver_4210r", "samsung_a50", "pixel3",
        "essential_ph_1", "samsung_s7",
    ),
    "fbnet": (
        "1080ti_1", "1080ti_32", "1080ti_64", "silver_4114", "silver_4210r", "samsung_a50", "pixel3", "essential_ph_1",
        "samsung_s7",
    ),
}  # fmt: skip
"""The devices that HELP learns from."""
TARGETS = ("titan_rtx_256", "gold_6226", "pixel2", "raspi4", "eyeriss", "fpga")
"""The devices that HELP is judged on with NAS-Bench-201."""
HELP = {
    "titan_rtx_256": 0.987, "gold_6226": 0.989, "pixel2": 0.802, "raspi4": 0.890, "eyeriss": 0.940, "fpga": 0.985,
}  # fmt: skip
"""Rank correlations that HELP reports for NAS-Bench-201 with 10 samples, with a meta-learned network."""


def read(path: Path) -> tuple[NetworkSet, tuple[str, ...], NDArray[np.float64]]:
    """Networks with a path through them, devices, and seconds of shape ``(networks, devices)``."""
    lines = [
        cells for _, cells in guarded.cells(guarded.text(guarded.content(path), str(path)), str(path)) if any(cells)
    ]
    every = parse([cells[0] for cells in lines[1:]], str(path))
    kept = np.flatnonzero(every.connected)
    times = 1e-3 * np.array([[float(cell) for cell in cells[1:]] for cells in lines[1:]])
    print(f"{path.name}: {len(every)} networks, {len(every) - len(kept)} without a path left out")
    return parse([every.names[row] for row in kept], str(path)), tuple(lines[0][1:]), times[kept]


def table(space: str, path: Path, draws: int, seed: int) -> dict[str, dict[str, dict[str, Any]]]:
    """By number of samples and target: ``order``, ``error``, ``held``, ``chosen``."""
    networks, devices, times = read(path)
    of_pool = tuple(name for name in POOL[space] if name in devices)
    known = [name for name in TARGETS if name in devices and space == "nb201"]
    targets = known or [name for name in devices if name not in of_pool]
    column = {name: times[:, devices.index(name)] for name in devices}
    pool = (
        learn_pool(of_pool, networks, np.stack([column[name] for name in of_pool], axis=1), path.name)
        if of_pool
        else None
    )
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for count in SAMPLES:
        rows = found[str(count)] = {}
        for target in targets:
            generator = np.random.default_rng((seed, count, targets.index(target)))
            rows[target] = _target(networks, column[target], pool, count, draws, generator)
    return found


def _target(
    networks: NetworkSet, seconds: NDArray[np.float64], pool: Any, count: int, draws: int, generator: Any
) -> dict[str, Any]:
    orders, errors, held = [], [], []
    chosen: Counter[str] = Counter()
    for _ in range(draws):
        shown = generator.choice(len(networks), count, replace=False)
        samples = [few_shot.NetworkSample(networks.names[row], float(seconds[row])) for row in shown]
        device = few_shot.learn("target", samples, pool, "samples")
        told = device.times(networks)
        unseen = np.ones(len(networks), bool)
        unseen[shown] = False
        guess = np.where(np.isnan(told.seconds), 0.0, told.seconds)[unseen]  # what it cannot tell comes last
        orders.append(few_shot.rank_correlation(guess, seconds[unseen]))
        some = guess > 0
        ratio = guess[some] / seconds[unseen][some]
        errors.append(float(np.mean(np.abs(ratio - 1))))
        held.append(float(np.mean(np.abs(np.log(ratio)) <= told.spread)))
        chosen[device.chosen.kind] += 1
    return {
        "order": float(np.mean(orders)), "least_order": min(orders), "error": float(np.mean(errors)),
        "held": float(np.mean(held)), "chosen": dict(chosen.most_common()),
    }  # fmt: skip


def show(space: str, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print the table of one search space."""
    print(f"\n{space:16}{'samples':>8}{'order':>8}{'least':>8}{'error':>8}{'held':>7}  chosen")
    for count, rows in found.items():
        for target, row in rows.items():
            chosen = ", ".join(f"{kind} {times}" for kind, times in row["chosen"].items())
            said = f"   (HELP {HELP[target]:.3f})" if target in HELP and count == "10" else ""
            print(
                f"{target:16}{count:>8}{row['order']:8.3f}{row['least_order']:8.3f}{row['error']:8.1%}{row['held']:7.0%}"
                f"  {chosen}{said}"
            )
        mean = {name: float(np.mean([row[name] for row in rows.values()])) for name in ("order", "error", "held")}
        print(f"{'mean':16}{count:>8}{mean['order']:8.3f}{'':8}{mean['error']:8.1%}{mean['held']:7.0%}\n")


def _here(budget: str, output: Path | None) -> None:
    from validation import edge_here

    found = {}
    for runtime in edge_here.RUNTIMES:
        found[runtime] = edge_here.table(runtime, budget)
        edge_here.show(runtime, found[runtime])
    command.write(output, found)


def main() -> None:
    """Print the tables."""
    parser = command.parser(__doc__, "folder with the tables", required=False)
    parser.add_argument("--here", action="store_true", help="measure this machine's processor instead")
    parser.add_argument("--budget", default="4m", help="with --here: time for the kernels of each runtime")
    parser.add_argument("--draws", type=int, default=30, help="choices of networks for each target and count")
    parser.add_argument("--seed", type=int, default=0, help="of the choices")
    options = parser.parse_args()
    if options.here:
        _here(options.budget, options.json)
        return
    if options.data is None:
        parser.error("give --data FOLDER, or --here")
    folder = command.find(
        options.data, "edge/", *(f"edge/{name}{end}" for name in TABLES.values() for end in ("", ".gz"))
    )
    folder = folder.parent if folder.is_file() else folder
    began, found = time.process_time(), {}
    for space, name in TABLES.items():
        path = next((one for one in (folder / name, folder / f"{name}.gz") if one.exists()), None)
        if path is not None:
            found[space] = table(space, path, options.draws, options.seed)
            show(space, found[space])
    if not found:
        raise InputError(f"{options.data}: has none of {', '.join(TABLES.values())}: give a folder that has")
    print(f"{time.process_time() - began:.0f} CPU seconds")
    command.write(options.json, found)


if __name__ == "__main__":
    command.run(main)
