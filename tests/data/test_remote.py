"""Remote sources: the same documents as from disk, no recorded credentials, no silent loss."""

import gzip
import json
import pickle
import shutil
import threading
from base64 import b64encode
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.preparing import joined, zstd

from gidd.data.corpora import corpora_of, remote
from gidd.data.corpora.formats import find_documents
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import ConfigError, DataError

REASON = 'needs `pip install "gidd[data]"`'
for package in ("fsspec", "aiohttp", "pyarrow"):
    pytest.importorskip(package, reason=REASON)
fsspec = pytest.importorskip("fsspec", reason=REASON)
local = pytest.importorskip("fsspec.implementations.local", reason=REASON)

TEXTS = [f"Document {i}: " + "é東京 of many. " * (i % 7) for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, 300)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Every kind of file; in the order of their names they hold TEXTS."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_bytes(TEXTS[0].encode())
    (folder / "b.jsonl").write_bytes(lines(TEXTS[1:20]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS[20:30])))
    (folder / "d.jsonl.zst").write_bytes(zstd(lines(TEXTS[30:40])))
    table = pyarrow.table({"text": TEXTS[40:]})
    pyarrow.parquet.write_table(table, folder / "e.parquet", row_group_size=7)
    (folder / "readme.md").write_text("not a document")
    return folder


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


