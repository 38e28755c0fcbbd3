"""Requests: the table of what arrives, and the state of one request while it is served.

Tokens of a request are counted as engines count them.  *Known* tokens are the prompt and the output so far, *computed*
ones have their keys and values in the cache.  A request lacks ``known - computed`` tokens: its whole prompt at first,
one while it decodes.  When nothing is lacking any more, one token is sampled and known.  A request of ``n`` output
tokens is done when ``prompt + n`` tokens are known, so that the last one is never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import MOST_TICKS, picoseconds

MOST_TOKENS = 2**31 - 1
"""Tokens of a prompt or an output above which a number is a slip."""
NARROW = 2**30
"""Tokens below which prompt and output together fit 32 bits."""
ROWS = 1 << 20
"""Of a column that are made at a time, where there may be millions."""


@dataclass(frozen=True)
class PromptHashes:
    """What prompts begin with: equal hashes stand for equal tokens from the beginning of the prompt up to there.

    Attributes:
        rows: of each request one hash for every ``tokens`` tokens of its prompt, the last of which may be fewer.
        tokens: that a hash covers.
        outputs: whether hashes go on over the output, where it is known what a later prompt repeats.
    """

    rows: Ragged
    tokens: int
    outputs: bool = False


@dataclass(frozen=True)
class RequestTable:
    """Requests as columns of equal length.

    Attributes:
        arrived: picoseconds at which each arrives, ascending; of one that follows another, after that one's end.
            int64.
        prompt: tokens of the prompt, at least 1, int64; int32 of many, where they are less than :data:`NARROW`.
        output: tokens of the output, at least 1, likewise.
        session: number of the conversation that it belongs to, -1 for none, int64.
        follows: row of the request whose end it waits for, an earlier one; -1 for none, int64.
        hashes: what the prompts begin with, None where nothing is shared.
        model: of each request its place in ``models``, int64; None where any model will do.
        models: names of models.
        priority: of each request, the lowest first, int64; None where all are equal.
    """

    arrived: NDArray[np.int64]
    prompt: NDArray[np.integer[Any]]
    output: NDArray[np.integer[Any]]
    session: NDArray[np.int64]
    follows: NDArray[np.int64]
    hashes: PromptHashes | None = None
    model: NDArray[np.int64] | None = None
    models: tuple[str, ...] = ()
    priority: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.arrived)

    @staticmethod
    def of(
        arrived_s: ArrayLike,
        prompt: ArrayLike,
        output: ArrayLike,
        *,
        session: ArrayLike | None = None,
        follows: ArrayLike | None = None,
        hashes: PromptHashes | None = None,
        model: Sequence[str] | None = None,
        priority: Sequence[int] | None = None,
        place: Callable[[int], str] = lambda row: f"request {row}",
        sort: bool = False,
    ) -> RequestTable:
        """Check columns and put them in order.

        Args:
            arrived_s: seconds, not negative; of those that follow nobody ascending unless ``sort``.
            prompt: tokens of each prompt, whole numbers.
            output: tokens of each output, whole numbers.
            session: conversations; none where not given.
            follows: rows before their own, -1 for none; nobody follows anybody where not given.
            hashes: what the prompts begin with.
            model: name of the model that each asks for.
            priority: of each, the lowest first.
            place: where a row is, for messages.
            sort: put requests in order of arrival; equal times keep their order.

        Raises:
            InputError: there is no request; a time is negative, not a number or before the one above it; a count is no
                whole number from 1 to :data:`MOST_TOKENS`.
        """
        seconds = np.asarray(arrived_s, np.float64)
        if not seconds.size:
            raise InputError("there is no request: give at least one")
        arrived = np.empty(seconds.shape, np.int64)
        for begin in range(0, len(seconds), ROWS):
            arrived[begin : begin + ROWS] = picoseconds(
                seconds[begin : begin + ROWS],
                lambda row, begin=begin: f"{place(begin + row)}: the arrival time",  # type: ignore[misc]
                MOST_TICKS,
            )
        counts = [_counts(np.asarray(column), what, place) for column, what in ((prompt, "prompt"), (output, "output"))]
        session_of, after = (
            np.broadcast_to(np.int64(-1), arrived.shape) if column is None else np.asarray(column, np.int64)
            for column in (session, follows)
        )
        models = tuple(dict.fromkeys(model)) if model is not None else ()
        asked = None if model is None else np.array([models.index(name) for name in model], np.int64)
        ranks = None if priority is None else np.asarray(priority, np.int64)
        asks = arrived if follows is None else arrived[after < 0]
        falls = np.flatnonzero(asks[1:] < asks[:-1])
        first = np.flatnonzero(after < 0) if falls.size else after
        if falls.size and not sort:
            row, above = int(first[falls[0] + 1]), int(first[falls[0]])
            raise InputError(
                f"{place(row)} arrives before the one above it ({seconds[row]:g} s after {seconds[above]:g} s): put "
                "the requests in order of arrival, or give --sort"
            )
        if falls.size:
            place_of = np.arange(len(arrived))
            place_of[first] = first[np.argsort(arrived[first], kind="stable")]
            rank = np.empty_like(place_of)
            rank[place_of] = np.arange(len(place_of))
            arrived, session_of, after = arrived[place_of], session_of[place_of], after[place_of]
            after = np.where(after < 0, -1, rank[after])
            counts = [column[place_of] for column in counts]
            asked, ranks = (None if column is None else column[place_of] for column in (asked, ranks))
            hashes = None if hashes is None else replace(hashes, rows=hashes.rows.take(place_of))
        return RequestTable(arrived, counts[0], counts[1], session_of, after, hashes, asked, models, ranks)


def _counts(column: NDArray, what: str, place: Callable[[int], str]) -> NDArray[np.integer[Any]]:
    wrong = ~((column >= 1) & (column <= MOST_TOKENS))
    if column.dtype.kind != "i":
        column = column.astype(np.float64)
        wrong |= column != np.floor(column)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{place(row)}: the {what} has {column[row]:g} tokens: give a whole number from 1 to {MOST_TOKENS}"
        )
    narrow = column.dtype == np.int32 and int(column.max()) < NARROW
    return column if narrow else column.astype(np.int64, copy=False)


class Request:
    """One request while it is served by a replica.

    Attributes:
        row: in the table.
        number: how many arrived before it.
        arrived: picoseconds.
        prompt, end: tokens of the prompt, and of prompt and output together.
        session: conversation, -1 for none.
        priority: the lowest goes first, where the engine looks at it.
        known, computed: tokens; see the module's docstring.
        prefill: tokens that were known when it was (re)started: it decodes once so many are computed.
        blocks: of the cache that it holds.
        keys: hashes of its full blocks, for a cache that reuses prefixes; empty otherwise.
        held, stored: its blocks by name, and how many of them, from the first, have keys; of such a cache.
        behind: how many of its blocks, from the first, layers with a window have given back.
        held_windowed: blocks of these layers by name, of a cache that names them.
        cached: prompt tokens that it found in the cache when it was last admitted.
        asked: restarts, and one, when other tiers of KV cache were last asked for its blocks.
        away: tokens that it had computed when it gave way and whose blocks are on the host.
        busy: whether it is in a step that has not ended.
        scheduled, first_token, finished: picoseconds, -1 until then.
        last_end: end of the last step that it was in, -1 before.
        last_token: when its last token came.
        waited: picoseconds between its steps.
        restarts: how often it lost what it had computed.
        displaced: how often of these with its replica, which failed or whose devices went to another model.
    """

    __slots__ = (
        "arrived", "asked", "away", "behind", "blocks", "busy", "cached", "computed", "displaced", "end", "finished",
        "first_token", "held", "held_windowed", "keys", "known", "last_end", "last_token", "number", "prefill",
        "priority", "prompt", "restarts", "row", "scheduled", "session", "stored", "waited",
    )  # fmt: skip

    def __init__(
        self, row: int, number: int, arrived: int, prompt: int, output: int, session: int = -1,
        keys: Sequence[int] = (), priority: int = 0,
    ) -> None:  # fmt: skip
        self.row = row
        self.number = number
        self.arrived = arrived
        self.prompt = self.known = self.prefill = prompt
        self.end = prompt + output
        self.session = session
        self.keys = keys
        self.priority = priority
        self.held: list[int] = []
        self.held_windowed: list[int] = []
        self.computed = self.blocks = self.behind = self.stored = self.cached = self.waited = self.restarts = 0
        self.away = self.asked = self.displaced = 0
        self.scheduled = self.first_token = self.finished = self.last_end = self.last_token = -1
        self.busy = False

    @property
    def lacks(self) -> int:
        """Known tokens that are not computed."""
        return self.known - self.computed

    @property
    def decoding(self) -> bool:
        """Whether everything that was known at its (re)start is computed."""
        return self.computed >= self.prefill

    @property
    def remaining(self) -> int:
        """Output tokens to come."""
        return self.end - self.known

    def lost(self) -> None:
        """Its replica is gone with all that was computed: it begins again elsewhere, with the output that it has."""
        if self.computed or self.busy:
            self.restarts += 1
            self.displaced += 1
        self.prefill = self.known
        self.computed = self.blocks = self.behind = self.stored = self.cached = self.away = self.asked = 0
        self.held, self.held_windowed = [], []
        self.busy = False

    def without_blocks(self) -> Request:
        """Another that holds the blocks that this one held."""
        other = Request(self.row, self.number, self.arrived, self.prompt, self.end - self.prompt, keys=self.keys)
        other.blocks, other.held, other.stored = self.blocks, self.held, self.stored
        other.behind, other.held_windowed = self.behind, self.held_windowed
        self.blocks, self.held, self.stored, self.behind, self.held_windowed = 0, [], 0, 0, []
        return other

    def handed_over(self, output: int) -> Request:
        """One that goes on from the first token elsewhere, to so many output tokens; it holds nothing yet."""
        other = Request(
            self.row, self.number, self.arrived, self.prompt, output, self.session, self.keys, self.priority
        )
        other.known = self.prompt + 1
        for name in ("scheduled", "first_token", "last_token", "waited", "restarts", "displaced", "cached"):
            setattr(other, name, getattr(self, name))
        return other
