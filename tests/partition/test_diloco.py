"""Groups of replicas that take local steps: what is exchanged within and between them, and what is kept for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.prediction.prepare import prepare

SIZES = {"n_layer": 2, "vocab_size": 1024}


def _workload() -> triosim.Trace:
    return triosim.model("gpt2", batch_size=2, sequence_length=64, configuration=SIZES)


def _plan(options: dict[str, Any] | None, **plan: Any) -> Any:
    rules = {} if options is None else {"parallelism": ("diloco",), "parallelism_options": options}
    return asked(host="none", interference=1.0, batch_size=2, **rules, **plan)


def _result(options: dict[str, Any] | None, **plan: Any) -> triosim.Result:
    return triosim.simulate(_workload(), triosim.system("dgx-h100", nodes=2), *_plan(options, **plan))


def _sent(result: triosim.Result) -> dict[tuple[str, str, int], int]:
    sent = Counter[tuple[str, str, int]]()
    for row in result.collectives:
        sent[row.axis, row.kind, row.group_size] += row.bytes * row.count
    return dict(sent)


ELEMENTS = int(_workload().values.elements()[_workload().weights()].sum())


@pytest.mark.parametrize(("exchange", "item"), [("float32", 4), ("bfloat16", 2), ("fp8", 1)])
@pytest.mark.parametrize("every", [1, 8])
def test_groups_exchange_their_parameters_once_in_many_iterations(exchange: str, item: int, every: int) -> None:
    sent = _sent(_result({"workers": 2, "every": every, "exchange": exchange}))
    whole = -(-ELEMENTS * item // every)
    assert sent == {("dp_local", "all_reduce", 8): ELEMENTS * 2, ("workers", "all_reduce", 2): whole}


@pytest.mark.parametrize("every", [2, 4, 16])
def test_an_iteration_is_the_mean_one(every: int) -> None:
    """Longer by the part of an exchange that falls to it, and by a latency of at most 0.1 ms."""
    never, always, seldom = (
        _result({"workers": 2, "every": n}).iteration_time_s for n in (10**9, 1, every)
    )  # fmt: skip
    part = (always - never) / every
    assert 0 <= seldom - never - part < 1e-4
    assert always > never


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_rank_exchanges_what_it_updates(zero: int) -> None:
    sent = _sent(_result({"workers": 2, "every": 1}, zero=zero))
    shard = sent["workers", "all_reduce", 2] / 4
    assert shard == pytest.approx(ELEMENTS / 8, rel=0.01)
    assert {axis for axis, _, _ in sent} == {"workers", "dp_local"}
    local = {key[1:]: size for key, size in sent.items() if key[0] == "dp_local"}
    system = triosim.system("dgx-h100")
    alone = triosim.simulate(_workload(), system, *_plan(None, zero=zero))
    assert local == {key[1:]: size for key, size in _sent(alone).items()}


def test_the_parameters_of_the_last_exchange_and_a_momentum_are_kept() -> None:
    plain, local, sharded, shared = (
        _result(options, zero=zero).memory.allocated_bytes
        for options, zero in ((None, 0), ({"workers": 2}, 0), (None, 1), ({"workers": 2}, 1))
    )
    assert local - plain == 8 * ELEMENTS
    optimizer = 12 * ELEMENTS * (1 / 8 - 1 / 16)  # states are divided among 8 ranks instead of 16
    assert shared - sharded == pytest.approx(8 * ELEMENTS / 8 + optimizer, rel=0.02)


def test_one_worker_is_data_parallel() -> None:
    one, plain = _result({"workers": 1}), _result(None)
    assert one.iteration_time_s == plain.iteration_time_s
    assert one.memory == plain.memory


def test_workers_of_one_replica_reduce_no_gradients() -> None:
    sent = _sent(_result({"workers": 16, "every": 100}, zero=3))
    assert {axis for axis, _, _ in sent} == {"workers"}


def test_a_pipeline_exchanges_stage_by_stage() -> None:
    sent = _sent(_result({"workers": 2, "every": 1}, pp=2, tp=2, micro_batches=2))
    assert {axis for axis, _, _ in sent} >= {"workers", "dp_local", "tp"}
    assert sent["workers", "all_reduce", 2] < 4 * ELEMENTS


def test_a_worker_shares_its_sequences() -> None:
    """Two ranks have one sample: gradients are reduced along both, and the exchange is as it was."""
    sent = _sent(_result({"workers": 2, "every": 1}, zero=3, cp=2))
    without = _sent(_result({"workers": 2, "every": 1}, zero=3))
    assert {axis for axis, _, _ in sent} == {"workers", "dp_local", "cp"}
    assert {key: size for key, size in sent.items() if key[0] != "cp"} == without
    with pytest.raises(PlanError, match=r"the 2 ranks of a group of diloco are no whole sequences of cp 4: .*workers"):
        _result({"workers": 8}, cp=4)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_worker_has_experts_of_its_own(zero: int) -> None:
    """Within one they are divided as on a machine of its size; between workers each rank exchanges what it updates."""
    sizes = {"num_hidden_layers": 2, "vocab_size": 1024, "num_local_experts": 8, "hidden_size": 256,
             "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
    trace = triosim.model("mixtral", batch_size=2, sequence_length=64, configuration=sizes)
    large, small = triosim.system("dgx-h100", nodes=2), triosim.system("dgx-h100")
    sent = _sent(triosim.simulate(trace, large, *_plan({"workers": 2, "every": 1}, zero=zero, ep=4)))
    alone = _sent(triosim.simulate(trace, small, *_plan(None, zero=zero, ep=4)))
    local = {key[1:]: size for key, size in sent.items() if key[0] != "workers"}
    assert local == {key[1:]: size for key, size in alone.items()}
    weights = trace.weights()
    experts = sum(int(trace.values.elements()[value]) for value in weights if "experts" in trace.values.name[value])
    rest = int(trace.values.elements()[weights].sum()) - experts
    parts = (8, 2) if zero else (1, 1)  # of what all replicas have, and of experts among the two that have the same
    exchanged = 4 * (rest / parts[0] + experts / 4 / parts[1])
    assert sent["workers", "all_reduce", 2] == pytest.approx(exchanged, rel=0.02)


@pytest.mark.parametrize(
    ("options", "plan", "words"),
    [
        ({"workers": 3}, {}, "dp 16 has no 3 workers of equal size: there can be 1, 2, 4, 8, 16"),
        ({"workers": 2}, {"dp_style": "dataparallel"}, "name it before hsdp, cp and ep, leave offload out"),
        ({"workers": 2}, {"offload": ("optimizer",)}, "name it before hsdp, cp and ep, leave offload out"),
    ],
)
def test_what_does_not_go_is_a_sentence(options: dict, plan: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        prepare(_workload(), triosim.system("dgx-h100", nodes=2), *_plan(options, **plan))


def test_local_steps_on_the_command_line() -> None:
    done = run(
        "train", "gpt2", "--seq-len", "64", "--system", "dgx-h100", "--nodes", "2", "--parallelism", "diloco",
        "--parallelism-option", "every=100", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"axis": "workers"' in done.stdout


@pytest.mark.parametrize("zero", [1, 3])
def test_a_worker_is_sharded_in_parts(zero: int) -> None:
    """Hybrid sharding within a worker sends what it does on a machine of its size, and a rank exchanges its shard."""
    options = {"workers": 2, "every": 1, "dp-replicate": 2}
    plan = asked(host="none", interference=1.0, batch_size=2, zero=zero, parallelism=("diloco", "hsdp"),
                 parallelism_options=options)  # fmt: skip
    sent = _sent(triosim.simulate(_workload(), triosim.system("dgx-h100", nodes=2), *plan))
    alone = asked(host="none", interference=1.0, batch_size=2, zero=zero, parallelism=("hsdp",),
                  parallelism_options={"dp-replicate": 2})  # fmt: skip
    within = _sent(triosim.simulate(_workload(), triosim.system("dgx-h100"), *alone))
    assert {key: size for key, size in sent.items() if key[0] != "workers"} == within
    assert {axis for axis, _, _ in within} == {"dp_shard", "dp_replicate"}
    assert sent["workers", "all_reduce", 2] / 4 == pytest.approx(ELEMENTS / 4, rel=0.01)


def test_workers_are_named_before_what_divides_them() -> None:
    with pytest.raises(PlanError, match=r"hsdp: .* name it after diloco, before context"):
        prepare(
            _workload(), triosim.system("dgx-h100", nodes=2),
            *asked(batch_size=2, zero=3, parallelism=("hsdp", "diloco")),
        )  # fmt: skip
