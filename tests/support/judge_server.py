"""A chat-completions server on this machine that grades, well or badly, and counts its answers."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

ASPECTS = ("clarity", "grammaticality", "factuality", "style", "creativity")


class Action(NamedTuple):
    """What the server does with a request."""

    status: int = 200
    body: bytes | None = None
    """None is a valid answer."""

    headers: dict[str, str] = {"retry-after-ms": "1"}
    drop: bool = False
    """Close the connection without an answer."""

    hold: bool = False
    """Wait until the test ends, then close the connection."""


def grades(text: str) -> dict[str, int]:
    """Grades as a function of the text; one that ends with "!" is a point better in clarity."""
    base = {a: 1 + zlib.crc32(f"{a}{text.rstrip('!')}".encode()) % 9 for a in ASPECTS}
    return base | {"clarity": base["clarity"] + text.endswith("!")}


def answer(text: str, **changes: Any) -> str:
    """The JSON that the prompt asks for; `changes` are scores by aspect."""
    scores: dict[str, Any] = grades(text) | changes
    return json.dumps({a: {"reasoning": "so it is", "score": s} for a, s in scores.items()})


def completion(content: str, finish_reason: str = "stop", model: str = "tiny-judge") -> bytes:
    """The body of a response."""
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    record = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": model}
    return json.dumps(record | {"choices": [choice]}).encode()


class JudgeServer:
    """Requests that were made, and answers that were sent (and would be paid for) by text."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.paid, self.attempts = Counter[str](), Counter[str]()
        self.act: Callable[[str, int], Action] = lambda text, attempt: Action()
        """What to do with the n-th request (from 0) for a text."""

        self.lock, self.release, self.on_hold, self.num_to_hold = Lock(), Event(), Event(), 1

    def receive(self, key: str | None, body: bytes) -> tuple[str, Action]:
        """Record a request and decide what to do."""
        record = json.loads(body)
        text = record["messages"][0]["content"].split("```\n", 1)[1].removesuffix("\n```\n")
        with self.lock:
            self.requests.append(record)
            self.keys.add(key)
            action = self.act(text, self.attempts[text])
            self.attempts[text] += 1
            self.num_to_hold -= action.hold
            if not self.num_to_hold:
                self.on_hold.set()
            if action.status == 200 and not (action.hold or action.drop):
                self.paid[text] += 1
        return text, action


@contextmanager
def serve_judge() -> Iterator[JudgeServer]:
    """Run a server while the block runs."""
    judge = JudgeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text, action = judge.receive(self.headers.get("Authorization"), body)
            if action.hold:
                judge.release.wait()
            if action.hold or action.drop:
                self.close_connection = True
                return
            data = completion(answer(text)) if action.body is None else action.body
            self.send_response(action.status)
            length = {"Content-Type": "application/json", "Content-Length": str(len(data))}
            for name, value in (length | action.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients may be killed."""

    with Server(("127.0.0.1", 0), Handler) as server:
        judge.url = f"http://127.0.0.1:{server.server_port}/v1"
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield judge
        finally:
            judge.release.set()
            server.shutdown()
