"""Designs and mappings on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from triosim.accelerator import energies
from triosim.accelerator.architecture import Architecture, Energies, FanOut, Store
from triosim.accelerator.designs import ARRAY_MEMORY, array_energies
from triosim.accelerator.evaluate import FILLING, Evaluation
from triosim.accelerator.mapper import Search
from triosim.accelerator.mapping import nest_lines
from triosim.accelerator.problem import Problem
from triosim.accelerator.reading import Contents
from triosim.accelerator.sparse import SparseEvaluation
from triosim.accelerator.systolic import Array, ArrayRun
from triosim.core.units import format_bytes, format_time
from triosim.prediction.result.words import share
from triosim.report.table import Column, TextTable, paragraph


def joules(value: float) -> str:
    """Joules for people: ``"59.28 uJ"``."""
    for unit, scale in (("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6), ("nJ", 1e-9), ("pJ", 1e-12)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0 J" if value == 0 else f"{value / 1e-15:.4g} fJ"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _numbers(*names: str) -> tuple[Column, ...]:
    """Columns of numbers, of which the last are left out first."""
    return tuple(Column(name, right=True, optional=at) for at, name in enumerate(names))


def evaluation(found: Evaluation, design: Architecture, problem: Problem, console: Console) -> None:
    """One evaluated mapping: totals, what moves at each level, energy by level, and the loop nest."""
    paragraph(console, f"{found.problem} on {found.architecture}", "bold")
    seconds = f" ({format_time(found.seconds)})" if found.seconds is not None else ""
    low, high = found.interval_j
    between = f" ({joules(low)} to {joules(high)})" if joules(low) != joules(high) else ""
    each = found.energy_j / found.computes / 1e-15
    for line in (
        f"cycles       {_count(found.cycles)}{seconds}, bound by {found.binds}, timing {found.timing}",
        f"utilization  {share(found.utilization)}, {_count(found.used)} of {found.instances:,} units",
        f"energy       {joules(found.energy_j)}{between}, {each:,.2f} fJ for each of {found.computes:,} computes",
    ):
        paragraph(console, line, indent=13)
    console.print()
    heads = _numbers("tile", "instances", "reads", "fills", "updates")
    table = TextTable((Column("level"), Column("tensor"), *heads, Column("energy", right=True)))
    for a in found.accesses:
        table.add_row(
            a.store, a.tensor, _count(a.tile), _count(a.instances), _count(a.reads), _count(a.fills), _count(a.updates),
            joules(a.energy_j),
        )  # fmt: skip
    console.print(table)
    paragraph(console, "words of one instance; energy of all", "dim")
    console.print()
    table = TextTable((Column("level"), Column("energy", right=True), Column("share", right=True), Column(optional=1)))
    total = found.energy_j or 1.0
    for level, value in found.levels.items():
        table.add_row(level, joules(value), share(value / total), "█" * round(30 * value / total))
    console.print(table)
    console.print()
    if len(alone := cycles_alone(found)) > 1:
        heads = (Column("cycles alone", right=True), Column("of all", right=True), Column(optional=1))
        table = TextTable((Column("limit"), *heads))
        for name, value in alone:
            table.add_row(name, _count(value), share(value / found.cycles), "█" * round(30 * value / found.cycles))
        console.print(table)
        console.print()
    for line in nest_lines(found.mapping, design, problem):
        paragraph(console, line, indent=len(line) - len(line.lstrip()) + 4)
    for line in found.assumed:
        paragraph(console, f"assumed: {line}", "dim", indent=2)


def cycles_alone(found: Evaluation) -> list[tuple[str, float]]:
    """What the units and each port with a bandwidth would take if nothing else took time."""
    rows = [("compute", found.computes / found.used)]
    for store, reading, writing in found.port_cycles:
        rows += [(f"{store} {port}", value) for port, value in (("read", reading), ("write", writing)) if value]
    if found.timing == "double-buffer" and (waiting := found.cycles - max(value for _, value in rows)) > 0:
        rows.append((FILLING, waiting))
    return rows


def sparse_evaluation(found: SparseEvaluation, console: Console) -> None:
    """The same mapping with zeros minded."""
    console.print()
    paragraph(console, "with zeros minded", "bold")
    for line in (
        f"cycles       {_count(found.cycles)}",
        f"computes     {_count(found.computes)} of {found.dense.computes:,}",
        f"energy       {joules(found.energy_j)}, of {joules(found.dense.energy_j)} without",
    ):
        paragraph(console, line, indent=13)
    heads = _numbers("tile", "reads", "spared", "fills", "updates", "metadata")
    table = TextTable((Column("level"), Column("tensor"), *heads, Column("energy", right=True)))
    for a in found.accesses:
        metadata = a.metadata_reads + a.metadata_fills + a.metadata_updates
        spared = f"{_count(a.spared_reads + a.spared_updates)} {a.spared}" if a.spared else "-"
        table.add_row(
            a.store, a.tensor, _count(a.tile), _count(a.reads), spared, _count(a.fills), _count(a.updates),
            _count(metadata), joules(a.energy_j),
        )  # fmt: skip
    console.print(table)
    for store in found.overfull:
        paragraph(console, f"the fullest tiles may exceed {store}, the expected ones fit", "dim")


def runs(rows: list[ArrayRun], array: Array, levels: Sequence[Mapping[str, float]], console: Console) -> None:
    """Products on a systolic array, and what they take by level."""
    paragraph(console, f"{array.name}, {array.rows} x {array.columns}, {array.dataflow}", "bold")
    heads = _numbers("cycles", "stalls", "used", "filled", "input reads", "weight reads", "output writes")
    table = TextTable((Column("layer"), *heads, Column("energy", right=True)))
    for run, joules_of in zip(rows, levels, strict=True):
        name = run.product.name + (f" (x {run.times:,})" if run.times > 1 else "")
        table.add_row(
            name, _count(run.cycles), _count(round(run.stall_cycles, 1)), share(run.utilization),
            share(run.mapping_efficiency), f"{run.ifmap_reads:,}", f"{run.filter_reads:,}", f"{run.ofmap_writes:,}",
            joules(sum(joules_of.values())),
        )  # fmt: skip
    total = {name: sum(one[name] for one in levels) for name in levels[0]}
    whole = sum(total.values())
    if len(rows) > 1:
        cycles = sum(run.cycles for run in rows)
        work = sum(run.times * run.product.m * run.product.n * run.product.k for run in rows)
        table.add_row(
            "all", _count(cycles), _count(round(sum(run.stall_cycles for run in rows), 1)),
            share(work / (cycles * array.rows * array.columns)), "", "", "", "", joules(whole),
        )  # fmt: skip
    console.print(table)
    console.print()
    table = TextTable((Column("level"), Column("energy", right=True), Column("share", right=True), Column(optional=1)))
    for name, value in total.items():
        table.add_row(name, joules(value), share(value / whole), "█" * round(30 * value / whole))
    console.print(table)
    said = "words; used is the share of multiplications, filled that of the array over its folds"
    assumed = f"energies are assumed, {energies.DEFAULT_NM:g} nm, within a factor of {energies.FACTOR:.2g}"
    paragraph(console, f"{said}; {assumed}", "dim")


def search(found: Search, objective: str, console: Console) -> None:
    """How a search went, and its front where it has one."""
    ended = "" if found.finished else ", interrupted"
    line = f"search       {found.proposed:,} mappings, {found.evaluated:,} of which fit, for least {objective}{ended}"
    paragraph(console, line, indent=13)
    if objective == "pareto":
        table = TextTable((Column("cycles", right=True), Column("energy", right=True)))
        for point in found.front:
            table.add_row(_count(point.cycles), joules(point.energy_j))
        console.print(table)
    console.print()


def layers(rows: Sequence[tuple[Problem, float, Evaluation]], console: Console) -> None:
    """The layers of a workload, each with the best mapping that was found; the last row is all of them."""
    heads = _numbers("times", "cycles", "used", "energy")
    table = TextTable((Column("layer"), Column("loops", flow="wrap"), *heads, Column("bound by")))
    for one, times, best in rows:
        loops = " ".join(f"{d}={n}" for d, n in zip(one.dimensions, one.bounds, strict=True) if n > 1)
        table.add_row(
            one.name, loops, f"{times:g}", _count(best.cycles), share(best.utilization), joules(best.energy_j),
            best.binds,
        )  # fmt: skip
    table.add_row(
        "all", "", "", _count(sum(times * best.cycles for _, times, best in rows)), "",
        joules(sum(times * best.energy_j for _, times, best in rows)), "",
    )  # fmt: skip
    console.print(table)
    paragraph(console, "cycles and energy of one run each; the last row is of all runs", "dim")


def designs(rows: list[Architecture], console: Console) -> None:
    """Ready designs, one line each."""
    table = TextTable((
        Column("name"), Column("units", right=True), Column("clock", right=True), Column("stores", flow="wrap"),
    ))  # fmt: skip
    for row in rows:
        clock = f"{row.clock_hz / 1e6:g} MHz" if row.clock_hz else "-"
        table.add_row(row.name, f"{row.compute_instances:,}", clock, ", ".join(store.name for store in row.stores))
    console.print(table)


def design(found: Contents, console: Console) -> None:
    """One design in full."""
    if found.architecture is None and found.array is not None:
        array = found.array
        _array(array, console)
        return
    made = found.design
    paragraph(console, made.name, "bold")
    clock = f"{made.clock_hz / 1e6:g} MHz" if made.clock_hz else ""
    facts = (made.technology, clock, f"{made.compute_instances:,} units")
    paragraph(console, ", ".join(fact for fact in facts if fact))
    console.print()
    table = TextTable((
        Column("node"), Column("instances", right=True), Column("size", right=True),
        Column("width", right=True, optional=1), Column("read", right=True, optional=2),
        Column("write", right=True, optional=2), Column("keeps", flow="wrap"), Column("pJ", flow="wrap"),
    ))  # fmt: skip
    for node in made.nodes:
        if isinstance(node, FanOut):
            table.add_row(node.name, f"x {node.x} x {node.y}", "", "", "", "", "", "")
            continue
        table.add_row(
            node.name, f"{made.instances(node.name):,}", _size(node), str(node.words_per_access),
            _rate(node.read_bandwidth), _rate(node.write_bandwidth),
            "all" if node.keeps is None else ", ".join(node.keeps) or "nothing", _energies(node.energies),
        )  # fmt: skip
    unit = made.compute
    bits = f"{unit.word_bits} bits"
    table.add_row(unit.name, f"{made.compute_instances:,}", bits, "", "", "", "", _energies(unit.energies))
    console.print(table)
    said = "width in words; read and write in words a cycle; pJ of an access (r, w, u: reading, writing, updating)"
    paragraph(console, said, "dim")
    for component, area in found.areas:
        paragraph(console, f"area of {component}: {area * 1e6:.4g} mm2")
    for key, source in made.sources:
        paragraph(console, f"source of {key}: {source}", "dim", indent=2)
    for assumed in made.assumed:
        paragraph(console, f"assumed: {assumed.component}: {assumed.text}", "dim", indent=2)


def _array(array: Array, console: Console) -> None:
    """A systolic array: its memories, what reaches it, and what an access takes."""
    paragraph(console, f"{array.name}: systolic array of {array.rows} by {array.columns}, {array.dataflow}", "bold")
    outside = "unlimited" if array.bandwidth is None else f"{array.bandwidth:g} words in a cycle"
    paragraph(console, f"{8 * array.word_bytes} bits a word, bandwidth of the memory outside {outside}")
    console.print()
    table = TextTable((Column("memory"), Column("size", right=True), Column("pJ", right=True)))
    sizes = {"inputs": array.ifmap_bytes, "weights": array.filter_bytes, "outputs": array.ofmap_bytes}
    for name, taken in array_energies(array).items():
        inside = "not stated" if sizes.get(name) is None else format_bytes(sizes[name])
        table.add_row(name, inside if name in sizes else "", f"{taken / 1e-12:.4g}")
    console.print(table)
    said = f"{energies.DEFAULT_NM:g} nm, within a factor of {energies.FACTOR:.2g}"
    if None in sizes.values():
        said += f"; memories whose size is not stated count as {format_bytes(ARRAY_MEMORY)}"
    paragraph(console, f"energies of a word and of a multiplication, assumed: {said}", "dim")


def _size(store: Store) -> str:
    return "unlimited" if store.capacity_words is None else format_bytes(store.capacity_words * store.word_bits / 8)


def _rate(words: float | None) -> str:
    return "-" if words is None else f"{words:g}"


def _energies(known: Energies) -> str:
    shown = {"r": known.read, "w": known.write, "u": known.update, "leak": known.leak or None, "": known.compute}
    if known.read is not None and known.read == known.write == known.update:
        shown = {"": known.read, "leak": known.leak or None}
    return ", ".join(f"{name} {value / 1e-12:.4g}".strip() for name, value in shown.items() if value is not None)
