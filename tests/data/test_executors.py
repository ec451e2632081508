"""`gidd data prepare --executor slurm|ray`: the same bytes as on one machine.

Ray is real. For Slurm a stand-in runs the submitted scripts on this machine, one after the other;
docs/scaling/data.md has the commands for a real Slurm on one node.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.fake_slurm import write_slurm

from gidd.data.manifest import DataManifest, verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer

REASON = 'needs `pip install "gidd[data,cluster]"`'
for package in ("fsspec", "datatrove"):
    pytest.importorskip(package, reason=REASON)

MAIN = "from gidd.cli import main; main()"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Twenty texts, a tokenizer, and what one machine makes of them."""
    texts = [f"Document {i} of twenty. " * 9 for i in range(20)]
    (tmp_path / "texts").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(text)
    train_tokenizer(texts, 280).save(tmp_path / "tok")
    sources, tokenizer = [tmp_path / "texts"], Tokenizer.load(tmp_path / "tok")
    prepare(sources, tokenizer, tmp_path / "local", validation=3, tasks=3, quiet=True)
    return tmp_path


PREPARE = ("data", "prepare", "texts", "--tokenizer", "tok", "--validation", "3", "--tasks", "3")
ON_SLURM = ("--executor", "slurm", "--slurm.partition", "cpu")
SLURM = (*PREPARE, *ON_SLURM)


@pytest.fixture
def slurm(tmp_path) -> Path:
    """A folder with the commands of Slurm that are used."""
    commands = tmp_path / "commands"
    commands.mkdir()
    write_slurm(commands)
    return commands


def gidd(
    folder: Path, *words: str, path: Path | None = None, system: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {}
    if path is not None:  # the commands of datatrove are not there
        environment["PATH"] = f"{path}:/usr/bin:/bin" if system else str(path)
    return python(folder, "-c", MAIN, *words, **environment)


def python(folder: Path, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if "SLURM" not in key}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment | {"RAY_AUTH_MODE": "disabled"} | changes,
    )


def run(folder: Path, *words: str, path: Path | None = None) -> str:
    result = gidd(folder, *words, path=path)
    assert result.returncode == 0, result.stderr
    return result.stdout


