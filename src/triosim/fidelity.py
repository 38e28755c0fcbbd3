"""The Fidelity: how a plan is predicted; what is run is said by :class:`~triosim.plan.Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, PlanError, quoted
from triosim.core.validated_fields import FrozenDict, ValidatedFields, ValueRange, asked

NETWORK, PREDICTION = "Communication", "How it is predicted"
"""Groups of options as help lists them."""


@dataclass(frozen=True, init=False)
class Fidelity(ValidatedFields):
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

    operator_times: str = asked(
        "auto", PREDICTION, "NAME|FILE",
        "auto, recorded, proportional, physical, roofline, li, habitat, a PACK.json (triosim calibrate), a table "
        "of kernels (JSON), a file of external times, or FILE.py with a model of yours (default auto).",
        offers="triosim.kernels.model:MODELS", own=True,
    )  # fmt: skip
    operator_options: Mapping[str, str | bool | int | float] = asked(
        FrozenDict(), PREDICTION, "NAME=VALUE", "Of the operator model; repeatable.", option="operator-option",
        repeats=True, example="scale=2",
    )  # fmt: skip
    host: Literal["recorded", "eager", "large-model", "compiled", "graph", "none"] | None = asked(
        None, PREDICTION, "MODE",
        "Cost of launching: recorded, eager, large-model, compiled, graph or none (default: as the devices).",
    )  # fmt: skip
    interference: Annotated[float, ValueRange(1)] | Literal["auto", "off"] = asked(
        "auto", NETWORK, "X",
        "What computes beside a collective takes so many times as long: auto (as the device), off, or a number "
        "(default auto).",
    )  # fmt: skip
    composition: str | None = asked(
        None, PREDICTION, "FILE",
        "What measured iterations taught of composition (a residual, JSON); replaces --host.", offers="files",
    )  # fmt: skip
    collective_algorithm: str = asked(
        "auto", NETWORK, "NAME", "Of collectives: ring, tree, nvls, ... (default: as NCCL chooses).",
        option="algorithm", words=("auto",), offers="triosim.collectives.algorithm:ALGORITHMS",
    )  # fmt: skip
    collective_protocol: str = asked(
        "auto", NETWORK, "NAME", "Of collectives: LL, LL128 or Simple (default: as NCCL chooses).",
        option="protocol", words=("auto", "LL", "LL128", "Simple"),
    )  # fmt: skip
    solver: str = asked(
        "max-min", NETWORK, "NAME|FILE.py",
        "Network model: max-min, equal-split, circuit, ... or one of yours (default max-min).",
        offers="triosim.engine.solver:SOLVERS", own=True,
    )  # fmt: skip
    solver_options: Mapping[str, str | bool | int | float] = asked(
        FrozenDict(), NETWORK, "NAME=VALUE", "Of the network model, as setup=80us of circuit; repeatable.",
        option="solver-option", repeats=True, example="setup=80us",
    )  # fmt: skip
    fold: bool = asked(
        True, NETWORK, "on|off", "on: play ranks that nothing tells apart once; off: all, to the same result."
    )
    seed: Annotated[int, ValueRange(0)] = asked(
        0, PREDICTION, "N", "Of the draws that the interval comes from (default 0)."
    )

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
