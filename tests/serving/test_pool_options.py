from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.command import run
from triosim.cli.serve_options import ServeOptions
from triosim.core.errors import InputError
from triosim.serving.pool_options import PoolOptions

ONE = triosim.system(device="H100-SXM5-80GB", devices=1)
TRAFFIC = ("poisson:8", "uniform:64-128", 40)


def test_python_says_what_the_command_says(tmp_path: Path) -> None:
    """The same words, the same figures: of one pool with a few of everything, and of a request alone."""
    run(
        "serve", "gpt2", "--device", "H100-SXM5-80GB", "--arrivals", TRAFFIC[0], "--lengths", TRAFFIC[1],
        "--requests", str(TRAFFIC[2]), "--engine", "sglang", "--engine-option", "max-running=8", "--weights", "fp8",
        "--kv-tier", "host:20GB", "--prefix-caching", "on", "--memory-utilisation", "0.5", "--power-cap", "500 W",
        "--front-time", "2 ms", "--slo", "ttft=p99:2s", "--json", str(tmp_path / "a.json"),
    )  # fmt: skip
    pool = triosim.pool(
        "gpt2", ONE, engine="sglang", engine_option={"max-running": 8}, weights="fp8", kv_tier=["host:20GB"],
        prefix_caching=True, memory_utilisation=0.5, power_cap="500 W", front_time="2 ms",
    )  # fmt: skip
    result = triosim.serve(pool, triosim.traffic(*TRAFFIC), slo="ttft=p99:2s")
    assert json.loads(result.to_json()) == json.loads((tmp_path / "a.json").read_text())
    run("infer", "gpt2", "--device", "H100-SXM5-80GB", "--prompt", "64", "--output", "8", "--batch-size", "2",
        "--json", str(tmp_path / "b.json"))  # fmt: skip
    alone = triosim.infer(triosim.pool("gpt2", ONE), prompt=64, output=8, batch_size=2)
    assert json.loads(alone.to_json()) == json.loads((tmp_path / "b.json").read_text())


def test_every_option_of_a_pool_is_one_of_the_command() -> None:
    assert {one.name for one in fields(PoolOptions)} <= {one.name for one in fields(ServeOptions)}


def test_results_are_shown_as_lines_and_in_notebooks() -> None:
    pool = triosim.pool("gpt2", ONE, replicas=1)
    result = triosim.serve(pool, triosim.traffic(*TRAFFIC))
    lines = repr(result).splitlines()
    assert lines[0] == "gpt2 under vllm on 1 x 1 H100-SXM5-80GB, bf16 weights"
    assert lines[1].startswith("40 requests in ")
    assert {"TTFT", "TPOT", "throughput", "cost"} <= {line.split("  ")[0] for line in lines}
    assert repr(result) == str(result)
    assert result._repr_html_().startswith("<div><strong>gpt2 under vllm")
    assert "<th" in result._repr_html_()
    assert "TTFT" in repr(triosim.infer(pool, 64, 8))


def test_what_is_no_pool_and_no_requests_is_told() -> None:
    pool, requests, system = triosim.pool("gpt2", ONE), triosim.traffic(*TRAFFIC), "dgx-a100"
    wrong: list[tuple[Any, str]] = [
        (lambda: triosim.serve("gpt2", requests), "triosim.pool(MODEL, SYSTEM)"),  # type: ignore[arg-type]
        (lambda: triosim.serve(pool, "requests.csv"), "triosim.load_requests(FILE)"),  # type: ignore[arg-type]
        (lambda: triosim.serve(pool, requests, slo="ttft"), "is no goal"),
        (lambda: triosim.infer("gpt2", 1, 1), "triosim.pool(MODEL, SYSTEM)"),  # type: ignore[arg-type]
        (lambda: triosim.pool("gpt2", system), "triosim.system(NAME)"),  # type: ignore[arg-type]
        (lambda: triosim.pool("gpt2", ONE, tpp=2), "did you mean tp"),
        (lambda: triosim.pool("gpt2", ONE, power_cap="400 MHz"), "power_cap"),
        (lambda: triosim.traffic("poisson:8", "uniform:1-2", "7"), "whole number"),  # type: ignore[arg-type]
    ]
    for call, words in wrong:
        with pytest.raises(InputError) as told:
            call()
        assert words in str(told.value)
