"""The house: data moves one way, so a package imports only from packages that stand before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import triosim

SOURCE = Path(triosim.__file__).parent
ORDER = (
    "errors", "registry", "columns", "intervals", "units", "plan", "hardware", "workload", "kernels", "memory",
    "parallelism", "composition", "engine", "network", "collectives", "interop", "timeline", "result", "tally",
    "prepare", "uncertainty", "fitting", "summary", "simulate", "iterations", "report", "validate", "cli",
)  # fmt: skip
HEAVY = {"torch", "pyarrow", "google", "transformers"}
OPTIONAL_HOMES = {
    "torch": ("workload/record", "validate/ranks", "validate/kit"),
    "pyarrow": ("workload/store.py",),
    "google": ("interop/chakra/file.py",),
}
FILES = sorted(p for p in SOURCE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path, runtime_only: bool = True) -> list[tuple[str, bool]]:
    """Modules that a file imports, and whether at import time of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []

    def walk(node: ast.AST, top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test) and runtime_only:
                continue
            inside = top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.Import):
                found.extend((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.append((child.module, top))
                if child.module == "triosim":
                    found.extend((f"triosim.{alias.name}", top) for alias in child.names)
            walk(child, inside)

    walk(tree, True)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_package_imports_only_from_those_before_it(path: Path) -> None:
    part = _part(path)
    if part == "__init__":
        return
    assert part in ORDER, f"{part} has no place in the house"
    for module, _ in _imports(path):
        if module.startswith("triosim."):
            other = module.split(".")[1]
            if other in ORDER:
                behind = ORDER.index(other) > ORDER.index(part)
                assert not behind, f"{path.name} imports {module}, which stands after {part}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_is_heavy_is_imported_in_one_place(path: Path) -> None:
    for module, _ in _imports(path):
        root = module.split(".")[0]
        if root in OPTIONAL_HOMES:
            homes = OPTIONAL_HOMES[root]
            assert str(path.relative_to(SOURCE)).startswith(homes), f"{root} belongs into {' or '.join(homes)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_is_pickled_or_executed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    modules = {module.split(".")[0] for module, _ in _imports(path)}
    assert not modules & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
    assert "eval(" not in text.replace("literal_eval(", "").replace("model.eval(", "")


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(out.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import triosim")
    assert not loaded & {"numpy", "torch", "pydantic", "pyarrow", "typer", "rich"}


def test_the_command_line_starts_without_anything_heavy() -> None:
    loaded = _loaded_by("import triosim.cli.main")
    assert not loaded & {"numpy", "torch", "pydantic", "pyarrow", "yaml"}


def test_every_public_name_is_there() -> None:
    for name in triosim.__all__:
        if name != "record" or _has_torch():
            assert getattr(triosim, name) is not None


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def test_registered_parts_can_all_be_looked_up() -> None:
    from triosim.collectives.algorithm import ALGORITHMS
    from triosim.engine.solver import SOLVERS
    from triosim.hardware.topology import TOPOLOGIES
    from triosim.kernels.external_times import READERS as TIMES
    from triosim.kernels.model import MODELS
    from triosim.parallelism.schedule import SCHEDULES
    from triosim.workload.modelling import MODELS as FAMILIES
    from triosim.workload.reading import READERS

    for registry in (ALGORITHMS, SOLVERS, TOPOLOGIES, MODELS, SCHEDULES, FAMILIES, READERS, TIMES):
        assert registry.names(), f"{registry.package} is empty"
        for name in registry.names():
            assert isinstance(registry.get(name), type)
