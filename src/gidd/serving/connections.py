"""Limits of connections: their number, and the time to send a head or to read."""

import asyncio
import math
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gidd.serving.options import ServiceOptions, WorkerOptions

_MAX_WAITING = 192  # connections besides those of the requests that may be open
_MAX_HEAD = 2**16  # bytes


def server_config(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    service: ServiceOptions,
    worker: WorkerOptions,
    num_models: int,
    **settings: Any,
) -> uvicorn.Config:
    """Return the settings of uvicorn; what is open `worker.seconds` after SIGTERM is dropped."""
    max_connections = _MAX_WAITING + worker.max_requests * num_models
    return uvicorn.Config(
        app,
        host,
        port,
        http=limited_protocol(service.body_seconds, worker.seconds, max_connections),
        ws="none",
        h11_max_incomplete_event_size=_MAX_HEAD,
        timeout_graceful_shutdown=math.ceil(worker.seconds) + 1,  # of what does not end with it
        **settings,
    )


def limited_protocol(seconds: float, grace: float, max_connections: int) -> type[H11Protocol]:
    """Return the protocol of connections that end if their client is waited for too long.

    Within `seconds` a client must send a head, and read what was sent to it. Beyond
    `max_connections` the one ends whose client is waited for longest. When the service ends, a
    connection has `grace` seconds.
    """
    waiting = dict["LimitedProtocol", asyncio.TimerHandle]()  # the longest first

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore
            super().connection_made(transport)
            self._watch()
            if len(self.connections) > max_connections:
                next(iter(waiting))._drop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._watch()

        def shutdown(self) -> None:
            super().shutdown()
            self.loop.call_later(grace, self._drop)

        def _watch(self) -> None:
            cycle: Any = self.cycle  # None before the first request
            has_request = cycle is not None and not cycle.response_complete
            if has_request and not self.flow.write_paused:
                self._stop_waiting()
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = self.loop.call_later(seconds, self._drop)

        def _stop_waiting(self) -> None:
            if self in waiting:
                waiting.pop(self).cancel()

        def _drop(self) -> None:
            self._stop_waiting()
            self.transport.abort()

    return LimitedProtocol
