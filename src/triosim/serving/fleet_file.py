"""Fleets of several pools in a TOML file.

::

    system = "dgx-h100"            # all pools on one machine, one after another; or each pool names its own
    nodes = 2
    router = "least-outstanding"
    transfer = "layers"            # of KV caches from pools that prefill to those that decode: whole, layers, none
    order = "decode-first"         # or prefill-first
    turn = "10s"                   # of models that share devices

    [network]                      # between pools that have machines of their own
    link = "50GB/s"
    latency = "5us"

    [[pool]]
    name = "prompts"
    role = "prefill"               # prefill, decode or both
    model = "llama-3-8b"
    tp = 2
    replicas = 2
    clock = "1200 MHz"             # of its devices at most; power_cap = "400 W"
    shares = "others"              # takes turns on the devices of the pool of that name, which is above

Keys are the options of ``triosim serve`` without their dashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from math import inf
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import AtLeast, configured
from triosim.core.units import parse_time
from triosim.hardware import machine
from triosim.hardware.system import System
from triosim.serving.deployment import Deployment
from triosim.serving.pool import Pool
from triosim.serving.pool_options import Count, PoolOptions, pool_of

_MACHINE = ("system", "nodes", "device", "devices", "topology", "link", "latency")


@dataclass(frozen=True)
class _Machine:
    """Where something runs, as :func:`triosim.hardware.machine.system` takes it."""

    system: str | None = None
    nodes: Count | None = None
    device: str | None = None
    devices: Count | None = None
    topology: str | None = None
    link: str | None = None
    latency: str | None = None


@dataclass(frozen=True)
class _Pool(_Machine, PoolOptions):
    """A table of ``[[pool]]``."""

    name: str = ""
    role: str = "both"
    model: str | None = None
    shares: str = ""


@dataclass(frozen=True)
class _Fleet(_Machine):
    """The file but for its pools."""

    model: str | None = None
    router: str = "round-robin"
    router_option: Mapping[str, str] = field(default_factory=dict)
    transfer: str = "whole"
    order: str = "prefill-first"
    idle_ok: bool = False
    local_prefill: Annotated[int, AtLeast(0)] = 0
    seed: Annotated[int, AtLeast(0)] = 0
    turn: str | None = None


def is_fleet(name: str) -> bool:
    """Whether what the user names is a file of a fleet; one that says its ``family`` configures a model."""
    if not name.lower().endswith(".toml"):
        return False
    try:
        return "family" not in guarded.values(Path(name))
    except InputError:  # which the reader of fleets tells
        return True


def fleet_file(path: str | PathLike[str]) -> Deployment:
    """The deployment that a file (TOML) describes.

    Raises:
        InputError: it is no such file, a key is not known or its value makes no sense, or the machines do not hold
            the pools.
    """
    with _named(str(path), str(path)):
        return _deployment(Path(path))


@contextmanager
def _named(file: str, where: str) -> Iterator[None]:
    """Say of an input error where it is, unless it names the file already."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(file) else f"{where}: {error}") from None


