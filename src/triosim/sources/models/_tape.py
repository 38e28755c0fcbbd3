"""A step under construction: operators as they are called, and their derivatives on a tape.

It does what PyTorch's dispatcher and autograd do, with shapes instead of data: a forward operator appends a
row to the trace and leaves on the tape how to differentiate it; :meth:`Tape.backward` walks the tape from its end,
which is the order in which autograd runs, and adds up the gradients of a tensor that was used more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import NONE, Category, Phase


class Dim(int):
    """A dimension that follows the batch, the sequence or the vocabulary; products with it do too."""

    symbol: int

    def __new__(cls, size: int, symbol: int) -> Dim:
        self = super().__new__(cls, size)
        self.symbol = symbol
        return self

    def __mul__(self, other: int) -> Dim:
        return Dim(int(self) * int(other), self.symbol | getattr(other, "symbol", 0))

    __rmul__ = __mul__


Shape = tuple[int, ...]


class Tensor:
    """What one operator hands to the next.

    Attributes:
        value: row in the trace's values.
        storage, version: the allocation and how often it had been written.
        offset: its first element within the storage.
        shape: dimensions, :class:`Dim` where they follow the batch, the sequence or the vocabulary.
        dtype: element type.
        category: what it is for.
        needs_grad: whether a gradient flows back to it.
        grad: its gradient so far, while the tape is walked.
    """

    __slots__ = ("category", "dtype", "grad", "needs_grad", "offset", "shape", "storage", "value", "version")

    def __init__(
        self,
        value: int,
        storage: int,
        shape: Shape,
        dtype: str,
        category: Category,
        needs_grad: bool,
        version: int = 0,
        offset: int = 0,
    ) -> None:
        self.value = value
        self.storage = storage
        self.version = version
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.category = category
        self.needs_grad = needs_grad
        self.grad: Tensor | None = None


Rule = Callable[..., None]


class Tape:
    """Records operators; the layers in :mod:`triosim.sources.models._net` are written with it.

    Args:
        training: whether derivatives are wanted; without, nothing is put on the tape.
    """

    def __init__(self, training: bool) -> None:
        self.builder = TraceBuilder()
        self.training = training
        self.phase = Phase.FORWARD
        self._path = ""
        self._module = NONE
        self._differentiated = NONE
        self._modules: list[int] = []  # of each operator
        self._nodes: list[tuple[int, tuple[Tensor, ...], Rule]] = []
        self._made: dict[Phase, list[Tensor]] = {phase: [] for phase in Phase}
        self._read_backward: set[int] = set()

    # --- modules ------------------------------------------------------------------------------------------------------

    def module(self, name: str, kind: str) -> Scope:
        """``with net.module("mlp", "LlamaMLP"):`` puts what is called inside into the child module ``name``."""
        return Scope(self, f"{self._path}.{name}" if self._path else name, kind)

    @property
    def path(self) -> str:
        """Qualified name of the module that is being called."""
        return self._path

    # --- tensors ------------------------------------------------------------------------------------------------------

    def tensor(
        self,
        shape: Shape,
        dtype: str,
        category: Category = Category.TEMPORARY,
        *,
        needs_grad: bool = False,
        of: int = NONE,
        name: str = "",
    ) -> Tensor:
        """A tensor on a new storage."""
        storage = self.builder.storage()
        value = self.builder.value(shape, dtype, category, storage=storage, of=of, name=name, symbols=symbols(shape))
        return self._noted(Tensor(value, storage, shape, dtype, category, needs_grad))

    def alias(self, base: Tensor, shape: Shape, offset: int = 0) -> Tensor:
        """A tensor of another shape on the storage of ``base``, ``offset`` elements into it."""
        offset += base.offset
        value = self.builder.value(
            shape, base.dtype, base.category, storage=base.storage, version=base.version, offset=offset,
            symbols=symbols(shape),
        )  # fmt: skip
        return self._noted(
            Tensor(value, base.storage, shape, base.dtype, base.category, base.needs_grad, base.version, offset)
        )

    def overwritten(self, base: Tensor, needs_grad: bool | None = None) -> Tensor:
        """What an operator leaves that writes into ``base``: the next version of its storage."""
        value = self.builder.next_version(base.value)
        wanted = base.needs_grad if needs_grad is None else needs_grad
        return self._noted(
            Tensor(value, base.storage, base.shape, base.dtype, base.category, wanted, base.version + 1, base.offset)
        )

    def _noted(self, tensor: Tensor) -> Tensor:
        if tensor.category == Category.TEMPORARY:
            self._made[self.phase].append(tensor)
        return tensor

    # --- operators ----------------------------------------------------------------------------------------------------

    def operator(
        self,
        name: str,
        roles: Sequence[str],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        args: Mapping[str, Any] | None = None,
        *,
        view: bool = False,
    ) -> int:
        """Append a row to the trace; ``roles`` are the argument names of ``inputs`` in the operator's schema."""
        if self.phase == Phase.BACKWARD:
            self._read_backward.update([t.storage for t in inputs])
        self._modules.append(self._module)
        return self.builder.operator(
            name, [t.value for t in inputs], [t.value for t in outputs], roles=roles, phase=self.phase, args=args,
            module=self._module, forward=self._differentiated, view=view,
        )  # fmt: skip

    def derivative(self, row: int, outputs: Sequence[Tensor], rule: Rule) -> None:
        """Say how to differentiate the operator in ``row``: ``rule`` gets the gradients of ``outputs``.

        A rule calls :meth:`give` for every input that needs a gradient; where one of several outputs got no
        gradient it is handed None in its place.
        """
        if self.training and self.phase == Phase.FORWARD and any(t.needs_grad for t in outputs):
            self._nodes.append((row, tuple(outputs), rule))

    def give(self, tensor: Tensor, gradient: Tensor) -> None:
        """Hand a gradient to ``tensor``; a second one is added to the first."""
        if not tensor.needs_grad:
            return
        if tensor.grad is None:
            tensor.grad = gradient
            return
        total = self.tensor(gradient.shape, gradient.dtype)
        with self.undifferentiated():
            self.operator("aten::add", ("self", "other"), (tensor.grad, gradient), (total,))
        tensor.grad = total

    @contextmanager
    def undifferentiated(self) -> Iterator[None]:
        """What is called inside differentiates nothing: a sum of gradients, a copy of one."""
        held, self._differentiated = self._differentiated, NONE
        yield
        self._differentiated = held

    @contextmanager
    def differentiating(self, row: int) -> Iterator[None]:
        """What is called inside differentiates the operator in ``row``, another than the one whose turn it is."""
        held = self._module, self._differentiated
        self._module, self._differentiated = self._modules[row], row
        yield
        self._module, self._differentiated = held

    def backward(self, loss: Tensor, weights: Iterable[Tensor]) -> None:
        """Differentiate ``loss``: run the tape from its end to its beginning.

        What the forward made and the backward read is then an activation; what is left in ``grad`` of each of
        ``weights``, its gradient.
        """
        self.phase = Phase.BACKWARD
        one = self.tensor(loss.shape, loss.dtype)
        self.operator("aten::ones_like", ("self",), (loss,), (one,))
        loss.grad = one
        for row, outputs, rule in reversed(self._nodes):
            gradients = [t.grad for t in outputs]
            if all(g is None for g in gradients):
                continue
            self._module, self._differentiated = self._modules[row], row
            rule(*gradients)
            for t in outputs:
                t.grad = None
        self._nodes.clear()
        self._module = self._differentiated = NONE
        kept = self._read_backward & {t.storage for t in self._made[Phase.FORWARD]}
        for t in (*self._made[Phase.FORWARD], *self._made[Phase.BACKWARD]):
            if t.storage in kept:
                self.builder.set_category(t.value, Category.ACTIVATION)
        of = {w.grad.storage: w.value for w in weights if w.grad is not None}
        for t in self._made[Phase.BACKWARD]:
            if t.storage in of:
                self.builder.set_category(t.value, Category.GRADIENT, of[t.storage])


class Scope:
    """What :meth:`Tape.module` returns."""

    __slots__ = ("_before", "_kind", "_path", "_tape")

    def __init__(self, tape: Tape, path: str, kind: str) -> None:
        self._tape = tape
        self._path = path
        self._kind = kind

    def __enter__(self) -> None:
        tape = self._tape
        self._before = (tape._path, tape._module)
        tape._path = self._path
        tape._module = tape.builder.module(self._path, self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._tape._path, self._tape._module = self._before


def symbols(shape: Iterable[int]) -> tuple[int, ...]:
    """Which dimensions follow the batch, the sequence or the vocabulary (:class:`~triosim.trace.tables.Values`)."""
    return tuple([d.symbol if type(d) is Dim else 0 for d in shape])
