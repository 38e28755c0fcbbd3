"""Who types another tool's name of an option is told ours, and ours exists."""

from __future__ import annotations

import pytest

from tests.command import run
from triosim.cli.main import _loaded
from triosim.cli.other_names import OTHER_NAMES, our_name

OPTIONS = {
    name: frozenset(option for parameter in _loaded(name).params for option in parameter.opts)
    for name in ("train", "infer", "serve", "search")
}


def test_every_name_that_is_offered_is_an_option() -> None:
    ours = {word for words in OTHER_NAMES.values() for word in words.split() if word.startswith("--")}
    assert ours <= frozenset().union(*OPTIONS.values())
    assert not OPTIONS["train"] & OTHER_NAMES.keys()


@pytest.mark.parametrize(
    ("typed", "command", "ours"),
    [
        ("--chunks", "train", "--schedule interleaved-1f1b --schedule-option chunks=N"),
        ("--tensor_model_parallel_size", "train", "--tp"),
        ("--mbs", "train", "--micro-batch-size"),
        ("--request-rate", "serve", "--arrivals poisson:N"),
        ("--request-rate", "train", None),  # not an option of that command
        ("--nonsense", "train", None),
    ],
)
def test_a_name_is_looked_up_for_its_command(typed: str, command: str, ours: str | None) -> None:
    assert our_name(typed, OPTIONS[command]) == ours


def test_the_sentence_says_it() -> None:
    done = run("train", "gpt2", "--gpus", "8", code=2)
    assert done.stderr.startswith("triosim: no such option: --gpus, here it is --devices")