def _deployment(path: Path) -> Deployment:
    table = guarded.document(path, "a table with [[pool]]")
    pools, network = table.pop("pool", None), table.pop("network", None)
    if not isinstance(pools, list) or not pools or not all(isinstance(pool, dict) for pool in pools):
        raise InputError(f"{path}: there is no pool: give at least one table [[pool]]")
    whole = _options(_Fleet, table, f"{path}")
    read = [_options(_Pool, pool, f"{path}: pool {place + 1}") for place, pool in enumerate(pools)]
    together = _has_machine(whole)
    _check_sharing(read, whole, path)
    for place, pool in enumerate(read):
        if not pool.shares and together == _has_machine(pool):
            cure = "name it once" if together else "name a system or a device, for it or for all pools"
            raise InputError(f"{path}: pool {place + 1} has {'two machines' if together else 'no machine'}: {cure}")
        if pool.model is None and whole.model is None:
            raise InputError(f"{path}: pool {place + 1} has no model: name one")
    shared = _system(whole, sum(pool.size for pool in read if not pool.shares)) if together else None
    made: list[Pool] = []
    first = 0
    for place, pool in enumerate(read):
        with _named(str(path), f"{path}: pool {place + 1}"):
            if pool.shares:
                other = next(one for one in made if one.name == pool.shares)
                made.append(_pool(pool, whole.model, other.system, other.first, place))
                continue
            made.append(_pool(pool, whole.model, shared or _system(pool, pool.size), first if together else 0, place))
            first += pool.size
    between = None
    if network is not None:
        if not isinstance(network, dict) or together:
            raise InputError(f"{path}: [network] joins pools that have machines of their own: leave it out")
        lines = _options(_Machine, network, f"{path}: network")
        if lines.device or lines.devices:
            raise InputError(f"{path}: network: the pools say which devices there are: leave device and devices out")
        if lines.link is None and lines.system is None:
            raise InputError(f'{path}: network: it has no link: give one, as link = "50GB/s"')
        with _named(str(path), f"{path}: network"):
            between = _system(lines, first)
    elif not together and any(pool.role != "both" for pool in read) and whole.transfer != "none":
        raise InputError(
            f"{path}: nothing joins the machines of the pools, which send each other KV caches: give [network] a link "
            "and a latency, or put all pools on one system"
        )
    return Deployment(
        tuple(made), whole.router, whole.router_option, whole.seed, between, whole.transfer, whole.order,
        whole.local_prefill, whole.idle_ok, inf if whole.turn is None else parse_time(whole.turn, f"{path}: turn"),
    )  # fmt: skip


def _check_sharing(pools: Sequence[_Pool], whole: _Fleet, path: Path) -> None:
    """Whether pools that are on the devices of others name these.

    Raises:
        InputError: one does not, or none does and there are turns.
    """
    for place, pool in enumerate(pools):
        if not pool.shares:
            continue
        others = [one.name for one in pools[:place] if not one.shares and one.name]
        if pool.shares not in others:
            names = f"one of {', '.join(others)}" if others else "a pool above that has a name"
            raise InputError(f"{path}: pool {place + 1} shares the devices of {quoted(pool.shares)}: give {names}")
        if _has_machine(pool):
            raise InputError(
                f"{path}: pool {place + 1} shares the devices of {pool.shares}: leave its own system or device out"
            )
    if whole.turn is not None and not any(pool.shares for pool in pools):
        raise InputError(f"{path}: turn is of pools that share devices, and none does: leave it out")


def _options(kind: Any, table: dict[str, Any], where: str) -> Any:
    """Tables of options stay texts, as they are typed on the command line; a list of NAME=VALUE is one too."""
    taken = {key: value for key, value in table.items() if not isinstance(value, dict)}
    for key in ("engine-option", "engine_option", "router-option", "router_option"):
        given = table.get(key)
        if isinstance(given, dict):
            taken[key] = {name: str(value) for name, value in given.items()}
        elif given is not None:
            texts = given if isinstance(given, list) else [given]
            pairs = [text.partition("=") for text in texts if isinstance(text, str)]
            if len(pairs) < len(texts) or not all(name.strip() and value for name, _, value in pairs):
                raise InputError(f'{where}: {key} is {quoted(given)}: give a table, as {{ max-tokens = "2048" }}')
            taken[key] = {name.strip(): value.strip() for name, _, value in pairs}
    known = {one.name for one in fields(kind)}
    for key, value in table.items():
        if key not in taken and key.replace("-", "_") in known:
            raise InputError(f"{where}: {key} is a table of {len(value)} keys: give a value")
        taken.setdefault(key, value)
    return configured(kind, taken, where)


def _has_machine(own: _Machine) -> bool:
    return own.system is not None or own.device is not None


def _system(own: _Machine, at_least: int) -> System:
    given = {key: getattr(own, key) for key in _MACHINE[1:]}
    return machine.system(own.system, at_least=at_least, **given)


def _pool(own: _Pool, model: str | None, system: System, first: int, place: int) -> Pool:
    name = own.name or f"pool {place + 1}"
    served = own.model or model or ""
    return pool_of(own, served, system, first, name, own.role, own.shares, lambda key: f"{own.name or 'pool'}: {key}")
