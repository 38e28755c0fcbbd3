"""Mixture of experts: the grouped products of one layer on one device, as columns, with the tokens of every expert."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.operators import ExpertsWork
from triosim.trace.calls import calls_of
from triosim.trace.tables import ITEM_BYTES, Trace

FAMILIES = ("triton", "marlin", "cutedsl", "upcast", "native")
"""Kernel families.  ``triton``: SGLang's and vLLM's fused kernels; ``marlin``: weights of 4 bits under 16-bit
arithmetic; ``cutedsl``: FlashInfer's kernels for 4-bit floats (Blackwell); ``upcast``: Triton's ``matmul_ogs`` on AMD
GPUs that know no 4-bit floats, whose vector units make 16 bits of them; ``native``: TensorRT-LLM's kernels of weights
that are 4-bit floats (data-centre Blackwell), which FlashInfer has too: matrix instructions read these as they are."""

QUANTILES = 16
"""Experts of loads that differ stand for as many classes of load."""


@lru_cache(maxsize=1)
def _normal() -> NDArray[np.float64]:
    """The middles of so many classes of a normal variate, in standard deviations."""
    from statistics import NormalDist  # which few need, and takes milliseconds

    return np.array([NormalDist().inv_cdf((place + 0.5) / QUANTILES) for place in range(QUANTILES)])


@dataclass(frozen=True)
class ExpertCalls:
    """The experts of one layer that one device holds, one row per call.

    A gated layer multiplies by three matrices of ``hidden`` x ``inner`` elements, an ungated one by two.

    Attributes:
        tokens: tokens that the device sees.
        topk: experts that each token is sent to, of all devices' experts.
        hidden: length of a token.
        inner: length inside an expert, after sharding.
        experts: experts of the layer, on all devices.
        parts: devices that the experts are spread over (expert parallelism).
        skew: exponent of the power law of the experts' loads; 0 where all get equally many tokens.
        skips: whether, of a token that has an expert on this device, the pairs with experts of others are left out;
            some kernels compute them and throw the result away.
        gated: whether there are two matrices in.
        warm: whether weights may lie in the last-level cache, as when a benchmark repeats one call.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied.
        weight_bytes, token_bytes: bytes of an element of the weights, and of tokens where they are multiplied.
        family: index into :data:`FAMILIES`.
        chance: whether tokens choose experts by chance: then loads are spread about their mean as draws are, where
            there is no skew.
        tuned: whether the stack has tiles that were looked for on this device for experts of these sizes.
    """

    tokens: NDArray[np.float64]
    topk: NDArray[np.float64]
    hidden: NDArray[np.float64]
    inner: NDArray[np.float64]
    experts: NDArray[np.float64]
    parts: NDArray[np.float64]
    skew: NDArray[np.float64]
    skips: NDArray[np.bool_]
    gated: NDArray[np.bool_]
    warm: NDArray[np.bool_]
    dtype: NDArray[np.int8]
    weight_bytes: NDArray[np.float64]
    token_bytes: NDArray[np.float64]
    family: NDArray[np.int8]
    chance: NDArray[np.bool_]
    tuned: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: NDArray) -> ExpertCalls:
        """These rows only."""
        return ExpertCalls(*(getattr(self, field.name)[rows] for field in fields(self)))

    def local(self) -> NDArray[np.float64]:
        """Experts on this device."""
        return np.maximum(self.experts / self.parts, 1.0)

    def pairs(self) -> NDArray[np.float64]:
        """Pairs of a token and an expert, those of other devices' experts included."""
        return self.tokens * self.topk

    @cached_property
    def _spread(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Part of the pairs on this device, and loads of its experts in units of their mean."""
        share, load = 1 / self.parts, np.ones((len(self), QUANTILES))
        at = np.flatnonzero(self.skew > 0)
        if len(at):
            part = self.take(at)
            local, drawn, top = part.local(), *part._loads
            most = 1 + drawn.std(1) / np.sqrt(local) * np.sqrt(2 * np.log(part.parts))
            most = np.maximum(most, (top + local - 1) / local)
            most = np.where(part.parts > 1, np.minimum(most, np.minimum(part.parts, part.experts / part.topk)), 1.0)
            share[at] *= most
            load[at] = 1 + (drawn - 1) * (1 - 1 / local)[:, None]  # one expert alone has the mean
        at = np.flatnonzero(self.chance & (self.skew == 0))
        if len(at):  # of a Poisson's draw, nearly normal; an expert that is chosen at all has one token
            mean = np.maximum(self.pairs()[at] * share[at] / self.local()[at], 1e-300)[:, None]
            load[at] = np.maximum(1 + _normal() / np.sqrt(mean), np.minimum(1 / mean, 1.0))
        return share, load

    def share(self) -> NDArray[np.float64]:
        """Part of the pairs that falls on this device's experts: with a skew, on the device with the most.

        The larger of two estimates of the largest of ``parts`` sums of loads: that of normal variates, and the heaviest
        expert among others of mean load.  No expert gets a token twice.
        """
        return self._spread[0]

    def arriving(self) -> NDArray[np.float64]:
        """Tokens that have an expert on this device, at least one; the others never come here."""
        return np.maximum(np.ceil(self.tokens * np.minimum(1.0, self.topk * self.share()) - 1e-9), 1.0)

    def remote(self) -> NDArray[np.float64]:
        """Pairs of the tokens that come here with experts of other devices."""
        return np.maximum(self.arriving() * self.topk - self.pairs() * self.share(), 0.0)

    def fullest(self) -> NDArray[np.float64]:
        """Pairs of the expert that has the most of them."""
        mean = self.pairs() / self.experts
        most = np.where(self.skew > 0, self._loads[1], 1.0)
        return np.minimum(np.maximum(most * mean, 1.0), self.tokens)

    def loads(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Pairs of an expert, shape (rows, :data:`QUANTILES`), for equally many of the local experts each.

        The second result is the number of experts that each column stands for, shape (rows, 1).  Loads follow a power
        law of exponent ``skew`` between 1 and 0.8 tokens, scaled to the number of pairs; no expert gets a token twice.
        """
        mean = self.pairs() * self.share() / self.local()
        load = np.minimum(self._spread[1] * mean[:, None], self.tokens[:, None])
        return load, (self.local() / QUANTILES)[:, None]

    @cached_property
    def _loads(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Loads in units of their mean, and the heaviest one."""
        u = (np.arange(QUANTILES) + 0.5) / QUANTILES
        power = (1 - self.skew)[:, None]
        power = np.where(np.abs(power) < 1e-6, 1e-6, power)
        top = np.maximum(0.8 * self.tokens, 2.0)[:, None]
        load = ((top**power - 1) * u + 1) ** (1 / power)
        mean = (power / (power + 1)) * (top ** (power + 1) - 1) / (top**power - 1)
        return load / load.mean(1, keepdims=True), (top / mean)[:, 0]

    def active(self) -> NDArray[np.float64]:
        """Local experts that get a token."""
        load, each = self.loads()
        return np.maximum((np.minimum(load, 1.0) * each).sum(1), np.minimum(1.0, self.pairs() * self.share()))

    def matrices(self) -> NDArray[np.float64]:
        """Elements of one expert's weights."""
        return np.where(self.gated, 3.0, 2.0) * self.hidden * self.inner

    def flop(self) -> NDArray[np.float64]:
        """Floating-point operations of the pairs that this device has to compute."""
        return 2.0 * self.pairs() * self.share() * self.matrices()

    def weights(self) -> NDArray[np.float64]:
        """Bytes of the weights of the experts that get a token."""
        return self.active() * self.matrices() * self.weight_bytes

    def traffic(self) -> NDArray[np.float64]:
        """Bytes of tokens on their way through: gathered, activated and added up again, 16 bits each.

        Kernels that do not skip other devices' pairs of the tokens that come here move those too.
        """
        pairs = self.pairs() * self.share() + np.where(self.skips, 0.0, self.remote())
        inside = np.where(self.gated, 4.0, 3.0) * self.inner
        return 2.0 * (pairs * (3 * self.hidden + inside) + self.tokens * self.hidden)

    def bytes(self) -> NDArray[np.float64]:
        """Bytes read and written."""
        return self.weights() + self.traffic()


def experts(
    tokens: NDArray | float, topk: NDArray | float, hidden: NDArray | float, inner: NDArray | float,
    count: NDArray | float, parts: NDArray | float = 1.0, dtype: str = "bfloat16", *, weight_dtype: str | None = None,
    skew: float = 0.0, skips: bool = True, gated: bool = True, warm: bool = False, family: str = "triton",
    chance: bool = False, tuned: NDArray | bool = False,
) -> ExpertCalls:  # fmt: skip
    """Calls of one element type; numbers and arrays are broadcast against each other.

    Args:
        count: experts on all devices.
        weight_dtype: type of the weights; ``dtype`` where not given.

    Raises:
        KeyError: a type is not one of :data:`~triosim.trace.tables.DTYPES`.
        ValueError: ``family`` is not one of :data:`FAMILIES`.
    """
    sizes = (tokens, topk, hidden, inner, count, parts, skew)
    columns = [np.array(x, np.float64, ndmin=1) for x in np.broadcast_arrays(*sizes)]
    rows = len(columns[0])
    flags = [np.full(rows, flag) for flag in (skips, gated, warm)]
    items = (np.full(rows, float(DTYPE_BYTES[name])) for name in (weight_dtype or dtype, dtype))
    code = np.full(rows, DTYPE_CODE[dtype], np.int8)
    family_code = np.full(rows, FAMILIES.index(family), np.int8)
    row: list[Any] = [*columns, *flags, code, *items, family_code, np.full(rows, chance)]
    row.append(np.broadcast_to(np.asarray(tuned, bool), rows))
    return ExpertCalls(*row)


def of(trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8]) -> ExpertCalls:
    """The products of experts among a trace's operators (:mod:`triosim.operators.experts`).

    All experts whose weights a call has are this device's, and every pair of a token and an expert is computed: traces
    do not hold the chosen experts' numbers, so loads are equal.  A backward that yields two gradients counts as a
    product of twice the columns.  A call whose shapes are not known becomes one expert of as many tokens as its counted
    FLOP need.

    Args:
        trace: operators with FLOP counted.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies (see :func:`triosim.kernels.classes.classify`); 8-bit
            weights are multiplied as such.
    """
    calls = calls_of(trace)
    inputs, types = trace.operators.inputs.lists(), trace.values.dtype
    sizes = np.empty((len(rows), 5))
    gated = np.zeros(len(rows), bool)
    multiplied, family = dtype.astype(np.int8), np.zeros(len(rows), np.int8)
    weight_bytes = ITEM_BYTES[dtype].astype(np.float64)
    for at, (row, found) in enumerate(zip(rows.tolist(), calls.work(rows, ExpertsWork), strict=True)):
        sizes[at] = found.tokens, found.topk, found.hidden, found.inner * found.times, found.experts
        gated[at] = found.matrices == 3
        if found.weight >= 0:
            code = types[inputs[row][found.weight]]
            weight_bytes[at] = ITEM_BYTES[code] / found.packed
            if found.packed == 1 and 0 < ITEM_BYTES[code] < ITEM_BYTES[multiplied[at]]:
                multiplied[at] = code
        family[at] = FAMILIES.index(found.family)
    tokens, topk, hidden, inner, count = sizes.T
    ones, yes, no = np.ones(len(rows)), np.ones(len(rows), bool), np.zeros(len(rows), bool)
    return ExpertCalls(
        tokens, topk, hidden, inner, count, ones, np.zeros(len(rows)), yes, gated, no, multiplied, weight_bytes,
        np.asarray(ITEM_BYTES[multiplied], np.float64), family, no, no,
    )  # fmt: skip
