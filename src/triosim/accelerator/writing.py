"""Mappings, energies and results as text: Timeloop's YAML, ERT and statistics, SCALE-Sim's report, and our own TOML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from triosim.accelerator.architecture import Architecture, Energies, FanOut
from triosim.accelerator.evaluate import Evaluation
from triosim.accelerator.mapping import LoopMapping, keeps_of
from triosim.accelerator.problem import Problem
from triosim.accelerator.systolic import ArrayRun
from triosim.core.errors import InputError

_PICO = 1e-12


def _flow(value: Any) -> str:
    """A value in YAML's flow style, which JSON is part of."""
    return json.dumps(value)


# --- mappings ---------------------------------------------------------------------------------------------------------


def mapping_rows(mapping: LoopMapping) -> list[dict[str, Any]]:
    """A mapping as JSON holds it, outermost first."""
    return [
        {"at": level.node, "loops": [[x.dimension, x.count, x.axis] for x in level.loops],
         **({} if level.keeps is None else {"keeps": list(level.keeps)})}
        for level in mapping.levels
    ]  # fmt: skip


def toml_mapping(mapping: LoopMapping, architecture: Architecture, problem: Problem) -> str:
    """A mapping in our own format."""
    lines = []
    for level in mapping.levels:
        lines += ["[[level]]", f"at = {_flow(level.node)}"]
        for axis, key in (("", "loops"), ("x", "x"), ("y", "y")):
            loops = [f"{x.dimension}={x.count}" for x in level.loops if x.axis == axis]
            if loops:
                # loops in space are read from the innermost, as permutations are
                lines.append(f"{key} = {_flow(' '.join(loops if not axis else loops[::-1]))}")
        if level.keeps is not None:
            lines.append(f"keeps = {_flow(list(level.keeps))}")
        lines.append("")
    return "\n".join(lines)


def timeloop_mapping(mapping: LoopMapping, architecture: Architecture, problem: Problem) -> str:
    """A mapping in Timeloop's format of version 0.4, innermost level first.

    Raises:
        InputError: a dimension runs along X and along Y of one fan-out, for which the format has no words.
    """
    lines = ["mapping:"]
    for node in reversed(architecture.nodes):
        loops = mapping.level(node.name).loops
        x = [loop for loop in loops if loop.axis == "x"][::-1]
        y = [loop for loop in loops if loop.axis == "y"][::-1]
        inner = [loop.dimension for loop in (*x, *y)] if isinstance(node, FanOut) else [
            loop.dimension for loop in reversed(loops)
        ]  # fmt: skip
        both = {loop.dimension for loop in x} & {loop.dimension for loop in y}
        if both:
            raise InputError(
                f"{min(both)} runs along both X and Y of {node.name}, which Timeloop's format cannot say: write TOML"
            )
        counts = dict.fromkeys(problem.dimensions, 1)
        for loop in loops:
            counts[loop.dimension] *= loop.count
        order = list(dict.fromkeys(inner)) + [d for d in problem.dimensions if d not in inner]
        kind = "spatial" if isinstance(node, FanOut) else "temporal"
        factors = [f"{d}={n}" for d, n in counts.items()]
        lines += [f"- target: {_flow(node.name)}", f"  type: {kind}", f"  factors: {_flow(factors)}",
                  f"  permutation: {_flow(order)}"]  # fmt: skip
        if isinstance(node, FanOut):
            lines.append(f"  split: {len(x) if y else len(order)}")
    keeps = keeps_of(architecture, problem, mapping)
    for store in reversed(architecture.stores):
        kept = keeps[store.name]
        passed = [tensor.name for tensor in problem.tensors if tensor.name not in kept]
        lines += [f"- target: {_flow(store.name)}", "  type: dataspace", f"  keep: {_flow(list(kept))}",
                  f"  bypass: {_flow(passed)}"]  # fmt: skip
    return "\n".join(lines) + "\n"


# --- energies ---------------------------------------------------------------------------------------------------------


