"""What came out of a run: latencies, throughput, how full the cache was, which goals were met.

TTFT is arrival to first token.  TPOT is (end - first token) / (output - 1), over requests of two output tokens or more;
Vidur divides by all output tokens.  Queueing is arrival to first step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.units import PICOSECONDS_PER_SECOND, parse_latency
from triosim.serving.fleet import FleetRun
from triosim.serving.quantiles import Samples
from triosim.serving.request_sketch import MOST_ROWS, RequestSketch
from triosim.serving.requests import RequestTable

QUANTILES = (0.5, 0.9, 0.95, 0.99)
TPOT = ("standard", "vidur")
"""What a request's TPOT is divided by: output tokens but the first, or all of them."""


@dataclass(frozen=True)
class Distribution:
    """Of one quantity over requests or tokens, in seconds.

    Attributes:
        count: samples.
        mean, least, most: of them; not numbers where there is none.
        quantiles: at each of :data:`QUANTILES`.
        exact: whether the quantiles are of all samples, not from a sketch of relative error 0.001.
    """

    count: int
    mean: float
    least: float
    most: float
    quantiles: tuple[float, ...]
    exact: bool = True

    @staticmethod
    def of(values: NDArray[np.float64]) -> Distribution:
        """Of an array, exactly; it is in another order afterwards, for millions are not copied."""
        if not len(values):
            return Distribution(0, nan, nan, nan, (nan,) * len(QUANTILES))
        mean, least, most = float(values.mean()), float(values.min()), float(values.max())
        at = np.quantile(values, QUANTILES, overwrite_input=True).tolist()
        return Distribution(len(values), mean, least, most, tuple(at))

    @staticmethod
    def sketched(ticks: Samples) -> Distribution:
        """Of whole picoseconds that were counted."""
        second = float(PICOSECONDS_PER_SECOND)
        at = tuple(value / second for value in ticks.quantiles(QUANTILES))
        return Distribution(
            ticks.count, ticks.mean / second, ticks.least / second, ticks.most / second, at, ticks.exact
        )

    def table(self) -> dict[str, Any]:
        """For JSON: None stands for what is not a number."""
        named = {f"p{q * 100:g}": value for q, value in zip(QUANTILES, self.quantiles, strict=True)}
        seconds = {"mean": self.mean, "min": self.least, **named, "max": self.most}
        return {"count": self.count, **{k: None if v != v else v for k, v in seconds.items()}, "exact": self.exact}


@dataclass(frozen=True)
class Slo:
    """A goal: a quantile of a quantity stays at or below a limit, as ``ttft=p99:2s``.

    Attributes:
        metric: ``ttft``, ``tpot``, ``e2e`` or ``queueing``.
        quantile: from 0 to 1; of ``mean`` None.
        limit_s: seconds.
    """

    metric: str
    quantile: float | None
    limit_s: float

    def __str__(self) -> str:
        which = "mean" if self.quantile is None else f"p{self.quantile * 100:g}"
        return f"{self.metric}={which}:{self.limit_s:g}s"


METRICS = ("ttft", "tpot", "e2e", "queueing")
_SLO = re.compile(r"(\w+)=(?:(mean|p\d+(?:\.\d+)?):)?(.+)")


def parse_slo(text: str) -> tuple[Slo, ...]:
    """Goals as they are typed: ``ttft=p99:2s,tpot=p99:50ms``; without a quantile the 99th.

    Raises:
        InputError: not of that form, or of an unknown quantity.
    """
    found = []
    for part in text.split(","):
        match = _SLO.fullmatch(part.strip())
        if match is None or match[1] not in METRICS or ":" in match[3]:
            raise InputError(
                f"--slo {quoted(part)} is no goal: give {', '.join(METRICS)} with a quantile (p0 to p100) or mean and "
                "a time, as ttft=p99:2s"
            )
        which = match[2] or "p99"
        quantile = None if which == "mean" else float(which[1:]) / 100
        if quantile is not None and quantile > 1:
            raise InputError(f"--slo {quoted(part)}: a quantile is from p0 to p100")
        limit = parse_latency(match[3], f"--slo {match[1]}")
        found.append(Slo(match[1], quantile, limit))
    return tuple(found)


