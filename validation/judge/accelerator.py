"""Judges designs by figures that others published: counts, systolic arrays, zeros, the mapper.

    python -m validation.judge.accelerator --data DIR [--json OUT] [--budget 10s] [--seed N]

DIR has the shape of ``../shared/data/accelerator``: a folder for each case, with ``arch.yaml``, ``problem.yaml``,
``mapping.yaml``, ``ERT.yaml`` and ``expected.json``; ``systolic.csv``; ``sparse.json`` and other ``sparse*.json``.
What is not there is left out.

* Counts: every tile, read, fill and update, instances and cycles, exactly; energies to a relative 1e-6.
* Sparse: computes, cycles, and every count of reads, fills and updates that happen or are spared, exactly; energy to
  a relative 1e-3.  A problem is read from its text (:mod:`validation.judge.zeros`); one that does not say its loops is
  not judged, with a sentence that says what is missing.
* Mapper: a search from scratch for each case, in which stores keep what they keep in the mapping given, without other
  constraints; its energy times delay over that of the mapping given, CPU-seconds, mappings for each of them.
* Systolic: cycles, utilization, mapping efficiency and reads of operands, exactly as printed.
"""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

from validation import command
from validation.judge.zeros import cases

from triosim.accelerator import mapper, sparse, systolic
from triosim.accelerator.directives import Constraints
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

_COUNTS = ("tile", "instances", "reads", "fills", "updates")
_FILES = ("arch.yaml", "problem.yaml", "mapping.yaml", "ERT.yaml")


def counts(folder: Path) -> list[dict[str, Any]]:
    """A row for each case: how many counts are right, and the energies; what keeps a case from being judged is one."""
    rows = []
    for case in sorted(path.parent for path in folder.glob("*/expected.json")):
        expected = json.loads((case / "expected.json").read_text())
        try:
            rows.append(_counted(case, expected))
        except InputError as error:
            shown = dict.fromkeys(("counts", "energies", "cycles", "used", "energy_uj"), "")
            rows.append({"case": case.name, **shown, "exact": False, "wrong": [str(error)]})
    return rows


