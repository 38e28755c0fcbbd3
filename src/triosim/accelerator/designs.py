"""A design as a device: what its datasheet would say, and what it makes of an einsum, looked for once.

The mapping of a problem depends on what the design and the problem are, not on what they are called or where they
stand, so what was found is kept under a digest of both, in ``$TRIOSIM_CACHE`` or the user's folder for such files.

An element of a model's tensors is a word of the design, whatever its type in the model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from triosim.accelerator import energies, mapper, systolic
from triosim.accelerator.architecture import Architecture, FanOut, Store, check_keeps
from triosim.accelerator.directives import Constraints
from triosim.accelerator.mapspace import primes_of
from triosim.accelerator.problem import Problem
from triosim.accelerator.reading import Contents, read
from triosim.accelerator.systolic import Array, ArrayRun
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.guarded import content, parse_json
from triosim.core.outputs import text_output
from triosim.hardware.accelerator import Accelerator, DeviceDesign

SCHEMA = "triosim/einsum-cost/3"

CLOCK_HZ = 1e9
"""Of a design that states none: Timeloop's and Accelergy's own default cycle is a nanosecond."""

TYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1", "int8")
"""Element types of models; each element is a word."""

ARRAY_MEMORY = 2**20
"""Bytes of an array's memory of which nobody states the size, for what an access takes."""

SMOOTH = 13
"""Largest prime factor of a bound that is mapped; other bounds are rounded up to the next of that kind."""

Files = tuple[str, ...]


@dataclass(frozen=True)
class MappingSearch:
    """How mappings are looked for (:func:`triosim.accelerator.mapper.search`)."""

    objective: str = "edp"
    budget: int = 30_000
    seed: int = 0
    timing: str = "bandwidth"


@dataclass(frozen=True)
class EinsumCost:
    """What one einsum takes on a design.

    Attributes:
        cycles: of the best mapping that was found.
        least_cycles: below which no mapping is: all units busy, every word of every tensor moved once.
        spread: worst over best of the searches side by side, of what was to be small; where too few ran to tell, down
            to ``least_cycles``.
        compute_j, chip_j, memory_j: joules of multiplications, of memories on the chip with all leakage, and of the
            outermost memory.
        binds: ``"compute"``, or a store and port.
        least_j: below which no mapping is: all products, every word of every tensor moved once.
        energy_spread: as ``spread``, of joules.
    """

    cycles: float
    least_cycles: float
    spread: float
    compute_j: float
    chip_j: float
    memory_j: float
    binds: str
    least_j: float
    energy_spread: float

    @property
    def energy_j(self) -> float:
        """Joules of everything."""
        return self.compute_j + self.chip_j + self.memory_j

    @property
    def open(self) -> float:
        """Natural logarithm of the factor by which a longer search may still shorten it."""
        return math.log(max(min(self.spread, self.cycles / self.least_cycles), 1.0))

    @property
    def open_j(self) -> float:
        """Natural logarithm of the factor by which its joules may still change."""
        return math.log(max(min(self.energy_spread, self.energy_j / self.least_j if self.least_j else math.inf), 1.0))


# --- as a device ------------------------------------------------------------------------------------------------------


def digest(files: Sequence[str]) -> str:
    """SHA-256 of what the files hold.

    Raises:
        InputError: one cannot be read.
    """
    found = hashlib.sha256()
    for name in files:
        raw = content(Path(name), packed=False)
        found.update(f"{len(raw)}:".encode() + raw)
    return found.hexdigest()


@functools.lru_cache(maxsize=64)
def load(files: Files, sha256: str) -> Contents:
    """What the files of a design hold; ``sha256`` is of their content, so that a changed file is read again.

    Raises:
        InputError: they hold neither a design nor an array, or both.
    """
    found = read(Path(name) for name in files)
    if found.architecture is None and found.array is None:
        raise InputError(f"{files[0]}: holds no design and no systolic array: give the file of one")
    if found.architecture is not None and found.array is not None:
        raise InputError(f"{files[0]}: a design and a systolic array are two devices: give one of them")
    return found


