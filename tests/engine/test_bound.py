"""Every function of the C++ modules refuses arrays that are not what it must be handed, with a ValueError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.engine.graphs import GB_PER_S, Builder, wires
from triosim.collectives.pattern import ring
from triosim.core.columns import Ragged
from triosim.engine.check import check
from triosim.engine.contention_free import MessageOp
from triosim.engine.graph import EngineNetwork, Graph
from triosim.engine.monte_carlo import play_many
from triosim.engine.solvers.circuit import CircuitRules
from triosim.engine.solvers.max_min import MaxMin
from triosim.memory.footprint import played
from triosim.network.rank_classes import RankClasses, Traffic, refined

_native = pytest.importorskip("triosim.engine._native", reason="no compiler was there at installation")
_allocator = pytest.importorskip("triosim.memory._allocator", reason="no compiler was there at installation")


def job() -> tuple[Graph, EngineNetwork]:
    """A graph in which every column has something to say."""
    b = Builder(tokens=[1, 0])
    first = b.compute(5, stream=0)
    second = b.compute(7, stream=1, before=[first])
    b.transfer(0, 100, stream=0, before=[first])
    b.put(1, before=[first])
    b.take(1, before=[second])
    b.collective(ring(3, 10, 4), [0, 1, 2], delay=3, streams=[2, 3, 4])
    b.compute(1, before=[first, second], need=1)
    return b.graph(), wires([GB_PER_S] * 3, [[0], [1], [2]], 5, [[1], [2], [1]])


def misaligned(column: np.ndarray) -> np.ndarray:
    room = np.zeros(column.nbytes + 1, np.uint8)
    shifted = room[1:].view(column.dtype).reshape(column.shape)
    shifted[...] = column
    return shifted


WRONG: dict[str, Callable[[np.ndarray], object]] = {
    "short": lambda a: a[:-1].copy(),
    "long": lambda a: np.concatenate([a, a[-1:]]),
    "empty": lambda a: a[:0].copy(),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backward": lambda a: a[::-1],
    "misaligned": misaligned,
    "other bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "one more dimension": lambda a: a[None],
    "no dimension": lambda a: np.array(0, a.dtype),
    "a list": lambda a: a.tolist(),
    "nothing": lambda a: None,
    "a number": lambda a: 7,
    "text": lambda a: "0 1 2",
    "floats": lambda a: a.astype(np.float32),
    "complex": lambda a: a.astype(np.complex128),
    "bools": lambda a: a.astype(bool),
    "narrow": lambda a: a.astype(np.int16),
    "unsigned": lambda a: a.astype(np.uint64),
    "objects": lambda a: a.astype(object),
}


def wrong(column: np.ndarray) -> Iterator[tuple[str, object]]:
    """What is handed in instead of a column."""
    for what, make in WRONG.items():
        yield what, make(column)
    yield from edited(column)


def readable(given: object, column: np.ndarray) -> bool:
    """Whether C++ can read it as it reads the column."""
    if not isinstance(given, np.ndarray):
        return False
    flat = given.flags.c_contiguous and given.flags.aligned and given.ndim == column.ndim
    return flat and given.dtype == column.dtype


def edited(column: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The column with one number that should not be there."""
    fits = np.finfo(column.dtype) if column.dtype.kind == "f" else np.iinfo(column.dtype)
    values = [-1, -2, len(column) + 1, 2**30, fits.min, fits.max, fits.max // 2]
    values += [np.nan, np.inf] if column.dtype.kind == "f" else []
    flat = column.reshape(-1)
    for at in {0, len(flat) // 2, len(flat) - 1}:
        for value in values:
            if not (column.dtype.kind == "i" and value > fits.max):
                changed = flat.copy()
                changed[at] = value
                yield f"{value} at {at}", changed.reshape(column.shape)


def columns(table: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """All columns of a table and of the tables in it."""
    for field in fields(table):  # type: ignore[arg-type]
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray):
            yield (*path, field.name), value
        elif isinstance(value, Ragged) or field.name == "pattern":
            yield from columns(value, (*path, field.name))
        elif field.name == "collectives":
            yield from columns(value[0], (*path, field.name))


def changed(table: object, path: tuple[str, ...], value: object) -> object:
    """The table with another column."""
    name, *more = path
    if more:
        inner = getattr(table, name)
        value = (
            (changed(inner[0], tuple(more), value),) if name == "collectives" else changed(inner, tuple(more), value)
        )
    return replace(table, **{name: value})  # type: ignore[type-var]


GRAPH, NETWORK = job()
KIND = np.where(GRAPH.kind == 0, 0, -1).astype(np.int32)
FACTORS, LINKS = np.array([[1.0, 2.0], [0.5, 1.0]]), np.array([1.0, 0.5])


def many(graph: object, network: object) -> object:
    return _native.play_many(graph, network, "max-min", KIND, FACTORS, LINKS)


def once(graph: object, network: object) -> object:
    return _native.play(graph, network, "max-min", True, True)


def in_python(graph: object, network: object) -> object:
    return _native.play(graph, network, MaxMin(), True, True)


@pytest.mark.parametrize("call", [once, many, in_python])
@pytest.mark.parametrize("which", ["graph", "network"])
def test_columns_of_graphs_and_networks(call: Callable[[object, object], object], which: str) -> None:
    call(GRAPH, NETWORK)
    table = GRAPH if which == "graph" else NETWORK
    for path, column in columns(table):
        for what, value in wrong(column):
            if (
                path[-1] == "count"
                and isinstance(value, np.ndarray)
                and value.dtype.kind == "i"
                and value.max(initial=0) > 2**20
            ):
                continue  # which would be played
            given = changed(table, path, value)
            pair = (given, NETWORK) if which == "graph" else (GRAPH, given)
            optional = path in {("need",), ("weights",)} and (value is None or np.size(value) == 0)
            if not refused(lambda pair=pair: call(*pair)):
                assert optional or readable(value, column), f"{path}: {what}"
                if not optional:  # to the engine one without rows is as good as none
                    check(*pair)


TRAFFIC = Traffic(
    np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([0, -1, -2]), np.array([3, 3, 4]),
    Ragged.of([[], [0], [0, 1]]), np.array([0, 1, 0]), Ragged.of([[0], [1, 2], [2]], np.int32), np.array([5, 5, 6]),
    Ragged.of([[0, 1, 2], [1]]),
)  # fmt: skip


def test_columns_of_traffic() -> None:
    assert next(column.tolist() for column in _native.refine(TRAFFIC)) == [0, 1, 2]
    for path, column in columns(TRAFFIC):
        for what, value in wrong(column):
            given = changed(TRAFFIC, path, value)
            if not refused(lambda given=given: _native.refine(given)):
                assert readable(value, column), f"{path}: {what}"
                cells, python = RankClasses(*_native.refine(given)), refined(given)  # type: ignore[arg-type]
                assert all(np.array_equal(getattr(cells, f.name), getattr(python, f.name)) for f in fields(cells))


PIECES = (
    np.array([0, 3, 5]), np.array([0, 0, int(MessageOp.SEND), int(MessageOp.RECEIVE), 0], np.int8),
    np.array([0, 1, 2, -1, 0], np.int8), np.array([0, 1, 2, -1, 3], np.int8), np.array([5, 7, 2, 0, 3]),
    np.array([0, 1, 0, 0, 0]), np.array([0, 0, 1, 2, 2, 3]), np.array([0, 1, 0], np.int32),
)  # fmt: skip
PLAYED = (
    np.array([0, 2, 4]), np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32), np.array([0, 1], np.int32),
    np.array([0, 1, 2]), np.array([0, 0]), np.array([0, 3]),
)  # fmt: skip


def test_columns_of_turns() -> None:
    """Two workers, two turns, a message each; a column that the native player takes is one that it can read."""
    assert _native.turns(PIECES, PLAYED, 3, 2)[-1]
    for which, table in enumerate((PIECES, PLAYED)):
        for at, column in enumerate(table):
            for what, value in wrong(column):
                given = [PIECES, PLAYED]
                given[which] = (*table[:at], value, *table[at + 1 :])  # type: ignore[assignment]
                if not refused(lambda given=given: _native.turns(*given, 3, 2)):
                    assert readable(value, column), f"{which}, {at}: {what}"


def test_columns_of_turns_that_meet() -> None:
    """Three stages that send to each other over one link; what is taken may be stuck, and is played to its end."""
    pieces = (
        np.array([0, 1, 3, 6]), np.array([2, 0, 2, 3, 3, 0], np.int8), np.array([2, 0, 2, -1, -1, 0], np.int8),
        np.array([100, 50, 100, 0, 0, 1]), np.ones(6), np.array([0, -1, 0, -1, -1, -1], np.int32),
        np.array([0, 0, 0, 1, 1, 1, 3]), np.array([0, 0, 1], np.int32), np.array([0, 0, 30, 0, 0, 0]),
        np.ones(6), np.array([0, 0, 0, 0, 0, 1]), np.array([0, 5, 0, 0, 0, 0]), np.array([0.0, 0.5, 1.0]),
    )  # fmt: skip
    played = (
        np.array([0, 1, 2, 3]), np.array([0, 1, 2], np.int32), np.zeros(3, np.int32), np.zeros(3, np.int64),
        np.array([0, 1, 2], np.int32), np.array([0, 1, 2, 4]), np.array([0, 1, 0, 1]), np.zeros(4, np.int32),
        np.array([2, 2, 0, 1], np.int32), np.array([7, 0, 0, 0]),
    )  # fmt: skip
    ways = (
        np.array([0, 1, 1]), np.zeros(1, np.int32), np.ones(1), np.array([1, 1, 1], np.int32), np.array([0, 1, 1]),
        np.array([1], np.int32), 1, np.zeros(3, np.int64),
    )  # fmt: skip
    tables: tuple[tuple[object, ...], ...] = (pieces, played, ways)
    taken = 0
    for which, table in enumerate(tables):
        for at, column in enumerate(table):
            for what, value in wrong(column) if isinstance(column, np.ndarray) else ():
                given = list(tables)
                given[which] = (*table[:at], value, *table[at + 1 :])
                if not refused(lambda given=given: _native.meeting(*given, 3, 8, 4)):
                    taken += 1
                    assert readable(value, column), f"{which}, {at}: {what}"
    assert taken


def test_columns_of_a_chain() -> None:
    lists = (np.array([0, 1, 1, 2]), np.array([0, 1], np.int32))
    step: tuple[object, ...] = (
        np.array([5, 7, 9]), np.array([1, 0, 2]), np.array([1, 1, 1]), np.array([0, 1, 0], np.int8), *lists, *lists,
        *lists, np.array([4, 6]), 0, 1.25,
    )  # fmt: skip
    rows, called, under_way = np.arange(3, dtype=np.int32), np.array([1, 0], np.int8), np.array([-1, 3])
    _native.chained(step, rows, called, under_way, False)
    for at, column in enumerate((*step[:11], rows, called, under_way)):
        assert isinstance(column, np.ndarray)
        for what, value in wrong(column):
            given = [*step[:11], rows, called, under_way]
            given[at] = value
            if not refused(lambda given=given: _native.chained((*given[:11], 0, 1.25), *given[11:], False)):
                assert readable(value, column), f"{at}: {what}"


def test_columns_of_replays() -> None:
    given = (KIND, *(np.ones(len(GRAPH)) for _ in ["fixed,", "shared"]), FACTORS, LINKS, np.array([0, 3]))
    assert _native.replay(GRAPH, *given)[2]
    for at, column in enumerate(given):
        for what, value in wrong(column):
            changed_ = (*given[:at], value, *given[at + 1 :])
            if not refused(lambda changed_=changed_: _native.replay(GRAPH, *changed_)):
                assert readable(value, column), f"{at}: {what}"
    for path, column in columns(GRAPH):
        for what, value in wrong(column):
            graph = changed(GRAPH, path, value)
            optional = path == ("need",) and (value is None or np.size(value) == 0)
            if not refused(lambda graph=graph: _native.replay(graph, *given)):
                assert optional or readable(value, column), f"{path}: {what}"


def test_columns_of_a_steady_turn() -> None:
    alone = (np.array([0, 2]), *(column[:2] for column in PIECES[1:6]), np.array([0, 0, 1]), PIECES[7][:1])
    start, finish = _native.steady(alone, 3)
    assert (len(start), len(finish)) == (2, 2)
    for at, column in enumerate(alone):
        for what, value in wrong(column):
            given = (*alone[:at], value, *alone[at + 1 :])
            if not refused(lambda given=given: _native.steady(given, 3)):
                assert readable(value, column), f"{at}: {what}"


def refused(call: Callable[[], object]) -> bool:
    """Whether a call raises a ValueError."""
    try:
        call()
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", ["streams", "members", "places", "delay"])
@pytest.mark.parametrize("value", [-1, -(2**63), 2**30, 2**62, 2**63, 2**80, 1.5, "3", None])
def test_numbers_of_graphs(name: str, value: object) -> None:
    if name == "places" and (not isinstance(value, (int, float)) or value < 0):
        return  # stands for as many places as members
    path = {"streams": (name,), "delay": ("collectives", name)}.get(name, ("collectives", "pattern", name))
    given = changed(GRAPH, path, value)
    late = name == "delay" and value in (2**30, 2**62)
    for call in (once, many):
        assert refused(lambda call=call: call(given, NETWORK)) != late


@pytest.mark.parametrize("argument", ["kind", "factors", "links"])
def test_factors(argument: str) -> None:
    good = {"kind": KIND, "factors": FACTORS, "links": LINKS}

    def native(value: object) -> object:
        return _native.play_many(GRAPH, NETWORK, "max-min", *{**good, argument: value}.values())

    def public(value: object) -> object:
        return play_many(GRAPH, NETWORK, MaxMin(), **{**good, argument: value})  # type: ignore[arg-type]

    for what, value in wrong(good[argument]):
        taken = not refused(lambda value=value: native(value))
        if readable(value, good[argument]):
            assert taken != refused(lambda value=value: public(value)), what  # the two check alike
        else:
            assert not taken, what


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": KIND.astype(float)}, "kind must hold whole numbers"),
        ({"kind": KIND[1:]}, "factors must have the shape"),
        (
            {"kind": np.zeros(len(KIND), np.int32)},
            "kind must name a column of factors, and -1 for what does not compute",
        ),
        ({"kind": np.where(KIND == 0, 2, -1)}, "kind must name a column of factors"),
        ({"kind": KIND - 1}, "kind must name a column of factors"),
        ({"factors": FACTORS[0]}, "factors must have the shape"),
        ({"links": LINKS[1:]}, "factors must have the shape"),
        ({"factors": -FACTORS}, "must be finite and 0 or more"),
        ({"links": np.array([1.0, np.nan])}, "must be finite and 0 or more"),
        ({"links": np.array([1.0, 2.0j])}, "must be arrays of numbers"),
        ({"links": [1.0, 2.0]}, "must be arrays of numbers"),
    ],
)
def test_factors_are_refused_on_every_engine(
    monkeypatch: pytest.MonkeyPatch, engine: str, change: dict[str, object], message: str
) -> None:
    monkeypatch.setenv("TRIOSIM_ENGINE", engine)
    with pytest.raises(ValueError, match=message):
        play_many(GRAPH, NETWORK, MaxMin(), **{"kind": KIND, "factors": FACTORS, "links": LINKS, **change})  # type: ignore[arg-type]


