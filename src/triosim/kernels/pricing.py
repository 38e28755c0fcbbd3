"""Operator times for the rest of the program: one call in, estimates and their story out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from triosim.kernels.calibration.pack import is_calibration_file
from triosim.kernels.changes import growth, undecided
from triosim.kernels.estimate import Estimates, Source
from triosim.kernels.model import MODELS, Job, OperatorModel
from triosim.kernels.pack import load
from triosim.workload.trace import Trace

_NAMED = 5
"""Undecided operators that are named, longest first."""


def price(job: Job, model: str = "auto") -> Estimates:
    """Seconds of every operator of ``job.trace`` on ``job.device``.

    Args:
        job: what is to be priced.
        model: a registered operator model; the file of a calibration (``*.json``,
            :mod:`triosim.kernels.calibration.pack`), with which ``auto`` prices what was not recorded; the file of a
            pack (``*.json``), the constants of a roofline that ``auto`` uses instead of the physical models; a table of
            measured kernels (``*.json``, :mod:`triosim.kernels.models.table`); or a file of external times
            (:mod:`triosim.kernels.models.external`).

    Raises:
        InputError: there is no such model or pack, or it needs something that the job does not have.
    """
    return _model(model).price(job)


def _model(name: str) -> OperatorModel:
    if name.lower().endswith(".json"):
        if is_calibration_file(name):
            from triosim.kernels.calibration.model import AutoCalibrated

            return AutoCalibrated(name)
        from triosim.kernels.models.auto import Auto
        from triosim.kernels.models.roofline import Rooflines
        from triosim.kernels.models.table import Table, is_table_file

        return Table(name) if is_table_file(name) else Auto(Rooflines(load(name)))
    if name not in MODELS and _is_path(name):
        from triosim.kernels.models.external import External

        return External(name)
    found: OperatorModel = MODELS.get(name)()
    return found


def _is_path(name: str) -> bool:
    return bool(Path(name).suffix) or "/" in name or "\\" in name or Path(name).exists()


def describe(estimates: Estimates, trace: Trace, job: Job | None = None, model: str = "auto") -> list[str]:
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
    }
    shares = {source: float(estimates.seconds[estimates.source == source].sum()) / total for source in words}
    parts = [f"{_percent(share)} {words[s]}" for s, share in sorted(shares.items(), key=lambda x: -x[1]) if share > 0]
    sentences = [f"operator times ({model}): " + ", ".join(parts)]
    if rooflined and (shares[Source.ANCHORED] or shares[Source.ROOFLINE] or shares[Source.UNDECIDED]):
        sentences.append(_pack_story(model))
    sentences += _undecided_story(estimates, trace, job, total)
    return [*sentences, *estimates.notes]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "below 1 %"


def _rooflined(estimates: Estimates, model: str) -> bool:
    """Whether the roofline carried recorded times over, or stood alone."""
    if bool(np.any(estimates.source == Source.ROOFLINE)):
        return True
    return model.lower().endswith(".json") and not is_calibration_file(model)


def _pack_story(model: str) -> str:
    from triosim.kernels.models.table import is_table_file

    own = model.lower().endswith(".json") and not is_table_file(model)
    pack = load(model) if own else load()
    rows = sum(sum(one.get("rows", {}).values()) for one in pack.provenance.get("accuracy", {}).values())
    fitted = f", fitted to {rows:,} measured kernels" if rows else ""
    return f"roofline constants: pack {pack.name!r}{fitted}"


def _undecided_story(estimates: Estimates, trace: Trace, job: Job | None, total: float) -> list[str]:
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


def undecided_rows(job: Job) -> list[int]:
    """Operators of which it is not known whether they follow the batch, where that matters to the prediction."""
    if growth(job.trace, job.recorded) == 1:
        return []
    found: list[int] = np.flatnonzero(undecided(job.trace)).tolist()
    return found
