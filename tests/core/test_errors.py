"""Messages: how much of a value they repeat, and what reaches a terminal."""

from __future__ import annotations

import re
import time
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.errors import LONGEST_MESSAGE, LONGEST_VALUE, InputError, check_spelling, printable, quoted, unknown


@pytest.mark.parametrize("value", [3, -2.5, True, None, "a", [1, "b"], {"a": (1, 2)}, Path("x")])
def test_a_short_value_is_shown_as_it_is(value: Any) -> None:
    assert quoted(value) == repr(value)


def nested(levels: int) -> list:
    made: list = ["x"] * 10
    for _ in range(levels):
        made = [made] * 10
    return made


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**7, b"x" * 10**7, [0] * 10**6, dict.fromkeys(range(10**6)), {"k" * 1000: "v" * 1000}, 10**100_000,
        Decimal("1" * 5000), nested(30), "\x1b" * 1000, np.zeros(10**6), set(range(10**5)), "'\"" * 100,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_long_value_is_cut_without_being_written_out(value: Any) -> None:
    tracemalloc.start()
    text = quoted(value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text) <= LONGEST_VALUE
    assert peak < 10_000_000


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x) | st.tuples(x, x)))
def test_it_is_never_long_and_never_unprintable(value: Any) -> None:
    text = quoted(value)
    assert 0 < len(text) <= LONGEST_VALUE
    assert not re.search(r"[\x00-\x1f]", text)


def test_a_message_is_never_long() -> None:
    message = str(InputError("a" * 10**6 + "the cure"))
    assert len(message) == LONGEST_MESSAGE
    assert message.endswith("the cure")


def test_keys_that_are_nearly_right_are_refused_and_others_are_not() -> None:
    check_spelling(["depth", "ports"], ["depth", "width"], "here")
    check_spelling(["turn"], ["turns"], "here")
    check_spelling(["width", "widths"], ["depth", "width"], "here")  # the right one is there too
    with pytest.raises(InputError, match=r"here: 'widht' means nothing here: did you mean width\?"):
        check_spelling(["depth", "widht"], ["depth", "width"], "here")


def test_unknown_names() -> None:
    assert str(unknown("colour", "gren", ["green", "red"])) == "unknown colour 'gren': did you mean green or red?"
    assert "known: green, red" in str(unknown("colour", ["x"], ["green", "red"]))
    assert str(unknown("colour", "x", [])) == "unknown colour 'x': there is none"
    known = [f"node{number}" for number in range(300_000)]
    assert str(unknown("node", "x", known)).endswith("node100005 and 299,988 more")
    start = time.process_time()
    message = str(unknown("node", "n" * 10**6, known))
    assert len(message) < 400
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("plain text, naïve, 模型, 😀", "plain text, naïve, 模型, 😀"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("ab\u202ecd", r"ab\u202ecd"),
        ("\ud800", r"\ud800"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
    ],
)
def test_nothing_controls_the_terminal(text: str, out: str) -> None:
    assert printable(text) == out


def test_some_may_stay() -> None:
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
