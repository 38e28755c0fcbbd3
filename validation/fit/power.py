"""The law of clock, voltage and power: ``hardware/power.json``.

    python -m validation.fit.power --data FOLDER|power_caps.csv [--write]

Six trainings in many batches on a V100 and an A40 at several power caps (ml-energy/zeus, zeus_nsdi23 trace,
Apache-2.0), single runs.  Each row below a job's highest cap says how much longer an epoch took than at that cap.
Fitted are all four constants: the mean over the rows of ``|ln(predicted / measured)|``, the larger of the two GPUs in
parts of what is aimed at (5 % on the V100, 7.5 % on the A40), is made as small as it gets.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation import command

from triosim.hardware.power import PowerConstants

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/hardware/power.json"
AIM = {"V100": 0.05, "A40": 0.075}
"""Mean errors aimed at."""
BOUNDS = {"limit": (0.8, 1.1), "static_share": (0.15, 0.35), "voltage_floor": (0.3, 1.0), "growth": (0.0, 2.5)}
"""What the constants can be at all."""
STARTS = ((0.95, 0.28, 0.65, 0.3), (1.0, 0.25, 0.7, 0.1), (1.0, 0.3, 0.4, 0.5))


@dataclass(frozen=True)
class Caps:
    """Rows below the highest cap, one array each.

    Attributes:
        power_w: mean power at the highest cap.
        tdp_w, cap_w: of the device, and in force.
        times: epoch time over that at the highest cap.
    """

    power_w: NDArray[np.float64]
    tdp_w: NDArray[np.float64]
    cap_w: NDArray[np.float64]
    times: NDArray[np.float64]

    def error(self, law: PowerConstants) -> float:
        """Mean of |ln(predicted / measured)|."""
        return self.error_of(law.relative_time(self.power_w, self.tdp_w, self.cap_w))

    def error_of(self, predicted: NDArray[np.float64]) -> float:
        """The same of other predictions."""
        return float(np.mean(np.abs(np.log(predicted / self.times))))


def read(path: Path) -> dict[str, Caps]:
    """The rows of each GPU, by its name up to the first blank."""
    path = path / "power_caps.csv" if path.is_dir() else path
    jobs: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    key = ("gpu", "dataset", "network", "batch_size", "optimizer")
    for row in command.rows(path, *key, "power_limit_w", "average_power_w", "tdp_w", "epoch_s"):
        jobs[tuple(row[name] for name in key)].append(row)
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (gpu, *_), rows in jobs.items():
        rows = sorted(rows, key=lambda row: float(row["power_limit_w"]))
        top = rows[-1]
        found[gpu.split(" ")[0]] += [
            (float(top["average_power_w"]), float(row["tdp_w"]), float(row["power_limit_w"]),
             float(row["epoch_s"]) / float(top["epoch_s"]))
            for row in rows if float(row["power_limit_w"]) < float(top["power_limit_w"])
        ]  # fmt: skip
    return {gpu: Caps(*np.array(rows).T) for gpu, rows in found.items()}


def fit(data: Mapping[str, Caps]) -> PowerConstants:
    """Constants for these GPUs together."""

    def loss(values: NDArray[np.float64]) -> float:
        parts = [caps.error(_law(values)) / AIM.get(gpu, 0.075) for gpu, caps in data.items()]
        return max(parts) + 0.2 * sum(parts)

    return _law(min((_nelder_mead(loss, np.array(start)) for start in STARTS), key=loss))


def _law(values: NDArray[np.float64]) -> PowerConstants:
    low, high = np.array(list(BOUNDS.values())).T
    inside: dict[str, Any] = dict(zip(BOUNDS, np.clip(values, low, high).tolist(), strict=True))
    return PowerConstants(**inside)


def _nelder_mead(
    f: Callable[[NDArray[np.float64]], float], start: NDArray[np.float64], steps: int = 300
) -> NDArray[np.float64]:
    """The point that a simplex of a tenth of each coordinate comes to (Nelder and Mead, 1965)."""
    points = [start, *(start * (1 + 0.1 * row) for row in np.eye(len(start)))]
    values = [f(point) for point in points]
    for _ in range(steps):
        order = np.argsort(values, kind="stable")
        points, values = [points[i] for i in order], [values[i] for i in order]
        middle = np.mean(points[:-1], axis=0)
        reflected = 2 * middle - points[-1]
        value = f(reflected)
        if value < values[0]:
            further = 3 * middle - 2 * points[-1]
            beyond = f(further)
            points[-1], values[-1] = (further, beyond) if beyond < value else (reflected, value)
        elif value < values[-2]:
            points[-1], values[-1] = reflected, value
        else:
            nearer = (middle + points[-1]) / 2
            value = f(nearer)
            if value < values[-1]:
                points[-1], values[-1] = nearer, value
            else:
                points = [points[0], *((point + points[0]) / 2 for point in points[1:])]
                values = [values[0], *(f(point) for point in points[1:])]
    return points[int(np.argmin(values))]


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with power_caps.csv, or that file")
    parser.add_argument("--write", action="store_true", help="write hardware/power.json")
    options = parser.parse_args()
    data = read(options.data)
    law = fit(data)
    values = {name: round(value, 4) for name, value in asdict(law).items() if name != "source"}
    law = PowerConstants(**values)
    for name, value in values.items():
        print(f"{name:14}{value:8.4f}")
    for gpu, caps in data.items():
        print(f"{gpu:8}{len(caps.times):5} rows{caps.error(law):8.1%}")
    if options.write:
        rows = sum(len(caps.times) for caps in data.values())
        document = {
            "schema": "triosim/power-law/1",
            "source": f"{rows} epochs of six trainings under power caps on {' and '.join(data)} (ml-energy/zeus, "
            "Apache-2.0), validation/fit/power.py",
            "constants": values,
        }
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
