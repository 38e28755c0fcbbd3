"""What is given damaged input: every reader of a file, plans, the command line, and both engines."""

from __future__ import annotations

import functools
import io
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.fuzz import damage as d
from tests.fuzz.damage import Damage
from triosim.core.errors import InputError
from triosim.fidelity import Fidelity

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "src" / "triosim" / "hardware" / "catalog" / "systems"

Files = Mapping[str, bytes]
"""Name of each file of an input, the first of which is damaged most, and its content."""


@dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
        seeds: sound inputs.
        read: reads the first file of an input in a folder, and uses what it has read.
        damage: what may happen to a file.
    """

    seeds: Callable[[], list[Files]]
    read: Callable[[Path, str], object]
    damage: Mapping[str, Damage]


# --- using what was read ----------------------------------------------------------------------------------------------


def _now_and_then(path: Path, times: int) -> bool:
    """Whether a file is one of every so many: using what was read takes longer than reading it."""
    return zlib.crc32(path.read_bytes()) % times == 0


def _predicted(trace: Any) -> None:
    """A prediction from a trace: what a reader lets through must be good for something, or be refused."""
    import triosim
    from triosim import Plan

    system = triosim.system(device="A100", devices=2)
    result = triosim.simulate(trace, system, Plan(pp=2))
    if not 0 <= result.iteration_time_s < float("inf"):
        raise AssertionError(f"predicted {result.iteration_time_s} s")


def _trace(folder: Path, name: str) -> None:
    from triosim.sources.reading import load

    made = load(folder / name if name else folder)
    if _now_and_then(folder / name if name else folder / "trace.csv", 10):
        _predicted(made)


def _external(folder: Path, name: str) -> None:
    from triosim.kernels.external_times import read

    seconds = read(folder / name).seconds
    if (seconds < 0).any():
        raise AssertionError(f"read {seconds.min()} s")


@functools.cache
def _chain() -> Any:
    from tests.traces import chain

    return chain(layers=4)


def _system(folder: Path, name: str) -> None:
    import triosim
    from triosim import Plan
    from triosim.hardware.build import from_file

    system = from_file(folder / name)
    if system.devices <= 64 and _now_and_then(folder / name, 10):
        triosim.simulate(_chain(), system, Plan(zero=1))


def _device(folder: Path, name: str) -> None:
    import triosim
    from triosim.hardware.build import accelerator, flat

    model = accelerator(folder / name)
    if _now_and_then(folder / name, 10):
        triosim.simulate(triosim.model("gpt2", configuration={"n_layer": 1}), flat(model, 1))


def _model(folder: Path, name: str) -> None:
    import triosim

    triosim.model(str(folder / name))


def _tp_plan(folder: Path, name: str) -> None:
    from triosim import Plan
    from triosim.hardware.description import read_table

    Plan(tp_plan=read_table(folder / name))


def _routes(folder: Path, name: str) -> None:
    import triosim
    from triosim import Plan
    from triosim.hardware.build import from_file

    file = folder / name
    file.write_bytes(file.read_bytes().replace(b"PLACE", str(folder).encode()))
    triosim.simulate(_chain(), from_file(file), Plan(zero=1), Fidelity(host="none"))


def _mapping(folder: Path, name: str) -> None:
    _priced(str(folder / name))


def _priced(operator_times: str) -> None:
    from tests.kernels.example import DEVICE, step
    from triosim.kernels.model import PricingJob
    from triosim.kernels.pricing import price

    trace = step(16, measured=False)
    found = price(PricingJob(trace, DEVICE, trace, None), operator_times)
    if not (found.seconds >= 0).all():
        raise AssertionError(f"priced {found.seconds.min()} s")


def _pack(folder: Path, name: str) -> None:
    from triosim.kernels import pack

    pack.load.cache_clear()
    pack.load(str(folder / name))


def _calibration(folder: Path, name: str) -> None:
    from triosim.kernels.calibration import pack

    pack.load.cache_clear()
    pack.load(str(folder / name))


def _table(folder: Path, name: str) -> None:
    from triosim.kernels.models import table

    getattr(table.load, "cache_clear", int)()
    _priced(str(folder / name))


def _residual(folder: Path, name: str) -> None:
    from triosim.composition import residual

    getattr(residual.load, "cache_clear", int)()
    residual.load(folder / name)


def _iterations(folder: Path, name: str) -> None:
    from triosim.cli.iterations import read

    read(folder / name)


def _astra(folder: Path, name: str) -> None:
    from triosim.interop.astra.play import simulate

    simulate(
        folder / "work", folder / "system.json", folder / "network.yml", comm_group=folder / "groups.json",
        remote_memory=folder / "memory.json",
    ).to_json()  # fmt: skip


# --- sound inputs -----------------------------------------------------------------------------------------------------


@functools.cache
def _kineto() -> list[Files]:
    from tests.sources.readers.profiles import mlp

    made = [mlp(), mlp(optimizer="adam")]
    return [{"profile.json": json.dumps(profile.data()).encode()} for profile in made]


@functools.cache
def _execution() -> list[Files]:
    from tests.sources.readers.executions import step

    return [{"et.json": json.dumps(step(schema).data()).encode()} for schema in ("1.0.1", "1.1.1-chakra.0.0.4")]


@functools.cache
def _csv() -> list[Files]:
    import tempfile

    from tests.sources.readers.test_triosim_csv import folder

    with tempfile.TemporaryDirectory() as place:
        made = folder().write(Path(place) / "a")
        return [{path.name: path.read_bytes() for path in sorted(made.iterdir(), reverse=True)}]


@functools.cache
def _stored() -> list[Files]:
    import tempfile

    import triosim
    from tests.traces import chain

    named = triosim.model("gpt2", configuration={"n_layer": 1}, sequence_length=16)
    found: list[Files] = []
    with tempfile.TemporaryDirectory() as place:
        for trace in (chain(layers=3, optimizer_s=1e-4), named):
            triosim.save(trace, Path(place) / "a.triosim")
            found.append({"a.triosim": (Path(place) / "a.triosim").read_bytes()})
    return found


def _parquet(draw: Random, name: str, raw: bytes) -> bytes:
    """Damage to a member of a stored trace: bytes of it, or a column of its table, or text."""
    if not name.endswith(".parquet"):
        return draw.choice(list(d.TEXT.values()))(draw, raw)
    if draw.random() < 0.2:
        return draw.choice(list(d.BYTES.values()))(draw, raw)
    return _columns(draw, name, raw)


def _columns(draw: Random, name: str, raw: bytes) -> bytes:
    """A table with a column that is not what it was."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not name.endswith(".parquet"):
        return draw.choice([d.numbers, d.types])(draw, raw)
    table = pq.read_table(io.BytesIO(raw))
    at = draw.randrange(table.num_columns)
    field = table.schema.field(at)
    what = draw.randrange(10)
    if what == 0:
        table = table.remove_column(at)
    elif what == 1:
        table = table.rename_columns([f"{n}x" if i == at else n for i, n in enumerate(table.column_names)])
    elif what == 2:
        table = table.slice(draw.randrange(table.num_rows + 1))
    elif what == 3:
        table = pa.concat_tables([table] * draw.choice([2, 3]))
    elif what == 4:
        table = table.set_column(at, field.name, pa.nulls(table.num_rows, field.type))
    elif what == 5:
        other = draw.choice([pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.list_(pa.int32()), pa.binary()])
        table = table.set_column(at, field.name, pa.nulls(table.num_rows, other))
    else:
        try:
            values = pa.array(d.column(draw, table.column(at).to_pylist()), field.type)
        except (pa.ArrowInvalid, OverflowError):
            return d.octets(draw, raw)
        table = table.set_column(at, field.name, values)
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


