"""Fill the README's output and picture, and the tables of docs/accuracy.md, from real runs.

    python docs/make_readme.py [--data ../shared/data] [--chromium /usr/bin/chromium]

Runs the commands that the pages show and writes what they print between their markers.  Without measured data the
accuracy tables stay as they are; without Chromium the picture does.  What published trainings are off by stands on
both pages too: docs/make_validation.py fills it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ["train", "llama-3-8b", "--system", "dgx-h100", "--tp", "8"]
PICTURE = [
    "train", "llama-3-8b", "--system", "dgx-h100", "--dp", "2", "--tp", "2", "--pp", "2", "--global-batch-size", "16",
    "--micro-batches", "8", "--zero", "1", "--stack", "megatron-core",
]  # fmt: skip
WIDTH = "96"


def main() -> None:
    """Rewrite README.md, docs/accuracy.md and docs/report.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser"))
    parser.add_argument(
        "--scale", action="store_true", help="also time large jobs (minutes; see benchmarks/scale.py for the memory)"
    )
    options = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = _between(text, "output", f"```text\n{_run(*COMMAND)}```")
    if options.scale:
        text = _between(text, "scale", f"```text\n{_printed('benchmarks/scale.py', '--data', str(options.data))}```")
    readme.write_text(text, encoding="utf-8")
    if (options.data / "triosim-h100").is_dir():
        page = ROOT / "docs" / "accuracy.md"
        text = page.read_text(encoding="utf-8")
        table = _printed("-m", "validation.judge.main_job", "--data", str(options.data))
        text = _between(text, "accuracy", f"```text\n{table}```")
        data = str(options.data / "collectives" / "nccl.parquet")
        summary = _printed("-m", "validation.judge.collectives", "--data", data).strip().split("\n\n")[-1]
        text = _between(text, "collectives", f"```text\n{summary}\n```")
        page.write_text(text, encoding="utf-8")
    if options.chromium:
        _picture(options.chromium)


def _between(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    return pattern.sub(lambda m: m.group(1) + content + "\n" + m.group(2), text)


def _printed(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "triosim", *arguments]
    environment = {**os.environ, "COLUMNS": WIDTH}
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout
    return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def _picture(chromium: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        _run(*PICTURE, "--report", str(page))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags += [
            f"--user-data-dir={folder}/profile",
            "--window-size=1200,1500",
            f"--screenshot={ROOT / 'docs' / 'report.png'}",
        ]
        subprocess.run([chromium, *flags, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
