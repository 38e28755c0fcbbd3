"""The interval of an iteration: laws and values by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.kernels.quadrature import by_class, half_width
from tests.traces import chain
from triosim.composition import software
from triosim.kernels.anchoring import load as anchoring
from triosim.prediction import uncertainty as module
from triosim.prediction.result import Cause
from triosim.prediction.result.words import unsure
from triosim.stacks import load


def test_a_recorded_step_is_as_sure_as_a_recorded_time():
    """One class alone: the ends of the interval are those of the class."""
    recorded = chain(layers=8)
    result = triosim.simulate(recorded, triosim.system(devices=1), fidelity=triosim.Fidelity(host="none"))
    known = anchoring().recorded_spread
    low, high = (x / result.iteration_time_s for x in result.interval_s)
    assert np.log(high) == pytest.approx(known, rel=0.2)
    assert np.log(low) == pytest.approx(-known, rel=0.2)
    assert sum(cause.share for cause in result.uncertainty) == pytest.approx(1.0, abs=1e-3)


def test_independent_classes_add_in_quadrature():
    job = triosim.model("gpt2", batch_size=4)
    system = triosim.system(device="H100", devices=1)
    drawn = []  # the quantiles of one seed's draws scatter by a tenth
    for seed in range(6):
        result = triosim.simulate(job, system, fidelity=triosim.Fidelity(host="none", seed=seed))
        low, high = result.interval_s
        assert low < result.iteration_time_s < high
        drawn.append(np.log(high / low) / 2)
    from triosim.hardware.catalog import accelerator
    from triosim.kernels.model import PricingJob
    from triosim.kernels.pricing import price

    times = price(PricingJob(job, accelerator("H100"), job, None))
    width = np.hypot(half_width(*by_class(times, job)), software.spread(job, ""))
    assert np.mean(drawn) == pytest.approx(width, rel=0.15)


def test_the_host_is_named_where_it_binds():
    job, machine = triosim.model("gpt2", batch_size=1), triosim.system(device="H100", devices=1)
    known = triosim.Plan(stack=load("megatron-2023"))  # its software is not what is unsure
    result = triosim.simulate(job, machine, known, triosim.Fidelity(host="large-model"))
    first = result.uncertainty[0]
    assert first.name == "the host"
    assert first.share > 0.9
    assert first.suggestion.startswith("record a trace on H100")
    assert result.to_dict()["uncertainty"][0]["name"] == "the host"


def test_the_network_is_named_where_it_binds_and_only_if_it_is_not_given_exactly():
    job = triosim.model("gpt2", batch_size=1)
    how = triosim.Plan(overlap=False), triosim.Fidelity(host="none")
    catalog = triosim.simulate(job, triosim.system("dgx-a100", nodes=8), *how)
    assert "the network" in [cause.name for cause in catalog.uncertainty]
    given = triosim.simulate(job, triosim.system(device="A100", devices=64, link="1GB/s"), *how)
    assert "the network" not in [cause.name for cause in given.uncertainty]


def test_more_of_what_is_unsure_is_less_sure():
    job = triosim.model("gpt2", batch_size=4)
    no_host = triosim.Fidelity(host="none")
    h100 = triosim.system(device="H100", devices=1)
    strange = replace(h100, models=(replace(h100.models[0], architecture="Nobody's", cache_bytes=None),))
    here, there = (triosim.simulate(job, system, fidelity=no_host) for system in (h100, strange))

    def width(result):
        return np.log(result.interval_s[1] / result.interval_s[0])

    assert width(there) > width(here)
    again = triosim.simulate(job, h100, fidelity=no_host)
    assert again.interval_s == here.interval_s, "the same every time"


def ends(result):
    """Logarithms of the ends of the interval over the time itself."""
    return [np.log(end / result.iteration_time_s) for end in result.interval_s]


def test_transfers_over_links_of_the_catalog_are_as_sure_as_the_catalog_says(monkeypatch):
    """Nothing but transfers: 90 % of iterations are within a factor of exp(0.3), less what is software's."""
    monkeypatch.setattr(module, "DRAWS", 20_000)
    monkeypatch.setattr(module, "BUDGET", 10**9)
    wires = chain(layers=4, batch=1, width=8192, forward_s=1e-9, backward_s=1e-9)
    how = triosim.Plan(overlap=False), triosim.Fidelity(host="none")
    low, high = ends(triosim.simulate(wires, triosim.system("dgx-a100", nodes=2), *how))
    assert 0.27 < high < 0.305
    assert -0.305 < low < -0.27


def test_an_interval_holds_nine_of_ten(monkeypatch):
    """One class alone, with so many draws that the quantile is known to a percent, played and replayed."""
    recorded, machine, no_host = chain(layers=8), triosim.system(devices=1), triosim.Fidelity(host="none")
    known = anchoring().recorded_spread
    monkeypatch.setattr(module, "DRAWS", 40_000)
    monkeypatch.setattr(module, "BUDGET", 0)
    assert ends(triosim.simulate(recorded, machine, fidelity=no_host)) == pytest.approx([-known, known], rel=0.025)
    monkeypatch.setattr(module, "BUDGET", 10**9)
    assert ends(triosim.simulate(recorded, machine, fidelity=no_host)) == pytest.approx([-known, known], rel=0.025)