SYSTEMS = ("dgx-h100", "pcie-a40-2", "tpu-v5e-16", "mi300x-8", "hgx-a100-4", "cpu-2s", "pcie-t4-4")


@functools.cache
def _systems() -> list[Files]:
    found: list[Files] = [{"s.toml": (CATALOG / f"{name}.toml").read_bytes()} for name in SYSTEMS]
    found.append({"s.toml": (ROOT / "tests" / "golden" / "mixed.toml").read_bytes()})
    table = {
        "name": "own", "devices": {"model": "A100", "count": 4}, "scale_up": {"topology": "torus", "shape": "2x2",
        "bandwidth": "50 GB/s", "latency": "2 us"}, "scale_out": {"topology": "ring", "bandwidth": "100 Gb/s",
        "latency": "5us", "nics": 2}, "host": {"cores": 32, "bandwidth": "20 GB/s"}, "nodes": 2,
    }  # fmt: skip
    found.append({"s.yaml": yaml.safe_dump(table).encode()})
    graph = (
        b'name = "g"\n[[device]]\nname = "gpu"\ncount = 3\nmodel = "V100"\n[[switch]]\nname = "x"\n[[link]]\n'
        b'from = "gpu0"\nto = "x"\nbandwidth = "25 GB/s"\nlatency = "1 us"\n[[link]]\nfrom = "gpu1"\nto = "x"\n'
        b'link = "NVLink2"\nlinks = 2\n[[link]]\nfrom = "x"\nto = "gpu2"\nlink = "PCIe3x16"\n'
    )
    return [*found, {"s.toml": graph}]


