"""One request in words, as the terminal and notebooks show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.core.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from triosim.serving.one_request import OneRequest
    from triosim.serving.pim import PimReport

NAMES = {"host": "host, device waits", "front": "HTTP, tokenizer"}
"""Of parts, where a word does not say what they are."""


def summary(found: OneRequest) -> list[str]:
    """Lines for the terminal."""
    own = found.pool
    devices = own.tensor_parallel * own.stages
    after = f", after {found.context:,} in the cache" if found.context else ""
    requests = "one request" if found.batch == 1 else f"{found.batch:,} requests together, each"
    lines = [
        f"{own.model} under {own.engine}, {own.weights} weights, on {devices} x {own.system.model(0).name}",
        f"{requests} of {found.prompt:,} prompt and {found.output:,} output tokens{after}",
        "",
        *(
            f"{name:9}{format_time(value):10}{_between(found.intervals.get(figure))}".rstrip()
            for name, figure, value in (
                ("TTFT", "ttft_s", found.ttft_s),
                ("TPOT", "tpot_s", found.tpot_s),
                ("in all", "e2e_s", found.e2e_s),
            )
        ),
        "",
        f"{'':18}" + "".join(f"{name:>12}" for name in found.breakdown_s),
    ]
    for part in found.breakdown_s["prompt"]:
        values = [table[part] for table in found.breakdown_s.values()]
        if any(values):
            lines.append(
                f"{NAMES.get(part, part.replace('_', ' ')):18}"
                + "".join(f"{format_time(value):>12}" for value in values)
            )
    if found.pim is not None:
        lines += ["", *_pim_lines(found.pim)]
    if (used := found.energy) is not None:
        low, high = (f"{format_count(end)}J" for end in used.interval_j)
        lines += [
            "",
            f"energy   {format_count(used.prompt_j + used.decode_j)}J on devices (90 % between {low} and {high}),",
            f"         {format_count(used.per_token_j)}J an output token, {used.mean_w:.0f} W a device",
        ]
    left = "fits" if found.fits else "DOES NOT FIT"
    held = f"KV cache {format_bytes(found.kv_bytes)}"
    if found.state_bytes:
        states = f"states {format_bytes(found.state_bytes)}"
        held = f"{held}, {states}" if found.kv_bytes else states
    lines += [
        "",
        f"{held} of {format_bytes(found.memory.cache)} on a device, {left}, beside "
        f"{format_bytes(found.memory.weights)} of weights",
    ]
    return lines


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" (90 % between {format_time(ends[0])} and {format_time(ends[1])})"


def _pim_lines(pim: PimReport) -> list[str]:
    """Both sides of a layer's attention in the middle of decoding."""

    def joules(value: float | None) -> str:
        return "" if value is None else f", {value * 1e3:.3g} mJ"

    return [
        f"attention of a layer, decoding, runs {pim.runs}",
        f"  on the processor  {format_time(pim.processor_s)}{joules(pim.processor_j)}",
        f"  in {pim.memory + ' alone':15}{format_time(pim.banks_s)}{joules(pim.banks_j)}, most of it {pim.binds}",
    ]
