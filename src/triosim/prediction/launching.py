"""What launching costs the hosts of a priced job: by how the machine launches, then by how its training stack does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.composition.host import (
    HostCosts,
    crowding,
    default_mode,
    host,
    launched_once,
    launched_one_by_one,
    rank_by_rank,
)
from triosim.partition.resolve import rules_of
from triosim.prediction.priced_job import PricedJob, kernels_of_experts
from triosim.stacks import ASSUMED, COUNTED_BY_HOST, IN_CONVOLUTIONS, ONE_BY_ONE, Stack


def launching_costs(job: PricedJob, chunks: int) -> HostCosts:
    """What launching costs on each host of a job.

    Args:
        job: divided and priced.
        chunks: parts of the model on each stage.

    Raises:
        InputError: there is no such host mode, or it reads what was not recorded.
    """
    costs = _of_machine(job)
    return _of_stack(job, costs, chunks) if job.named else costs


def _of_machine(job: PricedJob) -> HostCosts:
    """The costs of plain PyTorch, its processes sharing the cores of a server."""
    trace, stack = job.step.trace, job.plan.stack
    on_servers = np.bincount(job.system.device_server[job.assignment.devices])  # processes, shape (servers,)
    driven = job.mesh.replicas if job.step.replication.rooted else 1
    alone = driven * crowding(int(on_servers.max(initial=1)) // driven, job.system.server_cores)
    if job.residual is not None:
        return job.residual.host(trace, alone)
    asked = job.fidelity.host or (_of_named_stack(stack, job) if stack is not None and job.named else "")
    if asked:
        return host(trace, asked, alone)
    mode, why = default_mode(job.workload, [own.device for own in job.jobs.values()], job.recorded_on)
    return host(trace, mode, alone, why)


def _of_named_stack(stack: Stack, job: PricedJob) -> str:
    """The row of the table of hosts that a stack says."""
    return (stack.gathering_host if job.step.replication.regathers else "") or stack.host


def _of_stack(job: PricedJob, costs: HostCosts, chunks: int) -> HostCosts:
    """The costs where the stack captures graphs, reads counts, goes through experts one by one, or waits."""
    trace, plan, stack, placed = job.step.trace, job.plan, job.plan.stack or ASSUMED, job.step.replication
    if costs.mode == "none":
        return costs
    costs = replace(costs, blocking=stack.blocking_launches)
    if costs.mode == "graph":
        return costs
    if stack.fused_pointwise:
        from triosim.composition.pointwise import fused_kernels  # few stacks compile

        costs = launched_once(costs, fused_kernels(trace, stack.batch_norms == IN_CONVOLUTIONS).inside)
    if stack.graphs:
        from triosim.composition.captured import captured  # nor do they capture parts of a block

        costs = captured(trace, costs, stack.graphs)
    if stack.expert_counts == COUNTED_BY_HOST and not any(rule.pads_experts for rule in rules_of(plan, job.named)):
        from triosim.composition.captured import counts_of_experts

        costs = replace(costs, read=counts_of_experts(trace))
    if stack.experts == ONE_BY_ONE:
        from triosim.composition.captured import offsets_of_gates

        costs = replace(costs, read=tuple(sorted({*costs.read, *offsets_of_gates(trace)})))
        costs = launched_one_by_one(costs, kernels_of_experts(trace, plan))
    if placed.weights:
        if stack.listed_collectives:
            costs = rank_by_rank(costs, job.mesh.row(placed.axis), job.mesh.size(placed.axis))
        costs = replace(costs, gathering=stack.blocking_gathers)
    if stack.blocking_transfers:
        costs = replace(costs, exchanging="pair" if chunks > 1 else "pass")
    return costs
