"""Corrections of the words of a short text of characters, also ones that change its length.

1. The posterior of every character at the error rate of the text gives doubtful words and the
   most likely text of the same length.
2. Candidates for each doubtful word: that text, and known words within two edits.
3. Each candidate c is scored in its context by the network:

       score(c) = a (PLL(c) - PLL(found)) + log P(found | c) + b (log f(c) - log f(found))

   PLL is the pseudo-log-likelihood around the word, P the probability of the mistake and f the
   word frequency. Scores are log posterior odds; the softmax over all candidates is the confidence.
   PLL double-counts a mistake at neighbouring positions and already includes word frequency, hence
   the factors a and b.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from gidd.pipeline import TextEdit, decide, is_doubtful
from gidd.sampling import Jobs, PosteriorPass, TextWindows
from gidd_proof.candidates import Candidate, Region, doubtful_regions, word_candidates
from gidd_proof.edit_model import EditModel, count_edits
from gidd_proof.mistakes import Mistakes, ScoredPlace, fit_mistakes
from gidd_proof.scorer import CandidateScorer, Crop
from gidd_proof.words import FREQUENCY_SCALE, WordList

LIKELIHOOD_SCALE: Final = 0.3
"""The factor a of the pseudo-log-likelihood."""

_BEFORE, _CROP = 32, 80
"""Characters before a candidate, and of all: crops of one length share forward passes."""

_SCORED = 12
"""Characters on each side of a candidate whose likelihood is added."""


class ProofreadText(NamedTuple):
    """The doubtful places of a text, and the number of forward passes that found them."""

    edits: list[TextEdit]
    forward_passes: int


@final
@dataclass(frozen=True)
class WordProofreader:
    """Scores the words of short texts with a network whose tokens are characters."""

    read_posteriors: PosteriorPass
    score_crops: CandidateScorer
    characters: list[str]
    """The character of each token."""

    words: WordList
    context: int

    async def __call__(
        self,
        jobs: Jobs,
        text: str,
        tokens: Sequence[int],
        fixed: Sequence[bool],
        edits: EditModel,
        min_confidence: float | None = None,
    ) -> ProofreadText:
        """Return the doubtful places of a text with their alternatives, in order.

        Args:
            jobs: Jobs in progress, which share forward passes.
            text: The text.
            tokens: One token per character.
            fixed: Positions that are not changed.
            edits: Probabilities of mistakes.
            min_confidence: Least probability of a change; None for the most likely text.
        """
        places, forward_passes = await self.score(jobs, text, tokens, fixed, edits)
        first = Mistakes(edits.error_rate, tuple(edits.kinds.values()))
        shifts = fit_mistakes(places, first).shifts_from(first)  # the kinds of this writer
        decided = (
            decide(place.start, place.texts[0], place.alternatives(shifts), min_confidence)
            for place in places
        )
        return ProofreadText([edit for edit in decided if is_doubtful(edit)], forward_passes)

    async def score(
        self, jobs: Jobs, text: str, tokens: Sequence[int], fixed: Sequence[bool], edits: EditModel
    ) -> tuple[list[ScoredPlace], int]:
        """Return what may be right at each doubtful place, and the number of forward passes."""
        cut = TextWindows(tokens, fixed, self.context)
        found, suggested = await self._posteriors(jobs, text, cut, edits.error_rate)
        regions = doubtful_regions(text, found, fixed, self.words)
        candidates = {
            r: word_candidates(r.of(text), r.of(suggested), self.words, edits) for r in regions
        }
        candidates = {region: proposed for region, proposed in candidates.items() if proposed}
        crops = [
            _crop(suggested, region, candidate, min(_CROP, self.context))
            for region, proposed in candidates.items()
            for candidate in (region.of(text), *(c.text for c in proposed))
        ]
        time = self.read_posteriors.time(edits.error_rate)
        scores = iter(await self.score_crops(jobs, crops, time))
        places = [
            self._place(region, region.of(text), proposed, scores)
            for region, proposed in candidates.items()
        ]
        return places, len(cut) + len(crops)

    async def _posteriors(
        self, jobs: Jobs, text: str, cut: TextWindows, error_rate: float
    ) -> tuple[list[float], str]:
        """Return the posterior of each character, and the most likely text of the same length."""
        found, best = [1.0] * len(text), list(text)
        posteriors = await self.read_posteriors(jobs, cut, error_rate)
        for part, window, posterior in zip(cut.parts, cut, posteriors, strict=True):
            replaced, others = posterior.replaced().tolist(), posterior.tokens[:, 0].tolist()
            probability = posterior.found.tolist()
            for i, is_read in enumerate(window.editable):
                if is_read:
                    found[part.start + i] = probability[i]
                    if replaced[i]:
                        best[part.start + i] = self.characters[others[i]]
        return found, "".join(best)

    def _place(
        self, region: Region, found: str, candidates: Sequence[Candidate], scores: Iterator[float]
    ) -> ScoredPlace:
        """Return the found text and its candidates with their log odds."""
        likelihood, weights = next(scores), [0.0]
        is_word = any(map(str.isalpha, found))
        for candidate in candidates:
            gain = LIKELIHOOD_SCALE * (next(scores) - likelihood)
            if is_word:
                frequency = self.words.log_frequency(candidate.text)
                gain += FREQUENCY_SCALE * (frequency - self.words.log_frequency(found))
            weights.append(gain + candidate.log_probability)
        texts = (found, *(candidate.text for candidate in candidates))
        edits = tuple(count_edits(found, text) for text in texts)
        return ScoredPlace(region.start, texts, tuple(weights), edits)


def _crop(text: str, region: Region, candidate: str, size: int) -> Crop:
    """Return a candidate in its context, `size` characters in all where the text has them."""
    room = max(0, size - len(candidate))
    before = text[max(0, region.start - min(_BEFORE, room // 2)) : region.start]
    after = text[region.stop : region.stop + room - len(before)]
    stop = len(before) + len(candidate)
    scored = max(0, len(before) - _SCORED), stop + min(_SCORED, len(after))
    return Crop(before + candidate + after, *scored)
