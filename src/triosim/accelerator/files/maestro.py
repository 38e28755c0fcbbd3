"""MAESTRO's files: hardware (``NumPEs: 256``) and networks of layers with data-centric mappings.

Sizes of the input (Y, X) are taken as they stand, with their padding: 224 rows under a filter of 7 with stride 2 are
109 rows of output, and 230 are 112.
"""

from __future__ import annotations

import re
from pathlib import Path

from triosim.accelerator.datacentric import WINDOWS, Dataflow, DimensionDirective, Hardware
from triosim.accelerator.problem import Problem, convolution, gemm
from triosim.accelerator.reading import LARGEST, Contents, placed
from triosim.core import guarded
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.registry import registered

_HARDWARE = ("NumPEs", "L1Size", "L2Size", "NoC_BW", "NoC_NumHops", "offchip_BW")
_OTHERWISE = {
    "num_pes": "NumPEs", "l1_size_cstr": "L1Size", "l2_size_cstr": "L2Size", "noc_bw_cstr": "NoC_BW",
    "offchip_bw_cstr": "offchip_BW",
}  # fmt: skip
"""Words of the files in MAESTRO's ``data/hw``, by those of its manual."""
_TOKEN = re.compile(r"\s*(?://[^\n]*|/\*.*?\*/)|\s*([A-Za-z_][\w.'-]*|\d{1,18}(?!\d)|/(?!\*)|[{}(),;:*+-])", re.S)
_NAMES = {"K": "M", "C": "C", "R": "R", "S": "S", "N": "N", "Y'": "P", "X'": "Q", "G": "G"}
_TYPES = ("CONV", "DSCONV", "GEMM")


@registered
class Maestro:
    """Hardware and mappings of MAESTRO."""

    def recognises(self, path: Path) -> bool:
        """A ``.m`` with a number of units, or a network of layers."""
        head = guarded.head(path, 1 << 16)
        return path.suffix.lower() == ".m" and bool(re.search(rb"\bNumPEs\b|\bnum_pes\b|\bNetwork\b", head, re.I))

    def read(self, path: Path) -> Contents:
        """Hardware, or layers with their mappings.

        Raises:
            InputError: words that are not known here, or sizes that cannot be used.
        """
        raw = guarded.content(path, packed=False)
        if len(raw) > LARGEST:
            raise InputError(f"{path}: larger than {LARGEST >> 20} MiB: give a part of it")
        text = guarded.text(raw, str(path))
        if re.search(r"\bNetwork\b", text):
            return _Parser(text, str(path)).contents()
        return Contents(hardware=_hardware(text, str(path)))


def _hardware(text: str, where: str) -> Hardware:
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        plain = re.sub(r"//.*", "", line).strip().rstrip(";,")
        if not plain:
            continue
        match = re.fullmatch(r"([\w-]+)\s*:\s*(\d{1,18})", plain)
        if not match:
            raise InputError(f"{where}, line {number}: {quoted(plain)} is not NAME: NUMBER")
        name = _OTHERWISE.get(match[1], match[1])
        if name not in _HARDWARE:
            raise unknown(f"figure in {where}:", match[1], (*_HARDWARE, *_OTHERWISE))
        found[name] = int(match[2])
    if found.get("NumPEs", 0) < 1:
        raise InputError(f"{where}: NumPEs is {found.get('NumPEs', 'missing')}: the least is 1")
    return Hardware(found["NumPEs"], found.get("L1Size"), found.get("L2Size"), found.get("NoC_BW"))


