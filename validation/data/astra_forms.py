"""What ASTRA-sim takes for a collective in one dimension with one chunk under way, in closed form.

Derived from its runs (192 of 192 matched to the cycle); times in nanoseconds.  c is a chunk, m a rank's share of it, B
bytes per nanosecond, L the latency of a hop, e the endpoint delay, r(x) the cost of reducing x bytes.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from triosim.interop.astra.network import Dimension
from triosim.interop.astra.system import AstraSystem


def closed_form(kind: str, size: int, line: Dimension, layer: AstraSystem, aware: bool) -> int:
    """Nanoseconds of a collective of ``size`` bytes, or -1 where no closed form is known.

    Args:
        kind: of :data:`triosim.interop.astra.system.KINDS`.
        size: what one rank brings.
        line: the only dimension of the network.
        layer: one implementation, one active chunk, splits that divide ``size``.
        aware: the congestion-aware back end, else the other.
    """
    n, name = line.npus, layer.choices[kind][0].name
    rate, latency = Fraction(line.bandwidth) / 10**9, Fraction(round(line.latency * 1e12), 1000)
    c = size // layer.splits
    m = c if kind == "all_gather" else c // n
    e, r = layer.costs.endpoint_ns, layer.costs.reduction_ns(m)

    def serve(x: int) -> int:
        return floor(latency + x / rate)

    def hop(x: int) -> int:
        return line.hops * serve(x) if aware else floor(line.hops * latency + x / rate)

    if name == "ring" and kind != "all_to_all":
        steps, handed, reduced = {
            "all_reduce": (2 * (n - 1), 2 * n - 1, n - 1),
            "reduce_scatter": (n - 1, n, n - 1),
            "all_gather": (n - 1, n, 0),
        }[kind]
        return layer.splits * (steps * hop(m) + handed * e + reduced * r)
    if name == "ring":
        steps = n * (n - 1) // 2
        return layer.splits * (steps * hop(m) + (steps + 1) * e)
    if line.topology == "FullyConnected":
        rounds, reduced = (2 if kind == "all_reduce" else 1), kind in ("all_reduce", "reduce_scatter")
        return layer.splits * (rounds * serve(m) + (rounds + 1) * e + reduced * r)
    if kind == "all_to_all" and line.topology == "Switch":
        waiting = (n - 2) * floor(m / rate) + 2 * serve(m) if aware else hop(m)
        return layer.splits * (waiting + 2 * e)
    if kind == "all_to_all" and not aware:
        return layer.splits * (floor(n // 2 * latency + m / rate) + 2 * e)
    return -1
