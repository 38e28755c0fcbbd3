"""Mamba's selective scan: work by hand, what is kept, what may be divided, and its time."""

from __future__ import annotations

import math

import pytest

import triosim
from tests.partition.divided import divided
from tests.sources.models.test_against_torch import bytes_of
from triosim.hardware import catalog
from triosim.kernels.physical import kinds
from triosim.kernels.work.scan import scans
from triosim.operators import Call, canonical, dims, flop, kind, problem, repeated, results, work
from triosim.operators.selective_scan import KERNELS
from triosim.partition.transfers import COLLECTIVES
from triosim.trace.calls import calls_of
from triosim.trace.tables import Category, Phase, check

BATCH, LENGTH, WIDTH, STATE, RANK = 2, 64, 32, 8, 4
CHANNELS, TOKENS = 2 * WIDTH, BATCH * LENGTH
SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": STATE, "time_step_rank": RANK, "vocab_size": 120}
H100 = catalog.accelerator("H100-SXM5-80GB")


def step(layers: int = 2, **options):
    configuration = {**SMALL, "num_hidden_layers": layers}
    return triosim.model("mamba", batch_size=BATCH, sequence_length=LENGTH, configuration=configuration, **options)


def calls(trace) -> list[Call]:
    found = [call for call in calls_of(trace).unique if call.kind == "selective-scan"]
    return sorted(found, key=lambda call: call.backward)


def test_work_by_hand():
    forward, backward = calls(step())
    each = TOKENS * CHANNELS
    assert flop(forward) == each * (6 * STATE + 3)
    again = each * (4 * STATE + 1)
    assert (flop(backward), repeated(backward)) == (2 * flop(forward) + again, again)
    assert work(forward)[:7] == (BATCH, LENGTH, CHANNELS, 1, STATE, 1, LENGTH)


@pytest.mark.parametrize("options", [{}, {"lora": "4"}])
def test_results_follow_from_what_is_read(options):
    for call in calls(step(**options)):
        made = results(call)
        assert [(one.shape, one.dtype) for one in made] == list(zip(call.outputs, call.output_dtypes, strict=True))
        found = dims(call)
        assert found.known
        assert {found.label("l"), found.label("n")} <= found.whole
        assert found.label("d") not in found.whole
        assert problem(call) == ""


def test_what_a_block_keeps():
    """``MambaInnerFn.save_for_backward``: gates and inputs, the small product, the result before the gate and states of
    chunks; the convolution, the steps and what the last product reads are made again."""

    def kept(layers):
        return bytes_of(step(layers), Category.ACTIVATION)

    stream = TOKENS * WIDTH * (4 + 2 + 2) + TOKENS * 4  # residual, what is normed and normed, deviation
    inside = TOKENS * (3 * CHANNELS + RANK + 2 * STATE) * 2 + BATCH * CHANNELS * 2 * STATE * 4
    assert kept(3) - kept(2) == pytest.approx(stream + inside, abs=TOKENS * WIDTH * 4)


def test_ranks_scan_parts_of_the_channels_and_add_up_what_they_share():
    """Steps, B and C are of all channels: their product is added up, as are gradients that a rank's channels give."""
    divided_step = divided(step(), 4)
    check(divided_step.trace)
    one, own = calls(step()), calls(divided_step.trace)
    assert [flop(call) * 4 for call in own] == [flop(call) for call in one]
    moved, phase = divided_step.transfers, divided_step.trace.operators.phase
    sent = [
        (int(phase[after]), COLLECTIVES[what], int(size))
        for after, what, size in zip(moved.after, moved.what, moved.bytes, strict=True)
    ]
    small, wide, shared = TOKENS * (RANK + 2 * STATE) * 2, TOKENS * WIDTH * 2, TOKENS * STATE * 2
    assert sent.count((Phase.FORWARD, "all_reduce", small)) == sent.count((Phase.FORWARD, "all_reduce", wide)) == 2
    assert sent.count((Phase.BACKWARD, "all_reduce", shared)) == 4


def test_what_is_missing_is_a_sentence():
    def call(**shapes):
        name = "mamba_ssm::selective_scan"
        return Call(canonical(name)[0], False, kind(name), tuple(shapes), tuple(shapes.values()), (), {}, name)

    good = {"u": (2, 64, 32), "delta": (2, 64, 32), "A_log": (32, 8), "B": (2, 64, 8), "C": (2, 64, 8)}
    assert problem(call(**good)) == ""
    assert "A_log [16, 8] is not of the 32 channels" in problem(call(**{**good, "A_log": (16, 8)}))
    assert "has no C among its tensors" in problem(call(**{k: v for k, v in good.items() if k != "C"}))


def seconds(batch=8.0, length=2048.0, channels=5120.0, state=16.0, device=H100, **options):
    work = scans(batch, length, channels, 1, state, 1, min(length, 2048), 0, selective=True, **options)
    return float(kinds.price(work, device).seconds[0])


def test_time_grows_with_each_size():
    usual = seconds()
    assert seconds(batch=16.0) == pytest.approx(2 * usual, rel=0.1)
    assert seconds(length=4096.0) == pytest.approx(2 * usual, rel=0.1)
    assert usual < seconds(state=32.0) < 2 * usual  # inputs are read once
    assert seconds(backward=True) > 2 * usual


def test_time_is_that_of_what_the_kernel_does():
    """At least its exponentials at 16 a clock and multiprocessor, and its bytes; with nothing to do, launches."""
    exponentials = 8 * 2048 * 5120 * 16 / (16 * 132 * H100.clock_hz)
    moved = 5 * 8 * 2048 * 5120 * 2 / H100.memory_bandwidth
    assert max(exponentials, moved) < seconds() < 4 * (exponentials + moved)
    assert seconds(1.0, 1.0, 1.0, 1.0) == pytest.approx(KERNELS[False] * seconds(1.0, 1.0, 1.0, 1.0) / KERNELS[False])
    assert 5e-6 < seconds(1.0, 1.0, 1.0, 1.0) < 1e-4
    few = seconds(1.0, 2048.0, 33.0)  # a quarter of the multiprocessors have a block
    assert few == pytest.approx(seconds(1.0, 2048.0, 132.0), rel=0.2)


def test_nobody_published_times_so_that_the_interval_is_wide():
    work = scans(1.0, 2048.0, 4096.0, 1, 16.0, 1, 2048, 0, selective=True)
    assert float(kinds.price(work, H100).spread[0]) == pytest.approx(math.log(2))
