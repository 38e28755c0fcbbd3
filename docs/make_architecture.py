"""Write the picture of docs/architecture.md, and the numbers of the prediction that the page follows.

    python docs/make_architecture.py           # rewrites docs/road.svg and docs/architecture.md
    python docs/make_architecture.py --check   # says what would change; exit code 1 if anything would

The page is a text with real numbers in it: each passage between markers is what the code here prints.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

import triosim
from triosim.kernels.estimate import Source
from triosim.partition.step import Step
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.played_run import Run
from triosim.prediction.playing import lowered_job
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.prediction.timeline import CATEGORIES
from triosim.schedule.program import Op
from triosim.trace.tables import Phase, Trace

DOCS = Path(__file__).resolve().parent
TRACE = DOCS.parent / "examples" / "gpt-small-cpu.triosim"
LAYER, NAME = "h.0.mlp.c_proj", "aten::addmm"
"""The operator that the page follows."""


class Stop(NamedTuple):
    """One stop of the road.

    Attributes:
        packages: of ``src/triosim``.
        question: that is answered there.
        parts: that can be added there.
        out: class that crosses the wall to the next stop.
    """

    packages: tuple[str, ...]
    question: str
    parts: str
    out: str


ROAD = (
    Stop(("sources", "trace", "operators"), "What does one device run in one step?",
         "trace reader, model family, operator kind", "Trace"),
    Stop(("partition",), "What does each rank compute, and what is sent inside a step?",
         "rule of parallelism", "Step"),
    Stop(("kernels",), "How long does each operator take, and how sure is that?",
         "operator model, external times", "Estimates"),
    Stop(("schedule", "composition"), "Who runs what, in which order, and what does launching cost?",
         "pipeline schedule", "Program"),
    Stop(("memory",), "What is held when?", "", "Program, Footprint"),
    Stop(("network", "collectives"), "Which ranks are alike?  Who sends what over which links?",
         "topology, routing, collective algorithm", "Graph, EngineNetwork"),
    Stop(("engine",), "When does everything happen?", "network model", "GraphRun"),
    Stop(("prediction",), "What does it add up to, and how wide is the interval?", "", "Result"),
    Stop(("report", "cli"), "What does the user see?", "", "text, JSON, timeline, page"),
)  # fmt: skip


# --- the picture ------------------------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, BOX, STEP, TOP = 960, 150, 930, 52, 84, 24
INK, FAINT, FILL, LINE, WARM = "#1b2a41", "#5b6b82", "#eef3fb", "#3f64b5", "#fdf3e3"


def picture() -> str:
    """The road as an SVG."""
    height = TOP + STEP * len(ROAD) - (STEP - BOX) + TOP
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img" '
        'aria-label="The packages that a prediction goes through, and what passes between them">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        *_inputs(height),
    ]
    for number, stop in enumerate(ROAD):
        rows += _stop(stop, TOP + STEP * number, last=number == len(ROAD) - 1)
    return "\n".join([*rows, "</svg>"]) + "\n"


def _inputs(height: int) -> Iterator[str]:
    """What all stops read, at the left."""
    for at, (name, what) in enumerate((("System", "the machine"), ("Plan", "how the work is divided"))):
        x, middle = 24 + 56 * at, height / 2
        yield (
            f'<rect x="{x}" y="{TOP}" width="40" height="{height - 2 * TOP}" rx="6" fill="{WARM}" stroke="#d8a24a"/>'
        )
        yield (
            f'<text transform="translate({x + 25} {middle}) rotate(-90)" text-anchor="middle" font-size="15" '
            f'fill="{INK}"><tspan font-weight="bold">{name}</tspan>: {what}</text>'
        )


def _stop(stop: Stop, y: int, last: bool) -> Iterator[str]:
    yield (
        f'<rect x="{LEFT}" y="{y}" width="{RIGHT - LEFT}" height="{BOX}" rx="6" fill="{FILL}" stroke="{LINE}"/>'
        f'<path d="M{LEFT - 30} {y + BOX / 2}H{LEFT - 2}" stroke="#d8a24a" stroke-width="2"/>'
    )
    packages = escape("  ".join(stop.packages))
    yield (
        f'<text x="{LEFT + 14}" y="{y + 31}" font-family="monospace" font-size="14" font-weight="bold" fill="{INK}" '
        f'xml:space="preserve">{packages}</text>'
    )
    middle = y + (24 if stop.parts else 31)
    yield f'<text x="{LEFT + 330}" y="{middle}" font-size="14" fill="{INK}">{escape(stop.question)}</text>'
    if stop.parts:
        yield (
            f'<text x="{LEFT + 330}" y="{y + 42}" font-size="12" fill="{FAINT}" font-style="italic">'
            f"add: {escape(stop.parts)}</text>"
        )
    if not last:
        x = LEFT + 60
        yield (
            f'<path d="M{x} {y + BOX}v{STEP - BOX - 2}" stroke="{LINE}" stroke-width="2" marker-end="url(#tip)"/>'
            f'<text x="{x + 14}" y="{y + BOX + 21}" font-family="monospace" font-size="14" fill="{LINE}">'
            f"{escape(stop.out)}</text>"
        )


# --- the prediction ---------------------------------------------------------------------------------------------------


def passages() -> dict[str, str]:
    """What happens to one operator, stop by stop, in numbers."""
    trace, plan = triosim.load(TRACE), triosim.Plan(tp=2, dp=2)
    system = triosim.system(devices=4, link="10GB/s", latency="5us")
    kept: list[Run] = []
    result = triosim.simulate(trace, system, plan, on_finished=lambda run, *_: kept.append(run))
    (run,) = kept
    job = prepare(trace, system, plan)
    modules, operators = trace.modules.path, trace.operators
    row = next(
        row for row, name in enumerate(operators.name)
        if name == NAME and modules[operators.module[row]] == LAYER and operators.phase[row] == Phase.FORWARD
    )  # fmt: skip
    return {
        "trace": _trace(trace, row),
        "step": _step(job.step, row),
        "estimates": _estimates(job, row),
        "program": _program(job, row),
        "footprint": _footprint(job),
        "graph": _graph(run, len(lowered_job(job, fold=False)[0].graph)),
        "played": _played(run, row),
        "result": str(result),
    }


def _trace(trace: Trace, row: int) -> str:
    return (
        f"Trace: {len(trace)} operators, {len(trace.values):,} values, {len(trace.modules.path)} modules\n"
        f"row {row}: {NAME} of {LAYER}\n"
        f"  {_shapes(trace, row)}\n"
        f"  {trace.operators.flop[row] / 1e9:.3f} GFLOP, recorded at {trace.operators.device_s[row] * 1e3:.2f} ms\n"
        f"all operators together: {trace.device_time() * 1e3:.0f} ms"
    )


def _shapes(trace: Trace, row: int) -> str:
    """``mat1 [2048, 1024], mat2 [1024, 256] -> [2048, 256]``."""
    operators, shape = trace.operators, trace.values.shape
    roles = [operators.role_names[role] for role in operators.roles[row]]
    inputs = [f"{role} {shape[value].tolist()}" for role, value in zip(roles, operators.inputs[row], strict=True)]
    return f"{', '.join(inputs)} -> {shape[operators.outputs[row][0]].tolist()}"


def _step(step: Step, row: int) -> str:
    sent = step.transfers
    (at,) = np.flatnonzero(sent.after == row)
    return (
        f"Step: {len(step.trace)} operators, {len(sent)} transfers\n"
        f"row {row}: {NAME} of {LAYER}\n"
        f"  {_shapes(step.trace, row)}\n"
        f"  {step.trace.operators.flop[row] / 1e9:.3f} GFLOP\n"
        f"transfer {at}: {COLLECTIVES[sent.what[at]]} of {sent.bytes[at]:,} bytes after row {row}, "
        f"which row {sent.before[at]} needs"
    )


def _estimates(job: CompiledJob, row: int) -> str:
    times = job.times
    return (
        f"Estimates: {times.seconds.sum() * 1e3:.0f} ms in all\n"
        f"row {row}: {times.seconds[row] * 1e3:.2f} ms, within a factor of {np.exp(times.spread[row]):.2f} nine times "
        f"out of ten\n"
        f"  source {Source(times.source[row]).name}"
    )


def _program(job: CompiledJob, row: int) -> str:
    lines = [f"{len(job.programs)} rank class"]
    for program in job.programs:
        counts = [f"{int((program.op == op).sum())} {op.name}" for op in Op if (program.op == op).any()]
        lines += [f"Program of ranks {', '.join(map(str, program.ranks))}: {', '.join(counts)}"]
        for at in np.flatnonzero(program.operator == row).tolist():
            after = ", ".join(map(str, program.before[at]))
            lines += [f"  {at}: {Op(program.op[at]).name} for row {row}" + (f", after {after}" if after else "")]
    return "\n".join(lines)


def _footprint(job: CompiledJob) -> str:
    (foot,) = job.footprints
    sizes = enumerate((foot.at_peak / 2**20).tolist())
    held = [f"{CATEGORIES[at]} {size:.0f} MiB" for at, size in sizes if size >= 1]
    return f"Footprint: {foot.peak_bytes / 2**20:.0f} MiB at instruction {foot.peak_row}\n  {', '.join(held)}"


def _graph(run: Run, unfolded: int) -> str:
    lowered = run.lowered
    pattern = lowered.graph.collectives[0].pattern
    return (
        f"Graph: {len(lowered.graph)} tasks of {lowered.cells} cell of {lowered.count[0]} ranks ({unfolded:,} tasks "
        f"for all ranks)\n"
        f"collective 0: {lowered.how[0][0]}, each member sends {pattern.count[0]} x {pattern.bytes[0]:,} bytes\n"
        f"network: routes of {lowered.wires.latency[0] / 1e6:g} us"
    )


def _played(run: Run, row: int) -> str:
    program, played = run.programs[0], run.played
    lines = ["Simulated, in picoseconds"]
    for at in np.flatnonzero(program.operator == row).tolist():
        start, finish = int(played.start[at]), int(played.finish[at])
        lines += [f"  {at}: {Op(program.op[at]).name:10} {start:>15,} to {finish:>15,}: {finish - start:>13,}"]
    return "\n".join(lines)


# --- the page ---------------------------------------------------------------------------------------------------------


def written() -> dict[Path, str]:
    """The files and what is to be in them."""
    page = DOCS / "architecture.md"
    text = page.read_text(encoding="utf-8")
    for name, passage in passages().items():
        block = f"<!-- {name} -->\n```text\n{passage}\n```\n<!-- end -->"
        text, found = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, b=block: b, text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{page} has no place for {name!r}: add <!-- {name} --> and <!-- end -->")
    return {DOCS / "road.svg": picture(), page: text}


def main() -> int:
    """Write, or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check, stale = parser.parse_args().check, []
    for path, text in written().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != old:
            stale.append(path.name)
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path.name, "now"))
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"{' and '.join(stale)}: run python docs/make_architecture.py", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