def test_words():
    assert unsure(Cause("the host", 0.8, 0.447, "record a trace on H100")) == (
        "80 % of the uncertainty is the host: record a trace on H100 and the interval narrows by up to 55 %"
    )
    assert unsure(Cause("matrix products", 1.0, 0.0, "")) == "100 % of the uncertainty is matrix products"


@pytest.mark.parametrize("host", ["none", "graph"])
def test_few_turns_are_as_unsure_as_all(host, monkeypatch):
    fidelity = triosim.Fidelity(host=host)
    system = triosim.system("dgx-h100", 2)
    trace = triosim.model("llama-3.2-1b", sequence_length=1024)
    plan = triosim.Plan(pp=2, tp=8, micro_batches=60, batch_size=120)
    monkeypatch.setattr(module, "BUDGET", 0)
    few = triosim.simulate(trace, system, plan, fidelity)
    drawn = few.interval_s
    assert few.simulation.draws == module.DRAWS
    monkeypatch.setattr("triosim.prediction.simulate.shortened", lambda made: None)
    every = triosim.simulate(trace, system, plan, fidelity, at_once=True)
    assert every.simulation.tasks == few.simulation.tasks
    assert drawn == pytest.approx(every.interval_s, rel=1e-11)
    for one, other in zip(few.uncertainty, every.uncertainty, strict=True):
        assert one.name == other.name
        assert one.share == pytest.approx(other.share, abs=1e-9)


def test_links_shared_as_they_were_say_nearly_what_links_shared_anew_say(monkeypatch):
    """Of a host that may bind or not the interval is as sure as its draws are many, which is another matter."""
    system, fidelity = triosim.system("dgx-a100", nodes=4), triosim.Fidelity(host="none")
    for plan in (triosim.Plan(tp=2, zero=1), triosim.Plan(tp=2, zero=3)):
        job = triosim.model("gpt2", batch_size=16), system, plan, fidelity
        anew = triosim.simulate(*job)
        interval, played = anew.interval_s, anew.simulation  # drawn now
        with monkeypatch.context() as few:
            few.setattr(module, "BUDGET", 0)
            again = triosim.simulate(*job)
            assert again.interval_s == pytest.approx(interval, rel=0.01)
            assert (again.simulation.drawn, played.drawn) == (module.AS_PREDICTED, module.ANEW)
            assert again.simulation.draws == played.draws
        assert "the network" in [cause.name for cause in anew.uncertainty]


def test_there_are_always_draws_and_how_they_shared_links_is_said(monkeypatch):
    job = triosim.model("gpt2", batch_size=16), triosim.system("dgx-a100", nodes=2), triosim.Plan(tp=2)
    assert triosim.simulate(*job).simulation.drawn == module.ANEW
    monkeypatch.setattr(module, "BUDGET", 0)
    monkeypatch.setattr(module, "REPLAYS", 0)
    few = triosim.simulate(*job)
    assert (few.simulation.draws, few.simulation.drawn) == (module.FEWEST, module.AS_PREDICTED)
    assert few.uncertainty


def test_a_network_model_of_ones_own_is_asked_in_every_draw(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text(
        "from triosim.core.registry import registered\nfrom triosim.engine.solvers.max_min import MaxMin\n"
        "@registered\nclass Own(MaxMin):\n    '''As max-min.'''\n"
    )
    job = triosim.model("gpt2", batch_size=16), triosim.system("dgx-a100", nodes=2), triosim.Plan(tp=2, overlap=False)
    ours, theirs = triosim.simulate(*job), triosim.simulate(*job, triosim.Fidelity(solver=str(own)))
    assert theirs.simulation == ours.simulation
    assert theirs.interval_s == ours.interval_s
    monkeypatch.setattr(module, "BUDGET", 0)
    assert triosim.simulate(*job, triosim.Fidelity(solver=str(own))).simulation.drawn == module.AS_PREDICTED


def test_jobs_side_by_side_are_as_unsure_as_alone(monkeypatch):
    """Two jobs whose links no other uses."""
    trace, system = triosim.model("gpt2", batch_size=16), triosim.system("dgx-a100", nodes=2)
    monkeypatch.setattr(module, "BUDGET", 0)
    plans = [triosim.Plan(tp=2, dp=4, placement=tuple(range(first, first + 8))) for first in (0, 8)]
    for plan, result in zip(plans, triosim.simulate_together([(trace, plan) for plan in plans], system), strict=True):
        alone = triosim.simulate(trace, system, plan)
        assert result.simulation.draws == alone.simulation.draws == module.DRAWS
        assert result.interval_s == pytest.approx(alone.interval_s, rel=1e-9)
        assert [cause.name for cause in result.uncertainty] == [cause.name for cause in alone.uncertainty]
