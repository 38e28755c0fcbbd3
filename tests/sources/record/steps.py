"""What the tests of recording share: a way to look at a trace row by row, and the example models."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from triosim.trace.tables import NONE, Category, Phase, Trace, check

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


def example(name: str) -> ModuleType:
    """A file of ``examples/`` as a module."""
    key = f"triosim_example_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, ROOT / "examples" / f"{name}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


class Value(NamedTuple):
    id: int
    storage: int
    version: int
    shape: tuple[int, ...]
    category: Category
    of: int
    name: str
    symbols: tuple[int, ...]


class Op(NamedTuple):
    row: int
    name: str
    phase: Phase
    module: str | None
    inputs: list[Value]
    roles: list[str]
    outputs: list[Value]
    args: dict[str, Any]
    forward: int
    view: bool
    sync: bool
    seconds: float


class Look:
    """A trace, checked, as rows that are easy to ask."""

    def __init__(self, trace: Trace) -> None:
        check(trace)
        self.trace = trace
        v, o = trace.values, trace.operators
        shapes, symbols = v.shape.lists(), v.symbols.lists()
        self.values = [
            Value(i, int(v.storage[i]), int(v.version[i]), tuple(shapes[i]), Category(v.category[i]), int(v.of[i]),
                  v.name[i], tuple(symbols[i]))
            for i in range(len(v))
        ]  # fmt: skip
        inputs, roles, outputs = o.inputs.lists(), o.roles.lists(), o.outputs.lists()
        self.ops = [
            Op(
                i, o.name[i].removeprefix("aten::"), Phase(o.phase[i]),
                trace.modules.path[o.module[i]] if o.module[i] != NONE else None,
                [self.values[k] for k in inputs[i]], [o.role_names[r] for r in roles[i]],
                [self.values[k] for k in outputs[i]], json.loads(o.args[i]), int(o.forward[i]), bool(o.view[i]),
                bool(o.sync[i]), float(o.device_s[i]),
            )
            for i in range(len(o))
        ]  # fmt: skip

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def named(self, name: str, phase: Phase | None = None) -> list[Op]:
        """The operators of this name."""
        return [op for op in self.ops if op.name == name and phase in (None, op.phase)]

    def one(self, name: str, phase: Phase | None = None) -> Op:
        """The only operator of this name."""
        found = self.named(name, phase)
        assert len(found) == 1, f"{len(found)} operators {name}"
        return found[0]

    def phases(self, *names: str) -> list[Phase]:
        """Phases in order of the operators with these names."""
        return [op.phase for op in self.ops if op.name in names]

    def weight(self, name: str) -> Value:
        """The parameter of this name."""
        return next(v for v in self.values if v.name == name and v.version == 0)


def quick(step: Any, *inputs: Any, **options: Any) -> Look:
    """Record with as few steps as possible."""
    from triosim.sources.record import record

    return Look(record(step, *inputs, **({"warmup": 1, "repeats": 1} | options)))


def trained(model: Any, optimizer: Any, loss: Any = None) -> Any:
    """An ordinary training step of ``model(x)`` against ``y``."""

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        value = (loss or torch.nn.functional.cross_entropy)(model(x), y)
        value.backward()
        optimizer.step()

    return step
