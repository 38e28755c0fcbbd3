"""Published training iterations of every source: error, bias, the interval's coverage and width, memory.

    python -m validation training                                              the rows that lie beside this script
    python -m validation training --data ../shared/data/training/measured.csv [--source WORDS] [--limit N]

Every row that can be told to the program is predicted as a user would, from a model by its sizes, a plan, a system of
the catalog and operator times of the datasheet; rows that cannot are listed with what they lack.  Rows whose number is
even may shape a description of a software stack (``stacks/``), those whose number is odd judge: the two have tables of
their own, and the exit code is 1 where the bias of a source's odd rows is beyond its target.  *above* and *below* count
measurements outside the 90 % interval, on either side; *hi/lo* is the median width of that interval.

The rows of ``validation/data/published.csv`` (NeMo, torchtitan, fms-fsdp, MT-NLG, DGX Cloud's recipes, each with its
address) were looked up when all constants and stacks stood.  Those below P0100 all have odd numbers; those from P0101
on are numbered one after the other, and their even ones may shape a stack: six of 8 bits have chosen, with others, two
constants of ``sustained.json``.  Those from P0201 on are of sources that nobody had looked at, and keep what was first
predicted of them, which has a table of its own.  Their ``notes`` say what is assumed.  ``validation/data/bridge.csv``
(``--data``) has rows of NVIDIA's tables of Megatron-Bridge, likewise.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from validation import command
from validation.data.training import Row, read
from validation.judge import targets

import triosim
from triosim import Plan
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.system import System
from triosim.stacks import Stack, load
from triosim.trace.tables import Trace
from triosim.transform.packing import document_lengths, pack, packed

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published.csv"
BRIDGE = PUBLISHED.with_name("bridge.csv")
"""Rows of NVIDIA's tables of Megatron-Bridge, as they were first predicted and are now: ``--data`` takes it."""
OTHERS = 0.04
"""Largest bias of a source that has no target of its own (:mod:`validation.judge.targets`)."""
HEAD = (
    f"{'source':40} {'rows':>4} {'mean':>7} {'median':>7} {'P90':>7} {'worst':>7} {'bias':>7} {'holds':>6} "
    f"{'above':>5} {'below':>5} {'hi/lo':>5} {'memory':>7} {'CPU s':>6}"
)


@dataclass(frozen=True)
class Judged:
    """One row and its prediction.

    Attributes:
        id, source, judges, gates: as of :class:`~validation.data.training.Row`.
        measured, predicted: seconds.
        low, high: the 90 % interval, seconds.
        memory: relative error of the bytes allocated, or reserved where those are published; NaN where none are.
        cpu_s: what predicting took.
        first, part: as of :class:`~validation.data.training.Row`.
        lacks: why there is no prediction, ``""`` where there is one.
    """

    id: str
    source: str
    judges: bool
    gates: bool
    measured: float
    predicted: float = math.nan
    low: float = math.nan
    high: float = math.nan
    memory: float = math.nan
    cpu_s: float = 0.0
    first: tuple[float, ...] = ()
    part: str = ""
    lacks: str = ""

    @property
    def error(self) -> float:
        """Relative, below zero where the prediction is too fast."""
        return self.predicted / self.measured - 1


def main() -> int:
    """Print the tables; the exit code tells whether the bias of every source is within its target."""
    parser = command.parser(__doc__, "table of measured iterations (default: the published ones)", required=False)
    parser.add_argument("--source", default="", help="sources with these words in their name")
    parser.add_argument("--limit", type=int, help="predict at most so many rows of a source, chosen at random")
    parser.add_argument("--processes", type=int, default=1, help="rows that are predicted at a time")
    parser.add_argument("--no-stack", action="store_true", help="leave the software to what is assumed without a name")
    parser.add_argument("--rows", action="store_true", help="also print every row")
    options = parser.parse_args()
    stacked = not options.no_stack
    table_of_rows = command.find(options.data, "training/measured.csv") if options.data else PUBLISHED
    rows = _chosen(read(table_of_rows), options.source, options.limit)
    if not rows:
        raise InputError(f"{table_of_rows}: has no source with {options.source!r} in its name")
    judged = []
    for one in _each(rows, options.processes, stacked):
        judged.append(one)
        if options.rows and not one.lacks:
            print(f"{one.id} {one.source[:24]:24} {one.measured:9.4f} {one.predicted:9.4f} {one.error:+7.1%} "
                  f"[{one.low:.4f}, {one.high:.4f}] memory {one.memory:+.1%}", flush=True)  # fmt: skip
    command.write(options.json, [asdict(one) for one in judged])
    _listed(judged)
    if first := [replace(one, gates=False) for one in judged if one.first and not one.lacks]:
        table([as_first(one) for one in first], "as first predicted, before anything was mended in view of these rows")
        table(first, "the same rows as predicted now")
    table([one for one in judged if not one.judges], "even rows, which may shape a stack")
    failed = table([one for one in judged if one.judges], "odd rows, which judge")
    asked = targets.lines(judged)
    if asked[1:]:
        print("\nwhat was asked, of the mean error\n" + "\n".join(asked))
    return 1 if failed else 0


