"""Prefill and decode apart: what is sent, when it is there, and that nothing is lost on the way."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import run
from tests.exploring import examples
from tests.serving.fleets import blocks, replica
from tests.serving.test_laws import conserved, tables
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, EngineNetwork, Graph, Task
from triosim.engine.live import LiveNetwork
from triosim.engine.reference import play as play_graph
from triosim.hardware.machine import system
from triosim.network.routes import Router as Routes
from triosim.serving.disaggregation import KVCacheTransfer, ReplicaPlacement, shares
from triosim.serving.fleet import FleetRun, ReplicaGroup, play
from triosim.serving.policy import ENGINES
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS

H100 = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB")
TRAFFIC = ("--arrivals", "poisson:8", "--lengths", "prompt=fixed:1000;output=uniform:16-200", "--requests", "100")
RECEIVING = [name for name in ENGINES.names() if ENGINES.get(name).receives]
SPLIT = ("--prefill-replicas", "2", "--decode-replicas", "2")


@settings(max_examples=examples(60))
@given(st.data())
def test_transfers_at_run_time_end_as_those_of_a_graph(data: st.DataObject) -> None:
    """The same flows, entering at the same ticks."""
    links = data.draw(st.integers(1, 5))
    rates = data.draw(st.lists(st.integers(1, 50), min_size=links, max_size=links))
    capacity = np.array(rates, np.int64) * 10**6 * CAPACITY_PER_BYTE
    capacity[data.draw(st.lists(st.integers(0, links - 1), max_size=1))] = UNLIMITED
    sent = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 40), st.lists(st.integers(0, links - 1), unique=True, max_size=links),
                st.integers(0, 9), st.integers(0, 60),
            ), min_size=1, max_size=12,
        )
    )  # fmt: skip
    sent = [(at * 10**6, way, latency * 10**5, size) for at, way, latency, size in sent]
    n = len(sent)
    graph = Graph(
        np.array([Task.COMPUTE, Task.TRANSFER] * n, np.int8), np.array([*range(2 * n)], np.int32),
        np.array([x for at, _, _, size in sent for x in (at, size)], np.int64),
        np.array([x for place in range(n) for x in (0, place)], np.int32), np.zeros(2 * n, np.int32),
        Ragged.of([x for place in range(n) for x in ([], [2 * place])], np.int32), 2 * n,
    )  # fmt: skip
    wires = EngineNetwork(
        capacity, Ragged.of([way for _, way, _, _ in sent], np.int32), np.array([x for _, _, x, _ in sent])
    )
    expected = play_graph(graph, wires).finish[1::2].tolist()
    live, ends = LiveNetwork(capacity), dict.fromkeys(range(n), -1)
    ahead = sorted(range(n), key=lambda place: sent[place][0])
    while ahead or live.next is not None:
        now = min([sent[place][0] for place in ahead[:1]] + [live.next] * (live.next is not None))
        for place in live.ended(now):
            ends[place] = now
        while ahead and sent[ahead[0]][0] == now:
            place = ahead.pop(0)
            if not live.send(now, sent[place][1], sent[place][2], sent[place][3], place):
                ends[place] = now
        live.settle(now)
    assert list(ends.values()) == expected


@settings(max_examples=examples(200))
@given(
    layers=st.sampled_from([4, 12, 24]), heads=st.sampled_from([1, 2, 4, 8]),
    source=st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4])),
    target=st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4])),
)  # fmt: skip
def test_each_device_gets_what_it_holds_once(
    layers: int, heads: int, source: tuple[int, int], target: tuple[int, int]
) -> None:
    got = np.zeros((target[0] * target[1], layers))
    gave = np.zeros((source[0] * source[1], layers))
    for share in shares(layers, heads, 1.0, source, target):
        got[share.target, share.first : share.last] += share.bytes
        gave[share.source, share.first : share.last] += share.bytes
    for device in range(len(got)):
        stage = device // target[0]
        own = np.zeros(layers)
        own[stage * layers // target[1] : (stage + 1) * layers // target[1]] = max(heads / target[0], 1)
        assert (got[device] == own).all()
    for device in range(len(gave)):  # nobody sends layers that it does not hold
        stage = device // source[0]
        outside = np.ones(layers, bool)
        outside[stage * layers // source[1] : (stage + 1) * layers // source[1]] = False
        assert not gave[device][outside].any()
    assert gave.sum() == layers * max(heads, target[0])


def _fleet(
    table: RequestTable, *, link: float | None = 1e9, latency: float = 0.0, engine: str = "vllm", tokens: int = 4000,
    counts: tuple[int, int] = (1, 1), reuse: bool = False, router: str = "least-outstanding", steady: bool = True,
    decode_tokens: int = 0, **how: object,
) -> tuple[FleetRun, list]:  # fmt: skip
    """Served by replicas of one device each, of 4 layers and 2 heads of 500 bytes; nothing is sent over no link."""
    options = {"capacity": "max-utilisation"} if engine == "trtllm" else {}
    fleet = [
        replica(
            engine,
            blocks(engine, decode_tokens if number >= counts[0] and decode_tokens else tokens),
            reuse=reuse,
            number=number,
            longest=256,
            **options,
        )
        for number in range(sum(counts))
    ]
    for one in fleet:
        one.steady &= steady
    places = {number: ReplicaPlacement(number, 1, 1, 4, 2, 500.0) for number in range(len(fleet))}
    routes = None if link is None else Routes(system(devices=len(fleet), link=link, latency=latency))
    prefill, decode = fleet[: counts[0]], fleet[counts[0] :]
    first, second = (ROUTERS.get(router)() for _ in range(2))
    over = KVCacheTransfer(prefill, decode, places, routes, second, **how)
    return play(table, fleet, groups=[ReplicaGroup(prefill, first, over)]), fleet


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("decode_first", [False, True])
@settings(max_examples=15)
@given(table=tables(20), engine=st.sampled_from(RECEIVING),
       tokens=st.integers(600, 2000), counts=st.tuples(st.integers(1, 2), st.integers(1, 3)), reuse=st.booleans(),
       link=st.sampled_from([1e6, 1e8, math.inf]))  # fmt: skip
def test_tokens_and_blocks_are_conserved(
    table: RequestTable, engine: str, tokens: int, counts: tuple[int, int], reuse: bool, link: float, by_layer: bool,
    decode_first: bool,
) -> None:  # fmt: skip
    served, fleet = _fleet(
        table, link=link, latency=1e-5, engine=engine, tokens=tokens, counts=counts, reuse=reuse, by_layer=by_layer,
        decode_first=decode_first,
    )  # fmt: skip
    conserved(served, table)
    for one in fleet:
        assert one.cache.free == one.cache.blocks
        assert one.outstanding == one.receiving == 0
    sent = table.output > 1
    assert ((served.transfer >= 0) == sent).all()
    assert (served.replica >= counts[0])[sent].all()
    assert served.sent_bytes == 4000 * int(table.prompt[sent].sum())


def test_requests_that_are_being_sent_take_room_from_prompts() -> None:
    table = RequestTable.of([0.0] * 10, [1, 1, 194, 200, 200, 1, 1, 1, 1, 1], [2, 2, 2, 2, 1, 1, 1, 1, 1, 1])
    served, fleet = _fleet(table, link=1e6, latency=1e-5, engine="lightllm", tokens=600, counts=(1, 1), reuse=False,
                           by_layer=False, decode_first=True)  # fmt: skip
    conserved(served, table)
    assert all(one.cache.free == one.cache.blocks for one in fleet)


@settings(max_examples=15)
@given(table=tables(20), tokens=st.integers(500, 4000), counts=st.tuples(st.integers(1, 2), st.integers(1, 2)),
       by_layer=st.booleans(), decode_first=st.booleans())  # fmt: skip
def test_steady_decoding_played_at_once_changes_nothing(
    table: RequestTable, tokens: int, counts: tuple[int, int], by_layer: bool, decode_first: bool
) -> None:
    runs = []
    for steady in (True, False):
        served, _ = _fleet(table, link=1e7, tokens=tokens, counts=counts, steady=steady, by_layer=by_layer,
                           decode_first=decode_first)  # fmt: skip
        runs.append([served.finished.tolist(), served.transfer.tolist(), served.steps.tolist(), served.waited.tolist()])
    assert runs[0] == runs[1]


@settings(max_examples=15)
@given(table=tables(20), tokens=st.integers(500, 4000), decode_first=st.booleans(), by_layer=st.booleans())
def test_an_infinite_link_is_no_sending(table: RequestTable, tokens: int, decode_first: bool, by_layer: bool) -> None:
    how = {"tokens": tokens, "counts": (2, 2), "decode_first": decode_first, "by_layer": by_layer}
    infinite, none = (_fleet(table, link=link, **how)[0] for link in (math.inf, None))
    assert (infinite.finished == none.finished).all()
    assert (infinite.first_token == none.first_token).all()
    assert (infinite.transfer == none.transfer).all()


def test_a_transfer_alone_takes_its_bytes_and_the_latency() -> None:
    served, _ = _fleet(RequestTable.of([0.0], [100], [5]), link=1e9, latency=2e-6)
    assert served.transfer.tolist() == [100 * 4000 * 1000 + 2 * 10**6]  # 1 ns a byte, 2 us
    whole = int(served.finished[0])
    served, _ = _fleet(RequestTable.of([0.0], [100], [5]), link=None)
    assert whole - int(served.finished[0]) == 100 * 4000 * 1000 + 2 * 10**6


def test_layer_by_layer_the_last_layer_is_left() -> None:
    """Where a layer is sent faster than the next is computed."""
    served, _ = _fleet(RequestTable.of([0.0], [100], [5]), link=1e9, latency=2e-6, by_layer=True)
    assert served.transfer.tolist() == [100 * 1000 * 1000 + 2 * 10**6]


def test_transfers_share_the_link_of_who_gets_them() -> None:
    table = RequestTable.of([0.0, 0.0], [100, 100], [5, 5])
    served, _ = _fleet(table, link=1e9, counts=(2, 1))
    assert served.transfer.tolist() == [2 * 100 * 4000 * 1000] * 2
    served, _ = _fleet(table, link=1e9, counts=(2, 2))
    assert served.transfer.tolist() == [100 * 4000 * 1000] * 2


def test_a_prompt_waits_where_it_is_until_there_is_room() -> None:
    """Two prompts of 13 blocks, room for 25 where they decode: the second is sent when the first has ended."""
    table = RequestTable.of([0.0, 0.0], [200, 200], [10, 10])
    served, fleet = _fleet(table, link=1e9, decode_tokens=16 * 25)
    alone = 200 * 4000 * 1000
    assert served.transfer.tolist() == [alone, int(served.finished[0] - served.first_token[1]) + alone]
    assert fleet[0].cache.peak == 26


def test_what_the_other_has_is_not_sent() -> None:
    from triosim.serving.requests import PromptHashes

    rows = Ragged.of([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 9]])
    table = RequestTable.of([0.0, 1.0], [96, 96], [5, 5], hashes=PromptHashes(rows, 16))
    for how in ({}, {"by_layer": True}, {"decode_first": True}):
        served, _ = _fleet(table, reuse=True, **how)
        assert served.sent_bytes == 4000 * (96 + 32)
    served, fleet = _fleet(table, reuse=True, decode_first=True, local=32)
    assert served.sent_bytes == 4000 * 96
    assert served.transfer.tolist()[1] == -1
    assert served.replica.tolist() == [1, 1]
    assert fleet[1].tokens == 4 + 32 + 4


def test_an_engine_that_chooses_a_batch_once_cannot_decode_for_others() -> None:
    with pytest.raises(InputError, match="cannot go on with requests"):
        _fleet(RequestTable.of([0.0], [100], [5]), engine="faster-transformer")
    assert not ENGINES.get("faster-transformer").receives


def test_the_command_sends_and_says_so() -> None:
    found = json.loads(run(*H100, *SPLIT, *TRAFFIC, "--json", "-").stdout)
    assert [pool["role"] for pool in found["pools"]] == ["prefill", "decode"]
    assert found["latency_s"]["transfer"]["count"] == 100
    assert found["sent_bytes"] == 100 * 1000 * 131072
    low, high = found["interval"]["transfer.mean"]
    assert low < found["latency_s"]["transfer"]["mean"] < high
    assert "KV transfer" in run(*H100, *SPLIT, *TRAFFIC, "--transfer", "layers", "--interval", "off").stdout


FLEET = """
model = "llama-3-8b"
transfer = "layers"
order = "decode-first"
[network]
link = "50GB/s"
latency = "5us"
[[pool]]
name = "prompts"
role = "prefill"
device = "H100-SXM5-80GB"
tp = 2
[pool.engine-option]
max-tokens = 4096
[[pool]]
role = "decode"
device = "A100-SXM4-80GB"
replicas = 3
"""


def test_a_fleet_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    found = json.loads(run("serve", file, *TRAFFIC, "--interval", "off", "--json", "-").stdout)
    assert [pool["device"] for pool in found["pools"]] == ["H100-SXM5-80GB", "A100-SXM4-80GB"]
    assert found["pools"][0]["engine"] == {"name": "vllm", "max-tokens": "4096"}
    assert [one["pool"] for one in found["replicas"]] == [0, 1, 1, 1]
    assert found["sent_bytes"] == 100 * 1000 * 131072


def test_several_models_in_a_fleet(tmp_path: Path) -> None:
    file, requests = tmp_path / "fleet.toml", tmp_path / "requests.jsonl"
    file.write_text(
        'system = "dgx-h100"\nidle-ok = true\n'
        '[[pool]]\nmodel = "llama-3-8b"\n[[pool]]\nmodel = "llama-2-7b"\nreplicas = 2\n'
    )
    one = {"prompt_tokens": 50, "output_tokens": 5}
    lines = [
        {"arrived_at": 0.1 * n, **one, "model": "llama-2-7b" if n % 3 else "llama-3-8b"} for n in range(12)
    ]  # fmt: skip
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = json.loads(run("serve", file, "--requests", requests, "--json", "-").stdout)
    computed = [one["computed_tokens"] for one in found["replicas"]]
    assert computed == [4 * 54, 4 * 54, 4 * 54]
    wanted = file.read_text()
    file.write_text(wanted.replace("idle-ok = true", ""))
    assert "leave 5 of the 8 devices" in run("serve", file, "--requests", requests, code=2).stderr
    file.write_text(wanted)
    lines[3]["model"] = "gpt2"
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("serve", file, "--requests", requests, code=2)
    assert "holds no replica of 'gpt2'" in done.stderr
    assert "do not say which they ask for" in run("serve", file, *TRAFFIC, code=2).stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('link = "50GB/s"', 'device = "H100-SXM5-80GB"', "leave device and devices out"),
        ("[network]", "[net]", "unknown option 'net'"),
        ('link = "50GB/s"\n', "", "network: it has no link"),
        ('role = "decode"', 'role = "both"', "roles both, prefill"),
        ('role = "decode"', 'role = "some"', "role 'some' is not known"),
        ('order = "decode-first"', 'order = "first"', "order 'first' is not known"),
        ("tp = 2", "tp = 0", "tp must be"),
        ("tp = 2", "tpp = 2", "unknown option"),
        ('model = "llama-3-8b"', "", "no model"),
        ("max-tokens = 4096", "most = 4096", "unknown option"),
        ("[[pool]]", "[[pools]]", "no pool"),
        ('device = "A100-SXM4-80GB"', "", "no machine"),
        ('[network]\nlink = "50GB/s"\nlatency = "5us"', "", "nothing joins"),
        ('device = "A100-SXM4-80GB"', 'device = "A100-SXM4-80GB"\nkv-cache = "fp8"', "different shapes"),
        ('role = "decode"', 'role = "decode"\nengine = "sglang"', "blocks of 1 and 16 tokens"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "fleet.toml"
    assert old in FLEET
    file.write_text(FLEET.replace(old, new))
    done = run("serve", file, *TRAFFIC, code=2)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prefill-replicas", "2"), "go together"),
        ((*SPLIT, "--replicas", "2"), "go together"),
        (("--transfer", "layers"), "prefill and decode apart"),
        ((*SPLIT, "--transfer", "some"), "transfer 'some' is not known"),
        ((*SPLIT, "--local-prefill", "64"), "decode-first"),
        (("--prefill-replicas", "0", "--decode-replicas", "1"), "at least 1"),
        ((*SPLIT, "--engine", "faster-transformer"), "cannot go on with requests"),
    ],
)
def test_what_does_not_go_together_is_said(words: tuple[str, ...], said: str) -> None:
    done = run(*H100, *words, *TRAFFIC, code=2)
    assert said in done.stderr


def test_a_file_says_what_serves(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    done = run("serve", file, "--tp", "2", "--device", "H100-SXM5-80GB", *TRAFFIC, code=2)
    assert "leave out --device, --tp" in done.stderr


def test_layers_of_a_request_leave_in_order_and_those_that_queue_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send, ended = LiveNetwork.send, LiveNetwork.ended
    flowing, sent = Counter[Hashable](), 0

    def sends(self: LiveNetwork, now: int, links: Sequence[int], latency: int, size: int, what: Hashable) -> bool:
        nonlocal sent
        flowing[what] += 1
        sent += 1
        assert flowing[what] == 1
        return send(self, now, links, latency, size, what)

    def ends(self: LiveNetwork, now: int) -> list[Hashable]:
        found = ended(self, now)
        flowing.subtract(found)
        return found

    monkeypatch.setattr(LiveNetwork, "send", sends)
    monkeypatch.setattr(LiveNetwork, "ended", ends)
    many = ("--arrivals", "burst:40", "--lengths", "prompt=fixed:900;output=fixed:20", "--requests", "40")
    slow = (*H100, *SPLIT, "--link", "1GB/s", *many, "--interval", "off")
    found = {how: json.loads(run(*slow, "--transfer", how, "--json", "-").stdout) for how in ("whole", "layers")}
    assert 2 * 40 < sent < 40 * 32 / 4
    assert found["layers"]["sent_bytes"] == found["whole"]["sent_bytes"] == 40 * 900 * 131072
    assert found["layers"]["duration_s"] <= found["whole"]["duration_s"]


@pytest.mark.parametrize(("old", "new", "said"), [
    ('link = "50GB/s"', 'link = "50"', ": network: --link '50' has no unit"),
    ('latency = "5us"', 'latency = "5"', ": network: --latency '5' has no unit"),
    ('device = "A100"', 'device = "A1000000"', ": pool 2: unknown device 'A1000000'"),
])  # fmt: skip
def test_what_a_fleet_file_gets_wrong_is_told_with_its_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    text = '[network]\nlink = "50GB/s"\nlatency = "5us"\n'
    text += '[[pool]]\nrole = "prefill"\nmodel = "gpt2"\ndevice = "H100"\n'
    text += '[[pool]]\nrole = "decode"\nmodel = "gpt2"\ndevice = "A100"\n'
    file.write_text(text)
    words = ("serve", file, "--arrivals", "poisson:4", "--lengths", "fixed:64", "--requests", "5")
    run(*words)
    file.write_text(text.replace(old, new, 1))
    assert f"triosim: {file}{said}" in run(*words, code=2).stderr
