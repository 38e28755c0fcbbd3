"""A PyTorch execution trace on its own: who reads and makes which tensor, without times.

With the torch.profiler JSON of the same run beside it (in one folder, or given together) the
:mod:`~triosim.sources.readers.kineto` reader joins the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.readers._execution import Recording, is_execution_trace
from triosim.sources.readers._files import files
from triosim.sources.readers._purpose import decide
from triosim.sources.readers._step import build, resolve
from triosim.sources.readers._tree import CallNode, link, operators
from triosim.sources.readers.kineto import Kineto
from triosim.sources.reading import Reader
from triosim.trace.builder import NAN
from triosim.trace.tables import Meta, Phase, Trace

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


@registered
class ExecutionTrace(Reader):
    """Reads an ExecutionTraceObserver JSON that comes without a profile."""

    what = "a PyTorch execution trace (ExecutionTraceObserver JSON)"

    def recognises(self, path: Path) -> bool:
        return bool(_recordings(path)) and not Kineto().recognises(path)

    def read(self, path: Path, *, step: str = "median", execution_trace: Path | None = None) -> Trace:
        if execution_trace is not None:
            raise InputError(f"{path} is an execution trace itself; give the profile first and this one with it")
        found = _recordings(path)
        if len(found) > 1:
            names = ", ".join(p.name for p in found[:4]) + (", ..." if len(found) > 4 else "")
            raise InputError(f"{path} holds {len(found)} execution traces ({names}); give the path of one")
        recording = Recording.read(found[0])
        roots, labels, label = _step(found[0], recording.roots, step)
        pairs = operators(roots)
        link(roots, pairs)
        rows = [row for row, _ in pairs]
        for row in rows:
            row.device_s = row.host_s = NAN
        resolve(rows)
        purposes = decide(rows)
        notes = [f"an execution trace (schema {recording.schema}) has no times: add the profile of the same run"]
        if purposes.without_gradient and any(row.phase == Phase.BACKWARD for row in rows):
            missing, of = len(purposes.without_gradient), len(purposes.weights)
            notes.append(f"for {missing} of {of} parameters no gradient was found")
        meta = Meta(
            made_by="execution-trace",
            workload=re.sub(r"\.json(\.gz)?$", "", found[0].name),
            framework="torch",
            batch_size=purposes.batch.size,
            batch_guess=purposes.batch.guess,
            sequence_length=purposes.batch.sequence,
            steps=labels,
            step=label,
            notes=tuple(notes),
        )
        return build(rows, meta, purposes.weights, lambda builder: None)


def _recordings(path: Path) -> list[Path]:
    return [p for p in (files(path) if path.is_dir() else [path]) if is_execution_trace(p)]


def _step(path: Path, roots: list[CallNode], step: str) -> tuple[list[CallNode], tuple[str, ...], str]:
    """The outermost calls of one step; without times the median step is the middle one."""
    marks = {m.group(1): root for root in roots if (m := _STEP.search(root.name))}
    labels = tuple(marks)
    if step not in ("median", "all") and step not in labels:
        have = f"it has the steps {', '.join(labels)}" if labels else "it marks no steps (ProfilerStep#N)"
        raise InputError(f"{path} has no step {step}: {have}; give one of them, median or all")
    if step == "all" or not labels:
        return roots, labels, "all" if labels else ""
    label = step if step in labels else labels[(len(labels) - 1) // 2]
    begin = marks[label].start
    later = [node.start for node in marks.values() if node.start > begin]
    end = min(later, default=max(n.start for root in roots for n in root.walk()) + 1)
    return [root for root in roots if begin <= root.start < end], labels, label
