"""Which models of a table of measured trainings, and of the survey's scenarios, have no name in ``triosim models``.

    python -m validation.names TABLE.csv

A measured model has a name if a named one has its layers, width and heads, whatever its vocabulary was padded to.
Models cut short for a test are left out, and so are sweeps over sizes that nobody named.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from triosim.sources.modelling import configured, preset, presets

NAMELESS = r"CI model|truncated|^single MoE layer|^GPT \(h=|^BLOOM-style GPT"
"""The last are shapes that were tried for BLOOM, all but one of them never trained."""
SCENARIOS = {
    "T1.1": "gpt2-xl", "T1.2": "llama-2-7b", "T1.3": "llama-2-7b", "T1.4": "llama-2-13b", "T2.1": "gpt3-22b",
    "T2.2": "llama-2-70b", "T2.3": "qwen2.5-72b", "T3.1": "gpt3-175b", "T3.2": "llama-2-70b", "T4.1": "llama-2-13b",
    "T4.2": "llama-2-7b", "T4.3": "gpt3-175b", "T4.4": "qwen2.5-7b", "T4.5": "deepseek-v2", "T4.6": "deepseek-v3",
    "I1.1": "gpt2-large", "I1.2": "gpt3-2.7b", "I2.4": "mixtral-8x7b", "D1.1": "sdxl", "D1.2": "flux.1-dev",
    "D1.3": "flux.1-schnell",
}  # fmt: skip
"""Models of the 2026 survey's scenarios; those that are not listed repeat one that is."""
KEYS = (("num_hidden_layers", "n_layer"), ("hidden_size", "n_embd"), ("num_attention_heads", "n_head"))


def shapes() -> set[tuple[int, ...]]:
    """Layers, width and heads of every named decoder."""
    found = set()
    for name in presets():
        fields = vars(configured(name))
        sizes = tuple(next((fields[key] for key in keys if key in fields), 0) for keys in KEYS)
        if all(sizes):
            found.add(sizes)
    return found


def without_name(table: Path) -> list[str]:
    """Models of the table's rows that have no name."""
    named, found = shapes(), dict[str, None]()
    with table.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if re.search(NAMELESS, line["model"]) or not line["heads"]:
                continue
            sizes = tuple(int(line[key]) for key in ("layers", "hidden", "heads"))
            if sizes not in named:
                found[f"{line['model']}: {sizes[0]} layers of {sizes[1]}, {sizes[2]} heads"] = None
    return sorted(found)


if __name__ == "__main__":
    lacking = [f"scenario {at}: {name}" for at, name in SCENARIOS.items() if preset(name) is None]
    lacking += without_name(Path(sys.argv[1]))
    print("\n".join(lacking) or "every model has a name")
