"""Where the command begins and ends: whatever happens to it is one sentence or nothing, never a traceback.

A traceback that does appear is a defect of TrioSim.  Only what the interpreter has loaded anyway is imported at the
top, so that an interruption while the rest is being imported is caught too.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
COLLECT = 500_000
"""Objects more than before at which Python looks for circles among them.  Modules and tables are hundreds of thousands
that stay, and looking through them at every 700th took a tenth of a short command.  For the same reason none are looked
for at the end of the process, which gives all back anyway."""


def main() -> None:
    """Run the command line; what the user got wrong is one sentence and exit code 2."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _end(EXIT_INTERRUPTED, "interrupted")
    sys.exit(code)


def _run() -> int | str | None:
    """Run it, and return the exit code."""
    gc.set_threshold(COLLECT, *gc.get_threshold()[1:])  # before anything is imported: that makes most of the objects
    from triosim.cli.main import app
    from triosim.cli.streams import is_of_a_stream, prepare
    from triosim.core.errors import InputError, printable
    from triosim.core.outputs import terminable

    atexit.unregister(gc.freeze)  # of a command that ran in this process before
    atexit.register(gc.freeze)
    prepare()
    if registry := sys.modules.get("triosim.core.registry"):  # of a command that ran in this process before
        registry.forget()
    try:
        with terminable():
            code: int | str | None = 0
            try:
                app()
            except SystemExit as done:
                code = done.code
                if _fault(done) is not None:
                    raise
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except InputError as error:
        return _end(EXIT_INPUT, printable(str(error)))
    except BrokenPipeError:
        return _end(1, None)
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and is_of_a_stream(error):
            return _end(EXIT_INPUT, f"cannot write standard output: {error.strerror}")
        sentence = _fault(error)
        if sentence is None:
            raise
        return _end(EXIT_INPUT, printable(sentence))


def _fault(error: BaseException) -> str | None:
    """What to say of an exception that came up in a file of the user's own: it is no defect of TrioSim."""
    registry = sys.modules.get("triosim.core.registry")  # which has run such files, or is not even loaded
    found = None if registry is None else registry.at_fault(error)
    return None if found is None else str(found)


def _end(code: int, sentence: str | None) -> int:
    """Say what happened where that can be said.  What a full or closed stream still holds is dropped: the interpreter
    would try again to write it, and complain."""
    for stream, text in ((sys.stderr, sentence and f"triosim: {sentence}\n"), (sys.stdout, None)):
        try:
            if stream is not None:
                stream.write(text or "")
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return code


if __name__ == "__main__":
    main()
