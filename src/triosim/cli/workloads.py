"""What the WORKLOAD argument may be: a trace file, a foreign trace, a model's name or its configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.errors import InputError

if TYPE_CHECKING:
    from triosim.workload.trace import Trace

_CONFIGURATIONS = (".toml", ".yaml", ".yml", ".json")


def load_workload(
    name: str,
    *,
    step: str | None = None,
    seq_len: int | None = None,
    precision: str | None = None,
    training: bool = True,
) -> Trace:
    """The workload behind a name or path.

    Raises:
        InputError: there is no such file and no such model, or an option does not go with it.
    """
    path = Path(name)
    if path.exists():
        from triosim.workload import reading

        if path.suffix.lower() in _CONFIGURATIONS and not reading.recognised(path):
            from triosim.workload import modelling

            _refuse_step(step, name)
            return modelling.from_file(path, **_model_options(seq_len, precision, training))
        if precision is not None:
            raise InputError(
                f"--precision is for models by name; {name} is a trace, whose types are those of its tensors"
            )
        return reading.read(path, step=step or "median")
    if path.suffix or "/" in name:
        raise InputError(f"{name}: no such file or folder")
    from triosim.workload import modelling

    _refuse_step(step, name)
    return modelling.model(name, **_model_options(seq_len, precision, training))


def _refuse_step(step: str | None, name: str) -> None:
    if step is not None:
        raise InputError(f"--step chooses a step of a trace; {name} is a model")


def _model_options(seq_len: int | None, precision: str | None, training: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"training": training}
    if seq_len is not None:
        options["sequence_length"] = seq_len
    if precision is not None:
        options["precision"] = precision
    return options
