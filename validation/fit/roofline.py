"""Fits the constants of the roofline and writes ``src/triosim/kernels/data/roofline.json``.

    python -m validation.fit.roofline [--write]

Every class of work has three constants and an exponent (:mod:`triosim.kernels.pack`).  They minimise a smooth form of
the mean absolute logarithmic error over rows taken evenly over the decades of kernel time, equally many from each
device.  The table judges them on devices that were left out of the fit; the spreads are the 90 % quantiles of those
errors, pooled over the devices left out, and the largest of one device for devices of families that were never seen.

Isolated operators (NeuSight) hold time of the host that issues them: a constant, fitted along and dropped.  What it
hides is the shortest time of a kernel, which then comes from Kineto traces or from the GEMM tables.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from validation.data import kernels as kernel_data
from validation.data.kernels import Sample

from triosim.hardware import catalog
from triosim.kernels.pack import SCHEMA, join

TARGET = Path(__file__).resolve().parents[2] / "src" / "triosim" / "kernels" / "data" / "roofline.json"

ROWS_PER_DEVICE = 1500
OVERLAPS = (1.0, 2.0, 3.0, math.inf)
KNEE = 0.15
"""Logarithmic error at which a row's weight begins to fall."""
LEVEL = 0.9


@dataclass(frozen=True)
class Constants:
    """What is fitted, see :mod:`triosim.kernels.pack`; ``host_s`` is time of the host inside the measurements."""

    floor_s: float
    compute: float
    memory: float
    overlap: float
    host_s: float = 0.0

    def kernel(self, sample: Sample) -> NDArray[np.float64]:
        """Predicted seconds of the kernel."""
        return self.floor_s + join(sample.compute_s / self.compute, sample.memory_s / self.memory, self.overlap)

    def measured(self, sample: Sample) -> NDArray[np.float64]:
        """Predicted seconds of what was measured: the kernel, the host, and the kernel before it."""
        return self.kernel(sample) + self.host_s + sample.before_s / self.memory


@dataclass
class Judged:
    """Constants of one class and how well they predict devices left out of the fit."""

    key: str
    constants: Constants
    rows: dict[str, int]
    errors: dict[str, NDArray[np.float64]]
    plain: dict[str, NDArray[np.float64]]
    source: str

    def spread(self) -> float:
        """90 % of |log(measured / predicted)|, pooled over the devices left out."""
        return quantile(np.concatenate(list(self.errors.values())))

    def spread_unseen(self) -> float:
        """The largest such quantile of one device."""
        return max(quantile(errors) for errors in self.errors.values())


def quantile(errors: NDArray[np.float64]) -> float:
    """Split-conformal quantile of |errors|: the value of rank ceil(0.9 (n + 1))."""
    ordered = np.sort(np.abs(errors))
    return float(ordered[min(math.ceil(LEVEL * (len(ordered) + 1)), len(ordered)) - 1])


def even(sample: Sample, count: int = ROWS_PER_DEVICE) -> Sample:
    """At most ``count`` rows of each device, evenly over the logarithm of their plain roofline time."""
    return sample.take(even_rows(sample, count))


def even_rows(sample: Sample, count: int = ROWS_PER_DEVICE) -> NDArray[np.int64]:
    """The rows that :func:`even` takes."""
    chosen = []
    for device in np.unique(sample.device):
        rows = np.flatnonzero(sample.device == device)
        if len(rows) > count:
            key = np.log(sample.plain()[rows] + 2e-6)
            order = np.argsort(key, kind="stable")
            at = np.searchsorted(key[order], np.linspace(key.min(), key.max(), count))
            rows = np.unique(rows[order[np.minimum(at, len(rows) - 1)]])
        chosen.append(rows)
    return np.concatenate(chosen)


@dataclass(frozen=True)
class Form:
    """Which constants are free: a given ``floor_s`` is kept; ``host`` fits time of the host."""

    floor_s: float | None = None
    host: bool = False
    overlaps: Sequence[float] = OVERLAPS


def fit(sample: Sample, form: Form, overlap: float) -> Constants:
    """Constants that predict ``sample`` best (see the module's docstring)."""
    has_flop, has_bytes = bool((sample.compute_s > 0).any()), bool((sample.memory_s > 0).any())
    free: list[tuple[str, float, float, float]] = []  # name, start, lowest, highest
    if form.floor_s is None:
        free.append(("floor_s", 3e-6, 1e-7, 1e-4))
    if has_flop:
        free.append(("compute", 0.7, 0.05, 1.0))
    if has_bytes:
        free.append(("memory", 0.7, 0.05, 1.0))
    if form.host:
        free.append(("host_s", 1e-5, 1e-7, 1e-4))
    names = [name for name, *_ in free]
    fixed = {"floor_s": form.floor_s or 0.0, "compute": 1.0, "memory": 1.0, "host_s": 0.0, "overlap": overlap}

    def constants(x: NDArray) -> Constants:
        return Constants(**{**fixed, **dict(zip(names, np.exp(x).tolist(), strict=True))})

    def residuals(x: NDArray) -> NDArray:
        return np.log(constants(x).measured(sample) / sample.seconds)

    start, lowest, highest = (np.log([row[i] for row in free]) for i in (1, 2, 3))
    return constants(least(residuals, start, lowest, highest))


