"""Plans from lists of values: every combination of what each axis of a sweep may be."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from triosim.core.errors import InputError, PlanError, quoted, unknown
from triosim.core.units import parse_bytes, parse_clock, parse_power
from triosim.fidelity import Fidelity
from triosim.hardware.power import held_back
from triosim.hardware.system import System
from triosim.plan import Plan

MOST = 1_000_000
"""Combinations beyond which nobody waits."""

_OF_PARTS = {
    "schedule": "schedule_options", "parallelism": "parallelism_options", "operator": "operator_options",
    "solver": "solver_options",
}  # fmt: skip
"""What stands before the point of an option of a part, and the field that holds such options."""

_FIELDS = {
    "bucket-size": "bucket_bytes", "first-bucket-size": "first_bucket_bytes", "algorithm": "collective_algorithm",
    "protocol": "collective_protocol", "seq-len": "sequence_length",
}  # fmt: skip
"""Options of the command line that are not named as their field."""
_RULES = {"sequence-parallel": "sequence", "cp": "context", "cp-style": "context", "ep": "experts", "etp": "experts"}
"""Axes that are options of the command line for a rule of parallelism, and that rule."""
_SIZES = ("cp", "ep", "etp")
_LAST = ("context", "experts")
"""Rules that are applied after all others, in this order (:meth:`triosim.plan.NamedRules.among`)."""
_DERIVED = ("micro-batch-size", *_RULES)
_LIMITS = {"clock": parse_clock, "power-cap": parse_power}
"""Axes that hold devices to something, and what reads their values; ``none`` leaves them what they have."""
LIMITED = tuple(_LIMITS)
"""Their names."""
_WHOLE = ("training", "placement", "tp_plan", "places", "stack")
"""Fields of tables and long lists, and those that come with the workload: a stack says how a model is built."""


def parse_axes(texts: Sequence[str], option: str = "--sweep") -> dict[str, tuple[Any, ...]]:
    """What a sweep is to try, from words such as ``tp=1,2,4`` or ``schedule.chunks=2,4``.

    A name is that of a field of :class:`Plan` (``-`` or ``_``), ``micro-batch-size`` (samples, instead of
    micro-batches), ``clock`` and ``power-cap`` (of each device, as ``1200MHz`` and ``300W``, or ``none``),
    ``sequence-parallel`` (``on`` or ``off``), ``cp``, ``cp-style``, ``ep`` and ``etp`` (how ranks share sequences and
    experts), or an option of a part: ``schedule.NAME``, ``parallelism.NAME``, ``operator.NAME``, ``solver.NAME``. Lists
    within a value are joined by ``+``, and ``none`` is the empty one: ``offload=none,optimizer,optimizer+activations``.

    Raises:
        InputError: a word is none of that, or an axis is given twice.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        words = [word.strip() for word in values.split(",")]
        if not (name and equals) or not all(words):
            example = "tp=4,pp=2" if option == "--compare" else "tp=1,2,4,8"
            raise InputError(f"{option} {quoted(text)}: give a name and values, for example {example}")
        field = _field(name, option)
        if field in axes:
            raise InputError(f"{option} gives {name} twice: give all of its values at once")
        found = [_value(field, word, f"{option} {name}") for word in words]
        axes[field] = tuple(value for i, value in enumerate(found) if value not in found[:i])
    return axes


def _field(name: str, option: str) -> str:
    """The axis that a name of the command line means."""
    part, point, own = name.partition(".")
    if point:
        if part not in _OF_PARTS or not own:
            parts = ", ".join(_OF_PARTS)
            raise InputError(f"{option} {quoted(name)}: options are those of {parts}, for example schedule.chunks")
        return name
    dashed = name.replace("_", "-")
    field = dashed if dashed in _DERIVED else _FIELDS.get(dashed, dashed.replace("-", "_"))
    if dashed in _LIMITS and option == "--sweep":
        return dashed
    if not is_axis(name, option):
        names = (*_known(), *_DERIVED, *_FIELDS, *(_LIMITS if option == "--sweep" else ()))
        raise unknown(f"name after {option}", name, [one.replace("_", "-") for one in names])
    return field


def _known() -> list[str]:
    """Fields of a plan and of how it is predicted that are axes."""
    return [one for one in (*Plan.names(), *Fidelity.names()) if one not in _WHOLE and not one.endswith("_options")]


def is_axis(name: str, option: str = "--sweep") -> bool:
    """Whether :func:`parse_axes` knows a name of no point."""
    dashed = name.replace("_", "-")
    field = _FIELDS.get(dashed, dashed.replace("-", "_"))
    return dashed in _DERIVED or field in _known() or (dashed in _LIMITS and option == "--sweep")


def _value(field: str, word: str, where: str) -> Any:
    """The value that a word means for an axis."""
    if "." in field:
        return word
    if field in _LIMITS:
        if word != "none":
            _LIMITS[field](word, where)
        return word
    if field == "sequence-parallel":
        return _switch(word, where)
    if field == "cp-style":
        return word
    if field in ("micro-batch-size", *_SIZES):
        if not word.isdecimal() or not int(word):
            raise InputError(f"{where} must be whole numbers of at least 1, got {quoted(word)}")
        return int(word)
    if field.endswith("_bytes"):
        return parse_bytes(word, where)
    kinds = _kinds((Plan if field in Plan.names() else Fidelity).hint(field))
    if bool in kinds:
        return _switch(word, where)
    if types.NoneType in kinds and word in ("auto", "default"):
        return None
    if tuple in kinds:
        return () if word == "none" else tuple(part.strip() for part in word.split("+"))
    if int in kinds and word.isdecimal():
        return int(word)
    if float in kinds:
        try:
            return float(word)
        except ValueError:
            return word
    return word


