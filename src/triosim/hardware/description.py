"""Files that describe a machine, TOML or YAML: the ready systems of the catalog and what users write themselves.

A file describes one node; several of them are joined by its ``[scale_out]``.  Either a builder joins the devices::

    name = "two-nodes-of-eight"
    nodes = 2                       # unless --nodes says otherwise; if left out, as many as the plan needs
    [devices]
    model = "H100"                  # a device of the catalog, or a table for one that does not exist yet
    count = 8
    [scale_up]
    topology = "switch"             # any registered topology
    link = "NVLink4"                # of the catalog; or bandwidth = "360 GB/s" and, if known, latency = "1 us"
    [host]
    link = "PCIe5x16"
    [scale_out]
    topology = "switch"
    link = "InfiniBand-NDR"
    nics = 8                        # for each node
    [routing]
    name = "ecmp"                   # any registered routing; "shortest" if left out

or the graph is written out, with ``[[device]]``, ``[[switch]]``, ``[[host]]`` and ``[[link]]`` tables as needed::

    [[device]]
    name = "gpu"                    # gpu0 to gpu3
    count = 4
    model = "H100"
    [[switch]]
    name = "crossbar"
    [[link]]
    from = "gpu0"
    to = "crossbar"
    bandwidth = "450 GB/s"
    latency = "0.3 us"              # of this edge: a way over two links pays both
    both = false                    # one direction only; true if left out

A device that does not exist yet is a table instead of a name, with ``like`` as a start if one comes close::

    [devices.model]
    name = "Dream-1"
    like = "H100"
    peak_flops = { bf16 = "2 PFLOP/s", fp8 = "4 PFLOP/s" }
    memory = "192 GiB"
    memory_bandwidth = "8 TB/s"

Quantities are texts with a unit, or bare numbers in bytes, bytes per second, seconds and FLOP per second.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.core.units import parse_bandwidth, parse_bytes, parse_flops, parse_latency
from triosim.hardware.topology import parse_shape

_ELEMENT_TYPES = {  # how people write them, and the names that traces use
    "fp64": "float64", "fp32": "float32", "tf32": "tfloat32", "fp16": "float16", "bf16": "bfloat16",
    "fp8": "float8_e4m3fn", "fp4": "float4_e2m1", "int8": "int8",
}  # fmt: skip


def _quantity(parse: Any, what: str) -> BeforeValidator:
    def read(value: Any) -> Any:
        if not isinstance(value, str | int | float):
            raise ValueError(f"{what} must be a text with a unit or a number")
        try:
            return parse(value, what)
        except OverflowError:
            raise ValueError(f"{what} is too large") from None

    return BeforeValidator(read)


Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Bandwidth = Annotated[float, _quantity(parse_bandwidth, "bandwidth")]
Seconds = Annotated[float, _quantity(parse_latency, "time")]
Bytes = Annotated[int, _quantity(parse_bytes, "size")]
Flops = Annotated[float, Field(gt=0, allow_inf_nan=False), _quantity(parse_flops, "compute rate")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class _DescriptionTable(BaseModel):
    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, n=1)
                    hint = f"did you mean {quoted(near[0])}?" if near else "known: " + ", ".join(known)
                    raise ValueError(f"unknown key {quoted(key)}: {hint}")
        return data


def _element_type(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    found = _ELEMENT_TYPES.get(name.lower(), name.lower())
    if found not in _ELEMENT_TYPES.values():
        raise ValueError(f"unknown element type {quoted(name)}: known: {', '.join(_ELEMENT_TYPES)}")
    return found


def _file_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


DesignFiles = Annotated[tuple[Name, ...], Field(min_length=1, max_length=64), BeforeValidator(_file_names)]


class DeviceTable(_DescriptionTable):
    """An accelerator; fields as in :class:`triosim.hardware.accelerator.Accelerator`.

    Attributes:
        design: files of a design (:mod:`triosim.hardware.designed`), relative to the file that names them, or the name
            of a ready one; the other keys replace what it says.
        vector_flops: of a design, what is no product.
        pim: memory that computes (:mod:`triosim.hardware.pim`): a file, relative to the one that names it, or the name
            of a ready one.
    """

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """A design without a name is called as its first file."""
        if not isinstance(data, dict) or "name" in data:
            return data
        first = data.get("design")
        first = first[0] if isinstance(first, list) and first else first
        return {**data, "name": Path(first).stem} if isinstance(first, str) and Path(first).stem else data

    @model_validator(mode="after")
    def _whole(self) -> DeviceTable:
        if self.design is not None and self.like is not None:
            raise ValueError("like and design both say what the device is: give one of them")
        if self.vector_flops is not None and self.design is None:
            raise ValueError("vector_flops belongs to a design: give design too, or peak_flops")
        return self

    name: Name
    like: str | None = None
    design: DesignFiles | None = None
    vector_flops: Flops | None = None
    pim: Name | None = None
    vendor: str | None = None
    kind: str | None = None
    architecture: str | None = None
    year: Annotated[int, Field(strict=True)] | None = None
    process: str | None = None
    compute_units: Count | None = None
    clock_hz: Positive | None = None
    peak_flops: dict[Annotated[str, BeforeValidator(_element_type)], Flops] | None = None
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    matrix_types: tuple[Annotated[str, BeforeValidator(_element_type)], ...] | None = None
    sparsity_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    memory: Annotated[Bytes, Field(gt=0)] | None = None
    memory_type: str | None = None
    memory_bandwidth: Bandwidth | None = None
    cache: Bytes | None = None
    link: str | None = None
    link_bandwidth: Bandwidth | None = None
    host_link: str | None = None
    tdp_w: Positive | None = None
    idle_w: Positive | None = None
    price_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    confidence: str | None = None
    source: str | None = None
    notes: str | None = None


def _form(value: Any) -> str:
    if isinstance(value, dict | BaseModel):
        return "<table>"
    return "<list>" if isinstance(value, list | tuple) else "<name>"


Model = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[str, Tag("<list>")] | Annotated[DeviceTable, Tag("<table>")],
    Discriminator(_form),
]


class LinkTable(_DescriptionTable):
    """What one link can do: a link of the catalog, figures, or a link of the catalog with some figures replaced.

    Attributes:
        link: name in the catalog.
        links: how many physical links of that kind are used together.
        bandwidth, latency, overhead: as in :class:`triosim.hardware.system.Link`.  Latency and overhead that are left
            out are those of the link, or else what is usual (:data:`triosim.hardware.wiring.USUAL`).
        source: where the figures are from.
    """

    link: str | None = None
    links: Count | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    overhead: Seconds | None = None
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> LinkTable:
        if self.links and not self.link:
            raise ValueError("links counts physical links of the catalog's kind: give link too")
        return self


class Devices(_DescriptionTable):
    """``[devices]``: alike, named by what they are and numbered."""

    model: Model
    count: Count = 1
    source: str = ""


class DeviceNode(_DescriptionTable):
    """``[[device]]``: one device, or ``count`` of them numbered from 0."""

    name: Name
    model: Model
    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    server: str | int = 0
    source: str = ""


def _shape(value: Any) -> Any:
    return parse_shape(value) if isinstance(value, str) else value


Sides = Annotated[tuple[Count, ...], BeforeValidator(_shape)]
Options = dict[str, str | int | float | bool]


class ScaleUp(LinkTable):
    """``[scale_up]``: how the devices of a node are joined; without link and bandwidth by the devices' own link."""

    topology: str
    shape: Sides | None = None
    options: Options = {}


