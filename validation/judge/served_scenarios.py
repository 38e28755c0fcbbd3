"""The scenarios of the survey in which models are served: one request (I1), traffic (I2), caches (I3), several
models (I4), and what changes a step or a fleet (I5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from validation.judge.survey import Document, Figure, Published, Scenario

Of = Callable[[Sequence[Document]], float]


def _at(*path: str | int, at: int = 0, times: float = 1.0) -> Of:
    """A number in the result of a command, in another unit."""

    def of(found: Sequence[Document]) -> float:
        value: Any = found[at]
        for key in path:
            value = value[key]
        return times * float(value)

    return of


def _mean(quantity: str, at: int = 0, which: str = "mean", times: float = 1.0) -> Of:
    """Of a latency."""
    return _at("latency_s", quantity, which, at=at, times=times)


def _over(a: Of, b: Of) -> Of:
    return lambda found: a(found) / b(found)


def _ttft(at: int = 0) -> Of:
    return _at("ttft_s", at=at, times=1e3)


def _tpot(at: int = 0) -> Of:
    return _at("tpot_s", at=at, times=1e3)


def _decode_share(name: str, at: int = 0) -> Of:
    """Part of a decode, in percent."""
    return _over(_at("breakdown_s", "decode", name, at=at, times=100), _at("tpot_s", at=at))


def _first_where(a: Sequence[int], b: Sequence[int], names: Sequence[float]) -> Of:
    """The first of some batches at which one command's TPOT is no longer below another's, infinity if there is none."""

    def of(found: Sequence[Document]) -> float:
        for one, other, name in zip(a, b, names, strict=True):
            if found[one]["tpot_s"] >= found[other]["tpot_s"]:
                return name
        return float("inf")

    return of


def _best(commands: Sequence[int], names: Sequence[float], of: Callable[[int], Of], least: bool = False) -> Of:
    """The name of the command whose figure is the highest."""

    def best(found: Sequence[Document]) -> float:
        figures = [of(at)(found) for at in commands]
        return names[figures.index(min(figures) if least else max(figures))]

    return best


TABLE_8 = "the survey's table 8"
SEED_42 = "--tpot vidur --weights fp16 --interval off"
CHAT = '"prompt=lognormal:800,sigma=0.9,max=3500;output=lognormal:150,sigma=0.9,max=590"'
"""Lengths like those of Azure's conversations of 2023: means 1,150 and 210."""
BATCHES = (1, 16, 64, 256)
HALVES = ("H100-SXM5-80GB", "examples/serving/h100-mig-3g.40gb.toml")
"""A device, and a slice of it, of which it has two."""
DRAFTS = (1, 2, 4, 8)
SPECULATED = (
    'serve llama-2-70b --system dgx-h100 --idle-ok --tp 4 --interval off --arrivals users:{users} --lengths '
    '"prompt=fixed:512;output=fixed:256" --requests {requests}'
)  # fmt: skip
SPECULATE = "--speculate draft,model=llama-2-7b,tokens={tokens},acceptance=0.8"
TURNS = (
    "serve llama-2-70b {machine} --tp 2 --weights fp8 --max-length 32768 --kv-blocks 4000 --arrivals poisson:0.3 "
    '--lengths "prompt=fixed:2048;output=fixed:200" --turns 4,think=30s --requests 200 --interval off'
)
PREFIXES = (
    "serve qwen2.5-7b --device H100-SXM5-80GB --engine {engine} --arrivals poisson:8 --lengths "
    '"prompt=uniform:50-200;output=fixed:128" --shared-prefix 2048,share={share} --requests 1000 --interval off'
)
EIGHT_BITS = (
    'serve qwen2.5-72b --system dgx-h100 --idle-ok --tp 4 --arrivals poisson:2 --lengths '
    '"prompt=fixed:2048;output=fixed:512" --requests 500 --slo ttft=p99:2s,tpot=p99:50ms --find rate'
)  # fmt: skip
APART = (
    "serve llama-2-70b --system dgx-h100 --nodes 2 --tp 4 {roles} --router least-outstanding --arrivals poisson:8 "
    f"--lengths {CHAT} --requests 500 --slo ttft=p99:1s,tpot=p99:40ms --find rate"
)
SATURATED = (
    "serve llama-2-70b --system dgx-a100 --idle-ok --tp 4 --weights fp16 --engine {engine} --arrivals poisson:2 "
    f"--lengths {CHAT} --requests 1000 --slo ttft=p99:2s,tpot=p99:200ms --find rate"
)
PRESSED = (
    "serve llama-2-13b --device A100-SXM4-80GB --weights fp16 --arrivals poisson:12 --lengths "
    '"prompt=uniform:100-900;output=uniform:100-900" --requests 1000 --interval off --preemption {how}'
)


