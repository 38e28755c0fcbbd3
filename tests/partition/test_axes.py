"""Axes of one's own: one that cuts the sequence beside the tensor axis, and the way of gradients on the data axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import Plan, PlanError
from triosim.memory.lifetimes import Lifetimes
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.schedule.program import Op
from triosim.trace.tables import Category, Phase

CONTEXT = '''
"""Context parallelism that gathers keys and values: every rank has a part of each sequence."""

from dataclasses import dataclass, replace
from typing import ClassVar

from triosim.core.registry import registered
from triosim.partition.placements import Shard
from triosim.partition.rule import Rule
from triosim.trace.symbols import propagate_symbol
from triosim.trace.tables import PERSISTENT, Category


@registered
@dataclass(frozen=True)
class Context(Rule):
    """Takes the axis ``cp`` from the data axis and cuts inputs along the sequence."""

    axis: ClassVar[str] = "cp"

    cp: int = 2

    def arranged(self, mesh):
        return mesh.carved("dp", "cp", self.cp)

    def place(self, facts, placing):
        length = facts.trace.meta.sequence_length
        given = [v for v, c in enumerate(facts.category) if c in (Category.INPUT, Category.LABEL)]
        seeds = {v: Shard.whole(1, length) for v in given if len(facts.shapes[v]) == 2}
        found = propagate_symbol(facts.trace, seeds, length).segments
        resting = {v: next(iter(s)) for v, s in enumerate(found) if s and facts.category[v] not in PERSISTENT}
        resting = {v: shard for v, shard in resting.items() if shard.size % placing.size == 0}
        return replace(
            placing, inputs=seeds, resting=resting, stationary="activations", per_rank=frozenset({"loss"})
        )
'''
LAYERS, LENGTH, HIDDEN, KEYS, FEED, VOCABULARY = 2, 64, 2048, 512, 8192, 128256
BF16 = 2


@pytest.fixture
def context(tmp_path: Path) -> str:
    path = tmp_path / "context.py"
    path.write_text(CONTEXT)
    return str(path)


def _prepared(rule: str, **plan) -> CompiledJob:
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    return prepare(trace, triosim.system("dgx-a100"), *asked(parallelism=(rule,), host="none", **plan))


def _sent(job: CompiledJob, axis: str, phase: Phase) -> list[tuple[str, int]]:
    """Kind and bytes of what is sent along an axis for operators of a phase, in order."""
    sent, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    return [
        (COLLECTIVES[what], size)
        for what, size, on, before in zip(sent.what, sent.bytes.tolist(), sent.axis, sent.before, strict=True)
        if job.mesh.names[on] == axis and phases[before] == phase
    ]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_sequence_is_cut_on_an_axis_of_its_own(context: str, tp: int) -> None:
    """Forward each layer gathers its keys and values; backward it scatters their gradients; nothing else is sent.

    The gradients of all weights are sums over the axis.  What is Shard on the tensor axis too is sent in parts.
    """
    job = _prepared(context, tp=tp)
    assert job.mesh.axes == (("pp", 1), ("dp", 4 // tp), ("cp", 2), ("tp", tp))
    assert job.mesh.global_batch_size == job.mesh.batch_size * (4 // tp)
    keys = LENGTH * KEYS * BF16 // tp
    assert _sent(job, "cp", Phase.FORWARD) == [("all_gather", keys)] * 2 * LAYERS
    assert _sent(job, "cp", Phase.BACKWARD) == [("reduce_scatter", keys)] * 2 * LAYERS
    reduced = _sent(job, "cp", Phase.OPTIMIZER)
    layer = (2 * HIDDEN * HIDDEN + 2 * KEYS * HIDDEN + 3 * FEED * HIDDEN) // tp + 2 * HIDDEN
    total = (VOCABULARY * HIDDEN // tp + HIDDEN + LAYERS * layer) * BF16
    assert {kind for kind, _ in reduced} == {"all_reduce"}
    assert sum(size for _, size in reduced) == total


def test_the_tensor_axis_sends_parts_of_a_sequence(context: str) -> None:
    """Per layer two sums forward and two backward, the table's and the head's, each of a rank's own tokens."""
    job = _prepared(context, tp=2)
    own = LENGTH // 2 * HIDDEN * BF16
    loss = [("all_reduce", LENGTH // 2 * 4)] * 3  # one float32 for each of the own rows
    assert _sent(job, "tp", Phase.FORWARD)[: 1 + 2 * LAYERS] == [("all_reduce", own)] * (1 + 2 * LAYERS)
    both = _sent(job, "tp", Phase.FORWARD) + _sent(job, "tp", Phase.BACKWARD)
    assert sorted(both) == sorted([("all_reduce", own)] * (2 + 4 * LAYERS) + loss)


def test_shapes_and_memory_are_those_of_a_part(context: str) -> None:
    whole, part = (_prepared(context, parallelism_options={"cp": cp}) for cp in (1, 4))
    flop = [np.nansum(job.step.trace.operators.flop[job.step.trace.operators.phase == 0]) for job in (whole, part)]
    assert flop[1] * 4 == pytest.approx(flop[0], rel=0.02)  # attention divides by queries, all else by tokens
    held = []
    for job in (whole, part):
        lives = job.programs[0].lifetimes
        assert lives is not None
        own = lives.category == Category.ACTIVATION
        held.append(Lifetimes(lives.bytes[own], lives.category[own], lives.start[own], lives.end[own]).peak_bytes())
    keys = LAYERS * 2 * LENGTH * KEYS * BF16  # gathered and kept whole
    assert held[0] / 4 < held[1] <= held[0] / 4 + keys


def test_an_axis_that_does_not_fit_is_a_sentence(context: str) -> None:
    with pytest.raises(PlanError, match="dp 8 has no room for an axis cp of 3: sizes that fit are 1, 2, 4, 8"):
        _prepared(context, parallelism_options={"cp": 3})


def test_a_global_batch_is_shared_by_the_replicas_that_are_left(context: str) -> None:
    job = _prepared(context, global_batch_size=16)
    assert (job.mesh.replicas, job.mesh.batch_size, job.mesh.global_batch_size) == (4, 4, 16)


REDUCED = '''
"""Gradients are added up within servers first, and only in every so-manieth iteration."""

from dataclasses import dataclass, replace

from triosim.core.registry import registered
from triosim.partition.rule import Rule


@registered
@dataclass(frozen=True)
class Levels(Rule):
    """Reduce-scatter within a server, all-reduce between them, all-gather within.

    Attributes:
        ranks: of a server.
        steps: iterations after which gradients are reduced.
    """

    ranks: int = 8
    steps: int = 1

    def arranged(self, mesh):
        return mesh.resplit(("dp",), (("between", mesh.size("dp") // self.ranks), ("within", self.ranks)))

    def replicate(self, mesh, placed):
        path = ("reduce_scatter", "within"), ("all_reduce", "between"), ("all_gather", "within")
        return replace(placed, path=path, every=self.steps)
'''


def _levels(tmp_path: Path, text: str = REDUCED, **plan) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Axis, kind and size of a group -> calls and bytes."""
    path = tmp_path / "levels.py"
    path.write_text(text)
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 2})
    system = triosim.system("dgx-a100", nodes=2)
    sent: dict[tuple[str, str, int], tuple[int, int]] = {}
    for row in triosim.simulate(trace, system, *asked(parallelism=(str(path),), **plan)).collectives:
        count, size = sent.get((row.axis, row.kind, row.group_size), (0, 0))
        sent[row.axis, row.kind, row.group_size] = count + row.count, size + row.bytes * row.count
    return sent


def test_a_two_level_all_reduce_is_a_rule_of_ones_own(tmp_path: Path) -> None:
    sent = _levels(tmp_path)
    calls, whole = sent["within", "reduce_scatter", 8]
    assert sent == {
        ("within", "reduce_scatter", 8): (calls, whole),
        ("between", "all_reduce", 2): (calls, whole // 8),
        ("within", "all_gather", 8): (calls, whole),
    }


def test_replicas_that_reduce_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "levels.py"
    path.write_text(REDUCED)
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 2})
    plan = Plan(parallelism=(str(path),), parallelism_options={"steps": 2}, iterations=5)
    (program,) = prepare(trace, triosim.system("dgx-a100", nodes=2), plan).programs
    reduced = np.bincount(program.iteration[program.op == Op.COLLECTIVE], minlength=5)
    assert (reduced > 0).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (', ("all_gather", "within")', "", "scattered over within is neither gathered again nor Shard"),
        (', ("all_reduce", "between")', "", "adds up 8 of the 16 replicas' gradients"),
        ('"all_reduce"', '"all_to_all"', "'all_to_all' over 'between' is"),
        ("every=self.steps", "every=0", "at least 1"),
    ],
)
def test_a_path_that_leaves_a_summand_out_is_a_sentence(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in REDUCED
    with pytest.raises(PlanError, match=words):
        _levels(tmp_path, REDUCED.replace(before, after))


def test_on_the_command_line(context: str) -> None:
    job = ("train", "llama-3.2-1b", "--seq-len", "64", "--system", "dgx-a100", "--tp", "2", "--json", "-")
    done = run(*job, "--parallelism", context, "--parallelism-option", "cp=4")
    assert done.returncode == 0, done.stderr
    assert '"cp"' in done.stdout
