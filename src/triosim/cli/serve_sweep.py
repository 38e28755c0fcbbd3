"""``--sweep`` and ``--find fleet`` of ``triosim serve``: many fleets under the same traffic, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from triosim.cli.command import progress_bar, say, wants_summary
from triosim.cli.fields import check_swept
from triosim.cli.outputs import write_json
from triosim.cli.resuming import KnownOutcomes
from triosim.cli.serve_options import ENGINE, MACHINE, MODEL, TRAFFIC, ServeOptions
from triosim.cli.served import OF_FLEET, deployment_of, requests_of
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.worker_processes import ended, worker_processes

if TYPE_CHECKING:
    from triosim.hardware.accelerator import Accelerator
    from triosim.serving.deployment import Deployment
    from triosim.serving.metrics import Slo
    from triosim.serving.outcome import FleetOutcome
    from triosim.serving.requests import RequestTable

SIZES = (1, 2, 4, 8)
"""Devices of a replica that are tried where nobody says."""
MOST_FLEETS = 100_000
AT_ONCE = 64
"""Replicas that a machine has room for at first; it grows eightfold."""
_OF_TRAFFIC = {TRAFFIC}


def sweep(options: ServeOptions, goals: Sequence[Slo]) -> None:
    """Serve with every fleet, rank them, and write what was asked for.

    Raises:
        InputError: an option makes no sense, or does not go with a sweep.
    """
    from triosim.cli.streams import rich_console, written
    from triosim.report.fleets import show, to_dict
    from triosim.serving.outcome import FleetOutcome

    sized = options.find == "fleet"
    axes = _axes(options)
    if options.find is not None and not goals:
        raise InputError(f"--find {options.find} looks for what keeps the goals: give --slo, as ttft=p99:2s")
    asked = _grid(axes)
    texts = [value for one in (vars(options), *asked) for value in one.values() if isinstance(value, str)]
    table = None if _changes_traffic(axes) else requests_of(options)
    content = (replace(options, sweep=None, json=None, workers=1, replicas=1 if sized else options.replicas), table)
    with (
        progress_bar() as progress,
        KnownOutcomes([options.json], content, texts, "a sweep", FleetOutcome.from_dict) as kept,
    ):
        known = kept.numbered(asked)
        outcomes = []
        new = [(number, one) for number, one in enumerate(asked) if number not in known]
        done = _FleetTask(options, goals, table).each(new, options.workers)
        for number, one in enumerate(asked):
            progress(f"serving: {number:,} of {len(asked):,} fleets")
            if number not in known:
                kept.keep(one, outcome := next(done))
            else:
                outcome = known[number]
            outcomes.append(outcome)
        names = [str(goal) for goal in goals]
        if options.json is not None:
            write_json(to_dict(outcomes, names, sized), options.json)
        kept.done()
    if len(outcomes) == 1 and outcomes[0].figures is None:
        raise InputError(outcomes[0].why)
    if wants_summary(options.json):
        show(outcomes, names, sized, rich_console())
    say(written("sweep", options.json), options.json)
    if all(one.figures is None for one in outcomes):
        raise InputError(f"none of the {len(outcomes):,} fleets can be formed: {outcomes[0].why}")


def check_alone(options: ServeOptions) -> None:
    """Refuse what only a sweep has.

    Raises:
        InputError: it was asked of a single fleet.
    """
    if options.workers != 1:
        raise InputError("--workers is for many fleets: give --sweep as well, for example --sweep tp=1,2,4")


def _axes(options: ServeOptions) -> dict[str, tuple[Any, ...]]:
    """Values of each option that is tried, by the name of its field.

    Raises:
        InputError: a word makes no sense, or does not go with what is looked for.
    """
    if options.workers < 1:
        raise InputError(f"--workers must be at least 1, got {options.workers}")
    if options.interval == "on":
        raise InputError("--interval is of one fleet and does not go with --sweep: serve with the fleet you want alone")
    sized = options.find == "fleet"
    if not sized and options.find not in (None, "rate"):
        raise InputError(f"--find {quoted(options.find)} is not known: give rate or fleet")
    axes: dict[str, tuple[Any, ...]] = {}
    if sized:
        axes["device"] = _devices(options)
    for text in options.sweep or ():
        name, equals, values = (part.strip() for part in text.partition("="))
        words = _several(values)
        if not (name and equals) or not all(words):
            raise InputError(f"--sweep {quoted(text)}: give an option and values, for example tp=1,2,4")
        field, found = _values(name, words)
        if field in axes:
            raise InputError(f"--sweep gives {name} twice: give all of its values at once")
        if sized and field in ("replicas", "devices"):
            raise InputError(f"--find fleet finds the {name} itself: leave it out")
        check_swept(options, [field])
        axes[field] = found
    _check_fleets(options, axes)
    if sized and "tp" not in axes:
        axes["tp"] = SIZES if options.tp == 1 else (options.tp,)
    return axes


def _check_fleets(options: ServeOptions, axes: Mapping[str, Sequence[Any]]) -> None:
    """Refuse to vary what files of fleets say.

    Raises:
        InputError: an axis is such an option.
    """
    from triosim.serving.fleet_file import is_fleet

    files = [model for model in axes.get("model", (options.model,)) if is_fleet(model)]
    group = {one.name: one.metadata.get("group") for one in fields(ServeOptions)}
    for name in axes:
        if files and name != "model" and group[name] in OF_FLEET:
            raise InputError(f"{files[0]} says what serves: leave {name.replace('_', '-')} out of --sweep")


def _several(values: str) -> list[str]:
    """Values with commas between them; ``key=value`` belongs to the one before, whose key it is not yet:
    ``ngram,acceptance=0.7,eagle,acceptance=0.8`` are two."""
    found: list[str] = []
    keys: set[str] = set()
    for word in (part.strip() for part in values.split(",")):
        key, equals, _ = word.partition("=")
        if found and equals and key.strip() not in keys and ";" not in word:
            found[-1] += f",{word}"
        else:
            found.append(word)
            keys = set()
        if equals:
            keys.add(key.strip())
    return found


def _devices(options: ServeOptions) -> tuple[str, ...]:
    """Kinds of devices of which the cheapest fleet is looked for; of names of one device the first.

    Raises:
        InputError: none is named, one is not known, or options say how large the fleet is.
    """
    from triosim.hardware.build import accelerator

    if not options.device or options.system is not None:
        raise InputError("--find fleet chooses among devices: give --device, as --device H100,A100, and no --system")
    given = {
        "--replicas": options.replicas != 1, "--devices": options.devices is not None,
        "--prefill-replicas": options.prefill_replicas is not None,
        "--decode-replicas": options.decode_replicas is not None,
    }  # fmt: skip
    for name, is_given in given.items():
        if is_given:
            raise InputError(f"--find fleet finds how many replicas are needed: leave {name} out")
    found: list[tuple[Accelerator, str]] = []
    for name in filter(None, map(str.strip, options.device.split(","))):
        device = accelerator(name)
        if all(device != known for known, _ in found):
            found.append((device, name))
    if not found:
        raise InputError("--device names none: give the devices among which it chooses, as --device H100,A100")
    return tuple(name for _, name in found)


def _values(name: str, words: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """The field of an option, and values as it takes them."""
    from triosim.core.options import configured

    names = {
        one.metadata["names"][0][2:]: one for one in fields(ServeOptions)
        if one.metadata.get("group") in (MODEL, MACHINE, ENGINE, TRAFFIC)
    }  # fmt: skip
    if name != "model" and name not in names:
        raise unknown("option after --sweep", name, ["model", *names])
    field = "model" if name == "model" else names[name].name
    if "list" in str(ServeOptions.__annotations__[field]):
        raise InputError(f"--{name} may be given several times and cannot be swept: sweep another option")
    found = []
    for word in words:
        made = configured(ServeOptions, {"model": "any", field: word}, "--sweep")
        found.append(getattr(made, field))
    return field, tuple(dict.fromkeys(found))


def _grid(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last axis first to change.

    Raises:
        InputError: there are too many.
    """
    asked: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        if len(asked) * len(values) > MOST_FLEETS:
            raise InputError(f"a sweep of more than {MOST_FLEETS:,} fleets: give fewer values")
        asked = [{**one, name: value} for one in asked for value in values]
    return asked


