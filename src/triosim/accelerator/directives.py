"""Mappings and constraints as files give them: factors, permutations and what is kept, by the name of a node.

A file names dimensions in words of its own, and what it leaves out depends on the problem and the design.  Directives
hold what stood in the file; :meth:`Directives.mapping` and :meth:`Directives.constraints` say what that is for a design
and a problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from triosim.accelerator.architecture import Architecture, FanOut, Store
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import ROLES, Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown

KINDS = ("temporal", "spatial", "either", "keep")
"""What a directive is about; ``either`` is loops of whatever its target is."""

ALL_OTHERS = ("*",)
"""As ``bypass``: whatever is not named under ``keep``."""

_FACTOR = re.compile(r"([A-Za-z_]\w*?)\s*(<=|>=|=)?\s*(\d{1,18})(?!\d)")
_JOINT = re.compile(r"[\s,]+")


@dataclass(frozen=True)
class Directive:
    """What a file says of one node.

    Attributes:
        target: the node, or the store above a fan-out.
        kind: one of :data:`KINDS`.
        factors: (dimension, ``"="``, ``"<="`` or ``">="``, count); a count of 0 is what the other levels leave.
        permutation: dimensions from the innermost; a text where the file does not separate them.
        split: entries of the permutation that run along X, the rest along Y; None where the file does not say.
        keep, bypass: tensors.
        where: file and place, for messages.
        axis: ``"x"`` or ``"y"`` where all of it runs there.
    """

    target: str
    kind: str
    factors: tuple[tuple[str, str, int], ...] = ()
    permutation: str | tuple[str, ...] = ()
    split: int | None = None
    keep: tuple[str, ...] = ()
    bypass: tuple[str, ...] = ()
    where: str = ""
    axis: str = ""


def factors(value: Any, where: str) -> tuple[tuple[str, str, int], ...]:
    """Factors from ``"C=3 M=1"``, ``"C3 M1"``, ``"C=3,M=1"`` or a list of such texts.

    Raises:
        InputError: another text.
    """
    texts = value if isinstance(value, list) else [value]
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{where}: factors {quoted(text)} are no text: write C=3 M=1")
        rest = _FACTOR.sub("", text)
        if _JOINT.sub("", rest):
            raise InputError(f"{where}: factors {quoted(text)} cannot be read: write C=3 M=1")
        found += [(m[1], m[2] or "=", int(m[3])) for m in _FACTOR.finditer(text)]
    return tuple(found)


def permutation(value: Any, where: str) -> str | tuple[str, ...]:
    """A permutation from ``"MCRS"``, ``"M C R S"`` or a list.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: permutation {quoted(value)} is neither a text nor a list: write MCRSNPQ")
    names = tuple(name for name in _JOINT.split(value.strip()) if name)
    return names if len(names) > 1 else "".join(names)


