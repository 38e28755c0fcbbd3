"""Mappings that TrioSim and AccelForge find for the same products on the same designs; prints a line for each.

    python benchmarks/peer_mapper.py [--budget 300000] [--peer PYTHON]

AccelForge (https://github.com/Accelergy-Project/accelforge, extra ``benchmark``, Python 3.12, Graphviz' ``dot``) looks
for the best mapping by pruning, TrioSim genetically within a budget.  Every memory keeps every tensor.  CPU seconds are
of one core, without imports.  Each tool prices its own mapping by its own rules, which differ in one thing here:
AccelForge also reads outputs that were never written, once for each word of the output in the innermost memory.
``--peer`` is a Python that has AccelForge, if another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORD = 8
"""Bits of a word; AccelForge counts bits."""
PRODUCTS = ((256, 256, 256), (512, 512, 512))
"""768 x 512 x 384 did not end within 50 CPU seconds of AccelForge on the larger design."""
DESIGNS: dict[str, dict[str, Any]] = {
    "buffer": {"dram_pj": 200.0, "rate": 1.0, "buffer": 16384, "buffer_pj": 6.0, "mac_pj": 0.2},
    "buffer, 16 x 16": {
        "dram_pj": 200.0, "rate": 16.0, "buffer": 65536, "buffer_pj": 10.0, "mac_pj": 0.2, "fan_out": 16,
        "registers": 64, "register_pj": 0.3,
    },
}  # fmt: skip
"""Picojoules of a word, words of a memory, and words in a cycle of the outermost one."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=300_000, help="mappings that TrioSim tries")
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of is not None:
        return print(json.dumps(_peer(*json.loads(options.of))))
    print(f"{'design':16} {'product':>16} {'TrioSim':>21} {'AccelForge':>21}   energy x delay, ours over theirs")
    for name, design in DESIGNS.items():
        for product in PRODUCTS:
            ours = _ours(design, product, options.budget)
            asked = [options.peer, __file__, "--of", json.dumps([design, product])]
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"AccelForge does not run under {options.peer}:\n{done.stderr[-2000:]}")
            theirs = json.loads(done.stdout.splitlines()[-1])
            sizes = " x ".join(map(str, product))
            said = (f"{one['joules'] * 1e3:8.3f} mJ {one['cpu_s']:6.2f} s" for one in (ours, theirs))
            ratio = ours["joules"] * ours["cycles"] / theirs["joules"] / theirs["cycles"]
            print(f"{name:16} {sizes:>16} {' '.join(f'{one:>21}' for one in said)}   {ratio:.3f}", flush=True)
    return None


def _ours(design: dict[str, Any], product: tuple[int, int, int], budget: int) -> dict[str, float]:
    from triosim.accelerator import mapper
    from triosim.accelerator.architecture import Architecture, Compute, Energies, FanOut, Store
    from triosim.accelerator.problem import gemm

    def store(name: str, words: int | None, pj: float, rate: float | None = None) -> Store:
        energies = Energies(pj * 1e-12, pj * 1e-12, pj * 1e-12, 0.0)
        return Store(name, words, WORD, 1, rate, rate, ("Weights", "Inputs", "Outputs"), energies)

    nodes: list[Store | FanOut] = [
        store("DRAM", None, design["dram_pj"], design["rate"]), store("buffer", design["buffer"], design["buffer_pj"])
    ]  # fmt: skip
    if "fan_out" in design:
        nodes += [
            FanOut("PE", design["fan_out"], design["fan_out"]),
            store("registers", design["registers"], design["register_pj"]),
        ]
    made = Architecture("peer", tuple(nodes), Compute("mac", WORD, Energies(compute=design["mac_pj"] * 1e-12)), 1e9)
    m, n, k = product
    problem = gemm(m=m, n=n, k=k)
    began = time.process_time()
    found = mapper.search(made, problem, budget=budget)
    took = time.process_time() - began
    best = mapper.evaluated(made, problem, found.best, "bandwidth")
    return {"joules": best.energy_j, "cycles": best.cycles, "cpu_s": took}


MEMORY = """
  - !Memory
    name: {name}
    size: {size}
    leak_power: 0
    area: 0
    tensors: {{keep: All}}
    actions:
    - {{name: read, energy: {energy}, throughput: {rate}}}
    - {{name: write, energy: {energy}, throughput: {rate}}}
"""
SPREAD = """
  - !Container
    name: PE
    spatial:
    - {{name: X, fanout: {fan_out}}}
    - {{name: Y, fanout: {fan_out}}}
"""
UNIT = """
  - !Compute
    name: mac
    leak_power: 0
    area: 0
    actions:
    - {{name: compute, energy: {energy}, throughput: 1.0e+9}}
"""
WORK = """
workload:
  iteration_space_shape:
    m: 0 <= m < {0}
    n: 0 <= n < {1}
    k: 0 <= k < {2}
  bits_per_value: {{All: {word}}}
  einsums:
  - name: product
    tensor_accesses:
    - {{name: A, projection: [m, k]}}
    - {{name: B, projection: [k, n]}}
    - {{name: C, projection: [m, n], output: True}}
    renames: {{input: A, weight: B, output: C}}
"""


def _peer(design: dict[str, Any], product: tuple[int, int, int]) -> dict[str, float]:
    import accelforge
    from accelforge.util.parallel import set_n_parallel_jobs

    set_n_parallel_jobs(1)

    def memory(name: str, words: int | None, pj: float, rate: float | None = None) -> str:
        size = "inf" if words is None else words * WORD
        per_s = "inf" if rate is None else f"{rate * WORD * 1e9:.6e}"
        return MEMORY.format(name=name, size=size, energy=f"{pj * 1e-12 / WORD:.6e}", rate=per_s)

    nodes = memory("DRAM", None, design["dram_pj"], design["rate"])
    nodes += memory("buffer", design["buffer"], design["buffer_pj"])
    if "fan_out" in design:
        nodes += SPREAD.format(fan_out=design["fan_out"])
        nodes += memory("registers", design["registers"], design["register_pj"])
    nodes += UNIT.format(energy=f"{design['mac_pj'] * 1e-12:.6e}")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.yaml" for name in ("arch", "workload")]
        files[0].write_text(f"arch:\n  nodes:{nodes}", encoding="utf-8")
        files[1].write_text(WORK.format(*product, word=WORD), encoding="utf-8")
        spec = accelforge.Spec.from_yaml(*map(str, files))
    spec.mapper.metrics = accelforge.Metrics.ENERGY | accelforge.Metrics.LATENCY
    began = time.process_time()
    found = spec.map_workload_to_arch(print_progress=False)
    took = time.process_time() - began
    row = found.data["Total<SEP>energy_delay_product"].astype(float).idxmin()
    energy, latency = (float(found.data[f"Total<SEP>{name}"][row]) for name in ("energy", "latency"))
    return {"joules": energy, "cycles": latency * 1e9, "cpu_s": took}


if __name__ == "__main__":
    main()
