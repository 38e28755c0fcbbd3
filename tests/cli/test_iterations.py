"""``triosim calibrate --iterations``: measured iterations in, a residual of composition out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import triosim
from triosim import Fidelity, InputError, Plan
from triosim.cli.iterations import read
from triosim.cli.main import app
from triosim.composition.residual import Coefficients, document, load
from triosim.prediction.composition_fit import MeasuredIteration, learn

TERMS = Coefficients(issue_s=70e-6, send_s=1e-3, gap_s=4e-6, fixed_s=5e-3, collective_s=20e-6, scale=0.9)
SYSTEM = {"device": "A100-SXM4-80GB", "devices": 2}


def _truth(tmp_path):
    """A residual from which 'measured' iterations are made."""
    from triosim.composition.residual import CalibratedOverhead, JobSizes

    file = tmp_path / "truth.json"
    made = CalibratedOverhead(TERMS, 0.1, JobSizes(0, 0, 0), JobSizes(9, 1e9, 1e9), 1, 0.0)
    file.write_text(json.dumps(document(made)))
    return str(file)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Sixteen iterations of ResNet-18 and VGG-11 on one and two devices."""
    folder = tmp_path_factory.mktemp("iterations")
    truth, lines = _truth(folder), ["workload,batch-size,device,devices,idle-ok,dp,pp,micro_batches,seconds"]
    system = triosim.system(**SYSTEM)
    for name in ("resnet18", "vgg11"):
        trace = triosim.model(name)
        for batch in (2, 64):
            for dp, pp, parts in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 2, 2)):
                plan = Plan(dp=dp, pp=pp, idle_ok=dp * pp == 1, batch_size=batch, micro_batches=parts)
                seconds = triosim.simulate(trace, system, plan, Fidelity(composition=truth)).iteration_time_s
                idle = "on" if plan.idle_ok else ""
                lines.append(f"{name},{batch},A100-SXM4-80GB,2,{idle},{dp},{pp},{parts},{seconds * 1e3:.6f} ms")
    file = folder / "measured.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_table_of_iterations_becomes_a_residual_that_explains_them(table, tmp_path) -> None:
    output = tmp_path / "composition.json"
    done = CliRunner().invoke(app, ["calibrate", "--iterations", str(table), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "16 iterations of measured.csv" in done.output
    assert "the host issues an operator in" in done.output
    found = load(output)
    assert found.rows == 16
    assert found.terms.issue_s == pytest.approx(TERMS.issue_s, rel=0.1)
    assert found.error < 0.1
    first = read(table)[0]
    learned = Fidelity(composition=str(output))
    again = triosim.simulate(first.workload, first.system, first.plan, learned).iteration_time_s
    assert again == pytest.approx(first.seconds, rel=0.1)


def test_playing_under_terms_is_simulating_with_them(tmp_path) -> None:
    from triosim.network.sharing import network_model
    from triosim.prediction.composition_fit import iteration
    from triosim.prediction.playing import lowered_job
    from triosim.prediction.prepare import prepare

    truth, system = _truth(tmp_path), triosim.system(**SYSTEM)
    for options in ({"dp": 2}, {"dp": 1, "pp": 2, "micro_batches": 2}, {"tp": 2}):
        trace = triosim.model("gpt2", configuration={"n_layer": 2}, sequence_length=128)
        plan = Plan(batch_size=2, **options)
        job = prepare(trace, system, plan, Fidelity(host="large-model"))
        made, _ = lowered_job(job, fold=True)
        slowdown = [i.slowdown for i in job.interferes]
        ready = iteration(job.programs, made, slowdown, network_model("max-min", {}))
        want = triosim.simulate(trace, system, plan, Fidelity(composition=truth)).iteration_time_s
        assert ready.played(TERMS) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines"),
        ("workload,tp\nvgg11,1\n", "has no column 'seconds'"),
        ("tp,seconds\n1,1\n", "has no column 'workload'"),
        ("workload,seconds,tpp\nvgg11,1,1\n", "unknown column 'tpp'"),
        ("workload,seconds,host\nvgg11,1,eager\n", "unknown column 'host'"),
        ("workload,seconds,device,tp\nvgg11,1,A100-SXM4-80GB,two\n", "line 2: tp must be a whole number, got 'two'"),
        ("workload,seconds,device\nvgg11,soon,A100-SXM4-80GB\n", "line 2: .*soon"),
        ("workload,seconds,device\nvgg99,1,A100-SXM4-80GB\n", "line 2: unknown model 'vgg99'"),
        ("workload,seconds\nvgg11,1\n", "line 2: .*name a --system or a --device"),
        ("workload,seconds,device\nvgg11\n", "line 2: fewer or more fields"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_its_line(tmp_path, text, message) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read(file)


def test_a_table_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "nothing.csv")


def test_an_iteration_that_cannot_be_is_named() -> None:
    trace, system = triosim.model("vgg11"), triosim.system(**SYSTEM)
    good = MeasuredIteration(trace, system, Plan(batch_size=2), 1.0)
    with pytest.raises(InputError, match=r"iteration 2: .*4 ranks need more"):
        learn([good, MeasuredIteration(trace, system, Plan(dp=4), 1.0)], "a test")
    with pytest.raises(InputError, match="iteration 1: 0 s is no time"):
        learn([MeasuredIteration(trace, system, Plan(batch_size=2), 0.0)], "a test")


def test_a_table_goes_with_nothing_else(table) -> None:
    for more in (["step.triosim"], ["--run"], ["--device", "cpu"]):
        done = CliRunner().invoke(app, ["calibrate", "--iterations", str(table), *more])
        assert isinstance(done.exception, InputError)


HEAD = "workload,device,batch-size,seconds"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{HEAD}\nresnet18,A100,2,1e-30", "line 2: '1e-30' is no time that an iteration takes"),
        (f"{HEAD}\nresnet18,A100,2,inf", "line 2: 'inf' is no time that an iteration takes"),
        (f"{HEAD},seconds\nresnet18,A100,2,1,2", "two columns 'seconds'"),
        (f"{HEAD},batch_size\nresnet18,A100,2,1,4", "two columns 'batch-size'"),
    ],
)
def test_a_table_that_says_two_things_or_no_time_is_refused(text: str, said: str, tmp_path) -> None:
    (tmp_path / "measured.csv").write_text(text + "\n")
    with pytest.raises(InputError, match=said):
        read(tmp_path / "measured.csv")


def test_runs_of_one_job_count_once_with_the_median(tmp_path) -> None:
    file = tmp_path / "measured.csv"
    lines = ["workload, device, batch-size, seconds", *(f"resnet18,A100,2,{seconds}" for seconds in (1, 5, 2))]
    file.write_text("\n".join([*lines, "resnet18,A100,4,3"]) + "\n")
    assert [one.seconds for one in read(file)] == [2, 3]
