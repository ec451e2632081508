"""Files are whole or absent, whatever happens while they are written."""

import errno
import hashlib
import os
import signal
import subprocess
import sys

import pytest

from gidd.common.files import (
    atomic_path,
    file_lock,
    fsync_directory,
    read_json,
    remove_leftovers,
    sha256,
    write_json,
)
from gidd.common.files import atomic_write as opened
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
    with pytest.raises(RuntimeError), opened(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"
    with opened(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"new"


def test_a_kill_while_writing_leaves_the_old_file_and_a_leftover(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    words = [sys.executable, "-c", KILLED_WHILE_WRITING, str(path)]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    """As two machines that share the folder: both have a process of that number."""
    path = tmp_path / "a"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_bytes(b"1" * 1000)
        second.write_bytes(b"2" * 10)
    assert path.read_bytes() in (b"1" * 1000, b"2" * 10)


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="looks at system calls")
def test_the_bytes_are_forced_to_disk_before_the_new_name_and_the_name_after_it(
    tmp_path, monkeypatch
):
    """Else a power cut could leave an empty file under the final name."""
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
    with opened(tmp_path / "a") as file:
        file.write(b"new")
    assert events[0].startswith("fsync .a.")
    assert events[1:] == ["rename", f"fsync {tmp_path.name}"]
    fsync_directory(tmp_path)
    assert events[-1] == f"fsync {tmp_path.name}"


def test_a_locked_file_is_refused_until_the_block_ends_well_or_not(tmp_path):
    path = tmp_path / "lock"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), file_lock(path, ConfigError("busy")):
            with pytest.raises(ConfigError, match="busy"), file_lock(path, ConfigError("busy")):
                pytest.fail("both hold it")
            raise ZeroDivisionError


def test_on_a_file_system_without_locks_work_goes_on(tmp_path, monkeypatch):
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


def test_json_comes_back_and_a_second_write_touches_nothing(tmp_path):
    path, value = tmp_path / "folder" / "a.json", {"é": [1, 2.5, None, "東京"]}
    write_json(path, value)
    before = path.stat().st_mtime_ns
    write_json(path, value)
    assert path.stat().st_mtime_ns == before
    assert read_json(path, "", CheckpointError) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, value):
    with pytest.raises(ConfigError, match=r"a\.json"):
        write_json(tmp_path / "a.json", {"value": value})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", None])
def test_what_is_no_json_object_is_named_with_the_remedy(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"a\.json.*Copy it again"):
        read_json(tmp_path / "a.json", "Copy it again.", CheckpointError)
