"""``triosim serve``: a fleet of model replicas under traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from triosim.cli.command import command, progress_bar, say, wants_summary
from triosim.cli.energy_options import tell_unused
from triosim.cli.fields import command as function_of
from triosim.cli.outputs import present, write_json
from triosim.cli.serve_options import ServeOptions
from triosim.cli.serve_sweep import check_alone, sweep
from triosim.cli.served import deployment_of, requests_of
from triosim.cli.sweep import SweepCommand
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from triosim.serving.deployment import Deployment, ServingResult
    from triosim.serving.metrics import Slo
    from triosim.serving.requests import RequestTable


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = "Predict what a fleet of model replicas does under traffic."
    command(app, "serve", cls=SweepCommand)(function_of(ServeOptions, _serve, about))


def _serve(options: ServeOptions) -> None:
    from triosim.core.outputs import check_distinct
    from triosim.energy.constants import parse
    from triosim.report.serving import summary
    from triosim.serving.deployment import serve
    from triosim.serving.metrics import parse_slo

    read = [("--requests", options.requests), ("--lengths", options.lengths), ("--engine", options.engine)]
    pictures = {"--timeline": options.timeline, "--report": options.report}
    check_distinct({"--json": options.json, **pictures}, read)
    goals = parse_slo(options.slo) if options.slo else ()
    _check_pictures(options, [name for name, path in pictures.items() if path is not None])
    if options.constant and (options.sweep or options.find in ("fleet", "rate")):
        many = "--sweep" if options.sweep else f"--find {options.find}"
        raise InputError(f"--constant is of the energy of one run, and {many} makes many: leave one out")
    if options.sweep or options.find == "fleet":
        return sweep(options, goals)
    check_alone(options)
    deployment = deployment_of(options)
    table = requests_of(options)
    if options.find is not None:
        return _find(options, deployment, table, goals)
    constants = parse(options.constant)
    with progress_bar() as progress:
        result = serve(
            deployment, table, goals, options.tpot,
            lambda done, total: progress(f"serving: {done:,} of {total:,} requests"),
            None if options.interval is None else options.interval == "on",
            recorded=any(path is not None for path in pictures.values()),
            constants=constants,
        )  # fmt: skip
    lines = _draw(result, options)
    present(result, "result", options.json, lambda result: result.to_dict(), summary)
    say(lines, options.json)
    tell_unused(options.constant, result.energy.sources if result.energy else ())


def _check_pictures(options: ServeOptions, given: Sequence[str]) -> None:
    """Whether one run can be drawn.

    Raises:
        InputError: there are many, or the timeline has no name that says its form.
    """
    if given and (options.sweep or options.find):
        many = "--sweep" if options.sweep else "--find"
        raise InputError(f"{given[0]} is of one run, and {many} makes many: leave one out")
    if options.timeline is not None:
        from triosim.report.serving_tracks import check_name

        check_name(options.timeline)


def _draw(result: ServingResult, options: ServeOptions) -> list[str]:
    """Write the timeline and the page where they are asked for; returns a line for each."""
    from triosim.cli.streams import written

    lines = []
    if options.timeline is not None:
        from triosim.report import serving_tracks

        serving_tracks.write(result, options.timeline)
        lines += written("timeline", options.timeline, "  (open in ui.perfetto.dev)")
    if options.report is not None:
        from triosim.report import serving_page

        serving_page.write(result, options.report)
        lines += written("report", options.report)
    return lines


def _find(options: ServeOptions, deployment: Deployment, table: RequestTable, goals: Sequence[Slo]) -> None:
    from triosim.cli.streams import rich_console, written
    from triosim.core.units import format_time
    from triosim.report.serving import summary
    from triosim.report.table import paragraph
    from triosim.serving.fleet_search import highest_rate

    if options.find == "clock":
        return _find_clock(options, deployment, table, goals)
    if options.find != "rate":
        raise InputError(f"--find {quoted(options.find)} is not known: give rate, fleet or clock")
    with progress_bar() as progress:
        found = highest_rate(deployment, table, goals, options.tpot, progress)
    if options.json is not None:
        tried = [{"requests_per_s": rate, "kept": kept} for rate, kept in found.tried]
        rate = {"rate": found.rate, "lasting": found.lasting, "tried": tried}
        write_json({**rate, **found.result.to_dict()}, options.json)
    if wants_summary(options.json):
        words = (
            f"{found.rate:.4g} requests/s is the highest rate that keeps them" if found.rate else "no rate keeps them"
        )
        shown = "" if found.rate else "; this is the lowest that was tried"
        console = rich_console()
        paragraph(console, f"{'goals':16}{', '.join(map(str, goals))}: {words}{shown}", indent=16)
        if found.rate and not found.lasting:
            talks = int((table.follows < 0).sum())
            all_ = f"{talks:,} conversations" if talks < len(table) else f"{talks:,} requests"
            paragraph(
                console,
                f"{'':16}but all {all_} are there after {format_time(found.arriving_s)}, and most of the run comes "
                "after: give more --requests for a rate that lasts",
                indent=16,
            )
        console.print()
        summary(found.result, console)
    say(written("result", options.json), options.json)


def _find_clock(options: ServeOptions, deployment: Deployment, table: RequestTable, goals: Sequence[Slo]) -> None:
    from triosim.cli.streams import rich_console, written
    from triosim.energy.constants import parse
    from triosim.report.serving import clocks, summary
    from triosim.serving.fleet_search import least_energy_clock

    with progress_bar() as progress:
        found = least_energy_clock(deployment, table, goals, options.tpot, progress, parse(options.constant))
    if options.json is not None:
        tried = [
            {"clock_mhz": clock / 1e6, "node_j": one.energy.node_j if one.energy else None,
             "kept": all(met for _, _, met in one.metrics.goals)} for clock, one in found.tried.items()
        ]  # fmt: skip
        write_json(
            {"clock_mhz": found.clock_hz / 1e6, "kept": found.kept, "tried": tried, **found.result.to_dict()},
            options.json,
        )
    if wants_summary(options.json):
        summary(found.result, rich_console())
        clocks(found, rich_console())
    say(written("result", options.json), options.json)
