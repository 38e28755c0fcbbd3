"""The scenarios of the 2026 survey of performance tools, each from the commands that a user would type.

    python -m validation scenarios [--only T3] [--write docs/scenarios.md] [--json FILE]

Each scenario is one command or a few; what was published of it stands beside what is predicted, with its source and the
difference that the survey's runner would let pass.  Figures without a published counterpart are printed only.  The
published figures of Llama-2 and DeepSeek are averages over months with everything that happened in them.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from validation import command
from validation.judge.image_scenarios import IMAGES
from validation.judge.served_scenarios import SERVED
from validation.judge.survey import Document, Figure, Published, Scenario

from triosim.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Shown:
    """What came of a scenario."""

    id: str
    title: str
    commands: tuple[str, ...]
    note: str
    rows: list[tuple[str, str, str, str, bool | None]] = field(default_factory=list)
    """Name, predicted, published, difference, whether it passes."""
    cpu_s: float = 0.0


# --- what figures are made of -----------------------------------------------------------------------------------------


def seconds(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Iteration time of a command."""
    return lambda found: float(found[at]["iteration_time_s"])


def tokens_per_device(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Tokens per second and device."""
    return lambda found: float(found[at]["throughput"]["tokens_per_s"]) / float(found[at]["plan"]["ranks"])


def mfu(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Part of the peak that the model's FLOP are."""
    return lambda found: 100 * float(found[at]["efficiency"]["mfu"])


def exposed(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Part of the iteration in which devices wait for transfers."""
    return lambda found: 100 * float(found[at]["breakdown_s"]["exposed_communication"]) / float(
        found[at]["iteration_time_s"]
    )  # fmt: skip


def memory(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """GiB that the fullest device reserves."""
    return lambda found: float(found[at]["memory"]["reserved_bytes"]) / 2**30


def activations(at: int = 0) -> Callable[[Sequence[Document]], float]:
    """GiB of activations at the peak."""
    return lambda found: float(found[at]["memory"]["categories"]["activation"]) / 2**30


def ratio(a: Callable[[Sequence[Document]], float], b: Callable[[Sequence[Document]], float]) -> Any:
    """One figure over another."""
    return lambda found: a(found) / b(found)


def part(kind: str, at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Seconds that a phase computes on all stages together, over those of all phases."""

    def of(found: Sequence[Document]) -> float:
        rows = found[at]["layers"]
        whole = sum(float(row["compute_s"]) for row in rows)
        return 100 * sum(float(row["compute_s"]) for row in rows if row["phase"] == kind) / whole

    return of  # fmt: skip


def over(axis: str, at: int = 0) -> Callable[[Sequence[Document]], float]:
    """Part of the iteration in which collectives over an axis are under way."""
    return lambda found: 100 * sum(
        float(row["seconds"]) for row in found[at]["collectives"] if row["axis"] == axis
    ) / float(found[at]["iteration_time_s"])  # fmt: skip


def efficiency(large: int, small: int) -> Callable[[Sequence[Document]], float]:
    """Throughput for each device, of many over few."""
    return lambda found: 100 * tokens_per_device(large)(found) / tokens_per_device(small)(found)


LLAMA_2 = "arXiv:2307.09288, table 2: GPU hours for 2e12 tokens, an average"
KORTHIKANTI = "arXiv:2205.05198, table 5"
A100 = "--stack megatron-2022 --precision float16 --seq-len 2048"

SCENARIOS = (
    Scenario(
        "T1.1", "GPT-2 XL, data parallel within a server",
        ("train gpt2-xl --system dgx-a100 --seq-len 1024 --global-batch-size 512 --micro-batches 8",),
        (Figure("iteration", seconds(), "s"), Figure("tokens/s and device", tokens_per_device()),
         Figure("exposed communication", exposed(), "%")),
    ),
    Scenario(
        "T1.2", "Llama-2-7B, ZeRO-1 within a server",
        ("train llama-2-7b --system dgx-h100 --seq-len 4096 --global-batch-size 128 --micro-batches 16 --zero 1 "
         "--recompute selective",),
        (Figure("iteration", seconds(), "s"),
         Figure("MFU", mfu(), "%", Published(44, 0.14, "public reports of 38 to 50 %")),
         Figure("memory", memory(), "GiB"), Figure("exposed communication", exposed(), "%")),
    ),
    Scenario(
        "T1.3", "Llama-2-7B, FSDP over 8 servers",
        ("train llama-2-7b --system dgx-a100 --nodes 8 --seq-len 4096 --global-batch-size 1024 --micro-batches 16 "
         "--zero 3",),
        (Figure("tokens/s and device", tokens_per_device(), "", Published(3014, 0.15, LLAMA_2)),
         Figure("exposed communication", exposed(), "%"), Figure("memory", memory(), "GiB")),
    ),
    Scenario(
        "T1.4", "Llama-2-13B, hybrid sharding over 16 servers",
        ("train llama-2-13b --system dgx-h100 --seq-len 4096 --global-batch-size 64 --micro-batches 8 --zero 3",
         "train llama-2-13b --system dgx-h100 --nodes 16 --seq-len 4096 --global-batch-size 1024 --micro-batches 8 "
         "--zero 3 --parallelism hsdp --parallelism-option dp-replicate=16"),
        (Figure("iteration", seconds(1), "s"), Figure("scaling from 8 to 128", efficiency(1, 0), "%"),
         Figure("exposed communication", exposed(1), "%")),
    ),
    Scenario(
        "T2.1", "GPT-3 22B, tensor parallel within a server",
        (f"train gpt3-22b --system dgx-a100 --tp 8 --batch-size 4 --recompute full {A100}",
         f"train gpt3-22b --system dgx-a100 --tp 8 --batch-size 4 --recompute selective --sequence-parallel {A100}"),
        (Figure("iteration, recomputing everything", seconds(), "s", Published(1.42, 0.1, KORTHIKANTI)),
         Figure("iteration, selective and sequence parallel", seconds(1), "s", Published(1.10, 0.1, KORTHIKANTI)),
         Figure("of computing: recomputation", part("recompute"), "%")),
    ),
    Scenario(
        "T2.2", "Llama-2-70B, tensor parallel within a server, optimizer on the host",
        ("train llama-2-70b --system dgx-h100 --tp 8 --seq-len 4096 --batch-size 1 --recompute selective "
         "--sequence-parallel --offload optimizer",),
        (Figure("iteration", seconds(), "s"), Figure("collectives over tp", over("tp"), "%"),
         Figure("memory", memory(), "GiB")),
    ),
    Scenario(
        "T2.3", "Qwen-2.5-72B, tensor parallel across servers",
        ("train qwen2.5-72b --system dgx-h100 --nodes 2 --tp 16 --seq-len 4096 --global-batch-size 8 "
         "--micro-batches 8 --sequence-parallel",
         "train qwen2.5-72b --system dgx-h100 --nodes 2 --tp 8 --pp 2 --seq-len 4096 --global-batch-size 8 "
         "--micro-batches 8 --sequence-parallel"),
        (Figure("tp 16", seconds(0), "s"), Figure("tp 8, pp 2", seconds(1), "s"),
         Figure("tp 16 over tp 8, pp 2", ratio(seconds(0), seconds(1)), "x", holds=lambda x: x > 1)),
        "Tensor parallelism that leaves the server must come out slower.",
    ),
    Scenario(
        "T3.1", "GPT-3 175B, tensor and pipeline parallel",
        (f"train gpt3-175b --system dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch-size 64 --micro-batches 64 "
         f"--recompute full --schedule interleaved-1f1b --schedule-option chunks=3 {A100}",
         f"train gpt3-175b --system dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch-size 64 --micro-batches 64 "
         f"--recompute full {A100}"),
        (Figure("iteration, 3 chunks", seconds(), "s", Published(18.13, 0.1, KORTHIKANTI)),
         Figure("iteration, 1F1B", seconds(1), "s"), Figure("MFU, 3 chunks", mfu(), "%")),
    ),
    Scenario(
        "T3.2", "The survey's worked example: Llama-2-70B, TP 8, PP 4, DP 2",
        ("train llama-2-70b --system dgx-a100 --nodes 8 --tp 8 --pp 4 --dp 2 --seq-len 4096 --global-batch-size 256 "
         "--micro-batches 128 --sequence-parallel --recompute selective",),
        (Figure("tokens/s and device", tokens_per_device(), "", Published(323, 0.15, LLAMA_2)),
         Figure("iteration", seconds(), "s"), Figure("MFU", mfu(), "%"), Figure("memory", memory(), "GiB")),
    ),
    Scenario(
        "T4.1", "Llama-2-13B, products in 8 bits",
        ("train llama-2-13b --system hgx-h100 --nodes 8 --tp 2 --zero 1 --seq-len 4096 --global-batch-size 1024 "
         "--micro-batches 32 --parallelism sequence --stack megatron-core",
         "train llama-2-13b --system hgx-h100 --nodes 8 --tp 2 --zero 1 --seq-len 4096 --global-batch-size 1024 "
         "--micro-batches 32 --parallelism sequence --stack megatron-core --quantize fp8-delayed"),
        (Figure("iteration in 8 bits", seconds(1), "s"), Figure("memory in 8 bits", memory(1), "GiB"),
         Figure("faster than in 16 bits", ratio(seconds(0), seconds(1)), "x",
                Published(1.4, 0.1, "Transformer Engine's public runs, 1.3 to 1.5 x end to end"))),
        "The published speed-ups are of several models; their middle stands here.",
    ),
    Scenario(
        "T4.2", "Llama-2-7B, adapters of rank 16",
        tuple(
            "train llama-2-7b --device A100-SXM4-80GB --seq-len 2048 --batch-size 16 --micro-batches 16" + adapters
            for adapters in (" --lora 16", " --lora 16,base=nf4", "")
        ),
        (Figure("samples/s", lambda found: 16 / seconds(0)(found), ""), Figure("memory", memory(0), "GiB"),
         Figure("memory, frozen weights in 4 bits", memory(1), "GiB"),
         Figure("memory of full training, which does not fit", memory(2), "GiB"),
         Figure("faster than full training", ratio(seconds(2), seconds(0)), "x", holds=lambda x: x > 1),
         Figure("4 bits over 16", ratio(seconds(1), seconds(0)), "x", holds=lambda x: x > 1)),
        "The survey names no published figure; it would measure one.",
    ),
    Scenario(
        "T4.3", "GPT-3 175B, sequence parallel and selective recomputation",
        (f"train gpt3-175b --system dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch-size 64 --micro-batches 64 "
         f"--recompute full --schedule interleaved-1f1b --schedule-option chunks=3 {A100}",
         f"train gpt3-175b --system dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch-size 64 --micro-batches 64 "
         f"--recompute selective --sequence-parallel --schedule interleaved-1f1b --schedule-option chunks=3 {A100}"),
        (Figure("iteration", seconds(1), "s", Published(13.75, 0.1, KORTHIKANTI)),
         Figure("faster than recomputing everything", lambda found: 100 * (seconds(0)(found) / seconds(1)(found) - 1),
                "%", Published(31.8, 0.1, KORTHIKANTI)),
         Figure("activations", activations(1), "GiB")),
    ),
    Scenario(
        "T4.4", "Qwen-2.5-7B, contexts of 131,072 tokens",
        tuple(
            "train qwen2.5-7b --system dgx-h100 --nodes 4 --tp 4 --sequence-parallel --cp 8 --seq-len 131072 "
            "--global-batch-size 8 --micro-batches 8 --recompute full --zero 1 "
            f"--cp-style {style} --stack megatron-core"
            for style in ("ring", "gather")
        ),
        (Figure("iteration, ring", seconds(0), "s"), Figure("iteration, gathering", seconds(1), "s"),
         Figure("gathering over ring", ratio(seconds(1), seconds(0)), "x", holds=lambda x: x > 1),
         Figure("exposed communication, ring", exposed(0), "%"), Figure("memory, ring", memory(0), "GiB")),
        "Four heads of keys over tp 4 leave one for each rank: Ulysses, which divides heads, refuses this job.  "
        "Megatron-Core is named because PyTorch, which merges a ring's blocks in float32, loses more by that than by "
        "gathering.",
    ),
    Scenario(
        "T4.5", "DeepSeek-V2, experts over 8 ranks",
        ("train deepseek-v2 --system hgx-h800 --nodes 8 --pp 8 --ep 8 --zero 1 --seq-len 4096 --global-batch-size 256 "
         "--micro-batches 32 --recompute full",
         "train deepseek-v2 --system hgx-h800 --nodes 8 --pp 8 --ep 8 --zero 1 --seq-len 4096 --global-batch-size 256 "
         "--micro-batches 32 --recompute full --parallelism-option imbalance=1.5"),
        (Figure("tokens/s and device", tokens_per_device(), "",
                Published(1607, 0.15, "arXiv:2405.04434, section 3.2.3: 172.8 K H800 hours for 1e12 tokens")),
         Figure("fullest rank with half as many tokens again", ratio(seconds(1), seconds(0)), "x")),
        "The published average is of another plan (its PP 16 with zero bubble), with kernels of its own.",
    ),
    Scenario(
        "T4.6", "DeepSeek-V3, experts over 64 ranks, 2,048 devices",
        ("train deepseek-v3-mtp --system hgx-h800 --nodes 256 --pp 16 --ep 64 --zero 1 --seq-len 4096 "
         "--global-batch-size 15360 --micro-batches 120 --recompute layernorm+moe_act+mla_up_proj "
         "--stack megatron-core --quantize fp8-block --optimizer adamw,moments=bfloat16 --schedule dualpipe "
         "--parallelism-option dispatch=deepep --parallelism-option node-limit=4 "
         "--parallelism-option dispatch-type=fp8",
         "train deepseek-v3-mtp --system hgx-h800 --nodes 256 --pp 16 --ep 64 --zero 1 --seq-len 4096 "
         "--global-batch-size 15360 --micro-batches 120 --recompute pointwise --stack megatron-core "
         "--quantize fp8-block",),
        (Figure("tokens/s and device", tokens_per_device(0), "",
                Published(1543, 0.15, "arXiv:2412.19437, table 1: 180 K H800 hours for 1e12 tokens")),
         Figure("exposed communication", exposed(0), "%"),
         Figure("memory", memory(0), "GiB"),
         Figure("1F1B, dispatch in 16 bits to each expert: tokens/s and device", tokens_per_device(1), ""),
         Figure("exposed communication", exposed(1), "%")),
        "As published (sections 3.2, 3.3 and 4.2): the next token but one is predicted too, whose block makes 62, "
        "so that the first and the last stage, with embedding and head, have three and the others four; DualPipe, "
        "dispatch in 8 bits to four servers at most, moments in 16 bits, norms, SwiGLU and up-projections run "
        "again. What SwiGLU reads is kept in 16 bits here, in 8 there, and what attention hands on in 16 and, for "
        "the product after it, in 8, there in 12. The published hours are those of a whole training, whose experts "
        "are not loaded alike.",
    ),
    *IMAGES,
    *SERVED,
)  # fmt: skip


# --- running ----------------------------------------------------------------------------------------------------------


def run(one: Scenario) -> Shown:
    """Run the commands of a scenario."""
    found: list[Document] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for at, command in enumerate(one.commands):
            path = Path(folder) / f"{at}.json"
            words = [sys.executable, "-m", "triosim", *shlex.split(command), "--json", str(path), "--quiet"]
            done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
            if done.returncode:
                raise SystemExit(f"{one.id}: triosim {command}\n{done.stderr}")
            found.append(json.loads(path.read_text(encoding="utf-8")))
    shown = Shown(one.id, one.title, one.commands, one.note, cpu_s=time.perf_counter() - began)
    for figure in one.figures:
        value = figure.of(found)
        said, off, good = _number(value, figure.unit), "", None
        if figure.published is not None:
            difference = value / figure.published.value - 1
            off, good = f"{100 * difference:+.1f} %", abs(difference) <= figure.published.within
            published = f"{_number(figure.published.value, figure.unit)} ({figure.published.source})"
        else:
            published = ""
            if figure.holds is not None:
                good = figure.holds(value)
        shown.rows.append((figure.name, said, published, off, good))
    return shown


def _number(value: float, unit: str) -> str:
    if value == float("inf"):
        return "none"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def text_of(found: Sequence[Shown]) -> str:
    """All scenarios as text."""
    lines = []
    for one in found:
        lines.append(f"{one.id}  {one.title}")
        for name, said, published, off, good in one.rows:
            mark = {None: " ", True: "+", False: "-"}[good]
            lines.append(f"  {mark} {name:48} {said:>12} {off:>9}  {published}".rstrip())
    judged = [good for one in found for *_, good in one.rows if good is not None]
    lines.append(f"{sum(judged)} of {len(judged)} figures with a published counterpart or a condition hold")
    return "\n".join(lines)


def page_of(found: Sequence[Shown]) -> str:
    """All scenarios as the page of the documentation."""
    text = [
        "# The scenarios of the 2026 survey\n",
        "A survey of 25 performance tools describes 36 scenarios, of which no tool ran more than a quarter.  All of",
        "them follow, each with the commands that were typed and what was published of it;",
        "`python -m validation.judge.scenarios --write docs/scenarios.md` writes this page.  Differences are of",
        "prediction over publication; *holds* says whether they are within what the survey's runner lets pass.",
        "Figures of Llama-2 and DeepSeek are averages over months, with everything that happened in them.\n",
    ]  # fmt: skip
    text += ["| | | figures that hold |", "|---|---|---|"]
    for one in found:
        judged = [good for *_, good in one.rows if good is not None]
        text.append(f"| {one.id} | {one.title} | {f'{sum(judged)} of {len(judged)}' if judged else 'none published'} |")
    text.append("")
    for one in found:
        text.append(f"## {one.id}: {one.title}\n")
        text.append("```console")
        text += [f"$ triosim {command}" for command in one.commands]
        text.append("```\n")
        if one.note:
            text.append(one.note + "\n")
        text += ["| | predicted | published | difference | holds |", "|---|---|---|---|---|"]
        for name, said, published, off, good in one.rows:
            text.append(f"| {name} | {said} | {published} | {off} | { {None: '', True: 'yes', False: 'no'}[good] } |")
        text.append("")
    return "\n".join(text)


def main() -> int:
    """Run all scenarios, or those whose number begins so."""
    parser = command.parser(__doc__)
    parser.add_argument("--only", default="", help="those whose number begins so, as T3")
    parser.add_argument("--write", type=Path, help="write the page of the documentation")
    options = parser.parse_args()
    chosen = [one for one in SCENARIOS if one.id.startswith(options.only)]
    if not chosen:
        raise InputError(f"no scenario begins with {options.only}: there are {', '.join(s.id for s in SCENARIOS)}")
    found = [run(one) for one in chosen]
    print(text_of(found))
    command.write(options.json, [asdict(one) for one in found])
    if options.write is not None:
        options.write.write_text(re.sub(r" +\n", "\n", page_of(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    command.run(main)
