from collections.abc import Callable, Sequence
from typing import Any

def play(
    requests: object,
    replicas: Sequence[object],
    routing: object,
    shape: Callable[..., object],
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """What became of each request and what each replica did, None where the run cannot go on; see
    :mod:`triosim.serving.native`."""
