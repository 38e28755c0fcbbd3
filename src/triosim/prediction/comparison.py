"""What makes the difference between two predictions, from the JSON that was written of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.result_file import OF_STEPS, read_prediction, undamaged
from triosim.core.units import format_bandwidth, format_time

PHASES = ("forward", "backward", "recompute", "optimizer")
PARTS = (*PHASES, "exposed communication", "host", "idle")
"""What an iteration consists of, mean over all devices: computing by phase, waiting for transfers and for the host, and
the rest, above all pipeline bubbles."""
_GROUPS = ("workload", "system", "plan", "fidelity")
_MADE = {
    "workload": ("name", "batch_size", "sequence_length", "parameters", "operators", "training", "attention"),
    "system": ("name", "devices", "topology"),
}
"""Of workload and system what tells jobs apart; the rest follows from it."""


@dataclass(frozen=True)
class ComparedResult:
    """One of the predictions.

    Attributes:
        label: its file, as it was given.
        name: workload and system.
        seconds, low, high: of an iteration, or a sample, and the 90 % interval.
        parts: seconds of each of :data:`PARTS`, or of each phase of a step of post-training; their sum is ``seconds``.
        modules: seconds of computing and waiting by module, mean over the stages, the numbers of layers left out; or of
            what :attr:`detail` says.
        communication: seconds by axis and kind, mean over devices.
        asked: what was asked for, by group and name.
        figures: throughput, memory, energy and cost, by name; None where not known.
        detail: what ``modules`` are.
    """

    label: str
    name: str
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    modules: Mapping[str, float]
    communication: Mapping[str, float]
    asked: Mapping[str, Any]
    figures: Mapping[str, float | None]
    detail: str = "Modules"


@dataclass(frozen=True)
class Comparison:
    """Several predictions, each against the first.

    Attributes:
        results: all of them.
        per_sample: whether times, energy and money are those of a sample instead of an iteration.
        asked: what differs in what was asked: name -> a value for each.
    """

    results: tuple[ComparedResult, ...]
    per_sample: bool
    asked: Mapping[str, tuple[Any, ...]]

    @property
    def same(self) -> bool:
        """Whether all of them came out alike."""
        first = self.results[0]
        return all((one.parts, one.figures) == (first.parts, first.figures) for one in self.results)

    def changes(self, other: int) -> dict[str, float]:
        """Seconds by which each part of one of them is longer than of the first; the sum is that of the iterations."""
        first, then = self.results[0].parts, self.results[other].parts
        return {part: then.get(part, 0.0) - first.get(part, 0.0) for part in dict.fromkeys([*first, *then])}

    def modules(self, other: int, most: int = 5) -> list[tuple[str, float, float]]:
        """Modules, seconds in the first and in another one: those that differ most."""
        return _largest(self.results[0].modules, self.results[other].modules, most)

    def communication(self, other: int, most: int = 5) -> list[tuple[str, float, float]]:
        """Collectives, seconds in the first and in another one: those that differ most."""
        return _largest(self.results[0].communication, self.results[other].communication, most)


def _largest(first: Mapping[str, float], then: Mapping[str, float], most: int) -> list[tuple[str, float, float]]:
    rows = [(name, first.get(name, 0.0), then.get(name, 0.0)) for name in dict.fromkeys([*first, *then])]
    rows = [row for row in rows if row[1] != row[2]]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:most]


def compare(paths: Sequence[Path], per_sample: bool = False) -> Comparison:
    """Compare predictions that ``--json`` wrote.

    Args:
        paths: their files.
        per_sample: divide everything by the samples of an iteration, for jobs with different batches.

    Raises:
        InputError: there are not two, or one is no result.
    """
    if len(paths) < 2:
        raise InputError("give two results or more that --json wrote: triosim compare A.json B.json")
    return comparison([_read(path, per_sample) for path in paths], per_sample)


def comparison(results: Sequence[ComparedResult], per_sample: bool = False) -> Comparison:
    """Compare what :func:`compared` made of predictions.

    Args:
        results: two or more, the first that which others are compared with.
        per_sample: as it was for them.

    Raises:
        InputError: one is of an iteration, another of a step of post-training.
    """
    other = next((one for one in results if one.detail != results[0].detail), None)
    if other is not None:
        alone, several = (results[0], other) if results[0].detail == "Modules" else (other, results[0])
        raise InputError(
            f"{alone.label} is of one iteration and {several.label} of a step of post-training, whose phases it lacks: "
            "compare predictions of one kind"
        )
    names = dict.fromkeys(name for one in results for name in one.asked)
    values = {name: tuple(one.asked.get(name) for one in results) for name in names}
    return Comparison(
        tuple(results), per_sample,
        {n: v for n, v in values.items() if any(other != v[0] for other in v[1:])},
    )  # fmt: skip


def _read(path: Path, per_sample: bool) -> ComparedResult:
    document = read_prediction(path)
    with undamaged(str(path)):
        read = compared_step if document["schema"] == OF_STEPS else compared
        return read(document, str(path), per_sample)


def compared(document: Mapping[str, Any], label: str, per_sample: bool = False) -> ComparedResult:
    """What a comparison needs of a result (``Result.to_dict()``).

    Raises:
        InputError: its times are no times, or it has no samples to divide by.
    """
    seconds, where = float(document["iteration_time_s"]), document["breakdown_s"]
    low, high = map(float, document.get("interval_s") or (seconds, seconds))
    computing = dict.fromkeys(PHASES, 0.0)
    modules: dict[str, float] = {}
    stages = max(len(document["stages"]), 1)
    for row in document["layers"]:
        if row["phase"] in computing:
            computing[row["phase"]] += float(row["compute_s"])
        module = ".".join("*" if part.isdigit() else part for part in str(row["module"]).split(".")) or "(no module)"
        there = float(row["compute_s"]) + float(row["exposed_communication_s"])
        modules[module] = modules.get(module, 0.0) + there / stages
    known, total = sum(computing.values()), float(where["compute"])
    if known > 0:
        parts = {phase: total * part / known for phase, part in computing.items()}
    else:
        parts = {**computing, "forward": total}
    parts |= {
        "exposed communication": float(where["exposed_communication"]), "host": float(where["host"]),
        "idle": float(where["idle"]),
    }  # fmt: skip
    if not (0 < seconds < math.inf and all(0 <= part < math.inf for part in parts.values())):
        raise InputError(f"{label} is a damaged result: its times must be above 0")
    sent: dict[str, float] = {}
    for row in document["collectives"]:
        name = f"{row['kind']} over {row['axis']}"
        sent[name] = sent.get(name, 0.0) + float(row["seconds"])
    figures, samples = _figures(document), 1.0
    if per_sample:
        samples = float(document["throughput"]["samples_per_s"]) * seconds
        if not 0 < samples < math.inf:
            raise InputError(f"{label} has no samples: leave --per at iteration")
        figures |= {
            name: None if (value := figures[name]) is None else value / samples for name in ("energy", "dollars")
        }

    def scaled(times: Mapping[str, float]) -> dict[str, float]:
        return {name: value / samples for name, value in times.items()}

    return ComparedResult(
        label, f"{document['workload']['name']} on {document['system']['name']}", seconds / samples, low / samples,
        high / samples, scaled(parts), scaled(modules), scaled(sent), _asked(document), figures,
    )  # fmt: skip


def compared_step(document: Mapping[str, Any], label: str, per_sample: bool = False) -> ComparedResult:
    """What a comparison needs of a step of post-training (what ``train --post --json`` writes).

    Its parts are its phases; what is told apart within each are computing, waiting and idling.

    Raises:
        InputError: its times are no times, or it has no samples to divide by.
    """
    seconds, (low, high) = float(document["iteration_time_s"]), map(float, document["interval_s"])
    parts: dict[str, float] = {}
    within: dict[str, float] = {}
    for phase in document["phases"]:
        parts[str(phase["name"])] = float(phase["seconds"])
        for name, value in (phase["breakdown"] or {}).items():
            if name != "communication":  # a part of which is behind computing
                title = f"{phase['name']}: {name.replace('_', ' ')}"
                within[title] = within.get(title, 0.0) + float(value) * int(phase["count"])
    if not (0 < seconds < math.inf and all(0 <= part < math.inf for part in parts.values())):
        raise InputError(f"{label} is a damaged result: its times must be above 0")
    samples = float(document["samples"]) if per_sample else 1.0
    if not 0 < samples < math.inf:
        raise InputError(f"{label} has no samples: leave --per at iteration")
    asked: dict[str, Any] = {"recipe": document["recipe"], "system name": document["system"]}
    for group, title in (("options", "recipe."), ("plan", "")):
        for name, value in document[group].items():
            nested = isinstance(value, Mapping)
            asked |= {f"{name}.{key}": each for key, each in value.items()} if nested else {f"{title}{name}": value}
    asked |= {f"{model['name']}": model["workload"] for model in document["models"]}
    speed, memory = document["throughput"], document["memory"]
    figures = {
        "prompts/s": float(speed["prompts_per_s"]), "samples/s": float(speed["samples_per_s"]),
        "tokens/s": None if speed["tokens_per_s"] is None else float(speed["tokens_per_s"]),
        "memory": float(memory["reserved_bytes"]) + float(memory["context_bytes"]),
    }  # fmt: skip
    policy = next(model["workload"] for model in document["models"] if model["name"] == "policy")
    return ComparedResult(
        label, f"{policy}, {document['recipe']} on {document['system']}", seconds / samples, low / samples,
        high / samples, {name: value / samples for name, value in parts.items()},
        {name: value / samples for name, value in within.items()}, {}, asked, figures, "Within phases",
    )  # fmt: skip


def _asked(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by name; options of parts by theirs."""
    found: dict[str, Any] = {}
    for group in _GROUPS:
        for name, value in document[group].items():
            if group in _MADE and name not in _MADE[group]:
                continue
            title = name if group in ("plan", "fidelity") else f"{group} {name}"
            if isinstance(value, Mapping):
                found |= {f"{title}.{key}": each for key, each in value.items()}
            else:
                found[title] = value
        if group == "system":
            found |= _machine(document["system"])
    return {**found, **_circumstances(document)}


