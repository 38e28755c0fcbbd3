"""Finding the reader of a file by its content, and saying what a file is that nothing reads."""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from tests.sources.readers.executions import step
from tests.sources.readers.profiles import mlp
from tests.sources.readers.test_triosim_csv import folder
from triosim.core.errors import InputError
from triosim.sources.reading import READERS, Reader, load, recognised
from triosim.trace.store import save


def test_the_readers():
    assert READERS.names() == ["execution-trace", "kineto", "nn-meter", "onnx", "triosim-csv"]
    for name in READERS:
        assert issubclass(READERS.get(name), Reader)
        assert READERS.get(name)().what


class TestFound:
    def test_by_content_not_by_name(self, tmp_path):
        mlp().write(tmp_path / "a.csv")
        step().write(tmp_path / "b.triosim")
        folder().write(tmp_path / "c.json")
        save(load(tmp_path / "a.csv"), tmp_path / "d.gz")
        made_by = {name: load(tmp_path / name).meta.made_by for name in ("a.csv", "b.triosim", "c.json", "d.gz")}
        assert made_by == {
            "a.csv": "kineto", "b.triosim": "execution-trace", "c.json": "triosim-csv", "d.gz": "kineto",
        }  # fmt: skip
        assert all(recognised(tmp_path / name) for name in made_by)

    def test_a_profile_whose_events_start_late(self, tmp_path):
        p = mlp(None)
        p.top["INFO"] = ["x" * 1000] * 200
        text = json.dumps({"a": p.top["INFO"], "traceEvents": p.events})
        (tmp_path / "x").write_text(text)
        (tmp_path / "y").write_bytes(gzip.compress(text.encode()))
        assert load(tmp_path / "x").device_time() == load(tmp_path / "y").device_time() > 0

    def test_a_folder_with_other_files_too(self, tmp_path):
        mlp().write(tmp_path / "profile")
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / ".hidden").write_text('{"traceEvents": []}')
        assert load(tmp_path).meta.made_by == "kineto"

    def test_a_folder_with_one_profile_and_its_execution_trace(self, tmp_path):
        e = step()
        e.write(tmp_path / "e")
        assert load(tmp_path).meta.made_by == "execution-trace"

    def test_paths_may_be_text(self, tmp_path):
        assert load(str(mlp().write(tmp_path / "x"))).meta.made_by == "kineto"

    def test_a_workload_with_the_files_name(self, tmp_path):
        assert load(mlp().write(tmp_path / "net.pt.trace.json.gz", zipped=True)).meta.workload == "net"


class TestNotFound:
    def expect(self, path: Path, words: str) -> None:
        assert not recognised(path)
        with pytest.raises(InputError, match=words) as caught:
            load(path)
        assert "\n" not in str(caught.value)

    def test_nothing_there(self, tmp_path):
        self.expect(tmp_path / "x", "no such file")
        with pytest.raises(InputError, match=r"no\.json: no such file"):
            load(mlp().write(tmp_path / "y"), execution_trace=tmp_path / "no.json")

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "is empty, which no reader takes; give a .triosim file, a PyTorch execution trace"),
            (b'{"model_type": "llama", "layers": 3}', "is JSON with the keys model_type, layers"),
            (b'{"schema": "triosim/result/1"}', "is a result that TrioSim wrote"),
            (b"{}", "is JSON without keys"),
            (b"[1, 2]", "is a JSON list"),
            (b"a,b\n1,2\n", "is text that starts with 'a,b'"),
            (b"SQLite format 3\0", "is an SQLite database"),
            (b"PAR1xxxxPAR1", "is a Parquet table"),
            (b"\x00\x01\x02\xff" * 10, "is a binary file"),
            (b"\x1f\x8bxxxx", "is a damaged gzip file"),
            (gzip.compress(b"hello", mtime=0), "is text that starts with 'hello'"),
            (pickle.dumps([1]), "is a Python pickle"),
        ],
    )
    def test_what_it_looks_like(self, tmp_path, content, words):
        (tmp_path / "x").write_bytes(content)
        self.expect(tmp_path / "x", words)

    def test_a_checkpoint(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x", "w") as archive:
            archive.writestr("data.pkl", b"x")
        self.expect(tmp_path / "x", "is a zip archive without a trace")

    def test_folders(self, tmp_path):
        self.expect(tmp_path, "is an empty folder")
        (tmp_path / "a.txt").write_text("x")
        self.expect(tmp_path, "is a folder with a.txt")

    def test_a_folder_with_two_kinds(self, tmp_path):
        folder().write(tmp_path / "both")
        mlp().write(tmp_path / "both" / "profile.json")
        with pytest.raises(InputError, match=r"holds a torch\.profiler .* and a TrioSim CSV folder .*; give the path"):
            load(tmp_path / "both")

    def test_a_stored_trace_holds_one_step(self, tmp_path):
        save(load(mlp().write(tmp_path / "x")), tmp_path / "y")
        assert len(load(tmp_path / "y", step="all")) > 0
        with pytest.raises(InputError, match="leave the step 3 away"):
            load(tmp_path / "y", step=3)

    def test_a_stored_trace_takes_no_companion(self, tmp_path):
        save(load(mlp().write(tmp_path / "x")), tmp_path / "y")
        with pytest.raises(InputError, match="takes no execution trace"):
            load(tmp_path / "y", execution_trace=step().write(tmp_path / "z"))
