"""Experts divided among ranks of the data axis: what is sent, what is kept, what is reduced where."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.partition.routing import expert_shares, rank_shares
from triosim.partition.shards import resident
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Category, Phase

LAYERS, LENGTH, HIDDEN, INNER, EXPERTS, CHOSEN, BATCH, BF16 = 2, 64, 256, 512, 8, 2, 3, 2
SIZES = {
    "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
}  # fmt: skip
WEIGHTS = LAYERS * EXPERTS * 3 * HIDDEN * INNER
"""Parameters of all experts: gate, up and down."""
ROWS = BATCH * LENGTH * CHOSEN


def _job(
    ep: int, nodes: int = 2, name: str = "mixtral-8x7b", sizes: dict | None = None, system: str = "dgx-h100", **plan
) -> CompiledJob:
    trace = triosim.model(name, sequence_length=LENGTH, configuration=SIZES if sizes is None else sizes)
    options = {"ep": ep, **plan.pop("options", {})}
    plan = {"parallelism": ("experts",), "parallelism_options": options, "batch_size": BATCH, **plan}
    return prepare(trace, triosim.system(system, nodes=nodes), *asked(host="none", **plan))


def _sent(job: CompiledJob) -> Counter:
    """Axis, kind, phase of what needs it and bytes -> how often."""
    sent, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    rows = zip(sent.axis, sent.what, sent.before, sent.bytes.tolist(), strict=True)
    return Counter((job.mesh.names[axis], COLLECTIVES[what], int(phases[b]), size) for axis, what, b, size in rows)


def test_tokens_go_to_their_experts_and_come_back_in_each_pass() -> None:
    one = ROWS * HIDDEN * BF16
    assert _sent(_job(8)) == {
        ("ep", "all_to_all", Phase.FORWARD, one): 2 * LAYERS,
        ("ep", "all_to_all", Phase.BACKWARD, one): 2 * LAYERS,
    }
    again = _sent(_job(8, recompute="full"))
    assert again[("ep", "all_to_all", Phase.RECOMPUTE, one)] + again[("ep", "all_to_all", Phase.BACKWARD, one)] == (
        4 * LAYERS
    )


@pytest.mark.parametrize("quantize", ["mxfp8", "fp8-current", "nvfp4"])
def test_rows_that_are_cast_for_the_products_travel_as_they_are_computed(quantize: str) -> None:
    """Frameworks cast behind the dispatch; nothing reads rows before they have come."""
    usual, cast = _job(8, system="dgx-b200"), _job(8, system="dgx-b200", quantize=quantize)
    assert _sent(cast) == _sent(usual)
    sent, trace = cast.step.transfers, cast.step.trace
    inputs, storage = trace.operators.inputs.lists(), trace.values.storage
    for after, before, value in zip(sent.after, sent.before, sent.value, strict=True):
        read = [
            row for row in range(after + 1, len(trace))
            if not trace.operators.view[row] and storage[value] in {storage[v] for v in inputs[row]}
        ]  # fmt: skip
        assert read[0] == before


@pytest.mark.parametrize("dispatch", ["alltoall", "allgather"])
def test_rows_go_in_8_bits_and_come_back_as_they_are_computed(dispatch: str) -> None:
    """A byte an element and a float32 for every 128 (DeepSeek-V3, section 3.3.3), forward and backward."""
    usual, short = (_sent(_job(8, options={"dispatch": dispatch, **more})) for more in ({}, {"dispatch_type": "fp8"}))
    (size,) = {row[3] for row in usual}
    less = size // BF16 + size // BF16 // 128 * 4
    there, back = ("all_to_all",) * 2 if dispatch == "alltoall" else ("all_gather", "reduce_scatter")
    assert short == {
        ("ep", kind, phase, sent): LAYERS
        for phase in (Phase.FORWARD, Phase.BACKWARD) for kind, sent in ((there, less), (back, size))
    }  # fmt: skip


@pytest.mark.parametrize("ep", [1, 4])
@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25])
def test_a_capacity_gives_every_expert_as_many_rows(ep: int, capacity: float) -> None:
    """Padded or dropped: rows of products, and what is sent, are the mean times the capacity factor."""
    mean, job = _job(ep), _job(ep, options={"capacity": capacity})
    of_experts = [
        float(np.nansum([
            flop for flop, call in zip(one.step.trace.operators.flop, calls_of(one.step.trace), strict=True)
            if call.kind == "experts"
        ]))
        for one in (mean, job)
    ]  # fmt: skip
    assert of_experts[1] == pytest.approx(capacity * of_experts[0])
    sent = [{size for axis, *_, size in _sent(one) if axis == "ep"} for one in (mean, job)]
    assert sent[1] == {capacity * size for size in sent[0]}


def _rows_sent(ep: int, **options: object) -> int:
    return max(size for axis, *_, size in _sent(_job(ep, options=options)) if axis == "ep")


@pytest.mark.parametrize(("options", "times"), [({}, 1.0), ({"imbalance": 2.0}, 1.25), ({"routing": "zipf:4"}, 1.25)])
def test_without_padding_experts_take_what_comes_up_to_their_capacity(options: dict[str, object], times: float) -> None:
    """The fullest of eight ranks, of one expert each: at most 1.25 times the mean, and the mean where all are alike."""
    mean = _rows_sent(8)
    assert _rows_sent(8, capacity=1.25, padded=False, **options) == pytest.approx(times * mean, rel=1e-3)
    assert _rows_sent(8, capacity=100, padded=False, **options) == _rows_sent(8, **options)  # dropless
    assert _rows_sent(8, capacity=0.5, padded=False, **options) == pytest.approx(0.5 * mean, rel=1e-3)


def test_what_an_expert_drops_is_not_given_to_another() -> None:
    shares = rank_shares(4.0, 8, 2, 4, capacity=1.25)
    assert shares.max() <= 2 * 1.25 / 8
    assert shares.sum() < 1
    assert rank_shares(4.0, 8, 2, 4).sum() == pytest.approx(1)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_rank_has_a_part_of_the_experts_and_the_work_of_a_mean_one(ep: int) -> None:
    whole, part = _job(1), _job(ep)
    weights = [int(job.step.trace.values.elements()[job.step.trace.weights()].sum()) for job in (whole, part)]
    assert weights[0] - weights[1] == WEIGHTS - WEIGHTS // ep
    products = [np.nansum(job.step.trace.operators.flop) for job in (whole, part)]
    other = [job.step.trace.operators.phase != Phase.OPTIMIZER for job in (whole, part)]
    products = [np.nansum(job.step.trace.operators.flop[rows]) for job, rows in zip((whole, part), other, strict=True)]
    assert products[0] == products[1]


def _states(job: CompiledJob) -> int:
    values = job.step.trace.values
    update = job.step.trace.operators.phase == Phase.OPTIMIZER
    touched = np.zeros(len(values), bool)
    touched[job.step.trace.operators.inputs.values[update[job.step.trace.operators.inputs.rows()]]] = True
    own = np.flatnonzero(touched & (values.category == Category.OPTIMIZER_STATE) & (values.version == 0))
    return int(values.elements()[own].sum())


@pytest.mark.parametrize("zero", [0, 1])
def test_states_and_gradients_of_experts_are_those_of_the_ranks_that_have_them(zero: int) -> None:
    """16 replicas, 8 of which have all experts: theirs are reduced by two, the others' by sixteen."""
    whole, job = _job(1, zero=zero), _job(8, zero=zero)
    all_weights = int(whole.step.trace.values.elements()[whole.step.trace.weights()].sum())
    others = all_weights - WEIGHTS
    ways, apart = (16, 2) if zero else (1, 1)
    expected = 3 * (WEIGHTS // 8 // apart + others / ways)
    assert _states(job) == pytest.approx(expected, rel=0.01)  # float32 weights and two moments; parts are rounded up
    sent: Counter = Counter()
    for row in triosim.simulate(*_asked(8, zero)).collectives:
        sent[row.axis, row.kind, row.group_size] += row.bytes * row.count
    kind = "reduce_scatter" if zero else "all_reduce"
    assert sent["edp", kind, 2] == WEIGHTS // 8 * BF16
    assert sent["dp", kind, 16] == others * BF16
    if zero:
        assert sent["edp", "all_gather", 2] == WEIGHTS // 8 * BF16
        assert sent["dp", "all_gather", 16] == others * BF16


def _asked(ep: int, zero: int, rules: tuple[str, ...] = (), **options):
    trace = triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=SIZES)
    plan = {"parallelism": (*rules, "experts"), "parallelism_options": {"ep": ep, **options.pop("options", {})},
            "batch_size": BATCH, "zero": zero, **options}  # fmt: skip
    return trace, triosim.system("dgx-h100", nodes=2), *asked(host="none", **plan)


