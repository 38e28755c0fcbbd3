"""The network model that a user names, with the options that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from triosim.engine.solver import SOLVERS, NetworkModel
from triosim.errors import InputError, unknown
from triosim.registry import of_file


def network_model(name: str, options: Mapping[str, str] | None = None) -> NetworkModel:
    """A network model by name, or from a file of one's own.

    Args:
        name: of a file in ``engine/solvers``, one that another distribution adds, or the path of a file that ends in
            ``.py``, which is run.
        options: what its class takes when it is made, by name (``receive-buffer`` is ``receive_buffer``), as text.

    Raises:
        InputError: no such model, it takes no such option, or the option has no such value.
    """
    model = of_file(Path(name)) if name.endswith(".py") else SOLVERS.get(name)
    if not issubclass(model, NetworkModel):
        raise InputError(f"{name}: {model.__name__} is no network model: derive it from Sharing or NetworkModel")
    known = [key.replace("_", "-") for key in inspect.signature(model).parameters]
    given = {key.strip().replace("_", "-"): value for key, value in (options or {}).items()}
    for key in given:
        if not known:
            raise InputError(f"network model {name!r} takes no options, but {key!r} was given: leave it out")
        if key not in known:
            raise unknown(f"option of network model {name!r},", key, known)
    made: NetworkModel = model(**{key.replace("-", "_"): value for key, value in given.items()})
    return made
