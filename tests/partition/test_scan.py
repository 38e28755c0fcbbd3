"""Scans over ranks: heads are divided with their groups, the sequence is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.partition.divided import divided
from triosim import PlanError
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


@pytest.mark.parametrize("style", ["gather", "ring", "ulysses"])
def test_a_sequence_is_not_shared(style):
    plan = asked(parallelism=("context",), parallelism_options={"cp": 2, "cp_style": style}, host="none")
    with pytest.raises(PlanError, match=re.escape("pass a state along the sequence (state-space, linear attention)")):
        prepare(step_of("nemotron-h-8b"), triosim.system("dgx-a100"), *plan)
