"""Operator times for the rest of the program: one call in, estimates and their story out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError, unknown
from triosim.core.options import configured
from triosim.core.registry import is_ours
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication, refuse
from triosim.kernels.changes import growth, undecided
from triosim.kernels.classes import ATTENTION, ATTENTION_BACKWARD, CONVOLUTION, CONVOLUTION_BACKWARD, classify
from triosim.kernels.estimate import Estimates, Source, check
from triosim.kernels.model import MODELS, OperatorModel, PricingJob
from triosim.trace.tables import Trace

_NAMED = 5
"""Undecided operators that are named, longest first."""


def price(job: PricingJob, model: str = "auto", options: Mapping[str, Any] | None = None) -> Estimates:
    """Seconds of every operator of ``job.trace`` on ``job.device``.

    Args:
        job: what is to be priced.
        model: a registered operator model, or a file of one's own that ends in one (``*.py``); the file of a
            calibration (``*.json``, :mod:`triosim.kernels.calibration.pack`), with which ``auto`` prices what was not
            recorded; the file of a pack (``*.json``), the constants of a roofline that ``auto`` uses instead of the
            physical models; a table of measured kernels (``*.json``, :mod:`triosim.kernels.models.table`); or a file of
            external times (:mod:`triosim.kernels.models.external`).
        options: of the model's class, by name (:func:`triosim.core.options.configured`); of ``auto`` on a design those
            of ``loop-nest``.

    Raises:
        InputError: there is no such model, option or pack, or it needs something that the job does not have; the
            trace has no shapes and not all of its times were recorded; or the device cannot multiply an element type.
    """
    if model == "auto" and options and job.device.design is not None:
        model = "loop-nest"  # which auto takes there: the options are its own
    if model in MODELS:
        return _kept(job, model, options or {})
    return _priced(job, model, options or {})  # its file may have changed


def _priced(job: PricingJob, model: str, options: Mapping[str, Any]) -> Estimates:
    part = _model(model, options)
    found = part.price(job)
    if not is_ours(type(part)):
        check(found, len(job.trace), f"operator model {model}")
    _refuse_unshaped(job, found)
    return _remarked(job, found)


_kept = kept(32)(_priced)


_FROM_SHAPES = (Source.ANCHORED, Source.ROOFLINE, Source.REGRESSION, Source.PHYSICAL, Source.CALIBRATED)


def _refuse_unshaped(job: PricingJob, found: Estimates) -> None:
    if not len(job.trace.values) and np.isin(found.source, _FROM_SHAPES).any():
        there = job.device.name or "a device"
        raise InputError(
            f"trace {job.recorded.meta.workload!r} holds no shapes, from which times on {there} could be worked out: "
            "profile again with record_shapes=True, or leave --device and --operator-times out"
        )


_RECKONED = (
    Source.ANCHORED, Source.ROOFLINE, Source.UNDECIDED, Source.REGRESSION, Source.WAVES, Source.PHYSICAL,
    Source.CALIBRATED, Source.OWN,
)  # fmt: skip
"""Sources that rest on the device's rate for an element type; what was measured holds whatever multiplied it."""


def _remarked(job: PricingJob, found: Estimates) -> Estimates:
    """The estimates, with what is to be said of the element types that the device does not multiply natively.

    Raises:
        InputError: an operator without a measured time multiplies a type that the device cannot multiply.
    """
    device, there = job.device, distinct(job.trace.values.dtype).tolist()
    if not device.peak_flops or not any(multiplication(device, DTYPES[code]).words for code in there):
        return found
    classified = classify(job.trace, device)
    reckoned = np.isin(found.source, _RECKONED) & (classified.dtype >= 0)
    notes, warnings = [], []
    for code in distinct(classified.dtype[reckoned]).tolist():
        refuse(device, DTYPES[code])
        how = multiplication(device, DTYPES[code])
        notes += [how.source()] if how.words else []
        if how.method == MultiplicationMethod.EMULATED:
            groups = set(classified.group[reckoned & (classified.dtype == code)].tolist())
            notes += [f"types: {said}" for those, said in _WITHOUT_KERNELS if groups & those]
        warnings += [how.warning()] if how.method != MultiplicationMethod.NATIVE else []
    return replace(found, notes=(*found.notes, *notes), warnings=(*found.warnings, *warnings))


_WITHOUT_KERNELS = (
    (
        {ATTENTION, ATTENTION_BACKWARD},
        "no fused attention takes bfloat16 there: priced as float32 products and a softmax in memory (whose scores the "
        "memory of the job does not count)",
    ),
    ({CONVOLUTION, CONVOLUTION_BACKWARD}, "cuDNN takes no bfloat16 there: convolutions run image by image"),
)
"""Classes of operators for which the libraries have no kernel in an emulated type, and what runs instead."""


