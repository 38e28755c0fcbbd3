"""Attention: the work that a call does, and the physical model's laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.fit import physical_attention as fit_physical_attention

from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import rate
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import attention as model
from triosim.kernels.physical._constants import document
from triosim.kernels.physical._tables import device_of
from triosim.kernels.work.attention import FAMILIES, attention, of
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase

H100 = catalog.accelerator("H100-SXM5-80GB")
DEVICES = ("A100-SXM4-80GB", "H100-SXM5-80GB", "L40S", "B200-SXM-180GB", "T4", "MI300X")


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 50), st.booleans())
def test_pairs_are_those_of_the_mask(queries, before, window, causal):
    keys = queries + before
    query, key = np.arange(before, keys)[:, None], np.arange(keys)[None, :]
    mask = (key <= query) if causal else np.ones((queries, keys), bool)
    if window and causal:
        mask &= key > query - window
    elif window:
        mask = np.ones((queries, min(keys, window)), bool)  # as many as the window lets through
    work = attention(3, queries, keys, 4, 2, 64, window=window, causal=causal)
    assert work.pairs()[0] == pytest.approx(3 * 4 * mask.sum())


def test_flop_and_bytes_by_hand():
    work = attention(2, 4, 4, 8, 2, 16, causal=False, stores=True)
    assert work.flop()[0] == 2 * 8 * 4 * 4 * 2 * (16 + 16)
    assert work.key_bytes()[0] == 2 * 2 * 4 * 32 * 2
    assert work.query_bytes()[0] == 2 * 8 * 4 * 32 * 2
    assert work.stored_bytes()[0] == 2 * 2 * 4 * 32 * 4
    assert work.bytes()[0] == work.key_bytes()[0] + work.query_bytes()[0] + work.stored_bytes()[0]
    backward = attention(2, 4, 4, 8, 2, 16, causal=False, backward=True)
    assert backward.flop()[0] == 2.5 * work.flop()[0]


def test_latent_heads_read_one_vector_for_keys_and_values():
    latent = attention(1, 1, 1000, 128, 1, 576, head_v=512, latent=True)
    assert latent.key_bytes()[0] == 1000 * 576 * 2
    assert latent.decodes().all()


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_times_are_finite_and_above_what_physics_allows(name, family):
    device = catalog.accelerator(name)
    batch, keys = (x.ravel() for x in np.meshgrid(2.0 ** np.arange(0, 10, 3), 2.0 ** np.arange(4, 16, 3)))
    for queries in (1, keys):
        work = attention(batch, queries, keys, 32, 8, 128, family=family)
        found = model.predict(work, device)
        assert np.isfinite(found.seconds).all()
        assert (found.seconds >= work.flop() / rate("bfloat16", device)).all()
        assert (found.seconds >= work.bytes() / device.memory_bandwidth).all()
        assert set(found.limit.tolist()) <= {Limit.COMPUTE, Limit.MEMORY, Limit.LAUNCH}


@given(st.integers(0, 6), st.integers(4, 13), st.booleans())
def test_more_sequences_or_positions_never_take_less(batch, keys, decoding):
    def seconds(batch, keys):
        work = attention(batch, 1 if decoding else keys, keys, 16, 4, 128)
        return model.predict(work, H100).seconds[0]

    now = seconds(2**batch, 2**keys)
    assert seconds(2 ** (batch + 1), 2**keys) >= 0.97 * now  # fewer splits may save a little of their cost
    assert seconds(2**batch, 2 ** (keys + 1)) >= now


def test_a_window_bounds_the_time_and_a_cold_cache_costs():
    full = attention(4, 8192, 8192, 32, 8, 128)
    windowed = attention(4, 8192, 8192, 32, 8, 128, window=1024)
    assert model.predict(windowed, H100).seconds < 0.5 * model.predict(full, H100).seconds
    small = attention(16, 1, 1024, 32, 8, 128, warm=True)
    l40s = catalog.accelerator("L40S")
    cold = replace(small, warm=np.array([False]))
    assert model.predict(cold, l40s).seconds > 1.3 * model.predict(small, l40s).seconds


def test_grouped_heads_read_their_keys_once():
    """Long contexts: a quarter of the key heads takes a quarter of the time."""
    grouped, own = attention(64, 1, 16384, 32, 8, 128), attention(64, 1, 16384, 32, 32, 128)
    assert own.key_bytes()[0] == 64 * 32 * 16384 * 256 * 2 == 4 * grouped.key_bytes()[0]
    assert model.predict(own, H100).seconds[0] == pytest.approx(4 * model.predict(grouped, H100).seconds[0], rel=0.05)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "L40S"])
def test_latent_heads_decode_near_both_bounds(name):
    """DeepSeek-V3: 128 query heads of 576 over one latent vector, 242 operations for each byte read."""
    device = catalog.accelerator(name)
    work = attention(64, 1, 4096, 128, 1, 576, head_v=512, latent=True)
    assert work.flop()[0] == 64 * 128 * 4096 * 2 * (576 + 512)
    assert work.flop()[0] / work.key_bytes()[0] == pytest.approx(128 * 1088 / 576)
    bound = max(work.flop()[0] / rate("bfloat16", device), work.bytes()[0] / device.memory_bandwidth)
    assert bound < model.predict(work, device).seconds[0] < 2.5 * bound


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "L40S"])
def test_a_window_hides_what_lies_before_it(name):
    device = catalog.accelerator(name)

    def seconds(queries: float, keys: float, window: float) -> float:
        return float(model.predict(attention(1, queries, keys, 32, 8, 128, window=window), device).seconds[0])

    assert seconds(1, 65536, 1024) == pytest.approx(seconds(1, 1024, 0))
    kept = 1 - (1 - 4096 / 32768) ** 2  # of the triangle that a causal mask leaves
    assert seconds(32768, 32768, 4096) == pytest.approx(kept * seconds(32768, 32768, 0), rel=0.15)


@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "L40S"])
def test_encoders_chunks_and_gradients(name):
    device = catalog.accelerator(name)

    def seconds(queries: float, keys: float, **traits: bool) -> float:
        return float(model.predict(attention(2, queries, keys, 32, 32, 128, **traits), device).seconds[0])

    causal = seconds(8192, 8192)
    assert 1.6 < seconds(8192, 8192, causal=False) / causal < 2.05  # twice the pairs
    chunks = sum(seconds(1024, keys) for keys in range(1024, 8193, 1024))
    assert causal < chunks < 1.25 * causal  # the same pairs in eight launches
    assert 2.5 < seconds(8192, 8192, backward=True) / causal < 3.5  # 2.5 times the products, at 63/73 of the rate


def test_the_first_version_computes_heads_as_the_next_longer_it_has_kernels_for():
    """32, 64 and 128: heads of 96 take what those of 128 do where computing bounds."""
    device, table = catalog.accelerator("A100-SXM4-80GB"), model.constants().prefill.of("flash2")

    def seconds(head: int, first: bool) -> float:
        work = attention(32, 2048, 2048, 16, 16, head, backward=True)
        return float(model.prefill(work, device, table, first=first).seconds[0])

    assert seconds(96, True) == pytest.approx(seconds(128, True), rel=0.02)
    assert seconds(80, True) == pytest.approx(seconds(96, True), rel=0.02)
    assert seconds(96, False) < 0.8 * seconds(128, False)
    assert seconds(160, True) > 1.2 * seconds(128, True)
    assert model._padding(np.array([16.0, 32, 64, 96, 128, 160])).tolist() == [2, 1, 1, 128 / 96, 1, 1]


def test_attention_of_a_trace():
    """Grouped heads before positions; flash kernels have positions first, and windows."""
    b = TraceBuilder()
    shapes = [(2, 32, 100, 128), (2, 8, 100, 128), (2, 8, 100, 128)]
    q, k, v = (b.value(shape, "bfloat16", Category.ACTIVATION) for shape in shapes)
    out = b.value(shapes[0], "bfloat16", Category.ACTIVATION)
    plain = "aten::scaled_dot_product_attention"
    b.operator(plain, [q, k, v], [out], roles=["query", "key", "value"], phase=Phase.FORWARD, args={"is_causal": True})
    shapes = [(2, 100, 32, 128), (2, 100, 8, 128), (2, 100, 8, 128)]
    q, k, v = (b.value(shape, "bfloat16", Category.ACTIVATION) for shape in shapes)
    flash = "aten::_flash_attention_forward"
    args = {"is_causal": True, "window_size_left": 15}
    b.operator(flash, [q, k, v], [out], roles=["query", "key", "value"], phase=Phase.FORWARD, args=args)
    trace = b.build(Meta("test", workload="attention"))
    work = of(trace, np.arange(2), np.full(2, DTYPE_CODE["bfloat16"]))
    for column, expected in {"batch": 2, "queries": 100, "keys": 100, "heads": 32, "kv_heads": 8, "head": 128}.items():
        assert getattr(work, column).tolist() == [expected] * 2, column
    assert work.causal.all()
    assert work.window.tolist() == [0, 16]
    assert work.pairs().tolist() == [2 * 32 * 100 * 101 / 2, 2 * 32 * (16 * 17 / 2 + 84 * 16)]


def test_few_queries_over_a_long_context_cost_what_one_does():
    """A draft of four tokens reads the keys once; nothing jumps where decoding ends and chunked prefill begins."""
    b200 = catalog.accelerator("B200-SXM-180GB")
    times = [float(model.predict(attention(16, q, 8192, 32, 8, 128), b200).seconds[0]) for q in (1, 4, 16, 17, 32)]
    assert times[1] == pytest.approx(times[0], rel=0.05)
    assert times[3] == pytest.approx(times[2], rel=0.1)
    assert times[4] < 2 * times[2]


def test_long_decoding_is_bound_by_memory_and_long_prefill_by_computing():
    decode, prefill = attention(64, 1, 16384, 32, 8, 128), attention(4, 8192, 8192, 32, 8, 128)
    assert model.predict(decode, H100).limit[0] == Limit.MEMORY
    assert model.predict(prefill, H100).limit[0] == Limit.COMPUTE
    assert model.predict(attention(1, 1, 2, 1, 1, 64), H100).limit[0] == Limit.LAUNCH


def test_rows_do_not_depend_on_each_other():
    work = attention(np.array([1.0, 8, 64]), np.array([1.0, 512, 1]), np.array([100.0, 512, 3000]), 16, 4, 128)
    whole = model.predict(work, H100).seconds
    for row in range(3):
        assert model.predict(work.take(np.array([row])), H100).seconds[0] == whole[row]


def test_family_follows_the_architecture():
    names = {"H100-SXM5-80GB": "flash3", "B200-SXM-180GB": "trtllm", "A100-SXM4-80GB": "flash2", "RTX-5090": "flash2",
             "MI300X": "flash2", "R200-VR-NVL144": "trtllm"}  # fmt: skip
    assert {name: model.family_of(catalog.accelerator(name)) for name in names} == names


def test_twice_the_exponentials_help_where_heads_are_short():
    """Blackwell Ultra against the same device with the units of Blackwell: computing takes as long for longer heads."""
    ultra = catalog.accelerator("B300-SXM-288GB")
    plain = replace(ultra, architecture="Blackwell GB100")
    gain = []
    for head in (64, 128, 256):
        work = attention(4, 16384, 16384, 64, 8, head, warm=True)
        gain.append(model.predict(work, plain).seconds[0] / model.predict(work, ultra).seconds[0])
    assert gain == sorted(gain, reverse=True)
    assert 1.3 < gain[0] < 2.0
    assert 1.0 < gain[2] < 1.2


def test_cards_of_half_the_matrix_rate_wait_less_for_the_softmax():
    """FlashAttention-2 reaches 166 of the 165 TFLOP/s that an RTX 4090's datasheet has (apache/tvm, flash_perf.md)."""
    card, work = catalog.accelerator("RTX-4090"), attention(64, 2048, 2048, 16, 16, 128, causal=False)
    reached = work.flop()[0] / model.predict(work, card).seconds[0] / card.peak("float16")
    a100 = catalog.accelerator("A100-SXM4-80GB")
    assert 0.8 < reached < 1.0
    assert work.flop()[0] / model.predict(work, a100).seconds[0] / a100.peak("float16") < 0.75


