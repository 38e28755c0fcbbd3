"""A result in words: its title, its plan, and the summary that ``print`` and notebooks show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.core.units import format_bytes, format_count, format_share, format_time

if TYPE_CHECKING:
    from triosim.plan import RunPlan
    from triosim.prediction.result import Cause, Memory, Result
    from triosim.prediction.variation import VariedTime

PARTS = (
    ("compute", "compute"), ("exposed_communication", "exposed communication"), ("host", "host"), ("idle", "idle"),
)  # fmt: skip
"""Parts of an iteration: field of :class:`~triosim.prediction.result.Breakdown`, and what it is called."""

_SIZES = ("dp", "tp", "pp", "cp", "ep")


def title(result: Result) -> str:
    """``"llama3-8b on 4 x H100-SXM5-80GB"``."""
    what = result.workload.name or "workload"
    return f"{what} on {result.system.name}" if result.system.name else what


def unsure(cause: Cause) -> str:
    """What makes a prediction most unsure: ``"80 % of the uncertainty is the host: record a trace on H100 ..."``."""
    words = f"{100 * cause.share:.0f} % of the uncertainty is {cause.name}"
    if not cause.suggestion:
        return words
    narrower = round(100 * (1 - cause.without))
    return f"{words}: {cause.suggestion}" + (f" and the interval narrows by up to {narrower} %" if narrower else "")


def plan_words(plan: RunPlan, batch_known: bool = True) -> str:
    """What the plan asks for in a few words: ``"training, global batch 64, dp 2, pp 2, 4 micro-batches, 1f1b"``.

    Args:
        plan: as it was run.
        batch_known: whether the trace's batch is known, or another was asked for.
    """
    words = ["training" if plan.training else "inference"]
    words += [f"global batch {plan.global_batch_size:,}"] if batch_known else []
    if plan.sequence_length:
        words.append(f"{plan.sequence_length} tokens")
    sizes = [f"{axis} {getattr(plan, axis)}" for axis in _SIZES if getattr(plan, axis, 1) > 1]
    words += sizes or (["one device"] if plan.ranks == 1 else [])
    words += [_rule_words(rule, plan.parallelism_options) for rule in plan.parallelism]
    if plan.micro_batches > 1:
        words.append(f"{plan.micro_batches} micro-batches")
    if plan.pp > 1:
        words.append(plan.schedule)
    if plan.zero:
        words.append(f"ZeRO {plan.zero}")
    if plan.quantize != "none":
        words.append(plan.quantize + (" with attention" if plan.quantize_attention else ""))
    if plan.layout != "recorded":
        words.append(plan.layout)
    if plan.optimizer:
        words.append(f"optimizer {plan.optimizer}")
    if plan.recompute != "none":
        words.append(f"recompute {plan.recompute}")
    if plan.offload:
        words.append(f"offload {' + '.join(plan.offload)}")
    return ", ".join(words)


_SIZE_OF_RULE = {"context": "cp", "experts": "ep"}


def _rule_words(rule: str, options: Mapping[str, Any]) -> str:
    """A rule of parallelism with its size where it has one: ``"cp 8 (ring)"``, ``"ep 8"``, ``"sequence parallel"``."""
    size = _SIZE_OF_RULE.get(rule, "")
    if size not in options:
        return f"{Path(rule).stem} parallel"
    style = options.get("cp-style", options.get("cp_style"))
    return f"{size} {options[size]}" + (f" ({style})" if rule == "context" and style else "")


def subtitle(result: Result) -> str:
    """What was asked for, in a few words."""
    return plan_words(result.plan, result.throughput.samples_per_s is not None)


def varies(found: VariedTime) -> str:
    """How long iterations are where something varies."""
    times = ((f"P{percent}", getattr(found, f"p{percent}_s")) for percent in (50, 95, 99))
    quantiles = ", ".join(f"{name} {format_time(seconds)}" for name, seconds in times)
    return f"{quantiles}, mean {format_time(found.mean_s)} of {found.draws:,} iterations"


def varied_by(found: VariedTime) -> str:
    """What varies, and what the mean iteration takes longer by each alone."""
    parts = (f"{name} {asked} ({format_share(found.alone[name])})" for name, asked in found.asked.items())
    return "longer on average by " + ", ".join(parts)


def verdict(memory: Memory) -> str:
    """Whether it fits, in words: ``"9.3 GiB of 80 GiB: fits"``."""
    needed = memory.reserved_bytes + memory.context_bytes
    if memory.capacity_bytes is None:
        return f"{format_bytes(needed)} (capacity of the device not known)"
    text = f"{format_bytes(needed)} of {format_bytes(memory.capacity_bytes)}"
    if memory.fits:
        return f"{text}: fits"
    return f"{text}: does not fit, {format_bytes(needed - memory.capacity_bytes)} too much"


def number(value: float) -> str:
    """A count or rate as people write it: ``"65.43"``, ``"267,987"``."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(part: float) -> str:
    """A part of a whole: ``"36.5 %"``."""
    return format_share(part)


