"""What commands that try many plans keep, so that one that was killed goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from triosim.cli.command import note

if TYPE_CHECKING:
    from triosim.search.journal import JournalledOutcome

K = TypeVar("K", bound="JournalledOutcome")


class KnownOutcomes(Generic[K]):
    """What an earlier run has found, by what each plan asks; nothing where no file is written to keep it beside.

    Args:
        outputs: files that the command writes, None for those that it does not; it is kept beside the first.
        content: all that outcomes depend on.
        files: names of files that they depend on.
        what: the command, in words: "a sweep".
        read: makes an outcome of what its ``to_dict`` made.
        tried: what outcomes are of, in words.
    """

    def __init__(
        self,
        outputs: Iterable[str | None],
        content: tuple[object, ...],
        files: Iterable[str],
        what: str,
        read: Callable[[dict[str, Any]], K],
        tried: str = "plans",
    ) -> None:
        from triosim.core.outputs import is_standard_output
        from triosim.search.journal import Journal, beside, digest

        written = [path for path in outputs if path is not None and not is_standard_output(path)]
        self._journal = Journal(beside(written[0]), digest(*content, files=files), read) if written else None
        if self._journal and self._journal.other:
            note(f"starts anew: {self._journal.path} was of {what} of something else, or of another version")
        if self._journal and self._journal.found:
            note(f"resumes   {len(self._journal.found):,} {tried} are known from {self._journal.path}")

    def __enter__(self) -> KnownOutcomes[K]:
        return self

    def __exit__(self, *how: object) -> None:
        if self._journal:
            self._journal.__exit__(*how)

    def get(self, asked: Mapping[str, Any]) -> K | None:
        """A plan's outcome, if it is known."""
        return self._journal.found.get(_name(asked)) if self._journal else None

    def every(self) -> list[K]:
        """All outcomes that are known."""
        return list(self._journal.found.values()) if self._journal else []

    def numbered(self, asked: Iterable[Mapping[str, Any]]) -> dict[int, K]:
        """Outcomes that are known, by the place of the plan among those asked for, which may be another than theirs."""
        found = {number: self.get(one) for number, one in enumerate(asked)} if self._journal else {}
        return {number: one for number, one in found.items() if one is not None}

    def keep(self, asked: Mapping[str, Any], outcome: K) -> None:
        """Remember an outcome."""
        if self._journal:
            self._journal.keep(_name(asked), outcome)

    def done(self) -> None:
        """All is written: forget it."""
        if self._journal:
            self._journal.done()


def _name(asked: Mapping[str, Any]) -> str:
    return json.dumps(dict(asked), sort_keys=True)
