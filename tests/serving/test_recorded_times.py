"""Step times that were recorded: Vidur's tables and profiles, measured layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim.core.errors import InputError
from triosim.serving.deployment import Deployment, serve
from triosim.serving.layer_profiles import read_profiles
from triosim.serving.pool import Pool
from triosim.serving.requests import RequestTable
from triosim.serving.step_times import StepShape
from triosim.serving.vidur_times import ALL_REDUCE_S, ModelShape, VidurTimes, of_columns, of_profiles

MS = 10**9


def grid(**options: object) -> VidurTimes:
    """Ten layers: a token operator takes its tokens in ms, a decode its sequences and keys, a chunk its tokens."""
    rows: list[tuple] = [("tokens", 8 * n, 0, 0, 8 * n * 1e-3) for n in range(1, 65)]
    rows += [("decode", 0, b, 64 * k, (b + 64 * k / 1000) * 1e-3) for b in range(1, 9) for k in range(17)]
    rows += [("prefill", t, 0, 64 * k, (t + k) * 1e-3) for t in (1, 100, 200) for k in range(17)]
    return of_columns(*zip(*rows, strict=True), layers=10, **options)  # type: ignore[arg-type]


def ms(times: VidurTimes, step: StepShape, stage: int = 0) -> float:
    return times.ticks(step, stage) / MS


def test_vidurs_rules() -> None:
    times = grid()
    decodes = StepShape(3, (), 3, 300, 3)  # three at mean length 100: 128
    assert ms(times, decodes) == pytest.approx(10 * (8 + 3 + 0.128))
    chunk = StepShape(120, ((120, 65),), 0, 0, 1)  # keys 65: 128; the row of 100 tokens holds to 199
    assert ms(times, chunk) == pytest.approx(10 * (120 + 100 + 2))
    two = StepShape(210, ((90, 0), (120, 1)), 0, 0, 1)  # root of the sum of squares: 150; keys 0 + 64
    assert ms(times, two) == pytest.approx(10 * (216 + 100 + 1))


def test_grouped_heads_pay_a_tenth_more_for_several() -> None:
    times = grid(grouped=True)
    one, two = StepShape(1, (), 1, 64, 1), StepShape(2, (), 2, 128, 2)
    assert ms(times, one) == pytest.approx(10 * (8 + 1.064))
    assert ms(times, two) == pytest.approx(10 * (8 + 1.1 * 2.064))


def test_stages_share_layers_and_send() -> None:
    times = grid(stages=2, send_s=lambda tokens: tokens * 1e-3)
    step = StepShape(8, (), 8, 512, 8)
    assert ms(times, step, 0) == pytest.approx(5 * (8 + 8.064) + 8)
    assert ms(times, step, 1) == pytest.approx(5 * (8 + 8.064))
    with pytest.raises(InputError, match="do not divide among 3"):
        grid(stages=3)


def test_beyond_the_tables() -> None:
    times = grid()
    assert ms(times, StepShape(1024, (), 1, 64, 1)) == pytest.approx(10 * (1024 + 1.064))
    assert ms(times, StepShape(16, (), 16, 16 * 1024, 16)) == pytest.approx(10 * (16 + 2 * (8 + 1.024)))


def test_holes_are_refused() -> None:
    with pytest.raises(InputError, match="have holes"):
        of_columns(
            ["tokens", "tokens", "decode", "prefill"], [8, 24, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], layers=1
        )
    with pytest.raises(InputError, match="no rows of kind 'prefill'"):
        of_columns(["tokens", "decode"], [8, 0], [0, 1], [0, 0], [1, 1], layers=1)


NAMES = ("mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_pre_proj", "attn_post_proj", "attn_rope", "add",
         "input_layernorm", "post_attention_layernorm")  # fmt: skip


def profiles(folder: Path, parallel: int = 1) -> tuple[Path, Path, Path, Path]:
    """Vidur's files of a model whose nine operators each take a microsecond a token."""
    mlp, attention, reduce, send = (
        folder / name for name in ("mlp.csv", "attention.csv", "all_reduce.csv", "send_recv.csv")
    )
    shape = "n_head,n_kv_head,n_embd,num_tensor_parallel_workers"
    lines = [",".join([f"time_stats.{name}.median" for name in NAMES]) + f",num_tokens,{shape}"]
    for tokens in (8, 1024, 4096):
        lines += [
            ",".join([str(tokens * 1e-3)] * 9) + f",{tokens},32,8,1024,{parallel}",
            ",".join(["9"] * 9) + ",8,1,1,1,1",
        ]
    mlp.write_text("\n".join(lines))
    lines = ["batch_size,prefill_chunk_size,kv_cache_size,is_prefill,time_stats.attn_decode.median,"
             "time_stats.attn_prefill.median,n_q_head,n_kv_head,n_embd,num_tensor_parallel_workers"]  # fmt: skip
    for keys in (0, 4096):
        lines += [f"{b},0,{keys},False,{b * (1 + keys / 4096)},,32,8,1024,{parallel}" for b in (1, 128)]
        lines += [f"1,{c},{keys},True,,{c * 1e-2},32,8,1024,{parallel}" for c in (1, 4096)]
    attention.write_text("\n".join(lines))
    reduce.write_text("time_stats.all_reduce.median,num_workers,size\n0.05,2,2048\n0.05,2,9000000\n9,4,2048\n")
    send.write_text("time_stats.send_recv.median,devices_per_node,size\n0.01,2,2048\n0.01,2,9000000\n9,1,2048\n")
    return mlp, attention, reduce, send


