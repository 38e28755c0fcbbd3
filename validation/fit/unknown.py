"""How much less sure a prediction is for each figure that a device's datasheet leaves out.

    python -m validation.fit.unknown [--write]

Every GPU of the catalog whose datasheet has all of them is priced twice, with and without the figure, on a grid of
kernels of every kind; the class defaults of the models stand in.  Written to
``src/triosim/kernels/data/physical/unknown.json`` is the 90 % quantile of the logarithms' differences, all devices and
kernels counting the same.  No measurement is read.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.physical import kinds, unknown
from triosim.kernels.work.attention import attention
from triosim.kernels.work.convolution import convolution
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.kernels.work.scan import scans
from triosim.kernels.work.stream import rowwise

TARGET = Path(unknown.__file__).parents[1] / "data" / "physical" / "unknown.json"
LEVEL = 0.9


def _grid(*axes: list[float]) -> tuple[NDArray[np.float64], ...]:
    return tuple(np.array(column, np.float64) for column in zip(*product(*axes), strict=True))


def works() -> dict[str, list[kinds.Work]]:
    """Kernels of every kind, from those that are all launch to those that fill a device."""
    sizes: list[float] = [256, 1024, 4096, 16384]
    m, n, k = _grid([16, 256, 2048, 16384], [1024, 4096, 16384], [1024, 4096])
    images, channels, filters, side = _grid([1, 16, 128], [64, 256], [64, 256], [14, 56])
    batch, keys, heads = _grid([1, 8, 64], [512, 2048, 8192], [8, 32])
    tokens, hidden = _grid([16, 256, 4096], [2048, 4096])
    rows, length = _grid([256, 4096, 65536], sizes)
    return {
        "gemm": [gemm(m, n, k, "bfloat16"), gemm(m, n, k, "float32")],
        "convolution": [
            convolution(images, channels, filters, side, 3, DTYPE_CODE[dtype]) for dtype in ("float32", "bfloat16")
        ],
        "attention": [attention(batch, keys, keys, heads, heads, 128), attention(batch, 1, keys, heads, heads, 128)],
        "moe": [experts(tokens, 2, hidden, 2 * hidden, 8)],
        "scan": [
            scans(batch, keys, heads, 8, 128, 64, 256),
            scans(batch, keys, heads, 8, 128, 128, 64, delta=True),
        ],
        "stream": [rowwise(name, rows, length) for name in ("elementwise", "softmax", "layer_norm", "batch_norm")],
    }


def devices() -> list[Accelerator]:
    """GPUs whose datasheets have every figure."""
    every = [catalog.accelerator(name) for name in catalog.accelerators()]
    return [d for d in every if d.kind in GPUS and d.priced and all(getattr(d, name) for name in unknown.FIGURES)]


def fit() -> dict[str, dict[str, float]]:
    """Spread of each kind for each figure that is missing."""
    found: dict[str, dict[str, float]] = {}
    every = devices()
    for name, several in works().items():
        kind = kinds.BY_NAME[name]
        constants = kind.constants()
        pairs = [(device, work, kind.predict(work, device, constants).seconds) for device in every for work in several]
        for figure, nothing in unknown.FIGURES.items():
            apart = [
                np.log(kind.predict(work, replace(device, **{figure: nothing}), constants).seconds / known)
                for device, work, known in pairs
            ]
            spread = float(np.quantile(np.abs(np.concatenate(apart)), LEVEL))
            found.setdefault(name, {})[figure] = float(f"{spread:.3g}")
    return found


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    found = fit()
    print(f"{len(devices())} GPUs; 90 % of predictions move by less than exp of")
    print(f"{'':14s}" + "".join(f"{name:>15s}" for name in unknown.FIGURES))
    for kind, row in found.items():
        print(f"{kind:14s}" + "".join(f"{row[name]:15.3f}" for name in unknown.FIGURES))
    if parser.parse_args().write:
        document = {
            "schema": unknown.SCHEMA, "script": "validation/fit/unknown.py", "level": LEVEL, "spread": found,
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
