"""Families of models as serving engines see them, mixtures of experts among them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.command import run
from triosim.hardware import catalog
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, served_model

DEVICE = catalog.accelerator("H100-SXM5-80GB")


@pytest.mark.parametrize(
    ("name", "norms", "head_norms", "gated"),
    [
        ("llama-3-8b", 2, False, True), ("qwen2.5-7b", 2, False, True), ("qwen3-8b", 2, True, True),
        ("mistral-7b", 2, False, True), ("falcon-7b", 1, False, False), ("opt-6.7b", 2, False, False),
    ],
)  # fmt: skip
def test_dense_decoders_are_served(name: str, norms: int, head_norms: bool, gated: bool) -> None:
    model = served_model(name)
    assert (model.norms, model.head_norms, model.gated, model.experts) == (norms, head_norms, gated, None)
    # what is not in the layers' products is embedding, head, norms and biases
    ends = model.width * model.vocabulary * (1 if model.tied else 2)
    assert 0 <= model.parameters - model.linear_parameters - ends < 0.03 * model.parameters
    operators = ServingKernels(model, DEVICE, PRECISIONS["bf16"]).operators([1.0])
    assert ("head_norm" in operators) == head_norms
    assert ("post_norm" in operators) == (norms > 1)


@pytest.mark.parametrize(
    ("name", "count", "chosen", "shared"),
    [("mixtral-8x7b", 8, 2, 0), ("qwen3-30b-a3b", 128, 8, 0), ("qwen1.5-moe-a2.7b", 60, 4, 5632)],
)
def test_mixtures_of_experts_are_served(name: str, count: int, chosen: int, shared: int) -> None:
    model = served_model(name)
    assert model.experts is not None
    assert (model.experts.count, model.experts.chosen, model.experts.shared) == (count, chosen, shared)
    ends = model.width * model.vocabulary * 2
    assert 0 <= model.parameters - model.linear_parameters - ends < 0.01 * model.parameters
    # memory holds all experts, activations those of a token
    assert model.inner_of_token == chosen * model.experts.inner + shared


def test_decoding_reads_the_experts_that_its_tokens_touch() -> None:
    """One token reads two of eight; B tokens 8 (1 - (3/4)^B); the time over the bandwidth follows that law."""
    model = served_model("mixtral-8x7b")
    kernels = ServingKernels(model, DEVICE, PRECISIONS["bf16"])
    tokens = np.array([1.0, 2.0, 3.0, 4.0, 6.0])  # few enough for small tiles
    seconds = kernels.operators(tokens)["experts"]
    touched = 8 * (1 - 0.75**tokens)
    per_expert = 3 * model.width * model.inner * 2.0 / DEVICE.memory_bandwidth
    assert (seconds > touched * per_expert).all()
    growth = np.diff(seconds) / np.diff(touched)
    assert growth == pytest.approx(np.full(4, per_expert / 0.8), rel=0.1)


def test_fewer_bits_of_experts_take_less_time_and_memory() -> None:
    model = served_model("mixtral-8x7b")
    by_type = {name: ServingKernels(model, DEVICE, PRECISIONS[name]).operators([4.0])["experts"][0]
               for name in ("bf16", "fp8", "w4a16")}  # fmt: skip
    assert by_type["bf16"] > 1.5 * by_type["fp8"] > 1.5 * by_type["w4a16"]
    assert model.weight_bytes(PRECISIONS["fp8"]) < 0.55 * model.weight_bytes(PRECISIONS["bf16"])


def test_the_commands_take_experts() -> None:
    one = json.loads(
        run("infer", "mixtral-8x7b", "--system", "dgx-h100", "--tp", "2", "--idle-ok", "--prompt", "64", "--output",
            "8", "--json", "-").stdout
    )  # fmt: skip
    assert one["breakdown_s"]["decode"]["experts"] > one["tpot_s"] / 2
    fleet = json.loads(
        run("serve", "qwen3-30b-a3b", "--device", "H100-SXM5-80GB", "--arrivals", "poisson:4", "--lengths",
            "uniform:128-512", "--requests", "50", "--json", "-").stdout
    )  # fmt: skip
    assert fleet["requests"] == 50


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gemma2-9b", "has layers that differ"), ("phi3-mini", "window of 2047 tokens"),
        ("bloom-7b1", "biases by distance"), ("deepseek-v3", "a form of their own"),
    ],
)  # fmt: skip
def test_what_is_not_served_says_why(name: str, says: str) -> None:
    done = run("infer", name, "--device", "H100-SXM5-80GB", "--prompt", "9", "--output", "1", code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_adapters_of_experts_are_refused() -> None:
    done = run(
        "serve", "mixtral-8x7b", "--system", "dgx-h100", "--tp", "8", "--arrivals", "poisson:1", "--lengths",
        "fixed:100", "--requests", "3", "--lora", "4,rank=8,slots=2", code=2,
    )  # fmt: skip
    assert "has experts" in done.stderr
