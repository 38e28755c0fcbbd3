"""What all commands have in common: options that each takes, help in groups, and what is said beside the result.

:func:`command` adds a function to the command line as typer does, and to its parameters those of :class:`General`.
The rest of the command line asks :func:`progress`, :func:`say`, :func:`note` and :func:`wants_summary`, which follow
them.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from triosim.cli.other_names import our_name
from triosim.cli.plain_values import read_plainly
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, printable
from triosim.core.outputs import is_standard_output

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of typer's context under which help is asked for in the two usual ways."""

GENERAL = "General"
"""The group of options that every command has."""

MOST_NAME = 24
"""Characters of an option beside which its text begins; after a longer one it begins on the next line."""

Path = str | os.PathLike[str] | None
F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class General:
    """What the options of all commands say.

    Attributes:
        quiet: say nothing but the result, and not even that where it goes to a file.
        verbose: say each stage as it begins, and what the command took.
        traceback: show where in the program an error came up.
    """

    quiet: bool = False
    verbose: bool = False
    traceback: bool = False


_general: ContextVar[General | None] = ContextVar("triosim_general", default=None)


def general() -> General:
    """What was asked of the command that runs."""
    return _general.get() or General()


_typed: ContextVar[frozenset[str]] = ContextVar("triosim_typed", default=frozenset())


def typed_fields() -> frozenset[str]:
    """Parameters of the command that runs that stand on its command line, if only with their defaults."""
    return _typed.get()


# --- adding a command -------------------------------------------------------------------------------------------------

_Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Say nothing beside the result; not even that where it goes to a file.",
        rich_help_panel=GENERAL,
    ),
]  # fmt: skip
_Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say on standard error what is being done and what it took.", rich_help_panel=GENERAL
    ),
]
_Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show where an error came up in the program.", rich_help_panel=GENERAL)
]
_MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE",
        help="Refuse what would take more memory, as 8GB (default: half of the machine's).",
        show_default=False, rich_help_panel=GENERAL,
    ),
]  # fmt: skip
_COMMON = {
    "quiet": (_Quiet, False), "verbose": (_Verbose, False), "traceback": (_Traceback, False),
    "max_memory": (_MaxMemory, None),
}  # fmt: skip


def command(app: typer.Typer, name: str, **settings: Any) -> Callable[[F], F]:
    """Add a function to the command line; its parameters are the command's, as typer reads them.

    Args:
        app: what it is a command of.
        name: of the command.
        settings: more for :meth:`typer.Typer.command`.
    """

    def add(function: F) -> F:
        # Not get_type_hints: Python 3.10's puts an Optional around what has None as default, and typer then
        # loses what the parameter is called.
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        common = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _COMMON.items()
        ]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            with _running(**{name: given.pop(name) for name in _COMMON}):
                function(**given)

        parameters = [*own, *common]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # all are in the signature; typer would evaluate them again, twice
        app.command(name, **{"cls": Command, **settings})(run)
        return function

    return add


class Sentences:
    """Commands, and groups of them, that say in one sentence what is wrong with how they were called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click; what is wrong is an :class:`InputError`."""
        read_plainly(self.get_params(ctx))  # type: ignore[attr-defined]
        with _sentence(ctx):
            parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        sources = ((name, ctx.get_parameter_source(name)) for name in ctx.params)
        _typed.set(frozenset(name for name, source in sources if source is not None and source.name == "COMMANDLINE"))
        return parsed

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click, for groups."""
        with _sentence(ctx):
            return super().resolve_command(ctx, args)  # type: ignore[misc]


@contextmanager
def _sentence(ctx: Any) -> Iterator[None]:
    """Click's errors become ours.  Help that is shown because nothing was asked for is no error of that kind, and what
    has been typed so far need not make sense while the shell completes it."""
    try:
        yield
    except Exception as error:
        if ctx.resilient_parsing or not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        words = error.format_message().rstrip(".").replace(_NO_NUMBER, "it must be a whole number")
        typed = getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None
        if typed is not None:
            known = frozenset(option for parameter in ctx.command.params for option in parameter.opts)
            ours = our_name(typed, known)
            words = words if ours is None else f"no such option: {typed}, here it is {ours}"
        raise InputError(f"{words[:1].lower()}{words[1:]} ({ctx.command_path} -h says what there is)") from error


_NO_NUMBER = "Input should be a valid integer, unable to parse string as an integer"
"""What typer says of an option that is no whole number."""


class CommandGroup(Sentences, TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names and what they do, the whole first sentence of it."""
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        rows = [(c.name or "", c.short_help or (c.help or "").partition("\n\n")[0]) for c in commands if c is not None]
        write_list(formatter, "Commands", rows, max((len(name) for name, _ in rows), default=0))


class Command(Sentences, TyperCommand):
    """A command whose help lists options in groups, in plain text: starting rich would take most of the time."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """One list for arguments and one for each group, in the order in which they first come; what all commands
        have comes last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            names, text = record[0], record[1].replace("\\[", "[")  # typer 0.19 escapes them for rich
            if is_argument:
                names, text = parameter.metavar or parameter.name.upper(), text.removesuffix("[required]").rstrip()
            ours = GENERAL if "--help" in parameter.opts else "Options"
            group = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else ours)
            groups.setdefault(group, []).append((names, text))
        groups[GENERAL] = groups.pop(GENERAL, [])
        width = max(len(names) for records in groups.values() for names, _ in records)
        for group, records in groups.items():
            write_list(formatter, group, records, width)


