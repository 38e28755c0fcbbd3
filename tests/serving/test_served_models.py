"""Families of models as serving engines see them, mixtures of experts among them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.command import run
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels.physical import moe
from triosim.kernels.physical._tables import device_of
from triosim.kernels.physical.kinds import price
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.moe import experts
from triosim.serving.kernel_times import NOTHING_MOVED, ServingKernels
from triosim.serving.model import PRECISIONS, default_weights, precision_of, served_model
from triosim.serving.one_request import infer
from triosim.serving.policy import ENGINES, fused_casts
from triosim.serving.pool import Pool
from triosim.serving.pool_times import priced_step_times
from triosim.serving.step_times import NO_HOST

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
    layer, attention = model.alike("nobody")
    assert (model.norms, attention.normed, model.gated, layer.experts) == (norms, head_norms, gated, None)
    # what is not in the layers' products is embedding, head, norms and biases
    ends = model.width * model.vocabulary * (1 if model.tied else 2)
    assert 0 <= model.parameters - model.linear_parameters - ends < 0.03 * model.parameters
    operators = ServingKernels(model, DEVICE, PRECISIONS["bf16"]).operators([1.0])
    assert ("head_norm" in operators) == head_norms
    assert ("post_norm" in operators) == (norms > 1)


@pytest.mark.parametrize(
    ("engine", "devices", "apart"),
    [
        ("vllm", 1, {"attention_output"}), ("sglang", 1, {"qkv", "attention_output", "up", "down"}),
        ("trtllm", 1, {"qkv", "up"}), ("trtllm", 2, set()),
    ],
)  # fmt: skip
def test_products_of_8_bits_are_cast_to_as_the_engine_does(engine: str, devices: int, apart: set[str]) -> None:
    """Of a dense layer in fp8 these products have a kernel of their own that casts; before others a kernel writes 8
    bits."""
    fused = fused_casts(engine)
    kernels = ServingKernels(
        served_model("qwen3-8b"), DEVICE, PRECISIONS["fp8"], tensor_parallel=devices, fused_casts=fused
    )
    tokens, model = np.array([2048.0]), kernels.model
    found = kernels.operators(tokens)
    for name, columns, inner in (
        ("qkv", 6144 / devices, 4096), ("attention_output", 4096, 4096 / devices), ("up", 24576 / devices, 4096),
        ("down", 4096, 12288 / devices),
    ):  # fmt: skip
        bare, cast = (
            price(replace(gemm(tokens, [columns], [inner], "float8_e4m3fn", casts=casts), b_bytes=np.ones(1)), DEVICE)
            for casts in (False, True)
        )
        assert found[name][0] == pytest.approx((cast if name in apart else bare).seconds[0])
        assert bare.seconds[0] < cast.seconds[0]
    halves = ServingKernels(model, DEVICE, PRECISIONS["bf16"], tensor_parallel=devices).operators(tokens)
    for name, after in (("input_norm", "qkv"), ("post_norm", "up"), ("activation", "down")):
        assert (found[name][0] < halves[name][0]) == (after not in apart)


def test_a_norm_that_a_router_reads_too_writes_16_bits() -> None:
    norms = [
        ServingKernels(served_model("qwen3-30b-a3b"), DEVICE, PRECISIONS[of], fused_casts=frozenset({"norm"}))
        for of in ("fp8", "bf16")
    ]
    assert len({float(kernels.operators([2048.0])["post_norm"][0]) for kernels in norms}) == 1


def test_fleets_that_share_step_times_do_not_take_those_of_engines_that_cast_otherwise() -> None:
    machine, model, priced = triosim.system(device="H100", devices=1), served_model("qwen3-8b"), {}
    found = [
        priced_step_times(
            Pool("qwen3-8b", machine, weights="fp8", engine=engine), model, DEVICE, 0, NOTHING_MOVED, NO_HOST, priced
        )
        for engine in ("vllm", "sglang")
    ]
    assert found[0].kernels.fused_casts != found[1].kernels.fused_casts


def test_kernels_that_no_engine_has_cannot_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES.get("vllm"), "fused_casts", frozenset({"norms"}))
    with pytest.raises(InputError, match=r"fused_casts has norms: give norm, all-reduce"):
        fused_casts("vllm")


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
    per_expert = 3 * model.width * model.kinds[0].experts.inner * 2.0 / DEVICE.memory_bandwidth
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
    [("bloom-7b1", "biases by distance"), ("flan-t5-small", "no decoder of text"), ("resnet50", "no decoder of text")],
)
def test_what_is_not_served_says_why(name: str, says: str) -> None:
    done = run("infer", name, "--device", "H100-SXM5-80GB", "--prompt", "9", "--output", "1", code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("family", "table", "says"),
    [
        ("longcat_flash", {"num_hidden_layers": 2}, "two attentions in a block"),
        ("gemma3n", {"num_hidden_layers": 5}, "embeddings of each layer"),
        (
            "gemma4",
            {"num_hidden_layers": 6, "hidden_size_per_layer_input": 0, "global_head_dim": 256, "enable_moe_block": True,
             "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64},
            "experts beside",
        ),
        (
            "zamba2",
            {"num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"]},
            "transformers that blocks share",
        ),
        ("modernbert", {"num_hidden_layers": 2}, "no decoder of text"),
    ],
)  # fmt: skip
def test_what_a_block_has_beside_its_parts_is_not_left_out(family: str, table: dict, says: str, tmp_path) -> None:
    file = tmp_path / "model.json"
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1024}
    file.write_text(json.dumps({"family": family, **sizes, **table}))
    with pytest.raises(InputError, match=says):
        served_model(str(file))


def test_adapters_of_experts_are_refused() -> None:
    done = run(
        "serve", "mixtral-8x7b", "--system", "dgx-h100", "--tp", "8", "--arrivals", "poisson:1", "--lengths",
        "fixed:100", "--requests", "3", "--lora", "4,rank=8,slots=2", code=2,
    )  # fmt: skip
    assert "has experts" in done.stderr


def test_halves_are_of_the_type_that_a_device_has_units_for() -> None:
    v100, tpu, k80 = (catalog.accelerator(name) for name in ("V100-SXM2-32GB", "TPU-v4", "K80"))
    assert [default_weights(device) for device in (v100, DEVICE, tpu, k80)] == ["fp16", "bf16", "bf16", "fp16"]
    model = served_model("llama-3.2-1b")
    half, asked = (ServingKernels(model, v100, PRECISIONS[name]) for name in ("fp16", "bf16"))
    assert (half.halves, asked.halves) == ("float16", "bfloat16")
    assert asked.layer([512.0])[0] > 3 * half.layer([512.0])[0]  # which cuBLAS converts to float32
    assert asked.prefill([512.0], [0.0])[0] > 3 * half.prefill([512.0], [0.0])[0]
    few = ServingKernels(model, v100, PRECISIONS["w4a16"])
    assert few.multiplied == "float16"
    assert few.layer([1.0])[0] < half.layer([1.0])[0]


def test_latent_attention_caches_one_vector_of_a_token() -> None:
    """DeepSeek-V3 caches 512 + 64 elements of a token and layer (arXiv:2412.19437, section 4.2), on every device whole;
    decodes read them once for all heads, as many bytes as that."""
    model = served_model("deepseek-v3")
    assert [(kind.count, kind.experts is None) for kind in model.kinds] == [(3, True), (58, False)]
    assert model.kv_bytes("bfloat16") == model.kv_bytes("bfloat16", 8) == 61 * 576 * 2
    assert round(model.parameters / 1e9) == 671
    kernels = ServingKernels(model, DEVICE, PRECISIONS["fp8"], tensor_parallel=8)
    keys, sequences = np.array([8192.0, 16384.0]), np.array([64.0, 64.0])
    read = sequences * keys * 576 * 2 / DEVICE.memory_bandwidth
    assert (kernels.decode(sequences, keys) > read).all()
    assert np.diff(kernels.decode(sequences, keys)) < 4 * np.diff(read)
    operators = kernels.operators([1.0])
    assert {"down", "latent_norm", "queries", "heads", "experts", "shared_up", "up"} <= set(operators)
    # a token's products read all weights but those of the experts that it does not take
    touched = model.linear_parameters - model.expert_parameters * (1 - 8 / 256)
    assert kernels.layer([1.0])[0] * 61 > touched / 8 / DEVICE.memory_bandwidth


def test_what_prompts_find_in_a_latent_cache_is_written_out_again() -> None:
    kernels = ServingKernels(served_model("deepseek-v2-lite"), DEVICE, PRECISIONS["bf16"])
    fresh, after = kernels.prefill([64, 64], [0, 4096])
    product = kernels._product(np.array([4096.0]), 16 * 256, 512)[0]
    assert after > fresh + product


def test_layers_with_a_window_read_no_more_than_that() -> None:
    """GPT-OSS: every second layer sees 128 positions, so that long decodes take half of what they would."""
    model = served_model("gpt-oss-20b")
    assert [kind.attention.window for kind in model.kinds] == [128, 0]
    kernels = ServingKernels(model, DEVICE, PRECISIONS["mxfp4"])
    short = replace(model.kinds[0].attention, window=0)
    everywhere = replace(model, kinds=tuple(replace(kind, attention=short) for kind in model.kinds))
    unlimited = ServingKernels(everywhere, DEVICE, PRECISIONS["mxfp4"])
    long = kernels.decode([32.0], [65536.0]) / unlimited.decode([32.0], [65536.0])
    assert 0.5 < long[0] < 0.52
    assert kernels.prefill([64], [0]) == pytest.approx(unlimited.prefill([64], [0]))


def test_gpt_oss_keeps_its_experts_alone_in_four_bits() -> None:
    """Checkpoints of 60.8 and 12.8 GiB (OpenAI, arXiv:2508.10925, Table 1)."""
    for name, gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        assert served_model(name).weight_bytes(PRECISIONS["mxfp4"]) / 2**30 == pytest.approx(gib, rel=0.01)
    dense = served_model("llama-3-8b")
    assert dense.weight_bytes(PRECISIONS["mxfp4"]) < 0.5 * dense.weight_bytes(PRECISIONS["bf16"])


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v2-lite"])
def test_kinds_that_are_alike_make_no_difference(name: str) -> None:
    model = served_model(name)
    halves = tuple(replace(kind, count=count) for kind in model.kinds for count in (1, kind.count - 1) if count)
    one, two = (ServingKernels(m, DEVICE, PRECISIONS["bf16"]) for m in (model, replace(model, kinds=halves)))
    assert two.layer([7.0]) == pytest.approx(one.layer([7.0]))
    assert two.decode([3.0], [999.0]) == pytest.approx(one.decode([3.0], [999.0]))
    assert two.together(((100, 5), (3, 80)), 4, 77.0) == pytest.approx(one.together(((100, 5), (3, 80)), 4, 77.0))
    assert two.launches == pytest.approx(one.launches)
    assert (two.model.layers, two.model.linear_parameters) == (one.model.layers, one.model.linear_parameters)
    assert two.model.weight_bytes(PRECISIONS["fp8"], 8, 1) == pytest.approx(
        one.model.weight_bytes(PRECISIONS["fp8"], 8)
    )


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "gpt-oss-20b", "gemma-3-12b", "llama-4-scout"])
def test_the_commands_take_layers_that_differ(name: str) -> None:
    fleet = json.loads(
        run("serve", name, "--system", "dgx-h100", "--tp", "4", "--replicas", "2", "--weights", "fp8", "--arrivals",
            "poisson:4", "--lengths", "uniform:128-512", "--requests", "30", "--json", "-").stdout
    )  # fmt: skip
    assert fleet["requests"] == 30
    done = run(
        "serve", name, "--device", "H200", "--arrivals", "poisson:4", "--lengths", "fixed:9", "--requests", "3",
        "--lora", "4", code=2,
    )  # fmt: skip
    assert "--lora does not know" in done.stderr


def test_weights_of_4_bits_are_turned_into_16_where_nothing_reads_them() -> None:
    """By hand: the call that ROCm/triton's issue 970 timed, of one token and four experts of 3072 x 6144."""
    device = catalog.accelerator("MI300X")
    call = experts(1, 4, 2944, 2944, 4, weight_dtype="float4_e2m1", family="upcast")
    seconds = float(moe._converted(call, device_of(device), np.array([4 * 24.0]), np.array([3072.0]))[0])
    assert seconds == pytest.approx(82.28e-6, rel=0.01)
    model = served_model("gpt-oss-120b")
    families = {
        name: ServingKernels(model, catalog.accelerator(name), precision_of("mxfp4"))._experts_family("float4_e2m1")
        for name in ("MI300X", "MI355X", "H100-SXM5-80GB", "B200-SXM-180GB", "RTX-5090")
    }
    assert families == {
        "MI300X": "upcast", "MI355X": "marlin", "H100-SXM5-80GB": "marlin", "B200-SXM-180GB": "native",
        "RTX-5090": "marlin",
    }  # fmt: skip
    batch = np.array([64.0, 256.0])
    as_if = replace(device, peak_flops=dict(device.peak_flops) | {"float4_e2m1": 1e15})
    slow, quick = (ServingKernels(model, one, precision_of("mxfp4")).layer(batch) for one in (device, as_if))
    assert (slow > 1.5 * quick).all()