def _each(rows: Sequence[Row], processes: int, stacked: bool) -> Iterator[Judged]:
    """The rows as they are judged, in order."""
    one = functools.partial(judge, stacked=stacked)
    if processes == 1:
        yield from map(one, rows)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, rows, chunksize=4)


def _chosen(rows: Sequence[Row], words: str, limit: int | None) -> list[Row]:
    found = [row for row in rows if words.lower() in row.source.lower()]
    if limit is None:
        return found
    order = np.random.default_rng(2026).permutation(len(found))
    kept: list[int] = []
    taken: Counter[str] = Counter()
    for at in order.tolist():
        told = not found[at].lacks
        if not told or taken[found[at].source] < limit:
            taken[found[at].source] += told
            kept.append(at)
    return [found[at] for at in sorted(kept)]


def judge(row: Row, stacked: bool = True) -> Judged:
    """Predict a row, with or without its stack."""
    first = Judged(
        row.id, row.source, row.judges, row.gates, row.seconds, first=row.first, part=row.part, lacks=row.lacks
    )  # fmt: skip
    if row.lacks:
        return first
    began = time.process_time()
    try:
        result = predict(row, stacked)
        low, high = result.interval_s
    except InputError as error:
        return Judged(**{**asdict(first), "lacks": str(error)})
    held = result.memory.reserved_bytes if row.reserved else result.memory.allocated_bytes
    memory = math.nan if row.memory_bytes is None else held / row.memory_bytes - 1
    spent = time.process_time() - began
    return Judged(
        **{
            **asdict(first), "predicted": result.iteration_time_s, "low": low, "high": high, "memory": memory,
            "cpu_s": spent,
        }
    )  # fmt: skip


def predict(row: Row, stacked: bool = True) -> Any:
    """The :class:`triosim.prediction.result.Result` of a row, with or without its stack."""
    stack = replace(load(row.stack), **row.facts) if stacked else None
    plan = Plan(**row.plan) if stack is None else Plan(**row.plan, stack=stack)
    trace, machine = workload(row, stack), system(**row.system)
    least = ("none", "pointwise", "operators", "full") if "recompute" in row.assumed else (plan.recompute,)
    for recompute in least:
        result = triosim.simulate(trace, machine, plan.replaced(recompute=recompute), fit=False)
        if result.memory.fits is not False:
            break
    return result


def workload(row: Row, stack: Stack | None) -> Trace:
    """The step of a row on one device, with the operators that its software runs; those assumed without one."""
    options: dict[str, Any] = {}
    if stack is not None:
        softmax = stack.fused_softmax and row.configuration.get("fused_softmax", True)
        options = {**stack.model_options, "fused_softmax": softmax}
    step = triosim.model(
        row.family, batch_size=1, sequence_length=None if row.image else row.sequence, image_size=row.image or None,
        precision=row.precision, optimizer=row.optimizer, configuration=row.configuration or None, lora=row.lora,
        **options,
    )  # fmt: skip
    if not row.documents:
        return step
    return packed(step, pack(document_lengths(row.documents, row.sequence), row.sequence))


