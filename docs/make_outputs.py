"""Fill the outputs of the pages under docs/ from real runs.

    python docs/make_outputs.py [--data ../shared/data] [PAGE ...]

Each passage between ``<!-- run: COMMAND -->`` and ``<!-- end -->`` becomes what the command prints, one run after
another in one folder that has the project's examples/; ``<!-- run 12: COMMAND -->`` its first twelve lines;
``<!-- judge: NAME -->`` what that judge prints, where there is measured data.  Within a sentence
``<!-- time: COMMAND -->`` and ``<!-- memory: COMMAND -->`` become what an iteration takes and what the fullest device
needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from triosim.core.units import format_bytes, format_time

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "accelerators.md", "calibration.md", "energy.md", "cost.md", "jobs.md", "edge.md", "pim.md", "explore.md",
    "plans.md", "posttraining.md", "systems.md",
)  # fmt: skip
WIDTH = "100"
PASSAGE = re.compile(r"<!-- (run|judge)(?: (\d+))?: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"<!-- (time|memory): (.*?) -->[^<]*<!-- end -->")


def main() -> None:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", default=PAGES, help=f"of {', '.join(PAGES)}; all by default"
    )
    options = parser.parse_args()
    data: Path = options.data.resolve()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")

        def filled(match: re.Match[str]) -> str:
            kind, most, words = match.groups()
            if kind == "judge":
                if not (data / "energy").is_dir():
                    return match[0]
                shown = _printed([sys.executable, "-m", f"validation.judge.{words}", "--data", str(data)], ROOT)
                command = f"python -m validation.judge.{words} --data DIR"
            else:
                shown = _printed([sys.executable, "-m", "triosim", *shlex.split(words)[1:]], Path(folder))
                command = words
            if most:
                shown = "".join([*shown.splitlines(keepends=True)[: int(most)], "...\n"])
            language = "console" if kind == "run" and ".json" not in words else "text"
            marked = f"{kind} {most}" if most else kind
            return f"<!-- {marked}: {words} -->\n```{language}\n$ {command}\n{shown}```\n<!-- end -->"

        def told(match: re.Match[str]) -> str:
            kind, words = match.groups()
            command = [sys.executable, "-m", "triosim", *shlex.split(words)[1:], "--json", "-"]
            found = json.loads(_printed(command, Path(folder)))
            figure = format_time(found["iteration_time_s"])
            if kind == "memory":
                figure = format_bytes(found["memory"]["reserved_bytes"] + found["memory"]["context_bytes"])
            return f"<!-- {kind}: {words} -->{figure}<!-- end -->"

        for name in options.pages:
            page = ROOT / "docs" / name
            text = PASSAGE.sub(filled, page.read_text(encoding="utf-8"))
            page.write_text(FIGURE.sub(told, text), encoding="utf-8")


def _printed(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": WIDTH, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


if __name__ == "__main__":
    main()
