"""SCALE-Sim's files: a configuration of an array (``.cfg``), and layers as a table (``.csv``).

A table has a row for each layer: sizes of input and filter, channels, filters and stride of a convolution, or M, N, K
of a matrix product.  The output of a convolution is rounded up, as SCALE-Sim rounds it: where a stride does not divide,
the last window reaches beyond the input.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from triosim.accelerator.problem import Problem, convolution, gemm
from triosim.accelerator.reading import LARGEST, Contents, placed
from triosim.accelerator.systolic import Array
from triosim.core import guarded
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.registry import registered

MOST_CHANNELS = 100_000
"""Of a depth-wise layer."""

_SECTION = "architecture_presets"
_CONVOLUTION = ("ifmapheight", "ifmapwidth", "filterheight", "filterwidth", "channels", "numfilter", "strides")
_PRODUCT = ("m", "n", "k")


@registered
class ScaleSim:
    """Configurations and topologies of SCALE-Sim."""

    def recognises(self, path: Path) -> bool:
        """A ``.cfg`` with architecture presets, or a ``.csv`` with the columns of a topology."""
        suffix = path.suffix.lower()
        head = guarded.head(path, 4096)
        if suffix == ".cfg":
            return f"[{_SECTION}]".encode() in head
        return suffix == ".csv" and _layout(head.decode("utf-8", "replace").split("\n")[0]) is not None

    def read(self, path: Path) -> Contents:
        """An array, or its layers.

        Raises:
            InputError: a value is missing or cannot be used.
        """
        raw = guarded.content(path, packed=False)
        if len(raw) > LARGEST:
            raise InputError(f"{path}: larger than {LARGEST >> 20} MiB: give a part of it")
        text = guarded.text(raw, str(path))
        if path.suffix.lower() == ".cfg":
            return _configuration(text, str(path))
        return Contents(problems=tuple(_layers(text, str(path))))


def _layout(header: str) -> tuple[str, ...] | None:
    """Which columns a header names, after that of the layer; None for another table."""
    names = [re.sub(r"[^a-z]", "", name.lower()) for name in header.split(",")]
    for columns in (_CONVOLUTION, _PRODUCT):
        if [name.rstrip("s") for name in names[1 : 1 + len(columns)]] == [name.rstrip("s") for name in columns]:
            return columns
    return None


def _configuration(text: str, where: str) -> Contents:
    parser = configparser.ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InputError(f"{where}: not a SCALE-Sim configuration: {str(error).splitlines()[0]}") from None
    if _SECTION not in parser:
        raise InputError(f"{where}: has no section [{_SECTION}]: give SCALE-Sim's configuration")
    values = {key.replace("_", "").lower(): value.strip() for key, value in parser[_SECTION].items()}
    notes = []
    if parser.get("sparsity", "SparsitySupport", fallback="false").strip().lower() == "true":
        notes.append(f"{where}: sparsity is not minded for systolic arrays")

    def whole(*names: str) -> int | None:
        for name in names:
            if name in values:
                if not re.fullmatch(r"\d{1,18}", values[name]):
                    raise InputError(f"{where}, {name}: {quoted(values[name])} is no whole number: give one")
                return int(values[name])
        return None

    rows, columns = whole("arrayheight"), whole("arraywidth")
    if rows is None or columns is None:
        missing = "ArrayHeight" if rows is None else "ArrayWidth"
        raise InputError(f"{where}: {missing} is missing: give the size of the array")
    memories = {}
    for key, name in (("ifmap_bytes", "ifmapsramsz"), ("filter_bytes", "filtersramsz"), ("ofmap_bytes", "ofmapsramsz")):
        kibibytes = whole(f"{name}kb", name)
        if kibibytes is not None:
            memories[key] = kibibytes * 1024
    bandwidth = None
    if parser.get("run_presets", "InterfaceBandwidth", fallback="CALC").strip().upper() == "USER":
        given = values.get("bandwidth", "").split(",")[0].strip()
        if not re.fullmatch(r"\d{1,18}(\.\d{1,18})?", given):
            raise InputError(f"{where}, Bandwidth: {quoted(given)} is no number of words a cycle: give one")
        bandwidth = float(given)
    name = parser.get("general", "run_name", fallback=Path(where).stem).strip().strip('"')
    with placed(where):
        array = Array(
            rows, columns, values.get("dataflow", "os").lower(), name, bandwidth=bandwidth, **memories,
        )  # fmt: skip
    return Contents(array=array, notes=tuple(notes))


def _layers(text: str, where: str) -> list[Problem]:
    """The rows of a topology; a row that names a network and nothing else is passed over."""
    lines = text.splitlines()
    columns = _layout(lines[0]) if lines else None
    if columns is None:
        raise unknown(f"columns of {where}:", lines[0] if lines else "", (", ".join(_CONVOLUTION), ", ".join(_PRODUCT)))
    found: list[Problem] = []
    for number, cells in guarded.cells(text, where):
        if number == 1 or not any(cells[1:]):
            continue
        at = f"{where}, line {number}"
        sizes = []
        for column, cell in zip(columns, cells[1:], strict=False):
            if not re.fullmatch(r"\d{1,18}", cell):
                raise InputError(f"{at}, {column}: {quoted(cell)} is no whole number: give one")
            sizes.append(int(cell))
        if len(sizes) < len(columns):
            raise InputError(f"{at}: has {len(sizes)} of {len(columns)} sizes: give all")
        with placed(at):
            found += _layer(cells[0] or f"layer {number}", sizes)
    if not found:
        raise InputError(f"{where}: holds no layer: add a row for each")
    return found


def _layer(name: str, sizes: list[int]) -> list[Problem]:
    """The layer of a row; a depth-wise one, whose name has DP in it, is a layer for each channel."""
    if len(sizes) == len(_PRODUCT):
        m, n, k = sizes
        return [gemm(name, m=m, n=n, k=k)]
    height, width, r, s, channels, filters, stride = sizes
    if stride < 1:
        raise InputError("a stride of 0: the least is 1")
    if r > height or s > width:
        raise InputError(f"a filter of {r} x {s} on an input of {height} x {width}: give the padded input")
    p, q = -(-(height - r + stride) // stride), -(-(width - s + stride) // stride)
    if "DP" not in name:
        return [convolution(name, c=channels, m=filters, p=p, q=q, r=r, s=s, stride=stride)]
    if channels > MOST_CHANNELS:
        raise InputError(f"a depth-wise layer of {channels} channels, each of them a layer: at most {MOST_CHANNELS}")
    names = [f"{name}Channel_{i}" for i in range(channels)]
    return [convolution(each, c=1, m=filters, p=p, q=q, r=r, s=s, stride=stride) for each in names]
