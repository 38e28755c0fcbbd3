"""States of fixed size in place of a KV cache or beside it: their bytes, their time, and who keeps how many of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triosim
from tests.command import run
from triosim.hardware import catalog
from triosim.kernels.physical.kinds import price
from triosim.kernels.work.scan import scans
from triosim.serving import native
from triosim.serving.fleet import play
from triosim.serving.kernel_times import NOTHING_MOVED, ServingKernels
from triosim.serving.kv_cache import KVCache
from triosim.serving.model import PRECISIONS, ServedModel, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked
from triosim.serving.pool_replicas import replicas_of
from triosim.serving.replica import Replica
from triosim.serving.request_energy import StepLoad, work_of
from triosim.serving.requests import Request, RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.state_cache import FILLING
from triosim.serving.state_kernels import DELTA_FACTOR, DELTA_S
from triosim.serving.step_times import StepShape

DEVICE = catalog.accelerator("H100-SXM5-80GB")
BANDWIDTH = DEVICE.memory_bandwidth or 0.0


def kernels(name: str, **options: Any) -> ServingKernels:
    return ServingKernels(served_model(name), DEVICE, PRECISIONS["bf16"], **options)


def pool(name: str, devices: int = 1, device: str = "H100-SXM5-80GB", **options: Any) -> Pool:
    return Pool(name, triosim.system(device=device, devices=devices), tensor_parallel=devices, **options)


def replica(own: Pool) -> Replica:
    return replicas_of(own, checked(own), 0, NOTHING_MOVED)[0][0]


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers", "state", "channels"),
    [  # layers with a state; heads x size x state, and values, queries and keys, as the configurations have them
        ("nemotron-h-8b", 24, 128 * 64 * 128, 128 * 64 + 2 * 8 * 128),
        ("nemotron-3-nano-30b-a3b", 23, 64 * 64 * 128, 64 * 64 + 2 * 8 * 128),
        ("qwen3-next-80b-a3b", 36, 32 * 128 * 128, 32 * 128 + 2 * 16 * 128),
        ("falcon-h1-0.5b", 36, 24 * 64 * 128, 24 * 64 + 2 * 128),
        ("granite-4.0-h-small", 36, 128 * 64 * 128, 128 * 64 + 2 * 128),
        ("mamba2-2.7b", 64, 80 * 64 * 128, 80 * 64 + 2 * 128),
    ],
)
def test_states_have_the_bytes_of_their_configurations(name: str, layers: int, state: int, channels: int) -> None:
    """State in its own type, and the inputs of three tokens of a convolution of four places in 16 bits."""
    model = served_model(name)
    for kind, item in (("bfloat16", 2), ("float32", 4)):
        assert model.state_bytes(kind) == layers * (state * item + channels * 3 * 2)


def test_devices_that_share_a_layer_have_their_heads_of_a_state() -> None:
    """Groups fewer than devices are repeated (vLLM's ``extra_groups_for_head_shards``), as heads of keys are."""
    eight, one = served_model("nemotron-h-8b"), served_model("granite-4.0-h-small")
    assert eight.state_bytes("bfloat16", 8) == eight.state_bytes("bfloat16") / 8
    of_layer = 128 * 64 * 128 // 8 * 2 + (128 * 64 // 8 + 2 * 128) * 3 * 2
    assert one.state_bytes("bfloat16", 8) == 36 * of_layer


def test_layers_with_a_state_alone_cache_no_keys() -> None:
    """Nemotron-H-8B has 4 layers with attention of 52, with 8 heads of 128; Falcon-H1 has states beside its caches."""
    assert served_model("nemotron-h-8b").kv_bytes("bfloat16") == 4 * 2 * 8 * 128 * 2
    assert served_model("falcon-h1-0.5b").kv_bytes("bfloat16") == 36 * 2 * 2 * 64 * 2
    assert served_model("mamba2-2.7b").kv_bytes("bfloat16") == 0
    assert served_model("qwen3-next-80b-a3b").kv_kept_bytes(100, "bfloat16") == 100 * 12 * 2 * 2 * 256 * 2


@pytest.mark.parametrize("name", ["nemotron-h-8b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "mamba2-2.7b"])
def test_products_and_embeddings_are_nearly_all_parameters(name: str) -> None:
    model = served_model(name)
    ends = model.width * model.vocabulary * (1 if model.tied else 2)
    assert 0 <= model.parameters - model.linear_parameters - ends < 0.001 * model.parameters


# --- blocks ----------------------------------------------------------------------------------------------------------


def nano_9b() -> ServedModel:
    """Layers of Nemotron Nano 9B v2: 128 heads of 80."""
    model = served_model("nemotron-h-8b")
    kinds = (replace(kind, state=replace(kind.state, size=80)) if kind.state else kind for kind in model.kinds)
    return replace(model, kinds=tuple(kinds))


def qwen35_9b() -> ServedModel:
    """Layers of Qwen3.5 9B: four heads of keys of 256, states in float32."""
    model = served_model("qwen3-next-80b-a3b")
    attention = next(kind.attention for kind in model.kinds if kind.attention)
    more = replace(attention, kv_heads=4)  # type: ignore[call-arg]
    kinds = (replace(kind, attention=more) if kind.attention else kind for kind in model.kinds)
    return replace(model, kinds=tuple(kinds), state_type="float32")


def test_a_block_of_vllm_fills_the_page_of_a_state() -> None:
    """Nemotron Nano 9B v2: 672 tokens (vLLM issue 24280); Qwen3.5 9B on two devices: 528, which pads the state by
    0.76 % (vLLM pull request 37467)."""
    from triosim.serving.policy import engine_on
    from triosim.serving.state_cache import state_cache

    policy = engine_on(DEVICE, "vllm", {})
    nano = state_cache(pool("nemotron-h-8b"), nano_9b(), "bfloat16", policy)
    assert nano is not None
    assert (nano.block_tokens, nano.taken) == (672, 6)  # 4 layers with attention, 24 with states in groups of 4
    qwen = state_cache(pool("qwen3-next-80b-a3b", 2), qwen35_9b(), "bfloat16", policy)
    assert qwen is not None
    assert (qwen.block_tokens, qwen.taken) == (528, 3)
    page, state = qwen.block / 12, qwen.sequence / 36
    assert f"{100 * (page - state) / state:.2f}" == "0.76"


def test_blocks_of_states_are_held_while_a_request_runs() -> None:
    cache = KVCache(20, 16, states=3)
    assert cache.longest(None) == 17 * 16
    first, second, third = (Request(row, row, 0, 100, 10) for row in range(3))
    assert cache.hold(first, 40)  # 3 blocks of tokens
    assert cache.free == 20 - 3 - 3
    assert cache.hold(first, 50)
    assert cache.free == 20 - 4 - 3
    assert cache.hold(second, 100)
    assert cache.free == 20 - 4 - 3 - 7 - 3
    assert not cache.hold(third, 1)
    cache.release(second)
    cache.release(first)
    assert cache.free == 20
    cache.release(first)
    assert cache.free == 20


def running(own: Pool, table: RequestTable) -> tuple[int, Replica]:
    """Most requests that ran at a time, of all that came at once."""
    one = replica(own)
    most = 0

    def look(batch: Any, begin: int, end: int) -> None:
        nonlocal most
        most = max(most, len(one.policy.running))

    one.on_step = look
    play(table, [one], ROUTERS.get("round-robin")(), core=False)
    assert one.cache.free == one.cache.blocks
    return most, one


def test_memory_says_how_many_run_under_vllm() -> None:
    """Requests of one block each hold it and six of states."""
    table = RequestTable.of(np.zeros(40), np.full(40, 20), np.full(40, 9))
    most, one = running(pool("nemotron-h-8b", blocks=70), table)
    assert (most, one.cache.states) == (10, 6)
    kept = replicas_of(pool("nemotron-h-8b"), served_model("nemotron-h-8b"), 0, NOTHING_MOVED)[1]
    assert kept is not None
    assert kept.block == 4 * one.cache.block_tokens * 2 * 8 * 128 * 2
    assert kept.blocks == kept.cache // kept.block
    # where no layer has attention a block is a state, and that is all there is
    mamba = replica(pool("mamba2-2.7b", longest=5000))
    assert (mamba.cache.block_tokens, mamba.cache.states) == (5000, 0)


def test_memory_says_how_many_run_under_sglang() -> None:
    """0.9 / 1.9 of the memory is of states, in float32, the rest of keys and values."""
    own = pool("nemotron-h-8b", engine="sglang", utilisation=0.22)
    one, kept = (found := replicas_of(own, checked(own), 0, NOTHING_MOVED))[0][0], found[1]
    assert kept is not None
    state = served_model("nemotron-h-8b").state_bytes("float32")
    assert kept.slot == state
    assert one.policy.max_running == kept.slots < 100
    whole = kept.cache + kept.slots * state
    assert 0 <= whole * 0.9 / 1.9 - kept.slots * state < state
    count = 3 * kept.slots
    most, _ = running(own, RequestTable.of(np.zeros(count), np.full(count, 20), np.full(count, 9)))
    assert most == kept.slots


def test_memory_has_a_slot_for_each_request_that_may_run_under_trtllm() -> None:
    own = pool("nemotron-h-8b", engine="trtllm", engine_options={"max-running": "64"})
    few = replicas_of(own, checked(own), 0, NOTHING_MOVED)[1]
    more = replicas_of(
        replace(own, engine_options={"max-running": "128"}), checked(own), 0, NOTHING_MOVED
    )[1]  # fmt: skip
    assert few is not None
    assert more is not None
    assert few.slots == 64 + FILLING
    logits = (few.cache - more.cache) - 64 * few.slot
    assert 0 < logits < 64 * served_model("nemotron-h-8b").vocabulary * 16  # of more positions that are sampled
    most, _ = running(own, RequestTable.of(np.zeros(200), np.full(200, 20), np.full(200, 9)))
    assert most == 64


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b", "falcon-h1-0.5b", "mamba2-2.7b"])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_decodes_read_and_write_their_states_once(name: str, kind: str) -> None:
    own = kernels(name, state_type=kind)
    model = own.model
    for sequences in (1, 64, 512):
        bound = 2 * sequences * model.state_bytes(kind) / BANDWIDTH
        took = own.states((), sequences) * model.layers
        assert took > bound
        longer, call = (DELTA_FACTOR, DELTA_S) if model.state and model.state.delta else (1.0, 0.0)
        launches = model.state_layers * (2 * 3e-6 + call)
        assert took < 1.25 * longer * bound + launches
    weights = model.linear_parameters - model.expert_parameters * (1 - 1e-9)
    step = ModelTimes(own).ticks(StepShape(64, (), 64, 64 * 100, 64), 0) / 1e12
    assert step > (2.0 * weights + 2 * 64 * model.state_bytes(kind)) / BANDWIDTH


def test_what_a_decode_takes_of_its_state_does_not_grow_with_the_sequence() -> None:
    own = kernels("mamba2-2.7b")
    assert own.decode([8.0, 8.0], [1.0, 100_000.0]).tolist() == [own.states((), 8)] * 2
    step = ModelTimes(own)
    assert step.ticks(StepShape(8, (), 8, 8 * 10, 8), 0) == step.ticks(StepShape(8, (), 8, 8 * 2000, 8), 0)


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_prompts_are_scanned_by_the_kernels_that_train(name: str) -> None:
    own = kernels(name)
    state = own.model.state
    assert state is not None
    window = 0.0 if state.delta else 4.0
    forward = scans(1.0, 4096.0, state.heads, state.groups, state.state, state.size, state.chunk, window,
                    delta=state.delta, gated=False)  # fmt: skip
    scanned = float(price(forward, DEVICE).seconds[0]) * own.model.state_layers
    took = own.states(((4096, 0),), 0) * own.model.layers
    assert scanned < took < 1.5 * scanned  # the state comes and goes, queries, keys and values are convolved
    assert own.states(((4096, 9999),), 0) == own.states(((4096, 0),), 0)
    gated = replace(forward, gated=~forward.gated)  # in the same kernel, which reads gates and writes its result twice
    more = float(price(gated, DEVICE).seconds[0]) * own.model.state_layers - scanned
    assert more == 0 if state.delta else more > 0


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b", "falcon-h1-0.5b", "mamba2-2.7b"])
def test_mixed_steps_take_both(name: str) -> None:
    own = kernels(name)
    chunks = ((512, 0), (100, 300))
    parts = own.together(chunks, 0, 0.0) + own.together((), 32, 700.0)
    assert own.together(chunks, 32, 700.0) == pytest.approx(parts)
    assert own.states(chunks, 32) == pytest.approx(own.states(chunks, 0) + own.states((), 32))
    # tables say the same as kernels
    times = ModelTimes(own)
    shape = StepShape(612 + 32, chunks, 32, 32 * 700, 33)
    assert times.device_ticks(shape, 0) / 1e12 == pytest.approx(times.seconds(shape), rel=0.02)


def test_where_one_kernel_serves_prompts_and_decodes_states_come_to_it() -> None:
    own = ServingKernels(served_model("falcon-h1-0.5b"), catalog.accelerator("RTX-4090"), PRECISIONS["bf16"])
    assert own.one_call
    chunks = ((256, 0),)
    without = replace(own, model=replace(own.model, kinds=tuple(replace(k, state=None) for k in own.model.kinds)))
    both = without.together(chunks, 8, 500.0) + own.states(chunks, 8)
    assert own.together(chunks, 8, 500.0) == pytest.approx(both)


def test_each_part_of_a_layer_has_its_all_reduce() -> None:
    """Of Nemotron-H a block is one part; Falcon-H1 adds up its state, its attention and its feed-forward part apart."""
    found = {name: kernels(name).reduces for name in ("nemotron-h-8b", "qwen3-next-80b-a3b", "falcon-h1-0.5b")}
    assert found == {"nemotron-h-8b": 1.0, "qwen3-next-80b-a3b": 2.0, "falcon-h1-0.5b": 3.0}


def test_operators_are_those_of_each_form() -> None:
    names = {name: set(kernels(name).operators([1.0])) for name in ("mamba2-2.7b", "qwen3-next-80b-a3b")}
    assert names["mamba2-2.7b"] == {"input_norm", "in_proj", "gated_norm", "out_proj"}
    assert {"in_proj_order", "decays", "attention_gate", "head_norm", "experts"} <= names["qwen3-next-80b-a3b"]
    one = kernels("mamba2-2.7b")
    weights = 64 * one.model.state.parameters(one.model.width) * 2.0 if one.model.state else 0.0
    assert float(one.layer([1.0])[0]) * 64 > weights / BANDWIDTH


def test_energy_counts_what_is_read_and_written_of_states() -> None:
    own, wide = kernels("mamba2-2.7b"), kernels("mamba2-2.7b", state_type="float32")
    load = StepLoad.of(StepShape(16, (), 16, 16 * 100, 16))
    more = work_of(wide, load)[1] - work_of(own, load)[1]
    assert more == pytest.approx(2 * 16 * 64 * 80 * 64 * 128 * 2)
    assert work_of(own, load)[0] > 2 * 16 * own.model.linear_parameters


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not native.available(), reason="no compiler was there at installation")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nemotron-h-8b", {"blocks": 150}), ("falcon-h1-0.5b", {"blocks": 60}), ("mamba2-2.7b", {"blocks": 20}),
        ("nemotron-h-8b", {"engine": "sglang", "utilisation": 0.22}),
        ("nemotron-h-8b", {"engine": "trtllm", "engine_options": {"max-running": "12"}}),
    ],
)  # fmt: skip
def test_the_core_plays_states_as_python_does(name: str, options: dict[str, Any]) -> None:
    draw = np.random.default_rng(3)
    prompt, output = draw.integers(50, 900, 150), draw.integers(1, 300, 150)
    table = RequestTable.of(np.cumsum(draw.exponential(1 / 60, 150)), prompt, output)
    own = pool(name, **options)
    assert native.play(table, [replica(own)], ROUTERS.get("round-robin")()) is not None
    fast, slow = (play(table, [replica(own)], ROUTERS.get("round-robin")(), core=core) for core in (True, False))
    assert fast.finished.tolist() == slow.finished.tolist()
    assert fast.first_token.tolist() == slow.first_token.tolist()
    assert fast.restarts.tolist() == slow.restarts.tolist()
    assert (fast.busy.tolist(), fast.steps.tolist()) == (slow.busy.tolist(), slow.steps.tolist())
    assert fast.peak_blocks.tolist() == slow.peak_blocks.tolist()


