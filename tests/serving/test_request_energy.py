"""Joules of a request: parts by hand, and laws."""

from __future__ import annotations

import pytest

from triosim.core.dtypes import DTYPE_CODE
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import device_energy
from triosim.hardware import catalog
from triosim.hardware.machine import system
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.one_request import OneRequest, infer
from triosim.serving.pool import Pool
from triosim.serving.request_energy import RequestEnergy, StepLoad, request_energy
from triosim.serving.request_energy import work_of as work_of_load
from triosim.serving.step_times import StepShape

H100 = catalog.accelerator("H100-SXM5-80GB")
LLAMA = served_model("llama-3-8b")
KERNELS = ServingKernels(LLAMA, H100, PRECISIONS["bf16"])


def work_of(kernels: ServingKernels, step: StepShape) -> tuple[float, float]:
    return work_of_load(kernels, StepLoad.of(step))


def found(output: int = 64, batch: int = 1, tp: int = 1, **pool: object) -> OneRequest:
    machine = system(device="H100-SXM5-80GB", devices=tp)
    return infer(Pool("llama-3-8b", machine, tensor_parallel=tp, **pool), 512, output, batch)  # type: ignore[arg-type]


def energy(of: OneRequest) -> RequestEnergy:
    assert of.energy is not None
    return of.energy


def test_work_of_a_decode_by_hand() -> None:
    flop, moved = work_of(KERNELS, StepShape(1, (), 1, 1000, 1))
    products = 32 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336)
    head = 4096 * 128256
    assert flop == 2 * (products + head) + 4 * 32 * 4096 * 1000
    assert moved == pytest.approx(2 * (products + head) + 131072 * 1001, rel=2e-3)  # activations are a thousandth
    prompt, _ = work_of(KERNELS, StepShape(100, ((100, 0),), 0, 0, 1))
    assert prompt == 2 * (100 * products + head) + 4 * 32 * 4096 * 5050


def test_experts_that_nobody_chooses_are_not_read() -> None:
    own = served_model("mixtral-8x7b")
    kernels = ServingKernels(own, H100, PRECISIONS["bf16"])
    one, all_of_them = (work_of(kernels, StepShape(n, (), n, n, n))[1] for n in (1, 1000))
    expert = 2.0 * own.layers * 3 * own.width * 14336
    assert 1.9 * expert < one - 2.0 * (own.linear_parameters - 4 * expert) < 2.1 * expert + 1e9
    assert all_of_them > 2.0 * own.linear_parameters


def test_latent_attention_by_hand() -> None:
    kernels = ServingKernels(served_model("deepseek-v3"), H100, PRECISIONS["fp8"])
    per_key = 61 * 2 * 128 * (2 * 512 + 64)  # heads meet the vector of a token, of which a part is the value too
    decodes = [work_of(kernels, StepShape(1, (), 1, keys, 1)) for keys in (1000, 3000)]
    assert decodes[1][0] - decodes[0][0] == 2000 * per_key
    assert decodes[1][1] - decodes[0][1] == pytest.approx(2000 * 70_272)
    prompts = [work_of(kernels, StepShape(10, ((10, cached),), 0, 0, 1))[0] for cached in (0, 500)]
    assert prompts[1] - prompts[0] == 61 * 2 * 128 * (128 + 64 + 128) * 5000


def test_windows_bound_what_is_attended_to() -> None:
    kernels = ServingKernels(served_model("gpt-oss-20b"), H100, PRECISIONS["mxfp4"])
    decodes = [work_of(kernels, StepShape(1, (), 1, keys, 1)) for keys in (1000, 3000)]
    assert decodes[1][0] - decodes[0][0] == 12 * 4 * 64 * 64 * 2000  # 12 of 24 layers see 128 positions at most
    chunk = work_of(kernels, StepShape(100, ((100, 100),), 0, 0, 1))[0]
    alone = work_of(kernels, StepShape(100, ((100, 0),), 0, 0, 1))[0]
    windowed = 28 * 100 + 28 * 29 // 2 + 72 * 128  # 101 to 128 positions, then 128
    assert chunk - alone == 12 * 4 * 64 * 64 * (100 * 100 + windowed - 5050)


def test_parts_of_a_step_by_hand() -> None:
    step = StepShape(1, (), 1, 1000, 1)
    flop, moved = work_of(KERNELS, step)
    draws = device_energy(H100, EnergyConstants())
    assert draws is not None
    whole = request_energy(KERNELS, [(step, 0.01)], 1, 1)
    assert whole is not None
    assert whole.parts_j == pytest.approx({
        "static": 0.01 * draws.static_w, "memory": moved * draws.memory_j_per_byte,
        "cache": moved * draws.cache_j_per_byte, "flop": flop * draws.flop_j[DTYPE_CODE["bfloat16"]],
    })  # fmt: skip
    assert whole.decode_j == 0
    hurried = request_energy(KERNELS, [(step, 1e-4)], 1, 1)  # faster than memory can: the TDP binds
    assert hurried is not None
    assert hurried.mean_w == pytest.approx(draws.tdp_w)


def test_a_request_adds_up() -> None:
    whole = energy(found())
    assert sum(whole.parts_j.values()) == pytest.approx(whole.prompt_j + whole.decode_j)
    low, high = whole.interval_j
    assert low < whole.prompt_j + whole.decode_j < high
    assert whole.prompt_j == pytest.approx(energy(found(output=1)).prompt_j)
    assert 100 < whole.mean_w <= 700


def test_batches_spend_less_on_a_token_and_devices_more() -> None:
    alone = energy(found()).per_token_j
    assert energy(found(batch=16)).per_token_j < alone / 4
    assert energy(found(tp=4)).per_token_j > alone
    assert energy(found(weights="fp8")).per_token_j < alone
