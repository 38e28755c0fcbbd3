"""Fits the docstrings of the package to mkdocstrings.

``:class:`~triosim.plan.Plan``` becomes ``Plan``, linked where it is documented.  An entry for several parameters
(``source, target: nodes``) becomes one for each.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|data|attr|mod|exc):`(~?)([\w.]+)`")

TOGETHER = re.compile(r"^( +)(\w+(?:, \w+)+): ", re.MULTILINE)


class Roles(griffe.Extension):
    """Rewrites docstrings before they are rendered; a name without a page stays plain."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            text = TOGETHER.sub(self._apart, obj.docstring.value)
            obj.docstring.value = ROLE.sub(lambda match: self._link(obj, match), text)

    @staticmethod
    def _apart(match: re.Match[str]) -> str:
        *others, last = match[2].split(", ")
        return "".join(f"{match[1]}{name}: see {last}.\n" for name in others) + f"{match[1]}{last}: "

    @staticmethod
    def _link(obj: griffe.Object, match: re.Match[str]) -> str:
        short, name = match.groups()
        scope: griffe.Object | griffe.Alias | None = obj
        full = name
        while scope is not None:  # as Python looks a name up: in the class, then in the module
            if name.split(".")[0] in scope.members:
                full = f"{scope.path}.{name}"
                break
            scope = scope.parent
        shown = name.rpartition(".")[2] if short else name
        return f'<autoref optional identifier="{full}"><code>{shown}</code></autoref>'
