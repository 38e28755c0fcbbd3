"""One request with its cache, and the step times behind it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.command import run
from triosim.hardware import catalog
from triosim.hardware.machine import system
from triosim.serving.capacity import memory
from triosim.serving.communication import ReplicaCommunication
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.mixed_attention import work_of
from triosim.serving.model import PRECISIONS, served_model
from triosim.serving.model_times import ModelTimes, graph_size
from triosim.serving.one_request import _prompts
from triosim.serving.peer_all_reduce import constants
from triosim.serving.policy import ENGINES
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked
from triosim.serving.pool_times import kernels_of, step_times
from triosim.serving.software import between_sources
from triosim.serving.step_times import EAGER_FRONT_S, EAGER_ISSUE_S, FRONT_S, HOST_SPREAD, StepHost, StepShape

H100 = "H100-SXM5-80GB"


def test_prompts_launch_kernels_one_by_one_where_no_graph_holds_them() -> None:
    eager = ModelTimes(kernels(), engine_host=StepHost(launch_s=1e-3))
    plain = ModelTimes(kernels())
    prompt, decode = StepShape(1, ((1, 0),), 0, 0, 1), StepShape(1, (), 1, 100, 1)
    assert eager.ticks(prompt, 0) == (32 * 10 + 5) * 10**9  # norms 2, products 4, rotary, stored, activation, attention
    assert eager.ticks(decode, 0) == plain.ticks(decode, 0)


def test_a_prompt_of_experts_launches_what_chooses_and_sorts_them() -> None:
    dense, routed = kernels("qwen3-32b").eager_launches, kernels("qwen3-235b-a22b").eager_launches
    assert routed == dense - 3 + 1 + 7  # products and activation, but a router, and seven of experts
    cast = kernels("qwen3-32b", weights="fp8").eager_launches  # before each of the four products
    assert cast == dense + 4


def kernels(model: str = "llama-3-8b", device: str = H100, weights: str = "bf16", **options: int) -> ServingKernels:
    return ServingKernels(served_model(model), catalog.accelerator(device), PRECISIONS[weights], **options)  # type: ignore[arg-type]


def found(*words: str) -> dict:
    done = run("infer", "llama-3-8b", "--device", H100, "--prompt", "512", "--output", "32", *words, "--json", "-")
    return dict(json.loads(done.stdout))


def test_a_request_is_predicted_and_adds_up() -> None:
    one = found()
    assert one["schema"] == "triosim/request/1"
    assert one["e2e_s"] == pytest.approx(one["ttft_s"] + 31 * one["tpot_s"])
    assert sum(one["breakdown_s"]["prompt"].values()) == pytest.approx(one["ttft_s"], rel=1e-3)
    assert sum(one["breakdown_s"]["decode"].values()) == pytest.approx(one["tpot_s"], rel=0.01)
    assert one["memory"]["kv_bytes"] == (512 + 31) * 131_072
    assert one["memory"]["fits"]


def test_its_figures_have_intervals() -> None:
    one = found()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        low, high = one["interval"][name]
        assert low < one[name] < 1.5 * low
        if name == "ttft_s":  # servers may take much longer around the engine
            assert one[name] + between_sources("vllm").front < high < 2 * one[name] + between_sources("vllm").front
        else:
            assert low * high == pytest.approx(one[name] ** 2)
    fleet = (
        "--arrivals",
        "burst:1",
        "--lengths",
        "prompt=fixed:512;output=fixed:32",
        "--requests",
        "1",
        "--engine",
        "vllm",
        "--json",
        "-",
    )
    served = json.loads(run("serve", "llama-3-8b", "--device", H100, *fleet).stdout)["interval"]["tpot.mean"]
    low, high = one["interval"]["tpot_s"]
    assert served[1] / served[0] == pytest.approx(high / low, rel=0.03)
    assert "tpot_s" not in found("--output", "1")["interval"]
    shown = run("infer", "llama-3-8b", "--device", H100, "--prompt", "512", "--output", "32").stdout
    assert shown.count("(90 % between") >= 3


@pytest.mark.parametrize("engine", [(), ("--engine", "sglang"), ("--engine", "trtllm"), ("--engine", "orca")])
def test_alone_under_traffic_it_takes_as_long(engine: tuple[str, ...]) -> None:
    one = found(*engine)
    traffic = ("--arrivals", "users:1", "--lengths", "prompt=fixed:512;output=fixed:32", "--requests", "3")
    words = ("serve", "llama-3-8b", "--device", H100, *traffic, *engine, "--prefix-caching", "off", "--json", "-")
    served = json.loads(run(*words).stdout)["latency_s"]
    for name in ("ttft", "tpot", "e2e"):
        assert served[name]["mean"] == pytest.approx(one[f"{name}_s"], rel=2e-3)


@pytest.mark.parametrize("engine", ["vllm", "sarathi", "sglang", "trtllm"])
def test_a_prompt_is_cut_as_under_traffic(engine: str) -> None:
    words = ("llama-3-8b", "--device", "A100", "--engine", engine, "--json", "-")
    one = json.loads(run("infer", *words, "--prompt", "7000", "--output", "8").stdout)
    traffic = ("--arrivals", "users:1", "--lengths", "prompt=fixed:7000;output=fixed:8", "--requests", "2")
    served = json.loads(run("serve", *words, *traffic, "--prefix-caching", "off").stdout)["latency_s"]
    assert one["ttft_s"] == pytest.approx(served["ttft"]["mean"], rel=2e-3)
    assert sum(one["breakdown_s"]["prompt"].values()) == pytest.approx(one["ttft_s"], rel=1e-3)
    low, high = one["interval"]["ttft_s"]
    assert low < one["ttft_s"] < high


def test_prompts_together_are_computed_one_after_another_and_none_is_lost() -> None:
    for prompt, batch, context in ((7000, 1, 0), (300, 20, 50), (5000, 3, 100), (2048, 2, 0), (10, 8, 0)):
        steps = _prompts(ENGINES.get("vllm")(), prompt, batch, context)
        assert all(step.tokens <= 2048 and step.tokens == sum(tokens for tokens, _ in step.chunks) for step in steps)
        assert sum(step.tokens for step in steps) == prompt * batch
        assert sum(step.sampled for step in steps) == batch
        assert sum(cached == context for step in steps for _, cached in step.chunks) == batch
    assert len(_prompts(ENGINES.get("vllm-2023")(), 7000, 1, 0)) == 1


def test_what_an_engine_leaves_between_steps_and_around_them_is_in_a_request() -> None:
    one, two = found(), found("--engine-option", "model-runner=2")
    assert one["tpot_s"] - two["tpot_s"] == pytest.approx(0.3e-3)
    assert one["breakdown_s"]["prompt"]["front"] == FRONT_S
    shown = run("infer", "llama-3-8b", "--device", H100, "--prompt", "9", "--output", "2").stdout
    assert "HTTP, tokenizer           5 ms" in shown
    assert "host, device waits" in shown
    assert found("--front-time", "0")["ttft_s"] == pytest.approx(one["ttft_s"] - FRONT_S)
    few = ("infer", "llama-3-8b", "--device", H100)
    assert "has no unit" in run(*few, "--prompt", "9", "--output", "2", "--front-time", "5", code=2).stderr
    assert "is of one request with its cache" in run(*few, "--front-time", "5ms", code=2).stderr
    assert found("--host", "large-model")["breakdown_s"]["prompt"]["front"] == EAGER_FRONT_S
    low, high = found("--host", "large-model")["interval"]["tpot_s"]
    assert high / low == pytest.approx(HOST_SPREAD**2, rel=1e-3)  # the host binds


def test_decoding_is_bound_by_bytes() -> None:
    """Weights once a token: between the datasheet's bandwidth and half of it."""
    bound = served_model("llama-3-8b").parameters * 2 / catalog.accelerator(H100).memory_bandwidth
    assert bound < found()["tpot_s"] < 2 * bound


