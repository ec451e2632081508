"""User, password and signature of a source's URL are used, and are found nowhere afterwards."""

import json
import os
import re
import subprocess
import sys
import threading
from base64 import b64encode
from dataclasses import replace
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import psutil
import pytest
import yaml
from support import one_process
from support.training_runs import speeches, tiny_run, train_here

from gidd.common.config.codec import to_yaml
from gidd.errors import ConfigError
from gidd.models import push_to_hub
from gidd.runs.export import export
from gidd.runs.presets import PRESETS
from gidd.training.checkpoints.folder import (
    CheckpointManifest,
    entry,
    read_manifest,
    write_manifest,
)
from gidd.training.config import RunConfig
from gidd.training.recorded import require_same_training, run_from_plain
from gidd.training.world import open_world

USER, PASSWORD, SIGNATURES = "somebody7", "open%2Fsesame%40", ("signed-once", "signed-again")
SECRETS = [USER, PASSWORD, unquote(PASSWORD), *SIGNATURES]
SECRETS += [b64encode(f"{USER}:{unquote(PASSWORD)}".encode()).decode()]
DOCUMENTS = "".join(json.dumps({"text": f"Document {i} of thirty. " * 9}) + "\n" for i in range(30))
TRAIN = (
    ("train", "nano", "--data.tokenizer", "300", "--data.validation", "4", "--data.length", "32")
    + ("--train.global-batch", "4", "--train.evaluate-samples", "4", "--device", "cpu")
    + ("--backbone.width", "32", "--backbone.num-layers", "1", "--backbone.num-heads", "2")
    + ("--train.generate-samples", "0", "--out", "run")
    + ("--tracker", "tensorboard", "wandb", "trackio")
)  # fmt: skip
RECORDER = '''\
"""Stands in for wandb and trackio: writes down everything that it is given."""
import os

class Recorder:
    def __getattr__(self, name):
        def record(*values, **options):
            with open(os.environ["RECORDED"], "a") as file:
                print(name, values, options, file=file)
            return Recorder()
        return record

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(Recorder(), name)
'''


def require_clean(data: bytes, what: object) -> None:
    for secret in SECRETS:
        assert secret.encode() not in data, f"{secret} is in {what}"


