"""``triosim together``: several jobs of a file on one machine, arriving and leaving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from triosim.cli import completion
from triosim.cli.command import command, progress_bar
from triosim.cli.outputs import JsonFile, present
from triosim.core.errors import InputError, quoted, unknown

if TYPE_CHECKING:
    from triosim.cli.arguments import Options
    from triosim.prediction.together import SharedJob

MACHINE = (
    "system", "nodes", "device", "devices", "topology", "link", "latency", "shape", "topology_option", "host_link",
    "pool_link", "straggler", "routing", "routing_option",
)  # fmt: skip
"""Options of ``triosim train`` that say what all jobs run on; they stand above the first of them."""
OF_ONE = ("json", "csv", "timeline", "report", "stats", "chakra", "sweep", "compare", "workers", "executor", "fit",
          "variation", "also", "also_step", "energy", "tokens", "at", "pue", "price", "pay", "find")  # fmt: skip
"""Options that are of one prediction alone."""
OWN = ("name", "arrives", "after")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "together")(together)


def together(
    jobs: Annotated[
        Path,
        typer.Argument(
            metavar="JOBS.toml", show_default=False, autocompletion=completion.files,
            help="The machine, and a [[job]] for each: options of train without dashes, and name, arrives, after.",
        ),
    ],
    json: JsonFile = None,
) -> None:  # fmt: skip
    """Several jobs on devices of their own that share a network, each from its arrival until it leaves.

    A job stays for its iterations; what it is slowed down by depends on who else is there.
    """
    from triosim.cli.predict import machine
    from triosim.core.outputs import check_distinct
    from triosim.prediction.together import stays
    from triosim.report.together import show, to_dict

    check_distinct({"--json": json}, [("JOBS.toml", jobs)])
    with progress_bar() as progress:
        progress("reading the jobs")
        options, asked = read(jobs)
        try:
            devices = machine(options, asked[0].workload, 1)
            found = stays(asked, devices, progress)
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(str(jobs)) else f"{jobs}: {error}") from None
    present(found, "jobs", json, to_dict, show)


def read(path: Path) -> tuple[Options, list[SharedJob]]:
    """The machine and the jobs of a file.

    Raises:
        InputError: it cannot be read, or says something that makes no sense; the message says where.
    """
    from triosim.core import guarded

    said = guarded.document(path, "a machine and a [[job]] for each job", form=".toml")
    tables = said.pop("job", None)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}: give a [[job]] with a workload for each job")
    machine, found = _options(str(path), said, MACHINE), list[Any]()
    names: dict[str, int] = {}
    called = [str(table.get("name", f"job {number}")) for number, table in enumerate(tables)]
    for number, (name, table) in enumerate(zip(called, tables, strict=True)):
        where = f"{path}, job {quoted(name)}"
        for key in ("name", "after", "workload"):
            if key in table and (not isinstance(table[key], str) or not table[key]):
                raise InputError(f"{where}: {key} is {quoted(table[key])}: give a text in quotes")
        if (after := table.get("after")) in called[number:]:
            raise InputError(
                f"{where}: after {quoted(after)}, which stands no earlier: put the job that it follows first"
            )
        if name in names:
            raise InputError(f"{path}: two jobs are called {quoted(name)}: give each a name of its own")
        found.append(_job(where, name, {k: v for k, v in table.items() if k not in OWN}, table, names, machine))
        names[name] = number
    from triosim.cli.arguments import Options

    return Options(workload="", **machine), found


def _job(
    where: str, name: str, given: Mapping[str, Any], own: Mapping[str, Any], names: Mapping[str, int],
    machine: Mapping[str, Any],
) -> SharedJob:  # fmt: skip
    from triosim.cli.arguments import Options
    from triosim.cli.predict import fidelity_of, plan_of, step
    from triosim.core.units import parse_time
    from triosim.prediction.together import SharedJob

    after = own.get("after")
    if after is not None and after not in names:
        raise unknown(f"job before {quoted(name)} in {where.partition(',')[0]}", str(after), list(names))
    try:
        options = Options(**{**machine, **_options(where, given, None)})
        return SharedJob(
            step(options, True), plan_of(options, True), fidelity_of(options),
            parse_time(str(own.get("arrives", "0s")), "arrives"), None if after is None else names[after], name,
        )  # fmt: skip
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _options(where: str, given: Mapping[str, Any], allowed: tuple[str, ...] | None) -> dict[str, Any]:
    """Keys of a table as fields of :class:`Options`.

    Raises:
        InputError: a key is no option that can stand there, or its value none of it.
    """
    from triosim.cli.arguments import Options
    from triosim.cli.fields import typed

    hints = get_type_hints(Options)
    known = [f.name for f in fields(Options) if f.name not in (*OF_ONE, *(() if allowed else MACHINE))]
    known = [name for name in known if not allowed or name in allowed]
    found = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(f"{where}: {unknown('key', key, [one.replace('_', '-') for one in (*known, *OWN)])}")
        found[name] = typed(key, _text(value), hints[name])
    if allowed is None and "workload" not in found:
        raise InputError(f"{where}: it has no workload: name a model or a trace")
    return found


def _text(value: Any) -> str:
    """A value of a TOML file as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ";".join(f"{name}={_text(each)}" for name, each in value.items())
    return ";".join(map(_text, value)) if isinstance(value, list) else str(value)
