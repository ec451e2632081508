"""Replicas on Ray: one is killed under load, and no request is lost."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from support.service import free_port
from support.small_model import write_model

import gidd
from gidd.common.actors import ray_session
from gidd.errors import ConfigError
from gidd.serving.replicas import serve_replicas, wanted_replicas

CLUSTERS_OF_RAY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def test_replicas_follow_the_work_that_waits():
    assert wanted_replicas([0.0], 1, 8) == 1
    assert wanted_replicas([12.0], 1, 8) == 3
    assert wanted_replicas([4.0, 4.0, 4.0], 1, 8) == 3
    assert wanted_replicas([900.0], 1, 8) == 8


class FakeRay(ModuleType):
    """Notes whether Ray was asked to listen on this machine alone; starts if it is told to."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("ray")
        self.failure, self.started = failure, []

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **_: object) -> None:
        self.started.append((address, os.environ.get(CLUSTERS_OF_RAY)))
        if self.failure is not None:
            raise self.failure

    def shutdown(self) -> None:
        pass


def test_ray_that_is_started_here_listens_here_alone(monkeypatch):
    monkeypatch.setenv(CLUSTERS_OF_RAY, "1")
    for name in ("RAY_ADDRESS", CLUSTERS_OF_RAY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray := FakeRay())
    with ray_session("10.0.0.1:6379"), ray_session(None):
        assert ray.started == [("10.0.0.1:6379", None), ("local", "0")]


def test_ray_that_does_not_start_is_one_message(monkeypatch):
    """It raises errors of no common type, and plain exceptions."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(CLUSTERS_OF_RAY, "0")
    monkeypatch.setitem(sys.modules, "ray", FakeRay(Exception("The node timed out.")))
    with pytest.raises(ConfigError, match="Ray must start .*The node timed out"), ray_session(None):
        pass


def test_replicas_that_do_not_start_are_one_message(monkeypatch):
    serve = ModuleType("ray.serve")
    serve.ended = False

    def run(application: object, **_: object) -> None:
        raise TimeoutError("Proxies not available after 60s.")

    monkeypatch.setattr(serve, "start", lambda **_: None, raising=False)
    monkeypatch.setattr(serve, "run", run, raising=False)
    monkeypatch.setattr(serve, "shutdown", lambda: setattr(serve, "ended", True), raising=False)
    monkeypatch.setenv(CLUSTERS_OF_RAY, "0")
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    with pytest.raises(ConfigError, match="Ray Serve must start.*Proxies not available"):
        serve_replicas(None, host="127.0.0.1", port=8000, seconds=1)
    assert serve.ended


def replicas_of(process: subprocess.Popen) -> list:
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "ServeReplica" in " ".join(child.cmdline())]


def open_ports(process: subprocess.Popen) -> list[str]:
    """Return the names of processes with a port that other machines can reach."""
    import psutil

    return [
        child.name()
        for child in psutil.Process(process.pid).children(recursive=True)
        for connection in child.net_connections("tcp")
        if connection.status == "LISTEN"
        and not re.fullmatch(r"(::ffff:)?127\..*|::1", connection.laddr.ip)
    ]


@pytest.mark.long
def test_no_request_is_lost_with_a_replica_that_is_killed(tmp_path):
    """Clients send again what a killed replica did not answer, as OpenAI's does by itself."""
    openai = pytest.importorskip("openai", reason="pip install 'gidd[eval]'")
    pytest.importorskip("ray.serve", reason="pip install 'gidd[replicas]'")
    folder, port = write_model(tmp_path / "small", context=64), free_port()
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "gidd.cli", "serve", str(folder)]
    command += ["--port", str(port), "--replicas", "2"]
    settings = {"max_tokens": 32, "extra_body": {"steps": 64}}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(" at http://" in line for line in process.stderr)
        url = f"http://127.0.0.1:{port}/v1"
        try:
            with openai.OpenAI(base_url=url, api_key="none", max_retries=8) as client:

                def send(seed: int) -> str:
                    found = client.completions.create(
                        model="small", prompt="I", seed=seed, timeout=60, **settings
                    )
                    return found.choices[0].text

                with ThreadPoolExecutor(8) as threads:
                    sent = [threads.submit(send, seed) for seed in range(60)]
                    while sum(one.done() for one in sent) < 10:
                        time.sleep(0.01)
                    killed, *_ = found = replicas_of(process)
                    assert len(found) == 2
                    # Ray Serve's own port of each replica, which Ray's token protects
                    assert len(ports := open_ports(process)) <= 2, ports
                    os.kill(killed.pid, signal.SIGKILL)
                    texts = [one.result() for one in sent]
        finally:
            process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(120) == 0
    pipe = gidd.from_pretrained(folder)
    for seed in (0, 30, 59):
        (expected,) = pipe.generate(prompt="I", max_tokens=32, steps=64, seed=seed)
        assert texts[seed] == expected.filled[0]
