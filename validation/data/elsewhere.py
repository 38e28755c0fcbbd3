"""Kernel times that others published, of devices or software that shaped no constant here: ``elsewhere.csv``.

Microseconds; where a source gives a rate they are worked out from it.  Of products the shape is rows x columns x terms;
of attention batch x heads x key heads x head x queries x keys, ``c`` where it is causal, ``b`` where gradients are
computed; of streams bytes read x written.  Sources:

* ``stas00 mamf``: github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS": the best of
  many shapes, means of 100.  Gaudi 2 shaped a constant and is left out.
* ``mag- gpu_benchmark``: github.com/mag-/gpu_benchmark, README: the best of many shapes.
* ``AMD MAF``: rocm.blogs.amd.com, "Measuring Max-Achievable FLOPs - Part 2": 750 W, hipBLASLt.
* ``xzwgit gpu-flops-bench``: github.com/xzwgit/gpu-flops-bench, README: cuBLASLt, the best size of a type, which is
  not told (8,192 here).
* ``zzc0721 database``: github.com/zzc0721/torch-performance-test-data, database.md: ``torch.mm``, the best of squares
  of 1,024 to 10,240 (8,192 here).  Other cards of that page chose the ratios of emulated types, and others
  (``squares.csv``) two constants of products.
* ``GB200 cuBLAS``: a public study of bf16 kernels on GB200 ("Level 9: Matching DeepGEMM Architecture"), column cuBLAS.
* ``aiconfigurator vLLM 0.20``: github.com/ai-dynamo/aiconfigurator, campaign_checkpoints (Apache-2.0): FlashInfer with
  TensorRT-LLM's kernels on Blackwell, FlashAttention-3 on H200.  Prefill of A100 and H200 is left out: rows are
  faster than the peak.  Blackwell's prefill was looked at when the joules of its kernels were chosen.
* ``tvm flash_perf``: github.com/apache/tvm, tl_doc/flash_perf.md: FlashAttention-2, 2,048 positions; batch and heads
  are not told (64 x 16 here, which fill the device).
* ``gau-nernst learn-cuda``: github.com/gau-nernst/learn-cuda, attention: ``F.sdpa`` by FlashAttention, at 400 W.
* ``zzc0721 issues``: the issues of the same, by size: 77 to 79, 96, 115, 120, 124, 126, 140, 161, 181, 185 and 200.
* ``pranjalssh fast.cu``, ``siboehm SGEMM_CUDA``, ``aredden hgemm`` (torch-cublas-hgemm): READMEs of these repositories,
  what is theirs to compare with: cuBLAS.  ``gau-nernst learn-cuda`` has products too: 02_matmul_sm80, 02_matmul_sm120
  (5090 at 400 W) and 02_matmul_sm100.
* ``chsasank device-benchmarks``: issue 16, float32.
* ``DeepGEMM PR 73``: github.com/deepseek-ai/DeepGEMM, its larger tiles, in blocks of 8 bits.
* ``liangan1 GPU_travel``: github.com/liangan1/GPU_travel, performance/flash-attn: FlashAttention-2; which A100 is not
  told (the SXM of 80 GB here).
* ``cuDNN frontend``: github.com/NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1, 28 September
  2026: cuDNN 9.27, gradients that are not deterministic; on A100 FlashAttention (its second version).
* ``FlashAttention-3``: arXiv:2407.08608, figures 5 and 6, heads of 128 without a mask: the bars of cuDNN, as read off
  them by others.
* ``BabelStream``: copies and triads in float64 as printed in public logs and guides.  That of MI300X chose what MI300's
  memory delivers, beside that of V100.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.kernels.work.attention import FAMILIES, AttentionCalls
from triosim.kernels.work.gemm import Gemm, gemm
from triosim.kernels.work.stream import CODE, Stream

TABLE = Path(__file__).with_name("elsewhere.csv")


class Published(NamedTuple):
    """A kernel that somebody measured.

    Attributes:
        source: whose it is.
        device: name in the catalog.
        kind: ``"product"``, ``"attention"`` or ``"stream"``.
        dtype: element type that is multiplied.
        shape: see the module.
        seconds: as measured.
    """

    source: str
    device: str
    kind: str
    dtype: str
    shape: str
    seconds: float


def read(path: Path) -> list[Published]:
    """The rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Published(
                row["source"],
                row["device"],
                row["kernel"],
                row["dtype"],
                row["shape"],
                1e-6 * float(row["microseconds"]),
            )
            for row in csv.DictReader(file)
        ]


def work(row: Published) -> Gemm | AttentionCalls | Stream:
    """What a row does, as the physical models take it."""
    sizes = np.array([float(x) for x in row.shape.rstrip("bc").split("x")])[:, None]
    if row.kind == "product":
        m, n, k = sizes
        return gemm(m, n, k, row.dtype, warm=True, tuned=row.dtype == "float8_e4m3fn")
    if row.kind == "stream":
        one, none = np.ones(1), np.zeros(1)
        return Stream(np.array([CODE["elementwise"]], np.int8), sizes[0], sizes[1], one, none, one)
    batch, heads, kv_heads, head, queries, keys = sizes
    yes, no, item = np.ones(1, bool), np.zeros(1, bool), np.full(1, DTYPE_BYTES[row.dtype], np.float64)
    serves = row.source.startswith("aiconfigurator")
    return AttentionCalls(
        batch, queries, keys, heads, kv_heads, head, head, np.zeros(1), yes if "c" in row.shape else no, no,
        yes if serves else no, yes if row.shape.endswith("b") else no, yes,
        np.array([DTYPE_CODE[row.dtype]], np.int8), item, item, np.array([FAMILIES.index("auto")], np.int8),
    )  # fmt: skip
