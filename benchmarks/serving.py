"""How fast serving is simulated: requests for each CPU second of the loop, what the tables take, and whole commands.

    python -m benchmarks.serving [--repeat 3] [--requests FOLDER] [--mooncake FILE] [--commands] [--json OUT]

Short requests (uniform 128 to 512 tokens, 20 to 1, 8 a second) and conversations (prompts and outputs log-normal, means
1,200 and 220, 3 a second), on one H100 with Llama-3-8B: in C++, with policies that are asked in Python by C++, and all
in Python; for engines whose steady decoding is played at once and for a policy that is asked for every step.  With
``--requests`` the files ``u512_n10000_q8.csv`` and ``conv_n500_q3.csv`` of that folder are served instead.  With
``--commands`` the commands of :data:`COMMANDS` run first, in processes of their own, the smallest CPU time and memory
of the repeats; with ``--mooncake`` the trace
``conversation_trace.jsonl.gz`` with prefix caching on 16 replicas.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from triosim.hardware import catalog
from triosim.serving import native
from triosim.serving.engines.vllm import Vllm
from triosim.serving.fleet import play
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.kv_cache import KVCache, PrefixCache
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.request_files import load_requests
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
ONE = "serve llama-3-8b --device H100 --arrivals poisson:8 --lengths uniform:128-512"
COMMANDS = {
    "10,000 requests": f"{ONE} --requests 10000",
    "a million requests": f"{ONE} --requests 1000000",
    "ten million requests": f"{ONE} --requests 10000000",
    "100,000 on 64 replicas of SGLang": (
        "serve llama-3-8b --device H100 --engine sglang --replicas 64 --arrivals poisson:800 --lengths uniform:128-512 "
        "--requests 100000"
    ),
    "the highest rate": f"{ONE} --requests 10000 --slo tpot=p99:20ms --find rate",
    "200 fleets of eight replicas": (
        "serve llama-3-8b --device H100 --replicas 8 --arrivals poisson:40 --lengths uniform:128-512 --requests 2000 "
        "--slo ttft=p99:200ms,tpot=p99:20ms --sweep engine=vllm,sglang,trtllm,sarathi,orca "
        "router=round-robin,least-outstanding,two-choices,prefix-aware weights=bf16,fp8 kv-cache=bf16,fp8 "
        "memory-utilisation=0.5,0.6,0.7,0.8,0.9"
    ),
}
"""Whole commands, each with what it serves."""


def requests(kind: str, folder: Path | None) -> RequestTable:
    """Of a kind of traffic."""
    return traffic(*TRAFFIC[kind]) if folder is None else load_requests(folder / FILES[kind])


class Own(Vllm):
    """A user's policy, of which C++ knows nothing."""


def runs() -> list[tuple[str, bool, bool]]:
    """Engine, ``own`` for a user's, whether its steady decoding is played at once, and whether in C++."""
    core = [(name, ENGINES.get(name).steady, True) for name in native.ENGINES] if native.available() else []
    asked = [("own", True, True), ("own", False, True)] if native.available() else []
    alone = [*((name, True, False) for name in ("vllm", "vllm-2023", "sarathi")), ("own", False, False)]
    return [*core, *asked, *alone]


def mooncake(path: Path) -> float:
    """CPU seconds of serving the trace with prefix caching on 16 replicas, once it is read and steps are priced."""
    table = load_requests(path)
    kernels = ServingKernels(served_model("llama-3-8b"), catalog.accelerator("H100-SXM5-80GB"), PRECISIONS["bf16"])
    times = ModelTimes(kernels)
    times.ticks(StepShape(1, (), 1, 1, 1), 0)
    replicas = [
        Replica(number, ENGINES.get("vllm")(), PrefixCache(BLOCKS * 4, 16), times, 1 << 18) for number in range(16)
    ]
    begin = time.process_time()
    play(table, replicas, ROUTERS.get("prefix-aware")())
    return time.process_time() - begin


def command(words: str) -> tuple[float, float]:
    """CPU seconds and peak MB of a command, in a process of its own."""
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # as users start it
    typed = [sys.executable, "-m", "triosim", *words.split(), "--quiet"]
    process = subprocess.Popen(typed, stdout=subprocess.DEVNULL, env=plain)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words}: exit status {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Print a line for each engine and kind of traffic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs counts")
    parser.add_argument("--requests", type=Path, help="a folder of request files")
    parser.add_argument("--mooncake", type=Path, help="its conversation trace")
    parser.add_argument("--commands", action="store_true", help="whole commands too")
    parser.add_argument("--json", type=Path, help="also write the figures")
    options = parser.parse_args()
    found: dict[str, float] = {}
    # First: a process begins with the memory of the one that starts it.
    for name, words in COMMANDS.items() if options.commands else ():
        seconds, megabytes = map(min, zip(*(command(words) for _ in range(options.repeat)), strict=True))
        found[f"{name}_cpu_s"], found[f"{name}_mb"] = seconds, megabytes
        print(f"{name:48}{seconds:10.2f} CPU s{megabytes:8,.0f} MB")
    kernels = ServingKernels(served_model("llama-3-8b"), catalog.accelerator("H100-SXM5-80GB"), PRECISIONS["bf16"])
    times = ModelTimes(kernels)
    begin = time.process_time()
    times.ticks(StepShape(1, (), 1, 1, 1), 0)
    found["tables_cpu_s"] = time.process_time() - begin
    print(f"tables {found['tables_cpu_s']:.3f} CPU s")
    for kind in TRAFFIC:
        table = requests(kind, options.requests)
        for name, steady, core in runs():
            best = 0.0
            for _ in range(options.repeat):
                policy = Own() if name == "own" else ENGINES.get(name)()
                policy.steady = steady  # type: ignore[misc]
                blocks = BLOCKS * 16 // policy.block_tokens
                replica = Replica(0, policy, KVCache(blocks, policy.block_tokens), times, 8192)
                begin = time.process_time()
                play(table, [replica], ROUTERS.get("round-robin")(), core=core)
                best = max(best, len(table) / (time.process_time() - begin))
            where = "C++" if core and name in native.ENGINES else "asked by C++" if core else "Python"
            label = f"{kind} {name}, {where}{'' if steady else ', for every step'}"
            found[label] = best
            print(f"{label:48}{best:10,.0f} requests per CPU second")
    if options.mooncake:
        found["mooncake_cpu_s"] = min(mooncake(options.mooncake) for _ in range(options.repeat))
        print(f"{'Mooncake, prefix caching, 16 replicas':48}{found['mooncake_cpu_s']:10.2f} CPU s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
