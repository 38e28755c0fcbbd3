"""What products of 16 bits take on GPUs whose units do not multiply them: ``kernels/data/physical/emulation.json``.

    python -m validation.fit.emulation [--write] [--catalog]

``torch.mm`` of square matrices, the best rate of 1,024 to 10,240 rows, as users of many GPUs reported it (the issues of
github.com/zzc0721/torch-performance-test-data, by number; ``db`` is its ``database.md``; ianvs is
github.com/kubeedge/ianvs issue 888).  The same call in float32 on the same card is the yardstick, so that what a card
sustains cancels.  Fitted is the median ratio of a group of GPUs; its interval is the largest deviation in the group.

bfloat16 comes in two groups.  GPUs with the shared memory of 64 lanes for 64 lanes (GP100, GV100) reach 0.73 of
float32's rate, those with half of that for each lane (other Pascals, Turing) 0.54.  What was measured on one kind of
card only (AMD before CDNA and RDNA3) has an interval that reaches to the best of the others.

Then both kinds of units, measured against predicted; of the matrix units nothing is fitted.  ``--catalog`` prints what
a product of 4,096 rows, columns and terms takes on every GPU of the catalog.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import NamedTuple

from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels.arithmetic import GPUS, multiplication
from triosim.kernels.physical import kinds
from triosim.kernels.work.gemm import gemm

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/kernels/data/physical/emulation.json"


class Row(NamedTuple):
    """One card: TFLOP/s by type.

    Attributes:
        device: name in the catalog, or what the card is called.
        group: the cards that share a ratio.
        float32, float16, bfloat16: measured; 0 where the card multiplies that type on matrix units.
        reference: issue.
    """

    device: str
    group: str
    float32: float
    float16: float
    bfloat16: float
    reference: str


VECTOR = (
    Row("P100-PCIe-16GB", "x.0", 8.63, 8.39, 6.16, "177"), Row("P100-SXM2-16GB", "x.0", 9.50, 8.82, 5.99, "180"),
    Row("V100-SXM2-16GB", "x.0", 14.51, 0, 10.65, "140"), Row("V100-SXM2-16GB", "x.0", 14.06, 0, 10.34, "52"),
    Row("V100S", "x.0", 13.55, 0, 9.85, "db"),
    Row("M40", "other", 3.61, 2.88, 1.94, "db"), Row("P4", "other", 4.55, 4.25, 2.55, "9"),
    Row("P40", "other", 10.07, 10.02, 5.26, "db"), Row("GTX-1080Ti", "other", 10.09, 9.62, 5.38, "60"),
    Row("GTX 1080", "other", 6.76, 6.86, 3.64, "ianvs"), Row("GTX 1070 Ti", "other", 7.59, 7.55, 4.05, "192"),
    Row("RTX-2080Ti", "other", 11.52, 0, 6.95, "181"), Row("RTX-2080Ti", "other", 13.04, 0, 7.28, "115"),
    Row("RTX 2080", "other", 9.23, 0, 5.14, "db"), Row("T10", "other", 9.46, 0, 5.33, "db"),
    Row("T4", "other", 4.17, 0, 2.46, "db"), Row("T4", "other", 4.43, 0, 2.27, "29"),
    Row("RX 6600 XT", "AMD", 8.64, 0, 3.13, "199"),
)  # fmt: skip

MATRIX = (
    ("RTX-3090", 10240, 76.58, "42"), ("RTX-4090", 4096, 151.50, "78"), ("RTX-5090", 4096, 181.17, "96"),
    ("A10G", 4096, 62.48, "126"), ("A40", 4096, 115.16, "185"), ("L4", 4096, 54.91, "120"),
    ("RTX-PRO-6000-Server", 4096, 399.93, "162"), ("H100-SXM5-80GB", 4096, 788.72, "79"),
    ("RX-7900XTX", 4096, 92.10, "68"),
)  # fmt: skip
"""Catalog name, rows of the square matrices, TFLOP/s in bfloat16, issue.  Of the first the best size is reported
without saying which; on the other card of its chip there (3080 Ti) it is the largest."""


class Ratio(NamedTuple):
    """A type's rate in that of float32."""

    rate: float
    spread: float
    cards: int


