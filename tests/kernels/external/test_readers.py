"""Every reader on a small file of its format, and on broken ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.external import samples
from triosim.core.errors import InputError
from triosim.kernels.external_times import READERS, SIDES, ClockRates, Granularity, read


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "times.out") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", samples.ALL)
def test_each_format_is_recognised_by_one_reader_and_by_content(name):
    assert set(samples.ALL) == set(READERS.names())
    assert [other for other in READERS.names() if READERS.get(other)().recognises(samples.ALL[name])] == [name]


def test_accel_sim_times_are_differences_of_the_total(file):
    found = read(file(samples.ACCEL_SIM))
    assert found.what == Granularity.KERNEL
    assert found.name == ("_Z4gemmPf", "_Z4reluPf", "_Z4gemmPf")
    assert found.seconds.tolist() == pytest.approx([10e-6, 2e-6, 20e-6])
    assert "1410 MHz, as simulated" in found.notes[0]


def test_the_clock_is_the_users_then_the_files_then_the_devices(file):
    path = file(samples.ACCEL_SIM)
    assert read(path, ClockRates(2.82e9, 1e9)).seconds[0] == pytest.approx(5e-6)
    domains = file("\n".join(line for line in samples.ACCEL_SIM.splitlines() if "uArch" not in line), "domains")
    assert read(domains, ClockRates(None, 1e9)).seconds[0] == pytest.approx(10e-6)
    silent = file("\n".join(samples.ACCEL_SIM.splitlines()[2:]), "silent")
    assert read(silent, ClockRates(None, 1.41e8)).seconds[0] == pytest.approx(100e-6)
    with pytest.raises(InputError, match=r"silent counts cycles .* clock = '1\.41GHz'"):
        read(silent)


def test_a_kernel_that_was_cut_off_has_no_time(file):
    at = samples.ACCEL_SIM.rindex("kernel_name")
    cut = "GPGPU-Sim: ** break due to reaching the maximum cycles (or instructions) **\n"
    found = read(file(samples.ACCEL_SIM[:at] + cut + samples.ACCEL_SIM[at:]))
    assert np.isnan(found.seconds).tolist() == [False, False, True]
    lost = read(file(samples.ACCEL_SIM[:at], "lost"))
    assert lost.name[2] == "_Z4gemmPf"
    assert np.isnan(lost.seconds).tolist() == [False, False, True]


def test_statistics_printed_again_at_the_end_are_no_kernel(file):
    assert len(read(file(samples.ACCEL_SIM + "gpu_tot_sim_cycle = 45120\n"))) == 3


def test_kernels_of_several_streams_are_noted(file):
    text = samples.ACCEL_SIM.replace("kernel_launch_uid = 1", "kernel_stream_id = 1").replace(
        "kernel_launch_uid = 2", "kernel_stream_id = 2"
    )
    assert "2 streams" in read(file(text)).notes[1]


def test_gem5_regions_end_with_a_dump_and_begin_with_a_reset_or_the_dump_before(file):
    found = read(file(samples.GEM5))  # reset at 10 us, dumped at 14.2 us and, without another reset, at 17.2 us
    assert found.what == Granularity.REGION
    assert found.name == ("region 0", "region 1")
    assert found.seconds.tolist() == pytest.approx([4.2e-6, 3e-6])


def test_gem5_of_old_names_and_without_ticks(file):
    old = samples.GEM5
    for new, name in (("simTicks", "sim_ticks"), ("finalTick", "final_tick"), ("simFreq", "sim_freq")):
        old = old.replace(new, name)
    assert read(file(old)).seconds.tolist() == pytest.approx([4.2e-6, 3e-6])
    rounded = "\n".join(line for line in samples.GEM5.splitlines() if "Tick" not in line)
    assert read(file(rounded, "rounded")).seconds.tolist() == pytest.approx([4e-6, 7e-6])


def test_mgpusim_gives_the_kernel_time_of_each_component(file):
    found = read(file(samples.MGPUSIM))
    assert found.name == ("Driver", "GPU[1].CommandProcessor")
    assert found.seconds.tolist() == pytest.approx([5.352e-6, 5.1e-6])


def test_nsight_systems_summary(file):
    found = read(file(samples.NSYS_SUM))
    assert found.name == ("void gemm<float, 128>(float *, int)", "relu")
    assert found.launches.tolist() == [2, 4]
    assert found.seconds.tolist() == pytest.approx([40e-6, 5.00025e-6])
    old = "Time(%),Average (us),Instances,Name\n50,40.0,2,gemm\n"
    assert read(file(old, "old")).seconds.tolist() == pytest.approx([40e-6])


def test_nsight_systems_trace_is_in_order_of_starts_without_copies(file):
    found = read(file(samples.NSYS_TRACE))
    assert found.name == ("void gemm<float, 128>(float *, int)", "relu")
    assert found.seconds.tolist() == pytest.approx([40e-6, 5e-6])
    assert "1 copies" in found.notes[0]


@pytest.mark.parametrize(("text", "first"), [(samples.NCU_RAW, 1042.5e-6), (samples.NCU_DETAILS, 42.5e-6)])
def test_nsight_compute(file, text, first):
    found = read(file(text))
    assert found.name == ("gemm", "relu")
    assert found.seconds.tolist() == pytest.approx([first, 5e-6])
    assert "clock-control" in found.notes[0]


def test_neusight_nodes_have_two_passes_in_milliseconds(file):
    found = read(file(samples.NEUSIGHT))
    assert found.what == Granularity.MODULE
    assert found.name == ("h_0_fc", "h_0_fc")
    assert [SIDES[side] for side in found.side] == ["forward", "backward"]
    assert found.seconds.tolist() == pytest.approx([40e-6, 80e-6])
    assert found.elements.tolist() == [8 * 4096] * 2
    assert "2 passes" in found.notes[0]


def test_a_plain_table(file):
    found = read(file(samples.PLAIN))
    assert found.what == Granularity.OPERATOR
    assert found.module == ("h.0.fc", "")
    assert found.elements.tolist() == [0, 32768]
    assert found.seconds.tolist() == pytest.approx([40e-6, 5.5e-6])
    assert read(file("kernel,seconds\ngemm,1e-5\n", "kernels")).what == Granularity.KERNEL


@pytest.mark.parametrize("name", samples.ALL)
def test_files_of_windows_read_the_same(tmp_path, name):
    times = []
    for ends in (b"\n", b"\r\n"):
        path = tmp_path / "times"
        path.write_bytes(
            (b"\xef\xbb\xbf" if ends == b"\r\n" else b"") + samples.ALL[name].encode().replace(b"\n", ends)
        )
        times.append(read(path))
    assert times[0].name == times[1].name
    assert times[0].seconds.tolist() == times[1].seconds.tolist()


def test_gzipped_files_are_read(tmp_path):
    path = tmp_path / "times.gz"
    path.write_bytes(gzip.compress(samples.NSYS_SUM.encode()))
    assert len(read(path)) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (samples.ACCEL_SIM.replace("= 16920", "= many"), "line 13: gpu_tot_sim_cycle is 'many'"),
        (samples.ACCEL_SIM.replace("= 16920", "= 120"), "line 13: gpu_tot_sim_cycle goes back from 14100 to 120"),
        (samples.GEM5[: samples.GEM5.rindex("---------- End")], r"region 1 \(line 11\) is cut off"),
        (samples.GEM5.replace("4200000", "nought"), "simTicks of region 0 is 'nought'"),
        (samples.GEM5.replace("sim", "host"), r"region 0 \(line 2\) has neither simTicks"),
        (samples.MGPUSIM.replace("kernel_time", "busy"), "has no metric 'kernel_time'"),
        (samples.MGPUSIM.replace("0.000005352000", "soon"), "line 2: 'value' is 'soon'"),
        (samples.NSYS_SUM.replace(",2,", ",0,"), "line 4: 'Instances' is '0'"),
        (samples.NSYS_SUM.replace("80.0,80000", "80.0,-1"), r"line 4: 'Total Time \(ns\)' is '-1'"),
        (samples.NSYS_SUM.replace(",relu", ""), "line 5: 8 cells under a header of 9"),
        (samples.NSYS_TRACE.replace("40000", "?"), r"line 4: 'Duration \(ns\)' is '\?'"),
        (samples.NSYS_TRACE.replace("Start (ns)", "Began (ns)"), r"no column 'Start \(ns\)'"),
        (samples.NCU_RAW.replace("gpu__time_duration.sum", "gpu__time.sum"), "--metrics gpu__time_duration.sum"),
        (samples.NCU_RAW.replace('"us"', '"inst"'), "line 3: the duration's unit is 'inst'"),
        (samples.NCU_RAW.replace("1,042.50", "n/a"), "line 4: 'gpu__time_duration.sum' is 'n/a'"),
        (samples.NCU_DETAILS.replace("Duration", "Elapsed").replace("gpu__", "gpc__"), "holds no duration of a kernel"),
        (samples.NEUSIGHT.replace("0.04", "fast"), "line 3: 'fw_latency' is 'fast'"),
        (samples.NEUSIGHT.replace("h_0_fc,", "h_0_fc,x,"), "line 3: 13 cells under a header of 12"),
        (samples.PLAIN.replace("forward", "sideways"), "line 2: 'pass' is 'sideways'"),
        (samples.PLAIN.replace(",40", ",nan"), "line 2: 'microseconds' is 'nan'"),
        ("operator,seconds\n", "holds no times"),
        ("hello\n", "is text that starts with 'hello', which no reader of external times takes; give .*gem5"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_sentence_with_place_and_cure(file, text, words):
    with pytest.raises(InputError, match=words) as error:
        read(file(text))
    assert "times.out" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_that_is_no_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
