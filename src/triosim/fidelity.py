"""The Fidelity: how a plan is predicted; what is run is said by :class:`~triosim.plan.Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from triosim.core.checked import Checked, FrozenDict, Within
from triosim.core.errors import InputError, PlanError, quoted

HOST_MODES = ("recorded", "eager", "large-model", "compiled", "graph", "none")


@dataclass(frozen=True, init=False)
class Fidelity(Checked):
    """Which models predict a plan.

    Every field has the meaning of the command-line option of the same name.

    Attributes:
        operator_times: operator model.
        operator_options: what that model takes, by name.
        host: how the cost of launching is taken into account; unset follows the devices that run the job.
        interference: what computes beside a collective takes so many times as long, at least 1; ``"auto"`` is that of
            the device, ``"off"`` is 1.
        composition: file of a residual fitted to measured iterations (:mod:`triosim.composition.residual`), which then
            says what launching costs.
        collective_algorithm: algorithm of collectives, ``"auto"`` to choose as NCCL does.
        collective_protocol: protocol of collectives, ``"LL"``, ``"LL128"``, ``"Simple"`` or ``"auto"``.
        solver: network model, which says how transfers share the network.
        solver_options: what that model takes, by name: ``{"setup": "80us"}``.
        fold: play ranks that nothing tells apart once; the result is the same.
        seed: of the draws that the interval comes from.
    """

    error: ClassVar[type[InputError]] = PlanError
    noun: ClassVar[str] = "a fidelity"

    operator_times: str = "auto"
    operator_options: Mapping[str, str | bool | int | float] = field(default_factory=FrozenDict)
    host: Literal["recorded", "eager", "large-model", "compiled", "graph", "none"] | None = None
    interference: Annotated[float, Within(1)] | Literal["auto", "off"] = "auto"
    composition: str | None = None
    collective_algorithm: str = "auto"
    collective_protocol: str = "auto"
    solver: str = "max-min"
    solver_options: Mapping[str, str | bool | int | float] = field(default_factory=FrozenDict)
    fold: bool = True
    seed: Annotated[int, Within(0)] = 0

    def __init__(self, **values: object) -> None:
        asked = values.get("interference", "auto")
        number = isinstance(asked, (int, float)) and not isinstance(asked, bool)
        if not (number and 1 <= asked < float("inf")) and asked not in ("auto", "off"):  # type: ignore[operator]
            raise PlanError(f"interference must be auto, off or a number of at least 1, got {quoted(asked)}")
        super().__init__(**values)

    def check(self) -> None:
        """Raise where fields do not go together.

        Raises:
            PlanError: in one sentence.
        """
        if self.composition is not None and self.host is not None:
            raise PlanError(f"composition says what launching costs, and so does host {self.host}: give only one")

    @property
    def slowdown(self) -> float | None:
        """What ``interference`` asks for, None for that of the device."""
        if isinstance(self.interference, str):
            return {"auto": None, "off": 1.0}[self.interference]
        return self.interference
