"""Steps by name under PyTorch's automatic mixed precision."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.modelling import model
from triosim.trace.tables import Category, Phase, Trace

SIZES = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 120, "n_positions": 32}
PARAMETERS = 120 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64


def gpt(precision: str = "autocast-bfloat16", **more: object) -> Trace:
    return model("gpt", batch_size=3, precision=precision, configuration=SIZES, **more)


def types(trace: Trace, what: str, phase: Phase = Phase.FORWARD) -> set[tuple[str, ...]]:
    """Types of the tensors that operators of a kind read, the first result's behind them."""
    found, values = trace.operators, trace.values
    return {
        tuple(DTYPES[int(values.dtype[v])] for v in (*found.inputs[row], found.outputs[row][0]))
        for row, name in enumerate(found.name)
        if kind(name) == what and found.phase[row] == phase and not found.view[row]
    }


def copies(trace: Trace, shape: tuple[int, ...]) -> int:
    """How often a tensor of this shape is copied to 16 bits in the forward."""
    found, values = trace.operators, trace.values
    return sum(
        name == "aten::_to_copy" and found.phase[row] == Phase.FORWARD
        and tuple(values.shape[found.inputs[row][0]].tolist()) == shape
        and DTYPES[int(values.dtype[found.outputs[row][0]])] != "float32"
        for row, name in enumerate(found.name)
    )  # fmt: skip


def test_products_run_in_16_bits_and_norms_and_losses_in_32():
    trace = gpt()
    for phase, read in ((Phase.FORWARD, 4), (Phase.BACKWARD, 3)):
        assert {one[-1] for one in types(trace, "linear", phase)} == {"bfloat16"}
        assert all(set(one) == {"bfloat16"} and len(one) <= read for one in types(trace, "linear", phase))
    assert types(trace, "attention") == {("bfloat16",) * 4}
    assert types(trace, "normalization") == {("float32",) * 4}
    assert all("bfloat16" not in one for one in types(trace, "loss"))


def test_parameters_gradients_and_states_stay_in_float32():
    values = gpt(optimizer="adamw").values
    elements = {}
    for category in (Category.WEIGHT, Category.GRADIENT):
        rows = np.flatnonzero((values.category == category) & (values.version == 0) & (values.offset == 0))
        assert {DTYPES[int(code)] for code in values.dtype[rows]} == {"float32"}
        _, first = np.unique(values.storage[rows], return_index=True)
        elements[category] = sum(int(np.prod(values.shape[row])) for row in rows[first])
    assert elements == dict.fromkeys(elements, PARAMETERS)


def test_a_weight_is_copied_once_and_what_is_computed_each_time_it_is_read():
    trace = model("llama", batch_size=3, precision="autocast-bfloat16", sequence_length=16, configuration=LLAMA)
    assert copies(trace, (64, 64)) == 4 * 2  # queries, keys, values and what follows, in two blocks
    assert copies(trace, (3, 16, 64)) == (3 + 2) * 2 + 1  # by queries, keys and values; by gate and up; by the head


def test_a_fused_norm_writes_what_the_product_reads():
    trace = gpt(fused=True)
    assert types(trace, "normalization") == {("float32", "float32", "float32", "bfloat16")}
    assert copies(trace, (3, 32, 64)) == 0


def test_scores_that_are_spelled_out_take_the_softmax_in_float32():
    trace = gpt(attention="unfused", fused_softmax=False)
    assert types(trace, "softmax") == {("float32", "float32")}
    assert types(trace, "matmul") == {("bfloat16",) * 3}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("amp-bf16", "autocast-bfloat16"), ("bf16-mixed", "autocast-bfloat16"), ("16-mixed", "autocast-float16")],
)
def test_other_names(name: str, meant: str):
    trace = gpt(name)
    assert trace.meta.workload.endswith(meant)
    assert {one[-1] for one in types(trace, "linear")} == {meant.removeprefix("autocast-")}


def test_what_libraries_multiply_is_refused():
    with pytest.raises(InputError, match=r"what autocast makes of aten::_grouped_mm in model\.layers\.0\.mlp\.experts"):
        model("mixtral-8x7b", precision="amp-bf16", configuration={"num_hidden_layers": 2})


LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 120,
}  # fmt: skip


@pytest.mark.parametrize("case", ["gpt", "vgg", "vit", "resnet, bottleneck", "densenet"])
def test_the_copies_that_pytorch_makes(case: str):
    """Operators, shapes and types of the whole step, recorded under autocast of the CPU.

    Its lists have no norms, which in these models read float32 or are batch norms anyway; and the statistics that a
    batch norm keeps are in 16 bits there.
    """
    torch = pytest.importorskip("torch")
    from tests.sources.models.test_against_torch import BATCH, BOOKKEEPING, CASES, IMAGE, LENGTH, TEXT, fake_step, plain

    recording = pytest.importorskip("triosim.sources.record.function")
    family, configuration, _ = CASES[case]
    text = family in TEXT
    net, optimizer, x, labels = fake_step(recording, case)

    def step(x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = net(x)
            if text:
                scores, labels = scores.view(-1, scores.shape[-1]), labels.view(-1)
            loss = torch.nn.functional.cross_entropy(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def rows(trace: Trace) -> list[tuple]:
        found, values = trace.operators, trace.values
        made = []
        for row, name in enumerate(found.name):
            name = plain(name.removeprefix("aten::"))
            if not found.view[row] and name not in BOOKKEEPING and len(found.outputs[row]):
                read = [DTYPES[int(values.dtype[v])] for v in found.inputs[row]]
                out = found.outputs[row][0]
                shape = tuple(values.shape[out].tolist())
                made.append((name, read[:5] if "batch_norm" in name else read, DTYPES[int(values.dtype[out])], shape))
        return made

    options = {"sequence_length": LENGTH} if text else {"image_size": IMAGE}
    built = model(
        family, batch_size=BATCH, configuration=configuration, precision="autocast-bfloat16", optimizer="sgd",
        fused_optimizer=False, **options,
    )  # fmt: skip
    assert rows(built) == rows(recording.record(step, x, labels, device="fake"))
