"""Outputs appear whole or not at all, and what is there keeps its kind, its mode and its names."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from triosim.core.errors import InputError
from triosim.core.outputs import binary_output, check_distinct, check_folder, folder_output, text_output

posix = pytest.mark.skipif(sys.platform == "win32", reason="kinds and modes of files as POSIX has them")


def _write(path: Path, text: str) -> None:
    with text_output(path) as file:
        file.write(text)


def _number(name: str) -> bool:
    return name.endswith(".n")


def test_a_file_takes_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), text_output(path) as out:
        out.write("half" + str(1 / 0))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with text_output(path) as out:
        out.write("after")
        out.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_utf8_with_plain_line_ends_whatever_it_holds(tmp_path: Path) -> None:
    _write(tmp_path / "out.txt", "µs\n\udc80\n")
    assert (tmp_path / "out.txt").read_bytes() == "µs\n?\n".encode()


def test_equal_texts_are_packed_into_equal_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "one.gz", "text")
    _write(tmp_path / "other.gz", "text")
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()) == b"text"
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "other.gz").read_bytes()


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    _write(path, "text")
    assert path.read_text() == "text"


@posix
def test_modes_are_kept_and_new_files_have_the_usual_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o604)
    before = os.umask(0o027)
    try:
        _write(old, "after")
        _write(new, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == 0o604
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


@posix
@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing yet"])
def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    if there:
        target.write_text("before")
    link.symlink_to(target)
    _write(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert not target.is_symlink()


@posix
def test_a_file_of_two_names_keeps_both(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("before, and longer")
    other.hardlink_to(one)
    _write(one, "after")
    assert other.read_text() == "after"
    assert sorted(tmp_path.iterdir()) == [one, other]


@posix
def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    _write(pipe, "text")
    reader.join()
    assert got == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null, full = tmp_path / "null", tmp_path / "full"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        null.write_bytes(b"")
    except OSError:
        pytest.skip("devices cannot be made here")
    _write(null, "text")
    with pytest.raises(InputError, match="No space left on device; free some space"):
        _write(full, "text")
    assert all(stat.S_ISCHR(device.stat().st_mode) for device in (null, full))


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM])
def test_a_file_that_cannot_be_replaced_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*names: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "mounted"
    path.write_text("before, and longer")
    monkeypatch.setattr(os, "replace", refused)
    _write(path, "after")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot write"):
        _write(tmp_path / "new", "text")
    assert list(tmp_path.iterdir()) == [path]


@posix
@pytest.mark.skipif(sys.platform != "win32" and os.geteuid() == 0, reason="root may write to anything")
def test_a_folder_or_a_file_may_be_closed_to_writing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    tmp_path.chmod(0o555)
    try:
        _write(path, "after")
        assert path.read_text() == "after"
        path.chmod(0o444)
        with pytest.raises(InputError, match="write-protected"):
            _write(path, "later")
        with pytest.raises(InputError, match="Permission denied; give a folder that may be written to"):
            _write(tmp_path / "new", "text")
    finally:
        tmp_path.chmod(0o755)


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in (
        (tmp_path / "absent" / "out", "there is no folder .*absent; give one that exists"),
        (tmp_path, "it is a folder; give the name of a file"),
        (tmp_path / "file" / "out", "cannot write .*out: Not a directory"),
        (tmp_path / ("n" * 256), "File name too long"),
    ):
        with pytest.raises(InputError, match=words):
            _write(path, "text")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(InputError, match="symbolic links"):
        _write(tmp_path / "round", "text")


def test_a_dash_is_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print("first", flush=True)
    with binary_output("-") as file:
        file.write(b"\x00\xff")
    _write(Path("-"), "µs")
    assert capfdbinary.readouterr().out == b"first\n\x00\xff" + "µs".encode()
    with pytest.raises(ZeroDivisionError), text_output("-") as out:
        out.write("half" + str(1 / 0))
    assert capfdbinary.readouterr().out == b""


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_is_left_of_what_is_interrupted(tmp_path: Path, kind: str, name: str) -> None:
    number = getattr(signal, name)
    code = """
import signal, sys, time