def device(files: Files, clock_hz: float | None = None, vector_flops: float | None = None) -> Accelerator:
    """The device that a design is.

    Args:
        files: of the design, its energies and its constraints.
        clock_hz: instead of the design's.
        vector_flops: of what is no product; None for one FLOP of each column of units in a cycle.

    Raises:
        InputError: the files hold no design.
    """
    sha256 = digest(files)
    found = load(files, sha256)
    said = []
    stated = clock_hz
    if found.architecture is not None:
        design = found.design
        check_keeps(design)
        name, units, process = design.name, design.compute_instances, design.technology
        stated = stated or design.clock_hz
        columns = math.prod(node.x for node in design.nodes if isinstance(node, FanOut))
        outer = design.stores[0]
        if outer.read_bandwidth is None:
            said.append("its memory moves an access in a cycle beside products, which nobody stated")
        words, bits = outer.read_bandwidth or float(outer.words_per_access), outer.word_bits
    else:
        assert found.array is not None
        array = found.array
        name, units, process, columns = array.name, array.rows * array.columns, "", array.columns
        if array.bandwidth is None:
            said.append("its memory moves a word of each column in a cycle beside products, which nobody stated")
        words, bits = array.bandwidth or float(array.columns), 8 * array.word_bytes
    clock = stated or CLOCK_HZ
    if stated is None:
        said.append("1 GHz, as nobody stated a clock")
    vector = vector_flops or columns * clock
    if vector_flops is None:
        said.append("a vector unit of one FLOP for each column in a cycle, which nobody stated")
    source = f"design of {', '.join(Path(one).name for one in files)}"
    return Accelerator(
        name, kind="npu", compute_units=units, clock_hz=clock, process=_process(process),
        peak_flops=dict.fromkeys(TYPES, 2.0 * units * clock), matrix_types=TYPES[1:],
        memory_bandwidth=words * bits / 8 * clock, confidence="medium",
        source="; ".join([source, *said]), design=DeviceDesign("\n".join(files), sha256, vector),
    )  # fmt: skip


def _process(technology: str) -> str:
    """The process where it says nanometres."""
    return technology if any(c.isdigit() for c in technology) else ""


def contents(accelerator: Accelerator) -> Contents:
    """The design of a device that is one, with the memory bandwidth that a device's file states instead.

    Raises:
        InputError: its files were changed so that they cannot be read.
    """
    assert accelerator.design is not None
    found = load(tuple(accelerator.design.files.split("\n")), accelerator.design.digest)
    if not accelerator.design.bandwidth_stated:
        return found
    assert accelerator.memory_bandwidth is not None
    assert accelerator.clock_hz is not None
    each = accelerator.memory_bandwidth / accelerator.clock_hz  # bytes in a cycle
    if found.array is not None:
        return replace(found, array=replace(found.array, bandwidth=each / found.array.word_bytes))
    assert found.architecture is not None
    outer = found.architecture.nodes[0]
    assert isinstance(outer, Store)
    words = each / (outer.word_bits / 8)
    nodes = (replace(outer, read_bandwidth=words, write_bandwidth=words), *found.architecture.nodes[1:])
    return replace(found, architecture=replace(found.architecture, nodes=nodes))


# --- joules of what is no einsum --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DesignEnergy:
    """Energies and leakage of a design apart from its mappings.

    Attributes:
        word_j: of a word read from or written to the outermost memory.
        word_bytes: of that memory.
        compute_j: of a multiplication with addition, and of a FLOP of the vector unit.
        leak_w: all instances of all memories, while nothing runs.
        factors: how far what was assumed may be off, up, of memory, compute and all others; 1 where it was stated.
    """

    word_j: float
    word_bytes: float
    compute_j: float
    leak_w: float
    factors: tuple[float, float, float]


def joules(found: Contents, clock_hz: float) -> DesignEnergy:
    """See :class:`DesignEnergy`."""
    if found.architecture is None:
        assert found.array is not None
        bits = 8 * found.array.word_bytes
        one = energies.multiply_add_j(bits, energies.DEFAULT_NM)
        factor = energies.FACTOR
        return DesignEnergy(energies.dram_j(bits), found.array.word_bytes, one, 0.0, (factor, factor, factor))
    design = found.design
    outer = design.stores[0]
    word = max(outer.energies.read or 0.0, outer.energies.write or 0.0) / outer.words_per_access
    leak = sum((store.energies.leak or 0.0) * design.instances(store.name) for store in design.stores)
    off = {one.component: one.high for one in design.assumed}
    others = [off[store.name] for store in design.stores[1:] if store.name in off]
    return DesignEnergy(
        word, outer.word_bits / 8, design.compute.energies.compute or 0.0, leak * clock_hz,
        (off.get(outer.name, 1.0), off.get(design.compute.name, 1.0), max(others, default=1.0)),
    )  # fmt: skip


# --- einsums ----------------------------------------------------------------------------------------------------------


def rounded(bound: int) -> int:
    """The least number from ``bound`` on without a prime factor above :data:`SMOOTH`."""
    while max(primes_of(bound), default=1) > SMOOTH:
        bound += 1
    return bound


def cost(found: Contents, problem: Problem, how: MappingSearch) -> EinsumCost:
    """What an einsum takes on a design: by the closed form of an array, else by the best mapping that is found, which
    is kept.

    Raises:
        InputError: no mapping was found, or an option of the search is unknown.
    """
    if found.array is not None:
        return _on_array(found.array, problem, how.timing)
    design = found.design
    problem = replace(problem, bounds=tuple(rounded(bound) for bound in problem.bounds))
    rules = found.constraints.constraints(design, problem) if found.constraints else Constraints()
    place = _place(design, problem, rules, how)
    kept = _kept(place)
    if kept is None:
        kept = _mapped(design, problem, rules, how)
        _keep(place, kept)
    return kept


