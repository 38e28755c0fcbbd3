"""Which dimensions of the tensors of one call are the same: the labels of an einsum, or the loops of a loop nest.

A rule gives every dimension of every tensor of a call a *label*.  Dimensions with the same label have the same extent
because the operator makes them so, whatever the extent is; one that is 1 where others are not is broadcast and has no
label.  A label that some inputs of an output have and the output has not is summed over, or, if the rule says so, needs
the whole extent at once (softmax, layer norm, the positions under a convolution's window).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from triosim.core.dataclass import dataclass
from triosim.operators._call import Call, Shape

NO_LABEL = -1

Row = tuple[int, ...]
"""Labels of one tensor's dimensions."""


@dataclass(frozen=True)
class Output:
    """Labels of one output and the inputs that it is computed from (all, where None)."""

    labels: Row
    inputs: tuple[int, ...] | None = None


class Window(NamedTuple):
    """A window that slides over positions: ``source = result * stride + kernel * dilation - padding``.

    Attributes:
        source, result, kernel: labels of the positions that are read, of those that are made, and of the places in the
            window.
        size: places in the window.
        stride, dilation, padding: of the formula; padding is that before the first position.
    """

    source: int
    result: int
    kernel: int
    size: int
    stride: int
    dilation: int
    padding: int


@dataclass(frozen=True)
class Dims:
    """The dimensions of one call.

    Attributes:
        inputs: labels of each input's dimensions; :data:`NO_LABEL` where a dimension follows nothing.
        outputs: labels of each output.
        whole: labels whose whole extent is needed at once.
        reshape: the outputs are the first input's elements in the same order with other dimensions; labels then number
            the dimensions of each tensor by itself.
        known: False where no rule fits: nothing may be concluded.
        split: label of a dimension that is cut into parts (split, slice, cat) or repeated: extents differ but follow in
            proportion.
        linear: sets of inputs in which the operator is linear at once.  Where exactly the inputs of one such set are
            sums over ranks, the outputs are sums over ranks of what each makes.
        creates: only the shapes of the inputs are read (``ones_like``).
        per_rank: with the batch divided, every rank works on its samples alone and nothing is exchanged, although the
            operator takes sums over the batch (losses, statistics of a batch norm).
        windows: windows that slide over positions.
        groups: independent parts into which input and output channels are divided (grouped convolution).
        names: what the labels are called, one letter or word each by label; empty where they have no names.
    """

    inputs: tuple[Row, ...]
    outputs: tuple[Output, ...]
    whole: frozenset[int] = frozenset()
    reshape: bool = False
    known: bool = True
    split: int | None = None
    linear: tuple[frozenset[int], ...] = ()
    creates: bool = False
    per_rank: bool = False
    windows: tuple[Window, ...] = ()
    groups: int = 1
    names: tuple[str, ...] = ()

    def label(self, name: str) -> int:
        """The label of this name, :data:`NO_LABEL` for none."""
        return self.names.index(name) if name in self.names else NO_LABEL

    def extents(self, call: Call) -> dict[int, int]:
        """Extent of every label: the bounds of the loops.  Of a dimension that is cut or repeated the larger."""
        found: dict[int, int] = {}
        shapes = (*call.inputs, *call.outputs)
        for row, shape in zip((*self.inputs, *(o.labels for o in self.outputs)), shapes, strict=True):
            for label, extent in zip(row, shape, strict=True):
                if label != NO_LABEL:
                    found[label] = max(extent, found.get(label, 0))
        for window in self.windows:
            found.setdefault(window.kernel, window.size)
        return found


def blank(shapes: Iterable[Shape]) -> list[Row]:
    """No labels for any dimension of ``shapes``."""
    return [(NO_LABEL,) * len(s) for s in shapes]


def unknown(call: Call) -> Dims:
    """Nothing is known of the call's dimensions."""
    return Dims(tuple(blank(call.inputs)), tuple(Output(labels) for labels in blank(call.outputs)), known=False)


