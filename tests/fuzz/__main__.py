"""Odd input, as much as wanted, for readers, plans, the command line and the engines.

    python -m tests.fuzz NAME|all --runs N [--seed S] [--resume FILE]   runs so many more cases
    python -m tests.fuzz NAME --case NUMBER [--seed S]                  runs one and shows how it ends
    python -m tests.fuzz all --resume FILE --table [--add FILE]         prints what became of them (and of other runs)
    python -m tests.fuzz sizes                                          what large jobs take, or how they are refused

A finding is anything but a result or a sentence: another exception, more than 10 s of computing, more than 1 GiB, a
process that ends.  Every case follows from the name, the seed and its number.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.cases import names, replay
from tests.fuzz.runner import State, batch, warm

BATCH = 2000
SLOW = {
    "plans": 10, "commands": 20, "model": 2, "stored": 4, "kineto": 4, "execution-trace": 4, "triosim-csv": 4,
    "chakra": 4, "astra-network": 4, "astra-groups": 4, "astra-system": 4, "astra-memory": 4, "engines": 4, "system": 4,
    "device": 4, "routes": 2, "iterations": 10,
}  # fmt: skip
"""What takes longer has so many times fewer of ``all``."""


def main(words: list[str] | None = None) -> int:
    """Returns how many findings are known, at most 1."""
    known = names()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    every = ["all", "sizes", *known]
    parser.add_argument("name", choices=every, metavar="NAME", help=", ".join(every))
    parser.add_argument("--runs", type=int, default=0, help="cases, beside those that were run before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="file of what is known; written after each batch")
    parser.add_argument("--case", type=int, help="run this one here")
    parser.add_argument("--table", action="store_true", help="print what became of all")
    parser.add_argument(
        "--add", type=Path, action="append", default=[], help="count the runs of this file in the table"
    )
    given = parser.parse_args(words)
    if given.name == "sizes":
        from tests.fuzz.sizes import rows

        for row in rows():
            print(row, flush=True)
        return 0
    if given.case is not None:
        replay(given.name, given.seed, given.case)
        return 0
    state = State(seed=given.seed)
    if given.resume is not None and given.resume.exists():
        state = State.load(given.resume)
    chosen = known if given.name == "all" else [given.name]
    if given.runs:
        warm(chosen)
    _run(state, chosen, given.runs, given.resume)
    if given.table:
        print(table(state, *(State.load(path) for path in given.add)))
    for key, found in state.findings.items():
        print(f"finding: {key}: {found['error']} (case {found['case']}, {found['times']} times)", file=sys.stderr)
    return min(len(state.findings), 1)


def _run(state: State, chosen: list[str], runs: int, path: Path | None) -> None:
    shares = {name: 1 / SLOW.get(name, 1) for name in chosen}
    goal = {name: state.next.get(name, 0) + round(runs * shares[name] / sum(shares.values())) for name in chosen}
    began, before = time.monotonic(), state.total()
    while left := [name for name in chosen if state.next.get(name, 0) < goal[name]]:
        for name in left:
            first = state.next.get(name, 0)
            size = max(round(BATCH * shares[name]), 1)
            batch(name, state.seed, range(first, min(first + size, goal[name])), _note(state, name))
            if path is not None:
                state.save(path)
            done = state.total() - before
            rate = done / max(time.monotonic() - began, 1e-9)
            line = f"{done:,} of {runs:,} cases, {rate:,.0f}/s, {len(state.findings)} findings; {name}"
            print(f"\r{line:<78}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip
    if sys.stderr.isatty():
        print(file=sys.stderr)


def _note(state: State, name: str):  # type: ignore[no-untyped-def]
    return lambda number, outcome: state.add(name, number, outcome)


def table(*states: State) -> str:
    """Cases of each reader by kind of damage, as Markdown: how many, and how many of them were refused."""
    counts: dict[str, dict[str, list[int]]] = {}
    for state in states:
        for name, kinds_of in state.counts.items():
            for kind, row in kinds_of.items():
                known = counts.setdefault(name, {}).setdefault(kind, [0, 0, 0])
                known[:] = [a + b for a, b in zip(known, row, strict=True)]
    kinds = sorted({kind for row in counts.values() for kind in row} - {"any"})
    seeds = ", ".join(str(state.seed) for state in states)
    found = sum(len(state.findings) for state in states)
    lines = [
        f"{sum(state.total() for state in states):,} cases with seed{'s' if len(states) > 1 else ''} {seeds}; {found} "
        "findings.  Each cell: cases / refused.",
        "",
        "| given to | " + " | ".join(kinds) + " | all |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for name, row in counts.items():
        cells = [f"{sum(row[kind]):,} / {row[kind][1]:,}" if kind in row else "" for kind in kinds]
        lines.append(f"| {name} | {' | '.join(cells)} | {sum(map(sum, row.values())):,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
