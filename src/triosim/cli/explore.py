"""``triosim explore``: sizes of a design, and what no other choice of them beats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triosim.cli.command import command, progress_bar, say, wants_summary
from triosim.cli.outputs import JsonFile, write_json

if TYPE_CHECKING:
    from triosim.explore.space import VariedValue


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "explore")(explore)


def explore(
    design: Annotated[str, typer.Argument(help="A design or systolic array: a ready one's name, or a file.")],
    problems: Annotated[list[Path], typer.Argument(help="What runs on it, one after another: files of any format.")],
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="Values to choose from, as rows=8,16,32 or global_buffer.capacity=1024,2048; "
                     "repeatable.", show_default=False),
    ] = None,
    objectives: Annotated[
        str, typer.Option("--objectives", help="What is to be small, of cycles, energy and units (multipliers).")
    ] = "cycles,energy",
    searcher: Annotated[
        str, typer.Option("--searcher", help="genetic, annealing, random; with the extra search also tpe, nsga2.")
    ] = "genetic",
    budget: Annotated[int, typer.Option("--budget", help="Points to evaluate.")] = 200,
    mappings: Annotated[
        int, typer.Option("--mappings", help="Mappings to try for each problem on each point; arrays need none.")
    ] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Of all random choices.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes that evaluate points.")] = 1,
    surrogate: Annotated[
        int | None, typer.Option("--surrogate", help="Learn from so many random points, and say how wrong that is on "
                                 "others, inside and outside of where they lie.", show_default=False)
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the front as a table.", show_default=False)
    ] = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Write a picture of the first two objectives as SVG.",
                                  show_default=False)
    ] = None,
    trajectory: Annotated[
        Path | None, typer.Option("--trajectory", help="Write each point in the order of search, as JSON lines.",
                                  show_default=False)
    ] = None,
    json: JsonFile = None,
) -> None:  # fmt: skip
    """Explore sizes of a design: those that no others beat in cycles and energy, for the given problems."""
    from triosim.accelerator import presets
    from triosim.accelerator.designs import MappingSearch
    from triosim.accelerator.reading import read
    from triosim.cli.resuming import KnownOutcomes
    from triosim.cli.streams import rich_console, written
    from triosim.core.errors import InputError
    from triosim.core.outputs import check_distinct, text_output
    from triosim.explore.accelerators import DesignExploration
    from triosim.explore.exploration import Trial
    from triosim.explore.explore import explore as explored
    from triosim.explore.space import ChoiceSpace
    from triosim.explore.surrogate import learned
    from triosim.explore.trajectory import line
    from triosim.report import explore as report

    outputs = {"--json": json, "--csv": csv, "--chart": chart, "--trajectory": trajectory}
    check_distinct(outputs, [("DESIGN", design), *(("PROBLEMS", path) for path in problems)])
    if mappings < 1:
        raise InputError(f"--mappings {mappings}: the least is 1")
    names = tuple(word.strip() for word in objectives.split(","))
    if chart is not None and chart.suffix.lower() not in (".svg", ""):
        raise InputError(f"--chart {chart}: the picture is SVG: give a name that ends in .svg")
    if chart is not None and len(names) < 2:
        raise InputError("--chart shows two objectives: name two")
    found = read([presets.known(design), *problems])
    space = ChoiceSpace(tuple(_choice(text) for text in vary or []))
    what = DesignExploration(found, found.problems, space, names, MappingSearch(budget=mappings, seed=seed))
    lines: list[str] = []
    files = (json, csv, chart, trajectory)
    written_to = [None if path is None else str(path) for path in files]
    content = (found, found.problems, space, names, mappings, seed if found.array is None else 0)
    kept = KnownOutcomes(written_to, content, (), "an exploration", Trial.from_dict, "points")
    what.known.update((trial.point, trial) for trial in kept.every())
    before = frozenset(what.known)
    with kept, progress_bar() as progress:

        def on_trial(count: int, trial: Trial) -> None:
            progress(f"{count:,} of {min(budget, space.size):,} points")
            lines.append(line(what, trial, {"step": count}))
            if trial.point not in before:
                kept.keep(what.space.values(trial.point), trial)

        result = explored(what, searcher, budget, seed, on_trial, workers)
        learnt = None
        if surrogate is not None and result.finished:
            learnt = learned(what, surrogate, seed, lambda count: progress(f"{count:,} points for the surrogate"))
    if json is not None:
        write_json(report.to_dict(result, what, searcher, seed, learnt), json)
    for path, text in ((csv, report.front_csv), (chart, report.picture)):
        if path is not None:
            with text_output(path) as file:
                file.write(text(result, what))
    if trajectory is not None:
        with text_output(trajectory) as file:
            file.writelines(lines)
    if result.finished:  # else it goes on from there when it is run again
        kept.done()
    if wants_summary(*files):
        report.explored(result, what, searcher, budget, learnt, rich_console())
    say([row for name, path in zip(("json", "table", "chart", "steps"), files, strict=True)
         for row in written(name, path)], *files)  # fmt: skip


def _choice(text: str) -> VariedValue:
    """``rows=8,16,32``."""
    from triosim.core.errors import InputError, quoted
    from triosim.explore.space import VariedValue

    name, equals, values = (part.strip() for part in text.partition("="))
    words = [word.strip() for word in values.split(",")]
    if not (name and equals) or not all(words):
        raise InputError(f"--vary {quoted(text)}: give a name and values, for example rows=8,16,32")
    numbers = [_number(word) for word in words]
    known = [number for number in numbers if not isinstance(number, str)]
    if known and len(known) < len(words):
        word = next(word for word, number in zip(words, numbers, strict=True) if isinstance(number, str))
        raise InputError(f"--vary {quoted(text)}: {quoted(word)} is no number, as the other values are: give one")
    return VariedValue(name, tuple(sorted(known)) if known else tuple(words))


def _number(word: str) -> int | float | str:
    try:
        number = float(word)
    except ValueError:
        return word
    return int(word) if word.lstrip("+-").isdecimal() else int(number) if number.is_integer() else number
