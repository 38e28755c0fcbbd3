"""Fusing: which gradients are reduced, and which parameters gathered, by one transfer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError, quoted
from triosim.partition.gradients import Gradient
from triosim.partition.shards import shard_dims
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Phase, Trace

PERSISTENT = 100_000
"""Elements from which a parameter is sharded where modules are gathered one by one (DeepSpeed,
``stage3_param_persistence_threshold``)."""


def by_bytes(grads: Sequence[Gradient], first_bytes: int, bytes_: int) -> list[list[Gradient]]:
    """DDP's buckets: reverse registration order, a bucket closing with the gradient that makes it reach its cap.

    Source: PyTorch ``compute_bucket_assignment_by_size`` with ``_DEFAULT_FIRST_BUCKET_BYTES`` (1 MiB) for the first and
    ``bucket_cap_mb`` (25 MiB) for the others.

    Args:
        grads: gradients in registration order.
        first_bytes: cap of the first bucket to be reduced.
        bytes_: cap of the others.
    """
    made: list[list[Gradient]] = []
    current: list[Gradient] = []
    held = 0
    for gradient in reversed(grads):
        current.append(gradient)
        held += gradient.bytes
        if held >= (bytes_ if made else first_bytes):
            made.append(current)
            current, held = [], 0
    return [*made, current] if current else made


@dataclass(frozen=True)
class GatherUnit:
    """Parameters of one pipeline stage that are gathered together.

    Attributes:
        path: module path of the block, ``""`` for the rest of the stage.
        parameters: value ids.
        gradients: storages of their gradients.
        gather_bytes: full buffer of an all-gather of the parameters, padding included.
        scatter_bytes: the same of a reduce-scatter of the gradients.
        forward, backward: its first and last operator in each phase, -1 for none; what is in no module (the loss) runs
            after the forward and before the backward of the whole.
        shards: parts into which its parameters are cut.
        apart: whether replicas have different ones of it (experts).
    """

    path: str
    parameters: tuple[int, ...]
    gradients: tuple[int, ...]
    gather_bytes: int
    scatter_bytes: int
    forward: tuple[int, int]
    backward: tuple[int, int]
    shards: int
    apart: bool

    @property
    def root(self) -> bool:
        """Whether it is what is in no block: gathered for as long as the stage's forward and backward last."""
        return not self.path


