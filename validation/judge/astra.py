"""Agreement with ASTRA-sim, and where its network rules break a bound that ours keeps.

    python -m validation.judge.astra [--most 64] [--json OUT] [--docs docs/astra-sim.md]

Plays, under ASTRA-sim's rules (``store-and-forward``, ``uncontended``) and ours (``max-min``): Table 7 of the survey
row for row; its closed forms for one dimension; the runs of ASTRA-sim kept in ``tests/golden/astra_sim_runs.csv``; and
one all-reduce with more and more chunks under way, beside what the links can carry.  The exit code tells whether
everything agreed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from validation import command
from validation.data import astra_cases as cases
from validation.data.astra_forms import closed_form

from triosim.interop.astra.network import AstraNetwork
from triosim.interop.astra.play import AstraResult, play
from triosim.interop.astra.system import KINDS

RULES = ("store-and-forward", "uncontended")
NAMES = {"all_reduce": "All-Reduce", "all_gather": "All-Gather", "reduce_scatter": "Reduce-Scatter",
         "all_to_all": "All-to-All"}  # fmt: skip
MIB = 1 << 20


def main() -> int:
    """Print the tables; the exit code tells whether everything agreed."""
    parser = command.parser(__doc__)
    parser.add_argument("--most", type=int, default=64, help="NPUs up to which runs are played (default 64)")
    parser.add_argument("--docs", type=Path, help="also put the tables between the markers of this page")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "table_7": table_7(), "resnet50": resnet50(), "closed_forms": closed_forms(options.most),
        "runs": runs(options.most), "link_bound": link_bound(),
    }  # fmt: skip
    text = report(figures)
    print(text)
    command.write(options.json, figures)
    if options.docs:
        page = options.docs.read_text(encoding="utf-8")
        head, _, rest = page.partition("<!-- tables -->\n")
        _, _, tail = rest.partition("<!-- end of tables -->\n")
        page = f"{head}<!-- tables -->\n{text}\n<!-- end of tables -->\n{tail}"
        options.docs.write_text(page, encoding="utf-8")
    counts = (figures["closed_forms"], figures["runs"])
    exact = all(row["survey"] == row["ours"] for name in ("table_7", "resnet50") for row in figures[name])
    return 0 if exact and all(c["agree"] == c["all"] for c in counts) else 1


def _played(kind: str, size: int, network: AstraNetwork, layer: cases.AstraSystem, solver: str) -> AstraResult:
    stagger = int(solver == "store-and-forward")
    return play(cases.job(network, layer, lambda rank: cases.collective(kind, size), stagger_ps=stagger), solver)


def _cycles(result: AstraResult) -> float:
    return max(rank.cycles for rank in result.ranks)


def table_7() -> list[dict]:
    """The survey's collectives: 1 MB on 8 GPUs."""
    layer = cases.system("ring", active=2, memory=3350)
    rows = []
    for kind, survey in cases.TABLE_7.items():
        found = {rule: _cycles(_played(kind, MIB, cases.hgx(), layer, rule)) for rule in (*RULES, "max-min")}
        rows.append({"name": NAMES[kind], "survey": survey, "ours": found["store-and-forward"],
                     "uncontended": found["uncontended"], "max-min": found["max-min"]})  # fmt: skip
    return rows


def resnet50() -> list[dict]:
    """The survey's ResNet-50: communication cycles beside computation."""
    rows = []
    for npus, (gigabytes, survey, _) in cases.RESNET.items():
        layer, network = cases.system("ring", active=2, memory=3350), cases.hgx(npus, gigabytes)
        found = {}
        for rule in (*RULES, "max-min"):
            stagger = int(rule == "store-and-forward")
            ranks = play(cases.job(network, layer, cases.resnet50, stagger_ps=stagger), rule).ranks
            found[rule] = ranks[0].communication_cycles
        rows.append({"name": f"ResNet-50, {npus} GPUs", "survey": survey, "ours": found["store-and-forward"],
                     "uncontended": found["uncontended"], "max-min": found["max-min"]})  # fmt: skip
    return rows


