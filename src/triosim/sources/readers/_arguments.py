"""How PyTorch's files write element types, schemas, tensors and constants."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.guarded import INTEGERS
from triosim.sources.readers._step import ObservedTensor, Shape

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16", "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short int": "int16", "short": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8",
    "byte": "uint8", "bool": "bool", "c10::complex<float>": "complex64", "complexfloat": "complex64",
    "c10::complex<double>": "complex128", "complexdouble": "complex128", "c10::float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fn": "float8_e4m3fn", "c10::float8_e4m3fnuz": "float8_e4m3fn", "float8_e4m3fnuz": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "float8_e5m2": "float8_e5m2", "c10::float8_e5m2fnuz": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2", "c10::float4_e2m1fn_x2": "uint8",
}  # fmt: skip


def dtype(text: str) -> str | None:
    """The element type that PyTorch's C++ side calls ``text`` (``"c10::Half"``), None where it is no element type."""
    return _DTYPES.get(text.strip().lower())


@dataclass(frozen=True)
class Parameter:
    """One argument of an operator's schema."""

    name: str
    written: bool


@functools.lru_cache(maxsize=8192)
def schema(text: str) -> tuple[Parameter, ...]:
    """The arguments of an operator schema such as ``aten::relu_(Tensor(a!) self) -> Tensor(a!)``; empty for ``""``."""
    start = text.find("(")
    if start < 0:
        return ()
    depth, piece, pieces = 0, "", []
    for letter in text[start:]:
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 or (depth == 1 and letter == ","):
            pieces.append(piece)
            piece = ""
            if depth == 0:
                break
        elif depth > 1 or letter != "(":
            piece += letter
    found = []
    for piece in pieces:
        declaration = piece.split("=")[0].split()
        if len(declaration) >= 2:
            found.append(Parameter(declaration[-1], "!" in piece.split("=")[0]))
    return tuple(found)


_MOST_ELEMENTS = 2**53
"""Elements of a tensor; more are a slip, and their bytes could not be counted."""

_TENSOR_TYPE = re.compile(r"Tensor\(([^()]*(?:\([^()]*\))?[^()]*)\)")
_ITEM_DTYPES = {8: "int64", 4: "float32", 2: "float16", 1: "bool"}


def tensors(value: Any, shape: Any, type_text: str) -> list[ObservedTensor]:
    """The tensors in one value of an execution trace, lists of any depth flattened, undefined ones left out.

    A tensor is ``[tensor id, storage id, offset in elements, elements, bytes per element, device]``.
    """
    names = iter(_TENSOR_TYPE.findall(type_text))
    found = []
    for item, extents in _walk(value, shape):
        name = next(names, "")
        if item[4] == 0 or "uninitialized" in name:
            continue
        element = dtype(name) or _ITEM_DTYPES.get(item[4], "unknown")
        dims = dimensions(extents) or ()
        if not dims and item[3] > 1:
            dims = dimensions([item[3]]) or ()
        found.append(ObservedTensor(dims, element, item[0], item[1], item[2]))
    return found


def on_device(value: Any) -> bool:
    """Whether a value of an execution trace holds a tensor that is not on the host."""
    return any(not str(item[5]).startswith("cpu") for item, _ in _walk(value, None) if item[4])


def _walk(value: Any, shape: Any) -> Iterator[tuple[list, Any]]:
    if not isinstance(value, list):
        return
    if len(value) >= 6 and isinstance(value[5], str) and all(_counts(x) for x in value[:5]):
        yield value, shape
        return
    for i, item in enumerate(value):
        yield from _walk(item, shape[i] if isinstance(shape, list) and i < len(shape) else None)


def _counts(value: Any) -> bool:
    return type(value) is int and value in INTEGERS


def constant(value: Any) -> Any:
    """A non-tensor argument as JSON keeps it, None for what says nothing about the work (devices, generators, ...)."""
    if _plain(value) or (isinstance(value, list) and all(map(_plain, value))):
        return value
    if isinstance(value, str) and value and not value.startswith("<") and len(value) <= 64:
        return value
    return None


def _plain(value: Any) -> bool:
    """Whether a value is a number that a column can hold; an operator's arguments are no others."""
    return (isinstance(value, int) and value in INTEGERS) or (isinstance(value, float) and math.isfinite(value))


def written_constant(text: str) -> Any:
    """A constant that Kineto wrote as text (``"[1, 1]"``, ``"True"``), None for none."""
    if not text or not isinstance(text, str):
        return None
    try:
        return constant(json.loads(text.replace("True", "true").replace("False", "false")))
    except ValueError:
        return constant(text)


def dimensions(value: Any) -> Shape | None:
    """A shape from JSON, None where it is not one (a list of shapes, nothing, a size that no memory has)."""
    if isinstance(value, list) and all(type(d) is int and d >= 0 for d in value):
        return tuple(value) if math.prod(max(d, 1) for d in value) <= _MOST_ELEMENTS else None
    return None
