"""Odd plans, odd command lines, and odd graphs for the engines."""

from __future__ import annotations

import functools
from dataclasses import asdict
from random import Random
from typing import Any

WHOLE = (1, 1, 1, 2, 2, 3, 4, 5, 8, 16, 64, 1000, 10**6, 2**31, 2**63, 10**30, 0, -1)
NAMES = ("", "auto", "x", "[red]", "\x1b[31m", "a" * 300, "none", "off", "on", "\U0001f600", "1", "nan")
TOPOLOGIES = (
    "switch", "full", "ring", "mesh", "torus", "tree", "fat-tree", "leaf-spine", "rail-optimised", "pcie", "dragonfly",
    "wafer", "double-ring", "hybrid-cube-mesh",
)  # fmt: skip
BANDWIDTHS = ("25GB/s", "25GB/s", "1GB/s", "400Gb/s", "NVLink4", "1e15B/s", "1B/s", "0.5B/s", "inf", "0", "-1GB/s", "x")
LATENCIES = ("1us", "0", "5ms", "1e7s", "1e30s", "1e-15s", "-1us", "nan", "x", "inf")
SHAPES = ("2x2", "4x2", "1x8", "2x2x2", "0x4", "x", "3", "999999999x1", "1000x1000", "-1x2")


GPT = {"n_layer": 2, "n_embd": 48, "n_head": 4}
TP_PLANS = ({"layer*": "colwise"}, {"*": "rowwise"}, {"layer0": "gather", "*": "replicate"}, {"": "vocab"})
PLACES = ({"weight": "host"}, {"input": "pool"}, {"weight": "device:1"}, {"label": "device:99999999999"})
ALGORITHMS = ("auto", "ring", "tree", "hierarchical", "nvls", "halving-doubling", "direct", "x")
SHOWN = ("dgx-h100", "H100", "gpt2", "", "x", "[red]", "--json", "-", "-1", "--help")


@functools.cache
def traces() -> tuple[Any, ...]:
    """Small workloads: hand-made, by name, and only forward."""
    import triosim
    from tests.traces import chain

    return (
        chain(layers=4, batch=8, width=16, optimizer_s=1e-5),
        chain(layers=3, batch=6, width=8, skips=((0, 2),), weight_s=1e-3),
        triosim.model("gpt2", configuration=GPT, sequence_length=16, batch_size=4),
        triosim.model("resnet18", configuration={"layers": [1, 1, 1, 1]}, image_size=32, batch_size=4, training=False),
    )  # fmt: skip


def plan(draw: Random) -> tuple[Any, ...]:
    """A workload, what a system is made of, and the fields of a plan: some make sense."""
    fields: dict[str, Any] = {}
    small = (1, 1, 2, 2, 3, 4)

    def some(name: str, values: Any, chance: float) -> None:
        if draw.random() < chance:
            fields[name] = draw.choice(values)

    odd = draw.random() < 0.4
    whole = WHOLE if odd else small
    for name in ("dp", "tp", "pp", "batch_size", "global_batch_size", "micro_batches", "iterations"):
        some(name, whole, 0.3)
    some("sequence_length", whole, 0.1)
    some("schedule", ("1f1b", "gpipe", "zero-bubble", "interleaved-1f1b", *(NAMES if odd else ())), 0.3)
    some("schedule_options", ({}, {"chunks": 2}, {"chunks": draw.choice(whole)}, {"x": True}), 0.1)
    some("overlap", (True, False), 0.3)
    some("dp_style", ("ddp", "dataparallel", "dataparallel", "x"), 0.15)
    some("zero", (0, 1, 2, 3, 3, *((4, -1) if odd else ())), 0.4)
    some("bucket_bytes", (1, 100, 10**6, *whole), 0.2)
    some("first_bucket_bytes", (1, 100, *whole), 0.1)
    some("tp_style", ("megatron", "gather"), 0.2)
    some("tp_plan", TP_PLANS, 0.1)
    some("recompute", ("none", "full", "selective"), 0.3)
    some("offload", (("optimizer",), ("activations",), ("optimizer", "parameters"), ("parameters",)), 0.2)
    some("host", ("recorded", "eager", "large-model", "compiled", "graph", "none"), 0.4)
    some("interference", ("auto", "off", 1, 1.5, 1e9, float("nan"), 0.5), 0.2)
    some("operator_times", ("auto", "recorded", "proportional", "physical", "roofline", "li", "habitat", *NAMES), 0.3)
    some("places", PLACES, 0.15)
    some("collective_algorithm", ALGORITHMS, 0.2)
    some("collective_protocol", ("auto", "LL", "LL128", "Simple", "x"), 0.2)
    some("placement", ((0, 1), (1, 0, 3, 2), (0, 0), (10**9,), ()), 0.1)
    some("solver", ("max-min", "equal-split", "circuit", "store-and-forward", "uncontended", "x"), 0.3)
    some("solver_options", ({"setup": "80us"}, {"setup": "x"}, {"x": "1"}, {"setup": "1e30s"}), 0.1)
    some("fold", (True, False), 0.3)
    some("seed", (0, 1, *whole), 0.1)
    some("training", (True, False), 0.2)
    some("stages", (("layer1",), ("layer1", "layer2"), ("x",), ()), 0.1)
    for name in draw.sample(sorted(fields), min(len(fields), 1 if odd and draw.random() < 0.2 else 0)):
        fields[name] = draw.choice([None, [], {}, "x", -1, 1.5, float("nan"), 2**70, True])
    machine: dict[str, Any] = {"device": draw.choice(["A100", "V100", "H100", "T4", "MI300X", "TPUv4", None])}
    machine["devices"] = draw.choice([1, 2, 2, 4, 4, 8, 8, 3, 16, *((*WHOLE[:12], 2**63, 0, -1) if odd else ())])
    machine["topology"] = draw.choice(TOPOLOGIES)
    machine["link"] = draw.choice(BANDWIDTHS if odd else BANDWIDTHS[:5])
    more = (("latency", LATENCIES), ("shape", SHAPES), ("host_link", BANDWIDTHS), ("pool_link", BANDWIDTHS))
    for name, values in more:
        if draw.random() < 0.25:
            machine[name] = draw.choice(values if odd else values[:2])
    if draw.random() < 0.1:
        ready = draw.choice(["dgx-h100", "pcie-a40-2", "tpu-v5e-16", "x"])
        machine = {"system": ready, "nodes": draw.choice([1, 2, *whole])}
    return draw.randrange(4), machine, fields


