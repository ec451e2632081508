"""Serve models over HTTP, for OpenAI's clients, with a page to try them at /.

Examples:
  gidd serve models/nano
  gidd serve models/nano models/chat --port 8000 --host 0.0.0.0 --api-keys keys.txt
  gidd serve models/nano --replicas 4
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gidd.cli.model_options import Flat, ModelOptions, parse_checked
from gidd.common.config.allowed import field_problems, integer
from gidd.common.messages import print_message
from gidd.errors import ConfigError
from gidd.serving.options import ServiceOptions, WorkerOptions

if TYPE_CHECKING:
    from gidd.serving import Worker


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `gidd serve`."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folders written by `gidd export`, or names of models on the Hugging Face hub. Clients name a
    model by the last part."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 is every address of this machine."""

    port: int = 8000
    """Port to listen at; 0 takes a free one."""

    batch_size: int | None = None
    """Sequences in a forward pass; None is 1 on a CPU, 16 on other devices."""

    replicas: int | None = None
    """Number of replicas, on all machines of a Ray cluster; None is one process without Ray."""

    max_replicas: int | None = None
    """With --replicas: add replicas up to this number while requests wait."""

    api_keys: Path | None = None
    """File of API keys: lines of a SHA-256 and a name. The environment variable GIDD_API_KEY is one
    more key. Without keys, everybody who reaches the port may use it."""

    worker: Flat[WorkerOptions] = field(default_factory=WorkerOptions)
    service: Flat[ServiceOptions] = field(default_factory=ServiceOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(self, port=integer(0, 65535))
        if not self.models:
            yield "models must have at least one model, got none."
        if len({Path(model).name for model in self.models}) < len(self.models):
            yield "models must have different names; the last part of each is its name."
        if self.max_replicas is not None and self.replicas is None:
            yield "max_replicas needs --replicas, the least number."


def main(arguments: Sequence[str]) -> None:
    """Parse, load, serve."""
    options = parse_checked(ServeOptions, "gidd serve", __doc__, arguments)
    try:
        import fastapi as fastapi  # noqa: E401
        import uvicorn
    except ImportError as error:
        needed = "`gidd serve` needs FastAPI and uvicorn: pip install 'gidd[serve]'."
        raise ConfigError(needed) from error
    from gidd.serving import create_app, read_keys

    keys = read_keys(options.api_keys)
    if options.replicas is not None:
        from gidd.serving.replicas import serve_replicas

        serve_replicas(options, keys)
        return
    app = create_app(load_workers(options), options.service, keys)
    config = uvicorn.Config(
        app, options.host, options.port, log_level="warning", access_log=False, timeout_keep_alive=5
    )
    server = uvicorn.Server(config)
    # uvicorn finishes what was accepted, and then sends itself the signal again
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    socket = config.bind_socket()
    names = ", ".join(Path(model).name for model in options.models)
    address = f"http://{options.host}:{socket.getsockname()[1]}"
    print_message(f"serving {names} at {address} (process {os.getpid()}); Ctrl+C ends it.")
    server.run([socket])
    print_message("stopped.")


def load_workers(options: ServeOptions) -> dict[str, Worker]:
    """Load the models of a service, by name."""
    from gidd.pipeline import from_pretrained
    from gidd.serving import Worker

    workers: dict[str, Worker] = {}
    for model in options.models:
        runtime = options.runtime
        pipe = from_pretrained(
            model,
            device=runtime.device,
            precision=runtime.precision,
            tokenizer=runtime.tokenizer,
            batch_size=options.batch_size,
        )
        for note in pipe.notes:
            print_message(note)
        pipe.warm_up()
        workers[Path(model).name] = Worker(pipe, options.worker)
    return workers
