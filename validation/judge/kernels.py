"""Judges operator models on measured kernels, each GPU in turn by models that never saw it.

    python -m validation.judge.kernels --data FILE [--model M ...] [--hold-out GPU ...] [--json OUT]

FILE has the columns of one of ``../shared/data/kernels`` (:mod:`validation.data.kernel_rows`); its GPUs may be others
than those there.  For every class of kernels and every GPU, the models side by side:

* ``roofline``, ``li``: their constants are fitted anew without the GPU that is judged;
* ``habitat``: times of the most similar other GPU that measured the same kernel, carried over by waves of blocks;
* ``table``: interpolation between the other kernels of the *same* GPU, a fifth of the shapes left out in turn: not a
  prediction for an unseen GPU, but what the measurements themselves support;
* ``physical``: constants fitted anew without the GPU (:mod:`validation.judge.physical`).

Fits learn from ``../shared/data/kernels``, or from FILE where that is not there.  Intervals too: their width is the
90 % quantile of errors on GPUs that were left out in turn of those that are left.  Printed are the kernels, the mean
(MAPE) and median of |predicted - measured| / measured, the bias (median of predicted / measured - 1), how many
measurements the 90 % interval covers, and the median factor between its middle and its ends.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation import command
from validation.data import kernel_rows
from validation.data.kernel_rows import Rows
from validation.data.kernels import ABOVE_HOST, Sample
from validation.fit import habitat as fit_habitat
from validation.fit import li as fit_li
from validation.fit import roofline as fit_roofline
from validation.fit.roofline import even, quantile

from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels import anchoring
from triosim.kernels.models.table import grid

Prediction = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Seconds and spread (natural logarithm of the interval's factor) of every row; NaN where the model has none."""

ABOVE = ", above the host"
FOLDS = 5
"""Parts of the shapes of one device, one left out at a time."""

WORK = {
    "gemm/bfloat16": "matrix/tensor", "gemm/float16": "matrix/tensor", "gemm/": "matrix/narrow",
    "attention_prefill/": "attention/tensor", "attention_decode/": "attention/tensor", "bmm": "matrix/simt",
    "linear": "matrix/simt", "conv": "convolution/simt", "softmax": "rowwise", "ln": "rowwise",
    "elementwise": "elementwise",
}  # fmt: skip
"""Beginnings of labels, the first that fits -> class of the roofline's pack."""

LEARNED: dict[str, dict[str, tuple[str, ...]]] = {
    "matrix/tensor": {"gemm": ("gemm/bfloat16",)},
    "matrix/narrow": {"gemm": ("gemm/fp8", "gemm/nvfp4")},
    "matrix/simt": {"fp32_ops": ("bmm", "linear")},
    "convolution/simt": {"fp32_ops": ("conv",)},
    "attention/tensor": {
        "attention_prefill": ("attention_prefill/flash_attention/bfloat16/bfloat16",),
        "attention_decode": (
            "attention_decode/flash_attention/bfloat16/bfloat16", "attention_decode/trtllm_mha/bfloat16/bfloat16",
        ),
    },
    "rowwise": {"fp32_ops": ("softmax", "ln")},
    "elementwise": {"fp32_ops": ("elementwise",)},
}  # fmt: skip
"""Class -> labels by layout that its constants are fitted to."""


@dataclass(frozen=True)
class Score:
    """How one model does on the kernels of one class on one GPU; fractions, ``width`` a factor."""

    label: str
    device: str
    model: str
    rows: int
    mape: float
    median: float
    bias: float
    coverage: float
    width: float


def score(rows: Rows, label: str, device: str, model: str, found: Prediction) -> Score:
    """Compare predictions with what was measured, where there is a prediction."""
    seconds, spread = found
    at = np.isfinite(seconds) & np.isfinite(spread)
    if not at.any():
        return Score(label, device, model, 0, *[math.nan] * 5)
    ratio = seconds[at] / rows.seconds[at]
    error = np.abs(ratio - 1)
    inside = np.abs(np.log(ratio)) <= spread[at]
    return Score(
        label, device, model, int(at.sum()), float(error.mean()), float(np.median(error)), float(np.median(ratio)) - 1,
        float(inside.mean()), float(np.exp(np.median(spread[at]))),
    )  # fmt: skip


