"""Systolic arrays by closed form: cycles, utilisation and reads of a matrix product on an array that data marches
through.

A product of M output pixels, N filters and a window of K values is laid onto R rows and C columns; what does not fit is
folded, one fold after the other.  The *dataflow* says what stays in place: outputs (``os``), weights (``ws``) or inputs
(``is``).  Two closed forms have been published: that of the tool SCALE-Sim 3 (``scale-sim``; a fold of a stationary
operand first loads it, R cycles) and that of the paper (``paper``, Samajdar et al., ISPASS 2020: ``2 R + C + T - 2``
cycles a fold for every dataflow).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown

DATAFLOWS = ("os", "ws", "is")
FORMS = ("scale-sim", "paper")


@dataclass(frozen=True)
class Array:
    """A systolic array with its three memories.

    Attributes:
        rows, columns: multipliers.
        dataflow: one of :data:`DATAFLOWS`.
        name: for reports.
        ifmap_bytes, filter_bytes, ofmap_bytes: memories for inputs, weights and outputs; None is unlimited.
        bandwidth: words for each cycle from the memory outside; None is unlimited.
        word_bytes: size of a word.
    """

    rows: int
    columns: int
    dataflow: str = "os"
    name: str = "array"
    ifmap_bytes: int | None = None
    filter_bytes: int | None = None
    ofmap_bytes: int | None = None
    bandwidth: float | None = None
    word_bytes: int = 1

    def __post_init__(self) -> None:
        if self.dataflow not in DATAFLOWS:
            raise unknown(f"dataflow of {self.name}", self.dataflow, DATAFLOWS)
        if self.rows < 1 or self.columns < 1:
            raise InputError(f"array {self.name}: {self.rows} rows and {self.columns} columns: the least is 1 by 1")
        if self.word_bytes < 1:
            raise InputError(f"array {self.name}: words of {self.word_bytes} bytes: the least is 1")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise InputError(f"array {self.name}: a bandwidth of {self.bandwidth} words a cycle: give one above 0")


@dataclass(frozen=True)
class Product:
    """A matrix product as an array sees it: M output pixels, N filters, windows of K values."""

    name: str
    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise InputError(f"layer {self.name}: {self.m} x {self.n} x {self.k}: the least is 1 x 1 x 1")


@dataclass(frozen=True)
class ArrayRun:
    """What a product costs on an array.

    Attributes:
        product: what ran.
        cycles: of computing, with operands at hand.
        stall_cycles: waiting for the memory outside beyond that.
        folds: how often the array is filled.
        utilization: share of multiplications that ``cycles`` had room for.
        mapping_efficiency: share of the array that is filled, over the folds.
        ifmap_reads, filter_reads, ofmap_writes: words from and to the memories beside the array.
        times: how many products of this size run one after another; all counts are of all of them.
    """

    product: Product
    cycles: int
    stall_cycles: float
    folds: int
    utilization: float
    mapping_efficiency: float
    ifmap_reads: int
    filter_reads: int
    ofmap_writes: int
    times: int = 1

    @property
    def total_cycles(self) -> float:
        """Computing and waiting."""
        return self.cycles + self.stall_cycles


def run(array: Array, product: Product, form: str = "scale-sim", timing: str = "ideal") -> ArrayRun:
    """Runs a product on an array.

    Args:
        array, product: see there.
        form: one of :data:`FORMS`.
        timing: ``ideal``, or ``double-buffer``: each fold takes the longer of its work and of loading the next one's
            operands from outside, and the first load waits for nothing to hide behind.

    Raises:
        InputError: an unknown form or timing.
    """
    if form not in FORMS:
        raise unknown("closed form", form, FORMS)
    m, n, k, rows, columns = product.m, product.n, product.k, array.rows, array.columns
    over_rows, over_columns, stream = {"os": (m, n, k), "ws": (k, n, m), "is": (k, m, n)}[array.dataflow]
    row_folds, column_folds = math.ceil(over_rows / rows), math.ceil(over_columns / columns)
    folds = row_folds * column_folds
    if form == "paper":
        fold_cycles = 2 * rows + columns + stream - 2
        cycles = folds * fold_cycles
    else:
        fold_cycles = stream + (rows if array.dataflow == "os" else 2 * rows) + columns - 2
        cycles = max(folds * fold_cycles - 1, 1)
    ifmap = m * k * (1 if array.dataflow == "is" else column_folds)
    weights = {"os": n * k * row_folds, "ws": k * n, "is": n * k * column_folds}[array.dataflow]
    outputs = m * n * (1 if array.dataflow == "os" else row_folds)
    return ArrayRun(
        product, cycles, _stalls(array, folds, fold_cycles, ifmap + weights, timing), folds,
        m * n * k / (cycles * rows * columns), over_rows * over_columns / (folds * rows * columns),
        ifmap, weights, outputs,
    )  # fmt: skip


def of_einsum(array: Array, problem: Problem, form: str = "scale-sim", timing: str = "ideal") -> ArrayRun:
    """Runs an einsum on an array: a product for each place of the dimensions that index all its tensors (heads,
    groups, a batch).

    Raises:
        InputError: it is not of two inputs, or an unknown form or timing.
    """
    product, times = _products_of(problem)
    one = run(array, product, form, timing)
    return replace(
        one, cycles=times * one.cycles, stall_cycles=times * one.stall_cycles, folds=times * one.folds,
        ifmap_reads=times * one.ifmap_reads, filter_reads=times * one.filter_reads,
        ofmap_writes=times * one.ofmap_writes, times=times,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _products_of(problem: Problem) -> tuple[Product, int]:
    """The product for a place of the dimensions that index all tensors, and the number of these places."""
    shared = [d for d in problem.dimensions if all(d in tensor.dimensions for tensor in problem.tensors)]
    bounds = tuple(1 if d in shared else bound for d, bound in problem.bound.items())
    return product_of(replace(problem, bounds=bounds)), math.prod(problem.bound[d] for d in shared)


def as_json(
    array: Array, runs: list[ArrayRun], form: str, timing: str, levels: Sequence[Mapping[str, float]]
) -> dict[str, object]:
    """Products on an array as JSON holds them, with the joules of each by level."""
    return {
        "schema": "triosim/systolic/1",
        "array": {"name": array.name, "rows": array.rows, "columns": array.columns, "dataflow": array.dataflow},
        "form": form,
        "timing": timing,
        "cycles": sum(run.total_cycles for run in runs),
        "energy_j": sum(sum(joules.values()) for joules in levels),
        "layers": [
            {"name": r.product.name, "m": r.product.m, "n": r.product.n, "k": r.product.k, "times": r.times,
             "cycles": r.cycles, "stall_cycles": r.stall_cycles, "folds": r.folds, "utilization": r.utilization,
             "mapping_efficiency": r.mapping_efficiency, "ifmap_reads": r.ifmap_reads,
             "filter_reads": r.filter_reads, "ofmap_writes": r.ofmap_writes, "energy_j": sum(joules.values()),
             "energy_j_by_level": dict(joules)}
            for r, joules in zip(runs, levels, strict=True)
        ],
    }  # fmt: skip


def _stalls(array: Array, folds: int, fold_cycles: int, loaded: int, timing: str) -> float:
    """Cycles of waiting: the first load, and of every later one what its predecessor's work does not hide."""
    if timing not in ("ideal", "bandwidth", "double-buffer"):
        raise unknown("timing", timing, ("ideal", "bandwidth", "double-buffer"))
    if timing == "ideal" or array.bandwidth is None:
        return 0.0
    load = loaded / folds / array.bandwidth
    if timing == "bandwidth":
        return max(folds * (load - fold_cycles), 0.0)
    return load + (folds - 1) * max(load - fold_cycles, 0.0)


def product_of(problem: Problem) -> Product:
    """The matrix product that an einsum is: dimensions of the output and one input are M, of it and the other N.

    Raises:
        InputError: it has not two inputs, or a dimension indexes all three (a batch or groups).
    """
    inputs = [tensor for tensor in problem.tensors if not tensor.output]
    if len(inputs) != 2:
        raise InputError(f"problem {problem.name}: a systolic array multiplies two tensors, this has {len(inputs)}")
    names = [tensor.name for tensor in inputs]
    weights = inputs[names.index("Weights")] if "Weights" in names else inputs[0]
    others = inputs[1 - inputs.index(weights)]
    m = n = k = 1
    for dimension, bound in problem.bound.items():
        of = [dimension in tensor.dimensions for tensor in (others, weights, problem.output)]
        if all(of) and bound > 1:
            raise InputError(
                f"problem {problem.name}: dimension {dimension} indexes all three tensors, which is {bound} products: "
                "give one of them"
            )
        if of[2] and not of[1]:
            m *= bound
        elif of[2] and not of[0]:
            n *= bound
        else:
            k *= bound
    return Product(problem.name, m, n, k)