def test_vidurs_profiles_are_interpolated(tmp_path: Path) -> None:
    mlp, attention, reduce, send = profiles(tmp_path, 2)
    model = ModelShape(layers=4, heads=32, kv_heads=8, width=1024, tensor_parallel=2)
    times = of_profiles(mlp, attention, model, all_reduce=reduce, send_recv=send, stages=2)
    reduces = 2 * (0.05 + ALL_REDUCE_S * 1e3)
    step = StepShape(64, (), 64, 64 * 1024, 64)
    layer = 9 * 0.064 + reduces + 1.1 * 64 * 1.25
    assert ms(times, step, 0) == pytest.approx(2 * layer + 0.01)
    assert ms(times, step, 1) == pytest.approx(2 * layer)
    chunk = StepShape(500, ((500, 0),), 0, 0, 1)
    assert ms(times, chunk, 1) == pytest.approx(2 * (9 * 0.504 + reduces + 5.0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda model: {"model": ModelShape(4, 32, 4, 1024)}, "has no row with n_head 32"),
        (lambda model: {"model": ModelShape(4, 32, 8, 1024, 2)}, "has no row with"),
        (lambda model: {"stages": 2}, "need the profile of sending"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(change: object, says: str, tmp_path: Path) -> None:
    mlp, attention, _, _ = profiles(tmp_path)
    options = {"model": ModelShape(4, 32, 8, 1024), **change(None)}  # type: ignore[operator]
    with pytest.raises(InputError, match=says):
        of_profiles(mlp, attention, **options)


def test_a_broken_profile_is_refused(tmp_path: Path) -> None:
    mlp, attention, _, _ = profiles(tmp_path)
    mlp.write_text(mlp.read_text().replace("time_stats.add.median", "add"))
    with pytest.raises(InputError, match=r"has no column 'time_stats\.add\.median'"):
        of_profiles(mlp, attention, ModelShape(4, 32, 8, 1024))


# --- measured layers --------------------------------------------------------------------------------------------------


def layers(folder: Path) -> Path:
    """Chunks cost 10 us a token; decodes 1 us each and 1 ns a key; together a half more."""
    dense = ["layer,tokens,time_us"]
    dense += [f"{name},{tokens},{tokens}" for name in ("qkv_proj", "layernorm", "embedding") for tokens in (1, 2048)]
    (folder / "dense.csv").write_text("\n".join(dense))
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,100\nlm_head,257,356\n")
    rows = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    chunks, counts, keys = (16, 64, 1024), (1, 64), (16, 4096)
    rows += [f"0,0,{n},{k},{n + n * k * 1e-3}" for n in counts for k in keys]
    rows += [f"{c},{cached},0,0,{10 * c}" for c in chunks for cached in (0, 1000)]
    rows += [
        f"{c},{cached},{n},{k},{1.5 * (10 * c + n + n * k * 1e-3)}"
        for c in chunks for cached in (0, 1000) for n in counts for k in keys
    ]  # fmt: skip
    (folder / "attention.csv").write_text("\n".join(rows))
    return folder


def test_measured_layers_are_interpolated(tmp_path: Path) -> None:
    times = read_profiles(layers(tmp_path), 4)

    def us(step: StepShape) -> float:
        return times.ticks(step, 0) / 1e6

    base = 4 * (8 + 2 * 8) + 8
    assert us(StepShape(8, (), 8, 8 * 1001, 8)) == pytest.approx(base + 107 + 4 * (8 + 8))
    base = 4 * 3 * 600 + 600
    assert us(StepShape(600, ((600, 500),), 0, 0, 1)) == pytest.approx(base + 100 + 4 * 6000, rel=1e-3)
    base = 4 * 3 * 608 + 608
    mixed = StepShape(608, ((600, 500),), 8, 8 * 1001, 9)
    # between two chunks time is a power, which a sum of chunk and decodes is not quite
    assert us(mixed) == pytest.approx(base + 108 + 4 * 1.5 * (6000 + 16), rel=5e-3)


def test_measured_layers_that_are_broken_are_refused(tmp_path: Path) -> None:
    layers(tmp_path)
    dense = tmp_path / "dense.csv"
    dense.write_text(dense.read_text().replace("qkv_proj,1,1", "qkv_proj,1,none"))
    with pytest.raises(InputError, match=r"dense.csv, line 2: needs numbers"):
        read_profiles(tmp_path, 4)
    attention = layers(tmp_path) / "attention.csv"
    attention.write_text("\n".join(row for row in attention.read_text().split("\n") if not row.startswith("64,0,1,")))
    times = read_profiles(tmp_path, 4)
    with pytest.raises(InputError, match="has a hole"):
        times.ticks(StepShape(66, ((65, 500),), 1, 20, 1), 0)
    (tmp_path / "attention.csv").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_profiles(tmp_path, 4)


# --- both, from a folder ----------------------------------------------------------------------------------------------

CONFIGURATION = """
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,
 "intermediate_size": 2816, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 1000,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "head_dim": 32}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "small.json"
    file.write_text(CONFIGURATION)
    return str(file)


def served(model: str, folder: Path, **more: object) -> float:
    """Seconds of one request of 64 prompt and 3 output tokens."""
    own = Pool(model, triosim.system(device="H100", devices=8), step_times=str(folder), front_s=0.0, **more)  # type: ignore[arg-type]
    table = RequestTable.of([0.0], [64], [3])
    found = serve(Deployment((own,), idle_ok=True), table)
    assert found.intervals == {}
    return found.metrics.distributions["e2e"].mean


def test_measured_layers_price_what_is_served(model: str, tmp_path: Path) -> None:
    (folder := tmp_path / "layers").mkdir()
    times = read_profiles(layers(folder), 4)
    steps = [StepShape(64, ((64, 0),), 0, 0, 1), *(StepShape(1, (), 1, keys, 1) for keys in (65, 66))]
    assert served(model, folder) == pytest.approx(sum(times.ticks(step, 0) for step in steps) / 1e12, rel=1e-12)


def test_vidurs_profiles_price_what_is_served(model: str, tmp_path: Path) -> None:
    profiles(tmp_path, 2)
    shape = ModelShape(4, 32, 8, 1024, 2)
    network = {name: tmp_path / f"{name}.csv" for name in ("all_reduce", "send_recv")}
    times = of_profiles(tmp_path / "mlp.csv", tmp_path / "attention.csv", shape, stages=2, **network)
    steps = [StepShape(64, ((64, 0),), 0, 0, 1), *(StepShape(1, (), 1, keys, 1) for keys in (65, 66))]
    whole = sum(times.ticks(step, stage) for step in steps for stage in range(2)) / 1e12
    assert served(model, tmp_path, tensor_parallel=2, stages=2) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"stages": 2}, "nothing of sending"),
        ({"weights": "fp8"}, "--weights fp8 changes them"),
        ({"speculation": "ngram,acceptance=0.5"}, "--speculate changes them"),
        ({"step_times": "/nowhere/at/all"}, "no such file or folder"),
        ({"step_times": "."}, "neither dense.csv"),
        ({"model": "deepseek-v2-lite"}, "layers that differ"),
    ],
)
def test_what_measured_layers_do_not_say_is_refused(model: str, tmp_path: Path, more: dict, says: str) -> None:
    (folder := tmp_path / "layers").mkdir()
    layers(folder)
    own = Pool(model, triosim.system(device="H100", devices=2), step_times=str(folder))
    with pytest.raises(InputError, match=says):
        serve(Deployment((replace(own, **more),), idle_ok=True), RequestTable.of([0.0], [64], [3]))


def test_their_interval_is_not_known(model: str, tmp_path: Path) -> None:
    layers(tmp_path)
    words = ("serve", model, "--device", "H100", "--arrivals", "poisson:5", "--lengths", "fixed:64", "--requests", "9")
    assert "9 requests" in run(*words, "--step-times", tmp_path).stdout
    assert "not known" in run(*words, "--step-times", tmp_path, "--interval", "on", code=2).stderr
