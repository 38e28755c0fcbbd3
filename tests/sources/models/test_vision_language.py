"""Text models of vision-language models against Hugging Face's own, called on fake tensors with text alone."""

from __future__ import annotations

import json

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, our_rows
from tests.sources.models.test_against_transformers import LLAMA, heavy, of_model
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

TEXT = {
    **LLAMA, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}  # fmt: skip
IMAGES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
CASES = {
    "glm4v_moe": (
        "Glm4vMoe",
        {**TEXT, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
         "rope_parameters": {**TEXT["rope_parameters"], "mrope_section": [1, 1, 2]}},
        {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64},
    ),
    "qwen2_vl": ("Qwen2VL", TEXT, {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}),
    "qwen2_5_vl": ("Qwen2_5_VL", TEXT, {**IMAGES, "fullatt_block_indexes": [0]}),
    "qwen3_vl": ("Qwen3VL", {**TEXT, "head_dim": 16}, {**IMAGES, "deepstack_visual_indexes": [0]}),
    "qwen3_vl_moe": (
        "Qwen3VLMoe", {**TEXT, "head_dim": 16, **EXPERTS}, {**IMAGES, "deepstack_visual_indexes": [0]},
    ),
}  # fmt: skip
"""What their classes are called, and configurations of text and of images."""


@pytest.fixture(params=CASES, scope="module")
def both(request, tmp_path_factory):
    """Their parameters of text, forward and backward rows, and our trace of the file that they write."""
    name, text, images = CASES[request.param]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), initialization.no_init_weights():
            config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=images)
            cls = getattr(transformers, f"{name}ForConditionalGeneration")
            net = cls._from_config(config, attn_implementation="sdpa")
            for module in net.modules():
                if type(module).__name__.endswith("RMSNorm"):  # one kernel, as ours
                    module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            positions = torch.zeros(3, BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                scores = net(input_ids=tokens, position_ids=positions, use_cache=False).logits
                forward = len(log.rows)
                F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1)).backward()
            parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters() if "visual." not in name]
    finally:
        torch.set_default_dtype(before)
    folder = tmp_path_factory.mktemp("model")
    table = json.loads(config.to_json_string())
    (folder / "config.json").write_text(json.dumps(table))
    trace = model(str(folder), batch_size=BATCH, sequence_length=LENGTH)
    return parameters, log.rows[:forward], log.rows[forward:], trace


def test_same_parameters_in_the_same_order(both):
    parameters, _, _, trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    ours = [(names[v], tuple(shape[v])) for v in trace.weights()]
    assert ours == [(name.replace(".language_model", ""), size) for name, size in parameters]  # as files of weights say


def test_same_operators(both, request):
    """One by one, but for the small ones of a router that chooses from groups."""
    _, forward, backward, trace = both
    for phase, theirs in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        mine, others = of_model(our_rows(trace, phase)), of_model(theirs)
        apart = request.node.callspec.params["both"] == "glm4v_moe"
        assert heavy(mine) == heavy(others)
        assert apart or mine == others


def test_images_are_told_to_be_passed_over(both):
    *_, trace = both
    assert any("vision_config" in note for note in trace.meta.notes)


def test_a_file_that_has_the_text_model_on_its_own_level(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen2_vl", **LLAMA, "vision_config": {"hidden_size": 64}}))
    assert model(str(file), sequence_length=8).meta.notes == (f"{file}: passed over vision_config",)