def speeds(result: Result) -> str:
    """Samples and tokens per second, ``""`` where neither is known."""
    found = ((result.throughput.samples_per_s, "samples/s"), (result.throughput.tokens_per_s, "tokens/s"))
    return ", ".join(f"{number(speed)} {unit}" for speed, unit in found if speed is not None)


def per_device(result: Result) -> str:
    """What one device does: ``"93,878 tokens/s, 74.9 TFLOP/s, 7.6 % MFU"``; ``""`` where nothing is known."""
    found = result.efficiency
    words = [f"{number(found.tokens_per_s_per_device)} tokens/s"] if found.tokens_per_s_per_device is not None else []
    words += [f"{format_count(found.flop_per_s_per_device)}FLOP/s"] if found.flop_per_s_per_device is not None else []
    words += [f"{share(found.mfu)} MFU"] if found.mfu is not None else []
    return ", ".join(words)


def use(result: Result) -> str:
    """The same with what a device could do: ``"93,878 tokens/s, 74.9 of 989.4 TFLOP/s bfloat16 (7.6 % MFU)"``."""
    found = result.efficiency
    rate, most = found.flop_per_s_per_device, found.peak_flop_per_s_per_device
    if rate is None or most is None or found.mfu is None:
        return per_device(result)
    figure, prefix = format_count(most).split(" ")
    part = number(rate / most * float(figure))
    words = f"{part} of {figure} {prefix}FLOP/s {found.precision} ({share(found.mfu)} MFU)"
    tokens = found.tokens_per_s_per_device
    return words if tokens is None else f"{number(tokens)} tokens/s, {words}"


def joules(result: Result) -> str:
    """What an iteration takes, one line: ``"20.4 kJ (17.3 kJ to 24.6 kJ), a device draws 364 W, 0.242 J/token"``."""
    found = result.energy
    if found is None:
        return ""
    low, high = (f"{format_count(end)}J" for end in found.interval_j)
    words = [f"{format_count(found.node_j)}J ({low} to {high})", f"a device draws {format_count(found.device_mean_w)}W"]
    per = ((found.per_token_j, "token"), (found.per_sample_j, "sample"))
    words += [f"{format_count(each)}J/{what}" for each, what in per if each is not None][:1]
    return ", ".join(words)


def rows(result: Result) -> list[tuple[str, str]]:
    """The summary below its title: what is said of, and what."""
    low, high = map(format_time, result.interval_s)
    total = result.iteration_time_s or 1.0
    parts = [(getattr(result.breakdown_s, name) / total, label) for name, label in PARTS]
    each = f"; per device {per_device(result)}" if per_device(result) else ""
    between = f"{result.confidence * 100:.0f} % between {low} and {high}"
    return [
        ("Iteration", f"{format_time(result.iteration_time_s)} ({between})"),
        ("Goes to", ", ".join(f"{label} {share(part)}" for part, label in parts if part > 0) or "nothing"),
        ("Throughput", f"{speeds(result) or 'not known'}{each}"),
        *([("Energy", joules(result))] if result.energy is not None else []),
        ("Memory", verdict(result.memory)),
    ]


def more(result: Result) -> str:
    """Where the rest is."""
    count = len(result.warnings)
    warned = f"; {count} warning{'s' if count > 1 else ''} in .warnings" if count else ""
    return f'.breakdown_s, .layers, .to_frame("operators"), .to_json(){warned}'


def summary(result: Result) -> str:
    """Seven lines at most: what was run, how long it takes, what it does, and where to read on."""
    from triosim.core.summary import text

    return text([f"{title(result)}: {subtitle(result)}"], (*rows(result), ("More", more(result))))


def summary_html(result: Result) -> str:
    """The same for notebooks."""
    from triosim.core.summary import table

    return table(title(result), subtitle(result), rows(result), result.warnings)
