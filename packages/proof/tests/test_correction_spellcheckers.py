"""Spell checkers: what they do to words, and that they are called as well as they can be."""

import pytest
from gidd.evaluation.correction.near_words import NearWords, is_one_edit
from gidd.evaluation.correction.spellcheckers import SPELLCHECKERS, spellchecker

from gidd.errors import ConfigError

PACKAGES = {"symspellpy": "symspellpy", "pyspellchecker": "spellchecker"}


@pytest.fixture(scope="module", params=SPELLCHECKERS)
def corrector(request):
    pytest.importorskip(PACKAGES[request.param], reason="needs gidd[eval]")
    return spellchecker(request.param)


def test_mistakes_are_corrected_and_the_rest_is_kept(corrector):
    text = "The peuple of tkis coumtry, (and goveenment)  in 1789;\n\tCONGRES-elected “statse”"
    expected = "The people of this country, (and government)  in 1789;\n\tCONGRESS-elected “state”"
    assert corrector(text) in (expected, expected.replace("“state”", "“states”"))
    clean = "We the People of the United States 12,345.67 1st — 🙂\r\n"
    assert corrector(clean) == clean
    assert corrector("") == ""


def test_digits_and_signs_within_a_word_are_part_of_it(corrector):
    assert corrector("c0untry, gov;rnment.") == "country, government."


def test_pyspellchecker_is_what_the_package_does_at_distance_two():
    package = pytest.importorskip("spellchecker", reason="needs gidd[eval]")
    correct, own = spellchecker("pyspellchecker"), package.SpellChecker(distance=2)
    for word in ("wrld", "xkey", "haevn", "lwa", "eviel", "abouf", "pezce", "zzzzz", "of", "senf"):
        found = own.candidates(word) or {word}
        assert correct(word) == max(sorted(found), key=own.__getitem__)


def one_edit(word, letters="abcdé"):
    splits = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    found = {a + b[1:] for a, b in splits if b} | {a + c + b for a, b in splits for c in letters}
    found |= {a + b[1] + b[0] + b[2:] for a, b in splits if len(b) > 1}
    return found | {a + c + b[1:] for a, b in splits if b for c in letters}


def test_near_words_are_those_that_two_edits_give():
    words = sorted(one_edit("abca") | one_edit("dd") | one_edit("bacdab") | {"é"})
    near = NearWords(words)
    for word in ("abca", "ad", "cb", "bacd", "adbca", "x", "abcd!", "cabacab"):
        once = one_edit(word)
        twice = {other for changed in once for other in one_edit(changed)}
        assert near.within_two_edits(word, once) == sorted(twice & set(words))
        for other in words:
            assert is_one_edit(word, other) == (other in once | {word})


def test_unknown_packages():
    with pytest.raises(ConfigError, match="symspellpy, pyspellchecker, got 'hunspell'"):
        spellchecker("hunspell")
