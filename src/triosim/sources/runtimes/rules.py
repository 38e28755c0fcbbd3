"""How a runtime runs networks, beyond its kernels: what it fuses, and whether it runs what nobody reads."""

from __future__ import annotations

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class Fusion:
    """Operators that run as one.

    Attributes:
        operators: names of a chain, each of which reads the one before; what is between is read by no other.
        main: place of the one whose time counts in full.
        share: part of the time of the others that remains; above 1 where what runs instead is slower.
    """

    operators: tuple[str, ...]
    main: int
    share: float


@dataclass(frozen=True)
class RuntimeRules:
    """How a runtime runs networks, beyond its kernels.

    Attributes:
        name, version: of the runtime.
        threads: that share an operator.
        call_s: what a call takes beside its operators.
        fusions: what runs as one.
        unused: whether operators run whose result nobody reads.
    """

    name: str
    version: str = ""
    threads: int = 1
    call_s: float = 0.0
    fusions: tuple[Fusion, ...] = ()
    unused: bool = False
