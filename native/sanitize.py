"""Run tests on native code built with sanitizers.

    python native/sanitize.py [--of memory|threads] [--cases N] [--cpu-minutes N] [--build FOLDER]

``memory``, the default, is the address and undefined-behaviour sanitizers: the engine compared with the reference
engine on N graphs, then the tests of everything that is bound.  ``threads`` is the thread sanitizer: the draws that are
played side by side, which must be the same on many threads as on one.  Builds with cmake and g++ or clang++ (nanobind
must be installed).  What a sanitizer finds ends the run, and so does running for longer than was given.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
MEMORY, THREADS = "memory", "threads"
MODULES = {
    "_native": "triosim.engine", "_allocator": "triosim.memory", "_profile": "triosim.sources.readers",
    "_serving": "triosim.serving", "_rows": "triosim.report",
}  # fmt: skip
TESTS = {
    MEMORY: (
        "engine", "memory/test_allocator.py", "memory/test_allocation_order.py", "prediction/test_steady.py",
        "report/test_rows.py", "report/test_chrome.py", "report/test_perfetto.py", "serving/test_native.py",
        "search/test_turns.py", "serving/test_policies.py", "serving/test_routers.py", "serving/test_request_sketch.py",
        "sources/readers/test_events.py",
    ),
    THREADS: ("engine/test_many.py", "engine/test_replay.py"),
}  # fmt: skip
PRELOADED = {MEMORY: ("libasan.so", "libstdc++.so"), THREADS: ("libtsan.so",)}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # the interpreter itself leaks at its end
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
}
LIBRARIES = "SANITIZED_LIBRARIES"


def build(folder: Path, of: str) -> None:
    """Build the extensions into a folder."""
    define = [f"-DSANITIZE={of}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DPython_EXECUTABLE={sys.executable}"]
    targets = ["--target", "_native"] if of == THREADS else []
    subprocess.run(["cmake", "-S", HERE, "-B", folder, *define], check=True)
    subprocess.run(["cmake", "--build", folder, *targets], check=True)


def start_again(folder: Path, args: argparse.Namespace) -> int:
    """Run this file in a process into which the sanitizer is loaded before all else."""
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        for name in PRELOADED[args.of]
    ]
    env = {**os.environ, **OPTIONS, "LD_PRELOAD": ":".join(found), LIBRARIES: str(folder)}
    given = ["--of", args.of, "--cases", str(args.cases), "--cpu-minutes", str(args.cpu_minutes)]
    # The thread sanitizer keeps its shadow where addresses that are drawn at random may lie.
    fixed = ["setarch", platform.machine(), "-R"] if args.of == THREADS and shutil.which("setarch") else []
    code = subprocess.run([*fixed, sys.executable, __file__, *given], env=env, check=False).returncode
    if code:
        print(f"sanitizers of {args.of}: failed, exit code {code}", file=sys.stderr)
    return int(code != 0)


def load(folder: Path) -> None:
    """Put the sanitized extensions in the place of the installed ones."""
    for short, package in MODULES.items():
        for library in folder.glob(f"{short}.*so"):
            name = f"{package}.{short}"
            loader = ExtensionFileLoader(name, str(library))
            spec = spec_from_loader(name, loader)
            if spec is None:
                raise RuntimeError(f"{library} cannot be loaded")
            sys.modules[name] = module_from_spec(spec)
            loader.exec_module(sys.modules[name])


def run(folder: Path, of: str, cases: int, cpu_minutes: int) -> int:
    """The graphs and the tests."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (60 * cpu_minutes, 60 * cpu_minutes + 10))
    load(folder)
    sys.path.insert(0, str(ROOT))
    if of == MEMORY:
        from tests.engine.compare import compare

        from triosim.engine import native, reference

        compare(reference.play, native.play, cases, first=1, ways=("", *native.WAYS))
        print(f"{cases} graphs: the same, and nothing found", flush=True)
    else:
        from tests.engine.compare import compare_draws

        compare_draws(cases, first=1)
        print(f"draws of {cases} graphs: the same on all threads, and nothing found", flush=True)
    # What a sanitizer says goes to standard error, which pytest would keep to itself.
    return int(pytest.main(["-q", "--capture=sys", *(str(ROOT / "tests" / part) for part in TESTS[of])]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=[MEMORY, THREADS], default=MEMORY, help="what is looked at")
    parser.add_argument("--cases", type=int, default=2000, help="graphs to compare")
    parser.add_argument("--cpu-minutes", type=int, default=30, help="processor time after which the tests are ended")
    parser.add_argument("--build", type=Path, help="folder to build in; by default build/sanitize-memory or -threads")
    args = parser.parse_args()
    if LIBRARIES in os.environ:
        return run(Path(os.environ[LIBRARIES]), args.of, args.cases, args.cpu_minutes)
    folder = (args.build or ROOT / "build" / f"sanitize-{args.of}").resolve()
    build(folder, args.of)
    return start_again(folder, args)


if __name__ == "__main__":
    sys.exit(main())
