"""Small pipeline chunks: where the host binds, more micro-batches make an iteration longer, not shorter.

    python -m validation.judge.chunks [--model densenet169] [--json FILE]

DenseNet-169 at batch 128 in two stages on two A100, GPipe, by the cost of launching.  The TrioSim paper (ISCA 2025,
figure 10) measured that four micro-batches take about 1.4 times as long as two, which kernel times alone cannot say.
"""

from __future__ import annotations

from collections.abc import Sequence

from validation import command

import triosim
from triosim import Fidelity, Plan

MEASURED = 1.4
BOUNDS = (1.2, 1.6)
MICRO_BATCHES = (1, 2, 4, 8)


def main() -> int:
    """Print a line for each host mode; the exit code tells whether the ratio is within its bounds."""
    parser = command.parser(__doc__)
    parser.add_argument("--model", default="densenet169")
    options = parser.parse_args()
    found = {mode: times(mode, model=options.model) for mode in ("eager", "none")}
    print(f"{options.model}, batch 128, two stages on two A100, GPipe: ms an iteration by micro-batches")
    print(f"{'--host':8}" + "".join(f"{n:>10}" for n in MICRO_BATCHES) + "     4 to 2")
    ratios = {}
    for mode, seconds in found.items():
        ratios[mode] = seconds[MICRO_BATCHES.index(4)] / seconds[MICRO_BATCHES.index(2)]
        print(f"{mode:8}" + "".join(f"{s * 1e3:10.2f}" for s in seconds) + f"{ratios[mode]:11.3f}")
    print(f"{'measured':8}" + " " * 10 * len(MICRO_BATCHES) + f"{f'about {MEASURED}':>11}")
    command.write(options.json, {"seconds": found, "ratio": ratios})
    return 0 if BOUNDS[0] <= ratios["eager"] <= BOUNDS[1] and ratios["none"] < 1 else 1


def times(mode: str, model: str = "densenet169", micro_batches: Sequence[int] = MICRO_BATCHES) -> list[float]:
    """Seconds of an iteration for each number of micro-batches."""
    trace = triosim.model(model, batch_size=128)
    system = triosim.system(device="A100-SXM4-80GB", devices=2)
    plans = [Plan(dp=1, pp=2, batch_size=128, micro_batches=n, schedule="gpipe") for n in micro_batches]
    return [triosim.simulate(trace, system, plan, Fidelity(host=mode)).iteration_time_s for plan in plans]


if __name__ == "__main__":
    command.run(main)
