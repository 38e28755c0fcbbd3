"""Published trainings from their device hours: energy, carbon and money, one command each.

    python -m validation.judge.jobs --data FOLDER|published_jobs.csv [--json FILE] [--no-own]

Published figures are nominal power x hours, so they test bookkeeping and no power model.  Where a source names no grid,
the intensity is what its figures imply: 423.5 g/kWh (Llama 2) and 413.7 g/kWh (Llama 3.1).  The last line is a power
model's: Llama-2-7B's 2e12 tokens on A100 from predicted times and power, against the published hours at 400 W.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validation import command

from triosim.energy.cost import Cost, CostOptions, cost
from triosim.energy.usage import nominal

IMPLIED = {"Llama-2": 423.5, "Llama-3.1": 413.7}
"""Intensity of the grid where the source states none, by the beginning of the job's name."""
COLUMNS = (
    "job", "device", "device_hours", "kw_per_device", "pue", "grid_g_per_kwh", "energy_mwh_published",
    "co2e_t_published", "usd_published",
)  # fmt: skip
LLAMA_2_7B_MWH = 73.7
"""184,320 hours at 400 W."""


@dataclass(frozen=True)
class Line:
    """One figure: predicted and published."""

    job: str
    what: str
    predicted: float
    published: float


def _number(text: str) -> float | None:
    return float(text) if text else None


def lines(path: Path) -> list[Line]:
    """A line for each published figure of each job with hours."""
    found = []
    for row in command.rows(path, *COLUMNS):
        hours = _number(row["device_hours"])
        if hours is None:
            continue
        watts = 1000 * (_number(row["kw_per_device"]) or 0.0)
        grid = _number(row["grid_g_per_kwh"])
        if grid is None:
            grid = next((value for name, value in IMPLIED.items() if row["job"].startswith(name)), 0.0)
        dollars = _number(row["usd_published"])
        price = 2.0 if "2 USD per hour" in row["job"] else None
        options = CostOptions(
            grid_g_per_kwh=(grid,), grid_source="the job's", pue=_number(row["pue"]) or 1.0, price_per_hour=price
        )
        job = _of(cost(nominal(row["device"].split("-")[0], hours, watts), options))
        for what, predicted, published in (
            ("MWh", job["MWh"], _number(row["energy_mwh_published"])),
            ("t CO2e", job["t CO2e"], _number(row["co2e_t_published"])),
            ("USD", job["USD"], dollars),
        ):
            if published is not None and predicted is not None:
                found.append(Line(row["job"], what, predicted, published))
    return found


def _of(found: Cost) -> dict[str, float | None]:
    row = found.rows[0]
    return {"MWh": row.facility_kwh / 1000, "t CO2e": row.location_kg / 1000, "USD": row.usd}


def own() -> list[Line]:
    """Llama-2-7B from predicted times and power: what devices take, and whole nodes."""
    import triosim
    from triosim import Plan

    step, system = triosim.model("llama-2-7b", sequence_length=4096), triosim.system("dgx-a100")
    result = triosim.simulate(step, system, Plan(batch_size=4, micro_batches=4, zero=3))
    assert result.energy is not None
    assert result.throughput.tokens_per_s is not None
    iterations = 2e12 / (result.throughput.tokens_per_s * result.iteration_time_s)
    devices, nodes = (x * iterations / 3.6e9 for x in (result.energy.devices_j, result.energy.node_j))
    return [
        Line("Llama-2-7B, own times, devices alone", "MWh", devices, LLAMA_2_7B_MWH),
        Line("Llama-2-7B, own times, whole nodes", "MWh", nodes, LLAMA_2_7B_MWH),
    ]


def main() -> None:
    """Print the table."""
    parser = command.parser(__doc__, "published_jobs.csv, or a folder that has it")
    parser.add_argument("--no-own", action="store_true", help="leave out the training from predicted times")
    options = parser.parse_args()
    path = command.find(options.data, "energy/published_jobs.csv")
    found = lines(path) + ([] if options.no_own else own())
    print(f"{'job':42}{'':8}{'predicted':>14}{'published':>14}{'ratio':>8}")
    for line in found:
        ratio = line.predicted / line.published
        print(f"{line.job[:41]:42}{line.what:8}{line.predicted:14,.2f}{line.published:14,.2f}{ratio:8.4f}")
    command.write(options.json, [vars(line) for line in found])


if __name__ == "__main__":
    command.run(main)
