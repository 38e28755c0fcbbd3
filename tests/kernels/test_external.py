"""External times: which operators they are given to, and what becomes of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import shared
from tests.exploring import examples
from tests.kernels.example import DEVICE, OTHER, job, step
from tests.kernels.external import samples
from triosim.core.errors import InputError
from triosim.hardware.catalog import accelerator
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import describe, price
from triosim.sources.reading import load
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Kernels, Meta, Phase, Trace
from triosim.transform.rescale import rescale


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "times.csv") -> str:
        path: Path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def with_kernels() -> Trace:
    """The step with kernels: two in the linear layer (30 and 10 us), one in each other operator, and a copy."""
    names = ("gemm", "relu", "relu", "add", "Memcpy HtoD (Pageable -> Device)")
    times = np.array([30e-6, 10e-6, 5e-6, 30e-6, 9e-6])
    return replace(step(), kernels=Kernels(np.array([0, 0, 1, 3, 3], np.int32), names, times, np.full(5, 7, np.int32)))


def on(trace: Trace, device=DEVICE) -> PricingJob:
    return PricingJob(trace, device, trace, DEVICE)


def layers(count: int = 3) -> Trace:
    """Linear layers in modules of their own, forward and backward, 10 and 20 us each."""
    b = TraceBuilder()
    x = b.value((8, 64), "float32", Category.INPUT)
    for i in range(count):
        module = b.module(f"h.{i}.fc", "Linear")
        w = b.value((64, 64), "float32", Category.WEIGHT)
        y = b.value((8, 64), "float32", Category.ACTIVATION)
        b.operator("aten::linear", [x, w], [y], roles=["input", "weight"], phase=Phase.FORWARD, module=module,
                   device_s=10e-6)  # fmt: skip
        x = y
    for i in reversed(range(count)):
        g = b.value((8, 64), "float32", Category.GRADIENT)
        b.operator("autograd::LinearBackward0", [x], [g], roles=["grad_output"], phase=Phase.BACKWARD,
                   module=b.module(f"h.{i}.fc"), device_s=20e-6)  # fmt: skip
        x = g
    return b.build(Meta("test", workload="layers", batch_size=8, clock="gpu"))


def sources(found) -> list[Source]:
    return [Source(code) for code in found.source]


def test_kernels_are_matched_by_name_and_other_kernels_of_an_operator_keep_their_time(file):
    found = price(on(with_kernels()), file("kernel,seconds\ngemm,60e-6\n"))
    assert found.seconds.tolist() == pytest.approx([70e-6, 5e-6, 0, 30e-6])
    assert sources(found) == [Source.EXTERNAL, Source.RECORDED, Source.NOTHING, Source.RECORDED]
    assert "1 of 4 operators (67 % of the time)" in found.notes[0]


def test_launches_of_one_name_are_matched_in_order(file):
    found = price(on(with_kernels()), file("kernel,seconds\nrelu,1e-6\ngemm,30e-6\nrelu,2e-6\n"))
    assert found.seconds.tolist() == pytest.approx([31e-6, 2e-6, 0, 30e-6])


def test_several_iterations_give_the_median_of_each_launch(file):
    rows = "".join(f"relu,{t}e-6\n" for t in (1, 10, 2, 20, 9, 30))
    found = price(on(with_kernels()), file("kernel,seconds\n" + rows))
    assert found.seconds.tolist() == pytest.approx([32e-6, 20e-6, 0, 30e-6])


def test_a_mean_over_launches_is_divided_like_the_recorded_times(file):
    found = price(on(with_kernels()), file("kernel,count,seconds\nrelu,4,15e-6\n"))
    assert found.seconds.tolist() == pytest.approx([50e-6, 10e-6, 0, 30e-6])


def test_what_does_not_fit_is_listed_and_priced_by_auto(file):
    text = "kernel,seconds\ngemm,60e-6\nrelu,1e-6\nrelu,2e-6\nrelu,3e-6\nsoftmax,1e-6\n"
    found = price(on(with_kernels()), file(text))
    assert found.seconds.tolist() == pytest.approx([70e-6, 5e-6, 0, 30e-6])
    (listed,) = (note for note in found.notes if "not used" in note)
    assert "relu (3 launches here, 2 in the trace)" in listed
    assert "softmax (no such kernel in the trace)" in listed


def test_nothing_that_fits_is_an_error(file):
    with pytest.raises(InputError, match=r"none of its times fits .*softmax \(no such kernel .* mapping file"):
        price(on(with_kernels()), file("kernel,seconds\nsoftmax,1e-6\n"))
    with pytest.raises(InputError, match=r"region 0 \(has no operator's name: give a mapping file\)"):
        price(on(with_kernels()), file(samples.GEM5))


def test_operators_are_matched_by_name_module_pass_and_elements(file):
    text = "operator,module,pass,elements,microseconds\naten::linear,,,,1\naten::linear,h.1.fc,,,7\n"
    text += "autograd::LinearBackward0,,backward,512,3\nautograd::LinearBackward0,,forward,,4\n"
    text += "autograd::LinearBackward0,,,99,4\n"
    found = price(on(layers()), file(text))
    assert found.seconds.tolist() == pytest.approx([1e-6, 7e-6, 1e-6, 3e-6, 3e-6, 3e-6])
    assert found.notes[1].count("no such operator in the trace") == 2


def test_neusight_nodes_are_modules(file):
    head = "Name,OpName,OutputShape,fw_latency,bw_latency,acc_latency\n"
    rows = 'h_0_fc,Linear,"(8, 64)",0.04,0.06,0.02\nh_1_fc,Linear,"(9, 64)",0.05,0,0\nadd_1,VECadd,,0.01,0,0\n'
    found = price(on(layers()), file(head + rows))
    assert found.seconds.tolist() == pytest.approx([40e-6, 10e-6, 10e-6, 20e-6, 20e-6, 80e-6])
    assert "h_1_fc forward (its output has 576 elements" in found.notes[1]
    assert "add_1 forward (no such module in the trace)" in found.notes[1]


def test_a_mapping_file_by_operator_module_and_row(file):
    file(samples.ACCEL_SIM, "sim.txt")
    mapping = """
        times = "sim.txt"
        [operators]
        "aten::linear | h.[01].*" = "_Z4gemm*"
        "LinearBackward0 | h.2.fc" = [1, "_Z4reluPf"]
        "#5" = 2
    """
    found = price(on(layers()), file(mapping, "mapping.toml"))
    assert found.seconds.tolist() == pytest.approx([10e-6, 20e-6, 10e-6, 4e-6, 20e-6, 20e-6])
    assert sources(found).count(Source.EXTERNAL) == 4


@settings(max_examples=examples(25))
@given(st.lists(st.floats(1e-9, 1.0), min_size=6, max_size=6), st.permutations(range(6)))
def test_every_operator_gets_the_time_that_is_written_beside_it(tmp_path_factory, seconds, order):
    folder = tmp_path_factory.mktemp("law")
    rows = "".join(f"k{row},{seconds[row]!r}\n" for row in order)  # in whatever order the file has them
    (folder / "times.csv").write_text("kernel,seconds\n" + rows)
    lines = "".join(f'"#{row}" = {json.dumps(f"k{row}" if row % 2 else order.index(row))}\n' for row in range(6))
    (folder / "mapping.toml").write_text('times = "times.csv"\n[operators]\n' + lines)
    assert price(on(layers()), str(folder / "mapping.toml")).seconds.tolist() == seconds


def test_the_clock_of_a_mapping_file_counts(file):
    file(samples.ACCEL_SIM, "sim.txt")
    text = 'times = ["sim.txt"]\nclock = "2820 MHz"\n[operators]\n"#0" = 0\n'
    assert price(on(layers()), file(text, "mapping.toml")).seconds[0] == pytest.approx(5e-6)


def test_rows_of_several_files_are_numbered_through(file):
    file(samples.GEM5, "stats.txt")
    file(samples.MGPUSIM, "metrics.csv")
    text = 'times = ["stats.txt", "metrics.csv"]\n[operators]\n"#0" = 1\n"#1" = 2\n'
    found = price(on(layers()), file(text, "mapping.toml"))
    assert found.seconds[:2].tolist() == pytest.approx([3e-6, 5.352e-6])
    assert "region 0 (not in the mapping file), GPU[1].CommandProcessor (not in" in found.notes[1]


def test_in_order_with_the_kernels_or_with_the_operators(file):
    file("kernel,microseconds\n" + "".join(f"k{i},{i + 1}\n" for i in range(4)), "kernels.csv")
    text = 'times = "kernels.csv"\nmatch = "order"\n'
    found = price(on(with_kernels()), file(text, "mapping.toml"))
    assert found.seconds.tolist() == pytest.approx([3e-6, 3e-6, 0, 4e-6])
    file("operator,microseconds\na,1\nb,2\nc,3\nd,6\n", "kernels.csv")
    assert price(on(layers(1)), file(text, "mapping.toml")).seconds.tolist() == pytest.approx([2e-6, 4e-6])


def test_times_of_the_trace_are_carried_over_to_other_shapes_like_recorded_ones(file):
    path = file("operator,microseconds\naten::linear,40\n")  # as recorded
    asked = job(64)
    assert price(asked, path).seconds == pytest.approx(price(asked, "auto").seconds)
    twice = price(asked, file("operator,microseconds\naten::linear,80\n"))
    told = replace(asked.recorded.operators, device_s=asked.recorded.operators.device_s * [2, 1, 1, 1])
    recorded = price(replace(asked, recorded=replace(asked.recorded, operators=told)), "auto")
    assert twice.seconds[0] == pytest.approx(recorded.seconds[0])
    assert twice.spread[0] == pytest.approx(recorded.spread[0])
    assert "1 of them carried over from the trace's shapes" in twice.notes[0]


def test_times_of_the_plan_are_taken_as_they_are(file):
    file("operator,microseconds\naten::linear,40\n")
    path = file('times = "times.csv"\nshapes = "plan"\n', "mapping.toml")
    found = price(job(64), path)
    assert found.seconds[0] == pytest.approx(40e-6)
    assert found.spread[0] < price(job(64), "auto").spread[0]
    assert "carried" not in found.notes[0]


def test_a_model_without_recorded_times_has_the_shapes_of_the_plan(file):
    recorded = step(8, measured=False)
    asked = PricingJob(rescale(recorded, 64), DEVICE, recorded, None)
    found = price(asked, file("operator,microseconds\naten::linear,40\n"))
    assert found.seconds[0] == pytest.approx(40e-6)
    assert found.seconds[1] == price(asked, "auto").seconds[1]


def test_times_are_those_of_the_device_that_is_priced(file):
    asked = replace(job(), device=OTHER)
    found = price(asked, file("operator,microseconds\naten::linear,33\n"))
    assert found.seconds[0] == pytest.approx(33e-6)
    assert found.seconds[1] == price(asked, "auto").seconds[1] != 5e-6


def test_times_of_another_device_are_not_used(file):
    file("operator,microseconds\naten::linear,33\n")
    path = file("times = 'times.csv'\ndevice = 'Faster'\n", "mapping.toml")
    assert price(replace(job(), device=OTHER), path).seconds[0] == pytest.approx(33e-6)
    here = price(job(), path)
    assert here.seconds == pytest.approx(price(job(), "auto").seconds)
    assert here.notes == ("external times: those of Faster, not of Example",)


def test_a_profile_of_the_traces_own_kernels_gives_its_own_times(file):
    recorded = load(shared("triosim-h100", "vgg13-bs512-raw"))
    kernels = recorded.kernels
    lines = ["Start (ns),Duration (ns),CorrId,Name"]
    for row, (name, seconds) in enumerate(zip(kernels.name, kernels.device_s, strict=True)):
        name = f"[CUDA {name.lower()}]" if name.startswith(("Memcpy", "Memset")) else name
        lines.append(f'{row},{round(seconds * 1e9)},{row},"{name}"')
    times = file("\n".join(lines), "trace.csv")
    device = accelerator("H100-SXM5-80GB")
    asked = PricingJob(recorded, device, recorded, device)
    in_order = file("times = 'trace.csv'\nmatch = 'order'\n", "order.toml")
    for path in (times, in_order):
        found = price(asked, path)
        assert found.seconds == pytest.approx(price(asked, "auto").seconds, abs=1e-9)
        assert not any("not used" in note for note in found.notes)
        assert sources(found).count(Source.EXTERNAL) == np.count_nonzero(found.seconds)


def test_the_description_tells_of_them(file):
    asked = on(with_kernels())
    told = describe(price(asked, path := file("kernel,seconds\ngemm,60e-6\nrest,1\n")), asked.trace, asked, path)
    assert "67 % external times" in told[0]
    assert any("not used: rest" in sentence for sentence in told)


def test_the_model_needs_a_file_and_a_file_that_is_not_there_is_told():
    with pytest.raises(InputError, match="need a file"):
        price(job(), "external")
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file"):
        price(job(), "nowhere.csv")
    with pytest.raises(InputError, match=r"nowhere\.toml: cannot be read"):
        price(job(), "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clock = '1GHz'\n", "times must name one or more files"),
        ("times = []\n", "times must name one or more files"),
        ("times = 'sim.txt'\ncolck = '1GHz'\n", "unknown key .* 'colck': did you mean clock"),
        ("times = 'sim.txt'\nclock = '1 parsec'\n", "clock is '1 parsec'"),
        ("times = 'sim.txt'\nclock = true\n", "clock is True"),
        ("times = 'sim.txt'\ndevice = 4\n", "device is 4"),
        ("times = 'sim.txt'\nshapes = 'mine'\n", "shapes is 'mine'"),
        ("times = 'sim.txt'\nmatch = 'luck'\n", "match is 'luck'"),
        ("times = 'sim.txt'\nmatch = 'order'\n[operators]\n'#0' = 0\n", "match is 'order'"),
        ("times = 'sim.txt'\nmatch = 'order'\n", "3 rows of times and 2 operators .* do not go together"),
        ("times = 'sum.csv'\nmatch = 'order'\n", "a summary has no order"),
        ("times = 'sim.txt'\n[operators]\n", r"\[operators\] must have lines"),
        ("times = 'sim.txt'\n[operators]\n'#0' = true\n", "'#0' is True"),
        ("times = 'sim.txt'\n[operators]\n'#0' = []\n", "'#0' is \\[\\]"),
        ("times = 'sim.txt'\n[operators]\n'#0' = 3\n", "names row 3; the times have rows 0 to 2"),
        ("times = 'sim.txt'\n[operators]\n'#9' = 0\n", "rows are #0 to #1"),
        ("times = 'sim.txt'\n[operators]\n'#0' = '_Z4geem'\n", "unknown name in .* '_Z4geem'"),
        ("times = 'sim.txt'\n[operators]\n'aten::liner' = 0\n", "unknown operator in .* did you mean aten::linear"),
        ("times = 'sim.txt'\n[operators]\n'aten::linear | h.7' = 0\n", "unknown module of aten::linear in .* 'h.7': "),
        ("times = 'sim.txt'\n[operators]\n'aten::liner | h.0.fc' = 0\n", "unknown operator in .* 'aten::liner'"),
        ("times = 'sim.txt'\n[operators]\n'#0' = 0\n'aten::*' = 1\n", "is selected by '#0' and by 'aten::\\*'"),
        ("times = 'sim.txt'\n[operators]\n'| h.0.fc' = '_Z4*'\n", "selects 2 operators and '_Z4\\*' 3 rows"),
        ("times = 'sim.txt'\n[operators]\n'#0' = '_Z4*'\n", "selects 1 operators and '_Z4\\*' 3 rows"),
        ("times = 'cut.txt'\n[operators]\n'#0' = 2\n", "did not finish"),
        ("times = 'cut.txt'\nmatch = 'order'\n", "row 2 of the times did not finish"),
        ("times = 'nowhere.txt'\n", "nowhere.txt: no such file"),
        ("times = [\n", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_mapping_file_that_makes_no_sense(file, text, words):
    file(samples.ACCEL_SIM, "sim.txt")
    file(samples.ACCEL_SIM[: samples.ACCEL_SIM.rindex("kernel_name")], "cut.txt")
    file(samples.NSYS_SUM, "sum.csv")
    with pytest.raises(InputError, match=words) as error:
        price(on(layers(1)), file(text, "mapping.toml"))
    assert "\n" not in str(error.value)


def test_an_operator_that_launches_nothing_cannot_be_given_a_time(file):
    file(samples.ACCEL_SIM, "sim.txt")
    with pytest.raises(InputError, match=r"operator #2 \(aten::view\) launches nothing"):
        price(job(), file("times = 'sim.txt'\n[operators]\n'#2' = 0\n", "mapping.toml"))
