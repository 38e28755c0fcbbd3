"""Speculative decoding: tokens are drafted cheaply, and one step of the model verifies all of a request's drafts.

A decode step computes a request's next token and its drafts.  Drafts are accepted from the first on until one is
rejected, and the model's own token follows them, so that a step yields one token more than it accepts.  Whether a draft
is accepted is drawn, by position, from the probabilities given; the draws of a request depend on the seed and its place
in the traffic alone, not on what else runs.

A request drafts no more than it has tokens to come, blocks to hold, and room in the step's budget.

Drafts come from looking into the text so far (``ngram``), from a smaller model that takes a step for each (``draft``),
from one more layer that does (``eagle``, Li et al. 2024), or from heads that guess all at once (``medusa``, Cai et al.
2024).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property
from random import Random
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import AtLeast, configured
from triosim.core.units import picoseconds
from triosim.hardware.accelerator import Accelerator
from triosim.serving.kernel_times import KernelErrors, ServingKernels
from triosim.serving.model import Precision, ServedModel, served_model
from triosim.serving.model_times import ModelTimes
from triosim.serving.requests import Request
from triosim.serving.step_times import StepShape, StepTimes

KINDS = ("ngram", "draft", "eagle", "medusa")
"""Where drafts come from."""


@dataclass(frozen=True)
class SpeculationPlan:
    """How drafts are made and how many hold.

    Attributes:
        kind: one of :data:`KINDS`.
        tokens: drafts of a request in a step.
        acceptance: of each position, the probability that its draft is accepted if those before it are.
        model: that drafts, where one does.
    """

    kind: str
    tokens: int
    acceptance: tuple[float, ...]
    model: str | None = None

    @property
    def yields(self) -> float:
        """Tokens of a step, on average."""
        held, total = 1.0, 1.0
        for chance in self.acceptance:
            held *= chance
            total += held
        return total


@dataclass(frozen=True)
class _DraftOptions:
    tokens: Annotated[int, AtLeast(1)] = 4
    acceptance: str = ""
    model: str | None = None


def parse_speculation(text: str) -> SpeculationPlan:
    """As it is typed: ``ngram,tokens=4,acceptance=0.6`` or ``draft,model=llama-3.2-1b,acceptance=0.8/0.7/0.6/0.5``.

    Raises:
        InputError: it makes no sense.
    """
    kind, *options = text.split(",")
    if kind not in KINDS:
        raise InputError(f"speculation by {quoted(kind)} is not known: give {', '.join(KINDS)}")
    typed = configured(_DraftOptions, dict(one.partition("=")[::2] for one in options), f"speculation {kind}")
    if (typed.model is None) == (kind == "draft"):
        raise InputError("a draft, and nothing else, has a model: as draft,model=llama-3.2-1b,acceptance=0.8")
    try:
        chances = [float(one) for one in typed.acceptance.split("/")]
    except ValueError:
        chances = []
    if not chances or not all(0 <= chance <= 1 for chance in chances):
        raise InputError(
            "how many drafts are accepted depends on the text: give acceptance, from 0 to 1, as acceptance=0.8, or of "
            "each position, as 0.8/0.7/0.6"
        )
    if len(chances) not in (1, typed.tokens):
        raise InputError(
            f"there are {len(chances)} acceptances for {typed.tokens} tokens: give one for all, or one for each"
        )
    acceptance = tuple(chances) if len(chances) > 1 else (chances[0],) * typed.tokens
    return SpeculationPlan(kind, typed.tokens, acceptance, typed.model)


@dataclass
class Speculation:
    """The drafts of one replica.

    Attributes:
        plan: how many, and how many hold.
        seed: of the draws.
        drafted, accepted: tokens so far.
        steps: of single requests, in which they drafted.
    """

    plan: SpeculationPlan
    seed: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    _draws: dict[int, Random] = field(init=False, repr=False, default_factory=dict)

    def most(self, request: Request) -> int:
        """Drafts that a request that decodes can use."""
        return min(self.plan.tokens, request.end - request.known - 1)

    def verified(self, request: Request, drafts: int) -> int:
        """How many of so many drafts are accepted."""
        draw = self._draws.get(request.row)
        if draw is None:
            draw = self._draws[request.row] = Random(f"{self.seed} {request.row}")
        held = 0
        for chance in self.plan.acceptance[:drafts]:
            if draw.random() >= chance:
                break
            held += 1
        self.drafted += drafts
        self.accepted += held
        self.steps += 1
        return held

    def forget(self, request: Request) -> None:
        """A request is done."""
        self._draws.pop(request.row, None)


class Drafter(ABC):
    """How long drafting takes beside the steps of the model, and which memory it needs.

    Attributes:
        weights: bytes of its own on each device.
        kv_token: bytes of KV cache for a token on each device.
    """

    weights: float = 0.0
    kv_token: float = 0.0

    @cached_property
    def _known(self) -> dict[int, int]:
        return {}

    def _once(self, rows: int, seconds: Callable[[NDArray[np.float64]], float], what: str) -> int:
        """Picoseconds of what depends on so many rows alone, priced once for each number of them."""
        if rows not in self._known:
            self._known[rows] = picoseconds(seconds(np.array([float(rows)])), what)
        return self._known[rows]

    @abstractmethod
    def ticks(self, step: StepShape) -> int:
        """Picoseconds of drafting in such a step."""


class NGram(Drafter):
    """Looks for the last tokens in the text so far: the host does it while the device computes."""

    def ticks(self, step: StepShape) -> int:
        """Nothing."""
        return 0


@dataclass
class DraftModel(Drafter):
    """A model that decodes one draft after another, and reads the prompts too."""

    times: ModelTimes
    joined: ServingKernels | None = None

    def __post_init__(self) -> None:
        kernels = self.times.kernels
        own = kernels.model
        if self.joined is None:
            self.weights = own.weight_bytes(kernels.precision, kernels.tensor_parallel)
        else:  # one layer, and what joins two hidden states; embedding and head are the target's
            joins = 2.0 * own.width * own.width
            linear = own.linear_parameters + joins
            self.weights = linear * kernels.precision.weight_bytes / kernels.tensor_parallel
        self.kv_token = own.kv_bytes(kernels.kv_type, kernels.tensor_parallel)

    def ticks(self, step: StepShape) -> int:
        """One step for the prompts, and one for each draft."""
        total = 0
        if step.chunks:
            tokens = sum(count for count, _ in step.chunks)
            total += self._step(StepShape(tokens, step.chunks, 0, 0, 0))
        mean = step.context / max(step.decodes, 1)
        for place, count in enumerate(step.drafted):
            total += self._step(StepShape(count, (), count, round(count * (mean + place)), count))
        return total

    def _step(self, step: StepShape) -> int:
        ticks = self.times.ticks(step, 0)
        joined = self.joined
        if joined is not None:
            ticks += self._once(step.tokens, lambda rows: float(joined.joining(rows)[0]), "a draft")
        return ticks


@dataclass
class MedusaHeads(Drafter):
    """Heads that guess the tokens that follow each verified one: a residual product and logits each."""

    kernels: ServingKernels
    heads: int

    def __post_init__(self) -> None:
        own = self.kernels.model
        self.weights = self.heads * own.width * (own.width + own.vocabulary) * 2.0 / self.kernels.tensor_parallel

    def ticks(self, step: StepShape) -> int:
        """All heads, at each position that is sampled."""
        if not step.sampled:
            return 0
        return self._once(step.sampled, self._seconds, "the heads of a step")

    def _seconds(self, rows: NDArray[np.float64]) -> float:
        return self.heads * (float(self.kernels.residual(rows)[0]) + float(self.kernels.sampling(rows)[0]))


def drafter_of(
    plan: SpeculationPlan, model: ServedModel, device: Accelerator, precision: Precision, kv_type: str,
    tensor_parallel: int, moved: KernelErrors, times: ModelTimes,
) -> Drafter:  # fmt: skip
    """What drafts beside a model, on the same devices and divided in the same way.

    Raises:
        InputError: the model that drafts has another vocabulary, or cannot be divided so.
    """
    if plan.kind == "ngram":
        return NGram()
    kernels = ServingKernels(
        model, device, precision, kv_type, tensor_parallel, moved=moved, held=times.kernels.held,
        fused_casts=times.kernels.fused_casts,
    )  # fmt: skip
    if plan.kind == "medusa":
        return MedusaHeads(kernels, plan.tokens)
    if plan.kind == "eagle":
        one = replace(kernels, model=model.of_one_layer())
        return DraftModel(ModelTimes(one, times.communication, graphs=times.graphs, slower=times.slower), one)
    assert plan.model is not None
    small = served_model(plan.model)
    if small.vocabulary != model.vocabulary:
        raise InputError(
            f"{plan.model} has {small.vocabulary} tokens in its vocabulary and {model.name} {model.vocabulary}: choose "
            "a draft of the same family"
        )
    if small.heads % tensor_parallel:
        raise InputError(f"--tp {tensor_parallel} does not divide the {small.heads} heads of {plan.model}")
    own = replace(kernels, model=small)
    return DraftModel(ModelTimes(own, times.communication, graphs=times.graphs, slower=times.slower))


@dataclass
class SpeculativeTimes(StepTimes):
    """Steps that verify, and the drafting between them.

    Attributes:
        target: of the model that verifies.
        drafter: what drafts.
    """

    target: StepTimes
    drafter: Drafter

    def computed(self, step: StepShape) -> int:
        """Those of the target."""
        return self.target.computed(step)

    def padded(self, tokens: int) -> int:
        """As the target."""
        return self.target.padded(tokens)

    def ticks(self, step: StepShape, stage: int) -> int:
        """Of both."""
        return self.target.ticks(step, stage) + self.drafter.ticks(step)
