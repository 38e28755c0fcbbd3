"""``--sweep`` and ``--find fleet``: many fleets, ranked, in any order and on any number of processes the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import run, run_until_killed
from triosim.serving.outcome import FleetFigures, FleetOutcome, ranked

H100 = ("serve", "llama-3-8b", "--device", "H100")
TRAFFIC = ("--arrivals", "poisson:60", "--lengths", "uniform:128-512", "--requests", "500")
GOALS = ("--slo", "ttft=p99:200ms,tpot=p99:15ms")


def fleets(*words: object) -> list[dict[str, Any]]:
    found = json.loads(run(*words, "--json", "-").stdout)
    assert found["schema"] == "triosim/serving-sweep/1"
    return list(found["fleets"])


def test_each_fleet_is_what_it_is_alone() -> None:
    swept = fleets(*H100, *TRAFFIC, *GOALS, "--sweep", "tp=1,2", "engine=vllm,sglang")
    assert [one["asked"] for one in swept] == [{"tp": t, "engine": e} for t in (1, 2) for e in ("vllm", "sglang")]
    assert sorted(one["rank"] for one in swept) == [1, 2, 3, 4]
    alone = json.loads(run(*H100, *TRAFFIC, *GOALS, "--tp", "2", "--engine", "sglang", "--json", "-").stdout)
    figures = swept[3]["figures"]
    assert figures["ttft_p99"] == alone["latency_s"]["ttft"]["p99"]
    assert figures["dollars_per_million_tokens"] == alone["dollars_per_million_tokens"]
    assert figures["met"] == all(goal["met"] for goal in alone["goals"])
    assert (figures["replicas"], figures["devices"]) == (1, 2)


def test_the_order_and_the_number_of_processes_change_nothing() -> None:
    first = fleets(*H100, *TRAFFIC, *GOALS, "--sweep", "tp=1,2", "replicas=1,2")
    turned = fleets(*H100, *TRAFFIC, *GOALS, "--sweep", "replicas=2,1", "tp=2,1", "--workers", "2")

    def by_name(found: list[dict[str, Any]]) -> dict[str, Any]:
        return {json.dumps(one["asked"], sort_keys=True): (one["rank"], one["figures"]) for one in found}

    assert by_name(first) == by_name(turned)


def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    words = (*H100, *TRAFFIC, "--sweep", "tp=1,2,4,8", "replicas=1,2,3,4", "--json", "fleets.json", "--quiet")
    journal = tmp_path / "fleets.json.journal.jsonl"
    run_until_killed(2, *words, cwd=tmp_path)
    assert not (tmp_path / "fleets.json").exists()
    assert "plans are known from" in run(*words[:-1], cwd=tmp_path).stderr
    first = (tmp_path / "fleets.json").read_bytes()
    assert not journal.exists()
    run(*words, cwd=tmp_path)
    assert (tmp_path / "fleets.json").read_bytes() == first


def test_the_cheapest_fleet_is_as_small_as_it_can_be() -> None:
    found = fleets(*H100[:-1], "H100,A100", *TRAFFIC, *GOALS, "--find", "fleet", "--sweep", "tp=1,2")
    assert [one["asked"] for one in found] == [{"device": d, "tp": t} for d in ("H100", "A100") for t in (1, 2)]
    for one in found:
        asked, figures = one["asked"], one["figures"]
        assert figures["met"]
        assert figures["devices"] == figures["replicas"] * asked["tp"]
        words = (*H100[:-1], asked["device"], "--tp", asked["tp"], *TRAFFIC, *GOALS, "--interval", "off", "--json", "-")
        alone = json.loads(run(*words, "--replicas", figures["replicas"]).stdout)
        assert alone["latency_s"]["ttft"]["p99"] == figures["ttft_p99"]
        if figures["replicas"] > 1:
            fewer = json.loads(run(*words, "--replicas", figures["replicas"] - 1).stdout)
            assert not all(goal["met"] for goal in fewer["goals"])
    rent = [one["figures"]["dollars_per_hour"] for one in sorted(found, key=lambda one: one["rank"])]
    assert rent == sorted(rent)
    assert len({one["figures"]["replicas"] for one in found}) > 1


def test_a_device_that_is_named_twice_is_tried_once() -> None:
    found = fleets(*H100[:-1], "H100,A100,H100-SXM5-80GB,H100", *TRAFFIC[:-1], "20", *GOALS, "--find", "fleet",
                   "--sweep", "tp=1")  # fmt: skip
    assert [one["asked"]["device"] for one in found] == ["H100", "A100"]


def test_goals_that_nobody_keeps_are_said_to_be_missed() -> None:
    words = (*H100, *TRAFFIC[:-1], "20", "--slo", "tpot=p99:1us", "--find", "fleet", "--sweep", "tp=1")
    assert "no fleet keeps tpot=p99:1e-06s" in run(*words).stdout
    assert [one["figures"]["met"] for one in fleets(*words)] == [False]


def test_rates_are_found_for_each() -> None:
    found = fleets(*H100, *TRAFFIC, *GOALS, "--find", "rate", "--sweep", "tp=1,2")
    alone = json.loads(run(*H100, *TRAFFIC, *GOALS, "--find", "rate", "--tp", "2", "--json", "-").stdout)
    assert found[1]["figures"]["rate"] == alone["rate"] > found[0]["figures"]["rate"] > 0


def test_what_cannot_be_formed_says_why() -> None:
    done = run(*H100, *TRAFFIC, "--sweep", "tp=1,3")
    assert "1 of 2 fleets cannot be formed" in done.stdout
    assert "--tp 3 does not divide" in done.stdout


def test_a_sweep_of_nothing_that_works_fails() -> None:
    done = run(*H100, *TRAFFIC, "--sweep", "tp=3,5", code=2)
    assert "2 of 2 fleets cannot be formed" in done.stdout
    assert "none of the 2 fleets can be formed: --tp 3 does not divide" in done.stderr


def test_values_with_options_are_told_apart() -> None:
    words = ("--sweep", "speculate=ngram,acceptance=0.7,eagle,tokens=2,acceptance=0.6 tp=1,2")
    found = fleets(*H100, *TRAFFIC[:-1], "20", *words)
    assert [one["asked"] for one in found] == [
        {"speculate": drafts, "tp": tp}
        for drafts in ("ngram,acceptance=0.7", "eagle,tokens=2,acceptance=0.6") for tp in (1, 2)
    ]  # fmt: skip
    scales = fleets(*H100, *TRAFFIC[:-1], "20", "--replicas", "2", "--sweep", "autoscale=target=8,target=16,least=2")
    assert [one["asked"]["autoscale"] for one in scales] == ["target=8", "target=16,least=2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sweep", "tq=1"), "tq"),
        (("--sweep", "tp=1", "tp=2"), "--sweep gives tp twice"),
        (("--sweep", "tp=1,,2"), "give an option and values"),
        (("--sweep", "tp=one"), "tp"),
        (("--sweep", "kv-tier=host:1GB"), "cannot be swept"),
        (("--sweep", "json=a,b"), "json"),
        (("--sweep", "tp=1", "--workers", "0"), "at least 1"),
        (("--workers", "2"), "give --sweep as well"),
        (("--sweep", "tp=1", "--interval", "on"), "does not go with --sweep"),
        (("--sweep", "tp=1", "--find", "goals"), "is not known: give rate or fleet"),
        (("--find", "fleet"), "give --slo"),
        (("--find", "fleet", "--slo", "ttft=2s", "--device", "H100,NOPE"), "unknown device 'NOPE'"),
        (("--find", "fleet", "--slo", "ttft=2s", "--device", ","), "--device names none"),
        (("--find", "fleet", "--slo", "ttft=2s", "--replicas", "2"), "leave --replicas out"),
        (("--find", "fleet", "--slo", "ttft=2s", "--sweep", "replicas=1,2"), "leave it out"),
        (("--find", "fleet", "--slo", "ttft=2s", "--system", "dgx-h100"), "no --system"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(words: tuple[str, ...], said: str) -> None:
    error = run(*H100, *TRAFFIC, *words, code=2).stderr
    assert said in error
    assert "Traceback" not in error


def test_fleets_that_keep_the_goals_come_first_then_the_cheaper() -> None:
    some = FleetFigures(1, 1, True, 4.0, 0.5, 1.0, 100.0, 1.0, 0.1, 0.1, 0.01, 0.01, 1.0, 0)
    outcomes = [
        FleetOutcome({"n": 0}, replace(some, met=False, dollars_per_hour=1.0, dollars_per_million_tokens=0.1)),
        FleetOutcome({"n": 1}, replace(some, dollars_per_million_tokens=0.4, dollars_per_hour=8.0)),
        FleetOutcome({"n": 2}, some),
        FleetOutcome({"n": 3}, None, "no room"),
        FleetOutcome({"n": 4}, replace(some, e2e_mean=0.5)),
    ]
    assert [one.asked["n"] for one in ranked(outcomes)] == [1, 4, 2, 0]
    assert [one.asked["n"] for one in ranked(outcomes, sized=True)] == [4, 2, 1, 0]
    unpriced = [*outcomes, FleetOutcome({"n": 5}, replace(some, dollars_per_hour=None, devices=2))]
    assert [one.asked["n"] for one in ranked(unpriced, sized=True)] == [4, 1, 2, 5, 0]
    assert FleetOutcome.from_dict(outcomes[1].to_dict()) == outcomes[1]


def test_an_option_is_not_given_beside_a_sweep_over_it() -> None:
    done = run(*H100, *TRAFFIC, "--tp", "2", "--sweep", "tp=1,2", code=2)
    assert "--tp is given by itself and in --sweep" in done.stderr
