"""Products of the blocks in 8 or 4 bits: casts of what they multiply, smaller operands, what is kept for the backward.

The step becomes another step.  Every product of a repeated block that multiplies by a 16-bit matrix of weights reads
quantised operands, and so do the two products of its backward; sums, weights' gradients, norms, attention (unless it is
asked for, :meth:`_QuantizedStep.attention`), the router of experts, embeddings and the last product stay as they are,
as in Transformer Engine's layers.  Before a product one
kernel reads what is multiplied and writes it twice: along its rows for this product, along its columns for the one of
the backward that sums over the other dimension.  The backward keeps the second copy instead of the 16-bit one.  Time
and memory follow from the new step alone.  Scales of whole rows (torchao's ``rowwise``) fit one of the two copies only:
there the backward keeps the 16-bit one and makes the second copy itself.  One scale for a whole tensor fits both: where
a device's 8-bit products read operands along either dimension there is one copy (:func:`reads_either_way`).

Weights are quantised once an iteration (:func:`shares`): Transformer Engine keeps the copies over the micro-batches
(``is_first_microbatch``), and where parameters themselves are kept in that type (``--fp8-param-gather`` of
Megatron-LM) the copies take as much as the 16-bit weights that they replace.  Parameters that are sharded (ZeRO-3,
FSDP) are quantised in every micro-batch, after they were gathered.  Frozen weights that lie in memory as they are
multiplied (``base=quantized`` of LoRA) are never cast; a turned copy that the backward needs on some devices is not
reckoned.

What is left out: E5M2 gradients are written as E4M3, which cost the same; scales (3 % of what they scale where every 32
elements have one) and maxima that ranks exchange; that a norm or activation may write its result quantised; collectives
of 8-bit parameters and gradients.

Sources: Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv:2209.05433); NVIDIA, Transformer Engine
documentation, "Using FP8 and FP4 with Transformer Engine" (recipes, their blocks, which layers); Rouhani et al.,
"Microscaling Data Formats for Deep Learning" (arXiv:2310.10537); DeepSeek-AI, "DeepSeek-V3 Technical Report"
(arXiv:2412.19437), section 3.3 (blocks of 1 x 128 and 128 x 128); NVIDIA, "Pretraining Large Language Models with
NVFP4" (arXiv:2509.25149); torchao, ``float8/float8_linear.py`` (``matmul_with_hp_or_float8_args`` saves 16-bit inputs).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import PlanError
from triosim.hardware.accelerator import Accelerator
from triosim.operators import ROWS, SCALES, TURNED, canonical, kind
from triosim.trace.blocks import blocks
from triosim.trace.repeated import ROOM
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace

QUANTIZE, MAXIMUM = "transformer_engine::quantize", "transformer_engine::compute_amax"
DEQUANTIZE = "transformer_engine::dequantize"
GATHERED_FIRST = ("torchao::quantize", "torchao::compute_amax")
"""The same where inputs of tensor-parallel layers are gathered in 16 bits and cast by every rank: torchtitan gathers in
8 bits for scales of tensors only (``enable_float8_tensorwise_tp`` in ``models/llama3/infra/parallelize.py``)."""
RESCALE = "torchao::rescale"
"""What a product without scales has made times those of its rows and columns, by a kernel of its own."""
PADDING, UNPADDING = "transformer_engine::fused_multi_row_padding", "transformer_engine::fused_multi_row_unpadding"
"""Rows copied so that those of each expert are a multiple of 16 or more, and back (Megatron-Core's ``TEGroupedMLP``:
``Fp8Padding`` and ``Fp8Unpadding`` of Transformer Engine)."""
CASTS = (QUANTIZE, MAXIMUM, *GATHERED_FIRST)
"""Operators that cast to fewer bits, or look for what their scale depends on."""


@dataclass(frozen=True)
class QuantizationRecipe:
    """How tensors are quantised.

    Attributes:
        dtype: of what is multiplied.
        searches: whether a kernel of its own first looks for the largest element, because the scale of the whole tensor
            depends on it; otherwise scales are those of blocks, which the cast finds itself, or of earlier iterations.
        whole: whether a tensor has one scale.
        apart: whether scales are of whole rows, so that the copy along the columns has other scales: a kernel makes
            each from the 16-bit tensor, the second in the backward, after one that looks for each column's maximum.
            Those of the backward add up in float32, for which PyTorch's kernel with scales of rows is so slow that
            torchao multiplies without scales and rescales the product (``torchao/float8/float8_ops.py``,
            github.com/pytorch/ao/issues/2184); experts' products have no such way around.
    """

    dtype: str
    searches: bool = False
    whole: bool = False
    apart: bool = False


RECIPES = {
    "fp8-delayed": QuantizationRecipe("float8_e4m3fn", whole=True),
    "fp8-current": QuantizationRecipe("float8_e4m3fn", searches=True, whole=True),
    "fp8-block": QuantizationRecipe("float8_e4m3fn"),
    "fp8-row": QuantizationRecipe("float8_e4m3fn", apart=True),
    "mxfp8": QuantizationRecipe("float8_e4m3fn"),
    "nvfp4": QuantizationRecipe("float4_e2m1", searches=True),
}
"""Recipes by name."""

WITH_ATTENTION = ("fp8-delayed", "fp8-current", "mxfp8", "nvfp4")
"""Recipes beside which Transformer Engine computes attention in 8 bits, with scales of whole tensors (``fp8_dpa`` of
``DelayedScaling``, ``Float8CurrentScaling``, ``MXFP8BlockScaling`` and ``NVFP4BlockScaling``,
``transformer_engine/common/recipe``)."""
EIGHT_BITS = "float8_e4m3fn"
_PRODUCTS = ("mm", "addmm", "linear", "grouped_mm", "_grouped_mm")
_TURNS = ("t", "transpose")
_ROUTERS = ("gate", "router")
"""Last names of modules that choose experts: they are small and stay as they are."""
MULTIPLE = 16
"""Both dimensions of what is quantised have to be multiples of this (Transformer Engine; ``torch._scaled_mm``)."""
_SIXTEEN = frozenset(DTYPE_CODE[name] for name in ("float16", "bfloat16"))


MICROSCALING = 10.0
"""Compute capability from which on NVIDIA's matrix units take scales of 16 and 32 elements (PTX ISA, ``tcgen05.mma``
with block scaling)."""


def check(which: str, device: Accelerator) -> None:
    """Refuse recipes whose blocks a device's units do not know; whether it has the element type is asked elsewhere.

    Raises:
        PlanError: in one sentence.
    """
    if device.vendor == "NVIDIA":
        known = float(device.compute_capability or MICROSCALING) >= MICROSCALING
    else:  # of others, units that have types of 4 bits take such scales (CDNA4); of one's own device nothing is known
        known = not device.vendor or "float4_e2m1" in device.peak_flops
    if which in ("mxfp8", "nvfp4") and not known:
        raise PlanError(
            f"quantize {which}: the matrix units of {device.name} take no scale for every few elements: use "
            "fp8-current, fp8-delayed, fp8-block or fp8-row"
        )


EITHER_WAY = (10.0, 12.0)
"""Compute capabilities, the second not included, whose 8-bit products read operands along either dimension: data-centre
Blackwell's (Transformer Engine, ``nvte_is_non_tn_fp8_gemm_supported``)."""