def test_the_second_version_is_as_fast_on_an_h100_as_its_authors_say():
    """335 TFLOP/s forward and backward at most (FlashAttention-2, section 4.1)."""

    def work(backward: bool):
        return attention(1, 16384, 16384, 16, 16, 128, causal=False, family="flash2", backward=backward)

    seconds = sum(model.predict(work(backward), H100).seconds[0] for backward in (False, True))
    assert 3.5 * work(False).flop()[0] / seconds == pytest.approx(335e12, rel=0.01)


def test_the_third_version_multiplies_in_the_type_of_its_keys():
    work = attention(2, 16384, 16384, 32, 8, 128, warm=True, family="flash3")
    eight = np.full(1, DTYPE_CODE["float8_e4m3fn"], np.int8)
    kept = replace(work, kv_bytes=np.ones(1))
    sixteen, cast, whole = (model.predict(w, H100).seconds[0] for w in (work, kept, replace(kept, dtype=eight)))
    assert cast == pytest.approx(whole)
    assert cast < 0.9 * sixteen
    a100 = catalog.accelerator("A100-SXM4-80GB")
    second = replace(kept, family=np.full(1, FAMILIES.index("flash2"), np.int8))
    assert model.predict(second, a100).seconds[0] > model.predict(work, a100).seconds[0] * 0.9


