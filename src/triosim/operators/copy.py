"""Operators that put elements elsewhere: copies, casts, concatenation, padding, repetition."""

from __future__ import annotations

import math
from dataclasses import replace

from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import (
    NO_LABEL,
    Dims,
    Output,
    aligned,
    at_once,
    blank,
    in_each,
    in_gradient,
    listed,
    none_placed,
    none_read,
    number,
    numbers,
    unknown,
)
from triosim.operators._kind import Kind, promoted

_CATS = ("cat", "_cat", "hstack", "vstack", "concat", "concatenate")
_PADS = ("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d")
_ROW_PADS = ("fused_multi_row_padding", "fused_multi_row_unpadding")
"""Transformer Engine's, around experts whose products are quantised; a few rows more are not counted."""
_PLAIN = ("copy", "to", "_to_copy", "clone", "contiguous", *_ROW_PADS)


@registered
class Copy(Kind):
    """Every element of the result is one of an input, perhaps in another element type."""

    names = """
        copy: self src non_blocking
        clone contiguous: self memory_format
        fused_multi_row_padding fused_multi_row_unpadding: self
        to _to_copy: self dtype layout device
        type_as: self other
        convert_element_type: a dtype
        cat _cat concat concatenate stack: tensors dim
        hstack vstack: tensors
        repeat: self repeats
        repeat_interleave: self repeats dim
        tile: self dims
        pad: self pad mode value
        constant_pad_nd: self pad value
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d:
          self padding
        roll: self shifts dims
        flip: self dims
        fliplr flipud rot90: self
        pin_memory _pin_memory: self device
        pixel_shuffle: self upscale_factor
        pixel_unshuffle: self downscale_factor
        channel_shuffle: self groups
        im2col: self kernel_size dilation padding stride
        col2im: self output_size kernel_size dilation padding stride
        split_copy split_with_sizes_copy expand_copy view_copy _reshape_copy transpose_copy permute_copy slice_copy
        select_copy unbind_copy squeeze_copy unsqueeze_copy t_copy detach_copy alias_copy as_strided_copy
        cross_entropy_copy copy_slices fake_quantize resolve_conj resolve_neg
        """
    stream = "copy"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        if call.backward or not call.inputs:
            return None
        x, dtype, shapes = call.inputs[0], call.dtype(0), call.inputs
        shape: Shape | None = None
        if call.name in ("cat", "_cat", "concat", "concatenate"):
            shapes = tuple(s for s in shapes if s != (0,)) or shapes[:1]
            dims = listed(call, "dim", len(shapes[0]), 0)
            if not dims or not shapes[0] or len({len(s) for s in shapes}) != 1:
                return None
            shape = (*shapes[0][: dims[0]], sum(s[dims[0]] for s in shapes), *shapes[0][dims[0] + 1 :])
            dtype = promoted(call)
        elif call.name == "stack":
            dims = listed(call, "dim", len(x) + 1, 0)
            if dims and len(set(shapes)) == 1:
                shape = (*x[: dims[0]], len(shapes), *x[dims[0] :])
        elif call.name in ("to", "_to_copy", "convert_element_type"):
            to = call.args.get("dtype")
            shape, dtype = x, to if isinstance(to, str) and to in DTYPE_BYTES else dtype
        elif call.name == "type_as":
            shape, dtype = x, call.dtype(1)
        elif call.name == "repeat_interleave":
            dims, times = listed(call, "dim", len(x)), number(call, "repeats")
            if dims and times is not None and x:
                shape = (*x[: dims[0]], x[dims[0]] * times, *x[dims[0] + 1 :])
        elif call.name in ("repeat", "tile"):
            times_of = numbers(call, "repeats", "dims")
            if times_of and len(times_of) >= len(x):
                full = (*(1,) * (len(times_of) - len(x)), *x)
                shape = tuple(e * t for e, t in zip(full, times_of, strict=True))
        elif call.name in ("pad", "constant_pad_nd"):
            shape = _padded(x, numbers(call, "pad"))
        elif call.name in ("clone", "contiguous", "flip", "roll", "pin_memory", "_pin_memory"):
            shape = x
        return (CallResult(shape, dtype),) if shape is not None else None

    def dims(self, call: Call) -> Dims:
        found = _gathered(call) if call.backward else _dims(call)
        return replace(found, linear=_linear(call)) if found.known else found


def _dims(call: Call) -> Dims:
    if not call.inputs or not call.outputs:
        return aligned(call)
    x, y = call.inputs[0], call.outputs[0]
    full = tuple(range(len(y)))
    if call.name in _CATS:
        dims = listed(call, "dim", len(y), 0) or [0]
        ins = tuple(full if len(s) == len(y) else (NO_LABEL,) * len(s) for s in call.inputs)
        return Dims(ins, (Output(full),), split=dims[0])
    if call.name == "stack":
        dim = (listed(call, "dim", len(y), 0) or [0])[0]
        kept = tuple(d for d in full if d != dim)
        ins = tuple(kept if len(s) == len(kept) else (NO_LABEL,) * len(s) for s in call.inputs)
        return Dims(ins, (Output(tuple(d if d != dim else NO_LABEL for d in full)),))
    if call.name in _PADS:
        if len(x) != len(y):
            return unknown(call)
        row = tuple(d if a == b else NO_LABEL for d, (a, b) in enumerate(zip(x, y, strict=True)))
        return Dims((row, *blank(call.inputs[1:])), (Output(row),), frozenset())
    if call.name == "repeat_interleave" and len(x) == len(y):
        repeated = listed(call, "dim", len(y))
        if repeated:
            return Dims((full, *blank(call.inputs[1:])), (Output(full),), split=repeated[0])
    if call.name in _PLAIN:
        x = call.inputs[-1]
        if math.prod(x) == math.prod(y) and x != y and len(call.inputs) == 1:
            return Dims((tuple(range(len(x))),), (Output(full),), reshape=True)
    found = aligned(call, tolerant=True)
    if none_placed(call, found) or none_read(call, found):
        return replace(found, known=False)
    turned = listed(call, "dims", len(y)) if call.name in ("roll", "flip") else None
    return replace(found, whole=frozenset(turned or ()))


def _gathered(call: Call) -> Dims:
    """A backward: the gradient of a copy has the copy's shape, or is cut and summed in ways that shapes do not tell."""
    found = aligned(call, tolerant=True)
    return replace(found, known=not none_placed(call, found))


def _linear(call: Call) -> tuple[frozenset[int], ...]:
    if call.backward:
        return in_gradient(call)
    if call.name in ("pad", "constant_pad_nd") and call.args.get("value") not in (None, 0, 0.0):
        return ()
    if call.name == "copy":
        return in_each(len(call.inputs) - 1)
    if call.name in ("repeat_interleave", "type_as"):
        return in_each(0)
    return (at_once(*range(len(call.inputs))),) if call.inputs else ()


def _padded(x: Shape, pad: tuple[int, ...] | None) -> Shape | None:
    """Padding comes in pairs, that of the last dimension first."""
    if pad is None or len(pad) % 2 or len(pad) > 2 * len(x):
        return None
    out = list(x)
    for i in range(len(pad) // 2):
        out[len(x) - 1 - i] += pad[2 * i] + pad[2 * i + 1]
    return tuple(out)
