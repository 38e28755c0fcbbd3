"""Every part shown in docs/extending.md is added from outside by one file and an entry point, and does what it says."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from validation.data.astra_cases import BYTES_PER_GB, collective, dimension, job

import triosim
from tests.accelerator.test_mapper import PROBLEM, SMALL
from tests.command import run
from tests.serving.fleets import MS, Linear, replica, serve
from triosim.accelerator.mapper import search
from triosim.accelerator.reading import read as read_designs
from triosim.core.errors import InputError
from triosim.core.guarded import parse_toml
from triosim.core.registry import Registry
from triosim.explore.exploration import STRATEGIES
from triosim.explore.space import ChoiceSpace, VariedValue
from triosim.interop.astra.network import AstraNetwork
from triosim.interop.astra.play import play
from triosim.interop.astra.system import read as read_system
from triosim.operators import KINDS, _names
from triosim.serving.deployment import Deployment
from triosim.serving.deployment import serve as serve_fleet
from triosim.serving.pool import Pool
from triosim.serving.request_files import load_requests
from triosim.serving.requests import RequestTable
from triosim.trace.builder import TraceBuilder
from triosim.trace.calls import calls_of
from triosim.trace.tables import BATCH, Category, Meta, Phase, Trace
from triosim.transform.rescale import rescale

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
PARTS = {name: text for name, text in FILES.items() if name.endswith(".py")}
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
POINTS = parse_toml(FILES["pyproject.toml"], "pyproject.toml")["project"]["entry-points"]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| [")]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all files of the page, in which they are an installed distribution."""
    folder = tmp_path_factory.mktemp("outside")
    package, about = folder / "my_parts", folder / "my_parts-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in FILES.items():
        (package / name if name in PARTS else folder / name).write_text(text)
    for name in ("smallest_first.py", "large_only.py", "shortest_first.py"):  # used as files, too
        (folder / name).write_text(FILES[name])
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in table.items()) for group, table in POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        _forget_kinds()
        yield folder
    KINDS._classes.pop("packed", None)
    _forget_kinds()


def _forget_kinds() -> None:
    for kept in (_names._known, _names.kind, _names.canonical, _names.kind_named):
        kept.cache_clear()


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_kind_of_part_and_an_example_of_each() -> None:
    assert {registry.group for registry in _registries()} == set(POINTS)
    for (link, folder, base), (group, points) in zip(ROWS, POINTS.items(), strict=True):
        (value,) = points.values()
        what = re.fullmatch(r"\[(.*)\]\(#.*\)", link)[1]
        assert f"\n## {what[0].upper()}{what[1:]}\n" in PAGE
        module, _, cls = value.partition(":")
        assert re.search(rf"@registered\n(@.*\n)?class {cls}[(:]", PARTS[f"{module.split('.')[1]}.py"])
        assert (ROOT / "src" / "triosim" / folder.strip("`")).is_dir()
        named = re.findall(r"`([\w.]+)`", base)
        home, _, first = f"triosim.{named[0]}".rpartition(".")
        (registry,) = [r for r in _registries() if r.group == group]
        for own in (first, *named[1:]):
            found = getattr(importlib.import_module(home), own)
            assert issubclass(found, registry.base) if registry.base else found._is_protocol == base.startswith("(")


def test_the_reference_has_the_interface_of_every_kind() -> None:
    headings = re.findall("^## (.+)$", (ROOT / "docs/reference/parts.md").read_text(encoding="utf-8"), re.MULTILINE)
    wanted = [re.fullmatch(r"\[(.*)\]\(#.*\)", link)[1] for link, *_ in ROWS]
    assert {f"{what[0].upper()}{what[1:]}" for what in wanted} <= set(headings)


@functools.lru_cache(maxsize=1)
def _registries() -> list[Registry]:
    """All registries of the package."""
    found = []
    for path in sorted((ROOT / "src" / "triosim").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if " = Registry(" in text else ():
            if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).count(" = Registry("):
                module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
                found.append(getattr(importlib.import_module(module), re.match(r"\w+", ast.unparse(node))[0]))
    return found


@pytest.mark.parametrize("name", PARTS)
def test_an_example_is_at_most_thirty_lines(name: str) -> None:
    assert len(PARTS[name].splitlines()) <= 30
    assert max(map(len, PARTS[name].splitlines())) <= 120


