"""Chakra ``.et`` files: records of a protobuf message each, with its length as a varint before it.

The first record is a ``GlobalMetadata``, every other one a ``Node``.  The message types are described here from the
format's published field numbers, in a descriptor pool of their own, so that a Chakra package that is installed as
well does not clash with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.core.limits import check_memory
from triosim.core.outputs import binary_output
from triosim.interop.chakra.trace import ABSENT, ChakraNodeType, ChakraTrace, ChakraTraceBuilder

VERSION = "0.0.4"
"""Schema version that is written."""

_PACKAGE = "ChakraProtoMsg"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = (
    ("double", "double", 3), ("float", "float", 5), ("int32", "int32", 7), ("int64", "int64", 9),
    ("uint32", "uint32", 11), ("uint64", "uint64", 13), ("sint32", "sint32", 15), ("sint64", "sint64", 17),
    ("fixed32", "fixed32", 19), ("fixed64", "fixed64", 21), ("sfixed32", "sfixed32", 23), ("sfixed64", "sfixed64", 25),
    ("bool", "bool", 27), ("string", "string", 29), ("bytes", "bytes", 31),
)  # fmt: skip
"""Kinds of attribute value: name, protobuf type, number of the scalar field; the list field has the next number."""

_INTEGERS = frozenset(f"{kind}_val" for kind, _, _ in _SCALARS if kind not in ("double", "float", "string", "bytes"))
_COUNTS = {
    "comm_type": "comm", "comm_size": "size", "comm_src": "source", "comm_dst": "target", "comm_tag": "tag",
    "num_ops": "num_ops", "tensor_size": "tensor_size", "stream": "stream", "triosim_duration_ps": "ticks",
}  # fmt: skip
"""Attributes that are whole numbers, and the columns that hold them."""

_CHECKED = 10_000  # nodes
_NODE_BYTES = 1500  # as Python objects until the trace is built, and a task each
_LARGEST_RECORD = 64 << 20
_LARGEST_COUNT = 2**63 - 1


@cache
def _messages() -> dict[str, Any]:
    """Classes of the message types."""
    file = descriptor_pb2.FileDescriptorProto(name="triosim/et_def.proto", package=_PACKAGE, syntax="proto3")
    for kind, scalar, _ in _SCALARS:
        _add(file, f"{kind.capitalize()}List", [("values", scalar, 1, True)])
    attribute = _add(file, "AttributeProto", [("name", "string", 1, False), ("doc_string", "string", 2, False)])
    attribute.oneof_decl.add(name="value")
    for kind, scalar, number in _SCALARS:
        for name, what, at in (
            (f"{kind}_val", scalar, number),
            (f"{kind}_list", f".{_PACKAGE}.{kind.capitalize()}List", number + 1),
        ):
            _field(attribute, name, what, at, False).oneof_index = 0
    _add(file, "GlobalMetadata", [("version", "string", 1, False), ("attr", f".{_PACKAGE}.AttributeProto", 2, True)])
    _add(file, "IOInfo", [(name, "string", at, False) for at, name in enumerate(("values", "shapes", "types"), 1)])
    node = [
        ("id", "uint64", 1, False), ("name", "string", 2, False), ("type", "int32", 3, False),
        ("ctrl_deps", "uint64", 4, True), ("data_deps", "uint64", 5, True), ("start_time_micros", "uint64", 6, False),
        ("duration_micros", "uint64", 7, False), ("inputs", f".{_PACKAGE}.IOInfo", 8, False),
        ("outputs", f".{_PACKAGE}.IOInfo", 9, False), ("attr", f".{_PACKAGE}.AttributeProto", 10, True),
    ]  # fmt: skip
    _add(file, "Node", node)  # its type is an enum, which travels as an int32 does
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node", "AttributeProto")
    }


def _add(file: Any, name: str, fields: list[tuple[str, str, int, bool]]) -> Any:
    message = file.message_type.add(name=name)
    for found in fields:
        _field(message, *found)
    return message


def _field(message: Any, name: str, what: str, number: int, repeated: bool) -> Any:
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if what.startswith("."):
        return message.field.add(name=name, number=number, label=label, type=_FIELD.TYPE_MESSAGE, type_name=what)
    return message.field.add(name=name, number=number, label=label, type=getattr(_FIELD, f"TYPE_{what.upper()}"))


def read(path: str | Path) -> ChakraTrace:
    """One rank's trace, plain or compressed with gzip.

    Raises:
        InputError: the file cannot be read, is cut short or holds something else.
    """
    path = Path(path)
    records = _records(path, guarded.content(path))
    made = _messages()
    first = next(records, None)
    if first is None:
        raise InputError(f"{path} is empty: a Chakra trace begins with a record of metadata")
    guarded.parsed(made["GlobalMetadata"](), first, f"{path}: record 0")
    builder = ChakraTraceBuilder(str(path))
    for number, record in enumerate(records, start=1):
        if number % _CHECKED == 0:
            check_memory(number * _NODE_BYTES, f"{path}: a trace of more than {number:,} nodes", "give a part of it")
        _node(builder, guarded.parsed(made["Node"](), record, f"{path}: record {number}"), path)
    return builder.build()


def _records(path: Path, content: bytes) -> Iterator[bytes]:
    """The bytes of each record."""
    at, end = 0, len(content)
    while at < end:
        length = shift = 0
        while True:
            if at >= end:
                raise InputError(f"{path} ends within a record: it is cut short, copy it again")
            byte = content[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 35:
                raise InputError(f"{path} is no Chakra trace: a record begins with no length")
        if length > _LARGEST_RECORD or at + length > end:
            raise InputError(
                f"{path} ends within a record at byte {at} of {end}: it is cut short, or no Chakra trace (.et)"
            )
        yield content[at : at + length]
        at += length


def _node(builder: ChakraTraceBuilder, node: Any, path: Path) -> None:
    where = f"{path}: node {node.id}"
    try:
        kind = ChakraNodeType(node.type)
    except ValueError:
        raise InputError(f"{where} has the type {node.type}, which Chakra does not know: is it a .et file?") from None
    found: dict[str, Any] = {}
    for attribute in node.attr:
        value = attribute.WhichOneof("value")
        if value is None:
            continue
        if attribute.name in _COUNTS:
            found[_COUNTS[attribute.name]] = _count(attribute, value, where)
        elif attribute.name == "is_cpu_op":
            found["cpu"] = bool(_count(attribute, value, where))
        elif attribute.name == "pg_name":
            found["group"] = str(getattr(attribute, value))
        elif attribute.name in ("involved_dim", "involved_dims"):
            if not value.endswith("_list"):
                raise InputError(f"{where}: {attribute.name} must be a list of booleans")
            found["dims"] = [bool(flag) for flag in getattr(attribute, value).values]
    if node.duration_micros > _LARGEST_COUNT // 10**6:
        raise InputError(f"{where} lasts {node.duration_micros} us, more than can be counted in picoseconds")
    if kind == ChakraNodeType.METADATA:
        _declare(builder, node.inputs.values, where)
    builder.add(
        kind, node.name, number=node.id, before=[*node.data_deps, *node.ctrl_deps], micros=node.duration_micros, **found
    )


def _count(attribute: Any, value: str, where: str) -> int:
    if value not in _INTEGERS:
        raise InputError(f"{where}: {attribute.name} must be a whole number")
    number = int(getattr(attribute, value))
    if not 0 <= number <= _LARGEST_COUNT:
        raise InputError(f"{where}: {attribute.name} is {number}, which makes no sense")
    return number


def _declare(builder: ChakraTraceBuilder, text: str, where: str) -> None:
    """Process groups of PyTorch: a list with one text in it, the JSON of the groups."""
    if not text.strip():
        return
    try:
        inner = guarded.literal(text)
        source = inner[0] if isinstance(inner, list | tuple) and isinstance(inner[0], str) else text
        groups = guarded.parse_json(source, where)
        guarded.check_values(groups, where, finite=True)
        for group in groups:
            builder.groups[str(group["pg_name"])] = tuple(int(rank) for rank in group["ranks"])
    except (ValueError, TypeError, KeyError, IndexError):
        raise InputError(f"{where}: its process groups are not the JSON list that PyTorch writes") from None


def write(trace: ChakraTrace, path: str | Path) -> None:
    """Write one rank's trace; the file takes its name only when everything has been written.

    Raises:
        InputError: the file cannot be written there.
    """
    made = _messages()
    metadata = made["GlobalMetadata"](version=VERSION)
    parts = [_framed(metadata)]
    before, dims = trace.before.lists(), trace.dims.lists()
    ids = trace.id.tolist()
    columns = {name: getattr(trace, column).tolist() for name, column in _COUNTS.items()}
    for row, kind in enumerate(trace.kind.tolist()):
        node = made["Node"](
            id=ids[row], name=trace.name[row], type=kind, duration_micros=int(trace.micros[row]),
            data_deps=[ids[other] for other in before[row]],
        )  # fmt: skip
        node.attr.add(name="is_cpu_op", bool_val=bool(trace.cpu[row]))
        for name, column in columns.items():
            if column[row] != ABSENT:
                node.attr.add(name=name, int64_val=column[row])
        if trace.group[row]:
            node.attr.add(name="pg_name", string_val=trace.group[row])
        if dims[row]:
            node.attr.add(name="involved_dim").bool_list.values.extend(dims[row])
        parts.append(_framed(node))
    with binary_output(path) as file:
        file.write(b"".join(parts))


def _framed(message: Any) -> bytes:
    content = message.SerializeToString(deterministic=True)
    length, prefix = len(content), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + content
