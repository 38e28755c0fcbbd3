"""``--compare`` of ``triosim train`` and ``infer``: what another plan would change, part by part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from triosim.cli.arguments import Options
from triosim.cli.command import progress_bar, say
from triosim.cli.energy_options import energy_options, tell_unused
from triosim.cli.fields import check_axes, given
from triosim.cli.outputs import present
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.prediction.comparison import Comparison

AS_ASKED = "as asked"
"""What the first of the plans is called."""


def compare_plans(options: Options, training: bool) -> None:
    """Predict the plan that the options ask for and each that differs from it, and show what makes the difference.

    Raises:
        InputError: an option makes no sense, or is of one prediction alone.
    """
    from triosim.cli.streams import written
    from triosim.core.outputs import text_output
    from triosim.report.comparison import page, show, to_dict

    _check(options)
    with progress_bar() as progress:
        documents = _predicted(options, training, progress)
        found = _compared(documents)
        if options.report is not None:
            with text_output(options.report) as file:
                file.write(page(found))
    present(found, "comparison", options.json, to_dict, show)
    tell_unused(options.constant, [words for one in documents.values() for words in _rests_on(one)], options.pue)
    if options.report is not None:
        say(written("page", options.report), options.json)


def _predicted(options: Options, training: bool, progress: Any) -> dict[str, dict[str, Any]]:
    """The prediction of each plan, as JSON has it, by its label."""
    from triosim.cli.predict import fidelity_of, machine, plan_of, step
    from triosim.cli.sweep import ranks_of
    from triosim.cli.workloads import load_workload
    from triosim.prediction.simulate import simulate
    from triosim.search.grid import is_axis, with_fields

    for text in options.compare or ():
        check_axes(options, _words(text), "--compare", partial(is_axis, option="--compare"))
    asked = asked_plans(options.compare or ())
    progress("reading the workload")
    trace, base, fidelity = step(options, training), plan_of(options, training), fidelity_of(options)
    system = machine(options, trace, max(ranks_of(base, one) for one in asked.values()))
    also = [load_workload(name, step=options.step) for name in options.also or ()]
    told = energy_options(options)
    documents = {}
    for label, changes in asked.items():
        progress(f"predicting {label}")
        try:
            plan, models = with_fields(base, fidelity, changes)
            found = simulate(trace, system, plan, models, progress=progress, other_recordings=also, energy=told)
        except InputError as error:
            raise InputError(f"--compare {label}: {error}" if changes else str(error)) from error
        documents[label] = found.to_dict()
    return documents


def asked_plans(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each plan has anew, by its label; nothing of the first, which is the plan as asked.

    Raises:
        InputError: a text gives nothing, or something that a plan does not have.
    """
    return {AS_ASKED: {}, **{" ".join(_words(text)): _changes(text) for text in texts}}


def _compared(documents: dict[str, dict[str, Any]]) -> Comparison:
    from triosim.prediction.comparison import compared, comparison

    per_sample = len({_samples(document) for document in documents.values()}) > 1
    return comparison([compared(document, label, per_sample) for label, document in documents.items()], per_sample)


def _samples(document: dict[str, Any]) -> int:
    """Samples of an iteration, of all replicas."""
    return round(document["throughput"]["samples_per_s"] * document["iteration_time_s"])


def _rests_on(document: dict[str, Any]) -> list[str]:
    """What energy and cost of a prediction rest on."""
    return [words for name in ("energy", "cost") for words in (document[name] or {}).get("sources", ())]


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]


def _changes(text: str) -> dict[str, Any]:
    """The fields that a text such as ``tp=4,pp=2`` gives anew.

    Raises:
        InputError: it gives none, or something that a plan does not have.
    """
    from triosim.search.grid import parse_axes

    words = _words(text)
    if not words:
        raise InputError("--compare gives no values: say what is to be different, for example --compare tp=4,pp=2")
    return {name: values[0] for name, values in parse_axes(words, "--compare").items()}


def _check(options: Options) -> None:
    """Refuse options of one prediction alone, or of a sweep."""
    from triosim.cli.sweep import check_alone

    if options.sweep:
        raise InputError("--compare and --sweep do not go together: a sweep ranks plans, --compare explains some")
    check_alone(options)
    for name, option in given(options):
        if name in ("timeline", "chakra", "stats", "fit", "find", "slowdown", "variation"):
            raise InputError(f"{option} does not go with --compare: run the plan that you want alone")
