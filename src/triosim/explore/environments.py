"""Gymnasium environments: an action chooses a variant, the reward says how good it is.

* *Action*: a place in the values of each choice (``MultiDiscrete``).
* *Observation*: the place of each choice from 0 to 1, whether the variant can be run (1 or 0), and the logarithm of
  each cost over that of a reference variant; :data:`WORST` where it cannot be run.
* *Reward*: minus the mean of these logarithms, so that half the cost of the reference is worth 0.69; minus
  :data:`WORST` where it cannot be run.
* An episode begins at a random variant and is truncated after ``steps`` steps; it never terminates.
* ``info`` has ``values``, ``costs`` by name (or None) and ``why``.

The reference is the variant in the middle of all values, or if that cannot be run the first of random ones, by a
seed of its own, so that rewards of all episodes compare.

Importing this module registers the environments, so that ``gymnasium.make("triosim/Accelerator-v0")`` knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from triosim.accelerator import presets
from triosim.accelerator.problem import Problem, convolution
from triosim.accelerator.reading import Contents, read
from triosim.accelerator.systolic import Array
from triosim.core.errors import InputError
from triosim.core.outputs import check_distinct, text_output
from triosim.explore.accelerators import DesignExploration
from triosim.explore.exploration import Exploration, Trial
from triosim.explore.mappings import MappingExploration
from triosim.explore.plans import PlanExploration
from triosim.explore.space import ChoiceSpace, Point, Value, VariedValue
from triosim.explore.trajectory import line

WORST = 20.0
"""Largest logarithm of a ratio of costs that is told."""

_TRIED = 1000  # random variants among which a reference is looked for

ARRAY_SIZES: dict[str, tuple[Value, ...]] = {
    "rows": (8, 16, 32, 64, 128), "columns": (8, 16, 32, 64, 128), "dataflow": ("os", "ws", "is"),
    "bandwidth": (4, 8, 16, 32, 64, 128), "ifmap_bytes": (2**14, 2**15, 2**16, 2**17, 2**18),
    "filter_bytes": (2**14, 2**15, 2**16, 2**17, 2**18),
}  # fmt: skip
"""What the accelerator environment varies where nothing is given: a systolic array."""


class ExplorationEnvironment(gymnasium.Env):
    """An exploration as an environment.

    Args:
        what: is explored.
        steps: of an episode.
        trajectory: file that gets all steps as JSON lines when the environment is closed.
        fit: whether the variant nearest to an action is evaluated that can be run, as far as the exploration knows one
            (:meth:`Exploration.fitted`); observation and ``info`` are of that variant.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium names it

    def __init__(
        self, what: Exploration, steps: int = 100, trajectory: str | Path | None = None, fit: bool = False
    ) -> None:
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise InputError(f"episodes of {steps!r} steps: give a whole number, 1 or more")
        check_distinct({"trajectory": trajectory}, [])
        self.fit = fit
        self.what, self.steps, self.trajectory = what, steps, trajectory
        self.action_space = gymnasium.spaces.MultiDiscrete(np.array(what.space.sizes, np.int64))
        self._choices, self._costs = len(what.space.sizes), len(what.objectives)
        low = np.array([0.0] * (self._choices + 1) + [-WORST] * self._costs, np.float32)
        high = np.array([1.0] * (self._choices + 1) + [WORST] * self._costs, np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._places = tuple(range(size) for size in what.space.sizes)
        self._spans = np.maximum(np.array(what.space.sizes) - 1, 1)
        self._reference = np.log(_reference(what))
        self._seen: dict[Point, tuple[NDArray[np.float32], float, dict[str, Any]]] = {}
        self.lines: list[str] = []
        self.episode = -1
        self.step_number = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode at a random variant."""
        super().reset(seed=seed)
        self.episode += 1
        self.step_number = 0
        seen, _, info = self._look(self.what.drawn(self.np_random))
        return seen.copy(), _own(info)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Evaluate a variant.

        Raises:
            InputError: the action is none of the action space.
        """
        point = tuple(np.atleast_1d(np.asarray(action)).tolist())
        if len(point) != self._choices or not all(map(range.__contains__, self._places, point)):
            raise InputError(
                f"action {point}: give a whole number from 0 for each of {self._choices} choices, below "
                f"{', '.join(map(str, self.what.space.sizes))}"
            )
        if self.fit:
            point = self.what.fitted(point)
        seen, reward, info = self._look(point)
        self.step_number += 1
        if self.trajectory is not None:
            place = {"episode": self.episode, "step": self.step_number}
            self.lines.append(line(self.what, self.what.trial(point), {**place, "reward": reward}))
        return seen.copy(), reward, False, self.step_number >= self.steps, _own(info)

    def close(self) -> None:
        """Write the trajectory, where one is wanted."""
        if self.trajectory is not None and self.lines:
            with text_output(self.trajectory) as file:
                file.writelines(self.lines)

    def _look(self, point: Point) -> tuple[NDArray[np.float32], float, dict[str, Any]]:
        found = self._seen.get(point)
        if found is None:
            found = self._seen[point] = self._made(self.what.trial(point))
        return found

    def _made(self, trial: Trial) -> tuple[NDArray[np.float32], float, dict[str, Any]]:
        seen = np.full(self._choices + 1 + self._costs, WORST, np.float32)
        seen[: self._choices] = np.array(trial.point) / self._spans
        seen[self._choices] = float(trial.costs is not None)
        costs, reward = None, -WORST
        if trial.costs is not None:
            ratios = np.clip(np.log(np.array(trial.costs)) - self._reference, -WORST, WORST)
            costs, reward = dict(zip(self.what.objectives, trial.costs, strict=True)), -float(ratios.mean())
            seen[self._choices + 1 :] = ratios
        return seen, reward, {"values": self.what.space.values(trial.point), "costs": costs, "why": trial.why}


def _own(info: Mapping[str, Any]) -> dict[str, Any]:
    """A copy for the caller to keep."""
    return {name: dict(part) if isinstance(part, dict) else part for name, part in info.items()}


def _reference(what: Exploration) -> tuple[float, ...]:
    """Costs that rewards are relative to."""
    random = np.random.default_rng(0)
    trial = what.trial(tuple(size // 2 for size in what.space.sizes))
    for _ in range(_TRIED):
        if trial.costs is not None:
            return trial.costs
        trial = what.trial(what.drawn(random))
    raise InputError(f"none of {_TRIED} random variants can be run, the last because: {trial.why}")


# --- by name ----------------------------------------------------------------------------------------------------------


def accelerator(
    design: str | Sequence[str] | None = None, problems: Sequence[str | Problem] = (),
    vary: Mapping[str, Sequence[Value]] | None = None, objectives: Sequence[str] = ("cycles", "energy"),
    steps: int = 100, trajectory: str | Path | None = None, **settings: Any,
) -> ExplorationEnvironment:  # fmt: skip
    """``triosim/Accelerator-v0``: sizes of a design, by what problems cost on it.

    Args:
        design: files, or a ready design's name; a systolic array if None.
        problems: files, or problems; a layer of ResNet-50 if none.
        vary: values by name (:mod:`triosim.explore.accelerators`); needed with ``design``.
        objectives: of :data:`triosim.explore.accelerators.OBJECTIVES`.
        steps, trajectory: of :class:`ExplorationEnvironment`.
        settings: ``render_mode`` of Gymnasium, which must be None.
    """
    _no_picture(settings)
    if design is not None and not vary:
        raise InputError("a design is given and nothing is varied: give vary, sizes by name")
    found = Contents(array=Array(32, 32)) if design is None else _files(design)
    space = ChoiceSpace(tuple(VariedValue(name, _values(name, of)) for name, of in (vary or ARRAY_SIZES).items()))
    what = DesignExploration(found, _problems(problems) or found.problems or (_layer(),), space, tuple(objectives))
    return ExplorationEnvironment(what, steps, trajectory)


def mapping(
    design: str | Sequence[str] = "eyeriss", problem: str | Problem | None = None, steps: int = 100,
    trajectory: str | Path | None = None, fit: bool = False, **settings: Any,
) -> ExplorationEnvironment:  # fmt: skip
    """``triosim/Mapping-v0``: the loops of a problem on a design, by cycles and joules.

    Args:
        design: files, or a ready design's name.
        problem: a file or a problem; a layer of ResNet-50 if None.
        fit: whether factors of an action stay outside where with them tiles would exceed their stores, so that every
            action can be run.
        steps, trajectory, settings: as of :func:`accelerator`.
    """
    _no_picture(settings)
    chosen = _problems([problem] if problem is not None else []) or (_layer(),)
    return ExplorationEnvironment(MappingExploration(_files(design).design, chosen[0]), steps, trajectory, fit)


def plan(
    workload: Any = "gpt2", system: Any = "dgx-a100", batch: int = 64, among: Mapping[str, Sequence[Any]] | None = None,
    steps: int = 100, trajectory: str | Path | None = None, **settings: Any,
) -> ExplorationEnvironment:  # fmt: skip
    """``triosim/Plan-v0``: ways to divide a training step over a machine, by time and memory.

    Args:
        workload: a model's name, or a trace.
        system: a ready system's name, or a system.
        batch: samples per iteration, of all replicas.
        among: values of an axis (:class:`triosim.explore.plans.PlanExploration`).
        steps, trajectory, settings: as of :func:`accelerator`.
    """
    from triosim.hardware.machine import system as system_of
    from triosim.prediction.prepare import check_arguments
    from triosim.sources.modelling import model

    _no_picture(settings)
    trace = model(workload) if isinstance(workload, str) else workload
    machine = system_of(system) if isinstance(system, str) else system
    check_arguments(trace, machine)
    return ExplorationEnvironment(PlanExploration(trace, machine, batch, among), steps, trajectory)


def _no_picture(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name != "render_mode" or value is not None:
            raise InputError(f"the environment has no setting {name} = {value!r}")


def _layer() -> Problem:
    """The 3 x 3 convolution of ResNet-50's first stage."""
    return convolution("conv2", c=64, m=64, p=56, q=56, r=3, s=3)


def _values(name: str, given: Any) -> tuple[Value, ...]:
    """Values of a size.

    Raises:
        InputError: there are not several, in a list.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"vary {name}: {given!r} is no list of values: give for example (8, 16)")
    return tuple(given)


def _files(names: str | Sequence[str]) -> Contents:
    return read([presets.known(name) for name in ([names] if isinstance(names, str) else names)])


def _problems(given: str | Problem | Sequence[str | Problem]) -> tuple[Problem, ...]:
    found: list[Problem] = []
    for one in [given] if isinstance(given, str | Problem) else given:
        found += [one] if isinstance(one, Problem) else read([Path(one)]).problems
    return tuple(found)


for _name, _maker in {
    "triosim/Accelerator-v0": accelerator, "triosim/Mapping-v0": mapping, "triosim/Plan-v0": plan
}.items():  # fmt: skip
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=f"{__name__}:{_maker.__name__}")
