"""Step times from the project's own kernel models, tabulated on first use.

A step takes, on each pipeline stage, its layers times: the operators that depend on the number of tokens, two
all-reduces, and attention; the first stage adds the embedding, the last the logits and tokens of the positions that
are sampled, the others sending on.  Engines that capture graphs pad tokens to the sizes that were captured.  The host
prepares the next step while the device runs this one, so that a step takes the longer of the two.

Tables hold seconds on grids, linear between their places; what lies beyond is priced as it comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.result_cache import ResultCache, content
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.step_times import NO_HOST, StepHost, StepShape, StepTimes

if TYPE_CHECKING:
    from triosim.serving.communication import ReplicaCommunication

GRAPH_TOKENS = 512
"""Tokens up to which vLLM captures graphs by default: 1, 2, 4, multiples of 8, from 256 on of 16
(``cudagraph_capture_sizes`` that its version 0.19 says of itself)."""
COARSE_TOKENS = 256
"""From which on they are multiples of 16."""


def graph_size(tokens: int) -> int:
    """Tokens of the captured graph that a step runs in."""
    if tokens <= 4:
        return 4 if tokens == 3 else tokens
    step = 8 if tokens <= COARSE_TOKENS else 16
    return -(-tokens // step) * step


def _geometric(first: int, last: int, ratio: float) -> NDArray[np.int64]:
    """Whole numbers from ``first`` to ``last`` with about this ratio."""
    steps = int(np.ceil(np.log(last / first) / np.log(ratio))) + 1
    return np.unique(np.rint(np.geomspace(first, last, steps)).astype(np.int64))


def _edges(first: int, last: int) -> NDArray[np.int64]:
    """Multiples of ``TILE`` and the places after them: kernels work in tiles, so that time jumps there."""
    multiples = np.arange(first, last + 1, TILE)
    return np.sort(np.concatenate([multiples, multiples + 1]))


TILE = 128
TOKENS = np.unique(np.concatenate([np.arange(1, 2049), _edges(2048, 16384)]))
KEYS = np.unique(
    np.concatenate([[1], np.arange(16, 256, 16), np.arange(256, 4097, 64), _geometric(4224, 1 << 20, 1.03)])
)
SEQUENCES = np.unique(
    np.concatenate(
        [np.arange(1, 65), np.arange(68, 129, 4), np.arange(136, 257, 8), np.arange(272, 1025, 16), [2048, 4096]]
    )
)
CHUNKS = np.unique(np.concatenate([[1], np.arange(16, 129, 16), _edges(128, 2048), _geometric(2176, 16384, 1.12)]))
CACHED = np.unique(np.concatenate([np.arange(0, 2048, 128), _geometric(2048, 1 << 20, 1.1)]))


TOKENS_FILLED, SEQUENCES_FILLED = 2048, 256
"""Up to which the ends of steps are priced all at once."""
KERNELS_A_STEP = 5
"""Beside those of layers: embedding, last norm, logits, sampler, and what prepares the step's inputs."""


class GridSeconds(NamedTuple):
    """Times of kernels on the grids, in seconds.

    Attributes:
        layer: a layer but for attention, shape (tokens,).
        decode: attention of decodes, shape (sequences, keys).
        prefill: attention of one chunk, shape (chunks, cached).
    """

    layer: NDArray[np.float64]
    decode: NDArray[np.float64]
    prefill: NDArray[np.float64]


_PRICED = ResultCache[GridSeconds](32, np.inf, lambda priced: 1)
"""Of 0.4 MB each.  A run with its interval prices five; the next run of the same model and device asks for the same."""


def grid_seconds(kernels: ServingKernels) -> GridSeconds:
    """Seconds of kernels on the grids; equal kernels are priced once."""

    def price() -> GridSeconds:
        sequences, keys = np.meshgrid(SEQUENCES, KEYS, indexing="ij")
        chunks, cached = np.meshgrid(CHUNKS, CACHED, indexing="ij")
        return GridSeconds(
            kernels.layer(TOKENS),
            kernels.decode(sequences.ravel(), keys.ravel()).reshape(sequences.shape),
            kernels.prefill(chunks.ravel(), cached.ravel()).reshape(chunks.shape),
        )

    return _PRICED.get(content(kernels), price)


