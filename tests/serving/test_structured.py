"""Text of a given form over HTTP, as OpenAI's and vLLM's clients ask for it."""

import json
import random
import re

import httpx
import pytest

openai = pytest.importorskip("openai", reason="pip install 'gidd[eval]' installs OpenAI's client")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}, "b": {"type": "null"}},
    "required": ["a"],
}
JSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "it", "schema": SCHEMA, "strict": True},
}
MESSAGES = [{"role": "user", "content": "2 + 3"}]


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def post(service):
    with httpx.Client(base_url=f"{service.url}/v1/", timeout=60) as http:
        yield lambda path, **body: http.post(path, json={"seed": 3, "steps": 3} | body)


def test_openais_client_gets_json_of_its_schema(client):
    validate = pytest.importorskip("jsonschema").validate
    answer = client.chat.completions.create(
        model="hybrid",
        messages=MESSAGES,
        max_tokens=24,
        seed=1,
        response_format=JSON_FORMAT,
        extra_body={"steps": 3},
    )
    validate(json.loads(answer.choices[0].message.content), SCHEMA)
    answer = client.chat.completions.create(
        model="hybrid",
        messages=MESSAGES,
        max_tokens=24,
        seed=1,
        response_format={"type": "json_object"},
        extra_body={"steps": 3},
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[a-c]{2,4}"}, "[a-c]{2,4}"),
        ({"structured_outputs": {"regex": "[xyz]+"}}, "[xyz]+"),
        ({"guided_choice": ["a.b", "cd"]}, r"a\.b|cd"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_json": {"enum": [1, 23]}}, "1|23"),
        ({"guided_json": json.dumps({"enum": [1, 23]})}, "1|23"),
        ({"structured_outputs": {"json": {"const": "a"}}}, '"a"'),
    ],
)
def test_bodies_of_vllm(post, fields, pattern):
    for more in ({}, {"block_length": 4, "stream": True}):
        answer = post("completions", prompt="I embrace", max_tokens=12, **fields, **more)
        assert answer.status_code == 200, answer.text
        chunks = re.findall(r"data: (\{.*)", answer.text) if more else [answer.text]
        text = "".join(
            choice["text"] or "" for chunk in chunks for choice in json.loads(chunk)["choices"]
        )
        assert re.fullmatch(pattern, text), text


def test_label_questions_have_probabilities(post, pipelines):
    body = {"text": "I[MASK:3] with all", "choices": ["aba", "xyz"]}
    answer = post("infill", **body).json()
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    (expected,) = pipelines["hybrid"].choice_probabilities(body["text"], body["choices"], steps=3)
    assert answer["probabilities"] == expected
    assert "probabilities" not in post("infill", text=body["text"]).json()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"guided_regex": "(a{1000}){1000}"}, "too large"),
        ({"guided_regex": "(?=a)"}, "lookahead"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"format": "date"}}, "format"),
        ({"guided_regex": "abcdefghijklmnop", "max_tokens": 3}, "3 tokens"),
        ({"guided_regex": "a", "stop": ["b"]}, "stop"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"x": 1}}}, "json_schema.x"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs.regex"),
    ],
)
def test_what_is_not_supported_is_an_error_that_says_what(post, fields, words):
    answer = post("completions", **{"prompt": "I", "max_tokens": 8} | fields)
    assert answer.status_code in (400, 422) and words in answer.text, answer.text


def random_value(rng: random.Random, depth: int):
    words = "type enum const anyOf $ref items properties required maxItems minLength #/ # string "
    words = words.split() + ["object", "array", "integer", "minimum", "é", ""]
    kind = rng.randrange(5 if depth else 3)
    if kind == 0:
        return rng.choice(words)
    if kind == 1:
        return rng.choice([None, True, False, -1, 0, 3, 10**30, 1.5, "#", "null"])
    if kind == 2:
        return rng.choice(["object", "array", "string", "integer", "boolean", ["null", "number"]])
    if kind == 3:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(words): random_value(rng, depth - 1) for _ in range(rng.randrange(5))}


@pytest.mark.parametrize("num", [40, pytest.param(2000, marks=pytest.mark.long)])
def test_no_schema_fails_the_service(post, num):
    rng, statuses = random.Random(4), list[int]()
    for _ in range(num):
        schema = {rng.choice(["type", "anyOf", "properties", "enum"]): random_value(rng, 3)}
        answer = post("completions", prompt="I", max_tokens=20, steps=1, guided_json=schema)
        statuses.append(answer.status_code)
        assert answer.status_code in (200, 400, 422), (schema, answer.text)
    assert {200, 400} <= set(statuses)
    assert post("completions", prompt="I", max_tokens=2).status_code == 200
