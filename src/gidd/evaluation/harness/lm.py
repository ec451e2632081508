"""The model class of lm-evaluation-harness: `--model gidd --model_args pretrained=models/nano`.

    python -m gidd.evaluation.harness.lm --model gidd --model_args pretrained=models/nano \
        --tasks arc_easy

is the command `lm_eval` with this class registered. `lm_eval --model gidd` itself finds it by the
entry point `lm_eval.models` in releases after 0.4.13; 0.4.13 reads no entry points and needs the
path of `lm_eval.yaml` (next to this file) among its tasks. In Python, `import
gidd.evaluation.harness.lm` registers it for `lm_eval.simple_evaluate`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gidd.common.allowed import integer, optional, require_arguments
from gidd.common.optional import optional_package
from gidd.diffusion.likelihood import NelboEstimator, estimate_nelbo
from gidd.errors import ConfigError
from gidd.evaluation.harness.choices import (
    Choice,
    ChoiceScores,
    EarlyStop,
    OnPasses,
    Question,
    score_questions,
)
from gidd.evaluation.harness.continuations import (
    Continuation,
    conditional_parts,
    encode_continuation,
    generate_texts,
    is_greedy,
    joint_parts,
)
from gidd.evaluation.options import TaskOptions
from gidd.pipeline import Pipeline, from_pretrained
from gidd.pipeline.precision import Precision
from gidd.sampling.network import require_finite_predictions

_Base: Any = object
_register: Callable[[type], type] | None = None
if not TYPE_CHECKING:
    with suppress(ConfigError):  # the extra is not installed: `GiddLM` says so when it is used
        _Base = optional_package("lm_eval.api.model", "eval").LM
        optional_package("lm_eval.models", "eval")  # registers its own models, before ours is
        _register = optional_package("lm_eval.api.registry", "eval").register_model("gidd")

_ROLLING_REPEATS = 2
"""Repeats that a standard error needs at least."""

_logger = logging.getLogger(__name__)


QuestionKey = tuple[str | None, int | None, str]
"""Task, number of the document, and the context of requests without a document."""


class GiddLM(_Base):
    """A diffusion language model whose log-likelihoods are estimates of -NELBO."""

    def __init__(
        self,
        pretrained: str | Path | Pipeline,
        *,
        device: str | None = None,
        precision: Precision | None = None,
        tokenizer: str | None = None,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        on_passes: OnPasses | None = None,
        **settings: Any,
    ) -> None:
        """Load a model; the keywords are what `--model_args` accepts.

        Args:
            pretrained: A pipeline, or a model for `gidd.from_pretrained`, as `device`, `precision`
                and `tokenizer` are.
            device: "cpu", "cuda" or "mps"; by default the fastest available.
            precision: "float32", "bf16" or "tf32".
            tokenizer: Tokenizer of a model saved without one.
            max_length: Tokens of a text, at most and by default the context of the model.
            batch_size: Texts of `max_length` tokens in a forward pass; "auto" is the default of
                `Pipeline.nelbo_estimator`. It does not change scores.
            max_batch_size: Ignored; lm_eval passes it.
            on_passes: Called with the forward passes done and expected.
            **settings: Fields of `TaskOptions`: rule, nodes, repeats, grid, early_stop, seed, ...
        """
        optional_package("lm_eval.api.model", "eval")
        super().__init__()
        self.options = _options(settings)
        if not isinstance(pretrained, Pipeline):
            pretrained = from_pretrained(
                pretrained, device=device, precision=precision, tokenizer=tokenizer
            )
        self.pipe = pretrained
        require_arguments(max_length=(max_length, optional(integer(2, self.pipe.context))))
        self.max_length: int = max_length or self.pipe.context
        self.batch_size = batch_size
        self.estimator: NelboEstimator = self.pipe.nelbo_estimator(
            grid=self.options.grid,
            nodes=self.options.nodes,
            seed=self.options.seed,
            tokens_per_call=_tokens_per_call(batch_size, self.max_length),
        )
        self._stop = None
        if self.options.early_stop:
            self._stop = EarlyStop(self.options.confidence, self.options.min_repeats)
        self.on_passes = on_passes
        self.calls = 0
        """Forward passes of single texts so far."""

        self.truncated = 0
        """Requests whose context was truncated or whose text was scored in windows."""

        self.scores: dict[QuestionKey, ChoiceScores] = {}
        """Scores of all questions so far."""

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.pipe.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> GiddLM:
        """Create a model from `--model_args` and lm_eval's own options; the former win.

        lm_eval names the device "cuda:0" unless told otherwise. It means the fastest one here.
        """
        more = {k: v for k, v in (additional_config or {}).items() if v is not None}
        if str(more.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            _logger.warning("CUDA is not available; the fastest available device is used.")
            more["device"] = None
        elif more.get("device") == "cuda:0":
            more["device"] = "cuda"
        return cls(**more | dict(arg_dict))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> GiddLM:
        """Create a model from the text of `--model_args`."""
        parse = optional_package("lm_eval.utils", "eval").simple_parse_args_string
        return cls.create_from_arg_obj(parse(arg_string), additional_config)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return (-NELBO, is_greedy) of each request (context, continuation)."""
        encoded = {request.args[:2]: self._encode(*request.args[:2]) for request in requests}
        questions = _group(requests)
        found, calls = score_questions(
            self.estimator,
            [self._question(pairs, encoded) for pairs in questions.values()],
            repeats=self.options.repeats,
            stop=self._stop,
            on_passes=self.on_passes,
        )
        self.calls += calls
        results: dict[tuple[QuestionKey, tuple[str, str]], tuple[float, bool]] = {}
        for (key, pairs), scores in zip(questions.items(), found, strict=True):
            require_finite_predictions(all(map(math.isfinite, scores.loglikelihood)))
            self.scores[key] = scores
            for pair, value in zip(pairs, scores.loglikelihood, strict=True):
                is_best = len(pairs) == 1 and self._is_greedy(encoded[pair], pair[0])
                results[key, pair] = (value, is_best)
        return [results[_key(request), request.args[:2]] for request in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return -NELBO of each text: windows given the half context before, added up."""
        texts = list(dict.fromkeys(request.args[0] for request in requests))
        parts, owners = list[Any](), list[int]()
        for owner, text in enumerate(texts):
            tokens = self.pipe.token_texts.encode(text, "a text")
            self.truncated += len(tokens) > self.max_length
            found = conditional_parts(tokens, 0, self.max_length, [text]) if tokens else ()
            parts += found
            owners += [owner] * len(found)
        totals = torch.zeros(len(texts), dtype=torch.float64)
        if parts:
            repeats = max(self.options.repeats, _ROLLING_REPEATS)
            estimate = estimate_nelbo(
                self.estimator, parts, repeats=repeats, on_calls=self.on_passes
            )
            self.calls += estimate.calls
            require_finite_predictions(bool(estimate.nelbo.isfinite().all()))
            totals.index_add_(0, torch.tensor(owners), -estimate.nelbo)
        value = dict(zip(texts, totals.tolist(), strict=True))
        return [value[request.args[0]] for request in requests]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what fills the blanks after each context, up to the first stop string."""
        found = generate_texts(
            self.pipe, [request.args for request in requests], self.max_length, self.options.seed
        )
        self.calls += found.calls
        self.truncated += found.truncated
        return found.texts

    def describe(self) -> dict[str, Any]:
        """Return the settings of scoring and generation as plain data."""
        return {
            **self.options.describe(),
            "max_length": self.max_length,
            "tokens_per_call": self.estimator.tokens_per_call,
            "rolling": "windows of the context, each given up to half a context before it",
        }

    def _encode(self, context: str, continuation: str) -> Continuation:
        encoded = encode_continuation(self.pipe.token_texts, context, continuation)
        self.truncated += len(encoded.tokens) > self.max_length
        return encoded

    def _question(
        self, pairs: Sequence[tuple[str, str]], encoded: Mapping[tuple[str, str], Continuation]
    ) -> Question:
        """Return the question of some pairs; its contexts are the address of random numbers."""
        contexts = [context for context, _ in pairs]
        choices = tuple(
            Choice(self._parts(encoded[pair], contexts), _lengths(pair[1])) for pair in pairs
        )
        # continuations without their context are there to compute a difference (mutual information)
        return Question(choices, can_stop=all(contexts) or not any(contexts))

    def _parts(self, encoded: Continuation, contexts: Sequence[str]) -> tuple[Any, ...]:
        make = joint_parts if self.options.rule == "paper" else conditional_parts
        return make(encoded.tokens, encoded.start, self.max_length, contexts)

    def _is_greedy(self, encoded: Continuation, context: str) -> bool:
        parts = conditional_parts(encoded.tokens, encoded.start, self.max_length, [context])
        if len(parts) != 1:
            return False
        self.calls += 1
        return is_greedy(self.estimator, *parts)


if _register is not None:
    _register(GiddLM)


def _key(request: Any) -> QuestionKey:
    """Return the question of a request, an `lm_eval.api.instance.Instance`."""
    context = request.args[0] if request.doc_id is None else ""
    return request.task_name, request.doc_id, context


def _group(requests: Sequence[Any]) -> dict[QuestionKey, list[tuple[str, str]]]:
    """Return the different pairs (context, continuation) of each question, in order of choices."""

    def order(request: Any) -> tuple[str, int, str, int]:
        task, document, context = _key(request)
        return task or "", -1 if document is None else document, context, request.idx

    return {
        key: list(dict.fromkeys(request.args[:2] for request in group))
        for key, group in groupby(sorted(requests, key=order), key=_key)
    }


def _options(values: Mapping[str, Any]) -> TaskOptions:
    known = TaskOptions.__dataclass_fields__
    if unknown := [name for name in values if name not in known]:
        raise ConfigError(
            f"model_args must be pretrained, device, precision, tokenizer, max_length, batch_size, "
            f"{', '.join(known)}, got {', '.join(unknown)}."
        )
    options = replace(TaskOptions.of_rule(values.get("rule", "conditional")), **values)
    if found := list(options.problems()):
        raise ConfigError("\n".join(found))
    return options


def _tokens_per_call(batch_size: int | str | None, max_length: int) -> int | None:
    if batch_size is None or str(batch_size).startswith("auto"):
        return None
    try:
        number = int(batch_size)
    except ValueError:
        number = 0
    require_arguments(batch_size=(number, integer(1, fix="Use a number of texts, or auto.")))
    return number * max_length


def _lengths(continuation: str) -> tuple[float, ...]:
    """Return characters and bytes without the delimiter, as acc_norm and acc_bytes count them."""
    text = continuation.lstrip() or continuation
    return float(len(text)), float(len(text.encode()))


def main() -> None:
    """Run the command of lm_eval, in which this model is registered."""
    optional_package("lm_eval.__main__", "eval").cli_evaluate()


if __name__ == "__main__":
    main()
