"""Doubtful places and what might be right there."""

from gidd_proof.candidates import Region, doubtful_regions, word_candidates
from gidd_proof.edit_model import EditModel
from gidd_proof.words import WordList

WORDS = WordList({"the": 50, "of": 40, "union": 10, "united": 5, "states": 9, "us": 3})
COSTS = EditModel(0.02)


def regions(text, found=None, fixed=None):
    found = found or [1.0] * len(text)
    return list(doubtful_regions(text, found, fixed or [False] * len(text), WORDS))


def candidates(text, suggested=None):
    return [c.text for c in word_candidates(text, suggested or text, WORDS, COSTS)]


def test_unknown_words_and_doubtful_characters_are_doubtful():
    text = "the unoin, 1890"
    assert regions(text) == [Region(4, 9)]
    found = [1.0] * len(text)
    found[1], found[9], found[12] = 0.5, 0.3, 0.4
    assert regions(text, found) == [Region(0, 3), Region(4, 9), Region(9, 10), Region(12, 13)]


def test_fixed_places_are_left_out():
    text = "unoin unoin"
    assert regions(text, fixed=[True] + [False] * 10) == [Region(6, 11)]


def test_digits_inside_words_belong_to_them():
    assert regions("un1on 1890") == [Region(0, 5)]
    assert "union" in candidates("un1on")


def test_candidates_keep_the_case_of_the_writer():
    assert "Union" in candidates("Unoin")
    assert {"united", "United"} <= set(candidates("tnited"))  # the initial may have been a capital
    assert "United" not in candidates("uniped")


def test_candidates_have_the_suggestion_and_dropped_spaces():
    assert "of the" in candidates("ofthe")
    many = WordList(dict.fromkeys(["the", "of", "un", "seen"], 1) | {"a": 10**6})
    found = word_candidates("unseen", "unseen", many, COSTS)
    assert "un seen" not in [candidate.text for candidate in found]  # rare: perhaps a prefix
    assert "zzzzz" in candidates("unoin", suggested="zzzzz")
    assert "unoin" not in candidates("unoin")


def test_the_most_likely_candidates_come_first():
    assert candidates("unoin")[0] == "union"
