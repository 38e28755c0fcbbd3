from numpy import int32, int64, uint8
from numpy.typing import NDArray

class ProfileEvents:
    """Finds the events of a profile in its text; :mod:`triosim.sources.readers._events` explains the columns."""

    odd: bool
    parts: list[tuple[int, int]]
    names: list[bytes]
    offset: NDArray[int64]
    length: NDArray[int32]
    start: NDArray[int64]
    kind: NDArray[uint8]
    name: NDArray[int32]
    duration: NDArray[int64]
    correlation: NDArray[int64]
    device: NDArray[int64]
    stream: NDArray[int64]
    function: NDArray[int64]

    def __init__(self, functions: bool) -> None: ...
    def feed(self, text: bytes, last: bool) -> int: ...
