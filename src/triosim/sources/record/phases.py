"""Which part of the step is running, without a word from the user."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from triosim.sources.record.modules import ModuleWatch
from triosim.trace.tables import Phase

NONE = -1


class PhaseWatch:
    """Knows the phase while it is active (a context manager).

    Backward is what autograd's engine runs, and what ``torch.autograd.backward`` and ``grad`` do around it; optimizer
    is what runs inside ``Optimizer.step``.  Forward operators that run inside the engine recompute what was not kept.

    Attributes:
        optimizers: those that stepped, in order of first step.
        backwards: how many backward passes have ended.
        on_optimizer: called with the optimizer before each step.
        on_optimizer_end: called with it afterwards.
        on_backward_end: called after each backward pass.
    """

    def __init__(self, modules: ModuleWatch) -> None:
        self.optimizers: list[Any] = []
        self.backwards = 0
        self.on_optimizer: Callable[[Any], None] | None = None
        self.on_optimizer_end: Callable[[Any], None] | None = None
        self.on_backward_end: Callable[[], None] | None = None
        self._modules = modules
        self._stepping = 0
        self._differentiating: list[bool] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> PhaseWatch:
        for name in ("backward", "grad"):
            original = getattr(torch.autograd, name)
            setattr(torch.autograd, name, self._around(original))
            self._undo.append(functools.partial(setattr, torch.autograd, name, original))
        self._undo.append(register_optimizer_step_pre_hook(self._step_begins).remove)
        self._undo.append(register_optimizer_step_post_hook(self._step_ends).remove)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._undo:
            self._undo.pop()()
        self._stepping = 0
        self._differentiating.clear()

    def now(self) -> Phase:
        """The phase of an operator that is called now on this thread."""
        task = torch._C._current_graph_task_id()
        if task != NONE:
            # The engine runs derivatives without gradient mode, unless second derivatives were asked for.
            twice = bool(self._differentiating) and self._differentiating[-1]
            if self._modules.entered_in(task) or (torch.is_grad_enabled() and not twice):
                return Phase.RECOMPUTE
            return Phase.BACKWARD
        if self._differentiating:
            return Phase.BACKWARD
        if self._stepping and self._modules.current() == NONE:
            return Phase.OPTIMIZER
        return Phase.FORWARD

    def _around(self, original: Callable) -> Callable:
        @functools.wraps(original)
        def differentiate(*args: Any, **kwargs: Any) -> Any:
            self._differentiating.append(bool(kwargs.get("create_graph", args[3] if len(args) > 3 else False)))
            try:
                return original(*args, **kwargs)
            finally:
                self._differentiating.pop()
                self.backwards += 1
                if self.on_backward_end is not None:
                    self.on_backward_end()

        return differentiate

    def _step_begins(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        if all(optimizer is not known for known in self.optimizers):
            self.optimizers.append(optimizer)
        if self.on_optimizer is not None:
            self.on_optimizer(optimizer)
        self._stepping += 1

    def _step_ends(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        self._stepping = max(self._stepping - 1, 0)
        if self.on_optimizer_end is not None:
            self.on_optimizer_end(optimizer)
