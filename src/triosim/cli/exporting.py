"""``--export`` of ``triosim search``: found plans as the configuration of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triosim.core.errors import InputError, quoted, unknown

if TYPE_CHECKING:
    from triosim.fidelity import Fidelity
    from triosim.hardware.system import System
    from triosim.interop.frameworks.job import ConfiguredJob
    from triosim.plan import Plan
    from triosim.report.search import FrameworkConfiguration, Report
    from triosim.search.branch_and_bound import FoundPlan
    from triosim.search.space import Candidate, PlanSpace
    from triosim.trace.tables import Trace


def asked_for(text: str | None) -> tuple[str, str | None]:
    """Framework and file of ``NAME`` or ``NAME=FILE``, both nothing where nothing is asked for.

    Raises:
        InputError: there is no such framework, or the file has no name.
    """
    from triosim.interop.frameworks.job import FRAMEWORKS

    name, equals, path = (text or "").partition("=")
    if text is not None and name not in FRAMEWORKS:
        raise unknown("framework", name, FRAMEWORKS)
    if equals and not path:
        raise InputError(f"--export {quoted(text or '')}: give the file a name, or leave = out to see it here")
    return name, path or None


def configured(
    framework: str, workload: str, trace: Trace, systems: Mapping[int, System], base: Plan, fidelity: Fidelity,
    space: PlanSpace, plans: tuple[FoundPlan, ...],
) -> dict[int, FrameworkConfiguration]:  # fmt: skip
    """Configurations of plans, or why there is none, by the number of the candidate.

    Args:
        framework: its name.
        workload: as the user named it.
        trace: of one step.
        systems: the machines by their number of devices.
        base, fidelity: what plans are made from.
        space: what plans there may be.
        plans: those to write.
    """
    from triosim.interop.frameworks.job import configuration
    from triosim.report.search import FrameworkConfiguration

    found = {}
    for one in plans:
        job = _job(one.candidate, workload, trace, systems[one.candidate.devices], base, fidelity, space)
        try:
            found[one.candidate.number] = FrameworkConfiguration(framework, configuration(framework, job), "")
        except InputError as error:
            found[one.candidate.number] = FrameworkConfiguration(framework, "", str(error))
    return found


def write(report: Report, path: str | None, json: str | None) -> None:
    """Write the configuration of the best plan that has one, and say so.

    Args:
        report: what was found.
        path: of the file, None for none.
        json: where results are written as JSON, None where they are shown.

    Raises:
        InputError: none of the plans has one, or the file cannot be written.
    """
    from triosim.cli.command import say
    from triosim.cli.streams import written
    from triosim.core.outputs import text_output

    if not report.found.best:
        return
    chosen = report.configuration
    if chosen is None:
        raise InputError(f"{report.configured[report.found.best[0].candidate.number].why} (the best plan)")
    rank, made = chosen
    if path is not None:
        with text_output(path) as file:
            file.write(made.text)
        say(written(made.framework, path, f" (plan {rank})"), json)


def _job(
    candidate: Candidate, workload: str, trace: Trace, system: System, base: Plan, fidelity: Fidelity,
    space: PlanSpace,
) -> ConfiguredJob:  # fmt: skip
    from triosim.interop.frameworks.job import ConfiguredJob
    from triosim.search.grid import with_fields
    from triosim.sources.modelling import configured as configuration_of

    plan, _ = with_fields(base.replaced(global_batch_size=space.batch), fidelity, candidate.asked)
    sizes = configuration_of(workload) if trace.meta.made_by == "triosim.model" else None
    return ConfiguredJob(
        plan=plan, workload=workload, devices=system.devices, servers=len(set(system.device_server.tolist())),
        blocks=space.blocks, sequence=trace.meta.sequence_length, precision=_precision(trace),
        sizes=vars(sizes) if sizes else {}, family=type(sizes).__module__.rpartition(".")[2] if sizes else "",
    )  # fmt: skip


def _precision(trace: Trace) -> str:
    """Type of most parameters, and under which autocast they are multiplied."""
    import numpy as np

    from triosim.core.dtypes import DTYPES
    from triosim.operators import kind
    from triosim.sources.modelling import AUTOCAST
    from triosim.trace.tables import Category

    values, operators = trace.values, trace.operators
    types = values.dtype[values.category == Category.WEIGHT]
    held = DTYPES[int(np.bincount(types).argmax())] if len(types) else "float32"
    product = next((row for row, name in enumerate(operators.name) if kind(name) == "linear"), None)
    made = held if product is None else DTYPES[int(values.dtype[operators.outputs[product][0]])]
    return f"{AUTOCAST}{made}" if held == "float32" and made in ("bfloat16", "float16") else held