def reads_either_way(device: Accelerator) -> bool:
    """Whether 8-bit products of a device need no operand that is turned."""
    first, end = EITHER_WAY
    return device.vendor == "NVIDIA" and first <= float(device.compute_capability or 0) < end


@kept(32, room=ROOM, size=len)
def quantized(
    trace: Trace, which: str, either_way: bool = False, padded: bool = False, forward: bool = False,
    attention: bool = False,
) -> Trace:  # fmt: skip
    """The step with its products in fewer bits.

    Args:
        trace: a training step.
        which: one of :data:`RECIPES`, or ``"none"``, which returns the trace as it is.
        either_way: of the devices, as of :func:`reads_either_way`.
        padded: whether rows of experts are copied to be padded before they are cast, and what is made of them after.
        forward: the trace is the forward of a training step alone, as of a reference model: nothing is quantised for a
            backward.
        attention: whether attention of the blocks multiplies in 8 bits too.

    Raises:
        PlanError: it has no backward and neither is meant to have none nor was made so, or no product, or attention
            where that is asked for, that can be quantised.
    """
    if attention and which not in WITH_ATTENTION:
        raise PlanError(
            f"quantize {which}: attention in 8 bits comes with one of {', '.join(WITH_ATTENTION)}: give one, or leave "
            "quantize_attention out"
        )
    if which == "none":
        if _keeps_quantized(trace):
            raise PlanError(
                f"lora base=quantized: {trace.meta.workload!r} keeps its frozen weights as products multiply them: add "
                "quantize, as fp8-delayed"
            )
        return trace
    if not (forward or np.any(trace.operators.phase == Phase.BACKWARD)):
        if any(name in CASTS for name in trace.operators.name):
            return trace  # a forward that was made so
        raise PlanError(
            f"quantize {which}: it is of training steps: leave it out (triosim serve and infer have --weights)"
        )
    step = _QuantizedStep(trace, RECIPES[which], either_way=either_way, once=forward)
    if not step.products:
        raise PlanError(
            f"quantize {which}: no product in a repeated block of {trace.meta.workload!r} has 16-bit weights: "
            "give --precision bfloat16, or leave it out"
        )
    if padded:
        step.pad_rows_of_experts()
    for row in step.products:
        step.product(row)
    if attention:
        step.attention()
    those = "" if forward else " and those of their backward"
    note = (
        f"quantize {which}: {len(step.products)} products of the blocks{those} multiply in {RECIPES[which].dtype}; "
        f"{step.casts} tensors are quantised"
    )
    return step.edit.build().noted(note)