@lru_cache(maxsize=8)
def learning(layout: str) -> Rows | None:
    """The public measurements of a layout, None where they are not there."""
    path = kernel_rows.shipped(layout)
    return kernel_rows.read(path, {})[0] if path.exists() else None


def work_of(label: str) -> str:
    """Class of the roofline's pack that prices the kernels of a label."""
    if label.startswith("moe/"):
        return "matrix/tensor" if label.endswith(("bfloat16", "_wo", "w4a16_mxfp4")) else "matrix/narrow"
    return next(work for beginning, work in WORK.items() if label.startswith(beginning))


@lru_cache(maxsize=32)
def sample_of(work: str) -> Sample | None:
    """What a class's constants are fitted to, evenly over the decades of time and over the devices."""
    parts = []
    for layout, labels in LEARNED[work].items():
        rows = learning(layout)
        if rows is not None:
            at = np.flatnonzero(np.char.startswith(rows.label[:, None], np.array(labels)[None, :]).any(1))
            parts.append(even(rows.take(at).sample()))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else fit_roofline.kernel_data.join_samples(*parts)


Fitted = Callable[[Sample], NDArray[np.float64]]


def _roofline(sample: Sample, work: str) -> Fitted:
    overlaps = (1.0,) if work in ("rowwise", "elementwise") else fit_roofline.OVERLAPS
    trials = [fit_roofline.fit(sample, fit_roofline.Form(), overlap) for overlap in overlaps]
    errors = [float(np.mean(np.abs(np.log(sample.seconds / one.measured(sample))))) for one in trials]
    return trials[int(np.argmin(errors))].measured


def _li(sample: Sample, work: str) -> Fitted:
    engine = work.partition("/")[2] or "simt"
    line = fit_li.fit(sample, engine)
    return lambda rows: line.measured(rows, engine)


def fitted(fit: Callable[[Sample, str], Fitted]) -> Callable[[Rows, str, Rows], Prediction]:
    """A model with few constants per class, judged on a GPU that was not there when they were fitted."""

    @lru_cache(maxsize=64)
    def without(work: str, devices: tuple[str, ...]) -> Fitted:
        sample = sample_of(work)
        assert sample is not None
        return fit(sample.take(np.flatnonzero(~np.isin(sample.device, devices))), work)

    @lru_cache(maxsize=64)
    def spread(work: str, device: str) -> float:
        sample = sample_of(work)
        assert sample is not None
        others = [str(d) for d in np.unique(sample.device) if d != device]
        errors = []
        for other in others:
            rows = sample.take(np.flatnonzero(sample.device == other))
            left = (device, other) if len(others) > 1 else (device,)
            errors.append(np.log(rows.seconds / without(work, left)(rows)))
        seen = {_family(other) for other in others}
        if _family(device) in seen:
            return quantile(np.concatenate(errors))
        return max(quantile(e) for e in errors)

    def predict(rows: Rows, device: str, everything: Rows) -> Prediction:
        out = np.full(len(rows), np.nan)
        work = work_of(str(rows.label[0]))
        sample = sample_of(work)
        if sample is None or not (sample.device != device).any():
            return out, out
        return without(work, (device,))(rows.sample()), np.full(len(rows), spread(work, device))

    return predict


def _family(device: str) -> str:
    return catalog.accelerator(device).architecture.split(" ")[0]


def habitat(rows: Rows, device: str, everything: Rows) -> Prediction:
    """Times of the most similar other GPU with the same kernels, carried over."""
    label, out = str(rows.label[0]), np.full(len(rows), np.nan)
    public = learning(rows.layout)
    others = everything if public is None else public
    others = others.take(np.flatnonzero((others.label == label) & (others.device != device)))
    found = np.unique(others.device)
    if not found.size:
        return out, out
    errors = fit_habitat.errors(others)
    source = min(found.tolist(), key=lambda other: _distance(other, device))
    at, seconds = fit_habitat.carried(others.take(np.flatnonzero(others.device == source)), rows)
    out[at] = seconds
    spread = quantile(errors) if errors.size else _shipped_spread(label)
    return out, np.full(len(rows), spread)


