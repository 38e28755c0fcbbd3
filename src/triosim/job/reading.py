"""One iteration of a job, from the JSON of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.core.result_file import OF_STEPS, check_result, undamaged
from triosim.energy.usage import mean_over_predicted
from triosim.job.prediction import JobIteration


def read(path: Path) -> JobIteration:
    """The iteration that ``train --json`` wrote.

    Raises:
        InputError: the file cannot be read, or is no result of a training.
    """
    return iteration_of(guarded.document(path, "a result that --json wrote"), str(path))


def iteration_of(document: Mapping[str, Any], where: str = "the result") -> JobIteration:
    """The iteration of a result (``Result.to_dict()``), or a step of post-training.

    A checkpoint has the parameters and optimizer states of the undivided step: each once, however ranks share them.

    Raises:
        InputError: it is no result of a training, or a damaged one.
    """
    if document.get("schema") == OF_STEPS:
        with undamaged(where):
            return _step(document, where)
    check_result(document, where, "train")
    with undamaged(where):
        return _iteration(document, where)


def _step(document: Mapping[str, Any], where: str) -> JobIteration:
    """A step of several phases; a checkpoint has what its models train, of a policy and a critic both."""
    seconds, (low, high) = float(document["iteration_time_s"]), map(float, document["interval_s"])
    ranks, tokens = int(document["plan"]["ranks"]), document["tokens"]
    state = float(sum(model["state_bytes"] for model in document["models"] if model["trained"]))
    _check(where, low, seconds, high, ranks, state)
    return JobIteration(
        name=f"{document['models'][0]['workload']} on {document['system']}, {document['recipe']}", seconds=seconds,
        low=low, high=high, devices=ranks, tokens=None if tokens is None else float(tokens),
        samples=float(document["samples"]), state_bytes=state, fits=document["memory"].get("fits"),
    )  # fmt: skip


def _check(where: str, low: float, seconds: float, high: float, ranks: int, state: float) -> None:
    if not (0 < low <= seconds <= high < math.inf and ranks > 0 and 0 <= state < math.inf):
        raise InputError(f"{where} is a damaged result: times, devices and memory must be above 0")


def _iteration(document: Mapping[str, Any], where: str) -> JobIteration:
    if not document["workload"]["training"]:
        raise InputError(f"{where} is no training: a job consists of training iterations")
    plan, speed, interval = document["plan"], document["throughput"], document.get("interval_s")
    seconds = float(document["iteration_time_s"])
    low, high = (seconds, seconds) if interval is None else map(float, interval)
    ranks, state = int(plan["ranks"]), float(document["workload"]["state_bytes"])
    _check(where, low, seconds, high, ranks, state)
    tokens = speed.get("tokens_per_s")
    longer, source = mean_over_predicted(document.get("variation"), seconds, where)
    return JobIteration(
        name=f"{document['workload']['name']} on {document['system']['name']}",
        seconds=seconds * longer, low=low * longer, high=high * longer, devices=ranks,
        tokens=round(float(tokens) * seconds) if tokens else None,
        samples=float(speed["samples_per_s"]) * seconds, state_bytes=state, fits=document["memory"].get("fits"),
        source=source,
    )  # fmt: skip