for name in ("SIGTERM", "SIGHUP"):  # a shell that runs tests in the background has its children ignore some
    signal.signal(getattr(signal, name), signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from triosim.core.outputs import folder_output, text_output


def wait():  # a signal between two instructions and one long sleep would be seen after it
    print("writing", flush=True)
    while True:
        time.sleep(0.1)


if sys.argv[1] == "file":
    with text_output("out") as file:
        file.write("half")
        file.flush()
        wait()
with folder_output("new/out", str.isdigit) as folder:
    (folder / "1").write_text("half")
    wait()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, kind], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"writing\n"
        assert list(tmp_path.rglob("*.part"))
        process.send_signal(number)
    assert process.wait() in (128 + number, -number)
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path) -> None:
    code = """
import resource, signal
from triosim.core.errors import InputError
from triosim.core.outputs import text_output

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with text_output("out") as file:
        file.write("x" * 1_000_000)
except InputError as error:
    print(error)
"""
    (tmp_path / "out").write_text("before")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "cannot write out: File too large; give a folder that may be written to\n"
    assert done.stderr == ""
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_folder_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "below" / "out"
    for names in (("1.n", "2.n", "3.n"), ("2.n",), ()):
        with folder_output(path, _number) as folder:
            for name in names:
                (folder / name).write_text(str(len(names)))
            assert folder.parent == path.parent
        assert {file.name: file.read_text() for file in path.iterdir()} == dict.fromkeys(names, str(len(names)))
        assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_completed_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "1.n").write_text("before")
    with pytest.raises(ZeroDivisionError), folder_output(path, _number) as folder:
        (folder / "1.n").write_text("half" + str(1 / 0))
    assert [file.read_text() for file in path.iterdir()] == ["before"]
    with pytest.raises(ZeroDivisionError), folder_output(tmp_path / "new" / "deep", _number) as folder:
        (folder / "1.n").write_text("half" + str(1 / 0))
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_take_its_place_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "out", os.rename
    path.mkdir()
    (path / "1.n").write_text("before")

    def refused(source: Path, target: Path) -> None:
        if Path(target) == path and not (Path(source) / "1.n").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(InputError, match=r"cannot write .*out: Input/output error"), folder_output(path, _number):
        pass
    assert [file.read_text() for file in path.iterdir()] == ["before"]
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_folder_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.mkdir(mode=0o700)
    link.symlink_to(path)
    with folder_output(link, _number) as folder:
        (folder / "1.n").write_text("text")
    assert link.is_symlink()
    assert (path / "1.n").read_text() == "text"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_folder_of_others_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1.n").write_text("text")
    (tmp_path / "thesis.tex").write_text("text")
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match=r"holds 'file', which is not of an earlier run"):
        check_folder(tmp_path, _number)
    with pytest.raises(InputError, match="there is a file of that name"), folder_output(tmp_path / "file", _number):
        pass
    with pytest.raises(InputError, match="a folder cannot go to standard output"):
        check_folder("-", _number)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="is the one that the command runs in"), folder_output(".", _number):
        pass
    assert (tmp_path / "thesis.tex").exists()


@posix
def test_an_output_is_no_input_and_no_other_output(tmp_path: Path) -> None:
    trace, folder = tmp_path / "trace", tmp_path / "traces"
    folder.mkdir()
    for path in (trace, folder / "1.n", folder / "notes"):
        path.write_text("text")
    (tmp_path / "link").symlink_to(trace)
    (tmp_path / "name").hardlink_to(trace)
    (tmp_path / "loop").symlink_to(tmp_path)
    read = [("TRACE", trace), ("--folder", folder), ("--model", "gpt2"), ("--none", None)]
    for path in (trace, tmp_path / "link", tmp_path / "name", tmp_path / "loop" / "trace", folder, folder / "1.n"):
        with pytest.raises(InputError, match=r"--json .* would overwrite what (TRACE|--folder) reads"):
            check_distinct({"--json": path}, read, lambda path: _number(path.name))
    with pytest.raises(InputError, match=r"--chakra .* would overwrite what TRACE reads"):
        check_distinct({"--chakra": tmp_path}, read[:1])
    new = tmp_path / "new"
    for other in (new, tmp_path / "loop" / "new", new / "below"):
        with pytest.raises(InputError, match=r"--json .*and --report"):
            check_distinct({"--json": new, "--report": other}, [])
    with pytest.raises(InputError, match="--json and --report cannot both go to standard output"):
        check_distinct({"--json": "-", "--report": "/dev/stdout"}, [])
    check_distinct({"--json": new, "--report": folder / "notes", "--chakra": None}, read, lambda p: _number(p.name))
    check_distinct({"--json": "/dev/null", "--report": "/dev/null"}, [("TRACE", "/dev/null")])
    check_distinct({"--json": folder / "new.n"}, read)


def test_a_page_is_html(tmp_path: Path) -> None:
    for name in ("page.pdf", "page.svg", "page.json"):
        with pytest.raises(InputError, match=r"--report .*: the page is written as HTML; give a name"):
            check_distinct({"--report": tmp_path / name}, [])
    for name in ("page.HTML", "page.htm", "page", "page.html.gz"):
        check_distinct({"--report": tmp_path / name}, [])


def test_a_file_has_a_folder_to_stand_in_before_work_begins(tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "found.json"
    with pytest.raises(InputError, match=f"cannot write {nowhere}: there is no folder"):
        check_distinct({"--json": nowhere}, [])
    check_distinct({"--chakra": nowhere}, [], folders=("--chakra",))