def _sums(ep: int, zero: int, rules: tuple[str, ...] = (), **options) -> tuple[dict[tuple[str, str], int], int]:
    """Bytes of each kind along each axis in an iteration, and of the parameters that are no experts."""
    trace, *rest = _asked(ep, zero, rules, **options)
    elements, sent = trace.values.elements()[trace.weights()], Counter[tuple[str, str]]()
    for row in triosim.simulate(trace, *rest).collectives:
        sent[row.axis, row.kind] += row.bytes * row.count
    return dict(sent), (int(elements.sum()) - WEIGHTS) * BF16


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("zero", [2, 3])
def test_experts_are_gathered_among_the_ranks_that_have_them(ep: int, zero: int) -> None:
    """With fewer experts on a rank than ranks that share them they are cut along their second dimension."""
    sent, others = _sums(ep, zero)
    own, times = WEIGHTS // ep * BF16, zero - 1
    again = (4 * HIDDEN * HIDDEN + EXPERTS * HIDDEN + 2 * HIDDEN) * LAYERS * BF16 if zero == 3 else 0
    assert sent["edp", "all_gather"] == times * own
    assert sent["edp", "reduce_scatter"] == own
    padded = LAYERS * (16 - EXPERTS) * HIDDEN * BF16  # a router's 8 rows, to 16 ranks
    assert sent["dp", "all_gather"] == others + again + padded * times
    assert not {("dp", "all_reduce"), ("edp", "all_reduce")} & sent.keys()