def test_a_family_that_nobody_measured_is_the_next_of_the_last():
    table = model.constants()
    older = {"flash2": table.prefill.of("flash2")}, {"flash2": table.decode.of("flash2")}
    bare = model.AttentionConstants(
        replace(table.prefill, families=older[0], default="flash2"),
        replace(table.decode, families=older[1], default="flash2"),
    )
    for queries in (1, 8192):
        work = attention(4, queries, 8192, 32, 8, 128, warm=True, family="flash3")
        known, guess = (model.predict(work, H100, one).seconds[0] for one in (table, bare))
        assert guess == pytest.approx(known, rel=0.25)
        same = replace(work, family=np.full(1, FAMILIES.index("flash2"), np.int8))
        a100 = catalog.accelerator("A100-SXM4-80GB")
        assert np.array_equal(model.predict(same, a100, bare).seconds, model.predict(same, a100, table).seconds)


@pytest.mark.parametrize(
    ("name", "kib"),
    {"A100-SXM4-80GB": 164, "RTX-3090": 100, "L40S": 100, "H100-SXM5-80GB": 228, "B200-SXM-180GB": 228,
     "RTX-PRO-6000-Server": 100, "DGX-Spark-GB10": 100, "T4": 64, "MI300X": 64, "M1": 100}.items(),
)  # fmt: skip
def test_shared_memory_is_that_of_the_compute_capability(name, kib):
    assert device_of(catalog.accelerator(name)).shared == kib * 1024


