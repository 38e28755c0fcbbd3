"""What matrix units draw at the full clock: ``kernels/data/physical/sustained.json``.

    python -m validation fit/sustained [--write]

Two servers whose large products were measured long enough to be bound by their power, and published: SimuMax's system
files of an 8 x A100 PCIe (300 W) and an 8 x B200 server (MooreThreads/SimuMax, configs/system/a100_pcie.json and
b200_bf16_ceperm.json, Apache-2.0).  Of each stand here the largest forward and input-gradient products, 16 bits in and
out: the smaller side of the weight at least 8,192, the larger at least 28,672; as m, k, n and the part of the peak.
The first products of the B200's file, measured before its clock fell (0.63 of the peak), are smaller than that.

With the law of ``hardware/power.json`` each gives the clock, and with it the watts that the units would draw at the
full clock; joules of a FLOP, and how they grow with the clock, follow from the two medians.  Nothing else is fitted.
The training rows of the same two servers (``validation training --source simumax``) are not independent of it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from triosim.hardware import power
from triosim.hardware.catalog import accelerator
from triosim.kernels import sustained
from triosim.kernels.physical import gemm
from triosim.kernels.work.gemm import gemm as products

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/kernels/data/physical/sustained.json"
MEASURED = {
    "A100-PCIe-80GB": (
        (4096, 8192, 57344, 0.7528), (4096, 57344, 8192, 0.7549), (4096, 28672, 8192, 0.7411),
        (4096, 8192, 28672, 0.7565), (4096, 8192, 128256, 0.7446), (4096, 128256, 8192, 0.7448),
        (4096, 8192, 64128, 0.7463), (4096, 64128, 8192, 0.7540), (4096, 8192, 32128, 0.7469),
        (4096, 32128, 8192, 0.7493),
    ),
    "B200-SXM-180GB": (
        (4096, 8192, 57344, 0.4867), (4096, 57344, 8192, 0.4829), (4096, 28672, 8192, 0.4847),
        (4096, 8192, 28672, 0.4742), (4096, 8192, 128256, 0.4874), (4096, 128256, 8192, 0.4710),
        (4096, 16384, 106496, 0.4961), (4096, 106496, 16384, 0.5116), (4096, 53248, 16384, 0.5109),
        (4096, 16384, 53248, 0.5007), (4096, 16384, 128256, 0.4906), (4096, 128256, 16384, 0.5109),
        (4096, 16384, 64128, 0.4941), (4096, 64128, 16384, 0.5121), (4096, 16384, 32128, 0.4995),
        (4096, 32128, 16384, 0.5107),
    ),
}  # fmt: skip


def joule(name: str) -> tuple[float, float]:
    """Joules of a 16-bit FLOP at the full clock of a device, and the clock of its products over the full one."""
    device, law = accelerator(name), power.constants()
    rows = np.array(MEASURED[name])
    work = products(rows[:, 0], rows[:, 2], rows[:, 1], "bfloat16")
    burst = sustained.burst_clock(device, "bfloat16")
    full = work.flop() / gemm.predict(work, device, gemm.load().constants).seconds / burst
    clock = rows[:, 3] * device.peak("bfloat16") / full
    static = power.static_w(device)
    assert static is not None
    assert device.tdp_w is not None
    room = law.limit * device.tdp_w - static
    drawn = [room / law.switching(min(float(c), 1.0)) / rate for c, rate in zip(clock, full, strict=True)]
    return float(np.median(drawn)), float(np.median(clock))


def fit() -> dict[str, float]:
    """The two constants."""
    (low, _), (high, _) = (joule(name) for name in MEASURED)
    clocks = [sustained.clock_of_peak(accelerator(name)) for name in MEASURED]
    growth = math.log(high / low) / math.log(clocks[1] / clocks[0])
    return {"joule": low * (clocks[0] / sustained.REFERENCE_HZ) ** -growth, "growth": growth}


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    for name in MEASURED:
        drawn, clock = joule(name)
        print(f"{name:16s} {drawn * 1e12:.3f} pJ/FLOP at the full clock, products at {clock:.3f} of it")
    found = {name: float(f"{value:.4g}") for name, value in fit().items()}
    print(found)
    if parser.parse_args().write:
        document = {
            "schema": "triosim/physical-constants/1", "kind": "sustained",
            "constants": {
                "joule": {"value": found["joule"], "unit": "J/FLOP", "meaning": "of 16 bits, matrix units at 1.41 GHz"},
                "growth": {"value": found["growth"], "unit": "1", "meaning": "exponent of the clock of the peak"},
            },
            "provenance": {
                "script": "validation/fit/sustained.py",
                "source": "MooreThreads/SimuMax, configs/system/a100_pcie.json and b200_bf16_ceperm.json (Apache-2.0)",
                "products": {name: len(rows) for name, rows in MEASURED.items()},
            },
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
