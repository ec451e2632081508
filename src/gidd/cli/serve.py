"""Serve models over HTTP, for OpenAI's clients, with a page to try them at /.

Examples:
  gidd serve models/nano
  gidd serve models/nano models/chat --port 8000 --host 0.0.0.0 --api-keys keys.txt
  gidd serve models/nano --replicas 4
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gidd.cli.model_options import Flat, ModelOptions, parse_checked
from gidd.common.config.allowed import integer
from gidd.common.messages import print_message
from gidd.common.optional import optional_package
from gidd.serving.options import ServiceOptions, WorkerOptions

if TYPE_CHECKING:
    from fastapi import FastAPI

_SWITCH_SECONDS = 0.0005
"""Time after which a thread lets another one run: answers do not wait for the thread that steps."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `gidd serve`."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folders written by `gidd export`, or names of models on the Hugging Face hub. Clients name a
    model by the last part."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 is every address of this machine."""
    port: Annotated[int, integer(0, 65535)] = 8000
    """Port to listen at; 0 takes a free one."""
    batch_size: Annotated[int, integer(1)] | None = None
    """Sequences in a forward pass; None is 1 on a CPU, 16 on other devices."""
    replicas: Annotated[int, integer(1)] | None = None
    """Number of replicas, on all machines of a Ray cluster; None is one process without Ray."""
    max_replicas: Annotated[int, integer(1)] | None = None
    """With --replicas: add replicas up to this number while requests wait."""
    api_keys: Path | None = None
    """File of API keys: lines of a SHA-256 and a name. The environment variable GIDD_API_KEY is one
    more key. Without keys, everybody who reaches the port may use it."""
    worker: Flat[WorkerOptions] = field(default_factory=WorkerOptions)
    service: Flat[ServiceOptions] = field(default_factory=ServiceOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    @property
    def names(self) -> list[str]:
        """Names of the models for clients."""
        return [Path(model).resolve().name for model in self.models]

    def problems(self) -> Iterable[str]:
        """Yield a message if names are not different, or options of replicas exclude each other."""
        if not self.models:
            yield "models must have at least one model, got none."
        if len(set(self.names)) < len(self.models):
            yield "models must have different names; the last part of each is its name."
        if self.max_replicas is not None and self.replicas is None:
            yield "max_replicas needs --replicas, the least number."
        if self.replicas is not None and ":" in (device := self.runtime.device or ""):
            yield f"device must be cuda with --replicas, as Ray chooses their GPUs, got {device}."


def main(arguments: Sequence[str]) -> None:
    """Parse, load, serve."""
    options = parse_checked(ServeOptions, "gidd serve", __doc__, arguments)
    uvicorn = optional_package("uvicorn", "serve")
    optional_package("fastapi", "serve")
    optional_package("prometheus_client", "serve")
    from gidd.serving import read_keys

    if options.replicas is not None:
        from gidd.serving.replicas import serve_replicas

        serve_replicas(
            build_application(options),
            host=options.host,
            port=options.port,
            seconds=options.worker.seconds,
        )
    else:
        from gidd.serving.connections import server_config

        config = server_config(
            build_app(options, read_keys(options.api_keys)),
            options.host,
            options.port,
            service=options.service,
            worker=options.worker,
            num_models=len(options.models),
            log_level="warning",
        )
        socket = config.bind_socket()
        socket.listen(config.backlog)  # who reads the address may connect at once
        address = f"http://{options.host}:{socket.getsockname()[1]}"
        print_message(f"serving {', '.join(options.names)} at {address} (Ctrl+C ends it).")
        # uvicorn finishes what was accepted, and then sends itself the signal again
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        sys.setswitchinterval(_SWITCH_SECONDS)
        uvicorn.Server(config).run([socket])
    print_message("stopped.")


def application(arguments: dict[str, str]) -> Any:
    """Return the service for configuration files of Ray Serve, and so of KubeRay.

    The argument `command` is the command line of `gidd serve`; host and port are Ray's.
    """
    command = shlex.split(arguments["command"])
    return build_application(parse_checked(ServeOptions, "gidd serve", __doc__, command))


def build_application(options: ServeOptions) -> Any:
    """Return the service as an application of Ray Serve."""
    from gidd.serving import read_keys
    from gidd.serving.replicas import replica_application

    return replica_application(
        partial(build_app, options, read_keys(options.api_keys)),
        replicas=options.replicas or 1,
        max_replicas=options.max_replicas,
        max_requests=options.worker.max_requests,
        seconds=options.worker.seconds,
        num_gpus=1 if (options.runtime.device or "").startswith("cuda") else 0,
    )


def build_app(options: ServeOptions, keys: dict[str, str]) -> FastAPI:
    """Load the models, and return the service of one process."""
    from gidd.serving import Worker, create_app

    workers: dict[str, Worker] = {}
    for name, model in zip(options.names, options.models, strict=True):
        pipe = options.runtime.load(model, options.batch_size)
        pipe.warm_up()
        workers[name] = Worker(pipe, options.worker)
    hosts = (*options.service.allowed_hosts, options.host)
    return create_app(workers, replace(options.service, allowed_hosts=hosts), keys)
