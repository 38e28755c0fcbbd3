"""Published figures of served models that keep states of fixed size: a kernel that decodes, and closed loops of users.

Sources: vLLM, pull request 31722 (the kernel of vLLM before and after it, states in bfloat16 on an H200, heads of
Qwen3-Next on two and four devices); SGLang, pull requests 10404 and 10467 (Qwen3-Next-80B-A3B, 100 prompts of 1,000
tokens and outputs of 2,000, with tuned experts); Vultr, inference cookbook of March 2026 (Nemotron 3 Nano in fp8 under
vLLM 0.16, 2,048 and 512 tokens; the peak of a sweep of users).
"""

from __future__ import annotations

from typing import NamedTuple

UPDATES = {
    (4, 32): (19.87, 13.60), (4, 128): (52.06, 33.76), (4, 256): (94.24, 60.29), (4, 512): (177.73, 113.28),
    (4, 1024): (345.12, 215.12), (2, 32): (30.14, 20.29), (2, 128): (93.38, 59.17), (2, 256): (176.10, 111.14),
    (2, 512): (341.63, 212.70), (2, 1024): (672.48, 420.22),
}  # fmt: skip
"""Microseconds of ``fused_recurrent_gated_delta_rule_fwd`` before and after, by devices and sequences."""


class ServedLoop(NamedTuple):
    """Users of whom each sends a request when the one before is answered.

    Attributes:
        model, device, devices, weights, engine: what serves.
        users, prompt, output, requests: what is asked.
        rate: output tokens a second, as measured.
    """

    model: str
    device: str
    devices: int
    weights: str
    engine: str
    users: int
    prompt: int
    output: int
    requests: int
    rate: float


LOOPS = (
    ServedLoop("qwen3-next-80b-a3b", "H200-SXM-141GB", 2, "bf16", "sglang", 8, 1000, 2000, 100, 937.94),
    ServedLoop("qwen3-next-80b-a3b", "H200-SXM-141GB", 4, "bf16", "sglang", 8, 1000, 2000, 100, 1137.94),
    ServedLoop("qwen3-next-80b-a3b", "H200-SXM-141GB", 8, "bf16", "sglang", 8, 1000, 2000, 100, 1239.43),
    ServedLoop("qwen3-next-80b-a3b", "H20-SXM-96GB", 4, "bf16", "sglang", 32, 1000, 2000, 100, 2233.44),
    ServedLoop("qwen3-next-80b-a3b", "H20-SXM-96GB", 8, "bf16", "sglang", 32, 1000, 2000, 100, 2704.56),
    ServedLoop("nemotron-3-nano-30b-a3b", "B200-SXM-180GB", 2, "fp8", "vllm", 512, 2048, 512, 2048, 18829.0),
)
