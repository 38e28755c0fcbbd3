"""Plans: validated, resolved onto devices, and refused with the nearest that work."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim import Plan, PlanError
from triosim.partition.resolve import resolve
from triosim.plan import NamedRules, divisors, without_effect


@given(st.integers(1, 10**6))
def test_divisors_divide(n: int) -> None:
    found = divisors(n)
    assert found == sorted(set(found))
    assert all(n % d == 0 for d in found)
    assert {1, n} <= set(found)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_an_omitted_dp_fills_the_devices(tp: int, pp: int, dp: int, parts: int, each: int) -> None:
    mesh = resolve(Plan(tp=tp, pp=pp, micro_batches=parts, batch_size=parts * each), tp * pp * dp, None)
    assert (mesh.replicas, mesh.size("tp"), mesh.stages) == (dp, tp, pp)
    assert mesh.ranks == mesh.devices
    assert mesh.global_batch_size == parts * each * dp
    assert mesh.micro_batch_size == each


@pytest.mark.parametrize(
    ("fields", "devices", "words"),
    [
        ({"dp": 3}, 8, "= 3 ranks leave 5 of the system's 8 devices idle: nearest that work on 8 devices: --dp 8"),
        ({"dp": 1, "tp": 2, "pp": 2}, 8, "= 4 ranks leave 4 of the system's 8 devices idle"),
        ({"dp": 1}, 2, "= 1 rank leaves 1 of the system's 2 devices idle"),
    ],
)
def test_idle_devices_are_refused_unless_they_are_wanted(fields: dict, devices: int, words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)) as refused:
        resolve(Plan(**fields), devices, 32)
    assert "--idle-ok" in str(refused.value)
    mesh = resolve(Plan(**fields, idle_ok=True), devices, 32)
    assert (mesh.replicas, mesh.devices) == (fields["dp"], devices)
    for dp, tp, pp in re.findall(r"--dp (\d+) --tp (\d+) --pp (\d+)", str(refused.value)):
        assert resolve(Plan(dp=int(dp), tp=int(tp), pp=int(pp)), devices, 32).ranks == devices


def test_devices_that_are_named_are_wanted() -> None:
    assert resolve(Plan(dp=2, placement=(0, 5)), 8, 32).ranks == 2


def test_batch_sizes() -> None:
    assert resolve(Plan(), 4, 32).batch_size == 32
    assert resolve(Plan(micro_batches=4), 1, None).batch_size == 4  # a model by name: one sample a micro-batch
    assert resolve(Plan(global_batch_size=64), 4, 32).batch_size == 16
    assert resolve(Plan(global_batch_size=64, batch_size=16), 4, 32).batch_size == 16


@pytest.mark.parametrize(
    ("fields", "parts", "batch"),
    [
        ({"global_batch_size": 64}, 8, 16),
        ({"batch_size": 6}, 3, 6),
        ({}, 16, 32),  # the recorded batch
        ({"micro_batches": 5}, 5, 10),
        ({"micro_batches": 8, "global_batch_size": 64}, 8, 16),
    ],
)
def test_the_size_of_micro_batches_says_how_many_they_are(fields: dict, parts: int, batch: int) -> None:
    mesh = resolve(Plan(micro_batch_size=2, **fields), 4, 32)
    assert (mesh.micro_batches, mesh.batch_size, mesh.micro_batch_size) == (parts, batch, 2)


def test_a_model_by_name_has_one_micro_batch_of_the_size_that_is_given() -> None:
    assert resolve(Plan(micro_batch_size=4), 1, None).batch_size == 4


@pytest.mark.parametrize(
    ("fields", "devices", "words"),
    [
        ({"dp": 3}, 2, "nearest that work on 2 devices: --dp 2"),
        ({"tp": 3}, 8, "--dp 2 --tp 4 --pp 1"),
        ({"tp": 4, "pp": 4}, 8, "cannot be divided"),
        ({"global_batch_size": 10}, 4, "nearest that do are 8 or 12"),
        ({"global_batch_size": 64, "batch_size": 8}, 4, "contradict"),
        ({"micro_batches": 5}, 1, "nearest that do are 2 or 4, or batch size 35"),
    ],
)
def test_plans_that_do_not_fit_name_the_nearest_that_do(fields: dict, devices: int, words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)):
        resolve(Plan(**fields), devices, 32)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dp": 0}, "dp must be a whole number of at least 1, got 0"),
        ({"tp": -2}, "tp must be a whole number of at least 1, got -2"),
        ({"pp": 1.5}, "pp must be a whole number"),
        ({"tp": "two"}, "tp must be a whole number"),
        ({"zeros": 1}, "a plan has no field 'zeros'"),
        ({"host": "none"}, "host says how a plan is predicted, not what is run: give it to Fidelity(host=...)"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3"),
        ({"stack": "megatron-core"}, "stack must be a Stack of triosim.stacks, got 'megatron-core'"),
        ({"zero": 3, "places": {"weight": "host"}}, "cannot be combined with weights placed on host"),
        ({"dp_style": "horovod"}, "dp-style must be 'ddp' or 'dataparallel'"),
        ({"dp_style": "dataparallel", "tp": 2}, "cannot be combined with tp 2"),
        ({"dp_style": "dataparallel", "micro_batches": 2}, "in one piece"),
        ({"places": {"weight": "moon"}}, "place weight='moon' is no place"),
        ({"places": {"activation": "host"}}, "'activation' cannot be placed"),
        ({"pp": 3, "stages": ("a",)}, "stages names 1 cut(s) but pp 3 needs 2"),
        ({"batch_size": 10, "micro_batches": 4}, "nearest that do are 2 or 5"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_in_one_sentence(fields: dict, words: str) -> None:
    with pytest.raises(PlanError, match=re.escape(words)) as caught:
        Plan(**fields)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 512), st.integers(1, 600), st.integers(1, 64))
def test_the_nearest_plans_really_work(devices: int, tp: int, pp: int) -> None:
    try:
        resolve(Plan(tp=tp, pp=pp), devices, None)
    except PlanError as error:
        offers = re.findall(r"--dp (\d+) --tp (\d+) --pp (\d+)", str(error))
        assert offers
        for dp, tp_, pp_ in offers:
            assert resolve(Plan(dp=int(dp), tp=int(tp_), pp=int(pp_)), devices, None).ranks == devices


def test_a_plan_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan().dp = 3  # type: ignore[misc]


def test_what_changes_nothing_is_told() -> None:
    assert without_effect(Plan()) == without_effect(Plan(pp=2, tp=2, schedule="gpipe", tp_style="gather")) == []
    assert without_effect(Plan(schedule="gpipe", tp_style="gather", bucket_bytes=1 << 20, zero=3)) == [
        "schedule changes nothing without stages (pp 1)",
        "tp-style changes nothing without tensor-parallel ranks (tp 1)",
        "bucket-size changes nothing where blocks are reduced (zero 3)",
    ]
    assert "overlap off" in without_effect(Plan(bucket_bytes=1 << 20, overlap=False))[0]


def test_a_style_without_ranks_that_share_sequences_is_refused() -> None:
    assert NamedRules(cp=2, cp_style="ring").options["cp-style"] == "ring"
    with pytest.raises(PlanError, match=r"cp-style ring .* cp is 1: give cp as well"):
        NamedRules(cp_style="ring")


def test_rules_with_options_of_their_own_are_given_by_these() -> None:
    made = Plan(tp=8, parallelism=("onebit",), cp=4, cp_style="ring", sequence_parallel=True)
    assert made.parallelism == ("sequence", "onebit", "context")
    assert made.parallelism_options == {"cp": "4", "cp-style": "ring"}
    assert Plan(ep=2).parallelism == ("experts",)
    assert Plan(cp=1, ep=1) == Plan()
    with pytest.raises(PlanError, match="cp must be a whole number of at least 1"):
        Plan(cp=0)
    with pytest.raises(PlanError, match="cp is 1: give cp as well"):
        Plan(cp_style="ring")
