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
from gidd.pipeline.confidence import judges_visible, look, opinion
from gidd.pipeline.correct import Span, correct_text
from gidd.pipeline.describe import schedule_in_words
from gidd.pipeline.likelihood import ESTIMATOR, estimate
from gidd.pipeline.options import (
    FOUND_TEXT,
    CorrectionKeywords,
    CorrectionOptions,
    SamplingKeywords,
    SamplingOptions,
)
from gidd.pipeline.precision import Precision, in_precision
from gidd.pipeline.results import Correction, Generation, Manifest, Scores
from gidd.pipeline.text import Pieces
from gidd.sampling import (
    Engine,
    Frame,
    OnStep,
    Plan,
    Request,
    Sample,
    Tokens,
    parse,
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
        self.pieces = Pieces(tokenizer)
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
        self.judges_visible = judges_visible(schedule)
        """Whether the network can tell right tokens from wrong ones: not after masking alone."""

    def generate(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        suffix: str = "",
        length: int | None = None,
        seed: int = 0,
        first: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        watch: bool = False,
        options: SamplingOptions = _SAMPLING,
        **how: Unpack[SamplingKeywords],
    ) -> list[Generation]:
        """`n` texts that begin with `prompt` and end with `suffix`.

        Args:
            n: Number of texts, each with its own randomness.
            prompt: What every text begins with.
            suffix: What every text ends with. Without it, a text ends where the model ends it.
            length: Tokens, prompt and suffix included; by default the whole context.
            seed: Together with a text's number it decides all that is random.
            first: Number of the first text. `generate(1, first=5)` is the sixth of `generate(6)`.
            plan: Moves of your own, in place of steps, step, gibbs and correction.
            on_step: Called after each round of moves.
            watch: Keep what the network thinks at every move, in `trace.frames`.
            options: How to sample.
            **how: Fields of `options` to change, e.g. `steps=64, temperature=0.8`.
        """
        length = self.context if length is None else length
        before = self.pieces.encode(prompt, "the prompt")
        after = self.pieces.encode(suffix, "the suffix")
        tokens = generating.with_blanks(length, before, after)
        stop = () if suffix else tuple(sorted(self.tokenizer.not_text))
        requests = self._requests(tokens, stop, replace(options, **how), plan, n, seed, first)
        return self.run(requests, on_step=on_step, watch=watch)

    def infill(
        self,
        template: str,
        n: int = 1,
        *,
        seed: int = 0,
        first: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        watch: bool = False,
        options: SamplingOptions = _SAMPLING,
        **how: Unpack[SamplingKeywords],
    ) -> list[Generation]:
        """`n` ways to fill the blanks of a text such as "The capital of [MASK:3] is Paris".

        [MASK] is one token and [MASK:n] are n; all else stays as it is. Arguments as in `generate`.
        """
        tokens = parse(template, lambda text: self.pieces.encode(text, "the text around blanks"))
        if None not in tokens:
            raise DataError(
                f"a text to infill must have a blank, got {template[:60]!r}. Write [MASK] for one "
                "token or [MASK:3] for three; to mend a text without blanks, correct it."
            )
        requests = self._requests(tokens, (), replace(options, **how), plan, n, seed, first)
        return self.run(requests, on_step=on_step, watch=watch)

    def run(
        self, requests: Sequence[Request], *, on_step: OnStep | None = None, watch: bool = False
    ) -> list[Generation]:
        """Any requests at once: mixed lengths, plans, seeds and processors."""
        start = time.perf_counter()
        samples = self.engine.sample(requests, on_step=on_step, watch=watch)
        judged: list[Frame | None] = [None] * len(samples)
        if self.judges_visible:
            judged[:] = look(self.engine, [sample.tokens for sample in samples])
        return [
            generating.generation(
                self.pieces,
                self.schedule.vocab.mask_id,
                request,
                sample,
                frame,
                self._last(request, sample, frame) if watch else None,
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
        watch: bool = False,
        options: CorrectionOptions = FOUND_TEXT,
        **how: Unpack[CorrectionKeywords],
    ) -> Correction:
        """Replace tokens that are likelier wrong than right, by the self-correction of App. C.

        `errors` is the share of tokens thought to be wrong; None, as in the paper, replaces
        whatever the model would rather write.

        The number of tokens stays. Line breaks, other control characters and parts of characters
        are neither written nor replaced, so that lines and all other bytes stay as they are.
        A text longer than the context is corrected in windows that overlap (`Corrector`).

        Args:
            text: Any text that the tokenizer gives back exactly.
            protected: Spans (start, stop) of characters that must stay.
            seed: Decides all that is random.
            on_step: Called after each round of moves.
            watch: Keep what the network thinks at every move, in `traces`.
            options: How to correct.
            **how: Fields of `options` to change, e.g. `tau=0.2, tokens_per_call=4`.
        """
        start, plan = time.perf_counter(), replace(options, **how).plan()
        self._require_judge("correction")
        return correct_text(
            self.engine,
            self.pieces,
            text,
            self._tokens(text, "the text to correct"),
            context=self.context,
            plan=plan,
            protected=protected,
            seed=generating.require_seed("seed", seed),
            watch=watch,
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
        if self.judges_visible:
            sure = tuple(opinion(self.engine, self.context, tokens).probability)
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
        return look(self.engine, [sample.tokens], request.processors)[0]

    def _require_judge(self, what: str) -> None:
        if not self.judges_visible:
            raise ConfigError(
                f"{what} needs a model that was trained with uniform noise (p_uniform > 0), got "
                "one of masking alone: it has never been asked whether a token it sees is right. "
                "Leave it out, or mark doubtful words with [MASK] and infill them."
            )

    def _tokens(self, text: str, what: str) -> list[int]:
        tokens = self.pieces.encode(text, what)
        if not tokens:
            raise DataError(f"{what} must not be empty, got {text!r}. Give some text.")
        return tokens

    def _requests(
        self,
        tokens: Tokens,
        stop: tuple[int, ...],
        options: SamplingOptions,
        plan: Plan | None,
        n: int,
        seed: int,
        first: int,
    ) -> list[Request]:
        if plan is None and options.judges:
            self._require_judge(options.judges)
        return generating.requests(
            tokens,
            options.plan() if plan is None else plan,
            options.processors(),
            self.schedule.vocab,
            n=n,
            seed=seed,
            first=first,
            stop=stop,
            never=self.tokenizer.not_text,
        )

    def _manifest(self, start: float, task: Manifest, calls: int) -> Manifest:
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
