"""``triosim accelerator``: designs that do not exist yet, evaluated and mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli.command import CommandGroup, command, progress_bar, say, wants_summary
from triosim.cli.outputs import JsonFile, write_json
from triosim.core.dataclass import dataclass

if TYPE_CHECKING:
    from triosim.accelerator.architecture import Architecture
    from triosim.accelerator.evaluate import Evaluation
    from triosim.accelerator.mapper import Search
    from triosim.accelerator.problem import Problem
    from triosim.accelerator.reading import Contents
    from triosim.accelerator.sparse import SparseEvaluation

accelerator_app = typer.Typer(
    cls=CommandGroup,
    help="Accelerators from their design: evaluate a mapping, look for a good one, show a design, play tiles.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip

Design = Annotated[str, typer.Argument(help="A design: a ready one's name, or a file (TOML, Timeloop YAML, ...).")]
ProblemFile = Annotated[
    Path | None,
    typer.Argument(help="What is computed: a file of any known format; none where the design's file says it.",
                   show_default=False),
]  # fmt: skip
ProblemOrWorkload = Annotated[
    Path | None,
    typer.Argument(metavar="PROBLEM|WORKLOAD", help="What is computed: a file of any known format, none where the "
                   "design's file says it; or a model's name or a trace, whose different layers are all mapped.",
                   show_default=False),
]  # fmt: skip
Also = Annotated[
    list[Path] | None,
    typer.Option("--also", help="A further file: energies (ERT), areas (ART), constraints, sparse optimizations.",
                 show_default=False),
]  # fmt: skip
Report = Annotated[
    Path | None,
    typer.Option("--report", help="Write a page that opens offline: energy by level and tensor, the loop nest, the "
                 "roofline, and the front of a search.", show_default=False),
]  # fmt: skip
Timing = Annotated[
    str,
    typer.Option("--timing", help="ideal (loops alone), bandwidth (and what moves, beside them) or double-buffer "
                 "(stores with one copy of a tile wait while it is filled)."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    from triosim.cli import tiles

    tiles.register(accelerator_app)
    app.add_typer(accelerator_app, name="accelerator")


def _contents(design: str, files: list[Path], also: list[Path] | None) -> Contents:
    """All files of a command together."""
    from triosim.accelerator import presets
    from triosim.accelerator.reading import read

    return read([presets.known(design), *files, *(also or [])])


def _is_workload(path: Path) -> bool:
    """Whether a path is a model's name, a trace or a model's configuration, and no file of a problem."""
    from triosim.sources import modelling, reading

    if path.exists():
        return reading.recognised(str(path)) or modelling.is_model_folder(path) or path.name == modelling.CONFIGURATION
    return modelling.is_named(str(path))


def _with_layers(found: Contents, design: str, workload: Path) -> tuple[Contents, list[float]]:
    """A design with the einsums of a workload's step as its problems, and how often each runs.

    Raises:
        InputError: the workload cannot be read or multiplies nothing, or the design is an array in closed form.
    """
    from dataclasses import replace

    from triosim.cli.workloads import load_workload
    from triosim.core.errors import InputError
    from triosim.hardware.build import accelerator
    from triosim.kernels.layers import layers

    if found.array is not None:
        raise InputError(
            f"{design} is a systolic array, whose mapping is given: accelerator evaluate says what it takes"
        )
    trace = load_workload(str(workload), training=False)
    each = layers(trace, accelerator(design))
    if not each:
        raise InputError(f"{workload}: has no product, convolution or attention to map")
    return replace(found, problems=tuple(problem for problem, _ in each)), [times for _, times in each]


@command(accelerator_app, "evaluate", short_help="What a mapping costs on a design: cycles, energy, traffic.")
def evaluate(
    design: Design,
    problem: ProblemFile = None,
    mapping: Annotated[
        Path | None, typer.Argument(help="In which order and where: a file of any known format; a systolic array "
                                    "needs none.", show_default=False)
    ] = None,
    also: Also = None,
    timing: Timing = "bandwidth",
    ragged: Annotated[
        bool, typer.Option("--ragged", help="Loops may multiply to more than a bound; the last tile is cut off.")
    ] = False,
    form: Annotated[
        str | None, typer.Option("--form", help="Closed form of systolic arrays: scale-sim (the tool's, the default) "
                                 "or paper.", show_default=False)
    ] = None,
    json: JsonFile = None,
    stats: Annotated[
        Path | None, typer.Option("--stats", help="Write the fields of Timeloop's statistics, or SCALE-Sim's "
                                  "COMPUTE_REPORT of a systolic array.", show_default=False)
    ] = None,
    ert: Annotated[
        Path | None, typer.Option("--ert", help="Write the energies as Accelergy's table.", show_default=False)
    ] = None,
    page: Report = None,
) -> None:  # fmt: skip
    """Evaluate a mapping: reads, fills and updates of every level, cycles, energy and what binds."""
    from triosim.accelerator import evaluate as evaluation
    from triosim.accelerator import sparse, writing
    from triosim.cli.streams import rich_console, written
    from triosim.core.errors import InputError
    from triosim.core.outputs import check_distinct
    from triosim.report import accelerator as report

    check_distinct({"--json": json, "--stats": stats, "--ert": ert, "--report": page},
                   [("DESIGN", design), ("PROBLEM", problem), ("MAPPING", mapping),
                    *(("--also", path) for path in also or [])])  # fmt: skip
    found = _contents(design, [path for path in (problem, mapping) if path], also)
    outputs = written("json", json) + written("stats", stats) + written("ert", ert) + written("report", page)
    if found.array is not None and found.architecture is None:
        if page is not None:
            raise InputError("--report: a systolic array of closed form has no levels to draw: describe it as a design")
        if mapping is not None or ragged:
            given = "--ragged" if mapping is None else str(mapping)
            raise InputError(f"{given}: a systolic array of closed form has its own mapping: leave it out")
        _check_array_takes(found)
        _evaluate_array(found, form or "scale-sim", timing, json, stats, ert)
    else:
        if form is not None:
            raise InputError(f"--form {form} is of systolic arrays, which {design} is not: leave it out")
        from triosim.report.accelerator_page import PlottedCase, write

        rows: list[dict[str, Any]] = []
        drawn: list[PlottedCase] = []
        texts: list[str] = []
        for architecture, one, chosen in _cases(found, mapping, ragged):
            thinned = sparse.evaluate(architecture, one, chosen, found.sparse, timing) if found.sparse else None
            result = thinned.dense if thinned else evaluation.evaluate(architecture, one, chosen, timing)
            made = evaluation.as_json(result)
            rows.append({**made, "sparse": sparse.as_json(thinned)} if thinned else made)
            texts.append(writing.timeloop_stats(result, architecture))
            drawn.append(PlottedCase(result, architecture, one))
            if wants_summary(json, stats, ert):
                report.evaluation(result, architecture, one, rich_console())
                if thinned:
                    report.sparse_evaluation(thinned, rich_console())
            _text(writing.ert(architecture), ert)
        write_json(_together(rows), json)
        _text("\n".join(texts), stats)
        if page is not None:
            write(drawn, page)
    say(outputs, json, stats, ert)
    dense = ("--stats and --report show the mapping without zeros minded",) if found.sparse and (stats or page) else ()
    say((f"note: {note}" for note in (*found.notes, *found.unused, *dense)), json, stats, ert)


def _cases(found: Contents, mapping: Path | None, ragged: bool) -> list[Any]:
    """Problems with their designs and mappings; what is missing is said of the file that should hold it."""
    from triosim.core.errors import InputError

    if found.mapping is None and not found.dataflows:
        named = f"{mapping}: holds no mapping" if mapping else "no mapping is given"
        raise InputError(f"{named}: give a file with one, or let `triosim accelerator map` find it")
    return found.cases(ragged)


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One result, or several under ``layers``."""
    return rows[0] if len(rows) == 1 else {"schema": "triosim/accelerator-evaluations/1", "layers": rows}


