"""Doubtful words and what might be right there."""

import pytest
from gidd_proof.candidates import CandidateFinder, begins_sentence, find_places
from gidd_proof.contexts import END, Contexts, Neighbours, Table
from gidd_proof.edit_model import EditModel
from gidd_proof.words import WordList

WORDS = WordList({"the": 50, "of": 40, "union": 10, "united": 5, "states": 9, "us": 3})
EDITS = EditModel(0.02)
CONTEXTS = Contexts(Table.without_ngrams())
ALONE = Neighbours((END, END), (END, END))


def places(text, protected=()):
    return [text[p.start : p.stop] for p in find_places(text, protected, WORDS, EDITS, CONTEXTS)]


def candidates(text, words=WORDS, **options):
    finder = CandidateFinder(words, EDITS, CONTEXTS, has_capitals=True)
    return [c.text for c in finder.of_unknown(text, ALONE, **options)]


def test_unknown_words_with_near_ones_are_doubtful():
    assert places("the unoin, 1890 of xyzzyxyzzy") == ["unoin"]
    assert places("東京 унион unoin x") == ["unoin"]


@pytest.mark.parametrize("protected", [[(0, 1)], [(0, 20), (2, 3)], [(4, 5)]])
def test_protected_words_are_left_out(protected):
    assert places("unoin unoin", protected) == [[], ["unoin"]][protected[0][1] < 20]


def test_candidates_keep_the_case_of_the_writer():
    assert "Union" in candidates("Unoin")
    assert candidates("unoin", begins=True)[0] == "Union"
    assert "United" not in candidates("uniped")


def test_sentences_begin_with_a_capital():
    text = "Of us. unoin"
    (place,) = find_places(text, (), WORDS, EDITS, CONTEXTS)
    assert place.candidates[0].text == "Union"


def test_candidates_have_dropped_spaces():
    assert "of the" in candidates("ofthe")
    many = WordList(dict.fromkeys(["the", "of", "un", "seen"], 1) | {"a": 10**6})
    assert "un seen" not in candidates("unseen", many)  # rare: perhaps a prefix


def test_the_most_likely_candidates_come_first():
    assert candidates("unoin")[0] == "union"


def test_texts_without_capitals_keep_none():
    (place,) = find_places("of us. unoin", (), WORDS, EDITS, CONTEXTS)
    assert place.candidates[0].text == "union"


@pytest.mark.parametrize("before", ["", "He left. ", 'He left! "', "in 1990. ", "("])
def test_beginnings_of_sentences(before):
    assert begins_sentence(before + "word", len(before))


@pytest.mark.parametrize("before", ["the ", "Mr ", "left, ", "e.g "])
def test_words_within_sentences(before):
    assert not begins_sentence(before + "word", len(before))


def test_names_get_their_capital(proofreader):
    (place,) = find_places(
        "We went to Lodnon and to lodnon.", (), proofreader.words, EDITS, proofreader.contexts
    )[1:]
    assert place.candidates[0].text == "London"


def test_words_of_a_user_are_right_in_every_place(proofreader):
    text = "They will loose the game."
    words = proofreader.words
    found = find_places(text, (), words, EDITS, proofreader.contexts)
    assert [place.candidates[0].text for place in found] == ["lose"]
    mine = words.with_words(["Loose"])
    assert find_places(text, (), mine, EDITS, proofreader.contexts) == []
