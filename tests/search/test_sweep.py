from __future__ import annotations

import json
import random
from itertools import count, islice
from pathlib import Path

import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim.cli.workloads import load_workload
from triosim.core.errors import InputError
from triosim.plan import Plan
from triosim.prediction.simulate import simulate
from triosim.search.grid import grid
from triosim.search.journal import Journal, digest
from triosim.search.outcome import PlanOutcome, figures

BASE = Plan(global_batch_size=8)
ASKED = list(grid({"tp": (1, 2, 3), "pp": (1, 2), "zero": (0, 1)}))


@pytest.fixture(scope="module")
def gpt2() -> triosim.Trace:
    return load_workload("gpt2", seq_len=128, training=True)


@pytest.fixture(scope="module")
def server() -> triosim.System:
    return triosim.system("dgx-a100", 1)


@pytest.fixture(scope="module")
def outcomes(gpt2: triosim.Trace, server: triosim.System) -> list[PlanOutcome]:
    return list(triosim.sweep(gpt2, server, ASKED, base=BASE))


def test_each_plan_gives_what_it_gives_alone(
    gpt2: triosim.Trace, server: triosim.System, outcomes: list[PlanOutcome]
) -> None:
    assert [one.asked for one in outcomes] == ASKED
    for one in outcomes:
        if one.asked["tp"] == 3:
            assert one.figures is None
            assert "8 devices cannot be divided" in one.why
            continue
        alone = simulate(gpt2, server, *asked(global_batch_size=8, **one.asked), fit=False)
        whole = figures(alone)
        assert one.figures is not None
        assert one.figures.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-3)
        assert (one.figures.reserved_bytes, one.figures.binds) == (whole.reserved_bytes, whole.binds)
        parts = one.figures.compute_s + one.figures.exposed_communication_s + one.figures.host_s + one.figures.idle_s
        assert parts == pytest.approx(one.figures.iteration_time_s)


def test_neither_order_nor_workers_change_the_answer(
    gpt2: triosim.Trace, server: triosim.System, outcomes: list[PlanOutcome]
) -> None:
    mixed = random.Random(3).sample(range(len(ASKED)), len(ASKED))
    found = list(triosim.sweep(gpt2, server, [ASKED[i] for i in mixed], base=BASE, workers=2))
    assert [one.number for one in found] == list(range(len(ASKED)))
    assert [(one.asked, one.figures, one.why) for one in found] == [
        (outcomes[i].asked, outcomes[i].figures, outcomes[i].why) for i in mixed
    ]


def test_plans_may_be_endless_and_come_one_by_one(gpt2: triosim.Trace, server: triosim.System) -> None:
    said: list[str] = []
    plans = (Plan(dp=8, batch_size=1 + i) for i in count())
    found = list(islice(triosim.sweep(gpt2, server, plans, progress=said.append), 2))
    assert [one.figures.sizes["batch_size"] for one in found if one.figures] == [1, 2]
    assert said[1].startswith("2 plans, 2 possible, best ")


def test_outcomes_come_as_soon_as_all_before_them_are_there(gpt2: triosim.Trace, server: triosim.System) -> None:
    made: list[PlanOutcome] = []
    found = islice(triosim.sweep(gpt2, server, [{"tp": 2}] * 8, base=BASE, made=made.append), 5)
    assert [one.number for one in found] == list(range(5))
    assert len(made) == 5


def test_all_detail_is_the_result_of_a_single_prediction(gpt2: triosim.Trace, server: triosim.System) -> None:
    (one,) = triosim.sweep(gpt2, server, [{"tp": 2}], detail="all", base=BASE)
    assert one.result == simulate(gpt2, server, Plan(tp=2, global_batch_size=8), fit=False).to_dict()


def test_known_plans_are_not_predicted_again(
    gpt2: triosim.Trace, server: triosim.System, outcomes: list[PlanOutcome]
) -> None:
    known = {
        number: PlanOutcome(number, one.asked, None, "known") for number, one in enumerate(outcomes) if number != 1
    }
    for workers in (1, 2):
        found = list(triosim.sweep(gpt2, server, ASKED, base=BASE, known=known, workers=workers))
        assert [one.why == "known" for one in found] == [number != 1 for number in range(len(ASKED))]
        assert found[1] == outcomes[1]


