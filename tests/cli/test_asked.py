"""Options of commands that are made from the fields of a plan and of a fidelity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import pytest

from triosim.cli.arguments import Options
from triosim.cli.fields import answers, option, option_name, with_fields_of
from triosim.cli.predict import fidelity_of, plan_of
from triosim.core.errors import InputError
from triosim.core.validated_fields import FrozenDict, ValidatedFields, ValueRange, asked
from triosim.fidelity import Fidelity
from triosim.partition.rule import RULES
from triosim.plan import NamedRules, Plan


@pytest.mark.parametrize("part", [Plan, Fidelity])
def test_nothing_typed_is_the_default(part: type[ValidatedFields]) -> None:
    read = plan_of(Options("gpt2"), training=True) if part is Plan else fidelity_of(Options("gpt2"))
    assert read == part()


def test_every_field_has_an_option_or_is_known_to_have_none() -> None:
    assert set(Plan.names()) - Plan.asked().keys() == {"first_bucket_bytes", "training"}
    assert set(Fidelity.names()) == Fidelity.asked().keys()
    names = {f.name for f in fields(Options)}
    for part in (Plan, NamedRules, Fidelity):
        assert {option_name(name, said) for name, said in part.asked().items()} <= names


@pytest.mark.parametrize(("typed", "field", "value"), [
    ({"tp": 4}, "tp", 4),
    ({"overlap": "off"}, "overlap", False),
    ({"bucket_size": "1MiB"}, "bucket_bytes", 1 << 20),
    ({"axis_order": "tp, pp ,dp"}, "axis_order", ("tp", "pp", "dp")),
    ({"offload": ["optimizer", "optimizer"]}, "offload", ("optimizer",)),
    ({"place": ["weight=host"]}, "places", {"weight": "host"}),
    ({"placement": "1,0"}, "placement", (1, 0)),
    ({"placement": "0-2, 9, 7-5"}, "placement", (0, 1, 2, 9, 7, 6, 5)),
    ({"schedule_option": ["chunks=4"], "schedule": "interleaved-1f1b"}, "schedule_options", {"chunks": "4"}),
    ({"cp": 2, "ep": 4, "parallelism": ["hsdp"]}, "parallelism", ("hsdp", "context", "experts")),
    ({"seq_len": 128}, "sequence_length", 128),
])  # fmt: skip
def test_what_is_typed_becomes_a_field(typed: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(plan_of(Options("gpt2", **typed), training=True), field) == value


@pytest.mark.parametrize(("typed", "field", "value"), [
    ({"algorithm": "ring"}, "collective_algorithm", "ring"),
    ({"interference": "1.5"}, "interference", 1.5),
    ({"fold": "off"}, "fold", False),
    ({"solver_option": ["setup=1us"]}, "solver_options", {"setup": "1us"}),
])  # fmt: skip
def test_what_is_typed_says_how_it_is_predicted(typed: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(fidelity_of(Options("gpt2", **typed)), field) == value


def test_named_options_of_rules_are_fields_of_theirs() -> None:
    of = {"cp": "context", "cp_style": "context", "ep": "experts", "etp": "experts"}
    assert {"sequence_parallel", *of} == set(NamedRules.names())
    for name, rule in of.items():
        hint = get_type_hints(RULES.get(rule), include_extras=True)[name]
        if get_origin(hint) is Literal:
            assert set(get_args(hint)) == set(get_args(NamedRules.hint(name)))
        else:
            assert int in (hint, *get_args(hint))


@dataclass(frozen=True, init=False)
class _Oven(ValidatedFields):
    noun: ClassVar[str] = "an oven"

    heat: Annotated[int, ValueRange(1)] = asked(200, "Oven", "N", "Degrees.")
    fan: bool = asked(True, "Oven", "on|off", "Whether air is moved.")
    racks: tuple[str, ...] = asked((), "Oven", "LIST", "What is inside.", option="rack", repeats=True)
    glass: Literal["clear", "tinted"] | None = asked(None, "Door", "KIND", "Of the door.")
    marks: Mapping[str, str] = asked(FrozenDict(), "Door", "NAME=VALUE", "On it.", repeats=True, example="a=b")


@dataclass(frozen=True)
@with_fields_of(_Oven, groups=("Door", "Oven"))
class _Baking:
    cake: str = option("--cake", help="Which.", default="plain", group="Oven")


def test_a_field_is_an_option_without_anything_else_being_told() -> None:
    known = {f.name: f for f in fields(_Baking)}
    assert list(known) == ["glass", "marks", "heat", "fan", "rack", "cake"]
    assert known["heat"].metadata["names"] == ("--heat",)
    assert known["heat"].default == 200
    assert known["glass"].metadata["complete"]("t") == ["tinted"]
    assert sorted(known["fan"].metadata["complete"]("")) == ["off", "on"]
    asked_for: Any = _Baking  # whose fields the decorator adds
    typed = asked_for(heat=180, fan="off", rack=["a", "b", "a"], marks=["low=1"])
    assert _Oven(**answers(_Oven, typed, {})) == _Oven(heat=180, fan=False, racks=("a", "b"), marks={"low": "1"})
    with pytest.raises(InputError, match="--fan must be on or off, got 'maybe'"):
        answers(_Oven, asked_for(fan="maybe"), {})
    with pytest.raises(InputError, match="--marks 'low': give a name and a value, for example a=b"):
        answers(_Oven, asked_for(marks=["low"]), {})
