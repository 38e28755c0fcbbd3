"""Cases of published outputs with zeros, read from their text.

A case of ``sparse.json`` says its einsum, bounds, densities and loops in ``problem``, in clauses between semicolons::

    Z[m,n] += A[m,k] B[n,k]; M N K 8; A 0.25, B 0.5 fixed_structured; Buffer loops inner to outer M N K, N 2;
    BackingStorage N 4; spatial M 4

* An einsum: the result, ``+=`` or ``=``, and the operands with their indices, in which ``2p+r`` may stand.  Names of
  tensors may be the first letters of those under ``levels``.  Without one the case's name says which: a dot product,
  ``spMspM``, ``conv1d`` or ``conv1d+oc`` of the exercises of Timeloop and Accelergy.
* Bounds: ``M N K 8``, ``K 16, M 1``, ``S=3``.
* Densities: a tensor and a number below 1, or 1.0, with ``density`` between and a distribution behind, if at all.
* Loops: a store, then its loops with ``inner to outer`` or ``outer to inner`` and a factor behind a dimension that is
  not all of what other stores leave; ``one pass`` or ``no loops`` are none.  ``spatial`` before or among them makes
  them instances of the innermost store.

``mapping`` may hold the clauses of loops, as a text or one for each store.  ``formats`` are ranks by tensor, or by
store and tensor where these differ; ``actions`` are ``skipping B on A``, ``gating Z on A and B``, with ``at Buffer``
where it is not the innermost store, and ``gating of compute``.  ``words_per_access`` and bandwidths may stand by store:
without the first, an access moves four words outside and one inside, as in the designs of the exercises.

Where the order of loops is not said, every order is tried, and the case is judged only where all agree.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from triosim.accelerator.architecture import ACTIONS, Architecture, Compute, Energies, FanOut, Store
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import Problem, einsum
from triosim.accelerator.representation import RepresentationFormat
from triosim.accelerator.sparse import ActionOptimization, Sparse
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

Case = tuple[Architecture, Problem, LoopMapping, Sparse]

_PICO = 1e-12
_TERM = r"\w+\s*\[[\w\s,+*]+\]"
_EINSUM = re.compile(rf"({_TERM})\s*\+?=\s*({_TERM}(?:[\s*x·]*{_TERM})*)")
_NAMED = {
    "dot-product": "Z[M] += A[K] * B[K]",
    "spmspm": "Z[M,N] += A[M,K] * B[N,K]",
    "conv1d+oc": "Outputs[M,Q] += Weights[M,S] * Inputs[S+Q]",
    "conv1d": "Outputs[Q] += Weights[S] * Inputs[S+Q]",
}
"""Einsums of the exercises, by what the names of cases hold; the first that fits."""
_DISTRIBUTIONS = re.compile(r"fixed[-_ ]structured|hypergeometric")
_ACTION = re.compile(r"(gat|skip)\w* (?:of )?(\w+) on (.+?)(?: (?:at|in) (\w+))?")
_COMPUTE_ACTION = re.compile(r"(gat|skip)\w* (?:of )?computes?\b.*")
_OUTER = re.compile(r"back|dram|main|outer|global", re.I)
_FACTOR = re.compile(r"\b([A-Z])\s*(?:=|in \[0:|in )?\s*(\d+)\b(?!\.\d)|\b([A-Z])\b")
_SPATIAL = re.compile(r"\b(spatial\w*|parallel\w*|instances|par-?for)\b", re.I)
_NONE = re.compile(r"\b(one pass|single pass|no loops?|untiled)\b", re.I)


@dataclass(frozen=True)
class LoopClause:
    """What a case says of the loops of one store.

    Attributes:
        store: the store; ``""`` for instances of the innermost one.
        loops: (dimension, factor), outermost first; a factor of 0 is what others leave.
        ordered: whether their order is said.
    """

    store: str
    loops: tuple[tuple[str, int], ...]
    ordered: bool


def cases(case: dict[str, Any]) -> list[Case]:
    """What a case may be: one, or one for each order of loops that it leaves open.

    Raises:
        InputError: the text cannot be read, or does not say which loops stand where.
    """
    name = case["case"]
    stores = sorted(case["energy_per_action_pj"].keys() - {"mac", "MAC"}, key=_outside(case))
    tensors = list(dict.fromkeys(tensor for level in case["levels"].values() for tensor in level))
    text = re.sub(r"\s+", " ", case["problem"])
    written = _einsum(text, name, tensors)
    clauses = [clause.strip() for clause in _EINSUM.sub("", text).split(";") if clause.strip()]
    dimensions = sorted(set(re.findall(r"\b[A-Z]\b", re.sub(r"\w+(?=\s*\[)", "", written))))
    mapped = _mapping_texts(case.get("mapping"), stores)
    plain: list[str] = []
    for clause in clauses:
        first = clause.split()[0].strip(":,")
        if first in stores or _SPATIAL.search(clause):
            mapped.append(clause)
        else:
            plain.append(clause)
    bounds, densities, distribution = _sizes(plain, tensors, dimensions, name)
    for dimension in dimensions:
        if dimension not in bounds:
            raise InputError(f"{name}: says no bound of {dimension}: write {dimension} and a number")
    problem = _problem(written, bounds, name, densities, distribution)
    said = _clauses(mapped, stores, dimensions, name)
    if len(stores) > 1 and not said and sum(bound > 1 for bound in bounds.values()) > 0:
        raise InputError(
            f"{name}: does not say which loops stand at {' and '.join(stores)}: write '{stores[-1]} loops inner to "
            f"outer {' '.join(dimensions)}' and '{stores[0]} one pass' into its problem"
        )
    said = _completed(said, stores, problem, name)
    made = _design(case, stores, said)
    sparse = _sparse(case, stores, tensors)
    return [(made, problem, mapping, sparse) for mapping in _orders(said, stores)]


def _outside(case: dict[str, Any]) -> Any:
    """Key that sorts stores from the outermost, in the order of the case's levels turned round where names are mute."""
    listed = list(case["levels"])
    return lambda name: (not _OUTER.search(name), -listed.index(name) if name in listed else 0)


