"""What matrix units draw at the full clock: ``kernels/data/physical/sustained.json``.

    python -m validation fit/sustained [--trainings ../shared/data/training/measured.csv] [--write]

Two servers whose large products were measured long enough to be bound by their power, and published: SimuMax's system
files of an 8 x A100 PCIe (300 W) and an 8 x B200 server (MooreThreads/SimuMax, configs/system/a100_pcie.json and
b200_bf16_ceperm.json, Apache-2.0).  Of each stand here the largest forward and input-gradient products, 16 bits in and
out: the smaller side of the weight at least 8,192, the larger at least 28,672; as m, k, n and the part of the peak.
The first products of the B200's file, measured before its clock fell (0.63 of the peak), are smaller than that.

With the law of ``hardware/power.json`` each gives the clock, and with it the watts that the units would draw at the
full clock; joules of a FLOP, and how they grow with the clock, follow from the two medians.  The training rows of the
same two servers (``validation training --source simumax``) are not independent of it.

Of 8 and 4 bits and of attention there are no such measurements.  What their FLOP draw are the round numbers with which
published trainings with 8-bit products come out best, of those whose row number is even (:data:`EVEN`), those of few
bits by generation of matrix units: with ``--trainings`` every pair of :data:`GRID` is tried and printed.  Rows with odd
numbers judge.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

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


EVEN = {
    "wgmma": ("T0394", "T0480", "T0506", "T2264", "P0104", "P0112", "P0118", "P0124", "P0132", "P0136"),
    "tcgen05": ("T0358", "T0420", "T0462"),
}  # fmt: skip
"""By generation of matrix units, dense models in 8 bits that are predicted in seconds: Megatron-Bridge's on H100, GB200
and GB300, a long sequence of NeMo's, and recipes of DGX Cloud (``P``: ``validation/data/published.csv``).
Megatron-Bridge's even row of a B200 is left out: whether attention ran in 8 bits there is not said."""
GRID = {"narrowing": (0.6, 0.8, 1.0, 1.2, 1.6), "attention": (1.0, 0.7)}
"""Numbers that are tried, those with more joules first."""
AS_GOOD = 0.005
"""Mean errors that differ by no more are as good."""
DEFAULT = "wgmma"
"""The generation whose exponent others take."""


def trainings(path: Path) -> tuple[float, dict[str, float]]:
    """What attention draws, and the exponent of each generation, with which :data:`EVEN` have the least mean error."""
    from validation.data.training import read
    from validation.judge.training import PUBLISHED, judge

    from triosim.prediction import pricing

    rows = {row.id: row for table in (path, PUBLISHED) for row in read(table)}
    count = {name: len(ids) for name, ids in EVEN.items()}
    first, least, found = sustained.load(), math.inf, (1.0, dict.fromkeys(EVEN, 1.0))
    for attention in GRID["attention"]:
        errors: dict[str, dict[float, float]] = {name: {} for name in EVEN}
        for narrowing in GRID["narrowing"]:
            tried = replace(first, narrowing=narrowing, attention=attention, generations=())
            cast(Any, pricing._priced_once).forget()
            for name, ids in EVEN.items():
                with mock.patch.object(sustained, "load", return_value=tried):
                    own = np.array([judge(rows[one]).error for one in ids])
                mean = errors[name][narrowing] = float(np.abs(own).mean())
                told = f"mean {mean:.1%}, bias {own.mean():+.1%}"
                print(f"{name}: narrowing {narrowing:.1f}, attention {attention:.1f}: {told}", flush=True)
        best = {
            name: next(value for value, error in of.items() if error <= min(of.values()) + AS_GOOD)
            for name, of in errors.items()
        }
        mean = sum(errors[name][value] * count[name] for name, value in best.items()) / sum(count.values())
        if mean < least - AS_GOOD:
            least, found = mean, (attention, best)
    return found


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
    parser.add_argument("--trainings", type=Path, help="table of measured training iterations")
    options = parser.parse_args()
    for name in MEASURED:
        drawn, clock = joule(name)
        print(f"{name:16s} {drawn * 1e12:.3f} pJ/FLOP at the full clock, products at {clock:.3f} of it")
    found = {name: float(f"{value:.4g}") for name, value in fit().items()}
    known = sustained.load()
    attention, narrowing = known.attention, {name: known.narrowing_of(name) for name in EVEN}
    if options.trainings:
        attention, narrowing = trainings(options.trainings)
    print(found, attention, narrowing)
    if options.write:
        document = {
            "schema": "triosim/physical-constants/1", "kind": "sustained",
            "constants": {
                "joule": {"value": found["joule"], "unit": "J/FLOP", "meaning": "of 16 bits, matrix units at 1.41 GHz"},
                "growth": {"value": found["growth"], "unit": "1", "meaning": "exponent of the clock of the peak"},
                "narrowing": {"value": narrowing[DEFAULT], "unit": "1",
                              "meaning": "exponent of the rate of 16 bits over that of narrower types"},
                "attention": {"value": attention, "unit": "1", "meaning": "joules over those of a product"},
            },
            "generations": {name: value for name, value in narrowing.items() if value != narrowing[DEFAULT]},
            "provenance": {
                "script": "validation/fit/sustained.py",
                "source": "MooreThreads/SimuMax, configs/system/a100_pcie.json and b200_bf16_ceperm.json (Apache-2.0)",
                "products": {name: len(rows) for name, rows in MEASURED.items()},
                "trainings": {
                    "rows": {name: list(ids) for name, ids in EVEN.items()},
                    "tried": {name: list(values) for name, values in GRID.items()},
                },
            },
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