class UnitsByModule:
    """The parameters of every repeated block of a step, or of every module that is asked for, are one unit, as is the
    rest.  Parameters of which replicas have different ones (experts) are units of their own within them, gathered
    before the first operator that reads them; where a rank has nobody to share them with they are in none.

    Args:
        trace: one rank's step.
        shards: parts into which parameters are cut: what is sent is padded to a multiple of them.
        modules: see :class:`triosim.partition.residence.GatheredModules`.
        apart: parameters of which replicas have different ones.
        shards_apart: parts into which those are cut.

    Raises:
        PlanError: a pattern fits no module.
    """

    def __init__(
        self,
        trace: Trace,
        shards: int,
        modules: Sequence[str] = (),
        apart: frozenset[int] = frozenset(),
        shards_apart: int = 1,
    ) -> None:
        self.trace, self.shards, self.shards_apart = trace, shards, shards_apart
        if modules:
            self.paths, self.block = _modules_asked_for(trace, modules)
        else:
            found = blocks(trace)
            self.paths, self.block = found.path, found.of(trace).tolist()
        self.parameters = _blocks_of_parameters(trace, self.paths, self.block)
        if modules:
            self._keep_what_others_read()
        self.apart: dict[int, int] = {}
        self._touching: dict[int, list[int]] = {}
        if apart:
            self._units_apart(apart)
        self._size = trace.values.bytes().tolist()
        shape, rows = trace.values.shape, np.ones(len(trace.values), np.int64)
        some = shape.lengths() > 0
        rows[some] = np.maximum(shape.values[(shape.offsets[:-1] + shard_dims(shape, shards_apart, apart))[some]], 1)
        self._rows: list[int] = rows.tolist()

    def _units_apart(self, apart: frozenset[int]) -> None:
        """Parameters of which replicas have different ones: the unit of each, and what runs in it."""
        number: dict[int, int] = {}
        paths = list(self.paths)
        for parameter in sorted(apart):
            block = self.parameters[parameter]
            if block not in number:
                number[block] = len(paths)
                paths.append(self.trace.values.name[parameter].rpartition(".")[0] or f"experts {len(number)}")
            self.apart[parameter] = number[block]
        self.paths = tuple(paths)
        values = self.trace.values
        storage, of = values.storage.tolist(), values.of.tolist()
        unit = {storage[parameter]: block for parameter, block in self.apart.items()}
        unit.update({storage[v]: unit[storage[of[v]]] for v in range(len(of)) if of[v] >= 0 and storage[of[v]] in unit})
        operators = self.trace.operators
        for row, (reads, writes) in enumerate(zip(operators.inputs.lists(), operators.outputs.lists(), strict=True)):
            for block in {unit[storage[v]] for v in (*reads, *writes) if storage[v] in unit}:
                if not operators.view[row]:
                    self._touching.setdefault(row, []).append(block)

    def _keep_what_others_read(self) -> None:
        """Parameters that an operator outside of their module reads too (tied weights) are in no unit."""
        values, operators = self.trace.values, self.trace.operators
        storage, unit = values.storage.tolist(), {}
        for parameter, block in self.parameters.items():
            unit[storage[parameter]] = block
        elsewhere = {
            storage[value]
            for block, phase, reads in zip(self.block, operators.phase.tolist(), operators.inputs.lists(), strict=True)
            for value in reads
            if phase != Phase.OPTIMIZER and unit.get(storage[value], block) != block
        }
        self.parameters = {p: NONE if storage[p] in elsewhere else block for p, block in self.parameters.items()}

    def padded(self, parameter: int, size: int) -> int:
        """Bytes of something of a parameter's shape when the dimension that is cut is made a multiple of the ranks."""
        rows, shards = self._rows[parameter], self.shards_apart if parameter in self.apart else self.shards
        return size // rows * (-(-rows // shards) * shards)

    def __contains__(self, parameter: int) -> bool:
        """Whether a parameter is in a unit."""
        return self.shards_apart > 1 or parameter not in self.apart

    def units(
        self, parameters: Iterable[int], grads: Sequence[Gradient], forward: Sequence[int], backward: Sequence[int]
    ) -> list[GatherUnit]:
        """Units of a stage: what is in no block first, if there is such, then blocks in the order of their forward.

        Args:
            parameters: those that the stage uses, value ids.
            grads: gradients of the stage.
            forward, backward: operators of the stage in the order in which they run.
        """
        in_forward, in_backward = self._reach(forward), self._reach(backward)
        own = {**self.parameters, **self.apart}
        mine: dict[int, list[int]] = {}
        for parameter in parameters:
            if parameter in self:
                mine.setdefault(own[parameter] if own[parameter] in in_forward else NONE, []).append(parameter)
        reduced: dict[int, list[Gradient]] = {}
        for gradient in grads:
            if gradient.parameter in self:
                block = own[gradient.parameter]
                reduced.setdefault(block if block in in_forward else NONE, []).append(gradient)
        apart = set(self.apart.values())
        order = [NONE] * (NONE in mine) + sorted(mine.keys() - {NONE}, key=lambda block: in_forward[block])
        module = self.trace.operators.module
        inside = [[row for row in rows if module[row] != NONE] or rows for rows in (forward, backward)]  # not the loss
        whole = (forward[0] if forward else NONE, inside[0][-1] if forward else NONE)
        after = (inside[1][0] if backward else NONE, backward[-1] if backward else NONE)
        return [
            GatherUnit(
                "" if block == NONE else self.paths[block],
                tuple(mine[block]),
                tuple(g.storage for g in reduced.get(block, ())),
                sum(self.padded(p, self._size[p]) for p in mine[block]),
                sum(self.padded(g.parameter, g.bytes) for g in reduced.get(block, ())),
                whole if block == NONE else in_forward[block],
                after if block == NONE else in_backward.get(block, (NONE, NONE)),
                self.shards_apart if block in apart else self.shards,
                block in apart,
            )
            for block in order
        ]

    def _reach(self, rows: Sequence[int]) -> dict[int, tuple[int, int]]:
        """First and last of some operators in each block, and of those that touch parameters of units apart."""
        reach: dict[int, tuple[int, int]] = {}
        for row in rows:
            for block in (self.block[row], *self._touching.get(row, ())):
                if block != NONE:
                    reach[block] = (reach.get(block, (row, row))[0], row)
        return reach


