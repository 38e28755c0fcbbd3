"""Tiles of a library's matrix products, from the names of its kernels.

Kernels of cuBLAS, CUTLASS and Tensile (ROCm) carry the part of the result that a thread block computes in their names:
``ampere_bf16_s16816gemm_bf16_128x64_ldg8_...``, ``sm90_xmma_gemm_..._tilesize128x128x64_...``,
``nvjet_tst_256x128_64x4_...``, ``Cijk_..._MT128x128x32_...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from triosim.kernels.physical.gemm import Menu

_PRODUCT = re.compile(r"gemm|nvjet|cijk", re.IGNORECASE)
_TILE = re.compile(r"(?:tilesize|_MT)(\d{1,3})x(\d{1,3})|_(\d{2,3})x(\d{2,3})(?=[_x])")


def tile(name: str) -> tuple[int, int] | None:
    """Rows and columns of one thread block's part as the kernel's name gives them, None where it does not."""
    if not _PRODUCT.search(name):
        return None
    for found in _TILE.finditer(name):
        rows, columns = (int(x) for x in found.groups() if x)
        if min(rows, columns) >= 8 and max(rows, columns) <= 512 and rows % 8 == 0 and columns % 8 == 0:
            return rows, columns
    return None


def menu(names: Iterable[str]) -> Menu:
    """The tiles that occur, both ways round: which side a library calls rows depends on how the operands lie."""
    found = {t for name in names if (t := tile(name))}
    return tuple(sorted(found | {(columns, rows) for rows, columns in found}))