def run_plan(draw: Random) -> None:
    """Predict; the parts of the result are what they say they are."""
    import triosim
    from tests.asked import asked
    from triosim.hardware.build import flat, load

    which, machine, fields = plan(draw)
    chosen = asked(**fields)
    if "system" in machine:
        system = load(machine["system"], machine["nodes"])
    else:
        system = flat(**machine)
    result = triosim.simulate(traces()[which], system, *chosen)
    check(result)


def check(result: Any) -> None:
    """What holds for each result.

    Raises:
        AssertionError: it does not.
    """
    time = result.iteration_time_s
    low, high = result.interval_s
    if not 0 <= low <= time <= high < float("inf"):
        raise AssertionError(f"{time} s is not within {low} to {high} s")
    parts = asdict(result.breakdown_s)
    total = sum(parts[name] for name in ("compute", "exposed_communication", "host", "idle"))
    if abs(total - time) > 1e-9 + 1e-6 * time or min(parts.values()) < -1e-9:
        raise AssertionError(f"parts {parts} do not add up to {time} s")
    result.to_json()


def run_command(draw: Random) -> None:
    """The command line with options of any kind: it ends with 0 or 2, and says why in a line."""
    from tests.command import run

    command = draw.choice(["train", "train", "infer", "systems", "devices", "models"])
    words = [command]
    if command in ("systems", "devices", "models"):
        words += draw.sample(SHOWN, draw.randint(0, 2))
    else:
        words += [draw.choice(["resnet18", "gpt2", "x", "", "-", "a.triosim", "/dev/null", "[red]"]), *_options(draw)]
    for code in (0, 2):
        try:
            done = run(*words, code=code)
        except AssertionError as error:
            if code == 2:
                raise AssertionError(f"{words}: {error}") from None
            continue
        if code == 2 and not done.stderr.strip():
            raise AssertionError(f"{words}: ended with 2 and said nothing")
        if "\x1b" in done.stderr + done.stdout:
            raise AssertionError(f"{words}: an escape character reached the terminal")
        break


def _options(draw: Random) -> list[str]:
    names = (
        "system", "nodes", "device", "devices", "topology", "shape", "link", "latency", "dp", "tp", "pp", "batch-size",
        "global-batch-size", "micro-batches", "seq-len", "recompute", "offload", "iterations", "schedule", "stages",
        "overlap", "zero", "bucket-size", "algorithm", "protocol", "solver", "solver-option", "fold", "placement",
        "place", "host", "interference", "operator-times", "precision", "step", "seed", "host-link",
    )  # fmt: skip
    words = ["--device", "A100", "--seq-len", "16"] if draw.random() < 0.8 else []
    values = (*map(str, WHOLE), *NAMES, *BANDWIDTHS, *LATENCIES, *SHAPES, *TOPOLOGIES, "H100", "dgx-h100", "setup=1us")
    for name in draw.sample(names, draw.choice([0, 1, 1, 2, 3])):
        words += [f"--{name}", draw.choice(values)]
    return words


def run_engines(draw: Random) -> None:
    """A graph on both engines, sound, crowded, with a defect or of huge numbers: they do the same, to the last bit."""
    from tests.engine.compare import compare
    from triosim.engine import native, reference

    compare(reference.play, native.play, 1, draw.randrange(1 << 48))


def run_allocator(draw: Random) -> None:
    """Allocations in any order, wrong ones among them, on both allocators."""
    import numpy as np

    from triosim.memory import _allocator
    from triosim.memory.footprint import played

    count = draw.randint(0, 6)
    sizes = np.array([draw.choice([0, 1, 512, 1 << 20, 11 << 20, 1 << 40, -1, 2**62]) for _ in range(count)], np.int64)
    events = np.array([draw.randint(-1, 2 * count + 1) for _ in range(draw.randint(0, 12))], np.int64)
    if draw.random() < 0.7 and count:  # in turn, so that most are possible
        blocks = [draw.randrange(count) for _ in range(draw.randint(0, 12))]
        events = np.array([b + count * (blocks[:at].count(b) % 2) for at, b in enumerate(blocks)], np.int64)
    found = []
    for reserve in (_allocator.reserved, played):
        try:
            found.append(reserve(sizes, events))
        except ValueError as error:
            found.append(str(error))
    if found[0] != found[1]:
        raise AssertionError(f"allocators differ: {found} for {sizes.tolist()} and {events.tolist()}")


RUNS = {"plans": run_plan, "commands": run_command, "engines": run_engines, "allocator": run_allocator}
"""What is made up from nothing."""