def _keeps_quantized(trace: Trace) -> bool:
    """Whether frozen weights of a training step lie in memory as products multiply them."""
    values, trains = trace.values, np.any(trace.operators.phase == Phase.BACKWARD)
    return bool(trains and np.any((values.category == Category.WEIGHT) & (values.dtype == DTYPE_CODE[EIGHT_BITS])))


@kept(32, room=ROOM, size=len)
def weights_in_8_bits(trace: Trace) -> Trace:
    """A forward pass whose blocks multiply by weights that are stored in 8 bits, with scales of whole rows.

    One kernel casts what they are multiplied by before each product, as torchao's ``float8_dynamic_activation_
    float8_weight`` (``torchao/quantization/quant_api.py``) does; all else stays as it is.

    Args:
        trace: without a backward.

    Raises:
        PlanError: no product can be quantised.
    """
    step = _QuantizedStep(trace, RECIPES["fp8-row"], stored=True)
    if not step.products:
        raise PlanError(
            f"weights in 8 bits: no product in a repeated block of {trace.meta.workload!r} has 16-bit weights: give "
            "other weights"
        )
    for row in step.products:
        step.product(row)
    return step.edit.build().noted(f"{len(step.products)} products of the blocks multiply by weights in 8 bits")


def shares(trace: Trace, micro_batches: int, sharded: bool) -> NDArray[np.float64]:
    """Part of the micro-batches in which each operator runs, ``(operators,)``: weights are quantised in the first.

    Args:
        trace: a step that :func:`quantized` has made, or a rank's share of it.
        micro_batches: how often forward and backward run before the optimizer.
        sharded: whether parameters are gathered anew in each of them.
    """
    out = np.ones(len(trace))
    if sharded or micro_batches < 2:
        return out
    weights = np.unique(trace.values.storage[trace.values.category == Category.WEIGHT])
    inputs, storage = trace.operators.inputs, trace.values.storage
    for row, name in enumerate(trace.operators.name):
        if name in CASTS:
            read = storage[inputs.values[inputs.offsets[row] : inputs.offsets[row + 1]]]
            if np.isin(read, weights).any():
                out[row] = 1 / micro_batches
    return out


