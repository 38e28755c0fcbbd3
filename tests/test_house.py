"""The house: data moves one way, so a package imports only from packages that stand before it."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import triosim

SOURCE = Path(triosim.__file__).parent
ORDER = (
    "core", "fidelity", "stacks", "plan", "hardware", "accelerator", "operators", "trace", "transform", "sources",
    "partition", "kernels", "memory", "schedule", "composition", "engine", "tiles", "network", "collectives", "energy",
    "job", "interop", "prediction", "posttraining", "search", "explore", "serving", "report", "validate", "cli",
    "__main__",
)  # fmt: skip
HEAVY = {"torch", "pyarrow", "pandas", "google", "transformers"}
OPTIONAL_HOMES = {
    "torch": ("sources/record", "validate/ranks", "validate/kit"),
    "pyarrow": ("trace/store.py", "prediction/result/frame.py"),
    "pandas": ("prediction/result/frame.py",),
    "google": ("interop/chakra/file.py", "core/guarded.py"),
    "gymnasium": ("explore/environments.py",),
    "optuna": ("explore/searchers/_optuna.py",),
    "onnx": ("sources/readers/onnx.py", "sources/runtimes/onnx_file.py"),
    "onnxruntime": ("sources/runtimes/onnx_runtime.py",),
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every file of the package.  Read when a test asks, as each process that runs tests imports this file."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


@functools.cache
def nodes() -> dict[str, list[ast.AST]]:
    """All nodes of every file."""
    return {name: list(ast.walk(tree)) for name, tree in trees().items()}


@functools.cache
def imports() -> dict[str, list[str]]:
    """Modules that every file imports."""
    return {name: _imported(tree) for name, tree in trees().items()}


def _imported(tree: ast.AST) -> list[str]:
    """Modules that a file imports, when it is imported or later, but for those that only types are taken from."""
    found: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
            if node.module == "triosim":
                found.extend(f"triosim.{alias.name}" for alias in node.names)
        found.extend(_imported(node))
    return found


def test_a_package_imports_only_from_those_before_it() -> None:
    violations = []
    for name, modules in imports().items():
        part = name.split("/")[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in ORDER, f"{part} has no place in the house"
        for module in modules:
            other = module.split(".")[1] if module.startswith("triosim.") else ""
            if other in ORDER and ORDER.index(other) > ORDER.index(part):
                violations.append(f"{name} imports {module}, which stands after {part}")
    assert not violations


def test_what_is_heavy_is_imported_in_one_place() -> None:
    violations = [
        f"{name} imports {module}, which belongs into {' or '.join(homes)}"
        for name, modules in imports().items()
        for module in modules
        if (homes := OPTIONAL_HOMES.get(module.split(".")[0])) and not name.startswith(homes)
    ]
    assert not violations


EXECUTORS = {"core/dataclass.py": "the __init__ of a dataclass, as the standard library does"}


def test_nothing_is_pickled_or_executed() -> None:
    never = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
    violations = [
        f"{name} imports {module}" for name, modules in imports().items() for module in modules
        if module.split(".")[0] in never
    ]  # fmt: skip
    for name, found in nodes().items():
        violations += [
            f"{name}, line {node.lineno} calls {node.func.id}" for node in found
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
            and name not in EXECUTORS
        ]  # fmt: skip
    assert not violations


WRITERS = {
    "core/outputs.py": "the one writer",
    "validate/launch.py": "messages between processes, in a folder that is gone afterwards",
    "validate/ranks/__main__.py": "the same",
    "validate/kit/recorder.py": "a log that grows by a line at a time",
    "cli/streams.py": "standard error that was closed",
    "search/journal.py": "a log that grows by a line at a time, for what is killed to go on",
}
"""Files that may open others for writing, and why."""


def test_files_are_written_in_one_place() -> None:
    violations = []
    for name, found in nodes().items():
        calls = [node for node in found if isinstance(node, ast.Call)] if name not in WRITERS else []
        violations += [
            f"{name}, line {node.lineno}: triosim.core.outputs writes files" for node in calls if _writes(node)
        ]
    assert not violations


def _writes(call: ast.Call) -> bool:
    """Whether a call opens a file for writing, or writes one."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function != "open":
        return function in ("write_text", "write_bytes", "mkstemp", "NamedTemporaryFile")
    mode = [
        word.value for word in [*call.args[:2], *(k.value for k in call.keywords)] if isinstance(word, ast.Constant)
    ]
    return any(isinstance(word, str) and set(word) <= set("rwxabt+") and set(word) & set("wxa+") for word in mode)