@functools.cache
def _devices() -> list[Files]:
    own = (
        b'name = "Mine"\nlike = "H100"\nmemory = "100 GiB"\nmemory_bandwidth = "3 TB/s"\nlink_bandwidth = "100 GB/s"\n'
        b"compute_units = 100\nclock_hz = 1.5e9\ntdp_w = 500\npeak_flops = { float32 = 6e13, bfloat16 = 9e14 }\n"
    )
    return [{"d.toml": (ROOT / "examples" / "next-device.toml").read_bytes()}, {"d.toml": own}]


@functools.cache
def _models() -> list[Files]:
    hugging = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "hidden_act": "silu",
        "tie_word_embeddings": True, "rope_theta": 1e4, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return [
        {"config.json": json.dumps(hugging).encode()},
        {"m.toml": b'preset = "gpt2"\nn_layer = 1\nn_embd = 48\nn_head = 4\n'},
        {"m.yaml": b"preset: resnet18\nlayers: [1, 1, 1, 1]\nnum_classes: 10\n"},
        {"m.toml": b'family = "vgg"\nlayers = [1, 1, 1, 1, 1]\nnum_classes = 10\n'},
        {"m.toml": b'preset = "densenet121"\nblock_config = [1, 2]\ngrowth_rate = 4\n'},
        {"m.json": b'{"preset": "bert-base", "num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 4}'},
    ]


@functools.cache
def _designs() -> list[Files]:
    data, presets = ROOT / "tests" / "accelerator" / "data", ROOT / "src" / "triosim" / "accelerator" / "presets"
    paths = [p for p in (*sorted(data.iterdir()), *sorted(presets.glob("*.toml"))) if p.is_file()]
    return [{path.name: path.read_bytes()} for path in paths]


def _design(folder: Path, name: str) -> None:
    from triosim.accelerator.reading import read

    read([folder / name])


def _requests_in(text: str) -> Callable[[], list[Files]]:
    return lambda: [{"r": text.encode()}]


def _requests(folder: Path, name: str) -> None:
    from triosim.serving.request_files import load_requests

    load_requests(folder / name)


@functools.cache
def _tp_plans() -> list[Files]:
    raw = (ROOT / "tests" / "golden" / "tp_plan.toml").read_bytes()
    return [{"p.toml": raw}, {"p.json": b'{"layer0": "colwise", "layer*": "rowwise", "x": "vocab"}'}]


