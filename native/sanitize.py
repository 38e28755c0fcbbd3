"""Run the tests of the engine, of the reader of profiles, and of what writes timelines, on native code built with the
address and undefined-behaviour sanitizers.

    python native/sanitize.py [--cases N] [--build FOLDER]

Builds with cmake and g++ or clang++ (nanobind must be installed), then runs these tests and the comparison of the
engine with the reference engine on N graphs.  What the sanitizers find ends the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("triosim.engine._native", "triosim.sources.readers._profile", "triosim.report._rows")
LIBRARIES = "SANITIZED_LIBRARIES"


def build(folder: Path) -> Path:
    """Build the extensions; returns the folder in which they are."""
    define = ["-DSANITIZE=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(["cmake", "-S", HERE, "-B", folder, *define], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    return folder


def start_again(folder: Path, cases: int) -> int:
    """Run this file in a process into which the sanitizer is loaded before all else."""
    compiler = os.environ.get("CXX", "g++")
    names = ("libasan.so", "libstdc++.so")
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    env = {
        **os.environ,
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # the interpreter itself leaks at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        LIBRARIES: str(folder),
    }
    return subprocess.run([sys.executable, __file__, "--cases", str(cases)], env=env, check=False).returncode


def run(folder: Path, cases: int) -> int:
    """The tests, with the sanitized extensions in the place of the installed ones."""
    import pytest

    for name in NAMES:
        library = next(folder.glob(f"{name.rpartition('.')[2]}*.so"))
        loader = ExtensionFileLoader(name, str(library))
        spec = spec_from_loader(name, loader)
        if spec is None:
            raise RuntimeError(f"{library} cannot be loaded")
        sys.modules[name] = module_from_spec(spec)
        loader.exec_module(sys.modules[name])
    sys.path.insert(0, str(HERE.parent))

    from tests.engine.compare import compare

    from triosim.engine import native, reference

    compare(reference.play, native.play, cases, first=1, ways=("", *native.WAYS))
    print(f"{cases} graphs: the same, and nothing found", flush=True)
    tests = [HERE.parent / "tests" / part for part in ("engine", "sources/readers/test_events.py", "report")]
    return int(pytest.main(["-q", *map(str, tests)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="graphs to compare")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build" / "sanitize", help="folder to build in")
    args = parser.parse_args()
    if LIBRARIES in os.environ:
        return run(Path(os.environ[LIBRARIES]), args.cases)
    return start_again(build(args.build), args.cases)


if __name__ == "__main__":
    sys.exit(main())
