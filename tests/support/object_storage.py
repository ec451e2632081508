"""An S3 server on loopback, and a proxy in front of it that counts requests and injects faults."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from gidd.common.files import sha256
from gidd.data.manifest import DataManifest, ShardRecord, Split
from gidd.data.tokenizers import byte_level

BUCKET = "corpus"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@contextmanager
def s3_server() -> Generator[int]:
    """Run moto's S3 server in a process of its own; yield its port."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, **quiet)
    try:
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


Fault = Callable[[int, str], str]
"""What to do with the nth request of a path: "", "503", "cut" (its connection) or "slow"."""


class Proxy:
    """Forwards requests to a server, with faults; `requests` has the method and path of each."""

    def __init__(self, target: int, seconds: float = 0.0) -> None:
        self.requests: list[str] = []
        self.fault: Fault = lambda count, path: ""
        self.seconds = seconds
        """Added to every request."""
        self.listing: dict[str, bytes] = {}
        """Old answers by the path of a request."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.forward(self, target)

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def forward(self, handler: BaseHTTPRequestHandler, target: int) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        fault = self.fault(len(self.requests), handler.path)
        time.sleep(self.seconds + (0.3 if fault == "slow" else 0))
        size = int(handler.headers.get("Content-Length") or 0)
        sent = handler.rfile.read(size)
        if fault == "503":
            text = b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
            handler.send_response(503)
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(b"" if handler.command == "HEAD" else text)
            return
        client = http.client.HTTPConnection("127.0.0.1", target)
        client.request(handler.command, handler.path, sent, dict(handler.headers))
        answer = client.getresponse()
        body = answer.read()
        body = self.listing.get(handler.path, body)
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        is_head = handler.command == "HEAD"
        length = answer.getheader("Content-Length") if is_head else len(body)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        if fault == "cut":
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif not is_head:
            handler.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(port: int, cache: Path) -> dict[str, str]:
    """The variables by which s3fs finds the server, and where ranges are cached."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "GIDD_CACHE": str(cache),
    }


def synthetic_folder(folder: Path, shards: int, documents: int, length: int = 1000) -> Path:
    """A prepared folder of random bytes; documents have this many tokens on average."""
    tokenizer, rng, records = byte_level(), np.random.default_rng(0), []
    tokenizer.save(folder)
    (folder / "train").mkdir()
    (folder / "validation").mkdir()
    splits = {}
    for split, count in (("train", shards), ("validation", 1)):
        records = []
        for index in range(count):
            name = f"{split}/{index:05}.ds"
            sizes = rng.integers(length // 2, length * 3 // 2, documents)
            rng.integers(0, 256, sizes.sum()).astype(np.uint16).tofile(folder / name)
            np.cumsum(sizes).astype(np.uint64).tofile(folder / f"{name}.index")
            digests = (sha256(folder / f"{name}{end}") for end in ("", ".index"))
            digests = dict(zip(("tokens_sha256", "index_sha256"), digests, strict=True))
            total = int(sizes.sum())
            records.append(ShardRecord(file=name, documents=documents, tokens=total, **digests))
        splits[split] = Split.of(records)
    DataManifest(
        tokenizer=tokenizer.fingerprint,
        vocab=tokenizer.vocab,
        end_id=tokenizer.end_id,
        dtype="uint16",
        splits=splits,
    ).write(folder)
    return folder


def upload(folder: Path, port: int, name: str) -> str:
    """Copy a folder to the server; return its URL."""
    import s3fs

    endpoint = {"endpoint_url": f"http://127.0.0.1:{port}"}
    system = s3fs.S3FileSystem(key="test", secret="test", client_kwargs=endpoint)
    if not system.exists(BUCKET):
        system.mkdir(BUCKET)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            system.pipe_file(f"{BUCKET}/{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"s3://{BUCKET}/{name}"


def forget_connections() -> None:
    """Connect again, to the server that the environment names now."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def set_environment(values: dict[str, str]) -> None:
    os.environ.update(values)
    forget_connections()
