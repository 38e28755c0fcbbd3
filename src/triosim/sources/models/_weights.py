"""The parameters and buffers that a model declares under the names of its usual implementation."""

from __future__ import annotations

import math

from triosim.core.limits import WEIGHT_BYTES, check_memory

_CHECKED = 1000  # after so many weights each


class Weights:
    """Parameters and buffers of a model by qualified name, in the order in which its modules register them.

    Attributes:
        parameters: shape of each parameter.
        buffers: shape and element type of each buffer.
        full_precision: names that stay in float32 whatever precision the model runs in.
        frozen: names that are not trained.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.buffers: dict[str, tuple[tuple[int, ...], str]] = {}
        self.full_precision: set[str] = set()
        self.frozen: set[str] = set()

    def count(self) -> int:
        """Number of parameters; a tied weight counts once."""
        return int(sum(math.prod(shape) for shape in self.parameters.values()))

    def add(self, name: str, *shape: int) -> None:
        """One parameter.

        Raises:
            InputError: a step with so many takes more memory than there may be.
        """
        self.parameters[name] = shape
        if len(self.parameters) % _CHECKED == 0:
            check_memory(WEIGHT_BYTES * len(self.parameters), "a model of so many layers", "use fewer layers")

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        """``torch.nn.Linear``: weight [outputs, inputs]."""
        self.add(f"{name}.weight", outputs, inputs)
        if bias:
            self.add(f"{name}.bias", outputs)

    def embedding(self, name: str, rows: int, width: int) -> None:
        """``torch.nn.Embedding``."""
        self.add(f"{name}.weight", rows, width)

    def norm(self, name: str, width: int, bias: bool = True) -> None:
        """``torch.nn.LayerNorm``, or without bias ``torch.nn.RMSNorm``."""
        self.add(f"{name}.weight", width)
        if bias:
            self.add(f"{name}.bias", width)

    def conv2d(self, name: str, inputs: int, outputs: int, kernel: int, groups: int = 1, bias: bool = False) -> None:
        """``torch.nn.Conv2d`` with a square window: weight [outputs, inputs / groups, kernel, kernel]."""
        self.add(f"{name}.weight", outputs, inputs // groups, kernel, kernel)
        if bias:
            self.add(f"{name}.bias", outputs)

    def batch_norm(self, name: str, channels: int) -> None:
        """``torch.nn.BatchNorm2d``; in mixed precision its weights and statistics stay in float32."""
        self.norm(name, channels)
        self.full_precision |= {f"{name}.weight", f"{name}.bias"}
        for statistic in ("running_mean", "running_var"):
            self.buffers[f"{name}.{statistic}"] = ((channels,), "float32")
        self.buffers[f"{name}.num_batches_tracked"] = ((), "int64")
