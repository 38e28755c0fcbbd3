"""What a step of post-training is made of: a recipe, and the step of each of its models on one device."""

from __future__ import annotations

from collections.abc import Mapping

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.plan import Plan
from triosim.posttraining.recipe import POLICY, PhaseOfStep, PostTraining, StepModel
from triosim.trace.tables import Trace
from triosim.transform.inference import forward_only


@dataclass(frozen=True)
class PostTrainingWorkload:
    """A step of post-training on one device.

    Attributes:
        recipe: which.
        name: of it.
        traces: the step of each of its models by name, training where it is trained; of the others the forward.
        adapters: whether the policy has adapters beside frozen weights.
        rollout_s: what writing the answers takes; None where nobody writes any.
    """

    recipe: PostTraining
    name: str
    traces: Mapping[str, Trace]
    adapters: bool
    rollout_s: float | None = None

    @property
    def policy(self) -> Trace:
        """The step of what is trained."""
        return self.traces[POLICY]

    @property
    def models(self) -> tuple[StepModel, ...]:
        """Those that take part, the policy first."""
        return self.recipe.models(self.adapters)

    @property
    def updates(self) -> int:
        """Into how many parts the answers of a step are divided."""
        return max(phase.updates for phase in self.recipe.phases())

    def trace_of(self, phase: PhaseOfStep) -> Trace:
        """What a phase runs."""
        trace = self.traces[phase.model]
        return trace if phase.trains else forward_only(trace, loss=True)

    def samples_of_an_update(self, prompts: int) -> int:
        """How many of the answers to so many prompts there are in each update.

        Raises:
            PlanError: they cannot be divided.
        """
        answers, updates = self.recipe.answers, self.updates
        if prompts * answers % updates:
            what = f"{prompts} prompt{'s' * (prompts > 1)}" + (f" x {answers} answers" if answers > 1 else "")
            near = [n for n in range(1, prompts * answers + 1) if prompts * answers % n == 0]
            closest = sorted(near, key=lambda n: (abs(n - updates), n))[:2]
            raise PlanError(
                f"{what} cannot be divided into minibatches={updates}: nearest that do are "
                f"{' or '.join(map(str, sorted(closest)))}"
            )
        return prompts * answers // updates

    def plan_of_an_update(self, plan: Plan) -> Plan:
        """The plan of one update, whose batch counts answers, from that of a step, whose batch counts prompts.

        Raises:
            PlanError: they cannot be divided.
        """
        parts = plan.micro_batches or (None if plan.micro_batch_size else 1)
        name = "global_batch_size" if plan.global_batch_size else "batch_size"
        prompts = getattr(plan, name) or (parts or 1) * (plan.micro_batch_size or 1) * self.updates
        return plan.replaced(**{name: self.samples_of_an_update(prompts)}, micro_batches=parts)

    def plan_of_a_forward(self, update: Plan) -> Plan:
        """The plan of a forward over all samples of a step, as many at once as in an update.

        Parameters that ZeRO 3 divides stay so; there is nothing else to divide, to keep away or to run again.
        """
        whole = {
            name: size * self.updates
            for name in ("batch_size", "global_batch_size")
            if (size := getattr(update, name)) is not None
        }
        parts = update.micro_batches or (None if update.micro_batch_size else 1)
        return update.replaced(
            **whole, micro_batches=None if parts is None else parts * self.updates, zero=3 if update.zero == 3 else 0,
            offload=(), recompute="none", optimizer="", training=False,
        )  # fmt: skip
