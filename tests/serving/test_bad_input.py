"""Bad input: no body makes the service fail, hang or show a traceback."""

import json
import random
import re

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from support.service import BODIES

from gidd.serving.errors import ServiceError, invalid_request

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
VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, 1e308, float("nan"), float("inf"), -(2**63), 2**63,
    10**400, "", "a", "\ud800", "\x00", "[MASK]", "[MASK:3]", "[MASK:999999999]", "🙂" * 50,
    "a" * 900, [], [1], [[1, 2]], ["a"], [None], [-1], [2**40], {}, {"1": 5}, {"a": {}},
    {"1": float("nan")}, [[0, 1]], [[1, 0]], [{"role": "user", "content": "x"}], [{"role": "tool"}],
    "self_correction", {"include_usage": True}, "greedy", "ancestral",
)  # fmt: skip


OF_PYDANTIC = re.compile("Input|Field|Value error|valid(ation|ator)|is invalid|pydantic|str\\[")


def fuzzed(rng: random.Random) -> tuple[str, bytes]:
    """Return a path and a body: a good one with some fields replaced, or broken bytes."""
    path = rng.choice(list(BODIES))
    body = dict(GOOD[path])
    for _ in range(rng.randint(0, 2)):
        body[rng.choice([*BODIES[path].model_fields, "tools"])] = rng.choice(VALUES)
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
                message = response.json()["error"]["message"]
                assert message and not OF_PYDANTIC.search(message), (path, body, message)
    assert statuses[200] > number / 20 and statuses[400] > number / 4
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert all(not worker.session.pending for worker in service.workers.values())


def answer_to(error: ValidationError) -> ServiceError:
    """Return what FastAPI makes the service answer."""
    errors = [one | {"loc": ("body", *one["loc"])} for one in error.errors()]
    return invalid_request(RequestValidationError(errors))


MANY = 330_000


@pytest.mark.parametrize(
    "path, body, param",
    [
        ("completions", {"prompt": [{}] * MANY}, "prompt.0"),
        ("completions", {"prompt": [[]] * MANY}, "prompt.0"),
        ("completions", {"prompt": [1] * MANY}, "prompt"),
        ("completions", {"prompt": [[1, *[{}] * MANY]]}, "prompt.0.1"),
        ("completions", {"stop": [0] * MANY}, "stop"),
        ("completions", {"logit_bias": {str(i): "x" for i in range(MANY)}}, "logit_bias"),
        ("completions", {f"k{i}": 0 for i in range(MANY)}, "k0"),
        ("chat/completions", {"messages": [{}] * MANY}, "messages.0.role"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{}] * MANY}]},
            "messages.0.content.0.type",
        ),
        ("infill", {"text": "[MASK]", "choices": [0] * MANY}, "choices.0"),
        ("correct", {"text": "a", "protected": [[0, "x"]] * MANY}, "protected.0.1"),
    ],
)
def test_a_long_invalid_list_has_few_errors(path, body, param):
    """Each error takes microseconds and a kilobyte, while nothing else is answered."""
    with pytest.raises(ValidationError) as caught:
        BODIES[path].model_validate(body)
    assert caught.value.error_count() <= 2
    assert answer_to(caught.value).param == param


@pytest.mark.parametrize("values", [VALUES, [{"a": 1}, [{"type": "image"}], [[0]], ["", 0]]])
def test_problems_are_in_words_of_ours(values):
    for path, kind in BODIES.items():
        for name in [*kind.model_fields, "tools", "zzz"]:
            for value in values:
                try:
                    kind.model_validate(GOOD[path] | {name: value})
                except ValidationError as found:
                    error = answer_to(found)
                    assert error.param is not None
                    assert error.param.startswith(name) or ": needs " in str(error)
                    assert not OF_PYDANTIC.search(str(error)), (name, value, str(error))


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