def _model(name: str, options: Mapping[str, Any]) -> OperatorModel:
    if name.lower().endswith(".py") or name in MODELS:
        return configured(MODELS.chosen(name), options, f"operator model {name}")
    if name.lower().endswith(".json") and _is_calibration(name):
        from triosim.kernels.calibration.model import AutoCalibrated, RangeOptions

        return AutoCalibrated(name, configured(RangeOptions, options, f"operator times of {name}").extrapolate)
    if options:
        raise InputError(f"operator times of {name} have no options: leave out {next(iter(options))}")
    if name.lower().endswith(".json"):
        from triosim.kernels.models.auto import Auto
        from triosim.kernels.models.roofline import RooflineBaseModel
        from triosim.kernels.models.table import TableModel, is_table_file
        from triosim.kernels.pack import load

        return TableModel(name) if is_table_file(name) else Auto(RooflineBaseModel(load(name)))
    if _is_path(name):
        from triosim.kernels.models.external import External

        return External(name)
    raise unknown("operator model", name, MODELS.names())


def _is_calibration(name: str) -> bool:
    from triosim.kernels.pack import is_calibration_file

    return is_calibration_file(name)


def _is_path(name: str) -> bool:
    return bool(Path(name).suffix) or "/" in name or "\\" in name or os.path.exists(name)


def describe(estimates: Estimates, trace: Trace, job: PricingJob | None = None, model: str = "auto") -> list[str]:
    """Sentences that say where the operator times come from.

    Args:
        estimates: of the operators of ``trace``.
        trace: the operators that were priced.
        job: what was asked, for the names of the devices and the list of undecided operators.
        model: the name that was given to :func:`price`.
    """
    total = float(estimates.seconds.sum())
    if not total:
        return ["operator times: no operator takes device time"]
    here = f" on {job.device.name}" if job and job.device.name else ""
    there = f" of {job.recorded_on.name}" if job and job.recorded_on and job.recorded_on.name else ""
    rooflined = _rooflined(estimates, model)
    carrier = "the roofline" if rooflined else "physical models"
    words = {
        Source.RECORDED: f"recorded{here}",
        Source.ANCHORED: f"recorded times{there} carried over to other shapes or to another device by {carrier}",
        Source.PROPORTIONAL: "recorded times scaled in proportion to the work",
        Source.ROOFLINE: f"the roofline{here}, without a recording",
        Source.CALIBRATED: f"physical models calibrated with measured kernels{here}",
        Source.PHYSICAL: f"physical models{here} (tiles, waves, caches, power), without a recording",
        Source.UNDECIDED: "recorded operators of which it is not known whether they follow the batch",
        Source.REGRESSION: f"linear regressions on the work{here}, without a recording",
        Source.WAVES: f"recorded times{there} scaled by waves of thread blocks",
        Source.TABLE: f"a table of kernels measured{here}",
        Source.EXTERNAL: "external times",
        Source.DESIGN: f"loop nests{here}: mapped, or by its vector unit and bytes",
        Source.OWN: f"the model {model!r}{here}",
    }
    shares = {source: float(estimates.seconds[estimates.source == source].sum()) / total for source in words}
    parts = [f"{_percent(share)} {words[s]}" for s, share in sorted(shares.items(), key=lambda x: -x[1]) if share > 0]
    sentences = [f"operator times ({model}): " + ", ".join(parts)]
    if rooflined and (shares[Source.ANCHORED] or shares[Source.ROOFLINE] or shares[Source.UNDECIDED]):
        sentences.append(_pack_description(model))
    sentences += _undecided_description(estimates, trace, job, total)
    return [*sentences, *estimates.notes]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "below 1 %"


def _rooflined(estimates: Estimates, model: str) -> bool:
    """Whether the roofline carried recorded times over, or stood alone."""
    if bool(np.any(estimates.source == Source.ROOFLINE)):
        return True
    return model.lower().endswith(".json") and not _is_calibration(model)


def _pack_description(model: str) -> str:
    from triosim.kernels.models.table import is_table_file

    own = model.lower().endswith(".json") and not is_table_file(model)
    from triosim.kernels.pack import load

    pack = load(model) if own else load()
    rows = sum(sum(one.get("rows", {}).values()) for one in pack.provenance.get("accuracy", {}).values())
    fitted = f", fitted to {rows:,} measured kernels" if rows else ""
    return f"roofline constants: pack {pack.name!r}{fitted}"


def _undecided_description(estimates: Estimates, trace: Trace, job: PricingJob | None, total: float) -> list[str]:
    at = np.flatnonzero(estimates.source == Source.UNDECIDED)
    if not at.size:
        return []
    factor = growth(trace, job.recorded) if job else 1.0
    longest: dict[str, float] = {}
    for row in at.tolist():
        name = trace.operators.name[row]
        longest[name] = longest.get(name, 0.0) + float(estimates.seconds[row])
    names = sorted(longest, key=lambda name: -longest[name])
    named = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more kinds" if len(names) > _NAMED else "")
    share = _percent(float(estimates.seconds[at].sum()) / total)
    reach = f" (unchanged to x{factor:.3g})" if factor != 1 else ""
    return [
        f"{at.size} of {len(trace)} operators ({share} of the time) may or may not follow the batch{reach}; their "
        f"intervals cover both: {named}"
    ]


def undecided_rows(job: PricingJob) -> list[int]:
    """Operators of which it is not known whether they follow the batch, where that matters to the prediction."""
    if growth(job.trace, job.recorded) == 1:
        return []
    found: list[int] = np.flatnonzero(undecided(job.trace)).tolist()
    return found
