"""Dollars, grams and litres of a job: from device hours and joules to money, carbon and water.

Money is rent (``device hours x price``) or, of one's own machines, what they cost over the hours that they work::

    capital = (device + host + network) / (life x use)         per device hour
    total   = capital + staff + facility kWh x price of electricity

Carbon of operation is facility energy times the grid's intensity: location-based what the grid there emits,
market-based what is left when carbon-free electricity was bought.  Embodied carbon is the hardware's over its life
(Software Carbon Intensity: ``M = total x time / life``), the hardware after ACT (Gupta et al., ISCA 2022)::

    die = area / yield x (EPA x grid of the fab + GPA + MPA)

or what a published life-cycle study has for the product.  Water is IT energy times the facility's WUE, its
operator's where the table has it.

Each figure has a 90 % interval.  Its causes are the time, what it takes at that time, and every constant of the table
that has one; each is moved alone to the ends of its own interval, through all figures at once, and what that does to a
figure's logarithm is added up in squares, upwards and downwards apart.  Prices of rent and what the user gives are
taken at their word.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.energy.constants import Constant, EnergyConstants, table
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator

J_PER_KWH = 3.6e6
HOURS_PER_YEAR = 8766.0
SECONDS_PER_HOUR = 3600.0
MODES = ("list", "reserved", "spot", "own")
"""Ways to pay: rent at the list price, reserved or interruptible, or machines of one's own."""
NODES_NM = (28.0, 20.0, 14.0, 10.0, 8.0, 7.0, 5.0, 3.0)
"""Processes that ACT has."""
_CLASSES = {"4N": 5.0, "4NP": 5.0, "Intel7": 10.0, "Intel3": 5.0, "5/6nm": 5.0, "3/6nm": 3.0, "Intel7/N5": 5.0}
"""Names of processes that are no number of nanometres, and the process of ACT that is of their class."""


@dataclass(frozen=True)
class CostOptions:
    """What is asked of the cost of a job.

    Attributes:
        at: place or region of the grid, as ``grid.*`` of the table has it; not beside ``grid_g_per_kwh``.
        grid_g_per_kwh: intensity of the grid by the hour, from the beginning of the job on and then again; empty for
            that of ``at``.
        grid_source: where those are from.
        market: part of the electricity that is bought as carbon-free; None for the table's.
        pue: of the facility; None for what the prediction has, else the table's.
        operator: company that runs the facility, whose water ``wue.*`` of the table may have; empty for nobody known.
        price_per_hour: dollars of a device hour, rented at the list price; None for the catalog's.
        mode: of :data:`MODES`.
        tokens: of the whole job, None where it is not a job of tokens.
        overrides: constants beside the table's.
    """

    at: str = "world"
    grid_g_per_kwh: tuple[float, ...] = ()
    grid_source: str = ""
    market: float | None = None
    pue: float | None = None
    operator: str = ""
    price_per_hour: float | None = None
    mode: str = "list"
    tokens: float | None = None
    overrides: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """What a job uses in one of its units of work.

    Attributes:
        devices: names of the devices, and how many of each.
        known: devices as the user describes them, or a result does; others are those of the catalog, and of a name that
            it does not have nothing is known.
        hours: of one unit.
        it_j: joules of the nodes in one unit.
        pue: that the prediction has, None where it has none.
        unit: ``"iteration"``; ``"job"`` where the hours are those of a whole job, ``"run"`` of a fleet under traffic,
            ``"batch"`` of requests that run alone.
        samples, tokens: in one unit, None where not known.
        sample: what a sample is called: ``"sample"``, ``"image"`` or ``"request"``.
        token: what a million tokens are called.
        hours_spread, it_spread: natural logarithm of the factor of the 90 % interval of the hours, and of the joules
            at these hours.
        timed: part of the joules that is drawn for as long as it takes.
        remarks: what is not in the figures, a sentence each.
    """

    devices: tuple[tuple[str, float], ...]
    hours: float
    it_j: float
    pue: float | None = None
    unit: str = "iteration"
    samples: float | None = None
    tokens: float | None = None
    sample: str = "sample"
    token: str = "million tokens"
    hours_spread: float = 0.0
    it_spread: float = 0.0
    timed: float = 1.0
    remarks: tuple[str, ...] = ()
    known: tuple[Accelerator, ...] = ()

    @property
    def count(self) -> float:
        """Devices of all kinds."""
        return sum(count for _, count in self.devices)