@dataclass(frozen=True)
class LevelConstraint:
    """What one slot of a mapping may be.

    Attributes:
        node, axis: the slot; ``axis`` is ``""`` in time, ``"x"``, ``"y"`` or, of a fan-out as a whole, ``"xy"``.
        exact, most, least: (dimension, factor).
        inner: dimensions of the innermost loops, from the innermost.
        split: entries of ``inner`` that run along X; None leaves it open.
    """

    node: str
    axis: str
    exact: tuple[tuple[str, int], ...] = ()
    most: tuple[tuple[str, int], ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    inner: tuple[str, ...] = ()
    split: int | None = None


@dataclass(frozen=True)
class Constraints:
    """What mappings may be: by slot, and (store, tensor, kept) for what is kept.

    With ``one_axis`` a dimension runs along X or along Y of a fan-out, not along both: Timeloop's format of mappings
    has no words for that.
    """

    levels: tuple[LevelConstraint, ...] = ()
    keeps: tuple[tuple[str, str, bool], ...] = ()
    one_axis: bool = False


@dataclass(frozen=True)
class Directives:
    """All that files say of mappings, in their order."""

    rows: tuple[Directive, ...] = ()

    def mapping(
        self, architecture: Architecture, problem: Problem, ragged: bool = False, defaults: Directives | None = None
    ) -> LoopMapping:
        """The mapping that they give in full.

        Args:
            architecture, problem: see there.
            ragged: whether loops may exceed the bounds.
            defaults: constraints, which say what stores keep of which the mapping says nothing.

        Raises:
            InputError: unknown nodes, dimensions or tensors, or a node mapped twice.
        """
        loops: dict[str, tuple[Loop, ...]] = {}
        keeps: dict[str, tuple[str, ...]] = {}
        seen: set[tuple[str, str]] = set()
        given = [(row, _node(row, architecture)) for row in self.rows]
        rest = _rest([row for row, _ in given], problem)
        for row, node in given:
            if node is None:
                continue
            if row.kind == "keep":
                keeps[node.name] = _kept(row, problem)
                continue
            if (node.name, row.axis) in seen:
                raise InputError(f"{row.where}: {node.name} is mapped twice: join the two")
            seen.add((node.name, row.axis))
            loops[node.name] = _loops(row, node, problem, rest) + loops.get(node.name, ())
        for row in defaults.rows if defaults else ():
            node = _node(row, architecture)
            if row.kind == "keep" and node is not None:
                kept, passed = ({problem.played_by(name) for name in names} for names in (row.keep, row.bypass))
                tensors = [tensor.name for tensor in problem.tensors]
                keeps.setdefault(node.name, tuple(t for t in tensors if t in kept or t not in passed))
        levels = tuple(
            Level(node.name, loops.get(node.name, ()), keeps.get(node.name))
            for node in architecture.nodes if node.name in loops or node.name in keeps
        )  # fmt: skip
        return LoopMapping(levels, ragged)

    def constraints(self, architecture: Architecture, problem: Problem) -> Constraints:
        """The constraints that they give; those of dimensions that the problem lacks bind nothing.

        Raises:
            InputError: unknown nodes.
        """
        levels, keeps = [], []
        for row in self.rows:
            node = _node(row, architecture)
            if node is None:
                continue
            if row.kind == "keep":
                for names, kept in ((row.keep, True), (row.bypass, False)):
                    keeps += [(node.name, t, kept) for name in names if (t := problem.played_by(name))]
                continue
            inner = _permuted(row, problem, strict=False)
            bound = problem.bound
            by_sign = {
                sign: tuple((d, count) for d, s, count in row.factors if s == sign and d in bound and count)
                for sign in ("=", "<=", ">=")
            }
            levels.append(LevelConstraint(
                node.name, "xy" if isinstance(node, FanOut) else "", by_sign["="], by_sign["<="], by_sign[">="],
                inner, row.split,
            ))  # fmt: skip
        return Constraints(tuple(levels), tuple(keeps))

    def check_names(self, problems: Sequence[Problem], files: Sequence[str]) -> None:
        """Refuse what some files say of dimensions and tensors that no problem has.

        A ready design says things of convolutions that a product lacks; who writes a constraint means it.

        Raises:
            InputError: the name, and those that there are; or a tensor is both kept and passed by.
        """
        dimensions = list(dict.fromkeys(d for problem in problems for d in problem.dimensions))
        tensors = list(dict.fromkeys([t.name for problem in problems for t in problem.tensors] + list(ROLES)))
        for row in self.rows:
            if not row.where.startswith(tuple(files)):
                continue
            one_letter = all(len(d) == 1 for d in dimensions)
            order = _letters(row.permutation, dimensions) if one_letter or not isinstance(row.permutation, str) else ()
            for name in (*(d for d, _, _ in row.factors), *order):
                if name not in dimensions:
                    raise InputError(f"{row.where}: {unknown('dimension', name, dimensions)}")
            for name in (*row.keep, *(() if row.bypass == ALL_OTHERS else row.bypass)):
                if name not in tensors:
                    raise InputError(f"{row.where}: {unknown('tensor', name, tensors)}")
            if both := set(row.keep) & set(row.bypass):
                raise InputError(f"{row.where}: {sorted(both)[0]} is both kept and passed by: say one of them")


def _node(row: Directive, architecture: Architecture) -> Store | FanOut | None:
    """The node that a directive is about; None where it says nothing about one."""
    nodes = {node.name: node for node in architecture.nodes}
    name = dict(architecture.aliases).get(row.target, row.target)
    bare = name.removeprefix("inter_").removesuffix("_spatial")
    if name not in nodes and bare in nodes:
        name = bare
    if name not in nodes:
        if name == architecture.compute.name and all(count == 1 for _, _, count in row.factors):
            return None
        raise unknown(f"node of {architecture.name} in {row.where}:", row.target, nodes)
    node: Store | FanOut = nodes[name]
    if row.kind == "spatial" and isinstance(node, Store):
        below = architecture.nodes[architecture.nodes.index(node) + 1 :][:1]
        if below and isinstance(below[0], FanOut):
            return below[0]
        if all(count == 1 for _, _, count in row.factors):
            return None
        raise InputError(f"{row.where}: {name} has no fan-out below it: take its spatial loops away")
    if row.kind not in ("spatial", "either") and isinstance(node, FanOut):
        if all(count == 1 for _, _, count in row.factors):
            return None
        raise InputError(f"{row.where}: {name} is a fan-out, which has no loops in time: map them to a store")
    return node


def _kept(row: Directive, problem: Problem) -> tuple[str, ...]:
    names = [tensor.name for tensor in problem.tensors]
    bypass = names if row.bypass == ALL_OTHERS else row.bypass
    for name in (*row.keep, *bypass):
        if name not in names:
            raise unknown(f"tensor in {row.where}:", name, names)
    return tuple(name for name in names if name in row.keep or name not in bypass)


def _rest(rows: Sequence[Directive], problem: Problem) -> dict[str, int]:
    """What a factor of 0 stands for, by dimension."""
    found = {}
    for dimension, bound in problem.bound.items():
        others = math.prod(count for row in rows for d, _, count in row.factors if d == dimension and count)
        found[dimension] = -(-bound // others)
    return found


def _loops(row: Directive, node: Store | FanOut, problem: Problem, rest: dict[str, int]) -> tuple[Loop, ...]:
    counts: dict[str, int] = {}
    for dimension, _, count in row.factors:
        if dimension not in problem.dimensions:
            raise unknown(f"dimension in {row.where}:", dimension, problem.dimensions)
        if dimension in counts:
            raise InputError(f"{row.where}: dimension {dimension} is given twice: keep one")
        counts[dimension] = count or rest[dimension]
    inner = _permuted(row, problem, strict=True)
    order = [*inner, *(d for d in counts if d not in inner)]  # from the innermost
    if isinstance(node, Store):
        return tuple(Loop(d, counts[d]) for d in reversed(order) if counts.get(d, 1) != 1)
    split = {"x": len(order), "y": 0}.get(row.axis, row.split)
    if split is None:
        split, x = 0, 1
        while split < len(order) and x * counts.get(order[split], 1) <= node.x:
            x *= counts.get(order[split], 1)
            split += 1
    return tuple(
        Loop(d, counts[d], "x" if order.index(d) < split else "y") for d in reversed(order) if counts.get(d, 1) != 1
    )


def _letters(permutation: str | tuple[str, ...], dimensions: Sequence[str]) -> tuple[str, ...]:
    """Names of a permutation whose parts are dimensions, or letters of them in groups: ``"NPQR SCK"``."""
    parts = (permutation,) if isinstance(permutation, str) else permutation
    if all(part in dimensions for part in parts):
        return parts
    one_letter = isinstance(permutation, str) or all(len(d) == 1 for d in dimensions)
    return tuple("".join(parts)) if one_letter else parts


def _permuted(row: Directive, problem: Problem, strict: bool) -> tuple[str, ...]:
    """Dimensions of a permutation, from the innermost."""
    names = _letters(row.permutation, problem.dimensions)
    for name in names:
        if strict and name not in problem.dimensions:
            raise unknown(f"dimension in {row.where}:", name, problem.dimensions)
    if len(set(names)) < len(names):
        raise InputError(f"{row.where}: permutation {quoted(row.permutation)} names a dimension twice: keep one")
    return tuple(name for name in names if name in problem.dimensions)
