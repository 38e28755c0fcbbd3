"""What the program knows of operators, one file per kind: names, arguments, dimensions, work, traffic.

Everything here is about one :class:`Call` and knows no trace.  A kind from outside is one file: a distribution's entry
point in the group ``triosim.operators``, under the kind's name, that ends in one registered :class:`Kind`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TypeVar

from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import (
    GRADIENT_ROLES,
    NO_LABEL,
    Dims,
    Output,
    Row,
    Window,
    aligned,
    at_once,
    blank,
    bounded,
    in_each,
    regrouped,
    unknown,
)
from triosim.operators._extent import Extent, Term, term_of
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._names import (
    KINDS,
    argument_names,
    canonical,
    in_place,
    is_backward,
    kind,
    kind_named,
    reads_result,
    written_roles,
)
from triosim.operators._work import (
    ATTENTION_KERNELS,
    BLOCKS,
    CHANNELS_LAST,
    DOCUMENTS,
    HALF,
    LAYOUT,
    ROWS,
    SCALES,
    SHARE,
    SPREAD,
    STREAMS,
    TURNED,
    AttentionWork,
    ConvolutionWork,
    ExpertsWork,
    MovedBytes,
    ProductWork,
    ScanWork,
    Work,
)

__all__ = [
    "ATTENTION_KERNELS",
    "BLOCKS",
    "CHANNELS_LAST",
    "DOCUMENTS",
    "GRADIENT_ROLES",
    "HALF",
    "KINDS",
    "LAYOUT",
    "NO_LABEL",
    "ROWS",
    "SCALES",
    "SHARE",
    "SPREAD",
    "STREAMS",
    "TURNED",
    "AttentionWork",
    "Call",
    "CallResult",
    "ConvolutionWork",
    "Dims",
    "ExpertsWork",
    "Extent",
    "Kind",
    "MovedBytes",
    "Need",
    "Output",
    "ProductWork",
    "ScanWork",
    "Shape",
    "Term",
    "Window",
    "Work",
    "aligned",
    "argument_names",
    "at_once",
    "bounded",
    "bytes_of",
    "canonical",
    "dims",
    "dims_by_parts",
    "flop",
    "in_each",
    "in_place",
    "is_backward",
    "kind",
    "kind_named",
    "problem",
    "reads_result",
    "regrouped",
    "repeated",
    "results",
    "term_of",
    "traffic",
    "unknown",
    "unmet",
    "work",
    "written_roles",
]  # fmt: skip


_R = TypeVar("_R")


def _once(rule: Callable[[Call], _R]) -> Callable[[Call], _R]:
    """A rule that is asked once for each call: traces of one model share most of their calls."""
    name = f"_{rule.__name__}"

    @wraps(rule)
    def asked(call: Call) -> _R:
        known = call.__dict__
        if name not in known:
            known[name] = rule(call)
        found: _R = known[name]
        return found

    return asked


def problem(call: Call) -> str:
    """Why nothing can be said of the call's work (a missing argument, a wrong number of dimensions), ``""`` if it can.

    Such a call is priced by the bytes of its tensors.
    """
    return kind_named(call.kind).problem(call)


@_once
def dims(call: Call) -> Dims:
    """Labels of the dimensions of the call's tensors, as in an einsum."""
    kind = kind_named(call.kind)
    found = unknown(call) if kind.problem(call) else kind.dims(call)
    there = tuple(inputs for inputs in found.linear if inputs and max(inputs) < len(call.inputs))
    if len(there) < len(found.linear):
        found = replace(found, linear=there)
    if len(found.outputs) < len(call.outputs):  # results that the rule says nothing about
        rest = tuple(Output(labels, ()) for labels in blank(call.outputs[len(found.outputs) :]))
        found = replace(found, outputs=(*found.outputs, *rest))
    return found


@_once
def dims_by_parts(call: Call) -> Dims:
    """As :func:`dims`, of windows that lie side by side (patches of an image) one label for what is read and made.

    Whoever has a part of the patches has all that the windows of its own part read, so such a dimension may be divided.
    """
    found = dims(call)
    extents = found.extents(call) if found.windows else {}
    same = {
        w.source: w.result for w in found.windows
        if w.size == w.stride and w.dilation == 1 and w.padding == 0
        and extents.get(w.source) == w.stride * extents.get(w.result, 0)
    }  # fmt: skip
    if not same:
        return found

    def of(row: Row) -> Row:
        return tuple(same.get(label, label) for label in row)

    return replace(
        found, inputs=tuple(map(of, found.inputs)),
        outputs=tuple(replace(out, labels=of(out.labels)) for out in found.outputs),
        whole=found.whole - {*same, *same.values()}, windows=(),
    )  # fmt: skip


def results(call: Call) -> tuple[CallResult, ...] | None:
    """What a call returns or writes, from its inputs and arguments alone; None where they do not tell."""
    kind = kind_named(call.kind)
    if kind.problem(call) or (not call.inputs and call.kind != "create"):
        return None
    if call.inputs and call.kind not in ("optimizer", "view") and in_place(call.full_name):
        return (CallResult(call.inputs[0], call.dtype(0), 0, 0, True),)
    found = kind.results(call)
    return None if found is None or any(min(r.shape, default=0) < 0 for r in found) else found


@_once
def flop(call: Call) -> float:
    """Floating-point operations of a call (a multiply-add counts two), NaN for kinds without such a count."""
    kind = kind_named(call.kind)
    return math.nan if kind.problem(call) else kind.flop(call)


def repeated(call: Call) -> float:
    """The part of :func:`flop` that a fused backward spends on computing again what its forward did not keep."""
    kind = kind_named(call.kind)
    return 0.0 if kind.problem(call) else kind.repeated(call)


@_once
def bytes_of(call: Call) -> float:
    """Bytes that a call reads and writes, each value once; views move nothing."""
    return 0.0 if call.view else kind_named(call.kind).bytes(call)


@_once
def work(call: Call) -> Work | None:
    """What a call multiplies, None for a kind that only moves bytes and where shapes do not tell."""
    kind = kind_named(call.kind)
    return None if kind.problem(call) else kind.work(call)


@_once
def traffic(call: Call) -> MovedBytes:
    """What the kernels of a call move."""
    kind = kind_named(call.kind)
    moved = bytes_of(call)
    written = min(float(sum(call.output_bytes(at) for at in range(len(call.outputs)))), moved)
    return kind.traffic(call, MovedBytes(kind.stream_of(call), moved - written, written))
