"""From a trace to a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

import numpy as np

from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.catalog import accelerator, identify
from triosim.kernels.calibration.calibration import calibrated
from triosim.kernels.calibration.figures import described
from triosim.kernels.calibration.pack import CalibrationPack, RecordedHost
from triosim.kernels.calibration.samples import TraceSamples, samples
from triosim.sources.runtimes.rules import RuntimeRules
from triosim.trace.tables import Trace


def calibrate(
    trace: Trace, device: Accelerator | None = None, *, name: str = "", drift: float = 0.0,
    versions: Mapping[str, str] | None = None, machine: Mapping[str, float] | None = None, date: str | None = None,
    rules: RuntimeRules | None = None,
) -> tuple[CalibrationPack, TraceSamples]:  # fmt: skip
    """A calibration from the operator times of a trace, and what it used of them.

    Args:
        trace: a recorded or imported step, or measured kernels.
        device: that it was recorded on; None for the one that the trace names.  A CPU that is not given is described
            by the best that was measured.
        name: of the trace's file, for the provenance.
        drift: of the machine while it was measured.
        versions: of framework and driver; the trace's framework where not given.
        machine: clock and cache of a CPU that is not given, see :mod:`triosim.kernels.calibration.figures`.
        date: when it is made; today where not given.
        rules: how the runtime that was measured runs networks.

    Raises:
        InputError: there are no times, the device is not known, or no kernels of a known kind were measured.
    """
    from triosim import __version__

    device = device or _device(trace, machine)
    found = samples(trace, device)
    made = calibrated(device, found.kinds, drift)
    if not made.learned:
        raise InputError(
            f"trace {trace.meta.workload!r} has no measured kernel whose shapes are known: record them too "
            "(record_shapes=True of torch.profiler, or triosim trace record)"
        )
    framework, _, version = trace.meta.framework.partition(" ")
    pack = CalibrationPack(
        made, found.kinds, _host(trace), date or datetime.now(timezone.utc).date().isoformat(),
        {"triosim": __version__, **(versions or ({framework: version} if version else {}))},
        {"trace": name or trace.meta.workload, "made_by": trace.meta.made_by, "operators": found.operators,
         "left_out": found.left_out}, rules=rules,
    )  # fmt: skip
    return pack, found


def _device(trace: Trace, machine: Mapping[str, float] | None) -> Accelerator:
    name = trace.meta.device
    if trace.meta.clock == "cpu":
        return described(trace, machine)
    known = identify(name) if name else None
    if known is None:
        said = f"was recorded on {name!r}, which the catalog does not know" if name else "does not name its device"
        raise InputError(f"trace {trace.meta.workload!r} {said}: give --device (triosim devices lists them)")
    return accelerator(known)


def _host(trace: Trace) -> RecordedHost | None:
    """Median issue time of what launches something; views before an operator are part of it."""
    issue, view = trace.operators.host_s, trace.operators.view
    if trace.meta.clock != "gpu" or not (issue > 0).any():
        return None
    total = np.cumsum(np.nan_to_num(issue))[~view]
    each = np.diff(np.concatenate([[0.0], total]))
    each = each[each > 0]
    if not len(each):
        return None
    return RecordedHost(float(np.median(each)), len(each), trace.meta.launch_delay_s, trace.meta.kernel_gap_s)
