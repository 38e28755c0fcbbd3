"""Context parallelism against PyTorch's ring attention, which runs for real on a fake process group.

Its loop is what ``torch.distributed.tensor.experimental.context_parallel`` puts in the place of attention.  CPUs have
no kernel that it knows, so it is given one that only has the right shapes; what it sends is noted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
experimental = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

import torch.distributed as dist  # noqa: E402

BATCH, HEADS, KEYS, HEAD, LENGTH, LAYERS = 1, 32, 8, 64, 1024, 2  # of Llama 3.2 1B
Sent = list[tuple[str, int]]
Blocks = list[tuple[int, int]]


def _theirs(ranks: int, rank: int, method: str) -> tuple[Sent, Sent, Blocks]:
    """What is sent in the forward and in the backward of an attention, and rows of queries and keys of its blocks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    functional, found, blocks = experimental.ft_c, list[tuple[str, int]](), list[tuple[int, int]]()

    def noted(kind: str, parts: int) -> Any:
        def send(tensor: Any, *args: Any, **options: Any) -> Any:
            found.append((kind, tensor.numel() * tensor.element_size() * parts))
            return torch.cat([tensor] * parts)

        return send

    def forward(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, ...]:
        blocks.append((q.shape[2], k.shape[2] // (2 if options["is_causal"] else 1)))
        return torch.zeros_like(q), torch.zeros(q.shape[:3]), None

    def backward(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, ...]:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    before = experimental._cp_options.rotate_method
    try:
        experimental.set_rotate_method(method)
        with (
            mock.patch.object(functional, "permute_tensor", noted("send", 1)),
            mock.patch.object(functional, "all_gather_single", noted("all_gather", ranks)),
        ):
            shape = (BATCH, HEADS, LENGTH // ranks, HEAD)
            q = torch.zeros(shape, dtype=torch.bfloat16)
            k, v = (torch.zeros((BATCH, KEYS, *shape[2:]), dtype=torch.bfloat16) for _ in range(2))
            group = dist.distributed_c10d._get_default_group()
            out, lse, *_ = experimental._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
            sent = list(found)
            experimental._templated_ring_attention_backward(
                group, 2, backward, torch.zeros_like(out), "grad_out", q, k, v, out, lse, is_causal=True
            )
            return sent, found[len(sent) :], blocks
    finally:
        experimental._cp_options.rotate_method = before
        dist.destroy_process_group()


def _ours(ranks: int, style: str) -> tuple[dict[Phase, Counter[str]], float]:
    """Bytes on the wire of a rank by phase and kind, of one attention, and FLOP of its forward."""
    trace = triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration={"num_hidden_layers": LAYERS})
    plan = {"parallelism": ("context",), "parallelism_options": {"cp": ranks, "cp_style": style}, "host": "none"}
    job = prepare(trace, triosim.system("dgx-a100"), *asked(**plan))
    sent, phases = job.step.transfers, job.step.trace.operators.phase
    found = {Phase.FORWARD: Counter[str](), Phase.BACKWARD: Counter[str]()}
    for what, before, size in zip(sent.what, sent.before, sent.bytes.tolist(), strict=True):
        if before < len(phases):
            found[Phase(phases[before])][COLLECTIVES[what]] += size * (ranks - 1) // ranks // LAYERS
    calls, flop = calls_of(job.step.trace), np.nan_to_num(job.step.trace.operators.flop)
    rows = [row for row in np.flatnonzero(phases == Phase.FORWARD).tolist() if calls[row].kind == "attention"]
    return found, float(flop[rows].sum()) / LAYERS


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("style", "method", "kind"), [("ring", "alltoall", "send"), ("gather", "allgather", "all_gather")]
)
def test_as_many_bytes_arrive_in_the_forward(ranks: int, style: str, method: str, kind: str) -> None:
    """Keys and values at once or one block after another."""
    sent, _, _ = _theirs(ranks, 0, method)
    own = 2 * BATCH * KEYS * HEAD * LENGTH // ranks * 2
    assert sent == ([("send", own)] * (ranks - 1) if kind == "send" else [("all_gather", own * ranks)])
    wire = sum(n if k == "send" else n * (ranks - 1) // ranks for k, n in sent)
    assert _ours(ranks, style)[0][Phase.FORWARD] == {"all_gather": wire}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_in_the_backward_keys_and_values_go_round_again_and_their_gradients_too(ranks: int) -> None:
    """PyTorch adds gradients up in float32 and sends them on once more than there are others, to their owner; we count
    them in bfloat16 and as a reduce-scatter does, as Transformer Engine's ring has it."""
    _, sent, _ = _theirs(ranks, 0, "alltoall")
    own = 2 * BATCH * KEYS * HEAD * LENGTH // ranks
    assert Counter(sent) == {("send", 2 * own): ranks - 1, ("send", 4 * own): ranks}
    ours = _ours(ranks, "ring")[0][Phase.BACKWARD]
    assert ours == {"all_gather": 2 * own * (ranks - 1), "reduce_scatter": 2 * own * (ranks - 1)}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_rank_computes_as_much_as_ours(ranks: int) -> None:
    """Pairs of queries and keys, of which its own block has half."""
    for rank in (0, ranks // 2, ranks - 1):
        _, _, blocks = _theirs(ranks, rank, "alltoall")
        pairs = sum(queries * keys for queries, keys in blocks)
        assert pairs == LENGTH * LENGTH // 2 // ranks
        assert _ours(ranks, "ring")[1] == pytest.approx(4 * BATCH * HEADS * HEAD * pairs, rel=0.01)
