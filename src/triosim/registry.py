"""Finding the parts that can be swapped: readers, topologies, collectives, schedules, operator models.

One part is one file, and the file's name is the name that users type (``fat-tree`` is ``fat_tree.py``).
A registry lists a package's folder without importing anything and imports a file only when its name is
looked up, so that starting the program stays cheap.  Other distributions add parts through entry points
of the same group; a name given twice is an error.

A file of a registered package ends in exactly one class marked with :func:`registered`.  Files whose
name starts with an underscore hold what several parts share and are not listed.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from importlib import util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from triosim.errors import InputError, unknown

C = TypeVar("C", bound=type)


def registered(cls: C) -> C:
    """Mark the class that a file of a registered package offers."""
    cls.__registered__ = cls.__qualname__  # type: ignore[attr-defined]
    return cls


class Registry:
    """The parts of one package plus those that other distributions add.

    Args:
        package: import name of the folder that holds the parts, one file each.
        group: entry-point group through which other distributions add parts.
        what: the word for one part in messages to the user ("topology").
    """

    def __init__(self, package: str, group: str, what: str) -> None:
        self.package = package
        self.group = group
        self.what = what
        self._classes: dict[str, type] = {}

    def names(self) -> list[str]:
        """All known names, sorted; imports none of them."""
        return sorted([*self._files(), *self._entry_points()])

    def __contains__(self, name: str) -> bool:
        key = _key(name)
        return key in self._files() or key in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str) -> Any:
        """The class registered under ``name``; imports its file on first use.

        Raises:
            InputError: no part has that name.
            RuntimeError: two parts share the name, or the file does not end in one registered class.
        """
        key = _key(name)
        if key not in self._classes:
            files, points = self._files(), self._entry_points()
            if key in files:
                self._classes[key] = _registered_class(importlib.import_module(f"{self.package}.{files[key]}"))
            elif key in points:
                self._classes[key] = points[key].load()
            else:
                raise unknown(self.what, name, self.names())
        return self._classes[key]

    def _files(self) -> dict[str, str]:
        spec = util.find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            raise RuntimeError(f"{self.package} is not a package")
        found = (m.name for m in pkgutil.iter_modules(spec.submodule_search_locations))
        return {_key(name): name for name in found if not name.startswith("_")}

    def _entry_points(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        files = self._files()
        for point in entry_points(group=self.group):
            key = _key(point.name)
            if key in points or key in files:
                raise RuntimeError(f"{self.what} {point.name!r} is registered twice (entry point {point.value})")
            points[key] = point
        return points


def of_file(path: Path) -> Any:
    """The class that a file of the user's own registers; runs the file, so never call it with a name that was read
    from another.

    Raises:
        InputError: there is no such file, it cannot be run, or it does not end in one registered class.
    """
    if not path.is_file():
        raise InputError(
            f"there is no file {str(path)!r}: give the path of a Python file that ends in one registered class"
        )
    name = f"triosim_of_file_{path.stem}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: cannot be run: {type(error).__name__}: {error}") from error
    marked = _registered(module)
    if len(marked) != 1:
        raise InputError(f"{path}: must end in one class marked with @registered (triosim.registry), has {len(marked)}")
    return marked[0]


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _registered_class(module: ModuleType) -> type:
    marked = _registered(module)
    if len(marked) != 1:
        raise RuntimeError(f"{module.__name__} must end in exactly one registered class, found {len(marked)}")
    return marked[0]


def _registered(module: ModuleType) -> list[type]:
    own = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    return [v for v in own if v.__dict__.get("__registered__")]
