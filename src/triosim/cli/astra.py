"""``triosim astra``: what is ready for ASTRA-sim, simulated."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import completion
from triosim.cli.command import command, note, progress_bar, say, wants_summary
from triosim.cli.outputs import JsonFile

if TYPE_CHECKING:
    from triosim.interop.astra.play import AstraResult
    from triosim.prediction.simulate import OnFinished


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "astra")(astra)


INPUT, RULES = "Inputs", "Rules"


def _input(name: str, help: str) -> Any:
    return typer.Option(
        name, metavar="FILE", help=help, show_default=False, rich_help_panel=INPUT, autocompletion=completion.files
    )


def astra(
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="PREFIX",
            help="Prefix of the Chakra traces: PREFIX.0.et and so on.",
            rich_help_panel=INPUT,
            autocompletion=completion.files,
        ),
    ],
    system: Annotated[Path, _input("--system", "ASTRA-sim's system file (JSON).")],
    network: Annotated[Path, _input("--network", "ASTRA-sim's analytical network file (YAML).")],
    comm_group: Annotated[Path | None, _input("--comm-group", "Communicator groups (JSON).")] = None,
    remote_memory: Annotated[Path | None, _input("--remote-memory", "ASTRA-sim's remote-memory file (JSON).")] = None,
    solver: Annotated[
        str,
        typer.Option(
            "--solver",
            metavar="NAME",
            help="max-min (links shared fairly), store-and-forward (ASTRA-sim's congestion-aware rule) or uncontended "
            "(its congestion-unaware one).",
            rich_help_panel=RULES,
            autocompletion=completion.parts("triosim.engine.solver:SOLVERS"),
        ),
    ] = "max-min",
    slots: Annotated[
        str,
        typer.Option(
            "--slots",
            metavar="WHICH",
            help="one: a rank computes, communicates and runs the host one thing at a time, as in ASTRA-sim; recorded: "
            "one thing on each stream that the traces name.",
            rich_help_panel=RULES,
            autocompletion=completion.choices("one", "recorded"),
        ),
    ] = "one",
    json: JsonFile = None,
) -> None:
    """Simulate ASTRA-sim's inputs: Chakra traces, system and network files."""
    from triosim.cli.predict import took
    from triosim.cli.streams import written
    from triosim.core.outputs import check_distinct, text_output
    from triosim.interop.astra.play import simulate

    read = {"--system": system, "--network": network, "--comm-group": comm_group, "--remote-memory": remote_memory}
    check_distinct({"--json": json}, [*read.items(), *(("--workload", path) for path in _traces(workload))])
    with progress_bar() as progress:
        result = simulate(
            workload,
            system,
            network,
            comm_group=comm_group,
            remote_memory=remote_memory,
            solver=solver,
            slots=slots,
            progress=progress,
        )
    if wants_summary(json):
        for line in lines(result):
            print(line)
    if json is not None:
        with text_output(json) as file:
            file.write(result.to_json())
    say(written("result", json), json)
    if result.stats is not None:
        note(took(result.stats, result.simulation))


def _traces(prefix: str) -> list[Path]:
    """The files that a prefix stands for."""
    folder, name = Path(prefix).parent, Path(prefix).name
    return sorted(folder.glob(f"{glob.escape(name)}.*.et"))


def lines(result: AstraResult) -> list[str]:
    """What is printed: a line for each rank in ASTRA-sim's words, then what the run was."""
    from triosim.core.units import format_time

    out = [
        f"sys[{r.rank}] finished, {r.cycles} cycles, exposed communication {r.exposed_cycles} cycles."
        for r in result.ranks
    ]
    out.append(
        f"{result.network}, {result.solver}: {format_time(result.seconds)} (a cycle is 1 ns); "
        f"{result.collectives} collectives, {result.simulation['flows']} messages"
    )
    return out + [f"note      {note}" for note in result.notes]


def chakra_writer(folder: Path, written: list[str]) -> OnFinished:
    """What writes the Chakra traces of a played job and says in ``written`` where they are."""
    from triosim.hardware.system import System
    from triosim.interop.chakra.export import export
    from triosim.network.device_assignment import DeviceAssignment
    from triosim.prediction.played_run import Run
    from triosim.trace.tables import Trace

    def keep(run: Run, assignment: DeviceAssignment, system: System, trace: Trace) -> None:
        took = run.played.finish - run.played.begin
        found = export(
            folder, run.programs, assignment, system, trace.operators.name,
            lambda rank: took[run.tasks(int(run.lowered.cell[rank]))],
        )  # fmt: skip
        others = ", ".join(path.name for path in found.others)
        written.append(f"chakra    {found.traces[0]} ({len(found.traces)} ranks), {others}")
        written.extend(f"note      {note}" for note in found.notes)

    return keep
