"""What the shell is offered after TAB: names that are known, and files.

Each function takes what has been typed so far, and answers with what begins so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


@functools.cache
def wanted() -> bool:
    """Whether it is a shell that runs the program, to be told what to offer."""
    return any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def files(incomplete: str) -> list[str]:
    """Files and folders, the latter with a stroke."""
    import glob

    found = sorted(glob.glob(glob.escape(incomplete) + "*"))
    return [path + os.sep if os.path.isdir(path) else path for path in found]


def workloads(incomplete: str) -> list[str]:
    """Models, and files."""
    return models(incomplete) + files(incomplete)


def models(incomplete: str) -> list[str]:
    """Models."""
    from triosim.sources.modelling import presets

    return _beginning(presets(), incomplete)


def systems(incomplete: str) -> list[str]:
    """Ready systems, and files."""
    from triosim.hardware import catalog

    return _beginning(catalog.systems(), incomplete) + files(incomplete)


def devices(incomplete: str) -> list[str]:
    """Devices of the catalog, and files."""
    from triosim.hardware import catalog

    return _beginning(catalog.accelerators(), incomplete) + files(incomplete)


def links(incomplete: str) -> list[str]:
    """Links of the catalog."""
    from triosim.hardware import catalog

    return _beginning(catalog.links(), incomplete)


def places(incomplete: str) -> list[str]:
    """Places whose grid is known."""
    from triosim.energy.constants import table

    return _beginning((name.removeprefix("grid.") for name in table() if name.startswith("grid.")), incomplete)


def stacks(incomplete: str) -> list[str]:
    """Stacks of the program, and files."""
    from triosim.stacks import names

    return _beginning(names(), incomplete) + files(incomplete)


def choices(*names: str) -> Complete:
    """One of a few words."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return complete


def parts(registry: str, *, more: Iterable[str] = (), own: bool = False) -> Complete:
    """The parts of a registry.

    Args:
        registry: where it is, ``"triosim.engine.solver:SOLVERS"``.
        more: words that are taken beside them.
        own: whether a file of the user's own may stand for one.
    """

    def complete(incomplete: str) -> list[str]:
        from importlib import import_module

        module, _, name = registry.partition(":")
        known = _beginning([*more, *getattr(import_module(module), name).names()], incomplete)
        return known + files(incomplete) if own else known

    return complete
