"""``triosim train MODEL --post dpo``: a step of several phases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from triosim.cli.arguments import TrainOptions
    from triosim.posttraining.prediction import PostTrainingStep
    from triosim.posttraining.recipe import StepModel
    from triosim.posttraining.workload import PostTrainingWorkload
    from triosim.trace.tables import Trace

LEFT_OUT = frozenset({
    "timeline", "chakra", "stats", "fit", "sweep", "csv", "workers", "executor", "also",
    "batch_trace", "power_cap", "clock", "find", "slowdown", "constant", "tokens", "energy", "at", "grid", "pue",
    "price", "pay", "input_shape", "variation", "iterations",
})  # fmt: skip
"""Options of one iteration that a step of several phases does not read."""
ROLLOUT_ALONE = "--rollout is of a step of post-training: give --post grpo or ppo as well"
SERVED = "triosim/serving/1"
"""Schema of what ``triosim serve --json`` writes."""


def post_training(options: TrainOptions) -> None:
    """Predict the step, print it, write it.

    Raises:
        InputError: an option makes no sense here, or something that it names does not exist.
    """
    from triosim.cli.command import progress_bar
    from triosim.cli.compared_plans import asked_plans
    from triosim.cli.outputs import present
    from triosim.cli.predict import fidelity_of, machine, plan_of
    from triosim.cli.sweep import ranks_of
    from triosim.core.outputs import check_distinct
    from triosim.posttraining.prediction import predict
    from triosim.report.posttraining import show, to_dict
    from triosim.search.grid import with_fields
    from triosim.sources.reading import recognised

    check_given(options)
    if options.report is not None and not options.compare:
        raise InputError("--report of a step of several phases is of --compare: leave one out, or give the other too")
    inputs = [("WORKLOAD", options.workload), ("--rollout", options.rollout)]
    check_distinct({"--json": options.json}, inputs, recognised)
    with progress_bar() as progress:
        progress("reading the workload")
        asked = post_training_workload(options)
        base, fidelity, plans = plan_of(options, True), fidelity_of(options), asked_plans(options.compare or ())
        system = machine(options, asked.workload.policy, max(ranks_of(base, one) for one in plans.values()))
        steps: dict[str, PostTrainingStep] = {}
        for label, changes in plans.items():
            try:
                plan, models_of_time = with_fields(base, fidelity, changes)
                found = predict(asked.workload, system, plan, models_of_time, progress)
            except InputError as error:
                raise InputError(f"--compare {label}: {error}" if changes else str(error)) from error
            asked.check_served(found.samples)
            steps[label] = found
    if not options.compare:
        return present(found, "result", options.json, to_dict, show)
    _compare(steps, options)


def check_given(options: TrainOptions) -> None:
    """Raise InputError where an option is given that a step of several phases does not read."""
    from triosim.cli.fields import given

    for name, option in given(options):
        if name in LEFT_OUT:
            others = ", or give each plan with --compare" if name == "sweep" else ""
            raise InputError(
                f"{option} is of one iteration, and --post has several phases: leave out one of them{others}"
            )


@dataclass(frozen=True)
class AskedPostTraining:
    """What the options ask for.

    Attributes:
        workload: the step.
        rollout: as it was typed.
        served: how many answers were written in the roll-out; None where nobody says so.
    """

    workload: PostTrainingWorkload
    rollout: str | None
    served: int | None

    def check_served(self, samples: int) -> None:
        """Raise InputError unless as many answers were written as a step has."""
        if self.served is not None and self.served != samples:
            raise InputError(
                f"--rollout {self.rollout}: {self.served} requests were served, and a step has {samples} answers: "
                f"serve as many (--requests {samples}), or change the batch"
            )


def post_training_workload(options: TrainOptions) -> AskedPostTraining:
    """The step that ``--post`` and ``--rollout`` ask for.

    Raises:
        InputError: an option makes no sense here, or something that it names does not exist.
    """
    from triosim.cli.predict import step
    from triosim.cli.workloads import family_of
    from triosim.posttraining.recipe import recipe
    from triosim.posttraining.workload import PostTrainingWorkload

    assert options.post is not None
    name = options.post.partition(",")[0].strip()
    asked = recipe(options.post)
    if asked.rolls_out != (options.rollout is not None):
        raise InputError(
            f"post {name}: the policy writes answers in each step: say how long that takes, as --rollout 40s, or give "
            "what serve --json wrote"
            if asked.rolls_out
            else f"--rollout: post {name} has its answers already: leave it out"
        )
    adapters = options.lora is not None
    models = asked.models(adapters)
    policy = step(options, True)
    family = family_of(options.workload)
    if family is not None and not family.writes:  # of a trace nobody knows
        raise InputError(f"--post: {options.workload} writes no text: post-training is of models that answer prompts")
    traces = {model.name: _trace(options, model, policy) for model in models}
    seconds, served = (None, None) if options.rollout is None else _rollout(options.rollout)
    return AskedPostTraining(PostTrainingWorkload(asked, name, traces, adapters, seconds), options.rollout, served)


def _compare(steps: Mapping[str, PostTrainingStep], options: TrainOptions) -> None:
    """Show what makes the difference between plans, phase by phase."""
    from triosim.cli.command import say
    from triosim.cli.outputs import present
    from triosim.cli.streams import written
    from triosim.core.outputs import text_output
    from triosim.prediction.comparison import compared_step, comparison
    from triosim.report.comparison import page, show, to_dict
    from triosim.report.posttraining import to_dict as plain

    per_sample = len({one.samples for one in steps.values()}) > 1
    found = comparison([compared_step(plain(one), label, per_sample) for label, one in steps.items()], per_sample)
    if options.report is not None:
        with text_output(options.report) as file:
            file.write(page(found))
    present(found, "comparison", options.json, to_dict, show)
    if options.report is not None:
        say(written("page", options.report), options.json)


def _trace(options: TrainOptions, model: StepModel, policy: Trace) -> Trace:
    """The step of a model: training where it is trained; of the others with the loss, for its log-probabilities."""
    from triosim.cli.predict import packed_as, stack_of
    from triosim.cli.workloads import load_workload
    from triosim.posttraining.recipe import AS_POLICY

    own = model.of == AS_POLICY
    if own and not model.scores and not model.within_policy:
        return policy  # a frozen copy's forward is that of the training step
    more: dict[str, Any] = {"value_head": True} if model.scores else {"adapters": False, "scored": True}
    made = load_workload(
        options.workload if own else model.of,
        seq_len=options.seq_len,
        precision=options.precision,
        training=model.trained,
        attention=options.attention,
        lora=options.lora if own and (model.trained or model.within_policy) else None,
        stack=stack_of(options),
        ranks=options.tp,
        **more,
    )
    return packed_as(options, made)


def _rollout(text: str) -> tuple[float, int | None]:
    """Seconds of the roll-out, and how many answers were written in it where that is known.

    Raises:
        InputError: neither a time nor what ``serve`` wrote.
    """
    from triosim.core import guarded
    from triosim.core.errors import says_where
    from triosim.core.result_file import undamaged
    from triosim.core.units import parse_time

    if not (Path(text).exists() or says_where(text, (".json",))):
        seconds = parse_time(text, "--rollout")
        if not seconds:
            raise InputError(f"--rollout {quoted(text)}: answers take time: give more than none")
        return seconds, None
    document = guarded.document(Path(text), "a result that serve --json wrote")
    if document.get("schema") != SERVED:
        raise InputError(f"--rollout {text} is no result of serving ({SERVED}): give what serve --json wrote")
    with undamaged(text):
        return float(document["duration_s"]), int(document["requests"])