def _changes_traffic(axes: Mapping[str, Sequence[Any]]) -> bool:
    return any(one.name in axes and one.metadata.get("group") in _OF_TRAFFIC for one in fields(ServeOptions))


# --- one fleet after another, here or in other processes --------------------------------------------------------------


class _FleetTask:
    """Serves with one fleet after another.

    Args:
        options: of all of them.
        goals: that they should keep.
        table: of requests; None where it differs.
    """

    def __init__(self, options: ServeOptions, goals: Sequence[Slo], table: RequestTable | None) -> None:
        self.options, self.goals, self.table = options, goals, table

    def each(self, asked: Sequence[tuple[int, dict[str, Any]]], workers: int) -> Iterator[FleetOutcome]:
        """What each gives, in order.

        Raises:
            InputError: a worker ended.
        """
        if workers == 1 or len(asked) < 2:
            for _, one in asked:
                yield self.outcome(one)
            return
        pool = worker_processes(min(workers, len(asked)), _begin, self.options, self.goals, self.table)
        try:
            yield from pool.map(_outcome, [one for _, one in asked])
        except BrokenProcessPool:
            raise ended(workers) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def outcome(self, asked: dict[str, Any]) -> FleetOutcome:
        """What one gives, or why it cannot be formed."""
        from triosim.serving.deployment import serve
        from triosim.serving.fleet_search import fewest_replicas, highest_rate
        from triosim.serving.outcome import FleetOutcome, fleet_figures

        own, goals = replace(self.options, **asked), self.goals
        try:
            table = self.table or requests_of(own)
            if own.find == "fleet":
                fleet = fewest_replicas(_growing(own), table, goals, own.tpot)
                return FleetOutcome(asked, fleet_figures(fleet.result, None, fleet.replicas > 0))
            deployment = deployment_of(own)
            if own.find == "rate":
                rate = highest_rate(deployment, table, goals, own.tpot)
                return FleetOutcome(asked, fleet_figures(rate.result, rate.rate, rate.rate > 0))
            return FleetOutcome(asked, fleet_figures(serve(deployment, table, goals, own.tpot, interval=False)))
        except InputError as error:
            return FleetOutcome(asked, None, str(error))


def _growing(options: ServeOptions) -> Callable[[int], Deployment]:
    """Fleets of so many replicas, on machines that larger ones find room on too, so that steps are priced once."""
    machines: dict[int, Deployment] = {}
    size = options.tp * options.cp * options.cfg_parallel * options.pp * options.dp

    def made(replicas: int) -> Deployment:
        room = AT_ONCE
        while room < replicas:
            room *= 8
        if room not in machines:
            machines[room] = deployment_of(replace(options, devices=room * size, idle_ok=True))
        whole = machines[room]
        return replace(whole, pools=(replace(whole.pools[0], replicas=replicas),))

    return made


_task: _FleetTask | None = None
"""In a worker: what it serves with."""


def _begin(options: ServeOptions, goals: Sequence[Slo], table: RequestTable | None) -> None:
    """Make this process a worker."""
    global _task
    _task = _FleetTask(options, goals, table)


def _outcome(asked: dict[str, Any]) -> FleetOutcome:
    assert _task is not None
    return _task.outcome(asked)
