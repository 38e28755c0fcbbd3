"""Step times from measured layers: what a profiler of a serving engine found, interpolated.

A folder holds three CSV files, times in microseconds, as LLMServingSim's profiler of vLLM writes them:

* ``dense.csv``: ``layer, tokens, time_us``: operators of one layer by number of tokens (``layernorm`` runs twice),
  ``embedding`` and ``final_layernorm`` once a step;
* ``attention.csv``: ``prefill_chunk, kv_prefill, n_decode, kv_decode, time_us``: one call for a chunk of a prompt after
  its cached tokens, together with decodes of so many cached tokens each; either may be missing (0);
* ``per_sequence.csv``: ``layer, sequences, time_us``: ``lm_head`` and ``sampler``, once a step.

Between places of the grids time is linear; along chunks a power of the chunk.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import field
from itertools import product
from pathlib import Path

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.guarded import content, csv_errors, rows, text
from triosim.core.units import picoseconds
from triosim.serving.model_times import GRAPH_TOKENS, graph_size
from triosim.serving.step_times import StepShape, StepTimes

TWICE = ("layernorm",)
ONCE_A_STEP = ("embedding", "final_layernorm")
LAST = ("lm_head", "sampler")

Curve = tuple[list[float], list[float]]
"""Places, ascending, and values."""


@dataclass
class LayerProfiles(StepTimes):
    """See the module's docstring.

    Attributes:
        layers: of the model.
        dense: operators by name: places are tokens, values seconds.
        sampled: operators once a step by the number of sampled positions.
        attention: seconds by (chunk, cached tokens of it, decodes, cached tokens of each).
        graphs: whether few tokens run in captured graphs, whose sizes they are padded to.
        host_s: seconds of the host in a step that nothing hides.
    """

    layers: int
    dense: dict[str, Curve]
    sampled: dict[str, Curve]
    attention: dict[tuple[float, float, float, float], float]
    graphs: bool = True
    host_s: float = 0.0
    _seen: dict[tuple[int, int], float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = ("chunks", "cached tokens of a chunk", "decodes", "cached tokens of a decode")
        places = [sorted({key[axis] for key in self.attention if key[axis] or axis == 1}) for axis in range(4)]
        for name, found in zip(names, places, strict=True):
            if len(found) < 2:
                raise InputError(f"the profile of attention has fewer than two {name}: profile more")
        self._chunk, self._cached, self._decodes, self._keys = places
        mixed = {key[2] for key in self.attention if key[0] and key[2]}
        self._mixed = sorted(mixed)

    def ticks(self, step: StepShape, stage: int) -> int:
        """See the module's docstring."""
        key = self.padded(step.tokens), step.sampled
        base = self._seen.get(key)
        if base is None:
            base = self._seen[key] = self._base(*key)
        seconds = base + self.layers * self._attention(step) + self.host_s
        return max(picoseconds(seconds, "a step"), 1)

    def padded(self, tokens: int) -> int:
        """Those of the captured graph, if it runs in one."""
        return graph_size(tokens) if self.graphs and tokens <= GRAPH_TOKENS else tokens

    def _base(self, tokens: int, sampled: int) -> float:
        """All but attention."""
        total = 0.0
        for name, curve in self.dense.items():
            times = 1 if name in ONCE_A_STEP else self.layers * (2 if name in TWICE else 1)
            total += times * _along(curve, tokens)
        if sampled:
            total += sum(_along(curve, sampled) for curve in self.sampled.values())
        return total

    def _attention(self, step: StepShape) -> float:
        chunk = sum(tokens for tokens, _ in step.chunks)
        if not chunk:
            keys = max(step.context / step.decodes - 1, self._keys[0])
            return self._corners([(0.0, [(0.0, 1.0)]), (0.0, [(0.0, 1.0)])], step.decodes, keys, self._decodes)
        cached = sum(tokens * before for tokens, before in step.chunks) / chunk
        low, high, share = _cell(self._chunk, max(chunk, self._chunk[0]))
        one, two = (
            self._corners([(place, [(place, 1.0)]), (cached, _shares(self._cached, cached))], step.decodes,
                          step.context / max(step.decodes, 1) - 1, self._mixed)
            for place in (low, high)
        )  # fmt: skip
        power = math.log(two / one) / math.log(high / low)
        return one * (low + share * (high - low)) ** power / low**power

    def _corners(
        self, prefill: list[tuple[float, list[tuple[float, float]]]], decodes: float, keys: float, counts: list[float]
    ) -> float:
        """Linear along all axes but the chunk, which is one of its places."""
        if decodes:
            axes = [
                *(shares for _, shares in prefill),
                _shares(counts, decodes),
                _shares(self._keys, max(keys, self._keys[0])),
            ]
        else:
            axes = [*(shares for _, shares in prefill), [(0.0, 1.0)], [(0.0, 1.0)]]
        total = 0.0
        for corner in product(*axes):
            place = tuple(at for at, _ in corner)
            weight = math.prod(part for _, part in corner)
            if weight:
                if place not in self.attention:
                    raise InputError(f"the profile of attention has a hole at {place}: profile the whole grid")
                total += weight * self.attention[place]
        return total


