"""Bodies of requests, as OpenAI's clients send them, with the fields of diffusion models."""

import json
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gidd.common.terminal import did_you_mean
from gidd.pipeline.options import WrongTokens
from gidd.pipeline.patterns import MAX_CHARACTERS

MAX_SAMPLES = 16
MAX_PROMPTS = 32
MAX_STEPS = 4096
_MAX_STOP, _MAX_BIASES, _MAX_SPANS, _MAX_CHOICES = 4, 300, 10_000, 256
_MAX_MESSAGES, _MAX_PARTS, _MAX_TOKENS = 1000, 1000, 2**17
_NOTHING = (None, False, 0, "", [], {}, "auto", "none", "default", {"type": "text"}, ["text"])
_LONGEST_NAME = 40  # characters of an unknown field's name that an error quotes


def _refusal(problem: str, field: str = "") -> PydanticCustomError:
    name = field[:_LONGEST_NAME].encode(errors="replace").decode()
    return PydanticCustomError("refused", "{problem}", {"problem": problem, "field": name})


def _require_few_biases(value: object) -> object:
    """Refuse a long mapping before its items: each invalid one is an error of its own."""
    if isinstance(value, dict) and len(cast("dict[Any, Any]", value)) > _MAX_BIASES:
        raise _refusal(f"must have at most {_MAX_BIASES} tokens")
    return value


def _member(value: object) -> str | None:
    """Return the tag of the only member of a union that a value is compared with."""
    if isinstance(value, list):
        first = next(iter(cast("list[object]", value)), "")
        names = {str: "list[str]", list: "list[list]"}
        return next((name for kind, name in names.items() if isinstance(first, kind)), "list")
    return "str" if isinstance(value, str) else None


def _one_of(*kinds: str) -> Discriminator:
    return Discriminator(_member, "refused", f"must be {' or '.join(kinds)}")


Text = Annotated[str, StringConstraints(max_length=1_000_000)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Stop = Annotated[
    Annotated[StopText, Tag("str")]
    | Annotated[list[StopText], Field(max_length=_MAX_STOP, fail_fast=True), Tag("list[str]")],
    _one_of("a text", "a list of texts"),
]
Probability = Annotated[float, Field(ge=0, le=1)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, max_length=_MAX_TOKENS, fail_fast=True)]
Several = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
Prompt = Annotated[
    Annotated[Text, Tag("str")]
    | Annotated[list[Text], Several, Tag("list[str]")]
    | Annotated[Tokens, Tag("list")]
    | Annotated[list[Tokens], Several, Tag("list[list]")],
    _one_of("a text", "a list of texts", "a list of tokens", "a list of lists of tokens"),
]
LogitBiases = Annotated[dict[str, float], BeforeValidator(_require_few_biases)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]
Schema = dict[str, Any]
Choices = Annotated[list[Pattern], Field(min_length=1, max_length=_MAX_CHOICES, fail_fast=True)]
Span = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


def _example(**fields: object) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [cast(Any, fields)]})


class Fields(BaseModel):
    """Named values: each has an effect or is refused by its name; null is the default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    unsupported: ClassVar[str] = ""
    """Fields of OpenAI's that may only have a value that asks for nothing."""
    needs: ClassVar[dict[str, tuple[str, object]]] = {}
    """Fields that have an effect only if another one has this value."""
    equal: ClassVar[dict[str, str]] = {}
    """Fields that must be equal to another one if both are given."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        values, known = cast("dict[str, Any]", body), cls.model_fields
        for name in [name for name in values if name not in known]:
            if name not in cls.unsupported.split():
                raise _refusal(f"unknown field.{did_you_mean(name, known)}", name)
            if values[name] not in _NOTHING:
                raise _refusal("is not supported. Omit it", name)
        return {name: value for name in known if (value := values.get(name)) is not None}

    @model_validator(mode="after")
    def _check_combinations(self) -> Any:
        for name, (other, value) in self.needs.items():
            is_default = getattr(self, name) == type(self).model_fields[name].default
            if not is_default and getattr(self, other) != value:
                raise _refusal(f"needs {json.dumps({other: value})[1:-1]}", name)
        for name, other in self.equal.items():
            values = getattr(self, name), getattr(self, other)
            if None not in values and values[0] != values[1]:
                raise _refusal(f"must be equal to {other}", name)
        return self


class Body(Fields):
    """Base of the bodies of all requests."""

    model: str | None = Field(None, description="Name of the model; the first one by default.")


class StreamOptions(Fields):
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
    temperature: float | None = Field(None, ge=0, le=2, description="By default the model's.")
    top_p: float | None = Field(None, gt=0, le=1, description="By default the model's.")
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    steps: int | None = Field(None, ge=1, le=MAX_STEPS, description="Denoising steps.")
    sampler: str | None = Field(None, description="Denoising step, as of `gidd sample --sampler`.")
    guidance_scale: float | None = Field(None, ge=0, le=100)
    negative_prompt: Text | None = None
    self_correction: int | None = Field(
        None, ge=0, le=MAX_STEPS, description="Forward passes of self-correction of the sample."
    )
    logit_bias: LogitBiases | None = None
    stream: bool = False


class ResponseFormat(Fields):
    """What the text is: anything, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = Field(None, description="A name, and the schema as `schema`.")

    @model_validator(mode="after")
    def _check_schema(self) -> Any:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _refusal('is for, and needed by, "type": "json_schema"', "json_schema")
        if unknown := (self.json_schema or {}).keys() - {"name", "description", "schema", "strict"}:
            raise _refusal("unknown field", f"json_schema.{min(unknown)}")
        return self

    @property
    def schema_of_json(self) -> Any:
        """The JSON Schema; without one any JSON object."""
        return (self.json_schema or {}).get("schema", {"type": "object"})


