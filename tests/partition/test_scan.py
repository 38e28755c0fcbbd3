"""Scans over ranks: heads are divided with their groups, the sequence is not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.partition.divided import divided
from triosim import PlanError
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase, check

CASES = {
    "nemotron-h-8b": {"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5},
    "qwen3-next-80b-a3b": {"num_hidden_layers": 4, "num_experts": 16},
    "falcon_h1": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 1024,
        "mamba_d_ssm": 512,
        "mamba_n_heads": 16,
        "mamba_n_groups": 8,
        "mamba_rms_norm": True,
    },
    "qwen3_5": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 1024,
    },
}


def step_of(name, **options):
    return triosim.model(name, batch_size=1, sequence_length=256, configuration=CASES[name], **options)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("name", CASES)
def test_each_rank_scans_its_heads(name, size, fused):
    trace = step_of(name, fused=fused)
    step = divided(trace, size)
    check(step.trace)
    whole, own = (
        [call for call in calls_of(one).unique if call.kind in ("scan", "causal-convolution", "gated-norm")]
        for one in (trace, step.trace)
    )
    assert len(whole) == len(own) > 0
    for kind in {call.kind for call in whole}:
        rows = [[row for row, call in enumerate(_each(one)) if call.kind == kind] for one in (trace, step.trace)]
        flop = [np.nansum(one.operators.flop[at]) for one, at in zip((trace, step.trace), rows, strict=True)]
        assert flop[1] == pytest.approx(flop[0] / size)


def _each(trace):
    calls = calls_of(trace)
    return [calls[row] for row in range(len(trace))]


def test_a_block_of_nemotron_sends_as_one_of_a_transformer():
    """Column by row: one all-reduce forward and one backward for each of its blocks."""
    step = divided(step_of("nemotron-h-8b"), 4)
    phase = step.trace.operators.phase[step.transfers.after]
    assert (phase == Phase.FORWARD).sum() == 5
    assert (phase == Phase.BACKWARD).sum() == 5


def test_one_group_is_left_whole_and_told():
    trace = triosim.model("mamba2-130m", sequence_length=256, configuration={"num_hidden_layers": 2})
    with pytest.raises(PlanError, match="tp 2 cannot divide any layer of mamba2-130m"):
        divided(trace, 2)
    step = divided(trace, 2, vocabulary=True)
    whole, own = (
        np.nansum(one.operators.flop[[call.kind == "scan" for call in _each(one)]]) for one in (trace, step.trace)
    )
    assert own == whole


SHARED = ("context",)


def shared(name, cp, style="gather", rules=SHARED, fused=False, configuration=None, **plan):
    trace = triosim.model(
        name, batch_size=1, sequence_length=256, configuration={**CASES[name], **(configuration or {})}, fused=fused
    )
    options = {"cp": cp, "cp_style": style} if cp > 1 else {}
    asking = asked(parallelism=rules if cp > 1 else rules[:-1], parallelism_options=options, host="none", **plan)
    return prepare(trace, triosim.system("dgx-a100"), *asking)


def sent(job):
    """Phase and bytes of what all-to-alls along the sequence send -> how often."""
    moved, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    rows = zip(moved.axis, moved.what, moved.before, moved.bytes.tolist(), strict=True)
    return Counter(
        (int(phases[b]), n) for a, w, b, n in rows if job.mesh.names[a] == "cp" and COLLECTIVES[w] == "all_to_all"
    )


def scanned(job):
    calls, operators = calls_of(job.step.trace), job.step.trace.operators
    found = [calls[row].kind in ("scan", "causal-convolution", "gated-norm") for row in range(len(operators))]
    return float(np.nansum(operators.flop[found]))


@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"tp": 2, "rules": ("sequence", *SHARED)}, {"recompute": "full"}])
@pytest.mark.parametrize("style", ["gather", "ring"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_that_share_a_sequence_scan_their_heads(name, style, more):
    whole = shared(name, 1, dp=1, idle_ok=True, **{"rules": SHARED, **more})
    part = shared(name, 4, style, **more)
    check(part.step.trace)
    assert scanned(part) * 4 == pytest.approx(scanned(whole), rel=1e-9)
    calls = [call for call in calls_of(part.step.trace).unique if call.kind in ("scan", "causal-convolution")]
    assert {call.shape("zxbcdt", "value", "input")[1] for call in calls} == {256}


@pytest.mark.parametrize("tp", [1, 2])
def test_bytes_of_a_state_space_layer_whose_sequence_is_shared(tp):
    """What the first product makes before and the scan's result after, and the gradients of both: what a rank has."""
    own, layers = 256 // 4, 2
    made, result = own * (2 * 8192 + 2 * 8 * 128 + 128) * 2 // tp, own * 8192 * 2 // tp
    job = shared("nemotron-h-8b", 4, fused=True, tp=tp)
    assert sent(job) == {(phase, n): layers for phase in (Phase.FORWARD, Phase.BACKWARD) for n in (made, result)}
    again = shared("nemotron-h-8b", 4, tp=tp)  # mamba_ssm's own backward makes the result again
    assert sent(again)[Phase.BACKWARD, result] == 2 * layers


