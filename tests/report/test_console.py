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


def printed(*renderables: object, colour: bool = False) -> str:
    out = io.StringIO()
    console = TextConsole(file=out, width=80, force_terminal=colour, color_system="truecolor" if colour else None)
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
    table = Table(name, title=name)
    table.add_row(name)
    out = printed(name, Text(name), table, Panel(Text(name), title=Text(name)))
    assert not CONTROL.search(out)
    if name.startswith("["):
        assert out.count(name) == 7


@given(st.text())
def test_no_text_gets_through_as_control(text: str) -> None:
    assert not CONTROL.search(printed(text, Text(text)))


def test_styles_still_work() -> None:
    out = printed(Text("warning", style="red"), colour=True)
    assert out == "\x1b[31mwarning\x1b[0m\n"


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