@pytest.mark.parametrize(("nodes", "ep", "padded"), [(4, 1, True), (1, 1, False), (4, 4, False)])
def test_experts_that_are_fewer_than_the_ranks_that_divide_them_are_padded_and_it_is_said(
    nodes: int, ep: int, padded: bool
) -> None:
    """8 experts among 32 ranks are gathered as 32, which is FSDP2's way as long as nothing divides them otherwise."""
    sizes = {**SIZES, "vocab_size": 64}
    plan = {"parallelism": (), "parallelism_options": {}} if ep == 1 else {}
    job = _job(ep, nodes, sizes=sizes, zero=3, **plan)
    told = [note for note in job.step.notes if "FSDP2 pads" in note]
    assert bool(told) == padded
    if padded:
        assert "zero 3: FSDP2 pads parameters to 3." in told[0]
        assert "--ep" in told[0]


def test_with_nobody_to_share_experts_with_they_are_gathered_by_nobody() -> None:
    trace, _, *rest = _asked(8, 3)
    system = triosim.system("dgx-h100")
    alone = triosim.simulate(trace, system, *rest)
    assert {row.axis for row in alone.collectives} == {"dp", "ep"}
    assert alone.memory.allocated_bytes < triosim.simulate(*_asked(1, 0)).memory.allocated_bytes


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_experts_within_the_groups_of_hybrid_sharding(ep: int) -> None:
    """2 groups of 8 ranks: gathered and scattered within a group, what is left all-reduced between the two."""
    sent, _ = _sums(ep, 3, ("hsdp",), options={"dp_replicate": 2})
    plain, _ = _sums(1, 3, ("hsdp",), options={"dp_replicate": 2})
    own, shared = WEIGHTS // ep * BF16, 8 // ep
    assert sent.get(("edp", "all_gather"), 0) == (2 * own if shared > 1 else 0)
    assert sent.get(("edp", "reduce_scatter"), 0) == (own if shared > 1 else 0)
    assert (
        plain["dp_replicate", "all_reduce"] - sent["dp_replicate", "all_reduce"] == WEIGHTS * BF16 // 8 - own // shared
    )


