"""The case study of photonic links, on a few models."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def script(path: str) -> ModuleType:
    """A script of the examples as a module."""
    file = FOLDER / path
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return script("photonic/photonic.py")


def test_the_share_that_the_paper_prints_is_met(study: ModuleType) -> None:
    bandwidth = study.paper_bandwidth()
    assert study.communication_share(study.electrical("vgg19", bandwidth)) == pytest.approx(0.9221, abs=1e-6)


def test_circuits_are_set_up_once(study: ModuleType) -> None:
    first, both = (study.photonic("densenet121", "20ms", iterations=n).iteration_time_s for n in (1, 2))
    standing = study.photonic("densenet121", "0s").iteration_time_s
    assert first == pytest.approx(standing + 0.020, abs=1e-9)
    assert 2 * both == pytest.approx(first + standing, rel=1e-3)


def test_photonic_links_as_fast_as_a_mesh_without_set_up(study: ModuleType) -> None:
    mesh = study.electrical("densenet121", 60.5e9).iteration_time_s
    assert study.photonic("densenet121", "0s").iteration_time_s == pytest.approx(mesh, abs=1e-8)


def test_the_table(study: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    study.main(["--models", "vgg19", "--json", str(tmp_path / "rows.json")])
    shown = capsys.readouterr().out
    assert "92.2%" in shown
    assert "vgg19" in (tmp_path / "rows.json").read_text()


def test_a_model_without_a_batch_size(study: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        study.main(["--models", "lenet"])
    assert "no batch size" in capsys.readouterr().err


def test_the_figure(study: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study.main(["--models", "vgg19", "--figure", str(tmp_path / "photonic.svg")])
    assert (tmp_path / "photonic.svg").read_text().startswith("<?xml")


def test_the_figure_needs_the_model_that_the_paper_names(
    study: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        study.main(["--models", "gpt2", "--figure", str(tmp_path / "photonic.svg")])
    assert "vgg19" in capsys.readouterr().err
