"""Chakra traces of a simulated job: what each rank runs, sends and waits for, for ASTRA-sim and other readers.

A node is an instruction of the rank's program.  It waits for what the instruction waits for and, as streams keep their
order, for the one before it on its stream.  Durations are whole microseconds in the format; the exact one stands beside
it as the attribute ``triosim_duration_ps``, which others pass over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.outputs import folder_output, text_output
from triosim.core.units import picoseconds
from triosim.hardware.system import System
from triosim.interop.astra.network import BYTES_PER_GB
from triosim.interop.chakra.trace import ABSENT, ChakraNodeType, ChakraTrace, ChakraTraceBuilder, Comm
from triosim.network.device_assignment import DeviceAssignment
from triosim.schedule.program import COLLECTIVES, STREAMS, Op, Program

MOST_FILES = 4096
"""Ranks up to which each gets a file; of larger jobs each class of ranks that do the same work gets one."""

NAME = "triosim"
"""Prefix of the files: ``triosim.RANK.et``."""

_OTHERS = ("comm_groups.json", "network.yml", "system.json", "README.md")
_PS_PER_US = 10**6
_TOPOLOGIES = {"switch": "Switch", "ring": "Ring", "full": "FullyConnected"}
_SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

Durations = Callable[[int], NDArray[np.int64]]
"""Rank -> picoseconds that each row of its program took; used for what ASTRA-sim replays."""


@dataclass(frozen=True)
class ExportedTraces:
    """Result of an export: the files written, and notes.

    Attributes:
        traces: the trace files.
        others: communicator groups, and network and system files where the machine can be described by them.
        notes: what the user should know, one sentence each.
    """

    traces: tuple[Path, ...]
    others: tuple[Path, ...]
    notes: tuple[str, ...]


def export(
    folder: str | Path,
    programs: Sequence[Program],
    assignment: DeviceAssignment,
    system: System,
    names: Sequence[str],
    durations: Durations | None = None,
) -> ExportedTraces:
    """Write the traces of a job into a folder, which appears when all is written, in the place of an earlier export.

    Args:
        folder: where to.
        programs: one per rank class.
        assignment: the mesh on the devices.
        system: the machine.
        names: of the operators, which ``Program.operator`` counts.
        durations: what each instruction took; None where the job was not played.

    Raises:
        InputError: the folder cannot be written there, or holds what is not of an earlier export.
    """
    from triosim.interop.chakra.file import write  # loads protobuf

    writer = _Writer(programs, assignment, names, durations)
    ranks = range(assignment.ranks)
    every = assignment.ranks <= MOST_FILES
    chosen = list(ranks) if every else sorted(int(program.ranks.min()) for program in programs)
    traces = {rank: f"{NAME}.{rank}.et" for rank in chosen}
    others = {"comm_groups.json": json.dumps(writer.groups(), indent=1) + "\n", **_machine(system, assignment)}
    if not every:
        others["README.md"] = _readme(programs)
    with folder_output(folder, belongs) as new:
        for rank, name in traces.items():
            write(writer.trace(rank), new / name)
        for name, text in others.items():
            with text_output(new / name) as file:
                file.write(text)
    folder = Path(folder)
    return ExportedTraces(
        tuple(folder / name for name in traces.values()),
        tuple(folder / name for name in others),
        tuple(_notes(programs)),
    )


def belongs(name: str) -> bool:
    """Whether a file of this name may be one that :func:`export` wrote."""
    return name in _OTHERS or re.fullmatch(rf"{NAME}\.\d+\.et", name) is not None


class _Writer:
    """Turns programs into traces."""

    def __init__(
        self,
        programs: Sequence[Program],
        assignment: DeviceAssignment,
        names: Sequence[str],
        durations: Durations | None,
    ) -> None:
        self.assignment, self.names, self.durations = assignment, names, durations
        self.program_of: dict[int, Program] = {}
        for program in programs:
            self.program_of.update(dict.fromkeys(program.ranks.tolist(), program))
        self.members: dict[tuple[int, int], tuple[int, ...]] = {}  # (axis, rank) -> its group
        self.number: dict[tuple[int, ...], int] = {}  # group -> its name in the file
        for axis, name in enumerate(assignment.mesh.names):
            for ranks in assignment.mesh.groups(name):
                group = tuple(ranks)
                self.members.update({(axis, rank): group for rank in ranks})
                if len(group) > 1:
                    self.number.setdefault(group, len(self.number) + 1)

    def groups(self) -> dict[str, list[int]]:
        """Communicator groups as ASTRA-sim reads them."""
        return {str(number): list(group) for group, number in self.number.items()}

    def trace(self, rank: int) -> ChakraTrace:
        """The trace of one rank."""
        program = self.program_of[rank]
        took = self.durations(rank) if self.durations is not None else np.zeros(len(program), np.int64)
        own = picoseconds(program.seconds, "a duration")
        builder = ChakraTraceBuilder()
        last: dict[int, int] = {}
        columns = zip(program.stream.tolist(), program.operator.tolist(), program.before.lists(), strict=True)
        for row, (stream, operator, before) in enumerate(columns):
            waits = {other + 1 for other in before}
            if stream >= 0:
                waits |= {last[stream]} if stream in last else set()
                last[stream] = row + 1
            name = self.names[operator] if operator >= 0 else STREAMS[stream] if stream >= 0 else ""
            kind, attributes = self._node(program, row, rank, int(own[row]), int(took[row]))
            builder.add(kind, name, before=sorted(waits), stream=stream, **attributes)
        return builder.build()

    def _node(
        self, program: Program, row: int, rank: int, own: int, took: int
    ) -> tuple[ChakraNodeType, dict[str, Any]]:
        """Type and attributes of the node of one instruction, which lasts ``own`` or, moving bytes, ``took``."""
        op, size = Op(int(program.op[row])), int(program.bytes[row])
        if op in (Op.COMPUTE, Op.ISSUE):
            return ChakraNodeType.COMP, {"micros": _micros(own), "ticks": own, "cpu": op == Op.ISSUE}
        if op in (Op.SEND, Op.RECEIVE):
            mesh = self.assignment.mesh
            peer = mesh.moved(rank, mesh.names[program.axis[row]], int(program.peer[row]))
            ends = {"source": rank, "target": peer} if op == Op.SEND else {"source": peer, "target": rank}
            kind = ChakraNodeType.COMM_SEND if op == Op.SEND else ChakraNodeType.COMM_RECV
            return kind, {"size": size, "tag": int(program.tag[row]), **ends}
        lasted = {"micros": _micros(took), "ticks": took if self.durations is not None else ABSENT}
        if op in (Op.FETCH, Op.STORE):
            return ChakraNodeType.MEM_LOAD if op == Op.FETCH else ChakraNodeType.MEM_STORE, {
                "tensor_size": size,
                **lasted,
            }
        group = self.members[int(program.axis[row]), rank]
        if len(group) == 1:
            return ChakraNodeType.INVALID, {}
        what = COLLECTIVES[program.what[row]]
        brought = size // len(group) if what == "all_gather" else size
        comm = int(Comm[what.upper()])
        return ChakraNodeType.COMM_COLL, {"comm": comm, "size": brought, "group": str(self.number[group]), **lasted}


def _micros(ticks: int) -> int:
    """Whole microseconds, nearest; at least one, because readers take none as a nanosecond."""
    return max(round(ticks / _PS_PER_US), 1) if ticks else 0


def _machine(system: System, assignment: DeviceAssignment) -> dict[str, str]:
    """Network and system files of ASTRA-sim that describe the machine, where they can: devices in rank order that are
    all joined by one kind of link.  A way over a switch pays the latency on both of its hops there, once here."""
    rates, delays = np.unique(system.bandwidth), system.latency.max(initial=0.0)
    in_order = assignment.ranks == system.devices and np.array_equal(assignment.devices, np.arange(system.devices))
    if system.topology not in _TOPOLOGIES or len(rates) != 1 or not np.isfinite(rates[0]) or not in_order:
        return {}
    network = {
        "topology": [_TOPOLOGIES[system.topology]],
        "npus_count": [system.devices],
        "bandwidth": [float(rates[0]) / BYTES_PER_GB],
        "latency": [float(delays) * 1e9 / (2 if system.topology == "switch" else 1)],
    }
    layer: dict[str, object] = {
        "scheduling-policy": "LIFO", "endpoint-delay": 0, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, "collective-optimization": "localBWAware",
        **{f"{kind.replace('_', '-')}-implementation": ["ring"] for kind in _SIMULATED[:3]},
        "all-to-all-implementation": ["direct"],
    }  # fmt: skip
    lines = [f"{key}: {json.dumps(value)}" for key, value in network.items()]
    return {"network.yml": "\n".join(lines) + "\n", "system.json": json.dumps(layer, indent=1) + "\n"}


def _readme(programs: Sequence[Program]) -> str:
    """Which ranks each file stands for."""
    lines = [
        "# One trace for each class of ranks that do the same work",
        "",
        "| file | ranks | how many |",
        "|---|---|---|",
    ]
    for program in sorted(programs, key=lambda p: int(p.ranks.min())):
        first, last = int(program.ranks.min()), int(program.ranks.max())
        lines.append(f"| {NAME}.{first}.et | {first} to {last} | {len(program.ranks)} |")
    return "\n".join([*lines, "", "Peers and groups in a file are those of its own rank.", ""])


def _notes(programs: Sequence[Program]) -> list[str]:
    """What other simulators make of it that the user should know."""
    kinds = {COLLECTIVES[what] for p in programs for what in np.unique(p.what[p.op == Op.COLLECTIVE]).tolist()}
    notes = []
    replayed = sorted(kinds - set(_SIMULATED))
    if replayed:
        notes.append(
            f"{', '.join(replayed)}: ASTRA-sim replays or refuses these; they are written with their time here"
        )
    if any(np.isin(p.op, (Op.FETCH, Op.STORE)).any() for p in programs):
        notes.append(
            "values that start or go elsewhere are written as memory loads and stores: ASTRA-sim needs a remote-memory "
            "file"
        )
    return notes
