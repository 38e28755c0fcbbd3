"""How fast serving is simulated: requests for each CPU second of the loop, and what the tables take.

    python -m benchmarks.serving [--repeat 3] [--requests FOLDER] [--json OUT]

Short requests (uniform 128 to 512 tokens, 20 to 1, 8 a second) and conversations (prompts and outputs log-normal, means
1,200 and 220, 3 a second), on one H100 with Llama-3-8B: in C++, and in Python for engines whose steady decoding is
played at once and for a policy that is asked for every step.  With ``--requests`` the files ``u512_n10000_q8.csv`` and
``conv_n500_q3.csv`` of that folder are served instead.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from triosim.hardware import catalog
from triosim.serving import native
from triosim.serving.fleet import play
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.kv_cache import KVCache
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.request_files import read
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.step_times import StepShape
from triosim.serving.traffic import traffic

TRAFFIC = {
    "short": ("poisson:8", "uniform:128-512", 10_000),
    "conversation": (
        "poisson:3",
        "prompt=lognormal:800,sigma=0.9,max=3500;output=lognormal:150,sigma=0.9,max=590",
        1000,
    ),
}
FILES = {"short": "u512_n10000_q8.csv", "conversation": "conv_n500_q3.csv"}
BLOCKS = 7424


def requests(kind: str, folder: Path | None) -> RequestTable:
    """Of a kind of traffic."""
    return traffic(*TRAFFIC[kind]) if folder is None else read(folder / FILES[kind])


def runs() -> list[tuple[str, bool, bool]]:
    """Engine, whether its steady decoding is played at once, and whether in C++."""
    core = [(name, True, True) for name in native.ENGINES] if native.available() else []
    return [*core, *((name, True, False) for name in ("vllm", "vllm-2023", "sarathi")), ("vllm", False, False)]


def main() -> None:
    """Print a line for each engine and kind of traffic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs counts")
    parser.add_argument("--requests", type=Path, help="a folder of request files")
    parser.add_argument("--json", type=Path, help="also write the figures")
    options = parser.parse_args()
    kernels = ServingKernels(served_model("llama-3-8b"), catalog.accelerator("H100-SXM5-80GB"), PRECISIONS["bf16"])
    times = ModelTimes(kernels)
    begin = time.process_time()
    times.ticks(StepShape(1, (), 1, 1, 1), 0)
    found: dict[str, float] = {"tables_cpu_s": time.process_time() - begin}
    print(f"tables {found['tables_cpu_s']:.3f} CPU s")
    for kind in TRAFFIC:
        table = requests(kind, options.requests)
        for name, steady, core in runs():
            best = 0.0
            for _ in range(options.repeat):
                policy = ENGINES.get(name)()
                policy.steady = steady  # type: ignore[misc]
                blocks = BLOCKS * 16 // policy.block_tokens
                replica = Replica(0, policy, KVCache(blocks, policy.block_tokens), times, 8192)
                begin = time.process_time()
                play(table, [replica], ROUTERS.get("round-robin")(), core=core)
                best = max(best, len(table) / (time.process_time() - begin))
            label = f"{kind} {name}, {'C++' if core else 'Python'}{'' if steady else ', asked for every step'}"
            found[label] = best
            print(f"{label:48}{best:10,.0f} requests per CPU second")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