def _mapped(design: Architecture, problem: Problem, rules: Constraints, how: MappingSearch) -> EinsumCost:
    search = mapper.search(
        design, problem, rules, objective=how.objective, budget=how.budget, seed=how.seed, timing=how.timing
    )  # fmt: skip
    if not search.finished:  # the search ends with its best so far, which is not to be kept, and no prediction either
        raise KeyboardInterrupt
    best = mapper.evaluated(design, problem, search.best, how.timing)
    levels = best.levels
    outer = design.stores[0]
    memory = levels[outer.name]
    least = problem.computes / design.compute_instances
    if outer.read_bandwidth is not None:
        read = sum(problem.words(tensor) for tensor in problem.tensors if not tensor.output)
        least = max(least, min(read / outer.read_bandwidth, best.cycles))
    spread = min(search.spread, max(best.cycles / least, 1.0))
    takes, words = outer.energies, {True: 0.0, False: 0.0}
    for tensor in problem.tensors:
        words[tensor.output] += problem.words(tensor)
    moved = words[False] * (takes.read or 0.0) + words[True] * min(takes.read or 0.0, takes.write or 0.0)
    least_j = min(best.compute_j + moved / outer.words_per_access, best.energy_j)
    return EinsumCost(
        best.cycles, least, spread, best.compute_j, best.energy_j - best.compute_j - memory, memory, best.binds,
        least_j, min(search.energy_spread, best.energy_j / least_j if least_j else 1.0),
    )  # fmt: skip


def _on_array(array: Array, problem: Problem, timing: str) -> EinsumCost:
    """The closed form; energies from published ones (:mod:`triosim.accelerator.energies`)."""
    run = systolic.of_einsum(array, problem, timing=timing)
    levels = array_levels(array, problem, run)
    compute, memory = levels.pop("compute"), levels.pop("memory")
    loading = (run.ifmap_reads + run.filter_reads) / array.bandwidth if array.bandwidth and timing != "ideal" else 0.0
    return EinsumCost(
        run.total_cycles, run.total_cycles, 1.0, compute, sum(levels.values()), memory,
        "memory" if loading > run.cycles else "compute", compute + sum(levels.values()) + memory, 1.0,
    )  # fmt: skip


def array_levels(array: Array, problem: Problem, found: ArrayRun) -> dict[str, float]:
    """Joules of a product on an array: its three memories, the multiplications, and the memory outside, once for each
    word of each tensor; energies are published ones of :data:`~triosim.accelerator.energies.DEFAULT_NM`."""
    counts = {
        "memory": sum(problem.words(tensor) for tensor in problem.tensors), "inputs": found.ifmap_reads,
        "weights": found.filter_reads, "outputs": found.ofmap_writes, "compute": problem.computes,
    }  # fmt: skip
    return {name: counts[name] * each for name, each in array_energies(array).items()}


def array_energies(array: Array) -> dict[str, float]:
    """Joules of a word of each memory of an array, the one outside first, and of a multiplication, as in
    :func:`array_levels`; a memory of which nobody says the size counts as 1 MiB."""
    bits, nm = 8 * array.word_bytes, energies.DEFAULT_NM
    sizes = {"inputs": array.ifmap_bytes, "weights": array.filter_bytes, "outputs": array.ofmap_bytes}
    return {
        "memory": energies.dram_j(bits),
        **{name: energies.sram_j(size or ARRAY_MEMORY, bits, nm) for name, size in sizes.items()},
        "compute": energies.multiply_add_j(bits, nm),
    }


# --- kept on disk -----------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Where what was found is kept: ``$TRIOSIM_CACHE``, or ``triosim`` in the user's folder for such files."""
    own = os.environ.get("TRIOSIM_CACHE")
    if own:
        return Path(own) / "mappings"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "triosim" / "mappings"


def _place(design: Architecture, problem: Problem, rules: Constraints, how: MappingSearch) -> Path:
    """The file for these; names and sources change nothing."""
    told = replace(design, name="", sources=(), assumed=(), technology="", clock_hz=None)
    key = hashlib.sha256(repr((SCHEMA, told, problem.dimensions, problem.bounds, problem.tensors, rules, how)).encode())
    return folder() / f"{key.hexdigest()}.json"


def _kept(place: Path) -> EinsumCost | None:
    """What was found before; None where there is nothing, or nothing that can be read."""
    if not place.is_file():
        return None
    try:
        row = parse_json(content(place, packed=False).decode("utf-8"), str(place))
        if row.pop("schema") != SCHEMA:
            return None
        made = EinsumCost(**row)
        numbers = [value for name, value in asdict(made).items() if name != "binds"]
        good = all(isinstance(n, (int, float)) and 0 <= n < math.inf for n in numbers)
        return made if good and min(made.cycles, made.least_cycles) > 0 and isinstance(made.binds, str) else None
    except (InputError, TypeError, KeyError, AttributeError, ValueError):
        return None


def _keep(place: Path, found: EinsumCost) -> None:
    """Write it, where that is allowed; nothing depends on it but time."""
    with suppress(InputError, OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with text_output(place) as file:
            json.dump({"schema": SCHEMA, **asdict(found)}, file)
            file.write("\n")
