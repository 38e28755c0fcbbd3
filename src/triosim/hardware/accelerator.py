"""One accelerator (or CPU) as its datasheet describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from triosim.errors import InputError

_FALLBACK = {  # what runs a type that the datasheet gives no peak for
    "tfloat32": ("float32",), "bfloat16": ("float16", "tfloat32", "float32"), "float16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"), "float8_e5m2": ("float8_e4m3fn", "bfloat16", "float32"),
    "float4_e2m1": ("float8_e4m3fn", "bfloat16", "float32"), "int8": ("bfloat16", "float16", "float32"),
    "float64": ("float32",), "float32": ("tfloat32", "bfloat16"),
}  # fmt: skip


@dataclass(frozen=True)
class Accelerator:
    """A device that runs operators; SI units, dense peaks (no structured sparsity), None where not known.

    Attributes:
        name: catalog name, ``"H100-SXM5-80GB"``; ``""`` for a device that nobody named.
        vendor, kind, architecture: ``"NVIDIA"``, ``"gpu"``, ``"Hopper GH100"``.
        year: of release.
        compute_units: SMs, CUs or cores.
        clock_hz: boost clock.
        peak_flops: FLOP/s by element type (names of :data:`triosim.workload.trace.DTYPES`).
        sparsity_factor: how much faster products are on which the hardware's structured sparsity works; 1 for none.
        memory_bytes, memory_bandwidth: capacity that programs see (the datasheet's where nobody reported it), and bytes
            per second.
        cache_bytes: last-level cache.
        link: name of its scale-up link in the catalog, ``""`` for none.
        link_bandwidth: what it can send over all scale-up links together, bytes per second, as the datasheet has it.
        host_link: name of its link to the host in the catalog.
        tdp_w, idle_w, price_per_hour: power in watts, rent in US dollars.
        confidence: ``"high"``, ``"medium"`` or ``"low"``: how well the figures are known.
        source: where the figures are from.
        notes: what a reader should know.
    """

    name: str
    vendor: str = ""
    kind: str = "gpu"
    architecture: str = ""
    year: int | None = None
    process: str = ""
    compute_units: int | None = None
    clock_hz: float | None = None
    peak_flops: dict[str, float] = field(default_factory=dict)
    sparsity_factor: float = 1.0
    memory_bytes: int | None = None
    memory_type: str = ""
    memory_bandwidth: float | None = None
    cache_bytes: int | None = None
    link: str = ""
    link_bandwidth: float | None = None
    host_link: str = ""
    tdp_w: float | None = None
    idle_w: float | None = None
    price_per_hour: float | None = None
    confidence: str = ""
    source: str = ""
    notes: str = ""

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for an element type, or that of the type that would run it.

        Raises:
            InputError: the device has no peak for anything that could run this type.
        """
        for candidate in (dtype, *_FALLBACK.get(dtype, ("float32",))):
            if candidate in self.peak_flops:
                return self.peak_flops[candidate]
        if self.peak_flops:
            return max(self.peak_flops.values())
        raise InputError(
            f"device {self.name or '(unnamed)'!r} has no compute peak: name a device of the catalog or give peak_flops"
        )

    @property
    def priced(self) -> bool:
        """Whether its datasheet says enough to predict operator times."""
        return bool(self.peak_flops) and self.memory_bandwidth is not None


UNNAMED = Accelerator(name="", notes="a device that nobody named: recorded times are used as they are")
