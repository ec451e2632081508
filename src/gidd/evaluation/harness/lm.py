"""The model class of lm-evaluation-harness: `--model gidd --model_args pretrained=models/nano`.

`python -m gidd.evaluation.harness.lm` is the command `lm_eval` with this class registered, as
importing this module does. `lm_eval` itself finds it by an entry point in releases after 0.4.13;
0.4.13 needs the path of `lm_eval.yaml` (next to this file) among its tasks.
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

from gidd.common.config.allowed import integer, optional, require_allowed, require_arguments
from gidd.common.optional import optional_package
from gidd.diffusion.likelihood import NelboEstimator, estimate_nelbo
from gidd.errors import ConfigError
from gidd.evaluation.harness import choices
from gidd.evaluation.harness.choices import ChoiceScores, Continuation, OnPasses, conditional_parts
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

        `pretrained`, `device`, `precision` and `tokenizer` are those of `gidd.from_pretrained`, or
        `pretrained` is a pipeline. `batch_size` is the number of texts of `max_length` tokens in a
        forward pass, or "auto"; it does not change scores. `settings` are fields of `TaskOptions`.
        `on_passes` is called with the forward passes done and expected.
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
        self.batch_size, tokens_per_batch = batch_size, None
        if batch_size is not None and not str(batch_size).startswith("auto"):
            size = int(batch_size) if str(batch_size).isdecimal() else batch_size
            fix = "Use a number of texts, or auto."
            require_arguments(batch_size=(size, integer(1, fix=fix)))
            tokens_per_batch = int(size) * self.max_length
        self.estimator: NelboEstimator = self.pipe.nelbo_estimator(
            grid=self.options.grid,
            nodes=self.options.nodes,
            seed=self.options.seed,
            tokens_per_batch=tokens_per_batch,
        )
        self._stop = None
        if self.options.early_stop:
            self._stop = choices.EarlyStop(self.options.confidence, self.options.min_repeats)
        self.on_passes = on_passes
        self.forward_passes = 0  # of single texts so far
        self.truncated = 0  # requests whose context was cut, or whose text was scored in windows
        self.scores: dict[QuestionKey, ChoiceScores] = {}  # of all questions so far

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.pipe.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> GiddLM:
        """Create a model from `--model_args` and lm_eval's own options; the former win.

        lm_eval names the device "cuda:0" unless told otherwise; without CUDA it is the fastest one.
        """
        more = {k: v for k, v in (additional_config or {}).items() if v is not None}
        if str(more.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            _logger.warning("CUDA is not available; the fastest available device is used.")
            more["device"] = None
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
        decoder = self.pipe.decoder
        encoded = {
            pair: choices.encode_continuation(decoder, *pair)
            for pair in [request.args[:2] for request in requests]
        }
        self.truncated += sum(len(part.tokens) > self.max_length for part in encoded.values())
        questions = _group(requests)
        all_scores, forward_passes = choices.score_questions(
            self.estimator,
            [self._question(pairs, encoded) for pairs in questions.values()],
            repeats=self.options.repeats,
            stop=self._stop,
            on_passes=self.on_passes,
        )
        self.forward_passes += forward_passes
        results: dict[tuple[QuestionKey, tuple[str, str]], tuple[float, bool]] = {}
        for (key, pairs), scores in zip(questions.items(), all_scores, strict=True):
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
            tokens = self.pipe.decoder.encode(text, "a text")
            self.truncated += len(tokens) > self.max_length
            windows = conditional_parts(tokens, 0, self.max_length, [text]) if tokens else ()
            parts += windows
            owners += [owner] * len(windows)
        totals = torch.zeros(len(texts), dtype=torch.float64)
        if parts:
            repeats = max(self.options.repeats, 2)  # which a standard error needs
            estimate = estimate_nelbo(
                self.estimator, parts, repeats=repeats, on_forward_passes=self.on_passes
            )
            self.forward_passes += estimate.forward_passes
            require_finite_predictions(bool(estimate.nelbo.isfinite().all()))
            totals.index_add_(0, torch.tensor(owners), -estimate.nelbo)
        value = dict(zip(texts, totals.tolist(), strict=True))
        return [value[request.args[0]] for request in requests]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what fills the blanks after each context, up to the first stop string."""
        pairs = [request.args for request in requests]
        settings = self.max_length, self.options.seed
        texts, passes, truncated = choices.generate_texts(self.pipe, pairs, *settings)
        self.forward_passes += passes
        self.truncated += truncated
        return texts

    def describe(self) -> dict[str, Any]:
        """Return the settings of scoring and generation as plain data."""
        return {
            **self.options.describe(),
            "max_length": self.max_length,
            "tokens_per_batch": self.estimator.tokens_per_batch,
            "rolling": "windows of the context, each given up to half a context before it",
        }

    def _question(
        self, pairs: Sequence[tuple[str, str]], encoded: Mapping[tuple[str, str], Continuation]
    ) -> choices.Question:
        """Return the question of some pairs; its contexts are the address of random numbers."""
        contexts = [context for context, _ in pairs]
        make = choices.joint_parts if self.options.rule == "paper" else conditional_parts
        listed = list[choices.Choice]()
        for pair in pairs:
            parts = make(encoded[pair].tokens, encoded[pair].start, self.max_length, contexts)
            # acc_norm and acc_bytes count the characters and bytes without the delimiter
            text = pair[1].lstrip() or pair[1]
            listed.append(choices.Choice(parts, (float(len(text)), float(len(text.encode())))))
        # continuations without their context are there to compute a difference (mutual information)
        return choices.Question(tuple(listed), can_stop=all(contexts) or not any(contexts))

    def _is_greedy(self, encoded: Continuation, context: str) -> bool:
        parts = conditional_parts(encoded.tokens, encoded.start, self.max_length, [context])
        if len(parts) != 1:
            return False
        self.forward_passes += 1
        return choices.is_greedy(self.estimator, *parts)


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
    require_allowed(options)
    return options


def main() -> None:
    """Run the command of lm_eval, in which this model is registered."""
    optional_package("lm_eval.__main__", "eval").cli_evaluate()


if __name__ == "__main__":
    main()
