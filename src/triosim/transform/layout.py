"""Images whose channels lie side by side (``torch.channels_last``), or apart, as they do by default.

The matrix units of a GPU multiply channels of one pixel.  Where images lie channel by channel the library turns the
input of each convolution, and its result back; ``model.to(memory_format=torch.channels_last)`` leaves that out for the
whole step, as the other operators keep the layout of what they are given (PyTorch, "Channels Last Memory Format").
Batch norms have other kernels then, in which all units work on every channel.  The layout of an operator's input is its
argument :data:`~triosim.operators.LAYOUT`; recordings have it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.core.errors import PlanError, quoted
from triosim.operators import CHANNELS_LAST, LAYOUT
from triosim.trace.calls import calls_of, with_arguments
from triosim.trace.repeated import ROOM
from triosim.trace.tables import Trace

IMAGES = (4, 5)
"""Dimensions of a weight whose convolution knows the layout, and of what a batch norm reads: images of two and three
dimensions."""


@kept(32, room=ROOM, size=len)
def laid_out(trace: Trace, layout: str) -> Trace:
    """The step with its images in another layout.

    Convolutions and batch norms whose layout changes have no measured times then.

    Args:
        trace: a step.
        layout: ``"channels_last"``, ``"contiguous"``, or ``"recorded"`` for the step as it is.

    Raises:
        PlanError: the step has no convolution of images.
    """
    if layout == "recorded":
        return trace
    calls, operators = calls_of(trace), trace.operators
    images = [
        row for row in range(len(trace))
        if calls[row].kind == "convolution" and len(calls[row].shape("weight") or ()) in IMAGES
    ]  # fmt: skip
    norms = [
        row for row in range(len(trace))
        if "batch_norm" in calls[row].name and len(calls[row].shape("input", "self") or ()) in IMAGES
    ]  # fmt: skip
    if not images:
        raise PlanError(
            f"layout {layout}: {quoted(trace.meta.workload or 'the workload')} has no convolutions of images: leave it "
            "out"
        )
    wanted = CHANNELS_LAST if layout == CHANNELS_LAST else None
    changed = [row for row in (*images, *norms) if calls[row].args.get(LAYOUT) != wanted]
    args, device_s = list(operators.args), operators.device_s.copy()
    for row in changed:
        args[row] = with_arguments(args[row], **{LAYOUT: wanted})
    device_s[changed] = np.nan
    return replace(trace, operators=replace(operators, args=tuple(args), device_s=device_s))
