"""Designs and problems in Timeloop's format of version 0.4, for tests of what reads it."""

from __future__ import annotations

import json
from typing import Any

from triosim.accelerator.architecture import DRAMS, Architecture, FanOut, Store
from triosim.accelerator.problem import Problem


def _flow(value: Any) -> str:
    """A value in YAML's flow style, which JSON is part of."""
    return json.dumps(value)


def architecture_text(architecture: Architecture, problem: Problem) -> str:
    """A design; energies are a table of their own (:func:`triosim.accelerator.writing.ert`)."""
    surroundings: dict[str, Any] = {}
    if architecture.technology:
        surroundings["technology"] = architecture.technology
    if architecture.clock_hz:
        surroundings["global_cycle_seconds"] = 1 / architecture.clock_hz
    lines = ["architecture:", "  version: 0.4", "  nodes:", "  - !Container",
             f"    name: {_flow(architecture.name)}", f"    attributes: {_flow(surroundings)}"]  # fmt: skip
    aside = 0
    for node in architecture.nodes:
        group = node.aside if isinstance(node, Store) else 0
        if group and group != aside:
            lines += ["  - !Parallel", "    nodes:"]
        aside = group
        pad = "    " if group else "  "
        if isinstance(node, FanOut):
            lines += ["  - !Container", f"    name: {_flow(node.name)}",
                      f"    spatial: {_flow({'meshX': node.x, 'meshY': node.y})}"]  # fmt: skip
            continue
        lines += [f"{pad}- !Component", f"{pad}  name: {_flow(node.name)}", f"{pad}  class: {_class(node)}",
                  f"{pad}  attributes: {_flow(_attributes(node))}"]  # fmt: skip
        if node.keeps is not None:
            passed = [t.name for t in problem.tensors if t.name not in node.keeps]
            lines.append(
                f"{pad}  constraints: {{dataspace: {{keep: {_flow(list(node.keeps))}, bypass: {_flow(passed)}}}}}"
            )
    unit = architecture.compute
    lines += ["  - !Component", f"    name: {_flow(unit.name)}", "    class: intmac",
              f"    attributes: {_flow({'datawidth': unit.word_bits})}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _class(store: Store) -> str:
    return "DRAM" if store.kind in DRAMS else "regfile" if store.kind == "regfile" else "SRAM"


def _attributes(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = {
        "datawidth": store.word_bits, "block_size": store.words_per_access, "cluster_size": store.cluster_size,
        "width": store.word_bits * store.words_per_access * store.cluster_size,
    }  # fmt: skip
    if store.kind in DRAMS:
        found["type"] = store.kind
    if store.capacity_words is not None:
        found["entries"] = store.capacity_words
    for name in ("read_bandwidth", "write_bandwidth"):
        rate = getattr(store, name)
        if rate is not None:
            found[name] = rate
    if store.buffering > 1:
        found["multiple_buffering"] = store.buffering
    if store.metadata_words is not None:
        per_row = (store.metadata_width or 1) // (store.metadata_bits or store.metadata_width or 1)
        found["metadata_storage_depth"] = store.metadata_words // max(per_row, 1)
    for name, key in (("metadata_bits", "metadata_datawidth"), ("metadata_width", "metadata_storage_width")):
        if getattr(store, name) is not None:
            found[key] = getattr(store, name)
    return found


def problem_text(problem: Problem) -> str:
    """A problem."""
    lines = ["problem:", "  version: 0.4", "  shape:", f"    name: {_flow(problem.name)}",
             f"    dimensions: {_flow(list(problem.dimensions))}", "    data_spaces:"]  # fmt: skip
    for tensor in problem.tensors:
        axes = [[[d] if c == 1 else [d, c] for d, c in axis] for axis in tensor.axes]
        written = f"name: {_flow(tensor.name)}, projection: {_flow(axes)}"
        lines.append(f"    - {{{written}{', read_write: true' if tensor.output else ''}}}")
    densities = {
        t.name: {"distribution": t.distribution, "density": t.density}
        for t in problem.tensors if t.density != 1 or t.distribution != "fixed-structured"
    }  # fmt: skip
    instance = {**problem.bound, **({"densities": densities} if densities else {})}
    lines.append(f"  instance: {_flow(instance)}")
    return "\n".join(lines) + "\n"
