"""Lists and runs the scripts that write constants (``fit``) and print accuracy (``judge``).

python -m validation                        what there is, a line each
python -m validation NAME [OPTION ...]      one of them; fit/NAME where both folders have the name
python -m validation all --data DIR         every table of accuracy, from measured data in the folders of DIR
"""

from __future__ import annotations

import argparse
import ast
import runpy
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
READS = {
    "accelerator": ("accelerator",),
    "collectives": ("collectives/nccl.parquet", "collectives/measured.csv"),
    "edge": ("edge",),
    "jobs": ("energy/published_jobs.csv",),
    "kernels": ("kernels/*.parquet",),
    "kineto_replay": ("kineto",),
    "main_job": ("triosim-h100/..",),
    "serving": ("serving",),
    "power_caps": ("energy/power_caps.csv",),
    "moe_layers": ("training/measured.csv",),
    "plans": ("training/measured.csv",),
    "training": ("training/measured.csv",),
    "vtrain": ("training/measured.csv",),
}
"""What judges that take ``--data`` read of a folder of data, one run for each file."""
ALONE = (
    "astra", "chunks", "deep_learning_examples", "elsewhere", "images", "interference", "memory", "recorder", "roads",
    "scenarios", "served", "states", "training",
)  # fmt: skip
"""Judges that need no data: they compare with kept or published runs, with closed forms or with this machine."""


def scripts() -> dict[str, str]:
    """First line of the docstring of each script, by ``fit/NAME`` or ``judge/NAME``."""
    found = {}
    for folder in ("fit", "judge"):
        for path in sorted((HERE / folder).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if '__name__ == "__main__"' in text:
                found[f"{folder}/{path.stem}"] = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    return found


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    known = scripts()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        width = max(map(len, known))
        print((__doc__ or "").strip(), end="\n\n")
        for name, line in known.items():
            print(f"{name:{width}}  {line}")
        return 0
    name = sys.argv[1]
    if name == "all":
        return _all()
    path = next((f for f in (name, f"judge/{name}", f"fit/{name}") if f in known), None)
    if path is None:
        print(f"there is no script {name!r}: python -m validation lists them", file=sys.stderr)
        return 2
    sys.argv = [path, *sys.argv[2:]]
    runpy.run_module(f"validation.{path.replace('/', '.')}", run_name="__main__", alter_sys=True)
    return 0


def _all() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation all")
    parser.add_argument("all")
    parser.add_argument("--data", type=Path, required=True, help="folder of measured data")
    data = parser.parse_args().data
    runs: list[tuple[str, list[str]]] = [(name, []) for name in ALONE]
    for name, patterns in READS.items():
        found = [path for pattern in patterns for path in sorted(data.glob(pattern))]
        runs += [(name, ["--data", str(path.resolve())]) for path in found]
        if not found:
            print(f"{name}: there is no {' or '.join(patterns)} in {data}", file=sys.stderr)
    failed = []
    for name, options in sorted(runs):
        print(f"== {name} {' '.join(options)}".rstrip(), flush=True)
        if subprocess.run([sys.executable, "-m", f"validation.judge.{name}", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