def _check_array_takes(found: Contents) -> None:
    """Refuse what files say that nothing of a closed form is made of.

    Raises:
        InputError: they hold a mapping, constraints, zeros or energies.
    """
    from triosim.core.errors import InputError

    for what, given in (("a mapping", found.mapping), ("constraints", found.constraints), ("zeros", found.sparse),
                        ("energies", found.energies)):  # fmt: skip
        if given:
            raise InputError(
                f"the files hold {what}, and a systolic array of closed form takes none: describe it as a design, or "
                "leave them out"
            )


def _evaluate_array(
    found: Contents, form: str, timing: str, json: str | None, stats: Path | None, ert: Path | None
) -> None:
    """Products on a systolic array."""
    from triosim.accelerator import designs, systolic, writing
    from triosim.cli.streams import rich_console
    from triosim.core.errors import InputError
    from triosim.report import accelerator as report

    assert found.array is not None
    if ert is not None:
        raise InputError("--ert: a systolic array of closed form has no energies: describe it as a design")
    if not found.problems:
        raise InputError("the files hold no problem: give a file with one")
    runs = [systolic.of_einsum(found.array, p, form, timing) for p in found.problems]
    levels = [designs.array_levels(found.array, p, one) for p, one in zip(found.problems, runs, strict=True)]
    if json is not None:
        write_json(systolic.as_json(found.array, runs, form, timing, levels), json)
    if wants_summary(json, stats):
        report.runs(runs, found.array, levels, rich_console())
    _text(writing.compute_report(runs), stats)