def write_list(formatter: Any, title: str, rows: Sequence[tuple[str, str]], width: int) -> None:
    """A list of names and what each is, which is not broken within words.

    Args:
        formatter: click's, of the help that is written.
        title: of the list.
        rows: name and text of each.
        width: of the widest name of all lists, so that they stand under each other.
    """
    from textwrap import TextWrapper

    first = 2 + min(width, MOST_NAME) + 2
    wrapper = TextWrapper(max(formatter.width - first, 20), break_on_hyphens=False, break_long_words=False)
    formatter.write(f"\n{title}:\n")
    for name, text in rows:
        lines = wrapper.wrap(text) or [""]
        if len(name) > MOST_NAME:
            formatter.write(f"  {name}\n")
            name = ""
        for line in lines:
            formatter.write(f"  {name:{first - 2}}{line}".rstrip() + "\n")
            name = ""


@contextmanager
def _running(quiet: bool, verbose: bool, traceback: bool, max_memory: str | None) -> Iterator[None]:
    """What the common options ask holds for the block."""
    if quiet and verbose:
        raise InputError("--quiet and --verbose contradict each other: give one of them")
    token = _general.set(General(quiet, verbose, traceback))
    began = time.perf_counter(), time.process_time()
    try:
        with _limited(max_memory):
            yield
    except Exception as error:
        if traceback:
            _show(error)
        raise
    finally:
        if verbose:
            _took(*began)
        _general.reset(token)


@contextmanager
def _limited(size: str | None) -> Iterator[None]:
    if size is None:
        yield
        return
    from triosim.core.limits import memory_limit
    from triosim.core.units import parse_bytes

    limit = parse_bytes(size, "--max-memory")
    if not limit:
        raise InputError(f"--max-memory {size}: nothing can be done in no memory: give a size such as 8GB")
    with memory_limit(limit):
        yield


def import_numpy() -> None:
    """Import numpy without the threads of its linear algebra (OpenBLAS), of which a prediction uses none.

    There is one for each processor: starting them takes a fifth of the import on two processors, and more on many.
    Other programs that the command may start do not see the setting.
    """
    setting = "OPENBLAS_NUM_THREADS"
    if "numpy" in sys.modules or setting in os.environ:
        return
    os.environ[setting] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[setting]


def _show(error: Exception) -> None:
    """Where an error came up; the sentence follows.  What is a defect shows it in any case."""
    import traceback

    registry = sys.modules.get("triosim.core.registry")
    if isinstance(error, InputError) or (registry is not None and registry.at_fault(error) is not None):
        print(printable("".join(traceback.format_exception(error)), keep="\n"), end="", file=sys.stderr)


def _took(wall: float, cpu: float) -> None:
    """Say what the command took."""
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    print(f"triosim: {seconds:.2f} s ({cpu_seconds:.2f} CPU s){_peak()}", file=sys.stderr)


def _peak() -> str:
    """The most memory that the process has had, where the system says."""
    try:
        import resource
    except ImportError:  # Windows
        return ""
    from triosim.core.units import format_bytes

    unit = 1 if sys.platform == "darwin" else 1024
    return f", {format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)} of memory"


# --- what is said beside the result -----------------------------------------------------------------------------------


@contextmanager
def progress_bar() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being done: a line for each stage if asked for it, else where a person watches."""
    asked = general()
    if asked.verbose:
        yield _stages()
    elif asked.quiet or not sys.stderr.isatty():
        yield lambda words: None
    else:
        from triosim.cli.streams import rich_console

        with rich_console(stderr=True).status("starting") as status:
            yield lambda words: status.update(words)


def _stages() -> Callable[[str], None]:
    """Prints a line for each stage: what is said before a colon.  What follows it says how far the stage is."""
    began, last = time.perf_counter(), ""

    def progress(words: str) -> None:
        nonlocal last
        stage, _, _ = words.partition(":")
        if stage != last:
            print(f"{time.perf_counter() - began:8.2f} s  {printable(stage)}", file=sys.stderr)
        last = stage

    return progress


def wants_summary(*outputs: Path) -> bool:
    """Whether the result is to be shown on standard output.

    Args:
        outputs: of the command, None where not asked for: one may be standard output itself.
    """
    if any(is_standard_output(path) for path in outputs):
        return False
    return not (general().quiet and any(path is not None for path in outputs))


def say(lines: Iterable[str], *outputs: Path) -> None:
    """Print lines about the outputs of a command: on standard error where one of those takes standard output."""
    if general().quiet:
        return
    aside = any(is_standard_output(path) for path in outputs)
    for line in lines:
        print(printable(line), file=sys.stderr if aside else sys.stdout)


def note(line: str) -> None:
    """Say something on standard error that is no error."""
    if not general().quiet:
        print(printable(line), file=sys.stderr)
