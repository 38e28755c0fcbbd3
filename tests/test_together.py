"""Several jobs on one network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import triosim
from tests.command import run
from tests.traces import chain
from triosim import Fidelity, InputError, Plan
from triosim.prediction.together import SharedJob, stays


def test_jobs_that_share_no_link_run_as_they_do_alone() -> None:
    system = triosim.system(devices=8, link="1GB/s", latency="2us")
    trace = chain(layers=4, batch=8)
    together = triosim.simulate_together([(trace, Plan(dp=2)), (trace, Plan(dp=2, tp=2))], system)
    for result, plan in zip(together, (Plan(dp=2), Plan(dp=2, tp=2)), strict=True):
        alone = triosim.simulate(trace, system, plan.replaced(idle_ok=True))
        assert result.iteration_time_s == alone.iteration_time_s
        assert result.breakdown_s == alone.breakdown_s
        assert result.devices == alone.devices
        assert result.simulation.flows > 0


def test_jobs_that_share_links_slow_each_other() -> None:
    """Two rings of two over one pair of servers: every transfer crosses the same two links."""
    system = triosim.system(devices=4, topology="ring", link="1MB/s")
    trace = chain(layers=4, batch=8, forward_s=1e-4)
    plans = [Plan(placement=(0, 2), overlap=False), Plan(placement=(1, 3), overlap=False)]
    alone = [triosim.simulate(trace, system, plan.replaced(dp=2)) for plan in plans]
    together = triosim.simulate_together([(trace, plan) for plan in plans], system)
    for result, one in zip(together, alone, strict=True):
        assert result.iteration_time_s > one.iteration_time_s
        communication = result.breakdown_s.exposed_communication / one.breakdown_s.exposed_communication
        assert 1.2 < communication <= 2.0
    total = together[0].timeline.links.bytes
    assert np.array_equal(total, together[1].timeline.links.bytes)
    assert total.sum() == sum(one.timeline.links.bytes.sum() for one in alone)


def test_each_job_gets_the_next_devices() -> None:
    system = triosim.system(devices=6, link="1GB/s")
    trace = chain(layers=4, batch=8)
    results = triosim.simulate_together([(trace, Plan(dp=2)), (trace, Plan(dp=1, tp=2)), (trace, Plan())], system)
    names = [result.timeline.rank_names for result in results]
    assert [n[0].split()[0].removeprefix("gpu") for n in names] == [n[0].split()[0][-1] for n in names]
    assert len({name for group in names for name in group}) == 6


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([(Plan(dp=3),), (Plan(dp=2),)], "job 1 needs 2 devices, but the jobs before it leave 1"),
        ([(Plan(placement=(0, 1)),), (Plan(placement=(1, 2)),)], "job 1 is placed on device 1"),
        ([(Plan(dp=1),), (Plan(dp=1), Fidelity(solver="equal-split"))], "one network model, but 2 are named"),
    ],
)
def test_what_cannot_be(plans: list[tuple], message: str) -> None:
    system = triosim.system(devices=4, link="1GB/s")
    with pytest.raises(InputError, match=message):
        triosim.simulate_together([(chain(layers=4, batch=8), *plan) for plan in plans], system)


def _rings() -> tuple[triosim.System, triosim.Trace, list[Plan]]:
    """Two rings of two over one pair of links."""
    system = triosim.system(devices=4, topology="ring", link="1MB/s")
    plans = [Plan(placement=places, overlap=False, iterations=4) for places in ((0, 2), (1, 3))]
    return system, chain(layers=4, batch=8, forward_s=1e-4), plans


def test_a_job_is_slowed_down_only_while_others_are_there() -> None:
    system, trace, plans = _rings()
    (alone,) = stays([SharedJob(trace, plans[0])], system)
    each = alone.alone_s
    assert alone.slowdown == pytest.approx(1)
    assert alone.iteration_times_s == pytest.approx([each] * 4)
    late = SharedJob(trace, plans[1], arrives_s=2 * each)
    first, second = stays([SharedJob(trace, plans[0]), late], system)
    times = first.iteration_times_s
    assert times[:2] == pytest.approx([each] * 2)
    assert min(times[2:]) > 1.2 * each
    assert second.begins_s == pytest.approx(2 * each)
    assert second.iteration_times_s[0] > 1.2 * each
    assert second.iteration_times_s[-1] == pytest.approx(each)  # the first has left
    assert first.leaves_s == pytest.approx(sum(times))
    assert second.leaves_s == pytest.approx(2 * each + sum(second.iteration_times_s))
    assert sum(second.iteration_times_s) == pytest.approx(4 * second.result.iteration_time_s)


@pytest.mark.parametrize("arrives_s", [0.0, 1.0, 1e-12])
def test_jobs_that_never_meet_run_as_alone_to_the_picosecond(arrives_s: float) -> None:
    system, trace, plans = _rings()
    (alone,) = stays([SharedJob(trace, plans[0])], system)
    both = stays([SharedJob(trace, plans[0]), SharedJob(trace, plans[0], arrives_s=arrives_s, after=0)], system)
    for stay in both:
        assert stay.result.iteration_time_s == alone.result.iteration_time_s == stay.alone_s
        assert stay.iteration_times_s == alone.iteration_times_s
        assert stay.result.devices == alone.result.devices
    assert both[1].begins_s == max(arrives_s, both[0].leaves_s)
    assert both[1].devices == both[0].devices == (0, 2)


def test_a_job_takes_the_devices_of_the_one_that_it_follows() -> None:
    system, trace = triosim.system(devices=6, link="1GB/s"), chain(layers=4, batch=8)
    found = stays([
        SharedJob(trace, Plan(dp=2)), SharedJob(trace, Plan(dp=2)), SharedJob(trace, Plan(), after=0),
        SharedJob(trace, Plan(dp=4), after=1),
    ], system, alone=False)  # fmt: skip
    assert [stay.devices for stay in found] == [(0, 1), (2, 3), (0, 1), (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"arrives_s": -1.0}, "job 'late' arrives at -1 s: give a time from 0 on"),
        ({"after": 1}, "job 'late' follows job 1, which is not before it"),
        ({"plan": Plan(dp=4), "after": 0}, "job 'late' needs 4 devices, but the jobs before it leave 3"),
        ({"plan": Plan(placement=(3, 1)), "after": 0}, "job 'late' is placed on device 1, which another job has"),
    ],
)
def test_what_cannot_follow(job: dict, message: str) -> None:
    system, trace = triosim.system(devices=4, link="1GB/s"), chain(layers=4, batch=8)
    jobs = [SharedJob(trace, Plan(dp=1)), SharedJob(trace, Plan(dp=1))][: 1 if job.get("after") == 1 else 2]
    late = SharedJob(**{"workload": trace, "plan": Plan(dp=1), "name": "late", **job})
    with pytest.raises(InputError, match=message):
        stays([*jobs, late], system)


FILE = """
device = "A100"
devices = 4
link = "25GB/s"

