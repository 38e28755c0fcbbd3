"""What a divided step is but for how many samples a micro-batch has.

Steps of several micro-batch sizes run the same operators on the same storages, in other sizes.  What follows from the
operators alone, as which block of memory comes and goes when, is worked out once for all steps of one structure.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.result_cache import content
from triosim.partition.step import Step
from triosim.schedule.redistribution import shared_readers
from triosim.trace.tables import PERSISTENT, Trace


@kept(32)
def step_structure(step: Step) -> Hashable:
    """Equal for steps that differ in the sizes of what is no parameter, gradient of one or state, and in nothing else.

    Where nothing has any bytes is a part of it, and so is what is told of operators by comparing sizes
    (:func:`triosim.schedule.redistribution.shared_readers`).  What operators take, do and are called with is not.
    """
    sent = step.transfers
    transfers = (sent.after, sent.before, sent.what, sent.axis, sent.value, sent.beside, sent.pieces, sent.copied)
    homes = () if step.homes is step.trace else _trace(step.homes)
    return (
        _trace(step.trace), homes, *map(content, transfers), content(shared_readers(step)), step.root_only, step.origin,
        step.apart, step.updates,
    )  # fmt: skip


def _trace(trace: Trace) -> Hashable:
    operators, values, modules = trace.operators, trace.values, trace.modules
    lasting = np.isin(values.category, [int(category) for category in PERSISTENT]) | (values.of >= 0)
    columns: list[NDArray] = [
        operators.phase, operators.module, operators.forward, operators.view, operators.sync,
        *(column for table in (operators.inputs, operators.roles, operators.outputs)
          for column in (table.values, table.offsets)),
        values.storage, values.version, values.dtype, values.category, values.of, values.shape.offsets,
        np.where(lasting[values.shape.rows()], values.shape.values, 0), values.bytes() > 0, values.storage_bytes() > 0,
    ]  # fmt: skip
    named = values.name, operators.name, operators.role_names, modules.path, modules.kind
    return (*map(content, columns), *named)
