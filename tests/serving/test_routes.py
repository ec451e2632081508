"""The routes: their answers are the pipeline's results, in the forms that clients expect."""

import json
import threading

import httpx
import pytest
from support.service import BODIES


@pytest.fixture
def post(service):
    def send(path: str, body: dict, status: int = 200) -> dict:
        response = httpx.post(f"{service.url}/v1/{path}", json=body, timeout=60)
        assert response.status_code == status, response.text
        return response.json()

    return send


def events(service, path: str, body: dict, on_event=None) -> list[dict]:
    """Return the events of a stream; `on_event` is called when one arrives."""
    lines = []
    url = f"{service.url}/v1/{path}"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in filter(None, response.iter_lines()):
            lines.append(line)
            if on_event:
                on_event()
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


PROMPT = {"prompt": "I embrace", "max_tokens": 12, "steps": 8, "seed": 5}


def test_a_completion_is_what_the_pipeline_generates(post, pipelines):
    found = post("completions", PROMPT | {"n": 2, "top_p": 0.9, "temperature": 0.7})
    expected = pipelines["hybrid"].generate(
        n=2, prompt="I embrace", max_tokens=12, steps=8, seed=5, top_p=0.9, temperature=0.7
    )
    assert [choice["text"] for choice in found["choices"]] == [g.filled[0] for g in expected]
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    assert found["object"] == "text_completion" and found["model"] == "hybrid"
    assert found["seed"] == 5
    given, new = found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]
    assert found["usage"]["total_tokens"] == given + new and new <= 24


def test_a_suffix_is_kept_and_what_is_between_is_filled_in(post, pipelines):
    body = PROMPT | {"suffix": " for all", "echo": True}
    (choice,) = post("completions", body)["choices"]
    (expected,) = pipelines["hybrid"].generate(
        prompt="I embrace", suffix=" for all", max_tokens=12, steps=8, seed=5
    )
    assert choice["text"] + " for all" == expected.text
    fim = post("fim/completions", {**PROMPT, "suffix": " for all", "random_seed": 5, "seed": None})
    assert fim["choices"][0]["text"] == expected.filled[0]


def test_several_prompts_have_samples_of_their_own(post, pipelines):
    body = PROMPT | {"prompt": ["I", "Peace"], "n": 2}
    found = [choice["text"] for choice in post("completions", body)["choices"]]
    expected = []
    for index, prompt in enumerate(["I", "Peace"]):
        expected += pipelines["hybrid"].generate(
            n=2, prompt=prompt, max_tokens=12, steps=8, seed=5, start_index=2 * index
        )
    assert found == [generation.filled[0] for generation in expected]
    tokens = pipelines["hybrid"].tokenizer.encode("Peace")
    again = post("completions", PROMPT | {"prompt": tokens})
    assert (
        again["choices"][0]["text"]
        == pipelines["hybrid"].generate(prompt="Peace", max_tokens=12, steps=8, seed=5)[0].filled[0]
    )


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_encoded_beside_the_event_loop(post, service, pipelines, monkeypatch, stream):
    """Checking 100,000 tokens takes a second, in which other requests are answered."""
    decoder, threads = pipelines["hybrid"].decoder, set()
    encode = type(decoder).encode

    def encode_and_note(self, text, what, **options):
        threads.add(threading.current_thread().name[:9])
        return encode(self, text, what, **options)

    monkeypatch.setattr(type(decoder), "encode", encode_and_note)
    body = PROMPT | {"prompt": [decoder.tokenizer.encode("Peace")] * 2}
    events(service, "completions", body) if stream else post("completions", body)
    assert threads == {"gidd-call"}


