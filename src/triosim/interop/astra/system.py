"""ASTRA-sim's system file (JSON): how collectives are done, cut into chunks and scheduled, and what endpoints cost.

No key is passed over in silence: each one is used, or told in :attr:`AstraSystem.notes` with why it changes nothing, or
refused by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.interop.astra.implementation import IMPLEMENTATIONS, MessageCosts
from triosim.interop.astra.tables import real, table

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives that ASTRA-sim does itself."""

_POLICIES = ("LIFO", "FIFO", "EXPLICIT")
_OPTIMIZATIONS = ("baseline", "localBWAware")
_IMPLEMENTATIONS = ("ring", "direct", "halvingDoubling", "oneRing", "oneDirect", "oneHalvingDoubling")
_MOST_SPLITS = 1 << 16
_NO_EFFECT = {
    "local-reduction-delay": "it matters only with model-shared-bus",
    "L": "it matters only with model-shared-bus",
    "o": "it matters only with model-shared-bus",
    "g": "it matters only with model-shared-bus",
    "G": "it matters only with model-shared-bus",
    "boost-mode": "every rank is simulated",
    "trace-enabled": "it switches on a log of ASTRA-sim",
    "track-local-mem": "local memory is not followed here",
    "local-mem-trace-filename": "local memory is not followed here",
    "inter-dimension-scheduling": "ASTRA-sim's own parser does not read it; dimensions are taken in ascending order",
    "intra-dimension-scheduling": "ASTRA-sim's own parser does not read it; chunks are taken first come, first served",
}
_USED = (
    "scheduling-policy", "collective-optimization", "active-chunks-per-dimension", "endpoint-delay",
    "preferred-dataset-splits", "peak-perf", "local-mem-bw", "roofline-enabled", "replay-only", "model-shared-bus",
    *(f"{kind.replace('_', '-')}-implementation" for kind in KINDS),
)  # fmt: skip


@dataclass(frozen=True)
class DimensionAlgorithm:
    """How a collective is done along one dimension.

    Attributes:
        name: of :data:`triosim.interop.astra.implementation.IMPLEMENTATIONS`.
        window: of ``direct``, how many sends of a rank are under way at most, 0 for all of them.
    """

    name: str
    window: int = 0


@dataclass(frozen=True)
class AstraSystem:
    """What the system file says.

    Attributes:
        choices: for each of :data:`KINDS` how it is done along each dimension.
        flat: for each of :data:`KINDS` whether it takes all NPUs as one dimension (``oneRing`` and so on).
        policy: scheduling policy.
        local_bandwidth_aware: whether an all-reduce over several dimensions scatters on the way up and gathers on the
            way back (``localBWAware``) or reduces in each dimension in turn (``baseline``).
        splits: chunks of a collective (``preferred-dataset-splits``).
        active: chunks under way at once in a dimension (``active-chunks-per-dimension``).
        costs: of messages at an NPU (``endpoint-delay`` and ``local-mem-bw``).
        peak_flops: FLOP per second, 0 where it is not given.
        roofline: whether computations take what a roofline says, not what was recorded.
        replay: whether every node takes its recorded time.
        notes: keys that change nothing, and why.
    """

    choices: dict[str, tuple[DimensionAlgorithm, ...]]
    flat: dict[str, bool]
    policy: str
    local_bandwidth_aware: bool
    splits: int
    active: int
    costs: MessageCosts
    peak_flops: float
    roofline: bool
    replay: bool
    notes: tuple[str, ...] = ()


