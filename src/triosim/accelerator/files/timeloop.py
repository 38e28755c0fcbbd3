"""Timeloop's YAML, versions 0.3 and 0.4: architecture, problem, mapping, constraints, sparsity, ERT and ART.

Version 0.4 lists nodes from the outside in, and a ``!Container`` with ``spatial`` opens a fan-out.  Version 0.3 nests
``subtree`` and ``local``, counts instances in names (``PE[0..167]``) and hangs the loops over instances on the store
above them.  Energies are pJ, areas square micrometres.

Templates and expressions would have to be run, so that they are refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triosim.accelerator.architecture import (
    ACTIONS,
    DRAMS,
    Architecture,
    Compute,
    Energies,
    FanOut,
    Store,
    check_energies,
)
from triosim.accelerator.directives import Directive, Directives, factors, permutation
from triosim.accelerator.problem import Axis, Operand, Problem
from triosim.accelerator.reading import LARGEST, Contents, placed
from triosim.accelerator.representation import FORMATS, RepresentationFormat
from triosim.accelerator.sparse import ActionOptimization, Sparse
from triosim.core import guarded
from triosim.core.errors import InputError, check_spelling, quoted, unknown
from triosim.core.guarded_yaml import TAG
from triosim.core.registry import registered

_TAGS = tuple(f"!{tag}" for tag in (
    "Architecture", "Hierarchical", "Parallel", "Pipelined", "Container", "Component", "Element", "Nothing", "Top",
))  # fmt: skip
_TOP = re.compile(
    rb"^(architecture|problem|mapping|(?:ERT|ART)(?:_summary)?|sparse_optimizations|constraints|architecture_constraints|"
    rb"mapspace_constraints|mapspace|arch|prob|variables|compound_components|mapper|globals)\s*:", re.M,
)  # fmt: skip
_TEMPLATES = (".jinja2", ".jinja", ".j2")
_PJ, _SQUARE_MICROMETRE = 1e-12, 1e-12
_COUNTED = re.compile(r"(?P<name>[^\[(]+)[\[(](?:(?P<first>\d{1,18})\.\.)?(?P<last>\d{1,18})[\])]\s*")
_PATH = re.compile(
    r"(?P<top>[^\[\].]+)(?:\[[^\]]*\])?\.(?:[^\[\].]+(?:\[[^\]]*\])?\.)*(?P<last>[^\[\].]+(?:\[[^\]]*\])?)"
)
"""``"system.PE[0..167].spad[1..168]"``: where a component stands, and what it is called."""
_COUNTS = re.compile(r"\[[^][]*\]|\([^()]*\)")
_COMPUTES = ("compute", "mac", "lmac", "intmac", "fpmac", "intmultiplier", "simplemult")
_STORES = ("storage", "dram", "sram", "regfile", "smartbuffer", "buffet", "reg_storage", "dummy", "buffer", "memory")
_FREE = {  # actions that no rule counts: they may stand in a table as long as they cost nothing
    "gated_read", "gated_write", "gated_update", "skipped_read", "skipped_write", "skipped_update", "gated_compute",
    "skipped_compute", "gated_metadata_read", "gated_metadata_write", "gated_metadata_update", "decompress", "compress",
    "idle", "fill", "temporal_reduction", "address_generation", "addr_gen", "transfer_random", "transfer", "mac_random",
    "mac_reused", "mac_gated", "skip",
}  # fmt: skip
_PASSED_OVER = {
    "variables", "components", "compound_components", "mapper", "globals", "version", "dumped_by_timeloop_front_end",
    "include", "model", "simulator", "processed",
}  # fmt: skip
_OTHER_SIZES = {"H", "W", "Hpad", "Wpad", "densities", "commonDensity"}
_KINDS = {"temporal": "temporal", "spatial": "spatial", "dataspace": "keep", "datatype": "keep", "bypass": "keep",
          "bypassing": "keep"}  # fmt: skip


@registered
class Timeloop:
    """Timeloop's YAML files."""

    def recognises(self, path: Path) -> bool:
        """YAML with one of the sections of Timeloop, or a template of it."""
        if path.suffix.lower() in _TEMPLATES:
            return True
        if path.suffix.lower() not in (".yaml", ".yml"):
            return False
        return bool(_TOP.search(guarded.head(path, LARGEST)))

    def read(self, path: Path) -> Contents:
        """All sections of a file.

        Raises:
            InputError: broken YAML, a template or an expression, or a section that cannot be used.
        """
        raw = guarded.content(path, packed=False)
        if path.suffix.lower() in _TEMPLATES:
            raise InputError(
                f"{path} is a Jinja template, which is not run: give the file that Timeloop's front end makes of it, "
                "as parsed-processed-input.yaml"
            )
        if len(raw) <= LARGEST and (match := re.search(rb"\{\{|\{%|!include\w*", raw)):
            line = raw[: match.start()].count(b"\n") + 1
            what = "an include" if match[0].startswith(b"!") else "a Jinja template"
            raise InputError(
                f"{path}, line {line}: {quoted(match[0].decode())} is {what}, which is not run: give the file that "
                "Timeloop's front end makes of it"
            )
        where = str(path)
        document = _unfolded(guarded.document(path, tags=_TAGS, largest=LARGEST), where)
        found = Contents()
        for key, value in document.items():
            part = _section(key, value, where)
            found = found.joined(part, where)
        return found


