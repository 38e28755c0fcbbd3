"""``triosim astra``: what is ready for ASTRA-sim, simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triosim.interop.astra.play import AstraResult
    from triosim.simulate import Keep


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("astra")(astra)


def astra(
    workload: Annotated[str, typer.Option("--workload", help="Prefix of the Chakra traces: PREFIX.0.et and so on.")],
    system: Annotated[Path, typer.Option("--system", help="ASTRA-sim's system file (JSON).")],
    network: Annotated[Path, typer.Option("--network", help="ASTRA-sim's analytical network file (YAML).")],
    comm_group: Annotated[
        Path | None, typer.Option("--comm-group", help="Communicator groups (JSON).", show_default=False)
    ] = None,
    remote_memory: Annotated[
        Path | None, typer.Option("--remote-memory", help="ASTRA-sim's remote-memory file (JSON).", show_default=False)
    ] = None,
    solver: Annotated[
        str,
        typer.Option(
            "--solver",
            help="max-min (links shared fairly), store-and-forward (ASTRA-sim's congestion-aware rule) or uncontended "
            "(its congestion-unaware one).",
        ),
    ] = "max-min",
    slots: Annotated[
        str,
        typer.Option(
            "--slots",
            help="one: a rank computes, communicates and runs the host one thing at a time, as in ASTRA-sim; recorded: "
            "one thing on each stream that the traces name.",
        ),
    ] = "one",
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            help="Write the result as JSON; - writes it, and nothing else, to the terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Simulate ASTRA-sim's inputs: Chakra traces, system and network files."""
    from triosim.cli.predict import _progress as progress
    from triosim.interop.astra.play import simulate

    with progress() as tell:
        result = simulate(
            workload,
            system,
            network,
            comm_group=comm_group,
            remote_memory=remote_memory,
            solver=solver,
            slots=slots,
            progress=tell,
        )
    if json == "-":
        sys.stdout.write(result.to_json())
        return
    for line in lines(result):
        print(line)
    if json is not None:
        from triosim.report.files import whole

        with whole(json) as file:
            file.write(result.to_json())
        print(f"result    {json}")


def lines(result: AstraResult) -> list[str]:
    """What is printed: a line for each rank in ASTRA-sim's words, then what the run was."""
    from triosim.units import format_time

    out = [
        f"sys[{r.rank}] finished, {r.cycles} cycles, exposed communication {r.exposed_cycles} cycles."
        for r in result.ranks
    ]
    out.append(
        f"{result.network}, {result.solver}: {format_time(result.seconds)} (a cycle is 1 ns); "
        f"{result.collectives} collectives, {result.simulation['flows']} messages, "
        f"{result.simulation['cpu_s']:.2f} CPU s, {result.simulation['engine']} engine"
    )
    return out + [f"note      {note}" for note in result.notes]


def chakra_writer(folder: Path, written: list[str]) -> Keep:
    """What writes the Chakra traces of a played job and says in ``written`` where they are."""
    from triosim.hardware.system import System
    from triosim.interop.chakra.export import export
    from triosim.network.placement import Placement
    from triosim.tally import Run
    from triosim.workload.trace import Trace

    def keep(run: Run, placement: Placement, system: System, trace: Trace) -> None:
        took = run.played.finish - run.played.begin
        found = export(
            folder, run.programs, placement, system, trace.operators.name,
            lambda rank: took[run.tasks(int(run.lowered.cell[rank]))],
        )  # fmt: skip
        others = ", ".join(path.name for path in found.others)
        written.append(f"chakra    {found.traces[0]} ({len(found.traces)} ranks), {others}")
        written.extend(f"note      {note}" for note in found.notes)

    return keep
