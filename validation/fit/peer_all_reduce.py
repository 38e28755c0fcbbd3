"""All-reduces by an engine's own kernels: ``serving/data/peer_all_reduce.json``.

    python -m validation.fit.peer_all_reduce --data FILE [--write]

``FILE`` is ``custom_allreduce.parquet`` (``system, kernel_source, num_gpus, message_size, latency``; a message counts
elements of two bytes, latencies are ms): all-reduces of SGLang, vLLM and TensorRT-LLM on 2, 4 and 8 A100 or H100.
Taken are those that a captured graph launches, up to the 8 MB from which on vLLM and SGLang call NCCL (``max_size`` of
``CustomAllreduce``).  Fitted are three constants for ``custom`` (vLLM's and SGLang's, which are one code) and for
``trtllm`` on every other size; printed is the mean error on those and on the sizes between.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from validation.fit.roofline import least

import triosim
from triosim.collectives.groups import describe
from triosim.network.routes import Router
from triosim.serving.peer_all_reduce import SCHEMA, PeerConstants, seconds

TARGET = Path(__file__).resolve().parents[2] / "src/triosim/serving/data/peer_all_reduce.json"
KERNELS = {
    "custom": ("vLLM_custom_graph", "SGLang_CustomAllReduce_graph"),
    "trtllm": ("TRTLLM",),
}
DEVICES = {"a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM5-80GB"}
LARGEST = 8 * 2**20
ELEMENT = 2.0
START = np.log([4.5e-6, 6e-6, 0.7])


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="custom_allreduce.parquet")
    parser.add_argument("--write", action="store_true", help="write the constants")
    options = parser.parse_args()
    rows = _rows(options.data)
    found: dict[str, dict[str, float]] = {}
    for name, kernels in KERNELS.items():
        own = [row for row in rows if row["kernel_source"] in kernels and ELEMENT * row["message_size"] < LARGEST]
        members = np.array([float(row["num_gpus"]) for row in own])
        sizes = np.array([ELEMENT * row["message_size"] for row in own])
        wide = {system: _bandwidth(device) for system, device in DEVICES.items()}
        bandwidth = np.array([wide[row["system"]] for row in own])
        measured = np.array([row["latency"] * 1e-3 for row in own])
        shape = np.log2(sizes).round().astype(int) % 2 == 0
        best = _fitted(members[shape], sizes[shape], bandwidth[shape], measured[shape])
        print(name, {key: float(f"{value:.4g}") for key, value in asdict(best).items()})
        error = seconds(best, members, sizes, bandwidth) / measured - 1
        for words, part in (("shaped", shape), ("judged", ~shape)):
            off = error[part]
            print(f"  {words:8}{part.sum():5} rows, mean {np.abs(off).mean():.1%}, bias {off.mean():+.1%}")
        found[name] = {key: float(f"{value:.4g}") for key, value in asdict(best).items()} | {"largest": float(LARGEST)}
    if options.write:
        text = {
            "schema": SCHEMA, "script": "validation/fit/peer_all_reduce.py",
            "provenance": "all-reduces of vLLM, SGLang and TensorRT-LLM on 2, 4 and 8 A100 and H100 (aiconfigurator)",
            "constants": found,
        }  # fmt: skip
        TARGET.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


def _rows(path: Path) -> list[dict]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def _bandwidth(device: str) -> float:
    """That a device gets from its peers, as the catalog has it."""
    machine = triosim.system(device=device, devices=8)
    intra = describe(machine, Router(machine), np.arange(8)).intra
    assert intra is not None
    return intra.bandwidth


def _fitted(members: NDArray, sizes: NDArray, bandwidth: NDArray, measured: NDArray) -> PeerConstants:
    """Of least smooth absolute error of the logarithm."""

    def residuals(x: NDArray) -> NDArray[np.float64]:
        return np.log(seconds(_constants(x), members, sizes, bandwidth) / measured)

    return _constants(least(residuals, START, START - 2.0, START + 2.0))


def _constants(x: NDArray) -> PeerConstants:
    base, second, reading = np.exp(x).tolist()
    return PeerConstants(base, second, reading, float(LARGEST))


if __name__ == "__main__":
    main()
