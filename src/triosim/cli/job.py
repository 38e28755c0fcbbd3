"""``triosim job``: how long so many tokens take with checkpoints and failures, from a result that was written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import completion
from triosim.cli.command import command
from triosim.cli.outputs import JsonFile, present
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from triosim.job.prediction import JobEvaluation

LENGTH, FAILURES, CHECKPOINTS = "How long it is", "Failures", "Checkpoints"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "job")(job)


def _text(name: str, metavar: str, help: str, group: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False, rich_help_panel=group)


def job(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT", help="What train --json wrote.", show_default=False, autocompletion=completion.files
        ),
    ],
    tokens: Annotated[str | None, _text("--tokens", "N", "Tokens of the whole job, as 15e12.", LENGTH)] = None,
    iterations: Annotated[int | None, _text("--iterations", "N", "Iterations instead.", LENGTH)] = None,
    warm_up: Annotated[
        str, _text("--warm-up", "TIME", "Before the first iteration, and after a restart.", LENGTH)
    ] = "0s",
    evaluate: Annotated[
        str | None, _text("--evaluate", "N=TIME", "Evaluate every N iterations, as 1000=90s.", LENGTH)
    ] = None,
    mtbf: Annotated[
        str | None,
        _text("--mtbf", "TIME", "Of one device: mean time between failures, or none (default 50,700h).", FAILURES),
    ] = None,
    detect: Annotated[
        str | None, _text("--detect", "TIME", "Until a failure is noticed (default 10min).", FAILURES)
    ] = None,
    restart: Annotated[
        str | None, _text("--restart", "TIME", "Until the job runs again (default 5min).", FAILURES)
    ] = None,
    spares: Annotated[
        int | None, _text("--spares", "N", "Servers in reserve (default: as many as it takes).", FAILURES)
    ] = None,
    repair: Annotated[
        str | None, _text("--repair", "TIME", "Until a failed server is a spare; with --spares.", FAILURES)
    ] = None,
    every: Annotated[
        int | None, _text("--every", "N", "Iterations between checkpoints (default: the best).", CHECKPOINTS)
    ] = None,
    storage: Annotated[
        str | None,
        _text("--storage", "B/s", "What storage takes of all devices (default 122MB/s for each).", CHECKPOINTS),
    ] = None,
    staging: Annotated[
        str | None,
        _text("--asynchronous", "B/s", "Copy to host memory at this rate, write beside training.", CHECKPOINTS),
    ] = None,
    size: Annotated[
        str | None,
        _text("--checkpoint-size", "SIZE", "Default: parameters and optimizer states.", CHECKPOINTS),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="Random runs.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the random numbers.")] = 0,
    json: JsonFile = None,
) -> None:
    """How long a whole job takes, with its checkpoints and failures, and how often to write checkpoints.

    The iteration is that of a result that train --json wrote; nothing is simulated again.
    """
    from triosim.core.outputs import check_distinct
    from triosim.core.units import parse_bandwidth, parse_bytes, parse_time
    from triosim.job.prediction import DETECT_S, DEVICE_MTBF_S, RESTART_S, JobOptions, predict
    from triosim.job.reading import read
    from triosim.report.job import show, to_dict

    check_distinct({"--json": json}, [("RESULT", result)])
    if (repair is None) != (spares is None):
        raise InputError("--spares and --repair go together: give both, or neither where there is always a spare")
    options = JobOptions(
        tokens=_number(tokens), iterations=iterations, warm_up_s=parse_time(warm_up, "--warm-up"),
        evaluation=_evaluation(evaluate),
        device_mtbf_s=DEVICE_MTBF_S if mtbf is None else math.inf if mtbf == "none" else parse_time(mtbf, "--mtbf"),
        detect_s=DETECT_S if detect is None else parse_time(detect, "--detect"),
        restart_s=RESTART_S if restart is None else parse_time(restart, "--restart"),
        spares=spares, repair_s=0.0 if repair is None else parse_time(repair, "--repair"),
        every=_at_least(every, "--every"),
        storage=None if storage is None else parse_bandwidth(storage, "--storage"),
        staging=None if staging is None else parse_bandwidth(staging, "--asynchronous"),
        checkpoint_bytes=None if size is None else parse_bytes(size, "--checkpoint-size"),
        runs=_runs(runs), seed=_at_least(seed, "--seed", 0) or 0,
    )  # fmt: skip
    found = predict(read(result), options)
    present(found, "job", json, to_dict, show)


def _number(text: str | None) -> float | None:
    from triosim.cli.energy_options import number_of

    return None if text is None else number_of(text, "--tokens", "15e12")


def _at_least(value: int | None, what: str, least: int = 1) -> int | None:
    if value is not None and value < least:
        raise InputError(f"{what} must be at least {least}, got {value}")
    return value


def _runs(count: int) -> int:
    if count > MOST_RUNS:
        raise InputError(f"--runs {count:,}: the most is {MOST_RUNS:,}, after which figures hardly move")
    return _at_least(count, "--runs") or 1


MOST_RUNS = 1_000_000
"""Random runs of a job, beyond which a number is a slip."""


def _evaluation(text: str | None) -> JobEvaluation | None:
    from triosim.core.units import parse_time
    from triosim.job.prediction import JobEvaluation

    if text is None:
        return None
    every, given, seconds = text.partition("=")
    if not given or not every.strip().isdecimal() or not int(every):
        raise InputError(f"--evaluate {quoted(text)}: give iterations and a time, for example 1000=90s")
    return JobEvaluation(int(every), parse_time(seconds, "--evaluate"))
