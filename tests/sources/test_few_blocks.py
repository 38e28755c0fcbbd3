"""A decoder of many equal blocks is built from a few of them: the trace is the one that all blocks give."""

from __future__ import annotations

from typing import Any

import pytest

from triosim.sources import modelling
from triosim.sources.modelling import model
from triosim.trace.repeated import differing, repeated
from triosim.trace.tables import Trace

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama-3-8b", {}),
    ("llama-3-8b", {"training": False}),
    ("llama-3-8b", {"fused": True, "lora": "16,base=nf4"}),
    ("llama-3-8b", {"precision": "float32", "attention": "unfused"}),  # an optimizer of lists
    ("llama-3-8b", {"optimizer": "muon"}),
    ("llama-3-8b", {"value_head": True}),
    ("gpt2", {}),
    ("mixtral-8x7b", {"batch_size": 2}),
    ("gemma-2-9b", {}),  # two kinds of attention by turns
    ("mpt-7b-alibi", {}),  # all blocks read one buffer of biases
    ("gpt-neo-125m", {}),
    ("phi-3.5-moe", {}),
    ("deepseek-v2-lite", {}),  # another first block
]


def _equal(first: Trace, second: Trace) -> str:
    parts = ("operators", "values", "modules")
    return "".join(differing(getattr(first, part), getattr(second, part)) for part in parts)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_it_is_the_trace_of_all_blocks(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(name, **options)
    short = repeated(made)
    repeated.forget()  # type: ignore[attr-defined]
    found = repeated(made)
    assert (short is None) == (found is None)
    assert short is None or found is None or not _equal(short.long(short.short), found.long(found.short))
    monkeypatch.setattr(modelling, "_of_few_blocks", lambda family, step: None)
    assert not _equal(made, model(name, **options))


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "mixtral-8x7b"])
def test_it_is_built_from_a_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    of_few = modelling._of_few_blocks
    monkeypatch.setattr(modelling, "_of_few_blocks", lambda *given: built.append(of_few(*given)) or built[-1])
    assert model(name) is built[0]
