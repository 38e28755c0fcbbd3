"""Names of operators: one name for what every source calls otherwise, its kind, and the names of its arguments.

Sources name the same operator in many ways: ``aten::conv2d`` (what the user called), ``aten::convolution`` (what was
dispatched), ``autograd::engine::evaluate_function: ConvolutionBackward0`` (what autograd ran).  :func:`canonical`
brings them to one name and tells backward from forward.  :func:`kind` finds the kind whose file lists that name; of a
namespace (``vllm::``) only what a kind says about it counts.  A name that nobody lists is classed by the last whole
word of it that a kind claims (``vllm::cutlass_gemm``), never by a part of a word or of its namespace.
"""

from __future__ import annotations

import functools
import re
from dataclasses import field, replace

from triosim.core.dataclass import dataclass
from triosim.core.registry import Registry
from triosim.operators._kind import Kind

KINDS = Registry("triosim.operators", "triosim.operators", "kind of operator", Kind)
"""Kinds of operators, by the names of their files."""

_AUTOGRAD = re.compile(r"^(?:autograd::engine::evaluate_function:\s*)?(?:autograd::)?([A-Za-z_]\w*?)Backward(\d*)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAMESPACE = re.compile(r"^(?:(?:[A-Za-z_]\w*::)+|(?:aten|prims|torch)\.)")
_DRESS = re.compile(r"^autograd::engine::evaluate_function:\s*")
_AUTOGRAD_ALIASES = {
    "mkl_dnnconvolution": "mkldnn_convolution", "max_pool2_dwith_indices": "max_pool2d_with_indices",
}  # fmt: skip


@functools.lru_cache(maxsize=65536)
def canonical(name: str) -> tuple[str, bool]:
    """The operator's own name without namespace, overload or in-place mark, and whether it is a backward.

    ``"autograd::engine::evaluate_function: ConvolutionBackward0"`` and ``"aten::convolution_backward"`` are both
    ``("convolution", True)``; ``"aten::relu_"`` is ``("relu", False)``.
    """
    match = _AUTOGRAD.match(name.strip())
    if match:
        return _snake(match.group(1)), True
    base = _NAMESPACE.sub("", name.strip())
    base = base.split(".")[0].split("(")[0]
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    for suffix in ("_backward", "_backward_data"):
        if base.endswith(suffix):
            return base[: -len(suffix)], True
    if base.endswith("_forward") and base[: -len("_forward")] in _known().kind:
        base = base[: -len("_forward")]
    return base, False


def _snake(camel: str) -> str:
    camel = re.sub(r"(\d)D(?=[A-Z]|$)", r"\1d", camel)
    parts = [p.lower() for p in _CAMEL.split(camel)]
    text = "_".join(parts)
    text = re.sub(r"_(\d+d)\b", r"\1", text)
    return _AUTOGRAD_ALIASES.get(text, text)


@functools.lru_cache(maxsize=65536)
def kind(name: str) -> str:
    """The kind of the operator of this name, ``"other"`` for a name that no kind lists."""
    known, plain = _known(), name.strip()
    base = canonical(name)[0]
    once = base.removesuffix("_backward").removesuffix("_backward_data")  # the gradient of a gradient
    for form in (plain, plain.rstrip("_"), base, f"_{base}", f"{base}_", base.lstrip("_"), once):
        found = known.kind.get(form)
        if found:
            return found
    whole = (_DRESS.sub("", plain), base)
    for start, title in known.beginning:
        if any(form.startswith(start) for form in whole):
            return title
    words = [match[1] for match in known.words.finditer(base)]
    return known.titles[words[-1]] if words else "other"


def is_backward(name: str) -> bool:
    """Whether the name is that of a backward operator."""
    return canonical(name)[1]


@functools.lru_cache(maxsize=1024)
def kind_named(name: str) -> Kind:
    """The one object of the kind of this name.

    Raises:
        InputError: there is no such kind.
    """
    return KINDS.get(name)()


def in_place(operator: str) -> bool:
    """Whether an operator's name says that it writes to its first argument (``relu_``, ``__iadd__``)."""
    plain = operator.rpartition("::")[2].split(".")[0]
    if plain.startswith("__"):
        return plain.startswith("__i") and plain not in ("__index__", "__invert__")
    return plain.endswith("_")


def reads_result(operator: str, role: str) -> bool:
    """Whether a backward operator reads under this role what its forward operator returned."""
    return kind_named(kind(operator)).reads_result(canonical(operator)[0], role)


def written_roles(operator: str) -> frozenset[str]:
    """Names of the arguments that an operator writes to, as its name says."""
    return kind_named(kind(operator)).written(canonical(operator)[0]) if in_place(operator) else frozenset()


def argument_names(operator: str, count: int) -> tuple[str, ...]:
    """Names of the first ``count`` arguments of an operator whose schema its source does not give."""
    known = _known().arguments
    base, backward = canonical(operator)
    plain = operator.rpartition("::")[2].split(".")[0]
    forms = (operator.strip(), plain, plain.rstrip("_"), *(() if backward else (base,)))
    names = next((known[form] for form in forms if known.get(form)), ())
    names = names or (_DEFAULT_BACKWARD if backward else _DEFAULT)
    return (*names[:count], *("input",) * (count - len(names)))


_DEFAULT = ("self", "other")
_DEFAULT_BACKWARD = ("grad_output", "self", "other")


@dataclass(frozen=True)
class _Known:
    """What the files of the kinds say about names."""

    kind: dict[str, str] = field(default_factory=dict)
    beginning: list[tuple[str, str]] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    words: re.Pattern[str] = re.compile("")
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)


@functools.lru_cache(maxsize=1)
def _known() -> _Known:
    known = _Known()
    for title in KINDS.names():
        kind = kind_named(title)
        for name, arguments in _lines(kind.names):
            if name.endswith("*"):
                known.beginning.append((name[:-1], title))
                continue
            other = known.kind.setdefault(name, title)
            if other != title:
                raise RuntimeError(f"operator {name!r} is of two kinds: {other!r} and {title!r}")
            if arguments:
                known.arguments[name] = arguments
        known.arguments.update((name, arguments) for name, arguments in _lines(kind.gradients) if arguments)
        known.titles.update((word, title) for word in kind.words.split())
    longest_first = "|".join(sorted(known.titles, key=lambda word: (-len(word), word)))
    return replace(known, words=re.compile(rf"(?:^|(?<=_))({longest_first})(?:[123]d)?(?=_|$)"))


def _lines(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every name in a table of names (see :class:`Kind`) with its arguments."""
    found: list[tuple[str, tuple[str, ...]]] = []
    whole: list[str] = []
    rows = [row for row in text.splitlines() if row.strip()]
    indent = min((len(row) - len(row.lstrip()) for row in rows), default=0)
    for row in rows:
        if row[indent].isspace() and whole:  # goes on
            whole[-1] += row
        else:
            whole.append(row)
    for row in whole:
        names, _, arguments = f"{row} ".partition(": ")
        found.extend((name, tuple(arguments.split())) for name in names.split())
    return found