def test_what_costs_more_takes_longer() -> None:
    one = found()
    assert found("--batch-size", "8")["ttft_s"] > 3 * one["ttft_s"]
    assert found("--batch-size", "8")["tpot_s"] < 1.5 * one["tpot_s"]
    assert found("--context", "4096")["ttft_s"] > one["ttft_s"]
    assert found("--weights", "fp8")["tpot_s"] < 0.75 * one["tpot_s"]
    assert found("--weights", "w4a16")["memory"]["weights_bytes"] < 0.4 * one["memory"]["weights_bytes"]
    assert found("--kv-cache", "fp8")["memory"]["kv_bytes"] == one["memory"]["kv_bytes"] / 2


def test_an_eager_host_binds_decoding() -> None:
    eager = found("--host", "large-model")
    assert eager["breakdown_s"]["decode"]["host"] > 0
    assert eager["tpot_s"] > found()["tpot_s"]
    launching, waiting = (32 * 10 + 5) * EAGER_ISSUE_S, 1.28e-3 + 0.106e-3
    assert eager["tpot_s"] == pytest.approx(launching + waiting)
    assert sum(eager["breakdown_s"]["decode"].values()) == pytest.approx(launching + waiting)


def test_an_eager_host_launches_collectives_without_a_framework() -> None:
    def token(parallel: str) -> float:
        words = ("--system", "dgx-h100", "--tp", parallel, "--idle-ok", "--prompt", "9", "--output", "2")
        done = run("infer", "llama-3-8b", *words, "--host", "large-model", "--json", "-")
        return float(json.loads(done.stdout)["tpot_s"])

    launching, reducing, waiting = (32 * 10 + 5) * EAGER_ISSUE_S, 2 * 32 * 20e-6, 3.84e-3 + 0.216e-3
    assert token("2") == token("8") == pytest.approx(launching + reducing + waiting)


