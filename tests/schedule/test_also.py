"""Several recordings of one step through the whole road."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim.core.errors import InputError


def recording(device: str, seconds: float) -> triosim.Trace:
    model = triosim.model("gpt2", batch_size=1)
    times = np.where(model.operators.view, np.nan, seconds)
    meta = replace(model.meta, made_by="triosim.record", device=device, clock="gpu")
    return replace(model, meta=meta, operators=replace(model.operators, device_s=times))


def test_two_recordings_lie_between_what_each_alone_says():
    slow, fast = recording("NVIDIA A40", 30e-6), recording("NVIDIA A100-SXM4-80GB", 10e-6)
    system = triosim.system(device="H100", devices=1)
    alone = [triosim.simulate(t, system, fidelity=triosim.Fidelity(host="none")).iteration_time_s for t in (slow, fast)]
    both = triosim.simulate(slow, system, fidelity=triosim.Fidelity(host="none"), other_recordings=[fast])
    assert min(alone) < both.iteration_time_s < max(alone)
    low, high = both.interval_s
    assert low < both.iteration_time_s < high


def test_a_recording_of_nowhere_or_of_nothing_is_refused():
    trace = recording("NVIDIA A40", 30e-6)
    system = triosim.system(device="H100", devices=1)
    with pytest.raises(InputError, match="names no known device"):
        triosim.simulate(trace, system, other_recordings=[recording("Somebody's", 1e-6)])
    with pytest.raises(InputError, match="has no measured times"):
        triosim.simulate(trace, system, other_recordings=[triosim.model("gpt2", batch_size=1)])
    other = triosim.model("resnet18", batch_size=1)
    other = replace(other, meta=replace(other.meta, device="NVIDIA A40", clock="gpu"))
    with pytest.raises(InputError, match="recordings of the same step"):
        triosim.simulate(trace, system, other_recordings=[other])