def test_ranks_that_share_experts_have_states_of_their_own() -> None:
    """Qwen3-Next, whose experts 4 ranks share: each request holds blocks of its tokens and three of states there."""
    own = Pool("qwen3-next-80b-a3b", triosim.system(device="H200", devices=4), attention_ranks=4)
    table = RequestTable.of(np.zeros(40), np.full(40, 600), np.full(40, 20))
    ranks = replicas_of(own, checked(own), 0, NOTHING_MOVED)[0]
    served = play(table, ranks, ROUTERS.get("round-robin")())
    assert (served.finished > 0).all()
    assert [rank.cache.peak for rank in ranks] == [10 * (2 + 3)] * 4
    assert [rank.cache.free for rank in ranks] == [rank.cache.blocks for rank in ranks]


def test_requests_that_find_no_block_give_back_their_states() -> None:
    """More output than the cache holds of all: some give way, and in the end everything is free."""
    one = replica(pool("falcon-h1-0.5b", blocks=12))
    size = one.cache.block_tokens
    count = 12 // (1 + one.cache.states)
    table = RequestTable.of(np.zeros(count), np.full(count, size - 8), np.full(count, 20))
    served = play(table, [one], ROUTERS.get("round-robin")(), core=False)
    assert served.restarts.sum() > 0
    assert (served.finished > 0).all()
    assert one.cache.free == one.cache.blocks


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_command_serves_them(engine: str) -> None:
    options = ["--engine-option", "max-running=64"] if engine == "trtllm" else []
    found = json.loads(
        run("serve", "nemotron-h-8b", "--device", "H100", "--engine", engine, "--arrivals", "poisson:4", "--lengths",
            "uniform:128-512", "--requests", "30", "--json", "-", *options).stdout
    )  # fmt: skip
    assert found["requests"] == 30


