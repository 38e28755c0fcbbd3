"""What one fleet of a sweep gave: its figures, or the sentence why there are none; and which fleet is the best.

Fleets that keep the goals come before those that do not, then the cheaper before the dearer: by the rent of an hour
where each is as large as it has to be for the traffic, else by the rent of a million tokens.  Devices stand for dollars
where one of them has no price.  Equally cheap ones follow each other by their mean time from end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.serving.deployment import ServingResult


@dataclass(frozen=True)
class FleetFigures:
    """What fleets are compared by.

    Attributes:
        replicas, devices: of the fleet.
        met: whether it keeps all goals; True where there is none.
        dollars_per_hour: rent of the devices while their replicas are there, None where one has no price.
        dollars_per_million_tokens: of prompts and outputs, likewise.
        requests_per_s, output_tokens_per_s: of the run.
        good_requests_per_s: that kept the goals themselves; None where there is none.
        ttft_mean, ttft_p99, tpot_mean, tpot_p99, e2e_mean: seconds; None where there is no such request.
        preemptions: of all requests.
        rate: highest requests per second that keep the goals, where that was looked for.
        output_token_j: joules of all nodes to an output token; None where nobody knows what a device draws.
        e2e_p99: seconds.
        images: whether it makes images, whose tokens are denoising steps.
    """

    replicas: int
    devices: int
    met: bool
    dollars_per_hour: float | None
    dollars_per_million_tokens: float | None
    requests_per_s: float
    output_tokens_per_s: float
    good_requests_per_s: float | None
    ttft_mean: float | None
    ttft_p99: float | None
    tpot_mean: float | None
    tpot_p99: float | None
    e2e_mean: float | None
    preemptions: int
    rate: float | None = None
    output_token_j: float | None = None
    e2e_p99: float | None = None
    images: bool = False

    @property
    def dollars_per_thousand(self) -> float | None:
        """Rent of the devices shared by requests, of a thousand; None where a device has no price."""
        return None if self.dollars_per_hour is None else self.dollars_per_hour / 3.6 / self.requests_per_s


@dataclass(frozen=True)
class FleetOutcome:
    """What one fleet gave.

    Attributes:
        asked: the options that the sweep gave, as it gave them.
        figures: what came of them, None where the fleet cannot be formed.
        why: the sentence why it cannot, ``""`` where it can.
    """

    asked: dict[str, Any]
    figures: FleetFigures | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        figures = None if self.figures is None else asdict(self.figures)
        return {"asked": self.asked, "why": self.why, "figures": figures}

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> FleetOutcome:
        """What :meth:`to_dict` made, as an outcome again.

        Raises:
            KeyError, TypeError: it did not make that.
        """
        found = plain["figures"]
        return FleetOutcome(plain["asked"], None if found is None else FleetFigures(**found), plain["why"])


def fleet_figures(result: ServingResult, rate: float | None = None, kept: bool = True) -> FleetFigures:
    """Of a run.

    Args:
        result: the run.
        rate: that was found, if one was looked for.
        kept: whether such a rate was found at all.
    """
    found, own = result.metrics, result.deployment

    def latency(name: str, which: str) -> float | None:
        value = found.distributions[name].table()[which]
        return None if value is None else float(value)

    figures = found.figures
    return FleetFigures(
        replicas=own.replicas,
        devices=sum(pool.own_devices for pool in own.pools),
        met=kept and all(met for _, _, met in found.goals),
        dollars_per_hour=result.dollars_per_hour,
        dollars_per_million_tokens=result.dollars_per_million_tokens,
        requests_per_s=float(figures["requests_per_s"] or 0),
        output_tokens_per_s=float(figures["output_tokens_per_s"] or 0),
        good_requests_per_s=None if figures["good_requests_per_s"] is None else float(figures["good_requests_per_s"]),
        ttft_mean=latency("ttft", "mean"), ttft_p99=latency("ttft", "p99"),
        tpot_mean=latency("tpot", "mean"), tpot_p99=latency("tpot", "p99"),
        e2e_mean=latency("e2e", "mean"),
        preemptions=int(figures["preemptions"] or 0),
        rate=rate,
        output_token_j=None if result.energy is None else result.energy.per_token_j,
        e2e_p99=latency("e2e", "p99"), images=own.makes_images,
    )  # fmt: skip


def ranked(outcomes: Sequence[FleetOutcome], sized: bool = False) -> list[FleetOutcome]:
    """Those that can be formed, the best first; the earlier where they are alike.

    Args:
        outcomes: of all fleets.
        sized: whether each is as large as it has to be.
    """
    possible = [(one, one.figures) for one in outcomes if one.figures is not None]
    priced = all(found.dollars_per_hour is not None for _, found in possible)

    def cost(found: FleetFigures) -> float:
        an_hour = found.dollars_per_hour if priced else float(found.devices)
        if sized:
            return inf if an_hour is None else an_hour
        if priced:
            return inf if found.dollars_per_million_tokens is None else found.dollars_per_million_tokens
        return found.devices / found.output_tokens_per_s

    def key(pair: tuple[FleetOutcome, FleetFigures]) -> tuple[bool, float, float]:
        found = pair[1]
        return not found.met, cost(found), inf if found.e2e_mean is None else found.e2e_mean

    return [one for one, _ in sorted(possible, key=key)]
