"""Serving in C++: the same results as :mod:`triosim.serving.fleet`, to the last picosecond, many times faster.

It is there where a compiler was when TrioSim was installed.  Played are fleets under built-in routers on one pipeline
stage, whose replicas do both prompts and decodes.  Where policies are those of :data:`ENGINES`, all is played in C++.
Other policies, users' too, are asked in Python for each step, and C++ does what lies between; requests are Python's
objects then.  Whatever else there is, is played in Python, and so is a run that cannot go on: Python knows to say why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.garbage import collection_paused
from triosim.serving.kv_cache import KVCache, PrefixCache
from triosim.serving.model_times import ModelTimes, StepTables
from triosim.serving.policy import Policy
from triosim.serving.quantiles import MOST_EXACT, RATIO, Samples
from triosim.serving.replica import Replica, TooLong
from triosim.serving.requests import Request, RequestTable
from triosim.serving.router import RequestRouter
from triosim.serving.step_times import StepShape, StepTimes

_native: Any
try:
    from triosim.serving import _serving as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None

Progress = Callable[[int, int], None]
MadeRequest = Callable[[int, int, int, int, int], Request]
"""Makes a request of its row, its number, its arrival, and the tokens of its prompt and its output."""
Ended = Callable[..., None]
"""Told of requests that have ended, as columns: row, replica, arrived, scheduled, first_token, finished, waited,
restarts."""

HOME = "triosim.serving.engines."
ENGINES = (
    "vllm", "sarathi", "orca", "sglang", "trtllm", "vllm_v0", "vllm_2023", "lightllm", "faster_transformer",
)  # fmt: skip
"""Policies that C++ has too, by the names of their files: all that come with the program."""
ROUTERS = ("round_robin", "random", "two_choices", "least_outstanding", "prefix_aware", "session")
"""Routers, likewise."""
STUCK = "nobody is scheduled for ever"
"""Why a run ended before its time, in the words of C++; else it is too long."""
MOST_KEY = 1 << 61
"""Above the largest key of a block that 64 bits hold for certain."""


@dataclass(frozen=True)
class _Requests:
    """The table as C++ reads it; hashes are None where prompts share nothing."""

    arrived: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    follows: NDArray[np.int64] | None
    hashes: NDArray[np.int64] | None
    offsets: NDArray[np.int64] | None
    covers: int
    outputs: bool
    size: int
    narrow: bool


@dataclass(frozen=True)
class _Times:
    """Step times: tables, and whom to ask for what is not in them."""

    tables: StepTables | None
    ticks: Callable[[StepShape, int], int]
    after: Callable[[StepShape, int], int]
    padded: Callable[[int], int]
    ends: Callable[[int], int] | None = None
    base: Callable[[int], int] | None = None


@dataclass(frozen=True)
class _Replica:
    """A replica: its policy's options, its cache and its times."""

    engine: str
    max_running: int
    max_tokens: int
    longest: int
    steady: bool
    times: _Times
    blocks: int
    windowed: int
    window: int
    states: int
    reuses: bool
    radix: bool
    by_use: bool
    most_exact: int
    ratio: float
    watermark: float = 0.0
    share: float = 0.0
    no_evict: bool = False
    chunked: bool = False
    padded: bool = False
    decode_steps: int = 0
    ahead: bool = False


@dataclass(frozen=True)
class _AskedReplica:
    """A replica whose policy is asked in Python."""

    replica: Replica
    steady: bool
    ahead: bool
    times: _Times
    most_exact: int
    ratio: float


@dataclass(frozen=True)
class _Routing:
    """How a replica is chosen; ``choices`` are those of a router that looks at no load, or numbers of conversations."""

    kind: str
    choices: NDArray[np.int64] | None = None
    slack: int = 0


@dataclass(frozen=True)
class NativeRun:
    """A run of the fleet in C++, as columns.

    Attributes:
        rows: by name the columns of :class:`triosim.serving.fleet.FleetRun` that have a row for each request; those
            that somebody was told as requests ended are left out.
    """

    rows: dict[str, NDArray[np.int64]]


def available() -> bool:
    """Whether C++ is there, and ``TRIOSIM_ENGINE`` does not ask for Python.

    Raises:
        InputError: the variable names no engine that is here.
    """
    if os.environ.get("TRIOSIM_ENGINE", "").strip():
        from triosim.engine.play import selected_engine  # which loads all engines

        return selected_engine() == "native" and _native is not None
    return _native is not None


