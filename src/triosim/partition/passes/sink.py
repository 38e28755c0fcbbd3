"""Sinking: what a group sends waits for the operator that makes the last of it, the boundary of a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.partition.gradients import Gradient


def sink(groups: Sequence[Sequence[Gradient]]) -> list[int]:
    """For each group of gradients the operator after which all of it is there.

    Args:
        groups: gradients that are sent together, as :mod:`triosim.partition.passes.fuse` makes them.
    """
    return [max(gradient.ready for gradient in group) for group in groups]