@functools.lru_cache(maxsize=64)
def _ready(
    like: str, devices: int, model: str, fabric: tuple[str, int] | None, count: int, slice: tuple[int, ...]
) -> System:
    """A system of the catalog with another device, fewer of them in a server, another network between servers, or
    slices of another shape with as many NICs a chip."""
    text = catalog.system_file(like).read_text(encoding="utf-8")
    if model:
        text = re.sub(r'(?m)^model = ".*"$', f'model = "{model}"', text, count=1)
    if count:
        text = re.sub(r"(?m)^(count|nics) = \d+$", rf"\1 = {count}", text)
        text = re.sub(r"(?m)^shape = .*$", f"shape = [1, 1, {count}]", text)  # of PCIe: one switch
    if slice:
        of = [int(re.search(rf"(?m)^{name} = (\d+)$", text)[1]) for name in ("count", "nics")]  # type: ignore[index]
        for name, size in (("count", math.prod(slice)), ("nics", math.prod(slice) * of[1] // of[0])):
            text = re.sub(rf"(?m)^{name} = \d+$", f"{name} = {size}", text)
        text = re.sub(r"(?m)^shape = .*$", f"shape = {list(slice)}", text)
    if fabric:
        scale_out = f'[scale_out]\ntopology = "switch"\nlink = "{fabric[0]}"\nnics = {fabric[1]}\n'
        text = re.sub(r"(?s)\[scale_out\].*", scale_out, text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{like}.toml"
        path.write_text(text, encoding="utf-8")
        return triosim.system(path, at_least=devices)


def system(
    like: str = "",
    devices: int = 1,
    model: str = "",
    fabric: tuple[str, int] | None = None,
    count: int = 0,
    slice: tuple[int, ...] = (),
    clock_hz: float | None = None,
    **options: Any,
) -> System:
    """The machine of a row, its clock held where one is given; see :class:`~validation.data.training.Row`."""
    options.pop("per_node", None)
    ready = _ready(like, devices, model, fabric, count, slice) if like else None
    found = ready or triosim.system(devices=devices, **options)
    if clock_hz is None:
        return found
    return replace(found, models=tuple(replace(device, clock_limit_hz=clock_hz) for device in found.models))


def as_first(one: Judged) -> Judged:
    """A row with the prediction that was made when it was found."""
    predicted, low, high = one.first
    return replace(one, predicted=predicted, low=low, high=high, memory=math.nan)


def _listed(judged: Sequence[Judged]) -> None:
    """Rows without a prediction, by source and what they lack."""
    found = Counter((one.source, one.lacks) for one in judged if one.lacks)
    for (source, why), count in sorted(found.items()):
        print(f"not told: {count:3} of {source}: {why}")


def table(judged: Sequence[Judged], title: str) -> list[str]:
    """Print a line per source, and all together; the sources whose bias is beyond their target.

    Args:
        judged: rows; those without a prediction are passed over.
        title: what rows these are.
    """
    print(f"\n{title}\n{HEAD}")
    failed = []
    told = [one for one in judged if not one.lacks]
    for source in sorted({one.source for one in told}):
        own = [one for one in told if one.source == source]
        asked, target = targets.gated(source, own)
        target = OTHERS if target is None else target
        gates = [one.error for one in asked if one.gates]
        beyond = bool(gates) and abs(float(np.mean(gates))) > target
        failed += [source] * beyond
        mark = f"  bias beyond {target:.0%}" if beyond else ("  gates nothing" if not gates else "")
        print(line(own, source) + mark)
    if told:
        print(line(told, "all"))
    return failed


def line(own: Sequence[Judged], title: str) -> str:
    """The figures of some rows."""
    error = np.array([one.error for one in own])
    size = np.abs(error)
    above = sum(one.measured > one.high for one in own)
    below = sum(one.measured < one.low for one in own)
    memory = [abs(one.memory) for one in own if not math.isnan(one.memory)]
    held = f"{np.mean(memory):7.1%}" if memory else f"{'-':>7}"
    return (
        f"{title[:40]:40} {len(own):4} {size.mean():7.1%} {np.median(size):7.1%} {np.quantile(size, 0.9):7.1%} "
        f"{size.max():7.1%} {error.mean():+7.1%} {1 - (above + below) / len(own):6.0%} {above:5} {below:5} "
        f"{np.median([one.high / one.low for one in own]):5.2f} {held} {sum(one.cpu_s for one in own):6.1f}"
    )


if __name__ == "__main__":
    command.run(main)
