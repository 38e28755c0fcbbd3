"""Measuring this machine's device: many kernels by themselves, as a trace of operators without a model.

On the CPU the time of a kernel is processor time of one thread (of several that of the clock on the wall), on a GPU
that of its kernels by ``torch.profiler``: the same clocks as those of recorded steps.  Each kernel runs until it is
warm, then several times over several sets of arguments, together larger than the caches where memory allows (a kernel
in a model finds its weights there no sooner); its time is the median.  A kernel that is always the same is measured now
and then: by how much it differs is the drift.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from triosim.core.errors import InputError
from triosim.sources.record import gpu
from triosim.sources.record.cases import LONGEST_S, Case, Rates, SizeDraws, cases
from triosim.sources.record.function import device_name, framework, on_threads
from triosim.sources.record.observer import thread_clock
from triosim.sources.record.signature import arguments, signature
from triosim.sources.runtimes.bench import TOO_MUCH, BenchmarkProgress, KernelBenchmark
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase

SETS_BYTES = 128 * 2**20
"""Bytes of the arguments that a kernel's runs go through in turn, as far as :data:`MOST_SETS` reach."""
MOST_SETS = 8
LARGEST_BYTES = 4 * 2**30
"""Kernels whose arguments are larger are left out."""
SAMPLE_S, FEWEST, MOST, ENOUGH_S = 200e-6, 3, 15, 0.06
"""A sample is as many runs as take so long; there are so many samples of a kernel, fewer once it has taken so long."""
_REFERENCE_EVERY = 20
_MOST_CASES = 700
_WANTED = 450
"""Kernels that a calibration should have, 20 of most classes; where they take too long, shorter ones follow."""
_SHORTER, _SHORTEST_LIMIT_S = 0.7, 1e-3
_GPU_RUNS = 9


class KernelTiming(NamedTuple):
    """Seconds of a kernel, and the device's kernels behind it: names and seconds; none on a CPU."""

    seconds: float
    kernels: list[tuple[str, float]]


def measure(
    device: str,
    budget_s: float,
    progress: Callable[[BenchmarkProgress], None] = lambda progress: None,
    threads: int = 1,
) -> KernelBenchmark:
    """Measure kernels on this machine until the budget is used up.

    Args:
        device: ``"cpu"`` or ``"cuda"`` (ROCm's PyTorch calls its devices so too).
        budget_s: seconds that it may take; a product and a large copy, which describe the device, are always measured.
        progress: called before each kernel.
        threads: of the processor that share a kernel; with several its time is what the clock on the wall says.

    Raises:
        InputError: there is no such device here, or the machine is too busy to measure anything.
    """
    if device not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} cannot be measured: give cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("this PyTorch has no device 'cuda': measure the cpu, or calibrate from a trace of the GPU")
    began = time.monotonic()
    timed: Callable[..., KernelTiming] = _on_cpu if device == "cpu" else _on_gpu
    if device == "cpu" and threads > 1:
        timed = partial(timed, clock=time.perf_counter_ns)
    builder, reference = TraceBuilder(), []
    with on_threads(threads) if device == "cpu" else contextlib.nullcontext(), torch.inference_mode():
        progress(BenchmarkProgress(0.0, budget_s, "a first look at the device"))
        dtypes = element_types(device)
        rates = _rates(device, dtypes, timed)
        always = _product(device, dtypes[0], _side(rates.flop[dtypes[0]]))
        # whoever has little time measures shorter kernels, so that there still are some of each kind
        sizes = SizeDraws(device, rates, longest_s=min(LONGEST_S, max(budget_s / 4000, _SHORTEST_LIMIT_S)))
        for case in (always, _large_copy(device)):
            _measured(case, timed, builder)
        for number, case in enumerate(cases(sizes, dtypes)):
            gone = time.monotonic() - began
            if gone > 0.97 * budget_s or number >= _MOST_CASES:
                break
            if number % _REFERENCE_EVERY == 0:
                reference.append(_run(always, timed).seconds)
                if number and gone / number * _WANTED > budget_s:
                    sizes.longest_s = max(sizes.longest_s * _SHORTER, _SHORTEST_LIMIT_S)
            progress(BenchmarkProgress(gone, budget_s, case.what))
            _measured(case, timed, builder)
        reference.append(_run(always, timed).seconds)
    drift = max(reference) / min(reference) - 1
    if drift > TOO_MUCH:
        raise InputError(
            f"the same kernel took between {min(reference) * 1e3:.3g} and {max(reference) * 1e3:.3g} ms while "
            "measuring: something else uses the machine, measure again when it is idle"
        )
    meta = Meta(
        made_by="triosim.calibrate", workload="micro-benchmarks", device=device_name(device), framework=framework(),
        clock="cpu" if device == "cpu" else "gpu",
    )  # fmt: skip
    return KernelBenchmark(builder.build(meta), drift, _versions(device), threads if device == "cpu" else 0)


def devices_here() -> list[str]:
    """Devices of this machine that can be measured, the fastest first."""
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def element_types(device: str) -> list[torch.dtype]:
    """Element types that the device multiplies natively, the most important first."""
    if device == "cuda":
        return [torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16, torch.float32]
    asked = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    native = any(ask is not None and ask() for ask in asked)
    return [torch.float32, torch.bfloat16] if native else [torch.float32]


