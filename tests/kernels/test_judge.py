"""The judge of operator models: what it drops, and that no model sees the GPU it is judged on."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from validation.data import elsewhere as published
from validation.data import kernel_rows
from validation.data.kernel_rows import read
from validation.fit import physical_gemm as fit_physical_gemm
from validation.judge import elsewhere as judged_elsewhere
from validation.judge import kernels

from tests.data import shared
from triosim.core.errors import InputError
from triosim.kernels.work import gemm as products

arrow = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

A100 = {"system": "a100_sxm", "device": "NVIDIA A100-SXM4-80GB"}


def written(tmp_path, rows: list[dict], name: str = "kernels.parquet"):
    path = tmp_path / name
    table = arrow.Table.from_pylist(rows)
    csv.write_csv(table, path) if name.endswith("csv") else parquet.write_table(table, path)
    return path


def gemm(m: int, n: int, k: int, ms: float, dtype: str = "bfloat16", **where: str) -> dict:
    return {**(where or A100), "gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": ms}


def prefill(window: float | None, source: str, ms: float, system: str = "b200_sxm") -> dict:
    return {
        "system": system, "device": system, "kernel_source": source, "batch_size": 1, "isl": 4096, "num_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 0,
        "window_size": window, "latency": ms,
    }  # fmt: skip


def conv(ms: float) -> dict:
    sizes = {"B": 64, "M": None, "N": None, "K": None, "H": None}
    return {
        "gpu": "Tesla V100-PCIE-32GB", "op": "conv", "Latency": ms, **sizes, "Input_Channel": 256.0,
        "Output_Channel": 256.0, "Input_Size": 56.0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["kernels.parquet", "kernels.csv"])
def test_repeats_take_the_median(tmp_path, name):
    times = [0.9, 0.5, 0.7, 0.6]
    rows, dropped = read(written(tmp_path, [gemm(4096, 4096, 4096, t) for t in times], name), {})
    assert not dropped
    assert rows.seconds == pytest.approx([0.65e-3])
    assert rows.flop[0] == 2 * 4096**3


def test_rows_above_the_peaks_are_dropped_and_counted(tmp_path):
    fast = 2 * 8192**3 / 312e12 * 1e3
    beyond = 2 * (2 * 2**16 + 2**32) / 2.039e12 * 1e3  # weights of 8 GB
    within = 2 * (2 * 1024 + 1024**2) / 2.039e12 * 1e3  # weights of 2 MB lie in the cache
    listed = [
        gemm(8192, 8192, 8192, 0.9 * fast), gemm(8192, 8192, 8192, fast), gemm(1, 2**16, 2**16, 0.9 * beyond),
        gemm(1, 1024, 1024, 0.1 * within), gemm(64, 64, 64, -1.0), gemm(64, 64, 64, 1.0, "fp8"),
    ]  # fmt: skip
    rows, dropped = read(written(tmp_path, listed), {})
    assert len(rows) == 2
    assert sorted(dropped.values()) == [1, 1, 1, 1]
    assert any("memory bandwidth" in reason for reason in dropped)
    assert any("compute peak" in reason for reason in dropped)


def test_winograd_may_beat_the_peak(tmp_path):
    peak = 2 * 64 * 256 * 256 * 9 * 56**2 / 14e12 * 1e3
    rows, dropped = read(written(tmp_path, [conv(0.45 * peak), conv(0.40 * peak)]), {})
    assert len(rows) == 1
    assert list(dropped.values()) == [1]


def test_prefill_of_b200_that_is_not_causal_is_dropped(tmp_path):
    listed = [prefill(0.0, "trtllm_mha", 1.0), prefill(128.0, "trtllm_mha", 1.0), prefill(0.0, "triton", 1.0)]
    listed.append(prefill(None, "trtllm_mha", 1.0))
    rows, dropped = read(written(tmp_path, [*listed, prefill(0.0, "trtllm_mha", 1.0, "l40s")]), {})
    assert sum(dropped.values()) == 2
    assert len(rows) == 3
    pairs = rows.flop / (4 * 32 * 128)
    assert sorted(pairs.tolist()) == [4096 * 128 - 128 * 127 / 2, 4096 * 4097 / 2, 4096 * 4097 / 2]


def test_devices_by_any_name_or_the_cure(tmp_path):
    listed = [
        gemm(64, 64, 64, 1.0, system="h200_sxm", device="NVIDIA H200"), gemm(64, 64, 64, 1.0, system="l4", device="?"),
        gemm(64, 64, 64, 1.0, system="x100", device="Example X100"),
    ]  # fmt: skip
    path = written(tmp_path, listed)
    rows, dropped = read(path, {})
    assert sorted(rows.device.tolist()) == ["H200-SXM-141GB", "L4"]
    assert "--as x100=NAME" in next(iter(dropped))
    rows, dropped = read(path, {"x100": "B200"})
    assert "B200-SXM-180GB" in rows.device
    assert not dropped


@pytest.mark.parametrize(
    ("rows", "message"),
    [([{"a": 1}], "not a table of kernels"), ([{"gemm_dtype": "fp8", "m": 1}], "without the columns system, n, k")],
)
def test_files_of_another_kind_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        read(written(tmp_path, rows), {})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.parquet", {})


GPUS = {"a100_sxm": (312e12, 2.0e12), "h100_sxm": (989e12, 3.35e12), "l40s": (362e12, 0.86e12)}


def made_up(tmp_path, disturbed: str = "", factor: float = 1.0):
    """Kernels that a roofline explains, those of one GPU off by a factor."""
    random = np.random.default_rng(1)
    listed = []
    for system, (peak, bandwidth) in GPUS.items():
        for m, n, k in 2 ** random.integers(4, 13, (120, 3)):
            flop, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
            seconds = (4e-6 + flop / (0.7 * peak) + moved / (0.8 * bandwidth)) * (factor if system == disturbed else 1)
            listed.append(gemm(int(m), int(n), int(k), seconds * 1e3, system=system, device=system))
    return written(tmp_path, listed)


def judged(path, tmp_path, monkeypatch, *options: str):
    monkeypatch.setattr(kernel_rows, "shipped", lambda layout: path)
    for cached in (kernels.learning, kernels.sample_of):
        cached.cache_clear()
    kernels.MODELS.update(roofline=kernels.fitted(kernels._roofline), li=kernels.fitted(kernels._li))
    out = tmp_path / "scores.json"
    models = ["--model", "roofline", "--model", "li"]
    monkeypatch.setattr("sys.argv", ["kernels", "--data", str(path), "--json", str(out), *models, *options])
    try:
        kernels.main()
    finally:
        for cached in (kernels.learning, kernels.sample_of):
            cached.cache_clear()
    return {(s["device"], s["model"]): s for s in json.loads(out.read_text())["scores"]}


def test_a_roofline_is_found_on_a_gpu_that_was_left_out(tmp_path, monkeypatch, capsys):
    scores = judged(made_up(tmp_path), tmp_path, monkeypatch)
    assert len(scores) == 6
    assert all(scores[device, "roofline"]["mape"] < 0.02 for device, _ in scores)
    assert all(scores[device, "roofline"]["rows"] > 100 for device, _ in scores)
    printed = capsys.readouterr().out
    assert "mean of 3" in printed


def test_no_row_of_the_judged_gpu_is_learned_from(tmp_path, monkeypatch):
    """Times of the judged GPU that are three times longer leave its predictions as they were: the bias is 1 / 3."""
    plain = judged(made_up(tmp_path), tmp_path, monkeypatch, "--hold-out", "L40S")
    slow = judged(made_up(tmp_path, "l40s", 3.0), tmp_path, monkeypatch, "--hold-out", "L40S")
    for model in ("roofline", "li"):
        before, after = plain["L40S", model], slow["L40S", model]
        assert 1 + after["bias"] == pytest.approx((1 + before["bias"]) / 3, rel=1e-9)
        assert after["width"] == before["width"]


def test_a_gpu_that_the_file_has_not_and_a_model_that_there_is_not(tmp_path, monkeypatch, capsys):
    path = made_up(tmp_path)
    for options, message in (
        (["--hold-out", "B200"], "the file has A100-SXM4-80GB"),
        (["--model", "oracle"], "'oracle': there are roofline"),
        (["--as", "x100"], "write NAME-IN-FILE=NAME-IN-CATALOG"),
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["kernels", "--data", str(path), *options])
        with pytest.raises(InputError, match=message):
            kernels.main()


def test_physical_constants_for_a_gpu_do_not_come_from_it(monkeypatch):
    """Times of T4 that are three times longer change nothing that is predicted for T4."""
    shared("kernels", "fp32_ops.parquet")
    from validation.judge import physical as judged

    rows = judged.learning("fp32_ops")
    rows = rows.take(np.flatnonzero((rows.label == "ln") & (rows.device == "T4"))[::5])
    fit = judged._fit_stream.__wrapped__
    before = fit("ln", frozenset(["T4"]))(rows)
    assert 0.5 < np.median(before / rows.seconds) < 2
    slow = judged._moved("layer_norm")
    slow = replace(slow, seconds=np.where(slow.device == "T4", 3.0, 1.0) * slow.seconds)
    monkeypatch.setattr(judged, "_moved", lambda name: slow)
    assert np.array_equal(fit("ln", frozenset(["T4"]))(rows), before)
    assert not np.allclose(fit("ln", frozenset(["P100-PCIe-16GB"]))(rows), before)


def test_a_type_that_no_device_is_left_with_begins_where_its_fit_would():
    prior = fit_physical_gemm.TENSOR
    none = fit_physical_gemm.Rows(np.array([], "U1"), products.gemm([], [], [], "bfloat16"), np.array([]))
    assert fit_physical_gemm.fit_constants(none, prior, **fit_physical_gemm.how("tuned")) is prior


def test_kernels_published_elsewhere_are_priced_and_none_is_absurd():
    """Within a factor of three, which is a check of units and shapes: how good they are is for the judge to say."""
    found = [judged_elsewhere.predicted(row) for row in published.read(published.TABLE)]
    assert len(found) > 300
    assert {one.row.kind for one in found} == {"product", "attention", "stream"}
    assert max(abs(math.log(one.seconds / one.row.seconds)) for one in found) < math.log(3)
