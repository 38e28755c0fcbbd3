"""Intervals of scans, from how far the physical model is off published times.

    python -m validation.fit.physical_scan [--write]

The model has no constants of its own (:mod:`triosim.kernels.physical.scan`), so that every row judges it.  Only the
width of its interval is taken from them: the 90 % quantile of the errors of each direction, or the interval of experts'
kernels that were not measured where that is wider, for heads of one width alone were published.  On devices that its
tiles were not fitted on the error of experts' kernels comes to it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from validation.data.scans import rows

from triosim.kernels.physical import _constants, moe

TARGET = Path(_constants.__file__).parents[1] / "data" / "physical" / "scan.json"
LEVEL = 0.9


def main() -> None:
    """Print the errors, and write the intervals if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    asked, tiles = parser.parse_args(), moe.constants()
    spread: dict[str, dict[str, float]] = {}
    accuracy: dict[str, dict[str, float]] = {}
    for name, backward in (("scan", False), ("scan_backward", True)):
        chosen = [row for row in rows() if row.backward == backward]
        error = np.array([row.predicted / row.seconds - 1 for row in chosen])
        for device in sorted({row.device for row in chosen}):
            own = error[[row.device == device for row in chosen]]
            known = {"mape": round(100 * float(np.abs(own).mean()), 1), "bias": round(100 * float(own.mean()), 1)}
            accuracy[f"{name} {device}"] = {**known, "rows": len(own)}
            off = f"{known['mape']:5.1f} % off, bias {known['bias']:+.1f} %"
            print(f"{name:14s} {device:18s} {len(own):3d} rows, {off}")
        seen = max(float(np.quantile(np.abs(np.log1p(error)), LEVEL)), tiles.spread_unseen)
        spread[name] = {"seen": round(seen, 4), "unseen": round(math.hypot(seen, tiles.spread_unseen), 4)}
    if asked.write:
        document = {
            "schema": _constants.SCHEMA, "kind": "scan", "constants": {}, "spread": spread,
            "provenance": {
                "fitted by": "validation/fit/physical_scan.py", "inputs": ["validation/data/scans.py"],
                "source": "QwenLM/FlashQLA benchmark results (MIT), MoonshotAI/FlashKDA BENCHMARK_H20.md (MIT)",
                "tiles": "moe.json, family triton", "launches": "stream.json, class elementwise", "accuracy": accuracy,
            },
        }  # fmt: skip
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
