"""Fits the physical model of attention and writes ``src/triosim/kernels/data/physical/attention.json``.

    python -m validation.fit.physical_attention [--write | --extrapolate | --paged [--write]]

Inputs: ``kernels/attention_prefill.parquet`` and ``kernels/attention_decode.parquet`` of the measured data (see
:mod:`validation.data.kernels`).  One set of constants per kernel family and phase, from all its devices.

Those tables hold SGLang's FlashAttention, which is not what it decodes with by default before Hopper (FlashInfer:
``_get_default_attn_backend`` of its ``server_args.py``), nor are they of vLLM's or TensorRT-LLM's kernels.  On an A100
it reads 1.1 TB/s where another engine's reads 1.7 (``serving/attention_substitute.parquet``, three models).  Decoding
of ``paged`` caches is ``flash2`` but for the rate of a multiprocessor, fitted to two of these models; the third judges.

The table judges them.  Where a family was measured on several devices, each is left out in turn (no row of it is
used); where on one only, a fifth of the shapes is left out in turn.  Decoding is also extrapolated: fitted on short
work, judged on four times the batch or context and more.  ``unseen``: another family's constants on a device, as
where a new architecture brings kernels that were never measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data.kernels import DATA, DEVICES, PLAUSIBLE
from validation.fit.roofline import KNEE, TARGET, least, quantile

from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.hardware import catalog
from triosim.kernels.arithmetic import rate
from triosim.kernels.physical import attention as model
from triosim.kernels.physical._constants import SCHEMA
from triosim.kernels.physical._tables import FamilyConstants
from triosim.kernels.physical.attention import AttentionConstants, Decode, Prefill
from triosim.kernels.work.attention import FAMILIES, AttentionCalls, attention

INPUTS = ("kernels/attention_prefill.parquet", "kernels/attention_decode.parquet")
OUTPUT = TARGET.with_name("physical") / "attention.json"
ROWS = 1500
"""Rows of one device that a fit looks at."""
FOLDS = 5

PRIOR: dict[type, dict[str, tuple[float, float, float, float]]] = {  # value, width of the prior (log), lowest, highest
    Prefill: {
        "launch_s": (9e-6, 1.0, 1e-6, 3e-5), "efficiency": (0.91, 0.05, 0.005, 1.0),
        "joule_per_flop": (1.2e-12, 0.5, 1e-13, 5e-12), "prologue_cycles": (3000.0, 1.0, 100.0, 1e6),
        "bandwidth_fraction": (0.85, 0.1, 0.2, 0.95), "cache_fraction": (0.8, 0.15, 0.02, 1.2),
        "cache_rate": (12.0, 0.3, 2.0, 32.0), "overlap": (1.5, 0.3, 1.0, 6.0),
        "softmax_cycles": (0.09, 0.3, 1e-4, 4.0), "narrow_cycles": (0.03, 0.5, 1e-4, 2.0),
        "cast_s": (1e-6, 1.0, 1e-8, 2e-5),
    },
    Decode: {
        "launch_s": (5e-6, 0.7, 1e-6, 3e-5), "split_s": (5e-6, 1.0, 1e-7, 3e-5), "split_keys": (300.0, 1.0, 10.0, 4e3),
        "part_s": (1e-7, 1.0, 1e-9, 1e-6), "pad_keys": (64.0, 0.1, 1.0, 256.0),
        "block_cycles": (7200.0, 0.5, 100.0, 5e4), "head_cycles": (20.0, 1.0, 0.1, 1e3),
        "block_rate": (12.0, 0.12, 1.0, 64.0), "bandwidth_fraction": (0.85, 0.1, 0.2, 0.95),
        "cache_fraction": (0.8, 0.15, 0.02, 1.2), "cache_rate": (12.0, 0.3, 2.0, 32.0),
        "overlap": (2.0, 0.3, 1.0, 8.0), "drift": (0.5, 0.5, 0.01, 1.0),
    },
}  # fmt: skip
"""Plausible values before any measurement; a prior counts like ``BELIEF`` rows (decoding on one device
alone has two explanations of short contexts, padding or work per block; with less, the fit falls into either).
``efficiency``: that of matrix products.  ``softmax_cycles``: 16 exponentials per clock on a multiprocessor and, beside
each, three and a half operations of 128 lanes (scale, maximum, sum, half a conversion); the exponentials alone where
instructions are asynchronous.  ``narrow_cycles``: half as long for the conversion of the scores.  ``block_cycles``:
five trips to memory, one after the other, of 0.8 us.  ``block_rate``: 16 KiB under way per multiprocessor (a
tile of 64 keys of 128 elements) over 1,300 clocks of latency.  ``pad_keys``: the 64 keys of one step of the kernel's
loop.  ``part_s``: a tenth of a microsecond, part of a trip to the cache.  The form of decoding, the widths of
``pad_keys``, ``block_rate``, ``bandwidth_fraction`` and the caches, ``BELIEF`` and ``FAMILY_PRIOR`` of decoding were
chosen after a look at the errors left out, which flatters them; so were the caches of prefill."""
BELIEF: dict[type, float] = {Prefill: 10.0, Decode: 60.0}
FAMILY_PRIOR: dict[str, dict[str, float]] = {
    "flash3": {"block_rate": 48.0, "softmax_cycles": 1 / 16},
    "trtllm": {"block_rate": 48.0, "pad_keys": 128.0, "softmax_cycles": 1 / 16, "joule_per_flop": 0.6e-12},
}  # fmt: skip
"""Kernels of ``tcgen05`` keep scores and sums in tensor memory, not in registers that everything passes through: half
the joules, chosen with published times of full attention on GB200, B300 and GB300 in view (``elsewhere.csv``), as the
measured rows of B200 are windows, which power does not bind.  Kernels that copy by the tensor memory accelerator
(Hopper, Blackwell) have four tiles under way instead of one; a step of TensorRT-LLM's is of 128 keys."""