@dataclass(frozen=True)
class StepTables:
    """The tables, on one pipeline stage, and what else a step's ticks are made of; for :mod:`triosim.serving.native`.

    Attributes:
        tokens: ticks of all layers but attention by tokens, shape (tokens,).
        decodes: ticks of attention, shape (sequences, keys).
        prefill: ticks of attention of one chunk, shape (chunks, cached).
        sequences, keys, chunks, cached: places of the grids, ascending.
        graph_tokens: up to which steps run in captured graphs, 0 where there is none.
        graph_sizes: of graphs of decodes alone; none where those of vLLM are.
        host, prompt_host, gap: ticks of the host in a step, in one that holds prompts, and between two.
        host_sequence, gap_sequence: ticks more of these for each sequence.
        one_call: whether prompts and decodes share a kernel, whose time is no sum.
    """

    tokens: NDArray[np.float64]
    decodes: NDArray[np.float64]
    prefill: NDArray[np.float64]
    sequences: NDArray[np.int64]
    keys: NDArray[np.int64]
    chunks: NDArray[np.int64]
    cached: NDArray[np.int64]
    graph_tokens: int
    graph_sizes: NDArray[np.int64]
    host: int
    prompt_host: int
    gap: int
    host_sequence: int
    gap_sequence: int
    one_call: bool


