"""Published measurements of serving that shaped no constant: throughput, TTFT and TPOT under three engines.

    python -m validation.judge.served [--source WORDS] [--rows] [--intervals] [--json OUT]

The rows lie in ``validation/data/served.csv``, addresses and assumptions in ``validation/data/served.py``.  Each is
predicted as ``triosim serve`` would with the options of its engine.  Rows of odd number judge; even ones may shape.
Where requests arrive at a rate that is too much for what is predicted, only throughput counts.
Below stands what rows that hold it were first predicted, and with ``--intervals`` how many measurements their 90 %
intervals cover now, which takes eight times as long.
"""

from __future__ import annotations

import numpy as np
from validation import command
from validation.data import trtllm_bench
from validation.data.served import BENCH_SOURCES, MEASURED, SOURCES, ServedRow, read

import triosim
from triosim.core.errors import InputError
from triosim.serving.deployment import Deployment, serve
from triosim.serving.model import served_model
from triosim.serving.pool import Pool
from triosim.serving.requests import RequestTable
from triosim.serving.traffic import traffic

ASYNC_SINCE = (0, 14)
"""Version from which on vLLM schedules a step while another runs unless it is told not to."""
NOT_ENGINE = ("utilisation", "front", "link", "ep")
"""Options of a row that are the pool's and the machine's."""
VERSION_1_SINCE = (0, 8)
"""Version from which on its version 1 runs unless it is told not to; before, the engine that had no such name."""
RUNNER_2_SINCE = (0, 25)
"""Version from which on its second model runner runs dense models (vLLM's pull request 44443; its release notes)."""


def main() -> int:
    """Print a line for each row that is asked for, then one for each source."""
    parser = command.parser(__doc__)
    parser.add_argument("--source", default="", metavar="WORDS", help="only sources whose name has these words")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--intervals", action="store_true", help="also find 90 %% intervals of rows with a first one")
    options = parser.parse_args()
    found: list[tuple[ServedRow, dict[str, float]]] = []
    within: list[tuple[str, bool]] = []
    for row in read():
        if options.source.lower() not in row.source.lower():
            continue
        try:
            values = predicted(row, interval=options.intervals and bool(row.first))
            off = {name: value / row.measured[name] - 1 for name, (value, _, _) in values.items()}
        except InputError as error:
            print(f"{row.number:4} {row.source}: {error}", flush=True)
            continue
        found.append((row, off))
        if options.intervals and row.first:
            within += [(name, low <= row.measured[name] <= high) for name, (_, low, high) in values.items()]
        if options.rows:
            print(_line(row, off), flush=True)
    figures: dict[str, dict[str, float]] = {}
    print(f"\n{'source':28}" + "".join(f"{name:>24}" for name in MEASURED))
    print(" " * 28 + f"{HEAD:>24}" * len(MEASURED))
    for name in [*SOURCES, "all odd", "all"]:
        own = [(row, _judged(row, off)) for row, off in found if name.startswith("all") or row.source == name]
        own = [(row, off) for row, off in own if name != "all odd" or row.number % 2]
        if own:
            figures[name] = _summary([off for _, off in own])
            print(f"{name:28}" + "".join(_cell([off[m] for _, off in own if m in off]) for m in MEASURED))
    _print_behind("", found)
    _print_first([row for row, _ in found if row.first])
    if within:
        _print_within("now", within)
    rows = [{"number": row.number, "source": row.source} | off for row, off in found]
    command.write(options.json, {"rows": rows, "sources": figures})
    return 0


HEAD = "rows  mean  bias worst"


BEHIND = 5.0
"""How many times the measured time the predicted mean time to the first token may be where requests arrive at a rate:
beyond, the replicas fall behind what arrives, and the times only say how long the run was."""


def fallen_behind(row: ServedRow, off: dict[str, float]) -> bool:
    """Whether a row's arrivals are more than what is predicted to serve them."""
    return row.arrivals.startswith("poisson") and off.get("ttft_ms", 0.0) > BEHIND - 1


def _judged(row: ServedRow, off: dict[str, float]) -> dict[str, float]:
    """Errors of a row that say something."""
    return {name: value for name, value in off.items() if name == "rate" or not fallen_behind(row, off)}


def version_of(row: ServedRow) -> tuple[int, ...]:
    """Of vLLM, its first two numbers."""
    return tuple(map(int, row.version.split(".")[:2]))


def engine_of(row: ServedRow) -> str:
    """The name of its engine here."""
    return "vllm-v0" if row.engine == "vllm" and version_of(row) < VERSION_1_SINCE else row.engine


