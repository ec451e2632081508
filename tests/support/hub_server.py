"""A Hugging Face hub on this machine, with the protocol that `huggingface_hub` downloads by."""

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
            self.wfile.write(self._answer())

        def _answer(self) -> bytes:
            data = hub.files.get(self.path.lstrip("/"))
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
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        server.shutdown()