@dataclass(frozen=True)
class ServingMetrics:
    """Figures of one run.

    Attributes:
        served: the run.
        tpot: one of :data:`TPOT`.
        distributions: of ``ttft``, ``tpot`` (of requests of two output tokens or more), ``e2e`` and ``queueing``, of
            inter-token times (``itl``), and where KV caches were sent of the time from the first token to their arrival
            (``transfer``).
        duration_s: first arrival to last token.
        figures: all that is counted once, by name.
        goals: each goal with what was reached and whether it is met.
    """

    served: FleetRun = field(repr=False)
    tpot: str
    distributions: Mapping[str, Distribution]
    duration_s: float
    figures: Mapping[str, float | int | None]
    goals: tuple[tuple[Slo, float, bool], ...] = ()

    def seconds(self, metric: str) -> NDArray[np.float64]:
        """One of :data:`METRICS` of each request; made anew, for it takes as much memory as anything of the run."""
        return _seconds(self.served, metric, self.tpot)

    def named(self) -> dict[str, float]:
        """Figures of time and throughput by name, as ``ttft.p99``."""
        out = {"duration": self.duration_s}
        for name, one in self.distributions.items():
            if one.count:
                out[f"{name}.mean"] = one.mean
                out |= {f"{name}.p{q * 100:g}": value for q, value in zip(QUANTILES, one.quantiles, strict=True)}
        rates = ("requests_per_s", "output_tokens_per_s", "tokens_per_s", "utilisation")
        return out | {name: float(self.figures[name] or 0) for name in rates}


def measure(served: FleetRun, slo: Sequence[Slo] = (), tpot: str = "standard") -> ServingMetrics:
    """Add up a run.

    Args:
        served: a finished run.
        slo: goals.
        tpot: one of :data:`TPOT`.

    Raises:
        InputError: ``tpot`` is not known.
    """
    if tpot not in TPOT:
        raise InputError(f"--tpot {quoted(tpot)} is not known: give {' or '.join(TPOT)}")
    second = float(PICOSECONDS_PER_SECOND)
    distributions, reached = {}, {}
    if served.sketch is None:
        kept = np.ones(len(served.requests), bool)
        for name in METRICS:
            values = _seconds(served, name, tpot)
            for goal in slo:
                if goal.metric == name:
                    reached[goal] = _reached(goal, values)
                    if name == "tpot":
                        kept[_several(served, tpot)] &= values <= goal.limit_s
                    else:
                        kept &= values <= goal.limit_s
            distributions[name] = Distribution.of(values)
        good = int(kept.sum())
        begin, end = int(served.arrived.min()), int(served.finished.max())
    else:
        for name, samples in served.sketch.samples.items():
            distributions[name] = Distribution.sketched(samples)
            for goal in slo:
                if goal.metric == name and samples.count:
                    found = samples.mean if goal.quantile is None else samples.quantiles([goal.quantile])[0]
                    reached[goal] = found / second
        good, begin, end = served.sketch.good, served.sketch.begin, served.sketch.end
    distributions["itl"] = Distribution.sketched(served.gaps)
    sent = served.transfer[served.transfer >= 0]
    if len(sent):
        distributions["transfer"] = Distribution.of(sent / second)
    duration = (end - begin) / second
    goals = tuple((goal, at, at <= goal.limit_s) for goal in slo for at in [reached.get(goal, 0.0)])
    return ServingMetrics(
        served, tpot, distributions, duration, _figures(served, duration, good if slo else None), goals
    )  # fmt: skip


def _several(served: FleetRun, tpot: str) -> NDArray[np.bool_]:
    """Requests that have a TPOT."""
    return served.requests.output > (tpot == "standard")


