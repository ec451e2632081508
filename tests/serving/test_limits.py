"""Every limit of the service, on every route, in every form of a request that computes.

Forward passes are counted, each takes a second of a clock of ours, and none is made before it may.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields
from typing import Any

import httpx
import pytest
from support.service import BODIES, served

from gidd.errors import Overloaded
from gidd.serving import ServiceOptions, WorkerOptions
from gidd.serving.access import hash_key

TEXT = "I embrace with great satisfaction the opportunity which now presents itself. " * 8
WRITTEN = {"max_tokens": 16, "steps": 12, "seed": 1}
COMPLETION = WRITTEN | {"prompt": "I embrace"}
CHAT = WRITTEN | {"messages": [{"role": "user", "content": "Peace"}]}
INFILL = {"text": "I[MASK:4] with[MASK:4] all", "steps": 12}
STREAM = {"stream": True}
WHOLE = [{}, {"n": 2}, {"block_length": 4}, {"guidance_scale": 2}, {"self_correction": 8}]
FORMS: dict[str, list[dict[str, Any]]] = {
    "completions": [
        COMPLETION | form
        for form in (
            *(*WHOLE, {"suffix": " all"}, {"prompt": ["I", "We"]}, {"logprobs": 1}, STREAM),
            *(STREAM | form for form in ({"n": 2}, {"suffix": " all"}, {"diffusing": True})),
        )
    ],
    "fim/completions": [COMPLETION | {"suffix": " all"} | form for form in ({}, STREAM)],
    "chat/completions": [
        CHAT | form for form in (*WHOLE, STREAM, STREAM | {"diffusing": True}, STREAM | {"n": 2})
    ],
    "infill": [INFILL | form for form in (*WHOLE[:2], {"model": "masked"}, STREAM)],
    "correct": [
        {"text": TEXT} | method | form
        for form in ({}, STREAM)
        for method in ({}, {"error_rate": 0.1}, {"method": "self_correction"})
    ],
    "score": [
        {"text": TEXT} | form
        for form in ({}, {"likelihood": False}, {"model": "masked"}, {"top": 2})
    ],
}
KEYS = {hash_key("mine"): "mine"}


class World:
    """Services by their limits, and the forward passes that they make."""

    def __init__(self, pipelines: dict[str, Any], stack: ExitStack) -> None:
        self.now, self.passes, self.tokens = 0.0, 0, 0
        self.threads, self.goes_on = set[str](), threading.Event()
        self._pipelines, self._stack = pipelines, stack
        self._services: dict[tuple[str, float], Any] = {}

    def service(self, limit: str, value: float) -> Any:
        """Return the service with a limit."""
        key = limit, value
        if key not in self._services:
            worker, service = (
                kind(**{limit: value} if limit in names_of(kind) else {})
                for kind in (WorkerOptions, ServiceOptions)
            )
            if service.cost_per_minute is None:
                object.__setattr__(service, "cost_per_minute", 1e9)
            found = served(self._pipelines, worker, service, KEYS)
            state = self._services[key] = self._stack.enter_context(found)
            for allowance in allowances(state):
                allowance._clock, allowance._last = (lambda: 0.0), 0.0
        self.passes = self.tokens = 0
        self.goes_on.set()
        return self._services[key]

    def make(self, hidden: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a network that counts its calls."""

        def counted(network: Any, z: Any, *arguments: Any, **settings: Any) -> Any:
            self.passes += 1
            self.tokens += z.numel()
            self.now += 1
            self.threads.add(threading.current_thread().name)
            assert self.goes_on.wait(60)
            return hidden(network, z, *arguments, **settings)

        return counted


