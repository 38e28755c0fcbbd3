"""Documents of different lengths packed into sequences of one: attention does not look from one to the next.

Everything else works on positions and sees no documents.  Attention over them is one call (``flash_attn_varlen_func``,
cuDNN's ragged layout) whose pairs of queries and keys are those within documents, so its work follows the sum of the
squares of their lengths.  With n documents of lengths l that is the work of documents of one length, the mean weighted
by length: ``sum(l^2) / sum(l)``, and as many positions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.operators import DOCUMENTS
from triosim.trace.calls import calls_of, count_work, with_arguments
from triosim.trace.tables import Phase, Trace


@dataclass(frozen=True)
class PackedDocuments:
    """Documents in sequences of one length.

    Attributes:
        sequence: positions of each.
        sequences: how many there are.
        documents: how many are in them.
        tokens: positions that hold tokens; the others are padding.
        weighted: mean length, each document weighted by its own.
        cut: documents that were longer, of which the beginning is left.
    """

    sequence: int
    sequences: int
    documents: int
    tokens: int
    weighted: float
    cut: int

    @property
    def fill(self) -> float:
        """Part of the positions that hold tokens."""
        return self.tokens / (self.sequences * self.sequence)

    def __str__(self) -> str:
        """As a note of a result says it."""
        cut = f", {self.cut:,} of them cut to {self.sequence:,}" if self.cut else ""
        return (
            f"packing: {self.documents:,} document{'s' * (self.documents > 1)}{cut} in {self.sequences:,} sequence"
            f"{'s' * (self.sequences > 1)} of {self.sequence:,} positions, of which {self.fill:.1%} hold tokens; "
            f"attention goes over documents of {self.weighted:,.0f} tokens (their mean, weighted by length)"
        )


def pack(lengths: Iterable[int], sequence: int) -> PackedDocuments:
    """Best fit decreasing, as ``trl`` packs: the longest first, each where it leaves least room; none is divided.

    Args:
        lengths: of the documents, in tokens; what is longer than a sequence is cut to it.
        sequence: positions.
    """
    given = list(lengths)
    counts = Counter(min(length, sequence) for length in given)
    bins: Counter[int] = Counter()  # room left -> sequences that have it
    rooms: list[int] = []  # those, ascending
    opened = 0

    def add(room: int, number: int) -> None:
        if number and room not in bins:
            insort(rooms, room)
        if number:
            bins[room] += number

    for length in sorted(counts, reverse=True):
        left = counts[length]
        while left:
            at = bisect_left(rooms, length)
            if at == len(rooms):  # so many new ones as this length fills
                room, there = sequence, -(-left // (sequence // length))
                opened += there
            else:
                room = rooms.pop(at)
                there = bins.pop(room)
            each = room // length  # a sequence that has begun to be filled has the least room of those that fit
            full = min(there, left // each)
            rest = left - full * each if full < there else 0
            add(room - each * length, full)
            add(room - rest * length, int(rest > 0))
            add(room, there - full - int(rest > 0))
            left -= full * each + rest
    tokens = sum(length * count for length, count in counts.items())
    squares = sum(length * length * count for length, count in counts.items())
    longer = sum(length > sequence for length in given)
    return PackedDocuments(sequence, opened, len(given), tokens, squares / tokens, longer)


def document_lengths(text: str, sequence: int) -> list[int]:
    """Lengths as they are typed: one for as many documents as a sequence has room for, or a file of numbers with
    blanks, lines or commas between.

    Args:
        text: as typed.
        sequence: positions.

    Raises:
        InputError: neither a number nor such a file.
    """
    whole = text.strip().isdecimal()
    if not whole and not Path(text).exists():
        raise InputError(
            f"--packing {quoted(text)} is neither a number of tokens nor a file: give one length for all documents, as "
            "512, or a file with the length of each"
        )
    words = [text.strip()] if whole else guarded.text(guarded.content(Path(text)), text).replace(",", " ").split()
    where = "--packing" if whole else text
    if not words:
        raise InputError(f"{where} has no lengths: give a number of tokens for each document")
    for word in words:
        if not word.isdecimal() or not int(word):
            raise InputError(f"{where}: {quoted(word)} is no length: give whole numbers of at least 1, in tokens")
    lengths = [int(word) for word in words]
    return lengths * max(sequence // lengths[0], 1) if whole else lengths


def packed(trace: Trace, documents: PackedDocuments) -> Trace:
    """The step of sequences that hold such documents.

    Attentions that were measured have no times then.

    Args:
        trace: a step.
        documents: packed into sequences of its length.

    Raises:
        InputError: attention is several operators, which work on whole sequences.
    """
    calls, operators = calls_of(trace), trace.operators
    phase = operators.phase.tolist()
    rows = [row for row in range(len(trace)) if calls[row].kind == "attention" and phase[row] != Phase.OPTIMIZER]
    if not rows:
        raise InputError(
            f"packing: no attention of {trace.meta.workload or 'the trace'!r} is one operator, and products of its "
            "own work on whole sequences: choose --attention flash2, or a trace with such kernels"
        )
    args, device_s = list(operators.args), operators.device_s.copy()
    for row in rows:
        args[row] = with_arguments(args[row], **{DOCUMENTS: [documents.fill, documents.weighted]})
        device_s[row] = np.nan
    changed = replace(trace, operators=replace(operators, args=tuple(args), device_s=device_s))
    return count_work(changed).noted(str(documents))
