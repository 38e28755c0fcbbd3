"""How much of what the devices could multiply a job uses: model FLOP utilization.

Counted is what the products of the *model* take (matrix products, convolutions, attention, experts; a multiply-add
counts two): not what recomputation runs again, whole blocks or the scores inside a fused attention's backward, not what
several ranks compute alike, and not what the optimizer multiplies (Muon).  Causal attention counts the pairs that its
mask leaves, as its kernels do.  So two plans for one job have the same numerator, and the utilization compares them as
their times do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dtypes import DTYPES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication
from triosim.kernels.classes import by_name, classify, multiplies
from triosim.operators import repeated
from triosim.prediction.prepare import CompiledJob
from triosim.prediction.result import Efficiency
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase, Trace


def efficiency(job: CompiledJob, seconds: float, tokens_per_s: float | None) -> Efficiency:
    """How much of what the devices could multiply is used.

    Args:
        job: what was run.
        seconds: of an iteration.
        tokens_per_s: of the global batch, None where not known.
    """
    ranks = job.mesh.ranks
    tokens = tokens_per_s / ranks if tokens_per_s is not None else None
    each, unknown = _by_type(job.whole, job.job.device)
    if unknown:
        return Efficiency(None, None, tokens, None, "", None, f"the FLOP of {unknown} are not known")
    by_type = each * job.mesh.micro_batches * job.mesh.replicas
    total = float(by_type.sum())
    if not total or not seconds:
        return Efficiency(None, None, tokens, None, "", None, "the step has no products that are counted")
    dtype = DTYPES[int(by_type[:-1].argmax())]
    models = np.bincount(job.system.device_model[job.assignment.devices], minlength=len(job.system.models)).tolist()
    used = [(device, count) for device, count in zip(job.system.models, models, strict=True) if count]
    peaks = [peak(device, dtype) for device, _ in used]
    source = "; ".join(dict.fromkeys(words for *_, words in peaks))
    known = [rate * count for (rate, *_), (_, count) in zip(peaks, used, strict=True) if rate is not None]
    all_peaks = sum(known) if len(known) == len(used) else None
    return Efficiency(
        mfu=total / (seconds * all_peaks) if all_peaks else None,
        flop_per_s_per_device=total / seconds / ranks,
        tokens_per_s_per_device=tokens,
        model_flop=total,
        precision=" and ".join(dict.fromkeys(own for _, own, _ in peaks)),
        peak_flop_per_s_per_device=all_peaks / ranks if all_peaks else None,
        source=source,
    )


@kept(16)
def _by_type(trace: Trace, device: Accelerator) -> tuple[NDArray[np.float64], str]:
    """FLOP of the model for a micro-batch by element type; and whose are not known.

    The last row, after those of :data:`~triosim.core.dtypes.DTYPES`, is what has no type.
    """
    own, unknown = model_flop(trace)
    dtype = classify(trace, device).dtype.astype(np.int64) % (len(DTYPES) + 1)
    return np.bincount(dtype, own, len(DTYPES) + 1).astype(np.float64), unknown


def model_flop(trace: Trace) -> tuple[NDArray[np.float64], str]:
    """FLOP of the model in one run of each operator, 0 for what is not counted; and whose are not known, in words.

    Those of an operator that multiplies are unknown where its source gives no shapes.
    """
    operators = trace.operators
    flop = np.nan_to_num(operators.flop)
    counts = ~np.isin(operators.phase, (Phase.RECOMPUTE, Phase.OPTIMIZER)) & ~operators.view
    lacking = np.flatnonzero(counts & np.isnan(operators.flop) & (by_name(operators.name, multiplies) > 0))
    names = ", ".join(dict.fromkeys(operators.name[row] for row in lacking.tolist()))
    unknown = f"{len(lacking)} operator{'s' if len(lacking) > 1 else ''} ({names[:80]})" if len(lacking) else ""
    again = calls_of(trace).column(repeated)
    return np.where(counts, np.maximum(flop - again, 0.0), 0.0), unknown


def peak(device: Accelerator, dtype: str) -> tuple[float | None, str, str]:
    """FLOP/s of the datasheet for products of a type, None where it has none; the type that it is of; where it is from.

    A type that a device emulates runs in another one, and the peak is that one's.
    """
    name = device.name or "the device"
    if not device.peak_flops:
        return None, dtype, f"the peak of {name} is not known"
    found = multiplication(device, dtype)
    if (
        found.method in (MultiplicationMethod.ASSUMED, MultiplicationMethod.IMPOSSIBLE)
        or found.dtype not in device.peak_flops
    ):
        return None, dtype, f"the datasheet of {name} has no {dtype} rate"
    rate = device.peak_flops[found.dtype]
    runs = f", which {dtype} runs in" if found.dtype != dtype else ""
    where = f": {device.source}" if device.source else ", as given"
    return rate, found.dtype, f"{rate / 1e12:.4g} TFLOP/s dense {found.dtype}{runs}, of {name}{where}"
