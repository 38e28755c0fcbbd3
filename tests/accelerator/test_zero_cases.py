"""Cases of published outputs with zeros, read from texts of several wordings."""

from __future__ import annotations

import json

import pytest
from validation.judge import accelerator as judge
from validation.judge.zeros import cases

TABLE = dict.fromkeys(
    ("read", "write", "update", "metadata_read", "metadata_write", "metadata_update", "leak"), 1.0
)  # fmt: skip
LINE = "Outputs[q] += Weights[s] Inputs[q+s]"
CHANNELS = "O[m,q] += W[m,s] * I[s + q]"


def case(problem, **more):
    """A case of a buffer and a backing store, of which the backing store keeps all."""
    levels = {"Buffer": {"Inputs": {}, "Outputs": {}}, "BackingStorage": {"Weights": {}, "Inputs": {}, "Outputs": {}}}
    energies = {"Buffer": TABLE, "BackingStorage": TABLE, "mac": {"compute": 1.0}}
    return {"case": "made", "problem": problem, "levels": levels, "energy_per_action_pj": energies, **more}


def loops(one):
    _, _, mapping, _ = one
    return {level.node: [(loop.dimension, loop.count, loop.axis) for loop in level.loops] for level in mapping.levels}


@pytest.mark.parametrize("text", [
    f"{CHANNELS}; M 16, S 3, Q 9; W 0.4 fixed_structured; BackingStorage M 4; spatial M 4; Buffer loops inner to outer "
    "S Q",
    f"{CHANNELS}; M 16 S 3 Q 9; Weights density 0.4, fixed-structured; BackingStorage loop M 4; M 4 spatial across 4 "
    "buffers; Buffer: outer to inner Q 9 S 3",
    f"M=16, S=3, Q=9; density of Weights 0.4; {CHANNELS}; BackingStorage for M in 4; parallel M 4; Buffer for Q, for S",
    "M 16, S 3, Q 9; W 0.4; BackingStorage M 4; instances M 4; Buffer loops inner to outer S Q",
])  # fmt: skip
def test_wordings_of_one_case(text):
    (one,) = cases(case(text, case="03.2.3-conv1d+oc"))
    design, problem, _, _ = one
    assert problem.bound == {"M": 16, "S": 3, "Q": 9} or dict(sorted(problem.bound.items())) == {
        "M": 16,
        "Q": 9,
        "S": 3,
    }
    assert {tensor.name: tensor.density for tensor in problem.tensors} == {"Outputs": 1, "Weights": 0.4, "Inputs": 1}
    assert problem.words(next(t for t in problem.tensors if t.name == "Inputs")) == 11
    assert loops(one) == {"BackingStorage": [("M", 4, "")], "units": [("M", 4, "x")],
                          "Buffer": [("Q", 9, ""), ("S", 3, "")]}  # fmt: skip
    assert [node.name for node in design.nodes] == ["BackingStorage", "units", "Buffer"]
    assert [store.words_per_access for store in design.stores] == [4, 1]


def test_loops_that_others_leave_and_orders_left_open():
    (one,) = cases(case(f"{LINE}; S 3, Q 9; Buffer loops inner to outer S Q with Q 3; BackingStorage Q"))
    assert loops(one) == {"Buffer": [("Q", 3, ""), ("S", 3, "")], "BackingStorage": [("Q", 3, "")]}
    found = cases(case(f"{LINE}; S 3, Q 9; BackingStorage one pass"))
    assert [loops(one)["Buffer"][0][0] for one in found] == ["S", "Q"], "both orders, for nothing says which"
    (one,) = cases(case(f"{LINE}; S 3, Q 9", mapping={"BackingStorage": "one pass", "Buffer": "inner to outer S Q"}))
    assert loops(one)["Buffer"] == [("Q", 9, ""), ("S", 3, "")]


def test_formats_and_actions_of_several_stores():
    made = case(
        f"{LINE}; S 3, Q 9; Weights 0.4 hypergeometric; BackingStorage one pass",
        formats={"Weights": ["uop", "RLE"], "Inputs": {"Buffer": ["B"], "BackingStorage": ["CP"]}},
        actions=["skipping Inputs on Weights", "gating Outputs on Weights and Inputs at Buffer", "gating of compute"],
    )
    _, problem, _, sparse = cases(made)[0]
    assert {tensor.distribution for tensor in problem.tensors} == {"hypergeometric"}
    assert [(row.store, row.tensor, row.ranks) for row in sparse.stored] == [
        ("BackingStorage", "Weights", ("UOP", "RLE")), ("Buffer", "Inputs", ("B",)),
        ("BackingStorage", "Inputs", ("CP",)),
    ]  # fmt: skip
    assert [(row.store, row.tensor, row.conditions, row.skipping) for row in sparse.spared] == [
        ("Buffer", "Inputs", ("Weights",), True), ("Buffer", "Outputs", ("Weights", "Inputs"), False),
    ]  # fmt: skip
    assert sparse.compute == "gating"


@pytest.mark.parametrize(("text", "words"), [
    (f"{LINE}; S 3, Q 9", "does not say which loops stand at BackingStorage and Buffer: write 'Buffer loops inner to"),
    (f"{LINE}; S 3; BackingStorage one pass", "says no bound of Q"),
    ("S 3, Q 9", "names no einsum"),
    ("V[q] += W[s] I[q+s]; S 3, Q 9; BackingStorage one pass", "V is none of the tensors"),
    (f"{LINE}; S 3, Q 9; BackingStorage Q 2", "do not divide"),
])  # fmt: skip
def test_what_a_case_does_not_say_is_a_row_with_a_sentence(text, words, tmp_path):
    made = case(text, cycles=27, actual_computes=27, energy_pj=1.0)
    path = tmp_path / "sparse.json"
    path.write_text(json.dumps({"cases": [made]}))
    (row,) = judge.zeros(path)
    assert row["exact"] is False
    assert words in row["wrong"][0]


def test_an_order_that_matters_and_is_not_said_is_told(tmp_path):
    made = case(f"{CHANNELS}; M 16, S 3, Q 9; W 0.4; BackingStorage Q 3", formats={"Weights": ["UOP", "CP"]},
                cycles=432, actual_computes=432, energy_pj=1.0)  # fmt: skip
    made["levels"]["BackingStorage"]["Weights"] = {"tile_words": 0}
    path = tmp_path / "sparse.json"
    path.write_text(json.dumps({"cases": [made]}))
    (row,) = judge.zeros(path)
    assert row["wrong"] == ["does not say the order of the loops, by which its counts differ: write it into problem"]
