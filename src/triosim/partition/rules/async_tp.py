"""Tensor parallelism whose collectives run beside the products that read and make what they move, piece by piece.

With ``n`` ranks an all-gather is ``n - 1`` parts that arrive one after another, and a product that reads it works on
each of them when it is there; a product whose output is reduce-scattered makes what is sent first, and each part leaves
while the next is made.  With ``c`` the time of one piece of a product and ``t`` that of one part on the way, both take
``c + (n - 1) max(c, t)``.  Pieces of a product run on streams of their own, so that the last wave of one fills up with
the next: ``n`` pieces are taken to take as long as the whole product.  What is brought by copy engines takes no
multiprocessors from them.

* ``torch``: what ``torch.compile`` makes of sequence parallelism with ``_micro_pipeline_tp``
  (``torch/_inductor/fx_passes/micro_pipeline_tp.py``): all-gathers that products of layers read, and reduce-scatters of
  what one product makes, by copies from peer to peer (``torch/distributed/_symmetric_memory``).  A rank first puts its
  part where the others find it, and adds up at the end what was brought.  Where several products are added up before
  the reduce-scatter (the backward of queries, keys and values), it stays as it is.
* ``megatron``: Megatron-LM's ``--tp-comm-overlap`` by Transformer Engine's user buffers, with the methods that
  ``initialize_ub`` (``transformer_engine/pytorch/module/base.py``) takes by default: all-gathers before products by
  column, and in the backward before those by row, go round in as many parts as ranks; reduce-scatters after products by
  row are cut in four, by kernels that hold multiprocessors; in the backward of layers by column the input is gathered
  again beside the gradient of the input, and that is scattered beside the gradient of the weights.

Gradients of weights that wait for what is gathered come after the products that work on pieces of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.partition.copies import readers_of_copies
from triosim.partition.facts import Facts
from triosim.partition.mesh import Mesh
from triosim.partition.rule import Placing, Rule
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, BESIDE_WEIGHTS, REDUCE_SCATTER
from triosim.trace.blocks import blocks
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase

SPLITS = 4
"""Parts of a reduce-scatter of user buffers' method ``pipeline``, ``num_splits`` of ``add_ub`` in ``initialize_ub``."""
_PRODUCTS = ("linear", "matmul")


class _Products:
    """The products of a step that work on what is gathered, or make what is scattered.

    Args:
        step: one rank's share.
        everywhere: whether those count that are in no repeated block (the last product) too.
    """

    def __init__(self, step: Step, everywhere: bool) -> None:
        self.step, self.calls = step, calls_of(step.trace)
        self.block = None if everywhere else blocks(step.trace).of(step.trace)
        self.readers: dict[int, list[tuple[int, int]]] = {}
        for number, row, copy in readers_of_copies(step):
            self.readers.setdefault(number, []).append((row, copy))

    def counts(self, row: int) -> bool:
        """Whether an operator is where collectives are beside products."""
        return self.block is None or bool(self.block[row] >= 0)

    def made_by_one(self, row: int) -> bool:
        """Whether an operator is a product."""
        return self.counts(row) and self.calls[row].kind in _PRODUCTS

    def reads_pieces(self, number: int) -> bool:
        """Whether a product works on what is gathered row by row, and nothing else needs all of it before.

        A product that adds up along what is gathered, the gradient of a weight, can wait.
        """
        for row, copy in self.readers.get(number, ()):
            if self.step.trace.operators.view[row]:
                continue
            if not self.made_by_one(row):
                return False
            if self._row_by_row(row, copy):
                return True
        return False

    def _row_by_row(self, row: int, copy: int) -> bool:
        """Whether the dimension along which a copy was gathered is one of what an operator makes."""
        shapes, own = self.step.trace.values.shape, len(self.step.homes.values)
        before, after = shapes[self.step.origin[copy - own]].tolist(), shapes[copy].tolist()
        if len(before) != len(after):
            return False
        dims = self.calls.dims(row)
        at = self.step.trace.operators.inputs[row].tolist().index(copy)
        labels = {dims.inputs[at][d] for d, (part, whole) in enumerate(zip(before, after, strict=True)) if part < whole}
        return dims.known and bool(labels) and labels <= set(dims.outputs[0].labels)


@registered
@dataclass(frozen=True)
class AsyncTp(Rule):
    """Makes collectives of sequence parallelism beside products; the rule ``sequence`` comes before it.

    Attributes:
        overlap_style: whose way it is done in.
    """

    needs_ranks: ClassVar[bool] = True

    overlap_style: Literal["torch", "megatron"] = "torch"

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Nothing is placed otherwise.

        Raises:
            PlanError: activations do not rest along the sequence, so that nothing is gathered or scattered.
        """
        if not placing.resting:
            raise PlanError(
                "async-tp: it makes all-gathers and reduce-scatters of sequence parallelism beside products, and "
                "without it tensor-parallel ranks all-reduce: give --sequence-parallel before it"
            )
        return placing

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With each all-gather and reduce-scatter that is beside a product marked."""
        size = mesh.size("tp")
        if size == 1:
            return step
        sent, operators = step.transfers, step.trace.operators
        pieces, copied = sent.pieces.copy(), sent.copied.copy()
        torch = self.overlap_style == "torch"
        products = _Products(step, everywhere=torch)
        for number in np.flatnonzero((sent.axis == mesh.row("tp")) & ~sent.beside).tolist():
            row = int(sent.after[number])
            if sent.what[number] == ALL_GATHER:
                if products.reads_pieces(number):
                    pieces[number], copied[number] = size, True
            elif sent.what[number] == REDUCE_SCATTER and row >= 0:
                backward = operators.phase[row] == Phase.BACKWARD
                if products.made_by_one(row) and (torch or not backward):
                    pieces[number], copied[number] = (size, True) if torch else (SPLITS, False)
                elif products.counts(row) and backward and not torch:
                    pieces[number] = BESIDE_WEIGHTS
        return replace(step, transfers=replace(sent, pieces=pieces, copied=copied))
