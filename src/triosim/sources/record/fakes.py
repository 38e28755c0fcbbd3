"""Running a step without hardware: tensors that have a shape but no data.

PyTorch's ``FakeTensorMode`` does most of it.  What it leaves to us: real weights that a step refers to must not be
touched, a number that is read from a tensor must come from somewhere, and a model must be able to move.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from triosim.core.errors import InputError
from triosim.sources.record.patches import replaced

_MODE: FakeTensorMode | None = None


def fake_mode(tensors: Iterable[Any] = ()) -> FakeTensorMode:
    """The mode of the first fake tensor among ``tensors``, else the one that :func:`fake` uses (one per process)."""
    global _MODE
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    if _MODE is None:
        _MODE = FakeTensorMode(allow_non_fake_inputs=True)
    return _MODE


@contextlib.contextmanager
def fake(tensors: Iterable[Any] = ()) -> Iterator[None]:
    """Inside, tensors have no data and take no memory, so that a model of any size can be built and run.

    ``with fake(): model = Llama(...)`` and then ``record(step, ..., device="fake")``.  Devices that this machine does
    not have are taken to be the CPU.  Reading a number from a tensor gives 1.
    """
    with contextlib.ExitStack() as stack:
        mode = fake_mode(tensors)
        stack.enter_context(mode)
        stack.enter_context(_StandIn(mode))
        stack.enter_context(_movable())
        if not torch.cuda.is_available():
            stack.enter_context(_OnCpu())
        # What goes wrong inside is raised; PyTorch would also print the traceback.
        stack.enter_context(replaced(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True))
        yield


class _StandIn(TorchDispatchMode):
    """Puts fake tensors in the place of real ones and answers for numbers that are read."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default:
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1 + 0j if kind.is_complex else 1
        _refuse_missing_device(args, kwargs)
        if _any_real(args) or _any_real(kwargs.values()):
            args, kwargs = tree_map(self._fake, args), tree_map(self._fake, kwargs)
        return func(*args, **kwargs)

    def _fake(self, thing: Any) -> Any:
        if isinstance(thing, Tensor) and not isinstance(thing, FakeTensor):
            return self._mode.from_tensor(thing)
        return thing


def _any_real(things: Iterable[Any]) -> bool:
    for thing in things:
        if isinstance(thing, (list, tuple)):
            if _any_real(thing):
                return True
        elif isinstance(thing, Tensor) and not isinstance(thing, FakeTensor):
            return True
    return False


def _refuse_missing_device(args: tuple, kwargs: dict) -> None:
    """A fake tensor on a device that PyTorch was not built for would end the process, not raise."""
    device = kwargs.get("device")
    if isinstance(device, torch.device) and device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "the step puts tensors on cuda, which this PyTorch does not have: let it use the CPU where there is no "
            "GPU, which gives the same shapes"
        )


class _OnCpu(TorchFunctionMode):
    """Takes ``cuda`` for the CPU in calls that create or move tensors."""

    def __torch_function__(self, func: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        if "device" in kwargs or func is Tensor.to:
            args = tuple(_on_cpu(a) for a in args)
            kwargs = {name: _on_cpu(a) if name == "device" else a for name, a in kwargs.items()}
        return func(*args, **kwargs)


def _on_cpu(thing: Any) -> Any:
    if isinstance(thing, torch.device):
        return torch.device("cpu") if thing.type == "cuda" else thing
    if isinstance(thing, str):
        return "cpu" if thing.split(":")[0] == "cuda" else thing
    return thing


@contextlib.contextmanager
def _movable() -> Iterator[None]:
    """Let ``module.to(...)`` work on fake parameters, which PyTorch wants to swap in place and cannot."""
    original = torch.nn.Module._apply
    moved: dict[int, tuple[Any, Any]] = {}  # within one call, so that tied weights stay tied
    depth = 0

    def move(parameter: Any, function: Callable) -> Any:
        if id(parameter) not in moved:
            with torch.no_grad():
                result = function(parameter)
            if result is not parameter:
                result = torch.nn.Parameter(result, parameter.requires_grad)
            moved[id(parameter)] = (parameter, result)
        return moved[id(parameter)][1]

    def apply(self: torch.nn.Module, function: Callable, recurse: bool = True) -> torch.nn.Module:
        nonlocal depth
        depth += 1
        try:
            if not any(isinstance(p, FakeTensor) for p in self._parameters.values()):
                return original(self, function, recurse)
            for child in self.children() if recurse else ():
                child._apply(function)
            for name, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[name] = move(parameter, function)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = function(buffer)
            return self
        finally:
            depth -= 1
            if not depth:
                moved.clear()

    with replaced(torch.nn.Module, "_apply", apply):
        yield


@contextlib.contextmanager
def accelerator_defaults() -> Iterator[None]:
    """Let optimizers choose the multi-tensor implementation, as they do by default on an accelerator."""
    import torch.optim.optimizer as module

    name = "_get_foreach_kernels_supported_devices"
    original = getattr(module, name)
    with (
        replaced(module, name, lambda: [*original(), "cpu"]),
        replaced(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor]),
    ):
        yield


@contextlib.contextmanager
def loadable() -> Iterator[None]:
    """Let data loaders work: in this process, and with zeros where they ask a tensor for its content."""
    original = torch.utils.data.DataLoader.__init__

    @functools.wraps(original)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
        original(loader, *args, **(kwargs | {name: alone[name] for name in kwargs if name in alone}))

    with (
        replaced(torch.utils.data.DataLoader, "__init__", init),
        replaced(FakeTensor, "tolist", lambda tensor: _zeros(tensor).tolist()),
        replaced(FakeTensor, "numpy", lambda tensor, force=False: _zeros(tensor)),
    ):
        yield


def _zeros(tensor: Tensor) -> NDArray[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    return np.zeros(tuple(tensor.shape), "float32" if name.startswith(("bfloat", "float8")) else name)
