"""Attention with sinks: tiles are those that the kernel goes through, and it serves whom vLLM has it serve."""

from __future__ import annotations

import math

import pytest

from triosim.hardware import catalog
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.triton_attention import KEYS, ROWS, runs_on, steps

A100 = "A100-SXM4-80GB"
CHUNKS = ((4000, 0), (700, 9000), (2048, 100))


def walked(tokens: int, cached: int, shared: int, window: int) -> int:
    """Tiles of each program, one after another, as the kernel finds where it begins and ends."""
    queries, found = ROWS // shared, 0
    for first in range(0, tokens, queries):
        last = cached + min(first + queries, tokens) - 1
        begin = max(cached + first - window + 1, 0) // KEYS if window else 0
        found += last // KEYS + 1 - begin
    return found


@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_tiles_are_those_of_each_program(chunk: tuple[int, int], window: int) -> None:
    exact = walked(*chunk, 8, window)
    assert steps([chunk], 0, 0.0, 8.0, window) == pytest.approx(exact, rel=0.1 if window else 0.01)


def test_calls_add_up_and_more_heads_than_rows_take_larger_tiles() -> None:
    each = [steps([chunk], 0, 0.0, 8.0) for chunk in CHUNKS]
    assert steps(CHUNKS, 0, 0.0, 8.0) == pytest.approx(sum(each))
    assert steps(CHUNKS, 5, 960.0, 8.0) - sum(each) == pytest.approx(5 * 30.5)
    assert steps(CHUNKS, 0, 0.0, 32.0) == pytest.approx(2 * steps(CHUNKS, 0, 0.0, 16.0))


def test_it_runs_where_flash_attention_2_does() -> None:
    assert runs_on(catalog.accelerator(A100))
    assert runs_on(catalog.accelerator("RTX-4090"))
    assert not any(runs_on(catalog.accelerator(name)) for name in ("H100-SXM5-80GB", "B200-SXM-180GB", "MI300X"))


def test_long_prompts_of_models_with_sinks_wait_for_it() -> None:
    def attention(name: str, device: str, own: bool, prompt: int = 32_000) -> float:
        kernels = ServingKernels(
            served_model(name), catalog.accelerator(device), PRECISIONS["bf16"], sinks_by_triton=own
        )
        return kernels.together([(2048, prompt - 2048)], 4, 1000.0)

    assert attention("gpt-oss-20b", A100, True) > 3 * attention("gpt-oss-20b", A100, False)
    for name, device in (("llama-3-8b", A100), ("gpt-oss-20b", "H100-SXM5-80GB")):
        assert attention(name, device, True) == attention(name, device, False)
    growth = attention("gpt-oss-20b", A100, True, 64_000) / attention("gpt-oss-20b", A100, True)
    assert math.log2(growth) == pytest.approx(1.0, abs=0.1)