def test_the_command_says_how_many_slots_there_are() -> None:
    done = run("serve", "nemotron-h-8b", "--device", "H100", "--engine", "trtllm", "--engine-option", "max-running=64",
               "--arrivals", "poisson:4", "--lengths", "fixed:100", "--requests", "3", "--interval", "off")  # fmt: skip
    assert "states          65 slots a replica (3.136 GiB)" in done.stdout


def test_the_command_predicts_one_request() -> None:
    found = json.loads(
        run("infer", "nemotron-h-8b", "--device", "H100", "--prompt", "512", "--output", "16", "--batch-size", "4",
            "--json", "-").stdout
    )  # fmt: skip
    assert found["memory"]["state_bytes"] == 4 * served_model("nemotron-h-8b").state_bytes("bfloat16")
    assert found["memory"]["kv_bytes"] == 4 * 527 * 4 * 2 * 8 * 128 * 2
    decode = found["breakdown_s"]["decode"]
    assert decode["state"] > decode["attention"] > 0
    assert sum(decode.values()) == pytest.approx(found["tpot_s"], rel=0.05)
    wide = run("infer", "mamba2-2.7b", "--device", "H100", "--prompt", "64", "--output", "4", "--state-cache", "fp32")
    assert "states 162 MiB" in wide.stdout
    both = run("infer", "nemotron-h-8b", "--device", "H100", "--prompt", "512", "--output", "16", "--batch-size", "7")
    assert max(map(len, both.stdout.splitlines())) <= 80


