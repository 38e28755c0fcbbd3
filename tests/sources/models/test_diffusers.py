"""Diffusion models against ``diffusers``' own, called on fake tensors."""

from __future__ import annotations

import json

import pytest

from tests.sources.models.test_against_torch import Log, computing, our_rows
from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.modelling import model
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BATCH, TEXT = 2, 8
FLUX = {
    "num_layers": 2, "num_single_layers": 2, "num_attention_heads": 4, "attention_head_dim": 16,
    "joint_attention_dim": 24, "pooled_projection_dim": 20, "axes_dims_rope": [4, 6, 6], "in_channels": 64,
}  # fmt: skip


def flux_inputs() -> dict:
    """Of an image of 64 pixels, 16 tokens."""
    return {
        "hidden_states": torch.empty(BATCH, 16, 64), "encoder_hidden_states": torch.empty(BATCH, TEXT, 24),
        "pooled_projections": torch.empty(BATCH, 20), "timestep": torch.empty(BATCH),
        "img_ids": torch.empty(16, 3), "txt_ids": torch.empty(TEXT, 3),
    }  # fmt: skip


UNET = {
    "block_out_channels": [32, 64, 64], "transformer_layers_per_block": [1, 1, 2], "attention_head_dim": [2, 4, 4],
    "cross_attention_dim": 24, "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 68,
    "norm_num_groups": 8, "sample_size": 8, "addition_embed_type": "text_time", "use_linear_projection": True,
    "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
    "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
}  # fmt: skip


UNET_OF_SD_1 = {
    "block_out_channels": [16, 32, 32], "attention_head_dim": 4, "cross_attention_dim": 24, "norm_num_groups": 8,
    "sample_size": 8, "layers_per_block": 1, "addition_embed_type": None, "mid_block_type": "UNetMidBlock2DCrossAttn",
    "down_block_types": [*["CrossAttnDownBlock2D"] * 2, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 2],
}  # fmt: skip
UNET_OF_SD_2 = {
    **UNET_OF_SD_1, "attention_head_dim": [2, 4, 4], "layers_per_block": 2, "use_linear_projection": True,
    "upcast_attention": True,
}  # fmt: skip


def plain_unet_inputs() -> dict:
    return {name: value for name, value in unet_inputs().items() if name != "added_cond_kwargs"}


def unet_inputs() -> dict:
    conditions = {"text_embeds": torch.empty(BATCH, 20), "time_ids": torch.zeros(BATCH, 6, dtype=torch.long)}
    return {
        "sample": torch.empty(BATCH, 4, 8, 8), "timestep": torch.zeros(BATCH, dtype=torch.long),
        "encoder_hidden_states": torch.empty(BATCH, TEXT, 24), "added_cond_kwargs": conditions,
    }  # fmt: skip


VAE = {
    "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 8, "latent_channels": 4,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2, "sample_size": 64,
}  # fmt: skip


def vae_inputs() -> dict:
    return {"sample": torch.empty(BATCH, 3, 64, 64), "sample_posterior": True}


DIT = {
    "num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8, "num_embeds_ada_norm": 10,
    "norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate",
}  # fmt: skip


def dit_inputs() -> dict:
    numbers = torch.zeros(BATCH, dtype=torch.long)
    return {"hidden_states": torch.empty(BATCH, 4, 8, 8), "timestep": numbers, "class_labels": numbers}


CASES = {
    "dit": ("DiTTransformer2DModel", DIT, {}, dit_inputs),
    "vae": ("AutoencoderKL", VAE, {}, vae_inputs),
    "vae without quantization": (
        "AutoencoderKL", {**VAE, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}, {},
        vae_inputs,
    ),
    "unet": ("UNet2DConditionModel", UNET, {"text_length": TEXT}, unet_inputs),
    "unet of Stable Diffusion 1": ("UNet2DConditionModel", UNET_OF_SD_1, {"text_length": TEXT}, plain_unet_inputs),
    "unet of Stable Diffusion 2": ("UNet2DConditionModel", UNET_OF_SD_2, {"text_length": TEXT}, plain_unet_inputs),
    "flux": ("FluxTransformer2DModel", FLUX, {"text_length": TEXT}, flux_inputs),
    "flux with guidance": (
        "FluxTransformer2DModel", {**FLUX, "guidance_embeds": True}, {"text_length": TEXT},
        lambda: {**flux_inputs(), "guidance": torch.empty(BATCH)},
    ),
}  # fmt: skip
"""Class, configuration, what of ours is no part of that, and inputs."""


