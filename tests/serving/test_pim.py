"""Memory that computes, beside a processor that decodes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from tests.command import run
from triosim.core.errors import InputError
from triosim.hardware.build import accelerator
from triosim.hardware.pim import names, pim_memory
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import precision_of, served_model
from triosim.serving.pim import PimKernels
from triosim.serving.pim_energy import bank_share
from triosim.serving.request_energy import StepLoad, work_of

REQUEST = ("infer", "llama-2-7b", "--prompt", "1024", "--output", "16", "--json", "-")


def _kernels(
    memory: str = "attacc", mode: str = "attention", model: str = "llama-2-7b", **changes: object
) -> PimKernels:
    device = accelerator(f"A100+{memory}")
    device = replace(device, pim=replace(device.pim, **changes))
    return PimKernels(served_model(model), device, precision_of("bf16"), mode=mode)


def _plain(model: str = "llama-2-7b") -> ServingKernels:
    return ServingKernels(served_model(model), accelerator("A100"), precision_of("bf16"))


def _request(device: str, *more: str) -> dict:
    return json.loads(run(*REQUEST, "--device", device, *more).stdout)


def test_attention_on_the_banks_by_hand() -> None:
    """32 heads of 128, 8 sequences of 1,000 keys in 16 bits, on 5,120 banks of 5.892 GB/s and FLOP/s."""
    work = _kernels().attention_work([8], [1000])
    parts = {name: float(seconds[0]) for name, seconds in work.parts(pim_memory("attacc")).items()}
    assert parts == pytest.approx({
        "command": 1e-6,
        "broadcast": 8 * 32 * 128 * 2 / 300e9,
        "banks": 2 * 8 * 1000 * 32 * 128 * 2 / (5120 * 5.892e9),
        "units": 0.0,
        "exchange": 2 * 8 * 32 * 1000 * 2 / 3352e9,
        "gather": 8 * 32 * 128 * 2 / 300e9,
    })  # fmt: skip
    assert float(work.seconds(pim_memory("attacc"))[0]) == pytest.approx(sum(parts.values()))
    read, flop = 2 * 8 * 1000 * 32 * 128 * 2, 4 * 8 * 1000 * 32 * 128
    moved = 2 * 8 * 32 * 128 * 2 + 2 * 8 * 32 * 1000 * 2
    assert float(work.joules(pim_memory("attacc"))[0]) == pytest.approx(
        1e-12 * (4.4 * read + 0.16 * flop + 10.4 * moved)
    )


def test_heads_that_share_keys_read_them_in_turn() -> None:
    grouped = _kernels(model="llama-3-8b")
    work = grouped.attention_work([4], [500])
    assert work.passes == 4
    assert _kernels(model="llama-3-8b", vectors=4).attention_work([4], [500]).passes == 1
    assert work.bytes[0] * 4 == pytest.approx(_kernels().attention_work([4], [500]).bytes[0])


@pytest.mark.parametrize("memory", ["attacc", "neupims", "upmem"])
def test_the_cheaper_side_is_taken(memory: str) -> None:
    sequences, keys = (side.ravel() for side in np.meshgrid([1, 4, 64, 300], [1, 100, 4000, 100_000]))
    shown, own = _kernels(memory).decode(sequences, keys), _plain().decode(sequences, keys)
    assert (shown <= own).all()
    assert (_kernels(memory, mode="off").decode(sequences, keys) == own).all()
    tokens = np.array([1, 8, 512])
    every, plain = _kernels(memory, mode="all").operators(tokens), _plain().operators(tokens)
    for name, seconds in plain.items():
        assert (every[name] <= seconds).all()
    if memory == "upmem":
        assert (shown == own).all(), "multiplications in software: nothing is worth going there"
    else:
        assert (shown[keys == 4000] < own[keys == 4000]).all()
        assert every["qkv"][0] < plain["qkv"][0]
        assert every["qkv"][2] == plain["qkv"][2], "a prompt stays on the processor"


def test_more_banks_and_faster_ones_never_slow_down() -> None:
    sequences, keys = np.array([1, 16, 128]), np.array([64, 2048, 30_000])
    base = _kernels().decode(sequences, keys)
    for name in ("banks", "bank_bandwidth", "bank_flops", "broadcast_bandwidth", "exchange_bandwidth"):
        value = getattr(pim_memory("attacc"), name)
        assert (_kernels(**{name: value * 2}).decode(sequences, keys) <= base).all()
        assert (_kernels(**{name: type(value)(value / 2)}).decode(sequences, keys) >= base).all()


def test_halves_of_the_batch_take_turns_where_that_is_shorter() -> None:
    sequences, keys = np.array([1, 2, 64, 256]), np.array([4000] * 4)
    alone = _kernels("neupims", sub_batches=1)
    both = _kernels("neupims")
    one, two = alone.decode(sequences, keys), both.decode(sequences, keys)
    assert (two <= one).all()
    assert one[0] == two[0], "one sequence has no halves"
    assert two[3] < one[3]
    layer = both.layer(np.array([128, 256]))
    attention = float(both.attention_work([128], [4000]).seconds(pim_memory("neupims"))[0])
    assert two[3] == pytest.approx(2 * max(layer[0], attention) - layer[1])
    assert two[3] + layer[1] >= max(one[3], 2 * layer[0], layer[1]) - 1e-12, "no work vanishes"


def test_a_request_decodes_faster_and_says_why() -> None:
    plain, with_banks = _request("A100", "--batch-size", "16"), _request("A100+attacc", "--batch-size", "16")
    assert with_banks["ttft_s"] == plain["ttft_s"]
    assert with_banks["tpot_s"] < 0.9 * plain["tpot_s"]
    told = with_banks["pim"]
    assert told["banks_s"] < told["processor_s"]
    assert told["banks_j"] < told["processor_j"]
    assert (told["runs"], told["binds"]) == ("in attacc", "banks")
    assert "pim" not in plain
    assert _request("A100+attacc", "--batch-size", "16", "--pim", "off")["tpot_s"] == plain["tpot_s"]
    every = _request("A100+attacc", "--pim", "all")
    assert every["tpot_s"] < _request("A100+attacc")["tpot_s"] < _request("A100")["tpot_s"]
    assert _request("A100+upmem")["pim"]["runs"] == "on the processor"
    shown = run(*REQUEST[:-2], "--device", "A100+attacc").stdout
    assert "attention of a layer, decoding, runs in attacc\n  on the processor " in shown


def test_a_file_describes_it(tmp_path: Path) -> None:
    memory = (Path(__file__).resolve().parents[2] / "src/triosim/hardware/pim_memories/attacc.toml").read_text()
    (tmp_path / "mine.toml").write_text(memory.replace("banks = 5120", "banks = 2560"))
    (tmp_path / "device.toml").write_text('name = "Mine"\nlike = "A100"\npim = "mine.toml"\n')
    half = _request(str(tmp_path / "device.toml"), "--batch-size", "64")
    whole = _request("A100+attacc", "--batch-size", "64")
    assert half["pim"]["parts_s"]["banks"] == pytest.approx(2 * whole["pim"]["parts_s"]["banks"])
    assert half["tpot_s"] > whole["tpot_s"]


def test_serving_uses_it() -> None:
    words = (
        "serve", "llama-2-7b", "--requests", "60", "--arrivals", "poisson:4", "--lengths", "fixed:1024", "--interval",
        "off", "--json", "-",
    )  # fmt: skip
    plain, banks, slow = (
        json.loads(run(*words, "--device", name).stdout) for name in ("A100", "A100+attacc", "A100+upmem")
    )

    def middle(found: dict) -> float:
        return found["latency_s"]["tpot"]["p50"]

    assert middle(banks) < middle(plain) == middle(slow)


@pytest.mark.parametrize("memory", ["attacc", "neupims", "upmem"])
def test_ready_ones_say_where_they_are_from(memory: str) -> None:
    assert memory in names()
    found = pim_memory(memory)
    assert found.source
    assert 1e12 < found.bandwidth < 1e14


@pytest.mark.parametrize(("change", "said"), [
    (("banks = 5120", "banks = 0"), "banks must be a whole number from 1"),
    (("banks = 5120", ""), "banks is missing"),
    (('bank_bandwidth = "5.892 GB/s"', 'bank_bandwidth = "0 GB/s"'), "bank_bandwidth"),
    (("bank_pj_per_byte = 4.4", "bank_pj_per_byte = -1"), "must be a number of picojoules"),
    (("vectors = 1", "vector = 1"), "unknown key 'vector'"),
    (('command = "1 us"', "command = true"), "command must be a text with a unit"),
])  # fmt: skip
def test_a_wrong_file_is_one_sentence(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    memory = (Path(__file__).resolve().parents[2] / "src/triosim/hardware/pim_memories/attacc.toml").read_text()
    assert change[0] in memory
    path = tmp_path / "memory.toml"
    path.write_text(memory.replace(*change))
    with pytest.raises(InputError, match=said) as caught:
        pim_memory(str(path))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_is_one_sentence() -> None:
    for words, said in (
        ((*REQUEST, "--device", "A100", "--pim", "all"), "no memory of A100-SXM4-80GB computes: give --device"),
        ((*REQUEST, "--device", "A100+attacc", "--pim", "most"), "unknown --pim 'most'"),
        ((*REQUEST, "--device", "A100+nothing"), "unknown computing memory 'nothing': known: attacc"),
        ((*REQUEST, "--device", "A1000+attacc"), "unknown device 'A1000'"),
        (("infer", "llama-2-7b", "--device", "A100+attacc", "--pim", "all"), "--pim is of one request"),
        (("infer", "llama-2-7b", "--device", "A100", "--weights", "fp8"), "--weights is of one request"),
    ):  # fmt: skip
        done = run(*words, code=2)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("device", ["A100", "A100+attacc", "A100+neupims", "A100+upmem"])
def test_parts_of_a_decode_add_up_to_it(device: str) -> None:
    found = json.loads(run(*REQUEST[:-2], "--device", device, "--batch-size", "8", "--json", "-").stdout)
    assert sum(found["breakdown_s"]["decode"].values()) == pytest.approx(found["tpot_s"], rel=0.01)


def test_a_file_of_ones_own_stands_behind_the_plus(tmp_path: Path) -> None:
    ready = resources.files("triosim.hardware.pim_memories").joinpath("attacc.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(ready.replace('"attacc"', '"mine"'))
    mine, attacc = (_request(f"A100+{name}") for name in (path, "attacc"))
    assert mine["device"].endswith("+mine")
    assert mine["tpot_s"] == attacc["tpot_s"]
    assert "J an output token" in run(*REQUEST[:-2], "--device", f"A100+{path}").stdout


def test_what_the_banks_read_does_not_pass_the_pins() -> None:
    """By hand: 4 sequences of 4,000 keys in 3 steps, whose attention goes to the banks."""
    kernels, plain = _kernels(), _plain()
    assert kernels.decode([4], [4000]) < plain.decode([4], [4000])
    load = StepLoad(3, 12, 12, 12 * 4000, 12, np.zeros(0), np.zeros(0))
    share = bank_share(kernels, load)
    read, flop = 32 * 12 * 4000 * 2 * 32 * 128 * 2, 32 * 12 * 4000 * 4 * 32 * 128
    moved = 32 * 12 * (2 * 32 * 128 * 2 + 2 * 32 * 4000 * 2)
    assert (share.bytes, share.flop) == pytest.approx((read, flop))
    assert share.joules == pytest.approx(1e-12 * (4.4 * read + 0.16 * flop + 10.4 * moved))
    without = work_of(plain, replace(load, context=0.0))
    assert (np.array(work_of(kernels, load)) - share[:2]).tolist() == pytest.approx(without)
    every = bank_share(_kernels(mode="all"), replace(load, tokens=3, decoded=3, context=3 * 4000))
    weights = 32 * 4096 * (3 * 4096 + 4096 + 3 * 11008) * 2
    assert every.bytes == pytest.approx(3 * (weights + read / 12 / 32 * 32))
    assert bank_share(_kernels(mode="off"), load) == bank_share(_kernels("upmem"), load) == (0, 0, 0)


def test_a_fleet_whose_memory_computes_draws_less() -> None:
    words = (
        "serve", "llama-2-7b", "--requests", "40", "--arrivals", "poisson:4", "--lengths", "fixed:2048", "--interval",
        "off", "--json", "-",
    )  # fmt: skip
    plain, banks, slow = (
        json.loads(run(*words, "--device", name).stdout)["energy"] for name in ("A100", "A100+attacc", "A100+upmem")
    )
    assert 0 < banks["parts_j"]["banks"] < plain["parts_j"]["memory"] - banks["parts_j"]["memory"]
    assert banks["work_j"] < plain["work_j"]
    assert banks["interval_j"][0] < banks["node_j"] < banks["interval_j"][1]
    assert "banks" not in plain["parts_j"]
    assert slow["parts_j"]["banks"] == 0
    assert slow["work_j"] == pytest.approx(plain["work_j"], rel=1e-3)
