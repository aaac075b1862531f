"""Files in run and group directories: what is refused instead of followed, and writes that leave nothing half done."""

import os
import re
import socket
from pathlib import Path

import pytest

from rl_training.experiment.files import (
    check_folder,
    keep_copy,
    open_regular,
    read_bytes,
    read_json,
    remove_stale,
    set_aside,
    write_text,
)
from rl_training.experiment.logging import LineFile

READ, WRITE, APPEND = os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_APPEND


def make_odd(path: Path, kind: str, victim: Path) -> None:
    """Put something that is no regular file at `path`."""
    if kind == "a symbolic link":
        path.symlink_to(victim)
    elif kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.parametrize("kind", ["a symbolic link", "a named pipe", "a directory", "a socket"])
@pytest.mark.parametrize("flags", [READ, WRITE, APPEND], ids=["read", "write", "append"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, flags: int, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    make_odd(tmp_path / "file", kind, victim)
    with pytest.raises(OSError, match=f"it is {kind}") as caught:
        open_regular(tmp_path / "file", flags)
    assert caught.value.filename == str(tmp_path / "file")
    assert victim.read_text() == "mine"


def test_a_link_to_nothing_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match="it is a symbolic link"):
        open_regular(tmp_path / "file", APPEND)
    assert not (tmp_path / "nothing").exists()


def test_writing_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    path.symlink_to(victim)
    write_text(path, "new")
    assert (victim.read_text(), read_bytes(path, limit=100)) == ("mine", b"new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "victim"]


def test_a_link_where_a_file_would_be_staged_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".file.{os.getpid()}-00000000.tmp").symlink_to(victim)
    with pytest.raises(OSError, match="it is a symbolic link"):
        write_text(tmp_path / "file", "new")
    assert victim.read_text() == "mine"


def test_names_of_staged_files_cannot_be_guessed_and_stale_ones_are_removed(tmp_path: Path) -> None:
    stale = [tmp_path / f".file.{os.getpid()}.tmp", tmp_path / f".file.{os.getpid()}-0123abcd.tmp"]
    for path in stale:
        path.symlink_to(tmp_path / "victim")
    write_text(tmp_path / "file", "new")
    assert not (tmp_path / "victim").exists()
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_json_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_text("[" + "[]," * 2_000_000 + "[]]")
    with pytest.raises(OSError, match="it is larger than 4,194,304 bytes"):
        read_json(path)


def test_what_is_set_aside_gets_a_free_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "run").mkdir()
        assert set_aside(tmp_path / "run", "set-aside").name == f"run.set-aside-{number}"
    (tmp_path / "log.damaged-1").symlink_to(tmp_path / "nothing")
    (tmp_path / "log").write_text("text")
    assert keep_copy(tmp_path / "log", "damaged").name == "log.damaged-2"
    assert (tmp_path / "log").read_bytes() == (tmp_path / "log.damaged-2").read_bytes() == b"text"


def test_a_folder_may_not_be_a_link(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(Exception, match=re.escape(f"{tmp_path / 'link'} is a symbolic link")):
        check_folder(tmp_path / "link")


def test_lines_that_cannot_be_written_are_reported_once_and_written_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    with pytest.warns(UserWarning, match=re.escape(f"{path} cannot be written: it is a directory")):
        lines = LineFile(path).open()
    lines.write("one")  # nothing is said a second time: warnings are errors here
    lines.write("two")
    path.rmdir()
    lines.write("three")
    lines.close()
    lines.close()
    assert path.read_text() == "one\ntwo\nthree\n"