@pytest.mark.parametrize("model", ["hybrid", "masked"])
@pytest.mark.parametrize("echo", [False, True])
def test_log_probabilities_belong_to_the_tokens_of_the_text(post, model, echo):
    body = PROMPT | {"model": model, "logprobs": 3, "echo": echo}
    (choice,) = post("completions", body)["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"])
    assert len(found["text_offset"]) == len(found["tokens"])
    for offset, token in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][offset : offset + len(token)] == token
    assert all(value <= 0 for value in found["token_logprobs"])
    most = 3 if model == "hybrid" else 1
    assert all(0 < len(top) <= most for top in found["top_logprobs"])


def test_a_bias_excludes_or_requires_tokens(post, pipelines):
    token = pipelines["hybrid"].tokenizer.encode("e")[0]
    (choice,) = post("completions", PROMPT | {"logit_bias": {str(token): 100}})["choices"]
    assert choice["text"] == "e" * 12
    (choice,) = post("completions", PROMPT | {"logit_bias": {str(token): -100}})["choices"]
    assert "e" not in choice["text"] or "e" not in choice["text"].replace("en", "")
    for key in ("x", "-1", "1e1", "٣", "05", "000000000000000000005", "5" * 11):
        error = post("completions", PROMPT | {"logit_bias": {key: 1}}, 400)["error"]
        assert error["message"] == "logit_bias: keys must be token ids."


def test_a_text_ends_before_a_stop_string(post, pipelines):
    pipe = pipelines["hybrid"]
    (whole,) = pipe.generate(prompt="I embrace", max_tokens=12, steps=8, seed=5)
    stop = whole.filled[0][3:5]
    (choice,) = post("completions", PROMPT | {"stop": stop})["choices"]
    assert choice["text"] == whole.filled[0][: whole.filled[0].index(stop)]
    assert choice["finish_reason"] == "stop"


def test_streamed_blocks_are_the_text_in_order(service, pipelines):
    body = PROMPT | {"block_length": 4, "n": 2, "stream_options": {"include_usage": True}}
    found = events(service, "completions", body)
    expected = pipelines["hybrid"].generate(
        n=2, prompt="I embrace", max_tokens=12, steps=8, seed=5, block_length=4
    )
    *chunks, last = found
    assert last["choices"] == [] and last["usage"]["completion_tokens"] <= 24
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == expected[index].filled[0]
        assert [choice["finish_reason"] for choice in own][-1] in ("stop", "length")
        assert all(choice["finish_reason"] is None for choice in own[:-1])
    assert len(chunks) > 4
    given = len(pipelines["hybrid"].tokenizer.encode("I embrace"))
    assert last["usage"]["prompt_tokens"] == given  # once, of two samples


@pytest.mark.parametrize("changes", [{}, {"block_length": 4}, {"suffix": " for all"}])
def test_frames_of_two_samples_replace_their_own_text(service, pipelines, changes):
    """In blocks as well, every frame has the whole text, and progress never falls."""
    body = PROMPT | changes | {"n": 2, "diffusing": True}
    found = events(service, "completions", body)
    settings = {"prompt": "I embrace", "max_tokens": 12, "steps": 8, "seed": 5} | changes
    expected = pipelines["hybrid"].generate(n=2, **settings)
    for index in range(2):
        own = [c for c in found if c["choices"][0]["index"] == index]
        frames = [c for c in own if "diffusion_meta" in c]
        assert frames[-1]["choices"][0]["text"] == expected[index].filled[0]
        for frame in frames:
            text = frame["choices"][0]["text"]
            for edit in frame["gidd"]["edits"]:
                assert text[edit["start"] : edit["end"]] == edit["text"]
        texts = [frame["choices"][0]["text"] for frame in frames]
        assert all(len(text) >= 4 for text in texts)
        assert len(frames) >= 2 and texts[-2] == texts[-1]  # the last frame, then the result
        progress = [frame["diffusion_meta"]["diffusion_progress"] for frame in frames]
        assert progress == sorted(progress) and progress[-1] == 1
        assert own[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_a_chat_is_answered_in_one_piece_in_blocks_and_as_it_changes(post, service, pipelines):
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 3"}]},
    ]
    body = {"messages": messages, "max_tokens": 8, "steps": 4, "seed": 3, "block_length": 4}
    found = post("chat/completions", body | {"n": 2})
    one = post("chat/completions", body)["usage"]["prompt_tokens"]
    assert found["usage"]["prompt_tokens"] == one > 0
    plain = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "2 + 3"},
    ]
    pipe = pipelines["hybrid"]
    settings = {"max_tokens": 8, "steps": 4, "block_length": 4}
    expected = [pipe.chat(plain, seed=3 + k, **settings).text for k in range(2)]
    assert [choice["message"]["content"] for choice in found["choices"]] == expected
    blocks = events(service, "chat/completions", body)
    deltas = [chunk["choices"][0]["delta"] for chunk in blocks]
    assert "".join(delta.get("content", "") for delta in deltas) == expected[0]
    assert deltas[-1] == {} and blocks[0]["object"] == "chat.completion.chunk"
    frames = events(service, "chat/completions", body | {"diffusing": True})
    assert frames[-2]["choices"][0]["delta"]["content"] == expected[0]
    assert frames[-1]["choices"][0]["delta"] == {}
    refused = post("chat/completions", body | {"model": "masked"}, 400)
    assert "was not trained on chats" in refused["error"]["message"]