class WrittenBody(SampledBody):
    """Fields of requests that write a text from left to right."""

    unsupported = (
        "frequency_penalty function_call functions metadata modalities presence_penalty "
        "service_tier store tool_choice tools top_logprobs user"
    )
    needs: ClassVar = dict.fromkeys(("diffusing", "stream_options"), ("stream", True))

    block_length: int | None = Field(None, ge=1, description="Sample in blocks of so many tokens.")
    response_format: ResponseFormat | None = Field(None, description="JSON of a schema, or any.")
    guided_regex: Pattern | None = Field(None, description="Regular expression of the text.")
    guided_json: Schema | Pattern | None = Field(None, description="JSON Schema of the text.")
    guided_choice: Choices | None = Field(None, description="The text is one of these.")
    structured_outputs: (
        Annotated[
            dict[Literal["regex", "json", "choice"], Pattern | Choices | Schema],
            Field(min_length=1, max_length=1),
        ]
        | None
    ) = Field(None, description="One of guided_regex, guided_json and guided_choice.")
    stop: Stop | None = None
    diffusing: bool = Field(
        False, description="With `stream`: the whole text after each step, not its finished blocks."
    )
    stream_options: StreamOptions | None = Field(None, description="With `stream`.")


class CompletionBody(WrittenBody):
    """A request of /v1/completions."""

    model_config = _example(prompt="My fellow", max_tokens=16, steps=16, seed=1)
    needs: ClassVar = WrittenBody.needs | {
        "logprobs": ("stream", False),
        "echo": ("diffusing", False),
    }
    equal: ClassVar = {"best_of": "n"}

    prompt: Prompt = ""
    suffix: Text | None = Field(None, description="Text after the completion: it is filled in.")
    max_tokens: int | None = Field(16, ge=1)
    echo: bool = Field(False, description="Whether the text begins with the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Without `stream`.")
    best_of: int | None = Field(None, description="The value of `n`.")


class FimBody(CompletionBody):
    """A request of /v1/fim/completions."""

    equal: ClassVar = CompletionBody.equal | {"random_seed": "seed"}

    random_seed: int | None = Field(None, ge=0, lt=2**63, description="Another name of `seed`.")


class TextPart(Fields):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(Fields):
    """A message of a conversation."""

    unsupported = "annotations audio function_call name refusal tool_calls"

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("str")]
        | Annotated[list[TextPart], Field(max_length=_MAX_PARTS, fail_fast=True), Tag("list")],
        _one_of("a text", "a list of parts"),
    ]

    @property
    def plain(self) -> dict[str, str]:
        """The message as a dictionary for `Pipeline.chat`."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(WrittenBody):
    """A request of /v1/chat/completions."""

    model_config = _example(messages=[{"role": "user", "content": "2 + 3"}])
    unsupported = f"{WrittenBody.unsupported} logprobs"
    equal: ClassVar = {"max_completion_tokens": "max_tokens"}

    messages: Annotated[
        list[Message], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)
    ]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="Another name of `max_tokens`."
    )


class InfillBody(SampledBody):
    """A request of /v1/infill."""

    model_config = _example(text="We [MASK:3] the people.", steps=8)

    text: Text = Field(description="[MASK] stands for one token, [MASK:3] for three.")
    choices: (
        Annotated[list[Text], Field(min_length=1, max_length=_MAX_CHOICES, fail_fast=True)] | None
    ) = Field(None, description="Texts of which the only blank becomes one.")


class CorrectBody(Body):
    """A request of /v1/correct."""

    model_config = _example(text="Tom ate the sun.", min_confidence=0.5)
    needs: ClassVar = {
        **dict.fromkeys(("min_confidence", "error_rate", "wrong_tokens"), ("method", "posterior")),
        **dict.fromkeys(("temperature", "forward_passes", "seed"), ("method", "self_correction")),
    }

    text: Text = Field(min_length=1)
    protected: Annotated[list[Span], Field(max_length=_MAX_SPANS, fail_fast=True)] = Field(
        default_factory=lambda: [], description="[start, stop] of characters that do not change."
    )
    method: Literal["posterior", "self_correction"] = Field(
        "posterior",
        description="posterior: for found text, by the probability that each token is wrong. "
        "self_correction: for samples of the model, Algorithm 1 of the paper.",
    )
    min_confidence: Probability | None = Field(None, description="Of posterior.")
    error_rate: float | None = Field(
        None, ge=0, lt=1, description="Of posterior. By default it is estimated."
    )
    wrong_tokens: WrongTokens | None = Field(
        None,
        description="Of posterior. noise: tokens are written by mistake as in the model's noise. "
        "frequent: each as often as it occurs. By default as the model recommends.",
    )
    temperature: float = Field(0.1, ge=0, le=2, description="Of self_correction.")
    forward_passes: int = Field(64, ge=2, le=MAX_STEPS, description="Most of self_correction.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of self_correction.")
    stream: bool = Field(False, description="The whole text after each step, then the result.")


class ScoreBody(Body):
    """A request of /v1/score."""

    model_config = _example(text="We are a nation.")
    needs: ClassVar = {"seed": ("likelihood", True)}

    text: Text = Field(min_length=1)
    prompt: Text = ""
    top: int = Field(0, ge=0, le=20, description="Number of alternatives to each token.")
    likelihood: bool = Field(True, description="Whether to estimate it: about 50 forward passes.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the likelihood.")


_PARTS = (Message, TextPart, StreamOptions)
_BODIES = (FimBody, ChatBody, InfillBody, CorrectBody, ScoreBody)
FIELD_NAMES = frozenset[object](name for kind in (*_PARTS, *_BODIES) for name in kind.model_fields)
