from collections.abc import Callable, Sequence
from typing import Any

def play(
    requests: object,
    replicas: Sequence[object],
    routing: object,
    shape: Callable[..., object],
    progress: Callable[[int, int], None] | None,
    made: Callable[..., object] | None,
    listener: Callable[..., None] | None,
) -> tuple[dict[str, Any], list[dict[str, Any]], str | None] | None:
    """What became of each request, what each replica did, and why the run ended before its time if it did; None where
    the run cannot go on and somebody else can play it.  See :mod:`triosim.serving.native`."""
