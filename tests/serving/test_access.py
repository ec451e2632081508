"""Who may use the service, and how much of it."""

import asyncio
import hashlib
import json
import logging
import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from support.service import served

from gidd.errors import ConfigError, Overloaded
from gidd.serving import ServiceOptions, WorkerOptions, hash_key, read_keys
from gidd.serving.access import Access

JSON = "Content-Type: application/json"
BODY = {"prompt": "I", "max_tokens": 4, "steps": 2}


@pytest.fixture(scope="module")
def guarded(pipelines):
    keys = {hash_key("secret"): "alice"}
    limits = ServiceOptions(max_bytes=2000, body_seconds=0.5, allowed_hosts=("Models.example",))
    with served({"hybrid": pipelines["hybrid"]}, service=limits, keys=keys) as found:
        yield found


def send(service, key: str | None, body=BODY, path="/v1/completions"):
    headers = {} if key is None else {"Authorization": key}
    return httpx.post(service.url + path, json=body, headers=headers, timeout=30)


@pytest.mark.parametrize("key", [None, "Bearer wrong", "secret", "Basic secret", "Bearer x", ""])
def test_a_wrong_key_is_refused(guarded, key):
    response = send(guarded, key)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "secret" not in response.text
    assert httpx.get(f"{guarded.url}/v1/models").status_code == 401
    assert httpx.get(f"{guarded.url}/healthz").status_code == 200


def test_a_right_key_is_accepted(guarded):
    assert send(guarded, "Bearer secret").status_code == 200


def test_a_large_body_is_refused_before_it_is_read(guarded):
    assert send(guarded, "Bearer secret", {"prompt": "a" * 3000}).status_code == 413

    def pieces():
        yield from [b"a" * 1000] * 1000

    headers = {"Authorization": "Bearer secret", "content-type": "application/json"}
    response = httpx.post(f"{guarded.url}/v1/completions", content=pieces(), headers=headers)
    assert response.status_code == 413


def address(service) -> tuple[str, int]:
    host, port = service.url.removeprefix("http://").split(":")
    return host, int(port)


def connect(service) -> socket.socket:
    return socket.create_connection(address(service), timeout=20)


