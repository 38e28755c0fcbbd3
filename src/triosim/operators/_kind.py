"""A kind of operator: the interface of the files of this package."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from triosim.core.dtypes import DTYPE_BYTES
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import Dims, aligned
from triosim.operators._work import MovedBytes, Work


class Need(NamedTuple):
    """An input that a call has to have, by its roles, and the numbers of dimensions that it may have."""

    roles: tuple[str, ...]
    least: int
    most: int
    required: bool = True


def unmet(call: Call, *needs: Need) -> str:
    """The first of ``needs`` that a call does not meet, as a sentence; ``""`` where all are met."""
    for need in needs:
        at = call.find(*need.roles)
        if at < 0 and need.required:
            return f"{call.full_name or call.name} has no {need.roles[0]} among its tensors"
        if at >= 0 and not need.least <= len(call.inputs[at]) <= need.most:
            wanted = str(need.least) if need.least == need.most else f"{need.least} to {need.most}"
            return (
                f"{call.full_name or call.name}: {call.roles[at]} has the shape {list(call.inputs[at])}, "
                f"but needs {wanted} dimensions"
            )
    return ""


class Kind:
    """Everything the program knows of one kind of operator.  The defaults are those of an elementwise operator.

    A kind is one file; the file's name is the kind's name.  Methods get calls of this kind whose shapes and arguments a
    foreign file may have wrong: :meth:`problem` says what must hold, the others answer whatever else comes and never
    raise.

    Attributes:
        names: canonical names of its operators, and what their arguments are called in schema order.  Each line is
            ``name name ...: argument argument ...``, without ``:`` where the arguments do not matter; a line that is
            indented continues the one before.  ``namespace::name`` is the operator of that namespace only, and a name
            that ends in ``*`` stands for all names that begin so.
        gradients: the same of backward operators, by their full names (``linear_backward``).
        words: whole words of a name by which an operator that no kind lists is of this one.
        weights: roles of parameters and buffers.
        kernels: class of the kernels that do its work, one of :data:`triosim.kernels.classes.GROUPS`; of the backward
            by itself where there is a class ``NAME_backward``.
        stream: class of the kernels that move its bytes, one of :data:`triosim.operators.STREAMS`.
    """

    names: ClassVar[str] = ""
    gradients: ClassVar[str] = ""
    words: ClassVar[str] = ""
    weights: ClassVar[tuple[str, ...]] = ()
    kernels: ClassVar[str] = "other"
    stream: ClassVar[str] = "other"

    def problem(self, call: Call) -> str:
        """What the call lacks or has wrong so that nothing can be said of its work, one sentence; ``""`` for nothing.

        The other methods are asked only about calls without a problem.
        """
        return ""

    def dims(self, call: Call) -> Dims:
        """Labels of the dimensions of the call's tensors."""
        return aligned(call)

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        """What the call returns, from its inputs and arguments alone; None where they do not tell.

        Operators in place are not asked: they return their first input.
        """
        return None

    def flop(self, call: Call) -> float:
        """Floating-point operations (a multiply-add counts two), NaN where they are not counted."""
        return math.nan

    def repeated(self, call: Call) -> float:
        """The part of :meth:`flop` that a fused backward spends on computing again what its forward did not keep."""
        return 0.0

    def bytes(self, call: Call) -> float:
        """Bytes read and written, each value once."""
        return float(call.written() + call.read())

    def work(self, call: Call) -> Work | None:
        """What is multiplied; None for a kind that only moves bytes."""
        return None

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """What kernels move, where that is not every tensor once.

        Args:
            call: the call.
            counted: every tensor once.
        """
        return counted

    def stream_of(self, call: Call) -> str:
        """Class of the kernels that move the call's bytes."""
        return self.stream

    def written(self, name: str) -> frozenset[str]:
        """Arguments that the operator of this canonical name writes to when it works in place."""
        return frozenset(("self",))

    def reads_result(self, name: str, role: str) -> bool:
        """Whether the backward operator of this canonical name reads under this role what its forward returned."""
        return role in ("output", "out", "result")

    def kernels_of(self, name: str) -> str:
        """Class of the kernels of the operator of this canonical name."""
        return self.kernels


def gradients_of(call: Call, *inputs: tuple[str, ...]) -> tuple[CallResult, ...] | None:
    """Results of a backward that returns a gradient for each of these inputs of the forward that it reads."""
    found = [at for at in (call.find(*roles) for roles in inputs) if at >= 0]
    return tuple(CallResult(call.inputs[at], call.dtype(at)) for at in found) or None


def like(call: Call, *roles: str) -> tuple[CallResult, ...] | None:
    """One result of the shape and type of the first input with one of these roles, the first role first."""
    at = call.find(*roles)
    return (CallResult(call.inputs[at], call.dtype(at)),) if at >= 0 else None


_ORDER = ("bool", "int", "float", "complex")


def promoted(call: Call) -> str:
    """Element type of an operator of several tensors: that of the highest class (whole numbers, floating, complex).

    Within a class the widest counts; tensors without dimensions count only where no other has their class
    (PyTorch documentation, "Tensor Attributes", section "torch.dtype").
    """

    def rank(dtype: str) -> tuple[int, float]:
        known = [i for i, start in enumerate(_ORDER) if start in dtype or (start == "float" and dtype == "unknown")]
        return (max(known, default=1), DTYPE_BYTES[dtype])

    shaped = [call.dtype(at) for at, shape in enumerate(call.inputs) if shape]
    bare = [call.dtype(at) for at, shape in enumerate(call.inputs) if not shape]
    best = max(shaped or bare or ["unknown"], key=rank)
    higher = [dtype for dtype in bare if rank(dtype)[0] > rank(best)[0]]
    if higher:
        best = max(higher, key=rank)
    mixed = {"float16", "bfloat16"} <= set(shaped)
    return "float32" if mixed and best in ("float16", "bfloat16") else best
