"""The guarded loader: every way in which a file can be damaged or hostile ends in one sentence, soon and cheaply."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.core.guarded_yaml import parse_yaml
from triosim.core.limits import memory_limit


def refused(parse: Any, source: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        parse(source, "FILE")
    assert str(error.value).startswith("FILE")
    assert len(str(error.value)) < 400


class TestJson:
    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("", "broken JSON at line 1, column 1"),
            ('{"a": 1', "it ends too early"),
            ("[" * 100_000, "nested too deeply"),
            ('{"a":' * 100_000, "nested too deeply"),
            ("9" * 5000, "thousands of digits"),
            ("NaN", "NaN is no JSON number"),
            ('{"a": -Infinity}', "-Infinity is no JSON number"),
            ('{"a": 1, "b": 2, "a": 3}', "key 'a' is given twice"),
            ('"\x01"', "Invalid control character"),
            ('"\\q"', "Invalid .*escape"),
        ],
    )
    def test_broken(self, source: str, words: str) -> None:
        refused(guarded.parse_json, source, words)

    def test_what_profilers_write_passes_where_it_is_asked_for(self) -> None:
        found = guarded.parse_json('{"a": NaN, "b": "x\ty\\q", "a": 2}', "FILE", lenient=True)
        assert found == {"a": 2, "b": "x\ty\\q"}

    def test_halves_of_characters_are_replaced(self) -> None:
        found = guarded.parse_json(r'["\ud83d\ude00", "\ud83d", "\ude00x", "\ud83d\ud83d"]', "FILE")
        assert found == ["\U0001f600", "\ufffd", "\ufffdx", "\ufffd\ufffd"]

    def test_what_would_take_too_much_memory_is_refused_before_it_is_parsed(self) -> None:
        source = "[" + "[]," * 100_000 + "[]]"
        tracemalloc.start()
        with memory_limit(4_000_000), pytest.raises(InputError, match="--max-memory"):
            guarded.parse_json(source, "FILE")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()

    @given(
        st.recursive(st.integers(-9, 9) | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
    )
    def test_the_estimate_is_not_below_what_is_taken(self, value: Any) -> None:
        source = json.dumps([value] * 40)
        tracemalloc.start()
        found = guarded.parse_json(source, "FILE")
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert found == [value] * 40
        assert taken < guarded._json_memory(source) + 20_000


class TestToml:
    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("a = ", "not valid TOML: Invalid value"),
            ("a = 1\na = 2", "not valid TOML: Can ?not overwrite"),
            ("a = " + "[" * 100_000, "nested too deeply"),
            ("a = " + "9" * 5000, "thousands of digits"),
            ("x = 1\n" + ".".join("a" * 100_000) + " = 1", "line 2: a key of more than 64 parts"),
            ("[" + ".".join("a" * 100_000) + "]", "line 1: a key of more than 64 parts"),
            ('a = {b = 1, "c' + '"."c' * 1000 + '" = 1}', "a key of more than 64 parts"),
        ],
    )
    def test_broken(self, source: str, words: str) -> None:
        refused(guarded.parse_toml, source, words)

    def test_many_dots_are_no_key(self) -> None:
        source = 'a = "' + "." * 200 + '" # ' + "." * 200 + "\nb = [" + "1.5, " * 200 + "]\n"
        assert len(guarded.parse_toml(source, "FILE")["b"]) == 200


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join(['*' + a] * 10)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


class TestYaml:
    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("a: [", "line 1: not valid YAML"),
            ("[" * 5000, "nested too deeply"),
            ("- " * 5000, "nested too deeply"),
            ("a: b: c", "line 1: not valid YAML"),
            ("x: 1\na: 0x_", "line 2: not valid YAML: '0x_' is not a number"),
            ("a: " + "9" * 5000, "is not a number"),
            ("a: !!int x", "'x' is not a number"),
            ("a: !!bool x", "'x' is not true or false"),
            ("a: !!timestamp x", "type 'tag:yaml.org,2002:timestamp' is not known"),
            ("a: !!binary eA==", "type 'tag:yaml.org,2002:binary' is not known"),
            ("a: !!python/object/apply:os.system [x]", "is not known"),
            ("x: 1\n3: a", "line 2: not valid YAML: key 3 is not a text"),
            ("on: a", "key True is not a text: put it in quotes"),
            ("? [a]\n: 1", "key .* is not a text"),
            ("a: 1\na: 2", "line 2: not valid YAML: key 'a' is given twice"),
            ("a: &a [*a]", "line 1: not valid YAML: an anchor contains itself"),
            ("a: &a {b: *a}", "an anchor contains itself"),
            (LAUGHS, "more than 1000000 values"),
            (MERGED, "more than 1000000 values"),
            ("\x00", "not valid YAML"),
            ("a: *b", "undefined alias"),
        ],
    )
    def test_broken(self, source: str, words: str) -> None:
        refused(parse_yaml, source, words)

    def test_dates_are_texts(self) -> None:
        assert parse_yaml("a: 2024-13-45\nb: 2001-12-14", "FILE") == {"a": "2024-13-45", "b": "2001-12-14"}

    def test_anchors_may_be_repeated(self) -> None:
        source = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]"
        assert parse_yaml(source, "FILE")["b"] == {"x": 1, "y": 3}

    def test_nothing_is_nothing(self) -> None:
        assert parse_yaml("# nothing", "FILE") is None


class TestDocuments:
    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("a.json", "[]", "must be a table of keys, not a list"),
            ("a.yaml", "", "must be a table of keys, not nothing"),
            ("a.json", '{"a": {"b": 18446744073709551616}}', r"a.json: a.b: is too large: .* 64 bits"),
            ("a.toml", "[x]\ny = nan", r"x.y: must be a finite number, got nan"),
            ("a.json", '{"a": [1e999]}', r"a: must be a finite number, got inf"),
            ("a.yaml", 'a: "\\ud800"', "half a character"),
            ("a.toml", "a = " + "[" * 100 + "]" * 100, "nested too deeply"),
            ("a.txt", "", "ends in .json, .toml"),
            ("a.yaml", "#" * (513 << 10), "larger than 512 KiB.*as TOML"),
            ("a.toml", b"a = '\xff'", "byte 5 is not UTF-8 text"),
        ],
    )
    def test_refused(self, tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(InputError, match=words):
            guarded.document(path)

    def test_taken(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = inf")
        assert guarded.document(tmp_path / "a.toml") == {"a": float("inf")}
        (tmp_path / "a.et").write_text('{"schema": "x/1"}')
        assert guarded.document(tmp_path / "a.et", form=".json") == {"schema": "x/1"}
        assert guarded.schema(tmp_path / "a.et") == "x/1"
        assert guarded.schema(tmp_path / "nowhere") == guarded.schema(tmp_path) == ""

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.json")
        for path, words in (
            (tmp_path / "none.json", "none.json: cannot be read: No such file"),
            (tmp_path, "is a folder"),
            (tmp_path / "pipe.json", "not a plain file"),
            (Path("/dev/zero"), "not a plain file"),
            (tmp_path / "a\0b.json", "no file can be called so"),
        ):
            with pytest.raises(InputError, match=words):
                guarded.content(path)
            assert guarded.head(path, 10) == b""
            assert not guarded.members(path)


def bomb(size: int) -> bytes:
    """A gzip file of zeros, made without holding them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])