CHOSEN = (
    "forms and widths were chosen after a look at the errors of devices and shapes left out: those of decoding "
    "(blocks, padding, rates, caches, and the families' own) and the caches of prefill"
)
"""What the provenance says of the priors."""

UNITS = {
    "launch_s": "seconds at 1.8 GHz", "efficiency": "part of the peak", "joule_per_flop": "J/FLOP",
    "prologue_cycles": "clocks", "bandwidth_fraction": "part of the datasheet's bandwidth",
    "cache_fraction": "part of the last-level cache", "cache_rate": "bytes per clock and multiprocessor",
    "overlap": "exponent", "split_s": "seconds", "split_keys": "keys", "part_s": "seconds", "pad_keys": "keys",
    "block_cycles": "clocks of 1.8 GHz", "block_rate": "bytes per clock and multiprocessor",
    "drift": "part of the last wave", "softmax_cycles": "clocks of a multiprocessor per pair",
    "cast_s": "seconds at 1.8 GHz", "tile": "queries", "narrow_cycles": "clocks of a multiprocessor per pair",
    "packs": "0 or 1", "skips": "0 or 1", "beside": "0 or 1", "casts": "0 or 1", "head_cycles": "clocks of 1.8 GHz",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Measured calls of one phase: the work, the catalog names of the devices, and the seconds."""

    work: AttentionCalls
    device: NDArray[np.str_]
    variant: NDArray[np.str_]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray) -> Measured:
        """These rows only."""
        return Measured(self.work.take(rows), self.device[rows], self.variant[rows], self.seconds[rows])


def read(phase: str) -> tuple[Measured, Counter]:
    """Plausible rows of ``prefill`` or ``decode``, repeats by their median, and how many were dropped for what."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / "kernels" / f"attention_{phase}.parquet")
    data = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    system, source = data["system"].astype(str), data["kernel_source"].astype(str)
    dtype, kv = data["attn_dtype"].astype(str), data["kv_cache_dtype"].astype(str)
    window = np.nan_to_num(data["window_size"].astype(float))
    batch, heads, kv_heads, head, queries, step = (
        data[name].astype(float)
        for name in ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "isl", "step")
    )
    keys = queries if phase == "prefill" else step + 1
    flash = np.where(system == "h100_sxm", "flash3", "flash2")
    family = np.where(source == "flash_attention", flash, np.where(source == "triton", "triton", "trtllm"))
    types = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
    yes, no = np.ones(len(keys), bool), np.zeros(len(keys), bool)
    work = AttentionCalls(
        batch, queries, keys, heads, kv_heads, head, head, window, yes, no, yes, no, yes,
        np.array([DTYPE_CODE[types[d]] for d in dtype], np.int8), np.full(len(keys), 2.0),
        np.array([DTYPE_BYTES[types[d]] for d in kv], np.float64),
        np.array([FAMILIES.index(f) for f in family], np.int8),
    )  # fmt: skip
    variant = np.char.add(np.char.add(dtype, "/"), kv)
    every = Measured(work, np.array([DEVICES[s] for s in system]), variant, data["latency"] * 1e-3)
    return plausible(median(every), phase)