def closed_forms(most: int) -> dict:
    """How many one-dimensional cases agree with their closed form to the cycle."""
    every, agree = 0, 0
    for npus in (count for count in (8, 64, 256, 1024) if count <= most):
        for name in ("ring", "switch", "fc"):
            line = cases.golden_network(name, npus).dimensions[0]
            for kind in KINDS:
                layer = cases.system(cases.golden_choice(name, kind))
                for rule in RULES:
                    for mib in (1, 64, 1024):
                        expected = closed_form(kind, mib * MIB, line, layer, rule == "store-and-forward")
                        if expected > 0:
                            every += 1
                            network = cases.golden_network(name, npus)
                            agree += _cycles(_played(kind, mib * MIB, network, layer, rule)) == expected
    return {"all": every, "agree": agree}


def runs(most: int) -> dict:
    """How many runs of ASTRA-sim, kept with about four digits, are met in all of these digits."""
    every, agree = 0, 0
    for row in cases.golden_runs():
        npus, kind, written = int(row["npus"]), row["collective"], row["microseconds"]
        if npus <= most:
            network = cases.golden_network(row["network"], npus)
            layer = cases.system(*[cases.golden_choice(row["network"], kind)] * len(network.shape))
            found = _cycles(_played(kind, int(row["mib"]) * MIB, network, layer, row["backend"])) / 1000
            every += 1
            agree += abs(found - float(written)) <= 0.5001 * 10 ** -len(written.partition(".")[2])
    return {"all": every, "agree": agree}


def link_bound() -> list[dict]:
    """1 GiB all-reduce on 8 NPUs, 400 GB/s: microseconds by each rule, and what the links allow at best."""
    size, network = 1 << 30, cases.hgx()
    bound = 2 * 7 / 8 * size / network.dimensions[0].bandwidth * 1e6
    rows = []
    for (active, splits), (unaware, aware) in cases.ACTIVE.items():
        layer = cases.system("ring", active=active, splits=splits)
        found = {rule: _played("all_reduce", size, network, layer, rule).seconds * 1e6 for rule in (*RULES, "max-min")}
        rows.append({"active": active, "splits": splits, "astra_unaware": unaware, "astra_aware": aware, **found,
                     "bound": bound})  # fmt: skip
    return rows


def report(figures: dict) -> str:
    """The tables as Markdown."""
    lines = [
        "| Table 7 of the survey, cycles | survey | `store-and-forward` | `uncontended` | `max-min` |",
        "|---|---|---|---|---|",
    ]
    for row in figures["table_7"] + figures["resnet50"]:
        numbers = (row["survey"], row["ours"], row["uncontended"], row["max-min"])
        lines.append(f"| {row['name']} | " + " | ".join(f"{number:,.0f}" for number in numbers) + " |")
    forms, kept = figures["closed_forms"], figures["runs"]
    lines += [
        "",
        f"Closed forms for one dimension met to the cycle: {forms['agree']} of {forms['all']}.",
        f"Runs of ASTRA-sim met in all digits kept: {kept['agree']} of {kept['all']}.",
        "",
        "| chunks under way / in all | ASTRA-sim unaware / aware, us | `uncontended` | `store-and-forward` | `max-min` "
        "| links allow |",
        "|---|---|---|---|---|---|",
    ]
    for row in figures["link_bound"]:
        numbers = (row["uncontended"], row["store-and-forward"], row["max-min"], row["bound"])
        below = " (below)" if row["uncontended"] < row["bound"] else ""
        cells = [f"{number:,.0f}" for number in numbers]
        lines.append(
            f"| {row['active']} / {row['splits']} | {row['astra_unaware']:,} / {row['astra_aware']:,} | "
            f"{cells[0]}{below} | " + " | ".join(cells[1:]) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main)
