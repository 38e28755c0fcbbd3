"""What rules of other people answer is checked before anything is propagated from it."""

from __future__ import annotations

from typing import Any

from triosim.core.errors import PlanError, quoted
from triosim.core.registry import is_ours
from triosim.partition.facts import Facts
from triosim.partition.mesh import Mesh
from triosim.partition.placements import Shard
from triosim.partition.replication import Replication
from triosim.partition.rule import Placing, Rule


def checked_placing(rule: Rule, answer: Any, facts: Facts) -> Placing:
    """What a rule has placed on the axis that divides a step.

    Raises:
        PlanError: it is no :class:`Placing`, or places what is not there or does not divide.
    """
    if is_ours(type(rule)):
        placing: Placing = answer
        return placing
    where = f"rule {type(rule).__name__}"
    if not isinstance(answer, Placing):
        raise PlanError(f"{where}: place returns {quoted(answer)}, which is no Placing: return one")
    values = range(len(facts.shapes))
    for weight, dim in answer.weights.items():
        if weight not in values or weight not in facts.parameter_of:
            raise PlanError(f"{where} places value {quoted(weight)}, which is no parameter of the step")
        shape = facts.shapes[weight]
        name = facts.trace.values.name[weight] or f"parameter {weight}"
        if type(dim) is not int or not 0 <= dim < len(shape):
            raise PlanError(f"{where} places {name} along dimension {quoted(dim)}, and it has {len(shape)}")
        if shape[dim] % answer.size:
            raise PlanError(
                f"{where} places {name} along dimension {dim}, whose {shape[dim]} does not divide by {answer.axis} "
                f"{answer.size}: leave it out, and say so with refusing"
            )
    for value, rest in answer.resting.items():
        fits = value in values and isinstance(rest, Shard) and 0 <= rest.dim < len(facts.shapes[value])
        if not fits or rest.outer * rest.size * rest.inner != facts.shapes[value][rest.dim] or rest.size % answer.size:
            raise PlanError(f"{where} rests value {quoted(value)} in {quoted(rest)}, which is no Shard that divides")
    for row in answer.gathered:
        if row not in range(len(facts.inputs)):
            raise PlanError(f"{where} gathers the outputs of operator {quoted(row)}, which does not exist")
    return answer


def checked_mesh(rule: Rule, answer: Any, mesh: Mesh) -> None:
    """Refuse a mesh that a rule has arranged otherwise than it may.

    Raises:
        PlanError: it is no mesh of the same ranks, or lacks an axis.
    """
    if is_ours(type(rule)):
        return
    if not isinstance(answer, Mesh) or answer.axes != mesh.axes or answer.derived[: len(mesh.derived)] != mesh.derived:
        raise PlanError(
            f"rule {type(rule).__name__}: arranged must return the mesh that it was given, with more axes by resplit "
            "or joined"
        )


def checked_replication(rule: Rule, answer: Any, mesh: Mesh) -> Replication:
    """What a rule has placed among the replicas.

    Raises:
        PlanError: it is no :class:`Replication`, or names axes that do not make up the replicas.
    """
    where = f"rule {type(rule).__name__}"
    if is_ours(type(rule)):
        placed: Replication = answer
        return placed
    if not isinstance(answer, Replication):
        raise PlanError(f"{where}: replicate returns {quoted(answer)}, which is no Replication")
    for axis in (answer.axis, answer.replicas):
        if axis and axis not in mesh.names:
            raise PlanError(f"{where}: there is no axis {quoted(axis)}; the mesh has {', '.join(mesh.names)}")
    if mesh.size(answer.axis) * mesh.size(answer.replicas) != mesh.size("dp"):
        raise PlanError(
            f"{where}: {answer.axis} {mesh.size(answer.axis)} and its replicas {mesh.size(answer.replicas)} are not "
            f"the {mesh.size('dp')} ranks of dp"
        )
    if answer.weights and not answer.states:
        raise PlanError(f"{where}: parameters that are Shard need optimizer states that are Shard too")
    return answer
