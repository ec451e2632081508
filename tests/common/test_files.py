"""Atomic writes, locks and JSON files."""

import errno
import hashlib
import os
import signal
import subprocess
import sys

import pytest
from support.resources import largest_file

from gidd.common import files
from gidd.common.files import (
    atomic_path,
    atomic_write,
    file_lock,
    read_json,
    remove_dead_temporaries,
    remove_leftovers,
    sha256,
    write_json,
)
from gidd.errors import CheckpointError, ConfigError

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from gidd.common.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"new"


def test_a_kill_while_writing_leaves_the_old_file_and_a_temporary_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    words = [sys.executable, "-c", KILLED_WHILE_WRITING, str(path)]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    """As on two machines that share a folder, where process ids may be equal."""
    path = tmp_path / "a"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_bytes(b"1" * 1000)
        second.write_bytes(b"2" * 10)
    assert path.read_bytes() in (b"1" * 1000, b"2" * 10)


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks at system calls")
def test_fsync_of_the_file_before_the_rename_and_of_the_folder_after_it(tmp_path, monkeypatch):
    """Otherwise a power failure could leave an empty file under the final name."""
    events: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        events.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        real_fsync(descriptor)

    def replace(source: object, target: object, **options: object) -> None:
        events.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert events[0].startswith("fsync .a.")
    assert events[1:] == ["rename", f"fsync {tmp_path.name}"]
    files.fsync(tmp_path)
    assert events[-1] == f"fsync {tmp_path.name}"


def test_only_temporaries_of_the_file_that_nobody_has_locked_are_removed(tmp_path):
    path = tmp_path / "a[1]*"
    for name in (".a[1]*.0123456789ab.tmp", ".a[1]*.ba9876543210.tmp"):
        (tmp_path / name).touch()  # of killed processes
    (tmp_path / ".a[1]*.aaaaaaaaaaaa.tmp").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / ".a[1]*.bbbbbbbbbbbb.tmp")
    (tmp_path / ".a[1]*.cccccccccccc.tmp").mkdir()
    kept = [".a1.0123456789ab.tmp", ".a[1]*.tmp", ".a[1]*.0123.tmp", "a[1]*.0123456789ab.tmp"]
    for name in (*kept, "kept"):
        (tmp_path / name).touch()
    with atomic_path(path) as running:
        remove_dead_temporaries(path)
        found = {entry.name for entry in tmp_path.iterdir()}
    special = {f".a[1]*.{letter * 12}.tmp" for letter in "abc"}
    assert found == {*kept, *special, "kept", running.name}


def test_without_locks_no_temporary_is_removed(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".a.0123456789ab.tmp").touch()
    remove_dead_temporaries(tmp_path / "a")
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert sorted(os.listdir(tmp_path)) == [".a.0123456789ab.tmp", "a"]


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_temporary_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch, is_locked
):
    """By `remove_dead_temporaries` of another process, which takes it for that of a killed one."""
    fcntl = pytest.importorskip("fcntl")
    real, calls = fcntl.flock, []

    def flock(file: object, how: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (temporary,) = tmp_path.iterdir()
            temporary.unlink()
            if is_locked:
                raise BlockingIOError
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"new")
    assert len(calls) == 2
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_full_disk_names_the_file(tmp_path):
    with (
        pytest.raises(OSError) as raised,
        largest_file(10),
        atomic_write(tmp_path / "a") as file,
    ):
        file.write(b"more than ten bytes")
    assert raised.value.filename == str(tmp_path / "a")
    assert not os.listdir(tmp_path)


def test_files_have_the_mode_of_the_umask_or_a_stricter_one(tmp_path):
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a"), atomic_path(tmp_path / "b", mode=0o600):
            pass
    finally:
        os.umask(old)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
    assert modes == [0o640, 0o600]


def test_a_lock_is_exclusive_and_released_after_an_error(tmp_path):
    path = tmp_path / "lock"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), file_lock(path, ConfigError("busy")):
            with pytest.raises(ConfigError, match="busy"), file_lock(path, ConfigError("busy")):
                pytest.fail("both hold it")
            raise ZeroDivisionError


def test_a_file_system_without_locks_is_not_an_error(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        file_lock(tmp_path / "lock", ConfigError("busy")),
        file_lock(tmp_path / "lock", ConfigError("")),
    ):
        pass


def test_the_checksum_is_sha256(tmp_path):
    data = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_json_round_trip_and_an_equal_value_is_not_written_again(tmp_path):
    path, value = tmp_path / "folder" / "a.json", {"é": [1, 2.5, None, "東京"]}
    write_json(path, value)
    before = path.stat().st_ino  # an atomic write would make a new file
    write_json(path, value)
    assert path.stat().st_ino == before
    assert read_json(path, "", CheckpointError) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_values_that_json_cannot_represent_are_rejected_before_writing(tmp_path, value):
    with pytest.raises(ConfigError, match=r"a\.json"):
        write_json(tmp_path / "a.json", {"value": value})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", None])
def test_an_invalid_json_object_is_an_error_with_path_and_remedy(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"a\.json.*Copy it again"):
        read_json(tmp_path / "a.json", "Copy it again.", CheckpointError)
