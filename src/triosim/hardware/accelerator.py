"""One accelerator (or CPU) as its datasheet describes it."""

from __future__ import annotations

import re
from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.hardware.pim import PimMemory

MOST_NM = 10_000
"""Feature size of the first processors (Intel 4004, 1971); a larger number is no process."""


@dataclass(frozen=True)
class DeviceDesign:
    """The design that a device is, where nobody has built it (:mod:`triosim.accelerator.designs`).

    Attributes:
        files: paths of its files, a line each.
        digest: SHA-256 of what they hold.
        vector_flops: FLOP/s of what is no product.
        bandwidth_stated: whether the device's memory bandwidth stands in place of the design's.
    """

    files: str
    digest: str
    vector_flops: float
    bandwidth_stated: bool = False


@dataclass(frozen=True)
class Accelerator:
    """A device that runs operators; SI units, dense peaks (no structured sparsity), None where not known.

    Attributes:
        name: catalog name, ``"H100-SXM5-80GB"``; ``""`` for a device that nobody named.
        vendor, kind, architecture: ``"NVIDIA"``, ``"gpu"``, ``"Hopper GH100"``.
        year: of release.
        process: how it was made, ``"TSMC 4N"``; the first number in it is taken for nanometres.
        compute_units: SMs, CUs or cores.
        clock_hz: boost clock.
        peak_flops: FLOP/s by element type (names of :data:`triosim.trace.tables.DTYPES`).
        compute_capability: of an NVIDIA GPU, ``"9.0"``: which instructions it has; ``""`` for others and if not known.
        matrix_types: element types of at most 32 bits that matrix units (tensor cores, matrix cores) multiply; None
            where nobody says, empty where there are no such units.
        sparsity_factor: how much faster products are on which the hardware's structured sparsity works; 1 for none.
        memory_bytes, memory_bandwidth: capacity that programs see (the datasheet's where nobody reported it), and bytes
            per second.
        cache_bytes: last-level cache.
        link: name of its scale-up link in the catalog, ``""`` for none.
        link_bandwidth: what it can send over all scale-up links together, bytes per second, as the datasheet has it.
        links: how many physical scale-up links that are, None where not known.
        host_link: name of its link to the host in the catalog.
        tdp_w, idle_w, price_per_hour: power in watts, rent in US dollars.
        design: where it is one that nobody has built, None for all others.
        pim: memory beside it, or its own, whose banks compute; None for all others.
        power_cap_w, clock_limit_hz: settings, None where nothing holds the device back (:mod:`triosim.hardware.power`).
        slowdown: that it takes as long as others of its kind to compute (:func:`triosim.hardware.stragglers.slowed`).
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
    compute_capability: str = ""
    matrix_types: tuple[str, ...] | None = None
    sparsity_factor: float = 1.0
    memory_bytes: int | None = None
    memory_type: str = ""
    memory_bandwidth: float | None = None
    cache_bytes: int | None = None
    link: str = ""
    link_bandwidth: float | None = None
    links: int | None = None
    host_link: str = ""
    tdp_w: float | None = None
    idle_w: float | None = None
    price_per_hour: float | None = None
    design: DeviceDesign | None = None
    pim: PimMemory | None = None
    power_cap_w: float | None = None
    clock_limit_hz: float | None = None
    slowdown: float = 1.0
    confidence: str = ""
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        nm = self.nm
        if nm is not None and not 1 <= nm <= MOST_NM:
            raise InputError(
                f"device {quoted(self.name)}: process {quoted(self.process)} is not of 1 to {MOST_NM:,} nanometres: "
                "write for example 7 nm, or leave it out"
            )

    @property
    def nm(self) -> float | None:
        """Feature size in nanometres; None where the process does not say."""
        number = re.search(r"\d+", self.process)
        return float(number.group()) if number else None

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s of an element type, as the datasheet has it.

        What multiplies a type that the datasheet does not have is another question
        (:mod:`triosim.kernels.arithmetic`).

        Raises:
            InputError: the datasheet has no rate for this type.
        """
        if dtype in self.peak_flops:
            return self.peak_flops[dtype]
        missing = f"no rate for {dtype}" if self.peak_flops else "no compute peak"
        raise InputError(
            f"device {self.name or '(unnamed)'!r} has {missing}: name a device of the catalog or give peak_flops"
        )

    @property
    def major(self) -> int:
        """First number of the compute capability; 0 where there is none."""
        return int(self.compute_capability.partition(".")[0] or 0)

    @property
    def priced(self) -> bool:
        """Whether its datasheet says enough to predict operator times."""
        return bool(self.peak_flops) and self.memory_bandwidth is not None


UNNAMED = Accelerator(name="", notes="a device that nobody named: recorded times are used as they are")