def _table_8(engine: str, e2e: float, p99: float, ttft: float, tpot: float) -> tuple[Figure, ...]:
    return (
        Figure("E2E, mean", _mean("e2e"), "s", Published(e2e, 0.05, TABLE_8)),
        Figure("E2E, P99", _mean("e2e", which="p99"), "s", Published(p99, 0.05, TABLE_8)),
        Figure("TTFT, mean", _mean("ttft", times=1e3), "ms", Published(ttft, 0.05, TABLE_8)),
        Figure("TPOT, mean", _mean("tpot", times=1e3), "ms", Published(tpot, 0.05, TABLE_8)),
    )


SERVED = (
    Scenario(
        "I1.1", "GPT-2 Large, one request, eager and from graphs",
        tuple(
            f"infer gpt2-large --device A100-SXM4-80GB --prompt 512 --output 128 --weights fp16 --batch-size {batch} "
            f"--host {host}"
            for batch in (1, 4) for host in ("graph", "eager")
        ),
        (Figure("from graphs, batch 1", _at("e2e_s"), "s"), Figure("eager, batch 1", _at("e2e_s", at=1), "s"),
         Figure("from graphs, batch 4", _at("e2e_s", at=2), "s"), Figure("eager, batch 4", _at("e2e_s", at=3), "s"),
         Figure("eager decoding: bound by launches",
                lambda found: 100 * (1 - _tpot(0)(found) / _tpot(1)(found)), "%", holds=lambda x: x > 0)),
        "In 16 bits; weights in 32 bits are not served.",
    ),
    Scenario(
        "I1.2", "GPT-3 2.7B, a prompt of 2,048 tokens, fused and unfused attention",
        tuple(
            f"infer gpt3-2.7b --device H100-SXM5-80GB --seq-len 2048 --precision float16 --batch-size {batch} "
            f"--attention {kernels}"
            for batch in (1, 8) for kernels in ("flash2", "unfused")
        ),
        (Figure("fused, batch 1", _at("iteration_time_s", times=1e3), "ms"),
         Figure("fused, batch 8", _at("iteration_time_s", at=2, times=1e3), "ms"),
         Figure("unfused over fused, batch 1", _over(_at("iteration_time_s", at=1), _at("iteration_time_s")), "x",
                holds=lambda x: x > 1),
         Figure("unfused over fused, batch 8", _over(_at("iteration_time_s", at=3), _at("iteration_time_s", at=2)), "x",
                holds=lambda x: x > 1)),
    ),
    Scenario(
        "I1.3", "Llama-2-7B on an A100, one request",
        tuple(
            f"infer llama-2-7b --device A100-SXM4-80GB --prompt {prompt} --output 256 --weights fp16"
            for prompt in (128, 1024, 3840)
        ),
        (Figure("TTFT, prompt of 128", _ttft(), "ms"), Figure("TTFT, prompt of 1,024", _ttft(1), "ms"),
         Figure("TTFT, prompt of 3,840", _ttft(2), "ms"), Figure("TPOT after 128", _tpot(), "ms"),
         Figure("TPOT over the bound of bandwidth", _over(_tpot(), lambda found: 1e3 * 13.476e9 / 2.039e12), "x",
                holds=lambda x: x >= 1)),
        "The bound is the time in which memory yields the weights, 6.6 ms.  Attention over the cache, the launch and "
        "the end of each kernel come on top.",
    ),
    Scenario(
        "I1.4", "Llama-2-13B on an H100, one request",
        ("infer llama-2-13b --device H100-SXM5-80GB --prompt 1024 --output 256 --weights fp16",),
        (Figure("TTFT", _ttft(), "ms"), Figure("TPOT", _tpot(), "ms"),
         Figure("TPOT over the bound of bandwidth", _over(_tpot(), lambda found: 1e3 * 26.03e9 / 3.352e12), "x",
                holds=lambda x: x >= 1),
         Figure("energy of the request", _at("energy", "request_j"), "J"),
         Figure("energy of an output token", _at("energy", "per_output_token_j"), "J"),
         Figure("power of the device", _at("energy", "mean_w_per_device"), "W", holds=lambda x: 226 <= x <= 700)),
        "Energy is the device's alone, without hosts and cooling.  Its power lies between what it draws at work "
        "whatever it computes and its TDP.",
    ),
    Scenario(
        "I1.5", "Qwen-2.5-72B over four devices, one request",
        ("infer qwen2.5-72b --system dgx-h100 --idle-ok --tp 4 --prompt 4096 --output 512",),
        (Figure("TTFT", _ttft(), "ms"), Figure("TPOT", _tpot(), "ms"),
         Figure("all-reduces of a decode", _decode_share("all_reduce"), "%"),
         Figure("one of its 160 all-reduces", _at("breakdown_s", "decode", "all_reduce", times=1e6 / 160), "us",
                Published(14, 0.43, "NCCL's and engines' own, 8 to 20 us"))),
    ),
    Scenario(
        "I2.1", "Llama-2-7B under vLLM of 2023, 2 requests a second, seed 42",
        (f"serve llama-2-7b --device A100-SXM4-80GB --engine vllm-2023 --requests examples/serving/survey-200.csv "
         f"{SEED_42}",),
        (*_table_8("vllm", 0.1767, 0.3136, 27.3, 9.35),
         Figure("delayed by others' prompts", _at("delayed_requests"), "", Published(53, 0.06, TABLE_8))),
        "The requests are those that Vidur draws.  Steps are priced from the datasheet; with Vidur's own step times "
        "(`python -m validation serving survey`) all of these are within 1 %, P99 within 2 %.",
    ),
    Scenario(
        "I2.2", "Llama-2-7B under Sarathi, 2 requests a second, seed 42",
        (f"serve llama-2-7b --device A100-SXM4-80GB --engine sarathi --engine-option max-tokens=512 --requests "
         f"examples/serving/survey-50.csv {SEED_42}",
         f"serve llama-2-7b --device A100-SXM4-80GB --engine vllm-2023 --requests examples/serving/survey-50.csv "
         f"{SEED_42}"),
        (*_table_8("sarathi", 0.1575, 0.2619, 24.7, 9.03),
         Figure("delayed by others' prompts", _at("delayed_requests"), "", holds=lambda x: x == 0),
         Figure("vLLM's E2E over Sarathi's, same requests", _over(_mean("e2e", 1), _mean("e2e")), "x",
                holds=lambda x: x > 1)),
        "As before.",
    ),
    Scenario(
        "I2.3", "Llama-2-70B over four devices: the highest rate",
        tuple(SATURATED.format(engine=engine) for engine in ("vllm-2023", "sarathi", "vllm")),
        (Figure("vLLM of 2023", _at("rate"), "requests/s"), Figure("Sarathi", _at("rate", at=1), "requests/s"),
         Figure("vLLM, version 1", _at("rate", at=2), "requests/s"),
         Figure("Sarathi's longest waits between tokens over those of vLLM of 2023, P99",
                _over(_mean("itl", 1, "p99"), _mean("itl", 0, "p99")), "x", holds=lambda x: x < 1)),
        "Lengths are like those of Azure's conversations.  Sarathi's chunk of 512 tokens costs rate under goals that "
        "look at means of a request, and keeps decodes from waiting.",
    ),
    Scenario(
        "I2.4", "Mixtral-8x7B over two devices: experts that are read as batches grow",
        (*(f"infer mixtral-8x7b --system dgx-h100 --idle-ok --tp 2 --prompt 1024 --output 256 --batch-size {batch}"
           for batch in (1, 4, 16, 64)),
         'serve mixtral-8x7b --system dgx-h100 --idle-ok --tp 2 --arrivals poisson:4 --lengths '
         '"prompt=fixed:1024;output=fixed:256" --requests 500 --slo ttft=p99:2s,tpot=p99:50ms --find rate'),
        (*(Figure(f"TPOT, batch {batch}", _tpot(at), "ms") for at, batch in enumerate((1, 4, 16, 64))),
         *(Figure(f"time of experts, batch {batch} over batch 1",
                  _over(_at("breakdown_s", "decode", "experts", at=at), _at("breakdown_s", "decode", "experts")), "x",
                  Published(8 * (1 - 0.75**batch) / 2, 0.15, f"8 (1 - (1 - 2/8)^{batch}) of 8 experts, over 2"))
           for at, batch in ((1, 4), (2, 16))),
         Figure("highest rate", _at("rate", at=4), "requests/s")),
        "Routing is uniform: how sensitive this is to imbalance cannot be asked yet.",
    ),
    Scenario(
        "I3.1", "Llama-2-13B above capacity: recomputing and swapping",
        tuple(PRESSED.format(how=how) for how in ("recompute", "swap")),
        (Figure("preemptions, recomputing", _at("preemptions")), Figure("preemptions, swapping",
                                                                       _at("preemptions", at=1)),
         Figure("E2E, P99, recomputing", _mean("e2e", which="p99"), "s"),
         Figure("E2E, P99, swapping", _mean("e2e", 1, "p99"), "s"),
         Figure("blocks in use at most", _at("kv_peak", times=100), "%", holds=lambda x: x > 99),
         Figure("rate, swapping over recomputing", _over(_at("requests_per_s", at=1), _at("requests_per_s")), "x")),
    ),
    Scenario(
        "I3.2", "Llama-2-70B, conversations: caches in host memory and in an idle device's",
        (*(TURNS.format(machine="--system dgx-h100 --idle-ok") + tier
           for tier in (" --prefix-caching on", " --kv-tier host:400GB", " --kv-tier peer:40GB,device=2")),
         TURNS.format(machine="--device GH200-96GB") + " --kv-tier host:400GB"),
        (Figure("TTFT without", _mean("ttft", times=1e3), "ms"), Figure("host", _mean("ttft", 1, times=1e3), "ms"),
         Figure("idle device, 40 GB", _mean("ttft", 2, times=1e3), "ms"),
         Figure("host of a GH200", _mean("ttft", 3, times=1e3), "ms"),
         Figure("without over host", _over(_mean("ttft"), _mean("ttft", 1)), "x", holds=lambda x: x > 1),
         Figure("prompts found, host", _at("prefix_hit_rate", at=1, times=100), "%"),
         Figure("sent back from the host", _at("kv_loaded_bytes", at=1, times=2.0**-30), "GiB")),
        "Each turn adds 2,048 tokens, up to 8,992, past the model's 4,096; the device's cache is held to 4,000 blocks, "
        "and 40 GB hold fewer conversations than are under way.",
    ),
    Scenario(
        "I3.3", "Qwen-2.5-7B, a system prompt of 2,048 tokens",
        tuple(PREFIXES.format(engine=engine, share=share) for share in (0, 0.5, 0.9) for engine in ("vllm", "sglang")),
        (*(Figure(f"TTFT, {said} of prompts share it, {name}", _mean("ttft", at, times=1e3), "ms")
           for at, said, name in ((0, "none", "hashes"), (2, "half", "hashes"), (4, "nine of ten", "hashes"),
                                  (5, "nine of ten", "radix tree"))),
         Figure("found, nine of ten, hashes", _at("prefix_hit_rate", at=4, times=100), "%"),
         Figure("radix tree's over hashes'", _over(_at("prefix_hit_rate", at=5), _at("prefix_hit_rate", at=4)), "x",
                Published(1.0, 0.005, "both hold all of it")),
         Figure("TTFT, none over nine of ten", _over(_mean("ttft"), _mean("ttft", 4)), "x", holds=lambda x: x > 1)),
    ),
    Scenario(
        "I4.1", "Llama-2-7B and SDXL, each in half of an H100",
        (*(f"infer sdxl --device {device} --batch-size 2 --precision float16" for device in HALVES),
         *(f"serve llama-2-7b --device {device} --weights fp16 --arrivals poisson:4 --lengths "
           '"prompt=fixed:512;output=fixed:128" --requests 500 --slo ttft=p99:200ms,tpot=p99:12ms --interval off'
           for device in HALVES)),
        (Figure("SDXL's step, alone", _at("iteration_time_s", times=1e3), "ms"),
         Figure("slower in a slice", _over(_at("iteration_time_s", at=1), _at("iteration_time_s")), "x",
                holds=lambda x: 1 < x <= 132 / 60),
         Figure("Llama's TPOT, alone", _mean("tpot", 2, times=1e3), "ms"),
         Figure("slower in a slice", _over(_mean("tpot", 3), _mean("tpot", 2)), "x",
                Published(2.0, 0.15, "half of the memory's bandwidth")),
         Figure("Llama's TTFT, slower in a slice", _over(_mean("ttft", 3), _mean("ttft", 2)), "x"),
         Figure("requests within 200 ms and 12 ms a token, alone", _at("good_share", at=2, times=100), "%"),
         Figure("in a slice", _at("good_share", at=3, times=100), "%")),
        "Each has a slice of its own (MIG, 3g.40gb: 60 of 132 multiprocessors, half of memory, bandwidth and cache), "
        "and neither sees the other.  Kernels of both at a time on the same multiprocessors (MPS) are not modelled.",
    ),
    Scenario(
        "I4.2", "Three models on a server, each there while it is asked for",
        tuple(
            f"serve examples/serving/three-models-{which}.toml --requests examples/serving/three-models.jsonl "
            "--interval off" for which in ("always", "host", "drive")
        ),
        (Figure("TTFT, P99, all three always there", _mean("ttft", 0, "p99"), "s"),
         Figure("weights in host memory", _mean("ttft", 1, "p99"), "s"),
         Figure("weights on a drive of 7 GB/s", _mean("ttft", 2, "p99"), "s"),
         Figure("starts, host", _at("cold_starts", at=1)), Figure("starts, drive", _at("cold_starts", at=2)),
         Figure("GPU hours, host over always",
                _over(_at("dollars_per_million_tokens", at=1), _at("dollars_per_million_tokens")), "x",
                holds=lambda x: x < 1),
         Figure("drive over always",
                _over(_at("dollars_per_million_tokens", at=2), _at("dollars_per_million_tokens")), "x",
                holds=lambda x: x < 1),
         Figure("longest wait, host", _mean("queueing", 1, "max"), "s",
                Published(145.4e9 / 4 / 63e9, 0.15, "72B over four PCIe 5.0 x16 at their 63 GB/s")),
         Figure("longest wait, drive", _mean("queueing", 2, "max"), "s",
                Published(145.4e9 / 7e9, 0.15, "72B over 7 GB/s"))),
        "Qwen-2.5-7B has 70 % of the requests, Llama-2-13B 25 and Qwen-2.5-72B 5, one a second in all.  A model that "
        "nobody has asked for in ten seconds is given up; each has devices of its own, which others cannot use "
        "meanwhile.",
    ),
    Scenario(
        "I5.1", "Llama-2-70B with drafts of Llama-2-7B",
        (*(SPECULATED.format(users=1, requests=40) + " " + SPECULATE.format(tokens=tokens) for tokens in DRAFTS),
         SPECULATED.format(users=1, requests=40),
         SPECULATED.format(users=64, requests=256) + " " + SPECULATE.format(tokens=4),
         SPECULATED.format(users=64, requests=256)),
        (*(Figure(f"tokens a step, {drafts} drafts", _at("tokens_per_verification", at=at), "",
                  Published((1 - 0.8 ** (drafts + 1)) / 0.2, 0.02, "(1 - a^(g+1)) / (1 - a), a = 0.8"))
           for at, drafts in enumerate(DRAFTS)),
         Figure("faster decoding, 4 drafts, one user", _over(_mean("tpot", 4), _mean("tpot", 2)), "x"),
         Figure("best number of drafts, one user",
                _best(range(4), DRAFTS, lambda at: _mean("tpot", at), least=True)),
         Figure("faster decoding, 4 drafts, 64 users", _over(_mean("tpot", 6), _mean("tpot", 5)), "x")),
        "Requests end within a step's drafts, which the closed form leaves out.  Trees of drafts are not modelled.",
    ),
    Scenario(
        "I5.2", "Llama-2-70B with weights in 4 bits",
        (*(f"infer llama-2-70b --system dgx-a100 --idle-ok --tp 4 --prompt 512 --output 256 --weights {weights} "
           f"--batch-size {batch}" for weights in ("w4a16", "fp16") for batch in BATCHES),
         "infer llama-2-70b --device A100-SXM4-80GB --prompt 512 --output 256 --weights w4a16 --batch-size 1",
         "infer llama-2-70b --device A100-SXM4-80GB --prompt 512 --output 256 --weights w4a16 --batch-size 128"),
        (Figure("TPOT on one device, batch 1", _tpot(8), "ms"), Figure("TPOT on one device, batch 128", _tpot(9), "ms"),
         Figure("memory of weights on one device", _at("memory", "weights_bytes", at=8, times=2.0**-30), "GiB"),
         Figure("faster than in 16 bits, four devices, batch 1", _over(_tpot(4), _tpot(0)), "x",
                Published(3.2, 0.22, "Marlin and AWQ, 2.5 to 3.9 x at batch 1 on one device")),
         *(Figure(f"batch {batch}", _over(_tpot(4 + at), _tpot(at)), "x")
           for at, batch in enumerate(BATCHES) if at),
         Figure("first of these at which 16 bits are as fast", _first_where(range(4), range(4, 8), BATCHES))),
        "In 16 bits the model needs two devices at least, and room for a cache beside.",
    ),
    Scenario(
        "I5.3", "Qwen-2.5-72B in 8 bits, cache too: the highest rate",
        (EIGHT_BITS, EIGHT_BITS + " --weights fp8 --kv-cache fp8"),
        (Figure("in 16 bits", _at("rate"), "requests/s"), Figure("in 8 bits", _at("rate", at=1), "requests/s"),
         Figure("8 bits over 16", _over(_at("rate", at=1), _at("rate")), "x",
                Published(1.55, 0.17, "vLLM's reports, 1.3 to 1.8 x")),
         Figure("TPOT at that rate, 8 bits over 16", _over(_mean("tpot", 1), _mean("tpot")), "x")),
    ),
    Scenario(
        "I5.4", "Llama-2-70B, prompts and decodes apart: four replicas of four devices",
        tuple(APART.format(roles=roles) for roles in (
            "--replicas 4", "--prefill-replicas 1 --decode-replicas 3", "--prefill-replicas 2 --decode-replicas 2",
            "--prefill-replicas 3 --decode-replicas 1")),
        (Figure("together", _at("rate"), "requests/s"),
         *(Figure(f"{n} prefill, {4 - n} decode", _at("rate", at=n), "requests/s") for n in (1, 2, 3)),
         Figure("best apart over together", lambda found: max(float(one["rate"]) for one in found[1:])
                / float(found[0]["rate"]), "x"),
         Figure("bytes sent for a prompt token", _over(_at("sent_bytes", at=2), _at("prompt_tokens", at=2)), "",
                Published(327_680, 0.02, "2 x 80 layers x 8 heads x 128 x 2 bytes")),
         Figure("until a cache has been sent, mean", _mean("transfer", 2, times=1e3), "ms")),
        "Goals are a TTFT of 1 s and a TPOT of 40 ms, P99 each.",
    ),
)  # fmt: skip
