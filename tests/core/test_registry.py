"""Registries: a folder listed without importing, parts looked up by name, others added through entry points."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from triosim.core import registry
from triosim.core.errors import InputError
from triosim.core.registry import Registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Registry:
    package = tmp_path / "shapes_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_shared.py").write_text("raise RuntimeError('imported')\n")
    mark = "from triosim.core.registry import registered\n\n@registered\nclass {}:\n    pass\n"
    (package / "round_one.py").write_text(mark.format("Round"))
    (package / "none.py").write_text("class Unmarked:\n    pass\n")
    (package / "two.py").write_text(mark.format("A") + mark.format("B"))
    (package / "broken.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Registry("shapes_for_test", "triosim.shapes_for_test", "shape")
    for name in [m for m in sys.modules if m.startswith("shapes_for_test")]:
        del sys.modules[name]


def test_names_are_listed_without_importing(folder: Registry) -> None:
    assert folder.names() == ["broken", "none", "round-one", "two"]
    assert "round_one" in folder
    assert "Round-One" in folder
    assert "_shared" not in folder


def test_a_part_is_imported_when_it_is_looked_up(folder: Registry) -> None:
    assert folder.get("round-one").__name__ == "Round"
    assert folder.get("ROUND_ONE") is folder.get("round-one")


def test_unknown_names_are_refused_with_near_ones(folder: Registry) -> None:
    with pytest.raises(InputError, match="unknown shape 'round-two': did you mean round-one"):
        folder.get("round-two")


@pytest.mark.parametrize("name", ["none", "two"])
def test_a_file_ends_in_one_registered_class(folder: Registry, name: str) -> None:
    with pytest.raises(RuntimeError, match="exactly one registered class"):
        folder.get(name)


def test_other_distributions_add_parts(folder: Registry, monkeypatch) -> None:
    point = EntryPoint("spiral", "pathlib:Path", "triosim.shapes_for_test")
    monkeypatch.setattr(registry, "installed", lambda group: [point] if group == folder.group else [])
    assert "spiral" in folder.names()
    assert folder.get("spiral") is Path


@pytest.mark.parametrize("names", [("round_one",), ("spiral", "spiral")])
def test_a_name_given_twice_is_an_error(folder: Registry, monkeypatch, names: tuple[str, ...]) -> None:
    points = [EntryPoint(name, "pathlib:Path", folder.group) for name in names]
    monkeypatch.setattr(registry, "installed", lambda group: points)
    with pytest.raises(InputError, match=r"registered twice: .* rename it there"):
        folder.names()


def test_listing_topologies_imports_none_of_them() -> None:
    code = (
        "import sys; from triosim.hardware.topology import TOPOLOGIES; TOPOLOGIES.names(); "
        "print([m for m in sys.modules if m.startswith('triosim.hardware.topologies.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Base(ABC):
    """What every part of the typed registry below derives from."""

    @abstractmethod
    def area(self) -> float:
        """Of the shape."""


class Square(Base):
    def area(self) -> float:
        return 1.0


class Half(Base):
    """A part that does not do everything."""


@pytest.fixture
def typed(folder: Registry, monkeypatch) -> Callable[[str], Registry[Base]]:
    def with_entry_point(value: str) -> Registry[Base]:
        point = EntryPoint("spiral", value, folder.group)
        monkeypatch.setattr(registry, "installed", lambda group: [point])
        return Registry(folder.package, folder.group, folder.what, Base)

    return with_entry_point


def test_a_part_of_the_base_class_is_found(typed: Callable[[str], Registry[Base]]) -> None:
    assert typed(f"{__name__}:Square").get("spiral")().area() == 1.0


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nothing_of_that_name:Square", "entry point spiral = nothing.*: cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:Circle", "cannot be imported: AttributeError"),
        ("math:pi", "a shape is a class, not 3.14"),
        ("pathlib:Path", r"Path is no shape: derive it from tests.core.test_registry.Base"),
        (f"{__name__}:Half", "shape Half does not define area"),
    ],
)
def test_what_is_no_part_is_refused(typed: Callable[[str], Registry[Base]], value: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        typed(value).get("spiral")


@pytest.mark.parametrize(
    ("name", "text", "may"),
    [
        ("own-1.0.dist-info/entry_points.txt", "[triosim.models]\nown = own:Own\n", True),
        ("Own.EGG-INFO/entry_points.txt", "[console_scripts]\nx = y:z\n[triosim.readers]\nown = own:Own\n", True),
        ("own-1.0.dist-info/entry_points.txt", "[console_scripts]\ntriosim = triosim.__main__:main\n", False),
        ("own-1.0.dist-info/METADATA", "[triosim.models]\n", False),
        ("own.py", "[triosim.models]\n", False),
    ],
)
def test_distributions_that_may_add_parts_are_told_by_their_files(tmp_path: Path, name: str, text: str, may: bool):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert registry._may_add([str(tmp_path)]) is may
    assert registry._may_add([str(tmp_path / "nowhere"), str(tmp_path)]) is may


def test_what_no_folder_shows_may_add_parts(tmp_path: Path, monkeypatch) -> None:
    archive = tmp_path / "all.zip"
    archive.write_bytes(b"PK")
    assert registry._may_add([str(archive)])
    assert registry._may_add([str(tmp_path / "own.egg")])
    assert not registry._may_add([str(tmp_path)])
    finder = type("Finder", (), {"find_distributions": lambda self, context=None: ()})()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert registry._may_add([str(tmp_path)])


def test_parts_of_an_installed_distribution_are_found(tmp_path: Path) -> None:
    about = tmp_path / "own-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[triosim.shapes]\nown = own:Own\n")
    said = "import sys; sys.path.append(sys.argv[1]); from triosim.core.registry import installed; "
    said += "print([p.name for p in installed('triosim.shapes')], 'importlib.metadata' in sys.modules)"
    run = [sys.executable, "-c", said]
    assert subprocess.check_output([*run, str(tmp_path)], text=True).split() == ["['own']", "True"]
    assert subprocess.check_output([*run, str(tmp_path / "none")], text=True).startswith("[]")
