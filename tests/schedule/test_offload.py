"""What is kept in host memory: memory goes down, copies and the host's work come on top."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.traces import chain
from triosim import Fidelity, Plan
from triosim.composition.update import EFFICIENCY
from triosim.core.errors import InputError, PlanError
from triosim.hardware.cluster import cluster
from triosim.hardware.description import SystemFile
from triosim.partition.passes.host_copies import update_of
from triosim.partition.transfers import ALL_GATHER
from triosim.prediction.prepare import prepare
from triosim.prediction.result import Result
from triosim.schedule.program import Op
from triosim.trace.tables import Category, Trace

LAYERS = 8
LLAMA = {
    "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "vocab_size": 2048,
}  # fmt: skip


def llama(**options) -> Trace:
    return triosim.model("llama", configuration=LLAMA, sequence_length=512, **options)


def run(plan: dict, link: str = "63GB/s", **options) -> Result:
    system = triosim.system(device="H100-SXM5-80GB", devices=1, host_link=link)
    return triosim.simulate(llama(), system, *asked(host="none", **plan), fit=False, **options)


def moved(plan: dict, trace: Trace | None = None) -> tuple[int, int]:
    """Bytes to the host and from it, of the first rank class."""
    system = triosim.system("dgx-h100")
    program = prepare(trace or llama(), system, *asked(dp=1, idle_ok=True, **plan)).programs[0]
    return tuple(int(program.bytes[program.op == op].sum()) for op in (Op.STORE, Op.FETCH))  # type: ignore[return-value]


# --- activations ------------------------------------------------------------------------------------------------------


def test_activations_that_leave_come_back() -> None:
    """What leaves in a forward is what comes back in its backward: of all blocks but the last two, alike for each."""
    out, back = moved({"offload": ("activations",)})
    assert out == back > 0
    assert out % (LAYERS - 2) == 0
    assert moved({"offload": ("activations",), "micro_batches": 3}) == (3 * out, 3 * back)
    assert moved({}) == (0, 0)


def test_those_of_the_first_blocks_leave() -> None:
    """Of eight blocks the last two keep theirs in any case."""
    (out, back), (all_out, _) = moved({"offload": ("activations:2",)}), moved({"offload": ("activations",)})
    assert LAYERS == 8
    assert out == back == all_out // 3
    assert moved({"offload": ("activations:80",)}) == (all_out, all_out)


def test_activations_of_recomputed_blocks_are_what_the_blocks_were_given() -> None:
    """With full recomputation a block keeps its input only, tokens x width in 16 bits; the first one's is made before
    the blocks, the last two stay."""
    out, _ = moved({"offload": ("activations",), "recompute": "full"})
    assert out == (LAYERS - 2) * 512 * 512 * 2


def test_over_a_fast_link_they_cost_nothing_and_over_a_slow_one_their_bytes() -> None:
    plain, fast = run({}), run({"offload": ("activations",)}, "1000TB/s")
    assert fast.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-4)
    slow = run({"offload": ("activations",)}, "1GB/s")
    out, back = moved({"offload": ("activations",)})
    assert slow.iteration_time_s > (out + back) / 1e9
    assert slow.breakdown_s.communication == pytest.approx((out + back) / 1e9, rel=0.01)


def test_fewer_activations_are_held() -> None:
    plans = [{"batch_size": 16, **p} for p in ({}, {"offload": ("activations",)})]
    plain, away = (run(plan).memory for plan in plans)
    curve = [max(m.curve.bytes) for m in (plain, away)]
    assert curve == [plain.allocated_bytes, away.allocated_bytes]
    assert away.categories["activation"] < 0.7 * plain.categories["activation"]
    assert away.allocated_bytes < plain.allocated_bytes


# --- parameters and the optimizer -------------------------------------------------------------------------------------


def test_the_host_updates_what_a_formula_says() -> None:
    """Adam with master weights, 16 bits: reads 2 + 12 and writes 12 + 2 bytes a parameter; 2 go there, 2 come back."""
    trace = llama()
    parameters = int(trace.values.elements()[trace.weights()].sum())
    update = update_of(trace, trace.weights().tolist())
    assert sum(update.gradients.values()) == update.parameters == 2 * parameters
    assert update.touched_bytes == 28 * parameters
    assert moved({"offload": ("optimizer",)}) == (2 * parameters, 2 * parameters)
    system = triosim.system("dgx-h100")
    program = prepare(trace, system, Plan(dp=1, idle_ok=True, offload=("optimizer",)), Fidelity(host="none")).programs[
        0
    ]
    cpu = system.server_cpu
    assert cpu is not None
    assert cpu.memory_bandwidth is not None
    seconds = 28 * parameters / (2 * cpu.memory_bandwidth * EFFICIENCY)
    assert program.seconds[program.op == Op.ISSUE].sum() == pytest.approx(seconds)


def test_what_is_on_the_host_is_told() -> None:
    """12 bytes of states and 2 of gradients a parameter; activations of as many micro-batches as are under way."""
    trace, system = llama(), triosim.system("dgx-h100")
    parameters = int(trace.values.elements()[trace.weights()].sum())

    def told(**plan) -> int:
        return triosim.simulate(trace, system, *asked(dp=1, idle_ok=True, **plan), fit=False).memory.host_bytes

    assert told() == 0
    assert told(offload=("optimizer",)) == 14 * parameters
    out, _ = moved({"offload": ("activations",)})
    assert told(offload=("activations",)) == out
    assert told(offload=("activations",), micro_batches=4, schedule="gpipe") == 4 * out


def test_ranks_of_a_server_share_its_processors() -> None:
    system = triosim.system("dgx-h100")
    plans = [Plan(dp=n, idle_ok=True, offload=("optimizer",)) for n in (1, 8)]
    one, eight = (triosim.simulate(llama(), system, plan, Fidelity(host="none"), fit=False) for plan in plans)
    assert eight.devices[0].host_cpu_s == pytest.approx(8 * one.devices[0].host_cpu_s, rel=1e-6)
    assert any("on the host's Xeon-8480+ at 45 %" in words for words in one.sources)
    divided = triosim.simulate(
        llama(), system, Plan(dp=8, zero=1, offload=("optimizer",)), Fidelity(host="none"), fit=False
    )
    assert divided.devices[0].host_cpu_s == pytest.approx(one.devices[0].host_cpu_s, rel=0.01)


def test_states_are_not_on_the_device_and_blocks_visit() -> None:
    trace, system = llama(), triosim.system("dgx-h100")

    def memory(**plan) -> dict[str, int]:
        return triosim.simulate(trace, system, *asked(dp=1, idle_ok=True, **plan), fit=False).memory.categories

    plain, states, both = memory(), memory(offload=("optimizer",)), memory(offload=("optimizer", "parameters"))
    assert plain["optimizer_state"] > 0
    assert "optimizer_state" not in states
    assert states["weight"] == plain["weight"]
    values = trace.values
    of_blocks = [v for v in trace.weights().tolist() if ".layers." in values.name[v]]
    block = int(values.bytes()[of_blocks].sum()) // LAYERS
    outside = plain["weight"] - LAYERS * block
    assert outside <= both["weight"] <= outside + 2 * block  # one that runs and one that arrives


def test_gradients_leave_while_the_backward_goes_on_unless_others_have_a_part_of_them() -> None:
    trace, system = llama(), triosim.system("dgx-h100")
    parameters = int(trace.values.bytes()[trace.weights()].sum())

    def most(**plan) -> int:
        (footprint,) = prepare(trace, system, *asked(idle_ok=True, offload=("optimizer",), **plan)).footprints
        return int(footprint.held[:, Category.GRADIENT].max())

    small = {"bucket_bytes": 1 << 20}
    assert most(dp=1, **small) < 0.3 * parameters
    assert most(dp=2, **small) >= parameters
    assert most(dp=1, micro_batches=2, **small) >= parameters  # there they are added up until the last
    out, _ = moved({"offload": ("optimizer",), **small})
    assert out == parameters


def test_parameters_visit_once_in_each_direction_of_each_micro_batch() -> None:
    trace = llama()
    values = trace.values
    of_blocks = [v for v in trace.weights().tolist() if ".layers." in values.name[v]]
    inside = int(values.bytes()[of_blocks].sum())
    outside = int(values.bytes()[trace.weights()].sum()) - inside
    for parts in (1, 3):
        plan = {"offload": ("optimizer", "parameters"), "micro_batches": parts}
        out, back = moved(plan)
        assert out == inside + outside
        assert abs(back - (2 * parts * inside + outside)) <= 4


# --- with everything else ---------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    st.sampled_from([("optimizer",), ("activations",), ("optimizer", "parameters"),
                     ("optimizer", "activations", "parameters")]),
    st.sampled_from([{}, {"tp": 2}, {"pp": 2, "micro_batches": 4}, {"dp": 2}, {"dp": 2, "zero": 1},
                     {"recompute": "full"}, {"pp": 2, "dp": 2, "micro_batches": 2, "schedule": "gpipe"}]),
    st.booleans(),
)  # fmt: skip
def test_it_never_saves_time_nor_takes_memory(offload: tuple[str, ...], plan: dict, overlap: bool) -> None:
    trace, system = llama(), triosim.system("dgx-h100")
    plan = {"dp": 1, "batch_size": plan.get("micro_batches", 1), **plan, "overlap": overlap, "host": "none"}
    plans = [asked(idle_ok=True, **plan, **more) for more in ({}, {"offload": offload})]
    plain, away = (triosim.simulate(trace, system, *one, fit=False) for one in plans)
    for program in prepare(trace, system, *asked(idle_ok=True, **plan, offload=offload)).programs:
        assert program.lifetimes is not None
        assert np.all(program.lifetimes.start <= program.lifetimes.end)
    for a, b in zip(plain.devices, away.devices, strict=True):
        assert b.allocated_bytes <= a.allocated_bytes * 1.001
    if "optimizer" not in offload:
        assert away.iteration_time_s >= plain.iteration_time_s * (1 - 1e-9)


def test_folded_and_unfolded_are_the_same_picoseconds() -> None:
    trace, system = llama(), triosim.system("dgx-h100")
    plan = {"dp": 4, "offload": ("optimizer", "activations"), "host": "none"}
    plans = [asked(idle_ok=True, **plan, fold=fold) for fold in (True, False)]
    folded, all_ = (triosim.simulate(trace, system, *one, fit=False) for one in plans)
    assert folded.iteration_time_s == all_.iteration_time_s


def test_the_next_iteration_waits_for_the_new_parameters() -> None:
    trace, system = llama(), triosim.system("dgx-h100")
    plans = [asked(dp=1, idle_ok=True, host="none", offload=("optimizer",), iterations=n) for n in (1, 3)]
    one, three = (triosim.simulate(trace, system, *plan, fit=False) for plan in plans)
    assert three.iteration_time_s == pytest.approx(one.iteration_time_s, rel=1e-6)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"offload": ("parameters",)}, "use offload optimizer as well"),
        ({"offload": ("optimizer",), "dp_style": "dataparallel"}, "keeps everything on its devices"),
        ({"offload": ("optimizer",), "places": {"optimizer_state": "host"}}, "give only one"),
        (
            {"offload": ("weights",)},
            "^offload: 'weights' cannot be away: give optimizer, .* each on its own or with =nvme",
        ),
        ({"offload": ("activations:0",)}, "^offload: 'activations:0' cannot be away"),
        ({"offload": ("optimizer:2",)}, "^offload: 'optimizer:2' cannot be away"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(plan: dict, words: str) -> None:
    system = triosim.system(devices=2, link="1GB/s", host_link="63GB/s")
    with pytest.raises(PlanError, match=words):
        triosim.simulate(chain(), system, Plan(**plan))


def test_what_the_workload_or_the_system_does_not_allow_is_refused() -> None:
    with pytest.raises(PlanError, match="does not say which it is"):
        run({"offload": ("optimizer",)})
    system = triosim.system(devices=1, host_link="63GB/s")
    with pytest.raises(PlanError, match="no repeated blocks"):
        triosim.simulate(chain(), system, Plan(offload=("activations",)))
    with pytest.raises(PlanError, match="inference has nothing to bring back"):
        run({"offload": ("activations",), "training": False})
    with pytest.raises(triosim.InputError, match="no host memory"):
        triosim.simulate(llama(), triosim.system(device="B200", devices=1), Plan(offload=("activations",)))


# --- ZeRO 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zero", "times"), [(2, 1), (3, 2)])
def test_each_rank_fetches_its_shard_before_a_gather(zero: int, times: int) -> None:
    """DeepSpeed's ``offload_param``: a rank brings 1/N of what is gathered, as often as it is gathered, and no whole
    parameter ever; what is updated on the host does not come back."""
    trace, system = llama(), triosim.system("dgx-h100")
    plain, away = (
        prepare(trace, system, *asked(dp=8, zero=zero, host="none", offload=offload)).programs[0]
        for offload in (("optimizer",), ("optimizer", "parameters"))
    )
    gathered = away.bytes[(away.op == Op.COLLECTIVE) & (away.what == ALL_GATHER)]
    fetched = away.bytes[away.op == Op.FETCH]
    assert gathered.tolist() == plain.bytes[(plain.op == Op.COLLECTIVE) & (plain.what == ALL_GATHER)].tolist()
    assert np.sort(8 * fetched).tolist() == np.sort(gathered).tolist()
    parameters = int(trace.values.bytes()[trace.weights()].sum())
    again = int(gathered.sum()) - parameters  # of the blocks, for the backward
    assert again == 0 if times == 1 else 0.7 * parameters < again < parameters
    assert int(plain.bytes[plain.op == Op.FETCH].sum()) == parameters // 8  # updated, and back on the device
    assert away.host_bytes - plain.host_bytes == parameters // 8


def test_shards_that_come_over_a_slow_link_hold_up_the_step() -> None:
    trace, plan = llama(), {"dp": 2, "zero": 3, "host": "none", "interference": "off"}
    times = {}
    for link in ("63GB/s", "0.1GB/s"):
        system = with_drives("1GB/s", "1GB/s", bandwidth=link)
        times[link] = triosim.simulate(
            trace, system, *asked(**plan, offload=("optimizer", "parameters")), fit=False
        ).iteration_time_s
    parameters = int(trace.values.bytes()[trace.weights()].sum())
    assert times["0.1GB/s"] - times["63GB/s"] > parameters / 2 / 0.1e9


# --- NVMe -------------------------------------------------------------------------------------------------------------


def with_drives(read: str, write: str, drives: int = 2, capacity: str = "1TB", **host: object) -> triosim.System:
    """Two H100 of one server with drives."""
    table = {
        "devices": {"model": "H100-SXM5-80GB", "count": 2}, "scale_up": {"topology": "switch", "link": "NVLink4"},
        "host": {"cpu": "Xeon-8480+", "cores": 112, "bandwidth": "63GB/s", **host},
        "nvme": {"drives": drives, "read": read, "write": write, "capacity": capacity, "latency": "0s"},
    }  # fmt: skip
    return cluster(SystemFile.model_validate(table), "a file", "own", 1)


def on(system: triosim.System, trace: Trace | None = None, dp: int = 1, **plan: object) -> Result:
    options = asked(dp=dp, idle_ok=True, host="none", interference="off", **plan)
    return triosim.simulate(trace or llama(), system, *options, fit=False)


def test_states_on_nvme_are_read_and_written_at_the_rate_of_the_drives() -> None:
    """12 bytes a parameter each way; the ranks of a server share its drives, which do one after the other."""
    trace = llama()
    parameters = int(trace.values.elements()[trace.weights()].sum())
    slow = with_drives("1GB/s", "0.5GB/s", latency="0s")
    for dp in (1, 2):
        program = prepare(
            trace, slow, Plan(dp=dp, idle_ok=True, offload=("optimizer=nvme",)), Fidelity(host="none")
        ).programs[0]
        seconds = 12 * parameters * dp * (1 / 2e9 + 1 / 1e9)
        assert program.seconds[program.op == Op.ISSUE].sum() == pytest.approx(seconds)
    memory = on(slow, trace, offload=("optimizer=nvme",)).memory
    assert (memory.nvme_bytes, memory.host_bytes) == (12 * parameters, 2 * parameters)


@pytest.mark.parametrize("what", ["activations", "parameters", "optimizer"])
def test_drives_that_never_limit_are_as_host_memory(what: str) -> None:
    fast = with_drives("1000TB/s", "1000TB/s")
    needed = ("optimizer",) if what == "parameters" else ()
    host = on(fast, offload=(*needed, what))
    drives = on(fast, offload=(*needed, f"{what}=nvme"))
    assert drives.iteration_time_s == pytest.approx(host.iteration_time_s, rel=1e-6)
    assert drives.memory.nvme_bytes + drives.memory.host_bytes == host.memory.host_bytes
    assert drives.memory.allocated_bytes == host.memory.allocated_bytes


def test_parameters_come_from_the_drives_as_fast_as_these_read() -> None:
    """Both ranks fetch theirs in the forward and in the backward, and share the drives."""
    trace, offload = llama(), ("optimizer", "parameters=nvme")
    system = with_drives("0.5GB/s", "1000TB/s")
    program = prepare(trace, system, *asked(dp=2, host="none", offload=offload)).programs[0]
    nvme = program.places.index("nvme")
    fetched = int(program.bytes[(program.op == Op.FETCH) & (program.peer == nvme)].sum())
    blocks = sum(
        size for name, size in zip(trace.values.name, trace.values.bytes().tolist(), strict=True)
        if ".layers." in name and name.endswith("weight")
    )  # fmt: skip
    assert 0 < fetched <= 2 * blocks
    assert on(system, trace, dp=2, offload=offload).iteration_time_s > 2 * fetched / 1e9


def test_what_the_drives_do_not_hold_is_told() -> None:
    result = on(with_drives("7GB/s", "3GB/s", capacity="100MB"), offload=("optimizer=nvme",))
    assert any("do not hold" in warning for warning in result.warnings)
    assert any(one.startswith("NVMe: the drives of a server read 14 GB/s and write 6 GB/s") for one in result.sources)
    assert not any("do not hold" in one for one in on(triosim.system("dgx-h100"), offload=("optimizer=nvme",)).warnings)


@pytest.mark.parametrize(
    ("system", "offload", "said"),
    [
        ({"device": "H100", "devices": 1, "host_link": "63GB/s"}, ("activations=nvme",), "no drives"),
        ({"name": "dgx-1v"}, ("optimizer=nvme",), "no drives"),
        ({"name": "dgx-h100"}, ("optimizer", "optimizer=nvme"), "give it once"),
        ({"name": "dgx-h100"}, ("parameters=nvme",), "use offload optimizer as well"),
    ],
)
def test_what_cannot_be_on_nvme_is_refused(system: dict, offload: tuple[str, ...], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        on(triosim.system(**system), offload=offload)


def test_drives_without_a_host_are_refused() -> None:
    table = {
        "devices": {"model": "H100-SXM5-80GB", "count": 2}, "scale_up": {"topology": "switch", "link": "NVLink4"},
        "nvme": {"read": "7GB/s", "write": "3GB/s"},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"a file.*nvme.*add \[host\]"):
        cluster(SystemFile.model_validate(table), "a file", "own", 1)
