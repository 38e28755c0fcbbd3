"""JSONL of our own: one request a line, or one conversation with its turns.

A request has ``arrived_at`` (seconds), ``prompt_tokens`` and ``output_tokens``, each a count or a list of token ids,
or instead of these two ``denoising_steps`` of an image,
and may have ``session``, the ``model`` that it asks for, and ``priority``, of which the lowest goes first.  A
conversation has ``arrived_at`` and ``turns``, a list of such requests without time: a turn arrives ``think`` seconds (0
where not given) after the end of the one before, and its prompt begins with all that was said. ``input_toks``,
``output_toks``, ``input_tok_ids`` and ``arrival_time_ns`` (LLMServingSim) are understood too.
"""

from __future__ import annotations

from dataclasses import field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, check_spelling, quoted
from triosim.core.registry import registered
from triosim.serving.request_files import RequestReader, first_object, json_lines, number
from triosim.serving.requests import PromptHashes, RequestTable

TOKENS = 16
"""Tokens that a hash of token ids covers."""

PROMPT = ("prompt_tokens", "input_tok_ids", "input_toks")
OUTPUT = ("output_tokens", "output_toks")
STEPS = "denoising_steps"
"""What is said instead of tokens where images are asked for."""

TURN_KEYS = frozenset({*PROMPT, *OUTPUT, STEPS, "think"})
KEYS = frozenset({*PROMPT, *OUTPUT, STEPS, "arrived_at", "arrival_time_ns", "session", "model", "priority", "turns"})
"""Keys that mean something; others are passed over, but for one that is nearly spelled like them."""


@dataclass
class _Columns:
    """What has been read."""

    lines: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)
    hashes: list[list[int]] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)


@registered
class Jsonl(RequestReader):
    """See the module's docstring."""

    what = "JSONL with arrived_at, prompt_tokens, output_tokens, or turns"

    def recognises(self, head: str) -> bool:
        """By the keys of the first line."""
        keys = set(first_object(head))
        return "turns" in keys or STEPS in keys or bool(keys & set(PROMPT) and keys & set(OUTPUT))

    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """See the module's docstring."""
        table = _Columns()
        numbers: dict[str, int] = {}
        for at, row in json_lines(path, source):
            where = f"{path}, line {at}"
            check_spelling(row, KEYS, where)
            if "arrival_time_ns" in row:
                seconds = number(row["arrival_time_ns"], where, "arrival_time_ns") * 1e-9
            else:
                seconds = number(row.get("arrived_at"), where, "arrived_at")
            named = str(row["session"]) if "session" in row else f"line {at}" if "turns" in row else ""
            session = numbers.setdefault(named, len(numbers)) if named else -1
            before = len(table.model)
            if "turns" in row:
                self._turns(row["turns"], at, where, seconds, session, table)
                table.model += [_model(row, where)] * (len(table.lines) - before)
                table.priority += [_priority(row, where)] * (len(table.lines) - before)
                continue
            table.model.append(_model(row, where))
            table.priority.append(_priority(row, where))
            self._request(row, [], at, where, table)
            table.seconds.append(seconds)
            table.session.append(session)
            table.follows.append(-1)
        if any(table.model) and not all(table.model):
            line = table.lines[table.model.index("")]
            raise InputError(f"{path}, line {line}: says no model, where others do: give it one")
        return RequestTable.of(
            table.seconds, table.prompt, table.output, session=table.session, follows=table.follows,
            hashes=PromptHashes(Ragged.of(table.hashes), TOKENS, outputs=True) if any(table.hashes) else None,
            priority=table.priority if any(table.priority) else None,
            model=table.model if any(table.model) else None,
            place=lambda row: f"{path}, line {table.lines[row]}", sort=sort,
        )  # fmt: skip

    def _turns(self, turns: Any, at: int, where: str, seconds: float, session: int, table: _Columns) -> None:
        """A conversation: each turn's prompt is all that was said, and what is new."""
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
            raise InputError(f"{where}: turns is {quoted(turns)}: give a list of requests")
        said: list[int] = []
        total = 0.0
        for place, turn in enumerate(turns):
            which = f"{where}, turn {place + 1}"
            check_spelling(turn, TURN_KEYS, which)
            if number(turn.get("think", 0), which, "think") < 0:
                raise InputError(f"{which}: think is {turn['think']}: the least is 0")
            whole = self._request(turn, said, at, which, table, total, f"{session}")
            total = table.prompt[-1] + table.output[-1]
            said = whole
            table.seconds.append(number(turn.get("think", 0), which, "think") if place else seconds)
            table.session.append(session)
            table.follows.append(len(table.lines) - 2 if place else -1)

    @staticmethod
    def _request(
        row: dict[str, Any], said: list[int], at: int, where: str, table: _Columns, before: float = 0.0, name: str = ""
    ) -> list[int]:
        """Add a request; returns the tokens of its prompt and its output as far as they are known.

        Args:
            row: the request.
            said: token ids before its own, of the same conversation.
            before: their number.
            name: of the conversation, which stands for tokens that only a count is given of; "" where none is shared.
        """
        if STEPS in row:
            row = {PROMPT[0]: 1, OUTPUT[0]: number(row[STEPS], where, STEPS)}
        prompt, output = (next((row[key] for key in keys if key in row), None) for keys in (PROMPT, OUTPUT))
        count = [
            float(len(given)) if isinstance(given, list) else number(given, where, keys[0])
            for given, keys in ((prompt, PROMPT), (output, OUTPUT))
        ]
        ids: list[list[int]] = []
        for given, tokens, side in ((prompt, count[0], "p"), (output, count[1], "o")):
            if isinstance(given, list):
                if any(type(one) is not int for one in given):
                    raise InputError(f"{where}: a list of tokens holds what is no whole number: give token ids")
                ids.append(given)
            elif name and 1 <= tokens < 1 << 24:  # tokens of this turn that nobody else has
                ids.append([_number(f"{name} {side} {before} {place}") for place in range(int(tokens))])
            else:
                ids.append([])
        table.lines.append(at)
        table.prompt.append(before + count[0])
        table.output.append(count[1])
        whole = said + ids[0]
        table.hashes.append(_chained(whole + ids[1]) if ids[0] else [])
        return whole + ids[1]


def _chained(tokens: list[int]) -> list[int]:
    """A hash of every 16 tokens and all before them; 47 bits, so that equal ones by chance are out of the question."""
    out, digest = [], b""
    for first in range(0, len(tokens) - TOKENS + 1, TOKENS):
        digest = blake2b(digest + repr(tokens[first : first + TOKENS]).encode(), digest_size=8).digest()
        out.append(int.from_bytes(digest, "little") >> 17)
    return out


def _model(row: dict[str, Any], where: str) -> str:
    """The model that a request asks for, "" where it does not say."""
    name = row.get("model", "")
    if not isinstance(name, str):
        raise InputError(f"{where}: model is {quoted(name)}: give a name")
    return name


def _priority(row: dict[str, Any], where: str) -> int:
    """Of a request, 0 where it does not say."""
    priority = row.get("priority", 0)
    if type(priority) is not int or abs(priority) >= 1 << 31:
        raise InputError(f"{where}: priority is {quoted(priority)}: give a whole number, the lowest goes first")
    return priority


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