class SwitchNode(_DescriptionTable):
    """``[[switch]]``."""

    name: Name


class HostTable(LinkTable):
    """``[host]``: the node's host memory.

    Without link and bandwidth the host hangs on the root of the devices' PCIe tree, or else each device has its own
    host link of the catalog.

    Attributes:
        cpu: a CPU of the catalog.
        cores: cores of one server for the processes that drive the devices, all its CPUs together; where there are
            fewer than devices, launching takes longer.
        devices_per_link: how many devices share one link to the host, through a switch.
    """

    cpu: str | None = None
    cores: Count | None = None
    devices_per_link: Count = 1


class HostNode(_DescriptionTable):
    """``[[host]]``: host memory as a node of a written-out graph."""

    name: Name
    server: str | int = 0
    cpu: str | None = None


class ScaleOut(LinkTable):
    """``[scale_out]``: how nodes are joined.

    A NIC is reached over the devices' host link, beside and not through what joins the devices or their host memory.

    Attributes:
        topology: any registered topology, over all NICs of all nodes.
        nics: NICs of one node, each with such a link; one for each device if left out.  Where there are more NICs
            than devices, each device has several together.
    """

    topology: str = "switch"
    shape: Sides | None = None
    options: Options = {}
    nics: Count | None = None


class NvmeTable(_DescriptionTable):
    """``[nvme]``: the NVMe drives of each server, reached through its host memory.

    Attributes:
        drives: how many.
        read, write: bytes per second of one drive, large sequential accesses.
        capacity: bytes of one drive.
        latency: of one access.
        source: where the figures are from.
    """

    drives: Count = 1
    read: Bandwidth
    write: Bandwidth
    capacity: Bytes | None = None
    latency: Seconds | None = None
    source: str = ""


class PoolTable(LinkTable):
    """``[pool]``: a memory pool that every device of every node is linked to."""


class RoutingTable(_DescriptionTable):
    """``[routing]``: how transfers choose their way.

    Attributes:
        name: any registered routing.
        options: of it, by name; a ``table`` is looked for beside the file.
    """

    name: Name
    options: Options = {}


