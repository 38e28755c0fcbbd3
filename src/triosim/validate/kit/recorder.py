"""Going through the parts: what a folder has already is skipped, what fails is noted, and the end comes in time.

One file a part, ``PART.jsonl``: a row for each item, times in seconds, sizes in elements unless they are called bytes;
rows of kind ``about`` say on what and with what the rows after them were recorded.  Traces are in ``traces/``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.core.outputs import text_output
from triosim.sources.record.function import device_name
from triosim.validate.kit import host, language, steps, sweeps
from triosim.validate.kit.item import Item, RecordingSetup
from triosim.validate.kit.timing import Timer

PARTS: dict[str, Callable[[bool], Iterator[Item]]] = {
    "ceilings": sweeps.ceilings,
    "images": steps.images,
    "texts": steps.texts,
    "gemm": sweeps.gemm,
    "convolution": sweeps.convolution,
    "attention": sweeps.attention,
    "memory": sweeps.memory,
    "host": host.costs,
}
"""What there is to record, in order of worth; each gives its items for a GPU, or (True) a few at a tiny size."""

SCHEMA = "triosim/kit/1"

BUDGET_S = 450.0
"""Default of the time after which no item begins: seven and a half minutes."""


@dataclass(frozen=True)
class PartProgress:
    """How far a part is.

    Attributes:
        part: its name.
        items: that it has.
        before, now: recorded before, and by this call.
        failed: of those recorded by this call, how many failed.
    """

    part: str
    items: int
    before: int
    now: int
    failed: int

    @property
    def left(self) -> int:
        """Items that are still to be recorded."""
        return self.items - self.before - self.now


def record_parts(
    folder: Path,
    part: str | None,
    budget_s: float,
    device: str | None,
    progress: Callable[[str], None] = lambda words: None,
) -> list[PartProgress]:
    """Record parts into a folder until all is there or time is up.

    Args:
        folder: where; what is there is not recorded again.
        part: a name of :data:`PARTS`; None for all in their order.
        budget_s: seconds after which no item begins.
        device: ``"cuda"`` (the default), or ``"cpu"`` for a tiny version that tries everything out.
        progress: called with what is being done, in a few words.

    Raises:
        InputError: no such part or device, or the folder cannot be written to.
    """
    if part is not None and part not in PARTS:
        raise unknown("part", part, PARTS)
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError(
            "recording for others needs a GPU, and PyTorch finds none here: run it on a machine with one, or give "
            "--device cpu to try it out at a tiny size"
        )
    end = time.monotonic() + budget_s
    where = torch.device("cpu" if device == "cpu" else "cuda")
    bench = RecordingSetup(where, Timer(where), where.type == "cpu", folder / "traces")
    found = []
    for name in PARTS if part is None else [part]:
        found.append(_part(folder, name, bench, end, progress))
    return found


def _part(folder: Path, name: str, bench: RecordingSetup, end: float, progress: Callable[[str], None]) -> PartProgress:
    items = list(PARTS[name](bench.tiny))
    path = folder / f"{name}.jsonl"
    with _opened(path) as (file, there):
        missing = [item for item in items if item.key not in there]
        done = failed = 0
        for item in missing:
            if time.monotonic() >= end:
                break
            if not done:
                _write(file, _about(name, bench))
            progress(f"{name}: {item.key} ({len(items) - len(missing) + done + 1} of {len(items)})")
            row = _measured(item, bench)
            failed += "error" in row
            _write(file, row)
            done += 1
    return PartProgress(name, len(items), len(items) - len(missing), done, failed)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], set[str]]]:
    """A part's file to append to, and the keys it holds; a last line that was cut off is taken away.

    Raises:
        InputError: it cannot be written, or is no such file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            with text_output(path) as whole:
                whole.write(complete)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give a folder that may be written to") from None
    keys = set()
    with file:
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                keys.add(json.loads(line).get("key", ""))
            except (ValueError, AttributeError):
                raise InputError(f"{path} line {number} is no row of a recording: give another folder") from None
        yield file, keys


def _measured(item: Item, bench: RecordingSetup) -> dict[str, Any]:
    """The row of an item; what goes wrong with one (memory, a kernel that is not there) must not end the others."""
    row: dict[str, Any] = {"key": item.key, "kind": item.kind, **item.what}
    begun = time.monotonic()
    try:
        row.update(item.measure(bench))
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
            :200
        ]
    finally:
        gc.collect()
        if bench.timer.cuda:
            torch.cuda.empty_cache()
    return {**row, "took_s": round(time.monotonic() - begun, 3)}


def _about(part: str, bench: RecordingSetup) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": "about",
        "schema": SCHEMA,
        "part": part,
        "device": device_name(bench.device.type),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "language_models": language.source(),
        "tiny": bench.tiny,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if bench.timer.cuda:
        facts = torch.cuda.get_device_properties(bench.device)
        about.update(
            cuda=torch.version.cuda, multiprocessors=facts.multi_processor_count, memory_bytes=facts.total_memory
        )
    return about


def _write(file: IO[str], row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()
