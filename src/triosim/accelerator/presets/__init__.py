"""Ready designs: one file each beside this one, each figure with its source."""

from __future__ import annotations

import os
from pathlib import Path

from triosim.accelerator.architecture import Architecture
from triosim.core.errors import InputError, unknown

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the ready designs."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load(name: str) -> Architecture:
    """A ready design, without the energies that its sources do not state (:mod:`triosim.accelerator.energies`).

    Raises:
        InputError: there is none of that name.
    """
    from triosim.accelerator.reading import read_one

    if name not in names():
        raise unknown("design", name, names())
    found = read_one(_FOLDER / f"{name}.toml").architecture
    assert found is not None
    return found


def known(design: str) -> Path:
    """The file of a design, by its path or the name of a ready one.

    Raises:
        InputError: neither is there.
    """
    path = Path(design)
    if not os.path.exists(path) and design in names():
        return _FOLDER / f"{design}.toml"
    if not os.path.exists(path) and not path.suffix:
        raise unknown("design", design, names(), "(or give a file)")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder: give the file of the design in it")
    return path