# --- the problem ------------------------------------------------------------------------------------------------------


def _einsum(text: str, name: str, tensors: list[str]) -> str:
    """The einsum, with names of tensors in full and dimensions in capitals."""
    match = _EINSUM.search(text)
    if match is None:
        found = next((row for key, row in _NAMED.items() if key in name.lower()), None)
        if found is None:
            raise InputError(f"{name}: the problem {text!r} names no einsum: write it as Z[m,n] += A[m,k] B[n,k]")
        return found
    terms = re.findall(_TERM, match[0])
    full = []
    for term in terms:
        short, _, indices = term.partition("[")
        fits = [t for t in tensors if t.lower() == short.strip().lower()] or [
            t for t in tensors if t.lower().startswith(short.strip().lower())
        ]
        if len(fits) != 1:
            raise InputError(f"{name}: {short.strip()} is none of the tensors {', '.join(tensors)}: name one of them")
        full.append(f"{fits[0]}[{indices.upper()}")
    return f"{full[0]} += {' * '.join(full[1:])}"


def _sizes(
    clauses: list[str], tensors: list[str], dimensions: list[str], name: str
) -> tuple[dict[str, int], dict[str, float], str]:
    """Bounds, densities and how zeros lie."""
    bounds: dict[str, int] = {}
    densities: dict[str, float] = {}
    distribution = "fixed-structured"
    number = r"(0?\.\d+|1\.0+|0|1)\b"
    for clause in clauses:
        if found := _DISTRIBUTIONS.search(clause):
            distribution = "hypergeometric" if found[0] == "hypergeometric" else "fixed-structured"
        rest = _DISTRIBUTIONS.sub("", clause)
        for tensor in sorted(tensors, key=len, reverse=True):
            short = rf"(?:{tensor}|{tensor[0]})" if sum(t[0] == tensor[0] for t in tensors) == 1 else tensor
            patterns = (
                rf"\b{short}\b(?:\s+(?:has|is|at|of))?[\s:=]*(?:density)?[\s:=]*(0?\.\d+|1\.0+)(?!\d)",
                rf"density of {short}\b[\s:=]*{number}",
            )
            match = next((found for pattern in patterns if (found := re.search(pattern, rest))), None)
            if match is not None:
                densities[tensor] = float(match[1])
                rest = rest.replace(match[0], " ")
        for part in re.finditer(r"((?:\b[A-Z]\b[\s,=]*)+?)(?:in )?(\d+)\b(?!\.\d)", rest):
            for dimension in re.findall(r"[A-Z]", part[1]):
                if dimension in dimensions:
                    bounds[dimension] = int(part[2])
    return bounds, densities, distribution


def _problem(
    written: str, bounds: dict[str, int], name: str, densities: dict[str, float], distribution: str
) -> Problem:
    from dataclasses import replace

    problem = einsum(written, bounds, name, densities)
    tensors = tuple(replace(tensor, distribution=distribution) for tensor in problem.tensors)
    return replace(problem, tensors=tensors)


# --- the mapping ------------------------------------------------------------------------------------------------------


def _mapping_texts(given: Any, stores: list[str]) -> list[str]:
    """Clauses of loops that stand under ``mapping``."""
    if given is None:
        return []
    if isinstance(given, dict):
        return [f"{store if store in stores else 'spatial'} {text}" for store, text in given.items()]
    parts = given if isinstance(given, list) else re.split(r";", given)
    return [part.strip() for part in parts if part.strip()]


def _clauses(texts: list[str], stores: list[str], dimensions: list[str], name: str) -> list[LoopClause]:
    found = []
    for text in texts:
        spatial = bool(_SPATIAL.search(text))
        store = "" if spatial else text.split()[0].strip(":,")
        if not spatial and store not in stores:
            raise InputError(f"{name}: {text!r} names none of the stores {', '.join(stores)}")
        rest = text if spatial else text.split(None, 1)[1] if " " in text else ""
        if _NONE.search(rest):
            found.append(LoopClause(store, (), True))
            continue
        loops: dict[str, int] = {}
        for match in _FACTOR.finditer(rest):
            dimension = match[1] or match[3]
            if dimension in dimensions:
                loops[dimension] = int(match[2]) if match[2] else loops.get(dimension, 0)
        listed = list(loops.items())
        inner = re.search(r"inner(?:most)? to outer", rest)
        outer = re.search(r"outer(?:most)? to inner|\bfor\b", rest)
        found.append(LoopClause(store, tuple(listed[::-1] if inner else listed), bool(inner or outer or spatial)))
    return found


