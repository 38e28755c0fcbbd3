"""A divided step at another batch size: what a larger micro-batch changes of it, without dividing it again.

How our rules divide a step depends on its operators, its weights and the length of its sequences, not on how many
samples there are from two on (with one, a dimension of the batch is like one that is not there, and views are read
otherwise).  So a step is divided once, of :data:`SAMPLES`, for all micro-batches of several samples.  That also follows
dimensions better: where a view splits or joins some, they are told apart by their sizes, and two samples are easily
taken for two heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.partition.step import Step
from triosim.trace.repeated import ROOM
from triosim.trace.tables import Trace
from triosim.transform.rescale import rescale

SAMPLES = 499
"""Of a micro-batch that is divided for all of several: a prime number, so that no other dimension is as long."""


def grows_alike(whole: Trace, ranks: int) -> bool:
    """Whether a step is to be divided among ranks as one of :data:`SAMPLES` is.

    Args:
        whole: the undivided step.
        ranks: of all axes along which our rules divide it.
    """
    meta = whole.meta
    named = meta.made_by == "triosim.model" and meta.symbols == "model"
    length = meta.sequence_length or 0
    even = length > 0 and length % ranks == 0  # else what divides depends on samples
    return named and even and (meta.batch_size or 0) > 1


@kept(16, room=ROOM, size=lambda step: len(step.trace))
def of_batch(step: Step, divided: Trace, whole: Trace) -> Step:
    """The share of a step of other samples: row for row the same operators and transfers.

    Args:
        step: the share of ``divided``.
        divided, whole: the same undivided step of :data:`SAMPLES` and of others.
    """
    batch, sent = whole.meta.batch_size or 0, step.transfers
    homes = replace(rescale(step.homes, batch=batch), operators=whole.operators)
    if len(sent):
        inputs = divided.operators.inputs
        read = inputs.values[np.minimum(inputs.offsets[sent.after.astype(np.int64)], len(inputs.values) - 1)]
        value = np.where(sent.value >= 0, sent.value, read)  # sums within a loss are as many as it has rows
        grows = homes.values.bytes()[value] != step.homes.values.bytes()[value]
        sent = replace(sent, bytes=np.where(grows, sent.bytes // SAMPLES * batch, sent.bytes))
    return replace(step, trace=rescale(step.trace, batch=batch), homes=homes, transfers=sent)
