"""What a fleet did under traffic, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from triosim.core.units import format_bytes, format_count, format_share, format_time
from triosim.report.table import Column, TextTable, paragraph
from triosim.serving.deployment import ServingResult
from triosim.serving.metrics import QUANTILES

if TYPE_CHECKING:
    from triosim.serving.binding import PoolBinding
    from triosim.serving.fleet_search import FoundClock
    from triosim.serving.pool import Pool

TITLES = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "between tokens", "e2e": "end to end", "queueing": "queueing",
    "transfer": "KV transfer",
}  # fmt: skip
"""Of the distributions."""
OF_IMAGES = {**TITLES, "ttft": "first step", "tpot": "a step", "itl": "between steps"}
"""Where images are made, whose tokens are denoising steps."""
_INDENT = 16


def summary(result: ServingResult, console: Console) -> None:
    """Print it: latencies, rates, what was reached of the goals, and what was used."""
    own, found = result.deployment, result.metrics
    for pool in own.pools:
        replicas = f"{pool.replicas} x {pool.size} {pool.system.model(pool.first).name}"
        if pool.attention_ranks > 1:
            replicas += f" ({pool.attention_ranks} ranks of attention)"
        elif pool.expert_ranks > 1:
            replicas += f" ({pool.expert_ranks} ranks of experts)"
        name = f"{pool.name}: " if pool.name else ""
        paragraph(console, f"{name}{pool.model} under {pool.engine} on {replicas}, {pool.weights} weights", "bold")
    taken = format_time(found.duration_s)
    paragraph(console, f"{requests_in_words(len(found.served.requests))} in {taken}, warm-up and drain included")
    console.print()
    console.print(_latencies(result))
    sketched = [titles(result)[name] for name, one in found.distributions.items() if not one.exact]
    if sketched:
        paragraph(console, f"quantiles of {', '.join(sketched)} are sketched, to 0.1 %", "dim")
    console.print()
    for name, text in figures_in_words(result):
        paragraph(console, f"{name:{_INDENT}}{text}", indent=_INDENT)


def requests_in_words(count: int) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{count:,} request{'s' if count != 1 else ''}"


def titles(result: ServingResult) -> dict[str, str]:
    """What distributions are called."""
    return OF_IMAGES if result.deployment.makes_images else TITLES


def clocks(found: FoundClock, console: Console) -> None:
    """Print the clocks that were looked at, and which of those that keep the goals takes least energy."""
    from triosim.report.terminal import clock_table

    if not found.kept:
        console.print()
        paragraph(console, "no clock keeps the goals", "bold")
        return
    goal = found.result.metrics.goals[0][0]
    rows = [
        (clock / 1e6, format_time(one.metrics.goals[0][1]), one.energy.node_j if one.energy else 0.0,
         all(met for _, _, met in one.metrics.goals)) for clock, one in found.tried.items()
    ]  # fmt: skip
    which = "mean" if goal.quantile is None else f"p{goal.quantile * 100:g}"
    words = (f"{TITLES[goal.metric]} {which}", "missed")
    clock_table(rows, found.clock_hz / 1e6, words, "", console, found.boost_hz)


def _latencies(result: ServingResult) -> TextTable:
    """Distributions, a line each; narrow terminals go without the quantiles between."""
    heads = [Column(f"p{100 * q:g}", right=True, optional=3 if q not in (0.5, 0.99) else 0) for q in QUANTILES]
    interval = [Column("90 % of the mean", right=True, optional=2)] if result.intervals else []
    table = TextTable((Column(), Column("mean", right=True), *interval, *heads, Column("max", right=True, optional=1)))
    for name, one in result.metrics.distributions.items():
        title = titles(result)[name]
        ends = result.intervals.get(f"{name}.mean")
        between = [f"{format_time(ends[0])} to {format_time(ends[1])}" if ends else ""] if interval else []
        table.add_row(title, format_time(one.mean), *between, *map(format_time, (*one.quantiles, one.most)))
    return table


def figures_in_words(result: ServingResult) -> list[tuple[str, str]]:
    """Names and what is said of them."""
    images = result.deployment.makes_images
    rows = [*_served(result), *_replicas(result), *_memory(result), *_cached(result)]
    return [*rows, *(_of_images(result) if images else _of_tokens(result))]


def _served(result: ServingResult) -> list[tuple[str, str]]:
    """What was served, whether well enough, and what bound it."""
    found, figures = result.metrics, result.metrics.figures
    images = result.deployment.makes_images
    given, made = ("images", "steps of an image") if images else ("requests", "output tokens")
    rate = f"{figures['requests_per_s']:.4g} {given}/s, {figures['output_tokens_per_s']:.4g} {made}/s"
    rows = [("throughput", rate)]
    if not images and len(asked := found.served.requests):
        prompt, output = asked.prompt.mean(), asked.output.mean()
        rows.insert(0, ("requests", f"{prompt:,.0f} tokens of prompt and {output:,.0f} of output on average"))
    if figures["good_requests_per_s"] is not None:
        good = f"{figures['good_requests_per_s']:.4g} requests/s, {format_share(figures['good_share'] or 0)} of all"
        rows.append(("goodput", good))
    for goal, reached, met in found.goals:
        rows.append(("goal", f"{goal}: {format_time(reached)}, {'met' if met else 'missed'}"))
    busy = format_share(figures["utilisation"] or 0)
    rows.append(("devices", f"busy {busy} of the time, {figures['steps']:,} steps"))
    rows += [("binds", words) for words in map(_binds, result.deployment.pools, result.binding)]
    return rows + [("products", one.emulated) for one in result.binding if one.emulated]


def _replicas(result: ServingResult) -> list[tuple[str, str]]:
    """Replicas that come, go, fail, and change their weights."""
    figures, rows = result.metrics.figures, list[tuple[str, str]]()
    if result.served.history is not None:
        of = result.deployment.replicas
        come = f"{figures['mean_replicas']:.3g} of {of} on average, {figures['cold_starts']:,} cold starts"
        rows.append(("replicas", come))
    if figures["weight_swaps"]:
        took = format_time((figures["weight_swap_s"] or 0) / figures["weight_swaps"])
        rows.append(("weights", f"swapped {figures['weight_swaps']:,} times between models, {took} each"))
    if figures["replica_failures"]:
        moved = f"{figures['moved_requests']:,} requests went to another replica"
        rows.append(("failures", f"{figures['replica_failures']:,}; {moved}"))
    return rows


def _memory(result: ServingResult) -> list[tuple[str, str]]:
    """Blocks of the KV cache, or images at a time, and states of fixed size."""
    own, figures = result.deployment, result.metrics.figures
    beside = ""
    if (kept := result.memory[0]) is not None and len(result.memory) == 1:
        beside = f" ({format_bytes(kept.cache)} beside {format_bytes(kept.weights)} of weights)"
    each = "rank" if any(pool.attention_ranks > 1 for pool in own.pools) else "replica"
    what, held = ("memory", "images at a time") if own.makes_images else ("KV cache", "blocks")
    blocks = f"{min(result.served.blocks):,} {held} a {each}{beside}"
    rows = [(what, f"{blocks}, at most {format_share(figures['kv_peak'] or 0)} in use")]
    if kept is not None and kept.slots and len(result.memory) == 1:
        rows.append(("states", f"{kept.slots:,} slots a {each} ({format_bytes(kept.slots * kept.slot)})"))
    return rows


def _cached(result: ServingResult) -> list[tuple[str, str]]:
    """What was found again, sent, written away, drafted and loaded."""
    figures, rows = result.metrics.figures, list[tuple[str, str]]()
    if figures["prefix_hit_rate"]:
        rows.append(("prefixes", f"{format_share(figures['prefix_hit_rate'] or 0)} of the tokens looked up were found"))
    if figures["sent_bytes"]:
        rows.append(("sent", f"{format_bytes(figures['sent_bytes'])} of KV caches, from prefill to decode"))
    if figures["kv_written_bytes"]:
        moved = (
            f"{format_bytes(figures['kv_written_bytes'])} written, {format_bytes(figures['kv_loaded_bytes'])} sent back"
        )
        rows.append(("KV tiers", f"{moved} to {figures['kv_reloads']:,} requests"))
    if figures["drafted_tokens"]:
        held = format_share((figures["accepted_tokens"] or 0) / figures["drafted_tokens"])
        rows.append(("drafts", f"{held} accepted, {figures['tokens_per_verification']:.3g} tokens of a request a step"))
    if figures["adapter_loads"]:
        rows.append(("adapters", f"loaded {figures['adapter_loads']:,} times"))
    return rows


def _of_tokens(result: ServingResult) -> list[tuple[str, str]]:
    """What tokens are computed in vain, and what they take of energy and money."""
    figures = result.metrics.figures
    padding = format_share(figures["padding_share"] or 0)
    rows = [("padding", f"{padding} of the tokens computed fill captured graphs")]
    lost = f"{figures['preemptions']:,}, "
    if figures["interruptions"]:
        lost += f"and {figures['interruptions']:,} requests lost what they had with their replica: "
    lost += f"{figures['recomputed_tokens']:,} tokens computed again"
    if figures["swapped_blocks"]:
        lost += f", {figures['swapped_blocks']:,} blocks copied to the host and back"
    rows.append(("preemptions", lost))
    if (used := result.energy) is not None:
        low, high = (end / used.node_j * used.per_token_j for end in used.interval_j)
        each = f"{used.per_token_j:.3g} J an output token with hosts (90 % between {low:.3g} and {high:.3g})"
        clock = f" at {format_share(min(used.clocks))} of its clock in prompts" if min(used.clocks) < 1 else ""
        watts = f"a device draws {used.mean_w:.0f} W{clock}, {used.busy_w:.0f} W while it computes"
        rows.append(("energy", f"{each}; {watts}"))
    if result.dollars_per_million_tokens is not None:
        dollars, both, written = (
            result.dollars_per_million_tokens,
            figures["tokens_per_s"],
            figures["output_tokens_per_s"],
        )
        alone = f", ${dollars * both / written:.4g} of outputs alone" if both and written else ""
        rows.append(("cost", f"${dollars:.4g} for a million tokens of prompts and outputs{alone}"))
    return rows


def _binds(pool: Pool, found: PoolBinding) -> str:
    """What binds a pool, with the figures that say so."""
    name = f"{pool.name}: " if pool.name else ""
    if found.compute is None:
        return f"{name}{found.resource}"
    shares = {"compute": found.compute, "memory bandwidth": found.memory_bandwidth, "links": found.links}
    used = ", ".join(f"{what} {format_share(share)}" for what, share in shares.items() if share)
    return f"{name}{found.resource} (of the busy time, at the rates of the datasheet: {used})"


def _of_images(result: ServingResult) -> list[tuple[str, str]]:
    """What images take."""
    rows = []
    if (used := result.energy) is not None:
        low, high = (format_count(end / used.node_j * used.per_request_j) for end in used.interval_j)
        each = f"{format_count(used.per_request_j)}J an image with hosts (90 % between {low}J and {high}J), "
        each += f"{3.6e6 / used.per_request_j:,.0f} images/kWh"
        watts = f"a device draws {used.mean_w:.0f} W, {used.busy_w:.0f} W while it computes"
        rows.append(("energy", f"{each}; {watts}"))
    if result.dollars_per_request is not None:
        rows.append(("cost", f"${1000 * result.dollars_per_request:.4g} for a thousand images"))
    return rows