def test_weights_of_nvidias_4_bits_weigh_and_multiply_less_but_for_the_head() -> None:
    """A B200: 9/16 of a byte an element with its scale, twice the rate of 8 bits in large products."""
    model, device, batch = served_model("llama-3.3-70b"), catalog.accelerator("B200-SXM-180GB"), np.array([16384.0])
    narrow, eight = (ServingKernels(model, device, precision_of(name)) for name in ("nvfp4", "fp8"))
    assert narrow.precision.weight_bytes == 0.5625
    assert 0.4 < narrow.operators(batch)["up"][0] / eight.operators(batch)["up"][0] < 0.75
    assert narrow.sampling(batch) == eight.sampling(batch)
    sizes = [model.weight_bytes(precision_of(name), 1) for name in ("nvfp4", "fp8", "bf16")]
    assert (sizes[2] - sizes[0]) / (sizes[2] - sizes[1]) == pytest.approx(1.4375)
    experts_of = ServingKernels(served_model("qwen3-30b-a3b"), device, precision_of("nvfp4"))._experts_family
    assert experts_of("float4_e2m1") == "cutedsl"


def test_engines_cast_tokens_for_experts_of_4_bits_on_blackwell_as_they_do_by_default() -> None:
    """TensorRT-LLM and SGLang to 8 bits, vLLM not: a prompt of 8,192 tokens of GPT-OSS 120B on one B200."""
    took = {
        engine: infer(
            Pool("gpt-oss-120b", triosim.system(device="B200-SXM-180GB"), engine=engine, weights="mxfp4"), 8192, 2
        )
        for engine in ("trtllm", "sglang", "vllm")
    }
    experts_s = {engine: one.breakdown_s["prompt"]["experts"] for engine, one in took.items()}
    assert experts_s["trtllm"] == experts_s["sglang"] < 0.8 * experts_s["vllm"]


