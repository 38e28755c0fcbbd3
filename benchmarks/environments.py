"""Steps that each environment takes in a CPU-second, with random actions.

    python benchmarks/environments.py [--steps 20000]

Variants are evaluated once, so that it depends on how many of the actions are new; their share is told.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gymnasium

import triosim.explore.environments  # noqa: F401 - registers them

RUNS = 3
ENVIRONMENTS: tuple[tuple[str, dict[str, bool], float], ...] = (
    ("triosim/Accelerator-v0", {}, 1.0), ("triosim/Mapping-v0", {}, 1.0), ("triosim/Mapping-v0", {"fit": True}, 0.1),
    ("triosim/Plan-v0", {}, 0.001),
)  # fmt: skip
"""Names, settings, and the part of the steps that is taken, for what takes long."""


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    for name, settings, share in ENVIRONMENTS:
        count = max(int(steps * share), 1)
        rates, run = [], 0
        for seed in range(RUNS):
            env = gymnasium.make(name, **settings).unwrapped
            env.reset(seed=seed)
            env.action_space.seed(seed)
            actions = [env.action_space.sample() for _ in range(count)]
            before = time.process_time()
            for action in actions:
                run += env.step(action)[-1]["costs"] is not None
            rates.append(count / (time.process_time() - before))
        new = len({tuple(action.tolist()) for action in actions}) / count
        title = name + "".join(f" {option}" for option in settings)
        print(
            f"{title:24} {statistics.median(rates):10,.0f} steps/s, {new:.0%} of the actions new, "
            f"{run / count / RUNS:.0%} can be run"
        )


if __name__ == "__main__":
    main()
