"""PowerSGD: what is sent, in which order, what it keeps, and when it pays."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim.core.errors import PlanError
from triosim.partition.gradients import gradients
from triosim.partition.passes.fuse import by_bytes
from triosim.partition.rules.powersgd import LowRankFactors
from triosim.prediction.prepare import prepare
from triosim.schedule.program import COLLECTIVES, Op, Program

DP, WIDTH = 8, 48
RANK = 4
SLOW, FAST = "1GB/s", "900GB/s"


def _layers(torch):
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 96), torch.nn.ReLU(), torch.nn.Linear(96, WIDTH), torch.nn.LayerNorm(WIDTH),
        torch.nn.Linear(WIDTH, 6),
    )  # fmt: skip


def _recorded(torch) -> triosim.Trace:
    model = _layers(torch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return triosim.record(step, torch.zeros(8, WIDTH), model=model)


def _program(trace: triosim.Trace, link: str = SLOW, **options: str) -> Program:
    plan = {"dp": DP, "host": "none", "parallelism": ("powersgd",), "parallelism_options": options}
    (program,) = prepare(trace, triosim.system(device="H100", devices=DP, link=link), *asked(**plan)).programs
    return program


def _sent(program: Program) -> list[tuple[str, int]]:
    rows = np.flatnonzero(program.op == Op.COLLECTIVE).tolist()
    return [(COLLECTIVES[program.what[row]], int(program.bytes[row])) for row in rows]


@pytest.mark.parametrize("rank", [1, RANK])
def test_it_sends_what_pytorchs_hook_sends(monkeypatch, rank: int) -> None:
    """Kind, bytes and order, in a later iteration, which depend on no number of ranks; empty ones are not sent."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook

    found: list[tuple[str, int]] = []
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        model = torch.nn.parallel.DistributedDataParallel(_layers(torch), bucket_cap_mb=25)
        state = hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, hook.powerSGD_hook)
        really = dist.all_reduce

        def noted(tensor, *args, **more):
            found.append(("all_reduce", tensor.numel() * tensor.element_size()))
            return really(tensor, *args, **more)

        for turn in range(5):
            if turn == 4:  # buckets have been built anew, and something is compressed
                monkeypatch.setattr(hook.dist, "all_reduce", noted)
            model(torch.rand(8, WIDTH)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert len(found) == 3
    assert _sent(_program(_recorded(torch), rank=str(rank))) == [call for call in found if call[1]]


def test_bytes_by_hand() -> None:
    """Of a matrix n x m both factors, (n + m) rank numbers; vectors, and what hardly shrinks, as they are."""
    factors = LowRankFactors(RANK, 2.0)
    shapes = [(96, 48), (96,), (6, 48), (16, 3, 3, 3)]
    calls = factors.calls(shapes, 4.0)
    # 6 x 48: rank 4 makes 216 numbers of 288; 16 x 27: 172 of 432
    assert [call.sent for call in calls] == [4 * (96 + 288), 4 * 4 * (96 + 16), 4 * 4 * (48 + 27), 0]
    assert factors.kept(shapes, 4.0) == 4 * (96 * 48 + 96 + 288 + 432) + 4 * 4 * (96 + 16 + 48 + 27)
    assert [call.sent for call in factors.calls([(64,)], 2.0)] == [128, 0, 0, 0]
    assert [call.sent for call in LowRankFactors(1, 2.0).calls([(6, 48)], 4.0)] == [0, 24, 192, 0]


def test_every_bucket_of_a_model_is_compressed() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64)
    shapes = trace.values.shape.lists()
    expected = 0
    for bucket in by_bytes(gradients(trace), 1 << 20, 25 << 20):
        for gradient in bucket:
            n, *more = shapes[gradient.parameter]
            m = math.prod(more)
            rank = min(n, m, RANK)
            expected += 2 * (min((n + m) * rank, n * m) if (n + m) * rank * 2 < n * m else n * m)
    program = _program(trace, rank=str(RANK))
    assert sum(size for _, size in _sent(program)) == expected
    assert all(kind == "all_reduce" for kind, _ in _sent(program))


@pytest.mark.parametrize("plan", [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"overlap": False}], ids=str)
def test_it_pays_on_slow_links_alone(plan: dict) -> None:
    """With fast ones the passes over the gradients take longer than sending them would."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64)

    def seconds(link: str, **more: object) -> float:
        system = triosim.system(device="H100", devices=DP, link=link)
        return triosim.simulate(trace, system, *asked(host="none", **plan, **more), fit=False).iteration_time_s

    compressed = {"parallelism": ("powersgd",), "parallelism_options": {"rank": "4"}}
    assert seconds(SLOW, **compressed) < 0.5 * seconds(SLOW)
    if not plan:
        assert seconds(FAST, **compressed) > seconds(FAST)


def test_it_keeps_the_last_error() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64)
    system = triosim.system("dgx-h100")
    own, plain = (
        triosim.simulate(trace, system, triosim.Plan(parallelism=rules), fit=False).memory.categories
        for rules in (("powersgd",), ())
    )
    gradients_ = 2 * int(trace.values.elements()[trace.weights()].sum())
    assert own["communication"] - plain["communication"] == pytest.approx(gradients_, rel=0.01)


def test_what_it_cannot_compress_is_said() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64)
    for zero in (1, 2, 3):
        with pytest.raises(PlanError, match=f"zero {zero} does not"):
            triosim.simulate(
                trace, triosim.system("dgx-h100"), triosim.Plan(zero=zero, parallelism=("powersgd",)), fit=False
            )


def test_the_command() -> None:
    words = ("train", "gpt2", "--system", "dgx-h100", "--batch-size", "1", "--seq-len", "64", "--json", "-")
    found = json.loads(run(*words, "--parallelism", "powersgd", "--parallelism-option", "rank=2").stdout)
    plain = json.loads(run(*words).stdout)
    sent = [sum(row["bytes"] * row["count"] for row in result["collectives"]) for result in (found, plain)]
    assert sent[0] < 0.02 * sent[1]
    done = run(*words, "--parallelism", "powersgd", "--parallelism-option", "rank=0", code=2)
    assert "rank" in done.stderr
