"""ASTRA-sim's input files, written for tests."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from triosim.interop.chakra.file import write
from triosim.interop.chakra.trace import ChakraTrace

VALIDATED = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 2, "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 3350, "boost-mode": 0,
}  # fmt: skip
"""The system file with which the survey's Table 7 was made (ASTRA-sim's ``HGX-H100-validated``)."""

SWITCH_400 = {"topology": ["Switch"], "npus_count": [8], "bandwidth": [400.0], "latency": [936.25]}
"""Its network file."""


def save(folder: Path, traces: list[ChakraTrace], layer: dict, network: dict) -> list[str]:
    """Write all files of a workload; returns the options of the command."""
    for rank, trace in enumerate(traces):
        write(trace, folder / f"work.{rank}.et")
    (folder / "system.json").write_text(json.dumps(layer))
    (folder / "network.yml").write_text(yaml.safe_dump(network))
    names = ("--workload", folder / "work", "--system", folder / "system.json", "--network", folder / "network.yml")
    return [str(name) for name in names]
