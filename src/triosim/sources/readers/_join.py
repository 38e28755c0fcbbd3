"""Bringing a profile and an execution trace of the same run together, call by call.

Where both hold record-function ids the calls with equal ids are one.  Older files hold none: then the calls of each
thread are paired in order by name, finding the way again after a call that only one side has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from triosim.sources.readers._tree import CallNode

_LOOK_AHEAD = 2000
_AGREEMENT = 3


def join(profile: list[CallNode], execution: list[CallNode]) -> tuple[list[CallNode], int, int]:
    """Give the calls of ``profile`` the tensors of their counterparts in ``execution``.

    Calls that only the execution trace has are put in where they were made, without time.

    Returns:
        The profile's outermost calls, how many calls were joined, and how many of its operators were not.
    """
    pairs = _by_function(profile, execution) or _by_order(profile, execution)
    partner = {id(there): here for here, there in pairs}
    for here, there in pairs:
        here.arguments, here.results, here.args, here.shown = there.arguments, there.results, there.args, True
    roots = list(profile)
    if pairs:
        _insert(roots, execution, partner)
    missed = sum(1 for node in _all(profile) if not node.shown and not node.annotation and "::" in node.name)
    return roots, len(pairs), missed


def _all(roots: Sequence[CallNode]) -> Iterator[CallNode]:
    for root in roots:
        yield from root.walk()


def _by_function(profile: Sequence[CallNode], execution: Sequence[CallNode]) -> list[tuple[CallNode, CallNode]]:
    there = {node.function: node for node in _all(execution) if node.function}
    pairs = []
    for node in _all(profile):
        other = there.get(node.function) if node.function else None
        if other is not None and other.name == node.name:
            pairs.append((node, other))
    return pairs


def _by_order(profile: Sequence[CallNode], execution: Sequence[CallNode]) -> list[tuple[CallNode, CallNode]]:
    here, there = _threads(profile), _threads(execution)
    pairs: list[tuple[CallNode, CallNode]] = []
    for calls in sorted(there.values(), key=len, reverse=True):
        if not here:
            break
        names = Counter(n.name for n in calls)
        best = max(here, key=lambda thread: sum((names & Counter(n.name for n in here[thread])).values()))
        pairs += _align(here.pop(best), calls)
    return pairs


def _threads(roots: Sequence[CallNode]) -> dict[Hashable, list[CallNode]]:
    found: dict[Hashable, list[CallNode]] = {}
    for node in _all(roots):
        found.setdefault(node.thread, []).append(node)
    return found


def _align(here: Sequence[CallNode], there: Sequence[CallNode]) -> list[tuple[CallNode, CallNode]]:
    pairs = []
    i = j = 0
    while i < len(here) and j < len(there):
        if here[i].name == there[j].name:
            pairs.append((here[i], there[j]))
            i, j = i + 1, j + 1
            continue
        skip = _skip(here, there, i, j)
        if skip is None:
            i, j = i + 1, j + 1
        else:
            i, j = i + skip[0], j + skip[1]
    return pairs


def _skip(here: Sequence[CallNode], there: Sequence[CallNode], i: int, j: int) -> tuple[int, int] | None:
    """How many calls to leave out on either side until the next few names agree again."""
    for total in range(1, _LOOK_AHEAD):
        for left in (total, 0) if total > 40 else range(total, -1, -1):
            a, b = i + left, j + total - left
            width = min(_AGREEMENT, len(here) - a, len(there) - b)
            if width > 0 and all(here[a + k].name == there[b + k].name for k in range(width)):
                return left, total - left
    return None


def _insert(roots: list[CallNode], execution: Sequence[CallNode], partner: dict[int, CallNode]) -> None:
    """Put calls that only the execution trace has after the call that came before them, without time.

    Of the outermost ones only those between others that both have: what comes before and after is not of this step.
    """
    stack: list[tuple[CallNode | None, Sequence[CallNode]]] = [(None, execution)]
    while stack:
        above, calls = stack.pop()
        siblings = roots if above is None else above.children
        last: dict[Hashable, CallNode] = {}
        place = {id(n): k for k, n in enumerate(siblings)}
        matched = {id(call) for call in calls if id(call) in partner}
        later = {call.thread: k for k, call in enumerate(calls) if id(call) in matched}
        waiting: list[tuple[CallNode, CallNode | None]] = []
        for k, call in enumerate(calls):
            if id(call) in matched:
                last[call.thread] = partner[id(call)]
                stack.append((partner[id(call)], call.children))
            elif not call.annotation and (above is not None or k < later.get(call.thread, -1)):
                waiting.append((call, last.get(call.thread)))
        for call, before in reversed(waiting):
            if before is not None and id(before) in place:
                _move(call, before.end, before.thread)
                siblings.insert(place[id(before)] + 1, call)
            elif before is None and above is not None:
                _move(call, above.start, above.thread)
                siblings.insert(0, call)
            else:
                continue  # before or after the step, or nested otherwise in the profile
            call.parent = above


def _move(call: CallNode, when: int, thread: Hashable) -> None:
    for node in call.walk():
        node.start = node.end = when
        node.thread = thread
        node.waits = 0
