"""A service in a thread, on a free port, with small models."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

import gidd
from gidd.pipeline import Pipeline
from gidd.serving import ServiceOptions, Worker, WorkerOptions, create_app
from gidd.serving.connections import server_config
from gidd.serving.protocol import (
    ChatBody,
    CompletionBody,
    CorrectBody,
    FimBody,
    InfillBody,
    ScoreBody,
)
from support.small_model import write_model

BODIES = {
    "completions": CompletionBody,
    "fim/completions": FimBody,
    "chat/completions": ChatBody,
    "infill": InfillBody,
    "correct": CorrectBody,
    "score": ScoreBody,
}
"""Bodies of the routes, by what follows /v1/."""


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def small_pipelines(folder: Path) -> dict[str, Pipeline]:
    """A hybrid model that says it was trained on chats, and a masked one."""
    hybrid = gidd.from_pretrained(write_model(folder / "hybrid", context=64))
    hybrid.source = {"data": {"format": "chat"}}
    masked = gidd.from_pretrained(write_model(folder / "masked", context=64, p_uniform=0))
    return {"hybrid": hybrid, "masked": masked}


@contextmanager
def served(
    pipelines: dict[str, Pipeline],
    worker: WorkerOptions | None = None,
    service: ServiceOptions | None = None,
    keys: dict[str, str] | None = None,
) -> Iterator[Any]:
    """Yield a running service: its `url` and its `workers`."""
    workers = {name: Worker(pipe, worker) for name, pipe in pipelines.items()}
    app = create_app(workers, service, keys)
    config = server_config(
        app,
        "127.0.0.1",
        0,
        service=service or ServiceOptions(),
        worker=worker or WorkerOptions(),
        num_models=len(pipelines),
        log_level="error",
        timeout_keep_alive=1,
    )
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        app.state.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app.state.app, app.state.workers = app, workers
        yield app.state
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        listening.close()