def test_the_type_of_states_is_that_of_the_configuration_or_the_engine() -> None:
    from triosim.serving.state_cache import state_type

    nano, next_ = served_model("nemotron-3-nano-30b-a3b"), served_model("qwen3-next-80b-a3b")
    assert state_type(pool(nano.name), nano) == "float32"
    assert state_type(pool(nano.name, state_cache="bf16"), nano) == "bfloat16"
    assert state_type(pool(next_.name), next_) == "bfloat16"
    assert state_type(pool(next_.name, engine="sglang"), next_) == "float32"
    assert state_type(pool("llama-3-8b"), served_model("llama-3-8b")) == ""


SERVED = ("--device", "H100", "--arrivals", "poisson:4", "--lengths", "uniform:128-512", "--requests", "5")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prefix-caching", "on"), "--prefix-caching on does not go with nemotron-h-8b"),
        (("--speculate", "ngram,acceptance=0.5"), "--speculate does not go with"),
        (("--kv-tier", "host"), "--kv-tier does not go with"),
        (("--preemption", "swap"), "--preemption swap does not go with"),
        (("--pp", "2"), "--pp does not go with"),
        (("--lora", "4"), "--lora does not know"),
        (("--prefill-replicas", "1", "--decode-replicas", "1"), "the role prefill does not go with"),
        (("--step-times", "."), "--step-times does not go with"),
        (("--eviction", "lfu"), "is of prefix caching, which is off"),
        (("--engine", "orca"), "which the engine orca does not know: use vllm, sglang or trtllm"),
        (("--engine", "trtllm"), "give --engine-option max-running="),
        (("--engine", "sglang", "--kv-blocks", "100"), "--kv-blocks says nothing of the memory of states"),
        (("--engine-option", "hybrid-kv-cache=off"), "which hybrid-kv-cache=off does without"),
        (("--kv-blocks", "4"), "is longer than the KV cache of 0 tokens"),
        (("--state-cache", "fp8"), "unknown type of states"),
    ],
)
def test_what_states_do_not_go_with_is_said(arguments: tuple[str, ...], says: str) -> None:
    done = run("serve", "nemotron-h-8b", *SERVED, *arguments, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "mamba2-2.7b", *SERVED, "--engine", "sglang"), "has no layer with attention"),
        (("serve", "llama-3-8b", *SERVED, "--state-cache", "fp32"), "keeps keys and values alone"),
        (("serve", "mamba2-2.7b", *SERVED, "--kv-cache", "fp8"), "keeps states of fixed size alone"),
        (("infer", "mamba2-130m", "--device", "H100", "--prompt", "9", "--output", "2", "--kv-cache", "int8"), "alone"),
        (("serve", "falcon-h1-0.5b", *SERVED, "--tp", "16"), "does not divide the 8 heads of falcon-h1-0.5b"),
        (("serve", "mamba2-130m", *SERVED, "--tp", "16"), "does not divide the 24 heads of mamba2-130m"),
        (("infer", "nemotron-h-8b", "--device", "H100", "--prompt", "9", "--output", "2", "--host", "eager"),
         "--host eager does not go with"),
        (("infer", "nemotron-h-8b", "--device", "H100", "--state-cache", "fp32"), "give --prompt and --output"),
    ],
)  # fmt: skip
def test_what_other_models_or_engines_do_not_know_is_said(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_configuration_says_in_which_type_states_are_kept(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    table = {
        "model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "M*-", "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
        "n_groups": 2, "vocab_size": 128, "intermediate_size": 128, "max_position_embeddings": 512,
        "mamba_ssm_cache_dtype": "float32",
    }  # fmt: skip
    path.write_text(json.dumps(table), encoding="utf-8")
    assert served_model(str(path)).state_type == "float32"
    path.write_text(json.dumps(table | {"mamba_ssm_cache_dtype": "int3"}), encoding="utf-8")
    done = run("serve", str(path), *SERVED, code=2)
    assert "mamba_ssm_cache_dtype is one of float32, bfloat16, float16, not 'int3'" in done.stderr