def ratio(rows: list[float]) -> Ratio:
    """Median, and the largest deviation from it as a logarithm."""
    middle = median(rows)
    return Ratio(middle, max(abs(math.log(x / middle)) for x in rows), len(rows))


def fitted() -> dict[str, Ratio]:
    """Ratios by type and group."""
    found = {
        f"bfloat16 {group}": ratio([r.bfloat16 / r.float32 for r in VECTOR if r.group == group])
        for group in ("x.0", "other")
    }
    (amd,) = (r.bfloat16 / r.float32 for r in VECTOR if r.group == "AMD")
    found["bfloat16 AMD"] = Ratio(amd, math.log(found["bfloat16 x.0"].rate / amd), 1)
    found["float16"] = ratio([r.float16 / r.float32 for r in VECTOR if r.float16])
    return found


def main() -> None:
    """Print what was measured and what is fitted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the data file")
    parser.add_argument("--catalog", action="store_true", help="a product in 16 bits on every GPU of the catalog")
    options = parser.parse_args()
    if options.catalog:
        products()
        return
    print(f"{'':16}{'group':>7}{'float32':>9}{'float16':>9}{'bfloat16':>9}   ratios of float32")
    for row in VECTOR:
        half = f"{row.float16 / row.float32:.2f}" if row.float16 else "   -"
        numbers = "".join(f"{x:9.2f}" if x else f"{'-':>9}" for x in row[2:5])
        print(f"{row.device:16}{row.group:>7}{numbers}   {half}  {row.bfloat16 / row.float32:.2f}   {row.reference}")
    found = fitted()
    for name, one in found.items():
        print(f"{name:16} {one.rate:.3f} of float32's rate, 90 % within {math.exp(one.spread):.2f}, {one.cards} cards")
    emulated = [(r.device, 8192, r.bfloat16, r.reference) for r in VECTOR if r.device in catalog.accelerators()]
    for units, rows in (("vector", emulated), ("matrix", MATRIX)):
        print(f"\nbfloat16 on {units} units, TFLOP/s\n{'':22}{'rows':>7}{'measured':>9}{'predicted':>10}{'time':>6}")
        errors = []
        for device, size, measured, reference in rows:
            work = gemm([size], size, size, "bfloat16", warm=True)
            rate = 2 * size**3 / kinds.price(work, catalog.accelerator(device)).seconds[0] / 1e12
            errors.append(abs(measured / rate - 1))
            print(f"{device:22}{size:7}{measured:9.1f}{rate:10.1f}{measured / rate - 1:+6.0%}   {reference}")
        print(f"mean error of the time {sum(errors) / len(errors):.1%}")
    if options.write:
        TARGET.write_text(json.dumps(document(found), indent=1) + "\n", encoding="utf-8")


def products() -> None:
    """Milliseconds of a product of 4,096 rows, columns and terms, and how each GPU multiplies 16 bits."""
    print(f"{'':22}{'float16':>10}{'bfloat16':>10}   ms")
    for name in catalog.accelerators():
        device = catalog.accelerator(name)
        if device.kind not in GPUS:
            continue
        columns, words = "", []
        for dtype in ("float16", "bfloat16"):
            how = multiplication(device, dtype)
            words += [how.words] if how.words else []
            try:
                columns += f"{kinds.price(gemm([4096], 4096, 4096, dtype), device).seconds[0] * 1e3:10.3f}"
            except InputError:
                columns += f"{'refused':>10}"
        print(f"{name:22}{columns}   {'; '.join(words)}".rstrip())


def document(found: dict[str, Ratio]) -> dict:
    """The data file."""
    return {
        "schema": "triosim/physical-constants/1",
        "meaning": "rate of square torch.mm in that of float32 on the same card; natural logarithm of the factor of "
        "its 90 % interval",
        "ratios": {name: {"rate": round(one.rate, 4), "spread": round(one.spread, 4)} for name, one in found.items()},
        "provenance": {
            "source": "torch.mm of 1,024 to 10,240 rows, best rate, reported in the issues of "
            "github.com/zzc0721/torch-performance-test-data and kubeedge/ianvs #888",
            "cards": [list(row) for row in VECTOR],
            "script": "validation/fit/emulation.py",
        },
    }


if __name__ == "__main__":
    main()