[[job]]
name = "one"
workload = "gpt2"
seq-len = 64
dp = 2
iterations = 2

[[job]]
name = "two"
workload = "gpt2"
seq-len = 64
tp = 2
sequence-parallel = true
parallelism-option = { regather = false }
arrives = "1ms"
"""


def test_jobs_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(FILE)
    done = run("together", str(file), "--json", "-")
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)["jobs"]
    assert (one["name"], one["devices"], len(one["iteration_times_s"])) == ("one", [0, 1], 2)
    assert (two["begins_s"], two["devices"], two["result"]["plan"]["tp"]) == (0.001, [2, 3], 2)
    assert run("together", str(file)).stdout.count("\n") >= 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[job]]", "[[jobs]]", "give a [[job]] with a workload for each job"),
        ('workload = "gpt2"', "", "job 'one': it has no workload"),
        ("dp = 2", "nodes = 2", "job 'one': unknown key 'nodes'"),
        ("dp = 2", "dp = 'many'", "job 'one': dp must be a whole number, got 'many'"),
        ("dp = 2", "dp = 8", "job 'one' needs 8 devices, but the jobs before it leave 4"),
        ('name = "two"', 'name = "one"', "two jobs are called 'one'"),
        ('arrives = "1ms"', 'after = "three"', "'three'"),
        ("iterations = 2", 'after = "two"', "job 'one': after 'two', which stands no earlier: put the job that it"),
        ('arrives = "1ms"', 'arrives = "soon"', "job 'two'"),
        ("devices = 4", "tp = 4", "unknown key 'tp'"),
        ("devices = 4", "devices = ", "jobs.toml"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(FILE.replace(old, new))
    done = run("together", str(file), code=2)
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(("old", "new", "said"), [
    ('device = "A100"', 'device = "A1000000"', ": unknown device 'A1000000': "),
    ('link = "25GB/s"', 'link = "25"', ": --link '25' has no unit"),
    ('dp = 2', 'dp = 2\nplacement = "0"', ": the placement names 1 devices for 2 ranks"),
    ('after = "first"', "after = []", ", job 'second': after is []: give a text in quotes"),
    ('after = "first"', "after = { a = 1 }", ", job 'second': after is {'a': 1}: give a text in quotes"),
    ('workload = "gpt2"', 'workload = ""', ", job 'first': workload is '': give a text in quotes"),
    ('name = "first"', "name = true", ", job 'True': name is True: give a text in quotes"),
])  # fmt: skip
def test_what_a_file_of_jobs_gets_wrong_is_told_with_its_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    text = 'device = "A100"\ndevices = 4\nlink = "25GB/s"\n[[job]]\nname = "first"\nworkload = "gpt2"\nseq-len = 64\n'
    text += 'dp = 2\n[[job]]\nname = "second"\nworkload = "gpt2"\nseq-len = 64\nafter = "first"\n'
    file.write_text(text)
    run("together", file)
    file.write_text(text.replace(old, new, 1))
    assert f"triosim: {file}{said}" in run("together", file, code=2).stderr
