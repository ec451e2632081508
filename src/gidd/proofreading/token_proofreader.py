"""Corrections of a text token by token: the posterior of each, at fixed positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from gidd.proofreading.edits import Alternative, JudgedText, TextEdit, decide, is_doubtful
from gidd.proofreading.posterior_pass import PosteriorPass
from gidd.proofreading.window_reader import TextWindows
from gidd.sampling.jobs import Jobs


@final
@dataclass(frozen=True)
class TokenProofreader:
    """Judges every token of a text by its posterior: exact for randomly replaced tokens."""

    judge: PosteriorPass
    text_of: Callable[[int], str]
    """Text of a token."""

    context: int

    async def __call__(
        self,
        jobs: Jobs,
        texts: Sequence[str],
        tokens: Sequence[int],
        fixed: Sequence[bool],
        error_rate: float,
        min_confidence: float | None = None,
    ) -> JudgedText:
        """Return the doubtful tokens of a text with their alternatives, in order.

        Args:
            jobs: Jobs in progress, which share forward passes.
            texts: Text of each token.
            tokens: The tokens.
            fixed: Positions that are not changed.
            error_rate: Fraction of wrong tokens.
            min_confidence: Least probability of a change; None for the most likely token.
        """
        cut = TextWindows(tokens, fixed, self.context)
        starts = [0]
        for text in texts:
            starts.append(starts[-1] + len(text))
        edits: list[TextEdit] = []
        posteriors = await self.judge(jobs, cut, error_rate)
        for part, window, posterior in zip(cut.parts, cut, posteriors, strict=True):
            found, others = posterior.found.tolist(), posterior.tokens.tolist()
            probabilities = posterior.probabilities.tolist()
            for i, is_judged in enumerate(window.judged):
                if is_judged:
                    place = part.start + i
                    likely = map(self.text_of, others[i])
                    listed = map(Alternative, likely, probabilities[i])
                    old = Alternative(texts[place], found[i])
                    edits.append(decide(starts[place], old.text, [old, *listed], min_confidence))
        return JudgedText([edit for edit in edits if is_doubtful(edit)], len(cut))
