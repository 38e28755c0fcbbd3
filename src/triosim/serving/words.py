"""What a fleet did under traffic in words: the figures that the terminal, pages and notebooks show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triosim.core import summary as lines
from triosim.core.units import format_bytes, format_count, format_share, format_time
from triosim.serving.metrics import QUANTILES

if TYPE_CHECKING:
    from triosim.serving.binding import PoolBinding
    from triosim.serving.deployment import ServingResult
    from triosim.serving.pool import Pool

TITLES = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "between tokens", "e2e": "end to end", "queueing": "queueing",
    "transfer": "KV transfer",
}  # fmt: skip
"""Of the distributions."""
OF_IMAGES = {**TITLES, "ttft": "first step", "tpot": "a step", "itl": "between steps"}
"""Where images are made, whose tokens are denoising steps."""


def headings(result: ServingResult) -> list[str]:
    """Each pool in a line: ``"llama-3-8b under vllm on 2 x 1 H100-SXM5-80GB, bf16 weights"``."""
    lines = []
    for pool in result.deployment.pools:
        replicas = f"{pool.replicas} x {pool.size} {pool.system.model(pool.first).name}"
        if pool.attention_ranks > 1:
            replicas += f" ({pool.attention_ranks} ranks of attention)"
        elif pool.expert_ranks > 1:
            replicas += f" ({pool.expert_ranks} ranks of experts)"
        name = f"{pool.name}: " if pool.name else ""
        lines.append(f"{name}{pool.model} under {pool.engine} on {replicas}, {pool.weights} weights")
    return lines


def served_in_words(result: ServingResult) -> str:
    """``"1,000 requests in 2.1 min, warm-up and drain included"``."""
    taken = format_time(result.metrics.duration_s)
    return f"{requests_in_words(len(result.metrics.served.requests))} in {taken}, warm-up and drain included"


def requests_in_words(count: int) -> str:
    """``1 request``, ``2,000 requests``."""
    return f"{count:,} request{'s' if count != 1 else ''}"


def titles(result: ServingResult) -> dict[str, str]:
    """What distributions are called."""
    return OF_IMAGES if result.deployment.makes_images else TITLES


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


def _latencies(result: ServingResult) -> list[tuple[str, str]]:
    """Each distribution in a line."""
    rows = []
    for name, one in result.metrics.distributions.items():
        ends = result.intervals.get(f"{name}.mean")
        between = "" if ends is None else f" (90 % between {format_time(ends[0])} and {format_time(ends[1])})"
        each = ", ".join(f"p{100 * q:g} {format_time(at)}" for q, at in zip(QUANTILES, one.quantiles, strict=True))
        rows.append((titles(result)[name], f"mean {format_time(one.mean)}{between}, {each}"))
    return rows


def summary(result: ServingResult) -> str:
    """What ``print`` shows."""
    rows = [*_latencies(result), *figures_in_words(result), ("more", ".metrics, .intervals, .to_dict(), .to_json()")]
    return lines.text([*headings(result), served_in_words(result)], rows)


def summary_html(result: ServingResult) -> str:
    """The same for notebooks."""
    rows = [*_latencies(result), *figures_in_words(result)]
    return lines.table("; ".join(headings(result)), served_in_words(result), rows)