def test_blanks_are_filled_with_confidences(post, service, pipelines):
    body = {"text": "I[MASK:2] with[MASK] all", "steps": 4, "seed": 2}
    found = post("infill", body | {"n": 2})
    expected = pipelines["hybrid"].infill(body["text"], n=2, steps=4, seed=2, confidence=True)
    for choice, generation in zip(found["choices"], expected, strict=True):
        assert choice["text"] == generation.text
        assert choice["filled"] == list(generation.filled)
        assert [token["probability"] for token in choice["tokens"]] == pytest.approx(
            list(generation.confidence)
        )
    *frames, last = events(service, "infill", body)
    assert last["result"]["choices"][0] == found["choices"][0]
    assert [frame["frame"]["step"] for frame in frames][-1] == 4


TEXT = "I embrace with great satisfaction the opportunity"


def test_a_text_is_corrected_as_by_the_pipeline(post, pipelines):
    pipe = pipelines["hybrid"]
    found = post("correct", {"text": TEXT, "min_confidence": 0.1, "protected": [[0, 9]]})
    expected = pipe.correct(TEXT, min_confidence=0.1, protected=[(0, 9)])
    assert found["text"] == expected.text and found["text"].startswith(TEXT[:9])
    assert found["error_rate"] == expected.error_rate
    assert len(found["edits"]) == len(expected.changes)
    assert len(found["suggestions"]) == len(expected.suggestions)
    for edit in found["edits"]:
        assert TEXT[edit["start"] : edit["stop"]] == edit["old"]
        assert edit["alternatives"][0]["text"] == edit["new"]
    refused = post("correct", {"text": TEXT, "model": "masked"}, 400)
    assert "masking alone" in refused["error"]["message"]


def test_self_correction_is_watched_as_it_happens(service, pipelines, goes_on):
    body = {"text": TEXT, "method": "self_correction", "forward_passes": 6, "seed": 1}
    goes_on.clear()
    *frames, last = events(service, "correct", body, on_event=goes_on.set)
    expected = pipelines["hybrid"].self_correct(TEXT, forward_passes=6, seed=1, temperature=0.1)
    assert last["result"]["text"] == expected.text
    assert last["result"]["self_accuracy"] == list(expected.self_accuracy)
    assert len(frames) >= 2


def test_a_text_is_scored(post, pipelines):
    found = post("score", {"text": TEXT, "prompt": "Yes. ", "top": 2})
    expected = pipelines["hybrid"].score(TEXT, prompt="Yes. ")
    assert found["nelbo"] == pytest.approx(expected.nelbo, rel=1e-6)
    probabilities = [token["probability"] for token in found["tokens"]]
    assert probabilities == pytest.approx(list(expected.confidence), rel=1e-4)
    assert all(len(token["alternatives"]) == 2 for token in found["tokens"])
    quick = post("score", {"text": TEXT, "likelihood": False, "model": "masked"})
    assert quick["nelbo"] is None and quick["tokens"][0]["probability"] is None


