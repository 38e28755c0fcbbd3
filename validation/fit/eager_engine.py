"""What an engine of 2023 takes to launch a kernel: ``EAGER_ISSUE_S`` of ``serving/step_times.py``.

    python -m validation.fit.eager_engine --data DIR

``DIR`` holds ``splitwise/dgx_a100.csv``.  Tokens of BLOOM-176B on eight A100, one request at a time, take what the
host does: its 70 layers launch 13 kernels each (in vLLM's ``bloom.py`` of then: two norms, four products, keys
stored, attention, GELU, two biases after all-reduces, two sums) and two all-reduces, a step five kernels more, and
between steps is the gap of several devices.  What is left for a kernel is printed of each row, and the median.
Llama-2-70B, which judges it (``python -m validation.judge.serving splitwise``), is not looked at.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from triosim.composition.host import collective_seconds
from triosim.serving.model_times import KERNELS_A_STEP
from triosim.serving.step_times import eager_host

LAYERS, KERNELS, REDUCES, DEVICES = 70, 13, 2, 8


def single_requests(folder: Path) -> list[dict[str, str]]:
    """Rows of BLOOM-176B, one request at a time, of ``splitwise/dgx_a100.csv`` in a folder."""
    with (folder / "splitwise" / "dgx_a100.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["model"] == "bloom-176b" and row["batch_size"] == "1"]


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with splitwise/")
    options = parser.parse_args()
    rows = single_requests(options.data)
    step, sequence = eager_host(DEVICES)[:2]
    beside = step + sequence + LAYERS * REDUCES * collective_seconds("large-model")
    found = []
    for row in rows:
        token = float(row["token_time"]) * 1e-3
        found.append((token - beside) / (LAYERS * KERNELS + KERNELS_A_STEP))
        print(
            f"{row['prompt_size']:>5} + {row['token_size']:>5} tokens: {token * 1e3:.1f} ms, {found[-1] * 1e6:.1f} us"
        )
    print(f"median of {len(found)}: {float(np.median(found)) * 1e6:.1f} us")


if __name__ == "__main__":
    main()
