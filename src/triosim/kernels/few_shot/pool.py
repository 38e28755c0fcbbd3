"""Other devices that the same networks were timed on: what a new device may be a mixture of.

Each device of the pool becomes a sum over the edges of its networks, ``t = c + sum of c[edge, operator]``, by ridge
regression on relative errors, with whichever operators run (all, or the live ones) it follows better; so it speaks of
networks that it was not timed on.  Of networks that are only names it knows those it was timed on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.kernels.few_shot.networks import NAMES, NetworkSet

RIDGE = 1e-3
"""Weight of squared coefficients beside squared relative errors.  It only keeps the equations solvable: a network has
one operator on each edge, so one column in each edge is redundant.  1e-5 and 0.1 rank alike to three digits."""


@dataclass(frozen=True)
class DevicePool:
    """Devices that many networks were timed on.

    Attributes:
        devices: their names.
        space: how networks are written (:mod:`~triosim.kernels.few_shot.networks`).
        operators: that occur in its networks.
        edges: of its networks, in the order of the coefficients.
        only_live: for each device whether it runs live operators only.
        coefficients: shape ``(devices, 1 + edges * operators)``, or ``(devices, networks)`` where networks are names:
            what each took.
        names: of those networks, else empty.
        networks: how many it was learned from.
    """

    devices: tuple[str, ...]
    space: str
    operators: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    only_live: tuple[bool, ...]
    coefficients: NDArray[np.float64]
    names: tuple[str, ...] = ()
    networks: int = 0

    def times(self, networks: NetworkSet) -> NDArray[np.float64]:
        """What each network takes on each device, in the pool's own unit: shape ``(networks, devices)``.

        Networks that :meth:`lacks` names get numbers without a meaning.
        """
        if self.space == NAMES:
            at = {name: number for number, name in enumerate(self.names)}
            return self.coefficients.T[[at.get(name, 0) for name in networks.names]]
        columns = {live: _columns(networks, self.operators, live) for live in set(self.only_live)}
        found = [columns[live] @ row for live, row in zip(self.only_live, self.coefficients, strict=True)]
        return np.stack(found, axis=1)

    def lacks(self, networks: NetworkSet) -> list[str | None]:
        """For each network what the pool does not know of it, None where it knows all."""
        if networks.space != self.space or (self.space != NAMES and networks.edges != self.edges):
            return ["it is of another search space than the pool"] * len(networks)
        if self.space == NAMES:
            known = set(self.names)
            return [None if name in known else "the pool has not timed it" for name in networks.names]
        return [
            f"no network of the pool has {quoted(operator)}" if operator is not None else None
            for operator in networks.unknown(self.operators)
        ]


def learn(devices: tuple[str, ...], networks: NetworkSet, times: NDArray[np.float64], where: str) -> DevicePool:
    """A pool from what networks took.

    Args:
        devices: names.
        networks: that were timed; those without a path through them are left out.
        times: above 0, shape ``(networks, devices)``, in any unit.
        where: they were found, for messages.

    Raises:
        InputError: no network remains, or there are fewer than edges.
    """
    rows = np.flatnonzero(networks.connected)
    if networks.space == NAMES:
        only_live = (False,) * len(devices)
        return DevicePool(devices, NAMES, (), (), only_live, times.T.copy(), networks.names, len(networks))
    if len(rows) < len(networks.edges):
        raise InputError(f"{where}: {len(rows)} networks do not tell what {len(networks.edges)} edges cost: give more")
    fits = [_fitted(_columns(networks, networks.operators, live)[rows], times[rows]) for live in (False, True)]
    better = fits[1][1] < fits[0][1]
    coefficients = np.where(better[:, None], fits[1][0], fits[0][0])
    return DevicePool(
        devices, networks.space, networks.operators, networks.edges, tuple(bool(b) for b in better), coefficients,
        networks=len(rows),
    )  # fmt: skip


def _columns(networks: NetworkSet, operators: tuple[str, ...], only_live: bool) -> NDArray[np.float64]:
    return np.column_stack([np.ones(len(networks)), networks.one_hot(operators, only_live)])


def _fitted(
    columns: NDArray[np.float64], times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coefficients of each device and its mean squared relative error: (devices, coefficients), (devices,)."""
    found, errors = [], []
    for one in times.T:
        relative = columns / one[:, None]
        gram = relative.T @ relative + RIDGE * np.eye(columns.shape[1])
        found.append(np.linalg.solve(gram, relative.sum(axis=0)))
        errors.append(float(np.mean(np.square(relative @ found[-1] - 1))))
    return np.array(found), np.array(errors)