def test_a_part_of_the_experts_rests_on_a_rank() -> None:
    job = _job(4, zero=3)
    trace, apart = job.step.trace, job.step.apart
    of, size = resident(trace, 16, apart, 4)
    held = dict(zip(of.tolist(), size.tolist(), strict=True))
    assert sum(held[trace.values.storage[p]] for p in apart) == WEIGHTS // 16 * BF16
    whole = _job(1).step.trace
    assert _states(job) == pytest.approx(3 / 16 * int(whole.values.elements()[whole.weights()].sum()), rel=0.01)


@pytest.mark.parametrize("options", [{}, {"pp": 2, "micro_batches": 3}])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_of_experts_wait_on_the_host(zero: int, options: dict) -> None:
    trace, system, plan, fidelity = _asked(4, zero, **options)
    here = triosim.simulate(trace, system, plan, fidelity)
    there = triosim.simulate(trace, system, plan.replaced(offload=("optimizer",)), fidelity)
    assert there.memory.allocated_bytes < here.memory.allocated_bytes
    sums = [sum(row.bytes * row.count for row in r.collectives) for r in (here, there)]
    assert sums[0] == sums[1]


def test_with_all_replicas_in_a_group_experts_are_reduced_by_nobody() -> None:
    kinds = {(row.axis, row.kind) for row in triosim.simulate(*_asked(8, 0)).collectives}
    assert ("edp", "all_reduce") in kinds
    trace, _, *rest = _asked(8, 1)
    alone = triosim.simulate(trace, triosim.system("dgx-h100"), *rest).collectives
    assert {row.axis for row in alone} == {"dp", "ep"}


def test_one_rank_a_group_is_data_parallel() -> None:
    trace, system, plan, fidelity = _asked(1, 1)
    with_rule = triosim.simulate(trace, system, plan, fidelity)
    without = triosim.simulate(trace, system, plan.replaced(parallelism=(), parallelism_options={}), fidelity)
    assert with_rule.memory.allocated_bytes == without.memory.allocated_bytes
    sums = [sum(row.bytes * row.count for row in r.collectives) for r in (with_rule, without)]
    assert sums[0] == sums[1]


def test_the_fullest_rank_has_more_rows() -> None:
    even, skewed = _job(4), _job(4, options={"imbalance": 1.5})
    flop = [job.step.trace.operators.flop[job.step.trace.operators.phase == Phase.FORWARD] for job in (even, skewed)]
    more = np.nansum(flop[1]) - np.nansum(flop[0])
    products = LAYERS * 3 * 2 * ROWS * HIDDEN * INNER
    assert more == pytest.approx(0.5 * products, rel=0.02)  # and what lies between the products
    assert max(size for *_, size in _sent(skewed)) == 1.5 * max(size for *_, size in _sent(even))


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("chosen", [1, 2, 8])
def test_tokens_are_conserved_however_they_are_routed(ep: int, exponent: float, chosen: int) -> None:
    histogram = tuple((np.arange(1, 9) ** -exponent / np.sum(np.arange(1, 9) ** -exponent)).tolist())
    for routing in (exponent, histogram):
        experts, ranks = expert_shares(routing, 8, chosen), rank_shares(routing, 8, chosen, ep)
        assert experts.sum() == pytest.approx(1, rel=1e-12) == ranks.sum()
        assert experts.max() <= (1 + 1e-9) / chosen  # one row of a token at most
        assert np.all(np.diff(experts) <= 1e-12)
        assert ranks.max() >= (1 - 1e-12) / ep
    assert np.allclose(expert_shares(exponent, 8, 8), 1 / 8)  # a token that takes all
    turns, neighbours = (rank_shares(one, 8, chosen, ep).max() for one in (exponent, histogram))
    assert turns <= neighbours + 1e-12


