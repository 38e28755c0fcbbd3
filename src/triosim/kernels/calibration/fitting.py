"""What a few measured kernels of a device say about each class of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.calibration import conformal, scalars
from triosim.kernels.calibration.anchors import ALONE, APARTS, REACHES, Anchors
from triosim.kernels.physical.gemm import Menu
from triosim.kernels.physical.kinds import KernelKind, RateFactors, Work
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.operators import canonical

FEWEST = 3
"""Different kernels of a class from which on its factors are fitted.  Fewer are anchors on the shipped constants, which
is the safer the nearer these are; on what is not a GPU they are no basis, and factors are fitted to any number."""
FOLDS = 10


@dataclass(frozen=True)
class ClassFit:
    """Fit of one class of kernels to its measurements.

    Attributes:
        kind, name: of the class.
        logs: logarithms of the factors of computing, bandwidth and launches, shape (3,).
        menu: tiles of the library; empty where the menus that come with the program predict better, or no names tell.
        operators: logarithm of the factor of each operator of the class, for those that were measured: a GELU is not
            an addition.
        anchors: the measured kernels, with what is left of the error.
        spread: half-width of the 90 % interval (natural logarithm); None where the kernels are too few to say.
        typical: 90 % of the measured kernels have another one within this distance, in powers of two.
        before, after: mean relative error without calibration, and with one from which the kernel was left out; no
            ``after`` where the kernels are too few to leave any out.
    """

    kind: str
    name: str
    logs: NDArray[np.float64]
    menu: Menu
    operators: Mapping[str, float]
    anchors: Anchors
    spread: float | None
    typical: float
    before: float
    after: float | None

    @property
    def factors(self) -> RateFactors:
        """The three factors."""
        return scalars.of_logs(self.logs)

    def constants(self, kind: KernelKind) -> Any:
        """Constants of the kind for kernels of this class."""
        return kind.scaled(_with_menu(kind.constants(), self.name, self.menu), self.factors)

    def seconds(
        self, kind: KernelKind, work: Work, device: Accelerator, names: Sequence[str] = ()
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Seconds and limit of kernels of this class, and the distance to the nearest measured one.

        Args:
            kind, work, device: what is to be predicted.
            names: the operator of each row, as :func:`operator_name` has it; none if not known.
        """
        seconds, limit = kind.predict(work, device, self.constants(kind))
        of = variants(work, names)
        added, distance = self.anchors.at(kind.shape(work), of)
        return seconds * np.exp(added + _offsets(self.operators, of, len(work))), limit, distance


@dataclass(frozen=True)
class MeasuredKernels:
    """Measured kernels of one kind.

    Attributes:
        work: what each does.
        seconds: device time of each, without the host's.
        before: what is predicted without calibration; by the kind's own constants where not given.
        menus: tiles found in kernel names, by class.
        names: the operator of each, as :func:`operator_name` has it; none where not known.
    """

    work: Work
    seconds: NDArray[np.float64]
    before: NDArray[np.float64] | None = None
    menus: Mapping[str, Menu] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def operator_name(name: str) -> str:
    """An operator's name without what does not matter: ``"gelu"``, ``"gelu backward"``.

    PyTorch finds the places of the largest elements whether they are asked for or not: ``"max_pool2d"`` both times.
    """
    base, backward = canonical(name)
    base = base.removesuffix("_with_indices")
    return f"{base} backward" if backward else base


