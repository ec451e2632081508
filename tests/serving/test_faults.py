"""Faults: clients that vanish, requests that fail, a service that is told to end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from support.service import served
from support.small_model import write_model

BODY = {"prompt": "I", "max_tokens": 8, "steps": 8, "seed": 1}


def wait_until(condition) -> None:
    while not condition():
        time.sleep(0.005)


@pytest.mark.parametrize("times", [20, pytest.param(500, marks=pytest.mark.long)])
def test_clients_that_vanish_leave_nothing(pipelines, times):
    """Some during a stream, some before the answer, some before the end of their request."""
    with served(pipelines) as service:
        host, port = service.url.removeprefix("http://").split(":")
        (worker,) = [service.workers["hybrid"]]
        for index in range(times):
            slow = BODY | {"steps": 4096, "stream": index % 2 == 0, "diffusing": index % 4 == 0}
            body = json.dumps(slow).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
            with socket.create_connection((host, int(port)), timeout=20) as client:
                client.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode())
                client.sendall(body[: None if index % 5 else 10])
                if index % 5 and index % 4 == 0:
                    assert client.recv(20).startswith(b"HTTP/1.1 200")
                elif index % 5:
                    wait_until(lambda: worker.num_open)
            wait_until(lambda: not worker.num_open and not worker.session.pending)
        response = httpx.post(f"{service.url}/v1/completions", json=BODY)
        expected = pipelines["hybrid"].generate(prompt="I", max_tokens=8, steps=8, seed=1)
        assert response.json()["choices"][0]["text"] == expected[0].filled[0]
        assert threading.active_count() < 100


def test_a_request_that_fails_does_not_affect_others(pipelines, monkeypatch):
    """The network fails for sequences with one token; the others are answered."""
    pipe = pipelines["hybrid"]
    bad = pipe.tokenizer.encode("Q")[0]
    expected = pipe.generate(prompt="I", max_tokens=8, steps=8, seed=1)[0].filled[0]
    hidden = type(pipe.network).hidden

    def fail_at_times(self, z, *arguments, **settings):
        if (z == bad).any():
            raise RuntimeError("the network failed: secret")
        return hidden(self, z, *arguments, **settings)

    monkeypatch.setattr(type(pipe.network), "hidden", fail_at_times)
    with served(pipelines) as service, ThreadPoolExecutor(8) as threads:
        url, ban = f"{service.url}/v1/completions", {"logit_bias": {str(bad): -100}}

        def send(index: int):
            prompt = {"prompt": "Q"} if index % 4 == 0 else {}
            return httpx.post(url, json=BODY | ban | prompt, timeout=60)

        responses = list(threads.map(send, range(16)))
    for index, response in enumerate(responses):
        if index % 4 == 0:
            assert response.status_code == 500 and "secret" not in response.text
        else:
            assert response.json()["choices"][0]["text"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_service_that_is_told_to_end_finishes_what_it_accepted(tmp_path, streams):
    folder = write_model(tmp_path / "small", context=64)
    command = [sys.executable, "-m", "gidd.cli", "serve", str(folder), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)  # after a failure
        assert process.stderr is not None
        line = next(line for line in process.stderr if " at http://" in line)
        url = line.split(" at ")[1].split()[0]
        socket.create_connection(url.removeprefix("http://").split(":")).close()
        slow = BODY | {"steps": 256, "max_tokens": 60}
        stream = slow | {"stream": True, "diffusing": True}
        with ThreadPoolExecutor(9) as threads, httpx.Client(base_url=url, timeout=600) as client:
            sent = [
                threads.submit(client.post, "/v1/completions", json=body)
                for body in [slow] * 2 * streams + [stream] * streams
            ]
            count = f'requests_open{{model="small"}} {len(sent)}.0'
            wait_until(
                lambda: count in client.get("/metrics").text or all(one.done() for one in sent)
            )
            process.send_signal(signal.SIGTERM)
            responses = [one.result() for one in sent]
        log = process.stderr.read()
        assert process.wait(60) == 0, log
    failed = [response.text for response in responses if response.status_code != 200]
    assert not failed, (failed, log)
    texts = {response.json()["choices"][0]["text"] for response in responses[:-streams]}
    assert len(texts) == 1
    assert all(response.text.endswith("data: [DONE]\n\n") for response in responses[-streams:])
