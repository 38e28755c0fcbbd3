"""Attention with sinks in Triton's kernel: ``serving/data/triton_attention.json``.

    python -m validation.fit.triton_attention [--write]

Fitted is its one constant, to one measurement: the throughput of GPT-OSS 20B under vLLM on an A100 with prompts of
32,000 tokens (row 204 of ``validation/data/served.csv``), most of whose time is attention.  Printed is what the other
rows of such prompts and devices are off then: the even ones and the odd ones, which judge.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from unittest import mock

from validation.data.served import ServedRow, read
from validation.judge.served import predicted

from triosim.serving import triton_attention

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/serving/data/triton_attention.json"
SHAPING = 204
LEAST, MOST = 2.0, 40.0


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the constant")
    options = parser.parse_args()
    rows = {row.number: row for row in read()}
    low, high = LEAST, MOST
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _off(rows[SHAPING], middle)["rate"] > 0 else (low, middle)
    cost = float(f"{(low * high) ** 0.5:.3g}")
    print(f"cost {cost}")
    for row in rows.values():
        if row.model.startswith("gpt-oss") and row.device.startswith("A100"):
            words = ", ".join(f"{name} {off:+.1%}" for name, off in _off(row, cost).items())
            print(f"  {row.number} {row.model}, {row.prompt} tokens: {words}")
    if options.write:
        text = {
            "schema": triton_attention.SCHEMA, "script": "validation/fit/triton_attention.py",
            "provenance": "GPT-OSS 20B, vLLM 0.11 on A100-SXM4-80GB, prompts of 32,000 tokens (GPUStack)", "cost": cost,
        }  # fmt: skip
        TARGET.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


def _off(row: ServedRow, cost: float) -> dict[str, float]:
    """What a row's measurements are predicted off at a cost."""
    with mock.patch.object(triton_attention, "cost", return_value=cost):
        return {name: value / row.measured[name] - 1 for name, (value, _, _) in predicted(row).items()}


if __name__ == "__main__":
    main()