@dataclass(frozen=True)
class CostRow:
    """What one unit of work costs.

    Attributes:
        unit: ``"iteration"``, ``"job"``, ``"million tokens"``, ``"image"``, ``"request"`` or ``"sample"``.
        hours: it takes.
        device_hours: that times the devices.
        it_kwh, facility_kwh: energy of the nodes, and with cooling and distribution.
        usd: all of ``usd_parts``; None where a price is not known.
        usd_parts: ``rent``; or ``devices``, ``host``, ``network``, ``staff`` and ``electricity``.
        location_kg, market_kg: carbon dioxide equivalents of operation, by what the grid emits and what was bought.
        embodied_kg: its part of what making the hardware emitted.
        water_l: litres that cooling evaporates.
        interval: ends of the 90 % interval of each of :data:`UNCERTAIN` that is above zero.
    """

    unit: str
    hours: float
    device_hours: float
    it_kwh: float
    facility_kwh: float
    usd: float | None
    usd_parts: Mapping[str, float]
    location_kg: float
    market_kg: float
    embodied_kg: float
    water_l: float
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """What a job costs.

    Attributes:
        rows: a row for each unit of work.
        mode: how it is paid.
        place: whose grid it is.
        pue: of the facility.
        sources: each constant that was used, one sentence each.
        price_per_hour: of a device, where it was given; then ``mode`` says nothing.
    """

    rows: tuple[CostRow, ...]
    mode: str
    place: str
    pue: float
    sources: tuple[str, ...]
    price_per_hour: float | None = None


def cost(usage: Usage, options: CostOptions | None = None) -> Cost:
    """What a job costs, in each of its units.

    Args:
        usage: what it uses.
        options: where it runs, and how it is paid.

    Raises:
        InputError: an option makes no sense.
    """
    options = options or CostOptions()
    check(options)
    return _Costing(usage, options, EnergyConstants(dict(options.overrides))).run()


def check(options: CostOptions) -> None:
    """Refuse what makes no sense.

    Raises:
        InputError: with what to give instead.
    """
    if options.mode not in MODES:
        raise unknown("way to pay", options.mode, MODES)
    if options.pue is not None and not 1 <= options.pue < math.inf:
        raise InputError(f"a PUE must be at least 1 (what a facility takes over its nodes), got {options.pue:g}")
    for value in options.grid_g_per_kwh:
        if not 0 <= value < math.inf:
            raise InputError(f"the intensity of a grid must be at least 0 g/kWh, got {value:g}")
    if options.market is not None and not 0 <= options.market <= 1:
        raise InputError(f"the part that is bought as carbon-free must be 0 to 1, got {options.market:g}")
    if options.price_per_hour is not None and not 0 <= options.price_per_hour < math.inf:
        raise InputError(f"a price must be at least 0, got {options.price_per_hour:g}")
    if options.price_per_hour is not None and options.mode != "list":
        raise InputError(
            f"a price of an hour that is given is what an hour costs, and not that of {options.mode}: give only one of "
            "--price and --pay"
        )
    if options.grid_g_per_kwh and options.at != CostOptions.at:
        raise InputError(f"the grid of {options.at} and one that is given both say the intensity: give only one")
    if options.tokens is not None and not 0 < options.tokens < math.inf:
        raise InputError(f"tokens of a job must be above 0, got {options.tokens:g}")