def read(path: str | Path) -> AstraSystem:
    """What a system file says.

    Raises:
        InputError: the file cannot be read, or a key is unknown, not supported, or makes no sense.
    """
    path = Path(path)
    given = table(path, "system file: it must be a JSON object")
    notes = []
    for key in given:
        if key in _NO_EFFECT:
            notes.append(f"{path.name}: {key} changes nothing: {_NO_EFFECT[key]}")
        elif key.endswith(("-implementation-custom", "-implementation-chakra")):
            raise InputError(f"{path}: {key} (custom collectives) is not supported: take ring, direct, halvingDoubling")
        elif key not in _USED:
            raise unknown(f"key in {path}", key, [*_USED, *_NO_EFFECT])
    take = _TableReader(path, given)
    if take.flag("model-shared-bus"):
        raise InputError(f"{path}: model-shared-bus 1 (the LogGP bus) is not supported: set it to 0")
    policy = take.one_of("scheduling-policy", _POLICIES, "LIFO")
    if "scheduling-policy" in given:
        notes.append(
            f"{path.name}: scheduling-policy {policy} changes nothing: a rank has one collective under way at once, "
            "whose chunks are alike"
        )
    implementations = {kind: take.implementations(kind) for kind in KINDS}
    found = AstraSystem(
        choices={kind: choices for kind, (choices, _) in implementations.items()},
        flat={kind: flat for kind, (_, flat) in implementations.items()},
        policy=policy,
        local_bandwidth_aware=take.one_of("collective-optimization", _OPTIMIZATIONS, "baseline") == "localBWAware",
        splits=take.whole("preferred-dataset-splits", 1, 1, _MOST_SPLITS),
        active=take.whole("active-chunks-per-dimension", 1, 1),
        costs=MessageCosts(take.whole("endpoint-delay", 10, 0), take.real("local-mem-bw")),
        peak_flops=take.real("peak-perf") * 1e12,
        roofline=take.flag("roofline-enabled"),
        replay=take.flag("replay-only"),
        notes=tuple(notes),
    )
    if found.roofline and not (found.peak_flops and found.costs.memory_bandwidth):
        raise InputError(f"{path}: roofline-enabled needs peak-perf (TFLOPS) and local-mem-bw (GB/s) above zero")
    return found


@dataclass(frozen=True)
class _TableReader:
    """Takes checked values out of the file's table."""

    path: Path
    table: dict[str, Any]

    def whole(self, key: str, default: int, least: int, most: int = 2**31 - 1) -> int:
        value = self.table.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"{self.path}: {key} must be a whole number from {least} to {most}, got {quoted(value)}")
        return value

    def real(self, key: str) -> float:
        value = real(self.path, key, self.table.get(key, 0))
        if key in self.table and not value:
            raise InputError(f"{self.path}: {key} is 0: give a value above zero or leave it out")
        return value

    def flag(self, key: str) -> bool:
        value = self.table.get(key, 0)
        if value not in (0, 1, True, False):
            raise InputError(f"{self.path}: {key} must be 0 or 1, got {quoted(value)}")
        return bool(value)

    def one_of(self, key: str, known: tuple[str, ...], default: str) -> str:
        value = self.table.get(key, default)
        if value not in known:
            raise unknown(f"{key} in {self.path}", str(value), known)
        return value

    def implementations(self, kind: str) -> tuple[tuple[DimensionAlgorithm, ...], bool]:
        """How a collective is done along each dimension; none where the file does not say."""
        key = f"{kind.replace('_', '-')}-implementation"
        names = self.table.get(key, [])
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{self.path}: {key} must be a list of names, one for each dimension")
        choices = [_choice(f"{key} in {self.path}", name) for name in names]
        flat = [one for _, one in choices]
        if any(flat) and len(flat) > 1:
            raise InputError(
                f"{self.path}: {key}: {names[flat.index(True)]} takes all dimensions as one: name it alone"
            )
        return tuple(choice for choice, _ in choices), any(flat)


def _choice(where: str, name: str) -> tuple[DimensionAlgorithm, bool]:
    if name == "doubleBinaryTree":
        raise InputError(f"{where}: doubleBinaryTree is not supported: take ring, direct or halvingDoubling")
    match = re.fullmatch(r"(oneDirect|direct)(\d*)|(one)?([rR]ing|[hH]alvingDoubling)", name)
    if not match:
        if name not in IMPLEMENTATIONS:
            raise unknown(where, name, dict.fromkeys((*_IMPLEMENTATIONS, *IMPLEMENTATIONS)))
        return DimensionAlgorithm(name), False
    flat = name.startswith("one")
    if match.group(1):
        window = int(match.group(2) or 0)
        if match.group(2) and not window:
            raise InputError(f"{where}: {name} has a window of 0: give 1 or more, or none")
        return DimensionAlgorithm("direct", window), flat
    if name not in _IMPLEMENTATIONS:
        raise unknown(where, name, _IMPLEMENTATIONS)
    return DimensionAlgorithm("ring" if name.lower().endswith("ring") else "halving-doubling"), flat
