"""Element types of tensors and their sizes."""

from __future__ import annotations

DTYPE_BYTES: dict[str, float] = {
    "unknown": 4, "float64": 8, "float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float4_e2m1": 0.5, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "int4": 0.5, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Size of one element in bytes by the type's name; tables keep a type as its index into :data:`DTYPES`."""

DTYPES: tuple[str, ...] = tuple(DTYPE_BYTES)
DTYPE_CODE: dict[str, int] = {name: code for code, name in enumerate(DTYPES)}