def test_a_model_that_is_not_built_in() -> None:
    for call in (
        lambda: _native.play(GRAPH, NETWORK, "circuit", True, True),
        lambda: _native.play_many(GRAPH, NETWORK, "circuit", KIND, FACTORS, LINKS),
    ):
        with pytest.raises(ValueError, match="no network model of that name is built in"):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"ends": np.array([0, 1, 1, 2], np.int32)},
        {"ends": np.array([0, 1, 1, 2, 2, 6], np.int32)},
        {"ends": np.array([0, 1, 1, -1, 2, 0], np.int32)},
        {"ends": np.array([0, 1, 1, 1, 2, 0], np.int32)},
        {"ends": np.array([0, 1, 1, 2, 2, 0], np.int64)},
        {"setup": -1},
        {"ports": 0},
        {"receive_buffer": -1},
        {"ports": 2**63},
    ],
)
def test_rules_of_circuits_that_make_no_sense(change: dict[str, Any]) -> None:
    good = CircuitRules(1, 1, 0, np.array([0, 1, 1, 2, 2, 0], np.int32))
    plain = replace(NETWORK, weights=None)
    for rules in (good, replace(good, **change)):
        for call in (
            lambda rules: _native.play(GRAPH, plain, "circuit", True, True, rules),
            lambda rules: _native.play_many(GRAPH, plain, "circuit", KIND, FACTORS, LINKS, rules),
        ):
            if rules is good:
                call(rules)
                continue
            with pytest.raises(ValueError):
                call(rules)


