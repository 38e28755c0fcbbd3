"""The JSON of a prediction as other commands read it: what it must say, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError, quoted

SCHEMA = "triosim/result/1"
"""Of what ``train`` and ``infer`` write (docs/results.md)."""


OF_STEPS = "triosim/posttraining/1"
"""Of what ``train --post`` writes: a step of several phases."""


def read_prediction(path: Path) -> Mapping[str, Any]:
    """A prediction that ``--json`` wrote, of an iteration or of a step of post-training.

    Raises:
        InputError: the file cannot be read, or is neither.
    """
    document = guarded.document(path, "a result that --json wrote")
    return document if document.get("schema") == OF_STEPS else check_result(document, str(path))


def check_result(document: Mapping[str, Any], where: str, by: str = "train or infer") -> Mapping[str, Any]:
    """The document, which is a prediction; ``by`` are the commands that may have written it, for the cure.

    Raises:
        InputError: it is none.
    """
    schema = document.get("schema")
    if schema != SCHEMA:
        other = isinstance(schema, str) and schema.startswith("triosim/")
        is_it = f"is no single prediction ({SCHEMA}) but {quoted(schema)}" if other else "is no result of triosim"
        raise InputError(f"{where} {is_it}: give what {by} --json wrote{' for one plan' if other else ''}")
    return document


@contextmanager
def undamaged(where: str) -> Iterator[None]:
    """Within the block a field that is missing or no number is said in one sentence.

    Raises:
        InputError: one is.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else "a field is no number"
        raise InputError(f"{where} is a damaged result: {what}: write it again with --json") from None
