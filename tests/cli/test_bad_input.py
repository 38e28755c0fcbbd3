"""Bad input: one clear sentence, exit code 2, no traceback, and no file left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from tests.traces import chain


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chain.triosim"
    triosim.save(chain(layers=8), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dp", "3", "--devices", "2", "--link", "1GB/s"), "nearest that work on 2 devices"),
        (("--dp", "3", "--devices", "8", "--link", "1GB/s"), "leave 5 of the system's 8 devices idle: nearest"),
        (("--system", "dgx-h100", "--dp", "4"), "leave 4 of the system's 8 devices idle"),
        (("--tp", "3", "--devices", "8", "--link", "1GB/s"), "cannot be divided into tp 3"),
        (("--tp", "3", "--link", "1GB/s"), "does not divide by 3"),
        (("--pp", "9", "--link", "1GB/s"), "use pp 8 or less"),
        (("--micro-batches", "7"), "nearest that do are"),
        (("--batch-size", "0"), "at least 1"),
        (("--batch-size", "-4"), "at least 1"),
        (("--devices", "0"), "from 1 to"),
        (("--global-batch-size", "7", "--dp", "2", "--link", "1GB/s"), "nearest that do are 6 or 8"),
        (("--devices", "2"), "--link"),
        (("--devices", "2", "--link", "0GB/s"), "above zero"),
        (("--devices", "2", "--link", "-1GB/s"), "above zero"),
        (("--devices", "2", "--link", "fast"), "unknown link"),
        (("--devices", "2", "--link", "1GB/s", "--latency", "-1us"), "negative"),
        (("--devices", "2", "--link", "1GB/s", "--latency", "5 parsecs"), "unknown unit"),
        (("--devices", "6", "--link", "1GB/s", "--topology", "mesh", "--shape", "4x2"), "3x2"),
        (("--devices", "2", "--link", "1GB/s", "--topology", "moebius"), "unknown topology"),
        (("--device", "H1000"), "did you mean"),
        (("--system", "dgx-h1000"), "did you mean"),
        (("--system", "dgx-h100", "--devices", "4"), "give one of them"),
        (("--cp-style", "ring"), "cp is 1: give cp as well"),
        (("--nodes", "2"), "--nodes counts the servers of a --system: name one, or use --devices"),
        (("--device", "MI300X", "--nodes", "2"), "of a --system: name one (of MI300X: mi300x-8), or use --devices"),
        (("--schedule", "zigzag"), "unknown pipeline schedule"),
        (("--overlap", "maybe"), "on or off"),
        (("--dp-style", "fsdp"), "'ddp' or 'dataparallel'"),
        (("--host", "butler"), "host must be"),
        (("--operator-times", "crystal-ball"), "unknown operator model"),
        (("--place", "weight"), "weight=host"),
        (("--place", "weight=moon"), "place weight='moon' is no place"),
        (("--compare", "tp"), "--compare 'tp': give a name and values, for example tp=4,pp=2"),
        (("--timeline", "steps.txt"), "--timeline 'steps.txt': give a name that ends in .pftrace, .json, .json.gz"),
        (("--tokens", "1e40"), "--tokens '1e40' is out of all proportion"),
        (("--place", "weight=host"), "--host-link"),
        (("--pp", "2", "--stages", "layer99", "--link", "1GB/s"), "no module 'layer99'"),
        (("--pp", "2", "--stages", "layer1,layer2", "--link", "1GB/s"), "needs 1"),
        (("--seq-len", "128"), "--seq-len cannot change it"),
        (("--precision", "bfloat16"), "is a trace"),
        (("--bucket-size", "huge"), "80GiB"),
        (("--tp", "2", "--link", "1GB/s", "--tp-plan", "nowhere.toml"), "nowhere.toml"),
        (("--algorithm", "telepathy", "--dp", "2", "--link", "1GB/s"), "unknown collective algorithm"),
        (("--trace-batch-size", "0"), "at least 1"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else None,
)
def test_a_plan_or_system_that_makes_no_sense(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run("train", trace, *arguments, code=2)
    assert words in done.stderr, done.stderr
    assert not done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such-model", "unknown model"),
        ("nowhere.triosim", "no such file"),
        ("some/where", "no such file"),
    ],
)
def test_a_workload_that_is_not_there(name: str, words: str) -> None:
    assert words in run("train", name, code=2).stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "resnet50", "--system", "dgx-h100", "--batch-size", "8", "--post", "dpo"), "writes no text"),
        (("train", "bert-base", "--system", "dgx-h100", "--batch-size", "8", "--post", "dpo"), "writes no text"),
        (("train", "gpt2", "--device", "H100", "--constant", "life.years=0"), "life.years is divided by"),
        (("infer", "llama-3-8b", "--device", "simba", "--prompt", "8", "--output", "2"), "which is a design"),
        (
            ("train", "mixtral-8x7b", "--system", "dgx-h100", "--ep", "8", "--parallelism-option", "imbalance=9"),
            "the fullest has at most all rows",
        ),
        (
            ("train", "mixtral-8x7b", "--system", "dgx-h100", "--ep", "8", "--parallelism-option", "near=3"),
            "leave it out, or give dispatch",
        ),
        (
            ("train", "mixtral-8x7b", "--system", "dgx-h100", "--ep", "8", "--parallelism", "diloco"),
            "dp_local 4 cannot be divided into groups of ep 8: sizes that fit are 1, 2, 4",
        ),
        (("train", "llama-3-8b", "--device", "H100", "--recompute", "full/100"), "there are 32 blocks"),
        (("train", "llama-3-8b", "--device", "H100", "--recompute", ""), "recompute is empty"),
        (
            ("serve", "llama-3-8b", "--device", "H100", "--arrivals", "poisson:4", "--lengths", "uniform:128-512",
             "--requests", "50", "--kv-blocks", "99999999"),
            "at most 31324 fit",
        ),
        (("explore", "eyeriss", "examples/accelerator/layer.toml", "--chart", "x.png"), "ends in .svg"),
        (("cost", "--device", "A100", "--hours", "1e300"), "--hours '1e300' is out of all proportion"),
        (
            ("search", "gpt2", "--system", "dgx-h100", "--under", "batch=64", "--price", "0", "--objective",
             "tokens-per-dollar"),
            "--price 0",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_a_sentence(words: tuple[str, ...], says: str) -> None:
    done = run(*words, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_plan_of_modules_is_told_with_its_file_and_the_module(tmp_path: Path) -> None:
    (tmp_path / "styles.toml").write_text('"*.c_fc" = 3\n')
    words = ("--device", "A100", "--devices", "2", "--link", "1GB/s", "--tp", "2", "--tp-plan", "styles.toml")
    assert "styles.toml: '*.c_fc' cannot be 3: give one of" in run("train", "gpt2", *words, cwd=tmp_path, code=2).stderr


def test_post_training_reads_what_a_configuration_is_of_and_not_what_it_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "llama-3-8b"
    folder.mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    for workload in (folder, folder / "config.json", "llama-3-8b"):
        done = run("train", workload, "--system", "dgx-h100", "--post", "dpo", "--batch-size", 8, cwd=tmp_path, code=2)
        assert "writes no text" in done.stderr


def test_a_model_needs_a_device() -> None:
    assert "name a --system or a --device" in run("train", "gpt2", code=2).stderr


@pytest.mark.parametrize("size", [0, 1, 100, 1000, -1])
def test_a_truncated_trace(trace: Path, tmp_path: Path, size: int) -> None:
    broken = tmp_path / "broken.triosim"
    broken.write_bytes(trace.read_bytes()[:size])
    done = run("train", broken, code=2)
    assert "broken.triosim" in done.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"traceEvents": 3}', "name = ", "hello"])
@pytest.mark.parametrize("suffix", [".json", ".toml", ".csv", ""])
def test_files_that_are_something_else(tmp_path: Path, content: str, suffix: str) -> None:
    file = tmp_path / f"odd{suffix}"
    file.write_text(content)
    done = run("train", file, "--device", "H100", code=2)
    assert "odd" in done.stderr


def test_nothing_is_left_behind_when_writing_fails(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "no" / "such" / "folder" / "r.json"
    done = run("train", trace, "--json", target, code=2)
    assert "folder" in done.stderr
    assert not list(tmp_path.rglob("*"))


def test_unreachable_devices(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "one-way.toml"
    device = '[[device]]\nname = "{}"\nmodel = "A100"\n'
    link = '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "1GB/s"\nboth = false\n'
    file.write_text('name = "one-way"\n' + device.format("a") + device.format("b") + link)
    done = run("train", trace, "--system", file, "--dp", "2", code=2)
    assert "cannot reach" in done.stderr