def read_profiles(folder: Path, layers: int, host_s: float = 0.0) -> LayerProfiles:
    """The profiles in a folder.

    Raises:
        InputError: a file is missing or broken.
    """
    dense = _curves(folder / "dense.csv", "tokens")
    sampled = _curves(folder / "per_sequence.csv", "sequences")
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    table = {key[:4]: key[4] * 1e-6 for key in _numbers(folder / "attention.csv", names)}
    return LayerProfiles(layers, dense, sampled, table, host_s=host_s)  # type: ignore[arg-type]


def _curves(path: Path, axis: str) -> dict[str, Curve]:
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for layer, (at, time) in zip(_column(path, "layer"), _numbers(path, (axis, "time_us")), strict=True):
        found[layer][at] = time * 1e-6
    return {layer: (sorted(curve), [curve[at] for at in sorted(curve)]) for layer, curve in found.items()}


def _column(path: Path, name: str) -> list[str]:
    source = text(content(path), str(path))
    reader = rows(source, str(path))
    with csv_errors(str(path), lambda: reader.line_num):
        return [row.get(name) or "" for row in reader]


def _numbers(path: Path, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    source = text(content(path), str(path))
    reader = rows(source, str(path))
    out = []
    with csv_errors(str(path), lambda: reader.line_num):
        for row in reader:
            try:
                values = tuple(float(row[name]) for name in names)
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"{path}, line {reader.line_num}: needs numbers in {', '.join(names)}: profile again"
                ) from None
            if not all(0 <= value < 1e12 for value in values):
                raise InputError(
                    f"{path}, line {reader.line_num}: a number is negative or far too large: profile again"
                )
            out.append(values)
    if len(out) < 2:
        raise InputError(f"{path} has fewer than two rows: profile again")
    return out


def _along(curve: Curve, at: float) -> float:
    """Linear between places, and beyond the last along the last two."""
    places, values = curve
    if at <= places[0] or len(places) == 1:
        return values[0]
    if at <= places[-1]:
        return float(np.interp(at, places, values))
    slope = max((values[-1] - values[-2]) / (places[-1] - places[-2]), 0.0)
    return values[-1] + slope * (at - places[-1])


def _cell(places: list[float], at: float) -> tuple[float, float, float]:
    """The places on both sides, and how far it is from the first to the second; beyond the last two along them."""
    row = min(max(bisect_right(places, at) - 1, 0), len(places) - 2)
    low, high = places[row], places[row + 1]
    return low, high, (at - low) / (high - low)


def _shares(places: list[float], at: float) -> list[tuple[float, float]]:
    """Places and their weights; below the first it stands."""
    low, high, share = _cell(places, max(at, places[0]))
    return [(low, 1.0 - share), (high, share)]
