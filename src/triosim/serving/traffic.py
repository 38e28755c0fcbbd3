"""Traffic made up: when requests arrive, and how long their prompts and outputs are.

Arrivals (``--arrivals``): ``poisson:8`` (8 a second), ``gamma:8,cv=2`` (gaps of that coefficient of variation),
``constant:8``, ``burst:16,every=5s`` (that many at a time; ``every`` is needed where there are more),
``users:64,think=5s`` (each sends a request, waits for its end, thinks, and sends the next).

Lengths (``--lengths``): ``uniform:128-512``, ``zipf:1.1,max=4096``, ``lognormal:MEDIAN,sigma=S`` and ``fixed:N`` are of
prompt and output together, divided as ``ratio=N`` (prompt tokens to one output token, default 20); ``prompt=...`` and
``output=...`` give each its own: ``prompt=lognormal:1020,sigma=1;output=uniform:16-256``.  A file of requests gives
both.

Draws come from one generator in a fixed order, so that a seed means the same requests everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError, quoted, unknown
from triosim.core.limits import check_memory
from triosim.core.units import parse_time
from triosim.serving.request_files import load_requests
from triosim.serving.request_sketch import MOST_ROWS
from triosim.serving.requests import MOST_TOKENS, NARROW, ROWS, RequestTable
from triosim.serving.shared_text import parse_shared_prefix, parse_turns, repeated

ARRIVALS = {"poisson": (), "gamma": ("cv",), "constant": (), "burst": ("every",), "users": ("think",)}
"""Kinds of arrivals, and what may follow the value of each as ``name=value``."""
LENGTHS = {"uniform": (), "zipf": ("min", "max"), "lognormal": ("sigma", "max"), "fixed": ()}
"""Kinds of lengths, the same way."""
RATIO = 20.0
"""Prompt tokens to an output token, as in Vidur's synthetic traffic."""

BYTES_PER_REQUEST = 400
"""Of the table, and of the state while it is served."""


