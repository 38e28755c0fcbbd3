"""Measured collectives, read from files of the shape of ``nccl.parquet`` or ``measured.csv``.

Bytes are those of the full buffer: ``message_size`` of the first counts elements, ``size_bytes`` of the second bytes.
A point is the median over repeats and library versions; NCCL 2.23 is left out, whose times on the H100 disagree with
all other versions.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from validation import command

from triosim.core.errors import InputError
from triosim.hardware import build, catalog
from triosim.hardware.system import System

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "collectives"

ELEMENT_BYTES = {"half": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float": 4, "fp32": 4, "int8": 1, "fp8": 1}
KINDS = {"alltoall": "all_to_all"}
EXCLUDED = ("2.23",)
SYSTEMS = (
    ("A100", "hgx-a100"), ("A800", "hgx-a800"), ("GH200", "hgx-h100"), ("H100", "hgx-h100"), ("H200", "hgx-h200"),
    ("H800", "hgx-h800"), ("GB200", "gb200-nvl72"), ("GB300", "gb300-nvl72"), ("B200", "hgx-b200"),
    ("B300", "hgx-b300"), ("V100", "dgx-1v"), ("L40S", "pcie-l40s-8"), ("T4", "pcie-t4-4"),
    ("MI300X", "mi300x-8"), ("MI325X", "mi325x-8"), ("MI355X", "mi355x-8"),
)  # fmt: skip
"""What a file calls a GPU, anywhere in the name, and the system of the catalog that stands for its machine."""

OTHER_MACHINES = ("PAIRWISE", "PCIE", "NVL-")
"""Words in the name of a GPU that say that its machine is another than that of :data:`SYSTEMS`."""

PCIE_SERVER, PCIE_DEVICES = "PCIe5x16", 4
"""Machine of GPUs of which the catalog has no system and which have no links of their own: PCIe, four to a switch."""


@dataclass(frozen=True)
class Point:
    """One measured collective.

    Attributes:
        gpu: as the file names it.
        kind: of collective, as the program names it.
        members, servers: of the group.
        bytes: of the full buffer.
        dtype: of its elements, as the file names it.
        seconds: median over the rows.
        source: where the rows are from.
        algorithm: as the file states it, ``"auto"`` where the library chose.
        link: between servers, or ``""``.
    """

    gpu: str
    kind: str
    members: int
    servers: int
    bytes: int
    dtype: str
    seconds: float
    source: str
    algorithm: str = "auto"
    link: str = ""


def read(path: Path) -> list[Point]:
    """Points of a file, by GPU, kind, members and bytes.

    Raises:
        InputError: the file has another shape.
    """
    times: defaultdict[Point, list[float]] = defaultdict(list)
    for point in _parquet(path) if path.suffix == ".parquet" else _csv(path):
        times[replace(point, seconds=0.0)].append(point.seconds)
    found = [replace(point, seconds=median(values)) for point, values in times.items()]
    return sorted(found, key=lambda p: (p.source, p.gpu, p.kind, p.dtype, p.servers, p.members, p.bytes))


@functools.lru_cache(maxsize=32)
def machine(gpu: str, servers: int = 1) -> System:
    """The system of the catalog on which rows of a GPU are predicted.

    Args:
        gpu: as the file names it.
        servers: how many.

    Raises:
        LookupError: there is none.
    """
    name = gpu.upper().replace("_", "-")
    if any(word in name for word in OTHER_MACHINES):
        raise LookupError("no system of the catalog is such a machine")
    ready = next((system for part, system in SYSTEMS if part in name), None)
    if ready is not None:
        return build.load(ready, servers)
    known = next((k for k in (gpu, name, *(name.rsplit("-", n)[0] for n in (1, 2))) if _is_device(k)), None)
    if known is None or servers > 1:
        raise LookupError("no system of the catalog has it")
    try:
        return build.flat(known, 2 * PCIE_DEVICES, "switch")
    except InputError:  # no link of its own, or one that joins only two
        return build.flat(known, 2 * PCIE_DEVICES, "tree", PCIE_SERVER, shape=(2, PCIE_DEVICES))


def _is_device(name: str) -> bool:
    try:
        catalog.accelerator(name)
    except InputError:
        return False
    return True


def _parquet(path: Path) -> Iterator[Point]:
    from pyarrow import ArrowException, parquet

    columns = ("system", "nccl", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error})") from None
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}: give a file of the shape of nccl.parquet")
    for row in table.select(columns).to_pylist():
        version = str(row["nccl"])
        if version.startswith(EXCLUDED):
            continue
        dtype = row["nccl_dtype"]
        if dtype not in ELEMENT_BYTES:
            raise InputError(f"{path}: element type {dtype!r} is not known: use {', '.join(ELEMENT_BYTES)}")
        kind = KINDS.get(row["op_name"], row["op_name"])
        size = int(row["message_size"]) * ELEMENT_BYTES[dtype]
        seconds = row["latency"] * 1e-3
        yield Point(row["system"], kind, int(row["num_gpus"]), 1, size, dtype, seconds, "NCCL table")


def _csv(path: Path) -> Iterator[Point]:
    needed = ("source", "collective", "gpu", "n_gpus", "n_nodes", "size_bytes", "time_us", "dtype", "algorithm")
    for row in command.rows(path, *needed):
        kind = KINDS.get(row["collective"], row["collective"])
        excluded = re.match(r"NCCL (2\.23)", row.get("library") or "")
        if excluded or not row["time_us"] or not row["size_bytes"]:
            continue
        link = row.get("inter_node_link") or ""
        yield Point(
            row["gpu"], kind, int(row["n_gpus"]), int(row["n_nodes"] or 1), int(float(row["size_bytes"])),
            row["dtype"], float(row["time_us"]) * 1e-6, row["source"], row["algorithm"] or "auto",
            "" if link == "n/a" else link,
        )  # fmt: skip
