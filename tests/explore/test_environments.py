"""The environments of Gymnasium."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from triosim.accelerator.problem import gemm
from triosim.core.errors import InputError

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("triosim.explore.environments")

SMALL = {
    "triosim/Accelerator-v0": {},
    "triosim/Mapping-v0": {"problem": gemm(m=16, n=12, k=8)},
    "triosim/Plan-v0": {"among": {"tp": [1, 2], "pp": [1], "micro-batch-size": [1, 3], "recompute": ["none"],
                                  "zero": [0, 1]}, "batch": 8},
}  # fmt: skip


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in SMALL), ("triosim/Mapping-v0", {"fit": True})])
def test_environments_pass_gymnasiums_own_check(name, more):
    from gymnasium.utils.env_checker import check_env

    made = gymnasium.make(name, **SMALL[name], **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)


def test_every_action_can_be_run_where_factors_that_do_not_fit_stay_outside():
    """Those that fit anyway are evaluated as they are."""
    made, fitting = (gymnasium.make("triosim/Mapping-v0", fit=fit).unwrapped for fit in (False, True))
    made.reset(seed=1), fitting.reset(seed=1)
    made.action_space.seed(1)
    drawn = np.random.default_rng(2)
    actions = [made.action_space.sample() for _ in range(100)] + [made.what.drawn(drawn) for _ in range(50)]
    alike = 0
    for action in actions:
        seen, info = fitting.step(action)[0], made.step(action)[-1]
        assert seen[-3] == 1
        if info["costs"] is not None:
            alike += 1
            assert fitting.step(action)[-1]["costs"] == info["costs"]
    assert 50 <= alike < 100


def test_episodes_repeat_by_seed_and_end_by_truncation():
    runs = []
    for _ in range(2):
        made = gymnasium.make("triosim/Accelerator-v0", steps=5)
        seen = [made.reset(seed=7)[0]]
        made.action_space.seed(7)
        for step in range(5):
            now, reward, terminated, truncated, info = made.step(made.action_space.sample())
            seen.append(now)
            assert not terminated
            assert truncated == (step == 4)
            assert reward == pytest.approx(-float(now[-2:].mean()), abs=1e-5)
            assert set(info["costs"]) == {"cycles", "energy"}
        runs.append(np.array(seen))
    assert (runs[0] == runs[1]).all()


def test_steps_are_written_as_json_lines(tmp_path):
    path = tmp_path / "steps.jsonl"
    made = gymnasium.make("triosim/Accelerator-v0", trajectory=path)
    for _ in range(2):
        made.reset(seed=1)
        made.step(made.action_space.sample())
    assert not path.exists()
    made.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["episode"], row["step"]) for row in rows] == [(0, 1), (1, 1)]
    assert {"values", "costs", "reward"} <= set(rows[0])


def test_a_name_with_its_module_needs_no_import():
    """A process of its own, which has not imported ours before."""
    code = "import gymnasium; print(gymnasium.make('triosim.explore.environments:triosim/Accelerator-v0').spec.id)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "triosim/Accelerator-v0"


def test_a_design_without_sizes_to_vary_is_told():
    from triosim.core.errors import InputError
    from triosim.explore.environments import accelerator

    with pytest.raises(InputError, match="give vary"):
        accelerator("eyeriss")


@pytest.mark.parametrize("action", [[99] * 6, [-1, 0, 0, 0, 0, 0], [0], [0.5] * 6, "all", None])
def test_what_is_no_action_is_refused(action):
    made = gymnasium.make("triosim/Accelerator-v0").unwrapped
    made.reset(seed=0)
    with pytest.raises(InputError, match="for each of 6 choices"):
        made.step(action)


def test_a_trajectory_has_a_folder_before_the_first_step(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        gymnasium.make("triosim/Accelerator-v0", trajectory=tmp_path / "no" / "steps.jsonl")


@pytest.mark.parametrize(
    ("among", "words"), [("tp", "such as {'tp': (1, 2)}"), ({"tensor": [1]}, "unknown axis 'tensor'")]
)
def test_axes_of_plans_are_a_table_of_those_that_there_are(among: object, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        gymnasium.make("triosim/Plan-v0", among=among)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("Accelerator", {"steps": 1.5}, "episodes of 1.5 steps"),
        ("Accelerator", {"steps": "x"}, "episodes of 'x' steps"),
        ("Accelerator", {"vary": {"rows": 8}}, "vary rows: 8 is no list of values"),
        ("Accelerator", {"vary": {"rows": "abc"}}, "vary rows: 'abc' is no list of values"),
        ("Accelerator", {"problems": "/nowhere.toml"}, "/nowhere.toml: cannot be read"),
        ("Plan", {"among": {"tp": [0]}}, "tp is 0: give a whole number, 1 or more"),
        ("Plan", {"workload": 3}, "the workload must be a Trace, not 3"),
    ],
)
def test_an_environment_that_cannot_be_is_one_sentence(name: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        gymnasium.make(f"triosim/{name}-v0", **given)