def require_clean_files(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        require_clean(path.read_bytes(), path)
        require_clean(str(path).encode(), path)


class Handler(BaseHTTPRequestHandler):
    """Sends DOCUMENTS as *.jsonl to those who know user, password and a signature."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        (signature,) = parse_qs(url.query).get("sig", [""])
        known = b64encode(f"{USER}:{unquote(PASSWORD)}".encode()).decode()
        status = 200
        if self.headers.get("Authorization") != f"Basic {known}" or signature not in SIGNATURES:
            status = 401
        elif url.path not in ("/a.jsonl", "/b.jsonl"):
            status = 404
        data = DOCUMENTS.encode() if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def place():
    """Host and port of a real server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Shell:
    """Runs commands in a folder; everything they print and all their processes must be clean."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join((str(folder / "modules"), os.environ["PYTHONPATH"]))
        recorded = str(folder / "recorded")
        self.environment = os.environ | {"PYTHONPATH": paths, "RECORDED": recorded, "COLUMNS": "70"}
        self.references: dict[str, str] = {}
        """Environment variables that a URL refers to."""
        self.children: set[int] = set()

    def each(self, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
        """Run commands in one process; return for each its status and what it prints."""
        printed = one_process.split(commands, *self._run(one_process.command(commands)))
        return [(each.returncode, each.stdout + each.stderr) for each in printed]

    def _run(self, command: list[str]) -> tuple[str, str]:
        process = psutil.Popen(
            command,
            cwd=self.folder,
            env=self.environment | self.references,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while True:
            self.look_at_processes(process)
            try:
                printed = process.communicate(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        assert process.returncode == 0, printed
        require_clean(b"".join(printed), "what `gidd` prints")
        stdout, stderr = (stream.decode() for stream in printed)
        return stdout, stderr

    def look_at_processes(self, main: psutil.Process) -> None:
        try:
            children = main.children(recursive=True)
            if self.references:
                require_clean("\n".join(main.cmdline()).encode(), "the command line")
        except psutil.Error:
            return
        for child in children:
            try:
                environment = child.environ()
                words = child.cmdline()
            except psutil.Error:  # it has ended
                continue
            self.children.add(child.pid)
            for name in self.references:
                environment.pop(name, None)
            require_clean(repr((words, environment)).encode(), "a child process")


@pytest.fixture
def shell(tmp_path) -> Shell:
    (tmp_path / "modules").mkdir()
    for name in ("wandb", "trackio"):
        (tmp_path / "modules" / f"{name}.py").write_text(RECORDER)
    return Shell(tmp_path)


@pytest.mark.slow
def test_no_secret_of_a_url_leaves_a_run(shell, place, tmp_path, monkeypatch):
    """Train, resume with a renewed signature, refuse, export, publish; then search every byte."""
    for package in ("aiohttp", "fsspec", "tensorboard"):
        pytest.importorskip(package, reason='needs `pip install "gidd[data,train]"`')

    def url(signature: str, file: str = "a.jsonl") -> str:
        return f"http://{USER}:{PASSWORD}@{place}/{file}?sig={signature}"

    first, second = map(url, SIGNATURES)
    other = url(SIGNATURES[1], "b.jsonl")
    (zero, shown), (trained, _), (refused, printed) = shell.each(
        (*TRAIN, "--data.sources", first, "--dry-run"),
        (*TRAIN, "--data.sources", first, "--train.steps", "2"),
        (*TRAIN, "--data.sources", other, "--train.seed", "1"),
    )
    assert (zero, trained, refused) == (0, 0, 2)
    assert f"http://{place}/a.jsonl" in shown
    assert f"http://{place}/b.jsonl" in printed

    (tmp_path.parent / "password").write_text(PASSWORD)
    password = f"${{{tmp_path.parent}/password}}"
    hidden = f"http://${{SOMEBODY}}:{password}@{place}/a.jsonl?sig=${{SIGNATURE}}"
    shell.references = {"SOMEBODY": USER, "SIGNATURE": SIGNATURES[1]}
    prepare = ("data", "prepare", "--tokenizer", "model", "--workers", "2")
    resumed, exported, prepared = shell.each(
        (*TRAIN, "--data.sources", hidden, "--train.steps", "3"),
        ("export", "run", "--out", "model"),
        (*prepare, hidden, "--out", "by-reference"),
    )
    assert (resumed[0], exported[0], prepared[0]) == (0, 0, 0)
    assert "resumed from step 2" in resumed[1]
    assert "30 documents" in prepared[1]
    shell.references = {}

    wrong = {
        "SOMEBODY is not set": (*prepare, hidden, "--out", "x"),
        "--outt": (*prepare, first, "--outt", "x"),
        f"http://{place}/a.jsonl": ("train", "nano", first),
        f"http://{place}/c.jsonl cannot be read: .*404": (
            *prepare, url(SIGNATURES[0], "c.jsonl"), "--out", "x",
        ),
        f"http://{place}/a.jsonl cannot be read: .*401": (*prepare, url("no"), "--out", "x"),
    }  # fmt: skip
    shell.children.clear()
    good = (*prepare, first, second, "--out", "data", "--tasks", "2")
    *refusals, (status, _) = shell.each(*wrong.values(), good)
    assert status == 0
    assert shell.children  # the workers
    for message, (status, printed) in zip(wrong, refusals, strict=True):
        assert status == 2
        assert re.search(message, " ".join(printed.split()))

    hub = SimpleNamespace(create_repo=lambda *words, **options: None)

    def upload_folder(repo_id: str, folder_path: str, allow_patterns: list[str]) -> None:
        for path in Path(folder_path).iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                target = tmp_path / "hub" / repo_id / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    hub.upload_folder = upload_folder
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    push_to_hub("me/mine", tmp_path / "model")
    record = json.loads((tmp_path / "hub" / "me" / "mine" / "gidd.json").read_text())
    assert record["training"]["run"]["data"]["sources"] == [f"http://{place}/a.jsonl"]

    assert list(tmp_path.glob("run/tensorboard/events*"))
    recorded = (tmp_path / "recorded").read_text()
    assert recorded.count(f"'sources': ['http://{place}/a.jsonl']") == 4  # 2 processes, 2 trackers
    require_clean_files(tmp_path)


def run_from(*sources: str) -> RunConfig:
    return replace(PRESETS["nano"], data=replace(PRESETS["nano"].data, sources=sources))


def test_configurations_show_no_secret():
    run = run_from("sotu", f"https://{USER}:{PASSWORD}@a.b/c.txt?sig={SIGNATURES[0]}")
    require_clean(repr(run).encode(), "repr")
    require_clean(to_yaml(run).encode(), "YAML")
    assert yaml.safe_load(to_yaml(run))["data"]["sources"] == ["sotu", "https://a.b/c.txt"]


def test_a_renewed_signature_continues_a_run():
    old = run_from(f"https://{USER}:{PASSWORD}@a.b/c.txt?sig={SIGNATURES[0]}")
    assert require_same_training(old, run_from(f"https://a.b/c.txt?sig={SIGNATURES[1]}")) == []
    assert require_same_training(old, run_from("https://${A}:${B}@a.b/c.txt?sig=${C}")) == []
    with pytest.raises(ConfigError, match=r"https://a.b/c.txt.*https://a.b/d.txt") as error:
        require_same_training(old, run_from(f"https://a.b/d.txt?sig={SIGNATURES[1]}"))
    require_clean(str(error.value).encode(), "the message")


@pytest.mark.slow
def test_secrets_in_an_older_checkpoint_stay_there(tmp_path):
    """Former versions recorded them; neither a model nor a resumed run gets them."""
    data = speeches(tmp_path / "data", vocab_size=300, documents=20)
    assert train_here(tiny_run(data, steps=1), tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-000000001"
    secret = [f"https://{USER}:{PASSWORD}@a.b/c.txt?sig={SIGNATURES[0]}"]
    record = json.loads((newest / "record.json").read_text())
    record["run"]["data"]["sources"] = secret
    (newest / "record.json").write_text(json.dumps(record))
    (newest / "run.yaml").write_text(yaml.safe_dump(record["run"]))
    manifest = read_manifest(newest, 1)
    files = {name: entry(newest / name) for name in manifest.files}
    write_manifest(newest, CheckpointManifest(step=1, tensors=manifest.tensors, files=files))

    with open_world("cpu") as world:
        export(tmp_path / "run", tmp_path / "model", world)
    assert "https://a.b/c.txt" in (tmp_path / "model" / "gidd.json").read_text()
    require_clean_files(tmp_path / "model")

    saved = run_from_plain(record["run"])
    data_now = replace(saved.data, sources=(f"https://a.b/c.txt?sig={SIGNATURES[1]}",))
    assert require_same_training(saved, replace(saved, data=data_now)) == []
    assert train_here(tiny_run(data, steps=2, keep=1), tmp_path / "run")
    require_clean_files(tmp_path / "run")
