"""YAML of users: plain values, and mappings with tags that are known.

The reader for :mod:`triosim.core.guarded`, whose rules hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from triosim.core.errors import InputError, quoted
from triosim.core.guarded import DEEPEST, too_deep

if TYPE_CHECKING:
    from yaml.nodes import Node

MOST_VALUES = 1_000_000
"""Values in a YAML document, with those of an anchor counted wherever they are repeated."""

TAG = "!"
"""Key under which the mapping of a tagged YAML node holds its tag."""


def parse_yaml(source: str, where: str, tags: Iterable[str] = ()) -> Any:
    """The values of a YAML text: mappings, lists, texts, numbers, booleans and null, nothing else.

    Dates are texts.  Anchors may be repeated, but not contain themselves.

    Args:
        source: the text.
        where: the file, for messages.
        tags: further tags that mappings may have, such as ``"!Container"``; each becomes a key, see :data:`TAG`.

    Raises:
        InputError: not YAML, with the line; nested too deeply; other types; a key given twice or that is no text; or
            anchors that stand for more than :data:`MOST_VALUES` values.
    """
    import yaml

    loader = None
    try:
        loader = _yaml_loader(tags)(source.removeprefix("\ufeff"))
        node = loader.get_single_node()
        if node is None:
            return None
        _check_yaml(node, where)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{where}{place}: not valid YAML: {problem}") from None
    except RecursionError:
        raise too_deep(where) from None
    finally:
        if loader is not None:
            loader.dispose()


def _yaml_loader(tags: Iterable[str]) -> Any:
    """A loader that knows the plain types and mappings with some tags, and refuses a key that is given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe and plain."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value if key.tag != _MERGE]
        seen: set[str] = set()
        for (key, _), name in zip((pair for pair in node.value if pair[0].tag != _MERGE), keys, strict=True):
            if not isinstance(name, str):
                why = f"key {quoted(name)} is not a text: put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)
            if name in seen:
                why = f"key {quoted(name)} is given twice"
                raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)
            seen.add(name)
        made: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return made

    def checked(kind: Callable[[Any, Any], Any], what: str = "a number") -> Callable[[Any, Any], Any]:
        def construct(loader: Any, node: Any) -> Any:
            try:
                return kind(loader, node)
            except (ValueError, OverflowError, KeyError):
                why = f"{quoted(str(node.value))} is not {what}"
                raise yaml.constructor.ConstructorError(None, None, why, node.start_mark) from None

        return construct

    def foreign(loader: Any, node: Any) -> Any:
        why = f"type {quoted(str(node.tag))} is not known: use mappings, lists, texts and numbers"
        raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)

    def tagged(loader: Any, node: Any) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            return {TAG: node.tag, **mapping(loader, node)}
        if isinstance(node, yaml.ScalarNode) and not node.value:
            return {TAG: node.tag}
        why = f"type {quoted(str(node.tag))} is given to what is no mapping"
        raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)

    safe = yaml.constructor.SafeConstructor
    tag = "tag:yaml.org,2002:"
    Loader.yaml_constructors = {
        f"{tag}null": safe.construct_yaml_null, f"{tag}bool": checked(safe.construct_yaml_bool, "true or false"),
        f"{tag}int": checked(safe.construct_yaml_int), f"{tag}float": checked(safe.construct_yaml_float),
        f"{tag}str": safe.construct_yaml_str, f"{tag}seq": lambda loader, node: loader.construct_sequence(node, True),
        f"{tag}map": mapping, None: foreign, **dict.fromkeys(tags, tagged),
    }  # fmt: skip
    Loader.yaml_implicit_resolvers = {
        letter: [(name, pattern) for name, pattern in rules if name not in (f"{tag}timestamp", f"{tag}value")]
        for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


_MERGE = "tag:yaml.org,2002:merge"


def _check_yaml(root: Node, where: str) -> None:
    """Refuse anchors that contain themselves and those that stand for too many values, before they are followed."""
    sizes: dict[int, int] = {}
    waiting: list[tuple[Any, bool]] = [(root, False)]
    open_: set[int] = set()
    while waiting:
        node, done = waiting.pop()
        if done:
            open_.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in _children(node))
            if sizes[id(node)] > MOST_VALUES:
                raise InputError(f"{where}: holds more than {MOST_VALUES} values, with its anchors: write fewer")
            continue
        if id(node) in sizes:
            continue
        if id(node) in open_:
            line = node.start_mark.line + 1
            raise InputError(f"{where}, line {line}: not valid YAML: an anchor contains itself")
        open_.add(id(node))
        if len(open_) > 2 * DEEPEST:
            raise too_deep(where)
        waiting.append((node, True))
        waiting.extend((child, False) for child in _children(node))


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node.value, str):
        return ()
    return [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