def test_models_health_and_metrics(service):
    models = httpx.get(f"{service.url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["hybrid", "masked"]
    assert [model["can_correct"] for model in models] == [True, False]
    assert httpx.get(f"{service.url}/v1/models/masked").json()["id"] == "masked"
    assert httpx.get(f"{service.url}/healthz").json() == {"alive": True}
    assert httpx.get(f"{service.url}/readyz").json() == {"ready": True}
    metrics = httpx.get(f"{service.url}/metrics").text
    assert 'gidd_forward_passes_total{model="hybrid"}' in metrics
    assert 'gidd_request_seconds_bucket{le="0.01",path="/healthz",status="200"}' in metrics
    assert "text/html" in httpx.get(f"{service.url}/").headers["content-type"]
    assert httpx.get(f"{service.url}/docs").status_code == 404  # it would load foreign scripts


@pytest.mark.parametrize(
    "path, body, status, says",
    [
        ("completions", {"prompt": "a", "max_tokens": 1000}, 400, "max_tokens must be at most 63"),
        ("completions", {"prompt": "a", "model": "x"}, 404, "must be one of hybrid, masked"),
        ("completions", {"prompt": "a", "n": 99}, 400, "n: must be at most 16."),
        ("completions", {"prompt": "a", "sampler": "x"}, 400, "sampler must be"),
        ("completions", {"prompt": [999999]}, 400, "tokens must be what"),
        ("completions", {"suffix": "a", "stop": "b", "stream": True}, 400, "stop must be empty"),
        ("infill", {"text": "no blank"}, 400, "must have a blank"),
        ("correct", {"text": "abc", "protected": [[2, 9]]}, 400, "protected span"),
        ("responses", {}, 404, "POST /v1/completions, "),
        ("embeddings", {}, 404, "POST /v1/chat/completions, "),
        ("models", {}, 405, "GET /v1/models, "),
        ("completions/", {}, 404, "POST /v1/completions, "),
    ],
)
def test_mistakes_are_answered_in_the_format_of_openai(post, path, body, status, says):
    error = post(path, body, status)["error"]
    assert says in error["message"] and set(error) == {"message", "type", "param", "code"}


REQUIRED = {
    "completions": {"prompt": "a", "max_tokens": 2, "steps": 1},
    "fim/completions": {"prompt": "a", "max_tokens": 2, "steps": 1},
    "chat/completions": {
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "steps": 1
    },
    "infill": {"text": "a[MASK]", "steps": 1},
    "correct": {"text": "ab"},
    "score": {"text": "ab", "likelihood": False},
}  # fmt: skip
USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "path, fields, param",
    [
        ("completions", {"stream": True, "logprobs": 0}, "logprobs"),
        ("completions", {"stream": True, "stream_options": {"a": 1}}, "stream_options.a"),
        ("chat/completions", {"messages": [USER, USER | {"x": 1}]}, "messages.1.x"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]},
            "messages.0.content.0.x",
        ),
        ("infill", {"choices": []}, "choices"),
    ],
)
def test_a_field_without_an_effect_is_refused_by_its_name(post, path, fields, param):
    error = post(path, REQUIRED[path] | fields, 400)["error"]
    assert error["param"] == param and error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("path", REQUIRED)
def test_null_is_the_default_of_every_field(post, path):
    """As are the values of OpenAI's fields that ask for nothing, which clients may send."""
    kind = BODIES[path]
    nothing = {"tools": [], "frequency_penalty": 0, "response_format": {"type": "text"}}
    neutral = {name: value for name, value in nothing.items() if name in kind.unsupported}
    post(path, dict.fromkeys(kind.model_fields) | neutral | REQUIRED[path])
