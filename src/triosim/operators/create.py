"""Operators that make tensors from nothing, or from another one's shape."""

from __future__ import annotations

from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import Dims, Output, blank, numbers
from triosim.operators._kind import Kind
from triosim.operators._work import MovedBytes

ALLOCATES = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize")
)
"""Operators that only reserve memory."""


@registered
class Create(Kind):
    """Zeros, ones, ranges, random numbers, or memory that nobody has written yet."""

    names = """
        empty zeros ones rand randn empty_permuted: size
        full: size fill_value
        empty_strided: size stride
        empty_like zeros_like ones_like rand_like randn_like: self
        randint_like: self high
        full_like: self fill_value
        new_zeros new_ones new_empty: self size
        new_full: self size fill_value
        new_empty_strided: self size stride
        arange range linspace logspace eye randint randperm tril_indices triu_indices scalar_tensor one_hot_create
        random uniform normal log_normal exponential geometric cauchy random_from: self
        resize: self size
        lift_fresh_copy: self
        """
    stream = "create"

    def bytes(self, call: Call) -> float:
        return float(call.written())

    def kernels_of(self, name: str) -> str:
        return "nothing" if name in ALLOCATES else self.kernels

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """An empty tensor is memory that nobody touches."""
        return MovedBytes(counted.stream, 0.0, 0.0, kernels=0.0) if "empty" in call.name else counted

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        given = call.args.get("dtype")
        dtype = given if isinstance(given, str) and given in DTYPE_BYTES else call.dtype(0)
        if call.name.endswith("_like") or call.name == "lift_fresh_copy":
            return (CallResult(call.inputs[0], dtype),) if call.inputs else None
        size = numbers(call, "size")
        if call.name in ("arange", "linspace", "range") or size is None or min(size, default=0) < 0:
            return None
        return (CallResult(size, dtype if call.inputs or isinstance(given, str) else "float32"),)

    def dims(self, call: Call) -> Dims:
        """Shapes are read, nothing else: a result follows the first input where it has its shape."""
        x = call.inputs[0] if call.inputs else None
        follows = [shape == x for shape in call.outputs]
        full = tuple(range(len(x or ())))
        ins = [full if any(follows) else blank([x])[0], *blank(call.inputs[1:])] if x is not None else []
        outs = (
            Output(full) if same else Output(blank([s])[0], ()) for s, same in zip(call.outputs, follows, strict=True)
        )
        return Dims(tuple(ins), tuple(outs), creates=True)