def different(measured: MeasuredKernels) -> MeasuredKernels:
    """The kernels that differ in what they do, in order of first appearance; of equal ones the median time.

    Raises:
        InputError: lengths differ, or a time is not a positive number.
    """
    work, seconds = measured.work, measured.seconds
    if len(seconds) != len(work):
        raise InputError(f"{len(work)} kernels but {len(seconds)} times: give one time per kernel")
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError("a measured time is not a positive number: remove that kernel or measure it again")
    if measured.names and len(measured.names) != len(work):
        raise InputError(f"{len(work)} kernels but {len(measured.names)} names: give one name per kernel or none")
    columns = [np.asarray(getattr(work, f.name), np.float64) for f in fields(work)]
    codes = {name: float(code) for code, name in enumerate(dict.fromkeys(measured.names))}
    columns += [np.array([codes[name] for name in measured.names])] if codes else []
    table = np.stack(columns, axis=1)
    _, first, at = np.unique(table, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(work):
        return measured
    at, order = at.ravel(), np.argsort(first)
    rows = first[order]
    middle = np.array([float(np.median(seconds[at == i])) for i in order])
    before = None if measured.before is None else measured.before[rows]
    names = tuple(measured.names[row] for row in rows.tolist()) if codes else ()
    return replace(measured, work=work.take(rows), seconds=middle, before=before, names=names)


def learned(kind: KernelKind, measured: MeasuredKernels, device: Accelerator) -> list[ClassFit]:
    """What is learned of each class that kernels were measured of.

    Args:
        kind: of the kernels.
        measured: any number of them; of equal ones the median counts.
        device: that they ran on.

    Raises:
        InputError: lengths differ, or a time is not a positive number.
    """
    measured = different(measured)
    work, seconds, before = measured.work, measured.seconds, measured.before
    if before is None:
        before = kind.predict(work, device, kind.constants()).seconds if len(work) else seconds
    found = []
    for code, rows in by_class(kind, work):
        name, part, times = kind.classes[code], work.take(rows), seconds[rows]
        error = float(np.mean(np.abs(before[rows] / times - 1)))
        menus: list[Menu] = [(), *([measured.menus[name]] if measured.menus.get(name) else [])]
        names = variants(part, [measured.names[row] for row in rows.tolist()] if measured.names else ())
        tried = [_learn(kind, name, menu, part, times, device, error, names) for menu in menus]
        found.append(min(tried, key=lambda one: np.inf if one.after is None else one.after))
    return found


def variants(work: Work, names: Sequence[str]) -> Sequence[str]:
    """What each kernel's algorithm may depend on besides its sizes: the operator, and the window of a convolution and
    whether it sees each channel by itself."""
    if not isinstance(work, ConvolutionCalls):
        return names
    windows = zip(work.kernel_rows.tolist(), work.kernel_columns.tolist(), work.stride.tolist(), strict=True)
    lone = ((work.groups > 1) & (work.in_channels == 1)).tolist()
    tags = [
        f"{rows:g}x{columns:g}/{stride:g}{' of each channel' * alone}"
        for (rows, columns, stride), alone in zip(windows, lone, strict=True)
    ]
    return [f"{name} {tag}" for name, tag in zip(names, tags, strict=True)] if names else tags


def by_class(kind: KernelKind, work: Work) -> list[tuple[int, NDArray[np.int64]]]:
    """Each class that occurs, and its rows."""
    classes = kind.class_of(work)
    return [(code, np.flatnonzero(classes == code)) for code in np.unique(classes).tolist()]


def _learn(
    kind: KernelKind, name: str, menu: Menu, work: Work, seconds: NDArray, device: Accelerator, before: float,
    names: Sequence[str],
) -> ClassFit:  # fmt: skip
    constants = _with_menu(kind.constants(), name, menu)
    shape = kind.shape(work)

    def fitted(rows: NDArray, start: NDArray | None = None) -> tuple[NDArray, dict[str, float], Anchors]:
        part, times = work.take(rows), seconds[rows]
        logs = np.zeros(len(fields(RateFactors)))
        if len(rows) >= FEWEST or device.kind not in GPUS:
            logs = scalars.fitted(kind, constants, part, times, device, start)
        error = np.log(times / kind.predict(part, device, kind.scaled(constants, scalars.of_logs(logs))).seconds)
        of = [names[row] for row in rows.tolist()] if names else []
        offsets = _operators(of, error) if len(rows) >= FEWEST else {}
        return logs, offsets, Anchors(shape[rows], error - _offsets(offsets, of, len(rows)), names=tuple(of))

    logs, offsets, anchors = fitted(np.arange(len(work)))
    if len(work) < FEWEST:
        lone = replace(anchors, reach=ALONE)
        return ClassFit(kind.name, name, logs, menu, offsets, lone, None, 0.0, before, None)
    tried = [(reach, apart) for apart in (APARTS if len(set(names)) > 1 else APARTS[:1]) for reach in REACHES]
    left, distance = np.empty((len(tried), len(work))), np.empty((len(tried), len(work)))
    fold = np.random.default_rng(0).permutation(len(work)) % min(FOLDS, len(work))
    for one in range(int(fold.max()) + 1):
        out = np.flatnonzero(fold == one)
        others, known, near = fitted(np.flatnonzero(fold != one), logs)
        there = kind.predict(work.take(out), device, kind.scaled(constants, scalars.of_logs(others))).seconds
        of = [names[row] for row in out.tolist()] if names else []
        for i, (reach, apart) in enumerate(tried):
            added, distance[i, out] = replace(near, reach=reach, apart=apart).at(shape[out], of)
            left[i, out] = np.log(seconds[out] / there) - _offsets(known, of, len(out)) - added
    best = int(np.argmin(np.mean(np.abs(left), axis=1)))
    reach, apart = tried[best]
    after = float(np.mean(np.abs(np.expm1(-left[best]))))
    typical = float(np.quantile(distance[best], 0.9))
    anchors = replace(anchors, reach=reach, apart=apart)
    return ClassFit(
        kind.name, name, logs, menu, offsets, anchors, conformal.half_width(left[best]), typical, before, after
    )


def _operators(names: Sequence[str], error: NDArray[np.float64]) -> dict[str, float]:
    """Mean error of each operator, drawn towards 0 as by one kernel without any."""
    found: dict[str, list[float]] = {}
    for name, one in zip(names, error.tolist(), strict=False):
        found.setdefault(name, []).append(one)
    return {name: sum(of) / (len(of) + 1) for name, of in found.items()} if len(found) > 1 else {}


def _offsets(operators: Mapping[str, float], names: Sequence[str], count: int) -> NDArray[np.float64]:
    """What each kernel's operator adds to the logarithm of its time, 0 where it is not known."""
    if not operators or not len(names):
        return np.zeros(count)
    return np.array([operators.get(name, 0.0) for name in names])


def _with_menu(constants: Any, name: str, menu: Menu) -> Any:
    """Constants of matrix products with these tiles in the class ``matrix/ENGINE``; as they are without tiles."""
    if not menu:
        return constants
    engine = name.partition("/")[2]
    return {**constants, engine: replace(constants[engine], menus=(menu,), menus_batched=(menu,))}