def _rates(device: str, dtypes: Sequence[torch.dtype], timed: Callable[..., KernelTiming]) -> Rates:
    side = 512 if device == "cpu" else 4096
    flop = {dtype: 2.0 * side**3 / _run(_product(device, dtype, side), timed).seconds for dtype in dtypes}
    return Rates(flop, 8.0 * _copied(device) / _run(_large_copy(device), timed).seconds)


def _copied(device: str) -> int:
    """Elements of a copy that no cache holds."""
    return 2**23 if device == "cpu" else 2**27


def _large_copy(device: str) -> Case:
    return Case("copy", torch.ops.aten.clone.default, lambda: (torch.zeros(_copied(device), device=device),))


def _side(rate: float) -> int:
    """Side of a square product that takes about two milliseconds."""
    return int(max((2e-3 * rate / 2) ** (1 / 3) // 64, 1)) * 64


def _product(device: str, dtype: torch.dtype, side: int) -> Case:
    def make() -> Sequence[Any]:
        return tuple(torch.randn(side, side, device=device).to(dtype) for _ in range(2))

    return Case("reference", torch.ops.aten.mm.default, make)


def _run(case: Case, timed: Callable[..., KernelTiming]) -> KernelTiming:
    return timed(case.func, [case.make()])


def _measured(case: Case, timed: Callable[..., KernelTiming], builder: TraceBuilder) -> None:
    """Measure one kernel and note it; one that this build of PyTorch or this device cannot run is left out."""
    try:
        first = case.make()
        size = sum(t.nbytes for t in tree_leaves(list(first)) if isinstance(t, Tensor))
        if size > LARGEST_BYTES:
            return
        more = min(max(SETS_BYTES // max(size, 1), 1), MOST_SETS) - 1
        found = timed(case.func, [first, *(case.make() for _ in range(more))])
        _note(case.func, first, found, builder)
    except (RuntimeError, NotImplementedError):  # PyTorch's words for "out of memory" and "not on this device"
        return


def _on_cpu(
    func: Callable[..., Any], sets: Sequence[Sequence[Any]], clock: Callable[[], int] = thread_clock
) -> KernelTiming:
    for given in sets[:2]:
        func(*given)
    began = clock()
    func(*sets[0])
    runs = max(int(SAMPLE_S / max((clock() - began) * 1e-9, 1e-7)), 1)
    samples: list[float] = []
    turn = 0
    while len(samples) < MOST and (len(samples) < FEWEST or sum(samples) * runs < ENOUGH_S):
        began = clock()
        for _ in range(runs):
            func(*sets[turn % len(sets)])
            turn += 1
        samples.append((clock() - began) * 1e-9 / runs)
    return KernelTiming(statistics.median(samples), [])


def _on_gpu(func: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> KernelTiming:
    for _ in range(2):
        for given in sets:
            func(*given)
    profiler = gpu.Profiler()
    profiler.start()
    for turn in range(_GPU_RUNS):
        with gpu.marker(turn):
            func(*sets[turn % len(sets)])
    runs: dict[int, list[tuple[str, float]]] = {}
    for kernel in gpu.join(profiler.stop()).kernels:
        if kernel.operator >= 0 and not kernel.name.startswith(("Memcpy", "Memset")):
            runs.setdefault(kernel.operator, []).append((kernel.name, kernel.seconds))
    if not runs:
        raise RuntimeError("the profiler saw no kernels")
    totals = sorted((sum(seconds for _, seconds in kernels), turn) for turn, kernels in runs.items())
    seconds, turn = totals[len(totals) // 2]
    return KernelTiming(seconds, runs[turn])


def _note(func: Callable[..., Any], given: Sequence[Any], found: KernelTiming, builder: TraceBuilder) -> None:
    """One operator of the trace, as a recorded step would have it."""
    calls: list[tuple[Any, tuple, dict[str, Any], Any]] = []
    with _OperatorLog(calls):
        func(*given)
    overload, args, kwargs, result = calls[-1]
    known = signature(overload)
    said = arguments(known, args, kwargs)
    ids: dict[int, int] = {}

    def value(tensor: Tensor) -> int:
        if id(tensor) not in ids:
            dtype = str(tensor.dtype).removeprefix("torch.")
            ids[id(tensor)] = builder.value(tuple(tensor.shape), dtype, Category.TEMPORARY)
        return ids[id(tensor)]

    inputs = [value(tensor) for tensor in said.reads]
    written = {id(tensor): value(tensor) for tensor in said.writes}
    outputs = [builder.next_version(of) for of in written.values()]
    results = [t for t in tree_leaves(result) if isinstance(t, Tensor) and id(t) not in written]
    outputs += [value(tensor) for tensor in results]
    row = builder.operator(
        known.name, inputs, outputs, roles=said.roles, phase=Phase.FORWARD, args=said.rest, device_s=found.seconds
    )
    for name, seconds in found.kernels:
        builder.kernel(row, name, seconds)


class _OperatorLog(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self, calls: list[tuple[Any, tuple, dict[str, Any], Any]]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def _versions(device: str) -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    if device == "cuda":
        found["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
            with contextlib.suppress(OSError):
                found["driver"] = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
    return found