def traffic(
    arrivals: str, lengths: str, requests: int, seed: int = 0, *, prefix: str | None = None, turns: str | None = None,
    steps: bool = False,
) -> RequestTable:  # fmt: skip
    """Requests that arrive and are as long as asked for.

    Args:
        arrivals, lengths: as in the module's docstring.
        requests: how many.
        seed: of the draws.
        prefix, turns: text that they repeat, as of :mod:`triosim.serving.shared_text`.
        steps: whether the lengths are denoising steps of images (``--steps``), a number or as of one side.

    Raises:
        InputError: not of these forms, or out of proportion.
    """
    if not isinstance(requests, int) or requests < 1:
        raise InputError(f"--requests {requests!r}: give a whole number from 1 up")
    check_memory(requests * BYTES_PER_REQUEST, f"{requests} requests", "serve fewer")
    draw = np.random.Generator(np.random.PCG64(seed))
    name, rate, options = parse(arrivals, "--arrivals", ARRIVALS)
    shared = None if prefix is None else parse_shared_prefix(prefix)
    talks = None if turns is None else parse_turns(turns)
    if talks is not None and name == "users":
        raise InputError(
            "--arrivals users says already when each sends the next request: give --turns with poisson, gamma, "
            "constant or burst"
        )
    each = talks.count if talks else 1
    seconds, follows = _arrivals(name, rate, options, -(-requests // each), draw, arrivals)
    prompt, output = (_steps if steps else _lengths)(lengths, requests, draw)
    seconds = np.repeat(seconds, each)[:requests] if talks else seconds
    table = RequestTable.of(seconds, prompt, output, follows=follows)
    return table if shared is None and talks is None else repeated(table, shared, talks, draw)


def parse(text: str, option: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, str, dict[str, str]]:
    """``NAME:VALUE,key=value`` as name, value and options.

    Args:
        text: what was given.
        option: of the command line, for messages.
        known: options that each name has.

    Raises:
        InputError: no known name, an option that it has not, or one without a value.
    """
    name, _, rest = text.partition(":")
    name = name.strip().lower()
    if name not in known:
        raise unknown(f"{option} kind", name, known)
    value, *more = rest.split(",")
    options = {}
    for part in more:
        key, given = (side.strip() for side in part.partition("=")[::2])
        key = key.lower()
        if key not in known[name]:
            has = ", ".join(f"{one}=" for one in known[name]) or "none"
            raise InputError(f"{option} {quoted(text)}: {name} has no option {quoted(key)}; it has {has}")
        if not given:
            raise InputError(f"{option} {quoted(text)}: {key} has no value: write it as {key}=value")
        options[key] = given
    return name, value.strip(), options


def _arrivals(
    name: str, value: str, options: dict[str, str], requests: int, draw: np.random.Generator, text: str
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    where = f"--arrivals {quoted(text)}"
    if name in ("burst", "users"):
        count = _whole(value, where)
        if name == "burst":
            if "every" not in options and requests > count:
                raise InputError(
                    f"{where}: {requests} requests are more than one burst of {count}: say how often one comes, as "
                    f"burst:{count},every=5s, or give --requests {count}"
                )
            every = parse_time(options.get("every", "0"), f"{where}: every")
            return np.asarray(np.arange(requests) // count * every, np.float64), None
        think = parse_time(options.get("think", "0"), f"{where}: think")
        row = np.arange(requests)
        return np.where(row < count, 0.0, think), np.where(row < count, -1, row - count)
    rate = _positive(value, where)
    if name == "constant":
        return np.arange(1, requests + 1) / rate, None
    variation = _positive(options["cv"], where) if "cv" in options else 1.0
    if name == "poisson" or variation == 1.0:
        gaps = draw.exponential(1 / rate, requests)
    else:
        shape = variation**-2
        gaps = draw.gamma(shape, 1 / (rate * shape), requests)
    return np.cumsum(gaps, out=gaps), None


def _steps(text: str, requests: int, draw: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    steps = _draws(text if ":" in text else f"fixed:{text}", text, LENGTHS, "--steps")[0](requests, draw)
    return np.ones(requests, np.int64), steps


def _lengths(text: str, requests: int, draw: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    if os.path.isfile(text):
        table = load_requests(Path(text), sort=True)
        rows = np.arange(requests) % len(table)
        return table.prompt[rows], table.output[rows]
    if text.startswith(("prompt=", "output=")):
        parts = dict(part.strip().partition("=")[::2] for part in text.split(";"))
        if set(parts) != {"prompt", "output"}:
            raise InputError(f"--lengths {quoted(text)}: give both, as prompt=uniform:64-512;output=fixed:128")
        prompt, output = (
            _drawn(requests, _draws(parts[side], text, LENGTHS)[0], draw, lambda tokens: (tokens,))[0]
            for side in ("prompt", "output")
        )
        return prompt, output
    found, options = _draws(text, text, {name: (*options, "ratio") for name, options in LENGTHS.items()})
    ratio = _positive(options.get("ratio", str(RATIO)), f"--lengths {quoted(text)}")

    def divided(total: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        total = np.maximum(total, 2)
        output = np.clip(np.ceil(total / (ratio + 1)).astype(np.int64), 1, total - 1)
        return total - output, output

    most = 0

    def watched(count: int, draw: np.random.Generator) -> NDArray[np.int64]:
        nonlocal most
        total = found(count, draw)
        most = max(most, int(total.max()))
        return total

    prompt, output = _drawn(requests, watched, draw, divided)
    if most < 2:
        raise InputError(f"--lengths {quoted(text)}: prompt and output together have at least 2 tokens: give more")
    return prompt, output


def _drawn(
    requests: int, draws: Callable[[int, np.random.Generator], NDArray[np.int64]], draw: np.random.Generator,
    made: Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], ...]],
) -> list[NDArray[np.int64]]:  # fmt: skip
    """Columns of what is made of draws, a part at a time, and of 32 bits where they are long and that is enough."""
    columns: list[NDArray[Any]] = []
    for begin in range(0, requests, ROWS):
        parts = made(draws(min(ROWS, requests - begin), draw))
        if not columns:
            columns = [np.empty(requests, np.int32 if requests > MOST_ROWS else np.int64) for _ in parts]
        for place, part in enumerate(parts):
            if part.max() >= NARROW:
                columns[place] = columns[place].astype(np.int64)
            columns[place][begin : begin + len(part)] = part
    return columns


def _draws(
    text: str, whole: str, known: Mapping[str, tuple[str, ...]], option: str = "--lengths"
) -> tuple[Callable[[int, np.random.Generator], NDArray[np.int64]], dict[str, str]]:
    """What draws lengths, and all options that were given."""
    where = f"{option} {quoted(whole)}"
    name, value, options = parse(text, option, known)
    most = _whole(options["max"], where) if "max" in options else 4096 if name == "zipf" else MOST_TOKENS
    if name == "fixed":
        tokens = _whole(value, where)
        return lambda n, draw: np.full(n, tokens, np.int64), options
    if name == "uniform":
        low, dash, high = value.partition("-")
        if not dash:
            raise InputError(f"{where}: give the shortest and the longest, as uniform:128-512")
        first, last = _whole(low, where), _whole(high, where)
        if first > last:
            raise InputError(f"{where}: the shortest, {first}, is longer than the longest, {last}: swap them")
        return lambda n, draw: draw.integers(first, last + 1, n), options
    if name == "lognormal":
        median, sigma = _positive(value, where), _positive(options.get("sigma", "1"), where)
        return lambda n, draw: _clipped(median * np.exp(sigma * draw.standard_normal(n)), 1, most), options
    exponent, least = _positive(value or "1", where), _whole(options.get("min", "1"), where)
    if least > most:
        raise InputError(f"{where}: min {least} is more than max {most}: swap them")
    check_memory(8.0 * (most - least), f"{where}: {most - least} lengths", "lower max")
    weight = np.cumsum(np.arange(1, most - least + 2, dtype=np.float64) ** -exponent)
    return lambda n, draw: least + np.searchsorted(weight, draw.random(n) * weight[-1], side="right"), options


def _clipped(values: NDArray[np.float64], least: int, most: int) -> NDArray[np.int64]:
    return np.clip(np.rint(values), least, most).astype(np.int64)


def _positive(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: {quoted(text)} is no number: give one above zero") from None
    if not 0 < value < 1e12:
        raise InputError(f"{where}: {text} must be above zero and below 1e12")
    return value


def _whole(text: str, where: str) -> int:
    value = _positive(text, where)
    if value != int(value) or value > MOST_TOKENS:
        raise InputError(f"{where}: {text} must be a whole number from 1 to {MOST_TOKENS}")
    return int(value)