def least(
    residuals: Callable[[NDArray], NDArray], x: NDArray, lowest: NDArray, highest: NDArray, enough: float = 1e-10
) -> NDArray:
    """Minimise sum of 2 KNEE^2 (sqrt(1 + (r / KNEE)^2) - 1) by damped Gauss-Newton steps within bounds.

    It ends with a step that gains less than ``enough`` of the sum.
    """

    def cost(r: NDArray) -> float:
        return float(np.sum(np.sqrt(1 + (r / KNEE) ** 2) - 1))

    damping, step = 1e-2, 1e-6
    r = residuals(x)
    best = cost(r)
    for _ in range(100):
        jacobian = np.stack([(residuals(x + step * e) - r) / step for e in np.eye(len(x))], 1)
        weight = 1 / np.sqrt(1 + (r / KNEE) ** 2)
        normal, slope = jacobian.T @ (jacobian * weight[:, None]), jacobian.T @ (weight * r)
        for _ in range(20):
            trial = np.clip(
                x - np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope), lowest, highest
            )
            there = residuals(trial)
            if cost(there) < best:
                break
            damping *= 4
        else:
            return x
        gain, best, x, r = best - cost(there), cost(there), trial, there
        damping = max(damping / 10, 1e-9)
        if gain < enough * best:
            return x
    return x


FOLDS = 5
"""Parts of the shapes that are left out in turn where there is only one device."""


def judge(key: str, sample: Sample, form: Form, source: str) -> Judged:
    """Constants from all rows, errors of each device from a fit without it; the exponent with the least of them.

    Where there is one device only, a fifth of the shapes is left out in turn.
    """
    devices = np.unique(sample.device)
    rows = {str(d): int((sample.device == d).sum()) for d in devices}
    sample = even(sample)
    if len(devices) > 1:
        parts = [sample.device == d for d in devices]
    else:
        shapes = np.unique(sample.shape, axis=0, return_inverse=True)[1].ravel()
        parts = [shapes % FOLDS == fold for fold in range(FOLDS)]
    trials = []
    for overlap in form.overlaps:
        errors = np.empty(len(sample))
        for part in parts:
            constants = fit(sample.take(np.flatnonzero(~part)), form, overlap)
            errors[part] = np.log(sample.seconds / constants.measured(sample))[part]
        trials.append((float(np.mean(np.abs(errors))), overlap, errors))
    _, overlap, errors = min(trials, key=lambda trial: trial[0])
    plain = np.log(sample.seconds / sample.plain())
    of = {str(d): sample.device == d for d in devices}
    return Judged(
        key, fit(sample, form, overlap), rows, {d: errors[at] for d, at in of.items()},
        {d: plain[at] for d, at in of.items()}, source,
    )  # fmt: skip


def samples() -> dict[str, tuple[Sample, Form, str]]:
    """Everything that is fitted: class -> measurements, form, source.  The floor of ``matrix/tensor`` comes first."""
    gemm = "aiconfigurator GEMM tables, SGLang 0.5.10"
    neusight = "NeuSight float32 operators, PyTorch 2.1"
    resnet = "ResNet-50 training step of the TrioSim sample traces, H100, batch 128, float32 with TF32 convolutions"
    elementwise = min(kernel_data.shortest_kernels("elementwise").values())
    rowwise = min(kernel_data.shortest_kernels("rowwise").values())
    steps = kernel_data.resnet_operators()
    product = judge("matrix/tensor", kernel_data.gemm("bfloat16"), Form(), gemm).constants.floor_s
    given, isolated = Form(floor_s=product), Form(floor_s=product, host=True)
    return {
        "matrix/tensor": (kernel_data.gemm("bfloat16"), Form(), f"{gemm}, bfloat16"),
        "matrix/narrow": (kernel_data.gemm("fp8", "nvfp4"), isolated, f"{gemm}, fp8 and nvfp4"),
        "matrix/simt": (kernel_data.float32_operators("linear", "bmm"), isolated, neusight),
        "convolution/simt": (kernel_data.float32_operators("conv"), isolated, f"{neusight}, 3 x 3"),
        "convolution/tensor": (steps["convolution"], given, resnet),
        "convolution_backward/tensor": (steps["convolution_backward"], given, resnet),
        "attention/tensor": (
            kernel_data.attention(),
            Form(),
            "aiconfigurator attention tables, SGLang 0.5.10, bfloat16",
        ),
        "rowwise": (kernel_data.float32_operators("softmax", "ln"), Form(rowwise, True, (1.0,)), neusight),
        "elementwise": (kernel_data.float32_operators("elementwise"), Form(elementwise, True, (1.0,)), neusight),
    }


