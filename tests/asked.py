"""What is run and how it is predicted, from the fields of both."""

from __future__ import annotations

from typing import Any

from triosim.fidelity import Fidelity
from triosim.plan import Plan


def asked(**fields: Any) -> tuple[Plan, Fidelity]:
    """``simulate(trace, system, *asked(dp=8, host="none"))``."""
    models = {name: fields.pop(name) for name in Fidelity.names() if name in fields}
    return Plan(**fields), Fidelity(**models)