def _shipped_spread(label: str) -> float:
    """Of the constants that come with the program; with one other GPU there are no pairs without the judged one."""
    from triosim.kernels.models.habitat import load

    spreads = load()["spread"]
    groups = (group for group, labels in fit_habitat.GROUPS.items() if label.startswith(labels))
    return float(spreads[next(groups, "other")])


def _distance(a: str, b: str) -> float:
    """How different two GPUs are: logarithms of the ratios of bandwidth, units and clock."""
    one, other = catalog.accelerator(a), catalog.accelerator(b)
    pairs = [(getattr(one, n), getattr(other, n)) for n in ("memory_bandwidth", "compute_units", "clock_hz")]
    return float(sum(abs(math.log(x / y)) for x, y in pairs if x and y))


def table_of_kernels(rows: Rows, device: str, everything: Rows) -> Prediction:
    """Interpolation between kernels of the same device; a fifth of the shapes is left out in turn."""
    _, shape = np.unique(rows.shape, axis=0, return_inverse=True)
    part = np.random.default_rng(0).permutation(int(shape.max()) + 1)[shape.ravel()] % FOLDS
    sort = rows.shape[:, 0] if rows.layout == "fp32_ops" else np.zeros(len(rows))  # each operator has its own table
    columns = np.maximum(rows.shape, 0.5)  # no window, no batch
    columns = columns[:, np.ptp(columns, axis=0) > 0]
    seconds, spread = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for one in np.unique(sort):
        for fold in range(FOLDS):
            known, asked = (np.flatnonzero((sort == one) & side) for side in (part != fold, part == fold))
            if known.size and asked.size:
                found = grid(columns[known], rows.seconds[known]).at(np.log(columns[asked]))
                seconds[asked], spread[asked] = found
    return seconds, np.hypot(spread, anchoring.load().recorded_spread)


def physical(rows: Rows, device: str, everything: Rows) -> Prediction:
    """See :mod:`validation.judge.physical`."""
    from validation.judge import physical as judged_physical

    return judged_physical.predict(rows, device, everything)


MODELS: dict[str, Callable[[Rows, str, Rows], Prediction]] = {
    "roofline": fitted(_roofline), "li": fitted(_li), "habitat": habitat, "table": table_of_kernels,
    "physical": physical,
}  # fmt: skip


def judge(rows: Rows, models: list[str], devices: list[str]) -> list[Score]:
    """Every class of ``rows`` on every device by every model."""
    scores = []
    for label in np.unique(rows.label).tolist():
        for device in devices:
            at = np.flatnonzero((rows.label == label) & (rows.device == device))
            if at.size:
                part = rows.take(at)
                found = {model: MODELS[model](part, device, rows) for model in models}
                for name, kept in _subsets(part).items():
                    chosen = part.take(kept)
                    scores += [
                        score(chosen, label + name, device, m, (s[kept], w[kept])) for m, (s, w) in found.items()
                    ]
    return sorted(scores, key=lambda one: one.label)


def _subsets(rows: Rows) -> dict[str, NDArray[np.int64]]:
    """All rows; of isolated operators also those that take twice as long as the shortest of their kind and more.

    The shorter ones measure the host that issues them.
    """
    every = {"": np.arange(len(rows))}
    if rows.layout != "fp32_ops":
        return every
    kept = np.zeros(len(rows), bool)
    for kind in np.unique(rows.shape[:, 0]):
        at = rows.shape[:, 0] == kind
        kept[at] = rows.seconds[at] > ABOVE_HOST * np.quantile(rows.seconds[at], 0.01)
    return {**every, ABOVE: np.flatnonzero(kept)}