def median(measured: Measured) -> Measured:
    """Rows of the same call joined into one of their median time."""
    work = measured.work
    columns = [getattr(work, f.name) for f in fields(work)]
    device = np.unique(measured.device, return_inverse=True)[1]
    key = np.stack([*columns, device], 1).astype(float)
    _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
    order = np.lexsort((measured.seconds, group.ravel()))
    ends = np.cumsum(np.bincount(group.ravel()))
    starts = np.concatenate([[0], ends[:-1]])
    low, high = (measured.seconds[order[at]] for at in ((starts + ends - 1) // 2, (starts + ends) // 2))
    found = measured.take(first)
    return Measured(found.work, found.device, found.variant, (low + high) / 2)


def plausible(measured: Measured, phase: str) -> tuple[Measured, Counter]:
    """Rows that can be what their columns say, and counts of the others by reason."""
    work, reason = measured.work, np.full(len(measured), "", "U40")
    for name in np.unique(measured.device):
        device, at = catalog.accelerator(str(name)), measured.device == name
        peak = np.array([rate("bfloat16" if v.startswith("bf") else "float8_e4m3fn", device) for v in ("bf", "fp8")])
        peaks = np.where(np.char.startswith(measured.variant, "bf"), peak[0], peak[1])
        moved = work.key_bytes() + work.query_bytes()
        memory = moved / float(device.memory_bandwidth or np.inf)
        reason[at & (measured.seconds < PLAUSIBLE * memory) & (moved > float(device.cache_bytes or 0))] = "memory"
        reason[at & (measured.seconds < PLAUSIBLE * work.flop() / peaks)] = "compute"
    if phase == "prefill":
        reason[(work.family == FAMILIES.index("trtllm")) & (work.window == 0)] = "window 0 is not full attention"
    return measured.take(np.flatnonzero(reason == "")), Counter(reason[reason != ""].tolist())


Phase = type[Prefill] | type[Decode]


def predict(measured: Measured, c: Prefill | Decode) -> NDArray[np.float64]:
    """Seconds of every row by one family's constants."""
    seconds = np.empty(len(measured))
    formula: Any = model.decode if isinstance(c, Decode) else model.prefill
    for name in np.unique(measured.device):
        rows = np.flatnonzero(measured.device == name)
        seconds[rows] = formula(measured.work.take(rows), catalog.accelerator(str(name)), c).seconds
    return seconds


TRAITS: dict[type, tuple[dict[str, float], ...]] = {
    Prefill: tuple(
        {"tile": tile, "packs": packs, "skips": skips}
        for tile in (64.0, 128.0) for packs in (0.0, 1.0) for skips in (0.0, 1.0)
    ),
    Decode: ({},),
}  # fmt: skip
"""What is tried one after the other because nothing lies between."""


BESIDE = ("trtllm",)
"""Families whose softmax runs beside the products of another tile (``tcgen05``, which one thread issues)."""
ONE_TYPE = ("flash3",)
"""Families that multiply in the type that keys are kept in: measured rows of bfloat16 over fp8 keys take what those of
fp8 take."""

WINDOWED = 100
"""Rows with a window shorter than the context from which it can be seen whether keys outside are skipped; kernels are
taken to skip them where there are fewer."""


def traits(measured: Measured, cls: Phase) -> dict[str, float]:
    """The traits with the least error over a few rows."""
    if len(TRAITS[cls]) == 1:
        return TRAITS[cls][0]
    sample = measured.take(np.random.default_rng(2).permutation(len(measured))[:800])
    work = measured.work
    windowed = int(((work.window > 0) & (work.window < work.keys)).sum()) >= WINDOWED
    tried = [one for one in TRAITS[cls] if windowed or one["skips"]]
    costs = [float(np.mean(np.abs(np.log(predict(sample, fit(sample, cls, one)) / sample.seconds)))) for one in tried]
    return tried[int(np.argmin(costs))]


def fit(measured: Measured, cls: Phase, fixed: dict[str, float] | None = None, rows: int = ROWS) -> Any:
    """Constants that predict ``measured`` best: least smooth absolute error of the logarithm, with priors."""
    fixed = traits(measured, cls) if fixed is None else fixed
    if cls is Prefill:
        family = FAMILIES[int(measured.work.family[0])]
        fixed = {**fixed, "beside": float(family in BESIDE), "casts": float(family in ONE_TYPE)}
    random = np.random.default_rng(0)
    chosen = [np.flatnonzero(measured.device == name) for name in np.unique(measured.device)]
    chosen = [random.permutation(at)[:rows] for at in chosen]
    sample = measured.take(np.concatenate(chosen))
    names = list(PRIOR[cls])
    start, width, lowest, highest = np.array([PRIOR[cls][name] for name in names]).T
    other = FAMILY_PRIOR.get(FAMILIES[int(measured.work.family[0])], {})
    start = np.array([other.get(name, value) for name, value in zip(names, start.tolist(), strict=True)])
    start, lowest, highest = np.log(start), np.log(lowest), np.log(highest)

    def residuals(x: NDArray) -> NDArray:
        c = cls(**dict(zip(names, np.exp(x).tolist(), strict=True)), **fixed)
        belief = (x - start) / width * KNEE * np.sqrt(BELIEF[cls])
        return np.concatenate([np.log(predict(sample, c) / sample.seconds), belief])

    x = least(residuals, start, lowest, highest)
    found = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(x).tolist(), strict=True)}
    return cls(**found, **fixed)


