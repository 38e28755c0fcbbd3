"""Published measurements of serving: closed loops of users and queues of requests, as their sources tell them.

``served.csv`` holds them, a measurement a row; :data:`SOURCES` says where each is from, and what was assumed where a
source says nothing.  Rows and assumptions were written down before the first of them was predicted.  Rows from 155 on
also hold that first prediction (``first``: ``name=value/low/high`` with the 90 % interval, which those from 226 on
lack), of the package as it was when nothing had been looked at.

Rows from 226 on are of MLPerf Inference, a scenario of a submission each: Offline has all requests at once, or as many
as its client keeps in flight, and is judged by throughput; Server has Poisson arrivals at the rate of its log.  Their
prompts and outputs are those of OpenOrca as :data:`LENGTHS_SOURCE` tells.

Rows from 287 on are of eight more sources.  They were written down with their assumptions and predicted before they
were compared with anything; nothing had been changed for them.  Rows from 329 on are of a source before, as its page of
later had them; they were seen, and predicted as they had been, before kernels of 4-bit floats on Blackwell were known.
"""

from __future__ import annotations

import csv
from math import nan
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".csv")


class ServedSource(NamedTuple):
    """Where rows are from.

    Attributes:
        address: of the page.
        assumed: what it leaves open.
    """

    address: str
    assumed: str


RESULTS_41 = "https://github.com/mlcommons/inference_results_v4.1"
RESULTS_50 = "https://github.com/ntuhpc/mlperf_inference_results_v5.0, a copy of MLCommons'"
LENGTHS_SOURCE = (
    "https://github.com/FlashLab-MBZUAI/HBFSim (validation/calibration/h100-llama2-70b-calibration-protocol.json: "
    "prompts of 48 to 1,021 tokens, 222.3 in the mean)"
)
"""Of prompts; that they are lognormal with a sigma of 0.7 is assumed.  Outputs are lognormal by the logs of Server:
latencies, less the time to the first token and over the median time of a token, have their 50th, 90th, 95th, 97th and
99th percentile on one line (H200 of 4.1: 250, 523, 644, 740, 956 tokens, sigma 0.576), with the mean of the log, 291;
Krai's Llama 3.1 writes 296."""