def play(
    table: RequestTable, replicas: Sequence[Replica], router: RequestRouter, progress: Progress | None = None,
    made: MadeRequest | None = None, ended: Ended | None = None,
) -> NativeRun | None:  # fmt: skip
    """Play a run in which all replicas serve any request.

    Args:
        table: what arrives when.
        replicas: fresh ones; what they did is written into them, as if they had done it.
        router: fresh; chooses among them.
        progress: told now and then.
        made: makes the object of a request, for policies that are asked in Python.
        ended: told of requests as they end, in place of rows that are kept but for ``replica`` and ``cached``.

    Returns:
        None, and nothing is changed, where Python has to play it.

    Raises:
        InputError: a request can never run, or a policy broke a rule.
    """
    if not available():
        return None
    inside = all(_suits(replica, replicas[0]) for replica in replicas)
    if not inside and (made is None or not all(_can_be_asked(replica, replicas[0]) for replica in replicas)):
        return None
    name = _name(router, "triosim.serving.routers.", ROUTERS)
    end = table.prompt + table.output
    longest = int(np.argmax(end))  # what has room for this has room for all
    largest = int(np.argmax(table.prompt))
    del end
    if not name:
        return None
    if inside and any(_refused(table, replica, row) for replica in replicas for row in {longest, largest}):
        return None
    requests = _requests(table, replicas[0].cache, inside)
    if requests is None:
        return None
    kinds: dict[int, _Times] = {}
    played = [(_replica if inside else _asked)(replica, kinds) for replica in replicas]
    routing = _routing(name, deepcopy(router), len(replicas), table)  # Python's choices begin anew if it plays
    with collection_paused():
        found = _native.play(requests, played, routing, StepShape, progress, None if inside else made, ended)
    if found is None:
        return None
    rows, counts, why = found
    for replica, counted in zip(replicas, counts, strict=True):
        _write_back(replica, counted)
    if why is not None:  # nobody can play that again
        stuck = (error for replica in replicas if why == STUCK and (error := replica.stuck()))
        raise next(stuck, None) or TooLong()
    zeros = np.broadcast_to(np.int64(0), table.arrived.shape)
    rows = {key: zeros if column is None else column for key, column in rows.items()}
    if requests.follows is None:
        rows["arrived"] = table.arrived
    return NativeRun(rows)


def _name(thing: object, home: str, known: Sequence[str]) -> str:
    """The name of a built-in part that is not a subclass of one; empty for any other."""
    module = type(thing).__module__
    name = module.removeprefix(home)
    return name if module.startswith(home) and name in known else ""


def _suits(replica: Replica, first: Replica) -> bool:
    policy, cache = replica.policy, replica.cache
    return (
        _name(policy, HOME, ENGINES) != ""
        and type(replica) is Replica
        and replica.stages == 1
        and not policy.by_priority
        and type(cache) in (KVCache, PrefixCache)
        and cache.reuses == first.cache.reuses
        and cache.block_tokens == first.cache.block_tokens == policy.block_tokens
        and replica.on_step is None
        and replica.recorder is None
        and replica.speculation is None
        and replica.slots is None
        and not (replica.steps or replica.outstanding)
    )


def _can_be_asked(replica: Replica, first: Replica) -> bool:
    """Whether all that a step brings about is the policy's and the cache's."""
    return (
        type(replica) is Replica
        and replica.stages == 1
        and replica.cache.block_tokens == first.cache.block_tokens
        and not replica.cache.waits
        and not replica.is_more
        and replica.on_step is None
        and not replica.keeps
        and not (replica.steps or replica.outstanding)
    )


def _refused(table: RequestTable, replica: Replica, row: int) -> bool:
    """Whether a request can never run."""
    prompt, output = int(table.prompt[row]), int(table.output[row])
    return bool(replica.policy.room(Request(row, row, 0, prompt, output)))


