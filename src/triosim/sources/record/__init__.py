"""Recording PyTorch: a training or inference step becomes a :class:`~triosim.trace.tables.Trace`.

:func:`record` takes a step as a function, :func:`record_script` runs an unmodified script.  Both work on a CPU, on a
GPU, and under fake tensors with no hardware at all.  How it works, file by file:

* ``observer``  one dispatch mode sees every operator, with ``signature`` (what an operator reads and writes),
  ``ledger`` (which value a tensor is), ``modules`` and ``phases`` (where in the step it is);
* ``gpu``       joins the profiler's kernels to the operators;
* ``fakes``     runs without data;
* ``twice``     finds the dimensions that follow the batch;
* ``links``, ``categories``, ``assemble``  make the trace of what was noted;
* ``function``, ``script``  the two ways to start;
* ``bench``, ``cases``  no step at all, but many kernels by themselves, for calibration.

PyTorch is imported when one of the functions is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.sources.record.bench import devices_here, measure
    from triosim.sources.record.fakes import fake
    from triosim.sources.record.function import device_name, record
    from triosim.sources.record.script import record_script

__all__ = ["device_name", "devices_here", "fake", "measure", "record", "record_script"]

_HOME = {
    "device_name": "function",
    "devices_here": "bench",
    "fake": "fakes",
    "measure": "bench",
    "record": "function",
    "record_script": "script",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        importlib.import_module("torch")
    except ImportError:
        raise InputError("recording needs PyTorch, which is not installed: pip install 'triosim[torch]'") from None
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found
