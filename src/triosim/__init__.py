"""TrioSim predicts time and memory of ML training and inference on many accelerators.

From one trace of a single device, or from a model's configuration alone::

    import triosim

    trace = triosim.load("step.triosim")
    system = triosim.system("dgx-h100")
    result = triosim.simulate(trace, system, triosim.Plan(dp=8))
    print(result.iteration_time_s)

Names are imported when they are first used, so that ``import triosim`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Fidelity": "triosim.fidelity",
    "InputError": "triosim.core.errors",
    "Plan": "triosim.plan",
    "PlanError": "triosim.core.errors",
    "Result": "triosim.prediction.result",
    "System": "triosim.hardware.system",
    "Trace": "triosim.trace.tables",
    "load": "triosim.sources.reading:load",
    "model": "triosim.sources.modelling",
    "record": "triosim.sources.record",
    "save": "triosim.trace.store",
    "simulate": "triosim.prediction.simulate",
    "simulate_together": "triosim.prediction.together:simulate_together",
    "sweep": "triosim.search.sweep:sweep",
    "system": "triosim.hardware.machine",
}
"""Where each public name lives (``module`` or ``module:name``)."""

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from triosim.core.errors import InputError as InputError
    from triosim.core.errors import PlanError as PlanError
    from triosim.fidelity import Fidelity as Fidelity
    from triosim.hardware.machine import system as system
    from triosim.hardware.system import System as System
    from triosim.plan import Plan as Plan
    from triosim.prediction.result import Result as Result
    from triosim.prediction.simulate import simulate as simulate
    from triosim.prediction.together import simulate_together as simulate_together
    from triosim.search.sweep import sweep as sweep
    from triosim.sources.modelling import model as model
    from triosim.sources.reading import load  # noqa: F401
    from triosim.sources.record import record as record
    from triosim.trace.store import save as save
    from triosim.trace.tables import Trace as Trace


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'triosim' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