class TestGzip:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
        assert guarded.content(path) == b"onetwo"
        assert guarded.head(path, 100) == b"one"
        assert guarded.contains(path, b"etw")
        assert not guarded.contains(path, b"twe")

    @pytest.mark.parametrize("cut", [5, 15, -1, -9])
    def test_cut_short(self, cut: int) -> None:
        with pytest.raises(InputError, match="damaged gzip file"):
            guarded.unzipped(gzip.compress(b"a" * 100)[:cut], "FILE")

    def test_every_flipped_bit(self) -> None:
        packed = gzip.compress(bytes(range(64)) * 4, mtime=0)
        for bit in range(8 * len(packed)):
            damaged = bytearray(packed)
            damaged[bit // 8] ^= 1 << bit % 8
            with contextlib.suppress(InputError):
                guarded.unzipped(bytes(damaged), "FILE")

    def test_a_small_file_that_becomes_huge_is_refused_without_being_kept(self) -> None:
        packed = bomb(128 << 20)
        assert len(packed) < 140_000
        tracemalloc.start()
        with memory_limit(100 << 20), pytest.raises(InputError, match=r"grow from .* than the limit of .*--max-memory"):
            guarded.unzipped(packed, "FILE")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()

    def test_the_user_may_lower_and_raise_the_limit(self) -> None:
        packed = bomb(64 << 20)
        with memory_limit(32 << 20), pytest.raises(InputError, match="limit of 32 MiB"):
            guarded.unzipped(packed, "FILE")
        with memory_limit(65 << 20):
            assert len(guarded.unzipped(packed, "FILE")) == 64 << 20


class TestZip:
    def packed(self, path: Path, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path

    def test_members(self, tmp_path: Path) -> None:
        path = self.packed(tmp_path / "a", zipfile.ZIP_DEFLATED, x=b"1", y=b"2")
        assert guarded.members(path) == {"x", "y"}
        assert guarded.unpacked(path, ["y"], "trace file") == {"y": b"2"}
        with pytest.raises(InputError, match="not a complete trace file: z is missing"):
            guarded.unpacked(path, ["y", "z"], "trace file")

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_other_ways_of_packing(self, tmp_path: Path, method: int) -> None:
        path = self.packed(tmp_path / "a", method, x=b"1")
        with pytest.raises(InputError, match="packed in another way"):
            guarded.unpacked(path, ["x"], "trace file")

    def test_a_member_that_would_become_huge(self, tmp_path: Path) -> None:
        path = self.packed(tmp_path / "a", zipfile.ZIP_DEFLATED, x=bytes(64 << 20))
        with memory_limit(32 << 20), pytest.raises(InputError, match="would grow"):
            guarded.unpacked(path, ["x"], "trace file")

    def test_far_too_many_members(self, tmp_path: Path) -> None:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for number in range(30_000):
                archive.writestr(f"{number}", b"")
        path = tmp_path / "a"
        path.write_bytes(content.getvalue())
        assert not guarded.members(path)
        with pytest.raises(InputError, match="far more members"):
            guarded.unpacked(path, ["0"], "trace file")

    def test_every_flipped_bit(self, tmp_path: Path) -> None:
        whole = self.packed(tmp_path / "a", zipfile.ZIP_DEFLATED, x=b"content" * 9).read_bytes()
        path = tmp_path / "b"
        for bit in range(0, 8 * len(whole), 3):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            guarded.members(path)
            with contextlib.suppress(InputError):
                guarded.unpacked(path, ["x"], "trace file")

    def test_a_directory_that_lies(self, tmp_path: Path) -> None:
        whole = bytearray(self.packed(tmp_path / "a", x=b"1").read_bytes())
        at = whole.rindex(b"PK\5\6")
        whole[at + 16 : at + 20] = struct.pack("<I", 2**31)
        (tmp_path / "b").write_bytes(whole)
        with pytest.raises(InputError, match="damaged"):
            guarded.unpacked(tmp_path / "b", ["x"], "trace file")


class TestOthers:
    def test_literals(self) -> None:
        assert guarded.literal("[1, ('a', None)]") == [1, ("a", None)]
        for source in ("x", "f()", "(" * 5000, "9" * 5000, "{[]: 1}", "-" * 5000 + "1", "\0", "'" * (2 << 20)):
            with pytest.raises(ValueError):
                guarded.literal(source)

    def test_tables(self) -> None:
        reader = guarded.rows('a,b\n1,"2\n', "FILE")
        with guarded.csv_errors("FILE", lambda: reader.line_num):
            assert list(reader) == [{"a": "1", "b": "2\n"}]
        reader = guarded.rows("a\n" + "x" * 200_000, "FILE")
        with (
            pytest.raises(InputError, match="FILE, line 1: not comma separated"),
            guarded.csv_errors("FILE", lambda: reader.line_num),
        ):
            list(reader)

    def test_what_happens_anywhere_in_a_reader(self) -> None:
        for error in (RecursionError, MemoryError):
            with pytest.raises(InputError, match="FILE"), guarded.reading("FILE"):
                raise error
