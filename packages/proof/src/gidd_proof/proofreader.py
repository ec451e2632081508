"""Proofread texts of any length, chunk by chunk.

A chunk is about two thousand characters with their context. It is proofread by itself, so memory
does not depend on the length of a text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple, final

import gidd
from gidd.errors import ConfigError, DataError
from gidd.pipeline import (
    Correction,
    EncodedText,
    NoiseLevel,
    Span,
    TextEdit,
    apply_edits,
    ban_unwritten_tokens,
    estimate_noise,
    protected_tokens,
)
from gidd.sampling import Jobs, PosteriorPass, TextWindows, run_job
from gidd_proof.edit_model import EditModel
from gidd_proof.error_models import ErrorModel
from gidd_proof.mistakes import SMALLEST_RATE, CountedChunk, Mistakes, estimate_mistakes
from gidd_proof.protect import protected_spans
from gidd_proof.scorer import CandidateScorer
from gidd_proof.word_proofreader import ProofreadText, WordProofreader
from gidd_proof.words import MODEL_FOLDER, WordList

MIN_CONFIDENCE: Final = 0.95
"""Default of the least probability of a change."""

CHUNK_CHARACTERS: Final = 2048
_CHUNK_CONTEXT = 128
"""Characters of context on each side of a chunk."""

_ESTIMATE_CHARACTERS, _ESTIMATE_CHUNKS, _ESTIMATE_WINDOWS = 384, 8, 6
"""Size and number of the chunks that mistakes are counted in; windows of the first estimate."""

_FIRST_RATES = 0.01, 0.1
"""Range of the mistakes per character with which counting begins."""

_CROPS_PER_PASS = 8
"""Candidates in a forward pass: on a CPU, twice as fast as one by one."""

_SPACES = re.compile(r"\s")

OnProgress = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


class TextChunk(NamedTuple):
    """A chunk text[start:stop] with its context text[context_start:context_stop]."""

    start: int
    stop: int
    context_start: int
    context_stop: int


def load(
    model: str | Path | None = None, *, words: WordList | None = None, device: str | None = None
) -> Proofreader:
    """Load a model of characters and its words.

    Args:
        model: A folder written by `gidd export`, or a name on the Hugging Face hub; by default the
            packaged English model.
        words: Known words; by default `words.txt` of the folder, or the packaged English words.
        device: "cpu", "cuda" or "mps"; by default the fastest available.
    """
    folder = MODEL_FOLDER if model is None else model
    pipe = gidd.from_pretrained(folder, device=device)
    return Proofreader(pipe, WordList.of_model(folder) if words is None else words)


@final
@dataclass(frozen=True, eq=False)
class Proofreader:
    """Finds and fixes typos: letters that were replaced, added, dropped or exchanged.

    Code, addresses, paths, and words with digits or capitals inside are never changed (`protect`),
    nor are characters outside of the model's vocabulary.
    """

    pipe: gidd.Pipeline
    words: WordList
    error_model: ErrorModel | None = None

    def __post_init__(self) -> None:
        if not self.pipe.tokenizer.is_character_level:
            raise ConfigError(
                "proofreading needs a model whose tokens are characters, got a tokenizer of kind "
                f"{self.pipe.tokenizer.kind}. Correct tokens with `gidd correct`, or train a model "
                "with `gidd train proof`."
            )
        self.pipe.require_visible_scores("proofreading")

    def correct(
        self,
        text: str,
        *,
        error_rate: float | None = None,
        min_confidence: float | None = MIN_CONFIDENCE,
        protected: Sequence[Span] = (),
        on_progress: OnProgress | None = None,
    ) -> Correction:
        """Find and fix the typos of a text.

        Args:
            text: The text; all that is not changed is kept byte by byte.
            error_rate: Mistakes per character; by default estimated.
            min_confidence: Least probability of a change; None changes to the most likely text.
            protected: Further spans (start, stop) of characters that do not change.
            on_progress: Called with the number of characters done, and of all characters.
        """
        if not text:
            raise DataError("the text to correct must not be empty, got ''.")
        start, spans = time.perf_counter(), [*protected_spans(text), *protected]
        noise = self.estimate(text, spans) if error_rate is None else None
        rate = noise.error_rate if noise is not None else error_rate or 0.0
        edits, forward_passes = list[TextEdit](), 0 if noise is None else noise.forward_passes
        for chunk in chunks_of(text, CHUNK_CHARACTERS):
            found = self.correct_chunk(text, chunk, rate, spans, min_confidence)
            edits += found.edits
            forward_passes += found.forward_passes
            if on_progress is not None:
                on_progress(chunk.stop, len(text))
        task = {
            "task": "proofread",
            "error_rate": rate,
            "is_estimated": noise is not None,
            "min_confidence": min_confidence,
            "error_model": None if self.error_model is None else self.error_model.name,
            "protected": [list(span) for span in protected],
            "num_words": len(self.words),
        }
        return Correction(
            text=apply_edits(text, edits),
            original=text,
            edits=tuple(edits),
            error_rate=rate,
            noise_level=noise,
            forward_passes=forward_passes,
            manifest=self.pipe.manifest(start, task, forward_passes),
        )

    def correct_chunk(
        self,
        text: str,
        chunk: TextChunk,
        error_rate: float,
        protected: Sequence[Span] = (),
        min_confidence: float | None = MIN_CONFIDENCE,
    ) -> ProofreadText:
        """Return the doubtful places of a chunk, in order; they are places of the whole text."""
        given, fixed = self._given(text, chunk, protected)
        if all(fixed):
            return ProofreadText([], 0)
        edits = EditModel(max(error_rate, SMALLEST_RATE), self.error_model)
        found = run_job(
            partial(
                self._read_words,
                text="".join(given.texts),
                tokens=given.tokens,
                fixed=fixed,
                edits=edits,
                min_confidence=min_confidence,
            )
        )
        return ProofreadText(
            [e.moved(chunk.context_start) for e in found.edits], found.forward_passes
        )

    def estimate(self, text: str, protected: Sequence[Span] = ()) -> NoiseLevel | None:
        """Estimate the mistakes per character; None if no character may be changed.

        It begins with the noise level of replaced characters, and then counts the mistakes in some
        chunks, also letters that were added or dropped.
        """
        return run_job(partial(self._estimate, text=text, protected=protected))

    async def _estimate(
        self, jobs: Jobs, text: str, protected: Sequence[Span]
    ) -> NoiseLevel | None:
        given, fixed = self._given(text, TextChunk(0, len(text), 0, len(text)), protected)
        if all(fixed):
            return None
        pipe, chunks = self.pipe, spread(chunks_of(text, _ESTIMATE_CHARACTERS), _ESTIMATE_CHUNKS)
        cut = TextWindows(given.tokens, fixed, pipe.context)
        level = await estimate_noise(jobs, pipe.window_reader(), cut, max_windows=_ESTIMATE_WINDOWS)
        rate = min(max(level.error_rate, _FIRST_RATES[0]), _FIRST_RATES[1])
        edits, forward_passes = EditModel(rate, self.error_model), level.forward_passes
        counted: list[CountedChunk] = []
        for chunk in chunks:
            part, kept = self._given(text, chunk, protected)
            if not all(kept):
                places, passes = await self._read_words.score(
                    jobs, "".join(part.texts), part.tokens, kept, edits
                )
                counted.append(CountedChunk(tuple(places), chunk.stop - chunk.start))
                forward_passes += passes
        found, error = estimate_mistakes(counted, Mistakes(rate, tuple(edits.kinds.values())))
        low, high = max(0.0, found - 1.96 * error), min(1.0, found + 1.96 * error)
        return level._replace(error_rate=found, low=low, high=high, forward_passes=forward_passes)

    def _given(
        self, text: str, chunk: TextChunk, protected: Sequence[Span]
    ) -> tuple[EncodedText, list[bool]]:
        """Return a chunk with its context, and which characters are not changed."""
        offset, end = chunk.context_start, chunk.context_stop
        given = self.pipe.encode_given(text[offset:end], "the text to correct")
        kept = [(0, chunk.start - offset), (chunk.stop - offset, end - offset)]
        kept += [
            (max(start, offset) - offset, min(stop, end) - offset)
            for start, stop in protected
            if start < end and stop > offset
        ]
        fixed = protected_tokens(given, kept)
        for i, (token, character) in enumerate(zip(given.tokens, given.texts, strict=True)):
            # a character outside of the vocabulary is encoded as a similar one; apostrophes of any
            # shape are known
            if character != "’" and character != self._characters[token]:
                fixed[i] = True
        return given, fixed

    @cached_property
    def _characters(self) -> list[str]:
        return [self.pipe.token_texts.decode_one(v) for v in range(self.pipe.schedule.vocab.size)]

    @cached_property
    def _read_words(self) -> WordProofreader:
        pipe, characters = self.pipe, self._characters
        reader = pipe.window_reader()
        banned = ban_unwritten_tokens(pipe.schedule.vocab, pipe.token_texts)
        table = None
        if self.error_model is not None:
            unwritten = pipe.token_texts.unwritten_ids | {pipe.tokenizer.vocab.mask_id}
            listed = [
                c if len(c) == 1 and v not in unwritten else None for v, c in enumerate(characters)
            ]
            table = self.error_model.table(listed).to(pipe.device, reader.dtype)
        return WordProofreader(
            PosteriorPass(replace(reader, processors=(banned,)), table),
            CandidateScorer(pipe.window_reader(_CROPS_PER_PASS), pipe.tokenizer),
            characters,
            self.words,
            pipe.context,
        )


def chunks_of(text: str, size: int) -> list[TextChunk]:
    """Cut a text into chunks of at most `size` characters, after white space where there is any."""
    found: list[TextChunk] = []
    start = 0
    while start < len(text):
        stop = min(start + size, len(text))
        if stop < len(text):
            spaces = [match.end() for match in _SPACES.finditer(text, start, stop)]
            stop = spaces[-1] if spaces else stop
        context = max(0, start - _CHUNK_CONTEXT), min(len(text), stop + _CHUNK_CONTEXT)
        found.append(TextChunk(start, stop, *context))
        start = stop
    return found


def spread(chunks: Sequence[TextChunk], number: int) -> list[TextChunk]:
    """Return at most `number` of the chunks, evenly spaced."""
    step = max(1.0, len(chunks) / number)
    return [chunks[int((k + 0.5) * step)] for k in range(min(len(chunks), number))]
