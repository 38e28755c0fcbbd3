"""Where a timeline goes, by the name given: a file for Perfetto, one for tools of PyTorch, or a folder of those.

``NAME.pftrace`` is Perfetto's binary form (:mod:`triosim.report.perfetto`), ``NAME.json`` or ``NAME.json.gz`` a trace
as PyTorch's profiler writes it (:mod:`triosim.report.chrome`), and a folder (``NAME/``) holds one such trace for each
rank, named as TensorBoard's plugin and Holistic Trace Analysis look for them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from triosim.core.outputs import check_ending, check_folder, folder_output, is_standard_output
from triosim.prediction.timeline import Timeline
from triosim.report import chrome, perfetto

BINARY = ".pftrace"
ENDINGS = (BINARY, ".json", ".json.gz")
_OF_RANK = re.compile(r"rank-\d+\.pt\.trace\.json\.gz")


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder of traces: it ends in a slash, or there is a folder of that name."""
    return name.endswith(("/", os.sep)) or os.path.isdir(name)


def belongs(name: str) -> bool:
    """Whether a file of this name may be in a folder of traces."""
    return _OF_RANK.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Refuse a name under which no timeline would be written; cheap, to be asked before long work.

    Raises:
        InputError: it is that of a folder that cannot be written, or does not say the form of the file.
    """
    if is_folder(name):
        check_folder(name, belongs)
    elif not is_standard_output(name) and not Path(name).is_char_device():
        check_ending("--timeline", name, (*ENDINGS, "/"))


def write(timeline: Timeline, name: str) -> list[Path]:
    """Write a timeline under a name; returns the files written.

    Raises:
        InputError: it cannot be written there.
    """
    if is_folder(name):
        with folder_output(name, belongs) as folder:
            files = chrome.write(timeline, folder / "rank-{rank}.pt.trace.json.gz")
        return [Path(name) / file.name for file in files]
    if name.endswith(BINARY):
        return perfetto.write(timeline, name)
    return chrome.write(timeline, name)
