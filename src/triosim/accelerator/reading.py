"""Files of designs, problems and mappings, in the formats of several tools, recognised by what they hold.

A format is one file in ``files/``.  What a reader finds is :class:`Contents`; several files are joined, so that an
architecture, its energies and its constraints may stand in one file or in five.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from triosim.accelerator.architecture import Architecture, Energies, check_keeps
from triosim.accelerator.datacentric import Dataflow, Hardware, case
from triosim.accelerator.directives import Directives
from triosim.accelerator.energies import completed
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.problem import Problem
from triosim.accelerator.sparse import Sparse
from triosim.accelerator.systolic import Array
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.guarded import reading
from triosim.core.registry import Registry

FORMATS: Registry[Format] = Registry("triosim.accelerator.files", "triosim.design_formats", "design format")
"""Formats of designs, problems and mappings."""

LARGEST = 16 << 20
"""Bytes of a file."""


@dataclass(frozen=True)
class Contents:
    """What files hold.

    Attributes:
        architecture: a design.
        array: a systolic array, for closed forms.
        problems: einsums, in their order.
        mapping: loops and what is kept, for :meth:`Directives.mapping`.
        constraints: of mappings.
        sparse: formats and what is skipped.
        energies: of components, by name.
        areas: of components in square metres, by name.
        notes: what was found and is not used.
        hardware: units of a data-centric mapping.
        dataflows: data-centric mappings, one for each problem.
    """

    architecture: Architecture | None = None
    array: Array | None = None
    problems: tuple[Problem, ...] = ()
    mapping: Directives | None = None
    constraints: Directives | None = None
    sparse: Sparse | None = None
    energies: tuple[tuple[str, Energies], ...] = ()
    areas: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    hardware: Hardware | None = None
    dataflows: tuple[Dataflow, ...] = ()

    def joined(self, other: Contents, where: str) -> Contents:
        """Both.

        Raises:
            InputError: both hold a design or a mapping.
        """
        for what, word in (("architecture", "design"), ("array", "systolic array"), ("mapping", "mapping"),
                           ("hardware", "hardware")):  # fmt: skip
            if getattr(self, what) is not None and getattr(other, what) is not None:
                raise InputError(f"{where}: holds a second {word}: give one")
        if (self.array or other.array) and (self.architecture or other.architecture):
            raise InputError(f"{where}: a design and a systolic array are two devices: give one of them")
        rows = [d.rows for d in (self.constraints, other.constraints) if d]
        return Contents(
            self.architecture or other.architecture, self.array or other.array, self.problems + other.problems,
            self.mapping or other.mapping, Directives(sum(rows, ())) if rows else None,
            self.sparse.joined(other.sparse) if self.sparse and other.sparse else self.sparse or other.sparse,
            self.energies + other.energies, self.areas + other.areas, self.notes + other.notes,
            self.hardware or other.hardware, self.dataflows + other.dataflows,
        )  # fmt: skip

    def cases(self, ragged: bool = False) -> list[tuple[Architecture, Problem, LoopMapping]]:
        """Each problem with its design and mapping.

        Raises:
            InputError: one of them is missing, or they do not belong together.
        """
        if not self.dataflows:
            if self.mapping is None:
                raise InputError("holds no mapping: give a file with one, or let `triosim accelerator map` find it")
            design, problem = self.design, self.problem
            return [(design, problem, self.mapping.mapping(design, problem, ragged, self.constraints))]
        if self.hardware is None:
            raise InputError("data-centric mappings need hardware: give a file with NumPEs")
        if len(self.dataflows) != len(self.problems):
            raise InputError(
                f"{len(self.dataflows)} data-centric mappings are for {len(self.problems)} problems: give one of each"
            )
        found = []
        for problem, dataflow in zip(self.problems, self.dataflows, strict=True):
            design, mapping = case(problem.name, self.hardware, problem, dataflow)
            found.append((self._with_energies(design), problem, mapping))
        return found

    def _with_energies(self, design: Architecture) -> Architecture:
        names = [store.name for store in design.stores] + [design.compute.name]
        table = {name: energies for name, energies in self.energies if name in names}
        if self.energies and not table:
            stated = ", ".join(dict.fromkeys(name for name, _ in self.energies[:8]))
            raise InputError(
                f"energies are stated of {stated}, and the design has none of them: name its components, "
                f"{', '.join(names[:8])}"
            )
        return completed(design.with_energies(table))

    @property
    def unused(self) -> tuple[str, ...]:
        """A sentence on energies that nothing of the design takes, if there are some."""
        design = self.architecture
        if design is None:
            return ()
        names = {store.name for store in design.stores} | {design.compute.name}
        others = list(dict.fromkeys(name for name, _ in self.energies if name not in names))
        if not others:
            return ()
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        return (f"energies of {', '.join(others[:5])}{more} are not used: the design has no such components",)

    @property
    def design(self) -> Architecture:
        """The design, with the energies that were found, and assumed ones where nobody states any.

        Raises:
            InputError: there is none, or energies of a component that it does not have.
        """
        if self.architecture is None:
            raise InputError(self._no_design)
        return self._with_energies(self.architecture)

    @property
    def _no_design(self) -> str:
        """Why there is none."""
        if self.array is not None:
            return (
                f"{self.array.name} is a systolic array, whose mapping is given: `triosim accelerator evaluate` says "
                "what it takes"
            )
        if self.hardware is not None or self.dataflows:
            return (
                "hardware of data-centric mappings has only the stores that a mapping gives it: evaluate it with a "
                "network that has one, or describe a design"
            )
        return "no design was found in the files: give a file with an architecture, or a preset's name"

    @property
    def problem(self) -> Problem:
        """The one problem.

        Raises:
            InputError: there is none, or several.
        """
        if len(self.problems) != 1:
            found = ", ".join(problem.name for problem in self.problems[:8]) or "none"
            raise InputError(f"one problem is needed, and the files hold {found}: give one")
        return self.problems[0]


class Format(Protocol):
    """A format that designs, problems or mappings come in."""

    def recognises(self, path: Path) -> bool:
        """Whether a file is of this format; looks at its beginning and never raises."""
        ...

    def read(self, path: Path) -> Contents:
        """What the file holds.

        Raises:
            InputError: the file is damaged, or says what cannot be used.
        """
        ...


def read(paths: Iterable[Path]) -> Contents:
    """What files hold together.

    Raises:
        InputError: a file of no known format, or one that its reader refuses.
    """
    found = Contents()
    for path in paths:
        with reading(path):
            found = found.joined(read_one(path), str(path))
    if found.architecture is not None and found.problems:
        check_keeps(found.architecture, found.problems)
    return found


def read_one(path: Path) -> Contents:
    """What one file holds.

    Raises:
        InputError: it is of no known format, or its reader refuses it.
    """
    from triosim.core.guarded import LARGEST, content, document

    for name in FORMATS.names():
        form = FORMATS.get(name)()
        if form.recognises(path):
            return form.read(path)
    content(path, packed=False)  # says what is wrong where there is no such file
    if path.suffix.lower() in LARGEST:
        document(path)  # or where it is broken, has cycles or is too large
    raise InputError(
        f"{path}: neither a design nor a problem nor a mapping in a known format ({', '.join(FORMATS.names())}): see "
        "docs/accelerators.md for their beginnings"
    )


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Puts the file and the place before what is wrong with what was made from it."""
    try:
        yield
    except InputError as error:
        said = str(error)
        raise InputError(said if where in said else f"{where}: {said}") from None
