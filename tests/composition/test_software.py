"""What is not known of the software: releases of a stack, which stack, and how intervals say so."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from validation.fit import software as script

import triosim
from tests.traces import chain
from triosim.composition import software
from triosim.stacks import load

SYSTEM = {"device": "H100", "devices": 1}


def test_releases_of_experts_differ_more_than_of_dense_models() -> None:
    known = software.spreads()
    assert known["dense"] < known["experts"]
    dense, experts = (triosim.model(name, sequence_length=16) for name in ("gpt2", "qwen3-30b-a3b"))
    other = known["unseen"]
    assert software.spread(dense, "mine") == pytest.approx(math.hypot(known["dense"], other))
    assert software.spread(experts, "mine") == pytest.approx(math.hypot(known["experts"], other))
    assert software.spread(dense, "") == pytest.approx(math.hypot(known["dense"], known["unnamed"], other))


def test_sources_of_a_stack_differ_less_where_several_agree() -> None:
    """Sources far from the middle of all widen their own stack's interval, releases of a stack share it."""
    far, near = script.SourceError("far", 0.6, 0.1), script.SourceError("near", 0.12, 0.1)
    found = script.of_stacks([far, near, near, near], script.Between(0.1, 0.13))
    assert found["near"] == (pytest.approx(0.13 * math.sqrt(2 / 5)), 3)
    assert found["far"] == (0.13, 1)
    names = {software.between_sources(name) for name in ("nemo", "nemo-2024")}
    assert len(names) == 1
    assert software.between_sources("mine") == software.spreads()["unseen"]


def _drawn(count: int, seed: int) -> list[script.SourceError]:
    """Sources about +8 %, with a deviation of 10 % between them and one of 5 to 15 % that is known."""
    draw = np.random.default_rng(seed)
    known = draw.uniform(0.05, 0.15, count)
    log = 0.08 + draw.normal(0, 1, count) * np.hypot(0.1, known)
    return [script.SourceError("", float(x), float(k)) for x, k in zip(log, known, strict=True)]


def test_what_sources_differ_by_is_found_again_and_few_far_ones_move_it_little() -> None:
    clean = _drawn(2000, 1)
    found = script.between(clean)
    assert found == pytest.approx((0.08, 0.1), abs=0.01)
    far = [script.SourceError("", 5.0, 0.1)] * 60
    assert script.between([*clean, *far]) == pytest.approx(found, abs=0.02)
    few = script.between([*_drawn(33, 2), script.SourceError("", 0.6, 0.1)])
    absurd = script.between([*_drawn(33, 2), script.SourceError("", 60.0, 0.1)])
    assert absurd == pytest.approx(few, abs=1e-6)


def test_few_sources_leave_a_wider_interval_than_many_which_holds_those_left_out() -> None:
    few, many = (script.unseen(_drawn(count, 3)).deviation for count in (12, 150))
    assert few > script.between(_drawn(12, 3)).deviation
    assert many == pytest.approx(script.between(_drawn(150, 3)).deviation, rel=0.05)
    assert script.held(_drawn(30, 4)) == pytest.approx(0.9, abs=0.1)


def test_the_middle_of_an_interval_is_above_the_prediction() -> None:
    """What a stack's file does not tell mostly takes time."""
    assert software.shift() > 0
    trace = triosim.model("gpt2", batch_size=8, sequence_length=256)
    ends = [triosim.simulate(trace, triosim.system(**SYSTEM), triosim.Plan(stack=load("torch-eager")),
                             triosim.Fidelity(seed=seed)) for seed in range(6)]  # fmt: skip
    middle = np.mean([math.log(math.prod(one.interval_s)) / 2 - math.log(one.iteration_time_s) for one in ends])
    assert middle > 0.5 * software.shift()


def test_an_interval_holds_what_releases_differ_by_and_names_the_stack_where_none_is() -> None:
    trace = triosim.model("llama-3-8b", sequence_length=512, configuration={"num_hidden_layers": 2})
    system = triosim.system(**SYSTEM)
    named, unnamed = (triosim.simulate(trace, system, triosim.Plan(stack=s)) for s in (load("torch-eager"), None))
    assert named.iteration_time_s == unnamed.iteration_time_s
    widths = [  # of 200 draws each: several seeds, as one is some 5 % off
        np.mean([
            math.log(high / low) / 2
            for seed in range(8)
            for low, high in [triosim.simulate(trace, system, plan, triosim.Fidelity(seed=seed)).interval_s]
        ])
        for plan in (triosim.Plan(stack=load("torch-eager")), triosim.Plan())
    ]  # fmt: skip
    assert software.spreads()["dense"] < widths[0] < widths[1]
    causes = [{cause.name: cause.suggestion for cause in result.uncertainty} for result in (named, unnamed)]
    assert causes[0]["the software"] == ""
    assert causes[1]["the software"] == "name it (--stack)"


def test_a_recording_ran_on_some_software() -> None:
    result = triosim.simulate(chain(layers=4), triosim.system(devices=1))
    assert "the software" not in {cause.name for cause in result.uncertainty}


def test_the_spread_between_releases_is_found_again(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    lines = ["source,quality,notes,moe_experts,iter_time_s,model,gpu,n_gpus,precision,global_batch,seq_len"]
    for cell in range(400):
        for release in ("26.02", "26.04", "26.06"):
            for experts, sigma in ((8, 0.2), (0, 0.05)):
                seconds = (1 + cell) * math.exp(draw.normal(0, sigma))
                where = f"{script.ARCHIVE},B,release {release},{experts},{seconds}"
                lines.append(f"{where},m{cell}-{experts},GB200,64,BF16,128,4096")
    file = tmp_path / "archive.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = script.releases(file)
    assert found["experts"][0] == pytest.approx(1.645 * 0.2, rel=0.1)
    assert found["dense"][0] == pytest.approx(1.645 * 0.05, rel=0.1)
    assert found["experts"][1] == 800
