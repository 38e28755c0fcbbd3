"""Fill the tables that say what is predicted now of published trainings: docs/validation.md, accuracy.md, README.md.

    python -m validation.judge.training --json published.json
    python -m validation.judge.training --data DATA/training/measured.csv --json measured.json
    python -m validation.judge.training --data validation/data/bridge.csv --json bridge.json
    PYTHONPATH=. python docs/make_validation.py published.json measured.json bridge.json

Each file is known by its name; tables of those that are not given stay as they are.  A table stands between
``<!-- now NAME [FIRST LAST] [odd|apart|sums|groups|targets] -->`` and ``<!-- end now -->``: of the rows from id FIRST
to LAST, of odd ones alone of the sources that it names already, of even and odd ones apart, the sums of all that no
constant was chosen with, each group of sources that came together as first predicted and as now, or what was asked
beside what is reached.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from validation.judge import targets
from validation.judge.training import HEAD, Judged, as_first, line

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "validation.md", ROOT / "docs" / "accuracy.md", ROOT / "README.md")
MARKED = re.compile(r"(<!-- now (\w+)((?: \w+)*) -->\n).*?(<!-- end now -->)", re.DOTALL)
LAST_COLUMN = " hi/lo"
"""Memory and what predicting takes stand elsewhere."""
BLIND = "P0201"
"""From this row on sources were predicted before anyone had looked at them, even rows too."""
GROUPS = {
    "P0001": "NeMo, torchtitan, fms-fsdp, MT-NLG",
    "P0101": "DGX Cloud's recipes (NeMo, MaxText), fms-fsdp",
    "P0201": "FlashAttention, Pax, KempnerForge, Nanotron, Gaudi 2, ...",
    "P0253": "torchtitan on H200, KempnerForge's 175B, ATorch",
    "P0301": "FlagPerf, PaddleNLP, OLMo-core, Trainium, Qwen, ...",
    "P0346": "llm.c, Pythia, OPT, Llama 3 405B, torchtune, images, ...",
    "P0382": "Google Cloud's recipes: NeMo and MaxText",
    "P0401": "MLPerf Training 4.0 and 5.1: Hopper, MI300X to MI355X",
    "P0501": "MLPerf 5.1 on Blackwell, cuDNN's Llama, NeMo fine-tuning",
    "P0545": "XTuner, Lambda, FlagPerf's encoders, Nemotron-4, NeMo 2025, ...",
    "P0607": "LLMQ, MosaicML's diffusion, Qwen3 in ModelZoo, VectorLM, ...",
}
"""Sources that came together, by the id of their first row."""
EVEN, ODD, NOW = "even rows, which may shape a stack", "odd rows, which judge", "the same rows as predicted now"


def main() -> None:
    """Rewrite the page."""
    given = {Path(name).stem: _read(Path(name)) for name in sys.argv[1:]}

    def filled(mark: re.Match[str]) -> str:
        rows = given.get(mark[2])
        if rows is None:
            return mark[0]
        words = mark[3].split()
        if "targets" in words:
            return f"{mark[1]}```text\n" + "\n".join(targets.lines(rows)) + f"\n```\n{mark[4]}"
        ids = [word for word in words if word[-1].isdigit()]
        own = [row for row in rows if not row.source.startswith("vTrain") and (not ids or ids[0] <= row.id <= ids[1])]
        odd, even = ([row for row in own if row.judges is judges] for judges in (True, False))
        if "odd" in words:
            tables = [_table([row for row in odd if f"\n{row.source[:40]}" in mark[0]], "", whole=False)]
        elif "sums" in words:
            tables = [_sums(own)]
        elif "groups" in words:
            tables = [_groups(own)]
        elif "apart" in words:
            tables = [_table(even, EVEN), _table(odd, ODD)]
        else:
            tables = [_table(own, NOW)]
        return f"{mark[1]}```text\n" + "\n\n".join(tables) + f"\n```\n{mark[4]}"

    for page in PAGES:
        page.write_text(MARKED.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


def _read(path: Path) -> list[Judged]:
    """Rows that a judge wrote and could predict; of vTrain's only the targets stand here."""
    found = [Judged(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return [row for row in found if not row.lacks]


def _sums(rows: list[Judged]) -> str:
    """A line of each kind of row that shaped no constant."""
    blind = [row for row in rows if row.id >= BLIND]
    judging = [row for row in rows if row.judges]
    unseen = [row for row in rows if row.judges or row.id >= BLIND]
    lines = [
        HEAD,
        line([as_first(row) for row in blind], "sources never looked at, first predicted"),
        line(blind, "the same now"),
        line(judging, "odd rows of all sources, now"),
        line(unseen, "all of these, now"),
    ]
    return "\n".join(_narrow(one) for one in lines)


def _groups(rows: list[Judged]) -> str:
    """A line of each group: mean error, bias and share held, as first predicted and as now."""
    lines = [f"{'':62} {'':4}  {'first predicted':>20}  {'now':>20}"]
    lines.append(f"{'sources':62} {'rows':>4}" + f"  {'mean':>6} {'bias':>7} {'holds':>5}" * 2)
    starts = [*GROUPS, "Q"]
    for (start, title), end in zip(GROUPS.items(), starts[1:], strict=True):
        own = [row for row in rows if start <= row.id < end]
        first = [as_first(row) for row in own if row.first]
        lines.append(f"{title:62} {len(own):4}  {_figures(first)}  {_figures(own)}")
    return "\n".join(lines)


def _figures(rows: list[Judged]) -> str:
    if not rows:  # whose first predictions are not among the data
        return f"{'-':>6} {'-':>7} {'-':>5}"
    errors = [row.error for row in rows]
    held = sum(row.low <= row.measured <= row.high for row in rows) / len(rows)
    return f"{sum(map(abs, errors)) / len(rows):6.1%} {sum(errors) / len(rows):+7.1%} {held:5.0%}"


def _table(rows: list[Judged], title: str, whole: bool = True) -> str:
    """Lines of its sources, and of all together where ``whole``."""
    lines = [title, HEAD] if title else [HEAD]
    lines += [line([row for row in rows if row.source == name], name) for name in sorted({row.source for row in rows})]
    if whole:
        lines.append(line(rows, "all"))
    return "\n".join(_narrow(one) for one in lines)


def _narrow(text: str) -> str:
    return text[: HEAD.index(LAST_COLUMN) + len(LAST_COLUMN)].rstrip()


if __name__ == "__main__":
    main()
