"""Tables of text: as wide as their contents need, and nothing lost but what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from triosim.report.table import Column, TextTable, wrapped

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=12)
SENTENCES = st.lists(WORDS.filter(bool), max_size=8).map(" ".join)


def shown(table: TextTable, width: int) -> list[str]:
    return [line.plain for line in table.lines(width)]


def devices(*rows: tuple[str, str, str]) -> TextTable:
    table = TextTable((Column("name"), Column("kind", optional=1), Column("bytes in all", right=True)))
    for row in rows:
        table.add_row(*row)
    return table


def test_columns_are_as_wide_as_their_contents() -> None:
    assert shown(devices(("A100", "gpu", "1 GiB"), ("H100-SXM5", "gpu", "1.5 GiB")), 80) == [
        "name       kind  bytes in all",
        "A100       gpu          1 GiB",
        "H100-SXM5  gpu        1.5 GiB",
    ]


def test_heads_break_before_anything_is_cut() -> None:
    assert shown(devices(("H100-SXM5", "gpu", "1.5 GiB")), 26) == [
        "                  bytes in",
        "name       kind        all",
        "H100-SXM5  gpu     1.5 GiB",
    ]


def test_sentences_break_rather_than_heads_and_sentences_both() -> None:
    table = TextTable((Column("kind"), Column("time in all", right=True), Column("algorithm", flow="wrap")))
    table.add_row("all_reduce", "3 ms", "ring/Simple, ring/LL128")
    assert shown(table, 45) == [
        "             time in",
        "kind             all  algorithm",
        "all_reduce      3 ms  ring/Simple, ring/LL128",
    ]
    assert shown(table, 40) == [
        "kind        time in all  algorithm",
        "all_reduce         3 ms  ring/Simple,",
        "                         ring/LL128",
    ]


def test_what_is_left_out_is_said() -> None:
    lines = shown(devices(("H100-SXM5", "gpu", "1.5 GiB")), 19)
    assert lines[2:] == ["H100-SXM5   1.5 GiB", "left out for lack", "of room: kind"]


def test_a_sentence_breaks_between_words_and_not_before_its_units() -> None:
    table = TextTable((Column("tensors"), Column("held", flow="wrap")))
    table.add_row("weight", "97.49 MiB, label 64 B, all")
    assert shown(table, 30)[1:] == ["weight   97.49 MiB, label", "         64 B, all"]
    lines = [line.plain for line in wrapped(Text("a rate of 12.5 GB/s and 3 s"), 14)]
    assert lines == ["a rate of", "12.5 GB/s and", "3 s"]


def test_a_path_keeps_its_end() -> None:
    table = TextTable((Column("module", flow="path"), Column("time", right=True)))
    table.add_row("model.layers.0.mlp.gate", "3 ms")
    assert shown(table, 22)[1] == "….0.mlp.gate      3 ms"
    assert [line.plain for line in table.lines(22, "..")][1] == "...0.mlp.gate     3 ms"


def test_a_row_of_another_length_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="2 cells in a table of 3 columns"):
        devices(("A100", "gpu"))  # type: ignore[arg-type]


@given(st.lists(st.tuples(SENTENCES, SENTENCES, SENTENCES), max_size=4), st.integers(30, 100), st.integers(0, 4))
def test_lines_fit_and_end_in_no_blanks(rows: list[tuple[str, str, str]], width: int, indent: int) -> None:
    columns = (Column("what"), Column("it is", flow="wrap"), Column("over", right=True, flow="path", optional=1))
    table = TextTable(columns, indent=indent)
    for row in rows:
        table.add_row(*row)
    for line in table.lines(width):
        assert cell_len(line.plain) <= width
        assert line.plain == line.plain.rstrip()


@given(SENTENCES, st.integers(1, 30))
def test_wrapping_loses_no_character(sentence: str, width: int) -> None:
    lines = [line.plain for line in wrapped(Text(sentence), width)]
    assert "".join("".join(lines).split()) == "".join(sentence.split())
    assert all(cell_len(line) <= width for line in lines if width > 1)