def _requests(table: RequestTable, cache: KVCache, inside: bool) -> _Requests | None:
    if inside and table.priority is not None and table.priority.any():
        return None
    follows = np.ascontiguousarray(table.follows) if (table.follows >= 0).any() else None
    hashes = offsets = None
    covers, outputs = cache.block_tokens, False
    if inside and cache.reuses and table.hashes is not None:
        covers, outputs = table.hashes.tokens, table.hashes.outputs
        if covers % cache.block_tokens and cache.block_tokens % covers:
            return None
        values = table.hashes.rows.values
        if len(values) and max(abs(int(values.min())), abs(int(values.max()))) * covers >= MOST_KEY:
            return None
        hashes = np.ascontiguousarray(values, np.int64)
        offsets = np.ascontiguousarray(table.hashes.rows.offsets, np.int64)
    arrived, prompt, output = (np.ascontiguousarray(one) for one in (table.arrived, table.prompt, table.output))
    narrow = prompt.dtype == output.dtype == np.int32
    if not narrow:
        prompt, output = prompt.astype(np.int64, copy=False), output.astype(np.int64, copy=False)
    return _Requests(arrived, prompt, output, follows, hashes, offsets, covers, outputs, cache.block_tokens, narrow)


def _times(times: StepTimes, kinds: dict[int, _Times]) -> _Times:
    if id(times) not in kinds:
        if type(times) is ModelTimes:
            kinds[id(times)] = _Times(
                times.step_tables, times.ticks, times.after, times.padded, times.ends_of, times.decodes_but_attention
            )
        else:
            kinds[id(times)] = _Times(None, times.ticks, times.after, times.padded, _unasked, _unasked)
    return kinds[id(times)]


def _asked(replica: Replica, kinds: dict[int, _Times]) -> _AskedReplica:
    return _AskedReplica(
        replica, bool(replica.steady), bool(replica.policy.ahead), _times(replica.times, kinds), MOST_EXACT, RATIO
    )


def _replica(replica: Replica, kinds: dict[int, _Times]) -> _Replica:
    policy, cache = replica.policy, replica.cache
    return _Replica(
        engine=_name(policy, HOME, ENGINES),
        max_running=policy.max_running,
        max_tokens=-1 if policy.max_tokens is None else policy.max_tokens,
        longest=policy.longest,
        steady=bool(replica.steady),
        times=_times(replica.times, kinds),
        blocks=cache.blocks,
        windowed=cache.windowed,
        window=cache.window,
        states=cache.states,
        reuses=cache.reuses,
        radix=isinstance(cache, PrefixCache) and cache.radix,
        by_use=isinstance(cache, PrefixCache) and cache.by_use,
        most_exact=MOST_EXACT,
        ratio=RATIO,
        ahead=policy.ahead,
        **_own(policy),
    )


def _unasked(count: int) -> int:
    raise AssertionError("only tables ask for parts of a step")


def _own(policy: Policy) -> dict[str, Any]:
    """Options that one engine alone has."""
    own = vars(policy)
    out: dict[str, Any] = {name: own[name] for name in ("watermark", "share", "chunked", "decode_steps") if name in own}
    out["padded"] = getattr(policy, "padded", False)
    return out | ({"no_evict": own["capacity"] == "no-evict"} if "capacity" in own else {})


def _routing(name: str, router: RequestRouter, replicas: int, table: RequestTable) -> _Routing:
    if replicas == 1:
        return _Routing("chosen")
    count = len(table)
    if name in ("round_robin", "random"):
        every = [_Draw(number) for number in range(replicas)]
        some = Request(0, 0, 0, 1, 1)
        choose: Any = router.choose
        return _Routing("chosen", np.array([choose(some, every).number for _ in range(count)], np.int64))
    if name == "two_choices":
        pairs = [router.random.sample(range(replicas), 2) for _ in range(count)]
        return _Routing("pairs", np.array(pairs, np.int64).ravel())
    if name == "session":
        return _Routing("session", np.ascontiguousarray(table.session))
    return _Routing(name.replace("_", "-"), slack=getattr(router, "slack", 0))


@dataclass(frozen=True)
class _Draw:
    """Stands for a replica whose load is not looked at."""

    number: int


def _write_back(replica: Replica, counted: dict[str, Any]) -> None:
    """What a replica did."""
    replica.steps, replica.tokens, replica.padding = counted["steps"], counted["tokens"], counted["padding"]
    replica.busy = [counted["busy"]]
    replica.outstanding = counted["outstanding"]
    cache = replica.cache
    if "peak" in counted:  # else Python had the cache
        cache.peak = counted["peak"]
        cache.hit_tokens, cache.looked_up_tokens = counted["hit_tokens"], counted["looked_up_tokens"]
    values, times, exact, count, high, low, least, most = counted["gaps"]
    total = (high << 64) + low
    replica.gaps = Samples.of(values, times, exact, count, total, least, most)
