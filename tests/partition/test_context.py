"""Sequences shared by the ranks of an axis: what is sent, what is computed, what is reduced where."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.partition.ring_attention import in_blocks
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.schedule.program import Op
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase

LAYERS, LENGTH, KEYS, BF16 = 2, 1024, 512, 2
SYSTEM = triosim.system("dgx-a100")


def _asked(cp: int, **plan):
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    rules = (*plan.pop("rules", ()), *(("context",) if cp else ()))
    options = {"cp": cp, "cp_style": plan.pop("style", "gather")} if cp else {}
    if options.get("cp_style") == "usp":
        options["cp_ulysses"] = plan.pop("ulysses", 2)
    if "merges" in plan:
        options["cp_merges"] = plan.pop("merges")
    return trace, SYSTEM, *asked(parallelism=rules, parallelism_options=options, host="none", **plan)


def _flop(job: CompiledJob) -> float:
    operators = job.step.trace.operators
    return float(np.nansum(operators.flop[operators.phase != Phase.OPTIMIZER]))


def _sent(job: CompiledJob, axis: str) -> Counter:
    """Kind, phase of what needs it and bytes -> how often, along an axis."""
    sent, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    rows = zip(sent.axis, sent.what, sent.before, sent.bytes.tolist(), strict=True)
    return Counter((COLLECTIVES[w], int(phases[b]), n) for a, w, b, n in rows if job.mesh.names[a] == axis)


def _gradients(size: int, ranks: int, merges: str) -> int:
    """Bytes that a ring passes on of gradients of ``size`` bytes: PyTorch's go round once more, in float32."""
    if merges == "fused":
        return size
    return ranks * math.ceil(size // BF16 // ranks * 4 * ranks / (ranks - 1))


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence",)}])
@pytest.mark.parametrize("style", ["gather", "ring", "ulysses", "usp"])
def test_a_rank_has_its_part_of_all_work(cp: int, more: dict, style: str) -> None:
    """Causal attention too: a rank's queries are from all over the sequence."""
    if cp == 8 and more:
        pytest.skip("8 devices")
    whole, part = prepare(*_asked(0, dp=1, idle_ok=True, **more)), prepare(*_asked(cp, style=style, **more))
    assert _flop(part) * cp == pytest.approx(_flop(whole), rel=1e-4)  # tables of positions are whole
    assert part.whole.meta.sequence_length == LENGTH


@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence",)}])
def test_keys_and_values_are_gathered_and_their_gradients_scattered(more: dict) -> None:
    job = prepare(*_asked(4, **more))
    each = LENGTH * KEYS * BF16 // more.get("tp", 1)
    assert _sent(job, "cp") == {
        ("all_gather", Phase.FORWARD, each): 2 * LAYERS,
        ("reduce_scatter", Phase.BACKWARD, each): 2 * LAYERS,
    }


@pytest.mark.parametrize("tp", [1, 2])
def test_heads_that_are_repeated_first_are_gathered_whole(tp: int) -> None:
    """8 heads of keys for 32 of queries: four times as much goes between ranks, which divide it by ``tp`` as before."""
    small = {"num_hidden_layers": LAYERS}
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration=small, repeated_heads=True)
    job = prepare(trace, *_asked(4, tp=tp)[1:])
    each = 4 * LENGTH * KEYS * BF16 // tp
    assert _sent(job, "cp") == {
        ("all_gather", Phase.FORWARD, each): 2 * LAYERS,
        ("reduce_scatter", Phase.BACKWARD, each): 2 * LAYERS,
    }
    operators, calls = job.step.trace.operators, calls_of(job.step.trace)
    rows = [row for row in range(len(operators)) if calls[row].kind == "attention"]
    assert {(calls[row].shape("query")[1], calls[row].shape("key")[1]) for row in rows} == {(32 // tp, 32 // tp)}


@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence",)}])
def test_heads_are_exchanged_for_positions(more: dict) -> None:
    """Of queries, keys, values and the result a rank sends what it has, and of their gradients."""
    job = prepare(*_asked(4, style="ulysses", **more))
    keys = LENGTH // 4 * KEYS * BF16 // more.get("tp", 1)
    queries = 4 * keys  # 32 heads of queries, 8 of keys
    assert _sent(job, "cp") == {
        ("all_to_all", phase, n): 2 * LAYERS for phase in (Phase.FORWARD, Phase.BACKWARD) for n in (keys, queries)
    }
    operators, calls = job.step.trace.operators, calls_of(job.step.trace)
    shapes = {calls[row].shape("key")[-3:-1] for row in range(len(operators)) if calls[row].kind == "attention"}
    assert shapes == {(8 // 4 // more.get("tp", 1), LENGTH)}


@pytest.mark.parametrize("merges", ["composed", "compiled", "fused"])
@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence",)}])
def test_keys_and_values_go_round_beside_attention(more: dict, merges: str) -> None:
    """All but the last block is computed while they do, in the backward with their gradients."""
    job = prepare(*_asked(4, style="ring", merges=merges, **more))
    each = LENGTH * KEYS * BF16 // more.get("tp", 1)
    assert _sent(job, "cp") == {
        ("all_gather", Phase.FORWARD, each): 2 * LAYERS,
        ("all_gather", Phase.BACKWARD, each): 2 * LAYERS,
        ("reduce_scatter", Phase.BACKWARD, _gradients(each, 4, merges)): 2 * LAYERS,
    }
    calls, sent = calls_of(job.step.trace), job.step.transfers
    rows = [row for row in range(len(job.step.trace)) if calls[row].kind == "attention"]
    assert [calls[row].args["blocks"] for row in rows] == [[3, 4], [1, 4]] * (2 * LAYERS)
    assert {calls[row].shape("key")[-2] for row in rows} == {LENGTH // 4}
    assert len(rows) == len(set(rows[::2]) | {row - 1 for row in rows[1::2]}) * 2  # one right after the other
    for first, last in zip(rows[::2], rows[1::2], strict=True):
        beside = np.flatnonzero((sent.after < first) & (sent.before >= last) & (sent.after > first - 10))
        assert len(beside) >= 2
        assert not np.any(sent.before[beside] == first)


@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence",)}])
def test_neighbours_exchange_heads_and_pass_their_keys_round_the_others(more: dict) -> None:
    """4 ranks as 2 x 2: all-to-alls as Ulysses has them; round the ring goes half of what a ring of 4 would send."""
    job = prepare(*_asked(4, style="usp", **more))
    own = LENGTH // 4 * KEYS * BF16 // more.get("tp", 1)
    assert _sent(job, "cp_ulysses") == {
        ("all_to_all", phase, n): 2 * LAYERS for phase in (Phase.FORWARD, Phase.BACKWARD) for n in (own, 4 * own)
    }
    assert _sent(job, "cp_ring") == {
        ("all_gather", Phase.FORWARD, 2 * own): 2 * LAYERS,
        ("all_gather", Phase.BACKWARD, 2 * own): 2 * LAYERS,
        ("reduce_scatter", Phase.BACKWARD, _gradients(2 * own, 2, "composed")): 2 * LAYERS,
    }
    assert not _sent(job, "cp")
    assert (job.mesh.groups("cp_ulysses")[0], job.mesh.size("cp_ring")) == ([0, more.get("tp", 1)], 2)
    calls = calls_of(job.step.trace)
    rows = [row for row in range(len(job.step.trace)) if calls[row].kind == "attention"]
    assert [calls[row].args["blocks"] for row in rows] == [[1, 2], [1, 2]] * (2 * LAYERS)
    shapes = {calls[row].shape("key")[-3:-1] for row in rows}
    assert shapes == {(8 // 2 // more.get("tp", 1), LENGTH // 2)}


@pytest.mark.parametrize(("ulysses", "style"), [(4, "ulysses"), (1, "ring"), (0, "ulysses")])
def test_both_styles_are_corners_of_one(ulysses: int, style: str) -> None:
    """All ranks exchange heads, or none; of their own accord those of one server do."""
    both, one = (
        triosim.simulate(*_asked(4, style=how, sequence_length=4096, batch_size=1, **more))
        for how, more in (("usp", {"ulysses": ulysses}), (style, {}))
    )
    assert both.iteration_time_s == one.iteration_time_s
    assert both.memory == one.memory


@pytest.mark.parametrize("more", [{"pp": 2, "micro_batches": 2}, {"recompute": "full"}, {"zero": 3}])
def test_both_styles_at_once_with_other_ways(more: dict) -> None:
    once = prepare(*_asked(4, style="usp"))
    trace, system, plan, fidelity = _asked(4, style="usp", batch_size=2, **more)
    result = triosim.simulate(trace, system, plan, fidelity)
    sent = Counter(kind for kind, *_ in _sent(prepare(trace, system, plan, fidelity), "cp_ulysses").elements())
    passes = 3 if "recompute" in more else 2
    assert sent["all_to_all"] * 2 == passes * _sent(once, "cp_ulysses").total()
    assert {"cp_ring", "cp_ulysses", "dp_cp"} <= {row.axis for row in result.collectives}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cp": 8, "cp_style": "usp", "cp_ulysses": 3}, "cp-style usp of cp 8 ranks: 3 do not divide it: give cp-ul"),
        ({"cp": 8, "cp_style": "ring", "cp_ulysses": 2}, "cp-ulysses is of cp-style usp, not of ring"),
    ],
)
def test_neighbours_that_cannot_be_are_a_sentence(options: dict, words: str) -> None:
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    with pytest.raises(PlanError, match=words):
        prepare(trace, SYSTEM, *asked(parallelism=("context",), parallelism_options=options, host="none"))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("ring", ("merge_blocks", "merge_gradients")),
        ("ulysses", ("order_heads", "order_heads")),
        ("usp", ("merge_blocks", "order_heads", "merge_gradients", "order_heads")),
        ("gather", ()),
    ],
)
def test_copies_stand_behind_each_attention(style: str, names: tuple[str, ...], recompute: str) -> None:
    """In the forward, once more where it runs again, and in the backward; they work on what the attention made."""
    job = prepare(*_asked(4, style=style, recompute=recompute))
    operators, calls = job.step.trace.operators, calls_of(job.step.trace)
    rows = [row for row in range(len(operators)) if calls[row].kind == "context-copies"]
    assert len(rows) == len(names) * LAYERS * (3 if recompute == "full" else 2) // 2
    for row in rows:
        before = next(at for at in range(row, -1, -1) if calls[at].kind == "attention")
        assert row - before <= len(names) // 2
        assert calls[row].inputs[0][-2:] == calls[before].outputs[0][-2:] or style != "ring"
        assert operators.phase[row] == operators.phase[before]
        assert operators.bytes[row] > 0 == np.nan_to_num(operators.flop[row])


@pytest.mark.parametrize(
    ("merges", "batch", "bytes_moved"),
    [  # of 4 ranks and an element of the result, with keys and values half as many: as the module says
        ("fused", 1, (2 + 4 + 3 * 4.5, 1.5 * 6 * 3.25)),
        ("compiled", 1, (2 + 3 * 9.5, 2 + 1.5 * (4 * 8 + 2 * 3.25) + 3)),
        ("composed", 2, (8 + 12 + 3 * (0.75 * 38 + 4), 8 + 6 + 1.5 * (10 * 3.25 + 3 * 4) + 5 * 4 + 9)),
    ],
)
def test_bytes_of_merges(merges: str, batch: int, bytes_moved: tuple[float, float]) -> None:
    """Keys of 8 heads for 32 of queries: keys and values together are half as many elements as the result."""
    job = prepare(*_asked(4, style="ring", merges=merges, batch_size=batch))
    operators, calls = job.step.trace.operators, calls_of(job.step.trace)
    for phase, each in zip((Phase.FORWARD, Phase.BACKWARD), bytes_moved, strict=True):
        rows = [row for row in np.flatnonzero(operators.phase == phase).tolist() if calls[row].kind == "context-copies"]
        elements = math.prod(calls[rows[0]].inputs[0])
        assert operators.bytes[rows].tolist() == pytest.approx([each * elements] * LAYERS)


def test_attention_in_blocks_is_what_it_was() -> None:
    """Of a step that nobody divides too: each part of the work, and of the time that was recorded."""
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    seconds = np.linspace(1e-6, 2e-6, len(trace))
    timed = replace(trace, operators=replace(trace.operators, device_s=seconds))
    made = in_blocks(timed, 4)
    attention = [row for row in range(len(trace)) if calls_of(trace)[row].kind == "attention"]
    assert len(made) == len(trace) + len(attention)
    assert made.operators.device_s.sum() == pytest.approx(seconds.sum())
    assert np.nansum(made.operators.flop) == pytest.approx(np.nansum(trace.operators.flop))
    was, now = trace.operators.forward, made.operators.forward
    assert np.count_nonzero(now >= 0) >= np.count_nonzero(was >= 0)
    for row in np.flatnonzero(now >= 0).tolist():
        assert made.operators.module[now[row]] == made.operators.module[row]


def test_ring_keeps_no_gathered_keys_and_hides_what_is_sent() -> None:
    """Long sequences: the time of the transfers is hidden, where gathering is not."""
    found = {}
    for style in ("gather", "ring"):
        trace, system, plan, fidelity = _asked(8, style=style, sequence_length=32768, batch_size=1, merges="fused")
        found[style] = triosim.simulate(trace, system, plan, fidelity)
    assert found["ring"].memory.allocated_bytes < found["gather"].memory.allocated_bytes
    hidden, gathered = (found[style].breakdown_s.exposed_communication for style in ("ring", "gather"))
    assert hidden < gathered


def test_a_recomputed_attention_is_exchanged_again() -> None:
    once, again = (prepare(*_asked(4, style="ulysses", recompute=how)) for how in ("none", "full"))
    kinds = [Counter(kind for kind, *_ in _sent(job, "cp").elements()) for job in (once, again)]
    assert kinds[1]["all_to_all"] - kinds[0]["all_to_all"] == 4 * LAYERS


def test_the_tensor_axis_sends_a_part_of_the_sequence() -> None:
    """As without, of sequences a fourth as long; the loss reduces a number for each of the own rows."""
    whole, part = (prepare(*_asked(cp, tp=2, rules=("sequence",), **plan)) for cp, plan in ((0, {}), (4, {})))
    sizes = [sorted(_sent(job, "tp").elements()) for job in (whole, part)]
    norms = [[row for row in rows if row[1] == Phase.OPTIMIZER] for rows in sizes]  # their gradients: no tokens
    tokens = [[row for row in rows if row[1] != Phase.OPTIMIZER] for rows in sizes]
    assert norms[0] == norms[1]
    assert sorted((kind, phase, n // 4) for kind, phase, n in tokens[0]) == sorted(tokens[1])


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_gradients_are_reduced_along_both_axes_at_once(zero: int) -> None:
    trace, system, plan, fidelity = _asked(4, zero=zero)
    result = triosim.simulate(trace, system, plan, fidelity)
    whole = int(trace.values.bytes()[trace.weights()].sum())
    sent: Counter = Counter()
    for row in result.collectives:
        sent[row.axis, row.kind, row.group_size] += row.bytes * row.count
    reduced = ("dp_cp", "reduce_scatter" if zero else "all_reduce", 8)
    assert sent[reduced] == whole
    assert {axis for axis, *_ in sent} == {"cp", "dp_cp"}


@pytest.mark.parametrize("style", ["gather", "ring", "ulysses"])
@pytest.mark.parametrize(
    "more", [{"pp": 2, "micro_batches": 4}, {"micro_batches": 2, "zero": 1}, {"recompute": "full"}]
)
def test_with_pipelines_micro_batches_and_recomputation(more: dict, style: str) -> None:
    trace, system, plan, fidelity = _asked(2, global_batch_size=16, style=style, **more)
    result = triosim.simulate(trace, system, plan, fidelity)
    without = triosim.simulate(trace, system, plan.replaced(parallelism=(), parallelism_options={}), fidelity)
    assert result.throughput.tokens_per_s == pytest.approx(16 * LENGTH / result.iteration_time_s)
    assert result.iteration_time_s < 2 * without.iteration_time_s
    assert result.memory.allocated_bytes == pytest.approx(without.memory.allocated_bytes, rel=0.01)  # gathered keys


def test_a_global_batch_is_that_of_the_replicas_that_are_left() -> None:
    """8 samples in 8 micro-batches: the 8 ranks are one replica."""
    job = prepare(*_asked(8, global_batch_size=8, micro_batches=8))
    assert (job.mesh.replicas, job.mesh.batch_size, job.mesh.micro_batch_size) == (1, 8, 1)


def _hybrid(cp: int, replicate: int, rules: tuple[str, ...] = ("hsdp", "context")) -> CompiledJob:
    trace, system, plan, fidelity = _asked(0, dp=8, zero=3)
    options = {"dp_replicate": replicate, **({"cp": cp} if cp > 1 else {})}
    plan = plan.replaced(parallelism=rules if cp > 1 else ("hsdp",), parallelism_options=options)
    return prepare(trace, system, plan, fidelity)


@pytest.mark.parametrize("replicate", [1, 2, 4])
def test_groups_of_hybrid_sharding_hold_whole_sequences(replicate: int) -> None:
    """As torchtitan's ``dp_shard_cp``: parameters are gathered from the ranks of a sequence and those beside them."""
    without, job = _hybrid(1, replicate), _hybrid(2, replicate)
    names, shard = job.mesh.names, 8 // replicate

    def exchanged(of: CompiledJob) -> Counter:
        (program,) = of.programs
        rows = np.flatnonzero(program.op == Op.COLLECTIVE).tolist()
        sent = ((of.mesh.names[program.axis[i]], COLLECTIVES[program.what[i]], int(program.bytes[i])) for i in rows)
        return Counter(one for one in sent if one[0] != "cp")

    assert exchanged(job) == exchanged(without)
    assert {axis for axis, _, _ in exchanged(job)} == {"dp_shard", *(["dp_replicate"] if replicate > 1 else [])}
    assert job.mesh.groups("dp_shard") == [list(range(at, at + shard)) for at in range(0, 8, shard)]
    assert job.mesh.groups("cp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (job.mesh.replicas, without.mesh.replicas) == (4, 8)
    assert "cp" in names


def test_a_sequence_is_in_one_group_of_hybrid_sharding() -> None:
    with pytest.raises(PlanError, match=r"the 2 ranks of a group of hsdp .*of cp 4: .*dp-replicate"):
        _hybrid(4, 4)
    with pytest.raises(PlanError, match=r"hsdp: its groups are of plain replicas, .* before context"):
        _hybrid(2, 2, ("context", "hsdp"))


def test_one_rank_is_data_parallel() -> None:
    trace, system, plan, fidelity = _asked(1, zero=1)
    one = triosim.simulate(trace, system, plan, fidelity)
    none = triosim.simulate(trace, system, plan.replaced(parallelism=(), parallelism_options={}), fidelity)
    assert one.iteration_time_s == none.iteration_time_s
    assert one.memory.allocated_bytes == none.memory.allocated_bytes


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("dp 8 has no room for an axis cp of 3: sizes that fit are 1, 2, 4, 8", {"cp": 3}),
        ("does not divide into two parts for each of cp 8 ranks: nearest that do are 1008 or 1024",
         {"cp": 8, "sequence_length": 1016}),
        ("cp goes with ZeRO, hsdp, diloco and plain data parallelism, before", {"cp": 2, "rules": ("experts",)}),
    ],
)  # fmt: skip
def test_what_does_not_go_is_a_sentence(words: str, plan: dict) -> None:
    with pytest.raises(PlanError, match=words):
        prepare(*_asked(**plan))


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("the 4 heads of keys or queries that a rank has do not divide by cp 8 for cp-style ulysses: sizes that do are "
         "1, 2, 4; gather and ring take any", {"configuration": {"num_hidden_layers": 1, "num_key_value_heads": 4}}),
        ("attention of .* is several operators, .*give --attention flash2",
         {"configuration": {"num_hidden_layers": 1}, "attention": "unfused"}),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_exchanged_are_a_sentence(words: str, how: dict) -> None:
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, **how)
    plan = asked(parallelism=("context",), parallelism_options={"cp": 8, "cp_style": "ulysses"}, host="none")
    with pytest.raises(PlanError, match=words):
        prepare(trace, SYSTEM, *plan)


def test_on_the_command_line() -> None:
    job = ("train", "llama-3.2-1b", "--seq-len", "256", "--system", "dgx-a100")
    done = run(*job, "--tp", "2", "--sequence-parallel", "--cp", "2", "--zero", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workload"]["sequence_length"] == 256
    assert "dp_cp" in done.stdout
    swept = run(*job, "--sweep", "cp=1,2,4", "tp=1,2")
    assert swept.returncode == 0, swept.stderr
    assert "cp" in swept.stdout


APERTUS = {
    "model_type": "apertus", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": LENGTH,
}  # fmt: skip


@pytest.mark.parametrize("options", [{"dp": 4}, {"dp": 4, "cp": 4}])
def test_parameters_within_an_activation_are_reduced_with_the_others(options: dict, tmp_path) -> None:
    """softplus of xIELU's two parameters is linear in its gradient: nothing is added up before it."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(APERTUS))
    trace = triosim.model(str(file), batch_size=8, sequence_length=LENGTH)
    rules = {"parallelism": ("context",), "parallelism_options": {"cp": 4}} if options.pop("cp", 0) else {}
    job = prepare(trace, SYSTEM, *asked(**options, **rules, batch_size=8, host="none", idle_ok=True))
    small = [n for n in job.step.transfers.bytes.tolist() if n <= 4]
    assert not small


INDEXED = {
    "model_type": "deepseek_v32", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 120, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("style", ["ulysses", "ring"])
def test_an_indexer_needs_all_keys_before_attention(style: str, tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(INDEXED))
    trace = triosim.model(str(file), batch_size=8, sequence_length=LENGTH)
    plan = asked(parallelism=("context",), parallelism_options={"cp": 2, "cp_style": style}, host="none")
    with pytest.raises(
        PlanError, match=f"an indexer of config.* scores all keys .* cp-style {style} gives no rank all"
    ):
        prepare(trace, SYSTEM, *plan)
