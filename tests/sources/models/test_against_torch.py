"""Operator for operator against PyTorch running the same architectures on fake tensors."""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import Any

import numpy as np
import pytest

from triosim.operators import canonical, kind
from triosim.sources.modelling import model
from triosim.trace.tables import NONE, VOCABULARY, Category, Phase, Trace

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.sources.models import hugging_face, torch_models  # noqa: E402

BATCH, LENGTH, IMAGE = 2, 24, 64
STANDS_FOR = {"native_layer_norm": "_fused_rms_norm", "native_layer_norm_backward": "_fused_rms_norm_backward"}
BOOKKEEPING = {"empty", "empty_like", "zeros", "zeros_like", "arange", "detach"}
"""Creation of inputs and workspaces; the reference creates some of them in other ways."""

LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120,
}  # fmt: skip
GPT = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 120, "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
}  # fmt: skip
BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 120,
    "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip

CASES = {
    "llama": ("llama", LLAMA, lambda: torch_models.Llama(64, 96, 2, 4, 4, 120, False)),
    "llama, grouped and tied": (
        "llama", {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True},
        lambda: torch_models.Llama(64, 96, 2, 4, 2, 120, True),
    ),
    "gpt": ("gpt", GPT, lambda: torch_models.GPT(64, 2, 4, 32, 120, 0.1)),
    "bert": ("bert", BERT, lambda: torch_models.BERT(64, 2, 4, 128, 32, 120)),
    "resnet, basic": (
        "resnet", {"layers": [1, 2], "bottleneck": False, "num_classes": 10},
        lambda: torch_models.ResNet((1, 2), False, 1, 64),
    ),
    "resnet, bottleneck": (
        "resnet", {"layers": [2, 2], "bottleneck": True, "num_classes": 10},
        lambda: torch_models.ResNet((2, 2), True, 1, 64),
    ),
    "resnext": (
        "resnet", {"layers": [1, 1], "bottleneck": True, "groups": 8, "width_per_group": 16, "num_classes": 10},
        lambda: torch_models.ResNet((1, 1), True, 8, 16),
    ),
    "vgg": ("vgg", {"layers": [1, 1, 2, 1, 1], "num_classes": 10}, lambda: torch_models.VGG((1, 1, 2, 1, 1))),
    "densenet": (
        "densenet",
        {"block_config": [3, 4, 2], "growth_rate": 8, "num_init_features": 16, "num_classes": 10},
        lambda: torch_models.DenseNet((3, 4, 2), 8, 16),
    ),
}  # fmt: skip
CASES |= {
    name: (name, configuration, functools.partial(hugging_face.network, name, configuration))
    for name, configuration in hugging_face.CONFIGURATIONS.items()
}
BASIC = {**hugging_face.CONFIGURATIONS["resnet_hf"], "layer_type": "basic", "downsample_in_first_stage": True}
EARLY = {**hugging_face.CONFIGURATIONS["resnet_hf"], "downsample_in_bottleneck": True}
CASES |= {
    "resnet_hf, basic": ("resnet_hf", BASIC, functools.partial(hugging_face.network, "resnet_hf", BASIC)),
    "resnet_hf, early": ("resnet_hf", EARLY, functools.partial(hugging_face.network, "resnet_hf", EARLY)),
}
TEXT = {"llama", "gpt", "bert", "roberta", "distilbert", "electra", "albert"}


class Log(TorchDispatchMode):
    """Name, input shapes and output shapes of every ATen operator."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, list, list]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        if space == "aten":
            self.rows.append((name, shapes(args), shapes(result)))
        return result


def shapes(thing) -> list[tuple[int, ...]]:
    if isinstance(thing, torch.Tensor):
        return [tuple(thing.shape)]
    if isinstance(thing, (list, tuple)):
        return [shape for part in thing for shape in shapes(part)]
    return []


def torch_step(make, is_text: bool):
    """Forward rows, backward rows, FLOP of products and convolutions (of the forward, of all), parameters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if is_text else torch.float32)
    try:
        with FakeTensorMode(), torch.device("cpu"):
            net = make()
            x = torch.zeros(BATCH, LENGTH, dtype=torch.long) if is_text else torch.empty(BATCH, 3, IMAGE, IMAGE)
            labels = torch.zeros((BATCH, LENGTH) if is_text else (BATCH,), dtype=torch.long)
            with FlopCounterMode(display=False) as counter, Log() as log:
                scores = net(x)
                if is_text:
                    scores, labels = scores.view(-1, scores.shape[-1]), labels.view(-1)
                loss = F.cross_entropy(scores.float(), labels)
                forward, forward_flop = len(log.rows), counter.get_total_flops()
                loss.backward()
            parameters = {name: tuple(p.shape) for name, p in net.named_parameters()}
    finally:
        torch.set_default_dtype(before)
    return log.rows[:forward], log.rows[forward:], (forward_flop, counter.get_total_flops()), parameters