def in_each(*inputs: int) -> tuple[frozenset[int], ...]:
    """Linear in each of these inputs by itself (:attr:`Dims.linear`); those below 0 are not there."""
    return tuple(frozenset((at,)) for at in inputs if at >= 0)


def at_once(*inputs: int) -> frozenset[int]:
    """Linear in all of these inputs at once, an element of :attr:`Dims.linear`."""
    return frozenset(at for at in inputs if at >= 0)


GRADIENT_ROLES = ("grad_output", "grad_out", "grad_out_", "grad")
"""Roles of the gradient that a backward operator is given."""


def in_gradient(call: Call) -> tuple[frozenset[int], ...]:
    """What every backward operator is linear in: the gradients that it is given."""
    at = call.find(*GRADIENT_ROLES)
    return in_each(at) if call.backward else ()


def bounded(call: Call, inputs: Mapping[int, Row], outputs: Mapping[int, Row]) -> tuple[list[Row], list[Row]]:
    """Labels of a call's tensors from those that a rule gives some of them.

    A tensor of another rank than its row has no labels, nor has a dimension of extent 1 that is broadcast: the largest
    extent of a label is that of the loop.

    Args:
        call: the call.
        inputs, outputs: labels by position; tensors that are left out have none.
    """
    ins, outs = blank(call.inputs), blank(call.outputs)
    extents: dict[int, int] = {}
    for shapes, given, rows in ((call.inputs, inputs, ins), (call.outputs, outputs, outs)):
        for at, row in given.items():
            if 0 <= at < len(shapes) and len(shapes[at]) == len(row):
                rows[at] = row
                for label, extent in zip(row, shapes[at], strict=True):
                    extents[label] = max(extent, extents.get(label, 0))
    for shapes, rows in ((call.inputs, ins), (call.outputs, outs)):
        for at, shape in enumerate(shapes):
            if 1 in shape:
                rows[at] = tuple(
                    NO_LABEL if extent == 1 < extents.get(label, 0) else label
                    for label, extent in zip(rows[at], shape, strict=True)
                )
    return ins, outs


def align_right(shape: Shape, reference: Shape) -> Row | None:
    """Labels of ``shape`` under broadcasting against ``reference`` (labels are dimensions of the reference)."""
    shift = len(reference) - len(shape)
    if shift < 0:
        return None
    out = []
    for d, extent in enumerate(shape):
        if extent == reference[d + shift]:
            out.append(d + shift)
        elif extent == 1:
            out.append(NO_LABEL)
        else:
            return None
    return tuple(out)


def align_left(shape: Shape, reference: Shape) -> Row | None:
    """Labels of ``shape`` when its dimensions are the leading ones of ``reference``."""
    out = []
    for d, extent in enumerate(shape):
        if d < len(reference) and extent == reference[d]:
            out.append(d)
        elif extent == 1:
            out.append(NO_LABEL)
        else:
            return None
    return tuple(out)


