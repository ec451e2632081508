"""A trained model, ready to run: the parts of a pipeline, and what all its tasks need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import gidd
from gidd.data.tokenizers import FastTokenizer, Tokenizer, as_tokenizer
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.likelihood import NUM_NODES, TOKENS_PER_CALL, NelboEstimator, RankGroup
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser, push_to_hub, save
from gidd.pipeline.confidence import can_score_visible_tokens
from gidd.pipeline.describe import describe_schedule
from gidd.pipeline.precision import (
    Precision,
    choose_precision,
    in_precision,
    with_float32_head,
)
from gidd.pipeline.results import ResultManifest
from gidd.pipeline.spans import ban_unwritten_tokens
from gidd.pipeline.text import EncodedText, TokenTexts
from gidd.sampling import CachedFeatures, Engine, WindowReader

_CPU_ROWS_PER_CALL, _GPU_ROWS_PER_CALL = 1, 16
_LENGTHS = 64
"""Sequences are padded to a multiple of this many tokens, if a forward pass has several."""


class LoadedModel:
    """A denoiser with its noise schedule, tokenizer and engine."""

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        tokenizer: Tokenizer | FastTokenizer,
        *,
        context: int,
        device: torch.device | str = "cpu",
        precision: Precision | None = None,
        rows_per_call: int | None = None,
        source: dict[str, Any] | None = None,
        notes: Sequence[str] = (),
        times: tuple[float, float] = (TRAINING_EPS, 1 - TRAINING_EPS),
    ) -> None:
        self.device = torch.device(device)
        self.denoiser = denoiser.eval().requires_grad_(False)
        """The model as it was loaded; a GPU computes with a copy of it."""
        self.schedule, self.tokenizer, self.context = schedule, as_tokenizer(tokenizer), context
        self.token_texts = TokenTexts(self.tokenizer)
        self.precision: Precision = choose_precision(precision, self.device)
        self.source, self.notes = source or {}, tuple(notes)
        self.times = times
        """The smallest and the largest time that the network was trained with."""
        default = _CPU_ROWS_PER_CALL if self.device.type == "cpu" else _GPU_ROWS_PER_CALL
        rows = default if rows_per_call is None else rows_per_call
        self._network = in_precision(denoiser, self.precision, self.device)
        uses_time = getattr(denoiser.backbone, "uses_time", True)
        self.network = self._network if uses_time else CachedFeatures(self._network)
        accepts_padding = bool(getattr(self.network, "accepts_padding", False))
        self.engine = Engine(
            self.network,
            schedule,
            rows_per_call=rows,
            lengths=_LENGTHS if rows > 1 and accepts_padding else 1,
            max_length=context,
            device=self.device,
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
        summary = {"source": self.source, "times": list(self.times)}
        save(folder, self.denoiser, self.schedule, summary)
        self.tokenizer.save(folder)

    def push_to_hub(self, name: str, *, private: bool = False) -> None:
        """Upload model and tokenizer to the Hugging Face hub as owner/name.

        Log in first, with `hf auth login` or the environment variable HF_TOKEN.
        """
        with TemporaryDirectory() as folder:
            self.save(folder)
            push_to_hub(name, folder, private=private)

    def warm_up(self) -> None:
        """Compute what the first requests would wait for: the text of every token."""
        ban_unwritten_tokens(self.schedule.vocab, self.token_texts).allowed(self.device)

    def window_reader(self, rows_per_call: int | None = None) -> WindowReader:
        """Return what reads predictions and posteriors of windows of texts.

        `rows_per_call` is the smallest batch size of a forward pass, e.g. for many short texts.
        """
        engine = self.engine
        if rows_per_call is not None and rows_per_call > engine.rows_per_call:
            engine = Engine(
                engine.network,
                engine.schedule,
                rows_per_call=rows_per_call,
                max_length=engine.max_length,
                device=engine.device,
            )
        return WindowReader(engine, *self.times)

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
        network = with_float32_head(self._network)
        return NelboEstimator(network, self.schedule, grid, nodes, seed, rows, ranks, self.device)

    def require_visible_scores(self, what: str) -> None:
        """Raise `ConfigError` if the network was trained with masking alone."""
        if not self.can_score_visible_tokens:
            raise ConfigError(
                f"{what} needs a model trained with uniform noise (p_uniform > 0), got one trained "
                "with masking alone, which cannot score visible tokens. Leave it out, or mark "
                "doubtful words with [MASK] and infill them."
            )

    def encode(self, text: str, what: str) -> list[int]:
        """Return the tokens of a text, which must not be empty; `what` names it in errors."""
        tokens = self.token_texts.encode(text, what)
        if not tokens:
            raise DataError(f"{what} must not be empty, got {text!r}.")
        return tokens

    def encode_given(self, text: str, what: str) -> EncodedText:
        """Return the tokens of a text to correct, with the text of each."""
        given = self.token_texts.of_text(text, what)
        if not given.tokens:
            raise DataError(f"{what} must not be empty, got {text!r}.")
        return given

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
            "lengths": self.engine.lengths,
            "seconds": round(time.perf_counter() - start, 3),
        }