def table(scores: list[Score]) -> str:
    """The scores, and for every class and model the mean over its GPUs."""
    lines = [
        f"{'class':51s}{'GPU':18s}{'model':10s}{'rows':>7s}{'MAPE %':>8s}{'median':>8s}{'bias':>8s}{'cover':>7s}"
        f"{'width':>7s}"
    ]
    for label in dict.fromkeys(one.label for one in scores):
        mine = [one for one in scores if one.label == label]
        models = dict.fromkeys(one.model for one in mine)
        means = [mean(label, [one for one in mine if one.model == m and one.rows]) for m in models]
        many = len({one.device for one in mine}) > 1
        lines += [_line(one) for one in mine] + ([_line(one) for one in means if one] if many else [])
    return "\n".join(lines)


def mean(label: str, scores: list[Score]) -> Score | None:
    """Mean over GPUs, each counting the same."""
    if not scores:
        return None
    numbers = np.array([(s.mape, s.median, s.bias, s.coverage, s.width) for s in scores]).mean(0).tolist()
    return Score(label, f"mean of {len(scores)}", scores[0].model, sum(s.rows for s in scores), *numbers)


def _line(one: Score) -> str:
    head = f"{one.label:51s}{one.device:18s}{one.model:10s}{one.rows:7d}"
    if not one.rows:
        return head + "   nothing to predict from"
    return (
        f"{head}{100 * one.mape:8.1f}{100 * one.median:8.1f}{100 * one.bias:8.1f}{100 * one.coverage:7.1f}"
        f"{one.width:7.2f}"
    )


def document(path: Path, rows: Rows, dropped: dict[str, int], scores: list[Score]) -> dict[str, Any]:
    """Everything that is printed, for other programs; null where a model had nothing to predict from."""

    def plain(one: Score) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(one).items()}

    return {
        "schema": "triosim/kernel-accuracy/1",
        "file": path.name,
        "kernels": len(rows),
        "dropped": dropped,
        "scores": [plain(one) for one in scores],
    }


def _names(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        given, _, name = pair.partition("=")
        if not name:
            raise InputError(f"--as {pair!r}: write NAME-IN-FILE=NAME-IN-CATALOG")
        found[given] = catalog.accelerator(name).name
    return found


def run(arguments: argparse.Namespace) -> list[Score]:
    """Read, judge and print.

    Raises:
        InputError: the file, a model or a GPU is not what it should be.
    """
    unknown = [m for m in arguments.model if m not in MODELS]
    if unknown:
        raise InputError(f"--model {unknown[0]!r}: there are {', '.join(MODELS)}")
    if arguments.data.is_dir():
        tables = sorted(p.name for p in arguments.data.glob("*") if p.suffix in (".parquet", ".csv"))
        raise InputError(
            f"{arguments.data}: is a folder: name one of its tables{': ' * bool(tables)}{', '.join(tables)}"
        )
    rows, dropped = kernel_rows.read(arguments.data, _names(arguments.named))
    print(f"{arguments.data.name}: {len(rows)} kernels")
    for reason, count in dropped.items():
        print(f"  {count} rows dropped: {reason}")
    present = np.unique(rows.device).tolist()
    devices = [catalog.accelerator(name).name for name in arguments.hold_out] or present
    absent = [name for name in devices if name not in present]
    if absent:
        raise InputError(f"--hold-out {absent[0]}: the file has {', '.join(present) or 'no GPU of the catalog'}")
    scores = judge(rows, arguments.model or list(MODELS), devices)
    print(table(scores))
    if arguments.json:
        text = json.dumps(document(arguments.data, rows, dropped, scores), indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return scores


def main() -> None:
    """See the module's docstring."""
    parser = command.parser(__doc__, "measured kernels, Parquet or CSV")
    parser.add_argument("--model", action="append", default=[], help=f"{', '.join(MODELS)}; repeatable (all)")
    parser.add_argument("--hold-out", action="append", default=[], help="GPU to judge; repeatable (each in turn)")
    parser.add_argument("--as", action="append", default=[], dest="named", help="NAME-IN-FILE=NAME-IN-CATALOG")
    run(parser.parse_args())


if __name__ == "__main__":
    command.run(main)