def _switch(word: str, where: str) -> bool:
    if word not in ("on", "off"):
        raise InputError(f"{where} is on or off, got {quoted(word)}")
    return word == "on"


def _kinds(annotation: Any) -> set[type]:
    """The plain types that an annotation names."""
    origin = get_origin(annotation)
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    if origin in (Union, types.UnionType):
        return set().union(*(_kinds(part) for part in get_args(annotation)))
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    return {origin or annotation}


def grid(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last axis first to change.

    Raises:
        InputError: there are too many.
    """
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST:
        raise InputError(f"a sweep of {count:,} plans: give fewer values, {MOST:,} plans at most")
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def with_fields(base: Plan, fidelity: Fidelity, asked: Mapping[str, Any]) -> tuple[Plan, Fidelity]:
    """A plan and how it is predicted, with some of their fields given anew.

    Args:
        base, fidelity: what the others are taken from.
        asked: axes as :func:`parse_axes` names them; ``parallelism`` replaces those rules that have no axes of their
            own.

    Raises:
        PlanError: the fields do not go together.
    """
    given: dict[str, Any] = {name: getattr(part, name) for part in (base, fidelity) for name in part.given}
    for name, value in asked.items():
        part, point, own = name.partition(".")
        if point:
            field = _OF_PARTS[part]
            given[field] = {**given.get(field, {}), own: value}
        elif name not in _DERIVED and name not in _LIMITS:
            given[name] = value
    if not asked.keys().isdisjoint(("parallelism", *_RULES)):
        kept = [rule for rule in base.parallelism if "parallelism" in asked and rule in _RULES.values()]
        rules = (*kept, *given.get("parallelism", ()))
        rules, options = _with_rules(rules, given.get("parallelism_options", {}), asked)
        given.update(parallelism=rules, parallelism_options=options)
    if "batch_size" in asked and "global_batch_size" not in asked:
        given.pop("global_batch_size", None)
    if "global_batch_size" in asked and "batch_size" not in asked:
        given.pop("batch_size", None)
    if "micro_batches" in asked:
        given.pop("micro_batch_size", None)
    if "micro-batch-size" in asked:
        if given.get("batch_size") is None and given.get("global_batch_size") is None:
            raise PlanError("micro-batch-size is a part of the batch: give --batch-size or --global-batch-size as well")
        given.pop("micro_batches", None)
        given["micro_batch_size"] = asked["micro-batch-size"]
    models = {name: given.pop(name) for name in Fidelity.names() if name in given}
    return Plan(**given), Fidelity(**models)


def limited(system: System, asked: Mapping[str, Any]) -> System:
    """The system with its devices held to what a sweep asks for.

    Args:
        system: the machine.
        asked: axes as :func:`parse_axes` names them.

    Raises:
        InputError: a device cannot keep it.
    """
    given = {name: read(asked[name], name) for name, read in _LIMITS.items() if asked.get(name, "none") != "none"}
    return held_back(system, given.get("power-cap"), given.get("clock")) if given else system


def unused_options(asked: Mapping[str, Any], rules: Sequence[str] = ()) -> frozenset[str]:
    """Options of the rules that divide sequences and experts where nothing is divided so, and no other takes them.

    Args:
        asked: axes as :func:`parse_axes` names them, where 1 says that it is not.
        rules: that apply.
    """
    from triosim.core.options import options_of
    from triosim.partition.rule import RULES

    def taken(rule: str) -> set[str]:
        return {name.replace("_", "-") for name in options_of(RULES.chosen(rule)) or ()}

    absent = [rule for axis, rule in (("cp", "context"), ("ep", "experts")) if asked.get(axis) == 1]
    unused = set[str]().union(*(taken(rule) for rule in absent if rule not in rules))
    return frozenset(unused.difference(*map(taken, rules)))


def _with_rules(
    rules: Sequence[str], options: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Rules of parallelism and their options with some asked for anew, in whatever order, as the command line has them.

    Raises:
        PlanError: it is said how ranks share sequences that they do not share.
    """
    applies = dict.fromkeys(rules, True)
    found = {name: value for name, value in options.items() if name not in asked}
    if "sequence-parallel" in asked:
        applies["sequence"] = asked["sequence-parallel"]
    if "cp" in asked:
        applies["context"] = asked["cp"] > 1
    if "ep" in asked or "etp" in asked:
        if "ep" in asked or not applies.get("experts"):
            found["ep"] = str(asked.get("ep", 1))
        applies["experts"] = found.get("ep") != "1" or "etp" in found or "etp" in asked
        if not applies["experts"]:
            del found["ep"]
    said = {name.partition(".")[2] for name in asked}
    # of the plan that others are made of: here there is nothing to be done so
    left_out = unused_options(asked, [rule for rule, is_on in applies.items() if is_on]) - said
    found = {name: value for name, value in found.items() if name.replace("_", "-") not in left_out}
    if not applies.get("context"):
        found.pop("cp-style", None)
        if asked.get("cp-style", "gather") != "gather":
            style = asked["cp-style"]
            raise PlanError(f"cp-style {style} says how ranks share sequences, and cp is 1: give cp as well")
    sizes = {name: str(asked[name]) for name in ("cp", "cp-style", "etp") if name in asked}
    found |= {name: size for name, size in sizes.items() if applies.get(_RULES[name])}
    first = ["sequence"] if applies.get("sequence") and "sequence-parallel" in asked else []
    others = [name for name, is_on in applies.items() if is_on and name not in (*first, *_LAST)]
    return (*first, *others, *(name for name in _LAST if applies.get(name))), found
