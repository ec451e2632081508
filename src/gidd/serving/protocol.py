"""Bodies of requests, as OpenAI's clients send them, with the fields of diffusion models."""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_SAMPLES = 16
MAX_PROMPTS = 32
MAX_STEPS = 4096
_MAX_STOP, _MAX_BIASES, _MAX_SPANS, _MAX_CHOICES = 4, 300, 10_000, 256

Text = Annotated[str, StringConstraints(max_length=1_000_000)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Probability = Annotated[float, Field(ge=0, le=1)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Span = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


def _example(extra: Literal["ignore", "forbid"] = "ignore", **fields: object) -> ConfigDict:
    return ConfigDict(extra=extra, json_schema_extra={"examples": [cast(Any, fields)]})


class Body(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(allow_inf_nan=False, strict=False)

    model: str | None = Field(None, description="Name of the model; the first one by default.")


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class SampledBody(Body):
    """Fields of requests that sample."""

    n: int = Field(1, ge=1, le=MAX_SAMPLES, description="Number of samples.")
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="The same seed gives the same samples. By default another one each time, which "
        "the answer names.",
    )
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    steps: int | None = Field(None, ge=1, le=MAX_STEPS, description="Denoising steps.")
    sampler: str | None = Field(None, description="Denoising step, as of `gidd sample --sampler`.")
    guidance_scale: float | None = Field(None, ge=0, le=100)
    negative_prompt: Text | None = None
    self_correction: int | None = Field(
        None, ge=0, le=MAX_STEPS, description="Forward passes of self-correction of the sample."
    )
    logit_bias: Annotated[dict[str, float], Field(max_length=_MAX_BIASES)] | None = None
    stream: bool = False
    diffusing: bool = Field(
        False, description="With `stream`: the whole text after each step, not its finished blocks."
    )


class WrittenBody(SampledBody):
    """Fields of requests that write a text from left to right."""

    block_length: int | None = Field(None, ge=1, description="Sample in blocks of so many tokens.")
    stop: Stop | Annotated[list[Stop], Field(max_length=_MAX_STOP)] | None = None
    presence_penalty: float = Field(0.0, ge=0, le=0, description="Only 0.")
    frequency_penalty: float = Field(0.0, ge=0, le=0, description="Only 0.")
    stream_options: StreamOptions | None = None
    user: str | None = None


class CompletionBody(WrittenBody):
    """A request of /v1/completions."""

    model_config = _example(prompt="My fellow", max_tokens=16, steps=16, seed=1)

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[list[Token]], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = ""
    suffix: Text | None = Field(None, description="Text after the completion: it is filled in.")
    max_tokens: int | None = Field(16, ge=1)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None


class FimBody(CompletionBody):
    """A request of /v1/fim/completions."""

    random_seed: int | None = Field(None, ge=0, lt=2**63)


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    @property
    def plain(self) -> dict[str, str]:
        """The message as the library has it."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(WrittenBody):
    """A request of /v1/chat/completions."""

    model_config = _example(messages=[{"role": "user", "content": "2 + 3"}])

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="None.")


class InfillBody(SampledBody):
    """A request of /v1/infill."""

    model_config = _example("forbid", text="We [MASK:3] the people.", steps=8)

    text: Text = Field(description="[MASK] stands for one token, [MASK:3] for three.")
    choices: Annotated[list[Text], Field(max_length=_MAX_CHOICES)] | None = Field(
        None, description="Texts of which the only blank becomes one."
    )


class CorrectBody(Body):
    """A request of /v1/correct."""

    model_config = _example("forbid", text="We is a nation.", min_confidence=0.5)

    text: Text = Field(min_length=1)
    protected: Annotated[list[Span], Field(max_length=_MAX_SPANS)] = Field(
        default_factory=lambda: [], description="[start, stop] of characters that do not change."
    )
    method: Literal["posterior", "self_correction"] = Field(
        "posterior",
        description="posterior: for found text, by the probability that each token is wrong. "
        "self_correction: for samples of the model, Algorithm 1 of the paper.",
    )
    min_confidence: Probability | None = None
    error_rate: float | None = Field(None, ge=0, lt=1, description="By default it is estimated.")
    temperature: float = Field(0.1, ge=0, le=2, description="Of self_correction.")
    forward_passes: int = Field(64, ge=2, le=MAX_STEPS, description="Most of self_correction.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of self_correction.")
    stream: bool = Field(False, description="The whole text after each step, then the result.")


class ScoreBody(Body):
    """A request of /v1/score."""

    model_config = _example("forbid", text="We are a nation.")

    text: Text = Field(min_length=1)
    prompt: Text = ""
    top: int = Field(0, ge=0, le=20, description="Number of alternatives to each token.")
    likelihood: bool = Field(True, description="Whether to estimate it: about 50 forward passes.")
    seed: int = Field(0, ge=0, lt=2**63)