def ert(architecture: Architecture) -> str:
    """The energies of a design as Accelergy's table, in pJ."""
    lines = ["ERT:", "  version: '0.4'", "  tables:"]
    rows: list[tuple[str, int, Energies]] = [
        (store.name, architecture.instances(store.name), store.energies) for store in architecture.stores
    ]
    rows.append((architecture.compute.name, architecture.compute_instances, architecture.compute.energies))
    for name, count, energies in rows:
        lines += [f"  - name: {_flow(f'system_top_level.{name}[1..{count}]')}", "    actions:"]
        for field in fields(Energies):
            value = getattr(energies, field.name)
            if value is not None:
                lines.append(f"    - {{name: {field.name}, arguments: {{}}, energy: {value / _PICO!r}}}")
    return "\n".join(lines) + "\n"


# --- results ----------------------------------------------------------------------------------------------------------


def _exact(count: float) -> str:
    """A count with all its digits, for those who compare counts: no exponent, no ``.0`` of a whole number."""
    return f"{count:.0f}" if count == int(count) else f"{count:.4f}".rstrip("0")


def timeloop_stats(found: Evaluation, architecture: Architecture) -> str:
    """The evaluation with the field names of Timeloop's statistics, so that scripts that look for them find them."""
    lines = ["Buffer and Arithmetic Levels", "----------------------------"]
    level = 0
    lines += [f"Level {level}", "-------", f"=== {architecture.compute.name} ===", "", "    STATS", "    -----",
              f"    Utilized instances      : {_exact(found.used)}",
              f"    Computes (total)        : {found.computes}",
              f"    Cycles                  : {_exact(found.cycles)}",
              f"    Energy (total)          : {found.compute_j / _PICO:.2f} pJ", ""]  # fmt: skip
    stores = architecture.stores
    leakage = dict(found.leakage_j)
    for store in reversed(stores):
        level += 1
        lines += [f"Level {level}", "-------", f"=== {store.name} ===", "", "    STATS", "    -----",
                  f"    Cycles               : {_exact(found.cycles)}"]  # fmt: skip
        for a in found.accesses:
            if a.store == store.name:
                lines += [
                    f"    {a.tensor}:",
                    f"        Utilized capacity                        : {_exact(a.tile)}",
                    f"        Utilized instances (max)                 : {_exact(a.instances)}",
                    f"        Scalar reads (per-instance)              : {_exact(a.reads)}",
                    f"        Scalar fills (per-instance)              : {_exact(a.fills)}",
                    f"        Scalar updates (per-instance)            : {_exact(a.updates)}",
                    f"        Energy (total)                           : {a.energy_j / _PICO:.2f} pJ",
                ]
        lines += [f"    Leakage energy (total)   : {leakage[store.name] / _PICO:.2f} pJ", ""]
    lines += ["Summary Stats", "-------------", f"GFLOPs (@1GHz): {2 * found.computes / found.cycles:.2f}",
              f"Utilization: {found.utilization:.2%}", f"Cycles: {_exact(found.cycles)}",
              f"Energy: {found.energy_j * 1e6:.2f} uJ",
              f"EDP(J*cycle): {found.energy_j * found.cycles:.2e}", "", f"Computes = {found.computes}",
              "fJ/Compute"]  # fmt: skip
    each = found.computes * 1e-15
    rows = [(architecture.compute.name, found.compute_j)]
    rows += [(name, joules) for name, joules in found.levels.items() if name != "compute"][::-1]
    width = max(len(name) for name, _ in rows)
    lines += [f"    {name:{width}} = {joules / each:.2f}" for name, joules in rows]
    lines.append(f"    {'Total':{width}} = {found.energy_j / each:.2f}")
    return "\n".join(lines) + "\n"


def compute_report(runs: Sequence[ArrayRun]) -> str:
    """SCALE-Sim's COMPUTE_REPORT.csv."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["LayerID", "Total Cycles", "Stall Cycles", "Overall Util %", "Mapping Efficiency %",
                     "Compute Util %"])  # fmt: skip
    for i, run in enumerate(runs):
        busy = run.utilization * run.cycles / run.total_cycles
        writer.writerow([i, _exact(run.total_cycles), _exact(run.stall_cycles), f"{100 * busy:.6g}",
                         f"{100 * run.mapping_efficiency:.6g}", f"{100 * run.utilization:.6g}"])  # fmt: skip
    return file.getvalue()
