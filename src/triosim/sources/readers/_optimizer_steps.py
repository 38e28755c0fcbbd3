"""Steps of a profile that marks none: each ends where its optimizer does.

``with profile() as p:`` around a loop writes no ``ProfilerStep#N`` unless a schedule is given.  PyTorch names each call
of an optimizer (``Optimizer.step#AdamW.step``), though, so that the work between two such calls can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.sources.readers._tree import CallNode

_OPTIMIZER = "Optimizer.step#"


def ends_of_steps(nodes: Sequence[CallNode]) -> list[int]:
    """When each step ended, in ns; nothing where the file does not hold at least two equal steps.

    A step is as many calls of optimizers as it takes for the names of the calls, and the backward nodes before each, to
    repeat: one, or two where a discriminator and a generator take turns.
    """
    calls = _outermost(sorted((n for n in nodes if n.name.startswith(_OPTIMIZER)), key=lambda n: (n.start, -n.end)))
    backward = sorted((n for n in nodes if n.engine), key=lambda n: n.start)
    stretches: list[tuple[str, ...]] = []
    at = 0
    for call in calls:
        names = []
        while at < len(backward) and backward[at].start < call.start:
            names.append(backward[at].name)
            at += 1
        stretches.append((call.name, *names))
    for period in range(1, len(calls) // 2 + 1):
        works = any(len(stretch) > 1 for stretch in stretches[:period])
        if works and len(calls) % period == 0 and stretches[period:] == stretches[:-period]:
            return [call.end for call in calls[period - 1 :: period]]
    return []


def _outermost(calls: Sequence[CallNode]) -> list[CallNode]:
    """Calls in order without those that lie within another: some optimizers call others."""
    found: list[CallNode] = []
    for call in calls:
        if not found or call.start >= found[-1].end:
            found.append(call)
    return found
