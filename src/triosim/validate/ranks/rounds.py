"""The protocol: everything in turns, in the same processes, with a barrier before each, until enough or time is up.

Whatever slows a machine for a while (other work, clocks) then slows what is predicted and what it is predicted from.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from triosim.validate.ranks.clock import DeviceTimer, ElapsedSeconds

WARM_UP = 3
LEAST_ROUNDS = 3

Series = dict[str, list[ElapsedSeconds]]
Step = Callable[[], None]


def warmed(steps: Mapping[str, Step]) -> None:
    """Run each a few times: optimizer states, buckets and connections are made in the first steps."""
    for step in steps.values():
        for _ in range(WARM_UP):
            step()


def take_turns(
    steps: Mapping[str, Step], clock: DeviceTimer, rounds: int, until: float, between: Callable[[], None] | None = None
) -> Series:
    """Times of steps, one of each in every round.

    Args:
        steps: by name.
        clock: of this process.
        rounds: how many at most.
        until: monotonic time after which no round begins, but for the first few.
        between: done in every round too.

    Returns:
        for each name what each round took in this process.
    """
    found: Series = defaultdict(list)
    for number in range(rounds):
        if number >= LEAST_ROUNDS and not _go_on(time.monotonic() < until):
            break
        for name, step in steps.items():
            dist.barrier()
            clock.start()
            step()
            found[name].append(clock.stop())
        if between is not None:
            between()
    return dict(found)


def _go_on(there_is_time: bool) -> bool:
    """What the first rank says; all must do the same number of rounds."""
    flag = torch.tensor([float(there_is_time)])
    if dist.get_backend() == "nccl":
        flag = flag.cuda()
    dist.broadcast(flag, 0)
    return bool(flag.item())
