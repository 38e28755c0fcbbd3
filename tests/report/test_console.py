"""Names from files on a terminal: whatever they contain is text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import triosim
from tests.cli.test_commands import run
from tests.report.example import make
from tests.traces import chain
from triosim.report.console import TextConsole
from triosim.report.html import render
from triosim.report.live_console import LiveConsole
from triosim.report.styled_text import StyledText
from triosim.report.table import Column, TextTable
from triosim.report.terminal import summary
from triosim.report.trace import overview
from triosim.trace.tables import Trace

HOSTILE = [
    "[/bold]",
    "[red]x[/]",
    "[link=file:///etc/passwd]y",
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x9b1m",
    "a\nb",
    "\u202eb",
]
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def printed(*things: str | StyledText | TextTable, styled: bool = False) -> str:
    out = io.StringIO()
    console = TextConsole(file=out, width=80, styled=styled)
    for thing in things:
        console.print(thing)
    return out.getvalue()


def drawn(*renderables: object) -> str:
    out = io.StringIO()
    console = LiveConsole(file=out, width=80, force_terminal=False, color_system=None)
    for renderable in renderables:
        console.print(renderable)
    return out.getvalue()


def hostile() -> Trace:
    trace = chain(layers=len(HOSTILE))
    names = [HOSTILE[row % len(HOSTILE)] for row in range(len(trace))]
    modules = replace(trace.modules, path=tuple(HOSTILE), kind=tuple(HOSTILE))
    meta = replace(trace.meta, workload=HOSTILE[0], device=HOSTILE[1], notes=tuple(HOSTILE), framework=HOSTILE[3])
    return replace(trace, meta=meta, modules=modules, operators=replace(trace.operators, name=tuple(names)))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    table = TextTable((Column(name), Column("what")))
    table.add_row(name, StyledText(name, "bold"))
    out = printed(name, StyledText(name), table)
    assert not CONTROL.search(out)
    if name.startswith("["):
        assert out.count(name) == 5


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_what_moves_too(name: str) -> None:
    table = Table(name, title=name)
    table.add_row(name)
    out = drawn(name, Text(name), table, Panel(Text(name), title=Text(name)))
    assert not CONTROL.search(out)
    if name.startswith("["):
        assert out.count(name) == 7


@given(st.text())
def test_no_text_gets_through_as_control(text: str) -> None:
    assert not CONTROL.search(printed(text, StyledText(text)) + drawn(text, Text(text)))


def test_styles_are_what_a_terminal_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed(StyledText("warning", "red"), styled=True) == "\x1b[31mwarning\x1b[0m\n"
    time = StyledText("3 ms", "bold")
    time.append(" between 2 and 4 ms", "not bold")
    assert printed(time, styled=True) == "\x1b[1m3 ms\x1b[0m between 2 and 4 ms\n"
    table = TextTable((Column("name", style="dim"), Column("time", right=True)))
    table.add_row("a", StyledText("3 ms", "bold red"))
    assert printed(table, styled=True) == (
        "\x1b[1mname\x1b[0m  \x1b[1mtime\x1b[0m\n\x1b[2ma\x1b[0m     \x1b[1;31m3 ms\x1b[0m\n"
    )
    assert printed(table) == "name  time\na     3 ms\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(StyledText("x", "bold red"), styled=True) == "\x1b[1mx\x1b[0m\n"


def test_what_the_terminal_is_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(io.StringIO):
        def isatty(self) -> bool:
            return True

    def seen(**environment: str) -> str:
        for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", **environment}.items():
            monkeypatch.setenv(name, value)
        out = Watched()
        TextConsole(file=out).print(StyledText("one two three", "bold"))
        return out.getvalue()

    assert seen(COLUMNS="40") == "\x1b[1mone two three\x1b[0m\n"
    assert seen(COLUMNS="8") == "\x1b[1mone two\x1b[0m\n\x1b[1mthree\x1b[0m\n"
    assert seen(TERM="dumb") == "one two three\n"
    assert seen(TERM="dumb", FORCE_COLOR="1") == "\x1b[1mone two three\x1b[0m\n"


@given(st.text(), st.lists(st.tuples(st.text(max_size=5), st.sampled_from(["", "bold", "dim"])), max_size=4))
def test_styles_change_no_letter(first: str, more: list[tuple[str, str]]) -> None:
    text = StyledText(first, "red")
    for part, style in more:
        text.append(part, style)
    assert re.sub("\x1b\\[[0-9;]*m", "", printed(text, styled=True)) == printed(text)


def test_the_overview_of_a_hostile_trace() -> None:
    out = io.StringIO()
    overview(hostile(), TextConsole(file=out, width=80), operators=True)
    assert not CONTROL.search(out.getvalue())
    assert "note: [/bold]" in out.getvalue()


def test_the_commands_on_a_hostile_trace(tmp_path: Path) -> None:
    triosim.save(hostile(), tmp_path / "a.triosim")
    for arguments in (("trace", "show", tmp_path / "a.triosim", "--operators"), ("train", tmp_path / "a.triosim")):
        done = run(*arguments)
        assert not CONTROL.search(done.stdout + done.stderr)


def test_a_message_with_a_hostile_name(tmp_path: Path) -> None:
    done = run("train", "\x1b]0;owned\x07\u202e", code=2)
    assert not CONTROL.search(done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_the_page_and_the_summary() -> None:
    result = make()
    named = replace(result.workload, name="</script><script>alert(1)</script>\ud800\x1b[2J")
    result = replace(result, workload=named)
    page = render(result)
    assert "<script>alert" not in page
    page.encode()
    out = io.StringIO()
    summary(result, TextConsole(file=out, width=80))
    assert not CONTROL.search(out.getvalue())
