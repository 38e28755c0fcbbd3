"""Options of a command as the fields of a dataclass, from which typer's parameters are made.

Some of them are fields of a plan or a fidelity: :func:`with_fields_of` takes those from what they say of themselves
(:class:`triosim.core.validated_fields.CliOption`), and :func:`answers` makes values of what was typed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from triosim.cli import completion
from triosim.cli.completion import Complete, choices, parts
from triosim.core.errors import InputError, quoted
from triosim.core.validated_fields import CliOption, ValidatedFields

O = TypeVar("O")


def option(
    *names: str,
    help: str,
    default: Any = None,
    group: str | None = None,
    metavar: str | None = None,
    complete: Complete | None = None,
) -> Any:
    """A field that is an option on the command line.

    Args:
        names: of the option, as ``--dp``.
        help: what help says of it.
        default: where it is not given.
        group: under which help lists it.
        metavar: what stands for its value in help.
        complete: what the shell offers for its value.
    """
    said = {"names": names, "help": help, "group": group, "metavar": metavar, "complete": complete}
    return field(default=default, metadata=said)


def argument(metavar: str, help: str, complete: Complete | None = None, default: Any = MISSING) -> Any:
    """A field that is given without a name, and must be where it has no default; see :func:`option`."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "complete": complete})


def command(options: type, run: Callable[[Any], None], summary: str) -> Callable[..., None]:
    """A function with the fields of ``options`` as its parameters, which calls ``run`` with one.

    Args:
        options: the dataclass.
        run: what to do with it.
        summary: the docstring of the function, which help shows.
    """

    def called(**given):  # type: ignore[no-untyped-def]  # typer would look at annotations too, and evaluate them
        run(options(**given))

    types = _types(options)
    parameters = [
        inspect.Parameter(
            own.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if own.default is MISSING else own.default,
            annotation=Annotated[types[own.name], _how(own.metadata)],
        )
        for own in fields(options)
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__ = summary
    return called


def _types(options: type) -> dict[str, Any]:
    """Annotations of fields, as :func:`typing.get_type_hints` has them; of a hundred fields few are of different types,
    and each is evaluated once."""
    found: dict[str, Any] = {}
    for base in reversed(options.__mro__):
        own = inspect.get_annotations(base)
        texts = SimpleNamespace(__annotations__={kind: kind for kind in own.values() if isinstance(kind, str)})
        types = get_type_hints(texts, vars(sys.modules[base.__module__]))
        found |= {name: types[kind] if isinstance(kind, str) else kind for name, kind in own.items()}
    return found


def _how(said: Mapping[str, Any]) -> Any:
    """What typer is to know of an option, or of an argument."""
    complete = said["complete"] if completion.wanted() else None  # typer looks at the signature of each
    common = {
        "help": said["help"], "metavar": said["metavar"], "autocompletion": complete, "show_default": False
    }  # fmt: skip
    if "names" not in said:
        return typer.Argument(**common)
    return typer.Option(*said["names"], rich_help_panel=said["group"], **common)


def given(options: Any) -> Iterator[tuple[str, str]]:
    """Field and name of each option that says something else than it does by default."""
    for own in fields(options):
        if "names" in own.metadata and getattr(options, own.name) != own.default:
            yield own.name, own.metadata["names"][0].partition("/")[0]


def check_swept(options: Any, axes: Iterable[str]) -> None:
    """Refuse an option beside a ``--sweep`` over it, which would not be heard.

    Args:
        options: as typed.
        axes: names of what the sweep varies, those of fields with ``-`` or ``_``.

    Raises:
        InputError: one is given.
    """
    varied = {name.replace("-", "_") for name in axes}
    for name, option in given(options):
        if name in varied:
            raise InputError(f"{option} is given by itself and in --sweep: leave one of the two out")


def check_axes(options: Any, texts: Iterable[str], option: str, is_axis: Callable[[str], bool]) -> None:
    """Refuse options of the command among the axes of many plans, which all of them have in common.

    Args:
        options: as typed.
        texts: axes with their values, as ``tp=1,2``.
        option: that they were given to, for messages.
        is_axis: whether plans differ in something of that name.

    Raises:
        InputError: one is there.
    """
    common = {own.name for own in fields(options) if "names" in own.metadata}
    for text in texts:
        name = text.partition("=")[0].strip()
        if name.replace("-", "_") in common and not is_axis(name):
            typed = name.replace("_", "-")
            raise InputError(f"{option} {typed}: all plans have that in common: give --{typed} by itself instead")


def named(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """What a repeatable option of the form ``NAME=VALUE`` was given, by name.

    Args:
        texts: as typed.
        option: its name, for messages.
        example: one that makes sense.

    Raises:
        InputError: one has no name or no value, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value):
            raise InputError(f"{option} {quoted(text)}: give a name and a value, for example {example}")
        if name in found:
            raise InputError(f"{option} {name} is given twice: keep one")
        found[name] = value
    return found


def typed(name: str, text: str, kind: Any) -> Any:
    """The value of an option that stands in a file.

    Args:
        name: of the option, for messages.
        text: its value; of a list with semicolons between.
        kind: of the field that holds it.

    Raises:
        InputError: it is no value of that kind.
    """
    if kind in (int, int | None):
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{name} must be a whole number, got {text!r}") from None
    if kind is bool:
        if text.strip().lower() not in ("on", "off"):
            raise InputError(f"{name} must be on or off, got {quoted(text)}")
        return text.strip().lower() == "on"
    return text.split(";") if kind == list[str] | None else text.strip()


# --- fields of a plan or a fidelity -----------------------------------------------------------------------------------


def with_fields_of(*parts: type[ValidatedFields], groups: Sequence[str]) -> Callable[[type[O]], type[O]]:
    """A decorator that adds options to a class that is to become a dataclass: the fields that are asked for.

    Args:
        parts: of which.
        groups: in the order in which help lists them; in each the added options come before the class's own.
    """

    def add(options: type[O]) -> type[O]:
        own, order = dict(options.__annotations__), list[tuple[int, bool, str]]()
        for name in own:
            said = getattr(options, name)
            order.append((groups.index(said.metadata["group"]) if "group" in said.metadata else -1, True, name))
        for part in parts:
            for name, asked in part.asked().items():
                typed, default = _typed(part.hint(name), part.default(name), asked)
                option_ = option_name(name, asked)
                own[option_] = typed
                setattr(options, option_, _option_of(part, name, asked, default))
                order.append((groups.index(asked.group), False, option_))
        order.sort(key=lambda place: place[:2])
        options.__annotations__ = {name: own[name] for *_, name in order}
        return options

    return add


def with_options_of(source: type, names: Sequence[str], groups: Sequence[str]) -> Callable[[type[O]], type[O]]:
    """A decorator that adds options to a class that is to become a dataclass: some of another command's.

    Args:
        source: that command's options.
        names: of their fields.
        groups: in the order in which help lists them; in each the added options come before the class's own.
    """

    def add(options: type[O]) -> type[O]:
        there, hints = {own.name: own for own in fields(source)}, get_type_hints(source)
        own, place = dict(options.__annotations__), dict[str, tuple[int, bool]]()
        for name in own:
            said = getattr(options, name).metadata
            place[name] = (groups.index(said["group"]) if "group" in said else -1, True)
        for name in names:
            own[name] = hints[name]
            setattr(options, name, field(default=there[name].default, metadata=there[name].metadata))
            place[name] = (groups.index(there[name].metadata["group"]), False)
        options.__annotations__ = {name: own[name] for name in sorted(own, key=place.__getitem__)}
        return options

    return add


def answers(part: type[ValidatedFields], options: object, read: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Fields of a plan or a fidelity, as they were typed; those that were not are left out.

    Args:
        part: which of the two.
        options: what was typed.
        read: how to read fields that only their command understands.

    Raises:
        InputError: a value makes no sense.
    """
    found = {}
    for name, asked in part.asked().items():
        attribute = option_name(name, asked)
        typed, said = getattr(options, attribute), f"--{attribute.replace('_', '-')}"
        if typed is None:
            continue
        if name in read:
            found[name] = read[name]()
        elif part.default(name) is True:
            if typed not in ("on", "off"):
                raise InputError(f"{said} must be on or off, got {typed!r}")
            found[name] = typed == "on"
        elif asked.repeats and isinstance(part.default(name), Mapping):
            found[name] = named(typed, said, asked.example)
        elif asked.repeats:
            found[name] = tuple(dict.fromkeys(typed))
        elif _is(part.hint(name), tuple):
            found[name] = tuple(word.strip() for word in typed.split(",") if word.strip())
        else:
            found[name] = typed
    return found


def option_name(name: str, asked: CliOption) -> str:
    """The name of a field's option, as the field of a dataclass."""
    return (asked.option or name).replace("-", "_")


def _option_of(part: type[ValidatedFields], name: str, asked: CliOption, default: Any) -> Field[Any]:
    """The option of a field."""
    said = f"--{option_name(name, asked).replace('_', '-')}"
    words = (*asked.words, *_words(part.hint(name))) or (("on", "off") if part.default(name) is True else ())
    complete: Complete | None = choices(*words) if words else None
    if ":" in asked.offers:
        complete = parts(asked.offers, more=asked.words, own=asked.own)
    elif asked.offers:
        complete = getattr(completion, asked.offers)
    made: Field[Any] = option(
        said, help=asked.help, default=default, group=asked.group, metavar=asked.metavar, complete=complete
    )
    return made


def _typed(hint: Any, default: Any, asked: CliOption) -> tuple[Any, Any]:
    """The type and default that typer gets for a field."""
    if asked.repeats:
        return list[str] | None, None
    if default is False:
        return bool, False
    kind = int if not asked.text and _is(hint, int) else str
    if default is True:
        return str, "on"
    return (kind, default) if type(default) is kind else (kind | None, None)


def _is(hint: Any, kind: type) -> bool:
    """Whether a field is of a kind, or a few words of it, or nothing."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is(inner[0], kind)
    if origin in (Union, UnionType):
        return all(_is(part, kind) for part in inner if part is not NoneType)
    if origin is Literal:
        return all(isinstance(word, kind) for word in inner)
    return hint is kind or origin is kind


def _words(hint: Any) -> tuple[str, ...]:
    """The words that a field takes."""
    if get_origin(hint) is Literal:
        return tuple(word for word in get_args(hint) if isinstance(word, str))
    if get_origin(hint) is dict or (isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping)):
        return ()
    return tuple(word for inner in get_args(hint) for word in _words(inner))
