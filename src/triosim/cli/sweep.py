"""``--sweep`` of ``triosim train`` and ``infer``: many plans, ranked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.cli.arguments import Options
from triosim.cli.command import Command, progress_bar, say, wants_summary
from triosim.cli.fields import check_axes, check_swept, given
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.fidelity import Fidelity
    from triosim.plan import Plan
    from triosim.search.outcome import PlanOutcome


class SweepCommand(Command):
    """A command whose ``--sweep`` takes all words with ``=`` that follow it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        return super().parse_args(ctx, list(_spelled_out(args)))


def _spelled_out(words: list[str]) -> Iterator[str]:
    """Words with ``--sweep`` before each of its values."""
    within = 0  # values of the last --sweep so far, 1 for none; 0 outside
    for word in words:
        if word == "--sweep":
            within = 1
            yield word
            continue
        first = within == 1
        within = 2 if first or (within and "=" in word and not word.startswith("-")) else 0
        parts = word.split() if within else [word]
        if not all("=" in part for part in parts):
            parts = [word]
        for place, part in enumerate(parts):  # quoted together, they are as many
            if within and not (first and place == 0):
                yield "--sweep"
            yield part


OF_ONE = frozenset({
    "timeline", "report", "chakra", "stats", "fit", "variation", "find", "slowdown", "tokens", "at", "grid", "pue",
    "price", "pay", "constant", "energy",
})  # fmt: skip
"""Options of one prediction: a sweep says nothing that they change."""


def check_alone(options: Options) -> None:
    """Refuse what only a sweep has.

    Raises:
        InputError: it was asked of a single prediction.
    """
    for name, option in given(options):
        if name in ("csv", "workers", "executor"):
            raise InputError(f"{option} is for many plans: give --sweep as well, for example --sweep tp=1,2,4")


def sweep(options: Options, training: bool) -> None:
    """Predict every plan, rank them, and write what was asked for.

    Raises:
        InputError: an option makes no sense, or does not go with a sweep.
    """
    _check(options)
    from triosim.cli.predict import fidelity_of, machine, plan_of, step
    from triosim.cli.resuming import KnownOutcomes
    from triosim.cli.workloads import load_workload
    from triosim.report import ranking
    from triosim.search import grid
    from triosim.search.outcome import PlanOutcome
    from triosim.search.sweep import sweep as predicted

    with progress_bar() as progress:
        progress("reading the workload")
        trace, base = step(options, training), plan_of(options, training)
        fidelity = fidelity_of(options)
        check_axes(options, options.sweep or (), "--sweep", grid.is_axis)
        axes = grid.parse_axes(options.sweep or ())
        check_swept(options, axes)
        asked = list(grid.grid(axes))
        system = machine(options, trace, max(ranks_of(base, one) for one in asked))
        also = [load_workload(name, step=options.step) for name in options.also or ()]
        content = (trace, system, base, fidelity, also)
        names, outputs = _texts(base, fidelity, axes), [options.json, options.csv]
        with KnownOutcomes(outputs, content, names, "a sweep", PlanOutcome.from_dict) as kept:
            known = {number: replace(one, number=number) for number, one in kept.numbered(asked).items()}
            found = predicted(
                trace, system, asked, workers=options.workers, base=base, fidelity=fidelity, progress=progress,
                known=known, other_recordings=also, made=lambda one: kept.keep(asked[one.number], one),
                executor=options.executor,
            )  # fmt: skip
            outcomes = list(found)
            progress("writing")
            lines = _write(outcomes, trace.meta.workload, system.name, options)
            kept.done()
    if len(outcomes) == 1 and outcomes[0].figures is None:
        raise InputError(outcomes[0].why)
    if wants_summary(options.json, options.csv):
        from triosim.cli.streams import rich_console

        ranking.show(outcomes, list(axes), rich_console())
    say(lines, options.json, options.csv)
    if all(one.figures is None for one in outcomes):
        raise InputError(f"none of the {len(outcomes):,} plans can be formed: {outcomes[0].why}")


def _check(options: Options) -> None:
    """Refuse options of one prediction alone."""
    for name, option in given(options):
        if name in OF_ONE:
            raise InputError(f"{option} is of one prediction and does not go with --sweep: run the plan you want alone")
    if options.workers < 1:
        raise InputError(f"--workers must be at least 1, got {options.workers}")


def ranks_of(base: Plan, asked: dict[str, Any]) -> int:
    """Devices that a plan needs at least; 0 where its sizes make no sense, which it says itself."""
    sizes = [asked.get(name, getattr(base, name)) or 1 for name in ("dp", "tp", "pp")]
    if not all(isinstance(size, int) for size in sizes):
        return 1
    return int(sizes[0] * sizes[1] * sizes[2])


def _texts(base: Plan, fidelity: Fidelity, axes: dict[str, tuple[Any, ...]]) -> list[str]:
    """All texts of the plans: some of them name files."""
    found: list[str] = []
    for value in (
        *base.asdict().values(),
        *fidelity.asdict().values(),
        *(one for values in axes.values() for one in values),
    ):
        parts = value if isinstance(value, (list, tuple)) else [value]
        found += [part for part in parts if isinstance(part, str)]
    return found


def _write(outcomes: list[PlanOutcome], workload: str, system: str, options: Options) -> list[str]:
    """Write the files asked for; returns a line for each."""
    from triosim.cli.outputs import write_json
    from triosim.cli.streams import written
    from triosim.core.outputs import text_output
    from triosim.report import ranking

    lines = []
    if options.json is not None:
        write_json(_finite(ranking.to_dict(outcomes, workload, system)), options.json)
        lines += written("sweep", options.json)
    if options.csv is not None:
        with text_output(Path(options.csv)) as file:
            file.write(ranking.to_csv(outcomes))
        lines += written("table", options.csv)
    return lines


def _finite(value: Any) -> Any:
    """Values that JSON can write: what is not finite becomes null."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