_MERGE = "<<<"
"""Key under which Timeloop's front end merges tables into the one around it, to the bottom; what stands there wins."""


def _unfolded(value: Any, where: str) -> Any:
    """Values with the tables under ``<<<`` merged into those around them."""
    if isinstance(value, list):
        return [_unfolded(one, where) for one in value]
    if not isinstance(value, dict):
        return value
    if not any(isinstance(one, dict | list) for one in value.values()):
        return value
    own = {key: _unfolded(one, where) for key, one in value.items() if key != _MERGE}
    given = value.get(_MERGE, [])
    for table in given if isinstance(given, list) else [given]:  # the first goes first
        own = _over(_table(_unfolded(table, where), f"{where}, {_MERGE}"), own)
    return own


def _over(under: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A table with another laid over it, and so its tables."""
    found = dict(under)
    for key, value in above.items():
        below = found.get(key)
        found[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def _section(key: str, value: Any, where: str) -> Contents:
    at = f"{where}, {key}"
    if key in ("architecture", "arch"):
        return _architecture(_table(value, at), at)
    if key in ("problem", "prob"):
        return Contents(problems=(_problem(_table(value, at), at),))
    if key == "mapping":
        mapped = Directives(tuple(_directives(value or [], at)))
        return Contents(mapping=mapped if mapped.rows else None)  # the front end writes an empty list where none is
    if key in ("constraints", "architecture_constraints", "mapspace_constraints", "mapspace"):
        rows = value.get("targets", value.get("constraints", [])) if isinstance(value, dict) else value
        if isinstance(rows, str):
            raise InputError(f"{at}: constraints {quoted(rows)} are built into Timeloop: write them out as targets")
        return Contents(constraints=Directives(tuple(_directives(rows or [], at))))
    if key == "sparse_optimizations":
        rows = value.get("targets", []) if isinstance(value, dict) else value
        return Contents(sparse=_sparse(rows, at))
    if key in ("ERT", "ERT_summary"):
        return Contents(energies=tuple(_energies(_table(value, at), at)))
    if key in ("ART", "ART_summary"):
        return Contents(areas=tuple(_areas(_table(value, at), at)))
    if key in _PASSED_OVER:
        return Contents(notes=(f"{where}: section {key} is not used",))
    known = ("architecture", "problem", "mapping", "constraints", "sparse_optimizations", "ERT", "ART")
    raise unknown(f"section in {where}:", key, known)


# --- values -----------------------------------------------------------------------------------------------------------


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be a table of keys, not {quoted(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list, not {quoted(value)}")
    return value


def _attributes(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return _table(row.get("attributes") or {}, f"{where}, attributes")


def _number(value: Any, where: str) -> float:
    """A number; what a front end would compute is refused by name."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {quoted(value)} is no number: give one")
    if isinstance(value, str):
        raise InputError(f"{where}: {quoted(value)} is an expression, which is not run: write the number that it makes")
    return value


