"""A rule of one's own: in a file, and behind an entry point of another distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim import InputError, Plan, PlanError
from triosim.partition.resolve import rules_of
from triosim.prediction.prepare import prepare

RULE = '''
"""Only the feed-forward blocks are divided."""

from dataclasses import dataclass, replace

from triosim.partition.rule import Placing, Rule
from triosim.core.registry import registered


@registered
@dataclass(frozen=True)
class Whole(Rule):
    """Takes the layers whose path has a word in it out of what is divided."""

    word: str = "attn"

    def place(self, facts, placing):
        out = {layer.weight for layer in facts.layers if self.word in layer.path}
        return replace(placing, weights={w: dim for w, dim in placing.weights.items() if w not in out})
'''


@pytest.fixture
def rule(tmp_path: Path) -> str:
    path = tmp_path / "whole.py"
    path.write_text(RULE)
    return str(path)


REPLICAS = '''
"""Only optimizer states of ranks on one server are divided, whatever the plan says."""

from dataclasses import dataclass, replace

from triosim.partition.rule import Rule
from triosim.core.registry import registered


@registered
@dataclass(frozen=True)
class Servers(Rule):
    ranks: int = 8

    def arranged(self, mesh):
        return mesh.resplit(("dp",), (("servers", mesh.size("dp") // self.ranks), ("within", self.ranks)))

    def replicate(self, mesh, placed):
        return replace(placed, axis="within", replicas="servers", states=True)
'''


def test_a_rule_of_the_replicas_brings_axes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "servers.py"
    path.write_text(REPLICAS)
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 2})
    system = triosim.system("dgx-a100", nodes=2)
    result = triosim.simulate(trace, system, Plan(parallelism=(str(path),)))
    sent: dict[tuple[str, str, int], int] = {}
    for row in result.collectives:
        key = (row.axis, row.kind, row.group_size)
        sent[key] = sent.get(key, 0) + row.bytes * row.count
    whole = sent["within", "reduce_scatter", 8]
    assert sent == {
        ("within", "reduce_scatter", 8): whole, ("within", "all_gather", 8): whole,
        ("servers", "all_reduce", 2): whole // 8,
    }  # fmt: skip


def _sent(plan: Plan) -> dict[str, int]:
    trace = triosim.model("gpt2", batch_size=1, sequence_length=64, configuration={"n_layer": 2})
    step = prepare(trace, triosim.system("dgx-a100"), plan).step
    activation = 64 * 768 * 2
    return {"activations": int((step.transfers.bytes == activation).sum())}


def test_a_file_works_like_a_built_in(rule: str) -> None:
    assert _sent(Plan(tp=2))["activations"] == 2 * 4 + 2
    assert _sent(Plan(tp=2, parallelism=(rule,)))["activations"] == 2 * 2 + 2
    options = {"word": "mlp"}
    assert _sent(Plan(tp=2, parallelism=(rule,), parallelism_options=options))["activations"] == 2 * 2 + 2


def test_an_entry_point_works_like_a_built_in(rule: str, monkeypatch, tmp_path: Path) -> None:
    information = tmp_path / "outside-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[triosim.partition]\nwhole-attention = whole:Whole\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _sent(Plan(tp=2, parallelism=("whole-attention",)))["activations"] == 2 * 2 + 2


def test_the_command_line_takes_it_with_its_options(rule: str) -> None:
    words = ["train", "gpt2", "--seq-len", "64", "--system", "dgx-a100", "--tp", "2", "--json", "-"]
    plain, divided = (run(*words, *more) for more in ([], ["--parallelism", rule, "--parallelism-option", "word=mlp"]))
    assert plain.returncode == divided.returncode == 0
    assert plain.stdout != divided.stdout


@pytest.mark.parametrize(
    ("asked", "options", "words"),
    [
        (("sequenze",), {}, "sequenze"),
        (("sequence",), {"regathers": "off"}, "none of sequence: those are joint, regather"),
        (("sequence",), {"regather": "maybe"}, "must be on or off, got 'maybe'"),
        ((), {"regather": "off"}, "is of sequence, which the plan does not have: give sequence-parallel as well"),
        (("sequence",), {"capacity": "1"}, "is of experts, which the plan does not have: give ep as well"),
        ((), {"rank": "4"}, "give parallelism powersgd as well"),
        ((), {"regathers": "off"}, "they take none"),
        (("nowhere.py",), {}, "nowhere.py: no such file"),
    ],
)
def test_what_does_not_exist_is_a_sentence(asked: tuple, options: dict, words: str) -> None:
    with pytest.raises((InputError, PlanError), match=words):
        rules_of(Plan(tp=2, parallelism=asked, parallelism_options=options), named=False)


def test_a_class_that_is_no_rule_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("from triosim.core.registry import registered\n\n@registered\nclass Other:\n    pass\n")
    with pytest.raises(InputError, match="Other is no rule"):
        rules_of(Plan(tp=2, parallelism=(str(path),)), named=False)


ANSWERS = [
    ("place", "None", "which is no Placing"),
    ("place", "replace(placing, weights={10**6: 0})", "no parameter of the step"),
    ("place", "replace(placing, weights={facts.layers[1].weight: 7})", "along dimension 7, and it has 2"),
    ("place", "replace(placing, weights={facts.layers[0].weight: 0})", "does not divide by tp 4"),
    ("place", "replace(placing, resting={0: (0, 1, 3, 1)})", "which is no Shard that divides"),
    ("place", "replace(placing, gathered=frozenset({-1}))", "operator -1, which does not exist"),
    ("arranged", "None", "must return the mesh that it was given"),
    ("replicate", "mesh", "which is no Replication"),
    ("replicate", "replace(placed, axis='ep')", "there is no axis 'ep'"),
    ("replicate", "replace(placed, axis='tp')", "are not the 2 ranks of dp"),
    ("replicate", "replace(placed, weights=True)", "need optimizer states that are Shard too"),
]


@pytest.mark.parametrize(("method", "answer", "words"), ANSWERS)
def test_an_answer_that_cannot_be_is_a_sentence(tmp_path: Path, method: str, answer: str, words: str) -> None:
    parameters = {"place": "facts, placing", "arranged": "mesh", "replicate": "mesh, placed"}[method]
    lines = [
        "from dataclasses import dataclass, replace", "from triosim.partition.rule import Rule",
        "from triosim.core.registry import registered", "@registered", "@dataclass(frozen=True)", "class Wrong(Rule):",
        f"    def {method}(self, {parameters}):", f"        return {answer}",
    ]  # fmt: skip
    path = tmp_path / "wrong.py"
    path.write_text("\n".join(lines) + "\n")
    trace = triosim.model("gpt2", batch_size=2, sequence_length=64, configuration={"n_layer": 1, "vocab_size": 1001})
    with pytest.raises(PlanError, match=words):
        prepare(trace, triosim.system("dgx-a100"), Plan(tp=4, tp_plan={"*.c_fc": "colwise"}, parallelism=(str(path),)))
