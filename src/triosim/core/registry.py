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
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from triosim.core.errors import InputError, no_such_file, unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

C = TypeVar("C", bound=type)
T = TypeVar("T")


def registered(cls: C) -> C:
    """Mark the class that a file of a registered package offers."""
    cls.__registered__ = cls.__qualname__  # type: ignore[attr-defined]
    return cls


class Registry(Generic[T]):
    """The parts of one package plus those that other distributions add.

    Args:
        package: import name of the folder that holds the parts, one file each.
        group: entry-point group through which other distributions add parts.
        what: the word for one part in messages to the user ("topology").
        base: class that every part derives from; without it, any class is a part.
    """

    @overload
    def __init__(self: Registry[Any], package: str, group: str, what: str) -> None: ...

    @overload
    def __init__(self, package: str, group: str, what: str, base: type[T]) -> None: ...

    def __init__(self, package: str, group: str, what: str, base: type[T] | None = None) -> None:
        self.package = package
        self.group = group
        self.what = what
        self.base = base
        self._classes: dict[str, type[T]] = {}
        self._listed: tuple[Any, dict[str, str]] = (None, {})

    def names(self) -> list[str]:
        """All known names, sorted; imports none of them."""
        return sorted([*self._files(), *self._entry_points()])

    def __contains__(self, name: str) -> bool:
        key = _key(name)
        return key in self._files() or key in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str) -> type[T]:
        """The class registered under ``name``; imports its file on first use.

        Raises:
            InputError: no part has that name, another distribution gives under it what is no such part, or two parts of
                the kind share a name.
            RuntimeError: the file does not end in one registered class.
        """
        key = _key(name)
        if key not in self._classes:
            files, points = self._files(), self._entry_points()
            if key in files:
                self._classes[key] = _registered_class(importlib.import_module(f"{self.package}.{files[key]}"))
            elif key in points:
                self._classes[key] = self._loaded(points[key])
            else:
                raise unknown(self.what, name, self.names())
        return self._classes[key]

    def chosen(self, name: str) -> type[T]:
        """The class that a user names: a registered one, or that of a file of the user's own (``FILE.py``).

        It runs the file, so the name must come from the user's own words, never from a file of another.

        Raises:
            InputError: as :func:`of_file` and :meth:`get`, or the class is of another kind.
        """
        return self.of_file(Path(name)) if name.lower().endswith(".py") else self.get(name)

    def of_file(self, path: Path) -> type[T]:
        """The class that a file of the user's own registers; runs the file (see :func:`of_file`).

        Raises:
            InputError: as :func:`of_file`, or its class is no such part.
        """
        return self._checked(of_file(path), str(path))

    def _loaded(self, point: EntryPoint) -> type[T]:
        where = f"entry point {point.name} = {point.value} of {self.group}"
        try:
            part = point.load()
        except Exception as error:  # of somebody else's code
            raise InputError(f"{where}: cannot be imported: {type(error).__name__}: {error}") from error
        return self._checked(part, where)

    def _checked(self, part: Any, where: str) -> type[T]:
        if not isinstance(part, type):
            raise InputError(f"{where}: a {self.what} is a class, not {part!r:.80}")
        if self.base is not None and not issubclass(part, self.base):
            raise InputError(
                f"{where}: {part.__qualname__} is no {self.what}: derive it from {_import_name(self.base)}"
            )
        missing = ", ".join(sorted(getattr(part, "__abstractmethods__", ())))
        if missing:
            raise InputError(f"{where}: {self.what} {part.__qualname__} does not define {missing}")
        return part

    def _files(self) -> dict[str, str]:
        spec = util.find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            raise RuntimeError(f"{self.package} is not a package")
        folders = _as_they_are(spec.submodule_search_locations)
        if self._listed[0] != folders:
            found = (m.name for m in pkgutil.iter_modules(spec.submodule_search_locations))
            self._listed = (folders, {_key(name): name for name in found if not name.startswith("_")})
        return self._listed[1]

    def _entry_points(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        files = self._files()
        for point in installed(self.group):
            key = _key(point.name)
            if key in points or key in files:
                other = f"{_distribution(points[key])} has" if key in points else "TrioSim has"
                raise InputError(
                    f"{self.what} {point.name} is registered twice: {_distribution(point)} "
                    f"(entry point {point.value} of {self.group}) brings a name that {other}: "
                    "rename it there, or uninstall that"
                )
            points[key] = point
        return points


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "a distribution"


def _as_they_are(folders: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Folders and when something was last added to each or removed."""
    return tuple((path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0) for path in folders)


_installed: tuple[Any, Any] = (None, None)


def installed(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group; those of all distributions are read once, for as long as the folders in which Python
    looks for them stay as they are."""
    global _installed
    folders = _as_they_are(sys.path)
    if _installed[0] != folders:
        _installed = (folders, entry_points())
    return iter(_installed[1].select(group=group) if _installed[1] is not None else ())


def entry_points() -> Any:
    """The entry points of all distributions, or None if surely none is in a group of TrioSim's: then Python's own way
    to read them, a tenth of a short run, is not even imported."""
    if not _may_add(sys.path):
        return None
    from importlib import metadata

    return metadata.entry_points()


def _may_add(folders: Iterable[str]) -> bool:
    """Whether some distribution may have entry points in a group of TrioSim's."""
    if sum(hasattr(finder, "find_distributions") for finder in sys.meta_path) > 1:
        return True  # not all are found in folders
    for folder in folders:
        if folder.lower().endswith(".egg"):
            return True
        try:
            about = [entry.path for entry in os.scandir(folder or ".") if entry.name.lower().endswith(_ABOUT)]
        except FileNotFoundError:
            continue
        except OSError:  # an archive, or what may not be listed
            return True
        for path in about:
            try:
                with open(os.path.join(path, "entry_points.txt"), "rb") as file:
                    if _OWN_GROUP in file.read():
                        return True
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return True
    return False


_ABOUT = (".dist-info", ".egg-info")
"""How the names of folders end in which distributions tell of themselves."""
_OWN_GROUP = b"[triosim."


# --- files of the user's own ------------------------------------------------------------------------------------------

_own: dict[str, tuple[tuple[int, int], type]] = {}
"""Files of the user's own that were run: path as Python knows it -> (when changed and how large, their class)."""

_in_use: set[str] = set()
"""Those that were asked for since :func:`forget`."""


def of_file(path: Path) -> Any:
    """The class that a file of the user's own registers; runs the file, so never call it with a name that was read
    from another.

    Raises:
        InputError: there is no such file, it cannot be run, or it does not end in one registered class.
    """
    if not os.path.isfile(path):
        raise no_such_file(path) if not os.path.exists(path) else InputError(f"{path} is no file: give a Python file")
    where, status = str(path.resolve()), path.stat()
    version = (status.st_mtime_ns, status.st_size)
    if where not in _own or _own[where][0] != version:
        _own[where] = (version, _run(path, where))
    _in_use.add(where)
    return _own[where][1]


def forget() -> None:
    """No file of the user's own is in use from here on."""
    _in_use.clear()


def _run(path: Path, where: str) -> type:
    name = f"triosim_of_file_{len(_own)}_{path.stem}"
    spec = util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(f"{_shown(error.filename or where)}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise _fault(error, where) or InputError(f"{path}: cannot be run: {_said(error)}") from error
    marked = _registered(module)
    if len(marked) != 1:
        raise InputError(
            f"{path}: must end in one class marked with @registered (triosim.core.registry), has {len(marked)}"
        )
    return marked[0]


def is_ours(part: type) -> bool:
    """Whether a part belongs to TrioSim, and not to a user's file or to another distribution: its answers are tested,
    those of others are checked."""
    return part.__module__.startswith("triosim.")


def at_fault(error: BaseException) -> InputError | None:
    """What to tell the user of an exception in which a file of the user's own has a part; None where none is in use.

    The sentence names the file and the line that was reached in it last.  An exception that came up after such a file
    had answered, and not within it, is most likely because of the answer; the sentence then says what is in use.
    """
    if not _in_use or isinstance(error, InputError):
        return None
    found = _fault(error, *_own)
    if found is None and not isinstance(error, SystemExit):
        files = " and ".join(sorted(_shown(where) for where in _in_use))
        found = InputError(f"{_said(error)}, after {files} was used: look at what it returns (--traceback shows more)")
    return found


def _fault(error: BaseException, *files: str) -> InputError | None:
    steps = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename in files]
    if not steps:
        return None
    code, line = steps[-1]
    within = f", in {code.co_name}" if code.co_name.isidentifier() else ""
    return InputError(f"{_shown(code.co_filename)}, line {line}{within}: {_said(error)}")


def _said(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it ends the program"
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shown(where: str) -> str:
    """A path from here, where that is shorter."""
    try:
        near = os.path.relpath(where)
    except ValueError:  # another drive
        return where
    return near if len(near) < len(where) else where


def _import_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


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