BACKWARD_ATTENTION = 63 / 73
"""FlashAttention-2 reaches up to 73 % of an A100's peak forward and up to 63 % backward (Dao: "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023)."""


TPUS = ("TPUv4", "TPUv5e", "TPUv5p", "Trillium")
"""Architectures whose products XLA compiles for the same kind of matrix unit."""
XLA_SECONDS = {1024: 1.1943008983507753e-4, 4096: 8.272899803705514e-4, 8192: 6.047147869830951e-3}
"""Of a square product in bfloat16 on TPU v5e, the host's dispatch included."""
V5E_PEAK = 197e12
GAUDI_REACH = {"tensor": 0.994, "narrow": 0.9}
"""Fraction of its peak that a Gaudi 2 reaches in large products of 16 and of 8 bits."""
GAUDI_SOURCE = {
    "tensor": "99.4 % of the datasheet in the best of many sizes (mamf-finder of stas00/ml-engineering, measured by "
    "Intel; huggingface.co/posts/stas/819441540441901)",
    "narrow": '"frequently exceeding 90% MFU" (arXiv:2503.09975, abstract)',
}


def xla_products() -> float:
    """Fraction of its peak that a TPU reaches in large products, the host's dispatch taken off.

    ``seconds = dispatch + FLOP / (fraction * peak)``, least squares of relative errors.
    """
    measured = np.array(list(XLA_SECONDS.values()))
    ideal = np.array([2.0 * side**3 / V5E_PEAK for side in XLA_SECONDS])
    columns = np.stack([np.ones(len(ideal)), ideal], axis=1) / measured[:, None]
    _, slope = np.linalg.lstsq(columns, np.ones(len(ideal)), rcond=None)[0]
    return float(1 / slope)


def document(judged: dict[str, Judged], other: NDArray[np.float64]) -> dict[str, Any]:
    """The pack: fitted classes, classes that borrow their constants, and provenance.

    Args:
        judged: the fitted classes.
        other: logarithmic errors of the constants of ``elementwise`` on operators of ``other``.
    """
    widest = max(one.spread_unseen() for one in judged.values())
    classes: dict[str, Any] = {}
    for key, one in judged.items():
        few = len(one.rows) < 2  # one device: nothing is known of others
        families = sorted({catalog.accelerator(device).architecture.split(" ")[0] for device in one.rows})
        classes[key] = {
            **_numbers(one.constants),
            "spread": _round(one.spread()),
            "spread_unseen": _round(widest if few else one.spread_unseen()),
            "families": families,
            "source": one.source,
        }

    def like(key: str, spread: float, reason: str, compute: float = 1.0) -> dict[str, Any]:
        constants = judged[key].constants
        constants = replace(constants, compute=constants.compute * compute)
        numbers = {"spread": _round(spread), "spread_unseen": _round(spread), "families": []}
        return {"like": key, **_numbers(constants), **numbers, "source": reason}

    attention = judged["attention/tensor"].spread_unseen()
    simt = judged["matrix/simt"].spread_unseen()
    eight = "no measurements in 8 bits"
    classes |= {
        "attention_backward/tensor": like(
            "attention/tensor", attention, "no measurements; FlashAttention-2 reaches 63/73 of its forward",
            BACKWARD_ATTENTION,
        ),
        "attention/narrow": like("attention/tensor", attention, eight),
        "attention_backward/narrow": like("attention/tensor", attention, eight, BACKWARD_ATTENTION),
        "attention/simt": like("matrix/simt", simt, "no measurements in float32: two matrix products"),
        "attention_backward/simt": like("matrix/simt", simt, "no measurements in float32: five matrix products"),
        "convolution_backward/simt": like(
            "convolution/simt", widest, "no measurements of gradients: two convolutions of the same work"
        ),
        "convolution/narrow": like("convolution/tensor", widest, eight),
        "convolution_backward/narrow": like("convolution_backward/tensor", widest, eight),
        "other": like(
            "elementwise", quantile(other),
            "moved by bytes; spread: 90 % of the errors on pooling, loss and optimizer of the ResNet-50 step",
        ),
    }  # fmt: skip
    accuracy = {
        one.key: {
            "rows": one.rows,
            "plain_roofline_mape": _round(_mape(np.concatenate(list(one.plain.values())))),
            "left_out_mape": _round(_mape(np.concatenate(list(one.errors.values())))),
            "left_out_spread": {device: _round(quantile(errors)) for device, errors in one.errors.items()},
        }
        for one in judged.values()
    }
    return {
        "schema": SCHEMA,
        "name": "roofline",
        "classes": classes,
        "elsewhere": {
            "spread": _round(math.log(2)),
            "reason": "CPUs, TPUs and other processors: no measurement of any, a factor of two is assumed",
        },
        "own": [
            {
                "architectures": list(TPUS),
                "class": "matrix/tensor",
                "compute": _round(xla_products()),
                "spread": classes["matrix/tensor"]["spread_unseen"],
                "source": "XLA's products of 1,024, 4,096 and 8,192 cubed in bfloat16 on TPU v5e, printed in JAX's "
                "documentation (docs/pallas/tpu/matmul.ipynb); spread: that of matrix/tensor on a GPU not seen",
            },
            *(
                {
                    "architectures": ["Gaudi2"],
                    "class": f"matrix/{engine}",
                    "compute": GAUDI_REACH[engine],
                    "spread": classes[f"matrix/{engine}"]["spread_unseen"],
                    "source": f"{GAUDI_SOURCE[engine]}; spread: that of matrix/{engine} on a GPU not seen",
                }
                for engine in GAUDI_REACH
            ),
        ],
        "provenance": {
            "script": "validation/fit/roofline.py",
            "licences": "aiconfigurator Apache-2.0; NeuSight, TrioSim and HolisticTraceAnalysis MIT",
            "floors": "elementwise and rowwise: shortest kernels of Kineto traces of HolisticTraceAnalysis (A100, "
            "V100); convolution and the other matrix products: that of matrix/tensor",
            "accuracy": accuracy,
        },
    }


