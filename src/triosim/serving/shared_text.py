"""Made-up requests that repeat text: a prefix that many prompts begin with, and conversations.

``--shared-prefix 2048,share=0.9,texts=4``: every prompt, of a conversation the first, begins with so many tokens more;
that share of them with one of so many texts, each as likely, the others with text of their own.  Prompts are as long
whatever the share is.

``--turns 5,think=30s``: what arrives are conversations of so many requests.  Each request but the first comes so long
after the answer to the one before (0 where nothing is said), and its prompt is all that was said and what is new: the
lengths of prompts are of what is new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.limits import check_memory
from triosim.core.options import AtLeast, configured
from triosim.core.units import parse_time, picoseconds
from triosim.serving.requests import MOST_TOKENS, PromptHashes, RequestTable

TOKENS = 16
"""That a hash covers: what is shared is shared in pieces of so many tokens."""
PIECES = 1 << 28
"""Numbers that each text has for its hashes, more than the longest text has pieces."""


@dataclass(frozen=True)
class SharedPrefix:
    """Texts that prompts begin with in common, as a system prompt.

    Attributes:
        tokens: of the prefix.
        share: of the prompts that begin with a shared one.
        texts: shared ones that there are.
    """

    tokens: Annotated[int, AtLeast(1)]
    share: Annotated[float, AtLeast(0)] = 1.0
    texts: Annotated[int, AtLeast(1)] = 1


@dataclass(frozen=True)
class Conversations:
    """Requests that follow each other.

    Attributes:
        count: requests of each.
        think_s: seconds from an answer to the next request.
    """

    count: int
    think_s: float = 0.0


def parse_shared_prefix(text: str) -> SharedPrefix:
    """As it is typed.

    Raises:
        InputError: it makes no sense.
    """
    option = "--shared-prefix"
    first, *more = text.split(",")
    found = configured(SharedPrefix, {"tokens": first} | dict(one.partition("=")[::2] for one in more), option)
    if found.share > 1 or found.tokens > MOST_TOKENS:
        raise InputError(f"{option} {text}: the share is from 0 to 1, and the tokens at most {MOST_TOKENS}")
    return found


def parse_turns(text: str) -> Conversations:
    """As they are typed.

    Raises:
        InputError: it makes no sense.
    """
    option, (first, *more) = "--turns", text.split(",")
    options = dict(one.partition("=")[::2] for one in more)
    think = options.pop("think", "0")
    if not first.strip().isdigit() or int(first) < 1 or options:
        raise InputError(f"{option} {text}: give how many requests a conversation has, as 5 or 5,think=30s")
    return Conversations(int(first), parse_time(think, f"{option} {text}: think"))


def repeated(
    table: RequestTable, prefix: SharedPrefix | None, turns: Conversations | None, draw: np.random.Generator
) -> RequestTable:
    """Requests with what they repeat.

    Args:
        table: requests that follow nobody; of conversations, turn by turn, with the time of the conversation's first.
        prefix, turns: what is repeated, each None for nothing.
        draw: chooses texts.

    Raises:
        InputError: requests become too long to be counted.
    """
    count, each = len(table), turns.count if turns else 1
    row = np.arange(count)
    talk, turn = row // each, row % each
    talks = int(talk[-1]) + 1
    shared = np.full(talks, -1, np.int64)
    prompt = table.prompt.astype(np.int64)
    if prefix is not None:
        prompt[turn == 0] += prefix.tokens
        chosen = draw.random(talks) < prefix.share
        shared = np.where(chosen, draw.integers(0, prefix.texts, talks), -1)
    before = _before(prompt + table.output, talk)
    prompt += before
    if int((prompt + table.output).max()) > MOST_TOKENS:
        raise InputError(f"conversations grow to more than {MOST_TOKENS} tokens: give fewer turns or shorter ones")
    arrived, follows = table.arrived, table.follows
    if turns is not None:
        arrived = np.where(turn == 0, arrived, picoseconds(turns.think_s, "the time to think"))
        follows = np.where(turn == 0, -1, row - 1)
    hashes = _hashes(prompt + table.output, talk, shared, prefix, whole=turns is not None)
    return replace(
        table, arrived=arrived, follows=follows, prompt=prompt, hashes=hashes,
        session=talk if turns is not None else table.session,
    )  # fmt: skip


def _before(tokens: NDArray[np.int64], talk: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens of all earlier requests of the same conversation."""
    sums = np.cumsum(tokens) - tokens
    first = np.searchsorted(talk, talk)
    return sums - sums[first]


def _hashes(
    ends: NDArray[np.int64], talk: NDArray[np.int64], shared: NDArray[np.int64], prefix: SharedPrefix | None,
    whole: bool,
) -> PromptHashes:  # fmt: skip
    """Each piece's number says which text it is of, and where in it.

    Args:
        ends: tokens of prompt and output of each request.
        talk: conversation of each.
        shared: text that each conversation begins with, -1 for one of its own.
        prefix: how long it is.
        whole: whether all of a request is repeated by the next of its conversation, not only the prefix.
    """
    common = np.where(shared >= 0, prefix.tokens // TOKENS if prefix is not None else 0, 0)[talk]
    pieces = ends // TOKENS if whole else common
    check_memory(8.0 * int(pieces.sum()), f"hashes of {len(ends)} requests", "serve fewer, or shorter ones")
    offsets = np.concatenate([[0], np.cumsum(pieces)])
    owner = np.repeat(np.arange(len(ends)), pieces)
    piece = np.arange(int(offsets[-1])) - offsets[owner]
    texts = prefix.texts if prefix is not None else 0
    text = np.where(piece < common[owner], shared[talk[owner]], texts + talk[owner])
    return PromptHashes(Ragged(text * PIECES + piece, offsets), TOKENS, outputs=whole)