def theirs(name, configuration, inputs):
    """Parameters, forward and backward rows."""
    cls = getattr(pytest.importorskip("diffusers"), name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
            net = cls(**configuration)
            for module in net.modules():
                if type(module).__name__ == "RMSNorm":  # one kernel, as ours
                    module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
            with Log() as log:
                y = net(**inputs()).sample
                loss = F.mse_loss(y.float(), torch.empty_like(y).float())
                forward = len(log.rows)
                loss.backward()
    finally:
        torch.set_default_dtype(before)
    return [(n, tuple(p.shape)) for n, p in net.named_parameters()], log.rows[:forward], log.rows[forward:]


def built(name, configuration, more, folder):
    """The step of a file as ``diffusers`` writes it."""
    file = folder / "config.json"
    file.write_text(json.dumps({"_class_name": name, "_diffusers_version": "0.30.0", **configuration}))
    return model(str(file), batch_size=BATCH, image_size=64, configuration=more)


@pytest.fixture(params=CASES, scope="module")
def both(request, tmp_path_factory):
    name, configuration, more, inputs = CASES[request.param]
    trace = built(name, configuration, more, tmp_path_factory.mktemp("model"))
    return theirs(name, configuration, inputs), trace


def test_same_parameters_in_the_same_order(both):
    (parameters, _, _), trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == parameters


LAYOUT = ("clone", "copy", "copy_", "new_empty_strided")
"""Copies that the autoencoder's convolutions need for their layout, which depends on the device."""


def kept(rows) -> list[tuple]:
    """All but what turns of the places of tokens alone or counts frequencies, and numbers."""
    found = [(name.replace("_fused_rms_norm", "native_layer_norm"), shape) for name, shape in computing(rows, False)]
    angles = [row for row in found if row[1][:1] == (16 + TEXT,) or row[1] in ((2,), (3,))]
    return [row for row in found if row not in angles and row[0] != "scalar_tensor"]


def test_same_operators_in_the_same_order(both):
    (_, forward, backward), trace = both
    leaves_out = LAYOUT if trace.modules.path[0].startswith("encoder") else ()
    for phase, rows in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        ours = [row for row in kept(our_rows(trace, phase)) if row[0] not in leaves_out]
        assert ours == [row for row in kept(rows) if row[0] not in leaves_out]


@pytest.mark.parametrize("case", CASES)
def test_every_operator_is_known(case, tmp_path):
    name, configuration, more, _ = CASES[case]
    trace = built(name, configuration, more, tmp_path)
    assert all(kind(operator) != "other" for operator in trace.operators.name)
    assert trace.meta.workload == "config, 64 pixels, bfloat16"
    assert trace.meta.notes == ()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"attention_head_dim": [5, 10]}, "differ in their levels"),
        ({"norm_num_groups": 33}, "320 channels are not divided by 5 heads and 33 groups"),
        ({"projection_class_embeddings_input_dim": 1536}, "holds six conditions and no text"),
    ],
)
def test_impossible_unet(change, complaint):
    with pytest.raises(InputError, match=complaint):
        model("sdxl", configuration=change)
    with pytest.raises(InputError, match="image_size 72 is not a multiple of 32"):
        model("sdxl", image_size=72)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"down_block_types": ["AttnDownBlock2D", "DownBlock2D", "DownBlock2D"]}, "down_block_types .* not supported"),
        ({"down_block_types": ["K"] * 3, "up_block_types": ["K"] * 3}, "down_block_types .* not supported"),
        ({"up_block_types": ["UpBlock2D"] * 3}, "down_block_types .* not supported"),
        ({"mid_block_type": "UNetMidBlock2D"}, "mid_block_type .* not supported"),
        ({"block_out_channels": [16, 32]}, "attends and block_out_channels differ in their levels"),
    ],
)
def test_impossible_blocks_of_a_unet(change, complaint, tmp_path):
    with pytest.raises(InputError, match=complaint):
        built("UNet2DConditionModel", {**UNET_OF_SD_1, **change}, {}, tmp_path)


def test_impossible_dit():
    with pytest.raises(InputError, match="positions for images of 256 pixels, not 64"):
        model("dit_diffusers", image_size=64)
    with pytest.raises(InputError, match="out_channels are fewer than in_channels"):
        model("dit_diffusers", configuration={"out_channels": 3})


def test_uncertainty_is_not_trained(tmp_path):
    name, configuration, more, _ = CASES["dit"]
    twice = built(name, {**configuration, "out_channels": 8}, more, tmp_path)
    losses = [row for row, operator in enumerate(twice.operators.name) if operator == "aten::mse_loss"]
    shape = twice.values.shape.lists()
    assert [tuple(shape[twice.operators.inputs.lists()[row][0]]) for row in losses] == [(BATCH, 4, 8, 8)]


def test_impossible_flux():
    with pytest.raises(InputError, match="image_size 72 is not a multiple of 16"):
        model("flux.1-dev", image_size=72)
    with pytest.raises(InputError, match="axes_dims_rope add up to 128, not to attention_head_dim 64"):
        model("flux.1-dev", configuration={"attention_head_dim": 64})
