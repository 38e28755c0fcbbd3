"""Fits the physical model of a layer of experts and writes ``src/triosim/kernels/data/physical/moe.json``.

    python -m validation.fit.physical_moe [--family NAME] [--write]

Input: ``kernels/moe.parquet`` of the measured data (see :mod:`validation.data.kernels`), nothing else.  One set of
constants per kernel family.  A family that was measured on several devices is judged with each left out in turn, one
that was measured on one device with a fifth of the shapes left out in turn.

The measurements with expert parallelism are of one device of several.  On A100, H100 and L40S, and with marlin
everywhere, the kernels also computed other devices' pairs of the tokens that have an expert on this one: the largest
batches take as long on 1/8 of the experts as on all.  On B200 the other families skip them.  That is what was run, not
how fast it is: it is part of the work (``ExpertCalls.skips``), and read off the measurements here.  So are a few of
the shapes for which tiles had been looked for (``ExpertCalls.tuned``); the others are SGLang's tables by their names.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import DATA, DEVICES, PLAUSIBLE
from validation.fit.physical_attention import FOLDS, coverage, mape
from validation.fit.roofline import KNEE, TARGET, least, quantile

from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware import catalog
from triosim.kernels.arithmetic import rate
from triosim.kernels.physical import moe as model
from triosim.kernels.physical._constants import SCHEMA
from triosim.kernels.physical.moe import GroupedGemmConstants
from triosim.kernels.physical.tuned_tiles import tuned
from triosim.kernels.work.moe import FAMILIES, ExpertCalls

INPUTS = ("kernels/moe.parquet",)
OUTPUT = TARGET.with_name("physical") / "moe.json"
ROWS = 600
BELIEF = 8.0

PRIOR = {  # value, width of the prior (log), lowest, highest
    "launch_s": (2e-5, 1.0, 5e-6, 2e-4), "align_s": (1e-9, 0.5, 1e-12, 1e-8), "serial_cycles": (2.0, 0.7, 0.01, 20.0),
    "prologue_s": (5e-7, 0.7, 1e-8, 1e-5), "efficiency": (0.6, 0.3, 0.05, 1.0),
    "tuned_efficiency": (0.7, 0.3, 0.05, 1.0),
    "joule_per_flop": (0.8e-12, 0.5, 1e-13, 5e-12),
    "joule_per_byte": (2e-11, 0.7, 1e-13, 2e-10), "feed_rate": (30.0, 0.7, 2.0, 200.0),
    "bandwidth_fraction": (0.85, 0.1, 0.2, 0.92), "large_fraction": (0.65, 0.3, 0.2, 0.92),
    "cache_fraction": (0.8, 0.15, 0.02, 1.2), "cache_rate": (20.0, 0.7, 2.0, 64.0),
    "token_rate": (20.0, 0.7, 2.0, 300.0), "ragged_factor": (1.5, 0.5, 1.0, 10.0),
    "ragged_narrow": (5.0, 1.0, 1.0, 100.0), "overlap": (2.0, 0.1, 1.0, 6.0),
}  # fmt: skip
"""Plausible values before any measurement; a prior counts like ``BELIEF`` rows.  No kernel reads faster than 92 % of
the datasheet's bandwidth, nor finds much more than the cache's size in the cache.  The form and the widths were chosen
after a look at the errors on devices left out, which flatters them a little."""

CHOSEN = "the form and the widths were chosen after a look at the errors of devices left out"
"""What the provenance says of the priors."""

UNITS = {
    "launch_s": "seconds at 1.8 GHz", "align_s": "seconds per pair at 1.8 GHz",
    "serial_cycles": "clocks per element of the sum", "prologue_s": "seconds of a multiprocessor per block",
    "efficiency": "part of the peak", "tuned_efficiency": "part of the peak", "joule_per_flop": "J/FLOP at 16 bits",
    "joule_per_byte": "J per byte fed into the tiles",
    "feed_rate": "bytes per clock and multiprocessor", "bandwidth_fraction": "part of the datasheet's bandwidth",
    "large_fraction": "part of the datasheet's bandwidth", "cache_fraction": "part of the last-level cache",
    "cache_rate": "bytes per clock and multiprocessor", "token_rate": "bytes per clock and multiprocessor",
    "ragged_factor": "factor", "ragged_narrow": "factor", "overlap": "exponent",
}  # fmt: skip

KERNELS = {
    "sglang_fused_moe_triton": "triton", "sglang_marlin_moe": "marlin", "sglang_flashinfer_cutedsl_moe": "cutedsl",
    "sglang_flashinfer_mxfp4_moe": "native",
}  # fmt: skip
TYPES = {  # name in the data -> multiplied type, bytes of a weight
    "bfloat16": ("bfloat16", 2.0), "fp8_block": ("float8_e4m3fn", 1.0), "int4_wo": ("bfloat16", 0.5 + 2 / 128),
    "nvfp4": ("float4_e2m1", 0.5 + 1 / 16), "w4a8_mxfp4_mxfp8": ("float8_e4m3fn", 0.5 + 1 / 32),
    "w4a16_mxfp4": ("bfloat16", 0.5 + 1 / 32),
}  # fmt: skip
"""Scales included: one of 2 bytes for 128 weights (int4), one of a byte for 16 (nvfp4) or 32 (mxfp4)."""

FEW = "family with too few rows"
EIGHT = ("fp8_block", "w4a8_mxfp4_mxfp8")
"""Types whose tokens have 8 bits."""


@dataclass(frozen=True)
class Measured:
    """Measured calls: the work, the catalog names of the devices, the element type, and the seconds."""

    work: ExpertCalls
    device: NDArray[np.str_]
    variant: NDArray[np.str_]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Measured:
        """These rows only."""
        return Measured(self.work.take(rows), self.device[rows], self.variant[rows], self.seconds[rows])


def read(families: tuple[str, ...] = FAMILIES) -> tuple[Measured, Counter]:
    """Plausible rows of some kernel families, and how many were dropped for what."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / INPUTS[0])
    data = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    kernel, dtype, system = (data[name].astype(str) for name in ("kernel_source", "moe_dtype", "system"))
    asked = [name for name, family in KERNELS.items() if family in families]
    known = np.flatnonzero(np.isin(kernel, asked) & np.isin(dtype, list(TYPES)))
    few = int((~np.isin(kernel, list(KERNELS))).sum())
    left = Counter({FEW: few} if few else {})
    kernel, dtype, system = kernel[known], dtype[known], system[known]
    tokens, hidden, inner, topk, experts, tp, ep = (
        data[name][known].astype(float)
        for name in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    )
    law = data["distribution"][known].astype(str)
    skew = np.array([0.0 if name == "balanced" else float(name.rsplit("_", 1)[1]) for name in law])
    family = np.array([KERNELS[name] for name in kernel])
    yes = np.ones(len(tokens), bool)
    work = ExpertCalls(
        tokens, topk, hidden, inner / tp, experts, ep, skew, (system == "b200_sxm") & (family != "marlin"), yes, yes,
        np.array([DTYPE_CODE[TYPES[name][0]] for name in dtype], np.int8), np.array([TYPES[name][1] for name in dtype]),
        np.where(np.isin(dtype, EIGHT), 1.0, np.where(dtype == "nvfp4", 0.5, 2.0)),
        np.array([FAMILIES.index(name) for name in family], np.int8), ~yes,
        tiles_looked_for(dtype, np.array([DEVICES[s] for s in system]), experts / ep, inner / tp),
    )  # fmt: skip
    measured = Measured(work, np.array([DEVICES[s] for s in system]), dtype, data["latency"][known] * 1e-3)
    reason = np.full(len(measured), "", "U40")
    for name in np.unique(measured.device):
        device, at = catalog.accelerator(str(name)), measured.device == name
        weights = work.weights()
        fast = measured.seconds < PLAUSIBLE * weights / float(device.memory_bandwidth or np.inf)
        reason[at & fast & (work.skew == 0) & (weights > 2 * float(device.cache_bytes or 0))] = "memory"
        peak = np.array([rate(TYPES[v][0], device) for v in TYPES])[[list(TYPES).index(v) for v in measured.variant]]
        reason[at & (work.skew == 0) & (measured.seconds < PLAUSIBLE * work.flop() / peak)] = "compute"
    return measured.take(np.flatnonzero(reason == "")), left + Counter(reason[reason != ""].tolist())


