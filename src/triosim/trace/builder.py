"""Building a Trace row by row: what the recorder, the readers and the models share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError, quoted
from triosim.trace.calls import count_work, problems
from triosim.trace.tables import (
    NONE,
    Category,
    Communications,
    Kernels,
    Meta,
    Modules,
    Operators,
    Phase,
    Trace,
    Values,
)

NAN = math.nan

MOST_BITS = 58
"""Twos in the elements of a tensor whose bytes can still be counted."""


class TraceBuilder:
    """Collects modules, values and operators and turns them into columns.

    Values must be created before the operators that use them; parameters in registration order.
    """

    def __init__(self) -> None:
        self._module_rows: dict[str, int] = {}
        self._module_kinds: list[str] = []
        self._roles: dict[str, int] = {}
        self._storages = 0
        self._values: list[tuple[Any, ...]] = []
        self._operators: list[tuple[Any, ...]] = []
        self._kernels: list[tuple[int, str, float, int]] = []
        self._communications: list[tuple[str, str, float, int, float, int, int, int, float]] = []

    def module(self, path: str, kind: str = "") -> int:
        """Row of the module with this qualified name, made on first mention."""
        if path not in self._module_rows:
            self._module_rows[path] = len(self._module_rows)
            self._module_kinds.append(kind)
        return self._module_rows[path]

    def storage(self) -> int:
        """A new allocation."""
        self._storages += 1
        return self._storages - 1

    def value(
        self,
        shape: Sequence[int],
        dtype: str,
        category: Category,
        *,
        storage: int | None = None,
        version: int = 0,
        offset: int = 0,
        of: int = NONE,
        name: str = "",
        symbols: Sequence[int] | None = None,
    ) -> int:
        """A new value; on a new storage unless one is given.  ``symbols`` defaults to all constant.

        Raises:
            InputError: it is too large for its bytes to be counted.
        """
        if math.prod(shape) >= 2**MOST_BITS:
            sides = " x ".join(map(str, shape))
            raise InputError(f"a tensor of {quoted(sides)} has more bytes than can be counted: use smaller sizes")
        storage = self.storage() if storage is None else storage
        symbols = tuple(symbols) if symbols is not None else (0,) * len(shape)
        code = DTYPE_CODE.get(dtype, 0)
        self._values.append((storage, version, offset, tuple(shape), code, int(category), of, name, symbols))
        return len(self._values) - 1

    def next_version(self, value: int) -> int:
        """The value that an in-place write to ``value`` leaves behind."""
        storage, version, offset, shape, dtype, category, of, name, symbols = self._values[value]
        self._values.append((storage, version + 1, offset, shape, dtype, category, of, name, symbols))
        return len(self._values) - 1

    def set_category(self, value: int, category: Category, of: int = NONE) -> None:
        """Change what a value is for, once that is known."""
        row = self._values[value]
        self._values[value] = (*row[:5], int(category), of if of != NONE else row[6], *row[7:])

    def shape(self, value: int) -> tuple[int, ...]:
        """Shape of a value."""
        return tuple(self._values[value][3])

    def symbols(self, value: int) -> tuple[int, ...]:
        """Symbols of a value's dimensions."""
        return tuple(self._values[value][8])

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        roles: Sequence[str],
        phase: Phase,
        args: Mapping[str, Any] | None = None,
        module: int = NONE,
        forward: int = NONE,
        view: bool = False,
        sync: bool = False,
        device_s: float = NAN,
        host_s: float = NAN,
    ) -> int:
        """Append an operator; ``roles`` names the argument of each input."""
        if len(roles) != len(inputs):
            raise ValueError(f"{name}: {len(inputs)} inputs but {len(roles)} roles")
        codes = tuple(self._roles.setdefault(role, len(self._roles)) for role in roles)
        text = json.dumps(dict(args), sort_keys=True, separators=(",", ":")) if args else "{}"
        ids = (tuple(inputs), codes, tuple(outputs))
        self._operators.append((name, int(phase), module, *ids, text, forward, view, sync, device_s, host_s))
        return len(self._operators) - 1

    def kernel(self, operator: int, name: str, device_s: float, stream: int = 0) -> None:
        """Name a kernel that an operator launched."""
        self._kernels.append((operator, name, device_s, stream))

    def communication(
        self,
        name: str,
        kind: str,
        size: float,
        group_size: int,
        device_s: float,
        *,
        operator: int = NONE,
        needed: int = NONE,
        stream: int = NONE,
        host_s: float = NAN,
    ) -> None:
        """Note a communication kernel of a foreign file (``size`` in bytes, NaN where unknown)."""
        self._communications.append((name, kind, size, group_size, device_s, operator, needed, stream, host_s))

    def __len__(self) -> int:
        return len(self._operators)

    def build(self, meta: Meta) -> Trace:
        """The finished trace, with FLOP and bytes counted from the shapes."""
        storage, version, offset, shape, dtype, category, of, name, symbols = _transpose(self._values, 9)
        values = Values(
            storage=np.array(storage, np.int32),
            version=np.array(version, np.int32),
            offset=np.array(offset, np.int64),
            shape=Ragged.of(shape),
            dtype=np.array(dtype, np.int8),
            category=np.array(category, np.int8),
            of=np.array(of, np.int32),
            name=tuple(name),
            symbols=Ragged.of(symbols, np.uint8),
        )
        names, phase, module, inputs, roles, outputs, args, forward, view, sync, device, host = _transpose(
            self._operators, 12
        )
        operators = Operators(
            name=tuple(names),
            phase=np.array(phase, np.int8),
            module=np.array(module, np.int32),
            inputs=Ragged.of(inputs, np.int32),
            roles=Ragged.of(roles, np.int16),
            role_names=tuple(self._roles),
            outputs=Ragged.of(outputs, np.int32),
            args=tuple(args),
            forward=np.array(forward, np.int32),
            view=np.array(view, bool),
            sync=np.array(sync, bool),
            device_s=np.array(device, np.float64),
            host_s=np.array(host, np.float64),
            flop=np.zeros(len(self._operators)),
            bytes=np.zeros(len(self._operators)),
        )
        k_operator, k_name, k_device, k_stream = _transpose(self._kernels, 4)
        c_name, c_kind, c_bytes, c_group, c_device, c_operator, c_needed, c_stream, c_host = _transpose(
            self._communications, 9
        )
        trace = Trace(
            meta=meta,
            operators=operators,
            values=values,
            modules=Modules(tuple(self._module_rows), tuple(self._module_kinds)),
            kernels=Kernels(
                np.array(k_operator, np.int32), tuple(k_name), np.array(k_device), np.array(k_stream, np.int32)
            ),
            communications=Communications(
                tuple(c_name),
                tuple(c_kind),
                np.array(c_bytes),
                np.array(c_group, np.int32),
                np.array(c_device),
                np.array(c_operator, np.int32),
                np.array(c_needed, np.int32),
                np.array(c_stream, np.int32),
                np.array(c_host, np.float64),
            ),
        )
        trace = count_work(trace)
        return trace.noted(*problems(trace)) if len(trace) else trace


def _transpose(rows: Sequence[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