@functools.cache
def _routed() -> list[Files]:
    system = (
        b'name = "g"\n[[device]]\nname = "gpu"\ncount = 2\nmodel = "V100"\n[[switch]]\nname = "x"\n[[link]]\n'
        b'from = "gpu0"\nto = "x"\nbandwidth = "25 GB/s"\n[[link]]\nfrom = "gpu1"\nto = "x"\nbandwidth = "25 GB/s"\n'
        b'[routing]\nname = "static"\noptions = { table = "PLACE/routes.toml" }\n'
    )
    routes = b'[[route]]\nfrom = "gpu0"\nto = "gpu1"\nvia = ["x"]\nboth = true\n'
    return [{"s.toml": system, "routes.toml": routes}]


@functools.cache
def _mappings() -> list[Files]:
    from tests.kernels.external.samples import ACCEL_SIM

    mapping = b'times = "t.txt"\nclock = "1.4GHz"\n[operators]\n"aten::linear" = 0\n"aten::relu" = [1, "_Z4gemmPf"]\n'
    return [{"m.toml": mapping, "t.txt": ACCEL_SIM.encode()}]


@functools.cache
def _packs() -> list[Files]:
    from triosim.kernels.pack import DEFAULT

    return [{"p.json": (ROOT / "src" / "triosim" / "kernels" / "data" / f"{DEFAULT}.json").read_bytes()}]


@functools.cache
def _calibrations() -> list[Files]:
    from tests.kernels.calibration.example import pack
    from triosim.kernels.calibration.pack import text

    return [{"c.json": text(pack(6)).encode()}]


@functools.cache
def _tables() -> list[Files]:
    from triosim.kernels.models.table import SCHEMA

    axes = {"m": [8, 8, 32, 32], "n": [4096] * 4, "k": [512, 2048, 512, 2048]}
    tables = [
        {"kind": "matrix", "dtype": "float32", "axes": axes, "seconds": [1e-5, 4e-5, 4e-5, 16e-5]},
        {"kind": "elementwise", "axes": {"bytes": [1e6, 4e6]}, "seconds": [2e-6, 8e-6]},
    ]
    made = {"schema": SCHEMA, "name": "mine", "device": "Example", "tables": tables}
    return [{"k.json": json.dumps(made).encode()}]


@functools.cache
def _residuals() -> list[Files]:
    from triosim.composition.residual import CalibratedOverhead, Coefficients, JobSizes, document

    terms = Coefficients(issue_s=60e-6, send_s=2e-3, gap_s=5e-6, fixed_s=4e-3, collective_s=30e-6, scale=0.9)
    made = CalibratedOverhead(terms, 0.2, JobSizes(0.01, 10, 0), JobSizes(1.0, 1000, 50), rows=60, error=0.07)
    return [{"r.json": json.dumps(document(made)).encode()}]


def _measured() -> list[Files]:
    rows = "resnet18,2,A100,2,2,1,12 ms\nresnet18,4,A100,2,1,2,20 ms\n"
    return [{"i.csv": ("workload,batch-size,device,devices,dp,pp,seconds\n" + rows).encode()}]


@functools.cache
def _astra_files() -> list[Files]:
    import tempfile

    from tests.interop.files import SWITCH_400, VALIDATED, save
    from triosim.interop.chakra.trace import ChakraNodeType, ChakraTraceBuilder, Comm

    def trace(rank: int) -> Any:
        b = ChakraTraceBuilder()
        first = b.add(ChakraNodeType.COMP, "a", micros=5)
        second = b.add(ChakraNodeType.COMM_COLL, "c", comm=int(Comm.ALL_REDUCE), size=1 << 16, before=[first])
        kind, peer = (ChakraNodeType.COMM_SEND, (0, 1)) if rank == 0 else (ChakraNodeType.COMM_RECV, (0, 1))
        b.add(kind, "p", size=1 << 10, tag=1, before=[second], source=peer[0], target=peer[1])
        return b.build()

    network = {**SWITCH_400, "npus_count": [2]}
    with tempfile.TemporaryDirectory() as place:
        save(Path(place), [trace(rank) for rank in range(2)], VALIDATED, network)
        files = {path.name: path.read_bytes() for path in sorted(Path(place).iterdir())}
    files["groups.json"] = b'{"1": [0, 1]}'
    memory = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 100, "remote-mem-bw": 50}
    files["memory.json"] = json.dumps(memory).encode()
    return [files]


