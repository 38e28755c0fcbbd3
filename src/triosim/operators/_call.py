"""One operator call: what every rule of this package is asked about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One operator call.

    Attributes:
        name: canonical name (:func:`triosim.operators.canonical`).
        backward: whether it is a backward operator.
        kind: name of its kind, the name of one file of :mod:`triosim.operators`.
        roles: argument name of each input; the elements of a list of tensors share one.
        inputs: shape of each input.
        outputs: shape of each output.
        args: the arguments that are not tensors, by name.  Not to be changed.
        full_name: the name as its source has it (``"aten::relu_"``), ``""`` where it does not matter.
        dtypes: element type of each input; inputs beyond its end have the type ``"unknown"``.
        output_dtypes: the same of the outputs.
        repeats: positions of inputs that show the same value as an earlier one.
        output_repeats: the same of the outputs.
        view: whether it only makes another view and moves nothing.
    """

    name: str
    backward: bool
    kind: str
    roles: tuple[str, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    args: Mapping[str, Any]
    full_name: str = ""
    dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    repeats: tuple[int, ...] = ()
    output_repeats: tuple[int, ...] = ()
    view: bool = False

    def find(self, *roles: str) -> int:
        """Position of the first input with one of these roles, the first role first, or -1."""
        for role in roles:
            if role in self.roles:
                return self.roles.index(role)
        return -1

    def shape(self, *roles: str) -> Shape | None:
        """Shape of the first input with one of these roles."""
        at = self.find(*roles)
        return self.inputs[at] if at >= 0 else None

    def dtype(self, at: int) -> str:
        """Element type of input ``at``, ``"unknown"`` where it is not told."""
        return self.dtypes[at] if 0 <= at < len(self.dtypes) else "unknown"

    def item(self, at: int) -> float:
        """Bytes of an element of input ``at``."""
        return DTYPE_BYTES[self.dtype(at)]

    def input_bytes(self, at: int) -> int:
        """Bytes of input ``at``."""
        return math.ceil(math.prod(self.inputs[at]) * self.item(at))

    def output_bytes(self, at: int) -> int:
        """Bytes of output ``at``."""
        dtype = self.output_dtypes[at] if at < len(self.output_dtypes) else "unknown"
        return math.ceil(math.prod(self.outputs[at]) * DTYPE_BYTES[dtype])

    def read(self) -> int:
        """Bytes of all inputs, each value once."""
        return _total(self.inputs, self.dtypes, self.repeats)

    def written(self) -> int:
        """Bytes of all outputs, each value once."""
        return _total(self.outputs, self.output_dtypes, self.output_repeats)


def _total(shapes: Sequence[Shape], dtypes: Sequence[str], repeats: tuple[int, ...]) -> int:
    """Bytes of tensors without the repeated ones; equal ones once, for an optimizer may touch thousands."""
    types = (*dtypes[: len(shapes)], *repeat("unknown", len(shapes) - len(dtypes)))
    again = set(repeats)
    there = zip(shapes, types, strict=True)
    count = Counter([pair for at, pair in enumerate(there) if at not in again] if again else there)
    return sum(n * math.ceil(math.prod(shape) * DTYPE_BYTES[dtype]) for (shape, dtype), n in count.items())


class CallResult(NamedTuple):
    """One tensor that a call returns or writes.

    Attributes:
        shape: dimensions; extents that were given as :class:`~triosim.operators.Extent` stay so.
        dtype: element type.
        of: position of the input in whose memory it is, -1 for memory of its own.
        offset: elements from that input's first to its own.
        written: it is the input of position ``of`` with other contents, not a view of it.
        saved: it is kept for the backward and has no gradient of its own (masks, statistics, indices).
    """

    shape: Shape
    dtype: str
    of: int = -1
    offset: int = 0
    written: bool = False
    saved: bool = False
