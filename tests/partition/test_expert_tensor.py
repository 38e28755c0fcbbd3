"""Experts divided among fewer ranks than the other layers (1 < etp < tp): what is kept, computed and sent."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim import PlanError
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.stacks import load
from triosim.trace.tables import Category, Phase, check

LAYERS, LENGTH, HIDDEN, INNER, EXPERTS, CHOSEN, BF16 = 2, 64, 256, 512, 8, 2, 2
SIZES = {
    "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 512,
}  # fmt: skip
OF_EXPERTS = LAYERS * EXPERTS * 3 * HIDDEN * INNER


def _asked(tp: int, ep: int, etp: int, nodes: int = 2, **plan: object) -> tuple:
    options = {"ep": ep, "etp": etp, **plan.pop("options", {})}  # type: ignore[dict-item]
    trace = triosim.model("mixtral-8x7b", batch_size=1, sequence_length=LENGTH, configuration=SIZES)
    fields = {"tp": tp, "parallelism": ("sequence", "experts"), "parallelism_options": options, "host": "none", **plan}
    return trace, triosim.system("dgx-h100", nodes=nodes), *asked(**fields)


def _job(tp: int, ep: int, etp: int, **plan: object) -> CompiledJob:
    return prepare(*_asked(tp, ep, etp, **plan))


def _flop(job: CompiledJob) -> float:
    operators = job.step.trace.operators
    return float(np.nansum(operators.flop[operators.phase != Phase.OPTIMIZER]))


def _kept(job: CompiledJob, category: Category) -> int:
    values = job.step.trace.values
    own = sorted(job.step.apart)
    of = np.isin(values.of, own) if category != Category.WEIGHT else np.isin(np.arange(len(values)), own)
    return int(values.elements()[of & (values.category == category) & (values.version == 0)].sum())


def _sent(job: CompiledJob, axis: str) -> Counter[tuple[str, int, int]]:
    sent, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    rows = zip(sent.axis, sent.what, sent.before, sent.bytes.tolist(), strict=True)
    return Counter((COLLECTIVES[w], int(phases[b]), n) for a, w, b, n in rows if job.mesh.names[a] == axis)


@pytest.mark.parametrize(("tp", "ep", "etp"), [(4, 4, 2), (8, 2, 4), (8, 8, 2), (4, 1, 2)])
def test_a_rank_has_its_part_of_every_one_of_its_experts(tp: int, ep: int, etp: int) -> None:
    """Parameters; as much work as where experts are whole; a step as every other."""
    whole, part = _job(tp, ep, 1), _job(tp, ep, etp)
    check(part.step.trace)
    assert _kept(part, Category.WEIGHT) * ep * etp == OF_EXPERTS
    assert _kept(part, Category.WEIGHT) * etp == _kept(whole, Category.WEIGHT)
    assert _flop(part) == pytest.approx(_flop(whole), rel=1e-3)
    sizes = [part.mesh.size(axis) for axis in ("edp", "ep", "etp")]
    assert sizes == [16 // (ep * etp), ep, etp]


@pytest.mark.parametrize(("tp", "ep", "etp"), [(4, 4, 2), (8, 2, 4)])
def test_rows_are_gathered_after_they_came_and_scattered_before_they_go(tp: int, ep: int, etp: int) -> None:
    """``etp`` times what comes to a rank, in the full buffer, in each pass; around them the all-to-alls of etp 1."""
    job = _job(tp, ep, etp)
    rows = LENGTH // tp * CHOSEN
    full = rows * etp * HIDDEN * BF16
    assert _sent(job, "etp") == {
        (kind, phase, full): LAYERS
        for kind in ("all_gather", "reduce_scatter")
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    assert _sent(job, "ep") == _sent(_job(tp, ep, 1), "ep")
    again = _sent(_job(tp, ep, etp, recompute="full"), "etp")
    assert sum(again.values()) == 3 * 2 * LAYERS
    sent = job.step.transfers
    for number in np.flatnonzero(sent.axis == job.mesh.row("etp")).tolist():
        same = np.flatnonzero((sent.after == sent.after[number]) & (sent.axis == job.mesh.row("ep"))).tolist()
        gathers = COLLECTIVES[sent.what[number]] == "all_gather"
        assert all((other < number) == gathers for other in same)
        assert len(same) == 1


@pytest.mark.parametrize("etp", [0, 4])
def test_all_ranks_of_the_tensor_axis_send_their_own_tokens(etp: int) -> None:
    """As Megatron-Core, whose stack says so: a part of what each sends where all tokens are gathered before."""
    tp, ep = 4, 4
    job, before = (_job(tp, ep, etp, options={"own_tokens": own}) for own in (True, False))
    rows = LENGTH // tp * CHOSEN
    assert _sent(job, "ep") == {
        ("all_to_all", phase, rows * HIDDEN * BF16): 2 * LAYERS for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    assert {size for _, _, size in _sent(before, "ep")} == {tp * rows * HIDDEN * BF16}
    assert {size for _, _, size in _sent(job, "etp")} == {tp * rows * HIDDEN * BF16}
    assert _kept(job, Category.WEIGHT) == _kept(before, Category.WEIGHT)
    assert _flop(job) == pytest.approx(_flop(_job(tp, ep, 1)), rel=1e-3)
    stacked = _job(tp, ep, etp, stack=load("megatron-core"))
    assert {size for _, _, size in _sent(stacked, "ep")} == {rows * HIDDEN * BF16}


def test_neighbours_divide_an_expert() -> None:
    """``etp`` is innermost, within a server; gradients of experts are reduced along what is left."""
    job = _job(4, 4, 2)
    assert job.mesh.groups("etp")[0] == [0, 1]
    assert job.mesh.groups("ep")[0] == [0, 2, 4, 6]
    reduced = Counter[str]()
    for program in job.programs:
        reduced.update(job.mesh.names[axis] for axis in program.axis[program.op == 1].tolist())
    assert reduced["edp"]


def test_the_corners_are_what_they_were() -> None:
    """etp 1 as before, and etp of tp as none given."""
    same = [prepare(*_asked(4, 4, etp)).step.transfers for etp in (0, 4)]
    assert all(np.array_equal(getattr(same[0], name), getattr(same[1], name)) for name in ("what", "bytes", "after"))
    assert "etp" not in _job(4, 4, 1).mesh.names


def test_it_goes_with_other_ways() -> None:
    for plan in ({"pp": 2, "micro_batches": 2, "batch_size": 2}, {"zero": 1}, {"zero": 3, "micro_batches": 1}):
        assert triosim.simulate(*_asked(4, 2, 2, **plan)).iteration_time_s > 0
    busy = _sent(_job(4, 4, 2, options={"imbalance": 1.5}), "etp")
    assert {size for _, _, size in busy} == {int(1.5 * LENGTH // 4 * CHOSEN * 2 * HIDDEN * BF16)}


@pytest.mark.parametrize(
    ("tp", "ep", "etp", "words"),
    [
        (4, 4, 3, "etp 3 does not divide tp 4: sizes that do are 1, 2, 4"),
        (4, 16, 2, "groups of ep 16 with etp 2 ranks for each: sizes that fit are 1, 2, 4, 8"),
    ],
)
def test_what_cannot_be_is_a_sentence(tp: int, ep: int, etp: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        _job(tp, ep, etp)
    trace, system = _asked(4, 4, 2)[:2]
    with pytest.raises(PlanError, match="with etp 2 ranks of the tensor axis have tokens of their own"):
        triosim.simulate(trace, system, *asked(tp=4, parallelism=("experts",), parallelism_options={"ep": 4, "etp": 2}))
