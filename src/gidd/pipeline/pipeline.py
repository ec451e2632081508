"""The pipeline: generate, infill, correct and score text with a trained model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, final, overload

import torch

import gidd
from gidd.common.allowed import SEED, integer, require_arguments
from gidd.data.tokenizer_objects import FastTokenizer
from gidd.data.tokenizers import Tokenizer, as_tokenizer
from gidd.diffusion.nelbo import NUM_NODES, TOKENS_PER_CALL, NelboEstimator, RankGroup
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser, save
from gidd.pipeline.confidence import can_score_visible_tokens
from gidd.pipeline.correct import Corrector, Span
from gidd.pipeline.describe import describe_schedule
from gidd.pipeline.generate import build_generations
from gidd.pipeline.options import (
    EXTERNAL_TEXT_DEFAULTS,
    CorrectionOptions,
    SamplingOptions,
    with_changes,
)
from gidd.pipeline.precision import Precision, in_precision
from gidd.pipeline.results import Correction, Generation, ResultManifest, Scores
from gidd.pipeline.score import ScoreSettings, score_texts
from gidd.pipeline.text import TokenTexts
from gidd.sampling import CachedFeatures, Engine, OnStep, Plan, Request, Tokens, ban, parse_template
from gidd.sampling.request import prompt as with_blanks

_SAMPLING = SamplingOptions()
_MAX_DEFAULT_LENGTH = 2048
"""The context of a model can be far longer than what a user expects to wait for."""

_CPU_ROWS_PER_CALL, _GPU_ROWS_PER_CALL = 1, 16


@final
class Pipeline:
    """A denoiser with its noise schedule and tokenizer; `gidd.from_pretrained` loads one.

    A request gives the same sample alone and in a batch, as long as device, precision and
    `rows_per_call` are the same.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        tokenizer: Tokenizer | FastTokenizer,
        *,
        context: int,
        device: torch.device | str = "cpu",
        precision: Precision = "float32",
        rows_per_call: int | None = None,
        source: dict[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.device = torch.device(device)
        self.denoiser = denoiser.to(self.device).eval().requires_grad_(False)
        self.schedule, self.tokenizer, self.context = schedule, as_tokenizer(tokenizer), context
        self.token_texts = TokenTexts(self.tokenizer)
        self.precision: Precision = precision
        self.source, self.notes = source or {}, tuple(notes)
        default = _CPU_ROWS_PER_CALL if self.device.type == "cpu" else _GPU_ROWS_PER_CALL
        rows = default if rows_per_call is None else rows_per_call
        self._network = in_precision(denoiser, precision)
        uses_time = getattr(denoiser.backbone, "uses_time", True)
        self.network = self._network if uses_time else CachedFeatures(self._network)
        self.engine = Engine(
            self.network, schedule, rows_per_call=rows, max_length=context, device=self.device
        )
        self.can_score_visible_tokens = can_score_visible_tokens(schedule)
        """Whether the network was trained with more noise than masking."""

    def __repr__(self) -> str:
        name = self.source.get("name", type(self.denoiser.backbone).__name__)
        noise = describe_schedule(self.schedule)
        settings = [f"{k} {v:g}" for k, v in noise.items() if isinstance(v, int | float)]
        return (
            f"<Pipeline {name}: {sum(p.numel() for p in self.denoiser.parameters()):,} parameters, "
            f"{' '.join([noise['kind'], 'noise', *settings])}, vocabulary of "
            f"{self.schedule.vocab.size:,} tokens, context of {self.context:,} tokens, "
            f"{self.device}, {self.precision}>"
        )

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer to a folder that `gidd.from_pretrained` loads."""
        save(folder, self.denoiser, self.schedule, {"source": self.source})
        self.tokenizer.save(folder)

    def generate(
        self,
        num_samples: int = 1,
        *,
        prompt: str = "",
        suffix: str = "",
        length: int | None = None,
        seed: int = 0,
        start_index: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        options: SamplingOptions = _SAMPLING,
        **changes: Any,
    ) -> list[Generation]:
        """Sample texts that begin with `prompt` and end with `suffix`.

        Args:
            num_samples: Number of samples, each with its own random numbers.
            prompt: Beginning of every sample.
            suffix: End of every sample. Without it, a sample ends at its end-of-text token.
            length: Number of tokens, including prompt and suffix; by default the context of the
                model, but at most 2,048.
            seed: With the index of a sample, determines all its random numbers.
            start_index: Index of the first sample; `generate(1, start_index=5)` returns the sixth
                sample of `generate(6)`.
            plan: Custom plan of steps; replaces steps, sampler, corrector and correction.
            on_step: Called after each step of the batch.
            record_frames: Record the prediction before every step in `trace.frames`.
            options: Sampling options.
            **changes: Fields of `options` to change, e.g. `steps=64, temperature=0.8`.
        """
        length = min(self.context, _MAX_DEFAULT_LENGTH) if length is None else length
        before = self.token_texts.encode(prompt, "the prompt")
        after = self.token_texts.encode(suffix, "the suffix")
        tokens = with_blanks(length, before, after)
        stop = () if suffix else tuple(sorted(self.tokenizer.terminator_ids))
        options = with_changes(options, changes, self.generate)
        requests = self._requests(tokens, stop, options, plan, num_samples, seed, start_index)
        return self.run(requests, on_step=on_step, record_frames=record_frames)

    def infill(
        self,
        template: str,
        num_samples: int = 1,
        *,
        seed: int = 0,
        start_index: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        options: SamplingOptions = _SAMPLING,
        **changes: Any,
    ) -> list[Generation]:
        """Fill the blanks of a text such as "The capital of [MASK:3] is Paris".

        [MASK] stands for one token and [MASK:n] for n tokens; everything else is kept. The other
        arguments are those of `generate`.
        """
        tokens = parse_template(
            template, lambda text: self.token_texts.encode(text, "the text around blanks")
        )
        if None not in tokens:
            raise DataError(
                f"a template must have a blank, got {template[:60]!r}. Write [MASK] for one token "
                "or [MASK:3] for three; use correct() for a text without blanks."
            )
        options = with_changes(options, changes, self.infill)
        requests = self._requests(tokens, (), options, plan, num_samples, seed, start_index)
        return self.run(requests, on_step=on_step, record_frames=record_frames)

    def run(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Generation]:
        """Sample any requests in one batch: mixed lengths, plans, seeds and processors."""
        manifest = partial(self.manifest, time.perf_counter())
        samples = self.engine.sample(requests, on_step=on_step, record_frames=record_frames)
        return build_generations(self.engine, self.token_texts, requests, samples, manifest)

    def correct(
        self,
        text: str,
        *,
        protected: Sequence[Span] = (),
        seed: int = 0,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        options: CorrectionOptions = EXTERNAL_TEXT_DEFAULTS,
        **changes: Any,
    ) -> Correction:
        """Replace tokens that are more likely wrong than right, by self-correction (App. C).

        `error_rate` is the expected fraction of wrong tokens; with None, as in the paper, every
        token for which the model prefers another one is replaced.

        The number of tokens does not change. Line breaks, other control characters and parts of
        characters are neither written nor replaced, so lines and all other bytes are preserved.
        A text longer than the context is corrected in overlapping windows (`Corrector`).

        The tokenizer must restore `text` exactly. Characters in the spans (start, stop) of
        `protected` do not change; `changes` are fields of `options`, e.g. `temperature=0.2`. The
        other arguments are those of `generate`.
        """
        require_arguments(seed=(seed, SEED))
        manifest = partial(self.manifest, time.perf_counter())
        plan = with_changes(options, changes, self.correct).plan()
        self._require_visible_scores("correction")
        tokens = self._encode(text, "the text to correct")
        corrector = Corrector(
            self.engine, self.token_texts, plan, self.context, seed, record_frames, on_step
        )
        return corrector.correct(text, tokens, protected, manifest)

    @overload
    def score(self, text: str, **settings: Unpack[ScoreSettings]) -> Scores: ...

    @overload
    def score(self, text: list[str], **settings: Unpack[ScoreSettings]) -> list[Scores]: ...

    def score(
        self, text: str | list[str], **settings: Unpack[ScoreSettings]
    ) -> Scores | list[Scores]:
        """Return an upper bound on -log p(text), and the confidence in every token.

        Several texts share forward passes. A text longer than the context is split into parts that
        are scored independently and added up. `gidd.diffusion.likelihood` describes the estimator.

        Args:
            text: A text that the tokenizer restores exactly, or a list of texts.
            **settings: `nodes`, `repeats`, `max_se`, `max_calls`, `seed`, `grid`, as in
                `gidd.diffusion.likelihood`; `confidence=False` saves a forward pass per text;
                `on_calls(done, expected)` is called as forward passes are done.
        """
        start = time.perf_counter()
        texts = [text] if isinstance(text, str) else text
        tokens = [self._encode(each, "the text to score") for each in texts]
        manifest = partial(self.manifest, start)
        found = score_texts(self, texts, tokens, manifest, **settings)
        return found[0] if isinstance(text, str) else found

    def nelbo_estimator(
        self,
        *,
        grid: str = "sine",
        nodes: int = NUM_NODES,
        seed: int = 0,
        tokens_per_call: int | None = None,
        ranks: RankGroup | None = None,
    ) -> NelboEstimator:
        """Return the estimator of likelihoods under this model; see `estimate_nelbo`.

        By default a forward pass has 2,048 tokens on a CPU and 32,768 on other devices.
        """
        default = TOKENS_PER_CALL if self.device.type == "cpu" else 16 * TOKENS_PER_CALL
        rows = default if tokens_per_call is None else tokens_per_call
        return NelboEstimator(
            self._network, self.schedule, grid, nodes, seed, rows, ranks, self.device
        )

    def _require_visible_scores(self, what: str) -> None:
        if not self.can_score_visible_tokens:
            raise ConfigError(
                f"{what} needs a model trained with uniform noise (p_uniform > 0), got one trained "
                "with masking alone, which cannot score visible tokens. Leave it out, or mark "
                "doubtful words with [MASK] and infill them."
            )

    def _encode(self, text: str, what: str) -> list[int]:
        tokens = self.token_texts.encode(text, what)
        if not tokens:
            raise DataError(f"{what} must not be empty, got {text!r}.")
        return tokens

    def _requests(
        self,
        tokens: Tokens,
        stop: tuple[int, ...],
        options: SamplingOptions,
        plan: Plan | None,
        num_samples: int,
        seed: int,
        start_index: int,
    ) -> list[Request]:
        """Return one request per sample; without `stop`, terminators are never written."""
        require_arguments(
            num_samples=(num_samples, integer(1)),
            seed=(seed, SEED),
            start_index=(start_index, SEED),
        )
        if plan is None:
            if options.corrector_calls or options.correction.calls:
                named = options.corrector if options.corrector_calls else "correction"
                self._require_visible_scores(named)
            plan = options.plan()
        processors = options.processors()
        if not stop:
            # before truncation, which must not leave banned tokens only
            processors = (ban(self.schedule.vocab, self.tokenizer.terminator_ids), *processors)
        first = Request(tokens=tokens, plan=plan, seed=seed, processors=processors, stop=stop)
        return [replace(first, sample_index=start_index + i) for i in range(num_samples)]

    def manifest(self, start: float, task: ResultManifest, calls: int) -> ResultManifest:
        """Return what identifies the model, its settings and a task that began at `start`."""
        return {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "model": self.source,
            "notes": list(self.notes),
            "tokenizer": self.tokenizer.fingerprint,
            "schedule": describe_schedule(self.schedule),
            **task,
            "calls": calls,
            "device": str(self.device),
            "precision": self.precision,
            "rows_per_call": self.engine.rows_per_call,
            "seconds": round(time.perf_counter() - start, 3),
        }
