"""Corrections of a text of characters, also ones that change its length.

1. The posterior of every character at the noise level of the text gives doubtful words and the
   most likely text of the same length.
2. Candidates for each doubtful word: that text, and known words within two edits.
3. Each candidate c is judged in its context by the network:

       score(c) = a (PLL(c) - PLL(found)) + log P(found | c) + b (log f(c) - log f(found))

   PLL is the pseudo-log-likelihood around the word, P the probability of the mistake and f the
   frequency in the training corpus. Scores are log posterior odds; the softmax over all candidates
   is the confidence. PLL counts the evidence of a wrong character again at each of its neighbours,
   which the factor a < 1 corrects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from gidd.proofreading.edit_costs import EditCosts, count_edits
from gidd.proofreading.edits import JudgedText, decide, is_doubtful
from gidd.proofreading.judge import Crop, TextJudge
from gidd.proofreading.places import JudgedPlace, Mistakes, fit_mistakes
from gidd.proofreading.posterior_pass import PosteriorPass
from gidd.proofreading.regions import Region, TextCandidate, doubtful_regions, word_candidates
from gidd.proofreading.window_reader import TextWindows
from gidd.proofreading.words import FREQUENCY_SCALE, WordList

from gidd.data.tokenizers import Tokenizer
from gidd.sampling.jobs import Jobs

LIKELIHOOD_SCALE: Final = 0.3
"""The factor a of the pseudo-log-likelihood."""

_BEFORE, _CROP = 32, 80
"""Characters before a candidate, and of all: crops of one length share forward passes."""

_COUNTED = 12
"""Characters on each side whose likelihood counts."""


class Posteriors(NamedTuple):
    """The posterior of every character of a text."""

    found: list[float]
    """Probability that the character is right."""

    suggested: str
    """The most likely text of the same length."""


@final
@dataclass(frozen=True)
class Proofreader:
    """Judges the words of short texts with a network whose tokens are characters."""

    judge_positions: PosteriorPass
    judge_texts: TextJudge
    tokenizer: Tokenizer
    words: WordList
    context: int

    async def __call__(
        self,
        jobs: Jobs,
        text: str,
        tokens: Sequence[int],
        fixed: Sequence[bool],
        costs: EditCosts,
        min_confidence: float | None = None,
    ) -> JudgedText:
        """Return the doubtful places of a text with their alternatives, in order.

        Args:
            jobs: Jobs in progress, which share forward passes.
            text: The text.
            tokens: One token per character.
            fixed: Positions that are not changed.
            costs: Probabilities of mistakes.
            min_confidence: Least probability of a change; None for the most likely text.
        """
        places, calls = await self.judge(jobs, text, tokens, fixed, costs)
        first = Mistakes(costs.error_rate, tuple(costs.shares.values()))
        shifts = fit_mistakes(places, first).shifts_from(first)  # the kinds of this writer
        decided = (
            decide(place.start, place.texts[0], place.alternatives(shifts), min_confidence)
            for place in places
        )
        return JudgedText([edit for edit in decided if is_doubtful(edit)], calls)

    async def judge(
        self, jobs: Jobs, text: str, tokens: Sequence[int], fixed: Sequence[bool], costs: EditCosts
    ) -> tuple[list[JudgedPlace], int]:
        """Return what may be right at each doubtful place, and the number of forward passes."""
        cut = TextWindows(tokens, fixed, self.context)
        posteriors = await self.posteriors(jobs, text, cut, costs.error_rate)
        regions = list(doubtful_regions(text, posteriors.found, fixed, self.words))
        proposed = [
            word_candidates(text, region, _part(posteriors.suggested, region), self.words, costs)
            for region in regions
        ]
        places = await self._score(
            jobs, text, posteriors.suggested, regions, proposed, costs.error_rate
        )
        return places, len(cut) + sum(len(place.texts) for place in places)

    async def posteriors(
        self, jobs: Jobs, text: str, cut: TextWindows, error_rate: float
    ) -> Posteriors:
        """Return the posterior of each character, by one forward pass per window."""
        found, best = [1.0] * len(text), list(text)
        passes = await self.judge_positions(jobs, cut, error_rate)
        for part, window, posterior in zip(cut.parts, cut, passes, strict=True):
            replaced, others = posterior.replaced().tolist(), posterior.tokens[:, 0].tolist()
            probability = posterior.found.tolist()
            for i, is_judged in enumerate(window.judged):
                if is_judged:
                    found[part.start + i] = probability[i]
                    if replaced[i]:
                        best[part.start + i] = self.tokenizer.decode([others[i]])
        return Posteriors(found, "".join(best))

    async def _score(
        self,
        jobs: Jobs,
        text: str,
        context: str,
        regions: Sequence[Region],
        proposed: Sequence[Sequence[TextCandidate]],
        error_rate: float,
    ) -> list[JudgedPlace]:
        """Score all candidates of all regions together, each in the context of likely text."""
        judged = [(r, c) for r, c in zip(regions, proposed, strict=True) if c]
        crops = [
            _crop(context, region, candidate, min(_CROP, self.context))
            for region, candidates in judged
            for candidate in (_part(text, region), *(c.text for c in candidates))
        ]
        time = self.judge_positions.time(error_rate)
        scores = iter(await self.judge_texts(jobs, crops, time))
        return [
            self._place(region.start, _part(text, region), candidates, scores)
            for region, candidates in judged
        ]

    def _place(
        self, start: int, found: str, candidates: Sequence[TextCandidate], scores: Iterator[float]
    ) -> JudgedPlace:
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
        return JudgedPlace(start, texts, tuple(weights), edits)


def _part(text: str, region: Region) -> str:
    return text[region.start : region.stop]


def _crop(text: str, region: Region, candidate: str, size: int) -> Crop:
    """Return a candidate in its context, `size` characters in all where the text has them."""
    room = max(0, size - len(candidate))
    before = text[max(0, region.start - min(_BEFORE, room // 2)) : region.start]
    after = text[region.stop : region.stop + room - len(before)]
    stop = len(before) + len(candidate)
    counted = max(0, len(before) - _COUNTED), stop + min(_COUNTED, len(after))
    return Crop(before + candidate + after, *counted)