def test_sglang_computes_a_shared_expert_among_the_routed_ones() -> None:
    model, device = served_model("deepseek-v3"), catalog.accelerator("H200-SXM-141GB")
    apart = ServingKernels(model, device, precision_of("fp8"), tensor_parallel=8).operators(np.array([8.0]))
    joined = ServingKernels(model, device, precision_of("fp8"), tensor_parallel=8, joins_shared=True)
    found = joined.operators(np.array([8.0]))
    assert set(apart) - set(found) == {"shared_up", "shared_activation", "shared_down"}
    assert apart["experts"] < found["experts"] < sum(apart[name] for name in apart if name[:6] in ("expert", "shared"))
    kimi = ServingKernels(served_model("kimi-k2"), device, precision_of("fp8"), tensor_parallel=8, joins_shared=True)
    assert "shared_up" in kimi.operators(np.array([8.0]))


def test_a_library_of_tensorrt_llm_has_the_fastest_tile_for_any_number_of_tokens() -> None:
    """Other engines bring CUTLASS's kernels along, which fill a last tile on Hopper; of 16 bits all call a library."""
    assert ENGINES.chosen("trtllm").library_products
    assert not ENGINES.chosen("vllm").library_products
    model, batch = served_model("llama-3-8b"), np.array([513.0])

    def slower(precision: str) -> float:
        own = ServingKernels(model, catalog.accelerator("H100-SXM5-80GB"), precision_of(precision))
        return float(own.layer(batch)[0] / replace(own, library_products=True).layer(batch)[0])

    assert slower("fp8") > 1.2
    assert slower("bf16") == 1.0
