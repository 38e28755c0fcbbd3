"""Context parallelism against PyTorch's ring attention, which runs for real on a fake process group.

Its loop is what ``torch.distributed.tensor.experimental.context_parallel`` puts in the place of attention.  CPUs have
no kernel that it knows, so it is given one that only has the right shapes; what it sends is noted.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim.operators.context_copies import merged_gradients, merged_results
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase

torch = pytest.importorskip("torch")
experimental = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

BATCH, HEADS, KEYS, HEAD, LENGTH, LAYERS = 1, 32, 8, 64, 1024, 2  # of Llama 3.2 1B
Sent = list[tuple[str, int]]
Blocks = list[tuple[int, int]]


class _Moved(TorchDispatchMode):
    """Bytes that operators read and write, views and what stands in for attention and for what is sent left out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.counts = 0, True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.counts = False
        yield
        self.counts = True

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, name = operator(*args, **(kwargs or {})), operator.__name__.split(".")[0]
        if self.counts and not operator.is_view and name not in ("split", "_unsafe_view"):
            read = () if name == "zeros_like" else (args, kwargs)
            tensors = [leaf for leaf in tree_leaves((read, made)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return made


def _theirs(ranks: int, rank: int, method: str) -> tuple[Sent, Sent, Blocks, tuple[int, int]]:
    """What is sent in the forward and in the backward of an attention, rows of queries and keys of its blocks, and the
    bytes that are moved beside these in the forward and in the backward."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    functional, found, blocks = experimental.ft_c, list[tuple[str, int]](), list[tuple[int, int]]()
    moved = _Moved()

    def noted(kind: str, parts: int) -> Any:
        def send(tensor: Any, *args: Any, **options: Any) -> Any:
            found.append((kind, tensor.numel() * tensor.element_size() * parts))
            with moved.paused():
                return torch.cat([tensor] * parts)

        return send

    def forward(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, ...]:
        blocks.append((q.shape[2], k.shape[2] // (2 if options["is_causal"] else 1)))
        with moved.paused():
            return torch.zeros_like(q), torch.zeros(q.shape[:3]), None

    def backward(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, ...]:
        with moved.paused():
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
            k, v = (torch.zeros((BATCH, shape[2], KEYS, HEAD), dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
            group = dist.distributed_c10d._get_default_group()
            with moved:
                out, lse, *_ = experimental._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
            sent, before, given = list(found), moved.bytes, torch.zeros_like(out)
            with moved:
                experimental._templated_ring_attention_backward(
                    group, 2, backward, given, "grad_out", q, k, v, out, lse, is_causal=True
                )
            return sent, found[len(sent) :], blocks, (before, moved.bytes - before)
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
    sent, *_ = _theirs(ranks, 0, method)
    own = 2 * BATCH * KEYS * HEAD * LENGTH // ranks * 2
    assert sent == ([("send", own)] * (ranks - 1) if kind == "send" else [("all_gather", own * ranks)])
    wire = sum(n if k == "send" else n * (ranks - 1) // ranks for k, n in sent)
    assert _ours(ranks, style)[0][Phase.FORWARD] == {"all_gather": wire}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_in_the_backward_keys_and_values_go_round_again_and_their_gradients_too(ranks: int) -> None:
    """PyTorch adds gradients up in float32 and sends them on once more than there are others, to their owner."""
    _, sent, *_ = _theirs(ranks, 0, "alltoall")
    own = 2 * BATCH * KEYS * HEAD * LENGTH // ranks
    assert Counter(sent) == {("send", 2 * own): ranks - 1, ("send", 4 * own): ranks}
    ours = _ours(ranks, "ring")[0][Phase.BACKWARD]
    assert ours["all_gather"] == 2 * own * (ranks - 1)
    assert ours["reduce_scatter"] == pytest.approx(4 * own * ranks, rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_rank_computes_as_much_as_ours(ranks: int) -> None:
    """Pairs of queries and keys, of which its own block has half."""
    for rank in (0, ranks // 2, ranks - 1):
        _, _, blocks, _ = _theirs(ranks, rank, "alltoall")
        pairs = sum(queries * keys for queries, keys in blocks)
        assert pairs == LENGTH * LENGTH // 2 // ranks
        assert _ours(ranks, "ring")[1] == pytest.approx(4 * BATCH * HEADS * HEAD * pairs, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_as_many_bytes_are_moved_around_the_blocks(ranks: int) -> None:
    """Blocks merged and gradients added up, on average over ranks; sums of exponentials, a 64th, are not counted."""
    each = [_theirs(ranks, rank, "alltoall")[3] for rank in range(ranks)]
    elements = BATCH * HEADS * HEAD * LENGTH // ranks
    for at, merged in enumerate((merged_results, merged_gradients)):
        moves = merged(ranks, 2, 2 * KEYS / HEADS, True, "composed")
        ours = elements * math.fsum(times * (read + written) for times, read, written, _ in moves)
        assert ours == pytest.approx(sum(moved[at] for moved in each) / ranks, rel=0.03)