def is_closed(client: socket.socket) -> bool:
    """Wait until the service closes a connection, or answers."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 10\r\n\r\n1"])
def test_a_client_that_does_not_send_a_head_in_time_is_dropped(guarded, sent):
    """From the beginning, or after an answer, of which the body is not read."""
    with connect(guarded) as client:
        client.sendall(sent)
        if sent.endswith(b"1"):
            client.settimeout(20)
            answer = b""
            while not answer.endswith(b"}"):  # its head and its body may come one after the other
                answer += client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")
        assert is_closed(client)


def test_a_client_that_does_not_read_is_dropped(guarded):
    """It is not waited for when the service ends, either."""
    with connect(guarded) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(HEAD.replace(b"/healthz", b"/") + b"\r\n")


def test_of_too_many_connections_the_longest_waiting_ends(pipelines):
    worker = WorkerOptions(max_requests=1)
    with served({"hybrid": pipelines["hybrid"]}, worker) as service, ExitStack() as stack:
        first, *others = [stack.enter_context(connect(service)) for _ in range(193)]
        for client in (first, *others):
            client.sendall(HEAD)
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        assert is_closed(first)
        others[-1].sendall(b"\r\n")
        assert others[-1].recv(1000).startswith(b"HTTP/1.1 200")


def test_a_service_that_ends_does_not_wait_for_its_clients(pipelines, caplog):
    """`--seconds` after the signal it drops those that read and send nothing; see `served`."""
    with served({"hybrid": pipelines["hybrid"]}, WorkerOptions(seconds=0.5)) as service:
        half, unread = connect(service), connect(service)
        half.sendall(b"POST /v1/infill HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n")
        half.sendall(f"{JSON}\r\n\r\n{{".encode())
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.sendall((HEAD.replace(b"/healthz", b"/") + b"\r\n") * 1000)
        assert unread.recv(10)
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    half.close()
    unread.close()
    assert not caplog.records


@pytest.mark.parametrize(
    "head, status", [(b"X: " + b"a" * 200_000, b"400"), (b"\r\n".join([b"X: a"] * 100), b"431")]
)
def test_heads_are_limited(guarded, head, status):
    with connect(guarded) as client:
        client.sendall(HEAD + head)
        if status == b"431":
            client.sendall(b"\r\n\r\n")
        assert client.recv(1000).split()[1] == status


@pytest.mark.parametrize(
    "host, status",
    [
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("[::1].evil.example", 403),
        ("", 403),
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3", 200),
        ("models.example:8000", 200),
    ],
)
def test_names_that_another_site_chose_are_refused(guarded, host, status):
    """A page whose name leads to this machine (DNS rebinding) could use and read the service."""
    for path in ("/healthz", "/", "/v1/models"):
        response = httpx.get(f"{guarded.url}{path}", headers={"Host": host})
        assert response.status_code == (401 if "v1" in path and status == 200 else status)
        assert "location" not in response.headers and "evil" not in response.text


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_bodies_that_pages_of_other_sites_may_send_are_refused(guarded, kind):
    headers = {"Authorization": "Bearer secret", "Content-Type": kind}
    url = f"{guarded.url}/v1/completions"
    assert httpx.post(url, content=json.dumps(BODY), headers=headers).status_code == 415


def test_a_client_that_leaves_while_it_sends_is_no_error(guarded):
    """Nothing is raised, which uvicorn would log with its traceback."""
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = {"authorization": "Bearer secret", "content-type": "application/json"}
    scope = {
        "type": "http", "method": "POST", "path": "/v1/score", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    asyncio.run(guarded.app(scope, receive, send))
    assert sent[0]["status"] == 499


def test_a_slow_body_is_refused(guarded):
    with connect(guarded) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer secret\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /../../etc/passwd HTTP/1.1",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
        b"GET /v1/models/../../../../etc/passwd HTTP/1.1",
        b"GET /static/%2fetc%2fpasswd HTTP/1.1",
    ],
)
def test_paths_lead_nowhere(guarded, request_line):
    with connect(guarded) as client:
        client.sendall(request_line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = client.recv(4000)
    assert answer.split()[1] in (b"400", b"401", b"404") and b"root:" not in answer


def test_headers_cannot_be_injected(guarded):
    path = f"{guarded.url}/v1/models/a%0d%0aSet-Cookie:%20x=1"
    response = httpx.get(path, headers={"Authorization": "Bearer secret"})
    assert response.status_code == 404 and "set-cookie" not in response.headers
    with connect(guarded) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nBad\x00Header: 1\r\n\r\n")
        assert client.recv(1000).split()[1] in (b"400", b"200")


def test_keys_are_read_from_a_file_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("GIDD_API_KEY", raising=False)
    assert read_keys(None) == {}
    path = tmp_path / "keys.txt"
    digest = hashlib.sha256(b"one").hexdigest()
    path.write_text(f"# ours\n{digest.upper()} alice\n\n{hash_key('two')}\n")
    monkeypatch.setenv("GIDD_API_KEY", "three")
    assert read_keys(path) == {
        digest: "alice",
        hash_key("two"): "key 4",
        hash_key("three"): "GIDD_API_KEY",
    }
    path.write_text("a key in clear\n")
    with pytest.raises(ConfigError, match="line 1.*SHA-256") as caught:
        read_keys(path)
    assert "a key in clear" not in str(caught.value)


def test_requests_and_cost_of_a_key_are_limited():
    now = [0.0]
    access = Access({"h": "alice"}, requests_per_minute=2, clock=lambda: now[0])
    access.begin("alice")
    access.begin("alice")
    with pytest.raises(Overloaded, match="2 requests a minute") as caught:
        access.begin("alice")
    assert caught.value.seconds == pytest.approx(30)
    now[0] = 31
    access.begin("alice")


def test_the_cost_of_a_key_is_reserved_and_what_was_not_computed_is_given_back():
    now = [0.0]
    access = Access({"h": "alice"}, cost_per_minute=100, clock=lambda: now[0])
    access.charge("alice", 90)
    with pytest.raises(Overloaded, match="cost") as caught:
        access.charge("alice", 40)
    assert caught.value.seconds == pytest.approx(18)
    access.charge("alice", -60)
    access.charge("alice", 40)
    now[0] = 1000
    access.charge("alice", 100)  # never more than what a minute gives
    with pytest.raises(ConfigError, match="cost.*at most 100.*got 101"):
        access.charge("alice", 101)


def test_a_rate_below_one_a_minute_lets_a_request_in():
    now = [0.0]
    access = Access({}, requests_per_minute=0.5, clock=lambda: now[0])
    access.begin("")
    with pytest.raises(Overloaded) as caught:
        access.begin("")
    assert caught.value.seconds == pytest.approx(120)


def test_many_requests_at_once_cost_no_more_than_their_key_may_use(pipelines, goes_on):
    """Each is charged before it begins; what a client that leaves did not compute is given back."""
    slow = BODY | {"steps": 400, "stream": True, "diffusing": True}
    goes_on.clear()
    with served(pipelines, service=ServiceOptions(cost_per_minute=3000)) as service:
        (worker,) = [service.workers["hybrid"]]
        with httpx.stream("POST", f"{service.url}/v1/completions", json=slow) as stream:
            refused = send(service, None, slow)
            assert stream.status_code == 200 and refused.status_code == 429
            assert 0 < int(refused.headers["retry-after"]) <= 60
        goes_on.set()
        while worker.num_open:
            time.sleep(0.005)
        assert send(service, None).status_code == 200
        dear = send(service, None, slow | {"steps": 4000})
        assert dear.status_code == 400 and "3,000" in dear.json()["error"]["message"]


def test_a_full_service_refuses_and_is_not_ready(pipelines):
    """One request that takes long fills it; when that is cancelled there is room again."""
    options = WorkerOptions(max_requests=1, max_cost=10**9)
    with served(pipelines, options) as service:
        slow = BODY | {"steps": 4096, "n": 16, "max_tokens": 60, "stream": True, "diffusing": True}
        with httpx.stream("POST", f"{service.url}/v1/completions", json=slow) as stream:
            lines = stream.iter_lines()
            assert next(lines)
            response = send(service, None)
            assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "overloaded"
            assert httpx.get(f"{service.url}/readyz").status_code == 503
            assert httpx.get(f"{service.url}/healthz").status_code == 200
        while httpx.get(f"{service.url}/readyz").status_code == 503:
            time.sleep(0.01)
        assert send(service, None).status_code == 200
