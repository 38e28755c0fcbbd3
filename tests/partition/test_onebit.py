"""1-bit Adam: what is sent, what it keeps, and when it pays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.command import run
from tests.traces import chain
from triosim.core.errors import PlanError
from triosim.partition.rules.onebit import MomentumSigns
from triosim.prediction.prepare import prepare
from triosim.schedule.program import COLLECTIVES, Op, Program

LAYERS, WIDTH, DP = 8, 256, 4


def _program(link: str = "1GB/s", **plan: object) -> Program:
    trace = chain(layers=LAYERS, batch=512, width=WIDTH, weight_s=1e-3, optimizer_s=1e-3)
    fields = {"dp": DP, "host": "none", "parallelism": ("onebit",), **plan}
    return prepare(trace, triosim.system(device="H100", devices=DP, link=link), *asked(**fields)).programs[0]


def _sent(program: Program) -> list[tuple[str, int]]:
    rows = np.flatnonzero(program.op == Op.COLLECTIVE).tolist()
    return [(COLLECTIVES[program.what[row]], int(program.bytes[row])) for row in rows]


def _compressed(
    momenta: np.ndarray, errors: np.ndarray, server: np.ndarray
) -> tuple[np.ndarray, list[tuple[str, int]]]:
    """The all-reduce of DeepSpeed's backend in numpy, of all ranks: what comes out, and what one rank sends."""
    n, size = momenta.shape
    held = momenta + errors
    scales = np.linalg.norm(held, axis=1) / np.sqrt(size)
    errors[:] = held - scales[:, None] * np.where(held >= 0, 1, -1)
    bits = np.stack([np.packbits(part >= 0, axis=-1) for part in held.reshape(n, n, -1)])  # (from, to, bytes)
    sent = [("all_to_all", bits[0].nbytes), ("all_gather", scales.astype(np.float32).nbytes)]
    signs = np.unpackbits(bits, axis=-1).astype(float) * 2 - 1
    sums = (signs * scales[:, None, None]).mean(axis=0) + server
    of_sums = np.linalg.norm(sums, axis=1) / np.sqrt(sums.shape[1])
    server[:] = sums - of_sums[:, None] * np.where(sums >= 0, 1, -1)
    back = np.packbits(sums >= 0, axis=-1)
    sent += [("all_gather", back.nbytes), ("all_gather", of_sums.astype(np.float32).nbytes)]
    return ((np.unpackbits(back, axis=-1).astype(float) * 2 - 1) * of_sums[:, None]).ravel(), sent


@given(st.sampled_from([2, 4, 8]), st.integers(1, 40), st.integers(0, 2**31))
def test_it_sends_what_an_all_reduce_of_signs_sends(n: int, unit: int, seed: int) -> None:
    """Run on numbers; what is lost once comes back later, so that the mean over time is that of the momenta."""
    size = 8 * n * unit
    momenta = np.random.default_rng(seed).standard_normal((n, size))
    errors, server = np.zeros((n, size)), np.zeros((n, size // n))
    out, sent = _compressed(momenta, errors, server)
    calls = MomentumSigns(n).calls([(size,)], 4)
    assert [(call.what, call.sent) for call in calls if call.sent] == sent
    np.testing.assert_allclose(out, momenta.mean(axis=0) - errors.mean(axis=0) - server.ravel(), atol=1e-9)
    assert MomentumSigns(n).kept([(size - 1,)], 4) == 4 * (errors.shape[1] + server.shape[1])


def test_all_momenta_go_at_once_after_the_backward() -> None:
    program, elements = _program(), LAYERS * WIDTH * WIDTH
    assert _sent(program) == [
        ("all_to_all", elements // 8), ("all_gather", 4 * DP), ("all_gather", elements // 8), ("all_gather", 4 * DP)
    ]  # fmt: skip
    first = int(np.flatnonzero(program.op == Op.COLLECTIVE)[0])
    backward = (program.op == Op.COMPUTE) & (program.what < 0)
    assert backward[:first].sum() >= 3 * LAYERS  # forward, and both products of the backward


def test_the_warm_up_all_reduces_gradients() -> None:
    plain = _program(parallelism=())
    assert _sent(_program(parallelism_options={"phase": "warm-up"})) == _sent(plain)
    assert {kind for kind, _ in _sent(plain)} == {"all_reduce"}


def test_errors_stay_in_memory() -> None:
    elements = LAYERS * WIDTH * WIDTH
    held = {}
    for rules in ((), ("onebit",)):
        trace = chain(layers=LAYERS, batch=512, width=WIDTH, weight_s=1e-3, optimizer_s=1e-3)
        fields = {"dp": DP, "host": "none", "parallelism": rules, "overlap": False}
        held[rules] = triosim.simulate(trace, triosim.system(devices=DP, link="1GB/s"), *asked(**fields)).memory
    more = held["onebit",].allocated_bytes - held[()].allocated_bytes
    assert more == pytest.approx(4 * elements * (1 + 1 / DP), rel=0.01)


@pytest.mark.parametrize(("link", "pays"), [("100MB/s", True), ("400GB/s", False)])
def test_it_pays_on_slow_links(link: str, pays: bool) -> None:
    """A 32nd of the bytes twice, for some 200 bytes of memory traffic an element."""
    took = {}
    for rules in ((), ("onebit",)):
        trace = triosim.model("bert-large", batch_size=8, sequence_length=128)
        system = triosim.system(device="V100-SXM2-32GB", devices=8, link=link)
        took[rules] = triosim.simulate(trace, system, *asked(dp=8, parallelism=rules)).iteration_time_s
    assert (took["onebit",] < took[()]) == pays


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"zero": 1}, "does not go with zero 1: leave out one"),
        ({"parallelism": ("powersgd", "onebit")}, "does not go with another way of exchanging gradients"),
        ({"parallelism_options": {"phase": "cold"}}, "phase"),
        ({"optimizer": "muon"}, "onebit: what it exchanges are moments of adam or adamw, not of muon"),
    ],
)
def test_what_cannot_be_is_a_sentence(plan: dict[str, object], words: str) -> None:
    with pytest.raises((PlanError, triosim.InputError), match=words):
        _program(**plan)


def test_from_the_command_line() -> None:
    done = run(
        "train", "bert-large", "--device", "V100-SXM2-32GB", "--devices", "8", "--link", "1.25GB/s",
        "--batch-size", "8", "--parallelism", "onebit", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds = {row["kind"] for row in json.loads(done.stdout)["collectives"]}
    assert kinds == {"all_to_all", "all_gather"}
