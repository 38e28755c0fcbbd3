"""What every built trace must be: whole, connected, counted right, and proportional to batch and sequence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.core.columns import Ragged
from triosim.operators import kind
from triosim.sources.modelling import model, presets
from triosim.trace.tables import BATCH, NONE, SEQUENCE, Category, Phase, Trace, check
from triosim.transform.rescale import establish_symbols, rescale

SMALL = {
    "gpt": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 50, "resid_pdrop": 0.1},
    "llama": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50, "tie_word_embeddings": True,
    },
    "bert": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
        "max_position_embeddings": 64,
    },
    "resnet": {"layers": [1, 2], "bottleneck": True},
    "vgg": {"layers": [1, 1, 1, 2, 1]},
    "densenet": {"block_config": [2, 3], "growth_rate": 8, "num_init_features": 16},
    "roberta": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
        "max_position_embeddings": 66,
    },
    "vit": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 64,
    },
    "convnext": {"depths": [1, 2], "hidden_sizes": [8, 16]},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": 50},
}  # fmt: skip
TEXT = ("gpt", "llama", "bert", "roberta", "t5")


def small(family: str, batch: int = 2, length: int = 16, **options) -> Trace:
    sizes = {"sequence_length": length} if family in TEXT else {"image_size": 64}
    return model(family, batch_size=batch, configuration=SMALL[family], **sizes, **options)


@pytest.fixture(params=[(f, o) for f in SMALL for o in ({}, {"fused": True}, {"precision": "float16"})], ids=str)
def trace(request):
    family, options = request.param
    return small(family, **options)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "bert-base", "resnet50", "densenet121", "vgg13"])
@pytest.mark.parametrize("training", [True, False])
def test_presets_are_sound(name, training):
    check(model(name, training=training))


def test_sound(trace):
    check(trace)
    assert trace.values.dtype.min() > 0  # no element type is unknown
    assert all(kind(name) != "other" for name in trace.operators.name)


def test_everything_read_was_there_or_was_made(trace):
    """What no operator made is a parameter, a buffer, a state, the input or the labels."""
    category, given_ = trace.values.category, (Category.ACTIVATION, Category.GRADIENT, Category.TEMPORARY)
    for row, (reads, writers) in enumerate(zip(trace.operators.inputs.lists(), trace.writers(), strict=True)):
        for value, writer in zip(reads, writers, strict=True):
            assert writer < row
            assert writer >= 0 or category[value] not in given_, trace.operators.name[row]


def test_everything_made_in_the_forward_is_used(trace):
    """But for masks, statistics and counters, whose readers are outside the step."""
    read = set(trace.operators.inputs.values.tolist())
    storage = trace.values.storage
    storages = {int(storage[v]) for v in read}
    for row in np.flatnonzero(trace.operators.phase == Phase.FORWARD):
        made = {int(storage[v]) for v in trace.operators.outputs[row]}
        assert made & storages, trace.operators.name[row]


def test_values_of_a_storage_agree(trace):
    """Views and versions keep to the first value's extent; versions only grow, one writer each.

    What is expanded has its elements several times.
    """
    values = trace.values
    rows = [row for row, name in enumerate(trace.operators.name) if name == "aten::expand"]
    expanded = {v for row in rows for v in trace.operators.outputs[row].tolist()}
    ends = values.offset + values.elements()
    first = {}
    for v, storage in enumerate(values.storage.tolist()):
        first.setdefault(storage, v)
        assert ends[v] <= ends[first[storage]] or v in expanded
        assert values.dtype[v] == values.dtype[first[storage]]
        assert values.category[v] == values.category[first[storage]]
    written = set()
    for row in np.flatnonzero(~trace.operators.view):
        for v in trace.operators.outputs[row].tolist():
            key = (int(values.storage[v]), int(values.version[v]))
            assert key not in written
            written.add(key)


def test_views_share_and_others_do_not(trace):
    operators, storage = trace.operators, trace.values.storage
    for row in range(len(trace)):
        reads, writes = set(storage[operators.inputs[row]]), set(storage[operators.outputs[row]])
        if operators.view[row]:
            assert writes <= reads
        else:
            in_place = operators.name[row].endswith("_") or "batch_norm" in operators.name[row]
            assert in_place or not writes & reads or "cross_entropy" in operators.name[row], operators.name[row]


def test_one_gradient_per_parameter_and_one_update(trace):
    values, operators = trace.values, trace.operators
    weights = trace.weights().tolist()
    gradients = {}
    for v in np.flatnonzero(values.category == Category.GRADIENT).tolist():
        gradients.setdefault(int(values.of[v]), set()).add(int(values.storage[v]))
    assert set(gradients) == set(weights)
    assert all(len(storages) == 1 for storages in gradients.values())
    update = np.flatnonzero(operators.phase == Phase.OPTIMIZER)
    read = {int(values.storage[v]) for row in update for v in operators.inputs[row]}
    assert {s for storages in gradients.values() for s in storages} <= read
    last = {}
    for row in update:
        for v in operators.outputs[row].tolist():
            last[int(values.storage[v])] = int(values.version[v])
    assert all(last[int(values.storage[w])] >= 1 for w in weights)


def test_gradients_have_the_shape_of_their_weights(trace):
    """The last value of each gradient's storage; a transpose of a transpose lies between."""
    values = trace.values
    last = {int(values.of[v]): v for v in np.flatnonzero(values.category == Category.GRADIENT)}
    for weight, gradient in last.items():
        assert values.shape[gradient].tolist() == values.shape[weight].tolist(), values.name[weight]