def aligned(call: Call, tolerant: bool = False) -> Dims:
    """Element by element with broadcasting.

    Args:
        call: any call.
        tolerant: shapes that do not fit have no labels; otherwise nothing is known then.
    """
    shapes = [s for s in (*call.outputs, *call.inputs) if s]
    if not shapes:
        return Dims(tuple(() for _ in call.inputs), tuple(Output(()) for _ in call.outputs))
    reference = broadcast(shapes) or max(shapes, key=lambda s: (len(s), math.prod(s)))
    known = True

    def align(shape: Shape) -> Row:
        nonlocal known
        found = align_right(shape, reference)
        if found is None:
            found = align_left(shape, reference)
        if found is None:
            known = known and tolerant
            return (NO_LABEL,) * len(shape)
        return found

    ins = tuple(align(s) for s in call.inputs)
    outs = tuple(Output(align(s)) for s in call.outputs)
    return Dims(ins, outs, known=known, linear=in_gradient(call))


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that all of ``shapes`` are broadcast to, None where they do not fit."""
    rank = max(map(len, shapes), default=0)
    out = []
    for d in range(rank):
        extents = {s[d - rank + len(s)] for s in shapes if d - rank + len(s) >= 0} - {1}
        if len(extents) > 1:
            return None
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def listed(call: Call, name: str, rank: int, default: object = None) -> list[int] | None:
    """The dimensions that argument ``name`` gives, counted from the front.

    None where there is no such argument, or where it does not name dimensions of a tensor of this rank.
    """
    given = call.args.get(name, default)
    if isinstance(given, int) and not isinstance(given, bool):
        given = [given]
    if not isinstance(given, list | tuple) or not all(type(d) is int and -rank <= d < max(rank, 1) for d in given):
        return None
    return [d % rank if rank else 0 for d in given]


def sizes(call: Call, name: str, rank: int, default: int) -> list[int]:
    """One number for each of ``rank`` dimensions from argument ``name``, which may give one for all."""
    given = call.args.get(name)
    if type(given) is int:
        return [given] * rank
    if isinstance(given, list | tuple) and given and all(type(v) is int for v in given) and len(given) in (1, rank):
        return [*given] * (rank // len(given))
    return [default] * rank


def none_placed(call: Call, found: Dims) -> bool:
    """Whether an output of more than one element has no labels at all."""
    return any(
        shape and math.prod(shape) > 1 and all(label == NO_LABEL for label in output.labels)
        for shape, output in zip(call.outputs, found.outputs, strict=True)
    )


Groups = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""How dimensions before a reshape become those after: each of the former tuples is laid out again as the latter."""


def regrouped(before: Shape, after: Shape) -> Groups | None:
    """The finest groups of dimensions whose elements a reshape keeps together; None where the sizes differ.

    A dimension of extent 1 stays one where there is one at its place; else it belongs to what follows it, as a batch
    of one belongs to the rows of the flattened batch.
    """
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        first, last = [i], [j]
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b and i < len(before):
                a *= before[i]
                first.append(i)
                i += 1
            elif b < a and j < len(after):
                b *= after[j]
                last.append(j)
                j += 1
            else:
                return None
        groups.append((tuple(first), tuple(last)))
    rest = (tuple(range(i, len(before))), tuple(range(j, len(after))))
    if any(before[d] != 1 for d in rest[0]) or any(after[d] != 1 for d in rest[1]):
        return None
    if rest != ((), ()):
        last_group = groups.pop() if groups else ((), ())
        groups.append((last_group[0] + rest[0], last_group[1] + rest[1]))
    return tuple(groups)


def none_read(call: Call, found: Dims) -> bool:
    """Whether of no input of more than one element a dimension has a label."""
    large = [row for row, shape in zip(found.inputs, call.inputs, strict=True) if math.prod(shape) > 1]
    return bool(large) and all(label == NO_LABEL for row in large for label in row)


def number(call: Call, name: str, default: int | None = None) -> int | None:
    """The whole number that argument ``name`` is, else ``default``."""
    given = call.args.get(name)
    return given if type(given) is int else default


def numbers(call: Call, *names: str) -> tuple[int, ...] | None:
    """The list of whole numbers that the first given of these arguments is, None where none is."""
    for name in names:
        given = call.args.get(name)
        if isinstance(given, list | tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in given):
            return tuple(given)
    return None


def given_sizes(call: Call, name: str, rank: int) -> list[int] | None:
    """One number for each of ``rank`` dimensions from argument ``name``, None where it gives none."""
    found = sizes(call, name, rank, -1)
    return found if min(found, default=0) >= 0 else None


def positions(
    read: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], up: bool = False,
) -> Shape:  # fmt: skip
    """Positions of a window of ``kernel`` places in each dimension of ``read``; ``up`` lets the last one hang over."""
    out = []
    for d, extent in enumerate(read):
        room = extent + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1
        made = (-(-room // stride[d]) if up else room // stride[d]) + 1 if stride[d] else 0
        if up and (made - 1) * stride[d] >= extent + padding[d]:
            made -= 1  # the last window starts within the input or its padding before it
        out.append(made)
    return tuple(out)