def shapes(measured: Measured) -> NDArray[np.int64]:
    """A number for each (heads, key heads, head size, element types) of the rows, spread evenly over the folds."""
    work = measured.work
    key = np.stack([work.heads, work.kv_heads, work.head, work.batch, work.keys], 1)
    found, group = np.unique(key, axis=0, return_inverse=True)
    return np.random.default_rng(1).permutation(len(found))[group.ravel()]


def left_out(measured: Measured, cls: Phase) -> NDArray[np.float64]:
    """log(measured / predicted) of every row by constants that never saw its device (its shape, where there is one).

    Where shapes are left out the traits of the kernels, three yes or no, are those that all of them show.
    """
    names = np.unique(measured.device)
    if len(names) > 1:
        parts, fixed = [measured.device == name for name in names], None
    else:
        parts, fixed = [shapes(measured) % FOLDS == fold for fold in range(FOLDS)], traits(measured, cls)
    errors = np.empty(len(measured))
    for part in parts:
        c = fit(measured.take(np.flatnonzero(~part)), cls, fixed)
        errors[part] = np.log(measured.seconds[part] / predict(measured.take(np.flatnonzero(part)), c))
    return errors


def between(measured: Measured, cls: Phase, errors: NDArray[np.float64]) -> float | None:
    """Half-width of 90 % of what kernels of one family differ by from device to device, beside what shapes differ by.

    The errors on devices that were left out hold both, those on shapes that were left out of the device's own only the
    second; the two are taken to be independent.  None where the family was measured on one device.

    Args:
        measured: rows of the family.
        cls: the phase.
        errors: of :func:`left_out`.
    """
    names = np.unique(measured.device)
    if len(names) < 2:
        return None
    squares = []
    for name in names:
        at = np.flatnonzero(measured.device == name)
        own = quantile(left_out(measured.take(at), cls))
        squares.append(quantile(errors[at]) ** 2 - own**2)
    return math.sqrt(max(float(np.mean(squares)), 0.0))


