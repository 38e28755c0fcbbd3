"""Rows of pictures in C++ and in Python: the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.example import make
from triosim.report import chrome, lines, perfetto, protobuf
from triosim.report.lines import LineTemplates
from triosim.report.protobuf import Rows, constant, fixed, joined, nested, numbers

_rows = pytest.importorskip("triosim.report._rows", reason="no compiler was there at installation")

NUMBERS = st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.sampled_from([127, 128, 16383, 16384, 2**35])


def by_numpy(call: Callable[[], Any], *modules: Any) -> Any:
    """What a call gives where there was no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "_native", None)
        return call()


@st.composite
def messages(draw: st.DrawFn) -> Rows:
    count = draw(st.integers(0, 4))

    def some() -> np.ndarray | None:
        return draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count).map(np.array))

    def where() -> np.ndarray | None:
        found = some()
        return None if found is None else found.astype(bool)

    def column(of: st.SearchStrategy, kind: type) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=count, max_size=count)), kind)

    def field(depth: int) -> Rows:
        number = draw(st.integers(1, 70))
        kind = draw(st.integers(0, 4 if depth else 3))
        if kind == 0:
            return numbers(number, column(NUMBERS, np.int64), where())
        if kind == 1:
            return fixed(number, column(st.floats(), np.float64), where())
        if kind == 2:
            return fixed(number, column(NUMBERS, np.int64), where())
        if kind == 3:
            return constant(number, draw(st.integers(0, 1000)), count)
        inside = [field(depth - 1) for _ in range(draw(st.integers(1, 3)))]
        return nested(number, *inside, where=where())

    return joined(*(field(3) for _ in range(draw(st.integers(1, 4)))))


@given(messages())
def test_messages_are_the_same_from_c_and_numpy(rows: Rows) -> None:
    assert rows.tobytes() == by_numpy(rows.tobytes, protobuf)


FORM = '"%%":%d, at %d.%06d%.0s, %03d%%'
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-1200, 1200)


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 2**40]), *[WHOLE] * 5), max_size=20))
def test_lines_are_the_same_from_c_and_python(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(7)]
    asked: list[tuple[int, int]] = []

    def form(one: int, two: int) -> str:
        asked.append((one, two))
        return f"{one} of {two}: {FORM}"

    def text() -> str:
        forms = LineTemplates(form)
        return "".join([*forms.lines(columns[:2], columns[2:]), *forms.lines(columns[:2], columns[2:])])

    made = text()
    once, kinds = len(asked), {row[:2] for row in rows}
    assert once == len(kinds)
    assert made == by_numpy(text, lines)
    one = ",\n".join((f"{row[0]} of {row[1]}: " + FORM) % row[2:] for row in rows)
    assert made == one + one


def test_long_columns_come_in_pieces() -> None:
    many = np.arange(2 * lines.PIECE + 3)
    pieces = list(LineTemplates(lambda: "<%d>").lines((), (many,)))
    assert len(pieces) == 3
    assert ",\n".join(pieces) == ",\n".join(f"<{at}>" for at in range(len(many)))


@pytest.mark.parametrize("write", [chrome.write, perfetto.write])
def test_files_are_the_same_from_c_and_python(tmp_path: Path, write: Callable[..., list[Path]]) -> None:
    timeline = make(iterations=2).timeline
    native, plain = tmp_path / "native", tmp_path / "plain"
    write(timeline, native)
    by_numpy(lambda: write(timeline, plain), lines, protobuf)
    assert native.read_bytes() == plain.read_bytes()
    assert native.stat().st_size > 1000


COLUMN, MARKS = np.arange(3), np.ones(3, np.uint8)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ((0, b"\x08", COLUMN[:2], None, ()), "as long"),
        ((1, b"\x09", None, None, ()), "as long"),
        ((0, b"\x08", COLUMN, MARKS[:1], ()), "as long"),
        ((3, b"\x08", None, MARKS[:0], ()), "as long"),
        ((2, b"\x0a", None, None, ((0, b"\x08", COLUMN[:1], None, ()),)), "as long"),
        ((4, b"\x08", COLUMN, None, ()), "kind"),
        ((0, b"\x08", COLUMN.astype(np.int32), None, ()), "values"),
        ((0, b"\x08", COLUMN, None), "five"),
    ],
)
def test_fields_that_make_no_sense_are_refused(field: tuple, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _rows.messages((field,), 3)


@pytest.mark.parametrize(
    ("form", "keys", "columns", "why"),
    [
        ("%s", (), (COLUMN,), "neither"),
        ("%", (), (COLUMN,), "neither"),
        ("%6d", (), (COLUMN,), "neither"),
        ("%0999999999999999999999d", (), (COLUMN,), "neither"),
        ("%d%d", (), (COLUMN,), "a place for each"),
        ("", (), (COLUMN,), "a place for each"),
        ("%d", (), (COLUMN, COLUMN[:2]), "one length"),
        ("%d", (COLUMN[:2],), (COLUMN,), "one length"),
        ("%d", (), (COLUMN.astype(np.int32),), "int64"),
        ("%d", (), (), "column"),
    ],
)
def test_lines_that_make_no_sense_are_refused(form: str, keys: tuple, columns: tuple, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _rows.Forms().lines(lambda *_: form, keys, columns, ",")


def test_lines_have_as_many_keys_as_those_before_them() -> None:
    forms = _rows.Forms()
    assert forms.lines(lambda at: f"{at}%d", (COLUMN,), (COLUMN,), ",") == "00,11,22"
    with pytest.raises(ValueError, match="as many keys"):
        forms.lines(lambda *_: "%d", (COLUMN, COLUMN), (COLUMN,), ",")


def test_what_a_form_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        _rows.Forms().lines(lambda at: str(1 // at), (COLUMN,), (COLUMN,), ",")