SIZES, EVENTS = np.array([512, 1 << 21, 1024], np.int64), np.array([0, 1, 3, 2, 4, 5, 0], np.int64)


@pytest.mark.parametrize("reserve", [_allocator.reserved, played])
def test_allocations(reserve: Callable[[np.ndarray, np.ndarray], int]) -> None:
    assert reserve(SIZES, EVENTS) == (2 << 20) + (20 << 20)
    assert reserve(SIZES[:0], EVENTS[:0]) == 0
    empty = np.array([1, 0, 0], np.int64)  # once they had the address of what came after them
    assert reserve(empty, np.arange(6)) == 2 << 20
    assert reserve(empty[1:], np.arange(4)) == 0
    for wrong in ([6], [-1], [0, 0], [3], [0, 3, 3], [2**62], [-(2**63)]):
        with pytest.raises(ValueError, match="events must allocate"):
            reserve(SIZES, np.array(wrong, np.int64))
    for size in (-1, -(2**63), 2**59, 2**63 - 1):
        with pytest.raises(ValueError, match="sizes must be 0 or more"):
            reserve(np.array([size, 1, 1], np.int64), EVENTS)
    with pytest.raises(ValueError):
        reserve(SIZES[:2], EVENTS)
    with pytest.raises(ValueError):
        reserve(SIZES[:0], EVENTS)