def _whole(value: Any, where: str) -> int:
    number = _number(value, where)
    if not math.isfinite(number) or number != int(number):
        raise InputError(f"{where}: {quoted(value)} is no whole number: give one")
    return int(number)


def _key(table: Mapping[str, Any], *names: str) -> Any:
    """The value under one of several spellings, in which ``_`` and ``-`` are the same; None where there is none."""
    plain = {key.replace("-", "_"): value for key, value in table.items()}
    return next((plain[name] for name in names if plain.get(name) is not None), None)


def _name(row: Mapping[str, Any], where: str) -> str:
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: {quoted(name)} is no name: give one")
    return name


# --- architecture -----------------------------------------------------------------------------------------------------


def _architecture(section: dict[str, Any], where: str) -> Contents:
    version = str(section.get("version", "0.3" if "subtree" in section else "0.4"))
    if version.strip() not in ("0.2", "0.3", "0.4"):
        raise InputError(f"{where}: version {quoted(version)} is not known: 0.3 and 0.4 are")
    build = _Builder(where)
    if "nodes" in section:
        build.nodes(_list(section["nodes"], f"{where}, nodes"), {}, 0)
    elif "subtree" in section or "local" in section:
        build.subtree(section, _attributes(section, where), 1)
    else:
        raise InputError(f"{where}: has neither nodes (0.4) nor a subtree (0.3): give one")
    return build.contents()


