"""The plans that a search found: as a table, as commands to copy, and as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from rich.console import Console
from rich.text import Text

from triosim.core.dataclass import dataclass
from triosim.core.units import format_bytes, format_time
from triosim.report.table import Column, TextTable, paragraph
from triosim.search.branch_and_bound import BestPlans, FoundPlan
from triosim.search.grid import unused_options
from triosim.search.space import Candidate

SCHEMA = "triosim/search/1"
SECONDS_PER_HOUR = 3600.0
OPTION = "--parallelism-option"
_REASONS = 10
_SHORT = (("tp", "tp"), ("pp", "pp"), ("dp", "dp"), ("cp", "cp"), ("ep", "ep"))


@dataclass(frozen=True)
class FrameworkConfiguration:
    """A plan as the configuration of a framework.

    Attributes:
        framework: its name.
        text: of the configuration, ``""`` where there is none.
        why: there is none.
    """

    framework: str
    text: str
    why: str


@dataclass(frozen=True)
class Report:
    """A search and what it was asked.

    Attributes:
        found: what it found.
        workload: its name.
        systems: names of the machines, by their number of devices.
        objective: what was best.
        batch, sequence: samples per iteration, tokens of each (None where not known).
        answers: samples to each that the batch counts: of a step of post-training that counts prompts.
        post: what post-training was asked for, as it was typed; None for none.
        price: dollars of a device hour, None where not known.
        price_from: where that is from.
        words: of a command line that predicts one of the plans, those that all share; by the number of devices.
        configured: plans as the configuration of a framework, by the number of the candidate.
        shows_configuration: whether the best of them is printed.
    """

    found: BestPlans
    workload: str
    systems: Mapping[int, str]
    objective: str
    batch: int
    sequence: int | None
    price: float | None
    price_from: str
    words: Mapping[int, Sequence[str]]
    configured: Mapping[int, FrameworkConfiguration] = field(default_factory=dict)
    shows_configuration: bool = True
    answers: int = 1
    post: str | None = None

    @property
    def configuration(self) -> tuple[int, FrameworkConfiguration] | None:
        """Rank and configuration of the best plan that the framework can say."""
        for rank, one in enumerate(self.found.best, 1):
            made = self.configured.get(one.candidate.number)
            if made and made.text:
                return rank, made
        return None

    def dollars(self, one: FoundPlan) -> float | None:
        """What an iteration costs."""
        if self.price is None:
            return None
        return one.figures.iteration_time_s * one.candidate.devices * self.price / SECONDS_PER_HOUR

    def tokens_per_dollar(self, one: FoundPlan) -> float | None:
        """Tokens for a dollar."""
        spent = self.dollars(one)
        return self.batch * self.answers * self.sequence / spent if spent and self.sequence else None

    def command(self, one: Candidate) -> str:
        """The command that predicts a plan."""
        asked, unused = one.asked, unused_options(one.asked)
        words: list[str] = []
        for word in self.words[one.devices]:
            if words and words[-1] == OPTION and word.partition("=")[0].replace("_", "-") in unused:
                words.pop()
            else:
                words.append(word)
        for axis in ("tp", "pp", "dp"):
            words += [f"--{axis}", str(asked[axis])]
        for axis in ("cp", "ep"):
            words += [f"--{axis}", str(asked[axis])] if asked[axis] > 1 else []
        words += ["--global-batch-size", str(self.batch), "--micro-batches", str(asked["micro_batches"])]
        if "schedule" in asked:
            words += ["--schedule", str(asked["schedule"])]
        if "schedule.chunks" in asked:
            words += ["--schedule-option", f"chunks={asked['schedule.chunks']}"]
        words += ["--recompute", str(asked["recompute"]), "--zero", str(asked["zero"])]
        return shlex.join([*words, *(["--sequence-parallel"] if asked["sequence-parallel"] else [])])


def to_dict(report: Report) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    found = report.found
    return {
        "schema": SCHEMA, "workload": report.workload,
        "systems": {str(devices): name for devices, name in report.systems.items()}, "objective": report.objective,
        **({"post": report.post} if report.post else {}),
        "global_batch_size": report.batch, "price_usd_per_device_hour": report.price, "price_from": report.price_from,
        "legal": found.legal, "predicted": found.predicted,
        "plans": [_plain(report, one, rank) for rank, one in enumerate(found.best, 1)],
        "front": None if found.front is None else [_plain(report, one, None) for one in found.front],
        "fell_out": [{"plans": n, "why": why} for n, why in found.fell_out],
        "no_plans": [{"combinations": n, "why": why} for n, why in found.illegal],
    }  # fmt: skip


def _plain(report: Report, one: FoundPlan, rank: int | None) -> dict[str, Any]:
    number = one.candidate.number
    return {
        **({"rank": rank} if rank else {}), "devices": one.candidate.devices, "asked": dict(one.candidate.asked),
        "figures": asdict(one.figures), "usd_per_iteration": report.dollars(one),
        "tokens_per_usd": report.tokens_per_dollar(one), "command": report.command(one.candidate),
        **({"configuration": asdict(report.configured[number])} if number in report.configured else {}),
    }  # fmt: skip


def show(report: Report, console: Console) -> None:
    """Print the best plans, the front where it was asked for, the command of the best, and why others fell out."""
    found = report.found
    if found.best:
        _listed(report, found.best, console)
        console.print()
        console.print(Text("The best of them as a command:", "bold"))
        console.print(Text(f"  {report.command(found.best[0].candidate)}"), soft_wrap=True)
        _show_configuration(report, console)
    elif found.least_bytes is not None:
        _show_none(found.least_bytes, console)
    if found.front:
        console.print()
        console.print(Text("No other plan beats these in time, memory and device hours:", "bold"))
        _listed(report, found.front, console)
    console.print()
    out = sum(n for n, _ in found.fell_out)
    said = f"{found.predicted:,} of {found.legal:,} legal plans were predicted; {out:,} fell out:"
    console.print(Text(said if out else said.partition(";")[0] + ".", "bold"))
    rows = TextTable((Column(right=True), Column(flow="wrap")), indent=2)
    for number, why in found.fell_out[:_REASONS]:
        rows.add_row(f"{number:,}", why)
    if len(found.fell_out) > _REASONS:
        rows.add_row(f"{sum(n for n, _ in found.fell_out[_REASONS:]):,}", "for other reasons")
    if out:
        console.print(rows)
    if report.price is not None:
        console.print(Text(f"A device hour costs {report.price:g} USD, {report.price_from}.", "dim"))


def _show_configuration(report: Report, console: Console) -> None:
    """The best plan that a framework can say, as its configuration, and why it is not the best of all."""
    if not report.configured:
        return
    console.print()
    chosen = report.configuration
    better = report.found.best[: chosen[0] - 1 if chosen else None]
    whys: dict[str, list[str]] = {}
    for rank, one in enumerate(better, 1):
        whys.setdefault(report.configured[one.candidate.number].why, []).append(str(rank))
    for why, ranks in whys.items():
        console.print(Text(f"Plan{'s' * (len(ranks) > 1)} {', '.join(ranks)}: {why}."), soft_wrap=True)
    if chosen and report.shows_configuration:
        console.print(Text(f"Plan {chosen[0]} for {chosen[1].framework}:", "bold"))
        console.print(Text("".join(f"  {line}\n" for line in chosen[1].text.splitlines())), soft_wrap=True, end="")


def _show_none(least: int, console: Console) -> None:
    """Say that none fits, and what the smallest would need."""
    console.print(Text("No plan fits in memory.", "bold"))
    paragraph(
        console,
        f"Each must hold at least {format_bytes(least)} on a device: search more devices (--nodes, --devices), with "
        "--offload, or another --optimizer.",
    )


def _choices(asked: Mapping[str, Any]) -> dict[str, str]:
    """What a plan chooses beside its sizes, as the table says it."""
    return {
        "recompute": str(asked["recompute"]), "zero": str(asked["zero"]),
        "SP": "yes" if asked["sequence-parallel"] else "no",
    }  # fmt: skip


def _alike(plans: Sequence[FoundPlan]) -> dict[str, str]:
    """Choices that all of several plans share."""
    each = [_choices(one.candidate.asked) for one in plans]
    return {name: text for name, text in each[0].items() if len(each) > 1 and all(one[name] == text for one in each)}


def _listed(report: Report, plans: Sequence[FoundPlan], console: Console) -> None:
    """A table of plans, and below it what they share."""
    console.print(_table(report, plans))
    if shared := _alike(plans):
        console.print(Text(f"all: {', '.join(f'{name} {text}' for name, text in shared.items())}", "dim"))


def _table(report: Report, plans: Sequence[FoundPlan]) -> TextTable:
    shared = _alike(plans)
    axes = [(name, head) for name, head in _SHORT if any(one.candidate.asked[name] > 1 for one in plans)]
    several = len(report.systems) > 1
    table = TextTable([
        Column("", right=True),
        *([Column("devices", right=True)] if several else []),
        *(Column(head, right=True) for _, head in axes),
        Column("micro batch", right=True),
        Column("schedule"),
        *(Column(name, right=name == "zero") for name in _choices(plans[0].candidate.asked) if name not in shared),
        Column("iteration", right=True),
        Column("memory", right=True),
        Column("tokens/USD", right=True, optional=1),
        Column("what binds", optional=2),
    ])  # fmt: skip
    for place, one in enumerate(plans, 1):
        asked, figures = one.candidate.asked, one.figures
        tokens = report.tokens_per_dollar(one)
        chunks = f" x{asked['schedule.chunks']}" if "schedule.chunks" in asked else ""
        table.add_row(
            str(place),
            *([str(one.candidate.devices)] if several else []),
            *(str(asked[name]) for name, _ in axes),
            str(figures.sizes["micro_batch_size"]),
            f"{asked.get('schedule', '-')}{chunks}",
            *(text for name, text in _choices(asked).items() if name not in shared),
            format_time(figures.iteration_time_s),
            format_bytes(figures.needed_bytes),
            "-" if tokens is None else f"{tokens:,.0f}",
            figures.binds,
        )
    return table
