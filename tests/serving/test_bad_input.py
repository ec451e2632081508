"""Bad input: no body makes the service fail, hang or show a traceback."""

import json
import random
import re

import httpx
import pytest

PATHS = ("completions", "fim/completions", "chat/completions", "infill", "correct", "score")
GOOD = {
    "completions": {"prompt": "I", "max_tokens": 2, "steps": 1},
    "fim/completions": {"prompt": "I", "suffix": "a", "max_tokens": 2, "steps": 1},
    "chat/completions": {
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "steps": 1
    },
    "infill": {"text": "a[MASK]", "steps": 1},
    "correct": {"text": "ab", "error_rate": 0.1},
    "score": {"text": "ab", "likelihood": False},
}  # fmt: skip
FIELDS = (
    "model", "prompt", "suffix", "max_tokens", "temperature", "top_p", "n", "stream", "seed",
    "stop", "logprobs", "echo", "logit_bias", "messages", "text", "protected",
    "min_confidence", "steps", "error_rate", "method", "choices", "top", "sampler",
    "stream_options", "diffusing",
    "min_p", "self_correction", "guidance_scale", "negative_prompt", "block_length", "best_of",
    "likelihood",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, 1e308, float("nan"), float("inf"), -(2**63), 2**63,
    10**400, "", "a", "\ud800", "\x00", "[MASK]", "[MASK:3]", "[MASK:999999999]", "🙂" * 50,
    "a" * 900, [], [1], [[1, 2]], ["a"], [None], [-1], [2**40], {}, {"1": 5}, {"a": {}},
    {"1": float("nan")}, [[0, 1]], [[1, 0]], [{"role": "user", "content": "x"}], [{"role": "tool"}],
    "self_correction", {"include_usage": True}, "greedy", "ancestral",
)  # fmt: skip


def fuzzed(rng: random.Random) -> tuple[str, bytes]:
    """Return a path and a body: a good one with some fields replaced, or broken bytes."""
    path = rng.choice(PATHS)
    body = dict(GOOD[path])
    for _ in range(rng.randint(1, 3)):
        body[rng.choice(FIELDS)] = rng.choice(VALUES)
    raw = bytearray(json.dumps(body).encode())
    kind = rng.random()
    if kind < 0.15:
        for _ in range(rng.randint(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind < 0.2:
        del raw[rng.randrange(len(raw)) :]
    elif kind < 0.22:
        raw = bytearray(b"[" * 50_000)
    return path, bytes(raw)


@pytest.mark.parametrize("number", [300, pytest.param(5_000, marks=pytest.mark.long)])
def test_no_body_makes_it_fail(service, number):
    rng = random.Random(0)
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=f"{service.url}/v1/", timeout=60) as client:
        for _ in range(number):
            path, body = fuzzed(rng)
            headers = {"content-type": "application/json"}
            response = client.post(path, content=body, headers=headers)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            assert response.status_code < 500, (path, body, response.text)
            assert "Traceback" not in response.text
            if response.status_code != 200:
                assert response.json()["error"]["message"]
    assert statuses[200] > number / 20 and statuses[400] > number / 4
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert all(not worker.pool.pending for worker in service.workers.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "examples"),
    [("/v1/(models|score)", 6), pytest.param("/.+", 20, marks=pytest.mark.long)],
)
def test_the_openapi_document_is_kept(service, route, examples):
    """Schemathesis sends what the document allows, and what it does not."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    limits = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    for operation in schema.get_all_operations():
        operation = operation.ok()
        if operation.path == "/metrics" or not re.fullmatch(route, operation.path):
            continue

        @limits
        @given(case=operation.as_strategy())
        def send(case):
            response = case.call(timeout=60)
            assert response.status_code < 500, (case, response.text)

        send()
