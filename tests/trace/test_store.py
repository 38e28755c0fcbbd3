"""Traces on disk: text -> object -> text is the identity, equal traces are equal bytes, damage is one sentence."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.core.limits import memory_limit
from triosim.trace.builder import TraceBuilder
from triosim.trace.store import is_stored, load, save
from triosim.trace.tables import Category, Meta, Phase, Trace

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
SECONDS = st.one_of(st.floats(0, 1e3), st.just(math.nan))


@st.composite
def traces(draw) -> Trace:
    builder = TraceBuilder()
    modules = [builder.module(path, draw(TEXT)) for path in draw(st.lists(TEXT, unique=True, max_size=3))]
    shapes = st.lists(st.integers(0, 5), max_size=4)
    values = []
    for _ in range(draw(st.integers(1, 8))):
        shape = draw(shapes)
        values.append(
            builder.value(
                shape,
                draw(st.sampled_from(DTYPES)),
                draw(st.sampled_from(Category)),
                version=draw(st.integers(0, 3)),
                offset=draw(st.integers(0, 2**40)),
                of=draw(st.sampled_from([-1, *values])) if values else -1,
                name=draw(TEXT),
                symbols=draw(st.lists(st.integers(0, 255), min_size=len(shape), max_size=len(shape))),
            )
        )
    for row in range(draw(st.integers(0, 6))):
        inputs = draw(st.lists(st.sampled_from(values), max_size=4))
        builder.operator(
            draw(TEXT),
            inputs,
            draw(st.lists(st.sampled_from(values), max_size=3)),
            roles=[draw(st.sampled_from(["input", "weight", "grad_output", "é"])) for _ in inputs],
            phase=draw(st.sampled_from(Phase)),
            args=draw(st.dictionaries(TEXT, st.integers(-5, 5) | st.lists(st.booleans(), max_size=2), max_size=2)),
            module=draw(st.sampled_from([-1, *modules])),
            forward=draw(st.integers(-1, row - 1)),
            view=draw(st.booleans()),
            sync=draw(st.booleans()),
            device_s=draw(SECONDS),
            host_s=draw(SECONDS),
        )
        for _ in range(draw(st.integers(0, 2))):
            builder.kernel(row, draw(TEXT), draw(st.floats(0, 1)), draw(st.integers(-1, 99)))
    for _ in range(draw(st.integers(0, 2))):
        builder.communication(draw(TEXT), draw(TEXT), draw(SECONDS), draw(st.integers(0, 99)), draw(st.floats(0, 1)))
    return builder.build(
        Meta(
            made_by=draw(TEXT),
            device=draw(st.none() | TEXT),
            batch_size=draw(st.none() | st.integers(1, 10**6)),
            step_time_s=draw(st.none() | st.floats(0, 1e6)),
            steps=tuple(draw(st.lists(TEXT, max_size=3))),
            notes=tuple(draw(st.lists(TEXT, max_size=2))),
        )
    )


def assert_equal(a: Trace, b: Trace) -> None:
    assert a.meta == b.meta
    for table in ("operators", "values", "modules", "kernels", "communications"):
        for item in fields(getattr(a, table)):
            mine, theirs = getattr(getattr(a, table), item.name), getattr(getattr(b, table), item.name)
            if isinstance(mine, Ragged):
                assert np.array_equal(mine.offsets, theirs.offsets)
                assert mine.offsets.dtype == theirs.offsets.dtype
                mine, theirs = mine.values, theirs.values
            if isinstance(mine, np.ndarray):
                assert mine.dtype == theirs.dtype, item.name
                assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"), item.name
            else:
                assert mine == theirs, item.name


@pytest.fixture
def trace() -> Trace:
    builder = TraceBuilder()
    layer = builder.module("layer", "Linear")
    weight = builder.value((3, 4), "float32", Category.WEIGHT, name="layer.weight")
    source = builder.value((2, 4), "float32", Category.INPUT)
    out = builder.value((2, 3), "float32", Category.TEMPORARY)
    row = builder.operator(
        "aten::linear", [source, weight], [out], roles=["input", "weight"], phase=Phase.FORWARD, module=layer,
        device_s=1e-6,
    )  # fmt: skip
    builder.kernel(row, "gemm", 1e-6, 7)
    builder.communication("nccl", "all_reduce", 96.0, 2, 2e-6)
    return builder.build(Meta(made_by="test", batch_size=2, clock="gpu"))


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def with_table(path: Path, name: str, change) -> Path:
    """The stored trace with one table changed."""
    content = members(path)
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(content[f"{name}.parquet"]))), sink)
    content[f"{name}.parquet"] = sink.getvalue()
    return write(path, content)


def column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


class TestRoundTrip:
    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
        max_examples=examples(60),
    )
    @given(trace=traces())
    def test_what_is_loaded_is_what_was_saved(self, trace, tmp_path):
        save(trace, tmp_path / "a.triosim")
        loaded = load(tmp_path / "a.triosim")
        assert_equal(trace, loaded)
        save(loaded, tmp_path / "b.triosim")
        assert (tmp_path / "a.triosim").read_bytes() == (tmp_path / "b.triosim").read_bytes()

    def test_an_empty_trace(self, tmp_path):
        empty = TraceBuilder().build(Meta(made_by="test"))
        save(empty, tmp_path / "x")
        assert_equal(empty, load(tmp_path / "x"))

    def test_loaded_columns_can_be_written_to(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        load(tmp_path / "x").operators.device_s[0] = 2.0

    def test_broken_text_becomes_a_replacement_mark(self, trace, tmp_path):
        kernels = replace(trace.kernels, name=("a\ud800b",))
        save(replace(trace, kernels=kernels), tmp_path / "x")
        assert load(tmp_path / "x").kernels.name == ("a?b",)


class TestFile:
    def test_it_is_an_uncompressed_zip_with_fixed_dates(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        with zipfile.ZipFile(tmp_path / "x") as archive:
            for item in archive.infolist():
                assert item.compress_type == zipfile.ZIP_STORED
                assert item.date_time == (1980, 1, 1, 0, 0, 0)
            meta = json.loads(archive.read("meta.json"))
        assert meta["schema"] == "triosim/trace/1"

    def test_other_tools_read_the_tables(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        table = pq.read_table(io.BytesIO(members(tmp_path / "x")["operators.parquet"]))
        assert table.column("name").to_pylist() == ["aten::linear"]
        assert table.column("inputs").to_pylist() == [[1, 0]]

    def test_pandas_is_not_imported_to_read_a_trace(self, trace, tmp_path):
        """Where it happens to be installed it would take longer than the reading."""
        save(trace, tmp_path / "a.triosim")
        (tmp_path / "pandas.py").write_text("raise SystemExit('pandas is imported')")
        program = "from pathlib import Path; from triosim.trace.store import load; load(Path('a.triosim'))"
        path = os.pathsep.join([str(tmp_path), *sys.path])
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr

    def test_recognised_by_content(self, trace, tmp_path):
        save(trace, tmp_path / "anything.bin")
        assert is_stored(tmp_path / "anything.bin")
        (tmp_path / "y.triosim").write_text("{}")
        assert not is_stored(tmp_path / "y.triosim")
        assert not is_stored(tmp_path)

    def test_a_failed_write_leaves_what_was_there(self, trace, tmp_path, monkeypatch):
        save(trace, tmp_path / "x")
        before = (tmp_path / "x").read_bytes()

        def fail(source, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.replace", fail)
        with pytest.raises(InputError, match="No space left"):
            save(replace(trace, meta=replace(trace.meta, workload="other")), tmp_path / "x")
        assert (tmp_path / "x").read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["x"]

    def test_a_folder_that_is_not_there(self, trace, tmp_path):
        with pytest.raises(InputError, match="cannot write"):
            save(trace, tmp_path / "no" / "x")


class TestDamage:
    def expect(self, path: Path, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_file(self, tmp_path):
        self.expect(tmp_path / "x", "cannot be read")

    def test_not_a_zip(self, tmp_path):
        (tmp_path / "x").write_text("hello")
        self.expect(tmp_path / "x", "not a trace file")

    @pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
    def test_cut_short(self, trace, tmp_path, part):
        save(trace, tmp_path / "x")
        content = (tmp_path / "x").read_bytes()
        (tmp_path / "x").write_bytes(content[: int(len(content) * part)])
        self.expect(tmp_path / "x", "not a trace file")

    def test_a_flipped_byte(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        content = bytearray((tmp_path / "x").read_bytes())
        content[content.index(b"operators.parquet") + 200] ^= 0xFF
        (tmp_path / "x").write_bytes(content)
        self.expect(tmp_path / "x", "damaged")

    def test_another_zip(self, tmp_path):
        self.expect(write(tmp_path / "x", {"data.pkl": b"x"}), "meta.json.* is missing")

    @pytest.mark.parametrize("name", ["operators", "values", "modules", "kernels", "communications"])
    def test_a_missing_table(self, trace, tmp_path, name):
        save(trace, tmp_path / "x")
        content = members(tmp_path / "x")
        del content[f"{name}.parquet"]
        self.expect(write(tmp_path / "x", content), f"{name}.parquet is missing")

    def test_a_table_that_is_no_table(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        self.expect(write(tmp_path / "x", {**members(tmp_path / "x"), "values.parquet": b"PAR1"}), "values is damaged")

    def test_a_missing_column(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        self.expect(with_table(tmp_path / "x", "operators", lambda t: t.drop_columns(["phase"])), "no column 'phase'")

    @pytest.mark.parametrize(
        ("table", "name", "values"),
        [
            ("operators", "device_s", pa.array(["fast"])),
            ("operators", "device_s", pa.array([None], pa.float64())),
            ("operators", "name", pa.array([1])),
            ("operators", "phase", pa.array([1000])),
            ("operators", "inputs", pa.array([1])),
            ("operators", "view", pa.array([1])),
            ("values", "storage", pa.array([0.5, 1.5, 2.5])),
        ],
    )
    def test_a_column_of_another_type(self, trace, tmp_path, table, name, values):
        save(trace, tmp_path / "x")
        path = with_table(tmp_path / "x", table, lambda t: column(t, name, values))
        self.expect(path, f"column '{name}' of table {table}")

    @pytest.mark.parametrize(
        ("table", "name", "values"),
        [
            ("operators", "inputs", pa.array([[1, 7]])),
            ("operators", "outputs", pa.array([[-1]])),
            ("operators", "roles", pa.array([[0]])),
            ("operators", "roles", pa.array([[0, 9]])),
            ("operators", "module", pa.array([3])),
            ("operators", "phase", pa.array([9])),
            ("operators", "forward", pa.array([0])),
            ("operators", "device_s", pa.array([-1.0])),
            ("operators", "args", pa.array(["[1]"])),
            ("values", "dtype", pa.array([0, 0, 99])),
            ("values", "category", pa.array([0, 0, 99])),
            ("values", "of", pa.array([-1, -1, 3])),
            ("values", "storage", pa.array([0, 1, -1])),
            ("values", "shape", pa.array([[3, 4], [2, 4], [2, -3]])),
            ("values", "shape", pa.array([[3], [2, 4], [2, 3]])),
            ("kernels", "operator", pa.array([5])),
            ("values", "storage", pa.array([0, 1, 2**30])),
            ("operators", "args", pa.array(['{"a": ' + "[" * 100 + "]" * 100 + "}"])),
            ("operators", "args", pa.array(['{"a": 99999999999999999999}'])),
            ("operators", "args", pa.array(["9" * 5000])),
        ],
    )
    def test_ids_that_lead_nowhere(self, trace, tmp_path, table, name, values):
        save(trace, tmp_path / "x")
        self.expect(with_table(tmp_path / "x", table, lambda t: column(t, name, values)), "contradict each other")

    @pytest.mark.parametrize(
        ("table", "name", "value"),
        [
            ("operators", "device_s", math.inf),
            ("operators", "device_s", 1e12),
            ("operators", "host_s", -1.0),
            ("operators", "host_s", math.inf),
            ("operators", "flop", -1.0),
            ("operators", "flop", math.inf),
            ("operators", "bytes", -8.0),
            ("operators", "bytes", math.inf),
            ("kernels", "device_s", -1.0),
            ("kernels", "device_s", math.nan),
        ],
    )
    def test_amounts_that_make_no_sense(self, trace, tmp_path, table, name, value):
        save(trace, tmp_path / "x")
        path = with_table(tmp_path / "x", table, lambda t: column(t, name, pa.array([value] * len(t))))
        self.expect(path, re.escape(f"{value} makes no sense"))

    def test_a_tensor_of_more_bytes_than_can_be_counted(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        shapes = pa.array([[3, 4], [2**40, 2**40], [2, 3]])
        self.expect(
            with_table(tmp_path / "x", "values", lambda t: column(t, "shape", shapes)), "more bytes than 64 bits"
        )

    def test_checks_hold_when_python_leaves_assertions_out(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        path = with_table(tmp_path / "x", "operators", lambda t: column(t, "device_s", pa.array([-1.0])))
        code = f"import triosim; triosim.load({str(path)!r})"
        done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
        assert "InputError" in done.stderr
        assert "-1.0 makes no sense" in done.stderr

    def test_a_small_table_of_many_rows_is_refused_before_it_is_read(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        many = pa.table({"operator": pa.array(np.zeros(10**7, np.int32))})
        sink = io.BytesIO()
        pq.write_table(many, sink, compression="zstd", store_schema=False, write_statistics=False)
        assert len(sink.getvalue()) < 30_000
        path = write(tmp_path / "x", {**members(tmp_path / "x"), "kernels.parquet": sink.getvalue()})
        with memory_limit(100 << 20):
            self.expect(path, "table kernels would grow from .* more than the limit of 100 MiB")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"batch_size": 0}, "batch_size 0 is no count"),
            ({"batch_size": -8}, "batch_size -8 is no count"),
            ({"batch_size": 10**30}, "batch_size: is too large"),
            ({"sequence_length": 0}, "sequence_length 0 is no count"),
            ({"step_time_s": -1.0}, "step_time_s -1.0 makes no sense"),
            ({"step_time_s": math.nan}, "NaN is no JSON number"),
            ({"launch_delay_s": 1e300}, "launch_delay_s 1e"),
            ({"schema": "triosim/trace/2"}, "triosim/trace/2.*reads 'triosim/trace/1'"),
            ({"schema": "triosim/result/1"}, "triosim/result/1"),
            ({"schema": None}, "names no schema"),
            ({"role_names": None}, "role_names"),
            ({"role_names": [1]}, "role_names"),
            ({"batch_size": "many"}, "batch_size"),
            ({"batch_size": True}, "batch_size"),
            ({"notes": [1]}, "notes"),
            ({"device": 3}, "device"),
        ],
    )
    def test_meta_data(self, trace, tmp_path, change, words):
        save(trace, tmp_path / "x")
        content = members(tmp_path / "x")
        content["meta.json"] = json.dumps({**json.loads(content["meta.json"]), **change}).encode()
        self.expect(write(tmp_path / "x", content), words)

    def test_meta_data_that_is_not_json(self, trace, tmp_path):
        save(trace, tmp_path / "x")
        self.expect(write(tmp_path / "x", {**members(tmp_path / "x"), "meta.json": b"{"}), "broken JSON")