def _completed(said: list[LoopClause], stores: list[str], problem: Problem, name: str) -> list[LoopClause]:
    """Clauses with all factors, in which the innermost store takes what no other says."""
    from dataclasses import replace

    left = dict(problem.bound)
    for clause in said:
        for dimension, factor in clause.loops:
            if factor:
                if left[dimension] % factor:
                    raise InputError(f"{name}: loops of {dimension} do not divide its bound {problem.bound[dimension]}")
                left[dimension] //= factor
    made = []
    for clause in said:
        loops = []
        for dimension, factor in clause.loops:
            if not factor:
                factor, left[dimension] = left[dimension], 1
            loops.append((dimension, factor))
        made.append(replace(clause, loops=tuple(loops)))
    over = tuple((dimension, factor) for dimension, factor in left.items() if factor > 1)
    if not over:
        return made
    last = next((i for i, clause in enumerate(made) if clause.store == stores[-1]), None)
    if last is None:
        return [*made, LoopClause(stores[-1], over, len(over) == 1)]
    if made[last].ordered and made[last].loops:  # what is not in its order stands outside of it
        return [*made[:last], replace(made[last], loops=over + made[last].loops), *made[last + 1 :]]
    return [*made[:last], replace(made[last], loops=over + made[last].loops, ordered=False), *made[last + 1 :]]


def _orders(said: list[LoopClause], stores: list[str]) -> Iterator[LoopMapping]:
    """The mapping, once for each order that is left open."""
    open_ = [
        [clause.loops] if clause.ordered or len(clause.loops) < 2 else list(itertools.permutations(clause.loops))
        for clause in said
    ]
    for chosen in itertools.product(*open_):
        levels: dict[str, tuple[Loop, ...]] = {}
        for clause, loops in zip(said, chosen, strict=True):
            at, axis = (clause.store, "") if clause.store else ("units", "x")
            levels[at] = levels.get(at, ()) + tuple(Loop(d, n, axis) for d, n in loops if n > 1)
        yield LoopMapping(tuple(Level(at, loops) for at, loops in levels.items()))


# --- the design -------------------------------------------------------------------------------------------------------


def _design(case: dict[str, Any], stores: list[str], said: list[LoopClause]) -> Architecture:
    energies = case["energy_per_action_pj"]
    spread = math.prod(n for clause in said if not clause.store for _, n in clause.loops)
    nodes: list[Store | FanOut] = []
    for i, name in enumerate(stores):
        if i == len(stores) - 1 and spread > 1:
            nodes.append(FanOut("units", spread))
        width = case.get("words_per_access", {}).get(name, 4 if len(stores) > 1 and i == 0 else 1)
        table = {action: pj * _PICO for action, pj in energies[name].items() if action in ACTIONS}
        nodes.append(Store(
            name, None, 8, width, case.get("read_bandwidth", {}).get(name), case.get("write_bandwidth", {}).get(name),
            keeps=tuple(case["levels"].get(name, {})), energies=Energies(**table),
        ))  # fmt: skip
    mac = next(row for name, row in energies.items() if name.lower() == "mac")
    compute = Compute("mac", 8, Energies(compute=mac["compute"] * _PICO))
    return Architecture(case["case"], tuple(nodes), compute)


def _sparse(case: dict[str, Any], stores: list[str], tensors: list[str]) -> Sparse:
    spared: list[ActionOptimization] = []
    compute = None
    for action in case.get("actions", []):
        if _COMPUTE_ACTION.fullmatch(action):
            compute = "gating" if action.startswith("gat") else "skipping"
        elif match := _ACTION.fullmatch(action):
            conditions = tuple(name for name in re.split(r"[,\s]+(?:and\s+)?", match[3]) if name)
            spared.append(ActionOptimization(match[4] or stores[-1], match[2], conditions, match[1] == "skip"))
        else:
            raise InputError(f"{case['case']}: the action {action!r} cannot be read: write skipping B on A")
    stored = []
    for key, value in case.get("formats", {}).items():
        rows = value if isinstance(value, dict) else {key: value}
        for inner, ranks in rows.items():
            store = next((name for name in (key, inner) if name in stores), None)
            tensor = next((name for name in (inner, key) if name in tensors), None)
            if tensor is None:
                raise InputError(f"{case['case']}: the format of {key} is of no tensor: {', '.join(tensors)} are")
            at = [store] if store else [name for name in stores if tensor in case["levels"].get(name, {})]
            stored += [RepresentationFormat(name, tensor, tuple(rank.upper() for rank in ranks)) for name in at]
    return Sparse(tuple(stored), tuple(spared), compute)