def _text(text: str, path: Path | None) -> None:
    from triosim.core.outputs import text_output

    if path is not None:
        with text_output(path) as file:
            file.write(text)


@command(accelerator_app, "map", short_help="A good mapping of a problem to a design.")
def map_(
    design: Design,
    problem: ProblemOrWorkload = None,
    also: Also = None,
    objective: Annotated[
        str, typer.Option("--objective", help="energy, delay, edp (their product) or pareto (a front of both).")
    ] = "edp",
    budget: Annotated[
        str,
        typer.Option("--budget", help="Mappings to try: a number, or a time such as 10s, taken as 100,000 for each "
                     "second so that the answer depends on the seed alone."),
    ] = "10s",
    seed: Annotated[int, typer.Option("--seed", help="Of all random choices.")] = 0,
    search: Annotated[
        str, typer.Option("--search", help="genetic, random, or exhaustive where mappings are few.")
    ] = "genetic",
    workers: Annotated[
        int, typer.Option("--workers", help="Processes; they change how long it takes, not what is found.")
    ] = 1,
    timing: Timing = "bandwidth",
    json: JsonFile = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the best mapping as TOML, or the best that Timeloop's format can "
                     "say as YAML (.yaml).", show_default=False),
    ] = None,
    page: Report = None,
) -> None:  # fmt: skip
    """Look for a mapping of little energy, time, or both; an interruption ends with the best so far."""
    from triosim.accelerator import mapper
    from triosim.cli.streams import rich_console, written
    from triosim.core.errors import InputError
    from triosim.core.outputs import check_distinct, is_standard_output
    from triosim.report import accelerator as report

    check_distinct({"--json": json, "--output": output, "--report": page},
                   [("DESIGN", design), ("PROBLEM", problem), *(("--also", path) for path in also or [])])  # fmt: skip
    if workers < 1:
        raise InputError(f"--workers {workers}: the least is 1")
    if seed < 0:
        raise InputError(f"--seed {seed}: give 0 or more")
    if output is not None and not is_standard_output(output) and output.suffix not in (".toml", *_TIMELOOP):
        raise InputError(f"--output {output}: a mapping is written as .toml or as Timeloop's .yaml: give such a name")
    how = MappingOptions(objective, search, mapper.parse_budget(budget), seed, timing, workers,
                         output is not None and output.suffix in _TIMELOOP)  # fmt: skip
    found, times = _to_map(design, problem, also)
    if output is not None and len(found.problems) > 1:
        raise InputError("--output writes one mapping, and there are several problems: give one of them")
    rows: list[MappedProblem] = []
    for number, one in enumerate(found.problems):
        rows.append(_mapped(found, one, how, f"{number + 1} of {len(found.problems)}"))
        if wants_summary(json, output) and not times:
            _show_mapped(rows[-1], objective)
        if not rows[-1].search.finished:
            break
    if times and wants_summary(json, output):
        report.layers([(row.problem, often, row.best) for row, often in zip(rows, times, strict=False)], rich_console())
    _write_mapped(rows, times, objective, json, page, output)
    say(written("mapping", output) + written("json", json) + written("report", page), output, json)
    notes = found.notes + found.unused
    if left := len(found.problems) - len(rows):
        notes += (f"interrupted: {left} of {len(found.problems)} problems were not looked at, and are in no sum",)
    if found.sparse:
        notes += ("the search minded no zeros, what it found was evaluated with them",)
    say((f"note: {note}" for note in notes), output, json)


_TIMELOOP = (".yaml", ".yml")


@dataclass(frozen=True)
class MappingOptions:
    """How ``map`` looks for mappings.

    Attributes:
        objective, searcher, budget, seed, timing, workers: of :func:`triosim.accelerator.mapper.search`.
        one_axis: whether each dimension runs along one axis of a fan-out, as Timeloop's format says it.
    """

    objective: str
    searcher: str
    budget: int
    seed: int
    timing: str
    workers: int
    one_axis: bool


@dataclass(frozen=True)
class MappedProblem:
    """What ``map`` found for one problem; ``thinned`` where zeros are minded."""

    architecture: Architecture
    problem: Problem
    search: Search
    best: Evaluation
    thinned: SparseEvaluation | None