NEAR = (128, 2048)
"""Batch and context up to which extrapolated decoding is fitted."""


def beyond(measured: Measured) -> NDArray[np.bool_]:
    """Rows with 4 and more times the batch or the context of :data:`NEAR`."""
    return np.asarray((measured.work.batch >= 4 * NEAR[0]) | (measured.work.keys >= 4 * NEAR[1]))


def extrapolated(measured: Measured, cls: Phase) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Errors at 4 and more times the batch or the context that was fitted, and the devices of those rows."""
    near = (measured.work.batch <= NEAR[0]) & (measured.work.keys <= NEAR[1])
    c = fit(measured.take(np.flatnonzero(near)), cls)
    rows = measured.take(np.flatnonzero(beyond(measured)))
    return np.log(rows.seconds / predict(rows, c)), rows.device


def mape(errors: NDArray) -> float:
    """Mean |predicted - measured| / measured in per cent."""
    return float(100 * np.mean(np.abs(np.expm1(-errors))))


def coverage(errors: NDArray, spread: float) -> float:
    """Per cent of the rows inside the interval."""
    return float(100 * np.mean(np.abs(errors) <= spread))


def across(measured: Measured, older: Any, family: str) -> float:
    """90 % of the errors where a family's kernels are taken for what the constants of an older one say; prints them."""
    at = (measured.work.family == FAMILIES.index(family)) & np.char.startswith(measured.variant, "bfloat16/bf")
    rows = measured.take(np.flatnonzero(at))
    errors = np.log(rows.seconds / predict(rows, model.newer(older)))
    print(f"    {family:8s} taken for flash2's next: {len(rows)} rows, MAPE {mape(errors):.1f} %, "
          f"bias {np.median(errors):+.2f}, 90 % within {quantile(errors):.2f}")  # fmt: skip
    return quantile(errors) if family == "flash3" else 0.0  # TensorRT-LLM's are Blackwell's own


def judge(phase: str, cls: Phase) -> dict[str, Any]:
    """Constants, spreads and the printed table of one phase."""
    measured, dropped = read(phase)
    print(f"{phase}: {len(measured)} rows, dropped {dict(dropped)}")
    found: dict[str, Any] = {}
    errors: dict[tuple[str, str], NDArray] = {}
    fitted: dict[str, list[str]] = {}
    apart: list[float | None] = []
    for code in np.unique(measured.work.family):
        rows = measured.take(np.flatnonzero(measured.work.family == code))
        family = FAMILIES[code]
        found[family] = fit(rows, cls)
        out = left_out(rows, cls)
        apart.append(between(rows, cls, out))
        how = "GPU left out" if len(np.unique(rows.device)) > 1 else "shapes left out"
        fitted[family] = np.unique(rows.device).tolist()
        for name in fitted[family]:
            errors[family, name] = out[rows.device == name]
        if phase == "decode":
            far, where = extrapolated(rows, cls)
            for name in np.unique(where):
                print(f"    {family:8s} {name:16s} 4 x batch or context: {mape(far[where == name]):5.1f} %")
        for name in fitted[family]:
            for variant in np.unique(rows.variant[rows.device == name]):
                at = out[(rows.device == name) & (rows.variant == variant)]
                print(f"    {family:8s} {name:16s} {variant:18s} {how:16s} {len(at):6d} rows, MAPE {mape(at):5.1f} %, "
                      f"median {100 * np.median(np.abs(np.expm1(-at))):5.1f} %, bias {np.median(at):+.2f}")  # fmt: skip
    spreads = {key: quantile(out) for key, out in errors.items()}
    fallback = [across(measured, found["flash2"], family) for family in fitted if family in model.NEWER]
    seen = quantile(np.concatenate(list(errors.values())))
    other = max([one for one in apart if one is not None], default=0.0)
    print(f"    from device to device {other:.2f} beside {seen:.2f}")
    unseen = max([*spreads.values(), *fallback, math.hypot(seen, other)])
    for (family, name), out in errors.items():
        others = [s for (_, other), s in spreads.items() if other != name] or [unseen]
        print(f"    {family:8s} {name:16s} MAPE {mape(out):5.1f} %, 90 % of errors within {spreads[family, name]:.2f}, "
              f"covered by the others' widest ({max(others):.2f}) {coverage(out, max(others)):.0f} %")  # fmt: skip
    return {
        "constants": {family: asdict(c) for family, c in found.items()},
        "spread": {"seen": seen, "between": other, "unseen": unseen},
        "devices": fitted, "mape": {f"{f} {d}": round(mape(e), 1) for (f, d), e in errors.items()},
        "dropped": dict(dropped), "rows": len(measured),
    }  # fmt: skip


