"""A recommendation model against the reference implementation's layers, and against the recorder."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.core.errors import InputError
from triosim.sources.modelling import model
from triosim.trace.tables import Category, Phase, Trace

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.sources.models import torch_models  # noqa: E402
from tests.sources.models.test_against_torch import Log, bytes_of, computing, described, our_rows  # noqa: E402

BATCH, LOOKUPS = 6, 2
SIZES = {"tables": [100, 30, 7], "embedding_dim": 8, "bottom": [16, 8], "top": [12, 1], "dense_features": 5}


def network(sparse: bool):
    return torch_models.DLRM((100, 30, 7), 8, 5, (16, 8), (12, 1), sparse)


def inputs() -> tuple:
    rows = [torch.zeros(BATCH * LOOKUPS, dtype=torch.long) for _ in range(3)]
    starts = [torch.arange(0, BATCH * LOOKUPS, LOOKUPS) for _ in range(3)]
    return torch.zeros(BATCH, 5), rows, starts, torch.zeros(BATCH, 1)


def built(**options) -> Trace:
    return model("dlrm", batch_size=BATCH, configuration={**SIZES, "lookups": LOOKUPS}, **options)


@pytest.fixture(scope="module")
def theirs():
    """Parameters, forward and backward rows of an ordinary step; tensors have values, for fake ones know no sparse."""
    net = network(sparse=True)
    dense, rows, starts, labels = inputs()
    with Log() as log:
        loss = F.binary_cross_entropy(net(dense, rows, starts), labels)
        forward = len(log.rows)
        loss.backward()
    gradients = [table.weight.grad._values().shape for table in net.emb_l]
    return dict(net.named_parameters()), log.rows[:forward], log.rows[forward:], gradients


def test_same_parameters_in_the_same_order(theirs):
    trace = built()
    shape, names = trace.values.shape.lists(), trace.values.name
    expected = [(name, tuple(p.shape)) for name, p in theirs[0].items()]
    assert [(names[v], tuple(shape[v])) for v in trace.weights()] == expected


def test_same_operators_in_the_same_order(theirs):
    _, forward, backward, gradients = theirs
    trace = built()
    constants = ("lift_fresh", "_to_copy")  # the places below the diagonal

    def kept(rows):
        return [row for row in computing(rows, False) if row[0] not in (*constants, "new_zeros")]

    assert kept(our_rows(trace, Phase.FORWARD)) == kept(forward)
    tables = iter(gradients[::-1])  # a sparse gradient's values are what the one call selects
    expected = [
        ("index_select", tuple(next(tables))) if name == "_embedding_bag_backward" else (name, shape)
        for name, shape in kept(backward)
        if name not in ("_indices", "_values", "clone")  # how a gradient is kept that somebody looks at
    ]
    assert kept(our_rows(trace, Phase.BACKWARD)) == expected


def test_same_trace_as_the_recorder_makes():
    """With dense gradients of tables, which the recorder can follow: all but what makes and uses those."""
    recording = pytest.importorskip("triosim.sources.record.function", reason="the recorder is not here")
    with recording.fake():
        net = network(sparse=False)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        given = inputs()

    def step(dense, r0, r1, r2, s0, s1, s2, labels):
        F.binary_cross_entropy(net(dense, [r0, r1, r2], [s0, s1, s2]), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    dense, rows, starts, labels = given
    recorded = recording.record(step, dense, *rows, *starts, labels, device="fake")
    made = built(optimizer="sgd", fused_optimizer=False)

    def kept(trace: Trace) -> list[tuple]:
        of_tables = ("_embedding_bag_backward", "index_select", "lift_fresh", "new_zeros")
        rows = [row for row in described(trace) if row[0] not in of_tables and row[1] != Phase.OPTIMIZER]
        return [(*row[:3], row[4]) for row in rows]

    assert kept(made) == kept(recorded)
    for category in (Category.WEIGHT, Category.BUFFER):
        assert bytes_of(made, category) == bytes_of(recorded, category), category


def test_a_step_moves_only_the_rows_that_were_looked_up():
    few, many = (model("dlrm-kaggle", batch_size=size) for size in (1, 1024))
    for trace, size in ((few, 1), (many, 1024)):
        of_tables = [row for row, name in enumerate(trace.operators.name) if name == "aten::index_add_"]
        assert len(of_tables) == 26
        rows = [trace.values.shape[trace.operators.inputs[row][2]].tolist() for row in of_tables]
        assert rows == [[size, 16]] * 26
    tables = [v for v in few.weights() if few.values.name[v].startswith("emb_l")]
    assert not np.isin(few.values.of[few.values.category == Category.OPTIMIZER_STATE], tables).any()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"bottom": [16, 4]}, "bottom ends in 4, not in embedding_dim 8"),
        ({"top": [12, 2]}, "top ends in 2, not in the one score"),
        ({"tables": [0]}, "tables must be a list of whole numbers"),
    ],
)
def test_impossible_shapes(change, complaint):
    with pytest.raises(InputError, match=complaint):
        model("dlrm", configuration={**SIZES, **change})


def test_has_no_sequence_and_no_pixels():
    for option in ("sequence_length", "image_size"):
        with pytest.raises(InputError, match=f"reads dense features and categories: {option} has no meaning"):
            model("dlrm-kaggle", **{option: 64})