def test_more_shared_memory_hides_the_latency_of_many_short_sequences():
    """16,384 blocks that read next to nothing: nearly as much faster as more of them fit into a multiprocessor."""
    work = attention(2048, 1, 2, 32, 8, 128, warm=True, family="flash2")
    a100 = catalog.accelerator("A100-SXM4-80GB")
    small = replace(a100, architecture="Ampere GA102")
    assert 1.2 < model.predict(work, small).seconds[0] / model.predict(work, a100).seconds[0] < 164 / 100


def test_splitting_a_long_context_costs_by_part():
    """One sequence: twice as many parts as positions grow, until every multiprocessor has one."""
    c = model.constants().decode.of("trtllm")
    b200 = catalog.accelerator("B200-SXM-180GB")
    none = replace(c, part_s=0.0)
    for keys, parts in ((1024, 4), (8192, 32), (2**20, 148)):
        work = attention(1, 1, keys, 8, 1, 128, warm=True)
        cost = model.decode(work, b200, c).seconds[0] - model.decode(work, b200, none).seconds[0]
        assert cost == pytest.approx(parts * c.part_s)


def test_a_device_without_bandwidth_is_refused():
    with pytest.raises(InputError, match="no memory bandwidth"):
        model.predict(attention(1, 1, 8, 1, 1, 64), Accelerator("thing", peak_flops={"bfloat16": 1e12}))


def test_measured_times_are_met():
    """Single rows of the aiconfigurator tables (SGLang 0.5.10), bfloat16, heads of 128."""
    decode = {(64, 1, 4096): 359.9e-6, (256, 1, 1024): 366.6e-6}
    h100 = decode | {(1, 16384, 16384): 3990.3e-6, (32, 2048, 2048): 2374.1e-6}
    for (batch, queries, keys), seconds in h100.items():
        work = attention(batch, queries, keys, 32, 8, 128, stores=True, warm=True)
        assert model.predict(work, H100).seconds[0] == pytest.approx(seconds, rel=0.15)