PARSERS = {
    "core/guarded.py": "the one way in",
    "core/outputs.py": "packs what is written",
    "trace/store.py": "packs what is written; Parquet",
    "trace/calls.py": "arguments of a trace that was checked when it was read",
    "sources/readers/_arguments.py": "a constant within a file that the guarded loader has read",
    "hardware/catalog/__init__.py": "the catalog's own files",
    "validate/launch.py": "messages between processes",
    "validate/ranks/__main__.py": "the same",
    "sources/record/gpu.py": "what the profiler has just written",
    "accelerator/files/scale_sim.py": "the text of a file that the guarded loader has read",
    "kernels/external/_csv.py": "the text of a file that the guarded loader has read",
}
"""Files that call a parser themselves, and why; those of the program's own data (``Path(__file__)``, or
``resources.files`` where it may be in an archive) may too."""
_MODULES = ("json", "tomllib", "yaml", "csv", "gzip", "zipfile", "zlib", "pickle", "ast", "sqlite3", "pq")
_PARSING = ("load", "loads", "safe_load", "reader", "DictReader", "decompress", "GzipFile", "ZipFile", "literal_eval")


def _names(found: list[ast.AST]) -> set[str]:
    return {node.id for node in found if isinstance(node, ast.Name)}


def test_files_of_users_are_read_in_one_place() -> None:
    own_data = {name for name, found in nodes().items() if {"resources", "__file__"} & _names(found)}
    violations = []
    for name, found in nodes().items():
        if name in PARSERS or name in own_data or name.startswith("validate/kit"):
            continue
        violations += [
            f"{name}, line {node.lineno}: triosim.core.guarded reads files" for node in found
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PARSING
            and isinstance(node.func.value, ast.Name) and node.func.value.id in _MODULES
        ]  # fmt: skip
    assert not violations


def test_only_one_kind_of_console_is_made() -> None:
    """Names come from files: a console that takes them for markup or obeys their escapes must not be made."""
    made = [
        f"{name}, line {node.lineno}: make a report.console.TextConsole" for name, found in nodes().items()
        for node in found
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    ]  # fmt: skip
    assert not made


def test_only_one_kind_of_table_is_made() -> None:
    """Rich's tables cut heads, and fill lines with blanks."""
    made = [f"{name}: make a report.table.TextTable" for name, modules in imports().items() if "rich.table" in modules]
    assert not made


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


PLAIN_COMMAND = """
import contextlib, io, sys
from triosim.__main__ import main
sys.argv = ["triosim", "train", "llama-3-8b", "--system", "dgx-h100", "--tp", "8"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""
OF_A_PLAIN_COMMAND = {
    "__main__", "cli", "collectives", "composition", "core", "energy", "engine", "fidelity", "hardware", "kernels",
    "memory", "network", "operators", "partition", "plan", "prediction", "report", "schedule", "sources", "stacks",
    "trace", "transform",
}  # fmt: skip
"""Packages that a prediction of a model by name on a ready system uses."""
OF_ITS_REPORT = {"console", "table", "terminal", "text"}
MOST_MODULES = 310
"""Modules of TrioSim that it imports: each costs a quarter of a millisecond.  Import what only some commands need where
they need it, rather than raise this."""


def test_a_plain_command_imports_what_it_uses() -> None:
    loaded = _loaded_by(f"exec({PLAIN_COMMAND!r})")
    own = [name.split(".") for name in loaded if name.startswith("triosim.")]
    assert {parts[1] for parts in own} <= OF_A_PLAIN_COMMAND
    assert {parts[2] for parts in own if parts[1] == "report" and len(parts) > 2} == OF_ITS_REPORT
    assert len(own) <= MOST_MODULES
    others = {"pydantic", "pyarrow", "yaml", "torch", "google", "numpy.ma", "html", "importlib.metadata"}
    assert not loaded & (others - _loaded_by("import numpy, rich.console"))  # older ones import more themselves


def test_reading_a_recorded_step_builds_no_model() -> None:
    example = SOURCE.parents[1] / "examples" / "resnet50-cpu.triosim"
    loaded = _loaded_by(f"import triosim; triosim.load({str(example)!r})")
    assert "pyarrow" in loaded
    assert not loaded & {"pydantic", "typer", "rich", "torch", "triosim.sources.modelling"}


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
    from triosim.schedule.actions import SCHEDULES
    from triosim.serving.policy import ENGINES, IMAGE_ENGINES
    from triosim.serving.request_files import READERS as REQUESTS
    from triosim.serving.router import ROUTERS
    from triosim.sources.modelling import MODELS as FAMILIES
    from triosim.sources.reading import READERS

    serving = (ENGINES, IMAGE_ENGINES, ROUTERS, REQUESTS)
    for registry in (ALGORITHMS, SOLVERS, TOPOLOGIES, MODELS, SCHEDULES, FAMILIES, READERS, TIMES, *serving):
        assert registry.names(), f"{registry.package} is empty"
        for name in registry.names():
            assert isinstance(registry.get(name), type)


def test_dataclasses_are_written_when_they_are_used() -> None:
    """Those of the standard library cost half a millisecond each when they are imported."""
    violations = [
        f"{name}, line {node.lineno}: from triosim.core.dataclass import dataclass" for name, found in nodes().items()
        for node in found
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and name != "core/dataclass.py"
        and any(alias.name == "dataclass" for alias in node.names)
    ]  # fmt: skip
    assert not violations


def test_a_class_name_is_used_once() -> None:
    homes: dict[str, list[str]] = {}
    for name, found in nodes().items():
        for node in found:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {word: files for word, files in homes.items() if len(files) > 1} == {}
