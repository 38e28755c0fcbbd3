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
SHARE = {"triosim/Plan-v0": 0.001}
"""Of the steps, for what takes long."""


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    for name in ("triosim/Accelerator-v0", "triosim/Mapping-v0", "triosim/Plan-v0"):
        count = max(int(steps * SHARE.get(name, 1.0)), 1)
        rates = []
        for seed in range(RUNS):
            env = gymnasium.make(name).unwrapped
            env.reset(seed=seed)
            env.action_space.seed(seed)
            actions = [env.action_space.sample() for _ in range(count)]
            before = time.process_time()
            for action in actions:
                env.step(action)
            rates.append(count / (time.process_time() - before))
        new = len({tuple(action.tolist()) for action in actions}) / count
        print(f"{name:24} {statistics.median(rates):10,.0f} steps/s, {new:.0%} of the actions new")


if __name__ == "__main__":
    main()