def _numbers(constants: Constants) -> dict[str, Any]:
    return {
        "floor_s": _round(constants.floor_s),
        "compute": _round(constants.compute),
        "memory": _round(constants.memory),
        "overlap": None if math.isinf(constants.overlap) else constants.overlap,
    }


def _round(x: float) -> float:
    return float(f"{x:.4g}")


def _mape(errors: NDArray[np.float64]) -> float:
    return float(np.mean(np.abs(np.exp(-errors) - 1)))


def errors_of_other(elementwise: Constants) -> NDArray[np.float64]:
    """Errors of the constants of ``elementwise`` on the ResNet-50 step's operators of class ``other``."""
    sample = kernel_data.resnet_operators()["other"]
    return np.log(sample.seconds / elementwise.kernel(sample))


def table(judged: dict[str, Judged]) -> str:
    """Accuracy on devices left out, against the plain roofline (the larger of FLOP / peak and bytes / bandwidth)."""
    lines = [f"{'class':28s}{'left out':16s}   rows  plain MAPE    MAPE  median   bias   90 %"]

    def line(key: str, device: str, rows: int, plain: NDArray, errors: NDArray) -> str:
        median = float(np.median(np.abs(np.exp(-errors) - 1)))
        return (
            f"{key:28s}{device:16s}{rows:7d}{100 * _mape(plain):12.1f}{100 * _mape(errors):8.1f}{100 * median:8.1f}"
            f"{float(np.median(errors)):7.2f}{quantile(errors):7.2f}"
        )

    for one in judged.values():
        c = one.constants
        for device, errors in one.errors.items():
            lines.append(line(one.key, device, one.rows[device], one.plain[device], errors))
        pooled, plain = np.concatenate(list(one.errors.values())), np.concatenate(list(one.plain.values()))
        overlap = "max" if math.isinf(c.overlap) else f"{c.overlap:g}"
        host = f", host {c.host_s * 1e6:.1f} us" if c.host_s else ""
        lines.append(
            line("", "all", sum(one.rows.values()), plain, pooled)
            + f"   floor {c.floor_s * 1e6:.2f} us, compute {c.compute:.3f}, memory {c.memory:.3f}, "
            + f"overlap {overlap}{host}"
        )
    return "\n".join(lines)


def main() -> None:
    """Fit, print the table, and write the pack if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name}")
    arguments = parser.parse_args()
    judged = {key: judge(key, sample, form, source) for key, (sample, form, source) in samples().items()}
    other = errors_of_other(judged["elementwise"].constants)
    print(table(judged))
    print(f"{'other, constants of elementwise':44s}{len(other):7d}  {'':10s}  {100 * _mape(other):6.1f}")
    if arguments.write:
        text = json.dumps(document(judged, other), indent=1) + "\n"
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()