SOURCES = {
    "silybench": ServedSource(
        "https://github.com/tgarg01/silybench-data (derived/csv/perf_points.csv, September 2026)",
        "users of 1, 16, 64 and 256 of each workload; fp8 is quantised as it is loaded; cache in 16 bits",
    ),
    "ROCm vLLM docker": ServedSource(
        "https://github.com/ROCm/vllm/blob/main/docs/dev-docker/README.md (vLLM 0.10.0)",
        "a batch that begins at once; cache in 16 bits (no --kv-cache-dtype); its throughput table is left out, which "
        "does not say whether prompts count",
    ),
    "TensorRT-LLM 1.0 overview": ServedSource(
        "https://github.com/NVIDIA/TensorRT-LLM (docs/source/performance/perf-overview.md of version 1.0)",
        "dense models in fp8, cache in fp8 as ModelOpt's checkpoints have it; 0.95 of the memory; prompts whole",
    ),
    "TensorRT-LLM 1.2 overview": ServedSource(
        "https://github.com/NVIDIA/TensorRT-LLM (docs/source/developer-guide/perf-overview.md of version 1.2)",
        "as above; DEP of N devices is N ranks of attention that share experts; GPT-OSS's cache in 16 bits on Hopper; "
        "GPT-OSS on Blackwell (rows from 329 on) is MXFP4; caches there in 8 bits, as its options have it; NVFP4 of "
        "dense models and Qwen3 30B on one device (rows from 337 on), its other columns are left out; as many requests "
        "at 1000/1000 as at 1024/1024",
    ),
    "InferenceX 870": ServedSource(
        "https://github.com/SemiAnalysisAI/InferenceX/issues/870 (DeepSeek-R1-0528, 1k/1k)",
        "lengths uniform in 0.8 to 1 of 1,024 and ten requests a user, as that benchmark has them elsewhere; no drafts",
    ),
    "InferenceX 1061": ServedSource(
        "https://github.com/SemiAnalysisAI/InferenceX/pull/1061 (GPT-OSS 120B, 1k/1k)", "as above"
    ),
    "InferenceX 1092": ServedSource(
        "https://github.com/SemiAnalysisAI/InferenceX/pull/1092 (GPT-OSS 120B, 1k/1k; 249 and 234 tokens/s a user)",
        "as above; seen and predicted while that GPU's kernel of weights of 4 bits was written; they chose nothing",
    ),
    "Vultr B200 sweep": ServedSource(
        "https://docs.vultr.com/inference-cookbook/cuda/optimization/concurrency-tuning (March 2026)",
        "cache in 16 bits; the sweep up to 256 users, its peak is a row of validation/data/states.py",
    ),
    "wmx L4 sweep": ServedSource("https://ai.wmx.dev/benchmarks", "ten requests a user"),
    "NIM 1.8 tables": ServedSource(
        "https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance.md (Llama-3.3-70B, NIM 1.8.0)",
        "TensorRT-LLM, cache in fp8, ten requests a user; an engine that was built, whose runtime schedules a step "
        "when the one before is over (said after the first predictions)",
    ),
    "GPUStack laboratory": ServedSource(
        "https://github.com/gpustack/gpustack/tree/main/docs/performance-lab (random prompts, all at once)",
        "outputs of equal length, as many tokens as were written; GPU memory as the servers take it by default",
    ),
    "GPUStack latency": ServedSource(
        "https://github.com/gpustack/gpustack/blob/main/docs/performance-lab/qwen3-8b/h100-latency.md",
        "ShareGPT: prompts and outputs of the mean length",
    ),
    "SGLang cookbook": ServedSource(
        "https://github.com/sgl-project/sgl-cookbook (Qwen3, DeepSeek-R1 and DeepSeek-V3.1 pages, late 2025)",
        "bench_serving's random lengths are uniform from 1 up; medians, as the first request of a server is slow; no "
        "drafts; cache in 16 bits",
    ),
    "tt-inference-server": ServedSource(
        "https://github.com/tenstorrent/tt-inference-server (issues 125, 143 and 340: references on GPUs, 2025)",
        "vLLM of those months, default options; H100 of SXM and A100 of 80 GB",
    ),
    "Oracle MI300X": ServedSource(
        "https://blogs.oracle.com/cloud-infrastructure/serving-llama-31-405b-model-with-amd-mi300x-gpus (October 2024)",
        "vLLM 0.6 with graphs, its steps as those of version 1; cache in 16 bits",
    ),
    "Qwen speed": ServedSource(
        "https://qwen.readthedocs.io/en/latest/getting_started/speed_benchmark.html (Qwen3-0.6B under SGLang 0.4.6)",
        "one request of 2,048 tokens, HTTP and tokenizer included",
    ),
    "Mistral 4090 sweep": ServedSource(
        "https://mushfiqrahman.dev/?p=1668 (Mistral 7B v0.3, February 2026)",
        "vLLM 0.15; outputs of 100 tokens, which is what rate by requests says, not the 128 asked for",
    ),
    "kvcached H100": ServedSource(
        "https://github.com/ovg-project/kvcached/pull/331 (row A, vLLM 0.19)", "all requests at once"
    ),
    "vLLM 43232": ServedSource(
        "https://github.com/vllm-project/vllm/pull/43232 (Qwen3-235B-A22B in fp8, B200)", "prompts share nothing"
    ),
    "vLLM recipes 431": ServedSource(
        "https://github.com/vllm-project/recipes/pull/431 (Qwen3Guard-Gen-8B, which is Qwen3-8B)",
        "one device; vLLM of April 2026",
    ),
    "MLPerf 4.1 NVIDIA": ServedSource(
        f"{RESULTS_41} (closed/NVIDIA, Google, Dell: llama2-70b; configs/llama2-70b of closed/NVIDIA)",
        "engines that were built, fed in process; as many requests at once as it says need MAX_UTILIZATION; other "
        "limits are the engine's; cache in fp8 as use_fp8 has it in version 5.0",
    ),
    "MLPerf 5.0 NVIDIA": ServedSource(
        f"{RESULTS_50} (closed/NVIDIA: llama2-70b-99; configs/llama2-70b/Offline of mlcommons/inference_results_v5.0)",
        "as above; prompts are cut, and requests pause when blocks run out (FlashLab-MBZUAI/HBFSim quotes both of its "
        "configuration); Server with Offline's limits; two pipeline stages on H100",
    ),
    "MLPerf 4.1 AMD": ServedSource(
        f"{RESULTS_41} (closed/AMD, Dell: llama2-70b; code/llama2-70b-99.9/test_VllmFp8)",
        "vLLM of mid-2024, its steps as those of version 1, fed in process; 768 requests at once as MangoBoost has",
    ),
    "MLPerf 5.0 AMD": ServedSource(
        f"{RESULTS_50} (closed/AMD: MI325X; closed/MangoBoost: four servers of MI300X, server_offline.sh)",
        "vLLM of late 2024, its steps as those of version 1; on MI325X as many requests as the cache holds; "
        "MangoBoost's cache in 16 bits, its default",
    ),
    "MLPerf 4.1 Red Hat": ServedSource(
        f"{RESULTS_41} (closed/RedHat: L40S, vLLM 0.5.1)",
        "two replicas of two devices on the host's links, PCIe 4.0; limits of the server by default; predicted after "
        "the others, as no link was said at first",
    ),
    "MLPerf 5.0 Krai": ServedSource(
        f"{RESULTS_50} (open/Krai: llama2-70b-fp8_dyn)",
        "limits of its commands; Offline keeps as many requests in flight as its clients have connections; cache in 16 "
        "bits; steps of version 0 as those of version 1",
    ),
    "MLPerf 5.1 Krai": ServedSource(
        "https://github.com/ntuhpc/inference_results_v5.1, a copy of MLCommons' (open/Krai: llama3_1-70b)",
        "as above; prompts as long as Llama 2's tokenizer makes them; TensorRT-LLM's cache in fp8",
    ),
    "SGLang-JAX cookbook": ServedSource(
        "https://github.com/sgl-project/sgl-cookbook (DeepSeek-V2-Lite on a TPU v6e-4)",
        "eight users, which is what rate and latency say; scheduling as SGLang's",
    ),
    "TensorRT-LLM 1.0 experts": ServedSource(
        "https://github.com/NVIDIA/TensorRT-LLM (docs/source/performance/perf-overview.md of version 1.0)",
        "its mixtures of experts at the four lengths that the dense rows have: TP8 with enable_attention_dp, as its "
        "options for them say, is eight ranks of attention that share experts; 0.95 of the memory; prompts whole",
    ),
    "TensorRT-LLM 0.17 overview": ServedSource(
        "https://github.com/NVIDIA/TensorRT-LLM (docs/source/performance/perf-overview.md of version 0.17)",
        "engines that were built, whose runtime schedules a step when the one before is over; cache in fp8 with "
        "weights in fp8; GH200 of 480 GB has 96 GB of HBM3; limits as of later versions, on GH200 too, where another "
        "program ran",
    ),
    "TensorRT-LLM 0.14 online": ServedSource(
        "the same page: Triton's backend of version 0.14 (Llama 3.1 in BF16, 500 requests)",
        "as above; limits of its server; arrivals are Poisson, INF is all at once",
    ),
    "LLM-Inference-Bench": ServedSource(
        "https://github.com/argonne-lcf/LLM-Inference-Bench (Plots/Fig_22/all_results_TTFT_ITL.csv: 16 prompts of "
        "1,024 tokens that begin together, 1,024 tokens of output)",
        "vLLM of mid-2024 in process, TensorRT-LLM 0.10; 16 bits; A100 of 40 GB, H100 of SXM",
    ),
    "LMDeploy A100": ServedSource(
        "https://github.com/InternLM/lmdeploy/blob/main/docs/en/benchmark/a100_fp16.md (TurboMind 0.1.0a1, static)",
        "no engine here has that name: TensorRT-LLM's that was built stands in, in process; a batch begins at once",
    ),
    "SGLang 31044": ServedSource(
        "https://github.com/sgl-project/sglang/pull/31044 (MiniMax-M2.7 on MI300X)",
        "layers as MiniMax-M2's; prompts and outputs all of 1,000 tokens, ten requests a user",
    ),
    "SGLang 6681": ServedSource(
        "https://github.com/sgl-project/sglang/issues/6681 (Qwen2.5-32B on two H20)", "512 users, not 128 a second"
    ),
    "vLLM 17788": ServedSource(
        "https://github.com/vllm-project/vllm/issues/17788 (Qwen3-32B on an H100 NVL, ShareGPT)",
        "lengths lognormal, with the means that are told",
    ),
    "inference-bench": ServedSource(
        "https://github.com/ree2raz/inference-bench (README: Qwen2.5-7B on L4 and A100 80 GB, vLLM 0.8.5)",
        "prompts of 200 tokens, which its README says about; ten requests a user",
    ),
}
"""By the name that rows have."""
BENCH_SOURCES = (
    "TensorRT-LLM 1.0 overview", "TensorRT-LLM 1.2 overview", "TensorRT-LLM 1.0 experts", "TensorRT-LLM 0.17 overview",
)  # fmt: skip
"""Whose steps have the limits of :mod:`validation.data.trtllm_bench`, which were looked up after the first predictions
of the first two: these took those of the server, 8,192 tokens and 2,048 requests."""
MEASURED = ("ttft_ms", "tpot_ms", "ttft_p99_ms", "tpot_p99_ms", "itl_ms", "latency_s", "rate")
"""What may be measured: rate is output tokens a second of all devices; the times are means or medians,
but for those of the 99th percentile."""


