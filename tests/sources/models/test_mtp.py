"""What predicts a second token in DeepSeek-V3's training, against the same put together of Hugging Face's parts."""

from __future__ import annotations

import pytest

from tests.sources.models.test_against_torch import BATCH, LENGTH, Log, our_rows
from tests.sources.models.test_against_transformers import MLA, heavy, of_model
from triosim.operators import kind
from triosim.sources.modelling import configured, model, preset
from triosim.trace.tables import Category, Phase

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SIZES = {**MLA, "q_lora_rank": 24, "n_shared_experts": 1}


def with_further():
    """Hugging Face's model, and behind its blocks one that reads the next tokens."""
    config = transformers.DeepseekV3Config(**SIZES)
    net = deepseek.DeepseekV3ForCausalLM._from_config(config, attn_implementation="sdpa")
    block = deepseek.DeepseekV3DecoderLayer(config, config.num_hidden_layers)
    block.enorm, block.hnorm = (deepseek.DeepseekV3RMSNorm(config.hidden_size) for _ in range(2))
    block.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    block.shared_head = nn.ModuleDict({"norm": deepseek.DeepseekV3RMSNorm(config.hidden_size)})
    net.model.layers.append(block)
    for module in net.modules():
        if type(module).__name__.endswith("RMSNorm"):  # one kernel, as ours
            module.forward = lambda x, w=module.weight: F.layer_norm(x, (x.shape[-1],), w)
    return net.train()


def scores_of(net, tokens):
    """Scores of the next token and of the one behind it."""
    x = net.model(tokens, use_cache=False).last_hidden_state
    block = net.model.layers[-1]
    y = block.eh_proj(torch.cat((block.enorm(net.model.embed_tokens(tokens)), block.hnorm(x)), 2))
    turned = net.model.rotary_emb(y, torch.arange(LENGTH)[None])
    y = block(y, position_embeddings=turned)
    return net.lm_head(x), net.lm_head(block.shared_head["norm"](y))


@pytest.fixture(scope="module")
def theirs():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            net, tokens = with_further(), torch.zeros(BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                losses = [
                    F.cross_entropy(y.view(-1, y.shape[-1]).float(), tokens.view(-1)) for y in scores_of(net, tokens)
                ]
                loss = losses[0] + 0.3 * losses[1]
                forward = len(log.rows)
                loss.backward()
    finally:
        torch.set_default_dtype(before)
    return {n: tuple(p.shape) for n, p in net.named_parameters()}, log.rows[:forward], log.rows[forward:]


@pytest.fixture(scope="module")
def built():
    configuration = {k: v for k, v in SIZES.items() if k != "rope_interleave"}
    return model(
        "deepseek_v3", batch_size=BATCH, sequence_length=LENGTH,
        configuration={**configuration, "num_nextn_predict_layers": 1},
    )  # fmt: skip


def test_same_parameters(theirs, built):
    shape, names = built.values.shape.lists(), built.values.name
    assert {names[v]: tuple(shape[v]) for v in built.weights()} == theirs[0]


def test_same_products_norms_and_choices(theirs, built):
    for phase, rows in ((Phase.FORWARD, theirs[1]), (Phase.BACKWARD, theirs[2])):
        assert heavy(of_model(our_rows(built, phase))) == heavy(of_model(rows))


def test_both_losses_are_added(built):
    losses = [row for row, name in enumerate(built.operators.name) if name == "aten::nll_loss_forward"]
    assert len(losses) == 2
    assert (built.values.category == Category.LABEL).sum() >= 2


def test_only_training_has_it():
    few = {"num_hidden_layers": 4}
    plain = model("deepseek-v3", sequence_length=8, configuration=few, training=False)
    same = model("deepseek-v3-mtp", sequence_length=8, configuration=few, training=False)
    assert same.operators.name == plain.operators.name
    assert len(same.weights()) == len(plain.weights())
    trained = model("deepseek-v3-mtp", sequence_length=8, configuration=few)
    assert len(trained.weights()) > len(plain.weights())
    assert all(kind(name) != "other" for name in trained.operators.name)


def test_number_of_parameters_of_the_published_weights():
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3 counts 11.5 G of its own, and 0.9 G each of embedding and head."""
    own = preset("deepseek-v3-mtp").parameters - preset("deepseek-v3").parameters
    assert own == pytest.approx(11.5e9, rel=0.011)
    assert configured("deepseek-v3-mtp").untrained().weights().count() == preset("deepseek-v3").parameters
