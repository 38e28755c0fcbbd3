"""The one kind of error that a user is meant to see.

Whatever is wrong with what the user gave - a file, a name, a plan - is raised as
:class:`InputError` with one sentence that names the file, the place in it and the cure.  The command
line prints that sentence and exits with code 2; a traceback therefore always means a defect of TrioSim.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What the user gave cannot be used; the message says what, where and how to mend it."""


class PlanError(InputError):
    """A plan that cannot be formed; the message names the conflict and the nearest plans that work."""


def unknown(what: str, name: str, known: Iterable[str], cure: str = "") -> InputError:
    """An :class:`InputError` for a name that nothing answers to, with the closest known names."""
    known = sorted(known)
    lower = {k.lower(): k for k in known}
    near = [lower[k] for k in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    near = near or [k for k in known if name.lower() in k.lower()][:5]
    hint = f"did you mean {' or '.join(near)}?" if near else "known: " + ", ".join(known[:12])
    return InputError(f"unknown {what} {name!r}: {hint}{' ' + cure if cure else ''}")