def extrapolate() -> None:
    """Print the errors of decoding at 4 and more times the batch or the context that was fitted."""
    measured, _ = read("decode")
    print(f"{'family':10s}{'GPU':18s}{'types':20s}{'rows':>6s}{'MAPE %':>8s}{'median':>8s}{'bias':>8s}")
    for code in np.unique(measured.work.family):
        rows = measured.take(np.flatnonzero(measured.work.family == code))
        errors, _ = extrapolated(rows, Decode)
        rows = rows.take(np.flatnonzero(beyond(rows)))
        for key in np.unique(np.char.add(np.char.add(rows.device, "|"), rows.variant)):
            name, _, types = str(key).partition("|")
            at = errors[(rows.device == name) & (rows.variant == types)]
            print(f"{FAMILIES[code]:10s}{name:18s}{types:20s}{len(at):6d}{mape(at):8.1f}"
                  f"{100 * np.median(np.abs(np.expm1(-at))):8.1f}{100 * np.median(np.expm1(-at)):8.1f}")  # fmt: skip


PAGED_INPUT = "serving/attention_substitute.parquet"
PAGED_SHAPES = ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf")
"""Models whose calls choose the constants, each counting alike; any other judges."""
PAGED_DEVICE = "A100-SXM4-80GB"
PAGED_KEYS = 1 << 17
"""Keys of a call, of all sequences together, up to which times rise with the bytes that are read; those of longer ones
stay where they were, faster than the memory."""
PAGED_FITTED = ("block_rate",)
"""Constants that are fitted to them, with the priors of all families; the others are those of ``flash2``.  With the
memory's rate or work of query heads too, fits end at the bounds of these; with the work of a block L40S' calls of
``flash2``, whose memory hides the rate, are 16.9 % off instead of 9.6."""


