"""The pipeline: text in, text out, with all that is known about how it came about."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, final

import torch

import gidd
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser
from gidd.pipeline import generate as generating
from gidd.pipeline.confidence import can_score_visible_tokens, predict_frames, score_tokens
from gidd.pipeline.correct import Span, correct_text
from gidd.pipeline.describe import schedule_in_words
from gidd.pipeline.likelihood import ESTIMATOR, estimate
from gidd.pipeline.options import (
    EXTERNAL_TEXT_DEFAULTS,
    CorrectionKeywords,
    CorrectionOptions,
    SamplingKeywords,
    SamplingOptions,
)
from gidd.pipeline.precision import Precision, in_precision
from gidd.pipeline.results import Correction, Generation, ResultManifest, Scores
from gidd.pipeline.text import TokenTexts
from gidd.sampling import (
    Engine,
    Frame,
    OnStep,
    Plan,
    Request,
    Sample,
    Tokens,
    parse_template,
)

_SAMPLING = SamplingOptions()
_ROWS_ON_CPU, _ROWS_ELSEWHERE = 1, 16


@final
class Pipeline:
    """A denoiser, its noise and its tokenizer. `gidd.from_pretrained` makes one.

    The same request gives the same text, alone or beside others, as long as device, precision and
    `rows_per_call` stay the same.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        tokenizer: Tokenizer,
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
        self.schedule, self.tokenizer, self.context = schedule, tokenizer, context
        self.token_texts = TokenTexts(tokenizer)
        self.precision: Precision = precision
        self.source, self.notes = source or {}, tuple(notes)
        if rows_per_call is None:
            rows_per_call = _ROWS_ON_CPU if self.device.type == "cpu" else _ROWS_ELSEWHERE
        self.network = in_precision(denoiser, precision)
        self.engine = Engine(
            self.network,
            schedule,
            rows_per_call=rows_per_call,
            max_length=context,
            device=self.device,
        )
        self.can_score_visible_tokens = can_score_visible_tokens(schedule)
        """Whether the network can tell right tokens from wrong ones: not after masking alone."""

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
        **how: Unpack[SamplingKeywords],
    ) -> list[Generation]:
        """`n` texts that begin with `prompt` and end with `suffix`.

        Args:
            num_samples: Number of samples, each with its own randomness.
            prompt: What every text begins with.
            suffix: What every text ends with. Without it, a text ends where the model ends it.
            length: Tokens, prompt and suffix included; by default the whole context.
            seed: Together with a text's number it decides all that is random.
            start_index: Index of the first sample. `generate(1, start_index=5)` is the sixth of `generate(6)`.
            plan: Moves of your own, in place of steps, step, gibbs and correction.
            on_step: Called after each round of moves.
            record_frames: Keep what the network thinks at every move, in `trace.frames`.
            options: How to sample.
            **how: Fields of `options` to change, e.g. `steps=64, temperature=0.8`.
        """
        length = self.context if length is None else length
        before = self.token_texts.encode(prompt, "the prompt")
        after = self.token_texts.encode(suffix, "the suffix")
        tokens = generating.with_blanks(length, before, after)
        stop = () if suffix else tuple(sorted(self.tokenizer.terminator_ids))
        requests = self._requests(
            tokens, stop, replace(options, **how), plan, num_samples, seed, start_index
        )
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
        **how: Unpack[SamplingKeywords],
    ) -> list[Generation]:
        """`n` ways to fill the blanks of a text such as "The capital of [MASK:3] is Paris".

        [MASK] is one token and [MASK:n] are n; all else stays as it is. Arguments as in `generate`.
        """
        tokens = parse_template(
            template, lambda text: self.token_texts.encode(text, "the text around blanks")
        )
        if None not in tokens:
            raise DataError(
                f"a text to infill must have a blank, got {template[:60]!r}. Write [MASK] for one "
                "token or [MASK:3] for three; to mend a text without blanks, correct it."
            )
        requests = self._requests(
            tokens, (), replace(options, **how), plan, num_samples, seed, start_index
        )
        return self.run(requests, on_step=on_step, record_frames=record_frames)

    def run(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
    ) -> list[Generation]:
        """Any requests at once: mixed lengths, plans, seeds and processors."""
        start = time.perf_counter()
        samples = self.engine.sample(requests, on_step=on_step, record_frames=record_frames)
        judged: list[Frame | None] = [None] * len(samples)
        if self.can_score_visible_tokens:
            judged[:] = predict_frames(self.engine, [sample.tokens for sample in samples])
        return [
            generating.generation(
                self.token_texts,
                self.schedule.vocab.mask_id,
                request,
                sample,
                frame,
                self._last(request, sample, frame) if record_frames else None,
                self._manifest(start, generating.task(request), sample.calls),
            )
            for request, sample, frame in zip(requests, samples, judged, strict=True)
        ]

    def correct(
        self,
        text: str,
        *,
        protected: Sequence[Span] = (),
        seed: int = 0,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        options: CorrectionOptions = EXTERNAL_TEXT_DEFAULTS,
        **how: Unpack[CorrectionKeywords],
    ) -> Correction:
        """Replace tokens that are likelier wrong than right, by the self-correction of App. C.

        `error_rate` is the share of tokens thought to be wrong; None, as in the paper, replaces
        whatever the model would rather write.

        The number of tokens stays. Line breaks, other control characters and parts of characters
        are neither written nor replaced, so that lines and all other bytes stay as they are.
        A text longer than the context is corrected in windows that overlap (`Corrector`).

        Args:
            text: Any text that the tokenizer gives back exactly.
            protected: Spans (start, stop) of characters that must stay.
            seed: Decides all that is random.
            on_step: Called after each round of moves.
            record_frames: Keep what the network thinks at every move, in `traces`.
            options: How to correct.
            **how: Fields of `options` to change, e.g. `temperature=0.2, tokens_per_call=4`.
        """
        start, plan = time.perf_counter(), replace(options, **how).plan()
        self._require_judge("correction")
        return correct_text(
            self.engine,
            self.token_texts,
            text,
            self._tokens(text, "the text to correct"),
            context=self.context,
            plan=plan,
            protected=protected,
            seed=generating.require_seed("seed", seed),
            record_frames=record_frames,
            on_step=on_step,
            manifest=partial(self._manifest, start),
        )

    def score(self, text: str, *, nodes: int = 32, repeats: int = 4, seed: int = 0) -> Scores:
        """How likely the model finds a text: a bound on -log p, and its opinion on every token.

        Args:
            text: Any text that the tokenizer gives back exactly.
            nodes: Times at which the bound is looked at in each repetition.
            repeats: Repetitions, at least 2; the standard error falls with their square root.
            seed: Of times and noise.
        """
        start, tokens = time.perf_counter(), self._tokens(text, "the text to score")
        nelbo, error, calls = estimate(
            self.network,
            self.denoiser.head(),
            self.schedule,
            torch.tensor([tokens], device=self.device).split(self.context, dim=1),
            seed=generating.require_seed("seed", seed),
            nodes=nodes,
            repeats=repeats,
        )
        sure = None
        if self.can_score_visible_tokens:
            sure = tuple(score_tokens(self.engine, self.context, tokens).probability)
        task = {"task": "score", "seed": seed, "nodes": nodes, "repeats": repeats}
        return Scores(
            text=text,
            tokens=tuple(tokens),
            confidence=sure,
            nelbo=nelbo,
            standard_error=error,
            calls=calls,
            manifest=self._manifest(start, task | {"estimator": ESTIMATOR}, calls),
        )

    def _last(self, request: Request, sample: Sample, judged: Frame | None) -> Frame | None:
        """The last frame of a sequence, seen through the same processors as those before it."""
        if judged is None or not request.processors:
            return judged
        return predict_frames(self.engine, [sample.tokens], request.processors)[0]

    def _require_judge(self, what: str) -> None:
        if not self.can_score_visible_tokens:
            raise ConfigError(
                f"{what} needs a model that was trained with uniform noise (p_uniform > 0), got "
                "one of masking alone: it has never been asked whether a token it sees is right. "
                "Leave it out, or mark doubtful words with [MASK] and infill them."
            )

    def _tokens(self, text: str, what: str) -> list[int]:
        tokens = self.token_texts.encode(text, what)
        if not tokens:
            raise DataError(f"{what} must not be empty, got {text!r}. Give some text.")
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
        if plan is None and options.judges:
            self._require_judge(options.judges)
        return generating.requests(
            tokens,
            options.plan() if plan is None else plan,
            options.processors(),
            self.schedule.vocab,
            num_samples=num_samples,
            seed=seed,
            start_index=start_index,
            stop=stop,
            never=self.tokenizer.terminator_ids,
        )

    def _manifest(self, start: float, task: ResultManifest, calls: int) -> ResultManifest:
        return {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "model": self.source,
            "notes": list(self.notes),
            "tokenizer": self.tokenizer.fingerprint,
            "schedule": schedule_in_words(self.schedule),
            **task,
            "calls": calls,
            "device": str(self.device),
            "precision": self.precision,
            "rows_per_call": self.engine.rows_per_call,
            "seconds": round(time.perf_counter() - start, 3),
        }