@dataclass
class ModelTimes(StepTimes):
    """See the module's docstring.

    Attributes:
        kernels: of one device.
        communication: between the devices of the replica; None for one device.
        stages: of the pipeline.
        graphs: whether steps of few tokens run in captured graphs, whose sizes they are padded to.
        graph_sizes: of graphs of decodes alone, ascending; those of vLLM, which prompts of few tokens run in too, where
            there is none.
        host_s: seconds that the host takes for a step, while the device runs.
        issue_s, collective_s: seconds that the host takes to launch one kernel, and one collective, of an eager engine,
            while the device runs; 0 where graphs or compiled code launch them.
        gap_s: seconds between two steps that nothing hides.
        slower: factor of what the devices take.
        engine_host: what the engine's host does for each step, beside.
        host_ticks: picoseconds of the host in a step, launches included.
        prompt_ticks: likewise in one that holds prompts.

    Raises:
        InputError: layers do not divide among stages.
    """

    kernels: ServingKernels
    communication: ReplicaCommunication | None = None
    stages: int = 1
    graphs: bool = True
    host_s: float = 0.0
    issue_s: float = 0.0
    collective_s: float = 0.0
    gap_s: float = 0.0
    slower: float = 1.0
    engine_host: StepHost = NO_HOST
    graph_sizes: tuple[int, ...] = ()
    host_ticks: int = field(init=False, repr=False, default=0)
    prompt_ticks: int = field(init=False, repr=False, default=0)
    _tokens: list[float] = field(init=False, repr=False, default_factory=list)
    _sampling: dict[int, int] = field(init=False, repr=False, default_factory=dict)
    _alone: dict[int, int] = field(init=False, repr=False, default_factory=dict)
    _known_chunks: dict[tuple[int, int], float] = field(init=False, repr=False, default_factory=dict)
    _rows: dict[int, list[float]] = field(init=False, repr=False, default_factory=dict)
    _batches: dict[int, tuple[int, list[float], int, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        layers = self.kernels.model.layers
        if layers % self.stages:
            raise InputError(
                f"{layers} layers do not divide among {self.stages} pipeline stages: choose another number"
            )
        self._own = layers // self.stages
        self._scale = self._own * self.slower * float(PICOSECONDS_PER_SECOND)
        self._one_call = self.kernels.one_call
        reduces = self.kernels.reduces if self.kernels.tensor_parallel > 1 else 0
        launched = self._own * (self.kernels.launches + 1) + KERNELS_A_STEP
        launching = launched * self.issue_s + self._own * reduces * self.collective_s
        step, sequence, hidden, gap, launch = self.engine_host
        host_s = self.host_s + launching + (step if hidden else 0)
        self.host_ticks = picoseconds(host_s, "the host's time of a step")
        launched = self._own * (self.kernels.eager_launches + reduces) + KERNELS_A_STEP
        self.prompt_ticks = picoseconds(host_s + launched * launch, "the host's time of a step")
        self._gap = picoseconds(self.gap_s + gap + (0 if hidden else step), "the time between steps")
        of_sequence = picoseconds(sequence, "the host's time of a sequence")
        self._host_sequence, self._gap_sequence = (of_sequence, 0) if hidden else (0, of_sequence)

    def ticks(self, step: StepShape, stage: int) -> int:
        """See the module's docstring."""
        _, chunks, count, context, _, drafted, _ = step
        if not chunks and not drafted and self.stages == 1:
            base, row, host, gap = self._batches.get(count) or self._batch(count)
            places, keys = self._keys, context / count
            above = bisect_right(places, keys)
            if above < len(row):  # as in :meth:`_at`, whose call would take a third of this one
                low, before = places[above - 1], row[above - 1]
                ticks = base + round(before + (row[above] - before) * (keys - low) / (places[above] - low))
            else:
                ticks = base + round(self._at(row, keys))
            return (ticks if ticks > host else host) + gap
        return self.with_host(self.device_ticks(step, stage), step.decodes + len(step.chunks), bool(step.chunks))

    def after(self, step: StepShape, before: int) -> int:
        """As of any step times."""
        return self.with_host(self.device_ticks(step, 0), step.decodes + len(step.chunks), bool(step.chunks), before)

    def device_ticks(self, step: StepShape, stage: int) -> int:
        """Picoseconds that a stage computes a step and sends it on, what the host takes left out; at least 1."""
        if not self._tokens:
            self._fill()
        tokens = self.computed(step)
        total = self._tokens[tokens] if tokens < len(self._tokens) else self._beyond(tokens)
        if step.chunks and self._one_call:
            context = step.context / max(step.decodes, 1)
            total += self._scale * self.kernels.together(step.chunks, step.decodes, context)
        else:
            if step.decodes:
                passes = self.kernels.passes(1 + len(step.drafted)) if step.drafted else 1
                total += passes * self._decode(step.decodes, step.context / step.decodes)
            if step.chunks:
                total += self._chunks(step.chunks)
        ticks = round(total)
        if stage == 0:
            ticks += self._ends(tokens, embedding=True)
        if stage < self.stages - 1:
            assert self.communication is not None
            sent = self.communication.send(2.0 * step.tokens * self.kernels.model.width)
            ticks += picoseconds(self.slower * sent, "a send")
        elif step.sampled:
            ticks += self._ends(step.sampled, embedding=False)
        return max(ticks, 1)

    def decodes(self, count: int, context: int, most: int, before: int) -> list[int]:
        """As of any step times, from one row of the table."""
        base, row, host, gap = self._batches.get(count) or self._batch(count)
        keys = self._keys
        out: list[int] = []
        last, at = len(row) - 1, context / count
        place, low, high, start, rise = max(bisect_right(keys, at) - 1, 0), 0, 0, 0.0, 0.0
        while True:
            if at >= high:
                while place < last and keys[place + 1] <= at:
                    place += 1
                low, high = (keys[place], keys[place + 1]) if place < last else (0, keys[-1])
                start, rise = (row[place], row[place + 1] - row[place]) if place < last else (0.0, row[-1])
            ticks = base + round(start + rise * (at - low) / (high - low))
            ticks = (ticks if ticks > host else host) + gap
            before -= ticks
            if before <= 0:
                return out
            out.append(ticks)
            if len(out) == most:
                return out
            context += count
            at = context / count

    def _batch(self, count: int) -> tuple[int, list[float], int, int]:
        """Of so many decodes: ticks but for attention, these by keys, at least so many, and after them."""
        base = self.decodes_but_attention(count)
        row = self._rows[count] = self._rows.get(count) or self._row(count)
        host = self.host_ticks + self._host_sequence * count
        gap = self._gap + self._gap_sequence * count
        found = self._batches[count] = base, row, host, gap
        return found

    def with_host(self, ticks: int, sequences: int, prompts: bool, before: int = 0) -> int:
        """Picoseconds of a step of so many sequences on the device, prompts among them or not, with its host, which
        began to launch them so much before."""
        host = max(self.prompt_ticks - before, self.host_ticks) if prompts else self.host_ticks
        host += self._host_sequence * sequences
        return max(ticks, host) + self._gap + self._gap_sequence * sequences

    @cached_property
    def step_tables(self) -> StepTables:
        """What :mod:`triosim.serving.native` reads."""
        if not self._tokens:
            self._fill()
        graph_tokens = GRAPH_TOKENS if self.graphs else 0
        return StepTables(
            np.array(self._tokens), self._decodes, np.array(self._prefill), SEQUENCES, KEYS, CHUNKS, CACHED,
            graph_tokens, np.array(self.graph_sizes if self.graphs else (), np.int64), self.host_ticks,
            self.prompt_ticks, self._gap, self._host_sequence, self._gap_sequence, self._one_call,
        )  # fmt: skip

    def ends_of(self, count: int) -> int:
        """Ticks of the embedding of so many tokens, or below zero of the sampling of so many positions."""
        return self._ends(abs(count), embedding=count > 0)

    def decodes_but_attention(self, count: int) -> int:
        """Ticks of a step of so many decodes, but for their attention."""
        base = self._alone.get(count)
        if base is None:
            base = self._alone[count] = self._of_decodes(count)
        return base

    def _of_decodes(self, count: int) -> int:
        if not self._tokens:
            self._fill()
        tokens = self.padded(count)
        layers = self._tokens[tokens] if tokens < len(self._tokens) else self._beyond(tokens)
        return max(round(layers), 1) + self._ends(tokens, embedding=True) + self._ends(count, embedding=False)

    def padded(self, tokens: int) -> int:
        """Tokens that a step of decodes computes: those of the captured graph, if it runs in one."""
        if self.graph_sizes and self.graphs:
            place = bisect_left(self.graph_sizes, tokens)
            return self.graph_sizes[place] if place < len(self.graph_sizes) else tokens
        return graph_size(tokens) if self.graphs and tokens <= GRAPH_TOKENS else tokens

    def computed(self, step: StepShape) -> int:
        """As of any step times."""
        return step.tokens if self.graph_sizes and step.chunks else self.padded(step.tokens)

    def seconds(self, step: StepShape) -> float:
        """Of a step on all stages, priced directly, without tables, host and gap."""
        tokens = np.array([self.computed(step)])
        total = float(self._of_tokens(tokens)[0])
        total += self.kernels.together(step.chunks, step.decodes, step.context / max(step.decodes, 1))
        total *= self.kernels.model.layers
        total += float(self.kernels.embedding(tokens)[0])
        if step.sampled:
            total += float(self.kernels.sampling([step.sampled])[0])
        if self.communication is not None:
            total += (self.stages - 1) * self.communication.send(2.0 * step.tokens * self.kernels.model.width)
        return total

    # --- tables ----------------------------------------------------------------------------------------------------

    def _of_tokens(self, tokens: NDArray) -> NDArray[np.float64]:
        """Seconds of a layer but for attention."""
        return self._with_reduces(tokens, self.kernels.layer(tokens))

    def _with_reduces(self, tokens: NDArray, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of a layer with those of its all-reduces."""
        if self.communication is not None:
            seconds = seconds + self.kernels.reduces * self.communication.all_reduce(
                2.0 * tokens * self.kernels.model.width
            )
        return seconds

    def _fill(self) -> None:
        """Ticks of all layers of a stage, as floats: shapes are (tokens,), (sequences, keys), (chunks, cached)."""
        scale, every, priced = self._scale, np.arange(TOKENS[-1] + 1), grid_seconds(self.kernels)
        self._tokens = (scale * np.interp(every, TOKENS, self._with_reduces(TOKENS, priced.layer))).tolist()
        self._decodes = scale * priced.decode
        self._prefill = (scale * priced.prefill).tolist()
        if self.stages == 1:
            self._fill_ends()
        self._chunk_sizes, self._cached_sizes, self._keys = CHUNKS.tolist(), CACHED.tolist(), KEYS.tolist()

    def _fill_ends(self) -> None:
        """The embedding of as many tokens, and the sampling of as many positions, as most steps have."""
        for price, most, sign in (
            (self.kernels.embedding, TOKENS_FILLED, 1),
            (self.kernels.sampling, SEQUENCES_FILLED, -1),
        ):
            counts = np.arange(1, most + 1)
            ticks = picoseconds(self.slower * price(counts), lambda row: "the ends of a step")
            self._sampling |= dict(zip((sign * counts).tolist(), ticks.tolist(), strict=True))

    def _beyond(self, tokens: int) -> float:
        return self._scale * float(self._of_tokens(np.array([tokens]))[0])

    def _decode(self, sequences: int, keys: float) -> float:
        row = self._rows.get(sequences)
        if row is None:
            row = self._rows[sequences] = self._row(sequences)
        return self._at(row, keys)

    def _at(self, row: list[float], keys: float) -> float:
        """Between the lengths in a row, the first of which is 1 key."""
        places = self._keys
        above = bisect_right(places, keys)
        if above >= len(row):
            return row[-1] * keys / places[-1]
        low, before = places[above - 1], row[above - 1]
        return before + (row[above] - before) * (keys - low) / (places[above] - low)

    def _row(self, sequences: int) -> list[float]:
        """Decodes of one batch size at all lengths, between those of the nearest sizes in the table."""
        if sequences >= SEQUENCES[-1]:
            return (self._decodes[-1] * (sequences / SEQUENCES[-1])).tolist()
        place = int(np.searchsorted(SEQUENCES, sequences, side="right")) - 1
        low, high = SEQUENCES[place], SEQUENCES[place + 1]
        share = (sequences - low) / (high - low)
        return (self._decodes[place] * (1 - share) + self._decodes[place + 1] * share).tolist()

    def _chunks(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """One call for all: it is launched once."""
        total = 0.0
        for chunk in chunks:  # in this order: sum() rounds otherwise from Python 3.12 on
            known = self._known_chunks.get(chunk)
            total += self._chunk(*chunk) if known is None else known
        return max(total - (len(chunks) - 1) * self._prefill[0][0], self._prefill[0][0])

    def _chunk(self, tokens: int, cached: int) -> float:
        found = self._between_chunks(tokens, cached)
        if not cached:  # most prompts are of lengths that others had
            self._known_chunks[tokens, cached] = found
        return found

    def _between_chunks(self, tokens: int, cached: int) -> float:
        if tokens > self._chunk_sizes[-1] or cached > self._cached_sizes[-1]:
            return self._scale * float(self.kernels.prefill([tokens], [cached])[0])
        row, share = _cell(self._chunk_sizes, tokens)
        column, part = _cell(self._cached_sizes, cached)
        first, second = self._prefill[row], self._prefill[row + 1]
        low = first[column] + (first[column + 1] - first[column]) * part
        high = second[column] + (second[column + 1] - second[column]) * part
        found: float = low + (high - low) * share
        return found

    def _ends(self, count: int, embedding: bool) -> int:
        """The embedding of so many tokens, or the sampling of so many positions."""
        key = count if embedding else -count
        found = self._sampling.get(key)
        if found is None:
            price = self.kernels.embedding if embedding else self.kernels.sampling
            found = self._sampling[key] = picoseconds(self.slower * float(price([count])[0]), "the ends of a step")
        return found


def _cell(places: list[int], at: int) -> tuple[int, float]:
    """The place at or below, and how far it is to the next; beyond the last two along them."""
    place = min(bisect_right(places, at) - 1, len(places) - 2)
    return place, (at - places[place]) / (places[place + 1] - places[place])