class Handler(SimpleHTTPRequestHandler):
    """Sends parts of files too, as object stores do; some names stand for faults."""

    asked: ClassVar[list[tuple[str, str]]] = []
    """Path with query, and user and password, of every request."""

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "").removeprefix("Basic ")
        self.asked.append((self.path, authorization))
        if "silent" in self.path:
            self.rfile.read(1)  # until the client closes the connection
            return
        if "cut" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(lines(["a", "b"]))
            return
        if "forbidden" in self.path:
            self.send_error(403)
            return
        if not (wanted := self.headers.get("Range")):
            super().do_GET()
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        data = Path(self.translate_path(self.path)).read_bytes()
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def do_HEAD(self) -> None:
        if any(fault in self.path for fault in ("silent", "cut", "forbidden")):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
        else:
            super().do_HEAD()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def server(corpus):
    """The corpus on a real HTTP server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(corpus)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def read(source: str) -> list[str]:
    return [text for part in find_documents(source) for text in part.read(0, part.count())]


def test_every_kind_of_file_is_read_from_a_server(server):
    names = ("a.txt", "b.jsonl", "c.jsonl.gz", "d.jsonl.zst", "e.parquet")
    assert [text for name in names for text in read(f"{server}/{name}")] == TEXTS


def test_folders_and_patterns_are_listed(server, corpus):
    assert read(f"{server}/") == read(f"file://{corpus}") == TEXTS
    assert read(f"{server}/*.jsonl*") == read(f"file://{corpus}/*.jsonl*") == TEXTS[1:40]
    (one,) = find_documents(f"file://{corpus}/a.txt")
    assert list(one.read(0, 1)) == TEXTS[:1]


def test_ranges_of_a_remote_file_are_read(server):
    for source in find_documents(f"{server}/*"):
        whole = list(source.read(0, source.count()))
        for start, stop in ((0, 1), (2, 5), (9, 10)):
            if stop <= len(whole):
                assert list(source.read(start, stop)) == whole[start:stop]


def test_shards_are_the_same_as_from_disk(server, corpus, tokenizer, tmp_path):
    settings = {"tasks": 4, "validation": 5, "quiet": True}
    disk = prepare([corpus], tokenizer, tmp_path / "disk", **settings)
    names = sorted(path.name for path in corpus.iterdir() if path.suffix != ".md")
    urls = [f"{server}/{name}?signature=1" for name in names]
    web = prepare(urls, tokenizer, tmp_path / "web", **settings)
    # a server may not send ranges, so that each of its files is in one task
    tokens = joined(tmp_path / "disk")
    assert joined(tmp_path / "web") == tokens
    local = prepare([f"file://{corpus}"], tokenizer, tmp_path / "local", **settings)
    assert local.splits == disk.splits
    # a second run, with other signatures, is the same preparation
    assert prepare([url + "2" for url in urls], tokenizer, tmp_path / "web", **settings) == web


class CountedFile(fsspec.spec.AbstractBufferedFile):
    """A file that is fetched by ranges, as file systems of object stores do."""

    fetched: ClassVar[list[int]] = []

    def _fetch_range(self, start: int, end: int) -> bytes:
        with Path(self.path).open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        self.fetched.append(len(data))
        return data


class CountedFileSystem(local.LocalFileSystem):
    protocol = "counted"

    def _open(self, path: str, mode: str = "rb", **options: Any) -> CountedFile:
        return CountedFile(self, path, mode, **options)


def test_ranges_of_a_file_in_object_storage_are_fetched_once(corpus, tokenizer, tmp_path):
    """By any number of tasks, and with requests of at most a MB, as read-ahead is paid for."""
    fsspec.register_implementation("counted", CountedFileSystem, clobber=True)
    rows = ({"text": f"{i} and", "more": "x" * 1000} for i in range(8000))
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    size, tokens = source.stat().st_size, []
    for tasks in (1, 8):
        CountedFile.fetched.clear()
        out = tmp_path / str(tasks)
        prepare([f"counted://{source}"], tokenizer, out, tasks=tasks, quiet=True)
        assert size <= sum(CountedFile.fetched) <= 1.05 * size
        assert len(CountedFile.fetched) < 150 * tasks
        tokens.append(joined(out))
    assert tokens[0] == tokens[1]


def test_secrets_are_used_but_not_recorded(server, tokenizer, tmp_path):
    url = server.replace("//", "//user:hunter2@") + "/b.jsonl?signature=hunter2#hunter2"
    made = prepare([url], tokenizer, tmp_path, tasks=2, quiet=True)
    assert made.sources == (f"{server}/b.jsonl",)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()
    assert "hunter2" not in repr(find_documents(url))


def test_secrets_are_given_by_reference(server, tokenizer, tmp_path, monkeypatch):
    """They are replaced when a file is opened: documents hold the reference, also if listed."""
    (tmp_path / "password").write_text("hunter2\n")
    monkeypatch.setenv("SIGNATURE", "hunter2")
    place = server.replace("//", f"//${{WHO}}:${{{tmp_path}/password}}@")
    url = f"{place}/b.jsonl?signature=${{SIGNATURE}}"
    with pytest.raises(ConfigError, match="variable WHO is not set"):
        find_documents(url)
    monkeypatch.setenv("WHO", "hunter2")
    (one,) = find_documents(url)
    asked = Handler.asked
    asked.clear()
    assert one.count() == 19
    assert asked[-1] == ("/b.jsonl?signature=hunter2", b64encode(b"hunter2:hunter2").decode())
    listed = find_documents(f"{place}/")
    assert [text for part in listed for text in part.read(0, part.count())] == TEXTS
    assert {authorization for _, authorization in asked} == {b64encode(b"hunter2:hunter2").decode()}
    for documents in (one, *listed):
        assert b"hunter2" not in pickle.dumps(documents)
        assert "${WHO}" in documents.location
    assert "hunter2" not in repr(corpora_of(f"{server}/b.jsonl?signature=hunter2"))


@pytest.mark.parametrize("name", ["${HOME}.txt", "a.txt?${HOME}.txt", "a.txt?x=${HOME}#.txt"])
def test_a_server_cannot_ask_for_secrets(corpus, server, name):
    """Listed names are not expanded, only URLs that the user gave."""
    folder = corpus / "hostile"
    folder.mkdir()
    (folder / "index.html").write_text(f'<a href="{name}">a</a>')
    try:
        with pytest.raises(DataError, match="listed by a server"):
            find_documents(f"{server}/hostile/")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["absent", "forbidden", "cut", "silent"])
@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".parquet", ".jsonl.gz"])
def test_a_server_that_fails_is_named_with_the_remedy(
    server, tokenizer, tmp_path, monkeypatch, name, ending
):
    """No truncated file is accepted, no wait is endless, no credentials are shown."""
    if name == "silent":
        monkeypatch.setattr(remote, "SECONDS_OF_SILENCE", 0.3)
    url = f"{server}/{name}{ending}?signature=hunter2"
    with pytest.raises(DataError, match=f"{name}{ending} cannot be read.*Check the URL") as error:
        prepare([url], tokenizer, tmp_path, quiet=True)
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None
    assert not list(tmp_path.rglob("*.ds"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9/a.jsonl", "127.0.0.1:9/a.jsonl cannot be read"),
        ("nosuch://bucket/a.jsonl", "nosuch://bucket/a.jsonl cannot be read.*[Pp]rotocol"),
        ("file:///nowhere/*.jsonl", "nowhere.*has no documents"),
        ("file:///nowhere/a.jsonl", "nowhere/a.jsonl cannot be read"),
    ],
)
def test_a_url_that_leads_nowhere_is_named(tokenizer, tmp_path, url, message):
    with pytest.raises(DataError, match=message):
        prepare([url], tokenizer, tmp_path, quiet=True)


def test_a_remote_file_that_changed_is_another_source(corpus, server, tokenizer, tmp_path):
    path = corpus / "new.jsonl"
    path.write_bytes(lines(["a", "b", "c"]))
    try:
        prepare([f"{server}/new.jsonl"], tokenizer, tmp_path, quiet=True)
        path.write_bytes(lines(["a", "b", "d", "e"]))
        with pytest.raises(DataError, match="other documents"):
            prepare([f"{server}/new.jsonl"], tokenizer, tmp_path, quiet=True)
    finally:
        path.unlink()


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_document_that_would_fill_the_memory_is_refused(tokenizer, tmp_path, monkeypatch, name):
    monkeypatch.setenv("GIDD_MAX_DOCUMENT_BYTES", "1000")
    (tmp_path / name).write_bytes(b'{"text": "a"}\n' + b" " * 2000)
    with pytest.raises(DataError, match=rf"a\.{name[2:]}.*at most 1,000 bytes"):
        prepare([f"file://{tmp_path}/{name}"], tokenizer, tmp_path / "out", quiet=True)