class _Builder:
    """Nodes as they are met, from the outside in."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[Store | FanOut] = []
        self.compute: Compute | None = None
        self.rows: list[Directive] = []
        self.sparse = Sparse()
        self.notes: list[str] = []
        self.technology = ""
        self.clock: float | None = None
        self.shape = (1, 1)  # instances along X and Y where version 0.3 stands
        self.asides = 0
        self.name = ""

    def contents(self) -> Contents:
        """All that was met."""
        if self.compute is None:
            raise InputError(f"{self.where}: has no compute unit: let the innermost node be one, of class compute")
        with placed(self.where):
            made = Architecture(self.name or "design", tuple(self.found), self.compute, self.clock, self.technology)
        return Contents(
            architecture=made, constraints=Directives(tuple(self.rows)) if self.rows else None,
            sparse=self.sparse if self.sparse != Sparse() else None, notes=tuple(self.notes),
        )  # fmt: skip

    def nodes(self, rows: list[Any], inherited: dict[str, Any], aside: int) -> None:
        """Nodes of version 0.4."""
        for i, row in enumerate(rows):
            at = f"{self.where}, node {i + 1}"
            row = _table(row, at)
            tag = row.get(TAG, "!Component" if "class" in row else "!Container")
            if tag == "!Nothing":
                continue
            if tag in ("!Parallel", "!Hierarchical", "!Pipelined", "!Architecture"):
                group = 0
                if tag == "!Parallel":
                    self.asides += 1
                    group = self.asides
                self.nodes(_list(row.get("nodes"), f"{at}, nodes"), inherited, group or aside)
                continue
            name = _name(row, at)
            at = f"{self.where}, {name}"
            name, times = _counted(name, at)
            attributes = {**inherited, **_attributes(row, at)}
            spatial = _table(row.get("spatial") or {}, f"{at}, spatial")
            x = _whole(spatial.get("meshX", 1), f"{at}, meshX") * times
            y = _whole(spatial.get("meshY", 1), f"{at}, meshY")
            if tag == "!Container":
                inherited.update(attributes)
                self._surroundings(attributes, at)
                if not self.name:
                    self.name = name
                if x * y > 1 or "spatial" in row:
                    self.found.append(FanOut(name, x, y))
            else:
                if x * y > 1:
                    if aside:
                        raise InputError(f"{at}: a fan-out among nodes side by side: open it above them")
                    self.found.append(FanOut(f"{name}_spatial", x, y))
                self._component(name, row, attributes, at, aside)
            self._inside(name, row, at)

    def subtree(self, level: dict[str, Any], attributes: dict[str, Any], times: int) -> None:
        """One level of version 0.3 and what stands below it."""
        self._surroundings(attributes, self.where)
        for row in _list(level.get("local") or [], f"{self.where}, local"):
            row = _table(row, f"{self.where}, local")
            name = _name(row, f"{self.where}, local")
            if path := _PATH.fullmatch(name):  # of a flattened architecture
                self.name = self.name or path["top"]
                name = path["last"]
            name, count = _counted(name, self.where)
            at = f"{self.where}, {name}"
            own = _attributes(row, at)
            self._widen(name, times * count, own.get("meshX"), at)
            own = {**attributes, **own}
            self._component(name, row, own, at, 0)
            self._inside(name, row, at)
        below = _list(level.get("subtree") or [], f"{self.where}, subtree")
        if len(below) > 1:
            raise InputError(f"{self.where}: a subtree of {len(below)} branches: one is known")
        for row in below:
            row = _table(row, f"{self.where}, subtree")
            name, count = _counted(_name(row, f"{self.where}, subtree"), self.where)
            if not self.name:
                self.name = name
            self.subtree(row, {**attributes, **_attributes(row, f"{self.where}, {name}")}, times * count)

    def _widen(self, name: str, total: int, mesh: Any, where: str) -> None:
        """A fan-out where version 0.3 has more instances than above."""
        x, y = self.shape
        if total == x * y and mesh is None:
            return
        wide = _whole(mesh, f"{where}, meshX") if mesh is not None else total // y
        if wide < 1 or total % wide or wide % x or (total // wide) % y:
            raise InputError(
                f"{where}: {total} instances, {wide} of them along X, below {x} by {y}: give numbers that divide"
            )
        if (wide, total // wide) != self.shape:
            above = self.found[-1].name if self.found else name
            self.found.append(FanOut(f"{above}_spatial", wide // x, total // wide // y))
            self.shape = (wide, total // wide)

    def _surroundings(self, attributes: Mapping[str, Any], where: str) -> None:
        technology = attributes.get("technology")
        if technology is not None:
            self.technology = str(technology) if isinstance(technology, str) else f"{technology}nm"
        cycle = _key(attributes, "global_cycle_seconds", "cycle_seconds")
        if cycle is not None:
            seconds = _number(cycle, f"{where}, global_cycle_seconds")
            if not 0 < seconds < math.inf:
                raise InputError(f"{where}: a cycle of {seconds} s: give a time above 0")
            self.clock = 1 / seconds

    def _component(self, name: str, row: dict[str, Any], attributes: dict[str, Any], where: str, aside: int) -> None:
        kinds = " ".join(str(row.get(key, "")) for key in ("class", "subclass")).lower()
        computes = any(kind in _COMPUTES or kind.endswith(("mac", "macc", "multiplier")) for kind in kinds.split())
        if computes:
            if self.compute is not None:
                raise InputError(f"{where}: a second compute unit beside {self.compute.name}: keep one")
            bits = _whole(_key(attributes, "datawidth", "word_bits") or 16, f"{where}, datawidth")
            self.compute = Compute(name, bits)
            return
        if self.compute is not None:
            raise InputError(f"{where}: stands below the compute unit {self.compute.name}: move it above")
        if not any(word in kinds for word in _STORES) and _depth(attributes) is None:
            self.notes.append(f"{where}: of class {kinds.strip() or 'none'}, which stores nothing, and is not used")
            return
        self.found.append(_store(name, kinds, attributes, where, aside))

    def _inside(self, name: str, row: dict[str, Any], where: str) -> None:
        """Constraints and sparse optimizations that stand in a node of version 0.4."""
        inside = _table(row.get("constraints") or {}, f"{where}, constraints")
        for key, value in inside.items():
            if key in _KINDS:
                rows = [{**_table(value, f"{where}, {key}"), "target": name, "type": key}]
                self.rows += _directives(rows, f"{where}, constraints")
            elif value:
                self.notes.append(f"{where}: constraint {key} is not used")
        sparse = row.get("sparse_optimizations")
        if sparse:
            self.sparse = self.sparse.joined(_sparse([{**_table(sparse, where), "name": name}], where))


def _counted(name: str, where: str) -> tuple[str, int]:
    """``"PE[0..167]"`` is ``("PE", 168)``."""
    match = _COUNTED.fullmatch(name)
    if not match:
        if "[" in name:
            raise InputError(f"{where}: {quoted(name)} counts by an expression, which is not run: write PE[0..167]")
        return name, 1
    count = int(match["last"]) - int(match["first"]) + 1 if match["first"] else int(match["last"])
    if count < 1:
        raise InputError(f"{where}: {quoted(name)} is {count} instances: the least is 1")
    return match["name"].strip(), count


def _depth(attributes: Mapping[str, Any]) -> Any:
    return _key(attributes, "depth", "memory_depth", "data_storage_depth", "entries")


_OF_STORES = frozenset({
    "datawidth", "word_bits", "cluster_size", "width", "memory_width", "data_storage_width", "block_size", "entries",
    "depth", "memory_depth", "data_storage_depth", "sizeKB", "metadata_storage_depth", "metadata_datawidth",
    "metadata_word_bits", "metadata_storage_width", "shared_bandwidth", "bandwidth", "read_bandwidth",
    "write_bandwidth", "multiple_buffering", "type",
})  # fmt: skip
"""Attributes of a store that are read; others, which Timeloop's estimators read, are passed over."""


