from __future__ import annotations

import pytest

from triosim.core.errors import InputError, PlanError
from triosim.fidelity import Fidelity
from triosim.partition.resolve import resolve, rules_of
from triosim.plan import Plan
from triosim.search.grid import grid, parse_axes, with_fields


def plan_of(base: Plan, asked: dict) -> Plan:
    return with_fields(base, Fidelity(), asked)[0]


def test_fields_go_to_the_plan_or_to_what_predicts_it() -> None:
    axes = parse_axes(["tp=2", "host=none", "solver.setup=80us"])
    plan, fidelity = with_fields(Plan(dp=4), Fidelity(solver="circuit"), next(grid(axes)))
    assert plan == Plan(dp=4, tp=2)
    assert fidelity == Fidelity(solver="circuit", solver_options={"setup": "80us"}, host="none")
    assert hash(fidelity) == hash(Fidelity(solver="circuit", solver_options={"setup": "80us"}, host="none"))


def test_words_become_axes_of_the_type_of_their_field() -> None:
    axes = parse_axes([
        "tp=1,2", "micro-batches=4", "recompute=none,full", "overlap=on,off", "bucket-size=25MiB", "dp=auto,2",
        "offload=none,optimizer+activations", "interference=1.2,off", "schedule.chunks=2", "zero=0,3",
        "stages=even,auto,h.1+h.3", "axis-order=dp+tp+pp",
    ])  # fmt: skip
    assert axes == {
        "tp": (1, 2), "micro_batches": (4,), "recompute": ("none", "full"), "overlap": (True, False),
        "bucket_bytes": (25 << 20,), "dp": (None, 2), "offload": ((), ("optimizer", "activations")),
        "interference": (1.2, "off"), "schedule.chunks": ("2",), "zero": (0, 3),
        "stages": (("even",), None, ("h.1", "h.3")), "axis_order": (("dp", "tp", "pp"),),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tp"], "give a name and values"),
        (["tp=1,,2"], "give a name and values"),
        (["tp=1", "tp=2"], "gives tp twice"),
        (["tq=1"], "did you mean tp"),
        (["rule.x=1"], "schedule.chunks"),
        (["overlap=yes"], "on or off"),
        (["micro-batch-size=0"], "at least 1"),
    ],
)
def test_words_that_make_no_sense_are_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_axes(words)


def test_the_last_axis_changes_first() -> None:
    assert [tuple(one.values()) for one in grid({"tp": (1, 2), "pp": (1, 4)})] == [(1, 1), (1, 4), (2, 1), (2, 4)]


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(InputError, match="1,000,000 plans at most"):
        next(grid({"tp": range(1001), "pp": range(1001)}))


def test_a_micro_batch_size_is_a_number_of_micro_batches() -> None:
    base = Plan(global_batch_size=96)
    mesh = resolve(plan_of(base, {"tp": 2, "pp": 2, "micro-batch-size": 3}), 16, None)  # 4 replicas of 24 samples
    assert (mesh.micro_batches, mesh.global_batch_size) == (8, 96)


def test_a_micro_batch_size_is_of_the_ranks_that_have_samples_of_their_own() -> None:
    plan = plan_of(Plan(global_batch_size=96), {"cp": 2, "micro-batch-size": 3})
    mesh = resolve(plan, 16, None, rules=rules_of(plan, named=True))  # 8 pairs of ranks share 12 samples each
    assert (mesh.micro_batches, mesh.micro_batch_size, mesh.replicas) == (4, 3, 8)


@pytest.mark.parametrize(
    ("base", "asked", "said"),
    [
        (Plan(), {"micro-batch-size": 1}, "give --batch-size"),
        (Plan(batch_size=8), {"micro-batch-size": 3}, "nearest that do are 2 or 4"),
        (Plan(batch_size=8), {"micro_batches": 3}, "nearest that do are"),
        (Plan(), {"tp": "x"}, "tp must be a whole number"),
    ],
)
def test_a_plan_that_cannot_be_formed_is_an_error(base: Plan, asked: dict, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan_of(base, asked)


def test_options_of_parts_and_sequence_parallel() -> None:
    base = Plan(schedule="interleaved-1f1b", parallelism=("hsdp",))
    found = plan_of(base, {"schedule.chunks": "4", "sequence-parallel": True, "parallelism.groups": "2"})
    assert found.schedule_options == {"chunks": "4"}
    assert found.parallelism == ("sequence", "hsdp")
    assert found.parallelism_options == {"groups": "2"}
    assert plan_of(found, {"sequence-parallel": False}).parallelism == ("hsdp",)


@pytest.mark.parametrize(
    ("base", "asked", "rules", "options"),
    [
        ({}, {"ep": 2, "cp": 4}, ("context", "experts"), {"cp": "4", "ep": "2"}),
        ({}, {"ep": 1, "cp": 1}, (), {}),
        ({}, {"cp-style": "ring", "cp": 2}, ("context",), {"cp": "2", "cp-style": "ring"}),
        ({}, {"cp-style": "gather", "cp": 1}, (), {}),
        ({}, {"etp": 1, "ep": 4, "sequence-parallel": True}, ("sequence", "experts"), {"etp": "1", "ep": "4"}),
        ({}, {"etp": 1}, ("experts",), {"etp": "1", "ep": "1"}),
        (
            {"parallelism": ("sequence", "hsdp", "context"), "parallelism_options": {"cp": "2"}},
            {"parallelism": ("async-tp",)}, ("sequence", "async-tp", "context"), {"cp": "2"},
        ),
        ({"parallelism": ("experts", "hsdp")}, {"etp": 1}, ("hsdp", "experts"), {"etp": "1"}),
        (
            {"parallelism": ("context", "hsdp", "experts"), "parallelism_options": {"cp": "2", "cp-style": "ring"}},
            {"cp": 1, "ep": 8}, ("hsdp", "experts"), {"ep": "8"},
        ),
        (
            {"parallelism": ("context", "experts"), "parallelism_options": {"cp": "2", "ep": "4", "etp": "1"}},
            {"ep": 1}, ("context", "experts"), {"cp": "2", "ep": "1", "etp": "1"},
        ),
    ],
)  # fmt: skip
def test_rules_are_applied_in_one_order_however_they_are_asked_for(
    base: dict, asked: dict, rules: tuple[str, ...], options: dict[str, str]
) -> None:
    """``ep=1,2 cp=1,2`` refused every plan with both, as experts came before sequences; ``cp=1,2 ep=1,2`` did not."""
    found = plan_of(Plan(**base), asked)
    assert (found.parallelism, dict(found.parallelism_options)) == (rules, options)


def test_a_style_of_sharing_sequences_needs_ranks_that_share_them() -> None:
    axes = parse_axes(["cp=1,2", "cp-style=gather,ring", "etp=1"])
    assert axes == {"cp": (1, 2), "cp-style": ("gather", "ring"), "etp": (1,)}
    with pytest.raises(PlanError, match="cp-style ring says how ranks share sequences, and cp is 1"):
        plan_of(Plan(), {"cp-style": "ring", "cp": 1})


def test_one_kind_of_batch_replaces_the_other() -> None:
    assert plan_of(Plan(batch_size=4), {"global_batch_size": 32}).batch_size is None
