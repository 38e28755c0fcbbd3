"""Systems of the catalog say the same when they are read without checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triosim.hardware import catalog, shipped
from triosim.hardware.description import SystemFile, read_system

FILES = [catalog.system_file(name) for name in catalog.systems()]


def plain(value: Any) -> Any:
    """Tables as dictionaries, lists as tuples."""
    if isinstance(value, SimpleNamespace | dict):
        items = vars(value) if isinstance(value, SimpleNamespace) else value
        return {key: plain(part) for key, part in items.items()}
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_says_the_same_checked_and_unchecked(path: Path) -> None:
    checked, unchecked = read_system(path), shipped.read(path)
    if isinstance(unchecked, SystemFile):  # it says what only the checked reader knows
        assert unchecked == checked
    else:
        assert plain(unchecked) == {**plain(checked.model_dump()), "count": checked.count}


def test_nearly_all_files_are_read_unchecked() -> None:
    checked = [path.stem for path in FILES if isinstance(shipped.read(path), SystemFile)]
    assert len(checked) <= 2, checked


@pytest.mark.parametrize(
    "more", ['[[link]]\nfrom = "a"\nto = "b"', "[pool]\nlink = 'CXL2-x16'", "nodes = 2", "[host]\nname = 'x'"]
)
def test_what_it_does_not_know_is_checked(tmp_path: Path, more: str) -> None:
    path = tmp_path / "system.toml"
    begins, tables = (more + "\n", "") if more.startswith("nodes") else ("", "\n" + more)
    path.write_text(f'{begins}[devices]\nmodel = "H100-SXM5-80GB"{tables}\n')
    if "name" in more:
        with pytest.raises(Exception, match="unknown key"):
            shipped.read(path)
    else:
        assert isinstance(shipped.read(path), SystemFile)


def test_pydantic_is_not_loaded_for_a_ready_system() -> None:
    program = "import sys, triosim; triosim.system('dgx-h100', nodes=2); print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
