"""The network model that a user names, with the options that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triosim.core.options import configured
from triosim.engine.solver import SOLVERS, NetworkModel


def network_model(name: str, options: Mapping[str, Any] | None = None) -> NetworkModel:
    """A network model by name, or from a file of one's own.

    Args:
        name: of a file in ``engine/solvers``, one that another distribution adds, or the path of a file that ends in
            ``.py``, which is run.
        options: what its class takes when it is made, by name (``receive-buffer`` is ``receive_buffer``); see
            :func:`triosim.core.options.configured`.

    Raises:
        InputError: no such model, it takes no such option, or the option has no such value.
    """
    return configured(SOLVERS.chosen(name), options or {}, f"network model {name}")
