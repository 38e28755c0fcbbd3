"""TrioSim predicts time, memory, energy and cost of ML training and serving on many accelerators.

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
    "Deployment": "triosim.serving.deployment",
    "Fidelity": "triosim.fidelity",
    "InputError": "triosim.core.errors",
    "Plan": "triosim.plan",
    "PlanError": "triosim.core.errors",
    "Pool": "triosim.serving.pool",
    "Result": "triosim.prediction.result",
    "System": "triosim.hardware.system",
    "Trace": "triosim.trace.tables",
    "find_plans": "triosim.search.find_plans:find_plans",
    "fleet_file": "triosim.serving.fleet_file:fleet_file",
    "infer": "triosim.serving.one_request",
    "load": "triosim.sources.reading:load",
    "load_requests": "triosim.serving.request_files",
    "model": "triosim.sources.modelling",
    "pool": "triosim.serving.pool_options",
    "record": "triosim.sources.record",
    "save": "triosim.trace.store",
    "serve": "triosim.serving.deployment",
    "simulate": "triosim.prediction.simulate",
    "simulate_together": "triosim.prediction.together:simulate_together",
    "sweep": "triosim.search.sweep:sweep",
    "system": "triosim.hardware.machine",
    "traffic": "triosim.serving.traffic:traffic",
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
    from triosim.search.find_plans import find_plans as find_plans
    from triosim.search.sweep import sweep as sweep
    from triosim.serving.deployment import Deployment as Deployment
    from triosim.serving.deployment import serve as serve
    from triosim.serving.fleet_file import fleet_file as fleet_file
    from triosim.serving.one_request import infer as infer
    from triosim.serving.pool import Pool as Pool
    from triosim.serving.pool_options import pool as pool
    from triosim.serving.request_files import load_requests as load_requests
    from triosim.serving.traffic import traffic as traffic
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