def tiles_looked_for(
    dtype: NDArray[np.str_], device: NDArray[np.str_], local: NDArray[np.float64], inner: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether SGLang has a table of tiles for each call, by its catalog's device: 16-bit weights only."""
    found = np.zeros(len(local), bool)
    for name in np.unique(device):
        at = np.flatnonzero((device == name) & (dtype == "bfloat16"))
        found[at] = tuned("sglang", str(name), local[at], inner[at])
    return found


def predict(measured: Measured, c: GroupedGemmConstants) -> NDArray[np.float64]:
    """Seconds of every row by one family's constants."""
    seconds = np.empty(len(measured))
    for name in np.unique(measured.device):
        rows = np.flatnonzero(measured.device == name)
        seconds[rows] = model.grouped(measured.work.take(rows), catalog.accelerator(str(name)), c).seconds
    return seconds


def fit(measured: Measured, rows: int = ROWS) -> GroupedGemmConstants:
    """Constants that predict ``measured`` best: least smooth absolute error of the logarithm, with priors."""
    random = np.random.default_rng(0)
    chosen = [np.flatnonzero(measured.device == name) for name in np.unique(measured.device)]
    looked_for = [random.permutation(at[measured.work.tuned[at]])[: rows // 4] for at in chosen]
    parts = [
        measured.take(np.concatenate([random.permutation(at)[:rows], few]))
        for at, few in zip(chosen, looked_for, strict=True)
    ]
    devices = [catalog.accelerator(str(part.device[0])) for part in parts]
    taken = np.log(np.concatenate([part.seconds for part in parts]))
    names = list(PRIOR)
    start, width, lowest, highest = np.array([PRIOR[name] for name in names]).T
    start, lowest, highest = np.log(start), np.log(lowest), np.log(highest)

    def residuals(x: NDArray) -> NDArray:
        c = GroupedGemmConstants(**dict(zip(names, np.exp(x).tolist(), strict=True)))
        belief = (x - start) / width * KNEE * np.sqrt(BELIEF)
        found = [model.grouped(part.work, device, c).seconds for part, device in zip(parts, devices, strict=True)]
        return np.concatenate([np.log(np.concatenate(found)) - taken, belief])

    x = least(residuals, start, lowest, highest)
    return GroupedGemmConstants(
        **{name: float(f"{value:.4g}") for name, value in zip(names, np.exp(x).tolist(), strict=True)}
    )


def left_out(measured: Measured) -> NDArray[np.float64]:
    """log(measured / predicted) of every row by constants that never saw its device (its shape, where there is one)."""
    names = np.unique(measured.device)
    if len(names) > 1:
        parts = [measured.device == name for name in names]
    else:
        work = measured.work
        key = np.stack([work.hidden, work.inner, work.experts, work.parts, work.tokens], 1)
        found, group = np.unique(key, axis=0, return_inverse=True)
        shape = np.random.default_rng(1).permutation(len(found))[group.ravel()]
        parts = [shape % FOLDS == fold for fold in range(FOLDS)]
    errors = np.empty(len(measured))
    for part in parts:
        c = fit(measured.take(np.flatnonzero(~part)))
        errors[part] = np.log(measured.seconds[part] / predict(measured.take(np.flatnonzero(part)), c))
    return errors


def judge(families: tuple[str, ...] = FAMILIES) -> dict[str, Any]:
    """Constants, spreads and the printed table."""
    measured, dropped = read(families)
    print(f"{len(measured)} rows, dropped {dict(dropped)}")
    found: dict[str, GroupedGemmConstants] = {}
    errors: dict[tuple[str, str], NDArray] = {}
    for code in np.unique(measured.work.family):
        rows = measured.take(np.flatnonzero(measured.work.family == code))
        family = FAMILIES[code]
        found[family] = fit(rows)
        out = left_out(rows)
        how = "GPU left out" if len(np.unique(rows.device)) > 1 else "shapes left out"
        for name in np.unique(rows.device):
            errors[family, str(name)] = out[rows.device == name]
            for variant in np.unique(rows.variant[rows.device == name]):
                at = out[(rows.device == name) & (rows.variant == variant)]
                print(f"    {family:8s} {name:16s} {variant:10s} {how:16s} {len(at):6d} rows, MAPE {mape(at):5.1f} %, "
                      f"median {100 * np.median(np.abs(np.expm1(-at))):5.1f} %, bias {np.median(at):+.2f}")  # fmt: skip
    spreads = {key: quantile(out) for key, out in errors.items()}
    seen, unseen = quantile(np.concatenate(list(errors.values()))), max(spreads.values())
    for (family, name), out in errors.items():
        others = [s for (_, other), s in spreads.items() if other != name] or [seen]
        print(f"    {family:8s} {name:16s} MAPE {mape(out):5.1f} %, 90 % of errors within {spreads[family, name]:.2f}, "
              f"covered by the others' widest ({max(others):.2f}) {coverage(out, max(others)):.0f} %")  # fmt: skip
    return {
        "constants": {family: asdict(c) for family, c in found.items()}, "spread": {"seen": seen, "unseen": unseen},
        "devices": {f: [d for g, d in errors if g == f] for f in found}, "dropped": dict(dropped),
        "mape": {f"{f} {d}": round(mape(e), 1) for (f, d), e in errors.items()}, "rows": len(measured),
    }  # fmt: skip


def main() -> None:
    """Fit, print the table, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    parser.add_argument("--family", choices=sorted(set(KERNELS.values())), help="only this one, beside what there is")
    arguments = parser.parse_args()
    found = judge(FAMILIES if arguments.family is None else (arguments.family,))
    if arguments.write and arguments.family is not None:
        document = json.loads(OUTPUT.read_text(encoding="utf-8"))
        document["constants"]["grouped"] |= found["constants"]
        for key in ("devices", "mape"):
            document["provenance"][key] |= found[key]
        document["provenance"]["dropped"].pop(FEW, None)
        document["provenance"]["rows"] += found["rows"]
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUTPUT.name}")
    elif arguments.write:
        document = {
            "schema": SCHEMA, "kind": "moe", "units": UNITS, "constants": {"grouped": found["constants"]},
            "spread": {"grouped": found["spread"]},
            "provenance": {
                "fitted by": "validation/fit/physical_moe.py", "inputs": list(INPUTS),
                "source": "ai-dynamo/aiconfigurator MoE tables, SGLang 0.5.10, Apache-2.0",
                "priors": CHOSEN,
                **{key: found[key] for key in ("devices", "mape", "dropped", "rows")},
            },
        }  # fmt: skip
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUTPUT.name}")


if __name__ == "__main__":
    main()
