"""The KV cache of a replica, in blocks of tokens.

:class:`KVCache` counts blocks.  :class:`PrefixCache` also knows what full blocks hold, so that a request finds the
beginning of its prompt computed already.  A block's key is a hash of all tokens from the beginning of the prompt to its
end (a chained hash), so equal keys mean equal prefixes.

Where some layers see a window, their positions that no token will see again are given back, as vLLM's cache manager for
hybrid models does (``vllm/v1/core/kv_cache_utils.py`` and ``single_type_kv_cache_manager.py``): layers that are alike
form groups of equally many, a block is of one group, and all groups take their blocks from the same memory.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from operator import index
from typing import NamedTuple

from triosim.core.errors import InputError, quoted
from triosim.serving.requests import Request


class LayerGroups(NamedTuple):
    """Groups of layers that share blocks of a cache: those that see all positions, and those with a window.

    Attributes:
        layers: of a group, and so of a block.
        windowed: groups of layers with a window, beside the one of those that see all positions.
        window: positions that such a layer sees, the token's own among them.
    """

    layers: int
    windowed: int
    window: int


EVICTIONS = ("lru", "lfu")
"""Whose content is given up first: the least recently freed block's, or that of the one least often found."""


def _whole(tokens: int) -> int:
    """A policy's number of tokens in Python's own numbers.

    Raises:
        InputError: it is not whole.
    """
    try:
        return index(tokens)
    except TypeError:
        raise InputError(f"the KV cache was asked to hold {tokens!r} tokens: give it a whole number") from None