def _counted(case: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """What is right of one case."""
    found = read([case / name for name in _FILES if (case / name).exists()])
    if found.mapping is None:
        raise InputError(f"{case}: has no mapping")
    design, problem = found.design, found.problem
    result = evaluate(design, problem, found.mapping.mapping(design, problem, defaults=found.constraints))
    accesses = {(a.store, a.tensor): a for a in result.accesses}
    right = total = energies = energies_right = 0
    wrong: list[str] = []
    for store, tensors in expected["levels"].items():
        for tensor, row in tensors.items():
            access = accesses.get((store, tensor))
            for what in _COUNTS:
                if what in row:
                    total += 1
                    is_right = access is not None and getattr(access, what) == row[what]
                    right += is_right
                    if not is_right:
                        wrong.append(f"{store} {tensor} {what} {access and getattr(access, what)} not {row[what]}")
            if "energy_pj" in row:
                energies += 1
                pj = access.energy_j * 1e12 if access else math.nan
                energies_right += math.isclose(pj, row["energy_pj"], rel_tol=1e-6, abs_tol=0.01)
    uj = expected.get("energy_uj_by_rules", expected["energy_uj"])
    return {
        "case": case.name, "counts": f"{right}/{total}", "energies": f"{energies_right}/{energies}",
        "cycles": result.cycles, "cycles_expected": expected["cycles"],
        "used": result.used, "used_expected": expected["utilized_instances"],
        "energy_uj": result.energy_j * 1e6, "energy_uj_expected": uj,
        "exact": right == total and energies_right == energies and result.cycles == expected["cycles"]
        and math.isclose(result.energy_j * 1e6, uj, rel_tol=1e-6), "wrong": wrong,
    }  # fmt: skip


def arrays(path: Path) -> list[dict[str, Any]]:
    """A row for each row of a table of SCALE-Sim's figures."""
    rows = []
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            array = systolic.Array(int(row["array_rows"]), int(row["array_cols"]), row["dataflow"])
            product = systolic.Product(row["layer"], int(row["M"]), int(row["N"]), int(row["K"]))
            run = systolic.run(array, product)
            exact = (
                run.cycles == int(row["compute_cycles"])
                and run.ifmap_reads == int(row["sram_ifmap_reads"])
                and run.filter_reads == int(row["sram_filter_reads"])
                and math.isclose(100 * run.utilization, float(row["overall_util_pct"]), abs_tol=5.1e-5)
                and math.isclose(100 * run.mapping_efficiency, float(row["mapping_eff_pct"]), abs_tol=5.1e-5)
            )
            rows.append({
                "array": f"{array.rows}x{array.columns}", "dataflow": array.dataflow, "layer": product.name,
                "cycles": run.cycles, "cycles_expected": int(row["compute_cycles"]), "exact": exact,
            })  # fmt: skip
    return rows


def zeros(path: Path) -> list[dict[str, Any]]:
    """A row for each case of a table of Sparseloop's outputs."""
    rows = []
    for case in json.loads(path.read_text())["cases"]:
        try:
            found = [_against(case, *one) for one in cases(case)]
        except InputError as error:
            found = [{"wrong": [str(error)]}]
        row = found[0]
        if any(other["wrong"] != row["wrong"] for other in found):
            row = {"wrong": ["does not say the order of the loops, by which its counts differ: write it into problem"]}
        shown = {"case": case["case"], "counts": "", "cycles": "", "computes": "", "energy_pj": ""}
        rows.append({**shown, "energy_pj_expected": case["energy_pj"], "exact": not row["wrong"], **row})
    return rows


def _against(case: dict[str, Any], *given: Any) -> dict[str, Any]:
    """What differs between a case and our evaluation of it."""
    found = sparse.evaluate(*given)
    wrong: list[str] = []
    total = 2
    # of one instance, as the counts are, or of all where the algorithmic ones are
    whole = case.get("algorithmic_computes") == found.dense.computes
    computes = found.computes if whole else found.computes / found.dense.used
    for what, value in (("cycles", found.cycles), ("actual_computes", computes)):
        if value != case[what]:
            wrong.append(f"{what} {value:g} not {case[what]}")
    accesses = {(a.store, a.tensor): a for a in found.accesses}
    for store, tensors in case["levels"].items():
        for tensor, row in tensors.items():
            a = accesses[store, tensor]
            dense = next(d for d in found.dense.accesses if (d.store, d.tensor) == (store, tensor))
            values = {
                "tile_words": a.tile, "instances": a.instances, "actual_reads": a.reads, "actual_fills": a.fills,
                "actual_updates": a.updates, "algorithmic_reads": dense.reads, "algorithmic_fills": dense.fills,
                "algorithmic_updates": dense.updates,
            }  # fmt: skip
            for how in ("gated", "skipped"):
                values[f"{how}_reads"] = a.spared_reads if a.spared == how else 0.0
                values[f"{how}_updates"] = a.spared_updates if a.spared == how else 0.0
                values[f"{how}_fills"] = 0.0
            for what, expected in row.items():
                if what in ("energy_pj", "metadata_words"):
                    continue
                total += 1
                if values.get(what) != expected:
                    wrong.append(f"{store} {tensor} {what} {values.get(what)} not {expected}")
            pj = a.energy_j * 1e12
            if "energy_pj" in row and not math.isclose(pj, row["energy_pj"], rel_tol=1e-3, abs_tol=0.0051):
                wrong.append(f"{store} {tensor} energy {pj:.3f} not {row['energy_pj']}")
    pj = found.energy_j * 1e12
    right = total - len([line for line in wrong if " energy " not in line])
    if not math.isclose(pj, case["energy_pj"], rel_tol=1e-3):
        wrong.append(f"energy {pj:.3f} not {case['energy_pj']}")
    return {
        "counts": f"{right}/{total}", "cycles": found.cycles, "computes": found.computes, "energy_pj": round(pj, 3),
        "wrong": wrong,
    }  # fmt: skip


def searches(folder: Path, budget: int, seed: int) -> list[dict[str, Any]]:
    """A row for each case: what a search from scratch finds, beside the mapping given."""
    rows = []
    for case in sorted(path.parent for path in folder.glob("*/expected.json")):
        found = read([case / name for name in _FILES if (case / name).exists()])
        if found.mapping is None:
            raise InputError(f"{case}: has no mapping")
        design, problem = found.design, found.problem
        mapping = found.mapping.mapping(design, problem, defaults=found.constraints)
        before = evaluate(design, problem, mapping)
        began = time.process_time()
        result = mapper.search(
            design, problem, mapper.with_keeps(Constraints(), mapping, problem), budget=budget, seed=seed
        )
        seconds = time.process_time() - began
        best = mapper.evaluated(design, problem, result.best)
        ratio = best.energy_j * best.cycles / (before.energy_j * before.cycles)
        rows.append({
            "case": case.name, "version": "0.3" if "subtree" in (case / "arch.yaml").read_text() else "0.4",
            "edp_ratio": ratio, "energy_uj": best.energy_j * 1e6, "cycles": best.cycles,
            "cpu_s": round(seconds, 2), "mappings_per_cpu_s": round(result.proposed / seconds), "exact": ratio <= 1,
        })  # fmt: skip
    return rows


def table(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows under a title."""
    if not rows:
        return
    right = f"{sum(row['exact'] for row in rows)} of {len(rows)}"
    print(f"\n{title}: {right}" if "no worse" in title else f"\n{title}: {right} exact")
    texts = [columns, *(tuple(_text(row[c]) for c in columns) for row in rows)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(columns))]
    for line in texts:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        for line in row.get("wrong", []):
            print(f"  {row['case']}: {line}")


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """Print all tables; 1 where anything is not exact."""
    parser = command.parser(__doc__, "folder of cases (see above), or one with accelerator/")
    parser.add_argument("--budget", default="10s", help="of each search: mappings, or a time")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    data = command.find(given.data, "accelerator/")
    tables = sorted(data.glob("sparse*.json"))
    if not tables and not any(data.glob("*/expected.json")):
        raise InputError(f"{data}: has no case: a folder with expected.json, or sparse.json")
    found: dict[str, list[dict[str, Any]]] = {"counts": counts(data)}
    table("Counts", found["counts"], ("case", "counts", "energies", "cycles", "used", "energy_uj", "exact"))
    if (data / "systolic.csv").exists():
        found["systolic"] = arrays(data / "systolic.csv")
        shown: tuple[str, ...] = ("array", "dataflow", "layer", "cycles", "cycles_expected", "exact")
        table("Systolic arrays", found["systolic"], shown)
    if tables:
        found["sparse"] = [row for path in tables for row in zeros(path)]
        shown = ("case", "counts", "cycles", "computes", "energy_pj", "energy_pj_expected", "exact")
        table("Zeros", found["sparse"], shown)
    found["mapper"] = searches(data, mapper.parse_budget(given.budget), given.seed)
    shown = ("case", "edp_ratio", "energy_uj", "cycles", "cpu_s", "mappings_per_cpu_s")
    table("Mapper, no worse than the mapping given", found["mapper"], shown)
    for version in sorted({row["version"] for row in found["mapper"]}):
        logs = [math.log(row["edp_ratio"]) for row in found["mapper"] if row["version"] == version]
        mean = math.exp(sum(logs) / len(logs))
        print(f"geometric mean of the ratios of {len(logs)} in version {version}: {mean:.4f}")
    command.write(given.json, found)
    return 0 if all(row["exact"] for rows in found.values() for row in rows) else 1


if __name__ == "__main__":
    command.run(main)
