"""Switch Transformers: parameters as Hugging Face counts them, and which blocks have experts."""

from __future__ import annotations

import pytest

import triosim
from triosim import Plan
from triosim.sources.modelling import configured, model, parameters
from triosim.trace.tables import Phase

SMALL = {
    "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 4, "num_decoder_layers": 6, "num_heads": 4, "vocab_size": 120,
    "num_experts": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2,
}  # fmt: skip


@pytest.mark.parametrize("sparse", [(2, 2), (4, 6), (1, 3), (4, 1)])
def test_parameters_are_those_of_hugging_face(sparse: tuple[int, int]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    own = {**SMALL, "num_sparse_encoder_layers": sparse[0], "num_sparse_decoder_layers": sparse[1]}
    with torch.device("meta"):
        net = transformers.SwitchTransformersForConditionalGeneration(transformers.SwitchTransformersConfig(**own))
    assert parameters("switch", own) == sum(one.numel() for one in net.parameters())
    theirs = {name.rpartition(".experts.")[0] for name, _ in net.named_parameters() if ".experts." in name}
    ours = {name.rpartition(".experts.")[0] for name in configured("switch", own).weights().parameters}
    assert ours - {""} == theirs


def test_a_token_takes_one_expert() -> None:
    trace = model("switch", batch_size=2, sequence_length=16, configuration=SMALL)
    forward = [
        (trace.operators.name[row], trace.values.shape[trace.operators.outputs[row][0]].tolist())
        for row in range(len(trace))
        if trace.operators.phase[row] == Phase.FORWARD and trace.operators.name[row] == "aten::_grouped_mm"
    ]
    assert forward == [("aten::_grouped_mm", [32, 96]), ("aten::_grouped_mm", [32, 64])] * 4  # two blocks of each stack


def test_experts_are_divided_among_ranks() -> None:
    trace = model("switch", batch_size=8, sequence_length=16, configuration=SMALL)
    system = triosim.system(devices=4, device="A100", link="100GB/s")
    plan = Plan(dp=4, parallelism=("experts",), parallelism_options={"ep": 4})
    result = triosim.simulate(trace, system, plan, fit=False)
    exchanges = [row for row in result.collectives if row.kind == "all_to_all"]
    assert sum(row.count for row in exchanges) >= 4 * 4  # four blocks: there and back, forward and backward


def test_what_makes_no_sense_is_a_sentence() -> None:
    with pytest.raises(triosim.InputError, match="num_sparse_encoder_layers 5 is more than the 4 layers"):
        configured("switch", {**SMALL, "num_sparse_encoder_layers": 5})
    with pytest.raises(triosim.InputError, match="must be relu"):
        configured("switch", {**SMALL, "feed_forward_proj": "gated-gelu"})
