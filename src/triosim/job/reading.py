"""One iteration of a job, from the JSON of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.core.errors import InputError
from triosim.core.result_file import check_result, read_result, undamaged
from triosim.energy.usage import mean_over_predicted
from triosim.job.prediction import JobIteration


def read(path: Path) -> JobIteration:
    """The iteration that ``train --json`` wrote.

    Raises:
        InputError: the file cannot be read, or is no result of a training.
    """
    return iteration_of(read_result(path, "train"), str(path))


def iteration_of(document: Mapping[str, Any], where: str = "the result") -> JobIteration:
    """The iteration of a result (``Result.to_dict()``).

    A checkpoint has the parameters and optimizer states of the undivided step: each once, however ranks share them.

    Raises:
        InputError: it is no result of a training, or a damaged one.
    """
    check_result(document, where, "train")
    with undamaged(where):
        return _iteration(document, where)


def _iteration(document: Mapping[str, Any], where: str) -> JobIteration:
    if not document["workload"]["training"]:
        raise InputError(f"{where} is no training: a job consists of training iterations")
    plan, speed, interval = document["plan"], document["throughput"], document.get("interval_s")
    seconds = float(document["iteration_time_s"])
    low, high = (seconds, seconds) if interval is None else map(float, interval)
    ranks, state = int(plan["ranks"]), float(document["workload"]["state_bytes"])
    if not (0 < low <= seconds <= high < math.inf and ranks > 0 and 0 <= state < math.inf):
        raise InputError(f"{where} is a damaged result: times, devices and memory must be above 0")
    tokens = speed.get("tokens_per_s")
    longer, source = mean_over_predicted(document.get("variation"), seconds, where)
    return JobIteration(
        name=f"{document['workload']['name']} on {document['system']['name']}",
        seconds=seconds * longer, low=low * longer, high=high * longer, devices=ranks,
        tokens=round(float(tokens) * seconds) if tokens else None,
        samples=float(speed["samples_per_s"]) * seconds, state_bytes=state, fits=document["memory"].get("fits"),
        source=source,
    )  # fmt: skip
