"""Mappings counted and priced per CPU-second, and mappings that a search goes through; prints JSON.

python benchmarks/mapper.py [--budget N] [--repeat N]

A convolution with three tensors on a design with five stores and a fan-out in two directions: random mappings that fit,
evaluated 4,096 at a time on one core, and a genetic search from scratch.  Figures are the median of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import numpy as np

from triosim.accelerator import mapper, presets
from triosim.accelerator.directives import Constraints
from triosim.accelerator.energies import completed
from triosim.accelerator.evaluate import costs
from triosim.accelerator.mapspace import space
from triosim.accelerator.problem import convolution

BATCH = 4096


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=int, default=500_000, help="mappings of the search")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    problem = convolution("3x3 of ResNet-50", c=64, m=64, p=56, q=56, r=3, s=3)
    design = completed(presets.load("eyeriss"))
    where = space(design, problem)
    random = np.random.default_rng(0)
    factors, _ = where.factors(where.random_genes(random, BATCH))
    orders = where.random_orders(random, BATCH)
    evaluated, searched = [], []
    for _ in range(given.repeat):
        began = time.process_time()
        for _ in range(20):
            costs(where.nest, factors, orders)
        evaluated.append(20 * BATCH / (time.process_time() - began))
        began = time.process_time()
        found = mapper.search(design, problem, Constraints(), budget=given.budget, seed=0)
        searched.append(found.proposed / (time.process_time() - began))
    print(json.dumps({
        "stores": len(design.stores), "tensors": len(problem.tensors),
        "evaluated_per_cpu_s": round(statistics.median(evaluated)),
        "searched_per_cpu_s": round(statistics.median(searched)),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
