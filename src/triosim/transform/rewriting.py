"""A step that is being changed: operators put in and taken out, values that they make, and the new trace at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE, DTYPES
from triosim.trace.calls import count_work, with_arguments
from triosim.trace.tables import NONE, Category, Kernels, Modules, Operators, Phase, Trace, Values

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _InsertedOperator:
    """An operator that is put in.  ``place`` is (row, -1 before or 1 after it, how many were put in before this one).

    The other attributes are columns of :class:`~triosim.trace.tables.Operators`.
    """

    place: tuple[int, int, int]
    name: str
    phase: int
    module: int
    roles: list[str]
    args: str
    forward: int
    view: bool


class TraceRewriter:
    """Collects the edits of a trace.

    Rows keep the numbers that they have in the trace; one that is put in gets the next number after those.  So do
    values.

    Args:
        trace: the step.

    Attributes:
        inputs, outputs: values by row; change them with :meth:`reads` and :meth:`writes`.
        gone: rows that are taken out.
    """

    def __init__(self, trace: Trace) -> None:
        operators, values = trace.operators, trace.values
        self.trace = trace
        self.inputs: list[list[int]] = list(operators.inputs.lists())
        self.outputs: list[list[int]] = list(operators.outputs.lists())
        self.gone: set[int] = set()
        self.storage: list[int] = values.storage.tolist()
        self.version: list[int] = values.version.tolist()
        self.dtype: list[int] = values.dtype.tolist()
        self.category: list[int] = values.category.tolist()
        self.of: list[int] = values.of.tolist()
        self.shape: list[Shape] = [tuple(shape) for shape in values.shape.lists()]
        self.symbols: list[tuple[int, ...]] = [tuple(row) for row in values.symbols.lists()]
        self._offset: list[int] = values.offset.tolist()
        self._name: list[str] = list(values.name)
        self._added: list[_InsertedOperator] = []
        self._args: dict[int, str] = {}
        self._storages = max(self.storage, default=NONE) + 1
        self._modules = dict(zip(trace.modules.path, range(len(trace.modules)), strict=True))
        self._kinds = list(trace.modules.kind)

    # --- values -------------------------------------------------------------------------------------------------------

    def value(
        self,
        shape: Iterable[int],
        dtype: str,
        category: Category = Category.TEMPORARY,
        *,
        symbols: Iterable[int] | None = None,
        of: int = NONE,
        name: str = "",
    ) -> int:
        """A new value on a new storage; its dimensions follow nothing unless ``symbols`` says so."""
        self._storages += 1
        return self._append(self._storages - 1, 0, 0, tuple(shape), DTYPE_CODE[dtype], category, of, name, symbols)

    def like(self, value: int, dtype: str | None = None, category: Category = Category.TEMPORARY) -> int:
        """A new value with the shape of another, on a new storage."""
        return self.value(
            self.shape[value], dtype or DTYPES[self.dtype[value]], category, symbols=self.symbols[value]
        )  # fmt: skip

    def view(self, value: int, shape: Iterable[int], symbols: Iterable[int]) -> int:
        """Another value on the storage of one."""
        return self._append(
            self.storage[value], self.version[value], self._offset[value], tuple(shape), self.dtype[value],
            Category(self.category[value]), self.of[value], "", symbols,
        )  # fmt: skip

    def overwritten(self, value: int) -> int:
        """What an operator leaves that writes into a value."""
        return self._append(
            self.storage[value], self.version[value] + 1, self._offset[value], self.shape[value], self.dtype[value],
            Category(self.category[value]), self.of[value], "", self.symbols[value],
        )  # fmt: skip

    def _append(
        self, storage: int, version: int, offset: int, shape: Shape, dtype: int, category: Category, of: int, name: str,
        symbols: Iterable[int] | None,
    ) -> int:  # fmt: skip
        self.storage.append(storage)
        self.version.append(version)
        self._offset.append(offset)
        self.shape.append(shape)
        self.dtype.append(dtype)
        self.category.append(int(category))
        self.of.append(of)
        self._name.append(name)
        self.symbols.append(tuple(symbols) if symbols is not None else (0,) * len(shape))
        return len(self.storage) - 1

    # --- operators ----------------------------------------------------------------------------------------------------

    def before(self, row: int, name: str, reads: Mapping[str, Any], writes: Sequence[int], **more: Any) -> int:
        """Put an operator in before a row of the trace, behind others that were put in there.

        Args:
            row: of the trace.
            name: as the framework calls it.
            reads: value, or list of values, by argument name.
            writes: values.
            more: ``phase``, ``module``, ``forward``, ``view``, ``args``; by default phase, module and forward of
                ``row``.
        """
        return self._put((row, -1, len(self._added)), name, reads, writes, row, **more)

    def after(self, row: int, name: str, reads: Mapping[str, Any], writes: Sequence[int], **more: Any) -> int:
        """Put an operator in after a row of the trace; see :meth:`before`."""
        return self._put((row, 1, len(self._added)), name, reads, writes, row, **more)

    def _put(
        self, place: tuple[int, int, int], name: str, reads: Mapping[str, Any], writes: Sequence[int], like: int, *,
        phase: int | None = None, module: int | None = None, forward: int | None = None, view: bool = False,
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        operators = self.trace.operators
        pairs = [(role, v) for role, found in reads.items() for v in (found if isinstance(found, list) else [found])]
        text = json.dumps(dict(args), sort_keys=True, separators=(",", ":")) if args else "{}"
        phase = int(operators.phase[like]) if phase is None else phase
        module = int(operators.module[like]) if module is None else module
        forward = int(operators.forward[like]) if forward is None else forward
        self._added.append(
            _InsertedOperator(place, name, phase, module, [role for role, _ in pairs], text, forward, view)
        )
        self.inputs.append([value for _, value in pairs])
        self.outputs.append(list(writes))
        return len(self.inputs) - 1

    def listed(
        self, row: int, name: str, roles: Sequence[str], inputs: Sequence[int], outputs: Sequence[int], phase: Phase,
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """Put an operator of no module in after a row of the trace, with the argument name of each input."""
        added = self._put(
            (row, 1, len(self._added)), name, {}, outputs, row, phase=int(phase), module=NONE, forward=NONE, args=args
        )
        self.inputs[added] = list(inputs)
        self._added[-1].roles.extend(roles)
        return added

    def reads(self, row: int, instead: Mapping[int, int]) -> None:
        """A row reads other values instead of some of its own."""
        self.inputs[row] = [instead.get(value, value) for value in self.inputs[row]]

    def says(self, row: int, **more: Any) -> None:
        """A row of the step has further arguments."""
        self._args[row] = with_arguments(self._args.get(row, self.trace.operators.args[row]), **more)

    def writes(self, row: int, instead: Mapping[int, int]) -> None:
        """A row writes other values instead of some of its own."""
        self.outputs[row] = [instead.get(value, value) for value in self.outputs[row]]

    def name(self, value: int) -> str:
        """The name of a parameter, ``""`` for what has none."""
        return self._name[value]

    def forget(self, value: int) -> None:
        """A value that nothing holds any more: it takes no memory."""
        self.category[value], self.of[value] = int(Category.TEMPORARY), NONE

    def module(self, path: str, kind: str) -> int:
        """Row of the module with this name, made on first mention."""
        if path not in self._modules:
            self._modules[path] = len(self._modules)
            self._kinds.append(kind)
        return self._modules[path]

    def prune(self, wanted: Iterable[int]) -> None:
        """Take out what the backward makes and nothing needs: rows, and results of rows that make several.

        Args:
            wanted: storages that are needed whatever happens (gradients of what is trained).
        """
        order, phases, views = self._order(), self._phases(), self._views()
        needed, seen = set(wanted), set[int]()
        first = next((at for at, row in enumerate(order) if phases[row] != Phase.FORWARD), len(order))
        for row in reversed(order[first:]):
            if phases[row] not in (Phase.BACKWARD, Phase.RECOMPUTE):
                stays = True
            elif views[row]:
                stays = any(v in seen for v in self.outputs[row])
            else:
                stays = any(self.storage[v] in needed for v in self.outputs[row])
            if not stays:
                self.gone.add(row)
                continue
            if phases[row] == Phase.BACKWARD and not views[row] and len(self.outputs[row]) > 1:
                self.outputs[row] = [v for v in self.outputs[row] if self.storage[v] in needed]
            seen.update(self.inputs[row])
            needed.update(self.storage[v] for v in self.inputs[row])

    # --- the new trace ------------------------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        places = [(row, 0, 0) for row in range(len(self.trace))] + [one.place for one in self._added]
        rows = sorted(range(len(places)), key=places.__getitem__)
        return [row for row in rows if row not in self.gone]

    def _phases(self) -> list[int]:
        return [*self.trace.operators.phase.tolist(), *(one.phase for one in self._added)]

    def _views(self) -> list[bool]:
        return [*self.trace.operators.view.tolist(), *(one.view for one in self._added)]

    def build(self) -> Trace:
        """The new trace, its work counted anew; what was put in, or reads or writes other values now, has no times."""
        trace, count = self.trace, len(self.trace)
        order = self._order()
        first_in, first_out = trace.operators.inputs.lists(), trace.operators.outputs.lists()
        same = np.array([
            row < count and self.inputs[row] == first_in[row] and self.outputs[row] == first_out[row] for row in order
        ], bool)  # fmt: skip
        new_row = np.full(count + len(self._added) + 1, NONE, np.int32)
        new_row[order] = np.arange(len(order))
        changed = replace(
            trace, operators=self._operators(order, new_row, same), values=self._values(),
            kernels=self._kernels(new_row, same), modules=Modules(tuple(self._modules), tuple(self._kinds)),
            communications=trace.communications.unplaced(), meta=replace(trace.meta, step_time_s=None),
        )  # fmt: skip
        return categorised(count_work(changed))

    def _operators(self, order: list[int], new_row: NDArray[np.int32], same: NDArray[np.bool_]) -> Operators:
        """Operators in their new order.

        Args:
            order: the row of each, those put in after those that were there.
            new_row: where each row is now, none where it is gone.
            same: which of the new rows read and write what they did.
        """
        operators, count = self.trace.operators, len(self.trace)
        at = np.array(order, np.int64)
        old = at < count
        source = np.where(old, at, 0)
        added = [self._added[row - count] if row >= count else None for row in order]
        names = dict.fromkeys(operators.role_names)
        names.update(dict.fromkeys(role for one in self._added for role in one.roles))
        code = {name: number for number, name in enumerate(names)}
        roles = operators.roles.lists()

        def column(own: NDArray[Any], added_ones: list[Any]) -> NDArray[Any]:
            out = own[source]
            out[~old] = np.array(added_ones, own.dtype)
            return out

        new = [one for one in added if one is not None]
        forward = [*operators.forward.tolist(), *(one.forward for one in self._added)]
        return replace(
            operators,
            name=tuple([one.name if one else operators.name[row] for one, row in zip(added, order, strict=True)]),
            phase=column(operators.phase, [one.phase for one in new]),
            module=column(operators.module, [one.module for one in new]),
            inputs=Ragged.of([self.inputs[row] for row in order], np.int32),
            outputs=Ragged.of([self.outputs[row] for row in order], np.int32),
            roles=Ragged.of(
                [[code[r] for r in one.roles] if one else roles[row] for one, row in zip(added, order, strict=True)],
                np.int16,
            ),
            role_names=tuple(names),
            args=tuple([
                one.args if one else self._args.get(row, operators.args[row])
                for one, row in zip(added, order, strict=True)
            ]),
            forward=np.array([new_row[forward[row]] for row in order], np.int32),
            view=column(operators.view, [one.view for one in new]),
            sync=np.where(old, operators.sync[source], False),
            device_s=np.where(same, operators.device_s[source], np.nan),
            host_s=np.where(old, operators.host_s[source], np.nan),
            flop=np.where(old, operators.flop[source], 0.0),
            bytes=np.where(old, operators.bytes[source], 0.0),
        )  # fmt: skip

    def _values(self) -> Values:
        return replace(
            self.trace.values,
            storage=np.array(self.storage, np.int32),
            version=np.array(self.version, np.int32),
            offset=np.array(self._offset, np.int64),
            shape=Ragged.of(self.shape),
            dtype=np.array(self.dtype, np.int8),
            category=np.array(self.category, np.int8),
            of=np.array(self.of, np.int32),
            name=tuple(self._name),
            symbols=Ragged.of(self.symbols, np.uint8),
        )

    def _kernels(self, new_row: NDArray[np.int32], same: NDArray[np.bool_]) -> Kernels:
        """Kernels of the operators that do what they did."""
        kernels = self.trace.kernels
        kernel_row = new_row[kernels.operator]
        stay = np.flatnonzero((kernel_row >= 0) & np.append(same, False)[kernel_row])
        return replace(
            kernels,
            operator=kernel_row[stay],
            name=tuple([kernels.name[k] for k in stay.tolist()]),
            device_s=kernels.device_s[stay],
            stream=kernels.stream[stay],
        )


def categorised(trace: Trace) -> Trace:
    """The trace with activations told from what is temporary.

    Activations are what a forward made and a later phase reads, or a recomputation made and the backward reads.
    """
    operators, values = trace.operators, trace.values
    storages = int(values.storage.max(initial=-1)) + 1
    born = np.full(storages, len(operators), np.int64)
    row = operators.outputs.rows()
    np.minimum.at(born, values.storage[operators.outputs.values], row)
    made_in = np.append(operators.phase, np.int8(Phase.OPTIMIZER))[born]
    kept = np.zeros(storages, bool)
    row, where = operators.inputs.rows(), values.storage[operators.inputs.values]
    reader = operators.phase[row]
    kept[where[reader == Phase.BACKWARD]] = True
    kept[where[(reader == Phase.RECOMPUTE) & (made_in[where] == Phase.FORWARD)]] = True
    kept &= np.isin(made_in, (Phase.FORWARD, Phase.RECOMPUTE))
    category = values.category.copy()
    loose = np.isin(category, (Category.ACTIVATION, Category.TEMPORARY))
    category[loose] = np.where(kept[values.storage[loose]], Category.ACTIVATION, Category.TEMPORARY)
    return replace(trace, values=replace(values, category=category))
