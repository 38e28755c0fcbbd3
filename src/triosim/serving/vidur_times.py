"""Step times from Vidur's tables, by Vidur's rules (Agrawal et al., MLSys 2024).

A stage's time is its layers times the sum of: all operators that depend on the number of tokens, at that number
rounded up to a multiple of 8; attention of the decodes, at their number and their mean length rounded up to a multiple
of 64; and attention of all prompts' chunks as one, at the sum of what each has in the cache, rounded up to 64, and the
root of the sum of their squares.  A model with fewer key heads than query heads pays a tenth more for more than one
decode or chunk.

The tables are Vidur's profiles (CSV), read as they are and interpolated, or columns that its random forests gave.
Beyond their ends they go on along the last two entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.guarded import content, csv_errors, rows, text
from triosim.core.units import picoseconds
from triosim.serving.step_times import StepShape, StepTimes

TOKENS_STEP = 8
KEYS_STEP = 64
GROUPED = 1.1
"""More than one decode or chunk where key heads are shared."""
ALL_REDUCE_S = 2e-5
"""Beside the profile's time of an all-reduce: the launch by the host."""


@dataclass
class VidurTimes(StepTimes):
    """Ticks of one layer, looked up.

    Attributes:
        layers: of the model, divided among the stages.
        stages: of the pipeline.
        grouped: whether the model has fewer key heads than query heads.
        token_s: of a layer, at 8, 16, ... tokens: seconds, shape ``(n,)``.
        decode_s: at 1, 2, ... sequences and mean lengths 0, 64, ...: seconds, shape ``(sequences, lengths)``.
        prefill_s: seconds of a chunk of tokens after keys in the cache (a multiple of 64).
        send_s: seconds to send a number of tokens to the next stage; None for no time.
    """

    layers: int
    token_s: NDArray[np.float64]
    decode_s: NDArray[np.float64]
    prefill_s: Callable[[int, int], float]
    grouped: bool = False
    stages: int = 1
    send_s: Callable[[int], float] | None = None
    _prefill: dict[tuple[int, int], int] = field(init=False, repr=False, default_factory=dict)
    _beyond: dict[tuple[int, int], int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.layers % self.stages:
            raise InputError(
                f"{self.layers} layers do not divide among {self.stages} pipeline stages: choose another number"
            )
        own = self.layers // self.stages
        self._own = own
        self._tokens = picoseconds(self.token_s * own, "a step's token operators").tolist()
        factor = np.full(len(self.decode_s), GROUPED if self.grouped else 1.0)
        factor[0] = 1.0
        self._decodes = picoseconds(self.decode_s * factor[:, None] * own, "a step's decode attention").tolist()

    def ticks(self, step: StepShape, stage: int) -> int:
        """See the module's docstring."""
        row = -(-step.tokens // TOKENS_STEP) - 1
        total: int = self._tokens[row] if row < len(self._tokens) else self._more_tokens(row)
        if step.decodes:
            column = -(-(step.context // step.decodes) // KEYS_STEP)
            if step.decodes <= len(self._decodes) and column < len(self._decodes[0]):
                total += self._decodes[step.decodes - 1][column]
            else:
                total += self._more_decodes(step.decodes, column)
        if step.chunks:
            keys = sum(-(-cached // KEYS_STEP) * KEYS_STEP for _, cached in step.chunks)
            tokens = round(math.sqrt(sum(tokens * tokens for tokens, _ in step.chunks)))
            several = self.grouped and len(step.chunks) > 1
            total += self._chunk(tokens, -keys - 1 if several else keys)
        if self.send_s is not None and stage < self.stages - 1:
            total += picoseconds(self.send_s(step.tokens), "sending to the next stage")
        return max(total, 1)

    def _chunk(self, tokens: int, keys: int) -> int:
        """Of a chunk after keys, or of several of a model with shared key heads after ``-keys - 1``."""
        found = self._prefill.get((tokens, keys))
        if found is None:
            seconds = self.prefill_s(tokens, keys) if keys >= 0 else GROUPED * self.prefill_s(tokens, -keys - 1)
            found = self._prefill[tokens, keys] = picoseconds(seconds * self._own, "a step's prefill attention")
        return found

    def _more_tokens(self, row: int) -> int:
        last, before = self._tokens[-1], self._tokens[-2]
        return int(last + max(last - before, 0) * (row - len(self._tokens) + 1))

    def _more_decodes(self, sequences: int, column: int) -> int:
        """Beyond the table time grows as the bytes that are read."""
        known = self._beyond.get((sequences, column))
        if known is None:
            rows, columns = len(self._decodes), len(self._decodes[0])
            row, place = min(sequences, rows), min(column, columns - 1)
            scale = sequences / row * max(column, 1) / max(place, 1)
            known = self._beyond[sequences, column] = round(self._decodes[row - 1][place] * scale)
        return known


def of_columns(
    kind: ArrayLike, tokens: ArrayLike, sequences: ArrayLike, kv_tokens: ArrayLike, seconds: ArrayLike, *, layers: int,
    grouped: bool = False, stages: int = 1, send_s: Callable[[int], float] | None = None,
) -> VidurTimes:  # fmt: skip
    """Times of one layer as columns.

    Args:
        kind: ``"tokens"``, ``"decode"`` or ``"prefill"``, shape ``(n,)``.
        tokens: of all requests (kind tokens), or of a chunk.
        sequences: that decode.
        kv_tokens: keys in the cache, the mean of decodes.
        seconds: of one layer.  A prefill row holds from its tokens up to the next row's of the same keys.
        layers, grouped, stages, send_s: as of :class:`VidurTimes`.

    Raises:
        InputError: a kind is missing, or the grid has holes.
    """
    kinds, counts, batch, keys = np.asarray(kind), np.asarray(tokens), np.asarray(sequences), np.asarray(kv_tokens)
    times = np.asarray(seconds, np.float64)
    for name in ("tokens", "decode", "prefill"):
        if not (kinds == name).any():
            raise InputError(f"the step times have no rows of kind {name!r}: give all three kinds")
    at = kinds == "tokens"
    token_s = _full(times[at], (counts[at] // TOKENS_STEP - 1,), "tokens")
    at = kinds == "decode"
    decode_s = _full(times[at], (batch[at] - 1, keys[at] // KEYS_STEP), "decode")
    at = np.flatnonzero(kinds == "prefill")
    at = at[np.lexsort((counts[at], keys[at]))]
    starts = np.unique(keys[at], return_index=True)
    steps = dict(zip(starts[0].tolist(), np.split(at, starts[1][1:]), strict=True))
    table = {k: (counts[own], times[own]) for k, own in steps.items()}
    most = max(table)

    def prefill(chunk: int, cached: int) -> float:
        near = min(cached, most)
        if near not in table:
            raise InputError(
                f"the step times have no prefill after {near} cached tokens: give every multiple of {KEYS_STEP}"
            )
        begins, values = table[near]
        return float(values[max(np.searchsorted(begins, chunk, side="right") - 1, 0)])

    return VidurTimes(layers, token_s, decode_s, prefill, grouped, stages, send_s)


def _full(values: NDArray, places: tuple[NDArray, ...], kind: str) -> NDArray[np.float64]:
    out = np.full([int(place.max()) + 1 for place in places], np.nan)
    out[places] = values
    if np.isnan(out).any():
        raise InputError(f"the step times of kind {kind!r} have holes: give every entry of the grid")
    return out


# --- Vidur's profiles -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelShape:
    """What is needed of a model to find its rows in Vidur's profiles.

    Attributes:
        layers, heads, kv_heads, width: of the model; width is the hidden size.
        gated: whether the feed-forward part has a gate.
        tensor_parallel: devices that share a layer.
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    tensor_parallel: int = 1


ONCE = ("mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_pre_proj", "attn_post_proj", "attn_rope", "add")
"""Columns of ``mlp.csv`` that a layer runs; norms and ``add`` are counted below."""
NORMS = ("input_layernorm", "post_attention_layernorm")
PER_LAYER = {**dict.fromkeys(ONCE, 1), **dict.fromkeys(NORMS, 1)}


def of_profiles(
    mlp: Path, attention: Path, model: ModelShape, *, all_reduce: Path | None = None, send_recv: Path | None = None,
    stages: int = 1, sequences: int = 128, most_keys: int = 4096, most_tokens: int = 4096,
) -> VidurTimes:  # fmt: skip
    """Step times from Vidur's profile files, interpolated to its grid.

    Args:
        mlp: ``mlp.csv``: milliseconds of each operator by number of tokens and tensor-parallel devices.
        attention: ``attention.csv``: milliseconds of attention by chunk, cache and batch.
        model: says which of their rows apply.
        all_reduce: ``all_reduce.csv`` of the network, needed with tensor parallelism.
        send_recv: ``send_recv.csv``, needed with more than one stage.
        stages, sequences, most_keys, most_tokens: extent of the tables.

    Raises:
        InputError: a file is broken, or has no rows of this model and this many devices.
    """
    parallel = model.tensor_parallel
    columns = [f"time_stats.{name}.median" for name in PER_LAYER]
    wanted = {
        "n_head": model.heads,
        "n_kv_head": model.kv_heads,
        "n_embd": model.width,
        "num_tensor_parallel_workers": parallel,
    }
    found = _table(mlp, ["num_tokens", *columns], wanted)
    at, layer_ms = _averaged(found[:, 0], found[:, 1:].sum(axis=1))
    grid = np.arange(TOKENS_STEP, most_tokens + 1, TOKENS_STEP)
    token_s = _along(grid, at, layer_ms) * 1e-3
    bytes_per_token = 2 * model.width
    if parallel > 1:
        if all_reduce is None:
            raise InputError(
                f"{parallel} tensor-parallel devices need the profile of the all-reduce: give all_reduce.csv"
            )
        sizes, ms = _collective(all_reduce, "all_reduce", {"num_workers": parallel})
        token_s += 2 * (_along(grid * bytes_per_token, sizes, ms) * 1e-3 + ALL_REDUCE_S)
    send: Callable[[int], float] | None = None
    if stages > 1:
        if send_recv is None:
            raise InputError(f"{stages} pipeline stages need the profile of sending: give send_recv.csv")
        send_sizes, send_ms = _collective(send_recv, "send_recv", {"devices_per_node": 2})
        send = _sender(send_sizes, send_ms, bytes_per_token)
    same = {
        "n_q_head": model.heads,
        "n_kv_head": model.kv_heads,
        "n_embd": model.width,
        "num_tensor_parallel_workers": parallel,
    }
    decode = _table(
        attention, ["batch_size", "kv_cache_size", "time_stats.attn_decode.median"], same, ("is_prefill", False)
    )
    prefill = _table(
        attention, ["prefill_chunk_size", "kv_cache_size", "time_stats.attn_prefill.median"], same, ("is_prefill", True)
    )
    decode_s = _grid(decode, np.arange(1, sequences + 1), np.arange(0, most_keys + 1, KEYS_STEP)) * 1e-3
    return VidurTimes(model.layers, token_s, decode_s, _surface(prefill), model.kv_heads < model.heads, stages, send)


def _sender(sizes: NDArray, ms: NDArray, bytes_per_token: int) -> Callable[[int], float]:
    def seconds(tokens: int) -> float:
        return float(_along(np.array([tokens * bytes_per_token]), sizes, ms)[0]) * 1e-3

    return seconds


def _surface(rows_of: NDArray) -> Callable[[int, int], float]:
    """Prefill attention, linear between chunks at each cache length, then between cache lengths; seconds."""
    keys = np.unique(rows_of[:, 1])
    curves = [_averaged(own[:, 0], own[:, 2]) for own in (rows_of[rows_of[:, 1] == k] for k in keys)]

    def seconds(tokens: int, cached: int) -> float:
        values = np.array([_along(np.array([tokens]), *curve)[0] for curve in curves])
        return max(float(_along(np.array([cached]), keys, values)[0]), 0.0) * 1e-3

    return seconds


def _grid(rows_of: NDArray, first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """Decode attention on a grid, linear along the cache length, then along the batch."""
    batches = np.unique(rows_of[:, 0])
    curves = np.array(
        [_along(second, *_averaged(own[:, 1], own[:, 2])) for own in (rows_of[rows_of[:, 0] == b] for b in batches)]
    )  # (batches, lengths)
    return np.stack([_along(first, batches, curves[:, column]) for column in range(len(second))], axis=1)


def _averaged(at: NDArray, values: NDArray) -> tuple[NDArray, NDArray]:
    """One value a place, the mean of all there."""
    places, row = np.unique(at, return_inverse=True)
    return places, np.bincount(row, values) / np.bincount(row)


def _along(at: NDArray, places: NDArray, values: NDArray) -> NDArray[np.float64]:
    """Linear between places; beyond the last along the last two, before the first its value."""
    out = np.interp(at, places, values)
    if len(places) > 1:
        slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
        out = np.where(at > places[-1], values[-1] + max(slope, 0.0) * (at - places[-1]), out)
    return np.asarray(out, np.float64)


def _collective(path: Path, name: str, wanted: dict[str, int]) -> tuple[NDArray, NDArray]:
    found = _table(path, ["size", f"time_stats.{name}.median"], wanted)
    return _averaged(found[:, 0], found[:, 1])


def _table(path: Path, columns: list[str], wanted: dict[str, int], flag: tuple[str, bool] | None = None) -> NDArray:
    """Columns of the rows that have these values, shape ``(rows, columns)``."""
    where = str(path)
    reader = rows(text(content(path), where), where)
    out: list[list[float]] = []
    with csv_errors(where, lambda: reader.line_num):
        missing = [
            name for name in [*columns, *wanted, *([flag[0]] if flag else [])] if name not in (reader.fieldnames or ())
        ]
        if missing:
            raise InputError(f"{where} has no column {missing[0]!r}: give a profile of Vidur")
        for row in reader:
            if flag is not None and (row[flag[0]].strip().lower() in ("true", "1", "1.0")) is not flag[1]:
                continue
            try:
                if all(float(row[name]) == value for name, value in wanted.items()):
                    out.append([float(row[name]) for name in columns])
            except (TypeError, ValueError):
                raise InputError(
                    f"{where}, line {reader.line_num}: {quoted(dict(row))} has no numbers: export it again"
                ) from None
    if not out:
        named = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise InputError(f"{where} has no row with {named}: profile that, or choose a model that was profiled")
    table = np.array(out)
    if not np.isfinite(table).all() or (table < 0).any():
        raise InputError(f"{where}: a time is not a number, or below zero: export it again")
    return table
