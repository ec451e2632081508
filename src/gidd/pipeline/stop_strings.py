"""Stop strings: texts before which the generated part of a sample ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from gidd.common.config.allowed import require_arguments
from gidd.errors import ConfigError
from gidd.pipeline.options import STOP
from gidd.pipeline.results import Generation
from gidd.pipeline.text import TokenDecoder


def require_stop(stop: Sequence[str], suffix: str = "") -> None:
    """Raise `ConfigError` if the stop strings of a sample with this suffix are invalid."""
    require_arguments(stop=(stop, STOP))
    if stop and suffix:
        raise ConfigError(f"stop must be empty with a suffix, which ends the text, got {stop}.")


def end_of_text(text: str, stop: Sequence[str]) -> int:
    """Return where the first stop string of a text begins; its length if there is none."""
    return min((place for place in map(text.find, stop) if place >= 0), default=len(text))


def without_partial_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text without the beginning of a stop string at its end, which may yet become one."""
    lengths = (n for string in stop for n in range(1, len(string)) if text.endswith(string[:n]))
    return text[: len(text) - max(lengths, default=0)]


def cut_at_stop(
    generation: Generation, token_texts: TokenDecoder, num_given: int, stop: Sequence[str]
) -> Generation:
    """Return a result that ends before the first stop string after the given tokens.

    `tokens` end before the token in which the string begins, of which `text` may have a part.
    """
    texts = token_texts(generation.tokens)
    text = "".join(texts[num_given:])
    end = end_of_text(text, stop)
    if end == len(text):
        return generation
    kept = num_given + bisect_right(list(accumulate(map(len, texts[num_given:]))), end)
    return replace(
        generation,
        text="".join(texts[:num_given]) + text[:end],
        tokens=generation.tokens[:kept],
        filled=(text[:end],),
        confidence=generation.confidence and generation.confidence[:kept],
    )