def test_engines_decode_faster_than_sglangs_flash_attention_before_hopper():
    """Calls of an A100 that judge (``serving/attention_substitute.parquet``, Llama-3-8B), and none where the device has
    newer kernels."""
    a100 = catalog.accelerator("A100-SXM4-80GB")
    for (batch, keys), seconds in {(64, 2048): 356.4e-6, (16, 4096): 191.0e-6}.items():
        flash2, paged = (attention(batch, 1, keys, 32, 8, 128, family=family) for family in ("flash2", "paged"))
        assert model.predict(paged, a100).seconds[0] == pytest.approx(seconds, rel=0.15)
        assert model.predict(flash2, a100).seconds[0] > 1.25 * seconds
        best, on_h100 = (replace(paged, family=np.full(1, FAMILIES.index(name), np.int8)) for name in ("auto", "paged"))
        assert model.predict(best, H100).seconds == model.predict(on_h100, H100).seconds


def test_constants_say_what_they_were_fitted_to():
    found = document("attention")
    inputs = [*fit_physical_attention.INPUTS, fit_physical_attention.PAGED_INPUT]
    assert found["provenance"]["inputs"] == inputs
    assert not any("vgg" in name for name in inputs)
    for phase in ("prefill", "decode"):
        for row in found["constants"][phase].values():
            assert set(row) <= set(found["units"])
        assert 0 < found["spread"][phase]["seen"] <= found["spread"][phase]["unseen"]


def test_constants_are_found_again():
    """Rows of a made-up kernel on two devices: the fit predicts what its constants do on a third."""
    truth = model.constants().decode.of("flash3")
    batch, keys = (x.ravel() for x in np.meshgrid(2.0 ** np.arange(10), 2.0 ** np.arange(4, 15)))
    work = attention(batch, 1, keys, 32, 8, 128, stores=True, warm=True, family="flash3")
    names = ("A100-SXM4-80GB", "L40S")
    parts = [model.decode(work, catalog.accelerator(name), truth).seconds for name in names]
    rows = np.concatenate([np.arange(len(work))] * 2)
    made = fit_physical_attention.Measured(
        work.take(rows), np.repeat(names, len(work)), np.full(len(rows), "x"), np.concatenate(parts)
    )
    found = fit_physical_attention.fit(made, model.Decode)
    there, expected = (model.decode(work, H100, c).seconds for c in (found, truth))
    assert np.mean(np.abs(there / expected - 1)) < 0.05


@pytest.mark.parametrize(
    ("positions", "rate"), [(512, 305), (1024, 408), (2048, 465), (4096, 499), (8192, 518), (16384, 516)]
)
def test_gradients_are_as_fast_on_an_h100_as_was_measured(positions: int, rate: float) -> None:
    """TFLOP/s of cuDNN's kernels, heads of 128, 16,384 tokens (FlashAttention-3, arXiv:2407.08608, figure 6).

    What moves beside the products is a third of the time at 512 positions.
    """
    work = attention(
        16384 / positions, positions, positions, 16, 16, 128, causal=False, backward=True, warm=True, family="cudnn"
    )
    reached = work.flop()[0] / model.predict(work, H100).seconds[0] / 1e12
    assert reached == pytest.approx(rate, rel=0.08)


@pytest.mark.parametrize("name", DEVICES)
@given(
    st.integers(129, 9000), st.integers(0, 5000), st.sampled_from((64, 96, 128)), st.booleans(), st.integers(0, 4096),
    st.sampled_from(FAMILIES), st.booleans(),
)  # fmt: skip
def test_no_call_is_faster_than_its_pairs(name, queries, before, head, causal, window, family, backward):
    """However few sequences; with many it is not much slower either, which is what the bound is good for."""
    device = catalog.accelerator(name)
    few, many = (
        attention(batch, queries, queries + before, 8, 2, head, causal=causal, window=window, family=family,
                  backward=backward)
        for batch in (1, 64)
    )  # fmt: skip
    assert model.least(few, device)[0] <= model.predict(few, device).seconds[0]
    assert model.least(many, device)[0] == pytest.approx(64 * model.least(few, device)[0])
    assert model.least(many, device)[0] <= model.predict(many, device).seconds[0]


def test_long_calls_take_little_more_than_their_pairs():
    work = attention(8, 8192, 8192, 32, 8, 128, causal=True)
    for name in ("A100-SXM4-80GB", "H100-SXM5-80GB"):
        device = catalog.accelerator(name)
        assert model.least(work, device)[0] > 0.85 * model.predict(work, device).seconds[0]
