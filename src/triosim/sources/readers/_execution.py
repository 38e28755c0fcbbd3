"""The JSON of PyTorch's ExecutionTraceObserver: calls with exact tensors, without times.

Two layouts exist: flat keys (schema 1.0.1) and values under ``inputs``, ``outputs`` and ``attrs`` (1.0.2 to
1.1.1-chakra); they are told apart by shape, not by version.  Nodes are written when they complete, so their ids give
the order in which they started.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.guarded import INTEGERS
from triosim.operators import argument_names, written_roles
from triosim.sources.readers._arguments import (
    constant,
    on_device,
    schema,
    tensors,
)
from triosim.sources.readers._files import head, parse_json
from triosim.sources.readers._step import Argument
from triosim.sources.readers._tree import CallNode

_ANNOTATION_SCOPE = 7
_ROOT = "[pytorch|profiler|execution_trace|"


def is_execution_trace(path: Path) -> bool:
    """Whether a file is an execution trace, judged by how it starts."""
    start = head(path, 4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start.startswith(b"{") and b'"schema"' in start and b'"nodes"' in start and b'"traceEvents"' not in start


@dataclass(frozen=True)
class Recording:
    """One execution trace.

    Attributes:
        path: the file.
        roots: outermost calls in order, with ``start`` counting calls instead of time.
        functions: calls by record-function id, where ids are not zero.
        schema: the file's own version.
    """

    path: Path
    roots: list[CallNode]
    functions: Mapping[int, CallNode]
    schema: str

    @staticmethod
    def read(path: Path) -> Recording:
        """Parse a file.

        Raises:
            InputError: broken, or with nodes that lack what they must have.
        """
        data = parse_json(path)
        listed = data.get("nodes") if isinstance(data, dict) else None
        if not isinstance(listed, list) or not listed:
            raise InputError(f"{path} has no list of nodes; record the execution trace again")
        nodes: dict[int, CallNode] = {}
        parents: dict[int, int] = {}
        for index, entry in enumerate(listed):
            number, parent, node = _node(path, index, entry)
            if number in nodes:
                raise InputError(f"{path}: two nodes have the id {number}; record the execution trace again")
            nodes[number], parents[number] = node, parent
        roots = _tree(path, nodes, parents)
        functions = {n.function: n for n in nodes.values() if n.function}
        return Recording(path, roots, functions, str(data.get("schema", "")))


def _tree(path: Path, nodes: Mapping[int, CallNode], parents: Mapping[int, int]) -> list[CallNode]:
    """Set parents and children; the outermost calls in order of start.

    A call that an exception leaves is never written (a recomputation ends so), and from then on the observer names
    wrong parents.  Since nodes are numbered when they start and written when they complete, the nesting can then be
    read off that.
    """
    completed = {number: place for place, number in enumerate(nodes)}
    links = [(n, p) for n, p in parents.items() if n != p and not nodes[n].name.startswith(_ROOT)]
    late = [n for n, p in links if p > n]
    if late:
        name, parent = nodes[late[0]].name, parents[late[0]]
        raise InputError(f"{path}: node {late[0]} ({name}) has the parent {parent}, which started after it")
    right = sum(p in completed and completed[p] > completed[n] for n, p in links)
    if 0.5 * len(links) < right < len(links):
        parents = _nesting(nodes, completed)
    roots: list[CallNode] = []
    for number in sorted(nodes):
        node, above = nodes[number], nodes.get(parents[number])
        if node.name.startswith(_ROOT):
            continue
        if above is None or above is node or above.name.startswith(_ROOT):
            roots.append(node)
        else:
            node.parent = above
            above.children.append(node)
    return roots


def _nesting(nodes: Mapping[int, CallNode], completed: Mapping[int, int]) -> dict[int, int]:
    """The parent of each node: the last one on its thread that started before it and completed after it."""
    stacks: dict[Hashable, list[int]] = {}
    found = {}
    for number in sorted(nodes):
        stack = stacks.setdefault(nodes[number].thread, [])
        while stack and completed[stack[-1]] < completed[number]:
            stack.pop()
        found[number] = stack[-1] if stack else number
        if not nodes[number].name.startswith(_ROOT):
            stack.append(number)
    return found


def _node(path: Path, index: int, entry: Any) -> tuple[int, int, CallNode]:
    where = f"{path}: node {index}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError(f"{where} has no name; record the execution trace again")
    values = entry
    if "attrs" in entry:
        values = {a["name"]: a.get("value") for a in _dicts(entry["attrs"]) if isinstance(a.get("name"), str)}
    number = _integer(entry.get("id"), f"{where} ({entry['name']})", "id")
    parent = _integer(entry.get("parent", entry.get("ctrl_deps")), f"{where} ({entry['name']})", "parent")
    name = entry["name"]
    sequence, scope = _optional(values.get("seq_id"), -1), _optional(values.get("scope"), 0)
    node = CallNode(
        name, _optional(values.get("tid"), 0), number, number, annotation=scope == _ANNOTATION_SCOPE,
        sequence=sequence, forward_thread=max(_optional(values.get("fw_tid"), 0), 0),
        function=max(_optional(values.get("rf_id"), 0), 0), shown=True,
    )  # fmt: skip
    text = values.get("op_schema")
    _inputs(node, _io(entry, "input"), text if isinstance(text, str) else "")
    listed, shapes, types = _io(entry, "output")
    for value, shape, kind in zip(listed, shapes, types, strict=True):
        node.results += tensors(value, shape, kind)
    return number, parent, node


def _inputs(node: CallNode, io: tuple[list, list, list[str]], text: str) -> None:
    listed, shapes, types = io
    declared = schema(text)
    names = argument_names(node.name, len(listed))
    unnamed = written_roles(node.name) if not declared else frozenset()
    device = False
    for at, (value, shape, kind) in enumerate(zip(listed, shapes, types, strict=True)):
        role = declared[at].name if at < len(declared) else names[at]
        written = declared[at].written if at < len(declared) else role in unnamed
        found = tensors(value, shape, kind)
        node.arguments += [Argument(role, tensor, written) for tensor in found]
        if found:
            device = device or on_device(value)
        elif "Tensor" not in kind and (fixed := constant(value)) is not None:
            node.args[role] = fixed
    if device and node.name in ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"):
        node.waits = 1


def _io(entry: Mapping[str, Any], side: str) -> tuple[list, list, list[str]]:
    """Values, shapes and types of one side, of equal length, from either layout."""
    block = entry.get(f"{side}s")
    if isinstance(block, dict):
        columns = [block.get("values"), block.get("shapes"), block.get("types")]
    else:
        columns = [block, entry.get(f"{side}_shapes"), entry.get(f"{side}_types")]
    values, shapes, types = (c if isinstance(c, list) else [] for c in columns)
    missing = len(values)
    shapes = (shapes + [None] * missing)[:missing]
    return values, shapes, [str(t) for t in (types + [""] * missing)[:missing]]


def _dicts(value: Any) -> list[dict]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _integer(value: Any, where: str, what: str) -> int:
    if type(value) is not int or value not in INTEGERS:
        raise InputError(f"{where} has the {what} {quoted(value)}, which is not a whole number")
    return value


def _optional(value: Any, default: int) -> int:
    return value if type(value) is int and value in INTEGERS else default
