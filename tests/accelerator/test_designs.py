"""A design is a device: what it takes of a job is what its einsums take, each mapped once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import triosim
from tests.command import run
from triosim.accelerator import designs, mapper, systolic
from triosim.accelerator.designs import MappingSearch
from triosim.accelerator.mapspace import primes_of
from triosim.accelerator.problem import attention as attention_problem
from triosim.accelerator.problem import convolution, gemm
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import device_energy
from triosim.fidelity import Fidelity
from triosim.hardware import build
from triosim.kernels.classes import ATTENTION, CONVOLUTION, CONVOLUTION_BACKWARD, MATRIX, classify
from triosim.kernels.estimate import Limit, Source
from triosim.kernels.model import PricingJob
from triosim.kernels.models.loop_nest import LoopNestModel
from triosim.kernels.models.physical import work_of
from triosim.kernels.work import einsums
from triosim.kernels.work.attention import attention

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "accelerator"
LITTLE, ARRAY = str(EXAMPLES / "little.toml"), str(EXAMPLES / "array.toml")
FEW = MappingSearch(budget=2_000)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOSIM_CACHE", str(tmp_path / "kept"))


def network():
    """The first stage of a ResNet-18, what comes before and after it, and the backwards of all."""
    return triosim.model("resnet18", configuration={"layers": [2]})


def priced(trace, device, **options):
    return LoopNestModel(**options).price(PricingJob(trace, device, trace, None))


def parts_of(trace, device):
    """Einsums of every operator that is one, found call by call."""
    classified = classify(trace, device)
    found = {}
    for kind, groups in (("gemm", (MATRIX,)), ("convolution", (CONVOLUTION, CONVOLUTION_BACKWARD)),
                         ("attention", (ATTENTION,))):  # fmt: skip
        rows = np.flatnonzero(np.isin(classified.group, groups))
        if rows.size:
            work, times = work_of(kind, trace, rows, classified.dtype[rows], np.ones(len(rows)))
            if kind == "gemm":
                of = einsums.of_gemm(work, times)
            else:
                of = einsums.of_convolution(work) if kind == "convolution" else einsums.of_attention(work)
            found.update(zip(rows.tolist(), of, strict=True))
    return found


def test_joules_of_operators_are_those_of_their_evaluations():
    trace = network()
    system = build.flat(LITTLE, 8, link="10 GB/s")
    device = system.models[0]
    own = {"budget": 200}
    result = triosim.simulate(trace, system, fidelity=Fidelity(operator_times="loop-nest", operator_options=own))
    found = designs.contents(device)
    total = seconds = 0.0
    evaluated = {}
    for parts in parts_of(trace, device).values():
        for problem, times in parts:
            key = (problem.bounds, problem.tensors)
            if key not in evaluated:
                smooth = replace(problem, bounds=tuple(map(designs.rounded, problem.bounds)))
                search = mapper.search(found.design, smooth, **own)
                evaluated[key] = mapper.evaluated(found.design, smooth, search.best)
            total += times * evaluated[key].energy_j
            seconds += times * evaluated[key].seconds
    estimates = priced(trace, device, **own)
    products = np.zeros(len(trace), bool)
    products[list(parts_of(trace, device))] = True
    joules = estimates.joules
    each = joules.compute + joules.chip + joules.memory
    assert each[products].sum() == pytest.approx(total, rel=1e-9)
    assert estimates.seconds[products].sum() == pytest.approx(seconds, rel=1e-9)
    assert each[~products].sum() > 0
    assert len(evaluated) < products.sum() * 2  # layers that are alike are mapped once
    energy = result.energy
    assert energy.operators_j == pytest.approx(8 * each.sum(), rel=1e-6)
    node = energy.operators_j + energy.idle_j + energy.links_j + energy.host_j
    assert node == pytest.approx(energy.node_j, rel=1e-9)
    left_open = joules.open.sum() / each.sum()  # by searches that were stopped early
    assert 0 < left_open < 1
    low, high = energy.interval_j
    assert high - energy.node_j >= 0.999 * energy.operators_j * math.expm1(left_open)
    assert energy.node_j - low >= 0.999 * energy.operators_j * -math.expm1(-left_open)


def test_a_mapping_is_looked_for_once(tmp_path, monkeypatch):
    design, problem = tmp_path / "one.toml", gemm(m=64, n=48, k=32)
    text = Path(LITTLE).read_text()
    design.write_text(text)
    first = designs.cost(designs.contents(build.accelerator(design)), problem, FEW)
    monkeypatch.setattr(mapper, "search", None)
    other = tmp_path / "other.toml"
    other.write_text(text.replace('"little"', '"renamed"').replace("200 MHz", "300 MHz"))
    again = designs.cost(designs.contents(build.accelerator(other)), replace(problem, name="renamed"), FEW)
    assert again == first
    with pytest.raises(TypeError):  # another budget is another search
        designs.cost(designs.contents(build.accelerator(other)), problem, replace(FEW, budget=3_000))
    other.write_text(text.replace("words = 128", "words = 64"))
    with pytest.raises(TypeError):  # and so is another design
        designs.cost(designs.contents(build.accelerator(other)), problem, FEW)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": "other/1"}', "negative", "missing"])
def test_what_was_kept_and_is_damaged_is_made_again(damage):
    found, problem = designs.contents(build.accelerator(LITTLE)), gemm(m=16, n=16, k=16)
    first = designs.cost(found, problem, FEW)
    (kept,) = designs.folder().iterdir()
    row = json.loads(kept.read_text())
    if damage == "negative":
        row["cycles"] = -1
    elif damage == "missing":
        del row["chip_j"]
    kept.write_text(json.dumps(row) if damage in ("negative", "missing") else damage)
    assert designs.cost(found, problem, FEW) == first
    assert json.loads(kept.read_text())["cycles"] == first.cycles


def test_without_a_folder_to_keep_them_mappings_are_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIOSIM_CACHE", str(tmp_path / "file"))
    assert designs.cost(designs.contents(build.accelerator(LITTLE)), gemm(m=8, n=8, k=8), FEW).cycles > 0


def test_einsums_multiply_what_operators_count():
    for name in ("resnet18", "resnet50", "gpt2"):
        trace = triosim.model(name, **({"sequence_length": 64} if name == "gpt2" else {}))
        classified = classify(trace, build.accelerator("H100"))
        rows = np.flatnonzero(np.isin(classified.group, (CONVOLUTION, CONVOLUTION_BACKWARD)))
        if rows.size:
            work, _ = work_of("convolution", trace, rows, classified.dtype[rows], np.ones(len(rows)))
            computes = [sum(2 * p.computes * n for p, n in parts) for parts in einsums.of_convolution(work)]
            np.testing.assert_allclose(computes, work.flop())
        rows = np.flatnonzero(classified.group == MATRIX)
        work, times = work_of("gemm", trace, rows, classified.dtype[rows], np.ones(len(rows)))
        computes = [sum(2 * p.computes * n for p, n in parts) for parts in einsums.of_gemm(work, times)]
        np.testing.assert_allclose(computes, work.flop() * times)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_attention_multiplies_what_it_counts(backward, kv_heads):
    work = attention(2, 32, 48, 8, kv_heads, 16, head_v=24, causal=False, backward=backward)
    (parts,) = einsums.of_attention(work)
    assert sum(2 * problem.computes * times for problem, times in parts) == work.flop()[0]


def test_an_array_takes_its_closed_form():
    device = build.accelerator(ARRAY)
    found = designs.contents(device)
    one = designs.cost(found, gemm(m=300, n=200, k=100), FEW)
    closed = systolic.run(found.array, systolic.Product("", 300, 200, 100), timing="bandwidth")
    assert one.cycles == closed.total_cycles
    assert one.open == 0
    many = designs.cost(found, gemm(m=300, n=200, k=100, batch=7), FEW)
    assert many.cycles == 7 * one.cycles
    assert many.energy_j == pytest.approx(7 * one.energy_j)
    wide = designs.cost(found, convolution(c=16, m=16, p=8, q=8, r=3, s=3, groups=16), FEW)
    each = designs.cost(found, convolution(c=1, m=1, p=8, q=8, r=3, s=3), FEW)
    assert wide.cycles == 16 * each.cycles


def test_the_interval_is_what_the_search_leaves_open():
    found = designs.contents(build.accelerator(LITTLE))
    problem = convolution(c=64, m=64, p=28, q=28, r=3, s=3)
    short, long = (designs.cost(found, problem, MappingSearch(budget=n)) for n in (600, 10_000))
    assert short.cycles * short.energy_j >= long.cycles * long.energy_j
    for one in (short, long):
        assert 0 <= one.open <= math.log(one.cycles / one.least_cycles) + 1e-12
        assert one.open <= math.log(one.spread) + 1e-12
    estimates = priced(network(), build.accelerator(LITTLE), budget=200)
    assert estimates.spread.max() > 0
    assert set(np.unique(estimates.source).tolist()) == {Source.DESIGN, Source.NOTHING}
    assert {Limit.COMPUTE, Limit.MEMORY} <= set(np.unique(estimates.limit).tolist())


def test_bounds_with_large_prime_factors_are_rounded_up():
    assert [designs.rounded(n) for n in (1, 12, 13, 17, 197, 1000)] == [1, 12, 13, 18, 198, 1000]
    for number in (50_257, 128_256, 32_003):
        assert number <= designs.rounded(number) <= 1.01 * number
        assert max(primes_of(designs.rounded(number))) <= designs.SMOOTH


SYSTEM = """
[devices]
count = 2
[devices.model]
design = "npu.toml"
{more}
[scale_up]
topology = "ring"
bandwidth = "10 GB/s"
"""


def test_a_system_says_beside_a_design_what_it_does_not_know(tmp_path):
    (tmp_path / "npu.toml").write_text(Path(LITTLE).read_text())
    file = tmp_path / "system.toml"
    more = 'name = "npu"\nclock_hz = 4e8\nmemory = "2 GiB"\nmemory_bandwidth = "0.1 GB/s"\nvector_flops = "7 GFLOP/s"'
    file.write_text(SYSTEM.format(more=more))
    plain = build.accelerator(LITTLE)
    device = build.from_file(file).models[0]
    assert (device.name, device.memory_bytes, device.memory_bandwidth) == ("npu", 2 << 30, 1e8)
    assert device.design.vector_flops == 7e9
    assert device.peak("float32") == 2 * plain.peak("float32") == 4 * 168 * 200e6
    problem = gemm(m=1, n=512, k=512)
    slow, quick = (designs.cost(designs.contents(one), problem, FEW) for one in (device, plain))
    assert slow.cycles >= 512 * 512 / (1e8 / 4e8 / 2) > quick.cycles  # a word has two bytes
    assert slow.binds == "DRAM read"


def test_leakage_is_drawn_while_nothing_runs(tmp_path):
    file = tmp_path / "leaks.toml"
    text = Path(LITTLE).read_text().replace("words = 128", "words = 128\npj = { leak = 2.0 }")
    file.write_text(text)
    device = build.accelerator(file)
    drawn = device_energy(device, EnergyConstants())
    assert drawn.idle_w == pytest.approx(168 * 2e-12 * 200e6)
    assert drawn.static_w == 0


def test_commands_take_a_design_as_a_device(tmp_path):
    made = tmp_path / "found.json"
    words = ("--device", ARRAY, "--devices", "8", "--link", "10 GB/s", "--json", made)
    run("train", "resnet18", *words, "--operator-times", "loop-nest")
    result = json.loads(made.read_text())
    assert result["energy"]["operators_j"] > 0
    assert any("loop nests" in source for source in result["sources"])
    run("train", "gpt2", *words, "--seq-len", "64", "--batch-size", "4", "--tp", "2")
    assert json.loads(made.read_text())["plan"]["ranks"] == 8
    assert "npu" in run("devices", "eyeriss").stdout


def test_auto_takes_the_options_of_loop_nests_there():
    words = ("infer", "resnet18", "--device", LITTLE, "--operator-option", "budget=300", "--json", "-")
    auto = json.loads(run(*words).stdout)
    named = json.loads(run(*words, "--operator-times", "loop-nest").stdout)
    assert auto["iteration_time_s"] == named["iteration_time_s"]
    assert any("the best of 300 mappings" in source for source in auto["sources"])
    cures = [cause["suggestion"] for cause in auto["uncertainty"]]
    assert not any("record" in cure for cure in cures), "nobody records a trace on a design"
    assert "unknown option 'basis'" in run(*words[:5], "basis=roofline", code=2).stderr


def test_an_array_that_waits_for_its_memory_is_bound_by_it():
    array = systolic.Array(8, 8, bandwidth=8.0)
    product = systolic.product_of(gemm("p", m=64, n=64, k=64))
    one = systolic.run(array, product, timing="bandwidth")
    assert 0 < one.stall_cycles < one.cycles
    for bandwidth, binds in ((8.0, "memory"), (1000.0, "compute"), (None, "compute")):
        found = designs.cost(
            designs.Contents(array=replace(array, bandwidth=bandwidth)), gemm("p", m=64, n=64, k=64), FEW
        )
        assert found.binds == binds


def test_attention_on_an_array_is_evaluated_as_it_is_priced(tmp_path):
    problem = tmp_path / "attention.toml"
    problem.write_text('[problem]\nkind = "attention"\nheads = 8\nqueries = 64\nkeys = 48\ndepth = 32\n')
    found = json.loads(run("accelerator", "evaluate", ARRAY, problem, "--json", "-").stdout)
    contents = designs.contents(build.accelerator(ARRAY))
    both = [designs.cost(contents, one, FEW) for one in attention_problem("a", heads=8, queries=64, keys=48, depth=32)]
    assert found["cycles"] == sum(one.cycles for one in both)
    assert found["energy_j"] == pytest.approx(sum(one.compute_j + one.chip_j + one.memory_j for one in both))
    assert [layer["times"] for layer in found["layers"]] == [8, 8]
    assert "attention scores (x 8)" in run("accelerator", "evaluate", ARRAY, problem).stdout


BAD = {
    "nothing that is a design": ('[[problem]]\nkind = "gemm"\nm = 2\nn = 2\nk = 2\n', "holds no design"),
    "a design and an array": ("[array]\nrows = 2\ncolumns = 2\n" + Path(LITTLE).read_text(), "two devices"),
    "a broken design": ("[[node]]\nstore = 3\n", "store"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_design_is_refused(case, tmp_path):
    text, said = BAD[case]
    if case == "a design and an array":
        head, _, rest = text.partition("name = ")
        text = "name = " + rest + "\n" + head
    (tmp_path / "npu.toml").write_text(text)
    (tmp_path / "system.toml").write_text(SYSTEM.format(more=""))
    done = run("train", "resnet18", "--system", tmp_path / "system.toml", code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("more", "said"), [
    ('like = "H100"', "give one of them"), ("vector_flops = 0", "vector_flops"),
    ("clock_hz = -1", "clock_hz"),
])  # fmt: skip
def test_a_table_that_contradicts_itself_is_refused(more, said, tmp_path):
    (tmp_path / "npu.toml").write_text(Path(LITTLE).read_text())
    text = SYSTEM.format(more=more)
    (tmp_path / "system.toml").write_text(text)
    assert said in run("train", "resnet18", "--system", tmp_path / "system.toml", code=2).stderr


def test_loop_nests_need_a_design():
    done = run("train", "resnet18", "--device", "H100", "--operator-times", "loop-nest", code=2)
    assert "need a design" in done.stderr


def test_an_interrupted_search_is_no_prediction_and_is_not_kept(monkeypatch):
    """It was: the best so far stood for all later predictions, and the interrupt ended one search of many."""
    asked = []

    def interrupted(candidates, *rest):
        asked.append(candidates)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return scores(candidates, *rest)

    scores = mapper._scores
    found = designs.contents(build.accelerator(LITTLE))
    problem = gemm("p", m=64, n=64, k=64)
    monkeypatch.setattr(mapper, "_scores", interrupted)
    with pytest.raises(KeyboardInterrupt):
        designs.cost(found, problem, FEW)
    monkeypatch.setattr(mapper, "_scores", scores)
    assert not list(designs.folder().glob("*"))
    assert designs.cost(found, problem, FEW).cycles > 0


def test_a_search_interrupted_before_it_found_anything_says_so(monkeypatch):
    def interrupted(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(mapper, "_scores", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mapper.search(designs.contents(build.accelerator(LITTLE)).design, gemm("p", m=4, n=4, k=4), budget=300)
