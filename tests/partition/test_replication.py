"""Rules among the replicas and on the host: what they place, and what they refuse."""

from __future__ import annotations

import pytest

import triosim
from tests.asked import asked
from tests.partition.divided import mesh_of
from triosim import Plan, PlanError
from triosim.partition.replication import Replication
from triosim.partition.resolve import arranged, replication, rules_of
from triosim.partition.transfers import COLLECTIVES

MESH = mesh_of(dp=8)


def _placed(**plan) -> Replication:
    rules = rules_of(Plan(**plan), named=False)
    return replication(rules, arranged(rules, MESH))


@pytest.mark.parametrize(
    ("zero", "states", "weights", "regathers"),
    [(0, False, False, False), (1, True, False, False), (2, True, True, False), (3, True, True, True)],
)
def test_a_level_of_zero_says_what_is_shard(zero: int, states: bool, weights: bool, regathers: bool) -> None:
    placed = _placed(zero=zero)
    assert (placed.states, placed.weights, placed.regathers, placed.axis) == (states, weights, regathers, "dp")


def test_gradients_that_are_partial_become_what_their_states_need() -> None:
    """All-reduced where states are whole, reduce-scattered where they are Shard, and added up over replicas of that."""
    plans = {"zero": 0}, {"zero": 1}, {"zero": 3, "parallelism": ("hsdp",), "parallelism_options": {"dp_replicate": 4}}
    found = []
    for plan in plans:
        rules = rules_of(Plan(**plan), named=False)
        mesh = arranged(rules, MESH)
        steps = replication(rules, mesh).reductions(mesh)
        found.append([(COLLECTIVES[step.what], mesh.names[step.axis], step.parts) for step in steps])
    assert found == [
        [("all_reduce", "dp", 1)],
        [("reduce_scatter", "dp", 1)],
        [("reduce_scatter", "dp_shard", 1), ("all_reduce", "dp_replicate", 2)],
    ]


def test_a_rule_by_name_is_the_same_as_its_option() -> None:
    assert _placed(offload=("optimizer", "activations")) == _placed(
        parallelism=("offload",), parallelism_options={"what": "optimizer, activations"}
    )
    assert _placed(dp_style="dataparallel") == _placed(parallelism=("dataparallel",))
    assert _placed(zero=2) == _placed(parallelism=("zero",), parallelism_options={"level": "2"})


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"parallelism": ("dataparallel",), "zero": 1}, "keeps everything whole"),
        ({"parallelism": ("dataparallel", "offload")}, "keeps everything on its devices"),
        ({"parallelism": ("offload",), "parallelism_options": {"what": "weights"}}, "'weights' cannot be away"),
        ({"parallelism": ("offload",), "parallelism_options": {"what": "parameters"}}, "use offload optimizer as well"),
        ({"parallelism": ("zero",), "parallelism_options": {"level": 4}}, "level"),
    ],
)
def test_what_cannot_go_together_is_refused(plan: dict, words: str) -> None:
    with pytest.raises(triosim.InputError, match=words):
        _placed(**plan)


def test_dataparallel_is_over_whole_replicas() -> None:
    rules = rules_of(Plan(parallelism=("dataparallel",)), named=False)
    with pytest.raises(PlanError, match="one process over whole replicas"):
        replication(rules, mesh_of(dp=4, tp=2))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"parallelism": ("dataparallel",), "micro_batches": 2}, "in one piece"),
        ({"parallelism": ("offload",), "training": False}, "inference has nothing to bring back"),
    ],
)
def test_what_a_job_cannot_have_is_refused(plan: dict, words: str) -> None:
    trace = triosim.model("gpt2", batch_size=2, sequence_length=64, configuration={"n_layer": 1})
    with pytest.raises(PlanError, match=words):
        triosim.simulate(trace, triosim.system("dgx-a100"), *asked(**plan))