def _seconds(served: FleetRun, metric: str, tpot: str) -> NDArray[np.float64]:
    """One of :data:`METRICS` of each request."""
    begin, end = {
        "ttft": (served.arrived, served.first_token), "tpot": (served.first_token, served.finished),
        "e2e": (served.arrived, served.finished), "queueing": (served.arrived, served.scheduled),
    }[metric]  # fmt: skip
    found = (end - begin) / float(PICOSECONDS_PER_SECOND)
    if metric == "tpot":
        several, output = _several(served, tpot), served.requests.output
        found = found[several] / (output[several] - (tpot == "standard"))
    return np.asarray(found, np.float64)


def request_sketch(
    table: RequestTable, slo: Sequence[Slo], tpot: str, replicas: int, front: int
) -> RequestSketch | None:  # fmt: skip
    """What is told of requests as they end; None where they are few enough to keep a row of each."""
    if len(table) <= MOST_ROWS:
        return None
    limits: dict[str, float] = {}
    for goal in slo:
        limits[goal.metric] = min(goal.limit_s, limits.get(goal.metric, goal.limit_s))
    return RequestSketch(table, limits, tpot == "vidur", replicas, front)


def _reached(goal: Slo, values: NDArray[np.float64]) -> float:
    if not len(values):
        return 0.0
    return float(values.mean() if goal.quantile is None else np.quantile(values, goal.quantile))


def _figures(served: FleetRun, duration: float, good: int | None) -> dict[str, float | int | None]:
    """All that is counted once; ``good`` are requests that keep all goals, None where there is none."""
    requests = served.requests
    useful = int(requests.prompt.sum() + requests.output.sum())
    rejected = served.drafted - served.accepted
    computed = int(served.computed.sum())
    ticks = duration * PICOSECONDS_PER_SECOND
    history, sketch, count = served.history, served.sketch, len(served.busy)
    if history is not None:
        there = float(history.paid.sum())
    else:
        there = (count - served.sharing) * ticks
    return {
        "requests": len(requests),
        "requests_per_s": len(requests) / duration,
        "prompt_tokens": int(requests.prompt.sum()),
        "output_tokens": int(requests.output.sum()),
        "output_tokens_per_s": float(requests.output.sum()) / duration,
        "tokens_per_s": useful / duration,
        "good_requests_per_s": None if good is None else good / duration,
        "good_share": None if good is None else good / len(requests),
        "steps": int(served.steps.sum()),
        "utilisation": float(served.busy.sum()) / there
        if history is not None or served.sharing
        else float(served.busy.mean()) / ticks,
        "mean_replicas": there / ticks,
        "cold_starts": 0 if history is None else history.starts,
        "replica_failures": 0 if history is None else history.failures,
        "moved_requests": 0 if history is None else history.moved,
        "weight_swaps": served.swaps,
        "weight_swap_s": served.swapping / PICOSECONDS_PER_SECOND,
        "computed_tokens": computed,
        "recomputed_tokens": computed + served.hit_tokens - useful + len(requests) - rejected,
        "padding_share": float(served.padding.sum() / (computed + served.padding.sum())),
        "preemptions": int(served.restarts.sum() if sketch is None else sketch.restarts.sum())
        - int(served.displaced.sum()),
        "interruptions": int(served.displaced.sum()),
        "delayed_requests": int((served.waited > 0).sum()) if sketch is None else sketch.delayed,
        "kv_peak": float((served.peak_blocks / served.blocks).max()),
        "sent_bytes": served.sent_bytes,
        "swapped_blocks": served.swapped_blocks,
        "drafted_tokens": served.drafted,
        "accepted_tokens": served.accepted,
        "tokens_per_verification": 1 + served.accepted / served.verifications if served.verifications else None,
        "adapter_loads": served.adapter_loads,
        "kv_reloads": served.reloads,
        "kv_loaded_bytes": served.loaded_bytes,
        "kv_written_bytes": served.written_bytes,
        "prefix_hit_rate": served.hit_tokens / served.looked_up_tokens if served.looked_up_tokens else None,
    }