def shards(folder: Path) -> dict[str, bytes]:
    """All files but the logs and what holds the command."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if not name.startswith(("logs/", "tasks/")) and name != "manifest.json"
    }


def require_equal(made: Path, local: Path) -> None:
    assert shards(made) == shards(local)
    assert DataManifest.read(made).splits == DataManifest.read(local).splits
    verify(made)


def jobs(slurm: Path) -> list[dict]:
    return json.loads((slurm / "jobs.json").read_text())


@pytest.mark.slow
def test_slurm_jobs_write_the_same_bytes_and_then_the_manifest(folder, slurm):
    assert "submitted" in run(folder, *SLURM, "--out", "made", path=slurm)
    require_equal(folder / "made", folder / "local")
    tasks, _, finish, _ = jobs(slurm)
    assert tasks["asked"]["array"] == "0-2"
    assert tasks["asked"]["partition"] == "cpu"
    assert tasks["codes"] == [0, 0, 0]
    assert finish["given"]["dependency"] == "afterany:1"

    # a lost shard is made again, by one task; the others are not touched
    (folder / "made" / "train" / "00001.ds").unlink()
    (folder / "made" / "manifest.json").unlink()
    other = folder / "made" / "train" / "00000.ds"
    before = other.stat().st_mtime_ns
    run(folder, *SLURM, "--out", "made", path=slurm)
    require_equal(folder / "made", folder / "local")
    assert other.stat().st_mtime_ns == before
    assert jobs(slurm)[4]["codes"] == [0]

    # all is there: nothing is submitted
    (folder / "made" / "manifest.json").unlink()
    assert "17 documents" in run(folder, *SLURM, "--out", "made", path=slurm)
    assert len(jobs(slurm)) == 8


@pytest.mark.slow
def test_a_failed_slurm_task_is_named_and_there_is_no_manifest(folder, slurm):
    (folder / "texts" / "10.txt").write_bytes(b"\xff")
    words = (*SLURM, "--slurm.tasks-per-job", "2", "--slurm.max-array-size", "1")
    run(folder, *words, "--out", "made", path=slurm)
    assert not (folder / "made" / "manifest.json").exists()
    assert (folder / "made" / "tasks" / "00000.json").exists()
    (log,) = (folder / "made" / "logs" / "slurm-finish" / "logs").iterdir()
    assert "1 of 3 tasks are not finished (00001)" in log.read_text()
    assert "10.txt, line 1: not UTF-8" in "".join(
        path.read_text() for path in (folder / "made" / "logs" / "slurm" / "logs").iterdir()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "words", "message"),
    [
        ("queue", (), "still in the queue"),
        ("refuse", (), "sbatch rejected the jobs"),
        (None, ("--slurm.partition", ""), "slurm.partition must be given"),
    ],
)
def test_jobs_that_cannot_be_submitted_are_refused_at_once(folder, slurm, file, words, message):
    if file:
        (slurm / file).write_text("1 cpu gidd\n")
    result = gidd(folder, *SLURM, *words, "--out", "made", path=slurm)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (slurm / "jobs.json").exists()


@pytest.mark.slow
def test_a_machine_without_slurm_is_reported(folder, tmp_path):
    result = gidd(folder, *SLURM, "--out", "made", path=tmp_path, system=False)
    assert result.returncode == 2
    assert "squeue is not on the PATH" in result.stderr


@pytest.mark.long
def test_url_credentials_are_in_no_file(folder, slurm, monkeypatch):
    """Jobs are pickled into files, with references to secrets: written out, they are refused."""
    (folder / "texts" / "bad.jsonl").write_text('{"text": "a"}\n{"txt": "a"}\n')
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder / "texts"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{server.server_port}/bad.jsonl"
    monkeypatch.setenv("SECRET", "hunter2")
    words = ("--tokenizer", "tok", *ON_SLURM, "--out", "made")
    made = folder / "made"
    try:
        for secrets in ("user:hunter2@{}", "${{SECRET}}:hunter2@{}", "{}?signature=hunter2"):
            url = f"http://{secrets.format(place)}"
            refused = gidd(folder, "data", "prepare", url, *words, path=slurm)
            assert refused.returncode == 2
            assert f"http://{place}: user, password and query" in refused.stderr
            assert "${NAME}" in refused.stderr
            assert "hunter2" not in refused.stderr
            assert not made.exists()
        url = f"http://${{SECRET}}:${{SECRET}}@{place}?signature=${{SECRET}}"
        run(folder, "data", "prepare", url, *words, path=slurm)
    finally:
        server.shutdown()
        server.server_close()
    for path in made.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()
    assert "bad.jsonl, line 2: a document must be" in "".join(
        path.read_text() for path in (made / "logs" / "slurm" / "logs").iterdir()
    )


ONE_SESSION = """
import os, sys
from gidd.cli import main
from gidd.common.actors import ray_session

*words, bad = sys.argv[1:]
lost, other = "made/train/00001.ds", "made/train/00000.ds"
with ray_session(None):
    main([*words, "texts", "--out", "made"])
    os.remove(lost)
    before = os.stat(other).st_mtime_ns
    main([*words, "texts", "--out", "made"])
    assert os.stat(other).st_mtime_ns == before
    try:
        main([*words, bad, "--out", "failed"])
    except SystemExit as ending:
        sys.exit(ending.code)
"""


@pytest.mark.slow
@pytest.mark.long
def test_ray_writes_the_same_bytes_or_names_what_failed(folder):
    """All in one session of Ray, which takes long to start; below, one command for each."""
    pytest.importorskip("ray", reason=REASON)
    shutil.copytree(folder / "texts", folder / "bad")
    (folder / "bad" / "10.txt").write_bytes(b"\xff")
    words = ("data", "prepare", "--tokenizer", "tok", "--validation", "3", "--tasks", "3")
    words += ("--executor", "ray", "--ray.memory-per-cpu-gb", "1", "bad")
    result = python(folder, "-c", ONE_SESSION, *words)
    assert result.returncode == 2, result.stderr
    assert "17 documents" in result.stdout
    require_equal(folder / "made", folder / "local")
    require_failed_task(result.stderr, folder / "failed")


def require_failed_task(stderr: str, made: Path) -> None:
    assert "1 of 3 tasks are not finished (00001)" in stderr
    assert "10.txt, line 1: not UTF-8" in stderr
    assert not (made / "manifest.json").exists()
