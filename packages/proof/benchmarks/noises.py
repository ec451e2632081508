"""Kinds of mistakes that are added to clean text, word by word.

noisy = add_noise("to be, or not to be", "typos", rate=0.05, seed=0)
noisy.text, noisy.words          # a noisy word for each word of the clean text

`rate` is the probability of a mistake at each place where that kind can be made: a letter
(`random`, `typos`), a character that the error model lists (`keyboard`, `ocr`), or a listed word
(`confusions`). White space is never changed, so words stay aligned. The same seed makes the same
mistakes, and those of a lower rate are among those of a higher one, except for `typos`.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from gidd_proof.error_models import ErrorModel, error_model

NOISES: Final[Mapping[str, str]] = {
    "random": "each letter is replaced with probability `rate` by another lower-case letter",
    "keyboard": "each character of a US keyboard is replaced with probability `rate` by that of a "
    "neighbouring key",
    "ocr": "each character that has look-alikes is replaced with probability `rate` by one",
    "typos": "at each letter with probability `rate`: 35% dropped, 25% a letter added after it, "
    "27% replaced, 13% exchanged with the next letter of the word",
    "confusions": "each word of a list (to/too, of/off, form/from, ...) is replaced with "
    "probability `rate` by one it is confused with",
}
"""Kinds of noise, and what they do."""

_DROPPED, _ADDED, _REPLACED = 0.35, 0.60, 0.87
"""Cumulative probabilities of the kinds of typos; the rest are exchanged."""

_WORD = re.compile(r"\S+")
_CORE = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")


_GROUPS = """
to/too/two of/off form/from there/their/they're then/than its/it's were/where/we're
lose/loose your/you're who's/whose affect/effect accept/except advice/advise
principal/principle weather/whether quiet/quite desert/dessert past/passed peace/piece
right/write/rite know/no new/knew hear/here for/four/fore by/buy/bye one/won our/hour/are
some/sum son/sun sea/see meet/meat week/weak great/grate break/brake fair/fare hole/whole
plain/plane rain/reign role/roll sail/sale steal/steel tail/tale wait/weight waist/waste
war/wore way/weigh wear/ware would/wood not/knot night/knight made/maid mail/male
be/bee been/bean/being bear/bare board/bored cell/sell cent/sent/scent dear/deer die/dye
ensure/insure feet/feat capital/capitol council/counsel complement/compliment course/coarse
cite/site/sight lead/led later/latter least/lest lessen/lesson moral/morale might/mite
united/untied trail/trial county/country on/no is/his as/has/is at/hat and/an/any this/his
the/then/them how/who now/know/not can/an had/has will/well must/most more/mere
though/thought/through threw/through think/thing was/saw or/our in/inn/on if/is it/is
he/her we/he so/sow do/due than/that choose/chose breath/breathe cloths/clothes
conscience/conscious device/devise elicit/illicit eminent/imminent farther/further
personal/personnel precede/proceed stationary/stationery statue/statute
"""

CONFUSED_WORDS: Final[tuple[tuple[str, ...], ...]] = tuple(
    tuple(words.split("/")) for words in _GROUPS.split()
)
"""Groups of words: each may be written for another of its group."""


class NoisyText(NamedTuple):
    """A text with mistakes, aligned with the clean one."""

    clean: str
    text: str
    clean_words: tuple[str, ...]
    words: tuple[str, ...]
    """The noisy word for each clean word."""


def add_noise(text: str, kind: str, rate: float, seed: int = 0) -> NoisyText:
    """Make mistakes of one kind in a text; the seed decides where and which."""
    if kind not in NOISES:
        raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {kind!r}.")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}. It is a fraction, e.g. 0.05.")
    change, numbers = _NOISES[kind], random.Random(f"{kind} {seed}")
    words = _WORD.findall(text)
    noisy = [change(word, rate, numbers) for word in words]
    remaining = iter(noisy)
    return NoisyText(text, _WORD.sub(lambda _: next(remaining), text), tuple(words), tuple(noisy))


def _random_letters(word: str, rate: float, numbers: random.Random) -> str:
    # both numbers are drawn at every letter, so that a higher rate adds mistakes to the same ones
    return "".join(
        _other_letter(c, pick) if is_wrong else c
        for c in word
        for is_wrong, pick in [_draw(c.isalpha(), rate, numbers)]
    )


def _keyboard(word: str, rate: float, numbers: random.Random) -> str:
    return _through(_error_model("keyboard"), word, rate, numbers)


def _ocr(word: str, rate: float, numbers: random.Random) -> str:
    return _through(_error_model("ocr"), word, rate, numbers)


def _through(model: ErrorModel, word: str, rate: float, numbers: random.Random) -> str:
    """Replace characters as an error model does."""
    written = list(word)
    for i, right in enumerate(word):
        others = model.by_right.get(right, {})
        is_wrong, pick = _draw(bool(others), rate, numbers)
        if is_wrong:
            total = 0.0
            for other, probability in others.items():  # the last one if sums are rounded
                written[i], total = other, total + probability
                if pick < total:
                    break
    return "".join(written)


def _typos(word: str, rate: float, numbers: random.Random) -> str:
    """Drop, add, replace and exchange letters; a word never becomes empty."""
    written: list[str] = []
    i = 0
    while i < len(word):
        c, following = word[i], word[i + 1 : i + 2]
        is_wrong, pick = _draw(c.isalpha(), rate, numbers)
        kind = numbers.random() if is_wrong else 1.0
        if not is_wrong:
            written.append(c)
        elif kind < _DROPPED and (written or following):
            pass
        elif _DROPPED <= kind < _ADDED:
            written += c, _letter(pick)
        elif kind >= _REPLACED and following.isalpha() and following != c:
            written += following, c
            i += 1
        else:
            written.append(_other_letter(c, pick))
        i += 1
    return "".join(written)


def _confusions(word: str, rate: float, numbers: random.Random) -> str:
    """Replace a word of the list, with the punctuation around it and its capitals kept."""
    core = _CORE.search(word)
    others = _confusable().get(core.group().lower(), []) if core else []
    is_wrong, pick = _draw(bool(others), rate, numbers)
    if core is None or not is_wrong:
        return word
    other = with_case_of(core.group(), others[int(pick * len(others))])
    return word[: core.start()] + other + word[core.end() :]


def with_case_of(word: str, other: str) -> str:
    """Return `other` in capitals, with a capital first letter, or as it is, like `word`."""
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def _draw(can_change: bool, rate: float, numbers: random.Random) -> tuple[bool, float]:
    """Return whether there is a mistake, and a number that decides which one."""
    if not can_change:
        return False, 0.0
    is_wrong, pick = numbers.random() < rate, numbers.random()
    return is_wrong, pick


def _letter(pick: float) -> str:
    return string.ascii_lowercase[int(pick * len(string.ascii_lowercase))]


def _other_letter(character: str, pick: float) -> str:
    letters = string.ascii_lowercase.replace(character.lower(), "")
    return letters[int(pick * len(letters))]


def confusions_of(groups: tuple[tuple[str, ...], ...] = CONFUSED_WORDS) -> dict[str, list[str]]:
    """Return the words that may be written for each word, in the order of the groups."""
    found: dict[str, list[str]] = {}
    for words in groups:
        for word in words:
            others = found.setdefault(word, [])
            others += [other for other in words if other != word and other not in others]
    return found


@lru_cache
def _error_model(name: str) -> ErrorModel:
    return error_model(name)


@lru_cache(maxsize=1)
def _confusable() -> dict[str, list[str]]:
    return confusions_of()


_NOISES: Mapping[str, Callable[[str, float, random.Random], str]] = {
    "random": _random_letters,
    "keyboard": _keyboard,
    "ocr": _ocr,
    "typos": _typos,
    "confusions": _confusions,
}
