"""What is computed: an einsum whose indices are affine in the dimensions of its loops.

A convolution, its two gradients, a matrix product and both halves of attention are all of this form: for every point
of the loops one multiplication of the inputs is added to the output.  A tensor is addressed by one affine expression
for each of its axes, so that a sliding window is the axis ``stride p + dilation r``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown

MOST_COMPUTES = 2**53
"""Multiplications of a problem: counts are kept in floats, which are exact up to here."""

DISTRIBUTIONS = ("fixed-structured", "hypergeometric")
"""How zeros lie: the same number in every tile, or anywhere with the same chance."""

OF_ATTENTION = ("Queries", "Keys", "Values", "Scores")
"""Tensors of attention beside its outputs (:func:`attention`)."""
ROLES = ("Outputs", "Inputs", "Weights")
"""What tensors are to a design that runs any einsum of two inputs."""

Axis = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Operand:
    """One operand or the result of an einsum.

    Attributes:
        name: ``"Weights"``.
        axes: for each axis its terms (dimension, coefficient): ``((("R", 1), ("P", 2)),)`` is ``r + 2 p``.
        output: whether products are added to it.
        density: share of its elements that are not zero.
        distribution: where they lie, one of :data:`DISTRIBUTIONS`.
    """

    name: str
    axes: tuple[Axis, ...]
    output: bool = False
    density: float = 1.0
    distribution: str = "fixed-structured"

    @cached_property
    def dimensions(self) -> frozenset[str]:
        """Dimensions that index it."""
        return frozenset(dimension for axis in self.axes for dimension, _ in axis)

    def words(self, extents: Mapping[str, int]) -> int:
        """Elements of the box that a tile of the loops touches; ``extents``: size of the tile by dimension."""
        return math.prod(1 + sum(c * (extents[d] - 1) for d, c in axis) for axis in self.axes)


@dataclass(frozen=True)
class Problem:
    """An einsum with its bounds.

    Attributes:
        name: for reports.
        dimensions: of the loops, in the order in which mappings name them.
        bounds: of the dimensions.
        tensors: inputs, and exactly one output.
    """

    name: str
    dimensions: tuple[str, ...]
    bounds: tuple[int, ...]
    tensors: tuple[Operand, ...]

    def __post_init__(self) -> None:
        check(self)

    @property
    def computes(self) -> int:
        """Multiplications with addition."""
        return math.prod(self.bounds)

    @property
    def output(self) -> Operand:
        """The tensor that products are added to."""
        return next(tensor for tensor in self.tensors if tensor.output)

    @cached_property
    def bound(self) -> dict[str, int]:
        """Bound of each dimension."""
        return dict(zip(self.dimensions, self.bounds, strict=True))

    def words(self, tensor: Operand) -> int:
        """Elements of a tensor, those included that a stride steps over."""
        return tensor.words(self.bound)

    @property
    def roles(self) -> dict[str, str]:
        """Which tensor plays each of :data:`ROLES`, by which ready designs say what they keep.

        Products are added to the outputs; of the inputs, one that is called so plays the weights, else the second does.
        """
        inputs = [tensor.name for tensor in self.tensors if not tensor.output]
        if "Weights" in inputs:
            inputs.sort(key=lambda name: name == "Weights")
        elif "Inputs" in inputs:
            inputs.sort(key=lambda name: name != "Inputs")
        return dict(zip(ROLES, (self.output.name, *inputs), strict=False))

    def played_by(self, name: str) -> str | None:
        """The tensor that a design or a constraint means by a name: the one called so, or that plays this role where
        the output is called otherwise; None where there is none."""
        if name in ROLES and self.output.name != ROLES[0]:
            return self.roles.get(name)
        return name if any(tensor.name == name for tensor in self.tensors) else None

    def sparse(self, densities: Mapping[str, float]) -> Problem:
        """The same with other densities, by tensor.

        Raises:
            InputError: a tensor that is not there, or a density outside of 0 to 1.
        """
        names = [tensor.name for tensor in self.tensors]
        for name in densities:
            if name not in names:
                raise unknown("tensor", name, names)
        tensors = tuple(replace(t, density=densities.get(t.name, t.density)) for t in self.tensors)
        return replace(self, tensors=tensors)


def check(problem: Problem) -> None:
    """Refuse what is no einsum.

    Raises:
        InputError: with the problem's name, what is wrong with it, and what to give instead.
    """
    where = f"problem {problem.name or 'without a name'}"
    names = [tensor.name for tensor in problem.tensors]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: two tensors have the same name: rename one")
    if len(set(problem.dimensions)) < len(problem.dimensions):
        raise InputError(f"{where}: a dimension is named twice: keep one")
    outputs = [tensor.name for tensor in problem.tensors if tensor.output]
    if len(outputs) != 1 or len(names) < 2:
        raise InputError(f"{where}: an einsum has inputs and exactly one output, this has {len(outputs)}: mark one")
    for dimension, bound in zip(problem.dimensions, problem.bounds, strict=True):
        if bound < 1:
            raise InputError(f"{where}: dimension {dimension} is {quoted(bound)}: the least is 1")
    for tensor in problem.tensors:
        for axis in tensor.axes:
            for dimension, coefficient in axis:
                if dimension not in problem.dimensions:
                    raise unknown(f"dimension in {where}, tensor {tensor.name}:", dimension, problem.dimensions)
                if coefficient < 1:
                    raise InputError(f"{where}, tensor {tensor.name}: a coefficient is {coefficient}: the least is 1")
        if not 0 < tensor.density <= 1:
            raise InputError(
                f"{where}, tensor {tensor.name}: density {tensor.density} is not above 0 and at most 1: give the share "
                "of elements that are not zero"
            )
        if tensor.distribution not in DISTRIBUTIONS:
            raise unknown(f"distribution of {tensor.name}", tensor.distribution, DISTRIBUTIONS)
    unused = set(problem.dimensions) - set().union(*(tensor.dimensions for tensor in problem.tensors))
    large = sorted(d for d in unused if problem.bound[d] > 1)
    if large:
        raise InputError(f"{where}: dimension {large[0]} indexes no tensor: leave it out")
    if problem.computes > MOST_COMPUTES:
        raise InputError(f"{where} has more than {MOST_COMPUTES:.3g} multiplications: split it")


# --- ready einsums ----------------------------------------------------------------------------------------------------


def einsum(
    text: str, bounds: Mapping[str, int], name: str = "", densities: Mapping[str, float] | None = None
) -> Problem:
    """A problem from a text such as ``"O[n,m,p] += W[m,c,r] * I[n,c,2*p+r]"``.

    Args:
        text: one output, ``+=`` or ``=``, inputs with ``*`` between them; an index is a sum of dimensions, each with a
            whole number before it where it is stepped by more than one.
        bounds: of the dimensions; their order is that of the problem's dimensions.
        name: of the problem.
        densities: shares of elements that are not zero, by tensor.

    Raises:
        InputError: the text cannot be read, or is no einsum (:func:`check`).
    """
    match = re.fullmatch(r"\s*(\w+\s*\[[^\]]*\])\s*\+?=\s*(.+?)\s*", text)
    parts = re.split(r"\s*\*\s*(?=\w+\s*\[)", match[2]) if match else []
    if not match or not parts:
        raise _no_einsum(text)
    tensors = [_tensor(match[1], text, True)] + [_tensor(part, text, False) for part in parts]
    made = Problem(name or tensors[0].name, tuple(bounds), tuple(int(b) for b in bounds.values()), tuple(tensors))
    return made.sparse(densities or {})


def _tensor(part: str, text: str, output: bool) -> Operand:
    match = re.fullmatch(r"\s*(\w+)\s*\[([^\]]*)\]\s*", part)
    if not match:
        raise _no_einsum(text)
    axes = []
    for index in match[2].split(","):
        terms = []
        for term in index.split("+"):
            found = re.fullmatch(r"\s*(?:(\d{1,18})\s*\*?\s*)?([A-Za-z_]\w*)\s*", term)
            if not found:
                raise _no_einsum(text)
            terms.append((found[2], int(found[1] or 1)))
        axes.append(tuple(terms))
    return Operand(match[1], tuple(axes), output)


def _no_einsum(text: str) -> InputError:
    return InputError(f"{quoted(text)} is no einsum: write for example 'O[m,p] += W[m,c,r] * I[c,2*p+r]'")


_WORK = {"": "Outputs", "input": "Inputs", "weight": "Weights"}


def convolution(
    name: str = "convolution", *, n: int = 1, c: int = 1, m: int = 1, p: int = 1, q: int = 1, r: int = 1, s: int = 1,
    stride: int | tuple[int, int] = 1, dilation: int | tuple[int, int] = 1, groups: int = 1, gradient: str = "",
) -> Problem:  # fmt: skip
    """A two-dimensional convolution, or one of its gradients.

    Dimensions are those of the field: N samples, C input and M output channels of each of G groups, P rows and Q
    columns of the output, R rows and S columns of the filter.  Padding is part of the input.

    Args:
        name: of the problem.
        n, c, m, p, q, r, s: bounds; ``c`` and ``m`` of all groups together.
        stride, dilation: of rows and columns.
        groups: of channels, each with filters of its own.
        gradient: ``""`` is the forward pass, ``"input"`` the gradient with respect to the input, ``"weight"`` that with
            respect to the filters: the same loops, another tensor is added to.

    Raises:
        InputError: channels that the groups do not divide, or a gradient of another name.
    """
    if gradient not in _WORK:
        raise unknown("gradient", gradient, [one for one in _WORK if one], "or leave it out for the forward pass")
    if groups < 1 or c % groups or m % groups:
        raise InputError(f"{name}: {groups} groups do not divide {c} and {m} channels: give a number that divides both")
    (sp, sq), (dr, ds) = (x if isinstance(x, tuple) else (x, x) for x in (stride, dilation))
    bounds = {"N": n, "C": c // groups, "M": m // groups, "P": p, "Q": q, "R": r, "S": s}
    group: tuple[Axis, ...] = ()
    if groups > 1:
        bounds, group = {"G": groups, **bounds}, ((("G", 1),),)
    axes: dict[str, tuple[Axis, ...]] = {
        "Weights": (*group, (("M", 1),), (("C", 1),), (("R", 1),), (("S", 1),)),
        "Inputs": ((("N", 1),), *group, (("C", 1),), (("P", sp), ("R", dr)), (("Q", sq), ("S", ds))),
        "Outputs": ((("N", 1),), *group, (("M", 1),), (("P", 1),), (("Q", 1),)),
    }
    tensors = tuple(Operand(tensor, axes[tensor], tensor == _WORK[gradient]) for tensor in axes)
    return Problem(name, tuple(bounds), tuple(bounds.values()), tensors)


def gemm(name: str = "gemm", *, m: int, n: int, k: int, batch: int = 1) -> Problem:
    """``Outputs[m, n] += Inputs[m, k] Weights[k, n]``, for each of ``batch`` independent products (dimension B)."""
    bounds = {"M": m, "N": n, "K": k}
    lead: tuple[Axis, ...] = ()
    if batch != 1:
        bounds, lead = {"B": batch, **bounds}, ((("B", 1),),)
    tensors = (
        Operand("Weights", (*lead, (("K", 1),), (("N", 1),))),
        Operand("Inputs", (*lead, (("M", 1),), (("K", 1),))),
        Operand("Outputs", (*lead, (("M", 1),), (("N", 1),)), True),
    )
    return Problem(name, tuple(bounds), tuple(bounds.values()), tensors)


def attention(
    name: str = "attention", *, heads: int, queries: int, keys: int, depth: int, batch: int = 1, kv_heads: int = 0
) -> tuple[Problem, Problem]:
    """Attention as two einsums that follow each other: the scores, and their product with the values.

    Args:
        name: of the problem.
        heads, queries, keys, depth: query heads, positions of queries and of keys, size of a head.
        batch: samples.
        kv_heads: heads of keys and values, each shared by ``heads / kv_heads`` query heads (dimension J); as many as
            there are query heads by default.

    Returns:
        ``Scores[b,h,j,q,k] += Queries Keys`` and ``Outputs[b,h,j,q,d] += Scores Values``.  The softmax between them
        is not work of the array.

    Raises:
        InputError: no heads, or query heads that do not divide among the heads of keys.
    """
    kv_heads = kv_heads or heads
    if heads < 1 or kv_heads < 1:
        raise InputError(f"{name}: {heads} heads, and {kv_heads} of keys: the least is 1")
    if heads % kv_heads:
        raise InputError(f"{name}: {heads} heads do not divide among {kv_heads} of keys: give a number that divides")
    bounds = {"B": batch, "H": kv_heads, "J": heads // kv_heads, "Q": queries, "K": keys, "D": depth}
    first = "Scores[B,H,J,Q,K] += Queries[B,H,J,Q,D] * Keys[B,H,K,D]"
    second = "Outputs[B,H,J,Q,D] += Scores[B,H,J,Q,K] * Values[B,H,K,D]"
    return einsum(first, bounds, f"{name} scores"), einsum(second, bounds, f"{name} values")


def chained(problems: Sequence[Problem]) -> Iterable[tuple[Problem, Operand]]:
    """Each problem with the input that the one before it makes, where there is one."""
    for before, after in itertools.pairwise(problems):
        for tensor in after.tensors:
            if not tensor.output and tensor.name == before.output.name:
                yield after, tensor