@dataclass
class _Costing:
    """The sums of one job."""

    usage: Usage
    options: CostOptions
    constants: EnergyConstants
    devices: Sequence[tuple[Accelerator, float]] = ()

    def run(self) -> Cost:
        known = {device.name: device for device in self.usage.known}
        self.devices = [(known.get(name) or _device(name), count) for name, count in self.usage.devices]
        options, pue = self.options, self.pue()
        rows = [self._row(name, factor) for name, factor in self._units()]
        factors = self._interval()
        rows = [replace(row, interval=_ends(row, factors)) for row in rows]
        place = options.grid_source or options.at
        return Cost(tuple(rows), options.mode, place, pue, self._sources(), options.price_per_hour)

    def pue(self) -> float:
        """Of the facility: as given, else the table's."""
        given = self.options.pue if self.options.pue is not None else self.usage.pue
        usual = self.options.pue is None and given == table()["facility.pue"].value
        return self.constants.value("facility.pue") if given is None or usual else given

    def _units(self) -> list[tuple[str, float]]:
        """Names of the units, and how many of the usage's each is."""
        usage, options = self.usage, self.options
        found = [(usage.unit, 1.0)]
        if options.tokens is not None:
            if not usage.tokens:
                why = "the hours are of a whole job already" if usage.unit == "job" else "this workload has no tokens"
                raise InputError(f"tokens say how often the iteration of a job runs, and {why}: leave --tokens out")
            found.append(("job", options.tokens / usage.tokens))
        if usage.tokens:
            found.append((usage.token, 1e6 / usage.tokens))
        if usage.samples:
            found.append((usage.sample, 1.0 / usage.samples))
        return found

    def _row(self, unit: str, factor: float) -> CostRow:
        hours, it_kwh = self.usage.hours * factor, self.usage.it_j * factor / J_PER_KWH
        parts = self._dollars(hours, it_kwh)
        return CostRow(
            unit=unit,
            hours=hours,
            device_hours=hours * self.usage.count,
            it_kwh=it_kwh,
            facility_kwh=self.facility_kwh(hours, it_kwh),
            usd=math.fsum(parts.values()) if parts else None,
            usd_parts=parts,
            location_kg=self.location_kg(hours, it_kwh),
            market_kg=self.market_kg(hours, it_kwh),
            water_l=self.water_l(hours, it_kwh),
            embodied_kg=self.embodied_kg(hours, it_kwh),
        )

    # --- intervals ----------------------------------------------------------------------------------------------------

    def _interval(self) -> dict[str, tuple[float, float]]:
        """By how much each figure may be below and above, as factors; they are those of all units."""
        uses = [_Costing(used, self.options, self.constants, self.devices) for used in self._other_uses()]
        found = {}
        for name, figure in UNCERTAIN.items():
            alone = _Costing(self.usage, self.options, EnergyConstants(self.constants.overrides), self.devices)
            base = alone._of_usage(figure)
            if not base:
                continue
            others = [other._of_usage(figure) for other in uses]
            read = alone.constants.used  # of the constants only those that the figure reads, one after the other
            for one, constant in tuple(read.items()):
                for moved in _at_ends(constant):
                    read[one] = moved
                    others.append(alone._of_usage(figure))
                read[one] = constant
            below = above = 0.0
            for other in others:
                off = math.log((other or 0.0) / base)
                below, above = below + off**2 * (off <= 0), above + off**2 * (off > 0)
            found[name] = math.exp(-math.sqrt(below)), math.exp(math.sqrt(above))
        return found

    def _of_usage(self, figure: _Figure) -> float | None:
        return figure(self, self.usage.hours, self.usage.it_j / J_PER_KWH)

    def _other_uses(self) -> Iterator[Usage]:
        """The usage with its time, or what it takes at that time, at an end of its interval."""
        usage = self.usage
        for sign in (-1, 1):
            if usage.hours_spread:
                longer = math.exp(sign * usage.hours_spread)
                joules = usage.it_j * (1 + usage.timed * (longer - 1))
                yield replace(usage, hours=usage.hours * longer, it_j=joules)
            if usage.it_spread:
                yield replace(usage, it_j=usage.it_j * math.exp(sign * usage.it_spread))

    # --- energy, carbon of operation, water ---------------------------------------------------------------------------

    def facility_kwh(self, hours: float, it_kwh: float) -> float:
        """Energy with cooling and distribution."""
        return it_kwh * self.pue()

    def location_kg(self, hours: float, it_kwh: float) -> float:
        """What the grid there emits."""
        return self.facility_kwh(hours, it_kwh) * self._intensity(hours) / 1000

    def market_kg(self, hours: float, it_kwh: float) -> float:
        """What is left of that when carbon-free electricity was bought."""
        market = self.options.market if self.options.market is not None else self.constants.value("grid.market")
        return self.location_kg(hours, it_kwh) * (1 - market)

    def water_l(self, hours: float, it_kwh: float) -> float:
        """What cooling evaporates."""
        return it_kwh * self.constants.value(_wue(self.options))

    def _intensity(self, hours: float) -> float:
        """Grams of a kWh, mean over the hours from the beginning of the job."""
        found = self.options.grid_g_per_kwh
        if not found:
            return self.constants.value(grid_name(self.options.at))
        rounds, rest = divmod(hours, len(found))
        if rounds >= 1 or hours <= 0:
            whole = math.fsum(found) * rounds
        else:
            whole = 0.0
        left = math.fsum(value * min(1.0, rest - hour) for hour, value in enumerate(islice(found, math.ceil(rest))))
        return (whole + left) / hours if hours > 0 else math.fsum(found) / len(found)

    # --- money --------------------------------------------------------------------------------------------------------

    def usd(self, hours: float, it_kwh: float) -> float | None:
        """All dollars; None where a price is not known."""
        parts = self._dollars(hours, it_kwh)
        return math.fsum(parts.values()) if parts else None

    def _dollars(self, hours: float, it_kwh: float) -> dict[str, float]:
        """Dollars by what they are for; nothing where a price is not known."""
        options, constants = self.options, self.constants
        if options.mode != "own":
            share = 1.0 if options.mode == "list" else constants.value(f"rent.{options.mode}")
            rents = [(self._rent(device), count) for device, count in self.devices]
            known = [rent * count for rent, count in rents if rent is not None]
            return {"rent": hours * share * math.fsum(known)} if len(known) == len(rents) else {}
        if any(device.tdp_w is None and _family("price", device.name) is None for device, _ in self.devices):
            return {}
        facility_kwh = self.facility_kwh(hours, it_kwh)
        life = constants.value("life.years") * HOURS_PER_YEAR * constants.value("life.use")
        devices = math.fsum(count * self._price(device) for device, count in self.devices)
        host, network = (devices * constants.value(f"price.{what}") for what in ("host", "network"))
        staff = (devices + host + network) * constants.value("price.staff") * constants.value("life.years")
        parts = {"devices": devices, "host": host, "network": network, "staff": staff}
        spent = {name: price * hours / life for name, price in parts.items()}
        return {**spent, "electricity": facility_kwh * constants.value("price.electricity")}

    def _rent(self, device: Accelerator) -> float | None:
        """Price of a device hour, None where it is not known."""
        asked = self.options.price_per_hour
        return device.price_per_hour if asked is None else asked

    def _price(self, device: Accelerator) -> float:
        """What a device costs to buy."""
        named = _family("price", device.name)
        if named is not None:
            return self.constants.value(named)
        return self.constants.value("price.watt") * (device.tdp_w or 0.0)

    # --- carbon -------------------------------------------------------------------------------------------------------

    def embodied_kg(self, hours: float, it_kwh: float) -> float:
        """Kilograms of the hardware's making that fall to these hours."""
        constants = self.constants
        life = constants.value("life.years") * HOURS_PER_YEAR * constants.value("life.use")
        server = constants.value("embodied.server")
        total = math.fsum(count * (self.device_kg(device) + server) for device, count in self.devices)
        return total * hours / life

    def device_kg(self, device: Accelerator) -> float:
        """Kilograms that making a device emitted: as published, else die, memory and package after ACT."""
        named = _family("product", device.name)
        if named is not None:
            return self.constants.value(named)
        node = process(device.process)
        epa, gpa = (self._of_process(what, node) for what in ("epa", "gpa"))
        area = self.constants.first(_family("die", device.name) or "", "die.other").value / 100
        grams = epa * self.constants.value("embodied.fab-grid") * 1000 + gpa + self.constants.value("mpa.any")
        die = area / self.constants.value("embodied.yield") * grams / 1000
        kind = next((k for k in ("HBM", "GDDR", "LPDDR", "DDR", "SRAM") if k in device.memory_type.upper()), "other")
        gigabytes = (device.memory_bytes or 0) / 2**30
        memory = gigabytes * self.constants.value(f"embodied.{kind}") / 1000
        return die + memory + self.constants.value("embodied.packaging")

    def _of_process(self, what: str, node: float) -> float:
        """A figure of ACT for a process; that of the nearest process that it has."""
        has = [size for size in NODES_NM if f"{what}.{size:g}nm" in table()]
        nearest = min(has, key=lambda size: abs(math.log(size / node)))
        return self.constants.value(f"{what}.{nearest:g}nm")

    def _sources(self) -> tuple[str, ...]:
        found = list(self.constants.sources())
        if self.options.mode != "own":
            found += [self._rent_words(device) for device, _ in self.devices]
        if self.options.grid_g_per_kwh:
            found.append(f"grid by the hour: {self.options.grid_source}")
        return tuple(dict.fromkeys((*found, *self.usage.remarks)))

    def _rent_words(self, device: Accelerator) -> str:
        """Where the price of a device hour is from, one sentence."""
        name, rent = device.name or "the device", self._rent(device)
        if rent is None:
            return f"rent of {name}: not known, give --price (for example 2/h) or --pay own"
        where = "list price in the catalog of devices"
        if self.options.price_per_hour is not None:
            where = "as given"
        elif rent != _device(device.name).price_per_hour:
            where = "as its description has it"
        return f"rent of {name}: {rent:g} USD/h, {where}"