def test_options_that_make_no_sense_are_a_sentence(gpt2: triosim.Trace, server: triosim.System) -> None:
    with pytest.raises(InputError, match="detail must be"):
        list(triosim.sweep(gpt2, server, [], detail="some"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="workers must be"):
        list(triosim.sweep(gpt2, server, [], workers=0))


def test_a_journal_gives_back_what_it_was_given(tmp_path: Path, outcomes: list[PlanOutcome]) -> None:
    path = tmp_path / "log"
    with Journal(path, "key", PlanOutcome.from_dict) as journal:
        for number, one in enumerate(outcomes):
            journal.keep(str(number), one)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # the last line was being written
    with Journal(path, "key", PlanOutcome.from_dict) as journal:
        assert journal.found == {str(number): one for number, one in enumerate(outcomes[:-1])}
        journal.keep(str(len(outcomes) - 1), outcomes[-1])
    assert path.read_bytes() == whole
    with Journal(path, "another", PlanOutcome.from_dict) as journal:
        assert journal.other
        assert not journal.found
        journal.done()
    assert not path.exists()


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("mine\n")
    with pytest.raises(InputError, match="no journal"):
        Journal(path, "key", PlanOutcome.from_dict)
    assert path.read_text() == "mine\n"


def test_a_digest_follows_the_content(gpt2: triosim.Trace, server: triosim.System, tmp_path: Path) -> None:
    same = load_workload("gpt2", seq_len=128, training=True)
    assert digest(gpt2, server, BASE) == digest(same, triosim.system("dgx-a100", 1), BASE)
    others = [
        digest(load_workload("gpt2", seq_len=64, training=True), server, BASE),
        digest(gpt2, triosim.system("dgx-h100", 1), BASE),
        digest(gpt2, server, Plan(global_batch_size=16)),
    ]
    own = tmp_path / "rule.py"
    for content in ("a", "b"):
        own.write_text(content)
        others.append(digest(gpt2, server, BASE, files=[str(own)]))
    assert len({digest(gpt2, server, BASE), *others}) == 6


def test_clocks_and_power_caps_are_axes(tmp_path: Path) -> None:
    words = ("train", "llama-3.2-1b", "--seq-len", "512", "--device", "H100")
    path = tmp_path / "sweep.json"
    run(*words, "--sweep", "clock=none,990MHz", "power-cap=none,300W", "--json", path)
    plans = json.loads(path.read_text())["plans"]
    for one in plans:
        options = [text for name, value in one["asked"].items() if value != "none" for text in (f"--{name}", value)]
        alone = json.loads(run(*words, *options, "--json", "-").stdout)
        assert one["figures"]["iteration_time_s"] == pytest.approx(alone["iteration_time_s"], rel=1e-9)
    assert len({one["figures"]["iteration_time_s"] for one in plans}) >= 3
    low = run(*words, "--sweep", "clock=none,5MHz").stdout
    assert "a clock of 5 MHz is outside those of H100" in low
    twice = run(*words, "--clock", "990MHz", "--sweep", "clock=none,990MHz", code=2)
    assert "--clock is given by itself and in --sweep" in twice.stderr


def test_parts_none_of_whose_operators_has_a_backward_are_predicted() -> None:
    trace = load_workload("llama-3.2-1b", seq_len=256, training=True)
    machine = triosim.system("dgx-h100", 4)
    fields = {"pp": 32, "schedule": "looped-bfs", "micro-batch-size": 1}
    (found,) = triosim.sweep(trace, machine, [fields], base=Plan(global_batch_size=8))
    alone = simulate(
        trace, machine, *asked(global_batch_size=8, pp=32, schedule="looped-bfs", micro_batch_size=1), fit=False
    )
    assert found.figures is not None
    assert found.figures.iteration_time_s == alone.iteration_time_s