def test_backward_mirrors_forward(trace):
    operators = trace.operators
    forward = np.flatnonzero(operators.phase == Phase.FORWARD)
    backward = np.flatnonzero(operators.phase == Phase.BACKWARD)
    assert backward.min() > forward.max()
    linked = operators.forward[backward]
    of_gradients = ("aten::ones_like", "aten::add", "aten::new_empty_strided", "aten::copy_")
    assert np.array_equal(linked == NONE, [operators.name[row] in of_gradients for row in backward])
    derived = backward[linked >= 0]
    linked = operators.forward[derived]
    assert np.all(np.diff(linked) <= 0)
    assert np.array_equal(operators.module[derived], operators.module[linked])
    assert np.all(operators.forward[operators.phase != Phase.BACKWARD] == NONE)
    products = {"linear", "convolution", "attention", "embedding", "normalization", "pooling"}
    heavy = [row for row in forward if kind(operators.name[row]) in products]
    assert set(heavy) <= set(linked.tolist())


def test_activations_are_what_backward_reads(trace):
    operators, values = trace.operators, trace.values
    born = {}
    for row, writes in enumerate(operators.outputs.lists()):
        for v in writes:
            born.setdefault(int(values.storage[v]), int(operators.phase[row]))
    backward = np.flatnonzero(operators.phase == Phase.BACKWARD)
    read = {int(values.storage[v]) for row in backward for v in operators.inputs[row]}
    for v in range(len(values)):
        storage = int(values.storage[v])
        kept = born.get(storage) == Phase.FORWARD and storage in read
        made = values.category[v] in (Category.ACTIVATION, Category.TEMPORARY)
        assert (values.category[v] == Category.ACTIVATION) == (kept and made)


def test_modules_are_the_owners_of_parameters(trace):
    owners = {name.rpartition(".")[0] for name in trace.values.name if name and "rotary" not in name}
    loners = {"cls.predictions", "shared"}  # a bias beside its modules, a table that two others read
    assert owners <= set(trace.modules.path) | loners


