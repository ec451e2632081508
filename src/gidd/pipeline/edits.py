"""Places of a text that may be wrong, and the alternatives at each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

DOUBTFUL_TEXT: Final = 0.9
"""A place is listed if it is right as it is with less than this probability."""


class Alternative(NamedTuple):
    """A text that may be right at some place."""

    text: str
    probability: float


class TextEdit(NamedTuple):
    """A place of a text that may be wrong, and whether it is changed."""

    start: int
    """Index of its first character in the original text."""

    old: str
    new: str
    """Replacement; equal to `old` if the place is not changed."""

    alternatives: tuple[Alternative, ...]
    """What may be right there, most likely first; `old` is one of them."""

    @property
    def stop(self) -> int:
        """Index of the character after the last one."""
        return self.start + len(self.old)

    @property
    def is_change(self) -> bool:
        """Whether the place is changed."""
        return self.new != self.old

    @property
    def confidence(self) -> float:
        """Probability that the new text is right."""
        return self.probability_of(self.new)

    @property
    def best_other(self) -> str:
        """The new text; if the place is not changed, the most likely other text."""
        if self.is_change:
            return self.new
        return next((a.text for a in self.alternatives if a.text != self.old), self.old)

    def probability_of(self, text: str) -> float:
        """Return the probability that a text is right at this place; 0 if it is not listed."""
        return next((a.probability for a in self.alternatives if a.text == text), 0.0)

    def moved(self, offset: int) -> TextEdit:
        """Return the same edit in a text that has `offset` more characters before it."""
        return self._replace(start=self.start + offset)


def decide(
    start: int, old: str, alternatives: Iterable[Alternative], min_confidence: float | None
) -> TextEdit:
    """Return the edit of a place: the most likely alternative, if it is likely enough.

    By default the most likely one is chosen, which minimises the expected number of wrong places.
    """
    ordered = sorted(alternatives, key=lambda a: (-a.probability, a.text != old, a.text))
    best = ordered[0]
    is_change = best.text != old and best.probability >= (min_confidence or 0.0)
    return TextEdit(start, old, best.text if is_change else old, tuple(ordered))


def is_doubtful(edit: TextEdit) -> bool:
    """Whether an edit is worth listing."""
    return edit.is_change or edit.probability_of(edit.old) < DOUBTFUL_TEXT


def apply_edits(text: str, edits: Sequence[TextEdit]) -> str:
    """Return a text with its edits, which are in order and do not overlap."""
    parts: list[str] = []
    last = 0
    for edit in edits:
        parts += [text[last : edit.start], edit.new]
        last = edit.stop
    return "".join([*parts, text[last:]])
