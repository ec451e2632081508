"""Proofread texts: doubtful words, candidates, their scores by the network, and decisions."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import gidd
from gidd.errors import ConfigError, DataError, LimitReached
from gidd.pipeline import Correction, NoiseLevel, apply_edits, choose_edit, is_suspect
from gidd_proof.candidates import Place, find_places, unprotected_words
from gidd_proof.confidence import LIKELIHOOD, Crop, contenders, crop, prior_scores
from gidd_proof.contexts import Contexts
from gidd_proof.edit_model import EditModel
from gidd_proof.error_models import ErrorModel
from gidd_proof.mistakes import CHARACTERS_PER_WORD, ScoredPlace, estimate_rate
from gidd_proof.prose import code_spans, foreign_spans
from gidd_proof.protect import protected_spans
from gidd_proof.rules import find_slips, find_variants
from gidd_proof.words import MODEL_FOLDER, WordList

if TYPE_CHECKING:
    from gidd.pipeline import Span

MIN_CONFIDENCE: Final = 0.4
"""Default of the least probability of a change, chosen on `wikipedia-dev`: 0.12% of good words
spoiled beside mistakes, 0.06% of clean words touched (1,500 sentences)."""

NOISE_RATE: Final = 0.02
"""Mistakes per character at which the network reads texts and edits are compared."""

_PLACES_AT_ONCE = 64
"""Places that are scored together: memory does not depend on the length of a text."""

OnProgress = Callable[[int, int], None]
"""Called with the number of characters done, and of all characters."""


def load(
    model: str | Path | None = None, *, words: WordList | None = None, device: str | None = None
) -> Proofreader:
    """Load a model of characters and its words.

    The network of the packaged model, and torch, are loaded when a text first needs them; with
    `model`, or a device other than the CPU, at once.

    Args:
        model: A folder written by `gidd export`, or a name on the Hugging Face hub; by default the
            packaged English model.
        words: Known words; by default `words.txt` of the folder, or the packaged English words.
        device: "cpu", "cuda" or "mps"; by default the fastest available.
    """
    folder = MODEL_FOLDER if model is None else model
    words = WordList.of_model(folder) if words is None else words
    load_pipe = cache(partial(_load_pipe, folder, device))
    if model is not None or device not in (None, "cpu"):  # which may be missing
        load_pipe()
    return Proofreader(load_pipe, words, Contexts.of_model(folder))


def _load_pipe(folder: str | Path, device: str | None) -> gidd.Pipeline:
    pipe = gidd.from_pretrained(folder, device=device)
    if not pipe.tokenizer.is_character_level:
        raise ConfigError(
            "proofreading needs a model whose tokens are characters, got a tokenizer of kind "
            f"{pipe.tokenizer.kind}. Correct tokens with `gidd correct`, or train a model with "
            "`gidd train proof`."
        )
    pipe.require_visible_scores("proofreading")
    return pipe


@final
@dataclass(frozen=True, eq=False)
class Proofreader:
    """Finds and fixes typos: letters that were replaced, added, dropped or exchanged.

    Code, addresses, paths, and words with digits or capitals inside are never changed (`protect`),
    nor are characters outside of the model's vocabulary.
    """

    load_pipe: Callable[[], gidd.Pipeline]
    """Returns the pipeline of the network; called when a text first needs it."""

    words: WordList
    contexts: Contexts
    error_model: ErrorModel | None = None

    def with_words(self, words: Iterable[str]) -> Proofreader:
        """Return a proofreader that also knows words of a user."""
        return replace(self, words=self.words.with_words(words))

    @property
    def pipe(self) -> gidd.Pipeline:
        """The pipeline of the network."""
        return self.load_pipe()

    def correct(
        self,
        text: str,
        *,
        error_rate: float | None = None,
        min_confidence: float | None = MIN_CONFIDENCE,
        protected: Sequence[Span] = (),
        file_name: str | None = None,
        on_progress: OnProgress | None = None,
        seconds: float = math.inf,
    ) -> Correction:
        """Find and fix the typos of a text.

        Args:
            text: The text; all that is not changed is kept byte by byte.
            error_rate: Mistakes per character; by default estimated.
            min_confidence: Least probability of a change; None changes to the most likely text.
            protected: Further spans (start, stop) of characters that do not change.
            file_name: Name of the file; of source code only comments and documentation are read.
            on_progress: Called with the number of characters done, and of all characters.
            seconds: Longest time; `LimitReached` is raised after it.
        """
        if not text:
            raise DataError("the text to correct must not be empty, got ''.")
        if bad := next((s for s in protected if not 0 <= s[0] <= s[1] <= len(text)), None):
            raise ConfigError(
                f"a protected span must be (start, stop) with 0 <= start <= stop <= {len(text)}, "
                f"got {bad}."
            )
        start = time.perf_counter()
        spans = [*protected_spans(text), *foreign_spans(text, self.words), *protected]
        spans = sorted(spans if file_name is None else [*spans, *code_spans(file_name, text)])
        counts = Counter(match[0] for match in unprotected_words(text, spans))
        scored, forward_passes = list(find_slips(text, spans, self.words, self.contexts)), 0
        slips = {i for slip in scored for i in range(slip.start, slip.stop)}

        def check_time() -> None:
            if time.perf_counter() - start > seconds:
                raise LimitReached(f"the text was not read within {seconds:.0f} s.")

        candidates = find_places(text, spans, self.words, self._edits, self.contexts, check_time)
        places = [place for place in candidates if slips.isdisjoint(range(place.start, place.stop))]
        for first in range(0, len(places), _PLACES_AT_ONCE):
            check_time()
            batch = places[first : first + _PLACES_AT_ONCE]
            with_scores, num_crops = self._score(text, batch, counts)
            scored += with_scores
            forward_passes += num_crops
            if on_progress is not None:
                on_progress(batch[-1].stop, len(text))
        noise = None
        if error_rate is None:
            noise = _noise_level(scored, counts.total())
            error_rate = noise.error_rate
        rate = max(error_rate * CHARACTERS_PER_WORD, 1e-9)
        taken = {i for place in scored for i in range(place.start, place.stop)}
        variants = find_variants(text, spans)
        scored += (place for place in variants if taken.isdisjoint(range(place.start, place.stop)))
        scored.sort()
        decided = (
            choose_edit(place.start, place.texts[0], place.alternatives(rate), min_confidence)
            for place in scored
        )
        edits = tuple(edit for edit in decided if is_suspect(edit))
        task = {
            "task": "proofread",
            "error_rate": error_rate,
            "is_estimated": noise is not None,
            "min_confidence": min_confidence,
            "error_model": None if self.error_model is None else self.error_model.name,
            "protected": [list(span) for span in protected],
            "num_words": len(self.words),
        }
        return Correction(
            text=apply_edits(text, edits),
            original=text,
            edits=edits,
            error_rate=error_rate,
            noise_level=noise,
            forward_passes=forward_passes,
            manifest=self._manifest(start, task, forward_passes),
        )

    def _score(
        self, text: str, places: Sequence[Place], counts: Counter[str]
    ) -> tuple[list[ScoredPlace], int]:
        """Return the log odds of the candidates of each place, and the number of crops read."""
        written = [text[place.start : place.stop] for place in places]
        scores = [
            prior_scores(word, place, self.words, self.contexts, counts[word])
            for word, place in zip(written, places, strict=True)
        ]
        read = [(i, k) for i, prior in enumerate(scores) for k in contenders(places[i], prior)]
        crops = [crop(text, places[i], places[i].candidates[k].text) for i, k in read]
        values = self._likelihoods(crops) if crops else []
        best: dict[int, float] = {}
        for (i, _), value in zip(read, values, strict=True):
            best[i] = max(value, best.get(i, -math.inf))
        for (i, k), value in zip(read, values, strict=True):
            scores[i][k] += LIKELIHOOD * (value - best[i])
        scored = [
            ScoredPlace(
                place.start,
                (word, *(candidate.text for candidate in place.candidates)),
                (0.0, *weights),
                is_slip=place.written is not None and bool(self.contexts.confused(word)),
            )
            for place, word, weights in zip(places, written, scores, strict=True)
        ]
        return scored, len(crops)

    def _manifest(self, start: float, task: dict[str, Any], forward_passes: int) -> dict[str, Any]:
        """Return what identifies the settings, and the network if the text needed it."""
        if forward_passes:
            return self.pipe.manifest(start, task, forward_passes)
        seconds = round(time.perf_counter() - start, 3)
        return {"gidd": gidd.__version__, **task, "forward_passes": 0, "seconds": seconds}

    @cached_property
    def _edits(self) -> EditModel:
        return EditModel(NOISE_RATE, self.error_model)

    @cached_property
    def _likelihoods(self) -> Callable[[Sequence[Crop]], list[float]]:
        from gidd_proof.scorer import likelihood_scorer  # needs torch

        return likelihood_scorer(self.pipe, NOISE_RATE)


def _noise_level(places: Sequence[ScoredPlace], num_words: int) -> NoiseLevel:
    """Return the estimated mistakes per character, with the interval of a Poisson count."""
    rate = estimate_rate(places, num_words)
    error = 1.96 * math.sqrt(rate / max(1, num_words))
    low, middle, high = (
        min(max(0.0, value), 1.0) / CHARACTERS_PER_WORD
        for value in (rate - error, rate, rate + error)
    )
    return NoiseLevel(middle, low, high, time=math.nan)
