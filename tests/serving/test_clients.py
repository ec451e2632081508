"""Clients that people use: OpenAI's own, and LiteLLM."""

import pytest

openai = pytest.importorskip("openai", reason="pip install 'gidd[eval]' installs OpenAI's client")

MESSAGES = [{"role": "user", "content": "2 + 3"}]
SETTINGS = {"steps": 4, "block_length": 4}


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_openai_completes_and_infills(client, pipelines):
    found = client.completions.create(
        model="hybrid", prompt="I embrace", max_tokens=8, seed=4, logprobs=2, n=2,
        extra_body={"steps": 4},
    )  # fmt: skip
    expected = pipelines["hybrid"].generate(n=2, prompt="I embrace", max_tokens=8, seed=4, steps=4)
    assert [choice.text for choice in found.choices] == [g.filled[0] for g in expected]
    assert len(found.choices[0].logprobs.tokens) == found.usage.completion_tokens // 2
    found = client.completions.create(
        model="hybrid", prompt="I", suffix=" all", max_tokens=4, seed=4, extra_body={"steps": 4}
    )
    expected = pipelines["hybrid"].generate(
        prompt="I", suffix=" all", max_tokens=4, seed=4, steps=4
    )
    assert found.choices[0].text == expected[0].filled[0]
    assert {model.id for model in client.models.list()} == {"hybrid", "masked"}


def test_openai_streams_and_chats(client, pipelines):
    chunks = client.completions.create(
        model="hybrid", prompt="I", max_tokens=8, seed=4, stream=True, extra_body=SETTINGS,
        stream_options={"include_usage": True},
    )  # fmt: skip
    found = list(chunks)
    expected = pipelines["hybrid"].generate(prompt="I", max_tokens=8, seed=4, **SETTINGS)
    pieces = [choice.text for chunk in found for choice in chunk.choices]
    assert "".join(pieces) == expected[0].filled[0] and found[-1].usage.completion_tokens > 0
    answer = client.chat.completions.create(
        model="hybrid", messages=MESSAGES, max_completion_tokens=8, seed=4, extra_body=SETTINGS
    )
    expected = pipelines["hybrid"].chat(MESSAGES, max_tokens=8, seed=4, **SETTINGS)
    assert answer.choices[0].message.content == expected.text
    chunks = client.chat.completions.create(
        model="hybrid", messages=MESSAGES, max_tokens=8, seed=4, stream=True, extra_body=SETTINGS
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == expected.text


def test_openai_raises_its_own_errors(client):
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at most"):
        client.completions.create(model="hybrid", prompt="I", max_tokens=1000)
    with pytest.raises(openai.NotFoundError, match="must be one of"):
        client.completions.create(model="nothing", prompt="I")


@pytest.mark.slow
def test_litellm_completes_and_chats(service, pipelines):
    litellm = pytest.importorskip("litellm", reason="pip install litellm", exc_type=ImportError)
    where = {"api_base": f"{service.url}/v1", "api_key": "none", "seed": 4, "max_tokens": 8}
    found = litellm.text_completion(
        model="text-completion-openai/hybrid", prompt="I", **where, extra_body=SETTINGS
    )
    expected = pipelines["hybrid"].generate(prompt="I", max_tokens=8, seed=4, **SETTINGS)
    assert found.choices[0].text == expected[0].filled[0]
    found = litellm.completion(
        model="openai/hybrid", messages=MESSAGES, **where, extra_body=SETTINGS
    )
    expected = pipelines["hybrid"].chat(MESSAGES, max_tokens=8, seed=4, **SETTINGS)
    assert found.choices[0].message.content == expected.text
