"""Hybrid sharding against PyTorch's FSDP2 on a mesh of two dimensions, and by what it must be."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan, PlanError
from triosim.prediction.prepare import prepare
from triosim.schedule.program import COLLECTIVES, REPLICAS, Op

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from tests.partition.test_tensor_against_torch import BATCH, GPT, LENGTH, VOCABULARY  # noqa: E402
from tests.schedule.test_sharded_against_torch import _Sent, recorded  # noqa: E402, F401

REPLICATE, SHARD = 2, 4
NO_HOST = Fidelity(host="none")


def _hybrid(zero: int, replicate: int = REPLICATE, shard: int = SHARD, **more) -> Plan:
    return Plan(
        dp=replicate * shard, zero=zero, parallelism=("hsdp",), parallelism_options={"dp_replicate": replicate},
        **more,
    )  # fmt: skip


class _SentToo(_Sent):
    """Notes all-reduces too, with the bytes of the shard that they are of."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and func._opname == "allreduce_":
            self.found.append(("all_reduce", sum(t.numel() * t.element_size() for t in args[0])))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _torch_sends(reshard: bool, parts: int) -> list[tuple[str, int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=REPLICATE * SHARD, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (REPLICATE, SHARD), mesh_dim_names=("dp_replicate", "dp_shard"))
        model = GPT(True)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        tokens = torch.randint(0, VOCABULARY, (BATCH // parts, LENGTH))
        with _SentToo() as sent:
            for _ in range(parts):
                F.cross_entropy(model(tokens).view(-1, VOCABULARY), tokens.view(-1)).backward()
        return sent.found
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("level", [2, 3])
def test_it_sends_what_fully_shard_sends(recorded, level: int, parts: int) -> None:  # noqa: F811
    expected = _torch_sends(level == 3, parts)
    assert {kind for kind, _ in expected} == {"all_gather", "reduce_scatter", "all_reduce"}
    plan = _hybrid(level, micro_batches=parts)
    ready = prepare(recorded, triosim.system(devices=8, link="1GB/s"), plan, NO_HOST)
    (program,) = ready.programs
    rows = np.flatnonzero(program.op == Op.COLLECTIVE).tolist()
    assert [(COLLECTIVES[program.what[i]], int(program.bytes[i])) for i in rows] == expected
    names = ready.mesh.names
    for i in rows:
        reduced = COLLECTIVES[program.what[i]] == "all_reduce"
        assert names[program.axis[i]] == ("dp_replicate" if reduced else "dp_shard")


SYSTEM = {"devices": 8, "device": "A100-SXM4-80GB", "link": "25GB/s", "latency": "3us"}


def _model():
    return triosim.model("llama-2-7b", batch_size=1, sequence_length=128, configuration={"num_hidden_layers": 4})


def test_parts_of_the_weights_that_are_sent() -> None:
    """Of the blocks' weights P: all-gather P twice, reduce-scatter P, all-reduce the part that one rank has."""
    result = triosim.simulate(_model(), triosim.system(**SYSTEM), _hybrid(3))
    sent: dict[tuple[str, str], list[int]] = {}
    for row in result.collectives:
        sent.setdefault((row.axis, row.kind), []).extend([row.bytes] * row.count)
    block, rest = 404_766_720, 524_296_192
    assert sorted(sent["dp_shard", "all_gather"]) == [block] * 8 + [rest]
    assert sorted(sent["dp_shard", "reduce_scatter"]) == [block] * 4 + [rest]
    assert sorted(sent["dp_replicate", "all_reduce"]) == [block // SHARD] * 4 + [rest // SHARD]
    assert len(sent) == 3


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_one_group_is_zero_and_groups_of_one_are_ddp(zero: int) -> None:
    system = triosim.system(**SYSTEM)
    run = [
        triosim.simulate(_model(), system, plan, NO_HOST)
        for plan in (
            _hybrid(zero, 1, 8), Plan(dp=8, zero=zero), _hybrid(zero, 8, 1), Plan(dp=8),
        )
    ]  # fmt: skip
    for hybrid, plain in (run[:2], run[2:]):
        assert hybrid.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-9)
        assert hybrid.memory.allocated_bytes == plain.memory.allocated_bytes


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_rank_keeps_what_zero_keeps_on_one_group(zero: int) -> None:
    hybrid = triosim.simulate(_model(), triosim.system(**SYSTEM), _hybrid(zero), NO_HOST)
    group = triosim.simulate(_model(), triosim.system(**{**SYSTEM, "devices": 4}), Plan(dp=4, zero=zero), NO_HOST)
    assert hybrid.memory.allocated_bytes == group.memory.allocated_bytes
    assert hybrid.iteration_time_s > group.iteration_time_s


def test_groups_on_servers_gather_faster_than_one_over_all() -> None:
    """What it is for: parameters are gathered within a server, only gradients cross, and a part of them."""
    system = triosim.system("dgx-a100", nodes=2)
    trace = _model()
    flat = triosim.simulate(trace, system, Plan(dp=16, zero=3))
    hybrid = triosim.simulate(trace, system, _hybrid(3, 2, 8))
    assert hybrid.iteration_time_s < flat.iteration_time_s


@pytest.mark.parametrize("zero", [1, 3])
def test_in_a_pipeline_gradients_are_reduced_once(zero: int) -> None:
    plan = _hybrid(zero, 2, 2, pp=2, micro_batches=4)
    ready = prepare(_model(), triosim.system(**SYSTEM), plan, NO_HOST)
    for program in ready.programs:
        reduced = (program.op == Op.COLLECTIVE) & (program.axis == ready.mesh.row("dp_replicate"))
        scattered = (program.op == Op.COLLECTIVE) & (program.what == COLLECTIVES.index("reduce_scatter"))
        assert reduced.sum() == scattered.sum() > 0
        assert set(program.stream[reduced].tolist()) == {REPLICAS}
        assert program.bytes[reduced].tolist() == [-(-n // 2) for n in program.bytes[scattered].tolist()]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (_hybrid(0), "nothing is divided among the replicas of a group: use zero 1, 2 or 3"),
        (_hybrid(3).replaced(parallelism_options={"dp_replicate": 3}), "those that can are 1, 2, 4, 8"),
    ],
)
def test_what_cannot_be_is_refused(plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        prepare(_model(), triosim.system(**SYSTEM), plan)