def plain(name: str) -> str:
    name = name.replace("_flash_attention_for_cpu", "_flash_attention").replace("_efficient_", "_flash_")
    return name.removesuffix("_") if name.endswith("_") else name


def computing(rows, rms: bool) -> list[tuple[str, tuple[int, ...]]]:
    """What computes, in order: name and shape of the first output."""
    kept = []
    for name, _, outputs in rows:
        name = STANDS_FOR.get(name, name) if rms else name
        is_view = kind("aten::" + name) == "view" and name != "slice_backward"
        if not is_view and name not in BOOKKEEPING:
            kept.append((plain(name), outputs[0]))
    return kept


def our_rows(trace: Trace, phase: Phase) -> list[tuple[str, list, list]]:
    operators, shape = trace.operators, [tuple(s) for s in trace.values.shape.lists()]
    inputs, outputs = operators.inputs.lists(), operators.outputs.lists()
    return [
        (operators.name[row].removeprefix("aten::"), [shape[v] for v in inputs[row]], [shape[v] for v in outputs[row]])
        for row in range(len(trace))
        if operators.phase[row] == phase
    ]


@pytest.fixture(params=CASES, scope="module")
def both(request):
    family, configuration, make = CASES[request.param]
    is_text = family in TEXT
    options = {"sequence_length": LENGTH} if is_text else {"image_size": IMAGE}
    trace = model(family, batch_size=BATCH, configuration=configuration, **options)
    return torch_step(make, is_text), trace, family == "llama"


def test_same_parameters_in_the_same_order(both):
    (_, _, _, parameters), trace, _ = both
    shape, names = trace.values.shape.lists(), trace.values.name
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == list(parameters.items())


def test_same_operators_in_the_same_order(both):
    (forward, backward, _, _), trace, rms = both
    assert computing(our_rows(trace, Phase.FORWARD), False) == computing(forward, rms)
    assert computing(our_rows(trace, Phase.BACKWARD), False) == computing(backward, rms)


def test_same_views_but_for_detach_expand_and_those_that_change_nothing(both):
    (forward, backward, _, _), trace, _ = both

    def views(rows) -> list[str]:
        changing = (row for row in rows if not row[0].endswith("view") or row[1][:1] != row[2][:1])
        names = (name for name, _, _ in changing if kind("aten::" + name) == "view" and name != "slice_backward")
        same = {"reshape": "view", "_unsafe_view": "view", "split_with_sizes": "split"}
        return [same.get(name, name) for name in names if name not in ("detach", "expand", "select", "unsqueeze")]

    assert sorted(views(our_rows(trace, Phase.FORWARD))) == sorted(views(forward))
    assert sorted(views(our_rows(trace, Phase.BACKWARD))) == sorted(views(backward))


def test_products_read_the_same_shapes(both):
    (forward, backward, _, _), trace, _ = both

    def products(rows) -> list:
        kinds = ("linear", "convolution", "attention")
        found = [(plain(name), reads) for name, reads, _ in rows if kind("aten::" + name) in kinds]
        return [(name, reads[:6]) for name, reads in found]

    assert products(our_rows(trace, Phase.FORWARD)) == products(forward)
    assert products(our_rows(trace, Phase.BACKWARD)) == products(backward)


def test_same_flop_outside_attention(both, request):
    """PyTorch's counter has no formula for attention on the CPU, and takes the weight gradient of a grouped convolution
    for that of an ungrouped one."""
    (_, _, (forward, total), _), trace, _ = both
    operators = trace.operators
    counted = np.array([kind(name) in ("linear", "convolution", "matmul") for name in operators.name])
    assert operators.flop[counted & (operators.phase == Phase.FORWARD)].sum() == forward
    if not any(name in request.node.name for name in ("resnext", "convnext")):
        assert operators.flop[counted].sum() == total


