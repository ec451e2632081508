"""Each field of each body of the service, in each form of a request that has its own code."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import httpx
import pytest
from pydantic import BaseModel
from support.options import check_option
from support.service import BODIES, served, small_pipelines

USER, SYSTEM = ({"role": role, "content": role} for role in ("user", "system"))
WRITTEN: dict[str, Any] = {"max_tokens": 8, "steps": 4, "seed": 5}
COMPLETION = WRITTEN | {"prompt": "I embrace the"}
CHAT = WRITTEN | {"messages": [SYSTEM, USER]}
INFILL = {"text": "I[MASK:3] with all", "steps": 4, "seed": 5}
CORRECT = {"text": "I embrace with grate satisfaktion the opportunity"}
SELF = {"method": "self_correction", "temperature": 1.5, "forward_passes": 5}
CHOICES = ["aaa", "bcd", "xyz", "qwv", "k;z", "h?j", "dfg", "wxq"]
STREAM, MASKED = {"stream": True}, {"model": "masked"}
DIFFUSING, GUIDED = STREAM | {"diffusing": True}, {"guidance_scale": 3}
FORMS: dict[str, list[dict[str, Any]]] = {
    "completions": [
        COMPLETION | form
        for form in (
            *({}, STREAM, DIFFUSING, MASKED, {"block_length": 4}),
            *({"suffix": " all"}, {"suffix": " all"} | STREAM),
        )
    ],
    "fim/completions": [COMPLETION | form for form in ({}, STREAM)],
    "chat/completions": [CHAT | form for form in ({}, STREAM, DIFFUSING, GUIDED)],
    "infill": [INFILL | form for form in ({}, STREAM, MASKED, {"choices": CHOICES})],
    "correct": [CORRECT | form for form in ({}, STREAM, SELF, SELF | STREAM)],
    "score": [CORRECT | form for form in ({}, {"likelihood": False}, MASKED)],
}
"""By route, bodies that differ in what reads their fields."""

AWAY: dict[str, Any] = {
    "best_of": 2,
    "guided_choice": ["ab", "abababab"],
    "guided_json": {"enum": ["a", "ababab"]},
    "guided_regex": "[a-c]{2,9}",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"schema": {"enum": ["a", "ababab"]}},
    },
    "response_format.json_schema": {
        "type": "json_schema",
        "json_schema": {"schema": {"enum": [1, 12345678]}},
    },
    "response_format.type": {"type": "json_object"},
    "structured_outputs": {"regex": "[a-c]{2,9}"},
    "block_length": 3,
    "choices": ["xyz", "aba"],
    "diffusing": True,
    "echo": True,
    "error_rate": 0.4,
    "forward_passes": 3,
    "guidance_scale": 5,
    "likelihood": False,
    "logit_bias": {"5": 100},
    "logprobs": 2,
    "max_completion_tokens": 3,
    "max_tokens": 3,
    "messages": [USER],
    "messages.content": [{"role": "user", "content": "Peace"}],
    "messages.content.text": [{"role": "user", "content": [{"type": "text", "text": "Peace"}]}],
    "messages.content.type": [{"role": "user", "content": [{"type": "image", "text": "Peace"}]}],
    "messages.role": [SYSTEM, SYSTEM | {"content": "user"}],
    "method": "self_correction",
    "min_confidence": 1.0,
    "wrong_tokens": "frequent",
    "min_p": 0.9,
    "model": "masked",
    "n": 2,
    "negative_prompt": "satisfaction",
    "prompt": "Peace",
    "protected": [[0, 9]],
    "random_seed": 6,
    "sampler": "greedy",
    "seed": 6,
    "self_correction": 8,
    "steps": 3,
    "stop": ["e", "n", "+", "/"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "stream_options.include_usage": {"include_usage": True},
    "suffix": " for all",
    "temperature": 2.0,
    "text": "Peace [MASK:3]",
    "top": 2,
    "top_k": 1,
    "top_p": 0.1,
}


def field_names(kind: type[BaseModel]) -> Iterator[str]:
    """Yield the fields of a body, and those of its parts after the name of what they are in."""
    for name, field in kind.model_fields.items():
        yield name
        for part in parts_of(field.annotation):
            yield from (f"{name}.{own}" for own in field_names(part))


def parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for member in get_args(annotation):
        yield from parts_of(member)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Return what the service says to a body, without what differs in each answer."""
    known: dict[str, Any] = {}
    pipelines = small_pipelines(tmp_path_factory.mktemp("models"))
    for pipe in pipelines.values():  # so that each token depends on all others
        for parameter_name, parameter in pipe.denoiser.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(1)
    with (
        served(pipelines) as service,
        httpx.Client(base_url=f"{service.url}/v1/", timeout=60) as client,
    ):
        posts = [route.path[4:] for route in service.app.routes if "POST" in route.methods]
        assert posts == list(FORMS) == list(BODIES)

        def ask(path: str, body: dict[str, Any]) -> Any:
            key = path + json.dumps(body)
            if key not in known:
                known[key] = client.post(path, json=body)
            return said(known[key])

        yield ask


def said(response: httpx.Response) -> Any:
    if response.status_code == 400:
        raise ValueError(response.json()["error"]["message"])
    assert response.status_code == 200, response.text
    if response.text.startswith("{"):
        return without_names(response.json())
    *lines, end = [line[6:] for line in response.text.split("\n") if line]
    chunks = [without_names(json.loads(line)) for line in lines]
    # of the frames of a sample, those are sent that are taken in time
    frames = [i for i, chunk in enumerate(chunks) if "frame" in chunk or "diffusion_meta" in chunk]
    return bool(frames), [chunk for i, chunk in enumerate(chunks) if i not in frames[:-1]], end


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in answer.items() if k not in ("id", "created", "seed", "model", "gidd")}


@pytest.mark.parametrize(
    "path, name", [(path, name) for path, kind in BODIES.items() for name in field_names(kind)]
)
def test_a_field_changes_the_answer_or_is_refused(request, ask, path, name):
    field = name.partition(".")[0]
    for form in FORMS[path]:
        if form.get(field) != AWAY[name]:
            default = ask(path, form)
            away = partial(ask, path, form | {field: AWAY[name]})
            check_option(request, f"/v1/{path}", field, default, away)


@pytest.mark.parametrize("path", FORMS)
def test_fields_that_there_are_not_are_refused(request, ask, path):
    """Those of OpenAI's, with any value that asks for something, and unknown ones."""
    form = FORMS[path][0]
    for name in BODIES[path].unsupported.split():
        check_option(request, f"/v1/{path}", name, None, partial(ask, path, form | {name: "x"}))
    for name in form:
        with pytest.raises(ValueError, match=f"^{name}y: unknown field. Did you mean {name}\\?$"):
            ask(path, form | {f"{name}y": form[name]})
