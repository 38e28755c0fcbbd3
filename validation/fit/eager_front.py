"""What an engine of 2023 adds to a first token: ``EAGER_FRONT_S`` of ``serving/step_times.py``.

    python -m validation.fit.eager_front --data DIR

``DIR`` holds ``splitwise/dgx_a100.csv``.  Prompts of BLOOM-176B on eight A100, one at a time, are priced as those of
Llama-2-70B are (``python -m validation.judge.serving splitwise``), with what its tokens say of a launch; its biases by
distance, which its attention adds up, are left out.  What is missing of each first token is printed,
and the median up to 256 tokens: biases and other misses of attention grow with the square of a prompt, and from 4,096
tokens on more is missing than a constant.  Llama-2-70B, which judges it, is not looked at; that its prompts of up to
2,048 tokens lack 11 to 39 ms was known when that bound was chosen.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from validation.fit.eager_engine import DEVICES, LAYERS, single_requests

from triosim.composition.host import collective_seconds
from triosim.hardware.machine import system
from triosim.serving.communication import ReplicaCommunication
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, ServedHeads, ServedLayer, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.step_times import EAGER_ISSUE_S, StepShape, eager_host

WIDTH, HEADS, VOCABULARY = 14336, 112, 250880
"""Of BLOOM-176B (its configuration on Hugging Face)."""
MOST_TOKENS = 256


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with splitwise/")
    options = parser.parse_args()
    rows = single_requests(options.data)
    machine = system("dgx-a100")
    layer = ServedLayer(LAYERS, ServedHeads(HEADS, HEADS, WIDTH // HEADS), 4 * WIDTH)
    model = replace(
        served_model("gpt3-175b"),
        name="bloom-176b",
        width=WIDTH,
        vocabulary=VOCABULARY,
        longest=1 << 14,
        kinds=(layer,),
    )
    kernels = ServingKernels(model, machine.models[0], PRECISIONS["fp16"], tensor_parallel=DEVICES)
    times = ModelTimes(
        kernels, ReplicaCommunication(machine, DEVICES), graphs=False, issue_s=EAGER_ISSUE_S,
        collective_s=collective_seconds("large-model"), engine_host=eager_host(DEVICES),
    )  # fmt: skip
    missing: dict[int, list[float]] = {}
    for row in rows:
        prompt = int(row["prompt_size"])
        ours = times.ticks(StepShape(prompt, ((prompt, 0),), 0, 0, 1), 0) / 1e12
        missing.setdefault(prompt, []).append(float(row["prompt_time"]) * 1e-3 - ours)
    for prompt, own in sorted(missing.items()):
        print(f"{prompt:>5} tokens: {np.median(own) * 1e3:6.1f} ms missing, {len(own)} rows")
    short = [float(np.median(own)) for prompt, own in missing.items() if prompt <= MOST_TOKENS]
    print(f"median of {len(short)} lengths: {np.median(short) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