# --- symbols ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SMALL)
@settings(max_examples=12)
@given(data=st.data())
def test_dimensions_follow_batch_and_sequence_as_they_say(family, data):
    """Two builds differ in exactly the dimensions with a symbol, and there in proportion."""
    batches = [data.draw(st.integers(1, 5)) for _ in range(2)]
    lengths = [data.draw(st.integers(1, 48)) for _ in range(2)] if family in TEXT else [1, 1]
    options = {"training": data.draw(st.booleans()), "fused": data.draw(st.booleans())}
    a, b = (small(family, *sizes, **options) for sizes in zip(batches, lengths, strict=True))
    assert a.operators.name == b.operators.name
    assert np.array_equal(a.values.symbols.values, b.values.symbols.values)
    bits = a.values.symbols.values
    scale = np.ones(len(bits), np.int64)
    before = np.ones(len(bits), np.int64)
    for bit, (old, new) in ((BATCH, batches), (SEQUENCE, lengths)):
        scale[bits & bit != 0] *= new
        before[bits & bit != 0] *= old
    assert np.array_equal(a.values.shape.values * scale, b.values.shape.values * before)


@pytest.mark.parametrize("family", SMALL)
def test_rescaling_is_building_anew(family):
    new = {"batch": 6, **({"sequence": 40} if family in TEXT else {})}
    scaled, built = rescale(small(family), **new), small(family, 6, 40)
    assert np.array_equal(scaled.values.shape.values, built.values.shape.values)
    assert np.array_equal(scaled.operators.flop, built.operators.flop, equal_nan=True)
    assert np.array_equal(scaled.operators.bytes, built.operators.bytes)


@pytest.mark.parametrize(
    ("family", "fused"),
    [("gpt", False), ("llama", True), ("resnet", False), ("vgg", False), ("densenet", False)],
)
def test_walking_the_batch_finds_the_same_dimensions(family, fused):
    """The walk from the inputs knows nothing of how the trace was built."""
    trace = small(family, batch=7, fused=fused)
    blank = Ragged(np.zeros_like(trace.values.symbols.values), trace.values.symbols.offsets)
    unknown = dataclasses.replace(
        trace, meta=dataclasses.replace(trace.meta, symbols=""), values=dataclasses.replace(trace.values, symbols=blank)
    )
    found = establish_symbols(unknown).values.symbols.values
    assert np.array_equal(found, trace.values.symbols.values & BATCH)


# --- work and memory -------------------------------------------------------------------------------------------------


def flop(trace: Trace, phase: Phase, *kinds: str) -> float:
    rows = [p == phase and kind(n) in kinds for p, n in zip(trace.operators.phase, trace.operators.name, strict=True)]
    return float(trace.operators.flop[rows].sum())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "gpt3-175b"])
def test_flop_of_gpt(name):
    """2 per weight and token, and causal attention over half of the pairs; backward twice, and 2.5 times."""
    c = presets()[name].configuration
    d, layers, length = c["n_embd"], c["n_layer"], 512
    trace = model(name, sequence_length=length, batch_size=3)
    tokens = 3 * length
    linear = 2 * tokens * (12 * layers * d * d + c["vocab_size"] * d)
    attention = layers * 2 * 3 * length * (length + 1) * d
    assert flop(trace, Phase.FORWARD, "linear") == linear
    assert flop(trace, Phase.BACKWARD, "linear") == 2 * linear
    assert flop(trace, Phase.FORWARD, "attention") == attention
    assert flop(trace, Phase.BACKWARD, "attention") == 2.5 * attention


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "llama-3.2-1b"])
def test_flop_of_llama(name):
    """2 per weight outside embedding and norms and token, and causal attention."""
    preset = presets()[name]
    c, length = preset.configuration, 1024
    d, layers = c["hidden_size"], c["num_hidden_layers"]
    trace = model(name, sequence_length=length)
    tied = c.get("tie_word_embeddings", False)
    weights = preset.parameters - (0 if tied else c["vocab_size"] * d) - (2 * layers + 1) * d
    assert flop(trace, Phase.FORWARD, "linear") == 2 * length * weights
    assert flop(trace, Phase.BACKWARD, "linear") == 4 * length * weights
    assert flop(trace, Phase.FORWARD, "attention") == layers * 2 * length * (length + 1) * d


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [  # torchvision's table of weights, GMAC at 224 x 224
        ("resnet18", 1.81), ("resnet50", 4.09), ("resnet152", 11.51), ("resnext50-32x4d", 4.23),
        ("wide-resnet50-2", 11.40), ("densenet121", 2.83), ("densenet161", 7.73), ("vgg11", 7.61), ("vgg13", 11.31),
        ("vgg16", 15.47), ("vgg19", 19.63),
    ],
)  # fmt: skip
def test_flop_of_images(name, multiply_adds):
    trace = model(name, batch_size=2)
    forward = flop(trace, Phase.FORWARD, "linear", "convolution")
    assert forward / 2 / 2 / 1e9 == pytest.approx(multiply_adds, abs=0.0051)
    # everything twice again, but for the gradient of the image
    first = next(r for r, n in enumerate(trace.operators.name) if n == "aten::convolution")
    backward = flop(trace, Phase.BACKWARD, "linear", "convolution")
    assert backward == 2 * forward - trace.operators.flop[first]


