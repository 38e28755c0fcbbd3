"""Epochs under power caps: predicted from the power at the highest cap and the TDP, against measurements.

    python -m validation.judge.power_caps --data FOLDER|power_caps.csv [--json FILE]

The error is the mean of ``|ln(predicted / measured)|`` of an epoch's time over that at the highest cap, over the
rows below it.  The constants are those that are shipped; those fitted to one GPU alone; and, to compare with, no
throttling at all and a time in proportion to power over cap.
"""

from __future__ import annotations

import numpy as np
from validation import command
from validation.fit.power import Caps, fit, read

from triosim.hardware.power import constants


def table(data: dict[str, Caps]) -> dict[str, dict[str, float]]:
    """Mean error of each way to predict, by GPU."""
    shipped, alone = constants(), {gpu: fit({gpu: caps}) for gpu, caps in data.items()}
    found: dict[str, dict[str, float]] = {}
    for gpu, caps in data.items():
        rows = {
            "rows": float(len(caps.times)),
            "shipped constants": caps.error(shipped),
            "no throttling": caps.error_of(np.ones(len(caps.times))),
            "power over cap": caps.error_of(np.maximum(1.0, caps.power_w / caps.cap_w)),
        }
        rows |= {f"fitted to {other} alone": caps.error(law) for other, law in alone.items()}
        found[gpu] = rows
    return found


def main() -> None:
    """Print the table."""
    parser = command.parser(__doc__, "power_caps.csv, or a folder that has it")
    options = parser.parse_args()
    found = table(read(command.find(options.data, "energy/power_caps.csv")))
    names = list(next(iter(found.values())))
    print(f"{'':24}" + "".join(f"{gpu:>10}" for gpu in found))
    for name in names:
        cells = (rows[name] for rows in found.values())
        print(f"{name:24}" + "".join(f"{x:10.0f}" if name == "rows" else f"{x:10.1%}" for x in cells))
    command.write(options.json, found)


if __name__ == "__main__":
    command.run(main)