class LinkEdge(LinkTable):
    """``[[link]]``: a link between two nodes of the graph, full duplex unless ``both`` is false."""

    start: str = Field(alias="from")
    end: str = Field(alias="to")
    both: Annotated[bool, Field(strict=True)] = True


HostForm = Annotated[
    Annotated[HostTable, Tag("<table>")]
    | Annotated[list[HostNode], Tag("<list>")]
    | Annotated[HostTable, Tag("<name>")],
    Discriminator(_form),
]


class SystemFile(_DescriptionTable):
    """A whole file."""

    name: Name | None = None
    about: str = ""
    source: str = ""
    confidence: str = ""
    notes: str = ""
    nodes: Count | None = None
    devices: Devices | None = None
    device: list[DeviceNode] = []
    scale_up: ScaleUp | None = None
    switch: list[SwitchNode] = []
    link: list[LinkEdge] = []
    host: HostForm | None = None
    scale_out: ScaleOut | None = None
    nvme: NvmeTable | None = None
    pool: PoolTable | None = None
    routing: RoutingTable | None = None

    @model_validator(mode="after")
    def _whole(self) -> SystemFile:
        if not self.devices and not self.device:
            raise ValueError("there is no device: add a [devices] table or [[device]] tables")
        if self.devices and self.device:
            raise ValueError("[devices] and [[device]] exclude each other: give one of them")
        return self

    @property
    def count(self) -> int:
        """Devices of one node."""
        return self.devices.count if self.devices else sum(entry.count or 1 for entry in self.device)


def read_system(path: Path) -> SystemFile:
    """The description in a file.

    Raises:
        InputError: the file cannot be read or does not describe a system; names file, place and cure.
    """
    made = _validated(SystemFile, read_table(path), str(path))
    update: dict[str, Any] = {}
    if made.devices and isinstance(made.devices.model, DeviceTable):
        update["devices"] = made.devices.model_copy(update={"model": beside(made.devices.model, path.parent)})
    if any(isinstance(one.model, DeviceTable) for one in made.device):
        update["device"] = [
            one.model_copy(update={"model": beside(one.model, path.parent)})
            if isinstance(one.model, DeviceTable) else one
            for one in made.device
        ]  # fmt: skip
    return made.model_copy(update=update) if update else made


def beside(table: DeviceTable, folder: Path) -> DeviceTable:
    """The table with its design's files, and that of its memory, as seen from ``folder``, where they are there."""
    if table.pim is not None and (folder / table.pim).is_file():
        table = table.model_copy(update={"pim": str(folder / table.pim)})
    if table.design is None:
        return table
    return table.model_copy(update={"design": tuple(
        str(folder / name) if (folder / name).is_file() else name for name in table.design
    )})  # fmt: skip


def read_device(path: Path) -> DeviceTable:
    """A file that holds nothing but the table of one accelerator.

    Raises:
        InputError: as :func:`read_system`.
    """
    return beside(_validated(DeviceTable, read_table(path), str(path)), path.parent)


def read_table(path: Path) -> dict[str, Any]:
    """The plain values in a TOML, YAML or JSON file.

    Raises:
        InputError: no such file, not TOML, YAML or JSON, or not a table.
    """
    return guarded.document(path, "a table of keys such as devices, scale_up and host")


T = TypeVar("T", bound=_DescriptionTable)


def _validated(model: type[T], table: dict[str, Any], file: str) -> T:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        place = _place(first["loc"])
        raise InputError(f"{file}: {place + ': ' if place else ''}{_problem(first)}{more}") from None


def _place(loc: tuple[int | str, ...]) -> str:
    """``("link", 2, "from")`` as ``link #3.from``."""
    words: list[str] = []
    for part in loc:
        if isinstance(part, int):
            words[-1] += f" #{part + 1}"
        elif not part.startswith(("<", "[")):  # tags of a form, and pydantic's word for keys
            words.append(part)
    return ".".join(words)


def _problem(error: Any) -> str:
    kind, given = error["type"], error["input"]
    if kind == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    plain = {
        "missing": "is missing",
        "string_type": "must be a text",
        "string_too_short": "must not be empty",
        "bool_type": "must be true or false",
        "int_type": "must be a whole number",
        "list_type": "must be a list of tables",
        "dict_type": "must be a table",
        "model_type": "must be a table",
        "model_attributes_type": "must be a table",
        "greater_than": f"must be above {error.get('ctx', {}).get('gt')}",
        "greater_than_equal": f"must be at least {error.get('ctx', {}).get('ge')}",
        "less_than_equal": f"must be at most {error.get('ctx', {}).get('le')}",
        "finite_number": "must be a finite number",
    }.get(kind)
    if plain is None:
        plain = str(error["msg"])[:1].lower() + str(error["msg"])[1:]
    return plain if kind == "missing" else f"{plain}, got {quoted(given)}"
