"""JSONL of the Mooncake traces: ``timestamp`` (milliseconds), ``input_length``, ``output_length``, ``hash_ids``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triosim.core.columns import Ragged
from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.serving.request_files import RequestReader, first_object, json_lines, number, session_numbers
from triosim.serving.requests import PromptHashes, RequestTable

TOKENS = 512
"""Tokens that one of ``hash_ids`` stands for."""


@registered
class Mooncake(RequestReader):
    """Equal ``hash_ids`` stand for equal prompts up to there; ``session_id``, if any, names the conversation."""

    what = "JSONL with timestamp, input_length, output_length, hash_ids (Mooncake)"

    def recognises(self, head: str) -> bool:
        """By the keys of the first line."""
        return {"timestamp", "input_length", "output_length"} <= set(first_object(head))

    def read(self, path: Path, source: str, sort: bool) -> RequestTable:
        """See the module's docstring."""
        lines, seconds, prompt, output, ids, sessions = [], [], [], [], [], []
        for at, row in json_lines(path, source):
            where = f"{path}, line {at}"
            lines.append(at)
            seconds.append(number(row.get("timestamp"), where, "timestamp") * 1e-3)
            prompt.append(number(row.get("input_length"), where, "input_length"))
            output.append(number(row.get("output_length"), where, "output_length"))
            ids.append(_hashes(row.get("hash_ids", []), prompt[-1], where))
            sessions.append(str(row.get("session_id", "")))
        return RequestTable.of(
            seconds, prompt, output, session=session_numbers(sessions),
            hashes=PromptHashes(Ragged.of(ids), TOKENS) if any(ids) else None,
            place=lambda row: f"{path}, line {lines[row]}", sort=sort,
        )  # fmt: skip


def _hashes(found: Any, tokens: float, where: str) -> list[int]:
    if not isinstance(found, list) or any(type(one) is not int or abs(one) >= 1 << 48 for one in found):
        raise InputError(f"{where}: hash_ids is {quoted(found)}: give a list of whole numbers below 2**48")
    if found and (len(found) - 1) * TOKENS >= tokens:
        raise InputError(
            f"{where}: {len(found):,} hash_ids for {tokens:,.0f} tokens, and each stands for {TOKENS} of them: merge "
            "those of smaller blocks, or leave hash_ids out"
        )
    return found