def test_arrays_of_allocations() -> None:
    for column, reserve in (
        (SIZES, lambda a: _allocator.reserved(a, EVENTS)),
        (EVENTS, lambda a: _allocator.reserved(SIZES, a)),
    ):
        for what, value in wrong(column):
            taken = not refused(lambda reserve=reserve, value=value: reserve(value))
            if readable(value, column):
                pair = (value, EVENTS) if column is SIZES else (SIZES, value)
                assert taken != refused(lambda pair=pair: played(*pair)), what
            else:
                assert not taken, what


PASSES = (
    np.array([512, 0], np.int64), np.array([0, 3, 6], np.int64), np.array([0, 4, 2, 1, 5, 3], np.int8),
    np.array([0, 0, 1, 0, 0, 1], np.int32), np.array([1024, 1 << 21, 512, 1024, 1 << 21, 512], np.int64),
    np.array([0, 1] * 8, np.int32), np.repeat(np.arange(8, dtype=np.int32), 2),
)  # fmt: skip


def test_passes_that_allocate() -> None:
    assert _allocator.reserved_in_passes(*PASSES) == (2 << 20) + (20 << 20)
    for number, column in enumerate(PASSES):
        for what, value in wrong(column):
            given = [*PASSES[:number], value, *PASSES[number + 1 :]]
            taken = not refused(lambda given=given: _allocator.reserved_in_passes(*given))
            assert readable(value, column) or not taken, what
    for number, place, value in (
        (0, 0, -1), (0, 0, 2**62), (1, 1, 7), (1, 0, 1), (1, 2, 5), (2, 0, 1), (2, 3, 0), (2, 5, 6), (2, 5, -1),
        (3, 0, 6), (3, 0, -1), (3, 5, 0), (4, 0, -1), (4, 1, 2**62), (5, 0, 2), (5, 0, -1), (5, 0, 1), (6, 1, 3),
    ):  # fmt: skip
        given = [column.copy() for column in PASSES]
        given[number][place] = value
        with pytest.raises(ValueError, match="passes must allocate what is not held"):
            _allocator.reserved_in_passes(*given)
    many = np.array([2**55], np.int64)
    with pytest.raises(ValueError, match="fewer than 2"):  # also where turns are left out
        _allocator.reserved_in_passes(
            np.zeros(0, np.int64), np.array([0, 2], np.int64), np.array([0, 1], np.int8), np.zeros(2, np.int32),
            np.repeat(many, 2), np.zeros(64, np.int32), np.arange(64, dtype=np.int32),
        )  # fmt: skip


def test_these_are_all_that_is_bound() -> None:
    def functions(module: ModuleType) -> set[str]:
        return {
            name for name in dir(module) if not name.startswith("_") and not isinstance(getattr(module, name), type)
        }

    assert functions(_native) == {"chained", "meeting", "play", "play_many", "refine", "replay", "steady", "turns"}
    assert functions(_allocator) == {"reserved", "reserved_in_passes"}


@pytest.mark.parametrize("ticks", [2**63 - 1, 2**62, -(2**63)])
def test_turns_that_last_longer_than_can_be_counted(ticks: int) -> None:
    long = (*PIECES[:4], np.full(5, ticks), *PIECES[5:])
    with pytest.raises(ValueError, match="longer than can be counted"):
        _native.turns(long, PLAYED, 3, 2)
    with pytest.raises(ValueError, match="longer than can be counted"):
        _native.steady((np.array([0, 2]), *(c[:2] for c in long[1:6]), np.array([0, 0, 1]), PIECES[7][:1]), 3)