def _to_map(design: str, problem: Path | None, also: list[Path] | None) -> tuple[Contents, list[float]]:
    """A design with the problems to map, and how often each runs where they are layers of a workload.

    Raises:
        InputError: there are none, or a constraint is about what none of them has.
    """
    from triosim.core.errors import InputError

    if problem is not None and _is_workload(problem):
        return _with_layers(_contents(design, [], also), design, problem)
    if problem is not None and not problem.exists():
        raise InputError(f"{problem}: there is no such file, and no model of that name (triosim models)")
    given = [] if problem is None else [problem]
    found = _contents(design, given, also)
    if not found.problems:
        raise InputError(f"{problem or design}: holds no problem: give a file with one")
    if found.constraints:
        found.constraints.check_names(found.problems, [str(path) for path in (*given, *(also or []))])
    return found, []


def _mapped(found: Contents, problem: Problem, how: MappingOptions, place: str) -> MappedProblem:
    """The best mapping of a problem that a search finds."""
    from dataclasses import replace

    from triosim.accelerator import mapper, sparse
    from triosim.accelerator.directives import Constraints

    architecture = found.design
    rules = found.constraints.constraints(architecture, problem) if found.constraints else Constraints()
    if found.mapping is not None:
        stated = found.mapping.mapping(architecture, problem, True, found.constraints)
        rules = mapper.with_keeps(rules, stated, problem)
    rules = replace(rules, one_axis=how.one_axis)
    with progress_bar() as say_stage:
        result = mapper.search(
            architecture, problem, rules, objective=how.objective, searcher=how.searcher, budget=how.budget,
            seed=how.seed, timing=how.timing, workers=how.workers,
            on_progress=_remaining(f"mapping {problem.name} ({place})", how.budget, say_stage),
        )  # fmt: skip
    best = mapper.evaluated(architecture, problem, result.best, how.timing)
    thinned = sparse.evaluate(architecture, problem, best.mapping, found.sparse, how.timing) if found.sparse else None
    return MappedProblem(architecture, problem, result, best, thinned)


def _remaining(what: str, budget: int, say_stage: Callable[[str], None]) -> Callable[[int], None]:
    """Says how many mappings were tried, and how long the others will take at that rate."""
    import time

    from triosim.core.units import format_time

    began = time.monotonic()

    def progress(tried: int) -> None:
        gone = time.monotonic() - began
        left = gone * (budget - tried) / tried if tried else 0.0
        rest = f", about {format_time(left)} left" if left > 10 else ""
        say_stage(f"{what}: {tried:,} of {budget:,} mappings{rest}")

    return progress


def _show_mapped(row: MappedProblem, objective: str) -> None:
    """Print what was found for one problem."""
    from triosim.cli.streams import rich_console
    from triosim.report import accelerator as report

    report.search(row.search, objective, rich_console())
    report.evaluation(row.best, row.architecture, row.problem, rich_console())
    if row.thinned:
        report.sparse_evaluation(row.thinned, rich_console())


def _write_mapped(
    rows: list[MappedProblem], times: list[float], objective: str, json: str | None, page: Path | None,
    output: Path | None,
) -> None:  # fmt: skip
    """Write the files that were asked for."""
    from triosim.accelerator import evaluate as evaluation
    from triosim.accelerator import mapper, sparse, writing

    if json is not None:
        often: list[dict[str, float]] = [{"times": n} for n in times] or [{} for _ in rows]
        write_json(_together([
            {**evaluation.as_json(row.best), **said, "search": mapper.as_json(row.search, objective),
             "mapping": writing.mapping_rows(row.best.mapping),
             **({"sparse": sparse.as_json(row.thinned)} if row.thinned else {})}
            for row, said in zip(rows, often, strict=False)
        ]), json)  # fmt: skip
    if page is not None:
        from triosim.report.accelerator_page import PlottedCase, write

        write([PlottedCase(row.best, row.architecture, row.problem, row.search) for row in rows], page)
    if output is not None:
        text = writing.timeloop_mapping if output.suffix in _TIMELOOP else writing.toml_mapping
        _text(text(rows[0].best.mapping, rows[0].architecture, rows[0].problem), output)


@command(accelerator_app, "show", short_help="The ready designs, or one in full.")
def show(
    design: Annotated[
        str | None, typer.Argument(help="A design: a ready one's name, or a file; all ready ones if left out.",
                                   show_default=False)
    ] = None,
    also: Also = None,
) -> None:  # fmt: skip
    """List the ready designs, or show one: its nodes, energies and what they rest on."""
    from triosim.accelerator import presets
    from triosim.cli.streams import rich_console
    from triosim.report import accelerator as report

    if design is None:
        report.designs([presets.load(name) for name in presets.names()], rich_console())
        return
    found = _contents(design, [], also)
    report.design(found, rich_console())
    say(f"note: {note}" for note in (*found.notes, *found.unused))