@pytest.mark.parametrize(
    ("options", "per_parameter"),
    [
        ({"precision": "float32"}, 16),  # 4 weight, 4 gradient, 4 + 4 moments
        ({"precision": "bfloat16"}, 16),  # 2 weight, 2 gradient, 4 master copy, 4 + 4 moments
        ({"precision": "float32", "optimizer": "sgd"}, 12),
        ({"precision": "float16", "optimizer": "sgd"}, 12),
    ],
)
def test_bytes_that_last(options, per_parameter):
    trace = model("gpt", configuration=SMALL["gpt"], **options)
    lasting = (Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE)
    total = sum(
        storage for storage, category in zip(trace.values.storage_bytes(), of_storages(trace), strict=True)
        if category in lasting
    )  # fmt: skip
    count = trace.values.elements()[trace.weights()].sum()
    assert total == per_parameter * count


def of_storages(trace: Trace) -> list[int]:
    category = {}
    for v, storage in enumerate(trace.values.storage.tolist()):
        category.setdefault(storage, int(trace.values.category[v]))
    return [category[s] for s in range(len(category))]


def test_activations_of_a_gpt_layer():
    """What one layer keeps for its backward, counted by hand: widths of d per token in 16 bits, and statistics.

    Read again later: inputs of both norms (2), their outputs as inputs of products (2), queries, keys, values (3), the
    attention's output (1), the feed-forward's inner values before and after GELU (8); per token 2 x 2 statistics and
    one logsumexp per head in float32.
    """
    sizes = {"n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 50}
    kept = []
    for layers in (3, 4):
        trace = model("gpt", batch_size=2, configuration={**sizes, "n_layer": layers})
        storages = zip(trace.values.storage_bytes(), of_storages(trace), strict=True)
        kept.append(sum(size for size, category in storages if category == Category.ACTIVATION))
    tokens = 2 * 128
    assert kept[1] - kept[0] == tokens * (16 * 64 * 2 + (4 + 4) * 4)


def test_optimizer_reads_and_writes():
    """Bytes per parameter: AdamW fused with master copies 14 read and 12 written, then 4 read and 2 written."""
    trace = model("gpt", configuration=SMALL["gpt"])
    rows = trace.operators.phase == Phase.OPTIMIZER
    count = trace.values.elements()[trace.weights()].sum()
    assert trace.operators.bytes[rows].tolist() == [26 * count, 6 * count]


def test_master_copies_updated_by_a_list_of_operators():
    """Asked for, PyTorch's list runs on the master copies, which takes a float32 copy of every gradient."""
    trace = model("gpt", configuration=SMALL["gpt"], fused_optimizer=False)
    rows = np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER)
    names = [trace.operators.name[row] for row in rows]
    count = len(trace.weights())
    assert names[:count] == ["aten::_to_copy"] * count
    assert names[count] == "aten::_foreach_mul_"
    assert names[-2:] == ["aten::_foreach_addcdiv_", "aten::_foreach_copy_"]
    assert trace.values.category[trace.operators.outputs[rows[-1]]].tolist() == [Category.WEIGHT] * count
