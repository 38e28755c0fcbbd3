from numpy import int32, int64
from numpy.typing import NDArray

class EventTable:
    """Columns of the events of one kind; :mod:`triosim.sources.readers._events` explains them.

    They are kept packed: each access makes an array.
    """

    offset: NDArray[int64]
    length: NDArray[int64]
    start: NDArray[int64]
    name: NDArray[int64]
    duration: NDArray[int64]
    correlation: NDArray[int64]
    device: NDArray[int64]
    stream: NDArray[int64]
    shaped: NDArray[int64]
    function: NDArray[int64]

class ProfileEvents:
    """Finds the events of a profile in its text."""

    odd: bool
    parts: list[tuple[int, int]]
    names: list[bytes]
    calls: EventTable
    launches: EventTable
    works: EventTable
    modules: EventTable

    def __init__(self, functions: bool) -> None: ...
    def feed(self, text: bytes, last: bool) -> int: ...
    def launch_of_works(self) -> NDArray[int32]: ...