class _Parser:
    """A network, word by word."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.words: list[tuple[str, int]] = []
        at, line, counted = 0, 1, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                if not text[at:].strip():
                    break
                line = text[:at].count("\n") + 1
                raise InputError(f"{where}, line {line}: {quoted(text[at : at + 20].strip())} is not known here")
            if match[1]:
                line += text.count("\n", counted, match.start(1))
                counted = match.start(1)
                self.words.append((match[1], line))
            at = match.end()
        self.at = 0

    def contents(self) -> Contents:
        """All layers of all networks."""
        problems: list[Problem] = []
        dataflows: list[Dataflow] = []
        notes: list[str] = []
        while self.at < len(self.words):
            self.take("Network")
            self.word()
            self.take("{")
            while not self.has("}"):
                self.take("Layer")
                name = self.word()
                with placed(f"{self.where}, layer {name}"):
                    problem, dataflow, note = self.layer(name)
                problems.append(problem)
                dataflows.append(dataflow)
                notes += [note] if note else []
        if not problems:
            raise InputError(f"{self.where}: holds no layer")
        return Contents(problems=tuple(problems), dataflows=tuple(dataflows), notes=tuple(notes))

    def word(self) -> str:
        """The next word."""
        if self.at >= len(self.words):
            raise InputError(f"{self.where}: ends too early: close its braces")
        self.at += 1
        return self.words[self.at - 1][0]

    def has(self, word: str) -> bool:
        """Whether a word comes next, which is then passed."""
        if self.at < len(self.words) and self.words[self.at][0] == word:
            self.at += 1
            return True
        return False

    def take(self, word: str) -> None:
        """The word that has to come."""
        line = self.words[min(self.at, len(self.words) - 1)][1]
        found = self.word()
        if found != word:
            raise InputError(f"{self.where}, line {line}: {quoted(found)} stands where {word} is expected")

    def number(self) -> int:
        """A whole number."""
        line = self.words[min(self.at, len(self.words) - 1)][1]
        word = self.word()
        if not word.isdigit():
            raise InputError(f"{self.where}, line {line}: {quoted(word)} stands where a number is expected")
        return int(word)

    def sizes(self) -> dict[str, int]:
        """``{ K: 64, C: 3 }``."""
        found = {}
        self.take("{")
        while not self.has("}"):
            name = self.word()
            self.take(":")
            found[name] = self.number()
            self.has(",")
        return found

    def layer(self, name: str) -> tuple[Problem, Dataflow, str]:
        """One layer with its mapping."""
        kind, stride, sizes = "CONV", {"Y": 1, "X": 1}, {}
        levels: list[list[DimensionDirective]] | None = None
        clusters: list[int] = []
        self.take("{")
        while not self.has("}"):
            word = self.word()
            if word == "Type":
                self.take(":")
                kind = self.word()
                self.has(";")
            elif word == "Stride":
                stride |= self.sizes()
            elif word == "Dimensions":
                sizes = self.sizes()
            elif word == "Dataflow":
                if not sizes:
                    raise InputError("its Dataflow stands before its Dimensions: turn them round")
                levels, clusters = self.dataflow(sizes)
            else:
                raise InputError(f"{quoted(word)} is not known here: Type, Stride, Dimensions and Dataflow are")
        if kind not in _TYPES:
            raise unknown("type of layer", kind, _TYPES)
        if levels is None:
            raise InputError("has no Dataflow: give one")
        problem, note = _problem(name, kind, sizes, stride)
        for cut in (cut for level in levels for cut in level):
            dimension = WINDOWS[cut.dimension][0] if cut.dimension in WINDOWS else cut.dimension
            if dimension not in problem.dimensions:
                raise unknown("dimension in its Dataflow:", cut.dimension, problem.dimensions)
        dataflow = Dataflow(tuple(map(tuple, levels)), tuple(clusters), (stride["Y"], stride["X"]))
        return problem, dataflow, note

    def dataflow(self, sizes: dict[str, int]) -> tuple[list[list[DimensionDirective]], list[int]]:
        """Directives between braces."""
        levels: list[list[DimensionDirective]] = [[]]
        clusters = []
        self.take("{")
        while not self.has("}"):
            word = self.word()
            self.take("(")
            size = self.size(sizes)
            if size < 1:
                raise InputError(f"a {word} of {size}: the least is 1")
            if word == "Cluster":
                if self.has(","):
                    self.word()
                self.take(")")
                clusters.append(size)
                levels.append([])
            elif word in ("TemporalMap", "SpatialMap"):
                self.take(",")
                self.size(sizes)
                self.take(")")
                dimension = self.word()
                named = dimension if dimension in WINDOWS or "M" in sizes else _NAMES.get(dimension, dimension)
                levels[-1].append(DimensionDirective(named, size, word == "SpatialMap"))
            else:
                raise unknown("directive", word, ("TemporalMap", "SpatialMap", "Cluster"))
            self.has(";")
        return levels, clusters

    def size(self, sizes: dict[str, int]) -> int:
        """A number, or ``Sz(R)``."""
        if not self.has("Sz"):
            return self.number()
        self.take("(")
        name = self.word()
        self.take(")")
        if name not in sizes:
            raise unknown("dimension in Sz:", name, sizes)
        return sizes[name]


def _problem(name: str, kind: str, sizes: dict[str, int], stride: dict[str, int]) -> tuple[Problem, str]:
    needed = ("M", "N", "K") if kind == "GEMM" else ("C", "R", "S", "Y", "X") if kind == "DSCONV" else tuple("KCRSYX")
    for dimension in needed:
        if dimension not in sizes:
            raise InputError(f"has no size of {dimension}: give one")
    small = [i for i in needed if sizes[i] < 1] + [f"the stride of {i}" for i in ("Y", "X") if stride[i] < 1]
    if small:
        raise InputError(f"{small[0]} is below 1: give its size")
    if kind == "GEMM":
        return gemm(name, m=sizes["M"], n=sizes["N"], k=sizes["K"]), ""
    p, q = ((sizes[i] - sizes[f]) // stride[i] + 1 for i, f in (("Y", "R"), ("X", "S")))
    if p < 1 or q < 1:
        raise InputError(
            f"a filter of {sizes['R']} x {sizes['S']} on an input of {sizes['Y']} x {sizes['X']}: give the padded input"
        )
    channels = sizes["C"]
    filters = channels if kind == "DSCONV" else sizes["K"]
    problem = convolution(
        name, n=sizes.get("N", 1), c=channels, m=filters, p=p, q=q, r=sizes["R"], s=sizes["S"],
        stride=(stride["Y"], stride["X"]), groups=channels if kind == "DSCONV" else 1,
    )  # fmt: skip
    padded = sizes["R"] > 1 and (sizes["Y"] - sizes["R"]) % stride["Y"]
    note = f"layer {name}: an input of {sizes['Y']} rows is taken with its padding, which makes {p} rows of output"
    return problem, note if padded else ""
