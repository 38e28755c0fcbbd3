"""Embedding tables divided among replicas by tables, rows or columns, beside layers that every replica has whole.

The axis ``tables`` is taken from the data axis; what is looked up, exchanged and kept says
:mod:`triosim.partition.tables`.  Where fewer ranks than all have the tables among them, their gradients are reduced
along ``table_replicas``, the ranks that have the same part of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.options import AtLeast
from triosim.core.registry import registered
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.rule import M, Rule
from triosim.partition.step import Step
from triosim.partition.tables import TableStyle, with_shared_tables


@registered
@dataclass(frozen=True)
class EmbeddingTables(Rule):
    """Divides the tables of embedding bags among neighbouring ranks of the data axis.

    Attributes:
        sharding: what a rank has: whole tables, or a part of the rows or of the columns of each.
        table_ranks: ranks that have all tables among them; 0 for all of the data axis.
    """

    sharding: TableStyle = "row"
    table_ranks: Annotated[int, AtLeast(0)] = 0

    def arranged(self, mesh: M) -> M:
        """With the axes ``table_replicas`` and ``tables``, the latter innermost.

        Raises:
            PlanError: the replicas cannot be divided into groups of so many.
        """
        replicas = mesh.size("dp")
        ranks = self.table_ranks or replicas
        if replicas % ranks:
            near = ", ".join(str(n) for n in range(1, replicas + 1) if replicas % n == 0)
            raise PlanError(f"tables: dp {replicas} has no groups of table-ranks {ranks}: sizes that fit are {near}")
        return mesh.resplit(("dp",), (("table_replicas", replicas // ranks), ("tables", ranks)))

    def replicate(self, mesh: Mesh, placed: Replication) -> Replication:
        """Gradients of tables are reduced along ``table_replicas``.

        Raises:
            PlanError: replicas are arranged otherwise, or have different experts too.
        """
        if placed.axis != "dp" or placed.rooted or placed.path or placed.apart:
            raise PlanError("tables: tables go with ZeRO and plain data parallelism: leave cp, ep, hsdp and others out")
        return replace(placed, apart="table_replicas")

    def completed(self, step: Step, mesh: Mesh) -> Step:
        """With one rank's part of the tables, and what is exchanged for it.

        Raises:
            PlanError: there are no tables, or their columns do not divide.
        """
        return with_shared_tables(step, self.sharding, mesh.size("tables"), mesh.row("tables"))
