"""The command, from traffic to figures, and what it says about bad input."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.command import run
from tests.effort import calls
from triosim.hardware.machine import system
from triosim.kernels.estimate import Z90
from triosim.serving.communication import ReplicaCommunication

ROOT = Path(__file__).resolve().parents[2]
H100 = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB")
TRAFFIC = ("--arrivals", "poisson:8", "--lengths", "uniform:128-512", "--requests", "200")
CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def test_it_serves_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(*H100, *TRAFFIC, "--slo", "ttft=p99:2s,tpot=p99:1ms", "--json", out)
    assert "200 requests" in done.stdout
    assert re.search(r"TTFT +\d", done.stdout)
    found = json.loads(out.read_text())
    assert found["schema"] == "triosim/serving/1"
    assert found["requests"] == 200
    assert [goal["met"] for goal in found["goals"]] == [True, False]
    assert found["latency_s"]["ttft"]["exact"]
    assert found["output_tokens"] - 200 == found["latency_s"]["itl"]["count"]


def test_a_send_between_stages_finds_its_way_once() -> None:
    between = ReplicaCommunication(system(device="H100-SXM5-80GB", devices=2), 1, stages=2)
    assert calls(lambda: between.send(1e6)) > 10 * calls(lambda: between.send(2e6))


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    first, second = (run(*H100, *TRAFFIC, "--json", "-").stdout for _ in range(2))
    assert first == second
    assert first != run(*H100, *TRAFFIC, "--seed", "1", "--json", "-").stdout


def test_the_policy_of_the_documentation_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "@registered" in block)
    assert len(code.splitlines()) < 60
    engine = tmp_path / "shortest_first.py"
    engine.write_text(code)
    assert "under" in run(*H100, *TRAFFIC, "--engine", engine).stdout
    tight = run(*H100, *TRAFFIC, "--engine", engine, "--arrivals", "burst:200", "--kv-blocks", "40", "--json", "-")
    assert json.loads(tight.stdout)["preemptions"] > 0


def test_figures_have_intervals() -> None:
    found = json.loads(run(*H100, *TRAFFIC, "--json", "-").stdout)
    table = found["latency_s"]
    for name in ("ttft", "tpot", "itl", "e2e"):
        for key in ("mean", "p50", "p99"):
            low, high = found["interval"][f"{name}.{key}"]
            assert low < table[name][key] < high
    low, high = found["interval"]["requests_per_s"]
    assert high / low < 1.1  # light traffic: arrivals decide
    assert json.loads(run(*H100, *TRAFFIC, "--interval", "off", "--json", "-").stdout)["interval"] == {}


def test_constants_are_of_one_run() -> None:
    for many in (("--sweep", "tp=1,2"), ("--find", "rate"), ("--find", "fleet")):
        done = run(*H100, *TRAFFIC, "--slo", "tpot=p99:20ms", *many, "--constant", "grid.FR=40", code=2)
        assert f"{' '.join(many) if many[0] == '--find' else many[0]} makes many: leave one out" in done.stderr


def test_a_link_of_the_users_own_is_taken_at_its_word() -> None:
    sizes = np.array([1e4, 1e7])
    for machine, factor in ((system("dgx-h100"), math.exp(0.3 / Z90)), (system(devices=2, link="450GB/s"), 1.0)):
        base, moved = (ReplicaCommunication(machine, 2, moved=z).all_reduce(sizes) for z in (0.0, 1.0))
        assert (moved / base).tolist() == pytest.approx([factor] * 2)


def test_the_highest_rate_keeps_its_goals() -> None:
    words = (*H100, *TRAFFIC, "--slo", "tpot=p99:20ms", "--find", "rate", "--json", "-")
    found = json.loads(run(*words).stdout)
    kept = [one["requests_per_s"] for one in found["tried"] if one["kept"]]
    missed = [one["requests_per_s"] for one in found["tried"] if not one["kept"]]
    assert found["rate"] == max(kept)
    assert max(kept) < min(missed) <= 1.0101 * max(kept)
    assert found["goals"][0]["met"]
    strict = (*H100, *TRAFFIC, "--slo", "tpot=p99:1ms", "--find", "rate")
    said = run(*strict).stdout
    assert "no rate keeps them" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_rate_that_too_few_requests_keep_up_is_said() -> None:
    few = (*H100, *TRAFFIC, "--slo", "ttft=p99:9s", "--find", "rate")
    assert "give more --requests for a rate that lasts" in " ".join(run(*few).stdout.split())
    assert json.loads(run(*few, "--json", "-").stdout)["lasting"] is False
    lasting = (*H100, *TRAFFIC, "--slo", "ttft=p99:20ms", "--find", "rate")
    assert json.loads(run(*lasting, "--json", "-").stdout)["lasting"] is True


def test_the_rate_of_conversations_is_looked_for_and_their_pauses_stay() -> None:
    talks = (*H100, *TRAFFIC, "--turns", "5,think=200ms", "--find", "rate")
    found = json.loads(run(*talks, "--slo", "tpot=p99:20ms", "--json", "-").stdout)
    missed = [one["requests_per_s"] for one in found["tried"] if not one["kept"]]
    assert 0 < found["rate"] < min(missed) <= 1.0101 * found["rate"]
    assert found["duration_s"] > 4 * 0.2
    assert "all 40 conversations are there after" in " ".join(run(*talks, "--slo", "ttft=p99:9s").stdout.split())


def test_tensor_parallel_replicas_and_routers() -> None:
    for router in ("least-outstanding", "two-choices", "session", "random"):
        done = run("serve", "llama-3-8b", "--system", "dgx-h100", "--tp", "2", "--replicas", "3", "--router", router,
                   "--idle-ok", *TRAFFIC, "--json", "-")  # fmt: skip
        found = json.loads(done.stdout)
        assert len(found["replicas"]) == 3
        assert all(one["steps"] for one in found["replicas"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tp", "1"), "fleet.toml says what serves: leave out --tp"),  # also what it is by default
        (("--sweep", "tp=1,2"), "fleet.toml says what serves: leave tp out of --sweep"),
        (("--sweep", "engine=vllm,sglang"), "fleet.toml says what serves: leave engine out of --sweep"),
    ],
)
def test_what_a_file_of_a_fleet_says_is_not_said_beside_it(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[[pool]]\nmodel = "llama-3-8b"\ndevice = "H100"\ntp = 2\n')
    assert says in run("serve", str(file), *TRAFFIC, *words, code=2).stderr
    assert '"tp": 2' in run("serve", str(file), *TRAFFIC, "--interval", "off", "--json", "-").stdout


def test_a_table_that_a_fleet_does_not_know_is_named(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[[pool]]\nmodel = "llama-3-8b"\ndevice = "H100"\nengine_options = {max-running = 8}\n')
    assert "unknown option 'engine_options': did you mean engine_option" in run(
        "serve", str(file), *TRAFFIC, code=2
    ).stderr  # fmt: skip


def test_a_pipeline_serves() -> None:
    where = ("--system", "dgx-h100", "--pp", "2", "--replicas", "4")
    done = run("serve", "llama-3-8b", *where, *TRAFFIC, "--interval", "off", "--json", "-")
    assert json.loads(done.stdout)["plan"]["pp"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "there is no traffic"),
        (("--arrivals", "poisson:8"), "give --lengths too"),
        (("--lengths", "uniform:128-512"), "give --arrivals too"),
        ((*TRAFFIC, "--arrivals", "burst:50"), "200 requests are more than one burst of 50"),
        ((*TRAFFIC, "--lengths", "fixed:1"), "together have at least 2 tokens"),
        (
            (*TRAFFIC, "--devices", "4"),
            "1 replica of 1 device leaves 3 of the system's 4 devices idle: give --replicas 4",
        ),
        (
            (*TRAFFIC, "--devices", "7", "--tp", "2", "--replicas", "3"),
            "leave 1 of the system's 7 devices idle: give a",
        ),
        (("--requests", "nowhere.csv"), "no such file"),
        ((*TRAFFIC, "--requests", "0"), "--requests 0: give a whole number from 1 up"),
        ((*TRAFFIC, "--arrivals", "poison:8"), "did you mean poisson"),
        ((*TRAFFIC, "--arrivals", "poisson:-1"), "must be above zero"),
        ((*TRAFFIC, "--lengths", "lognormal:1000,512"), "has no option '512'; it has sigma=, max=, ratio="),
        ((*TRAFFIC, "--arrivals", "gamma:8,cv="), "cv has no value: write it as cv=value"),
        ((*TRAFFIC, "--arrivals", "gamma:8,cw=1"), "gamma has no option 'cw'"),
        ((*TRAFFIC, "--lengths", "uniform:512-128"), "swap them"),
        ((*TRAFFIC, "--lengths", "uniform:128"), "give the shortest and the longest"),
        ((*TRAFFIC, "--engine", "vlm"), "did you mean"),
        ((*TRAFFIC, "--engine", "none.py"), "none.py: no such file"),
        ((*TRAFFIC, "--engine-option", "budget=8"), "(of engine vllm)"),
        ((*TRAFFIC, "--engine-option", "max-tokens=many"), "must be a whole number"),
        ((*TRAFFIC, "--engine", "lightllm", "--pp", "2"), "runs on one pipeline stage"),
        ((*TRAFFIC, "--engine", "trtllm", "--device", "MI300X"), "runs on devices of NVIDIA, and MI300X is of AMD"),
        ((*TRAFFIC, "--weights", "nvfp4", "--device", "MI355X"), "nvfp4 is a type of weights of NVIDIA's"),
        ((*TRAFFIC, "--weights", "nvfp4", "--device", "H100"), "H100-SXM5-80GB has no units for float4_e2m1"),
        ((*TRAFFIC, "--replicas", "0"), "the fleet holds no replica"),
        ((*TRAFFIC, "--tp", "3"), "does not divide the 32 heads"),
        ((*TRAFFIC, "--devices", "1", "--tp", "2"), "has 1"),
        ((*TRAFFIC, "--kv-blocks", "3"), "longer than the KV cache of 48 tokens"),
        ((*TRAFFIC, "--max-length", "100"), "longer than the 100 tokens"),
        ((*TRAFFIC, "--weights", "bf17"), "precision of weights"),
        ((*TRAFFIC, "--kv-cache", "int3"), "type of the KV cache"),
        ((*TRAFFIC, "--slo", "ttft<2s"), "is no goal"),
        ((*TRAFFIC, "--slo", "ttft=p99:2"), "has no unit"),
        ((*TRAFFIC, "--front-time", "5"), "--front-time '5' has no unit"),
        ((*TRAFFIC, "--host-time", "5"), "--host-time '5' has no unit"),
        ((*TRAFFIC, "--requests", "-5"), "--requests -5: give a whole number from 1 up, or a file"),
        ((*TRAFFIC, "--requests", "1e3"), "--requests 1e3: give a whole number from 1 up, or a file"),
        ((*TRAFFIC, "--device", "H100,A100"), "kinds of devices to choose from are of --find fleet"),
        ((*TRAFFIC, "--engine-option", "expert-exchange=gather"), "give --dp, or leave it out"),
        ((*TRAFFIC, "--engine-option", "graph-sizes=3/2"), "give whole numbers above zero that ascend"),
        ((*TRAFFIC, "--tpot", "mine"), "is not known"),
        ((*TRAFFIC, "--find", "rate"), "give --slo"),
        ((*TRAFFIC, "--find", "goals", "--slo", "ttft=2s"), "--find 'goals' is not known"),
        ((*TRAFFIC, "--find", "rate", "--slo", "ttft=2s", "--arrivals", "users:4"), "none of their own"),
        ((*TRAFFIC, "--slo", "e2e=max:3s"), "a quantile (p0 to p100) or mean and a time"),
        ((*TRAFFIC, "--lora", "4,rank=16,slots=4000"), "of them of drafts and adapters), 2."),
        ((*TRAFFIC, "--lora", "4,rank=16,slots=4000"), "or fewer slots of adapters"),
        ((*TRAFFIC, "--kv-tier", "nvme:2TB,bandwidth=0"), "tier nvme: bandwidth '0' must be above zero"),
        ((*TRAFFIC, "--interval", "maybe"), "--interval must be on or off"),
        ((*TRAFFIC, "--prefix-caching", "maybe"), "--prefix-caching must be on or off"),
        ((*TRAFFIC, "--memory-utilisation", "1.5"), "must be above 0 and at most 1"),
        ((*TRAFFIC, "--memory-utilisation", "0.1"), "leaves no memory"),
        ((*TRAFFIC, "--local-prefill", "-5"), "--local-prefill must be at least 1"),
        ((*TRAFFIC, "--seed", "-1"), "--seed must be at least 0"),
        ((*TRAFFIC, "--engine-option", "block-tokens=0"), "block-tokens must be at least 1"),
        ((*TRAFFIC, "--engine-option", "max-tokens=0"), "max-tokens must be at least 1"),
        ((*TRAFFIC, "--engine-option", "max-running=0"), "max-running must be at least 1"),
        ((*TRAFFIC, "--lora", "1000000000"), "at most 10,000,000 adapters"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    done = run(*H100, *words, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (CSV + "0,10,5\n-1,10,5\n", "line 3: the arrival time is negative"),
        (CSV + "2,10,5\n1,10,5\n", "line 3 arrives before the one above it"),
        (CSV + "0,10,0\n", "line 2: the output has 0 tokens"),
        (CSV + "0,10.5,1\n", "line 2: the prompt has 10.5 tokens"),
        (CSV + "0,many,1\n", "line 2: num_prefill_tokens is 'many'"),
        (CSV + "0,1\n", "line 2: has not as many cells"),
        (CSV, "there is no request"),
        (CSV + "0,9000,1\n", "longer than the 8192 tokens that the model"),
        ("time,tokens\n0,1\n", "no kind of request file"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": "x"}', "hash_ids is 'x'"),
        ('{"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1, 2]}', "2 hash_ids for 512 tokens"),
        ('{"arrived_at": 0, "turns": []}', "give a list of requests"),
        ('{"arrived_at": 0, "prompt_tokens": 4, "output_tokens": 2}\n{"arrived_at', "line 2 is broken JSON"),
        ('{"arrived_at": 0, "prompt_tokens": 4, "output_tokens": 2', "line 1 is broken JSON"),
        ('{"arrived_at": 0, "prompt_tokens": 4, "output_tokens": 2, "piority": 1}', "did you mean priority?"),
        (
            '{"arrived_at": 0, "turns": [{"prompt_tokens": 4, "output_tokens": 2}, '
            '{"prompt_tokens": 4, "output_tokens": 2, "think": -3}]}',
            "turn 2: think is -3",
        ),
    ],
)
def test_bad_files_are_one_sentence(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "requests"
    path.write_text(content)
    done = run(*H100, "--requests", path, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_broken_gzip_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "requests.gz"
    path.write_bytes(gzip.compress((CSV + "0,10,5\n" * 100).encode())[:-12])
    assert "damaged gzip file" in run(*H100, "--requests", path, code=2).stderr


def test_a_long_first_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    line = {"text": "x" * (1 << 17), "timestamp": 0, "input_length": 500, "output_length": 2, "hash_ids": [7]}
    path.write_text(json.dumps(line) + "\n")
    assert "1 request" in run(*H100, "--requests", path).stdout


@pytest.mark.parametrize("device", ["L40S", "L4"])
def test_replicas_of_one_device_need_no_link(device: str) -> None:
    words = ("serve", "llama-3.2-1b", "--device", device, *TRAFFIC[:-1], "20", "--interval", "off")
    assert "20 requests" in run(*words, "--replicas", "2").stdout
    assert "give one (--link" in run(*words, "--tp", "2", code=2).stderr


def test_a_type_without_units_is_told() -> None:
    words = ("serve", "gpt2", "--device", "T4", *TRAFFIC[:-1], "20", "--interval", "off")
    assert "emulated on T4" in run(*words, "--weights", "bf16").stdout
    as_servers_do = run(*words).stdout
    assert "fp16 weights" in as_servers_do
    assert "emulated" not in as_servers_do
    assert as_servers_do == run(*words, "--weights", "fp16").stdout


@pytest.mark.parametrize("device", ["Jetson-AGX-Orin-64GB", "EPYC-9654", "M2-Ultra"])
def test_devices_without_a_link_to_a_host_serve_alone(device: str) -> None:
    words = ("serve", "llama-3.2-1b", "--device", device, *TRAFFIC[:-1], "20", "--interval", "off")
    assert "20 requests" in run(*words).stdout
    assert "give one (--link" in run(*words, "--replicas", "2", code=2).stderr


def test_the_rate_that_is_looked_for_need_not_be_given() -> None:
    words = (*H100, "--lengths", "uniform:128-512", "--requests", "300", "--slo", "ttft=p99:2s", "--find", "rate")
    assert run(*words).stdout == run(*words, "--arrivals", "poisson:1").stdout


def test_unsorted_requests_are_sorted_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(CSV + "2,10,5\n1,20,5\n")
    assert "2 requests" in run(*H100, "--requests", path, "--sort").stdout


def test_a_million_output_tokens_cost_the_same_in_the_table_and_with_cost(tmp_path: Path) -> None:
    """Of prompts of 300 and outputs of 100 tokens a million output tokens cost four times a million of both."""
    file = tmp_path / "run.json"
    traffic = ("--arrivals", "poisson:4", "--lengths", "prompt=fixed:300;output=fixed:100", "--requests", "20")
    shown = run("serve", "llama-3.2-1b", "--device", "H100", *traffic, "--interval", "off", "--json", file).stdout
    both, alone = re.search(r"\$(\S+) for a million .* \$(\S+) of outputs", " ".join(shown.split())).groups()
    assert float(alone) == pytest.approx(4 * float(both), rel=1e-3)
    rows = json.loads(run("cost", file, "--json", "-").stdout)["rows"]
    assert float(alone) == pytest.approx(next(r["usd"] for r in rows if r["unit"] == "million output tokens"), rel=1e-3)


def test_a_model_that_a_toml_file_configures_is_served_and_a_missing_fleet_is_told(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 320,
    }
    file.write_text('family = "llama"\n' + "".join(f"{name} = {value}\n" for name, value in sizes.items()))
    assert (
        "small.toml under vllm on 1 x 1 H100"
        in run("serve", file.name, "--device", "H100", *TRAFFIC, cwd=tmp_path).stdout
    )
    assert "No such file" in run("serve", str(tmp_path / "none.toml"), "--device", "H100", *TRAFFIC, code=2).stderr