class KVCache:
    """Blocks that are free or held.

    Args:
        blocks: all of them.
        block_tokens: tokens of a block.
        groups: of layers, each of which has blocks of its own; None for one group of all.
        states: blocks that a request holds beside those of its tokens for as long as it holds any, for states of fixed
            size (:mod:`triosim.serving.state_cache`).

    Attributes:
        free: blocks that nobody holds.
        peak: most blocks held at a time.
        hit_tokens, looked_up_tokens: prompt tokens found and looked for.
        moved: blocks copied to other memory and back.
        windowed, window: of :class:`LayerGroups`; 0 where all layers see all positions.
        reuses: whether it finds prefixes.
        waits: whether steps may have to wait for copies of its blocks.

    Raises:
        InputError: there is no block, or a block has no token.
    """

    reuses: bool = False
    waits: bool = False

    def __init__(
        self, blocks: int, block_tokens: int, groups: LayerGroups | None = None, states: int = 0
    ) -> None:  # fmt: skip
        if blocks < 1 or block_tokens < 1:
            raise InputError(
                f"a KV cache of {blocks} blocks of {block_tokens} tokens holds nothing: give it more memory, or a "
                "smaller model"
            )
        self.blocks = self.free = blocks
        self.block_tokens = block_tokens
        self.windowed, self.window = (0, 0) if groups is None else (groups.windowed, groups.window)
        self.states = states
        self.peak = self.hit_tokens = self.looked_up_tokens = self.moved = 0

    @property
    def tokens(self) -> int:
        """That fit into all blocks."""
        return self.longest(None)

    def longest(self, step: int | None) -> int:
        """Tokens of a request that all blocks hold, if steps compute at most so many (None: any number)."""
        places = max(self.blocks - self.states, 0) // (1 + self.windowed)
        if self.windowed and step is not None:
            kept = -(-(self.window - 1 + step) // self.block_tokens) + 1
            places = max(places, self.blocks - self.windowed * kept)
        return places * self.block_tokens

    def needs(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks to hold so many tokens."""
        return -(-tokens // self.block_tokens) - request.blocks

    def hold(self, request: Request, tokens: int) -> bool:
        """Give a request the blocks for its first ``tokens`` tokens; False, and nothing, where too few are free."""
        if self.windowed:
            self._give_back(request)
        if type(tokens) is not int:  # numpy's overflow
            tokens = _whole(tokens)
        more = -(-tokens // self.block_tokens) - request.blocks
        if more <= 0:
            return True
        taken = more + more * self.windowed
        if not request.blocks:
            taken += self.states
        if taken > self.free:
            return False
        self.free -= taken
        request.blocks += more
        if self.blocks - self.free > self.peak:
            self.peak = self.blocks - self.free
        return True

    def _give_back(self, request: Request) -> None:
        """Blocks of layers with a window whose positions the next token does not see any more."""
        behind = min(self._behind(request.computed), request.blocks)
        if behind > request.behind:
            self._returned(request, (behind - request.behind) * self.windowed)
            request.behind = behind

    def _behind(self, computed: int) -> int:
        """Blocks that lie before the window of the token after so many."""
        return max(computed - self.window + 1, 0) // self.block_tokens

    def _returned(self, request: Request, count: int) -> None:
        """The first blocks that layers with a window hold of a request are free."""
        self.free += count

    def match(self, request: Request) -> int:
        """Tokens of a request that need not be computed when it is admitted; changes nothing."""
        return 0

    def start(self, request: Request, tokens: int) -> bool:
        """Admit a request: as :meth:`hold`, and what :meth:`match` finds counts as computed."""
        return self.hold(request, tokens)

    def put_away(self, request: Request) -> bool:
        """Keep what a request that gives way has computed somewhere else; False where it is lost."""
        return False

    def copying(self) -> int:
        """Picoseconds that the next step waits for copies of blocks; told once."""
        return 0

    def receive(self, request: Request, tokens: int) -> int:
        """Hold blocks for ``tokens`` tokens of a request that was computed elsewhere; tokens that are here already, -1
        and nothing where too few blocks are free."""
        return 0 if self.hold(request, tokens) else -1

    def store(self, request: Request) -> None:
        """What a request has computed may be used by others; called by the replica when a step ends."""

    def release(self, request: Request) -> None:
        """Take back all blocks of a request."""
        self.free += request.blocks + self.windowed * (request.blocks - request.behind)
        if request.blocks:
            self.free += self.states
        request.blocks = request.behind = 0

    def forget(self) -> None:
        """The memory is lost, with all that requests hold of it."""
        self.free = self.blocks


class PrefixCache(KVCache):
    """Blocks whose content is kept after use until the block is needed.

    A request's last block is freed before its first, so prefixes live longest.  Blocks in use are shared, never copied.
    Requests without keys neither find nor leave anything.

    Two requests may compute the same at a time.  As a table of chained hashes the cache keeps both blocks, of which
    only the first is found.  As a radix tree it gives one back at once, so that who holds a block holds all before it,
    and only leaves of the tree are ever given up.

    Layers with a window find what they need wherever the others do, in blocks of the request's own: what a prefix holds
    of their last positions is neither shared nor kept.

    Args:
        blocks, block_tokens, groups: as of any cache.
        radix: whether it is a radix tree.
        eviction: one of :data:`EVICTIONS`; of blocks found equally often the least recently freed one is given up.

    Attributes:
        by_use: whether who is found least often is given up first.

    Raises:
        InputError: as of any cache, or ``eviction`` is not known.
    """

    reuses = True

    def __init__(
        self, blocks: int, block_tokens: int, radix: bool = False, eviction: str = "lru",
        groups: LayerGroups | None = None,
    ) -> None:  # fmt: skip
        super().__init__(blocks, block_tokens, groups)
        if eviction not in EVICTIONS:
            raise InputError(f"eviction {quoted(eviction)} is not known: give {' or '.join(EVICTIONS)}")
        self.radix = radix
        self.by_use = eviction == "lfu"
        self._uses: dict[int, int] = {}  # block -> how often its content was found
        self._order: list[tuple[int, int, int]] = []  # (uses, when freed, block), a heap; some are in use again
        self._freed: dict[int, int] = {}  # block -> when it was freed last
        self._frees = 0
        self._named = 0  # blocks that have been taken at least once; which is which matters for their order only
        self._idle: OrderedDict[int, int | None] = OrderedDict()  # free block -> its key, oldest first
        self._block: dict[int, int] = {}  # key -> block
        self._key: dict[int, int] = {}  # block in use -> key, if it has one
        self._others: dict[int, int] = {}  # block in use -> requests that hold it beside the first

    def match(self, request: Request) -> int:
        """Tokens of the longest stored prefix; at least one token of what is known stays to be computed."""
        return self._matching(request) * self.block_tokens

    def _matching(self, request: Request) -> int:
        most = (request.known - 1) // self.block_tokens
        found, stored = 0, self._block
        for key in request.keys[:most]:
            if key not in stored:
                break
            found += 1
        return found

    def takes(self, request: Request) -> int:
        """Free blocks that a request would take that is admitted with all that is known of it."""
        found = request.keys[: self._matching(request)]
        used = sum(self._block[key] not in self._idle for key in found)
        return self.needs(request, request.known) - used

    def start(self, request: Request, tokens: int) -> bool:
        """Admit a request: it shares the blocks of the longest stored prefix and takes free ones for the rest."""
        if not self._begin(request, tokens):
            return False
        request.computed = request.cached = request.stored * self.block_tokens
        self.hit_tokens += request.computed
        self.looked_up_tokens += min(request.known, len(request.keys) * self.block_tokens)
        return True

    def receive(self, request: Request, tokens: int) -> int:
        """As of any cache; what is here already is shared."""
        return request.stored * self.block_tokens if self._begin(request, tokens) else -1

    def _begin(self, request: Request, tokens: int) -> bool:
        tokens = _whole(tokens)
        found = self._matching(request)
        shared = [self._block[key] for key in request.keys[:found]]
        idle = sum(block in self._idle for block in shared)
        more = max(-(-tokens // self.block_tokens) - found, 0)
        behind = min(self._behind(found * self.block_tokens), found) if self.windowed else 0
        windowed = self.windowed * (found - behind)
        if more + more * self.windowed + windowed + idle > self.free:
            return False
        for block in shared:
            self._share(block)
        request.held = shared
        request.blocks = request.stored = found
        if windowed:
            self.free -= windowed
            self._take(request.held_windowed, windowed)
        request.behind = behind
        return self.hold(request, tokens)

    def hold(self, request: Request, tokens: int) -> bool:
        """As of any cache; blocks are taken oldest first, and what they held is forgotten."""
        before = request.blocks
        if not super().hold(request, tokens):
            return False
        more = request.blocks - before
        if more:
            self._take(request.held, more)
            if self.windowed:
                self._take(request.held_windowed, more * self.windowed)
        return True

    def _take(self, held: list[int], count: int) -> None:
        """Add so many blocks that were free."""
        fresh = min(count, self.blocks - self._named)
        held.extend(range(self._named, self._named + fresh))
        self._named += fresh
        for _ in range(count - fresh):
            block, key = self._given_up() if self.by_use else self._idle.popitem(last=False)
            if key is not None:
                del self._block[key]
            held.append(block)

    def _returned(self, request: Request, count: int) -> None:
        for block in request.held_windowed[:count]:
            self._free(block, None)
        del request.held_windowed[:count]

    def _given_up(self) -> tuple[int, int | None]:
        """The block that was found least often, and its key."""
        while True:
            _, freed, block = heappop(self._order)
            if block in self._idle and self._freed[block] == freed:
                self._uses.pop(block, None)
                return block, self._idle.pop(block)

    def _share(self, block: int) -> None:
        """One more request holds a block that has a key."""
        if self.by_use:
            self._uses[block] = self._uses.get(block, 0) + 1
        if block in self._idle:
            key = self._idle.pop(block)
            assert key is not None
            self._key[block] = key
            self.free -= 1
        else:
            self._others[block] = self._others.get(block, 0) + 1

    def _free(self, block: int, key: int | None) -> None:
        """Nobody holds a block any more."""
        self._idle[block] = key
        self.free += 1
        if self.by_use:
            self._frees += 1
            self._freed[block] = self._frees
            heappush(self._order, (-1 if key is None else self._uses.get(block, 0), self._frees, block))
        elif key is None and self.radix:
            self._idle.move_to_end(block, last=False)

    def store(self, request: Request) -> None:
        """Full blocks that are computed get their keys."""
        done = request.computed // self.block_tokens
        first = request.stored
        if done <= first or first >= len(request.keys):
            return
        done = min(done, len(request.keys))
        for place in range(first, done):
            key, block = request.keys[place], request.held[place]
            other = self._block.setdefault(key, block)
            if other == block:
                self._key[block] = key
            elif self.radix:  # another request has computed the same meanwhile
                self._free(block, None)
                self._share(other)
                request.held[place] = other
        request.stored = done

    def release(self, request: Request) -> None:
        """Take back all blocks of a request, the last first; what they hold may still be found."""
        others = self._others
        for block in reversed(request.held):
            if block in others:
                others[block] -= 1
                if not others[block]:
                    del others[block]
            else:
                self._free(block, self._key.pop(block, None))
        for block in reversed(request.held_windowed):
            self._free(block, None)
        request.held, request.held_windowed = [], []
        request.blocks = request.behind = request.stored = 0

    def forget(self) -> None:
        """As of any cache; nothing will be found."""
        super().forget()
        for kept in (self._uses, self._freed, self._idle, self._block, self._key, self._others):
            kept.clear()
        self._order.clear()
        self._named = 0