_Figure = Callable[[_Costing, float, float], float | None]
"""A figure of a row, by hours and energy of the nodes in kilowatt-hours."""
UNCERTAIN: Mapping[str, _Figure] = {
    "facility_kwh": _Costing.facility_kwh, "usd": _Costing.usd, "location_kg": _Costing.location_kg,
    "market_kg": _Costing.market_kg, "embodied_kg": _Costing.embodied_kg, "water_l": _Costing.water_l,
}  # fmt: skip
"""Figures of a row that have an interval."""


@functools.lru_cache(1024)
def _at_ends(constant: Constant) -> tuple[Constant, ...]:
    """A constant at the ends of its interval, those that differ from it."""
    return tuple(replace(constant, value=value) for value in {constant.low, constant.high} - {constant.value})


def _ends(row: CostRow, factors: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The intervals of a row."""
    return {name: (getattr(row, name) * low, getattr(row, name) * high) for name, (low, high) in factors.items()}


def _device(name: str) -> Accelerator:
    return catalog.accelerator(name) if name and catalog.has_accelerator(name) else Accelerator(name)


@functools.lru_cache(1024)
def _family(what: str, name: str) -> str | None:
    """The row of the table for a device: that of the longest beginning of its name which has one."""
    words = name.split("-")
    rows = table()
    tried = ("-".join(words[:n]) for n in range(len(words), 0, -1))
    return next((row for row in (f"{what}.{one}" for one in tried) if row in rows), None)


def process(name: str) -> float:
    """Nanometres of a process by its name; 7 where that says nothing."""
    if name in _CLASSES:
        return _CLASSES[name]
    match = re.search(r"(\d+(?:\.\d+)?) ?nm", name)
    return float(match[1]) if match else 7.0


@functools.lru_cache(1024)
def grid_name(place: str) -> str:
    """The row of the table for the grid of a place, whatever its case.

    Raises:
        InputError: there is none.
    """
    known = _grids()
    found = known.get(place.strip().lower().replace(" ", "-").replace(".", ""))
    if found is None:
        raise unknown("place", place, known, "(or give --grid with g/kWh)")
    return found


@functools.cache
def _grids() -> dict[str, str]:
    """Rows of grids by their places, as people may type them."""
    known = {name.removeprefix("grid.").lower(): name for name in table() if name.startswith("grid.")}
    known.pop("market", None)
    return known


def _wue(options: CostOptions) -> str:
    """The row of the table for the water of the facility; what is given for any facility goes first."""
    own = f"wue.{options.operator}"
    return own if own in table() and "facility.wue" not in dict(options.overrides) else "facility.wue"


def operator(text: str | None) -> str:
    """The company that a PUE is named by; empty where it is a number or none."""
    found = (text or "").strip().lower()
    return found if f"pue.{found}" in table() else ""


def facility_pue(text: str, constants: Mapping[str, float] | None = None) -> float:
    """A PUE from a number, or from the name of a company in the table (``google``).

    Raises:
        InputError: it is neither, or below 1.
    """
    row = f"pue.{text.strip().lower()}"
    if row in table():
        return EnergyConstants(constants or {}).value(row)
    try:
        value = float(text)
    except ValueError:
        known: Sequence[str] = [name.removeprefix("pue.") for name in table() if name.startswith("pue.")]
        raise unknown("PUE", text, known, "(or give a number such as 1.1)") from None
    if not 1 <= value < math.inf:
        raise InputError(f"a PUE must be at least 1 (what a facility takes over its nodes), got {value:g}")
    return value
