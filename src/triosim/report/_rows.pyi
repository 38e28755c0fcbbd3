from collections.abc import Callable

from numpy import int64
from numpy.typing import NDArray

def messages(fields: tuple[tuple[object, ...], ...], count: int) -> bytes:
    """Protobuf messages one after another; see :mod:`triosim.report.protobuf`."""

class Forms:
    """Forms of lines that were made; see :mod:`triosim.report.lines`."""

    def __init__(self) -> None: ...
    def lines(
        self,
        make: Callable[..., str],
        keys: tuple[NDArray[int64], ...],
        numbers: tuple[NDArray[int64], ...],
        between: str,
    ) -> str: ...