def _machine(system: Mapping[str, Any]) -> dict[str, str]:
    """Devices and links of a system, in words."""
    found: dict[str, str] = {"system accelerators": ", ".join(map(_device, system.get("accelerators", ())))}
    for link in system.get("links", ()):
        title, rate = f"system {link['tier']} links", link["bandwidth_bytes_per_s"]
        delay = format_time(float(link["latency_s"]) + float(link["overhead_s"]))
        said = f"{link['name']} {'' if rate is None else format_bandwidth(float(rate)) + ', '}{delay}".strip()
        found[title] = f"{found[title]}; {said}" if title in found else said
    return found


def _device(row: Mapping[str, Any]) -> str:
    words = [f"{row['count']} x {row['name'] or 'unnamed'}"]
    if (slowdown := float(row.get("slowdown") or 1.0)) != 1.0:
        words.append(f"{slowdown:g} times slower")
    if (watts := row.get("power_cap_w")) is not None:
        words.append(f"up to {float(watts):g} W")
    if (clock := row.get("clock_limit_hz")) is not None:
        words.append(f"up to {float(clock) / 1e6:g} MHz")
    return " ".join(words)


def _circumstances(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for beside workload, system, plan and models."""
    found: dict[str, Any] = {}
    if variation := document.get("variation"):
        found["variation"] = ", ".join(f"{name}={spread}" for name, spread in variation["asked"].items())
    for source in document.get("sources", ()):
        if source.startswith("packing: "):
            found["packing"] = source.removeprefix("packing: ")
    if cost := document.get("cost"):
        found |= {f"cost {name}": cost.get(name) for name in ("mode", "place", "pue")}
        rents = [one for one in cost.get("sources", ()) if one.startswith("rent of ")]
        found["cost rent"] = "; ".join(one.removeprefix("rent of ") for one in rents)
    return found


def _figures(document: Mapping[str, Any]) -> dict[str, float | None]:
    speed, efficiency, memory = document["throughput"], document.get("efficiency") or {}, document["memory"]
    energy = document.get("energy") or {}
    rows = (document.get("cost") or {}).get("rows") or ()
    cost: Mapping[str, Any] = next((row for row in rows if row.get("unit") == "iteration"), {})
    reserved = memory.get("reserved_bytes")
    figures = {
        "samples/s": speed.get("samples_per_s"), "tokens/s": speed.get("tokens_per_s"), "MFU": efficiency.get("mfu"),
        "memory": None if reserved is None else reserved + memory.get("context_bytes", 0),
        "energy": energy.get("node_j"), "dollars": cost.get("usd"),
    }  # fmt: skip
    return {name: None if value is None else float(value) for name, value in figures.items()}
