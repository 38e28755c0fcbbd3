"""Attention of prompts and decodes in one call: ``serving/data/mixed_attention.json``.

    python -m validation.fit.serving_attention --data FILE [--write]

``FILE`` is ``attention.csv`` of a profile of vLLM (``prefill_chunk, kv_prefill, n_decode, kv_decode, time_us``) on one
GPU with FlashAttention-2: RTX 4090, Llama-3.1-8B.  Fitted are the seven constants of
:mod:`triosim.serving.mixed_attention` on all calls that hold a prompt; rows without decodes count a quarter of those
with, which are eighty times as many.  Printed are the mean errors of both, and by a fit on half of the rows, drawn at
random, on the other half.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.fit.roofline import least

from triosim.hardware import catalog
from triosim.serving.mixed_attention import SCHEMA, MixedConstants, MixedDevice, MixedWork, seconds, work_of
from triosim.serving.model import served_model

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/serving/data/mixed_attention.json"
DEVICE, MODEL = "RTX-4090", "llama-3.1-8b"
START = MixedConstants(6e-6, 1.1, 1.5, 0.9, 0.6, 5e-7, 0.4)
NAMES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="attention.csv of a profile")
    parser.add_argument("--write", action="store_true", help="write the constants")
    options = parser.parse_args()
    with options.data.open(encoding="utf-8", newline="") as file:
        table = np.array([[float(row[name]) for name in NAMES] for row in csv.DictReader(file)])
    table = table[table[:, 0] > 0]
    model = served_model(MODEL)
    _, own = model.alike("the fit")
    on = MixedDevice.of(catalog.accelerator(DEVICE), own.heads, own.kv_heads, own.head, 2.0)
    works = [work_of([(int(row[0]), int(row[1]))], int(row[2]), row[3] + 1) for row in table]
    work = MixedWork(*(np.array(column, float) for column in zip(*works, strict=True)))
    measured, mixed = table[:, 4] * 1e-6, table[:, 2] > 0
    found = fitted(work, on, measured, mixed)
    print("\n".join(f"{name:20}{value:.4g}" for name, value in asdict(found).items()))
    for name, rows in (("with decodes", mixed), ("without", ~mixed)):
        error = _errors(found, work, on, measured)[rows]
        print(f"{name:16}{rows.sum():6} rows, mean error {np.abs(error).mean():.1%}, bias {error.mean():.1%}")
    half = np.random.default_rng(0).random(len(measured)) < 0.5
    part = fitted(_rows(work, half), on, measured[half], mixed[half])
    left = np.abs(_errors(part, work, on, measured))[~half & mixed]
    print(f"fitted on half of the rows, on the other half with decodes: {left.mean():.1%}")
    if options.write:
        rounded = {name: float(f"{value:.4g}") for name, value in asdict(found).items()}
        text = {
            "schema": SCHEMA, "script": "validation/fit/serving_attention.py",
            "provenance": f"vLLM 0.19 on {DEVICE}, {MODEL}, {len(measured)} calls (LLMServingSim's profiler)",
            "mean_error": round(float(np.abs(_errors(found, work, on, measured))[mixed].mean()), 4),
            "constants": rounded,
        }  # fmt: skip
        TARGET.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


def fitted(work: MixedWork, on: MixedDevice, measured: NDArray, mixed: NDArray) -> MixedConstants:
    """Constants of least smooth absolute error of the logarithm."""
    weight = np.where(mixed, 1.0, 0.25 * mixed.sum() / max((~mixed).sum(), 1))

    def residuals(x: NDArray) -> NDArray[np.float64]:
        return np.log(seconds(work, on, _constants(x), np.maximum) / measured) * weight

    start = np.log([getattr(START, own.name) for own in fields(MixedConstants)])
    return _constants(least(residuals, start, start - 2.0, start + 2.0))


def _constants(x: NDArray) -> MixedConstants:
    return MixedConstants(*np.exp(x).tolist())


def _errors(c: MixedConstants, work: MixedWork, on: MixedDevice, measured: NDArray) -> NDArray[np.float64]:
    return np.asarray(seconds(work, on, c, np.maximum) / measured - 1)


def _rows(work: MixedWork, rows: NDArray) -> MixedWork:
    return MixedWork(*(column[rows] for column in work))


if __name__ == "__main__":
    main()
