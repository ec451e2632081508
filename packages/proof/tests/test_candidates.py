"""Doubtful words and what might be right there."""

import pytest
from gidd_proof.candidates import find_places, word_candidates
from gidd_proof.edit_model import EditModel
from gidd_proof.words import WordList

WORDS = WordList({"the": 50, "of": 40, "union": 10, "united": 5, "states": 9, "us": 3})
EDITS = EditModel(0.02)


def places(text, protected=()):
    return [text[p.start : p.stop] for p in find_places(text, protected, WORDS, EDITS)]


def candidates(text, **options):
    return [c.text for c in word_candidates(text, WORDS, EDITS, **options)]


def test_unknown_words_with_near_ones_are_doubtful():
    assert places("the unoin, 1890 of xyzzyxyzzy") == ["unoin"]
    assert places("東京 унион unoin x") == ["unoin"]


@pytest.mark.parametrize("protected", [[(0, 1)], [(0, 20), (2, 3)], [(4, 5)]])
def test_protected_words_are_left_out(protected):
    assert places("unoin unoin", protected) == [[], ["unoin"]][protected[0][1] < 20]


def test_candidates_keep_the_case_of_the_writer():
    assert "Union" in candidates("Unoin")
    assert candidates("unoin", begins_sentence=True)[0] == "Union"
    assert "United" not in candidates("uniped")


def test_sentences_begin_with_a_capital():
    text = "of us. unoin"
    (place,) = find_places(text, (), WORDS, EDITS)
    assert place.candidates[0].text == "Union"


def test_candidates_have_dropped_spaces():
    assert "of the" in candidates("ofthe")
    many = WordList(dict.fromkeys(["the", "of", "un", "seen"], 1) | {"a": 10**6})
    found = word_candidates("unseen", many, EDITS)
    assert "un seen" not in [candidate.text for candidate in found]  # rare: perhaps a prefix


def test_the_most_likely_candidates_come_first():
    assert candidates("unoin")[0] == "union"