def test_tensor_parallelism_and_stages() -> None:
    def on(*words: str) -> dict:
        done = run(
            "infer", "llama-2-70b", "--system", "dgx-h100", "--prompt", "512", "--output", "8", *words, "--json", "-"
        )
        return dict(json.loads(done.stdout))

    four, two = on("--tp", "4", "--idle-ok"), on("--tp", "4", "--pp", "2")
    assert four["breakdown_s"]["prompt"]["all_reduce"] > 0
    assert two["breakdown_s"]["prompt"]["send"] > 0
    assert four["tpot_s"] < two["tpot_s"] < 1.1 * four["tpot_s"]
    assert two["memory"]["weights_bytes"] < 0.55 * four["memory"]["weights_bytes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prompt", "512"), "needs both its prompt and its output"),
        (
            ("--prompt", "9", "--output", "1", "--devices", "4"),
            "leaves 3 of the system's 4 devices idle: give a larger",
        ),
        (("--prompt", "0", "--output", "1"), "--prompt must be at least 1"),
        (("--prompt", "1", "--output", "0"), "--output must be at least 1"),
        (("--prompt", "9000", "--output", "1"), "more than the 8192 that llama-3-8b was made for"),
        (("--prompt", "9", "--output", "1", "--seq-len", "8"), "--seq-len has no meaning"),
        (("--prompt", "9", "--output", "1", "--quantize", "mxfp8"), "--quantize has no meaning"),
        (("--prompt", "9", "--output", "1", "--sweep", "tp=1,2"), "--sweep has no meaning"),
        (("--prompt", "9", "--output", "1", "--ep", "8"), "llama-3-8b has none"),
        (("--prompt", "9", "--output", "1", "--topology-option", "oversubscription=2"), "has no options"),
        (("--prompt", "9", "--output", "1", "--weights", "int3"), "precision of weights"),
        (("--prompt", "9", "--output", "1", "--host", "lazy"), "host mode"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    done = run("infer", "llama-3-8b", "--device", H100, *words, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_images_are_not_served() -> None:
    done = run("infer", "resnet50", "--device", H100, "--prompt", "9", "--output", "1", code=2)
    assert "is not served" in done.stderr


# --- step times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [H100, "A100-SXM4-80GB"])
def test_tables_are_what_they_were_made_from(device: str) -> None:
    times, draw, errors = ModelTimes(kernels(device=device)), np.random.default_rng(7), []
    for _ in range(150):
        decodes = int(draw.integers(0, 257))
        number = int(draw.integers(0 if decodes else 1, 3))
        chunks = tuple((int(draw.integers(1, 1024)), int(draw.integers(0, 8192))) for _ in range(number))
        tokens = decodes + sum(n for n, _ in chunks)
        shape = StepShape(tokens, chunks, decodes, int(decodes * draw.uniform(16, 8192)), decodes + number)
        errors.append(abs(times.ticks(shape, 0) / 1e12 / times.seconds(shape) - 1))
    assert np.mean(errors) < 2e-3
    assert max(errors) < 0.03


def test_lengths_beyond_the_tables_are_priced() -> None:
    times = ModelTimes(kernels("llama-3.1-8b"))
    for shape in (
        StepShape(40_000, ((40_000, 0),), 0, 0, 1),
        StepShape(1, (), 1, 2_000_000, 1),
        StepShape(6000, (), 6000, 600_000, 6000),
        StepShape(100, ((100, 3_000_000),), 0, 0, 1),
    ):
        assert times.ticks(shape, 0) / 1e12 == pytest.approx(times.seconds(shape), rel=0.1)


def test_stages_add_up_to_the_whole() -> None:
    machine = system("dgx-h100")
    shape = StepShape(300, ((200, 0),), 100, 50_000, 101)
    whole = ModelTimes(kernels()).ticks(shape, 0)
    times = ModelTimes(kernels(), ReplicaCommunication(machine, 1, 2), stages=2)
    send = ReplicaCommunication(machine, 1, 2).send(2 * 300 * 4096)
    assert sum(times.ticks(shape, stage) for stage in range(2)) == pytest.approx(whole + send * 1e12, rel=1e-9)


def test_graphs_pad_tokens() -> None:
    assert [graph_size(n) for n in (1, 2, 3, 4, 5, 8, 9, 256, 257, 500)] == [
        1,
        2,
        4,
        4,
        8,
        8,
        16,
        256,
        272,
        512,
    ]
    times = ModelTimes(kernels())
    assert times.padded(513) == 513


def test_all_reduces_grow_and_cost_nothing_alone() -> None:
    machine = system("dgx-h100")
    sizes = np.array([1024.0, 8192.0 * 16, 2.0**24, 2.0**32])
    assert (np.diff(ReplicaCommunication(machine, 4).all_reduce(sizes)) > 0).all()
    assert not ReplicaCommunication(machine, 1).all_reduce(sizes).any()


def test_a_call_of_prompts_and_decodes_counts_its_blocks() -> None:
    work = work_of([(200, 0), (64, 100)], 3, 300.0)
    # tiles of 64 queries: 4 and 1; their keys on average 160 and 164, in steps of 128
    assert work.prefill_steps == 4 * 2 + 1 * 2
    assert (work.decode_steps, work.longest_decode, work.longest_prefill) == (9, 3, 2)
    assert work.idle_blocks == 4 * (2 + 3) - 5 - 3
    assert work.keys == 200 + 164 + 900


def test_an_engine_with_two_kernels_of_attention_adds_them_up() -> None:
    """TensorRT-LLM on an A100, where vLLM's FlashAttention-2 serves prompts and decodes in one call."""
    a100 = system(device="A100-SXM4-80GB", devices=1)
    kernels = {}
    for engine in ("vllm", "trtllm"):
        pool = Pool("llama-3-8b", a100, engine=engine)
        kernels[engine] = kernels_of(pool, checked(pool))
    assert kernels["vllm"].one_call
    two = kernels["trtllm"]
    assert not two.one_call
    alone = two.together([(512, 0)], 0, 0.0), two.together([], 64, 1024.0)
    assert two.together([(512, 0)], 64, 1024.0) == pytest.approx(sum(alone))
    assert two.together([(512, 0)], 64, 1024.0) < 0.8 * kernels["vllm"].together([(512, 0)], 64, 1024.0)


def test_decodes_cost_more_beside_a_prompt_where_one_call_serves_both() -> None:
    own = kernels(device="RTX-4090")
    alone = own.together([], 64, 2000) + own.together([(512, 0)], 0, 0)
    assert own.together([(512, 0)], 64, 2000) > 1.2 * alone
    two = kernels()
    assert not two.one_call
    apart = two.together([], 64, 2000) + two.together([(512, 0)], 0, 0)
    assert two.together([(512, 0)], 64, 2000) == pytest.approx(apart)


def test_memory_is_divided_exactly() -> None:
    model, device = served_model("llama-3-8b"), catalog.accelerator(H100)
    kept = memory(model, device, PRECISIONS["bf16"], "bfloat16", block_tokens=16, tokens=2048, sequences=256)
    assert kept.weights == 2 * model.parameters
    assert kept.block == 16 * 131_072
    spent = kept.weights + kept.activations + kept.context + kept.cache
    assert spent == pytest.approx(0.9 * device.memory_bytes)
    assert kept.blocks == int(kept.cache // kept.block)
    large = served_model("llama-2-70b")
    assert large.kv_bytes("bfloat16") == 327_680
    assert large.kv_bytes("bfloat16", tensor_parallel=16) == 327_680 / 8  # key heads are repeated


def test_engines_reduce_by_their_own_kernels_where_devices_read_each_other() -> None:
    """By hand: one shot of 64 KiB on 8 H100, two of 1 MiB; NCCL takes what is larger."""
    machine = system("dgx-h100")
    own, library = (ReplicaCommunication(machine, 8, kernels=name) for name in ("custom", ""))
    c = constants()["custom"]
    reading = c.reading * 360e9
    sizes = np.array([65536.0, 2.0**20, 2.0**24])
    found = own.all_reduce(sizes)
    assert found[0] == pytest.approx(c.base_s + 7 * 65536 / reading)
    assert found[1] == pytest.approx(c.base_s + c.second_s + 1.75 * 2**20 / reading)
    assert found[2] == library.all_reduce(sizes)[2]
    assert (found[:2] < 0.7 * library.all_reduce(sizes)[:2]).all()
    network = system(device="H100-SXM5-80GB", devices=16)
    alike = (ReplicaCommunication(network, 16, kernels=name).all_reduce(sizes) for name in ("custom", ""))
    assert np.array_equal(*alike), "members in two servers"


def test_engines_of_2023_call_the_library() -> None:
    model = served_model("llama-3-8b")
    for engine, host, own in (
        ("vllm", "graph", "custom"), ("trtllm", "graph", "trtllm"), ("sglang", "graph", "custom"),
        ("orca", "graph", ""), ("vllm", "eager", ""),
    ):  # fmt: skip
        pool = Pool("llama-3-8b", system("dgx-h100"), tensor_parallel=4, engine=engine, host=host)
        between = step_times(pool, model).communication
        assert between is not None
        assert between.kernels == own


def test_experts_run_on_the_tables_of_tiles_that_the_engine_has() -> None:
    own, tokens = served_model("mixtral-8x7b"), np.array([16.0, 64.0])
    options = {"device": catalog.accelerator(H100), "precision": PRECISIONS["bf16"]}

    def experts(ranks: int, tables: str) -> np.ndarray:
        kernels = ServingKernels(own, **options, tensor_parallel=ranks, tuned_tiles=tables)  # type: ignore[arg-type]
        return np.asarray(kernels.operators(tokens)["experts"])

    assert (experts(2, "") > 1.2 * experts(2, "vllm")).all()
    assert (experts(1, "") == experts(1, "vllm")).all()  # there is no table for lengths of 14,336
