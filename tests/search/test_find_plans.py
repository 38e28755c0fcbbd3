from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.command import run
from triosim.core.errors import InputError

MODEL = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
NODE = triosim.system("dgx-a100", 1)
AMONG: dict[str, Any] = {"tp": (1, 2), "schedule": ("1f1b", "gpipe")}


def test_python_finds_what_the_command_finds(tmp_path: Path) -> None:
    configuration = tmp_path / "config.json"
    configuration.write_text(json.dumps({"model_type": "gpt2", "n_layer": 4, "n_embd": 768, "n_head": 12}))
    run(
        "search", configuration, "--seq-len", "64", "--system", "dgx-a100", "--nodes", "1", "--under", "batch=8",
        "--best", "4", "--among", "tp=1,2", "--among", "schedule=1f1b,gpipe", "--front", "--json", tmp_path / "a.json",
    )  # fmt: skip
    told = json.loads((tmp_path / "a.json").read_text())
    found = triosim.find_plans(
        triosim.model(str(configuration), sequence_length=64), NODE, 8, best=4, among=AMONG, front=True
    )
    assert json.loads(json.dumps([one["figures"] for one in found.to_dict()["best"]])) == [
        one["figures"] for one in told["plans"]
    ]
    assert (found.legal, found.predicted) == (told["legal"], told["predicted"])
    assert [one.devices for one in found.front or ()] == [one["devices"] for one in told["front"]]


def test_what_is_found_can_be_simulated_and_is_as_fast_as_was_said() -> None:
    found = triosim.find_plans(MODEL, NODE, 8, best=3, among=AMONG)
    for one in found.best:
        again = triosim.simulate(MODEL, NODE, one.plan, one.fidelity)
        assert again.iteration_time_s == pytest.approx(one.figures.iteration_time_s, rel=1e-3)
        assert one.plan.global_batch_size == 8
    times = [one.figures.iteration_time_s for one in found.best]
    assert times == sorted(times)
    lines = repr(found).splitlines()
    assert len(lines) == 4
    assert "legal plans were predicted" in lines[-1]
    assert all(" binds)" in line for line in lines[:3])


def test_machines_of_several_sizes_are_compared_and_memory_can_be_limited() -> None:
    sizes = [triosim.system(device="A100-SXM4-80GB", devices=count) for count in (1, 2)]
    found = triosim.find_plans(MODEL, sizes, 4, best=50)
    assert {one.devices for one in found.best} == {1, 2}
    assert not triosim.find_plans(MODEL, sizes, 4, memory_bytes=1000).best
    less = found.best[0].figures.needed_bytes - 1
    assert all(one.figures.needed_bytes <= less for one in triosim.find_plans(MODEL, sizes, 4, memory_bytes=less).best)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"systems": "dgx-a100"}, "triosim.system(NAME)"),
        ({"systems": []}, "there is no system"),
        ({"systems": [NODE, NODE]}, "as many devices"),
        ({"batch_size": 0}, "at least 1"),
        ({"plan": {"tp": 1}}, "triosim.Plan(**{'tp': 1})"),
        ({"among": {"size": (1,)}}, "unknown name"),
        ({"objective": "speed"}, "objective must be"),
    ],
)
def test_bad_input_is_told(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as told:
        triosim.find_plans(**{"workload": MODEL, "systems": NODE, "batch_size": 8, **change})
    assert words in str(told.value)
