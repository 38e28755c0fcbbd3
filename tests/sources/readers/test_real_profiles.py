"""Files that the installed PyTorch writes, against what the model is known to have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triosim.operators import kind
from triosim.sources.reading import load
from triosim.trace.tables import Category, Phase, Trace, check
from triosim.transform.rescale import establish_symbols, undecided

torch = pytest.importorskip("torch")


def attention_net() -> Any:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(y.transpose(1, 2).reshape(x.shape))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = torch.nn.Embedding(50, 16), torch.nn.Parameter(torch.zeros(7, 16))
            self.blocks = torch.nn.Sequential(Block(), Block())
            self.head = torch.nn.Linear(16, 50, bias=False)

        def forward(self, ids):
            return self.head(self.blocks(self.tokens(ids) + self.places)).flatten(0, 1)

    return Net()


def residual_net() -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.nn.Conv2d(4, 4, 3, padding=1)
            self.na, self.nb = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
            self.relu, self.head = torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 5)

        def forward(self, x):
            x = self.relu(self.na(self.a(x)))
            x = self.relu(self.nb(self.b(x)) + x)
            return self.head(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))

    return Net()


NETS: dict[str, tuple[Callable, Callable, Callable]] = {
    "attention, foreach": (
        attention_net, lambda: torch.randint(0, 50, (6, 7)), lambda p: torch.optim.AdamW(p, foreach=True),
    ),
    "attention, fused": (
        attention_net, lambda: torch.randint(0, 50, (6, 7)), lambda p: torch.optim.AdamW(p, fused=True),
    ),
    "residual, loop": (
        residual_net, lambda: torch.randn(6, 3, 8, 8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=NETS)
def case(request, tmp_path_factory) -> tuple[Path, list[tuple[int, ...]]]:
    """A folder with profile and execution trace of one profiled step, and the shapes of the net's parameters."""
    folder = tmp_path_factory.mktemp("profile")
    make, draw, optimizer = NETS[request.param]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, data = make(), draw()
    target = torch.arange(42 if data.dim() == 2 else 6) % 5
    update, loss = optimizer(net.parameters()), torch.nn.CrossEntropyLoss()
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(folder / "execution"))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=2, active=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / "profile.json")),
        record_shapes=True,
        with_stack=True,
        execution_trace_observer=observer,
    ) as profiler:
        for _ in range(3):
            update.zero_grad()
            loss(net(data), target).backward()
            update.step()
            profiler.step()
    return folder, [tuple(p.shape) for p in net.parameters()]


def weights(trace: Trace) -> list[tuple[int, ...]]:
    return [tuple(trace.values.shape[w].tolist()) for w in trace.weights()]


class TestJoined:
    def test_parameters_in_the_order_of_registration(self, case):
        folder, shapes = case
        trace = load(folder)
        check(trace)
        assert weights(trace) == shapes
        assert trace.meta.batch_size == 6
        assert trace.meta.identity == "exact"

    def test_every_parameter_has_a_gradient_and_every_state_an_owner(self, case):
        trace = load(case[0])
        values = trace.values
        mine = set(trace.weights().tolist())
        assert {int(o) for o, c in zip(values.of, values.category, strict=True) if c == Category.GRADIENT} == mine
        states = values.of[(values.category == Category.OPTIMIZER_STATE)]
        assert set(states.tolist()) == mine

    def test_the_backward_pass_reads_only_what_is_there(self, case):
        trace = load(case[0])
        given = {Category.WEIGHT, Category.BUFFER, Category.INPUT, Category.LABEL}
        rows = np.flatnonzero(trace.operators.phase == Phase.BACKWARD)
        writers = trace.writers()
        for row in rows:
            for value, writer in zip(trace.operators.inputs[row], writers[row], strict=True):
                assert writer >= 0 or Category(trace.values.category[value]) in given, trace.operators.name[row]
            assert trace.operators.forward[row] >= 0 or trace.operators.view[row]

    def test_the_batch_can_be_followed(self, case):
        assert undecided(establish_symbols(load(case[0]))).size == 0

    def test_the_execution_trace_alone_says_the_same(self, case):
        joined, alone = load(case[0]), load(case[0] / "execution")
        assert joined.operators.name == alone.operators.name
        assert joined.writers() == alone.writers()
        assert np.array_equal(joined.values.category, alone.values.category)


class TestAlone:
    def test_parameters_and_gradients_are_found(self, case):
        folder, shapes = case
        trace = load(folder / "profile.json")
        check(trace)
        assert sorted(weights(trace)) == sorted(shapes)
        values = trace.values
        owners = {int(o) for o, c in zip(values.of, values.category, strict=True) if c == Category.GRADIENT}
        assert owners == set(trace.weights().tolist())

    def test_the_batch_can_be_followed(self, case):
        assert undecided(establish_symbols(load(case[0] / "profile.json"))).size == 0

    def test_the_dataflow_is_the_real_one(self, case):
        """Up to the order of a sum's terms, reshapes that had to copy, and the loss, whose saved scores have the shape
        of its input."""
        exact, inferred = load(case[0]), load(case[0] / "profile.json")
        assert exact.operators.name == inferred.operators.name
        mine, theirs = sources(inferred), sources(exact)
        forward_backward = np.flatnonzero(exact.operators.phase != Phase.OPTIMIZER)
        wrong = {exact.operators.name[row] for row in forward_backward if mine[row] != theirs[row]}
        assert wrong <= {"aten::nll_loss_backward", "aten::_log_softmax_backward_data"}


def sources(trace: Trace) -> list[list[int]]:
    """For each operator those that it reads from, seen through views and what only looks like one."""
    writers = trace.writers()

    def seen_through(row: int) -> int:
        while row >= 0 and kind(trace.operators.name[row]) == "view":
            row = writers[row][0]
        return row

    return [sorted(map(seen_through, row)) for row in writers]