def test_the_fullest_rank_of_a_routing_sets_rows_and_what_is_sent(tmp_path: Path) -> None:
    """Experts 0 and 1 get 30 % each, their rank 60 % of the rows where the mean of four is 25 %."""
    file = tmp_path / "tokens.txt"
    file.write_text("300 300 100 100, 50 50\n50 50\n")
    even, same, given, skewed = (
        _job(4, options=options) for options in ({}, {"routing": "zipf:0"}, {"imbalance": 2.4}, {"routing": str(file)})
    )
    assert _sent(even) == _sent(same)
    assert _flop(even) == _flop(same)
    assert _flop(given) == pytest.approx(_flop(skewed), rel=1e-3)
    most = [max(size for *_, size in _sent(job)) for job in (even, skewed)]
    assert 0 <= most[1] - 2.4 * most[0] < 1  # whole bytes
    file.write_text("[300, 300, 100, 100, 50, 50, 50, 50]\n")
    assert _sent(_job(4, options={"routing": str(file)})) == _sent(skewed)
    zipf = _job(8, options={"routing": "zipf:4"})  # each token takes the most popular one: half of all rows of 8 ranks
    assert max(size for *_, size in _sent(zipf)) == 4 * most[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0.5 0.3 0.1 0.02 0 0 0 0", "shares that sum to 0.92"),
        ("0 0 0 0 0 0 0 0", "sums to 0"),
        ("1 2 3", "routing has 3 experts, the layers 8"),
        ("5 0 0 0 0 0 0 0", "fewer experts with tokens than the 2"),
        ("a b", "is no histogram"),
        (None, "nor a file that can be read"),
        ("zipf:-1", "no exponent of 0 or more"),
    ],
)
def test_a_histogram_that_does_not_sum_is_a_sentence(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "tokens.txt"
    if content is not None and not content.startswith("zipf"):
        file.write_text(content)
    routing = content if content is not None and content.startswith("zipf") else str(file)
    with pytest.raises(PlanError, match=words):
        _job(4, options={"routing": routing})


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v2-lite", "qwen3-30b-a3b"])
def test_other_families(name: str) -> None:
    """Shared experts and routers stay whole; biases of experts go with them."""
    few = {"num_hidden_layers": 2}
    whole, part = (_job(ep, name=name, sizes=few, batch_size=1) for ep in (1, 4))
    values = whole.step.trace.values
    elements = values.elements()
    experts = sum(int(elements[w]) for w in whole.step.trace.weights().tolist() if ".experts." in values.name[w])
    kept = part.step.trace.values.elements()[part.step.trace.weights()].sum()
    assert experts
    assert elements[whole.step.trace.weights()].sum() - kept == experts - experts // 4
    assert len(part.step.transfers) % 4 == 0
    assert len(part.step.transfers)


def _whole(**plan) -> CompiledJob:
    trace = triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=SIZES)
    return prepare(trace, triosim.system("dgx-h100"), *asked(host="none", batch_size=BATCH, **plan))


@pytest.mark.parametrize("sequence", [False, True])
def test_experts_are_divided_on_the_tensor_axis_as_other_pairs_are(sequence: bool) -> None:
    """Column, then row; added up once tokens are in order again, as many rows as tokens: like a dense layer."""
    rules = ("sequence",) if sequence else ()
    whole, part = _whole(dp=1, idle_ok=True), _whole(tp=2, parallelism=rules)
    flop = [np.nansum(job.step.trace.operators.flop[job.step.trace.operators.phase == 0]) for job in (whole, part)]
    assert flop[1] * 2 == pytest.approx(flop[0], rel=0.005)  # the router is whole
    values = part.step.trace.values
    for weight in part.step.trace.weights().tolist():
        if "experts" in values.name[weight]:
            assert 2 * values.elements()[weight] == whole.step.trace.values.elements()[weight]
    sent = Counter({row: n for row, n in _sent(part).items() if row[3] == BATCH * LENGTH * HIDDEN * BF16})
    if not sequence:
        assert sent["tp", "all_reduce", Phase.FORWARD, BATCH * LENGTH * HIDDEN * BF16] == 2 * LAYERS + 1
        assert sum(sent.values()) == 4 * LAYERS + 2  # attention and experts, both ways; table and head


