"""Reading traces that other tools wrote: recognised by content, whatever the file is called.

``load(path)`` takes a stored ``.triosim`` file, a file of a foreign format or a folder, finds the one reader that
recognises it and returns the :class:`~triosim.trace.tables.Trace` of one step.  A reader is one file in
``triosim/sources/readers``; other packages add theirs through the entry-point group ``triosim.readers``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from triosim.core.errors import InputError, no_such_file, quoted
from triosim.core.garbage import collection_paused
from triosim.core.guarded import reading
from triosim.core.registry import Registry
from triosim.hardware.catalog import accelerator, accelerators, identify
from triosim.trace.tables import Trace


class Reader(ABC):
    """Reads one foreign format.  One subclass a file in ``sources/readers``.

    Attributes:
        what: what the format is, in the words of an error message.
        takes_shapes: whether :meth:`read` also takes ``shapes``, sizes of a network's inputs by name.
        takes_unused: whether it also takes ``unused``: operators run whose result nobody reads.
    """

    what: ClassVar[str]
    takes_shapes: ClassVar[bool] = False
    takes_unused: ClassVar[bool] = False

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether the content of this file or folder is of this format; cheap, never raises, never judges by name."""

    @abstractmethod
    def read(self, path: Path, *, step: str = "median", execution_trace: Path | None = None) -> Trace:
        """One step of the trace.

        Args:
            path: file or folder that :meth:`recognises` accepted.
            step: label of the step, ``"median"`` (the complete step with the median device time) or ``"all"``.
            execution_trace: a PyTorch execution trace of the same run, which gives tensor identities.

        Raises:
            InputError: the content is broken, or has no such step.
        """


READERS = Registry("triosim.sources.readers", "triosim.readers", "trace reader", Reader)
"""Readers of foreign traces by name."""


def load(
    path: str | os.PathLike[str],
    *,
    step: str | int = "median",
    execution_trace: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    unused: bool = False,
) -> Trace:
    """The trace in a file or folder of any known format.

    Args:
        path: a ``.triosim`` file, a torch.profiler (Kineto) JSON or an execution trace, plain or gzipped, a folder
            that holds one of each, or a TrioSim CSV folder.
        step: which step of a file with several: its number, ``"median"`` or ``"all"``.
        execution_trace: the execution trace that belongs to a Kineto file.
        shapes: sizes of the inputs of a network (ONNX) by name, where the file leaves them open.
        unused: whether operators of a network (ONNX, nn-Meter) run whose result nobody reads.

    Raises:
        InputError: nothing reads it, more than one reader could, or it is broken.
    """
    path = Path(path)
    companion = None if execution_trace is None else Path(execution_trace)
    for given in (path, companion):
        if given is not None and not os.path.exists(given):
            raise no_such_file(given)
    from triosim.trace.accumulation import one_micro_batch

    if _is_stored(path):
        if companion is not None:
            raise InputError(f"{path} is a stored trace and takes no execution trace; leave {companion} away")
        from triosim.trace.store import load

        with reading(path):
            trace = one_micro_batch(possible(load(path)))
        if str(step) not in ("median", "all", trace.meta.step):
            raise InputError(f"{path} holds step {trace.meta.step or '0'} only; leave the step {step} away")
        return trace
    readers = [READERS.get(name)() for name in READERS.names()]
    found = [reader for reader in readers if reader.recognises(path)]
    if not found:
        raise InputError(_not_recognised(path))
    if len(found) > 1:
        kinds = " and ".join(reader.what for reader in found)
        raise InputError(f"{path} holds {kinds}; give the path of the one to read")
    more: dict[str, Any] = {"unused": True} if unused and found[0].takes_unused else {}
    if shapes:
        if not found[0].takes_shapes:
            raise InputError(f"{path} holds {found[0].what}, whose shapes are known: leave --input-shape out")
        more["shapes"] = shapes
    with collection_paused(), reading(path):
        return one_micro_batch(possible(found[0].read(path, step=str(step), execution_trace=companion, **more)))


OVER_PEAK = 4.0
"""Times the peak of a device that an operator may seem to reach: a 3 x 3 convolution by Winograd's method needs 2.25
times fewer operations than are counted, sparse products half of them."""

RESOLUTION_S = 2e-6
"""How far off a recorded time may be: old profilers count whole microseconds."""


def possible(trace: Trace) -> Trace:
    """The trace without FLOP that no device could have done in the recorded times.

    The shapes of such an operator are not what its name says, or its kernels were recorded elsewhere.  It counts as
    one that only moves its bytes, and a note says so.
    """
    seconds = trace.operators.device_s
    name = identify(trace.meta.device) if trace.meta.device else None
    peaks = [rate for own in [name] if own for rate in accelerator(own).peak_flops.values()]
    peaks = peaks or [rate for own in accelerators() for rate in accelerator(own).peak_flops.values()]
    least = trace.operators.flop / (OVER_PEAK * max(peaks))
    rows = np.flatnonzero((seconds > 0) & (least > seconds + RESOLUTION_S))
    if not rows.size:
        return trace
    flop = trace.operators.flop.copy()
    flop[rows] = np.nan
    names = ", ".join(dict.fromkeys(trace.operators.name[row] for row in rows.tolist()))
    return replace(trace, operators=replace(trace.operators, flop=flop)).noted(
        f"the FLOP of {len(rows)} operators are not counted, as {name or 'every device'} is too slow for so many in "
        f"the recorded times: {quoted(names)[1:-1]}"
    )


def recognised(path: str | os.PathLike[str]) -> bool:
    """Whether :func:`load` knows what this file or folder is (it may still be broken)."""
    path = Path(path)
    if not os.path.exists(path):
        return False
    return _is_stored(path) or any(READERS.get(name)().recognises(path) for name in READERS.names())


def _is_stored(path: Path) -> bool:
    from triosim.trace.store import is_stored  # which a prediction of a model by name does not need

    return is_stored(path)


def _not_recognised(path: Path) -> str:
    from triosim.sources.readers._files import describe

    known = ", ".join(["a .triosim file", *(READERS.get(name).what for name in READERS.names())])
    return f"{path} {describe(path)}, which no reader takes; give {known}"