@dataclass(frozen=True)
class _QuantizedCopies:
    """A tensor that was quantised: along its rows, along its columns, values in the shape in which it was read.

    Where the two are made apart, both are the one that was asked for; where one serves both, they are that.
    """

    rows: int
    columns: int


class _QuantizedStep:
    """A step whose products are being quantised, one after the other in the order of the forward.

    Attributes:
        edit: the step.
        products: rows of the forward's products.
        casts: tensors that were quantised.
        attentions: rows of the forward's attention.
        stored: whether weights are kept in few bits and so need no cast.
        single: whether one copy serves both products.
    """

    def __init__(
        self, trace: Trace, recipe: QuantizationRecipe, stored: bool = False, either_way: bool = False,
        once: bool = False,
    ) -> None:  # fmt: skip
        from triosim.transform.rewriting import TraceRewriter

        self.trace, self.recipe, self.edit, self.casts, self.stored = trace, recipe, TraceRewriter(trace), 0, stored
        self.single = once or recipe.apart or (recipe.whole and either_way)
        self._on: dict[int, list[int]] = {}
        for value, storage in enumerate(self.edit.storage if stored else ()):
            self._on.setdefault(storage, []).append(value)
        self._writers = {v: row for row, made in enumerate(trace.operators.outputs.lists()) for v in made}
        self._later: dict[int, list[int]] = {}
        operators = trace.operators
        for row in np.flatnonzero(np.isin(operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))).tolist():
            if self._multiplies(row):
                self._later.setdefault(int(operators.forward[row]), []).append(row)
        self._known: dict[tuple[int, int, int, bool], _QuantizedCopies] = {}
        self._lasting = set(
            trace.values.storage[np.isin(trace.values.category, [int(c) for c in PERSISTENT])].tolist()
        )  # fmt: skip
        kept = (trace.values.category == Category.WEIGHT) & (trace.values.dtype == DTYPE_CODE[EIGHT_BITS])
        self._kept = set(trace.values.storage[kept].tolist()) if not stored else set()
        for value in np.flatnonzero(np.isin(trace.values.storage, list(self._kept))).tolist():
            self.edit.dtype[value] = DTYPE_CODE[recipe.dtype]
        of = blocks(trace).of(trace)
        weights = set(trace.values.storage[trace.values.category == Category.WEIGHT].tolist())
        self.products = [
            row for row in np.flatnonzero((operators.phase == Phase.FORWARD) & (of != NONE)).tolist()
            if self._multiplies(row) and not self._routes(row) and self._fits(row)
            and any(self.edit.storage[v] in weights for v in self._operands(row))
        ]  # fmt: skip
        self.attentions = [
            row for row in np.flatnonzero((operators.phase == Phase.FORWARD) & (of != NONE)).tolist()
            if not operators.view[row] and kind(operators.name[row]) == "attention"
        ]  # fmt: skip

    def _multiplies(self, row: int) -> bool:
        operators = self.trace.operators
        return not operators.view[row] and canonical(operators.name[row])[0] in _PRODUCTS

    def _routes(self, row: int) -> bool:
        module = int(self.trace.operators.module[row])
        return module >= 0 and self.trace.modules.path[module].rpartition(".")[2] in _ROUTERS

    def _operands(self, row: int) -> list[int]:
        """The matrices that a product multiplies; a bias is none, nor what the product is added to."""
        return [
            v for v in self.edit.inputs[row][-3:]
            if len(self.edit.shape[v]) >= 2 and (self.edit.dtype[v] in _SIXTEEN or self._is_kept(v))
        ][-2:]  # fmt: skip

    def _is_kept(self, value: int) -> bool:
        """Whether a frozen weight lies in memory as it is multiplied."""
        edit = self.edit
        return edit.dtype[value] not in _SIXTEEN and edit.storage[value] in self._kept

    def _fits(self, row: int) -> bool:
        operands = self._operands(row)
        return len(operands) == 2 and all(e % MULTIPLE == 0 for v in operands for e in self.edit.shape[v][-2:])

    def product(self, row: int) -> None:
        """Quantise what a product of the forward and those of its backward multiply."""
        weight = {self.edit.storage[v] for v in self._operands(row)} & self._lasting
        if self.stored:
            for value in (value for storage in weight for value in self._on[storage]):
                self.edit.dtype[value] = DTYPE_CODE[self.recipe.dtype]
        forward = {v: self._quantised(row, v, False) for v in self._operands(row)}
        self.edit.reads(row, forward)
        self._by_rows(row)
        for later in self._later.get(row, ()):
            operands = self._operands(later)
            if len(operands) != 2:
                continue
            of_weight = any(self.edit.storage[v] in weight for v in operands)
            # the gradient of the input sums over the weight's rows; that of the weight over all tokens
            self.edit.reads(
                later,
                {v: self._quantised(later, v, not of_weight or self.edit.storage[v] in weight) for v in operands},
            )
            if self.recipe.apart and kind(self.trace.operators.name[later]) != "experts":
                self._rescaled(later)
            else:
                self._by_rows(later)

    def attention(self) -> None:
        """Attention reads 8-bit copies and writes 8 bits, and so does its backward, which keeps these copies alone.

        Transformer Engine's ``fp8_dpa``: what comes in is cast and what goes out is cast back, beside each call
        (``FusedAttnFunc`` in ``attention/dot_product_attention/backends.py``).

        Raises:
            PlanError: no block has attention in one operator on 16 bits.
        """
        operators, found = self.trace.operators, False
        for row in self.attentions:
            copies = self._eight_bits(row, {})
            if not copies:
                continue
            found = True
            for later in np.flatnonzero(operators.forward == row).tolist():
                self._eight_bits(later, copies)
        if not found:
            raise PlanError(
                f"quantize_attention: no block of {self.trace.meta.workload!r} has attention in one operator on 16 "
                "bits: choose other kernels by --attention, or leave it out"
            )

    def _eight_bits(self, row: int, copies: dict[int, int]) -> dict[int, int]:
        """An attention call reads and writes 8 bits; returns its copies, with those that were there."""
        edit, phase = self.edit, self._phase(row)
        for value in [v for v in dict.fromkeys(edit.inputs[row]) if edit.dtype[v] in _SIXTEEN and v not in copies]:
            made = edit.like(value, EIGHT_BITS)
            if self.recipe.searches:
                edit.before(row, MAXIMUM, {"self": value}, [], phase=phase)
            edit.before(row, QUANTIZE, {"self": value}, [made], phase=phase)
            copies = {**copies, value: made}
            self.casts += 1
        edit.reads(row, copies)
        for value in [v for v in edit.outputs[row] if edit.dtype[v] in _SIXTEEN]:
            made = edit.like(value, EIGHT_BITS)
            edit.writes(row, {value: made})
            edit.after(row, DEQUANTIZE, {"self": made}, [value], phase=phase)
            copies = {**copies, value: made}
        return copies

    def pad_rows_of_experts(self) -> None:
        """Put copies between quantised products of experts and what sorts rows by expert."""
        operators, edit = self.trace.operators, self.edit
        readers: dict[int, list[int]] = {}
        for row, read in enumerate(operators.inputs.lists()):
            for value in read:
                readers.setdefault(value, []).append(row)
        modules = {int(operators.module[row]) for row in self.products if kind(operators.name[row]) == "experts"}
        for row in np.flatnonzero(np.isin(operators.module, list(modules)) & (operators.module != NONE)).tolist():
            if kind(operators.name[row]) != "permutation":
                continue
            short, backward = canonical(operators.name[row])
            if (short == "moe_permute") != backward:  # towards the experts
                value = int(operators.outputs[row][0])
                made = edit.like(value)
                edit.after(row, PADDING, {"self": value}, [made])
                for reader in readers.get(value, ()):
                    edit.reads(reader, {value: made})
                    for view in operators.outputs[reader].tolist() if operators.view[reader] else ():
                        edit.storage[view] = edit.storage[made]
            else:
                value = int(operators.inputs[row][0])
                made = edit.like(value)
                edit.before(row, UNPADDING, {"self": value}, [made])
                edit.reads(row, {value: made})

    def _rescaled(self, row: int) -> None:
        """Rescale what a product has made.  It is done in place; a new value stands for what is written."""
        made = int(self.trace.operators.outputs[row][0])
        self.edit.after(row, RESCALE, {"self": made}, [self.edit.like(made)])

    def _by_rows(self, row: int) -> None:
        """Says of a product that its scales are those of rows, where they are: other kernels multiply then."""
        if self.recipe.apart:
            self.edit.says(row, **{SCALES: ROWS})

    def _quantised(self, row: int, value: int, columns: bool) -> int:
        """The quantised value that ``row`` reads instead of one, with its shape."""
        base, turns = self._base(value)
        found = self._copies(row, base, columns)
        made = found.columns if columns else found.rows
        if self.edit.shape[made] != self.edit.shape[base]:
            made = self._view(row, "aten::view", made, self.edit.shape[base], self.edit.symbols[base])
        for name in turns:
            shape, symbols = self.edit.shape[made], self.edit.symbols[made]
            args = {"dim0": len(shape) - 2, "dim1": len(shape) - 1} if name.endswith("transpose") else None
            made = self._view(
                row, name, made, (*shape[:-2], shape[-1], shape[-2]), (*symbols[:-2], symbols[-1], symbols[-2]), args
            )
        return made

    def _base(self, value: int) -> tuple[int, list[str]]:
        """What a value is a transposed view of, and the views that make it of that."""
        turns: list[str] = []
        operators = self.trace.operators
        while (row := self._writers.get(value, NONE)) != NONE:
            short = canonical(operators.name[row])[0]
            read = self.edit.inputs[row]
            if not operators.view[row] or short not in _TURNS or not read or not self._turned(read[0], value):
                break
            turns, value = [operators.name[row], *turns], read[0]
        while len(turns) >= 2:
            turns = turns[2:]  # turned and turned back
        return value, turns

    def _turned(self, first: int, second: int) -> bool:
        a, b = self.edit.shape[first], self.edit.shape[second]
        return len(a) >= 2 and (*a[:-2], a[-1], a[-2]) == b

    def _copies(self, row: int, base: int, columns: bool) -> _QuantizedCopies:
        """The two copies of a tensor, made before ``row`` where they are not there yet.

        A weight's copies are made in the forward and again in the backward, so that neither is kept between them.
        """
        edit = self.edit
        if self._is_kept(base):
            return _QuantizedCopies(base, base)
        backward = int(self.trace.operators.phase[row]) if edit.storage[base] in self._lasting else 0
        apart = self.recipe.apart
        quantize, maximum = GATHERED_FIRST if apart else (QUANTIZE, MAXIMUM)
        key = (edit.storage[base], edit.version[base], backward, apart and columns)
        if key not in self._known:
            if self.recipe.searches or (apart and columns):
                edit.before(row, maximum, {"self": base}, [], phase=self._phase(row))
            single = self.single or edit.storage[base] in self._lasting
            made = [self._like(base)] if single else [self._like(base), self._like(base)]
            turned = {TURNED: True} if apart and columns else None
            edit.before(row, quantize, {"self": base}, made, phase=self._phase(row), args=turned)
            self._known[key] = _QuantizedCopies(made[0], made[-1])
            self.casts += 1
        return self._known[key]

    def _phase(self, row: int) -> int:
        return int(self.trace.operators.phase[row])

    def _like(self, base: int) -> int:
        return self.edit.like(base, self.recipe.dtype)

    def _view(
        self, row: int, name: str, value: int, shape: Sequence[int], symbols: Sequence[int],
        args: dict[str, int] | None = None,
    ) -> int:  # fmt: skip
        made = self.edit.view(value, shape, symbols)
        self.edit.before(row, name, {"self": value}, [made], view=True, args=args, phase=self._phase(row))
        return made
