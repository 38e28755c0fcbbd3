"""Designs and systolic arrays in every format of :mod:`triosim.accelerator.reading`, and the ready ones, as devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triosim.accelerator import designs, presets
from triosim.core.errors import InputError
from triosim.core.guarded import head
from triosim.core.registry import registered
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.designed import DesignReader

_BEGINNINGS = (b"[[node]]", b"[[ node ]]", b"[array]", b"architecture:", b"[architecture_presets]")
_HEAD = 1 << 16


@registered
class Design(DesignReader):
    """See the module's docstring."""

    def recognises(self, name: str) -> bool:
        """A ready design, or a file in which a design begins."""
        path = Path(name)
        if path.is_file():
            try:
                start = head(path, _HEAD)
            except InputError:
                return False
            return any(words in start for words in _BEGINNINGS)
        return name in presets.names()

    def device(self, files: Sequence[str], clock_hz: float | None, vector_flops: float | None) -> Accelerator:
        """See :meth:`DesignReader.device`.

        Raises:
            InputError: as there.
        """
        return designs.device(tuple(str(presets.known(name)) for name in files), clock_hz, vector_flops)
