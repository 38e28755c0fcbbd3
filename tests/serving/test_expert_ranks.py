"""Devices with whole experts: the fullest of them, against tokens drawn one by one, and what a replica makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import triosim
from triosim.core.errors import InputError
from triosim.serving.deployment import Deployment, serve
from triosim.serving.expert_ranks import UNEVEN, ExpertRanks
from triosim.serving.kernel_times import NOTHING_MOVED, ServingKernels
from triosim.serving.model import PRECISIONS, ServedExperts, served_model
from triosim.serving.pool import Pool
from triosim.serving.pool_times import kernels_of
from triosim.serving.traffic import traffic

OF_DEEPSEEK = ServedExperts(256, 8, 2048, 2048)


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("tokens", [4, 16, 64, 512])
def test_the_fullest_of_drawn_choices_is_what_is_said(ranks: int, tokens: int) -> None:
    """Each token draws 8 different ones of 256 experts; the mean over 300 draws of all tokens."""
    random = np.random.default_rng(tokens * ranks)
    chosen = np.argpartition(random.random((300, tokens, 256)), 8, axis=2)[:, :, :8]  # (draws, tokens, choices)
    rank = chosen // (256 // ranks)
    rows = np.stack([(rank == r).sum(axis=(1, 2)) for r in range(ranks)])  # (ranks, draws)
    read = np.zeros((300, 256), bool)
    np.put_along_axis(read, chosen.reshape(300, -1), values=True, axis=1)
    touched = read.reshape(300, ranks, -1).sum(axis=2)
    of, n = ExpertRanks(ranks, skew=1.0), np.array([float(tokens)])
    assert float(of.rows(n, OF_DEEPSEEK)[0]) == pytest.approx(rows.max(axis=0).mean(), rel=0.13)
    assert float(of.touched(n, OF_DEEPSEEK)[0]) == pytest.approx(touched.max(axis=1).mean(), rel=0.13)


@pytest.mark.parametrize("ranks", [4, 8, 32])
def test_experts_that_some_tokens_prefer_fill_one_rank(ranks: int) -> None:
    """Popularity is drawn of 256 experts, gamma with the deviation that is said; the mean over 2,000 draws."""
    random = np.random.default_rng(ranks)
    popular = random.gamma(1 / UNEVEN**2, UNEVEN**2, (2000, 256))
    share = popular.reshape(2000, ranks, -1).sum(axis=2) / popular.sum(axis=1, keepdims=True)
    many = np.array([1e7])  # chance evens out
    fullest = float(ExpertRanks(ranks).rows(many, OF_DEEPSEEK)[0]) / (8 * 1e7)
    assert fullest == pytest.approx(share.max(axis=1).mean(), rel=0.12)


def test_ranks_of_eight_experts_are_as_far_apart_as_published() -> None:
    """A deviation of 492 rows about 1,024 on 32 ranks; the largest of so many nearly normal ones is 2.07 away."""
    fullest = float(ExpertRanks(32).rows(np.array([4096.0]), OF_DEEPSEEK)[0])
    assert fullest == pytest.approx(1024 + 2.07 * 492, rel=0.01)


def test_one_rank_has_all() -> None:
    n = np.array([1.0, 7.0, 1000.0])
    of = ExpertRanks()
    assert of.rows(n, OF_DEEPSEEK).tolist() == (8 * n).tolist()
    assert of.touched(n, OF_DEEPSEEK) == pytest.approx(np.maximum(256 * (1 - (1 - 8 / 256) ** n), 8))


def test_skew_moves_rows_to_the_fullest() -> None:
    n = np.array([1e6])
    even, skewed = (float(ExpertRanks(8, skew).rows(n, OF_DEEPSEEK)[0]) for skew in (1.0, 1.5))
    assert even == pytest.approx(1e6, rel=0.01)
    assert skewed == pytest.approx(1.5e6, rel=0.01)


def test_few_tokens_read_more_experts_of_one_device_and_long_prompts_fill_wider_products() -> None:
    """Mixed over all devices, 16 tokens read the same weights of each; whole, the fullest reads more than its part."""
    system, model = triosim.system("dgx-h200"), served_model("deepseek-v3")

    def seconds(tokens: int, **more: Any) -> float:
        own = Pool("deepseek-v3", system, tensor_parallel=8, weights="fp8", **more)
        return float(kernels_of(own, model, 0, NOTHING_MOVED).operators(np.array([float(tokens)]))["experts"][0])

    assert 1.1 * seconds(16) < 1.05 * seconds(16, expert_ranks=4) < seconds(16, expert_ranks=8) < 1.5 * seconds(16)
    even = seconds(16_384, expert_ranks=8, expert_skew=1.0)
    assert even < 0.9 * seconds(16_384)
    assert 1.2 * even < seconds(16_384, expert_ranks=8) < 1.5 * even
    assert seconds(16_384, expert_ranks=8, expert_skew=2.0) > 1.5 * even


def test_without_ranks_of_experts_all_devices_divide_each() -> None:
    """Kernels that no pool made, those of a drafter for one: a prompt's experts take an eighth on eight devices."""
    model, device, n = served_model("mixtral-8x7b"), triosim.system("dgx-h100").models[0], np.array([16_384.0])
    one, eight = (
        float(ServingKernels(model, device, PRECISIONS["bf16"], tensor_parallel=tp).operators(n)["experts"][0])
        for tp in (1, 8)
    )
    assert one / 9 < eight < one / 6


def test_a_replica_with_ranks_of_experts_serves() -> None:
    system, table = triosim.system("dgx-h200"), traffic("poisson:8", "uniform:64-512", 40, seed=3)
    how = {"tensor_parallel": 8, "weights": "fp8"}
    one, eight = (
        serve(Deployment((Pool("deepseek-v3", system, expert_ranks=ep, **how),)), table, interval=False)
        for ep in (1, 8)
    )
    assert one.to_dict()["plan"]["ep"] == 1
    assert eight.to_dict()["plan"]["ep"] == eight.to_dict()["pools"][0]["ep"] == 8
    assert eight.metrics.figures["requests"] == 40
    tpot = [found.metrics.distributions["tpot"].mean for found in (one, eight)]
    assert 1.02 * tpot[0] < tpot[1] < 1.3 * tpot[0]
    assert one.memory[0].blocks == eight.memory[0].blocks


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"expert_ranks": 3}, "use one of 1, 2, 4, 8"),
        ({"expert_ranks": 0}, "--ep"),
        ({"model": "llama-3-8b", "expert_ranks": 8}, "has none"),
        ({"tensor_parallel": 1, "attention_ranks": 8, "expert_ranks": 4}, "leave --ep out"),
        ({"expert_skew": 2.0}, "give --ep or --dp"),
        ({"expert_ranks": 4, "expert_skew": 5.0}, "to the 4 ranks"),
        ({"model": "deepseek-v2", "expert_ranks": 64, "tensor_parallel": 64}, "does not divide the 160 experts"),
    ],
)
def test_experts_that_cannot_be_shared_so_are_a_sentence(more: dict[str, Any], words: str) -> None:
    asked = {"model": "qwen3-30b-a3b", "tensor_parallel": 8, **more}
    own = Pool(system=triosim.system("dgx-h100", 8), **asked)
    with pytest.raises(InputError, match=words):
        serve(Deployment((own,), idle_ok=True), traffic("poisson:8", "uniform:64-128", 5), interval=False)
