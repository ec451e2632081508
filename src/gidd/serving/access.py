"""Who may use a service, and how much of it: API keys, rates, sizes."""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gidd.errors import ConfigError, Overloaded
from gidd.serving.errors import CLIENT_GONE, ServiceError, error_response
from gidd.serving.options import ServiceOptions

KEY_VARIABLE = "GIDD_API_KEY"
_SHA256_DIGITS = 64
_MAX_HEADERS = 100


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key, as in a file of keys."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: str | Path | None) -> dict[str, str]:
    """Return the names of API keys by their hashes; empty if everybody may use the service.

    Each line of the file is a SHA-256 in hexadecimal digits and a name; lines that begin with # are
    skipped. The environment variable GIDD_API_KEY is one more key, in clear.
    """
    keys: dict[str, str] = {}
    if path is not None:
        for line_number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            digest = words[0].lower()
            if len(digest) != _SHA256_DIGITS or not all(c in "0123456789abcdef" for c in digest):
                raise ConfigError(
                    f"{path}, line {line_number}: must be a SHA-256 in {_SHA256_DIGITS} "
                    "hexadecimal digits and a name. Write the hash of the key with: "
                    "printf %s KEY | sha256sum"
                )
            keys[digest] = words[1] if len(words) > 1 else f"key {line_number}"
        if not keys:
            raise ConfigError(f"{path}: must have a key, got none. Omit it to serve everybody.")
    if key := os.environ.get(KEY_VARIABLE):
        keys[hash_key(key)] = KEY_VARIABLE
    return keys


class RateLimit:
    """A rate limit: an amount that refills at a constant rate, up to a minute's worth or 1."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._most = max(1, per_minute)
        self._left, self._last = self._most, clock()

    def charge(self, amount: float, unit: str) -> None:
        """Use an amount, or raise if less is left; a negative amount gives back."""
        now = self._clock()
        refilled = self._left + (now - self._last) / 60 * self._per_minute
        self._left, self._last = min(self._most, refilled), now
        if amount > self._most:
            raise ConfigError(
                f"{unit} of a request must be at most {self._per_minute:,.0f}, which this key may "
                f"use in a minute, got {amount:,.0f}. Use fewer steps, or a shorter text."
            )
        if amount > self._left:
            seconds = (amount - self._left) / self._per_minute * 60
            raise Overloaded(
                f"this key may use {self._per_minute:,.0f} {unit} a minute. Try again in "
                f"{seconds:.0f} seconds.",
                seconds,
            )
        self._left -= amount


class Access:
    """Checks API keys, and counts the requests and cost of each."""

    def __init__(
        self,
        keys: dict[str, str],
        requests_per_minute: float | None = None,
        cost_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._lock = keys, Lock()
        names = {*keys.values(), ""}
        self._requests, self._cost = (
            {} if rate is None else {name: RateLimit(rate, clock) for name in names}
            for rate in (requests_per_minute, cost_per_minute)
        )

    def name_of(self, authorization: str | None) -> str:
        """Return the name of a key, given the header; raise `ServiceError` if it is unknown."""
        if not self._keys:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        name = self._keys.get(hash_key(key.strip())) if scheme.lower() == "bearer" else None
        if name is None:
            raise ServiceError(
                401,
                "the header Authorization must be: Bearer KEY, with a key of this service.",
                "invalid_api_key",
            )
        return name

    @property
    def has_several_keys(self) -> bool:
        """Whether several keys share the service."""
        return len(self._keys) > 1

    def begin(self, name: str) -> None:
        """Count a request of a key; raise `Overloaded` above its rate."""
        if name in self._requests:
            self._requests[name].charge(1, "requests")

    def charge(self, name: str, cost: int) -> None:
        """Count a cost before it is computed; raise `Overloaded` above the rate of the key."""
        if name in self._cost:
            with self._lock:  # called by the threads of requests
                self._cost[name].charge(cost, "cost (steps times tokens)")


class AccessMiddleware:
    """ASGI middleware that checks headers and key, then reads a body of limited size and time."""

    def __init__(self, app: ASGIApp, access: Access, options: ServiceOptions) -> None:
        self._app, self._access, self._options = app, access, options
        self._hosts = {"localhost", *map(str.lower, options.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        seconds = self._options.body_seconds
        try:
            if scope["type"] == "http":
                headers = self._headers(scope)
                if scope["path"].startswith("/v1/"):
                    authorization = headers.get(b"authorization", b"").decode("latin-1")
                    scope.setdefault("state", {})["key"] = self._access.name_of(authorization)
                    async with asyncio.timeout(seconds):
                        body = await self._body(headers.get(b"content-length", b"0"), receive)
                    receive = _with_body(body, receive)
        except TimeoutError:
            late = ServiceError(408, f"the body must arrive within {seconds:g} seconds.")
            await error_response(late)(scope, receive, send)
        except ServiceError as error:
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _headers(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the headers of a request, if it is none that a page of another site may send."""
        if len(scope["headers"]) > _MAX_HEADERS:
            raise ServiceError(431, f"a request must have at most {_MAX_HEADERS} headers.")
        headers = dict[bytes, bytes](scope["headers"])
        if not self._is_allowed(headers.get(b"host", b"localhost").decode("latin-1")):
            raise ServiceError(
                403,
                "the header Host must be localhost, an IP address, or a name that the service was "
                "started with: --allowed-hosts NAME.",
                "host_not_allowed",
            )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            raise ServiceError(415, "the header Content-Type must be application/json.")
        return headers

    def _is_allowed(self, host: str) -> bool:
        """Whether a header Host is no name that another site has chosen for this machine."""
        name = re.sub(r":\d{0,5}$", "", host).lower()
        with suppress(ValueError):
            return bool(ip_address(name.removeprefix("[").removesuffix("]")))
        return name in self._hosts or "*" in self._hosts

    async def _body(self, declared: bytes, receive: Receive) -> bytes:
        """Return the body."""
        body, is_complete = bytearray(), False
        while True:
            if max(len(body), int(declared)) > self._options.max_bytes:
                most = f"{self._options.max_bytes:,}"
                raise ServiceError(413, f"the body must have at most {most} bytes.")
            if is_complete:
                return bytes(body)
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                raise ServiceError(CLIENT_GONE, "the client is gone.")
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives the body first, and then what else comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
