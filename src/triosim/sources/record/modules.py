"""Which module is running, and what the modules and parameters are called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from triosim.core.dataclass import dataclass
from triosim.sources.record.ledger import parts

NONE = -1


class _Stack(threading.local):
    """The modules that are running on one thread: (index, graph task in which it was entered)."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int]] = []


class ModuleWatch:
    """Follows the calls of modules while it is active (a context manager).

    A *root* is a module that is called from outside of any other.

    Attributes:
        seen: the modules in order of first call.
        roots: the roots in order of first call.
        on_root: called with each root (and its positional arguments) before it runs.
        on_root_end: called with each root after it ran.
    """

    def __init__(self) -> None:
        self.seen: list[Module] = []
        self.roots: list[Module] = []
        self.on_root: Callable[[Module, tuple], None] | None = None
        self.on_root_end: Callable[[Module], None] | None = None
        self._index: dict[int, int] = {}
        self._stack = _Stack()
        self._handles: list[Any] = []

    def __enter__(self) -> ModuleWatch:
        self._handles = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._stack.frames.clear()

    def current(self) -> int:
        """Index into :attr:`seen` of the module that is running on this thread, or -1."""
        frames = self._stack.frames
        return frames[-1][0] if frames else NONE

    def entered_in(self, task: int) -> bool:
        """Whether the running module was called from within the backward pass ``task``."""
        frames = self._stack.frames
        return bool(frames) and frames[-1][1] == task

    def _begin(self, module: Module, args: tuple) -> None:
        index = self._index.get(id(module), NONE)
        if index == NONE:
            index = self._index[id(module)] = len(self.seen)
            self.seen.append(module)
        task = torch._C._current_graph_task_id()
        frames = self._stack.frames
        if not frames and task == NONE:
            if all(module is not root for root in self.roots):
                self.roots.append(module)
            if self.on_root is not None:
                self.on_root(module, args)
        frames.append((index, task))

    def _end(self, module: Module, args: tuple, output: Any) -> None:
        frames = self._stack.frames
        # A hook that raised, or hooks put in while modules were running, can leave frames without a match.
        if not frames or self.seen[frames[-1][0]] is not module:
            return
        frames.pop()
        if not frames and torch._C._current_graph_task_id() == NONE and self.on_root_end is not None:
            self.on_root_end(module)


@dataclass
class ModuleNames:
    """What things are called.

    Attributes:
        modules: qualified name by ``id(module)``; the model itself is ``""``.
        parameters: (qualified name, tensor) in registration order, each once.
        owners: for each of them the tensor that has the gradient: itself, or the wrapper that it is a part of.
        buffers: likewise.
        constants: tensors kept in plain attributes of modules.
        held: the modules, so that no id is handed out again.
    """

    modules: dict[int, str] = field(default_factory=dict)
    parameters: list[tuple[str, Tensor]] = field(default_factory=list)
    owners: list[Tensor] = field(default_factory=list)
    buffers: list[tuple[str, Tensor]] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    held: list[Module] = field(default_factory=list)


def name_everything(model: Module | None, watch: ModuleWatch, optimizers: Iterable[Any] = ()) -> ModuleNames:
    """Names for every module that was called and every parameter that they or the optimizers hold.

    The model (the one given, else the root with most parameters) has the name ``""`` and its parts the names that it
    gives them.  Further roots (a discriminator, a loss with weights) are called by their class.
    """
    names = ModuleNames()
    trees = [model] if model is not None else []
    trees += sorted(watch.roots, key=lambda root: -sum(p.numel() for p in root.parameters()))
    trees += watch.seen  # what is called by a root without being registered in it
    prefixes: set[str] = set()
    taken: set[int] = set()
    for place, tree in enumerate(trees):
        if id(tree) in names.modules:
            continue
        prefix = "" if place == 0 else _fresh(type(tree).__name__, prefixes)
        _add(names, tree, prefix, taken)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _enter(names, "", parameter, taken)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _add(names: ModuleNames, tree: Module, prefix: str, taken: set[int]) -> None:
    def path(name: str) -> str:
        return f"{prefix}.{name}" if prefix and name else prefix or name

    for name, module in tree.named_modules():
        if id(module) in names.modules:
            continue
        names.modules[id(module)] = path(name)
        names.held.append(module)
        for value in vars(module).values():
            names.constants.extend(_tensors(value))
    for name, parameter in tree.named_parameters():
        _enter(names, path(name), parameter, taken)
    for name, buffer in tree.named_buffers():
        for part in parts(buffer):
            if id(part) not in taken:
                taken.add(id(part))
                names.buffers.append((path(name), part))


def _enter(names: ModuleNames, name: str, parameter: Tensor, taken: set[int]) -> None:
    for part in parts(parameter):
        if id(part) not in taken:
            taken.add(id(part))
            names.parameters.append((name, part))
            names.owners.append(parameter)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield from parts(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, Tensor):
                yield from parts(item)