def _of(first: str, files: Callable[[], list[Files]]) -> Callable[[], list[Files]]:
    """The same files, another of which is the first."""
    return lambda: [{first: some[first], **some} for some in files()]


def _chakra(draw: Random, raw: bytes) -> bytes:
    """A field of a record is another, and the records are sound."""
    from google.protobuf.message import DecodeError

    from triosim.interop.chakra import file as chakra

    made = chakra._messages()
    node = made["Node"]()
    try:
        records = list(chakra._records(Path("et"), raw))
        at = draw.randrange(1, len(records))
        node.ParseFromString(records[at])
    except (InputError, DecodeError, ValueError):  # damaged already
        return d.octets(draw, raw)
    whole = [0, 1, 2, 3, 5, 7, 8, 99, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
    name = draw.choice(["id", "type", "ctrl_deps", "data_deps", "duration_micros", "attr", "attr", "attr", "name"])
    if name == "attr" and node.attr:
        attr = draw.choice(list(node.attr))
        kind = attr.WhichOneof("value")
        other = draw.choice(["uint64_val", "int64_val", "double_val", "string_val", "bool_val", "int32_val"])
        chosen = kind if kind and kind.endswith("_val") and draw.random() < 0.6 else other
        value: Any = draw.choice(whole)
        if "string" in chosen:
            value = draw.choice(["", "x", "9" * 5000, "nan", "[1]", "1"])
        elif "double" in chosen or "float" in chosen:
            value = draw.choice([float("nan"), float("inf"), -1.0, 1e300, 0.5])
        elif "bool" in chosen:
            value = draw.random() < 0.5
        elif chosen.startswith(("int", "sint")):
            value = draw.choice([-1, -(2**31), 0, 1, 2**31 - 1])
        elif "32" in chosen:
            value = value % 2**32
        setattr(attr, chosen, value)
        if draw.random() < 0.2:
            attr.name = draw.choice(["comm_type", "comm_size", "num_ops", "tensor_size", "comm_src", "comm_dst", "x"])
    elif name in ("ctrl_deps", "data_deps"):
        getattr(node, name).append(draw.choice([node.id, *whole]))
    elif name == "type":
        node.type = draw.choice([-1, *range(9), 2**31 - 1])
    elif name == "name":
        node.name = draw.choice(["", "x" * 5000, "\x1b[31m", "[red]"])
    else:
        setattr(node, name if name != "attr" else "id", draw.choice(whole))
    records[at] = node.SerializeToString()

    def framed(record: bytes) -> bytes:
        size, out = len(record), b""
        while size > 127:
            out += bytes([size & 127 | 128])
            size >>= 7
        return out + bytes([size]) + record

    return b"".join(map(framed, records))


# --- memory that computes ---------------------------------------------------------------------------------------------


def _pim_files() -> list[Files]:
    folder = ROOT / "src" / "triosim" / "hardware" / "pim_memories"
    return [{"memory.toml": path.read_bytes()} for path in sorted(folder.glob("*.toml"))]


def _pim(folder: Path, name: str) -> object:
    from triosim.hardware.pim import PimMemory, pim_memory

    found: PimMemory = pim_memory.__wrapped__(str(folder / name))
    return found.bandwidth, found.flops


# --- networks ---------------------------------------------------------------------------------------------------------


def _networks() -> list[Files]:
    from tests.sources.readers.test_networks import mobile

    return [{"net.json": json.dumps(mobile()).encode()}]


def _onnx() -> list[Files]:
    from tempfile import TemporaryDirectory

    from tests.sources.readers.test_networks import small

    with TemporaryDirectory() as folder:
        return [{"net.onnx": small(Path(folder), opset=opset).read_bytes()} for opset in (11, 17)]


_CELL = "|{}~0|+|{}~0|skip~1|"


def _few_tables() -> list[Files]:
    cells = "".join(
        f"{_CELL.format(a, b)},{1 + len(a)}.5\n" for a in ("conv", "none") for b in ("conv", "pool", "none")
    )
    return [{"few.csv": f"arch,ms\n{cells}".encode()}, {"few.csv": b"arch,ms\na|b,1\nb|b,2\na|a,1\nb|a,2\n"}]


def _few_table(folder: Path, name: str) -> object:
    from triosim.kernels.few_shot import device, tables

    path = folder / name
    found = device.learn("fuzzed", tables.samples(path), None, str(path))
    return found.predict(tables.networks(path), str(path))


def _few_packs() -> list[Files]:
    from triosim.kernels.few_shot.device import NetworkSample, learn
    from triosim.kernels.few_shot.pack import FewShotPack, text

    samples = [NetworkSample(f"{a}|{b}", 1.0 + len(a)) for a in ("a", "bb") for b in ("a", "bb")]
    return [{"few.json": text(FewShotPack(learn("fuzzed", samples, None, "seed"))).encode()}]


def _few_pack(folder: Path, name: str) -> object:
    from triosim.kernels.few_shot.pack import load

    return load(folder / name).device.predict(["a|bb", "bb|c"], "fuzzed")


# --- all of them ------------------------------------------------------------------------------------------------------

_STORED: dict[str, Damage] = {
    **d.BYTES, "container": d.container, "members": d.zipped(_parquet), "columns": d.zipped(_columns),
}  # fmt: skip


def readers() -> dict[str, Reader]:
    """Every reader by name; those of traces, requests and external times are what their registries hold."""
    from tests.kernels.external import samples
    from tests.serving.test_traffic import FORMATS
    from triosim.kernels.external_times import READERS as EXTERNAL
    from triosim.serving.request_files import READERS as REQUESTS
    from triosim.sources.reading import READERS as TRACES

    traces: dict[str, Callable[[], list[Files]]] = {
        "kineto": _kineto, "execution-trace": _execution, "triosim-csv": _csv, "nn-meter": _networks, "onnx": _onnx,
    }  # fmt: skip
    there = [name for name in TRACES.names() if name != "onnx" or find_spec("onnx")]
    more = {"nsight-systems": [samples.NSYS_TRACE], "nsight-compute": [samples.NCU_DETAILS]}
    found = {
        name: Reader(traces[name], _folder if name == "triosim-csv" else _trace, d.BYTES if name == "onnx" else d.TEXT)
        for name in there
    }
    found["stored"] = Reader(_stored, _trace, _STORED)
    for name in EXTERNAL.names():
        texts = [samples.ALL[name], *more.get(name, [])]
        found[name] = Reader(lambda texts=texts: [{"t.out": t.encode()} for t in texts], _external, d.TEXT)
    for name, seeds, read in (
        ("system", _systems, _system), ("device", _devices, _device), ("model", _models, _model),
        ("tp-plan", _tp_plans, _tp_plan), ("routes", _of("routes.toml", _routed), _routes_of),
        ("external-mapping", _mappings, _mapping), ("pack", _packs, _pack),
        ("calibration", _calibrations, _calibration),
        ("design", _designs, _design), ("kernel-table", _tables, _table),
        ("pim", _pim_files, _pim),
        ("few-shot", _few_packs, _few_pack), ("networks", _few_tables, _few_table),
        ("residual", _residuals, _residual), ("iterations", _measured, _iterations),
        ("astra-network", _of("network.yml", _astra_files), _astra),
        ("astra-groups", _of("groups.json", _astra_files), _astra),
        ("astra-system", _of("system.json", _astra_files), _astra),
        ("astra-memory", _of("memory.json", _astra_files), _astra),
    ):  # fmt: skip
        found[name] = Reader(seeds, read, d.TEXT)
    for name in REQUESTS.names():
        found[f"requests-{name}"] = Reader(_requests_in(FORMATS[name]), _requests, d.TEXT)
    found["chakra"] = Reader(_of("work.0.et", _astra_files), _astra, {**d.BYTES, "fields": _chakra})
    return found


def _folder(folder: Path, name: str) -> None:
    _trace(folder, "")


def _routes_of(folder: Path, name: str) -> None:
    _routes(folder, "s.toml")