def names_of(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def allowances(service: Any) -> list[Any]:
    access = service.service.access
    return [*access._requests.values(), *access._cost.values()]


def spent(service: Any) -> float:
    """What the key has used of its cost."""
    allowance = service.service.access._cost["mine"]
    return allowance._most - allowance._left


@pytest.fixture(scope="module")
def world(pipelines) -> Iterator[World]:
    kind = type(pipelines["hybrid"].network)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        found = World(pipelines, stack)
        for pipe in pipelines.values():
            patch.setattr(pipe.session, "clock", lambda: found.now)
        patch.setattr(kind, "hidden", found.make(kind.hidden))
        yield found


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, and fail after a time that no load explains."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def post(service: Any, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Return the status and the error of an answer, or of a stream that ends with one."""
    headers = {"Authorization": "Bearer mine"}
    found = httpx.post(f"{service.url}/v1/{path}", json=body, headers=headers, timeout=60)
    if found.status_code == 429:
        assert int(found.headers["retry-after"]) >= 1
    last = found.text.removesuffix("\n\ndata: [DONE]\n\n").rpartition("data: ")[2]
    error = json.loads(last).get("error", {})
    return found.status_code, f"{error.get('code')} {error.get('message')}"


def send(service: Any, path: str, body: dict[str, Any], sent: float = 1) -> socket.socket:
    """Send a request, or a part of its body, and do not wait for the answer."""
    host, port = service.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\nAuthorization: Bearer mine\r\n\r\n"
    client = socket.create_connection((host, int(port)), timeout=60)
    client.sendall(head.encode() + data[: int(sent * len(data))])
    return client


def seconds(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("seconds", 3)
    before = spent(service)
    status, error = post(service, path, body)
    assert error.startswith("late "), (body, error)
    assert status == 504 or body.get("stream")
    assert 3 <= world.passes <= 4
    wait_until(lambda: spent(service) - before == world.tokens)


def max_cost(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("max_cost", 64)
    status, error = post(service, path, body)
    assert status == 400 and "must cost at most 64" in error, (body, error)
    assert world.passes == spent(service) == 0


def cost_per_minute(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("cost_per_minute", 1e6)
    charge = service.service.access.charge
    charge("mine", 999_950)
    try:
        status, error = post(service, path, body)
        assert status == 429 and "1,000,000 cost" in error, (body, error)
    finally:
        charge("mine", -999_950)
    assert world.passes == spent(service) == 0


def requests_per_minute(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("requests_per_minute", 1)
    with suppress(Overloaded):  # the request before was the last that it may send
        service.service.access.begin("mine")
    status, error = post(service, path, body)
    assert status == 429 and "1 requests a minute" in error, (body, error)
    assert world.passes == 0


def max_requests(world: World, path: str, body: dict[str, Any]) -> None:
    """A further one is refused; when its client leaves, what was not computed is given back."""
    of_chat = body.get("n", 1) if "messages" in body and not body.get("stream") else 1
    service = world.service("max_requests", max(of_chat, len(body.get("prompt", "")) == 2 and 2))
    before, (worker, _) = spent(service), service.workers.values()
    if body.get("model"):
        worker = service.workers[body["model"]]
    world.goes_on.clear()
    with send(service, path, body):
        wait_until(lambda: world.passes == 1)
        status, error = post(service, path, body)
        assert status == 429 and "requests are open" in error, (body, error)
    budgets = [budget for budget, _ in list(worker._open)]
    wait_until(lambda: all(one._is_over for one in budgets) and not worker.session.pending)
    world.goes_on.set()
    wait_until(lambda: not worker.num_open)
    wait_until(lambda: spent(service) - before == world.tokens)
    assert world.passes == 1


def max_bytes(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("max_bytes", 40)
    status, error = post(service, path, body)
    assert status == 413 and "40 bytes" in error and world.passes == 0


def body_seconds(world: World, path: str, body: dict[str, Any]) -> None:
    service = world.service("body_seconds", 0.5)
    with send(service, path, body, sent=0.5) as client:
        assert client.recv(99).startswith(b"HTTP/1.1 408") and world.passes == 0


LIMITS = [seconds, max_cost, cost_per_minute, requests_per_minute, max_requests, max_bytes]
LIMITS += [body_seconds]
NO_LIMITS = {"row_buckets", "allowed_hosts"}


def test_every_limit_and_every_route_is_tried(world):
    names = {*names_of(WorkerOptions), *names_of(ServiceOptions)} - NO_LIMITS
    assert names == {limit.__name__ for limit in LIMITS}
    routes = world.service("seconds", 3).app.routes
    assert [one.path[4:] for one in routes if "POST" in one.methods] == list(FORMS) == list(BODIES)


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.__name__)
def test_limit(world, limit, path):
    for body in FORMS[path][: 1 if limit is body_seconds else None]:
        limit(world, path, body)
    assert world.threads <= {"gidd-session"}


def unlimited(schema: Any, name: str = "") -> Iterator[str]:
    """Yield the texts and lists of a schema that may have any length."""
    if isinstance(schema, dict):
        if not {"maxLength", "maxItems", "enum", "const"} & schema.keys():
            yield from [name] * (schema.get("type") in ("string", "array"))
        for key, value in schema.items():
            yield from unlimited(value, name if key in ("anyOf", "oneOf", "items") else key)
    elif isinstance(schema, list):
        for member in schema:
            yield from unlimited(member, name)


@pytest.mark.parametrize("path", BODIES)
def test_texts_and_lists_have_a_limit(path):
    """But names, which are compared with those that there are."""
    assert {*unlimited(BODIES[path].model_json_schema())} <= {"model", "sampler"}
