"""Stacks: every one that comes with the program can be read, is short, and says where its facts are from."""

from __future__ import annotations

from pathlib import Path

import pytest

import triosim
from triosim import Fidelity, Plan
from triosim.core.errors import InputError
from triosim.stacks import FOLDER, Stack, load, names

WANTED = (
    "megatron-2021", "megatron-core", "megatron-deepspeed", "deepspeed-zero3", "llm-foundry", "torch-eager",
    "torch-compile", "torchtitan", "internevo", "maxtext", "apex-o2", "nemo", "megatron-2023", "bigscience",
)  # fmt: skip


def test_the_usual_stacks_are_there() -> None:
    assert set(WANTED) == set(names())


@pytest.mark.parametrize("name", WANTED)
def test_a_stack_is_short_and_every_fact_has_a_source(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    stack = load(name)
    assert stack.name == name
    assert stack.about
    facts = {line.split(" = ")[0] for line in text.split("[sources]")[0].splitlines() if " = " in line} - {"about"}
    assert facts == set(dict(stack.sources))


def test_vocabularies_are_padded_as_megatron_pads_them() -> None:
    assert load("megatron-core").vocabulary(50257, 8) == 51200
    assert load("megatron-core").vocabulary(50257) == 50304
    assert load("torch-eager").vocabulary(50257, 8) == 50257


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed = 2\n", "speed"),
        ('attention = "flash9"\n[sources]\nattention = "a paper"\n', "flash9"),
        ("clip = 1\n[sources]\nclip = 'a paper'\n", "true or false"),
        ("clip = true\n", "has no source"),
        ("vocabulary_multiple = 0\n[sources]\nvocabulary_multiple = 'x'\n", "at least 1"),
    ],
)
def test_a_stack_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load(str(file))


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(InputError, match="megatron-core"):
        load("megatron-cor")
    with pytest.raises(InputError, match=r"own\.toml"):
        load("/nowhere/own.toml")


def test_a_stack_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('about = "ours"\ngradients = "float32"\n[sources]\ngradients = "we wrote it"\n', encoding="utf-8")
    assert load(str(file)) == Stack(
        name="own", about="ours", gradients="float32", sources=(("gradients", "we wrote it"),)
    )


def test_launches_that_block_add_the_host_to_the_device() -> None:
    """Nothing of issuing hides behind the device where every launch waits for its kernel."""
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256)
    system = triosim.system(devices=1, device="A100")
    host = Fidelity(host="compiled")
    free, blocks = (
        triosim.simulate(trace, system, Plan(batch_size=8, stack=Stack(blocking_launches=b)), host, fit=False)
        for b in (False, True)
    )
    parts = blocks.breakdown_s
    launches = int((~trace.operators.view).sum())
    assert blocks.iteration_time_s == pytest.approx(parts.compute + parts.host, rel=0.03), "gaps between kernels"
    assert parts.host > 0.9 * launches * 6e-6
    assert free.breakdown_s.host < 0.5 * parts.host
    assert "every launch waits" in " ".join(blocks.sources)


def test_gradients_may_be_reduced_after_the_backward() -> None:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=256)
    system = triosim.system("dgx-a100")
    beside, after = (
        triosim.simulate(
            trace, system, Plan(dp=8, batch_size=1, stack=Stack(overlap_gradients=o)), Fidelity(host="none"), fit=False
        )
        for o in (True, False)
    )
    assert len(beside.collectives) > 1
    assert sum(row.count for row in after.collectives) == 1
    assert sum(row.bytes * row.count for row in after.collectives) == sum(r.bytes * r.count for r in beside.collectives)
    assert after.breakdown_s.exposed_communication > beside.breakdown_s.exposed_communication
