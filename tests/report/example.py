"""A small world for the tests of the reports: pipeline stages x data-parallel replicas, played by hand.

No part of the simulator is used, so that the reports are tested against numbers that are known beforehand.  The rules
are those of a real run: in-order streams, 1F1B, sends between stages, gradients reduced while backward goes on, a
host that issues each operator, and an optimizer that waits for the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from triosim.core.columns import Ragged
from triosim.energy.account import DeviceEnergyRow, Energy, PowerCurve
from triosim.energy.cost import CostOptions, Usage, cost
from triosim.engine.stats import Stats
from triosim.fidelity import Fidelity
from triosim.hardware.describe import AcceleratorDescription, LinkDescription, SystemDescription
from triosim.plan import RunPlan
from triosim.prediction.result import (
    Breakdown,
    CollectiveRow,
    DeviceRow,
    Efficiency,
    Interval,
    LayerRow,
    Memory,
    OnDemand,
    Result,
    StageRow,
    Throughput,
    Workload,
)
from triosim.prediction.timeline import CATEGORIES, LinkUse, MemoryTrack, PowerTrack, Slices, Timeline
from triosim.schedule.program import COMPUTE, DP, HOST, SEND, Op
from triosim.trace.tables import Category, Phase

MIB, GIB = 2**20, 2**30
BLOCK = (  # module below a layer, operator, forward milliseconds
    ("input_norm", "aten::rms_norm", 0.11), ("attention.qkv", "aten::linear", 0.62),
    ("attention.core", "aten::scaled_dot_product_attention", 0.48), ("attention.out", "aten::linear", 0.35),
    ("", "aten::add", 0.07), ("mlp_norm", "aten::rms_norm", 0.11), ("mlp.up", "aten::linear", 0.93),
    ("mlp.activation", "aten::silu", 0.16), ("mlp.down", "aten::linear", 0.90), ("", "aten::add", 0.07),
)  # fmt: skip
LAUNCH = 6e-6
SEND_S, SEND_BYTES = 0.9e-3, 64 * MIB
REDUCE_S, REDUCE_BYTES = 1.7e-3, 220 * MIB
ACTIVATION, WEIGHT = 310 * MIB, 416 * MIB
COLUMNS = tuple(Slices.__dataclass_fields__)


class World:
    """Streams of every rank, and what ran on them."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []
        self.free: dict[tuple[int, int], float] = {}
        self.names: dict[str, int] = {}
        self.modules: dict[str, int] = {}
        self.memory: dict[int, list[tuple[float, int, int]]] = {}
        self.pair = 0

    def run(self, rank: int, stream: int, op: Op, name: str, ready: float, seconds: float, **more: Any) -> float:
        """Put one thing on a stream (-1: on none) and return when it ends."""
        start = ready if stream < 0 else max(ready, self.free.get((rank, stream), 0.0))
        begin = max(start, more.get("begin", start))
        end = begin + seconds
        if stream >= 0:
            self.free[rank, stream] = end
        module = more.get("module")
        self.rows.append((
            rank, stream, int(op), self.names.setdefault(name, len(self.names)), more.get("operator", -1),
            -1 if module is None else self.modules.setdefault(module, len(self.modules)), int(more.get("phase", -1)),
            more.get("micro_batch", 0), more.get("iteration", 0), start, begin, end, more.get("bytes", 0),
            more.get("group", -1), more.get("pair", -1),
            500.0 * seconds if op == Op.COMPUTE else 0.0,
        ))  # fmt: skip
        return end

    def hold(self, rank: int, time: float, category: Category, size: int) -> None:
        self.memory.setdefault(rank, []).append((time, int(category), size))


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Order of one stage: some forwards ahead, then one forward and one backward in turn."""
    ahead = min(stages - 1 - stage, micro_batches)
    order = [("F", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("F", ahead + m), ("B", m)]
    return order + [("B", m) for m in range(micro_batches - ahead, micro_batches)]


def make(
    *, stages: int = 2, replicas: int = 2, micro_batches: int = 4, layers: int = 4, iterations: int = 1,
    host: bool = True, fits: bool = True, scale: float = 1.0, prefix: str = "model.layers", capacity: bool = True,
) -> Result:  # fmt: skip
    """A prediction of ``iterations`` iterations of a model with ``layers`` layers per stage."""
    world = World()
    ranks = stages * replicas
    stage_of = [rank // replicas for rank in range(ranks)]
    slow = [1.0 + 0.04 * (rank % replicas) for rank in range(ranks)]
    for rank in range(ranks):
        world.hold(rank, 0.0, Category.WEIGHT, WEIGHT * layers)
        world.hold(rank, 0.0, Category.OPTIMIZER_STATE, 2 * WEIGHT * layers)
    now = 0.0
    for iteration in range(iterations):
        now = _iteration(world, iteration, now, stages, replicas, micro_batches, layers, slow, host, scale, prefix)
    return _result(world, now, stages, replicas, micro_batches, layers, iterations, stage_of, host, fits, capacity)


def _iteration(world, iteration, now, stages, replicas, micro_batches, layers, slow, host, scale, prefix):  # type: ignore[no-untyped-def]
    ranks = stages * replicas
    arrived: dict[tuple[str, int, int], tuple[float, int]] = {}
    todo = {rank: one_f_one_b(rank // replicas, stages, micro_batches) for rank in range(ranks)}
    pending: dict[tuple[int, int], list[tuple[int, float]]] = {}
    reduced = dict.fromkeys(range(ranks), now)
    at = dict.fromkeys(range(ranks), now)
    for rank in range(ranks):
        for stream in (COMPUTE, DP, SEND, HOST):
            world.free[rank, stream] = max(now, world.free.get((rank, stream), 0.0))
    while any(todo.values()):
        for rank, units in todo.items():
            stage = rank // replicas
            if not units:
                continue
            what, m = units[0]
            source = stage - 1 if what == "F" else stage + 1
            if 0 <= source < stages:
                if (what, m, rank) not in arrived:
                    continue
                arrival, pair = arrived[what, m, rank]
                started = max(at[rank], now)
                world.run(
                    rank, -1, Op.RECEIVE, "receive", max(started, arrival), 0.0,
                    micro_batch=m, iteration=iteration, bytes=SEND_BYTES, pair=pair,
                )  # fmt: skip
                ready = arrival
            else:
                ready = now
            units.pop(0)
            speed = slow[rank] * scale
            end = _unit(world, rank, stage, what, m, ready, layers, speed, host, prefix, iteration, pending)
            at[rank] = end
            target = stage + 1 if what == "F" else stage - 1
            if 0 <= target < stages:
                other = target * replicas + rank % replicas
                issued = end
                if host:
                    about = {"micro_batch": m, "iteration": iteration}
                    issued = world.run(rank, HOST, Op.ISSUE, "send", end, LAUNCH, **about)
                arrival = world.run(
                    rank, SEND, Op.SEND, "send", issued, SEND_S,
                    micro_batch=m, iteration=iteration, bytes=SEND_BYTES, pair=world.pair,
                )  # fmt: skip
                arrived[what, m, other] = (arrival, world.pair)
                world.pair += 1
            if what == "B" and m == micro_batches - 1:
                reduced.update(_reduce(world, stage, replicas, layers, iteration, m, pending, host))
    ends = []
    for rank in range(ranks):
        ready = max(reduced[rank], world.free[rank, COMPUTE])
        if host:
            ready = max(ready, world.run(
                rank, HOST, Op.ISSUE, "aten::_fused_adamw_", world.free[rank, COMPUTE], LAUNCH, operator=900,
                phase=Phase.OPTIMIZER, micro_batch=micro_batches - 1, iteration=iteration,
            ))  # fmt: skip
        end = world.run(
            rank, COMPUTE, Op.COMPUTE, "aten::_fused_adamw_", ready, 2.1e-3 * scale, operator=900,
            phase=Phase.OPTIMIZER, micro_batch=micro_batches - 1, iteration=iteration,
        )  # fmt: skip
        ends.append(end)
        world.hold(rank, end, Category.GRADIENT, -WEIGHT * layers)
    return max(ends)


def _unit(world, rank, stage, what, m, ready, layers, slow, host, prefix, iteration, pending):  # type: ignore[no-untyped-def]
    """One micro-batch forward or backward on one stage; returns its end."""
    backward = what == "B"
    phase = Phase.BACKWARD if backward else Phase.FORWARD
    end = ready
    for i in reversed(range(layers)) if backward else range(layers):
        layer = stage * layers + i
        block = tuple(reversed(tuple(enumerate(BLOCK)))) if backward else tuple(enumerate(BLOCK))
        first = None
        for row, (module, forward, ms) in block:
            name = forward + ("_backward" if backward else "")
            about = {
                "operator": (layer * len(BLOCK) + row) * 2 + backward,
                "module": f"{prefix}.{layer}" + (f".{module}" if module else ""), "phase": phase, "micro_batch": m,
                "iteration": iteration,
            }  # fmt: skip
            issued = world.run(rank, HOST, Op.ISSUE, name, ready, LAUNCH, **about) if host else ready
            seconds = ms * 1e-3 * slow * (2.0 if backward else 1.0)
            end = world.run(rank, COMPUTE, Op.COMPUTE, name, max(ready, issued), seconds, **about)
            first = world.rows[-1][COLUMNS.index("start")] if first is None else first
        world.hold(rank, first if not backward else end, Category.ACTIVATION, -ACTIVATION if backward else ACTIVATION)
        world.hold(rank, first, Category.TEMPORARY, 90 * MIB)
        world.hold(rank, end, Category.TEMPORARY, -90 * MIB)
        if backward:
            if m == 0:
                world.hold(rank, first, Category.GRADIENT, WEIGHT)
            pending.setdefault((rank, m), []).append((layer, end))
    return end


def _reduce(world, stage, replicas, layers, iteration, m, pending, host):  # type: ignore[no-untyped-def]
    """All-reduce the gradients of each layer once every replica of the stage has them."""
    members = range(stage * replicas, (stage + 1) * replicas)
    if replicas < 2 or any(len(pending.get((rank, m), ())) < layers for rank in members):
        return {}
    ends = {}
    for at in range(layers):
        about = {"micro_batch": m, "iteration": iteration}
        made = {rank: pending[rank, m][at][1] for rank in members}
        for rank in members if host else ():
            made[rank] = world.run(rank, HOST, Op.ISSUE, "all_reduce", made[rank], LAUNCH, **about)
        begin = max(max(made[rank], world.free[rank, DP]) for rank in members)
        for rank in members:
            ends[rank] = world.run(
                rank, DP, Op.COLLECTIVE, "all_reduce", made[rank], REDUCE_S, begin=begin,
                bytes=REDUCE_BYTES, group=stage, **about,
            )  # fmt: skip
    for rank in members:
        pending.pop((rank, m))
    return ends


def covered(slices: Slices, rank: int, ops: tuple[Op, ...], grid: np.ndarray) -> np.ndarray:
    """For each cell of a time grid, whether something of these kinds was under way on a rank (or on its way to it)."""
    arriving = slices.pair[(slices.rank == rank) & (slices.op == Op.RECEIVE)]
    to_it = (slices.op == Op.SEND) & np.isin(slices.pair, arriving) & (Op.SEND in ops)
    rows = np.flatnonzero((slices.rank == rank) & np.isin(slices.op, ops) | to_it)
    change = np.zeros(len(grid) + 1, np.int64)
    np.add.at(change, np.searchsorted(grid, slices.begin[rows]), 1)
    np.add.at(change, np.searchsorted(grid, slices.end[rows]), -1)
    return np.cumsum(change)[:-1] > 0


def _track(world: World, rank: int) -> MemoryTrack:
    events = sorted(world.memory[rank])
    time = sorted({t for t, _, _ in events})
    at = {t: i for i, t in enumerate(time)}
    held = np.zeros((len(time), len(CATEGORIES)), np.int64)
    for t, category, size in events:
        held[at[t], category] += size
    return MemoryTrack(rank, np.array(time), np.cumsum(held, axis=0))


def _energy(period, ranks):  # type: ignore[no-untyped-def]
    node = 700.0 * ranks * period
    curve = PowerCurve(tuple(np.linspace(0, period, 50, endpoint=False).tolist()), (700.0 * ranks,) * 50)
    return Energy(
        operators_j=0.6 * node, idle_j=0.1 * node, links_j=0.05 * node, host_j=0.25 * node, node_j=node, pue=1.25,
        facility_j=1.25 * node, devices_j=0.75 * node, mean_w=700.0 * ranks, peak_w=900.0 * ranks,
        device_mean_w=525.0, per_sample_j=2.0, per_token_j=0.01, timed_j=0.5 * node,
        interval_j=(0.8 * node, 1.3 * node), parts_j={"static": 0.2 * node, "bfloat16 FLOP": 0.4 * node},
        devices=(DeviceEnergyRow(0, ranks, 525.0 * period, 525.0, 1.0),), curve=curve, sources=("energy: made up",),
    )  # fmt: skip


def _result(world, end, stages, replicas, micro_batches, layers, iterations, stage_of, host, fits, capacity):  # type: ignore[no-untyped-def]
    types = {name: str(kind) for name, kind in Slices.__annotations__.items()}
    dtypes = {name: text.split("np.")[-1].rstrip("]") for name, text in types.items()}
    columns = zip(*world.rows, strict=True)
    slices = Slices(**{name: np.array(c, dtypes[name]) for name, c in zip(COLUMNS, columns, strict=True)})
    ranks = stages * replicas
    groups = Ragged.of([list(range(s * replicas, (s + 1) * replicas)) for s in range(stages)], np.int32)
    tracks = tuple(_track(world, s * replicas) for s in range(stages))
    links = [f"gpu{r} -> switch0" for r in range(ranks)] + [f"switch0 -> gpu{r}" for r in range(ranks)]
    carried = np.bincount(slices.rank, slices.bytes * np.isin(slices.op, (Op.SEND, Op.COLLECTIVE)), minlength=ranks)
    timeline = Timeline(
        slices=slices, names=tuple(world.names), modules=tuple(world.modules), groups=groups,
        rank_names=tuple(f"gpu{r} (H100-SXM5-80GB)" for r in range(ranks)), rank_stage=tuple(stage_of),
        memory=tracks,
        power=(PowerTrack(0, np.array([0.0, end / 2]), np.array([700.0, 70.0])),),
        links=LinkUse(tuple(links), np.tile(carried, 2).astype(np.int64), np.full(2 * ranks, 450e9)),
        end=end, iterations=iterations, flop=np.full(slices.operator.max() + 1, 1e12),
    )  # fmt: skip

    grid = np.unique(np.concatenate([[0.0, end], slices.start, slices.begin, slices.end]))
    step = np.diff(grid, append=grid[-1]) / iterations
    talk = (Op.COLLECTIVE, Op.SEND)
    per_rank = []
    for rank in range(ranks):
        busy = covered(slices, rank, (Op.COMPUTE,), grid)
        transfer = covered(slices, rank, talk, grid)
        issue = covered(slices, rank, (Op.ISSUE,), grid)
        per_rank.append([
            float(step[busy].sum()), float(step[transfer].sum()), float(step[transfer & ~busy].sum()),
            float(step[issue & ~busy & ~transfer].sum()), float(step[~busy & ~transfer & ~issue].sum()),
            float(step[issue].sum()),
        ])  # fmt: skip
    table = np.array(per_rank)
    peaks = [int(track.bytes.sum(axis=1).max()) for track in tracks]
    of_stage = table.reshape(stages, replicas, -1).mean(axis=1).tolist()
    devices = tuple(
        DeviceRow(
            rank=s * replicas, count=replicas, stage=s, busy_s=compute, communication_s=communication, idle_s=idle,
            host_cpu_s=cpu, allocated_bytes=peaks[s], reserved_bytes=peaks[s] + 300 * MIB,
        )
        for s, (compute, communication, _, _, idle, cpu) in enumerate(of_stage)
    )  # fmt: skip
    reduces, sends = layers * stages, 2 * micro_batches * (stages - 1)
    collectives = []
    if replicas > 1:
        took = REDUCE_S * reduces
        collectives.append(CollectiveRow("dp", "all_reduce", replicas, REDUCE_BYTES, reduces, took, "ring", "simple"))
    if stages > 1:
        collectives.append(CollectiveRow("pp", "send", 2, SEND_BYTES, sends, SEND_S * sends, "", ""))
    full = int(np.argmax(peaks))
    at_peak = tracks[full].bytes[int(tracks[full].bytes.sum(axis=1).argmax())]
    context = 500 * MIB
    needed = peaks[full] + 300 * MIB + context
    available = (max(80 * GIB, 2 * needed) if fits else needed * 4 // 5) if capacity else None
    period = end / iterations
    sample = micro_batches * 2 * replicas / period
    return Result(
        iteration_time_s=period, confidence=0.9, active_time_s=period * 0.99,
        throughput=Throughput(sample, sample * 4096),
        efficiency=Efficiency(0.412, 0.412 * 989.4e12, sample * 4096 / ranks, 0.412 * 989.4e12 * period * ranks,
                              "bfloat16", 989.4e12, "989.4 TFLOP/s dense bfloat16, of H100-SXM5-80GB: a datasheet"),
        breakdown_s=Breakdown(
            compute=float(table[:, 0].mean()), communication=float(table[:, 1].mean()),
            exposed_communication=float(table[:, 2].mean()), host=float(table[:, 3].mean()),
            idle=float(table[:, 4].mean()),
        ),
        memory=Memory(
            allocated_bytes=peaks[full], reserved_bytes=peaks[full] + 300 * MIB, capacity_bytes=available,
            fits=fits if capacity else None, context_bytes=context,
            categories={name: int(b) for name, b in zip(CATEGORIES, at_peak, strict=True) if b},
        ),
        devices=devices,
        stages=tuple(StageRow(s, row[0], row[1]) for s, row in enumerate(of_stage)),
        collectives=tuple(collectives),
        workload=Workload(
            name="llama3-8b", made_by="triosim.model", recorded_on=None, recorded_batch_size=None,
            recorded_micro_batches=1, batch_size_guessed=False, batch_size=2 * micro_batches, sequence_length=4096,
            parameters=8_030_261_248, state_bytes=112_423_657_472, operators=1234, recorded_time_s=None,
            recorded_step_time_s=None, step="", training=True,
        ),
        system=SystemDescription(
            name=f"{ranks} x H100-SXM5-80GB, switch", devices=ranks, servers=1, topology="switch",
            accelerators=(AcceleratorDescription("H100-SXM5-80GB", ranks, 80 * GIB, 3352e9, {}, "high"),),
            links=(LinkDescription("NVLink4", "scale_up", 2 * ranks, 450e9, 1e-6, 0.0),), host_memory=False,
            host_cpu=None, host_cores=None, memory_pool=False, sources=(),
        ),
        plan=RunPlan(
            dp=replicas, pp=stages, micro_batches=micro_batches, micro_batch_size=2, batch_size=2 * micro_batches,
            global_batch_size=2 * micro_batches * replicas, ranks=ranks,
        ),
        fidelity=Fidelity(host="eager" if host else "none"),
        sources=(
            "Operator times: physical model of H100-SXM5-80GB, fitted to 4,131 measured kernels.",
            "Link bandwidth: 450 GB/s per direction, NVIDIA H100 datasheet.",
        ),
        warnings=() if fits else (
            f"The plan needs {needed / GIB:.1f} GiB on device 0, more than the device has: it does not fit.",
        ),
        tasks=len(slices), flows=640,
        on_demand=OnDemand(
            interval=lambda: Interval(period * 0.93, period * 1.08, (), 200, "links shared anew"),
            energy=lambda: _energy(period, ranks),
            cost=lambda energy, interval, varies: cost(
                Usage((("H100-SXM5-80GB", float(ranks)),), period / 3600, energy.node_j), CostOptions()
            ),
            layers=lambda: _layers(timeline, replicas, iterations),
            timeline=lambda: timeline,
            stats=lambda: Stats(1.0, 0.5, "native"),
        ),
    )  # fmt: skip


def with_parts(result: Result, layers: Iterable[LayerRow] | None = None, timeline: Timeline | None = None) -> Result:
    """The result with other rows per module, or another timeline."""
    parts = result.on_demand
    if layers is not None:
        rows = tuple(layers)
        parts = replace(parts, layers=lambda: rows)
    if timeline is not None:
        parts = replace(parts, timeline=lambda: timeline)
    return replace(result, on_demand=parts)


def _layers(timeline: Timeline, replicas: int, iterations: int) -> tuple[LayerRow, ...]:
    s = timeline.slices
    one = (s.op == Op.COMPUTE) & (s.module >= 0) & (s.rank % replicas == 0)
    key = s.module[one].astype(np.int64) * len(Phase) + s.phase[one]
    seconds = np.bincount(key, (s.end - s.start)[one])
    return tuple(
        LayerRow(
            module=timeline.modules[k // len(Phase)], phase=Phase(k % len(Phase)).name.lower(),
            compute_s=float(seconds[k] / iterations), communication_s=0.0, exposed_communication_s=0.0,
            input_bytes=64 * MIB, output_bytes=64 * MIB,
            weight_bytes=WEIGHT // 4 if "mlp" in timeline.modules[k // len(Phase)] else 0,
        )
        for k in np.unique(key).tolist()
    )  # fmt: skip