class ServedRow(NamedTuple):
    """One measurement.

    Attributes:
        number: of the row; odd ones judge.
        source: a key of :data:`SOURCES`.
        model, device: by name.
        devices, ranks: of tensor parallelism, and of attention apart.
        weights, kv: types of weights and of the cache.
        engine, version: what serves.
        options: of the pool (``utilisation``, ``front``: seconds of the front end, ``ep``: ranks of experts), of the
            machine (``link``) and of the engine.
        arrivals: as ``--arrivals`` has them.
        prompt, output: tokens, fixed, ``LEAST-MOST`` or as ``--lengths`` has one side.
        requests: how many.
        stages, replicas: of the pipeline, and copies of the model.
        statistic: ``mean`` or ``median``.
        measured: by name of :data:`MEASURED`.
        first: what was first predicted of these, with the ends of its 90 % interval (not a number where nobody asked
            for them); empty of rows before 155.
    """

    number: int
    source: str
    model: str
    device: str
    devices: int
    ranks: int
    weights: str
    kv: str
    engine: str
    version: str
    options: dict[str, str]
    arrivals: str
    prompt: str
    output: str
    requests: int
    stages: int
    replicas: int
    statistic: str
    measured: dict[str, float]
    first: dict[str, tuple[float, float, float]]


def read() -> list[ServedRow]:
    """All rows."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        ServedRow(
            number, row["source"], row["model"], row["device"], int(row["devices"]), int(row["ranks"]), row["weights"],
            row["kv"], row["engine"], row["version"], dict(o.split("=") for o in row["options"].split()),
            _arrivals(row["users"], row["requests"]), row["prompt"], row["output"], int(row["requests"]),
            int(row["stages"]), int(row["replicas"]), row["statistic"],
            {name: float(row[name]) for name in MEASURED if row[name]}, _first(row["first"]),
        )
        for number, row in enumerate(rows, 1)
    ]  # fmt: skip


def _arrivals(users: str, requests: str) -> str:
    """Of users in a closed loop, where 0 are all requests at once, or as ``--arrivals`` has them."""
    return users if ":" in users else f"users:{users}" if int(users) else f"burst:{requests}"


def _first(text: str) -> dict[str, tuple[float, float, float]]:
    found: dict[str, tuple[float, float, float]] = {}
    for word in text.split():
        name, values = word.split("=")
        value, *ends = map(float, values.split("/"))
        low, high = ends or (nan, nan)
        found[name] = value, low, high
    return found
