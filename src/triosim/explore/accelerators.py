"""Designs with some of their sizes varied, by the cycles and joules of problems on them.

What is varied is named ``rows``, ``columns``, ``dataflow``, ``bandwidth`` or a memory of a systolic array, or
``NODE.FIELD`` of a design: of a store its ``capacity`` (words), ``bandwidth`` (words in a cycle, read and written) or
``words_per_access``, of a fan-out ``x`` and ``y``.  Energies that nobody states follow the sizes; stated ones do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triosim.accelerator.architecture import FanOut, Store
from triosim.accelerator.designs import EinsumCost, MappingSearch, cost
from triosim.accelerator.problem import Problem
from triosim.accelerator.reading import Contents
from triosim.accelerator.systolic import DATAFLOWS
from triosim.core.errors import InputError, quoted, unknown
from triosim.explore.exploration import Costs, Exploration
from triosim.explore.space import ChoiceSpace, Value

OBJECTIVES = ("cycles", "energy", "units")
"""Cycles and joules of all problems one after another; multipliers."""

ARRAY_FIELDS = ("rows", "columns", "dataflow", "bandwidth", "ifmap_bytes", "filter_bytes", "ofmap_bytes")
_WHOLE = ("rows", "columns", "ifmap_bytes", "filter_bytes", "ofmap_bytes", "capacity", "words_per_access", "x", "y")


class DesignExploration(Exploration):
    """Variants of a design.

    Args:
        found: the design, and its constraints.
        problems: that run on it one after another.
        space: names as above.
        objectives: of :data:`OBJECTIVES`.
        search: of the mapping of each distinct problem to each variant.

    Raises:
        InputError: what is varied is nowhere in the design, no problem is given, or an unknown objective.
    """

    def __init__(
        self, found: Contents, problems: Sequence[Problem], space: ChoiceSpace,
        objectives: tuple[str, ...] = ("cycles", "energy"), search: MappingSearch | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name in objectives:
            if name not in OBJECTIVES:
                raise unknown("objective", name, OBJECTIVES)
        if not objectives or len(set(objectives)) < len(objectives):
            raise InputError("objectives: name at least one, and each once")
        if not problems:
            raise InputError("no problem is given to run on the designs: give a file with one")
        self.found, self.problems, self.space = found, tuple(problems), space
        self.objectives = objectives
        self.search = search or MappingSearch(budget=2_000)
        for choice in space.choices:
            self._check(choice.name, choice.values)

    def evaluated(self, values: dict[str, Value]) -> Costs:
        """See :class:`Exploration`."""
        found = self.variant(values)
        costs = [cost(found, problem, self.search) for problem in self.problems]
        return tuple(_value(name, costs, found) for name in self.objectives)

    def variant(self, values: dict[str, Value]) -> Contents:
        """The design with these values.

        Raises:
            InputError: it cannot be built.
        """
        if self.found.array is not None:
            return replace(self.found, array=replace(self.found.array, **values))  # type: ignore[arg-type]
        assert self.found.architecture is not None
        nodes = list(self.found.architecture.nodes)
        for name, value in values.items():
            node, _, field = name.rpartition(".")
            at = next(i for i, one in enumerate(nodes) if one.name == node)
            fields = {"capacity": ("capacity_words",), "bandwidth": ("read_bandwidth", "write_bandwidth")}
            nodes[at] = replace(nodes[at], **dict.fromkeys(fields.get(field, (field,)), value))  # type: ignore[arg-type]
        return replace(self.found, architecture=replace(self.found.architecture, nodes=tuple(nodes)))

    def _check(self, name: str, values: Sequence[Value]) -> None:
        field = name.rpartition(".")[2]
        if self.found.array is not None:
            if name not in ARRAY_FIELDS:
                raise unknown("size of the array", name, ARRAY_FIELDS)
        else:
            known = self._fields()
            if name not in known:
                raise unknown("size of the design", name, known)
        for value in values:
            if field == "dataflow":
                if value not in DATAFLOWS:
                    raise unknown("dataflow", value, DATAFLOWS)
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**53
            if not number or (field in _WHOLE and int(value) != value):
                raise InputError(
                    f"{name}: {quoted(value)} is no size: give a {'whole ' * (field in _WHOLE)}number above 0"
                )

    def _fields(self) -> list[str]:
        if self.found.architecture is None:
            raise InputError("the files hold no design: give the file of one, or a ready one's name")
        found = []
        for node in self.found.architecture.nodes:
            if isinstance(node, Store):
                found += [f"{node.name}.{field}" for field in ("capacity", "bandwidth", "words_per_access")]
            elif isinstance(node, FanOut):
                found += [f"{node.name}.{field}" for field in ("x", "y")]
        return found


def _value(name: str, costs: Sequence[EinsumCost], found: Contents) -> float:
    if name == "cycles":
        return sum(one.cycles for one in costs)
    if name == "energy":
        return sum(one.energy_j for one in costs)
    if found.array is not None:
        return float(found.array.rows * found.array.columns)
    return float(found.design.compute_instances)