def test_bytes_of_a_delta_rule_whose_sequence_is_shared():
    """Queries, keys and values before the convolution; decays in float32, rates; the result."""
    own, layers = 256 // 4, 3
    sizes = [own * (2 * 16 * 128 + 32 * 128) * 2, own * 32 * 4, own * 32 * 2, own * 32 * 128 * 2]
    assert sent(shared("qwen3-next-80b-a3b", 4)) == {
        (phase, n): layers for phase in (Phase.FORWARD, Phase.BACKWARD) for n in sizes
    }


def test_groups_go_to_all_ranks_whose_heads_read_them():
    own, layers, groups, cp = 256 // 4, 2, 2, 4
    job = shared("nemotron-h-8b", cp, fused=True, configuration={"n_groups": groups})
    assert sent(job)[Phase.FORWARD, own * (2 * 8192 + 2 * cp * 128 + 128) * 2] == layers


@pytest.mark.parametrize("more", [{"pp": 2}, {"zero": 3}, {"zero": 1, "tp": 2}])
def test_a_shared_sequence_goes_with_other_products(more):
    job = shared("nemotron-h-8b", 2, fused=True, **more)
    assert set(sent(job).values()) == {2}


def test_heads_that_do_not_divide_are_told():
    with pytest.raises(PlanError, match="of a scan that a rank has do not divide by cp 8"):
        shared("nemotron-h-8b", 8, fused=True, configuration={"n_groups": 4, "mamba_num_heads": 12})


def test_a_norm_of_heads_of_several_ranks_is_told():
    """mamba_ssm norms within the scan, Megatron-Core behind it, where tokens are divided again."""
    with pytest.raises(
        PlanError, match="norms the heads of each of 4 groups, which cp 8 ranks have parts of: give --st"
    ):
        shared("nemotron-h-8b", 8, configuration={"n_groups": 4})
    assert sent(shared("nemotron-h-8b", 8, fused=True, configuration={"n_groups": 4}))


@pytest.mark.parametrize("style", ["ulysses", "ring", "usp"])
def test_where_no_block_attends_every_style_is_the_same(style):
    trace = triosim.model("mamba2-130m", sequence_length=256, configuration={"num_hidden_layers": 2}, fused=True)
    options = [{"cp": 4, "cp_style": one, **({"cp_ulysses": 2} if one == "usp" else {})} for one in (style, "gather")]
    plans = [triosim.Plan(parallelism=SHARED, parallelism_options=one) for one in options]
    times = [triosim.simulate(trace, triosim.system("dgx-a100"), plan).iteration_time_s for plan in plans]
    assert times[0] == times[1]


@pytest.mark.parametrize("style", ["gather", "ring"])
def test_a_selective_scan_is_exchanged_by_channels(style):
    """Gates, inputs and steps before it and its result after it; B and C, which all channels read, whole."""
    own, layers, inner = 256 // 4, 2, 2 * 768
    job = prepared("mamba-130m", 4, style)
    assert sent(job)[Phase.FORWARD, own * inner * 2] >= 2 * layers
    calls = [call for call in calls_of(job.step.trace).unique if call.kind == "selective-scan"]
    assert {(call.shape("u")[1], call.shape("u")[2], call.shape("B")[1:]) for call in calls} == {
        (256, inner // 4, (256, 16))
    }
    (states,) = {call.outputs[-1] for call in calls if not call.backward}
    assert states[1] == inner // 4
    gradients = {call.outputs[:5] for call in calls if call.backward}
    part, shared = (1, 256, inner // 4), (1, 256, 16)
    assert gradients == {(part, part, (inner, 16), shared, shared)}


def prepared(name, cp, style):
    trace = triosim.model(name, batch_size=1, sequence_length=256, configuration={"num_hidden_layers": 2})
    asking = asked(parallelism=SHARED, parallelism_options={"cp": cp, "cp_style": style}, host="none")
    return prepare(trace, triosim.system("dgx-a100"), *asking)


def test_images_have_no_sequence_to_share():
    trace = triosim.model("resnet18")
    plan = triosim.Plan(parallelism=SHARED, parallelism_options={"cp": 2})
    with pytest.raises(PlanError, match=r"reads no sequences of tokens, and no image .* which --cp divides"):
        triosim.simulate(trace, triosim.system("dgx-a100"), plan)