def test_the_model_of_the_page_is_the_example() -> None:
    assert PARTS["smallest_first.py"] == (ROOT / "examples" / "smallest_first.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, outside: Path) -> None:
    assert run(*shlex.split(command)[1:], cwd=outside).stdout


def test_the_parts_are_found_by_their_names(outside: Path) -> None:
    for registry in _registries():
        ((name, value),) = POINTS[registry.group].items()
        assert name in registry.names()
        assert registry.get(name).__qualname__ == value.rpartition(":")[2]
        assert value in {point.value for point in entry_points(group=registry.group)}


# --- the parts --------------------------------------------------------------------------------------------------------


def _part(name: str) -> ModuleType:
    return importlib.import_module(f"my_parts.{name}")


def test_a_hypercube_has_a_cable_for_each_bit(outside: Path) -> None:
    system = triosim.system(devices=8, topology="hypercube", link="10GB/s")
    assert len(system.edge_source) == 2 * 12
    assert {int(bits).bit_count() for bits in system.edge_source ^ system.edge_target} == {1}
    with pytest.raises(InputError, match="power of two of devices, not 6"):
        triosim.system(devices=6, topology="hypercube", link="10GB/s")


def test_d_mod_k_spreads_over_all_equal_routes(outside: Path) -> None:
    from triosim.network.routing import routing_of

    system = triosim.system(devices=16, topology="fat-tree", link="10GB/s", routing="d-mod-k")
    routing, target = routing_of(system), np.arange(16)
    chosen = routing.which(np.zeros(16, np.int64), target, np.full(16, 4))
    assert np.bincount(chosen).tolist() == [4, 4, 4, 4]


def test_the_reader_makes_a_trace_that_can_be_priced(outside: Path) -> None:
    trace = triosim.load(outside / "two.products")
    assert trace.operators.flop.tolist() == [2 * 64 * 32 * 16, 2 * 64 * 16 * 8]
    system = triosim.system(device="A100", devices=1)
    recorded = triosim.Fidelity(operator_times="recorded", host="none")
    assert triosim.simulate(trace, system, fidelity=recorded).iteration_time_s == pytest.approx(7e-6, rel=1e-6)
    scaled = triosim.Fidelity(operator_times="proportional", host="none")
    assert triosim.simulate(trace, system, triosim.Plan(batch_size=128), scaled).iteration_time_s == pytest.approx(
        14e-6, rel=1e-6
    )


def test_what_the_reader_cannot_read_is_a_sentence(outside: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.products"
    file.write_text('{"products": [{"m": 1}]}')
    with pytest.raises(InputError, match=r"bad\.products: product 0 needs m, k, n and us, and has m"):
        triosim.load(file)


def test_the_family_counts_its_parameters_and_trains(outside: Path) -> None:
    trace = triosim.model(str(outside / "small.toml"), batch_size=4)
    sizes = (3 * 32 * 32, 512, 256, 100)
    expected = sum(a * b + b for a, b in itertools.pairwise(sizes))
    assert sum(trace.values.shape.products()[trace.weights()]) == expected
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} == set(trace.operators.phase.tolist())


def _packed(rows: int) -> Trace:
    b = TraceBuilder()
    x = b.value((rows, 64), "bfloat16", Category.INPUT, symbols=(BATCH, 0))
    weight = b.value((64, 32), "int8", Category.WEIGHT)
    scale = b.value((32,), "bfloat16", Category.WEIGHT)
    y = b.value((rows, 32), "bfloat16", Category.ACTIVATION, symbols=(BATCH, 0))
    roles = _names.argument_names("packed::matmul", 3)
    b.operator("packed::matmul", (x, weight, scale), (y,), roles=roles, phase=Phase.FORWARD)
    return b.build(Meta("test", batch_size=rows))


def test_the_kind_is_counted_rescaled_and_priced(outside: Path) -> None:
    from triosim import operators

    trace = _packed(16)
    (call,) = calls_of(trace).unique
    assert (call.kind, call.roles) == ("packed", ("input", "weight", "scale"))
    assert trace.operators.flop.tolist() == [2 * 16 * 64 * 32]
    assert operators.results(call)[0].shape == (16, 32)
    found = operators.dims(call)
    assert (found.inputs, [out.labels for out in found.outputs]) == (((0, 1), (1, 2), (2,)), [(0, 2)])
    assert rescale(trace, batch=48).operators.flop.tolist() == [2 * 48 * 64 * 32]
    odd = TraceBuilder()
    values = [odd.value((8,), "float32", Category.INPUT) for _ in range(2)]
    odd.operator("packed::matmul", values, [], roles=("input", "weight"), phase=Phase.FORWARD)
    notes = odd.build(Meta("test")).meta.notes
    assert any("input has the shape [8], but needs 2 dimensions" in note for note in notes)
    result = triosim.simulate(
        trace, triosim.system(device="H100", devices=1), fidelity=triosim.Fidelity(operator_times="physical")
    )
    assert "physical models" in " ".join(result.sources)


def test_serial_moves_bytes_and_then_computes(outside: Path) -> None:
    trace, system = triosim.load(outside / "two.products"), triosim.system(device="H100", devices=1)
    device = system.models[0]
    expected = sum(trace.operators.bytes) / device.memory_bandwidth
    expected += sum(trace.operators.flop) / max(device.peak_flops.values())
    result = triosim.simulate(trace, system, fidelity=triosim.Fidelity(operator_times="serial", host="none"))
    assert result.iteration_time_s == pytest.approx(expected, rel=1e-3)
    assert any("100 % the model 'serial' on H100" in source for source in result.sources)
    with pytest.raises(InputError, match="'serial' need a device"):
        triosim.simulate(
            triosim.model("gpt2"), triosim.system(devices=1), fidelity=triosim.Fidelity(operator_times="serial")
        )


def test_stopwatch_gives_its_times_to_the_operators(outside: Path) -> None:
    watched = triosim.Fidelity(operator_times=str(outside / "watch.log"), host="none")
    system = triosim.system(device="A100", devices=1)
    result = triosim.simulate(triosim.load(outside / "two.products"), system, fidelity=watched)
    assert result.iteration_time_s == pytest.approx(2 * 7.25e-6, rel=1e-6)


def test_one_by_one_takes_micro_batches_times_all_stages(outside: Path) -> None:
    trace, system = triosim.model("gpt2", sequence_length=64), triosim.system(device="A100", devices=2, link="1000GB/s")
    one, four = (
        triosim.simulate(
            trace,
            system,
            triosim.Plan(pp=2, micro_batches=m, batch_size=m, schedule="one-by-one"),
            triosim.Fidelity(host="none"),
        )
        for m in (1, 4)
    )
    usual = triosim.simulate(
        trace, system, triosim.Plan(pp=2, micro_batches=4, batch_size=4), triosim.Fidelity(host="none")
    )
    optimizer = one.iteration_time_s - (four.iteration_time_s - one.iteration_time_s) / 3
    assert 0 < optimizer < one.iteration_time_s
    assert four.iteration_time_s > usual.iteration_time_s > one.iteration_time_s


def test_signum_keeps_one_mean_of_each_parameter(outside: Path) -> None:
    small = {"batch_size": 1, "sequence_length": 64}
    plain, ahead, sgd = (
        triosim.model("gpt2", optimizer=name, **small) for name in ("signum", "signum,nesterov=on", "sgd")
    )
    steps = [[n for n in trace.operators.name if "_foreach_" in n] for trace in (plain, ahead, sgd)]
    assert steps[0] == [f"aten::_foreach_{name}" for name in ("lerp_", "sign", "add_", "copy_")]
    assert steps[1] == [f"aten::_foreach_{name}" for name in ("lerp_", "lerp", "sign", "add_", "copy_")]
    held = [
        sum(trace.values.bytes()[trace.values.category == Category.OPTIMIZER_STATE]) for trace in (plain, ahead, sgd)
    ]
    assert held[0] == held[1] == held[2] > 0


def test_unpaired_preferences_take_three_forwards_and_an_update(outside: Path) -> None:
    options = "train", "gpt2", "--seq-len", "128", "--device", "A100", "--global-batch-size", "4", "--json", "-"
    step, pairs = (json.loads(run(*options, "--post", name).stdout) for name in ("kto,reference=model", "dpo"))
    assert [(phase["model"], phase["does"]) for phase in step["phases"]] == [
        ("reference", "forward"), ("policy", "forward"), ("reference", "forward"), ("policy", "update"),
    ]  # fmt: skip
    assert step["samples"] == 4
    assert pairs["samples"] == 8
    assert "reference must be" in run(*options, "--post", "kto,reference=none", code=2).stderr


def test_straight_lasts_one_part_over_one_link(outside: Path) -> None:
    from triosim.collectives.algorithm import ALGORITHMS

    made = ALGORITHMS.get("straight")().schedule("all_gather", 4, 4000)
    assert sorted(zip(made.pattern.source.tolist(), made.pattern.target.tolist(), strict=True)) == [
        (a, b) for a in range(4) for b in range(4) if a != b
    ]
    assert set(made.pattern.bytes.tolist()) == {1000}
    system = triosim.system(devices=4, topology="full", link="1GB/s")
    trace = triosim.load(ROOT / "examples" / "gpt-small-cpu.triosim")
    result = triosim.simulate(
        trace, system, triosim.Plan(dp=4, zero=1, overlap=False), triosim.Fidelity(collective_algorithm="straight")
    )
    rows = [row for row in result.collectives if row.kind == "all_gather"]
    assert rows
    for row in rows:
        assert row.algorithm == "straight"
        assert row.seconds == pytest.approx(row.count * row.bytes / 4 / 1e9, rel=1e-3)


def test_hub_sends_two_messages_one_after_the_other(outside: Path, tmp_path: Path) -> None:
    file, size = tmp_path / "system.json", 1 << 20
    file.write_text(json.dumps({"all-reduce-implementation": ["hub"], "endpoint-delay": 10, "local-mem-bw": 1000}))
    layer = replace(read_system(file), splits=1)
    network = AstraNetwork("n", (dimension("FullyConnected", 4, 50, 500),))
    ranks = play(job(network, layer, lambda rank: collective("all_reduce", size))).ranks
    (found,) = {rank.cycles for rank in ranks[1:]}
    message = 500 + size / (50 * BYTES_PER_GB) * 1e9
    assert found == pytest.approx(2 * message + 3 * 10 + layer.costs.reduction_ns(size), abs=3)
    file.write_text(json.dumps({"all-reduce-implementation": ["hob"]}))
    with pytest.raises(InputError, match="did you mean hub"):
        read_system(file)


def test_shortest_first_serves_the_shortest_of_those_that_wait(outside: Path) -> None:
    table = RequestTable.of([0, 0, 0], [50, 50, 50], [5, 3, 1])
    served = serve(table, replica("shortest-first", max_running=1, times=Linear(base=MS, token=0, key=0)))
    assert (served.finished / MS).tolist() == [9, 4, 1]


def test_fewest_steps_makes_the_image_with_fewest_steps_first(outside: Path) -> None:
    pool = Pool("dit-s-2", triosim.system(device="H100", devices=1), engine="fewest-steps")
    table = RequestTable.of([0.0, 0.0, 0.0], [1, 1, 1], [9, 2, 4])
    found = serve_fleet(Deployment((pool,)), table, interval=False).served
    assert np.argsort(found.finished).tolist() == [1, 2, 0]


def test_long_apart_keeps_long_prompts_to_the_last_replica(outside: Path) -> None:
    table = RequestTable.of([0, 0, 0, 0], [2000, 10, 3000, 10], [1, 1, 1, 1])
    served = serve(table, *(replica("vllm", number=n) for n in range(3)), router="long-apart")
    assert served.replica.tolist() == [2, 0, 2, 1]


def test_the_access_log_is_read(outside: Path, tmp_path: Path) -> None:
    table = load_requests(outside / "day.log")
    assert table.arrived.tolist() == [0, 500 * MS]
    assert (table.prompt.tolist(), table.output.tolist()) == ([2048, 16], [4, 2])
    bad = tmp_path / "bad.log"
    bad.write_text("T=0.0 in=1 out=1\nT=1 in=1\n")
    with pytest.raises(InputError, match="line 2: give T=SECONDS"):
        load_requests(bad)


def test_climbing_finds_what_trying_everything_finds(outside: Path) -> None:
    (problem,) = read_designs([outside / "layers.gemms"]).problems
    assert problem.bound == {"M": 64, "N": 32, "K": 16}
    best, climbed = (
        search(SMALL, PROBLEM, searcher=name, budget=10**6 if name == "exhaustive" else 20_000, seed=1)
        for name in ("exhaustive", "climbing")
    )
    assert climbed.best.edp == pytest.approx(best.best.edp, rel=0.02)


def test_the_executor_runs_a_sweep(outside: Path) -> None:
    words = ("gpt2", "--seq-len", "64", "--device", "H100", "--devices", "2", "--sweep", "tp=1,2", "--json", "-")
    alone = run("train", *words).stdout
    assert run("train", *words, "--executor", "here", "--workers", "2").stdout == alone


def test_halton_asks_for_each_part_of_the_space_once(outside: Path) -> None:
    space = ChoiceSpace((VariedValue("a", (1, 2, 3, 4)), VariedValue("b", (1, 2, 3))))
    searcher = STRATEGIES.get("halton")(space, 1, 0)
    assert sorted(searcher.ask() for _ in range(12)) == sorted(space.every())  # 4 and 3 are powers of its bases


def test_a_data_card_is_a_device(outside: Path) -> None:
    found = triosim.system(devices=2, device=str(outside / "small.card"), link="10GB/s").models[0]
    assert (found.name, found.peak_flops["float32"], found.memory_bytes) == ("small-1", 20e12, 64_000_000_000)
    broken = outside / "broken.card"
    broken.write_text("small-1 fast\n")
    assert "give NAME FLOP/s B/s BYTES" in run("train", "gpt2", "--device", broken, code=2).stderr