@kept(8)
def units_by_module(
    trace: Trace, shards: int, modules: Sequence[str], apart: frozenset[int], shards_apart: int
) -> UnitsByModule:
    """Units of a step, the same however it is cut into stages; arguments as of :class:`UnitsByModule`."""
    return UnitsByModule(trace, shards, modules, apart, shards_apart)


def modules_of_their_own(trace: Trace, least: int = PERSISTENT) -> tuple[str, ...]:
    """Patterns of the modules that have a parameter of their own of at least so many elements; numbers are ``*``.

    Args:
        trace: one rank's step.
        least: elements; modules of smaller parameters only are in no unit, so that they are kept.
    """
    values, known = trace.values, {path for path in trace.modules.path if path}
    large = [p for p in trace.weights().tolist() if math.prod(values.shape.lists()[p]) >= least]
    own = [values.name[p].rpartition(".")[0] for p in large]
    return tuple(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) for path in own if path in known))


def _modules_asked_for(trace: Trace, patterns: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Paths of the modules that fit, and for each operator the innermost of them that it runs in, -1 for none.

    Raises:
        PlanError: a pattern fits none.
    """
    fits = [re.compile(re.escape(pattern).replace(r"\*", r"[^.]+")) for pattern in patterns]
    above = [[".".join(path.split(".")[:n]) for n in range(path.count(".") + 1, 0, -1)] for path in trace.modules.path]
    everything = dict.fromkeys(path for paths in above for path in reversed(paths) if path)
    for pattern, fit in zip(patterns, fits, strict=True):
        if not any(fit.fullmatch(path) for path in everything):
            near = ", ".join(list(everything)[:3])
            raise PlanError(f"modules {quoted(pattern)} to be gathered: none is called so; there are {near}, ...")
    number = {p: i for i, p in enumerate(path for path in everything if any(fit.fullmatch(path) for fit in fits))}
    inside = [next((number[p] for p in paths if p in number), NONE) for paths in above]
    return tuple(number), [inside[module] if module != NONE else NONE for module in trace.operators.module.tolist()]


def _blocks_of_parameters(trace: Trace, paths: Sequence[str], block: Sequence[int]) -> dict[int, int]:
    """Block of each parameter, by its name or, if it has none, by the first operator that reads it; -1 for none."""
    values = trace.values
    storage, number = values.storage.tolist(), {path: i for i, path in enumerate(paths)}
    reader: dict[int, int] = {}
    parameters = trace.weights().tolist()
    if not all(values.name[parameter] for parameter in parameters):
        for row, reads in enumerate(trace.operators.inputs.lists()):
            for value in reads:
                reader.setdefault(storage[value], block[row])
    found = {}
    for parameter in parameters:
        parts = values.name[parameter].split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        named = next((number[p] for p in prefixes if p in number), NONE)
        found[parameter] = named if values.name[parameter] else reader.get(storage[parameter], NONE)
    return found
