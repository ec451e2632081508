"""Replicas on Ray: one is killed under load, and no request is lost."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.service import free_port
from support.small_model import write_model

import gidd
from gidd.serving.replicas import wanted_replicas


def test_replicas_follow_the_work_that_waits():
    assert wanted_replicas([0.0], 1, 8) == 1
    assert wanted_replicas([12.0], 1, 8) == 3
    assert wanted_replicas([4.0, 4.0, 4.0], 1, 8) == 3
    assert wanted_replicas([900.0], 1, 8) == 8


def replicas_of(process: subprocess.Popen) -> list:
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "ServeReplica" in " ".join(child.cmdline())]


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