def _store(name: str, kinds: str, attributes: dict[str, Any], where: str, aside: int) -> Store:
    check_spelling((key.replace("-", "_") for key in attributes), _OF_STORES, f"{where}, attributes")

    def whole(*names: str) -> int | None:
        value = _key(attributes, *names)
        return None if value is None else _whole(value, f"{where}, {names[0]}")

    def rate(*names: str) -> float | None:
        value = _key(attributes, *names)
        return None if value is None else float(_number(value, f"{where}, {names[0]}"))

    bits = whole("datawidth", "word_bits") or 16
    cluster = whole("cluster_size") or 1
    width = whole("width", "memory_width", "data_storage_width")
    block = whole("block_size")
    if block is None:
        block = max(width // (bits * cluster), 1) if width else 1
    entries, depth = whole("entries"), whole("depth", "memory_depth", "data_storage_depth")
    size = rate("sizeKB")
    capacity = entries if entries is not None else depth * block if depth is not None else None
    if capacity is None and size is not None:
        capacity = int(size * 1024 * 8 // bits)
    metadata_depth = whole("metadata_storage_depth")
    metadata_bits = whole("metadata_datawidth", "metadata_word_bits")
    metadata_width = whole("metadata_storage_width")
    metadata = None
    if metadata_depth is not None:
        metadata = metadata_depth * max((metadata_width or 1) // (metadata_bits or metadata_width or 1), 1)
    shared = rate("shared_bandwidth", "bandwidth")
    kind = "regfile" if any(word in kinds for word in ("reg", "rf")) else "SRAM"
    if "dram" in kinds:
        kind = str(attributes.get("type"))
        kind = kind if kind in DRAMS else "DRAM"
    keeps = () if "dummy_storage" in kinds.split() else None  # a name for a fan-out, as the front end writes it
    return Store(
        name, capacity, bits, block, rate("read_bandwidth") or shared, rate("write_bandwidth") or shared, keeps,
        Energies(), whole("multiple_buffering") or 1, cluster, metadata, kind, aside, metadata_bits, metadata_width,
    )  # fmt: skip


# --- problem ----------------------------------------------------------------------------------------------------------


_SHAPES: dict[str, dict[str, Any]] = {
    "cnn-layer": {
        "name": "cnn-layer",
        "dimensions": ["R", "S", "P", "Q", "C", "K", "N"],
        "coefficients": [{"name": n, "default": 1} for n in ("Wstride", "Hstride", "Wdilation", "Hdilation")],
        "data_spaces": [
            {"name": "Weights", "projection": [[["C"]], [["K"]], [["R"]], [["S"]]]},
            {"name": "Inputs", "projection": [
                [["N"]], [["C"]], [["R", "Wdilation"], ["P", "Wstride"]], [["S", "Hdilation"], ["Q", "Hstride"]],
            ]},
            {"name": "Outputs", "projection": [[["N"]], [["K"]], [["Q"]], [["P"]]], "read_write": True},
        ],
    },
}  # fmt: skip
"""Shapes that files name and Timeloop knows: a layer of a convolutional network, from C channels to K."""


def _problem(section: dict[str, Any], where: str) -> Problem:
    shape = section.get("shape")
    if isinstance(shape, str):
        if shape not in _SHAPES:
            raise InputError(
                f"{where}: shape {quoted(shape)} is built into Timeloop: write its dimensions and data_spaces"
            )
        shape = _SHAPES[shape]
    shape = _table(shape, f"{where}, shape")
    instance = section.get("instance")
    if instance is None:
        instance = {key: value for key, value in section.items() if key not in ("shape", "version")}
    instance = _table(instance, f"{where}, instance")
    dimensions = [str(d) for d in _list(shape.get("dimensions"), f"{where}, dimensions")]
    coefficients = {}
    for row in _list(shape.get("coefficients") or [], f"{where}, coefficients"):
        row = _table(row, f"{where}, coefficients")
        name = _name(row, f"{where}, coefficients")
        coefficients[name] = _whole(instance.get(name, row.get("default", 1)), f"{where}, {name}")
    bounds = []
    for dimension in dimensions:
        if dimension not in instance:
            raise InputError(f"{where}: the instance has no bound of {dimension}: give one")
        bounds.append(_whole(instance[dimension], f"{where}, {dimension}"))
    for key in instance:
        if key not in dimensions and key not in coefficients and key not in _OTHER_SIZES:
            raise unknown(f"dimension in {where}, instance:", key, [*dimensions, *coefficients])
    densities = _densities(instance, where)
    tensors = []
    for row in _list(_key(shape, "data_spaces"), f"{where}, data_spaces"):
        row = _table(row, f"{where}, data_spaces")
        name = _name(row, f"{where}, data_spaces")
        axes = tuple(
            _axis(axis, dimensions, coefficients, f"{where}, {name}")
            for axis in _list(row.get("projection"), f"{where}, {name}, projection")
        )
        density, distribution = densities.pop(name, (1.0, "fixed-structured"))
        tensors.append(Operand(name, axes, bool(_key(row, "read_write")), density, distribution))
    if densities:
        raise unknown(f"tensor in {where}, densities:", next(iter(densities)), [t.name for t in tensors])
    name = str(shape.get("name") or Path(where.split(",")[0]).stem)
    with placed(where):
        return Problem(name, tuple(dimensions), tuple(bounds), tuple(tensors))


def _axis(terms: Any, dimensions: list[str], coefficients: Mapping[str, int], where: str) -> Axis:
    """One axis from ``[[R], [P, Wstride]]``."""
    found = []
    for term in _list(terms, f"{where}, projection"):
        parts = term if isinstance(term, list) else [term]
        by = 1
        dimension = None
        for part in parts:
            if isinstance(part, int) and not isinstance(part, bool):
                by *= part
            elif isinstance(part, str) and part in coefficients:
                by *= coefficients[part]
            elif isinstance(part, str) and part in dimensions and dimension is None:
                dimension = str(part)
            else:
                raise unknown(f"dimension in {where}, projection:", part, [*dimensions, *coefficients])
        if dimension is None:
            raise InputError(f"{where}: the term {quoted(term)} names no dimension: give one")
        found.append((dimension, by))
    return tuple(found)


def _densities(instance: Mapping[str, Any], where: str) -> dict[str, tuple[float, str]]:
    found = {}
    common = instance.get("commonDensity")
    if common is not None:
        raise InputError(f"{where}: commonDensity is not known: give the density of each tensor under densities")
    for name, value in _table(instance.get("densities") or {}, f"{where}, densities").items():
        distribution: Any = "fixed-structured"
        if isinstance(value, dict):
            distribution = value.get("distribution", distribution)
            value = value.get("density", 1.0)
        distribution = str(distribution).replace("_", "-")
        distribution = "fixed-structured" if distribution == "constant" else distribution
        found[name] = (float(_number(value, f"{where}, density of {name}")), distribution)
    return found


# --- mapping, constraints ---------------------------------------------------------------------------------------------


def _directives(rows: Any, where: str) -> Iterator[Directive]:
    for i, row in enumerate(_list(rows, where)):
        at = f"{where}, entry {i + 1}"
        row = _table(row, at)
        target, kind = row.get("target", row.get("name")), row.get("type")
        if not isinstance(target, str):
            raise InputError(f"{at}: names no target: give the node that it is about")
        at = f"{where}, {target}"
        if kind in ("max_overbooked_proportion", "utilization", "parallelism"):
            continue
        if not isinstance(kind, str) or kind not in _KINDS:
            raise unknown(f"type in {at}:", kind, _KINDS)
        if _KINDS[kind] == "keep":
            keep, bypass = (
                tuple(str(name) for name in _list(row.get(key) or [], f"{at}, {key}")) for key in ("keep", "bypass")
            )
            yield Directive(target, "keep", keep=keep, bypass=bypass, where=at)
            continue
        split = row.get("split")
        yield Directive(
            target, _KINDS[kind], factors(row.get("factors") or [], at), permutation(row.get("permutation") or [], at),
            None if split is None else _whole(split, f"{at}, split"), where=at,
        )  # fmt: skip


def _sparse(rows: Any, where: str) -> Sparse:
    stored: list[RepresentationFormat] = []
    spared: list[ActionOptimization] = []
    compute: str | None = None
    choices = 0
    for row in _list(rows, where):
        row = _table(row, where)
        store = _name(row, where)
        at = f"{where}, {store}"
        representation = _table(_key(row, "representation_format") or {}, f"{at}, representation_format")
        for entry in _list(_key(representation, "data_spaces") or [], f"{at}, data_spaces"):
            entry = _table(entry, at)
            stored.append(_format(store, entry, at))
        for entry in _list(_key(row, "action_optimization") or [], f"{at}, action_optimization"):
            entry = _table(entry, at)
            skips = _skips(entry.get("type"), at)
            options = _list(entry.get("options", [entry] if "target" in entry else []), f"{at}, options")
            choices += len(options) > 1
            for option in options:
                option = _table(option, at)
                conditions = _list(_key(option, "condition_on") or [], f"{at}, condition_on")
                spared.append(ActionOptimization(
                    store, str(option.get("target")), tuple(map(str, conditions)), skips,
                    choices if len(options) > 1 else 0,
                ))  # fmt: skip
        optimization = _key(row, "compute_optimization")
        for entry in [optimization] if isinstance(optimization, dict) else _list(optimization or [], at):
            compute = "skipping" if _skips(_table(entry, at).get("type"), at) else "gating"
    return Sparse(tuple(stored), tuple(spared), compute)


_OTHER_NAMES = {"UB": "B"}
"""Formats of ranks that go by a second name."""


def _format(store: str, entry: dict[str, Any], where: str) -> RepresentationFormat:
    """The format of one tensor."""
    name = _name(entry, where)
    rows = [_table(rank, where) for rank in _list(entry.get("ranks") or [], f"{where}, ranks")]
    ranks = [str(rank.get("format", "U")).upper() for rank in rows]
    ranks = [_OTHER_NAMES.get(rank, rank) for rank in ranks]
    for rank in ranks:
        if rank not in FORMATS:
            raise unknown(f"format of a rank in {where}:", rank, FORMATS)
    order = str(_key(entry, "rank_application_order") or "outer_to_inner").replace("-", "_")
    if order not in ("outer_to_inner", "inner_to_outer"):
        raise unknown(f"rank_application_order of {name} in {where}:", order, ("outer-to-inner", "inner-to-outer"))
    flattened = [_key(rank, "flattened_rankIDs") or [] for rank in rows]
    joined = tuple(
        tuple(str(d) for names in _list(groups, f"{where}, flattened_rankIDs")
              for d in _list(names, f"{where}, flattened_rankIDs"))
        for groups in flattened
    )  # fmt: skip

    def bits(what: str) -> tuple[int | None, ...]:
        given = [_key(rank, what) for rank in rows]
        found = tuple(None if value is None else _whole(value, f"{where}, {what}") for value in given)
        if any((value or 0) < 0 for value in found):
            raise InputError(f"{where}: {what} of {name} are below 0: give 0 or more")
        return found

    return RepresentationFormat(
        store, name, tuple(ranks), joined if any(joined) else (), order == "inner_to_outer",
        bits("metadata_word_bits"), bits("payload_word_bits"),
    )  # fmt: skip


def _skips(kind: Any, where: str) -> bool:
    if isinstance(kind, str) and "spatial" in kind:
        raise InputError(
            f"{where}: {quoted(kind)} spreads what is left over fewer instances, which is not known: write skipping or "
            "gating of the tensors at the store"
        )
    if kind not in ("gating", "skipping"):
        raise unknown(f"optimization in {where}:", kind, ("gating", "skipping"))
    return bool(kind == "skipping")


# --- tables of energies and areas -------------------------------------------------------------------------------------


def _component(name: str) -> str:
    """``"system_top_level.PE[0..167].mac[1..168]"`` is ``"mac"``."""
    return re.split(r"[\[(]", _COUNTS.sub("", name).rpartition(".")[2], maxsplit=1)[0].strip()


def _tables(section: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in _list(section.get("tables", section.get("table_summary", [])), f"{where}, tables"):
        row = _table(row, f"{where}, tables")
        yield _component(_name(row, where)), row


def _energies(section: dict[str, Any], where: str) -> Iterator[tuple[str, Energies]]:
    for component, row in _tables(section, where):
        at = f"{where}, {component}"
        found = Energies()
        for action in _list(row.get("actions") or [], at):
            action = _table(action, at)
            name = _name(action, at)
            picojoules = _number(action.get("energy", 0), f"{at}, {name}")
            if name not in (*ACTIONS, "compute"):
                if name not in _FREE and picojoules and not name.startswith("transfer"):  # of a network, not a store
                    raise unknown(f"action of {component} in {where}:", name, (*ACTIONS, "compute"))
                if picojoules and name.startswith(("mac_random", "transfer_random")):
                    name = "compute"
                else:
                    continue
            value = max(picojoules * _PJ, getattr(found, name) or 0.0) if picojoules >= 0 else picojoules * _PJ
            if math.isnan(picojoules):
                value = picojoules
            found = replace(found, **{name: value})
        check_energies(found, at)
        yield component, found


def _areas(section: dict[str, Any], where: str) -> Iterator[tuple[str, float]]:
    for component, row in _tables(section, where):
        area = _number(row.get("area", 0), f"{where}, {component}, area")
        if not 0 <= area < math.inf:
            raise InputError(f"{where}, {component}: an area of {area} square micrometres: give 0 or more")
        yield component, area * _SQUARE_MICROMETRE
