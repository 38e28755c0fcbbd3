"""Small designs and random mappings for tests."""

from __future__ import annotations

import random

from triosim.accelerator.architecture import Architecture, Compute, Energies, FanOut, Store
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import Problem

PJ = 1e-12


def energies(scale: float) -> Energies:
    """Different for every action, so that none stands for another."""
    return Energies(scale * PJ, 1.1 * scale * PJ, 1.3 * scale * PJ, 0.01 * scale * PJ)


DRAM = Store("DRAM", None, 16, 4, energies=energies(100), kind="DRAM")
BUFFER = Store("Buffer", 4096, 16, 2, energies=energies(10))
REGISTERS = Store("Registers", 64, 16, 1, energies=energies(1), kind="regfile")
MAC = Compute("mac", 16, Energies(compute=0.5 * PJ))
THREE = Architecture("three", (DRAM, BUFFER, FanOut("PE", 4, 3), REGISTERS), MAC, 1e9)


def prime_factors(number: int) -> list[int]:
    """``12`` is ``[2, 2, 3]``."""
    found, p = [], 2
    while number > 1:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    return found


def random_mapping(seed: int, architecture: Architecture, problem: Problem) -> LoopMapping:
    """Any mapping whose loops multiply to the bounds; fan-outs may be exceeded by none."""
    chance = random.Random(seed)
    slots: list[tuple[str, str, int]] = []
    for node in architecture.nodes:
        if isinstance(node, Store):
            slots.append((node.name, "", 1 << 30))
        else:
            slots += [(node.name, "x", node.x), (node.name, "y", node.y)]
    counts = [dict.fromkeys(problem.dimensions, 1) for _ in slots]
    for dimension, bound in problem.bound.items():
        for p in prime_factors(bound):
            room = []
            for i, (_, axis, most) in enumerate(slots):
                used = 1
                for count in counts[i].values():
                    used *= count
                if not axis or used * p <= most:
                    room.append(i)
            counts[chance.choice(room)][dimension] *= p
    levels: dict[str, list[Loop]] = {}
    for (node, axis, _), found in zip(slots, counts, strict=True):
        loops = [Loop(d, n, axis) for d, n in found.items() if n > 1]
        chance.shuffle(loops)
        levels.setdefault(node, []).extend(loops)
    return LoopMapping(tuple(Level(node, tuple(loops)) for node, loops in levels.items()))