@pytest.mark.parametrize(("name", "queries"), [("deepseek-v2-lite", "q_proj"), ("deepseek-v3", "q_b_proj")])
def test_latent_attention_is_divided_by_heads(name: str, queries: str) -> None:
    """Queries and what keys and values are made of are cut together, though two values feed them."""
    sizes = {"num_hidden_layers": 1, "first_k_dense_replace": 1}
    trace = triosim.model(name, sequence_length=LENGTH, configuration=sizes)
    whole, part = (
        prepare(trace, triosim.system("dgx-h100"), *asked(host="none", batch_size=1, **plan))
        for plan in ({"dp": 1, "idle_ok": True}, {"tp": 2})
    )
    values = part.step.trace.values
    shares = {}
    for weight in part.step.trace.weights().tolist():
        share = values.elements()[weight] / whole.step.trace.values.elements()[weight]
        shares[values.name[weight].removeprefix("model.layers.0.").removesuffix(".weight")] = share
    cut = {f"self_attn.{name}" for name in (queries, "kv_b_proj", "o_proj")}
    assert {name for name, share in shares.items() if name.startswith("self_attn") and share == 0.5} == cut
    assert not part.step.notes


def test_both_ways_of_dividing_experts_go_together() -> None:
    """Each rank of the tensor axis sends its tokens to parts of experts like its own."""
    job = _job(4, tp=2)
    values = job.step.trace.values
    kept = sum(int(values.elements()[w]) for w in job.step.trace.weights().tolist() if "experts" in values.name[w])
    assert kept == WEIGHTS // 8
    assert sum(n for row, n in _sent(job).items() if row[0] == "ep") == 4 * LAYERS


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"ep": 3}, "dp 16 cannot be divided into groups of ep 3: sizes that fit are 1, 2, 4, 8, 16"),
        ({"ep": 16}, "the 8 experts of mixtral-8x7b, bfloat16 do not divide by ep 16: sizes that do are 1, 2, 4, 8"),
        ({"ep": 4, "dp_style": "dataparallel"}, "ep does not go with dataparallel"),
        (
            {"ep": 8, "parallelism": ("hsdp", "experts"), "options": {"dp_replicate": 4}, "zero": 3},
            "dp_shard 4 cannot be divided into groups of ep 8",
        ),
        ({"ep": 2, "parallelism": ("experts", "hsdp"), "options": {"dp_replicate": 4}, "zero": 3}, "name it before"),
        ({"ep": 4, "options": {"imbalance": 0.5}}, "imbalance 0.5 is no load"),
        (
            {"ep": 4, "options": {"capacity": 1.25, "routing": "zipf:1"}},
            "leave imbalance and routing out, or give padded",
        ),
        ({"ep": 4, "options": {"padded": False}}, "give capacity too"),
        ({"ep": 4, "name": "gpt2", "sizes": {"n_layer": 1}}, "has no layer of experts: leave ep out"),
    ],
)
def test_what_does_not_go_is_a_sentence(plan: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        _job(**plan)


def test_a_pipeline_of_experts_on_the_command_line() -> None:
    job = ("train", "mixtral-8x7b", "--seq-len", "64", "--system", "dgx-h100", "--nodes", "2", "--json", "-")
    done = run(*job, "--pp", "2", "--ep", "4", "--zero", "1", "--micro-batches", "4", "--recompute", "full")
    assert done.returncode == 0, done.stderr
    assert '"ep"' in done.stdout
    routed = run(*job, "--ep", "4", "--parallelism-option", "routing=zipf:1")
    assert routed.returncode == 0, routed.stderr
    swept = run(*job[:-2], "--sweep", "ep=1,8", "zero=1")
    assert swept.returncode == 0, swept.stderr


def _flop(job: CompiledJob) -> float:
    operators = job.step.trace.operators
    return float(np.nansum(operators.flop[operators.phase != Phase.OPTIMIZER]))


@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_ranks_that_share_sequences_sort_tokens_of_their_own(batch: int, recompute: str) -> None:
    """Only keys and values are sent along the axis; a rank's tokens choose experts as they do without it."""
    whole, part = (
        _job(1, nodes=1, parallelism=rules, options=options, batch_size=batch, recompute=recompute)
        for rules, options in ((("experts",), {}), (("context", "experts"), {"cp": 2}))
    )
    assert _flop(part) * 2 == pytest.approx(_flop(whole), rel=1e-4)
    each = batch * LENGTH * HIDDEN * BF16
    sent = Counter((row[0], row[1], row[3]) for row in _sent(part).elements())
    passes = 1 + (recompute == "full")
    assert sent == {("cp", "all_gather", each): 2 * LAYERS * passes, ("cp", "reduce_scatter", each): 2 * LAYERS}
    rows = [shape[0] for shape in part.step.trace.values.shape.lists() if shape[1:] == (INNER,)]
    assert rows.count(batch * LENGTH * CHOSEN // 2) == len([n for n in rows if n not in (EXPERTS, HIDDEN)])


@pytest.mark.parametrize(("name", "more"), [
    ("gpt-oss-20b", {}), ("deepseek-v2-lite", {"first_k_dense_replace": 1}), ("qwen1.5-moe-a2.7b", {}),
])  # fmt: skip
def test_other_families_share_sequences(name: str, more: dict) -> None:
    """Biases of experts, shared experts and choices among groups, too, are worked on by each rank for itself."""
    sizes = {"num_hidden_layers": 2, **more}
    whole, part = (
        _job(1, nodes=1, name=name, sizes=sizes, parallelism=rules, options=options, batch_size=1)
        for rules, options in ((("experts",), {}), (("context", "experts"), {"cp": 2}))
    )
    assert _flop(part) * 2 == pytest.approx(_flop(whole), rel=1e-4)
    kinds = Counter((row[0], row[1]) for row in _sent(part).elements())
    assert kinds == {("cp", "all_gather"): 4, ("cp", "reduce_scatter"): 4}


@pytest.mark.parametrize(("ep", "zero"), [(2, 0), (4, 1), (8, 3)])
def test_experts_are_divided_among_ranks_that_share_sequences_too(ep: int, zero: int) -> None:
    """16 ranks, pairs of which share sequences: experts are reduced by 16 / ep, the others by all."""
    rules, options = ("context",), {"cp": 2}
    job = _job(ep, parallelism=(*rules, "experts"), options=options, zero=zero)
    one = ROWS // 2 * HIDDEN * BF16
    assert {row: n for row, n in _sent(job).items() if row[0] == "ep"} == {
        ("ep", "all_to_all", Phase.FORWARD, one): 2 * LAYERS,
        ("ep", "all_to_all", Phase.BACKWARD, one): 2 * LAYERS,
    }
    assert job.mesh.groups("ep")[0] == list(range(ep))
    assert job.mesh.groups("cp")[0] == [0, 1]
    sent, others = _sums(ep, zero, rules, options=options)
    kind = "reduce_scatter" if zero else "all_reduce"
    assert sent["edp", kind] == WEIGHTS // ep * BF16
    assert sent["dp_cp", kind] == pytest.approx(others, rel=0.02)  # padded from ZeRO 2 on
    assert not any(axis == "dp" for axis, _ in sent)
    assert job.mesh.size("edp") == 16 // ep


def test_what_chooses_experts_is_known_by_its_module() -> None:
    trace = triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=SIZES)
    nameless = replace(trace, operators=replace(trace.operators, module=np.full(len(trace), -1, np.int32)))
    plan = asked(host="none", parallelism=("context",), parallelism_options={"cp": 2}, batch_size=1)
    with pytest.raises(PlanError, match="tokens of mixtral-8x7b, bfloat16 choose experts, and where is not known"):
        prepare(nameless, triosim.system("dgx-h100"), *plan)
