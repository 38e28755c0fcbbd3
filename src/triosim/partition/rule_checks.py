"""What rules of other people answer is checked before anything is propagated from it."""

from __future__ import annotations

from typing import Any

from triosim.core.errors import PlanError, quoted
from triosim.core.registry import is_ours
from triosim.partition.facts import Facts
from triosim.partition.mesh import Mesh
from triosim.partition.placements import Shard
from triosim.partition.replication import Replication
from triosim.partition.residence import GatheredModules, HostStay
from triosim.partition.rule import Placing, Rule
from triosim.partition.step import Step
from triosim.trace.tables import Category

TRAVELS = (Category.OPTIMIZER_STATE, Category.ACTIVATION, Category.WEIGHT)
"""What may stay in host memory."""


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
    for value, shard in answer.inputs.items():
        fits = value in values and isinstance(shard, Shard) and 0 <= shard.dim < len(facts.shapes[value])
        if not fits or shard.size % answer.size or facts.shapes[value][shard.dim] % answer.size:
            raise PlanError(f"{where} places input {quoted(value)} as {quoted(shard)}, which is no Shard that divides")
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
    same = isinstance(answer, Mesh) and answer.ranks == mesh.ranks and set(answer.names) >= set(mesh.names)
    kept = same and [name for name, _ in answer.axes if name in mesh.names] == [name for name, _ in mesh.axes]
    if not kept or answer.derived[: len(mesh.derived)] != mesh.derived:
        raise PlanError(
            f"rule {type(rule).__name__}: arranged must return the mesh that it was given, with more axes by carved, "
            "resplit or joined"
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
    _check_path(where, answer, mesh)
    _check_residence(where, answer)
    if answer.weights and not answer.states:
        raise PlanError(f"{where}: parameters that are Shard need optimizer states that are Shard too")
    return answer


def _check_residence(where: str, placed: Replication) -> None:
    """Refuse modules and stays that say nothing that can be scheduled.

    Raises:
        PlanError: one is of another type, is launched too late, or is of a category that never travels.
    """
    modules = placed.modules
    if not isinstance(modules, GatheredModules) or not isinstance(modules.modules, tuple):
        raise PlanError(f"{where}: modules is {quoted(modules)}, which is no GatheredModules with a tuple of paths")
    stays = placed.away if isinstance(placed.away, tuple) else (placed.away,)
    for stay in stays:
        if not isinstance(stay, HostStay) or stay.category not in TRAVELS:
            raise PlanError(
                f"{where}: {quoted(stay)} is no HostStay of {', '.join(c.name.lower() for c in TRAVELS)}, all that "
                "can wait in host memory"
            )
        if stay.waiting < 1 or stay.ahead < 0:
            raise PlanError(f"{where}: {stay.name} waits at least 1 long and is launched 0 or more blocks ahead")
    if min(modules.forward_ahead, modules.backward_ahead) < 0:
        raise PlanError(f"{where}: parameters are gathered 0 or more modules ahead of their use")
    if placed.stay(Category.WEIGHT) and not placed.updates_on_host:
        raise PlanError(f"{where}: parameters on the host need optimizer states there")


def checked_step(rule: Rule, answer: Any, step: Step) -> Step:
    """What a rule has made of a divided step.

    Raises:
        PlanError: it is no step of the same operators.
    """
    if not isinstance(answer, Step) or len(answer.trace) != len(step.trace):
        raise PlanError(
            f"rule {type(rule).__name__}: completed returns {quoted(answer)}, no Step of the same operators"
        )
    return answer


_PATH = {"all_reduce": 1, "reduce": 1, "reduce_scatter": 1, "all_gather": -1}
"""Kinds of collective on the way of a gradient: which add up, and which only bring together what was scattered."""


def _check_path(where: str, placed: Replication, mesh: Mesh) -> None:
    """Refuse collectives that do not make a gradient what its state needs.

    Raises:
        PlanError: one is unknown, a replica's summand is left out, or shards are not where the states have them.
    """
    scattered, summed = [placed.axis] * (placed.states and bool(placed.path)), 1
    for kind, axis in reversed(placed.path):
        if kind not in _PATH or axis not in mesh.names:
            raise PlanError(f"{where}: {quoted(kind)} over {quoted(axis)} is none of {', '.join(_PATH)} over an axis")
        summed *= mesh.size(axis) if _PATH[kind] == 1 else 1
        if kind == "all_gather":
            scattered.append(axis)
        elif kind == "reduce_scatter" and (not scattered or scattered.pop() != axis):
            raise PlanError(f"{where}: what is scattered over {axis} is neither gathered again nor Shard there")
    if placed.path and (scattered or summed != mesh.size("dp")):
        raise PlanError(
            f"{where}: its path adds up {summed} of the {mesh.size('dp')} replicas' gradients, or leaves them scattered"
        )
    if placed.every < 1 or (placed.every > 1 and placed.states):
        raise PlanError(f"{where}: every is 1 where optimizer states are Shard and at least 1, not {placed.every}")