def predicted(row: ServedRow, interval: bool = False) -> dict[str, tuple[float, float, float]]:
    """What is measured of a row, in its units, with the ends of its 90 % interval, which are the same unless asked for.

    Raises:
        InputError: it cannot be served like that.
    """
    total = row.devices * row.ranks * row.stages * row.replicas
    machine = triosim.system(device=row.device, devices=total, link=row.options.get("link"))
    engine = {name: value for name, value in row.options.items() if name not in NOT_ENGINE}
    if row.engine == "vllm":
        version = version_of(row)
        if VERSION_1_SINCE <= version < ASYNC_SINCE:
            engine["async-scheduling"] = "off"
        if version >= RUNNER_2_SINCE and served_model(row.model).experts is None:
            engine["model-runner"] = "2"
    share, front = row.options.get("utilisation"), row.options.get("front")
    if row.source in BENCH_SOURCES:
        most, tokens = trtllm_bench.limits(
            served_model(row.model), row.weights, row.kv, float(machine.models[0].memory_bytes or 0), total,
            int(row.prompt), int(row.output), float(share or 0.9),
        )  # fmt: skip
        engine |= {"max-running": str(most), "max-tokens": str(tokens)}
        if row.version == "1.2":
            engine["graph-sizes"] = trtllm_bench.GRAPH_SIZES
    pool = Pool(
        row.model, machine, engine=engine_of(row), engine_options=engine, tensor_parallel=row.devices,
        attention_ranks=row.ranks, stages=row.stages, replicas=row.replicas, weights=row.weights, kv_cache=row.kv,
        utilisation=None if share is None else float(share), front_s=None if front is None else float(front),
        expert_ranks=int(row.options.get("ep", 1)),
    )  # fmt: skip
    result = serve(Deployment((pool,)), _requests(row), interval=interval)
    named = result.metrics.named()
    which = "p50" if row.statistic == "median" else "mean"
    figures = {
        "ttft_ms": (f"ttft.{which}", 1e3), "tpot_ms": (f"tpot.{which}", 1e3), "itl_ms": (f"itl.{which}", 1e3),
        "ttft_p99_ms": ("ttft.p99", 1e3), "tpot_p99_ms": ("tpot.p99", 1e3),
        "latency_s": ("duration", 1.0), "rate": ("output_tokens_per_s", 1.0),
    }  # fmt: skip
    out: dict[str, tuple[float, float, float]] = {}
    for name in row.measured:
        figure, unit = figures[name]
        low, high = result.intervals.get(figure, (named[figure], named[figure]))
        out[name] = named[figure] * unit, low * unit, high * unit
    return out


def _print_first(rows: list[ServedRow]) -> None:
    """What rows were first predicted, and what their intervals covered."""
    for label, kept in (("first predictions", rows), ("odd ones of them", [row for row in rows if row.number % 2])):
        if kept:
            offs = [(row, {m: first[0] / row.measured[m] - 1 for m, first in row.first.items()}) for row in kept]
            own = [_judged(row, off) for row, off in offs]
            print(f"{label:28}" + "".join(_cell([off[m] for off in own if m in off]) for m in MEASURED))
            _print_behind(" at first", offs)
    if rows:
        every = [(row, name, ends) for row in rows for name, ends in row.first.items()]
        held = [(name, low <= row.measured[name] <= high) for row, name, (_, low, high) in every if low == low]
        if held:
            _print_within("first", held)


def _print_behind(when: str, found: list[tuple[ServedRow, dict[str, float]]]) -> None:
    arriving = [fallen_behind(row, off) for row, off in found if row.arrivals.startswith("poisson")]
    if any(arriving):
        print(f"{sum(arriving)} of {len(arriving)} rows of arrivals at a rate fall behind them{when}: times left out")


def _print_within(when: str, within: list[tuple[str, bool]]) -> None:
    each = {name: [inside for other, inside in within if other == name] for name in MEASURED}
    parts = ", ".join(f"{name} {np.mean(own):.0%}" for name, own in each.items() if own)
    print(f"90 % intervals, {when}, cover {np.mean([inside for _, inside in within]):.0%}: {parts}")


def _requests(row: ServedRow) -> RequestTable:
    lengths = ";".join(
        f"{side}={'' if ':' in tokens else 'uniform:' if '-' in tokens else 'fixed:'}{tokens}"
        for side, tokens in (("prompt", row.prompt), ("output", row.output))
    )
    return traffic(row.arrivals, lengths, row.requests)


def _line(row: ServedRow, off: dict[str, float]) -> str:
    what = (
        f"{row.number:4} {row.source[:18]:18} {row.model} {row.weights}, {row.devices * row.ranks} x {row.device[:6]}"
        f"{', apart' if row.ranks > 1 else ''}, {row.engine}, {row.arrivals}, {row.prompt}/{row.output}"
    )
    return f"{what:104}" + "".join(f" {name.split('_')[0]} {100 * value:+6.1f}%" for name, value in off.items())


def _summary(offs: list[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in MEASURED:
        own = [off[name] for off in offs if name in off]
        if own:
            found |= {name: float(np.abs(own).mean()), f"{name} bias": float(np.mean(own)), f"{name} rows": len(own)}
    return found


def _cell(off: list[float]) -> str:
    if not off:
        return " " * 24
    worst = max(off, key=abs)
    cell = f"{len(off)} {100 * np.abs(off).mean():5.1f} {100 * np.mean(off):+5.1f} {100 * worst:+5.0f}"
    return f"{cell:>24}"


if __name__ == "__main__":
    command.run(main)
