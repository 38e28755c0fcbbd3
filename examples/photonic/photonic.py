"""Photonic links between wafer-scale GPUs, against an electrical mesh: the first case study of the TrioSim paper.

    python examples/photonic/photonic.py [--models vgg19,gpt2] [--figure photonic.svg] [--json photonic.json]

84 GPUs on a wafer, 12 x 7, train data-parallel: each computes its batch, then all gradients are reduced over a ring
that goes through the whole wafer, each step to a neighbour.  Electrical: a mesh.  Photonic: a circuit between any two
GPUs, which takes time to set up; two of its eight links are all that a GPU needs for a ring.  No hardware and no trace
is used: the models are made from their configuration, operator times are those of an A100.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import triosim
from triosim.core.units import format_bandwidth, format_time, parse_bandwidth
from triosim.hardware.description import read_table
from triosim.network.device_assignment import grid_cycle

HERE = Path(__file__).resolve().parent
STUDY = read_table(HERE / "wafer.toml")
WAFER, PHOTONIC, ELECTRICAL = STUDY["wafer"], STUDY["photonic"], STUDY["electrical"]
GPUS = WAFER["rows"] * WAFER["columns"]


@dataclass(frozen=True)
class Row:
    """What became of one model.

    Attributes:
        model, batch_size: per GPU.
        compute_s: time of an iteration without communication.
        electrical_s: iteration on the mesh.
        printed_s: first iteration over photonic links, with the set-up time that the paper prints.
        measured_s: the same with a measured set-up time.
        standing_s: any later iteration: the circuits stand.
        bundled_s: the same if the links that a ring leaves unused are bundled, half of them to each neighbour.
        even_bandwidth: of a link of the mesh, bytes per second, at which it takes as long as ``printed_s``.
    """

    model: str
    batch_size: int
    compute_s: float
    electrical_s: float
    printed_s: float
    measured_s: float
    standing_s: float
    bundled_s: float
    even_bandwidth: float


RINGS = triosim.Fidelity(collective_algorithm="ring")


def plan(model: str, **more: object) -> triosim.Plan:
    """Standard data parallel: compute, then one all-reduce of all gradients, along a ring through the wafer."""
    return triosim.Plan(
        batch_size=STUDY["batch_size"][model],
        sequence_length=STUDY["sequence_length"].get(model),
        overlap=False,
        placement=tuple(grid_cycle(WAFER["rows"], WAFER["columns"]).tolist()),
        **more,
    )


def electrical(model: str, bandwidth: float) -> triosim.Result:
    """An iteration on the mesh."""
    shape = (WAFER["rows"], WAFER["columns"])
    system = triosim.system(device=WAFER["device"], devices=GPUS, topology="mesh", shape=shape, link=bandwidth)
    return triosim.simulate(triosim.model(model), system, plan(model), RINGS)


def photonic(model: str, setup: str, ports: int = PHOTONIC["links"], iterations: int = 1) -> triosim.Result:
    """Iterations over circuits; each GPU has ``ports`` of them that divide its bandwidth."""
    link = parse_bandwidth(PHOTONIC["bandwidth"]) / ports
    system = triosim.system(device=WAFER["device"], devices=GPUS, topology="full", link=link)
    options = {"setup": setup, "ports": str(ports)}
    circuits = RINGS.replaced(solver="circuit", solver_options=options)
    return triosim.simulate(triosim.model(model), system, plan(model, iterations=iterations), circuits)


def communication_share(result: triosim.Result) -> float:
    """Part of an iteration in which nothing is computed because something is communicated."""
    return result.breakdown_s.exposed_communication / result.iteration_time_s


def paper_bandwidth() -> float:
    """Bandwidth of a mesh link, bytes per second, at which the model that the paper names communicates for the share
    of its time that the paper gives.

    Without contention and latency a ring takes as long as its bytes need, so one run at any bandwidth is enough.
    """
    share, tried = ELECTRICAL["communication_share"], 1e9
    result = electrical(ELECTRICAL["model"], tried)
    communicating = result.breakdown_s.exposed_communication
    return tried * communicating * (1 - share) / (share * (result.iteration_time_s - communicating))


def compare(model: str, bandwidth: float) -> Row:
    """All runs of one model."""
    mesh = electrical(model, bandwidth)
    communicating = mesh.breakdown_s.exposed_communication
    compute = mesh.iteration_time_s - communicating
    printed = photonic(model, PHOTONIC["setup_printed"]).iteration_time_s
    return Row(
        model,
        STUDY["batch_size"][model],
        compute,
        mesh.iteration_time_s,
        printed,
        photonic(model, PHOTONIC["setup_measured"]).iteration_time_s,
        photonic(model, "0s").iteration_time_s,
        photonic(model, "0s", ports=2).iteration_time_s,
        bandwidth * communicating / (printed - compute),
    )


def table(rows: list[Row], bandwidth: float) -> str:
    """The rows as text."""
    share, model = ELECTRICAL["communication_share"], ELECTRICAL["model"]
    lines = [
        f"{GPUS} x {WAFER['device']}, data parallel, one all-reduce along a ring through the {WAFER['rows']} x "
        f"{WAFER['columns']} wafer",
        f"mesh links of {format_bandwidth(bandwidth)}: where {model} communicates {share:.2%} of its time",
        f"photonic: {PHOTONIC['bandwidth']} per GPU over {PHOTONIC['links']} links, "
        f"set-up {PHOTONIC['setup_printed']} (printed) or {PHOTONIC['setup_measured']} (measured)",
        "",
        f"{'':<13}{'batch':>6}{'compute':>11}{'mesh':>20}{'photonic, first iteration':>38}{'later':>11}{'bundled':>11}"
        f"{'even with a':>14}",
        f"{'':<13}{'':>6}{'':>11}{'':>20}{PHOTONIC['setup_printed']:>19}{PHOTONIC['setup_measured']:>19}{'':>22}"
        f"{'mesh link of':>14}",
    ]
    for row in rows:
        cells = [row.electrical_s, row.printed_s, row.measured_s]
        shown = "".join(f"{format_time(s):>11} {1 - row.compute_s / s:>7.1%}" for s in cells)
        later = f"{format_time(row.standing_s):>11}{format_time(row.bundled_s):>11}"
        even = f"{format_bandwidth(row.even_bandwidth):>14}"
        lines.append(f"{row.model:<13}{row.batch_size:>6}{format_time(row.compute_s):>11} {shown}{later}{even}")
    return "\n".join(lines)


def figure(rows: list[Row], bandwidth: float, path: Path) -> None:
    """Bars of all models, and what the unknown bandwidth of the mesh does to the one that the paper names."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "photonic"})
    from matplotlib import pyplot

    drawn, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.4), width_ratios=(3, 2), layout="constrained")
    kinds = (
        ("mesh", "electrical_s", "#b5651d"),
        (f"photonic, set-up {PHOTONIC['setup_printed']}", "printed_s", "#5b8ab5"),
        (f"photonic, set-up {PHOTONIC['setup_measured']}", "measured_s", "#1f4e79"),
    )
    for offset, (label, of, colour) in enumerate(kinds):
        places = [i + 0.27 * (offset - 1) for i in range(len(rows))]
        heights = [getattr(row, of) / row.compute_s for row in rows]
        left.bar(places, heights, 0.25, color=colour, label=label)
    left.axhline(1, color="black", lw=0.8, ls=":")
    left.set_yscale("log")
    left.set_xticks(range(len(rows)), [row.model for row in rows], rotation=25, ha="right")
    left.set_ylabel("iteration time / compute time")
    left.set_title(f"mesh links of {format_bandwidth(bandwidth)}")
    left.legend(frameon=False)

    named = next(row for row in rows if row.model == ELECTRICAL["model"])
    carried = (named.electrical_s - named.compute_s) * bandwidth
    bandwidths = [1e8 * 10 ** (i / 20) for i in range(71)]
    right.plot([b / 1e9 for b in bandwidths], [carried / b / (named.compute_s + carried / b) for b in bandwidths],
               color="#b5651d", label="mesh")  # fmt: skip
    for label, of, colour in kinds[1:]:
        seconds = getattr(named, of)
        right.axhline(1 - named.compute_s / seconds, color=colour, label=label)
    right.plot([bandwidth / 1e9], [ELECTRICAL["communication_share"]], "o", color="#b5651d")
    right.annotate(f"{ELECTRICAL['communication_share']:.2%}, the paper", (bandwidth / 1e9, 0.9221),
                   xytext=(8, -2), textcoords="offset points")  # fmt: skip
    right.set_xscale("log")
    right.set_xlabel("bandwidth of a mesh link, GB/s")
    right.set_ylabel("share of communication")
    right.set_title(named.model)
    right.legend(frameon=False)
    drawn.savefig(path, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> None:
    """Print the table; write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(STUDY["batch_size"]), help="names, comma separated")
    parser.add_argument("--figure", type=Path, help="draw it (needs matplotlib)")
    parser.add_argument("--json", type=Path, help="write the rows")
    options = parser.parse_args(arguments)
    models = [name.strip() for name in options.models.split(",")]
    strange = [name for name in models if name not in STUDY["batch_size"]]
    if strange:
        parser.error(f"no batch size for {strange[0]!r} in wafer.toml: known are {', '.join(STUDY['batch_size'])}")
    if options.figure and ELECTRICAL["model"] not in models:
        parser.error(f"the figure shows {ELECTRICAL['model']}: name it among --models")
    bandwidth = paper_bandwidth()
    rows = [compare(model, bandwidth) for model in models]
    print(table(rows, bandwidth))
    if options.json:
        written = {"mesh_link_bandwidth": bandwidth, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        figure(rows, bandwidth, options.figure)


if __name__ == "__main__":
    try:
        main()
    except triosim.InputError as error:
        sys.exit(f"photonic.py: {error}")