def read_paged() -> dict[str, Measured]:
    """Measured decodes of an A100, by model."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / PAGED_INPUT)
    data = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    batch, keys = data["batch_size"].astype(float), data["kv_cache_size"].astype(float)
    kept = (data["device"] == "a100") & ~data["is_prefill"].astype(bool) & (keys > 0) & (batch * keys <= PAGED_KEYS)
    found = {}
    for name in np.unique(data["model"][kept].astype(str)):
        rows = np.flatnonzero(kept & (data["model"] == name))
        heads, kv_heads = (data[f"n_{of}_head"][rows] / data["num_tensor_parallel_workers"][rows] for of in ("q", "kv"))
        head = data["n_embd"][rows] / data["n_q_head"][rows]
        work = attention(batch[rows], 1, keys[rows], heads, kv_heads, head, "float16", family="flash2")
        seconds = data["time_stats.attn_decode.median"][rows].astype(float) * 1e-3
        found[name] = Measured(work, np.full(len(rows), PAGED_DEVICE), np.full(len(rows), "fp16/fp16"), seconds)
    return found


def paged(flash2: Decode) -> Decode:
    """Constants of decoding from paged caches; prints what they do."""
    measured = read_paged()
    random = np.random.default_rng(0)
    samples = [measured[name].take(random.permutation(len(measured[name]))[:ROWS]) for name in PAGED_SHAPES]
    start, width, lowest, highest = np.array([PRIOR[Decode][name] for name in PAGED_FITTED]).T

    def made(x: NDArray) -> Decode:
        return replace(flash2, **dict(zip(PAGED_FITTED, np.exp(x).tolist(), strict=True)))

    def residuals(x: NDArray) -> NDArray:
        c, belief = made(x), (x - np.log(start)) / width * KNEE * np.sqrt(BELIEF[Decode])
        return np.concatenate([*(np.log(predict(one, c) / one.seconds) for one in samples), belief])

    x = least(residuals, np.log(start), np.log(lowest), np.log(highest))
    rounded = {name: float(f"{value:.4g}") for name, value in zip(PAGED_FITTED, np.exp(x).tolist(), strict=True)}
    found = replace(flash2, **rounded)
    for name, rows in measured.items():
        before, after = (np.log(rows.seconds / predict(rows, c)) for c in (flash2, found))
        print(f"    paged    {name:28s} {'shapes' if name in PAGED_SHAPES else 'judges'} {len(rows):6d} rows, MAPE "
              f"{mape(before):5.1f} -> {mape(after):5.1f} %, bias {np.median(np.expm1(-before)):+.2f} -> "
              f"{np.median(np.expm1(-after)):+.2f}")  # fmt: skip
    print("    paged    " + ", ".join(f"{n} {getattr(flash2, n):g} -> {getattr(found, n):g}" for n in PAGED_FITTED))
    return found


def write_paged() -> None:
    """Find the constants of paged caches anew, beside installed constants, and write it."""
    document = json.loads(OUTPUT.read_text(encoding="utf-8"))
    _with_paged(document)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT.name}")


def _with_paged(document: dict[str, Any]) -> None:
    """Put the constants of paged caches beside those of the family that they are of."""
    document["constants"]["decode"]["paged"] = asdict(paged(Decode(**document["constants"]["decode"]["flash2"])))
    document["provenance"]["inputs"] = [*INPUTS, PAGED_INPUT]
    document["provenance"]["decode"]["devices"]["paged"] = document["provenance"]["decode"]["devices"]["flash2"]


def tables(prefill: dict[str, Any], decode: dict[str, Any]) -> AttentionConstants:
    """Constants as the model takes them, from two results of :func:`judge`."""
    return AttentionConstants(
        FamilyConstants({f: Prefill(**c) for f, c in prefill["constants"].items()}, "flash2"),
        FamilyConstants({f: Decode(**c) for f, c in decode["constants"].items()}, "flash2"),
    )


def main() -> None:
    """Fit, print the table, and write the constants if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    parser.add_argument("--extrapolate", action="store_true", help="print decoding at 4 x the batch or context only")
    parser.add_argument("--paged", action="store_true", help="only what differs in paged caches")
    arguments = parser.parse_args()
    if arguments.extrapolate:
        extrapolate()
        return
    if arguments.paged:
        write_paged() if arguments.write else paged(model.constants().decode.of("flash2"))
        return
    found = {"prefill": judge("prefill", Prefill), "decode": judge("decode", Decode)}
    if arguments.write:
        document = {
            "schema": SCHEMA, "kind": "attention", "units": UNITS,
            "constants": {phase: one["constants"] for phase, one in found.items()},
            "spread": {phase: one["spread"] for phase, one in found.items()},
            "provenance": {
                "fitted by": "validation/fit/physical_attention.py", "inputs": list(INPUTS),
                "source": "ai-dynamo/aiconfigurator attention tables, SGLang 0.5.10, Apache-2.0",
                "priors": CHOSEN,
                **{phase: {k: one[k] for k in ("devices", "mape", "dropped", "rows")} for phase, one in found.items()},
            },
        }  # fmt: skip
        _with_paged(document)
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUTPUT.name}")


if __name__ == "__main__":
    main()
