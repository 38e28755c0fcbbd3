"""What the WORKLOAD argument may be: a trace file, a foreign trace, a model's name or its configuration file.

What exists and what is registered decides, not how the text is spelt: models have dots in their names.  Where a file
and a model have one name, the file is meant if it is a trace or a configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.core.errors import InputError, no_such_file, says_where, unknown

if TYPE_CHECKING:
    from triosim.sources.modelling import Family
    from triosim.stacks import Stack
    from triosim.trace.tables import Trace

_CONFIGURATIONS = (".toml", ".yaml", ".yml", ".json")
_ENDINGS = (*_CONFIGURATIONS, ".triosim", ".csv", ".gz", ".et", ".onnx")
"""Endings of files of workloads: a text with one of them is no mistyped model."""


def load_workload(
    name: str,
    *,
    step: str | None = None,
    seq_len: int | None = None,
    precision: str | None = None,
    training: bool = True,
    attention: str | None = None,
    lora: str | None = None,
    stack: Stack | None = None,
    ranks: int = 1,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    unused: bool = False,
    **of_model: Any,
) -> Trace:
    """The workload behind a name or path; ``of_model`` are more options of :func:`triosim.sources.modelling.model`.

    ``unused``: whether operators of a network run whose result nobody reads.

    Raises:
        InputError: there is no such file and no such model, or an option does not go with it.
    """
    from triosim.sources import modelling, reading

    options = {**_model_options(seq_len, precision, training, attention, lora, stack, ranks), **of_model}
    path = Path(name)
    exists = os.path.exists(path)
    is_trace = exists and reading.recognised(path)
    if input_shapes and not is_trace:
        raise InputError(
            f"--input-shape is for ONNX models; {name} says what it reads by --seq-len or its configuration"
        )
    if not is_trace and _is_configuration(path):
        _refuse_step(step, name)
        return modelling.from_file(path, **options)
    if not is_trace and modelling.is_named(name):
        _refuse_step(step, name)
        return modelling.model(name, **options)
    if not exists:
        raise _not_there(name)
    if precision is not None:
        raise InputError(f"--precision is for models by name; {name} is a trace, whose types are those of its tensors")
    if attention is not None:
        raise InputError(f"--attention is for models by name; {name} is a trace, whose operators say what they run")
    if lora is not None:
        raise InputError(f"--lora is for models by name; {name} is a trace: record the step with its adapters")
    if stack is not None:
        raise InputError(f"--stack is for models by name; {name} is a trace, which holds what its framework ran")
    if of_model:
        raise InputError(f"{name} is a trace, of which no other model can be made: name a model")
    return reading.load(path, step=step or "median", shapes=input_shapes, unused=unused)


def family_of(name: str) -> Family | None:
    """The configuration of a model by name or of a configuration file; None of a trace.

    Raises:
        InputError: as of :func:`load_workload`.
    """
    from triosim.sources import modelling, reading

    path = Path(name)
    if os.path.exists(path) and reading.recognised(path):
        return None
    return modelling.configured(path if _is_configuration(path) else name)


def _is_configuration(path: Path) -> bool:
    """Whether what is no trace is there and describes a model."""
    from triosim.sources import modelling

    return os.path.exists(path) and (path.suffix.lower() in _CONFIGURATIONS or modelling.is_model_folder(path))


def _not_there(name: str) -> InputError:
    """Nothing is called so."""
    from triosim.sources import modelling

    if says_where(name, _ENDINGS):
        return no_such_file(name)
    return unknown("model", name, modelling.names(), "(nor is there a file or folder of that name)")


def _refuse_step(step: str | None, name: str) -> None:
    if step is not None:
        raise InputError(f"--step chooses a step of a trace; {name} is a model")


def _model_options(
    seq_len: int | None,
    precision: str | None,
    training: bool,
    attention: str | None,
    lora: str | None,
    stack: Stack | None,
    ranks: int,
) -> dict[str, Any]:
    options: dict[str, Any] = {"training": training, "attention": attention or (stack.attention if stack else "auto")}
    if stack is not None:
        options = {**stack.model_options, **options}
        options["vocabulary_multiple"] = stack.vocabulary_multiple * (ranks if stack.vocabulary_per_rank else 1)
    if lora is not None:
        options["lora"] = lora
    if seq_len is not None:
        options["sequence_length"] = seq_len
    if precision is not None:
        options["precision"] = precision
    return options
