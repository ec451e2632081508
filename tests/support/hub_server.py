"""A Hugging Face hub on this machine, with the protocol that `huggingface_hub` downloads by."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pytest import MonkeyPatch

REASON = 'needs `pip install "gidd[data]"`'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Files by "owner/name/resolve/revision/file", and the requests that were made for them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.revision = "main"

    def add(self, repository: str, file: str, data: bytes, revision: str = "main") -> None:
        """Add a file, or replace it."""
        self.files[f"{repository}/resolve/{revision}/{file}"] = data


@contextmanager
def serve_hub(cache: Path) -> Iterator[HubServer]:
    """Let `huggingface_hub` download from this machine to `cache` while the block runs."""
    constants = pytest.importorskip("huggingface_hub.constants", reason=REASON)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.requests.append(self.path.lstrip("/"))
            self._answer()

        def do_GET(self) -> None:
            if self.path.startswith("/api/models/"):
                self._list()
            else:
                self.wfile.write(self._answer())

        def _list(self) -> None:
            """Answer with a repository, or with its files, of which old versions ask for names."""
            hub.requests.append(self.path.lstrip("/"))
            name, revision = re.fullmatch(
                r"/api/models/(.*?)(?:/(?:revision|tree)/(.*?))?(?:[?].*)?", self.path
            ).groups()
            if revision != COMMIT:
                hub.revision = revision or "main"
            start = f"{name}/resolve/{hub.revision}/"
            files = {k.removeprefix(start): v for k, v in hub.files.items() if k.startswith(start)}
            answer: object = {"id": name, "sha": COMMIT}
            answer |= {"siblings": [{"rfilename": file} for file in files]}
            if "/tree/" in self.path:
                entries = [(file, len(data)) for file, data in files.items()]
                answer = [{"type": "file", "path": p, "size": n, "oid": p} for p, n in entries]
            data = json.dumps(answer).encode()
            self.send_response(200 if files else 404)
            self.send_header("Content-Type", "application/json")
            if not files:
                self.send_header("X-Error-Code", "RevisionNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self) -> bytes:
            path = self.path.lstrip("/").replace(COMMIT, hub.revision)
            data = hub.files.get(path)
            self.send_response(404 if data is None else 200)
            self.send_header("X-Repo-Commit", COMMIT)
            if data is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            else:
                self.send_header("ETag", f'"{sha1(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            return data or b""

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, MonkeyPatch.context() as patch:
        hub, url = HubServer(), f"http://127.0.0.1:{server.server_port}"
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        server.shutdown()
