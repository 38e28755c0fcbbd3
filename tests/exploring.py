"""How many random examples a law is tried with: some in every run, many in one that explores."""

from __future__ import annotations

import os

EXPLORES = bool(os.environ.get("TRIOSIM_EXPLORE"))
"""Whether examples are drawn anew, and many of them."""
LEAST = 15


def examples(many: int) -> int:
    """Examples of a test that ``make explore`` tries with ``many``: a third of them, but not below :data:`LEAST`."""
    return many if EXPLORES else min(many, max(LEAST, many // 3))