@pytest.mark.parametrize("case", ["gpt", "bert", "resnet, bottleneck", "vgg", "densenet", *hugging_face.CONFIGURATIONS])
def test_same_trace_as_the_recorder_makes(case):
    """Phases, symbols, categories of the forward, links and bytes that stay, against our recorder on fake tensors."""
    recording = pytest.importorskip("triosim.sources.record.function", reason="the recorder is not here")
    family, configuration, _ = CASES[case]
    is_text = family in TEXT
    net, optimizer, x, labels = fake_step(recording, case)

    def step(x, labels):
        scores = net(x)
        if is_text:
            scores, labels = scores.view(-1, scores.shape[-1]), labels.view(-1)
        F.cross_entropy(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    recorded = recording.record(step, x, labels, device="fake")
    options = {"sequence_length": LENGTH} if is_text else {"image_size": IMAGE}
    built = model(
        family, batch_size=BATCH, configuration=configuration, precision="float32", optimizer="sgd",
        fused_optimizer=False, **options,
    )  # fmt: skip
    assert_same_trace(built, recorded)


def fake_step(recording: Any, case: str) -> tuple[Any, Any, Any, Any]:
    """The network of a case, its optimizer, what it reads and the labels, without data."""
    family, _, make = CASES[case]
    is_text = family in TEXT
    with recording.fake():
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        x = torch.zeros(BATCH, LENGTH, dtype=torch.long) if is_text else torch.empty(BATCH, 3, IMAGE, IMAGE)
        labels = torch.zeros((BATCH, LENGTH) if is_text else (BATCH,), dtype=torch.long)
    return net, optimizer, x, labels


def described(trace: Trace, skipped: Container[str] = ()) -> list[tuple]:
    """Name, phase, shape, symbols, category and link of every operator that computes, but for those skipped."""
    operators, values = trace.operators, trace.values
    found, rows = [], {NONE: NONE}
    for row, name in enumerate(operators.name):
        name = plain(name.removeprefix("aten::"))
        if operators.view[row] or name in BOOKKEEPING or name in skipped or not len(operators.outputs[row]):
            continue
        rows[row] = len(found)
        value = operators.outputs[row][0]
        forward = operators.phase[row] == Phase.FORWARD
        found.append(
            (name, int(operators.phase[row]), values.shape[value].tolist(),
             (values.symbols[value] & ~np.uint8(VOCABULARY)).tolist(),  # which a recording does not know
             int(values.category[value]) if forward else None, rows.get(int(operators.forward[row]), "a view"))
        )  # fmt: skip
    return found


SILU = ["sigmoid", "fill", "sub", "mul", "add", "mul", "mul"]
"""What fake tensors make of its derivative, one kernel on a device."""


def _folded(rows: list[tuple]) -> list[tuple]:
    names, found = [row[0] for row in rows], list[tuple]()
    at = 0
    while at < len(rows):
        is_silu = names[at : at + len(SILU)] == SILU
        found.append(("silu_backward", *rows[at][1:]) if is_silu else rows[at])
        at += len(SILU) if is_silu else 1
    return found


def bytes_of(trace: Trace, *categories: Category) -> int:
    """Bytes of the storages of these categories."""
    category = dict(zip(trace.values.storage.tolist(), trace.values.category.tolist(), strict=True))
    return sum(int(size) for s, size in enumerate(trace.values.storage_bytes()) if category[s] in categories)


def assert_same_trace(built: Trace, recorded: Trace, skipped: Container[str] = ()) -> None:
    """Phases, symbols, categories of the forward, links and bytes that stay are alike."""
    assert described(built, skipped) == _folded(described(recorded, skipped))
    for category in (Category.WEIGHT, Category.BUFFER, Category.ACTIVATION, Category.OPTIMIZER_STATE):
        assert bytes_of(built, category) == bytes_of(recorded, category), category


@pytest.mark.parametrize(
    ("optimizer", "fused", "make"),
    [
        ("adamw", False, lambda p: torch.optim.AdamW(p, foreach=True)),
        ("adamw", True, lambda p: torch.optim.AdamW(p, fused=True)),
        ("adam", False, lambda p: torch.optim.Adam(p, foreach=True)),
        ("adam", True, lambda p: torch.optim.Adam(p, fused=True)),
        ("sgd", False, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, foreach=True)),
        ("sgd", True, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, fused=True)),
        ("sgd,momentum=off", False, lambda p: torch.optim.SGD(p, 0.1, weight_decay=1e-4, foreach=True)),
        ("adagrad", False, lambda p: torch.optim.Adagrad(p, foreach=True)),
    ],
)
def test_same_optimizer(optimizer, fused, make):
    with FakeTensorMode(), torch.device("cpu"):
        net = torch_models.ResNet((1, 1), False, 1, 64)
        for p in net.parameters():
            p.grad = torch.empty_like(p)
        theirs = make(net.parameters())
        theirs.step()  # creates the states
        with Log() as log:
            theirs.step()
    rows = [r for r in log.rows if canonical("aten::" + r[0])[0] not in ("_local_scalar_dense", "lift_fresh")]
    scalars = (0, {()})  # updates of the step counters, which live on the host
    rows = [r for r in rows if set(r[1]) not in scalars]
    trace = model(
        "resnet", configuration={"layers": [1, 1], "bottleneck": False, "num_classes": 10}, optimizer=optimizer,
        fused_optimizer=fused,
    )  # fmt: skip
    ours = our_rows(trace, Phase.OPTIMIZER)
    assert [name for name, _, _ in ours] == [name for name, _, _ in rows]
    for (name, mine, _), (_, yours, _) in zip(ours, rows, strict=True):
        assert mine == [shape for shape in yours if shape != ()], name
